//! rpcbind, RFC 1833: maps program numbers to addresses. Versions 2 (port mapper), 3 and 4.
//!
//! [`Rpcbind`] is the service, for hosts on which no rpcbind runs; [`Registry`] is its table. [`register`] and
//! [`lookup`] call an rpcbind that runs.
//!
//! Only callers on this host can change a registry (RFC 1833 §2.2.1 leaves the decision to the implementation), and the
//! number of bindings is limited.

mod calls;
mod service;

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use xdr::{Decode, Encode, Text};

pub use calls::{LookupError, lookup, register, unregister};
pub use service::{Registry, Rpcbind};

/// The program number.
pub const PROGRAM: u32 = 100_000;
/// The port on tcp and udp.
pub const PORT: u16 = 111;

/// A network identifier: a transport over an address family.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Netid(pub String);

impl Netid {
    /// Returns the identifier of a transport of the switch for an address: `tcp`, `tcp6`, `udp`, `rdma6`, … (RFC 5665
    /// §5, RFC 8166 §9).
    pub fn new(transport: &str, address: SocketAddr) -> Self {
        Self(format!("{transport}{}", if address.is_ipv6() { "6" } else { "" }))
    }

    /// Returns the protocol number in version 2, or `None` if version 2 has none for it.
    fn protocol(&self) -> Option<u32> {
        match self.0.as_str() {
            "tcp" => Some(IPPROTO_TCP),
            "udp" => Some(IPPROTO_UDP),
            _ => None,
        }
    }

    fn of_protocol(protocol: u32) -> Option<Self> {
        match protocol {
            IPPROTO_TCP => Some(Self("tcp".to_owned())),
            IPPROTO_UDP => Some(Self("udp".to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for Netid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One program version at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The program number.
    pub program: u32,
    /// The version number.
    pub version: u32,
    /// The transport and address family.
    pub netid: Netid,
    /// The address on which the program listens.
    pub address: SocketAddr,
}

/// Formats a universal address: the address, and the port as its two bytes in decimal (RFC 5665 §5.2.3).
pub fn to_universal(address: SocketAddr) -> String {
    format!("{}.{}.{}", address.ip(), address.port() >> 8, address.port() & 0xff)
}

/// Parses a universal address.
pub fn from_universal(text: &str) -> Option<SocketAddr> {
    let (rest, low) = text.rsplit_once('.')?;
    let (ip, high) = rest.rsplit_once('.')?;
    let port = u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]);
    Some(SocketAddr::new(ip.parse().ok()?, port))
}

/// Replaces an unspecified address by the address at which the caller reaches this host.
fn reachable(address: SocketAddr, known_as: Option<IpAddr>) -> SocketAddr {
    match known_as {
        Some(ip) if address.ip().is_unspecified() && ip.is_ipv6() == address.is_ipv6() => {
            SocketAddr::new(ip, address.port())
        }
        _ => address,
    }
}

fn any(like: &Netid, port: u16) -> SocketAddr {
    let v6 = like.0.ends_with('6');
    SocketAddr::new(if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }, port)
}

/// The structure `mapping` of version 2 (RFC 1833 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
struct Mapping {
    program: u32,
    version: u32,
    protocol: u32,
    port: u32,
}

/// The structure `rpcb` of versions 3 and 4 (RFC 1833 §2.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
struct Rpcb {
    program: u32,
    version: u32,
    netid: Text<STRING_MAX>,
    address: Text<STRING_MAX>,
    owner: Text<STRING_MAX>,
}

const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const STRING_MAX: usize = 1024;

// The procedure numbers. A procedure that both version 3 and version 4 have is numbered alike in both.
const NULL: u32 = 0;
const SET: u32 = 1;
const UNSET: u32 = 2;
/// The number of GETADDR, and of GETPORT in version 2.
const GETADDR: u32 = 3;
const DUMP: u32 = 4;
const GETTIME: u32 = 6;
const GETVERSADDR: u32 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn universal_addresses_are_parsed_and_formatted() {
        for (text, address) in
            [("10.0.0.7.8.1", "10.0.0.7:2049"), ("::1.78.81", "[::1]:20049"), ("0.0.0.0.0.111", "0.0.0.0:111")]
        {
            assert_eq!(to_universal(address.parse().unwrap()), text);
            assert_eq!(from_universal(text), Some(address.parse().unwrap()));
        }
        for bad in ["", "1.2.3.4", "1.2.3.4.256.1", "1.2.3.4.1", "x.1.1", "1.2.3.4.1.1.1"] {
            assert_eq!(from_universal(bad), None, "{bad}");
        }
    }

    #[test]
    fn wildcard_address_is_replaced_by_address_that_caller_uses() {
        let (any, port) = ("0.0.0.0:2049".parse().unwrap(), 2049);
        assert_eq!(reachable(any, Some([10, 0, 0, 1].into())), SocketAddr::from(([10, 0, 0, 1], port)));
        assert_eq!(reachable(any, Some(Ipv6Addr::LOCALHOST.into())), any);
        let bound = "192.0.2.1:2049".parse().unwrap();
        assert_eq!(reachable(bound, Some([10, 0, 0, 1].into())), bound);
    }
}
