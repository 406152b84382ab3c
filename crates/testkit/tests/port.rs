//! What is a test's own is nobody else's.

use std::{net::TcpStream, process::Command};

use testkit::port::Port;

#[test]
fn nobody_else_has_a_port_that_is_taken() {
    let ports: Vec<Port> = (0..50).map(|_| Port::take()).collect();
    for (at, port) in ports.iter().enumerate() {
        assert!(ports[..at].iter().all(|other| other.number() != port.number()));
        assert!(TcpStream::connect(port.address()).is_err(), "nobody listens");
    }
}

/// Processes that take ports at the same time do not take the same.
#[test]
fn another_process_takes_others() {
    const SAY: &str = "SLIPWAY_TEST_SAY_PORTS";
    let take = || (0..50).map(|_| Port::take()).collect::<Vec<_>>();
    let ports = take();
    if std::env::var_os(SAY).is_some() {
        ports.iter().for_each(|port| println!("port {}", port.number()));
        return;
    }
    let this = std::env::current_exe().unwrap();
    let arguments = ["--exact", "another_process_takes_others", "--nocapture"];
    let output = Command::new(this).args(arguments).env(SAY, "").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let others: Vec<u16> = said.lines().filter_map(|line| line.strip_prefix("port ")?.parse().ok()).collect();
    assert!(others.len() == 50 && ports.iter().all(|port| !others.contains(&port.number())), "{said}");
}
