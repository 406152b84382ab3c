//! [`Certificates`]: the certificates of one run, for the servers and clients that this command starts.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use client::NfsUrl;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rpc::Xprtsec;
use tempfile::TempDir;

use super::series::Series;
use crate::exit::Failure;

/// An issuer, and one certificate for 127.0.0.1 and localhost that servers and clients use.
pub struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// Makes certificates if a series uses TLS.
    ///
    /// # Errors
    /// The temporary directory cannot be written.
    pub fn for_series(series: &[Series]) -> Result<Option<Self>, Failure> {
        series.iter().any(uses_tls).then(Self::make).transpose()
    }

    fn make() -> Result<Self, Failure> {
        let failed = |what: &dyn std::fmt::Display| Failure::failed(format!("cannot make certificates: {what}"));
        let made = || -> Result<_, rcgen::Error> {
            let mut params = CertificateParams::new(Vec::new())?;
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate()?;
            let ca = params.self_signed(&key)?.pem();
            let own = KeyPair::generate()?;
            let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
            let cert = CertificateParams::new(names)?.signed_by(&own, &Issuer::new(params, key))?.pem();
            Ok((ca, cert, own.serialize_pem()))
        };
        let (ca, cert, key) = made().map_err(|error| failed(&error))?;
        let dir = tempfile::Builder::new().prefix("slipway-bench-").tempdir().map_err(|error| failed(&error))?;
        let write = |name: &str, text: String| {
            let path = dir.path().join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
        };
        write(CA, ca)
            .and_then(|()| write(CERT, cert))
            .and_then(|()| write(KEY, key))
            .map_err(|error| failed(&error))?;
        Ok(Self { dir })
    }

    /// Returns the options of the listener of a series. `ktls` applies to both sides, because each sends.
    pub fn of_listener(&self, series: &Series) -> Vec<(String, String)> {
        if !uses_tls(series) {
            return Vec::new();
        }
        let files = [("tls_cert", CERT), ("tls_key", KEY), ("tls_ca", CA)];
        let files = files.into_iter().map(|(option, name)| (option.to_owned(), self.path(name)));
        let ktls = series.mount.get("ktls").map(|value| ("ktls".to_owned(), value.clone()));
        files.chain(ktls).collect()
    }

    /// Adds the files to a URL that uses TLS.
    pub fn add_to(&self, url: &mut NfsUrl) {
        let tls = &mut url.options.tls;
        if tls.xprtsec != Xprtsec::None {
            tls.ca = Some(self.path(CA));
        }
        if tls.xprtsec == Xprtsec::Mtls {
            (tls.cert, tls.key) = (Some(self.path(CERT)), Some(self.path(KEY)));
        }
    }

    fn path(&self, name: &str) -> String {
        Path::join(self.dir.path(), name).to_string_lossy().into_owned()
    }
}

fn uses_tls(series: &Series) -> bool {
    series.mount.get("xprtsec").is_some_and(|kind| kind != "none")
}

const CA: &str = "ca.pem";
const CERT: &str = "cert.pem";
const KEY: &str = "key.pem";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn listeners_get_the_files_and_ktls_of_their_series() {
        let certificates = Certificates::make().unwrap();
        let options = |mount: &[(&str, &str)]| -> Vec<String> {
            let series = Series {
                name: "tcp".to_owned(),
                transport: "tcp".to_owned(),
                options: BTreeMap::new(),
                mount: mount.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
                backend: "memory".to_owned(),
            };
            let options = certificates.of_listener(&series);
            options.into_iter().map(|(key, value)| if key == "ktls" { format!("ktls={value}") } else { key }).collect()
        };
        assert_eq!(options(&[("xprtsec", "tls")]), ["tls_cert", "tls_key", "tls_ca"]);
        assert_eq!(options(&[("xprtsec", "tls"), ("ktls", "off")]), ["tls_cert", "tls_key", "tls_ca", "ktls=off"]);
        assert!(options(&[("xprtsec", "none")]).is_empty());
    }
}
