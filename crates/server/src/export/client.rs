//! [`Client`]: a set of hosts that may use an export, with the conditions for these hosts.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Deserialize, Deserializer, de};

use super::{sec::SecFlavors, xprtsec::Protections};
use crate::identity::squash::Squash;

/// A set of hosts that may use an export: all hosts, or those with some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    text: String,
    nets: Option<Vec<Net>>,
    sec: Option<SecFlavors>,
    xprtsec: Option<Protections>,
    squash: Option<Squash>,
}

/// The addresses that have their first `bits` bits in common with `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Net {
    address: IpAddr,
    bits: u32,
}

impl Client {
    /// Returns the set of all hosts.
    pub fn any() -> Self {
        Self { text: "*".to_owned(), nets: None, sec: None, xprtsec: None, squash: None }
    }

    /// Returns `true` if this is the set of all hosts.
    pub fn is_any(&self) -> bool {
        self.nets.is_none()
    }

    /// Returns the text from which this was parsed.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the same set of hosts with security flavours of its own, instead of those of the export.
    #[must_use]
    pub fn with_sec(self, sec: SecFlavors) -> Self {
        Self { sec: Some(sec), ..self }
    }

    /// Returns the security flavours of these hosts, if they differ from those of the export.
    pub fn sec(&self) -> Option<&SecFlavors> {
        self.sec.as_ref()
    }

    /// Returns the same set of hosts with a protection of its own, instead of that of the export.
    #[must_use]
    pub fn with_xprtsec(self, xprtsec: Protections) -> Self {
        Self { xprtsec: Some(xprtsec), ..self }
    }

    /// Returns the protection of these hosts' connections, if it differs from that of the export.
    pub fn xprtsec(&self) -> Option<&Protections> {
        self.xprtsec.as_ref()
    }

    /// Returns the callers of these hosts that are replaced by the anonymous user, if they differ from those of the export.
    pub fn squash(&self) -> Option<Squash> {
        self.squash
    }

    /// Returns `true` if the host of this address is in the set. An IPv4 address mapped into IPv6 counts as the IPv4
    /// address.
    pub fn matches(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.nets.as_ref().is_none_or(|nets| nets.iter().any(|net| net.holds(address)))
    }
}

/// Parses `*`, an address, a network such as `10.0.0.0/8`, or a host name. A host name is looked up once, while it is
/// parsed.
impl FromStr for Client {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let with = |nets| Ok(Self { text: text.to_owned(), nets: Some(nets), sec: None, xprtsec: None, squash: None });
        let whole = |address: IpAddr| {
            let address = address.to_canonical();
            Net { address, bits: width(address) }
        };
        if text == "*" {
            return Ok(Self::any());
        }
        if let Some((address, bits)) = text.split_once('/') {
            let address = IpAddr::from_str(address).map_err(|_| format!("'{text}': no address before the '/'"))?;
            let most = width(address);
            let bits = bits.parse().ok().filter(|&bits| bits <= most);
            let bits = bits.ok_or(format!("'{text}': the prefix length is not a number from 0 to {most}"))?;
            return with(vec![Net { address, bits }]);
        }
        if let Ok(address) = IpAddr::from_str(text) {
            return with(vec![whole(address)]);
        }
        if text.is_empty() || text.len() > CLIENT_MAX || text.contains(['*', '?', '@', ' ']) {
            return Err(format!(
                "'{text}': a client is '*', an address, a network such as 10.0.0.0/8 or fd00::/8, or a host name \
                 without wildcards"
            ));
        }
        let found = std::net::ToSocketAddrs::to_socket_addrs(&(text, 0));
        let found = found.map_err(|error| format!("'{text}': cannot look up the host name: {error}"))?;
        with(found.map(|address| whole(address.ip())).collect())
    }
}

/// Deserializes an entry of `clients`: the text of a set of hosts, or a table with that text and conditions.
impl<'de> Deserialize<'de> for Client {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entry;
        impl<'de> de::Visitor<'de> for Entry {
            type Value = Client;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a client such as \"10.0.0.0/8\", or a table such as { host = \"10.0.0.0/8\", sec = [\"krb5\"] }",
                )
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Client, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_map<M: de::MapAccess<'de>>(self, map: M) -> Result<Client, M::Error> {
                let RawClient { host, sec, xprtsec, squash } =
                    RawClient::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let client: Client = host.parse().map_err(de::Error::custom)?;
                Ok(Client { sec, xprtsec, squash, ..client })
            }
        }
        deserializer.deserialize_any(Entry)
    }
}

/// The keys of an entry of `clients` that is a table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClient {
    host: String,
    sec: Option<SecFlavors>,
    xprtsec: Option<Protections>,
    squash: Option<Squash>,
}

impl Net {
    fn holds(&self, address: IpAddr) -> bool {
        let differ = |a: u128, b: u128, width: u32| (a ^ b).checked_shr(width - self.bits).unwrap_or(0) != 0;
        match (self.address, address) {
            (IpAddr::V4(net), IpAddr::V4(host)) => !differ(net.to_bits().into(), host.to_bits().into(), 32),
            (IpAddr::V6(net), IpAddr::V6(host)) => !differ(net.to_bits(), host.to_bits(), 128),
            _ => false,
        }
    }
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

const CLIENT_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Client {
        text.parse().unwrap()
    }

    #[test]
    fn clients_match_by_prefix_in_their_address_family() {
        let cases = [
            ("*", "1.2.3.4", true),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.77/8", "10.1.1.1", true),
            ("0.0.0.0/0", "200.1.1.1", true),
            ("0.0.0.0/0", "fe80::1", false),
            ("::/0", "fe80::1", true),
            ("fd00::/9", "fd7f::1", true),
            ("fd00::/9", "fd80::1", false),
            ("10.0.0.0/8", "::ffff:10.2.3.4", true),
            ("::ffff:10.2.3.4", "10.2.3.4", true),
            ("localhost", "127.0.0.1", true),
        ];
        for (rule, address, expected) in cases {
            assert_eq!(client(rule).matches(address.parse().unwrap()), expected, "{rule} and {address}");
        }
    }

    #[test]
    fn invalid_clients_are_rejected_with_a_reason() {
        let long = "h".repeat(256);
        for text in ["", &long, "*.example.com", "10.0.0.0/33", "10.0.0.0/x", "host/8", "@group", "fd00::/129"] {
            let error = text.parse::<Client>().unwrap_err();
            assert!(error.starts_with(&format!("'{text}'")), "{error}");
        }
    }
}
