//! [`Protections`]: the protection by TLS that the connections of an export's clients must have (RFC 9289).

use rpc::Xprtsec;
use serde::Deserialize;

/// The kinds of protection that connections may have.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<Level>")]
pub struct Protections(Vec<Xprtsec>);

/// A kind of protection, in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The connection may be in clear.
    #[default]
    None,
    /// The connection is encrypted.
    Tls,
    /// The connection is encrypted, and the client has a certificate.
    Mtls,
}

impl Protections {
    /// Creates a set of these kinds.
    ///
    /// # Errors
    /// Returns a message for the user if the set is empty.
    pub fn new(kinds: Vec<Xprtsec>) -> Result<Self, String> {
        match kinds.is_empty() {
            true => Err("xprtsec = []: no client could use the export; list some of none, tls and mtls".to_owned()),
            false => Ok(Self(kinds)),
        }
    }

    /// Returns `true` if connections with this protection are in the set. A set with `tls` has those with more
    /// protection, too.
    pub fn admit(&self, tls: Xprtsec) -> bool {
        self.0.iter().any(|&least| match least {
            Xprtsec::None => tls == Xprtsec::None,
            least => tls >= least,
        })
    }
}

impl Default for Protections {
    /// Returns the set of all connections.
    fn default() -> Self {
        Self(vec![Xprtsec::None, Xprtsec::Tls, Xprtsec::Mtls])
    }
}

impl TryFrom<Vec<Level>> for Protections {
    type Error = String;

    fn try_from(levels: Vec<Level>) -> Result<Self, String> {
        let level = |level| match level {
            Level::None => Xprtsec::None,
            Level::Tls => Xprtsec::Tls,
            Level::Mtls => Xprtsec::Mtls,
        };
        Self::new(levels.into_iter().map(level).collect())
    }
}
