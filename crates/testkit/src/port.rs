//! Ports that are a test's own.
//!
//! Of a port that the kernel chose and that has been given back, nobody knows who gets it next: another test's server, or somebody's
//! connection. This file uses nothing but the standard library, so that tests of crates below this one can include it.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddr, UnixDatagram},
    },
};

/// A port of this host that nobody else has as long as this lives: servers are stopped and started at it again, and where none
/// listens, none does.
///
/// The kernel gives it to nobody who wants any port (`net.ipv4.ip_local_port_range` begins at 32768), so no connection can come from it either.
/// Tests, which run in many processes at a time, leave it to whoever has the abstract socket that is named by its number.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UnixDatagram,
}

impl Port {
    /// One that is free by TCP and by UDP.
    ///
    /// # Panics
    /// There is none.
    pub fn take() -> Self {
        let (first, count) = (10_000, 6_000);
        // Most find theirs at once.
        let begin = std::process::id().wrapping_mul(7);
        let numbers = (0..count).map(|step| first + (begin.wrapping_add(step) % count) as u16);
        numbers.filter_map(Self::claim).next().expect("a port that nobody has")
    }

    fn claim(number: u16) -> Option<Self> {
        let name = UnixAddr::from_abstract_name(format!("slipway-test-port-{number}")).ok()?;
        let claim = UnixDatagram::bind_addr(&name).ok()?;
        // Whoever is no test knows nothing of names.
        let any = (Ipv4Addr::UNSPECIFIED, number);
        (TcpListener::bind(any).is_ok() && UdpSocket::bind(any).is_ok()).then_some(Self { number, _claim: claim })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The port on the loopback.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}
