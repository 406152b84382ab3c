//! [`ClientTls`]: TLS on the connecting side: the trusted issuers, the name of the server, and the own certificate.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use rustls::{
    ClientConfig, Error, SignatureScheme,
    client::{ResolvesClientCert, Resumption, WebPkiServerVerifier},
    pki_types::ServerName,
    sign::CertifiedKey,
    version::TLS13,
};

use super::{
    ALPN, Clock, Demands, Ktls,
    error::describe_handshake,
    files::{self, BadFile, PemFile, Stamp},
    now, provider,
};
use crate::{OptionError, OptionReader};

/// TLS of the connections to one server. A connection uses the files as they are when it is made.
#[derive(Debug)]
pub struct ClientTls {
    files: Files,
    current: Mutex<Current>,
    name: ServerName<'static>,
    /// The program and version of the probe.
    program: (u32, u32),
    alpn: Alpn,
    ktls: Ktls,
}

#[derive(Debug)]
struct Files {
    ca: PemFile,
    crl: Option<PemFile>,
    /// The client's certificate and key.
    own: Option<(PemFile, PemFile)>,
}

/// The content of the files.
#[derive(Debug)]
struct Current {
    stamps: Vec<Option<Stamp>>,
    loaded: Loaded,
}

#[derive(Clone, Debug)]
struct Loaded {
    config: Arc<ClientConfig>,
    certified: Option<Arc<CertifiedKey>>,
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

/// The rule for the application protocol "sunrpc" (ALPN). A server that selects another protocol is never accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alpn {
    /// It must, as RFC 9289 §5 demands.
    #[default]
    Required,
    /// It may select none, as Linux's server does: its tlshd has no application protocol for TCP.
    Optional,
}

impl Alpn {
    /// Parses the value of the option `tls_alpn`.
    ///
    /// # Errors
    /// A text with the valid values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let named = [Self::Required, Self::Optional].into_iter().find(|alpn| alpn.name() == text);
        named.ok_or_else(|| format!("'{text}' is neither required nor optional"))
    }

    /// Returns the value of the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
        }
    }
}

impl ClientTls {
    /// Parses the options `xprtsec`, `tls_name`, `tls_program`, `tls_alpn`, `ktls`, `tls_ca`, `tls_crl`, `tls_cert` and
    /// `tls_key`, and reads the files. Returns `None` if `xprtsec` is absent or `none`.
    ///
    /// # Errors
    /// An option is missing or invalid, is given without TLS, or a file cannot be used. The error names the option and the
    /// file.
    pub fn parse(options: &mut OptionReader<'_>) -> Result<Option<Self>, OptionError> {
        let level = options.text("xprtsec").map(Xprtsec::parse).transpose();
        let given = level.map_err(|problem| options.error("xprtsec", problem))?;
        let level = given.unwrap_or_default();
        let (name, program, alpn) = (options.text("tls_name"), options.text("tls_program"), options.text("tls_alpn"));
        if level == Xprtsec::None {
            // The other options are also those of a listener.
            let unused = [("tls_name", name), ("tls_program", program), ("tls_alpn", alpn)];
            let mut unused = unused.into_iter().filter_map(|(option, value)| value.map(|_| option));
            let files = ["tls_ca", "tls_crl", "tls_cert", "tls_key", "ktls"];
            let of_client = files.into_iter().filter(|option| given.is_some() && options.text(option).is_some());
            return match unused.by_ref().chain(of_client).next() {
                Some(option) => Err(options.error(option, WITHOUT_TLS.to_owned())),
                None => Ok(None),
            };
        }
        let alpn = alpn.map_or(Ok(Alpn::default()), Alpn::parse);
        let alpn = alpn.map_err(|problem| options.error("tls_alpn", problem))?;
        let ktls = options.text("ktls").map_or(Ok(Ktls::default()), Ktls::parse);
        let ktls = ktls.map_err(|problem| options.error("ktls", problem))?;
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
        let files = Files { ca, crl, own };
        let stamps = files.stamps();
        let loaded = files.load().map_err(|file| bad(file.option, file.problem))?;
        let current = Mutex::new(Current { stamps, loaded });
        Ok(Some(Self { files, current, name, program, alpn, ktls }))
    }

    /// Returns the program and version of the probe.
    pub(crate) fn program(&self) -> (u32, u32) {
        self.program
    }

    pub(crate) fn ktls(&self) -> Ktls {
        self.ktls
    }

    pub(crate) fn name(&self) -> &ServerName<'static> {
        &self.name
    }

    /// Returns the configuration of one connection, and what the connection demands of the server. Reads files that have
    /// changed.
    pub(crate) fn for_connection(&self) -> (Arc<ClientConfig>, Demands) {
        let Loaded { config, certified } = self.load();
        let Some(certified) = certified else { return (config, Demands { alpn: self.alpn, asked: None }) };
        let asked = Arc::<AtomicBool>::default();
        let mut config = (*config).clone();
        config.client_auth_cert_resolver = Arc::new(Own { certified, asked: asked.clone() });
        (Arc::new(config), Demands { alpn: self.alpn, asked: Some(asked) })
    }

    /// Describes the error of a handshake for a person.
    pub(crate) fn describe(&self, error: &Error) -> String {
        describe_handshake(error, self.files.crl.as_ref().map(|crl| crl.path.as_path()))
    }

    /// Returns the content of the files. If they cannot be used now, because a certificate is being replaced or the process
    /// may no longer read them, the former content stays in use, and the next connection reads them again.
    fn load(&self) -> Loaded {
        let current = &mut *self.current.lock();
        // If a file changes after this, the next connection finds another stamp.
        let stamps = self.files.stamps();
        if stamps != current.stamps {
            match self.files.load() {
                Ok(loaded) => *current = Current { stamps, loaded },
                Err(BadFile { option, problem }) => {
                    tracing::warn!(
                        option,
                        problem,
                        "changed files of TLS cannot be used; the former content stays in use"
                    );
                }
            }
        }
        current.loaded.clone()
    }
}

impl Files {
    fn stamps(&self) -> Vec<Option<Stamp>> {
        let own = self.own.iter().flat_map(|(cert, key)| [cert, key]);
        [&self.ca].into_iter().chain(&self.crl).chain(own).map(PemFile::stamp).collect()
    }

    fn load(&self) -> Result<Loaded, BadFile> {
        let Self { ca, crl, own } = self;
        let mut builder = WebPkiServerVerifier::builder_with_provider(Arc::new(ca.roots()?), provider());
        if let Some(crl) = crl {
            builder = builder.with_crls(crl.revocations(now())?).enforce_revocation_expiration();
        }
        let verifier = builder.build().map_err(|error| crl.as_ref().unwrap_or(ca).bad(error.to_string()))?;
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
        let certified = match own {
            None => None,
            Some((cert, key)) => {
                let certified = CertifiedKey::from_der(cert.certificates()?, key.key()?, config.crypto_provider())
                    .map_err(|error| key.bad(format!("does not fit to {}: {error}", cert.path.display())))?;
                Some(Arc::new(certified))
            }
        };
        Ok(Loaded { config: Arc::new(config), certified })
    }
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

/// The problem with an option that has no effect.
const WITHOUT_TLS: &str = "has no effect without TLS: give xprtsec=tls or xprtsec=mtls too";
/// The program NFS, version 4.
const NFS: (u32, u32) = (100_003, 4);
