//! [`TlsSurvey`]: what an administrator has to know about the files of a listener.

use std::{
    net::IpAddr,
    ops::Range,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use rustls::pki_types::{CertificateDer, ServerName};
use x509_parser::{extensions::GeneralName, prelude::X509Certificate, time::ASN1Time};

use super::{
    files::{BadFile, PemFile},
    server::ServerTls,
};
use crate::{OptionReader, RawOptions};

/// The properties of the files of a listener with TLS, all of which the listener can use.
#[derive(Clone, Debug)]
pub struct TlsSurvey {
    /// The file of the server's certificate.
    pub certificate: PathBuf,
    /// The DNS names and addresses for which the certificate is valid.
    pub names: Vec<String>,
    /// The time for which all certificates of the file are valid.
    pub valid: Range<SystemTime>,
    /// The file of revocation lists, and the time at which the first of them expires.
    pub revoked: Option<(PathBuf, SystemTime)>,
    end_entity: CertificateDer<'static>,
}

impl TlsSurvey {
    /// Examines the files that the options of a listener name. Returns `None` if the listener has no TLS.
    ///
    /// # Errors
    /// A server with these options would not start, or would refuse all clients. The text names the option and the file.
    pub fn of(options: &RawOptions) -> Result<Option<Self>, String> {
        let mut reader = OptionReader::new("tcp", options);
        match ServerTls::parse(&mut reader).map_err(|error| error.to_string())? {
            None => Ok(None),
            Some(tls) => {
                let (cert, crl) = tls.own_files();
                Self::read(cert, crl).map(Some).map_err(|bad| format!("{}: {}", bad.option, bad.problem))
            }
        }
    }

    fn read(cert: &PemFile, crl: Option<&PemFile>) -> Result<Self, BadFile> {
        let certificates = cert.certificates()?;
        let (mut valid, mut names) = (SystemTime::UNIX_EPOCH..far(), Vec::new());
        for (at, certificate) in certificates.iter().enumerate() {
            let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
                .map_err(|error| cert.bad(format!("a certificate is not valid: {error}")))?;
            let validity = parsed.validity();
            valid = valid.start.max(time(validity.not_before))..valid.end.min(time(validity.not_after));
            if at == 0 {
                names = names_of(&parsed);
            }
        }
        let revoked = crl.map(|crl| Ok((crl.path.clone(), crl.lists_end()?))).transpose()?;
        let end_entity = certificates.into_iter().next().expect("a file without certificates must be an error");
        Ok(Self { certificate: cert.path.clone(), names, valid, revoked, end_entity })
    }

    /// Reports whether clients that mount this name accept the certificate. A wildcard counts as they count it.
    pub fn is_for(&self, name: &str) -> bool {
        let Ok(name) = ServerName::try_from(name) else { return false };
        webpki::EndEntityCert::try_from(&self.end_entity)
            .is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(&name).is_ok())
    }
}

/// Returns the names in the certificate (SAN). RFC 9289 §5.2.1: no other names count.
fn names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok().map(|address| address.to_string())
        }
        _ => None,
    };
    extension.value.general_names.iter().filter_map(name).collect()
}

/// Returns a time of a certificate. Times before 1970 are its start.
pub(super) fn time(time: ASN1Time) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
}

/// A time that is later than any that a certificate can have.
fn far() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40)
}

#[cfg(test)]
mod tests {
    use super::super::tests::pki::Pki;
    use super::*;

    #[test]
    fn files_of_a_listener_are_described() {
        let dir = tempfile::tempdir().unwrap();
        let mut pki = Pki::new(dir.path(), "test");
        let server = pki.issue("server", &["*.example.com", "10.0.0.1", "::1"]);
        let (ca, crl) = (pki.ca("test"), pki.revoke_until("list", &[], (2150, 1, 1)));
        let options = |given: &[(&str, &str)]| -> RawOptions {
            given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let all = [("tls_cert", server.cert()), ("tls_key", server.key()), ("tls_ca", &ca[..]), ("tls_crl", &crl[..])];
        let survey = TlsSurvey::of(&options(&all)).unwrap().unwrap();
        assert_eq!(survey.names, ["*.example.com", "10.0.0.1", "::1"]);
        let (file, end) = survey.revoked.clone().unwrap();
        let years = |end: SystemTime| end.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / (365 * 86_400);
        assert_eq!((file.to_str(), years(end)), (Some(&crl[..]), 180));
        assert!(survey.valid.start < SystemTime::now() && survey.valid.end > SystemTime::now());
        for (name, is_right) in [
            ("nfs.example.com", true),
            ("a.b.example.com", false),
            ("10.0.0.1", true),
            ("10.0.0.2", false),
            ("", false),
        ] {
            assert_eq!(survey.is_for(name), is_right, "{name}");
        }
        let old = pki.issue_expired("old", &["nfs.example.com"]);
        let expired = [("tls_cert", old.cert()), ("tls_key", old.key())];
        let ends = TlsSurvey::of(&options(&expired)).unwrap().unwrap().valid.end;
        assert_eq!(years(ends), 30, "an expired certificate is described");
        let mixed = [("tls_cert", old.cert()), ("tls_key", server.key())];
        let error = TlsSurvey::of(&options(&mixed)).unwrap_err();
        assert!(error.contains("server.key: does not fit to"), "{error}");
        assert!(TlsSurvey::of(&options(&[])).unwrap().is_none());
    }
}
