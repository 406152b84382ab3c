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

    /// Returns the options of the listener of a series.
    pub fn of_listener(&self, series: &Series) -> Vec<(String, String)> {
        let files = [("tls_cert", CERT), ("tls_key", KEY), ("tls_ca", CA)];
        let files = files.into_iter().filter(|_| uses_tls(series));
        files.map(|(option, name)| (option.to_owned(), self.path(name))).collect()
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
