//! [`ServerTls`]: TLS on the accepting side: the certificate, the issuers of clients, and the clients that are admitted.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Instant};

use entropy::HashMap;
use parking_lot::{Mutex, RwLock};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};

use super::{
    ALPN, Clock, Ktls,
    error::describe_handshake,
    files::{BadFile, PemFile},
    now, provider,
};
use crate::{Host, OptionError, OptionReader, TransportError, peer_log::PeerLog};

/// TLS of a listener. The files can be read again while connections use what was read before.
#[derive(Debug)]
pub struct ServerTls {
    files: Files,
    required: Required,
    ktls: Ktls,
    current: RwLock<Arc<ServerConfig>>,
    half_open: Arc<Mutex<Begun>>,
    log: Mutex<PeerLog<Host>>,
}

/// The protection that a listener demands for every call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Required {
    /// Calls in clear are executed, if the export admits them.
    #[default]
    None,
    /// Every call needs TLS.
    Tls,
    /// Every call needs TLS, and every client a certificate.
    Mtls,
}

#[derive(Clone, Debug)]
struct Files {
    cert: PemFile,
    key: PemFile,
    ca: Option<PemFile>,
    crl: Option<PemFile>,
    /// The names of which a client's certificate must have one; `None` for any.
    names: Option<Vec<ServerName<'static>>>,
    required: Required,
}

impl ServerTls {
    /// Parses the options `tls_cert`, `tls_key`, `tls_ca`, `tls_crl`, `tls_names`, `tls_required` and `ktls`, and reads
    /// the files. Returns `None` if none of them is given.
    ///
    /// # Errors
    /// An option needs another one, or a file cannot be used. The error names the option and the file.
    pub fn parse(options: &mut OptionReader<'_>) -> Result<Option<Self>, OptionError> {
        let mut file = |option| options.text(option).map(|path| PemFile { option, path: PathBuf::from(path) });
        let (cert, key, ca, crl) = (file("tls_cert"), file("tls_key"), file("tls_ca"), file("tls_crl"));
        let names = options.text("tls_names");
        let required = match options.text("tls_required") {
            None | Some("none" | "off" | "false") => Required::None,
            Some("tls" | "on" | "true") => Required::Tls,
            Some("mtls") => Required::Mtls,
            Some(other) => {
                return Err(options.error("tls_required", format!("'{other}' is none of none, tls and mtls")));
            }
        };
        let ktls = options.text("ktls").map(Ktls::parse).transpose();
        let ktls = ktls.map_err(|problem| options.error("ktls", problem))?;
        let needs = |option: &str, what: &str| Err(options.error(option, format!("needs {what}")));
        let (cert, key) = match (cert, key) {
            (Some(cert), Some(key)) => (cert, key),
            (Some(_), None) => return needs("tls_cert", "tls_key"),
            (None, key) => {
                // A listener that is meant to have TLS must not be in clear.
                let given = [
                    ("tls_required", required != Required::None),
                    ("tls_key", key.is_some()),
                    ("tls_ca", ca.is_some()),
                    ("tls_crl", crl.is_some()),
                    ("tls_names", names.is_some()),
                    ("ktls", ktls.is_some()),
                ];
                return match given.into_iter().find(|(_, given)| *given) {
                    Some((option, _)) => needs(option, "tls_cert and tls_key on a listener, and xprtsec on a client"),
                    None => Ok(None),
                };
            }
        };
        if ca.is_none() {
            let dependent = [("tls_crl", crl.is_some()), ("tls_names", names.is_some())];
            if let Some((option, _)) = dependent.into_iter().find(|(_, given)| *given) {
                return needs(option, "tls_ca, the issuers of the clients' certificates");
            }
            if required == Required::Mtls {
                return needs("tls_required", "tls_ca, the issuers of the clients' certificates");
            }
        }
        let names = names.map(parse_names).transpose().map_err(|problem| options.error("tls_names", problem))?;
        let files = Files { cert, key, ca, crl, names, required };
        let current = files.load().map_err(|bad| options.error(bad.option, bad.problem))?;
        let (current, half_open, log) = (RwLock::new(Arc::new(current)), Arc::default(), Mutex::default());
        Ok(Some(Self { files, required, ktls: ktls.unwrap_or_default(), current, half_open, log }))
    }

    /// Reads the files again. New connections use them; present ones stay. After an error, the former content stays in use.
    ///
    /// # Errors
    /// A file cannot be used. The text names the option, the file and the reason.
    pub fn reload(&self) -> Result<(), String> {
        let loaded = self.files.load().map_err(|bad| format!("{}: {}", bad.option, bad.problem))?;
        *self.current.write() = Arc::new(loaded);
        Ok(())
    }

    /// Returns the files of the server's certificates and of revocation lists.
    pub(super) fn own_files(&self) -> (&PemFile, Option<&PemFile>) {
        (&self.files.cert, self.files.crl.as_ref())
    }

    /// Returns the protection that every call needs.
    pub fn required(&self) -> Required {
        self.required
    }

    pub(crate) fn ktls(&self) -> Ktls {
        self.ktls
    }

    /// Lets new connections select no application protocol, as Linux's tlshd does.
    #[cfg(test)]
    pub(crate) fn select_no_protocol(&self) {
        let mut config = (*self.config()).clone();
        config.alpn_protocols.clear();
        *self.current.write() = Arc::new(config);
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.current.read().clone()
    }

