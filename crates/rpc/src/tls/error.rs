//! The texts of TLS errors.

use std::{path::Path, time::Duration};

use rustls::{
    AlertDescription, CertificateError, Error, InvalidMessage, PeerMisbehaved,
    pki_types::{ServerName, UnixTime},
};

use super::files::span;

/// Describes an error of a handshake, in which certificates are judged by the revocation lists in the file `crl`.
pub(crate) fn describe_handshake(error: &Error, crl: Option<&Path>) -> String {
    let expired = match error {
        Error::InvalidCertificate(CertificateError::ExpiredRevocationListContext { time, next_update }) => {
            format!(" {} ago", between(time, next_update))
        }
        Error::InvalidCertificate(CertificateError::ExpiredRevocationList) => String::new(),
        error => return describe(error),
    };
    let file = crl.map_or_else(String::new, |path| format!(" in {}", path.display()));
    format!("TLS: the peer's certificate cannot be checked: its revocation list{file} expired{expired} (nextUpdate)")
}

/// Describes an error for a person: what is wrong, and on which side.
pub(crate) fn describe(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => format!("TLS: the peer's certificate {}", of_certificate(error)),
        Error::AlertReceived(alert) => format!("TLS: the peer refused the session: {}", of_alert(*alert)),
        Error::NoApplicationProtocol => "TLS: the peer offers another application protocol than sunrpc".to_owned(),
        Error::NoCertificatesPresented => "TLS: the peer has sent no certificate".to_owned(),
        Error::InvalidMessage(InvalidMessage::UnexpectedMessage(what)) => {
            format!("TLS: the peer has sent an invalid record: {what}")
        }
        Error::InvalidMessage(problem) => format!("TLS: the peer has sent an invalid record: {problem:?}"),
        Error::PeerSentOversizedRecord => "TLS: the peer has sent an invalid record: it is too long".to_owned(),
        Error::PeerMisbehaved(PeerMisbehaved::TooManyEmptyFragments) => {
            "TLS: the peer has sent too many records without data".to_owned()
        }
        Error::DecryptError => "TLS: a record could not be decrypted".to_owned(),
        error => format!("TLS: {error}"),
    }
}

fn of_certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired => "has expired".to_owned(),
        CertificateError::ExpiredContext { time, not_after } => format!("expired {} ago", between(time, not_after)),
        CertificateError::NotValidYet => "is not valid yet".to_owned(),
        CertificateError::NotValidYetContext { time, not_before } => {
            format!("is not valid yet: it will be in {}", between(time, not_before))
        }
        CertificateError::Revoked => "has been revoked".to_owned(),
        CertificateError::UnknownIssuer => {
            "is from an unknown issuer: no certificate in tls_ca has signed it".to_owned()
        }
        CertificateError::UnknownRevocationStatus => {
            "cannot be checked for revocation: tls_crl has no list of its issuer".to_owned()
        }
        CertificateError::NotValidForName => "is for another name".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let expected = match expected {
                ServerName::DnsName(name) => name.as_ref().to_owned(),
                other => other.to_str().into_owned(),
            };
            let presented = if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") };
            format!("is for another name: it has {presented}, not '{expected}'")
        }
        CertificateError::BadSignature => "has a wrong signature".to_owned(),
        error => format!("is not valid: {error}"),
    }
}

fn between(now: &UnixTime, then: &UnixTime) -> String {
    span(Duration::from_secs(now.as_secs().abs_diff(then.as_secs())))
}

fn of_alert(alert: AlertDescription) -> String {
    let text = match alert {
        AlertDescription::CertificateExpired => "our certificate has expired",
        AlertDescription::CertificateRevoked => "our certificate has been revoked",
        AlertDescription::UnknownCA => "it does not know the issuer of our certificate",
        AlertDescription::CertificateRequired => "it demands a certificate of this side (xprtsec=mtls)",
        AlertDescription::BadCertificate => "it rejects our certificate",
        AlertDescription::CertificateUnknown => "it rejects our certificate",
        AlertDescription::AccessDenied => "the names in our certificate are not admitted",
        AlertDescription::NoApplicationProtocol => "it does not accept our application protocol",
        AlertDescription::ProtocolVersion => "it does not support TLS 1.3",
        AlertDescription::HandshakeFailure => "we have no cipher in common",
        other => return format!("alert {other:?}"),
    };
    text.to_owned()
}
