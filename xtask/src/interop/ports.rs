//! Ports of the host's loopback for the servers of the suites, of which several run side by side.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Mutex;

/// Allocates ports that neither another suite nor another run on this machine uses.
#[derive(Default)]
pub struct Ports(Mutex<Vec<UdpSocket>>);

/// The ports are below the kernel's range of ephemeral ports.
const FIRST: u16 = 21_000;
const LAST: u16 = 31_999;

/// The address at which a port is reserved while this process runs. Nothing is served there.
const MARK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

impl Ports {
    /// Returns a port that is free over TCP and UDP.
    pub fn take(&self) -> u16 {
        let mut marks = self.0.lock().expect("nobody panics while it is held");
        let free = |port: &u16| {
            let mark = UdpSocket::bind((MARK, *port)).ok()?;
            TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).ok()?;
            UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).ok()?;
            Some((*port, mark))
        };
        let (port, mark) = (FIRST..=LAST).find_map(|port| free(&port)).expect("a port is free");
        marks.push(mark);
        port
    }
}