    /// Returns the error of a connection whose handshake has failed.
    pub(crate) fn lost(&self, error: &Error) -> TransportError {
        TransportError::Lost(describe_handshake(error, self.files.crl.as_ref().map(|crl| crl.path.as_path())))
    }

    /// Logs that a client got no session: at most one line a minute for each host, because any host can cause them.
    pub(crate) fn log_failure(&self, peer: SocketAddr, error: &TransportError) {
        match self.log.lock().admit(Host::of(peer.ip()), Instant::now()) {
            Some(suppressed) => tracing::warn!(%peer, %error, suppressed, "a TLS handshake failed"),
            None => tracing::debug!(%peer, %error, "a TLS handshake failed"),
        }
    }

    /// Counts a handshake that begins. Returns `None` if too many have begun and not ended: of this host, of the hosts that
    /// no export admits, or of all hosts. The connection must be closed then.
    pub(crate) fn begin(&self, host: Host, admitted: bool) -> Option<HalfOpen> {
        let begun = &mut *self.half_open.lock();
        let of_host = begun.by_host.get(&host).copied().unwrap_or(0);
        let full =
            of_host >= OF_HOST_MAX || begun.total >= HALF_OPEN_MAX || (!admitted && begun.unadmitted >= UNADMITTED_MAX);
        if full {
            return None;
        }
        begun.by_host.insert(host, of_host + 1);
        begun.total += 1;
        begun.unadmitted += usize::from(!admitted);
        Some(HalfOpen { begun: self.half_open.clone(), host, admitted })
    }
}

/// The handshakes of a listener that have begun and not ended.
#[derive(Debug, Default)]
struct Begun {
    total: usize,
    /// Those of hosts that no export admits.
    unadmitted: usize,
    by_host: HashMap<Host, usize>,
}

/// A handshake that has begun. It is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    begun: Arc<Mutex<Begun>>,
    host: Host,
    admitted: bool,
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        let begun = &mut *self.begun.lock();
        begun.total -= 1;
        begun.unadmitted -= usize::from(!self.admitted);
        if let Some(of_host) = begun.by_host.get_mut(&self.host) {
            *of_host -= 1;
            if *of_host == 0 {
                begun.by_host.remove(&self.host);
            }
        }
    }
}

impl Files {
    fn load(&self) -> Result<ServerConfig, BadFile> {
        let (certificates, key) = (self.cert.certificates()?, self.key.key()?);
        let builder = ServerConfig::builder_with_details(provider(), Arc::new(Clock))
            .with_protocol_versions(&[&TLS13])
            .expect("the ciphers must support TLS 1.3");
        let builder = match self.verifier()? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(certificates, key)
            .map_err(|error| self.key.bad(format!("does not fit to {}: {error}", self.cert.path.display())))?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Without tickets there is no resumption, so each connection is judged by the present certificates and lists.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.max_early_data_size = 0;
        config.enable_secret_extraction = true;
        Ok(config)
    }

    fn verifier(&self) -> Result<Option<Arc<dyn ClientCertVerifier>>, BadFile> {
        let Some(ca) = &self.ca else { return Ok(None) };
        let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(ca.roots()?), provider());
        if let Some(crl) = &self.crl {
            builder = builder.with_crls(crl.revocations(now())?).enforce_revocation_expiration();
        }
        if self.required != Required::Mtls {
            builder = builder.allow_unauthenticated();
        }
        let inner = builder.build().map_err(|error| {
            let file = self.crl.as_ref().unwrap_or(ca);
            file.bad(error.to_string())
        })?;
        Ok(Some(match &self.names {
            None => inner,
            Some(names) => Arc::new(NamedClients { inner, names: names.clone() }),
        }))
    }
}

/// Admits the clients whose certificate has one of these names.
#[derive(Debug)]
struct NamedClients {
    inner: Arc<dyn ClientCertVerifier>,
    names: Vec<ServerName<'static>>,
}

impl ClientCertVerifier for NamedClients {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let certificate = webpki::EndEntityCert::try_from(end_entity)
            .map_err(|_| Error::InvalidCertificate(rustls::CertificateError::BadEncoding))?;
        let admitted = self.names.iter().any(|name| certificate.verify_is_valid_for_subject_name(name).is_ok());
        if admitted {
            return Ok(verified);
        }
        // rustls sends the alert access_denied for this error.
        Err(Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Parses a list of DNS names and addresses, separated by commas.
fn parse_names(text: &str) -> Result<Vec<ServerName<'static>>, String> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let parse = |name: &str| {
        ServerName::try_from(name.to_owned()).map_err(|_| format!("'{name}' is neither a DNS name nor an address"))
    };
    match names.map(parse).collect::<Result<Vec<_>, _>>() {
        Ok(names) if names.is_empty() => Err("has no name: nobody could connect with a certificate".to_owned()),
        names => names,
    }
}

/// Maximum number of handshakes of a listener that have begun and not ended.
pub(crate) const HALF_OPEN_MAX: usize = 1024;
/// Maximum number of those of one host.
pub(crate) const OF_HOST_MAX: usize = 32;
/// Maximum number of those of all hosts that no export admits.
pub(crate) const UNADMITTED_MAX: usize = 16;
