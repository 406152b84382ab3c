//! [`Referral`]: a name in the tree of version 4 that stands for a file system on another server (RFC 8881 §11; RFC 7530 §8
//! says the same in fewer words). Version 3 has no such thing, and does not see it.

use std::{fmt, net::SocketAddr, str::FromStr};

use bytes::Bytes;
use serde::Deserialize;

use crate::export::{Client, ExportError, NAME_MAX, components, normalise};

/// What stands for a file system of another server: `[[referral]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "RawReferral")]
pub struct Referral {
    name: Bytes,
    locations: Vec<Location>,
    clients: Vec<Client>,
}

/// Where a file system is: a server's name or address, and the path there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Location {
    server: String,
    path: String,
}

/// The keys of `[[referral]]` as they are written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawReferral {
    name: String,
    locations: Vec<Location>,
    clients: Option<Vec<Client>>,
}

impl Referral {
    /// Refers whoever comes to `name`, if he is one of `clients`, to these locations, of which he may choose.
    ///
    /// # Errors
    /// The name is not an absolute path without `.` and `..`, or that of the root.
    pub fn new(name: &str, locations: Vec<Location>, clients: Vec<Client>) -> Result<Self, ExportError> {
        let name = normalise(name)?;
        if components(&name).next().is_none() {
            return Err(ExportError::BadName("/".to_owned()));
        }
        Ok(Self { name, locations, clients })
    }

    /// Its path here.
    pub fn name(&self) -> &Bytes {
        &self.name
    }

    /// Where it is.
    pub fn locations(&self) -> &[Location] {
        &self.locations
    }

    /// Hosts that are shown it.
    pub(crate) fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// Whether a caller is shown it.
    pub(crate) fn admits(&self, peer: SocketAddr) -> bool {
        self.clients.iter().any(|client| client.matches(peer.ip()))
    }
}

impl TryFrom<RawReferral> for Referral {
    type Error = String;

    fn try_from(raw: RawReferral) -> Result<Self, String> {
        if raw.locations.is_empty() || raw.locations.len() > LOCATIONS_MAX {
            return Err(format!("a referral has from 1 to {LOCATIONS_MAX} `locations`"));
        }
        let clients = raw.clients.unwrap_or_else(|| vec![Client::any()]);
        Self::new(&raw.name, raw.locations, clients).map_err(|error| error.to_string())
    }
}

impl Location {
    /// The server's name or address, without brackets.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// The path there.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for Location {
    type Err = String;

    /// `server:/path`, or `[address]:/path` for an IPv6 address.
    fn from_str(text: &str) -> Result<Self, String> {
        let split = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").filter(|(server, _)| server.parse::<std::net::Ipv6Addr>().is_ok()),
            None => text.split_once(':').filter(|(server, _)| !server.is_empty() && !server.contains('/')),
        };
        let (server, path) = split
            .filter(|(server, path)| path.starts_with('/') && server.len() <= SERVER_MAX && path.len() <= NAME_MAX)
            .ok_or_else(|| format!("'{text}': a location is server:/path"))?;
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
/// RFC 1035 §2.3.4.
const SERVER_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_a_server_and_a_path() {
        for text in ["nas:/srv", "10.0.0.1:/", "[2001:db8::1]:/a/b", "nas.example.com:/a b"] {
            assert_eq!(text.parse::<Location>().unwrap().to_string(), text);
        }
        for text in ["", "nas", "nas:srv", ":/srv", "/srv", "2001:db8::1:/srv", "[nas]:/srv", "[::1]/srv", "a/b:/c"] {
            assert!(text.parse::<Location>().is_err(), "{text}");
        }
    }
}
