//! Ports of the host's loopback for the servers of suites, several of which run in parallel.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::Mutex;

/// Assigns ports that no other suite, and no other run on this machine, uses.
#[derive(Default)]
pub struct Ports(Mutex<Vec<UdpSocket>>);

/// Below the kernel's ephemeral ports.
const FIRST: u16 = 21_000;
const LAST: u16 = 31_999;

/// The address on which a port is marked as used while this process runs. No server uses it.
const MARK: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

impl Ports {
    /// Returns a port that is free on TCP and UDP.
    pub fn take(&self) -> u16 {
        let mut marks = self.0.lock().expect("lock must not be poisoned");
        let free = |port: &u16| {
            let mark = UdpSocket::bind((MARK, *port)).ok()?;
            TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).ok()?;
            UdpSocket::bind((Ipv4Addr::LOCALHOST, *port)).ok()?;
            Some((*port, mark))
        };
        let (port, mark) = (FIRST..=LAST).find_map(|port| free(&port)).expect("a port must be free");
        marks.push(mark);
        port
    }
}
