//! Certificates for tests of TLS.
//!
//! This file uses no crate of this repository, so that tests of the crates below this one can include it. Keys are
//! Ed25519, so that the lengths of all messages of a handshake are the same in each run.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, RevocationReason, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// An issuer of certificates, whose files are in a directory of the test.
pub struct Pki {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// The number of the next certificate.
    next: u64,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The serial number.
    pub serial: u64,
}

impl Issued {
    /// Returns the path of the certificate as text.
    pub fn cert(&self) -> &str {
        text(&self.cert)
    }

    /// Returns the path of the key as text.
    pub fn key(&self) -> &str {
        text(&self.key)
    }
}

impl Pki {
    /// Creates an issuer. Its certificate is the file `NAME-ca.pem` in `dir`.
    pub fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters must be valid");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, format!("{name} issuer"));
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key must be made");
        let certificate = params.self_signed(&key).expect("a certificate must be made");
        let path = dir.join(format!("{name}-ca.pem"));
        fs::write(&path, certificate.pem()).expect("the directory must be writable");
        Self { dir: dir.to_owned(), issuer: Issuer::new(params, key), next: 1 }
    }

    /// Returns the path of the issuer's certificate.
    pub fn ca(&self, name: &str) -> String {
        text(&self.dir.join(format!("{name}-ca.pem"))).to_owned()
    }

    /// Issues a certificate for these DNS names and addresses.
    pub fn issue(&mut self, file: &str, names: &[&str]) -> Issued {
        self.issue_with(file, names, |_| {})
    }

    /// Issues a certificate that expired in the year 2000.
    pub fn issue_expired(&mut self, file: &str, names: &[&str]) -> Issued {
        self.issue_with(file, names, |params| params.not_after = date_time_ymd(2000, 1, 1))
    }

    fn issue_with(&mut self, file: &str, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Issued {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names must be valid");
        let serial = self.next;
        self.next += 1;
        params.serial_number = Some(SerialNumber::from(serial));
        params.distinguished_name.push(DnType::CommonName, file);
        change(&mut params);
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key must be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate must be made");
        let (cert, key_file) = (self.dir.join(format!("{file}.pem")), self.dir.join(format!("{file}.key")));
        fs::write(&cert, certificate.pem()).expect("the directory must be writable");
        fs::write(&key_file, key.serialize_pem()).expect("the directory must be writable");
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).expect("the mode must change");
        Issued { cert, key: key_file, serial }
    }

    /// Writes a revocation list of these certificates, and returns its path.
    pub fn revoke(&self, file: &str, revoked: &[&Issued]) -> String {
        self.revoke_until(file, revoked, (2200, 1, 1))
    }

    /// Writes such a list that expires at the start of a day: its year, month and number.
    pub fn revoke_until(&self, file: &str, revoked: &[&Issued], (year, month, day): (i32, u8, u8)) -> String {
        let revoked = revoked.iter().map(|issued| RevokedCertParams {
            serial_number: SerialNumber::from(issued.serial),
            revocation_time: date_time_ymd(2001, 1, 1),
            reason_code: Some(RevocationReason::KeyCompromise),
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2001, 1, 1),
            next_update: date_time_ymd(year, month, day),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).expect("a list must be made");
        let path = self.dir.join(format!("{file}.crl"));
        fs::write(&path, list.pem().expect("a list must be encoded")).expect("the directory must be writable");
        text(&path).to_owned()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests must be UTF-8")
}
