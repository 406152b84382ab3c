//! [`Host`]: the unit by which connections, memory and clients are limited.

use std::{fmt, net::IpAddr};

/// One host, as far as its address shows.
///
/// An IPv4 address is one host. For IPv6 the /64 prefix is one host, because a host on a link can use all of its
/// addresses. An IPv4 address that is mapped into IPv6 counts as that IPv4 address. A link-local or loopback address is
/// one host.
///
/// ```
/// use rpc::Host;
///
/// assert_eq!(Host::of("2001:db8::1".parse().unwrap()), Host::of("2001:db8::ffff:1".parse().unwrap()));
/// assert_eq!(Host::of("::ffff:192.0.2.1".parse().unwrap()), Host::of("192.0.2.1".parse().unwrap()));
/// assert_ne!(Host::of("192.0.2.1".parse().unwrap()), Host::of("192.0.2.2".parse().unwrap()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host(IpAddr);

impl Host {
    /// Returns the host of an address.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(ip) if !ip.is_unicast_link_local() && !ip.is_loopback() => {
                IpAddr::V6((u128::from(ip) >> 64 << 64).into())
            }
            ip => ip,
        })
    }

    /// Returns the address, or the prefix of the addresses followed by zeros.
    pub fn address(self) -> IpAddr {
        self.0
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
