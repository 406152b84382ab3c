//! Ports that one test reserves.
//!
//! If the kernel chooses a port and the test closes it, the next user of that port can be another test's server, or any
//! connection. This file uses only the standard library, so that tests of crates below this one can include it.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddr, UnixDatagram},
    },
};

/// A port of this host that no other test uses while this value exists. Servers can stop and start on it, and while no
/// server listens, connections to it are refused.
///
/// The kernel never assigns it as an ephemeral port (`net.ipv4.ip_local_port_range` begins at 32768), so no connection
/// can come from it either. Tests run in many processes at a time. An abstract socket, named by the port number,
/// reserves the port among them.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claim: UnixDatagram,
}

impl Port {
    /// Reserves a port that is free on TCP and UDP.
    ///
    /// # Panics
    /// No port is free.
    pub fn take() -> Self {
        let (first, count) = (10_000, 6_000);
        // Most processes find a free port at once.
        let begin = std::process::id().wrapping_mul(7);
        let numbers = (0..count).map(|step| first + (begin.wrapping_add(step) % count) as u16);
        numbers.filter_map(Self::claim).next().expect("a port must be free")
    }

    fn claim(number: u16) -> Option<Self> {
        let name = UnixAddr::from_abstract_name(format!("slipway-test-port-{number}")).ok()?;
        let claim = UnixDatagram::bind_addr(&name).ok()?;
        // A process that is not a test does not use these names.
        let any = (Ipv4Addr::UNSPECIFIED, number);
        (TcpListener::bind(any).is_ok() && UdpSocket::bind(any).is_ok()).then_some(Self { number, _claim: claim })
    }

    /// Returns the port number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns the loopback address with the port.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}
