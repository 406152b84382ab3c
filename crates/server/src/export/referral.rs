//! [`Referral`]: a name in the NFSv4 tree that stands for a file system on another server (RFC 8881 §11, and in less
//! detail RFC 7530 §8). NFSv3 has no referrals, so its clients do not see these names.

use std::{fmt, net::SocketAddr, str::FromStr};

use bytes::Bytes;
use serde::Deserialize;

use crate::export::{ExportError, NAME_MAX, client::Client, components, normalise};

/// A name that stands for a file system of another server: `[[referral]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "RawReferral")]
pub struct Referral {
    name: Bytes,
    locations: Vec<Location>,
    clients: Vec<Client>,
}

/// The location of a file system: the name or address of a server, and the path on that server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Location {
    server: String,
    path: String,
}

/// The keys of `[[referral]]` in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReferral {
    name: String,
    locations: Vec<Location>,
    clients: Option<Vec<Client>>,
}

impl Referral {
    /// Refers the hosts in `clients` from `name` to `locations`, of which a client can choose one.
    ///
    /// # Errors
    /// Returns an error if the name is not an absolute path without `.` and `..`, or is the root.
    pub fn new(name: &str, locations: Vec<Location>, clients: Vec<Client>) -> Result<Self, ExportError> {
        let name = normalise(name)?;
        if components(&name).next().is_none() {
            return Err(ExportError::BadName("/".to_owned()));
        }
        Ok(Self { name, locations, clients })
    }

    /// Returns the path on this server.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Returns the locations of the file system.
    pub fn locations(&self) -> &[Location] {
        &self.locations
    }

    /// Returns the hosts that see the referral.
    pub(crate) fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// Returns `true` if a caller sees the referral.
    pub(crate) fn admits(&self, peer: SocketAddr) -> bool {
        self.clients.iter().any(|client| client.matches(peer.ip()))
    }
}

impl TryFrom<RawReferral> for Referral {
    type Error = String;

    fn try_from(raw: RawReferral) -> Result<Self, String> {
        if raw.locations.is_empty() || raw.locations.len() > LOCATIONS_MAX {
            return Err(format!("a referral must have from 1 to {LOCATIONS_MAX} `locations`"));
        }
        let clients = raw.clients.unwrap_or_else(|| vec![Client::any()]);
        if let Some(client) = clients.iter().find(|client| client.sec().is_some()) {
            let host = client.as_str();
            return Err(format!("clients: '{host}' has `sec`, which a referral cannot have: only names are here"));
        }
        Self::new(&raw.name, raw.locations, clients).map_err(|error| error.to_string())
    }
}

impl Location {
    /// Returns the server's name or address, without brackets.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// Returns the path on the server.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for Location {
    type Err = String;

    /// Parses `server:/path`, or `[address]:/path` for an IPv6 address.
    fn from_str(text: &str) -> Result<Self, String> {
        let split = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").filter(|(server, _)| server.parse::<std::net::Ipv6Addr>().is_ok()),
            None => text.split_once(':').filter(|(server, _)| !server.is_empty() && !server.contains('/')),
        };
        let (server, path) = split
            .filter(|(server, path)| path.starts_with('/') && server.len() <= SERVER_MAX && path.len() <= NAME_MAX)
            .ok_or_else(|| format!("'{text}': a location must be server:/path"))?;
        Ok(Self { server: server.to_owned(), path: path.to_owned() })
    }
}

impl TryFrom<String> for Location {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.server.contains(':') {
            true => write!(f, "[{}]:{}", self.server, self.path),
            false => write!(f, "{}:{}", self.server, self.path),
        }
    }
}

const LOCATIONS_MAX: usize = 64;
/// Maximum bytes of a host name (RFC 1035 §2.3.4).
const SERVER_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_parsed_and_displayed() {
        for text in ["nas:/srv", "10.0.0.1:/", "[2001:db8::1]:/a/b", "nas.example.com:/a b"] {
            assert_eq!(text.parse::<Location>().unwrap().to_string(), text);
        }
        for text in ["", "nas", "nas:srv", ":/srv", "/srv", "2001:db8::1:/srv", "[nas]:/srv", "[::1]/srv", "a/b:/c"] {
            assert!(text.parse::<Location>().is_err(), "{text}");
        }
    }
}
