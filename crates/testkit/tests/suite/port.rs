//! Tests that a reserved port is not used by others.

use std::{net::TcpStream, process::Command};

use testkit::port::Port;

#[test]
fn a_reserved_port_is_not_reserved_twice() {
    let ports: Vec<Port> = (0..50).map(|_| Port::take()).collect();
    for (at, port) in ports.iter().enumerate() {
        assert!(ports[..at].iter().all(|other| other.number() != port.number()));
        assert!(TcpStream::connect(port.address()).is_err(), "no server must listen");
    }
}

/// Processes that reserve ports at the same time get different ones.
#[test]
fn another_process_reserves_other_ports() {
    const SAY: &str = "SLIPWAY_TEST_SAY_PORTS";
    let take = || (0..50).map(|_| Port::take()).collect::<Vec<_>>();
    let ports = take();
    if std::env::var_os(SAY).is_some() {
        ports.iter().for_each(|port| println!("port {}", port.number()));
        return;
    }
    let this = std::env::current_exe().unwrap();
    let arguments = ["--exact", "port::another_process_reserves_other_ports", "--nocapture"];
    let output = Command::new(this).args(arguments).env(SAY, "").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let others: Vec<u16> = said.lines().filter_map(|line| line.strip_prefix("port ")?.parse().ok()).collect();
    assert!(others.len() == 50 && ports.iter().all(|port| !others.contains(&port.number())), "{said}");
}
