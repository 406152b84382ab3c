//! The texts of TLS errors.

use std::time::Duration;

use rustls::{
    AlertDescription, CertificateError, Error,
    pki_types::{ServerName, UnixTime},
};

use crate::TransportError;

/// Returns the error of a connection whose TLS session has failed.
pub(crate) fn lost(error: &Error) -> TransportError {
    TransportError::Lost(describe(error))
}

/// Describes an error for a person: what is wrong, and on which side.
pub(crate) fn describe(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => format!("TLS: the peer's certificate {}", of_certificate(error)),
        Error::AlertReceived(alert) => format!("TLS: the peer refused the session: {}", of_alert(*alert)),
        Error::NoApplicationProtocol => "TLS: the peer offers another application protocol than sunrpc".to_owned(),
        Error::NoCertificatesPresented => "TLS: the peer has sent no certificate".to_owned(),
        Error::DecryptError => "TLS: a record could not be decrypted".to_owned(),
        error => format!("TLS: {error}"),
    }
}

fn of_certificate(error: &CertificateError) -> String {
    let ago = |now: &UnixTime, then: &UnixTime| {
        let seconds = now.as_secs().abs_diff(then.as_secs());
        match Duration::from_secs(seconds).as_secs() / 86_400 {
            0 => format!("{seconds} seconds"),
            days => format!("{days} days"),
        }
    };
    match error {
        CertificateError::Expired => "has expired".to_owned(),
        CertificateError::ExpiredContext { time, not_after } => format!("expired {} ago", ago(time, not_after)),
        CertificateError::NotValidYet => "is not valid yet".to_owned(),
        CertificateError::NotValidYetContext { time, not_before } => {
            format!("is not valid yet: it will be in {}", ago(time, not_before))
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
