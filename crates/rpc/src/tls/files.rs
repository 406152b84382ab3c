//! Certificates, keys and revocation lists, from PEM files.

use std::{
    fs::File,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

/// A file that cannot be used, with the option that names it.
#[derive(Clone, Debug)]
pub(crate) struct BadFile {
    pub option: &'static str,
    pub problem: String,
}

/// A file that an option names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PemFile {
    pub option: &'static str,
    pub path: PathBuf,
}

impl PemFile {
    /// Returns the certificates in the file.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, BadFile> {
        self.items(&self.read()?, "certificate")
    }

    /// Returns the certificates in the file as trusted issuers.
    pub fn roots(&self) -> Result<RootCertStore, BadFile> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.bad(format!("a certificate is not valid: {error}")))?;
        }
        Ok(roots)
    }

    /// Returns the revocation lists in the file.
    pub fn revocations(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, BadFile> {
        self.items(&self.read()?, "revocation list")
    }

    /// Returns the private key in the file, which no other user may read.
    pub fn key(&self) -> Result<PrivateKeyDer<'static>, BadFile> {
        self.check_secret()?;
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(|error| match error {
            pem::Error::NoItemsFound => self.bad("has no private key in PEM form".to_owned()),
            error => self.bad(error.to_string()),
        })
    }

    pub fn bad(&self, problem: String) -> BadFile {
        BadFile { option: self.option, problem: format!("{}: {problem}", self.path.display()) }
    }

    fn items<T: PemObject>(&self, text: &[u8], what: &str) -> Result<Vec<T>, BadFile> {
        let items: Result<Vec<T>, _> = T::pem_slice_iter(text).collect();
        match items {
            Ok(items) if items.is_empty() => Err(self.bad(format!("has no {what} in PEM form"))),
            Ok(items) => Ok(items),
            Err(error) => Err(self.bad(error.to_string())),
        }
    }

    fn read(&self) -> Result<Vec<u8>, BadFile> {
        let mut text = Vec::new();
        let read = File::open(&self.path).and_then(|file| file.take(FILE_MAX + 1).read_to_end(&mut text));
        read.map_err(|error| self.bad(error.to_string()))?;
        if text.len() as u64 > FILE_MAX {
            return Err(self.bad(format!("is longer than {} MiB", FILE_MAX >> 20)));
        }
        Ok(text)
    }

    /// Checks that no other user can read the key, or replace it. A key of root may be readable by its group.
    fn check_secret(&self) -> Result<(), BadFile> {
        let found = self.path.metadata().map_err(|error| self.bad(error.to_string()))?;
        let own = rustix::process::geteuid().as_raw();
        if found.uid() != own && found.uid() != 0 {
            return Err(
                self.bad(format!("belongs to the user {}, but must belong to this user or to root", found.uid()))
            );
        }
        let (mode, forbidden) = (found.mode() & 0o777, if found.uid() == 0 { 0o027 } else { 0o077 });
        if mode & forbidden != 0 {
            return Err(self.bad(format!("has the mode {mode:04o}: other users must not have access (chmod 600)")));
        }
        Ok(())
    }
}

/// Returns the file of the system's trusted issuers.
pub(crate) fn system_roots() -> Option<PathBuf> {
    SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.is_file()).map(Path::to_path_buf)
}

/// The files in which systems keep the issuers that they trust.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Maximum bytes of a file.
const FILE_MAX: u64 = 16 << 20;
