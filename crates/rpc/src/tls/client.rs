//! [`ClientTls`]: TLS on the connecting side: the trusted issuers, the name of the server, and the own certificate.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use rustls::{
    ClientConfig, SignatureScheme,
    client::{ResolvesClientCert, Resumption, WebPkiServerVerifier},
    pki_types::ServerName,
    sign::CertifiedKey,
    version::TLS13,
};

use super::{
    ALPN, Clock,
    files::{self, BadFile, PemFile},
    provider,
};
use crate::{OptionError, OptionReader};

/// TLS of the connections to one server.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    certified: Option<Arc<CertifiedKey>>,
    name: ServerName<'static>,
    /// The program and version of the probe.
    program: (u32, u32),
}

/// The kinds of protection of a connection, as in nfs(5) and exports(5). A later one is stronger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Xprtsec {
    /// No TLS.
    #[default]
    None,
    /// The connection is encrypted, and the server is authenticated.
    Tls,
    /// The connection is encrypted, and both sides are authenticated.
    Mtls,
}

impl Xprtsec {
    /// Parses the value of the option `xprtsec`.
    ///
    /// # Errors
    /// A text with the valid values.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "tls" => Ok(Self::Tls),
            "mtls" => Ok(Self::Mtls),
            other => Err(format!("'{other}' is none of none, tls and mtls")),
        }
    }
}

impl ClientTls {
    /// Parses the options `xprtsec`, `tls_name`, `tls_program`, `tls_ca`, `tls_crl`, `tls_cert` and `tls_key`, and reads the
    /// files. Returns `None` if `xprtsec` is absent or `none`.
    ///
    /// # Errors
    /// An option is missing or invalid, or a file cannot be used. The error names the option and the file.
    pub fn parse(options: &mut OptionReader<'_>) -> Result<Option<Self>, OptionError> {
        let level = options.text("xprtsec").map_or(Ok(Xprtsec::None), Xprtsec::parse);
        let level = level.map_err(|problem| options.error("xprtsec", problem))?;
        let (name, program) = (options.text("tls_name"), options.text("tls_program"));
        if level == Xprtsec::None {
            return Ok(None);
        }
        let mut file = |option| options.text(option).map(|path| PemFile { option, path: PathBuf::from(path) });
        let (ca, crl, cert, key) = (file("tls_ca"), file("tls_crl"), file("tls_cert"), file("tls_key"));
        let bad = |option: &str, problem: String| options.error(option, problem);
        let name = name.ok_or_else(|| bad("tls_name", "the name of the server is missing".to_owned()))?;
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| bad("tls_name", format!("'{name}' is neither a DNS name nor an address")))?;
        let number = |text: &str| text.parse::<u32>().ok();
        let program = match program.map(|text| text.split_once('.').map(|(p, v)| (number(p), number(v)))) {
            None => NFS,
            Some(Some((Some(program), Some(version)))) => (program, version),
            Some(_) => return Err(bad("tls_program", "expected PROGRAM.VERSION".to_owned())),
        };
        let ca = ca.or_else(|| files::system_roots().map(|path| PemFile { option: "tls_ca", path }));
        let ca = ca.ok_or_else(|| bad("tls_ca", "this system has no file of trusted issuers: name one".to_owned()))?;
        let own = match (level, cert, key) {
            (Xprtsec::Mtls, Some(cert), Some(key)) => Some((cert, key)),
            (Xprtsec::Mtls, ..) => {
                return Err(bad("xprtsec", "mtls needs tls_cert and tls_key, the client's certificate".to_owned()));
            }
            (_, None, None) => None,
            _ => return Err(bad("tls_cert", "a certificate of the client needs xprtsec=mtls".to_owned())),
        };
        let loaded = load(&ca, crl.as_ref(), own).map_err(|file| bad(file.option, file.problem))?;
        let (config, certified) = loaded;
        Ok(Some(Self { config: Arc::new(config), certified, name, program }))
    }

    /// Returns the program and version of the probe.
    pub(crate) fn program(&self) -> (u32, u32) {
        self.program
    }

    pub(crate) fn name(&self) -> &ServerName<'static> {
        &self.name
    }

    /// Returns the configuration of one connection. The flag tells if the server has asked for the client's certificate;
    /// `None` if the client has none.
    pub(crate) fn for_connection(&self) -> (Arc<ClientConfig>, Option<Arc<AtomicBool>>) {
        let Some(certified) = &self.certified else { return (self.config.clone(), None) };
        let asked = Arc::<AtomicBool>::default();
        let mut config = (*self.config).clone();
        config.client_auth_cert_resolver = Arc::new(Own { certified: certified.clone(), asked: asked.clone() });
        (Arc::new(config), Some(asked))
    }
}

fn load(
    ca: &PemFile,
    crl: Option<&PemFile>,
    own: Option<(PemFile, PemFile)>,
) -> Result<(ClientConfig, Option<Arc<CertifiedKey>>), BadFile> {
    let mut builder = WebPkiServerVerifier::builder_with_provider(Arc::new(ca.roots()?), provider());
    if let Some(crl) = crl {
        builder = builder.with_crls(crl.revocations()?);
    }
    let verifier = builder.build().map_err(|error| crl.unwrap_or(ca).bad(error.to_string()))?;
    let mut config = ClientConfig::builder_with_details(provider(), Arc::new(Clock))
        .with_protocol_versions(&[&TLS13])
        .expect("the ciphers must support TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_secret_extraction = true;
    let Some((cert, key)) = own else { return Ok((config, None)) };
    let certified = CertifiedKey::from_der(cert.certificates()?, key.key()?, config.crypto_provider())
        .map_err(|error| key.bad(format!("does not fit to {}: {error}", cert.path.display())))?;
    Ok((config, Some(Arc::new(certified))))
}

/// The client's certificate, and whether the server of a connection has asked for it.
#[derive(Debug)]
struct Own {
    certified: Arc<CertifiedKey>,
    asked: Arc<AtomicBool>,
}

impl ResolvesClientCert for Own {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.certified.key.choose_scheme(schemes)?;
        self.asked.store(true, Relaxed);
        Some(self.certified.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The program NFS, version 4.
const NFS: (u32, u32) = (100_003, 4);
