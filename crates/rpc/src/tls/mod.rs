//! RPC with TLS: RFC 9289.
//!
//! Read RFC 9289 §4.1 (the probe) and §5 (TLS), and RFC 8446 §4.6.3 (KeyUpdate) and §5 (records). A client sends a call of
//! the procedure NULL with the credential AUTH_TLS. A server that supports TLS answers with the verifier "STARTTLS", and the
//! next byte on the connection belongs to the TLS handshake.
//!
//! rustls makes the handshake and derives all keys ([`handshake`]). Then [`session`] encrypts and decrypts records with
//! rustls's ciphers, so that data are copied once in each direction: from the pieces of a message into the record that is
//! encrypted in place, and from the record that was decrypted in place to the destination that the record reader chose.
//! [`wire`] is the stream of the transport "tcp", which is in clear until it has a session.
//!
//! If the kernel can encrypt for the socket (kTLS, [`ktls`]), a session leaves that to it, so that file ranges are sent without
//! reading them. The session then decrypts only.
//!
//! On error, the connection is closed. A client never continues in clear. A server in the handshake executes nothing.
//!
//! Only TLS 1.3 is used, without resumption and so without 0-RTT data. A server accepts clients that offer no application
//! protocol (ALPN), because Linux's tlshd offers none, and rejects those that offer only others. A client demands that the
//! server selects "sunrpc" (RFC 9289 §5), unless its option `tls_alpn` permits a server that selects none.

mod client;
mod error;
mod files;
mod handshake;
mod ktls;
mod probe;
mod server;
mod session;
mod survey;
pub(crate) mod wire;

use std::{sync::Arc, time::SystemTime};

use rustls::{crypto::CryptoProvider, pki_types::UnixTime, time_provider::TimeProvider};

pub use client::{Alpn, ClientTls, Xprtsec};
pub use ktls::Ktls;
pub use server::{Required, ServerTls};
pub use survey::TlsSurvey;

pub(crate) use handshake::{Demands, Handshake, Progress, Unmet};
pub(crate) use probe::{AUTH_TLS, denied, is_probe, starttls};
pub(crate) use server::HalfOpen;
pub(crate) use wire::Wire;

/// The protection of a connection by TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConnectionTls {
    /// The connection is in clear.
    #[default]
    None,
    /// The connection is encrypted, and the server is authenticated.
    Tls,
    /// The connection is encrypted, and both sides are authenticated.
    Mtls {
        /// The DNS names in the certificate of the peer.
        names: Arc<[String]>,
    },
}

impl ConnectionTls {
    /// Returns the kind of protection.
    pub fn level(&self) -> Xprtsec {
        match self {
            Self::None => Xprtsec::None,
            Self::Tls => Xprtsec::Tls,
            Self::Mtls { .. } => Xprtsec::Mtls,
        }
    }
}

/// The application protocol of RPC (RFC 9289 §8.2).
const ALPN: &[u8] = b"sunrpc";

/// Returns the ciphers and signatures of TLS.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The time by which certificates are judged.
#[derive(Debug)]
struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(now())
    }
}

/// Returns the time of day. A clock before 1970 is at its start, so that no certificate is valid.
fn now() -> UnixTime {
    UnixTime::since_unix_epoch(entropy::system_time().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// Returns the DNS names in a certificate.
fn dns_names(certificate: &rustls::pki_types::CertificateDer<'_>) -> Arc<[String]> {
    let parsed = webpki::EndEntityCert::try_from(certificate);
    parsed.map_or_else(|_| Arc::default(), |parsed| parsed.valid_dns_names().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests;
