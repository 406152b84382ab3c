//! Addresses on which a server listens: `tcp://0.0.0.0:2049?congestion=cubic`, or only `tcp`.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    str::FromStr,
};

use server::config::ListenConfig;

/// An address to listen on, from the command line.
#[derive(Clone, Debug)]
pub struct ListenUrl(pub ListenConfig);

impl FromStr for ListenUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let (transport, address) = match place.split_once("://") {
            None => (place, default_address(place)?),
            Some((transport, address)) => {
                let port = default_address(transport)?.port();
                (transport, parse_address(address.trim_end_matches('/'), port)?)
            }
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let options = pairs.map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key.to_owned(), value.to_owned())
        });
        Ok(Self(ListenConfig { transport: transport.to_owned(), address, options: options.collect(), tls: None }))
    }
}

/// Parses `address:port`, an address alone, or only `:port`.
fn parse_address(text: &str, port: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(SocketAddr::new(address, port));
    }
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
        return Ok(everywhere(port));
    }
    Err(format!("'{text}' is not an address and port to listen on: use 0.0.0.0:2049, [::]:2049 or :2049"))
}

/// Returns every address of this host, with the port of NFS for this transport (RFC 8166 §9: 20049 for RDMA). The ports
/// of shm are names of sockets, and do not conflict with those of TCP.
fn default_address(transport: &str) -> Result<SocketAddr, String> {
    match transport {
        "tcp" | "udp" | "shm" => Ok(everywhere(PORT)),
        "rdma" => Ok(everywhere(PORT_RDMA)),
        other => Err(format!("'{other}' is not a transport for servers: use tcp://…, udp://…, rdma://… or shm://…")),
    }
}

/// Returns every address of this host with this port. IPv6 includes IPv4 if the host has IPv6.
pub fn everywhere(port: u16) -> SocketAddr {
    match UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        Ok(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
        Err(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
    }
}

/// Returns the default addresses of a server: TCP, RDMA and shared memory.
pub fn defaults() -> [ListenConfig; 3] {
    ["tcp", "rdma", "shm"].map(|transport| ListenConfig {
        transport: transport.to_owned(),
        address: default_address(transport).expect("transport must be known"),
        options: Default::default(),
        tls: None,
    })
}

const PORT: u16 = 2049;
const PORT_RDMA: u16 = 20049;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ListenConfig {
        text.parse::<ListenUrl>().unwrap().0
    }

    #[test]
    fn addresses_have_defaults() {
        let listen = parse("tcp://127.0.0.1:0?congestion=cubic&nodelay");
        assert_eq!((listen.transport.as_str(), listen.address), ("tcp", "127.0.0.1:0".parse().unwrap()));
        let options: Vec<_> = listen.options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(options, [("congestion", "cubic"), ("nodelay", "")]);
        assert_eq!((parse("rdma").address.port(), parse("shm").address.port()), (20049, 2049));
        assert_eq!(parse("udp://[::1]").address, "[::1]:2049".parse().unwrap());
        assert_eq!(parse("tcp://10.0.0.1").address, "10.0.0.1:2049".parse().unwrap());
        assert!(parse("tcp://:7").address.ip().is_unspecified());
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        for text in ["", "sctp", "tcp://", "tcp://host:x", "quic://0.0.0.0:1", "tcp://1.2.3.4:99999"] {
            assert!(text.parse::<ListenUrl>().is_err(), "{text}");
        }
    }
}
