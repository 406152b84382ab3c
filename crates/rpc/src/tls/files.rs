//! Certificates, keys and revocation lists, from PEM files.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustls::{
    RootCertStore,
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime,
        pem::{self, PemObject},
    },
};

use super::survey::time;

/// A file that cannot be used, with the option that names it.
#[derive(Clone, Debug)]
pub(crate) struct BadFile {
    pub option: &'static str,
    pub problem: String,
}

/// The identity of a file and the time of its last change. If it is the same, the content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    /// Bytes.
    size: u64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
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
        self.items(&self.read(self.open()?)?, "certificate")
    }

    /// Returns the certificates in the file as trusted issuers.
    pub fn roots(&self) -> Result<RootCertStore, BadFile> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.bad(format!("a certificate is not valid: {error}")))?;
        }
        Ok(roots)
    }

    /// Returns the revocation lists in the file. None of them may have expired at `now`: certificates that were revoked
    /// since would be accepted.
    pub fn revocations(&self, now: UnixTime) -> Result<Vec<CertificateRevocationListDer<'static>>, BadFile> {
        let lists: Vec<CertificateRevocationListDer<'static>> =
            self.items(&self.read(self.open()?)?, "revocation list")?;
        for list in &lists {
            let (_, parsed) = x509_parser::parse_x509_crl(list)
                .map_err(|error| self.bad(format!("a revocation list is not valid: {error}")))?;
            // RFC 5280 §5.1.2.5: nextUpdate is always present.
            let Some(next) = parsed.next_update() else {
                return Err(self.bad("a revocation list has no time of its next update".to_owned()));
            };
            let seconds = u64::try_from(next.timestamp()).unwrap_or(0);
            if now.as_secs() >= seconds {
                let ago = span(Duration::from_secs(now.as_secs() - seconds));
                let issuer = parsed.issuer();
                return Err(self.bad(format!("the revocation list of '{issuer}' expired {ago} ago (nextUpdate)")));
            }
        }
        Ok(lists)
    }

    /// Returns the time at which the first of the revocation lists in the file expires.
    pub fn lists_end(&self) -> Result<SystemTime, BadFile> {
        let lists: Vec<CertificateRevocationListDer<'static>> =
            self.items(&self.read(self.open()?)?, "revocation list")?;
        let end = |list: &CertificateRevocationListDer<'_>| {
            let (_, parsed) = x509_parser::parse_x509_crl(list).ok()?;
            parsed.next_update().map(time)
        };
        let ends = lists.iter().map(end).collect::<Option<Vec<_>>>();
        let first = ends.and_then(|ends| ends.into_iter().min());
        first.ok_or_else(|| self.bad("a revocation list is not valid".to_owned()))
    }

    /// Returns the private key in the file, which no other user may read.
    pub fn key(&self) -> Result<PrivateKeyDer<'static>, BadFile> {
        self.key_of(self.open()?)
    }

    /// Returns the key in the opened file. The path is not used again, because it can name another file now.
    fn key_of(&self, file: File) -> Result<PrivateKeyDer<'static>, BadFile> {
        self.check_secret(&file)?;
        PrivateKeyDer::from_pem_slice(&self.read(file)?).map_err(|error| match error {
            pem::Error::NoItemsFound => self.bad("has no private key in PEM form".to_owned()),
            error => self.bad(error.to_string()),
        })
    }

    /// Returns the stamp of the file that the path names now; `None` if there is none.
    pub fn stamp(&self) -> Option<Stamp> {
        let found = self.path.metadata().ok()?;
        let changed = (found.ctime(), found.ctime_nsec());
        Some(Stamp { device: found.dev(), inode: found.ino(), size: found.size(), changed })
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

    fn open(&self) -> Result<File, BadFile> {
        File::open(&self.path).map_err(|error| self.failed(&error))
    }

    fn read(&self, file: File) -> Result<Vec<u8>, BadFile> {
        let mut text = Vec::new();
        file.take(FILE_MAX + 1).read_to_end(&mut text).map_err(|error| self.failed(&error))?;
        if text.len() as u64 > FILE_MAX {
            return Err(self.bad(format!("is longer than {} MiB", FILE_MAX >> 20)));
        }
        Ok(text)
    }

    /// Checks that no other user can read the key, or replace it. A key of root may be readable by its group.
    fn check_secret(&self, file: &File) -> Result<(), BadFile> {
        let found = file.metadata().map_err(|error| self.failed(&error))?;
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

    fn failed(&self, error: &io::Error) -> BadFile {
        self.bad(error.to_string())
    }
}

/// Describes a span of time for a person, in days if it is longer than one.
pub(super) fn span(time: Duration) -> String {
    match (time.as_secs() / 86_400, time.as_secs()) {
        (0, seconds) => format!("{seconds} seconds"),
        (days, _) => format!("{days} days"),
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

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use rcgen::{KeyPair, PKCS_ED25519};

    use super::*;

    #[test]
    fn key_is_judged_and_read_from_one_opened_file() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, mode| {
            let path = dir.path().join(name);
            fs::write(&path, KeyPair::generate_for(&PKCS_ED25519).unwrap().serialize_pem()).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            PemFile { option: "tls_key", path }
        };
        let (secret, open) = (make("secret", 0o600), make("open", 0o644));
        // Between the steps, the path is made to name the other file.
        let opened = secret.open().unwrap();
        let content = secret.key().unwrap();
        fs::copy(&open.path, dir.path().join("copy")).unwrap();
        fs::rename(dir.path().join("copy"), &secret.path).unwrap();
        assert_eq!(secret.key_of(opened).unwrap(), content, "the file that was opened is secret");
        let opened = open.open().unwrap();
        fs::rename(make("other", 0o600).path, &open.path).unwrap();
        let refused = open.key_of(opened).unwrap_err().problem;
        assert!(refused.contains("has the mode 0644"), "{refused}");
    }
}
