//! [`Ktls`]: whether the kernel encrypts what a connection sends.

use std::{io, sync::Once};

use buf::ktls::RecordKey;
use rustls::ConnectionTrafficSecrets;

/// The rule for kTLS: the kernel encrypts what is sent, so that file ranges need not be read into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ktls {
    /// The kernel encrypts if it can, else the process.
    #[default]
    Auto,
    /// The process encrypts.
    Off,
}

impl Ktls {
    /// Parses the value of the option `ktls`.
    ///
    /// # Errors
    /// A text with the valid values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let named = [Self::Auto, Self::Off].into_iter().find(|ktls| ktls.name() == text);
        named.ok_or_else(|| format!("'{text}' is neither auto nor off"))
    }

    /// Returns the value of the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
        }
    }
}

/// Returns a key in the form of the kernel. `None` if the kernel has no such cipher.
pub(super) fn record_key(secrets: &ConnectionTrafficSecrets) -> Option<RecordKey> {
    use ConnectionTrafficSecrets as Secrets;
    Some(match secrets {
        Secrets::Aes128Gcm { key, iv } => {
            RecordKey::Aes128Gcm { key: key.as_ref().try_into().ok()?, iv: iv.as_ref().try_into().ok()? }
        }
        Secrets::Aes256Gcm { key, iv } => {
            RecordKey::Aes256Gcm { key: key.as_ref().try_into().ok()?, iv: iv.as_ref().try_into().ok()? }
        }
        Secrets::Chacha20Poly1305 { key, iv } => {
            RecordKey::Chacha20Poly1305 { key: key.as_ref().try_into().ok()?, iv: iv.as_ref().try_into().ok()? }
        }
        _ => return None,
    })
}

/// Logs once in the process that the kernel encrypts, and once that it cannot.
pub(super) fn log(outcome: &io::Result<()>) {
    static WORKS: Once = Once::new();
    static FAILS: Once = Once::new();
    match outcome {
        Ok(()) => WORKS.call_once(|| tracing::info!("the kernel encrypts what connections of TLS send (kTLS)")),
        Err(error) => FAILS.call_once(|| {
            let error = match error.kind() {
                io::ErrorKind::NotFound => {
                    "it has no TLS or not this cipher, or its module tls is not loaded".to_owned()
                }
                _ => error.to_string(),
            };
            tracing::info!(error, "the kernel does not encrypt for TLS (kTLS), so this process does");
        }),
    }
}
