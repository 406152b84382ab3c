//! Data servers that are not different ones: two with the same directory, and servers that clients take for one.
//!
//! RFC 8881 §2.10.4: a client takes two servers with the same owner for one, and uses any of their addresses for both. So the metadata
//! server and its data servers must have different ones, unless one process has both roles (§13.1).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use client::{CreateHow, Mount, NfsUrl, SetAttr, V4};
use rpc::Switch;
use server::{
    Config, HandleKey,
    config::{DataVersionConfig, ListenConfig, default_state_dir},
};
use vfs::layout::DataAddress;

use super::{
    Finding,
    data_servers::{test_name, transport_name},
};
use crate::pnfs::{self, DataServerEndpoint, versions};

/// A data server that answers.
pub struct Present {
    /// The name of its check.
    pub name: String,
    /// The directory of the objects.
    pub mount: Mount,
    /// The connection by the version of clients, if they use NFSv4.
    pub newer: Option<Mount>,
    /// `true` if it is the process of the metadata server.
    pub is_own: bool,
}

impl Present {
    /// Ends the connections.
    pub async fn end(self) {
        for mount in [Some(self.mount), self.newer].into_iter().flatten() {
            // The data server removes the client later if this fails.
            let _ = mount.unmount().await;
        }
    }

    /// Returns the owner that clients of NFSv4 learn.
    pub fn owner(&self) -> Option<&[u8]> {
        self.newer.as_ref().and_then(Mount::v4).and_then(V4::server_owner)
    }
}

/// Finds data servers that have the same directory: a file that is created on one appears on another.
pub async fn directories(present: &[Present]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, one) in present.iter().enumerate() {
        let (name, how) = (test_name(), CreateHow::Unchecked(SetAttr { mode: Some(0o640), ..SetAttr::default() }));
        // What prevents it is found by the check of this data server.
        if one.mount.protocol().create(one.mount.root(), name.as_bytes(), how).await.is_err() {
            continue;
        }
        for other in &present[at + 1..] {
            if other.mount.lookup(other.mount.root(), name.as_bytes()).await.is_ok() {
                findings.push(Finding::bad(
                    other.name.clone(),
                    format!("it has the same directory as {}, so both copies of a file can be on one disk", one.name),
                    "give each [[pnfs.server]] a directory of its own, on another host",
                ));
            }
        }
        if let Err(error) = one.mount.protocol().remove(one.mount.root(), name.as_bytes()).await {
            findings.push(Finding::bad(
                one.name.clone(),
                format!("the test object {name} cannot be removed: {error}"),
                "remove it",
            ));
        }
    }
    findings
}

/// Finds servers that clients of NFSv4 take for one. `own` has the owners of the metadata server.
pub fn owners(present: &[Present], own: &[Vec<u8>]) -> Vec<Finding> {
    let clash = |(at, one): (usize, &Present)| {
        let owner = one.owner().filter(|_| !one.is_own)?;
        let other = match present[..at].iter().find(|other| other.owner() == Some(owner)) {
            Some(other) => other.name.as_str(),
            None => own.iter().any(|own| own == owner).then_some("the metadata server")?,
        };
        Some(Finding::bad(
            one.name.clone(),
            format!("clients take it and {other} for one server, because both have the same server owner"),
            "give each server a state directory of its own that is no copy of another one",
        ))
    };
    present.iter().enumerate().filter_map(clash).collect()
}

/// Reports whether the URL of a data server leads to the metadata server that listens at these addresses of this host.
pub fn is_own(endpoint: &DataServerEndpoint, listen: &[ListenConfig]) -> bool {
    pnfs::address_of(&endpoint.url).is_ok_and(|address| listener_at(&address, listen).is_some())
}

/// Finds addresses for clients of a data server in another process at which the metadata server listens. A client of NFSv4 that has mounted
/// from such an address sends the calls for the data server to the metadata server.
pub fn addresses(name: &str, endpoint: &DataServerEndpoint, listen: &[ListenConfig]) -> Vec<Finding> {
    let by_v4 = endpoint.version != DataVersionConfig::V3;
    let clash = |address: &DataAddress| {
        let (transport, own) = (transport_name(address.transport), listener_at(address, listen)?);
        Some(Finding::bad(
            name.to_owned(),
            format!(
                "clients take it and the metadata server for one server: they get the address {transport}://{}, and the metadata server listens at \
                 {transport}://{}",
                address.address, own.address
            ),
            "correct `address` of the [[pnfs.server]], or, if the metadata server is to be this data server, too, `url`",
        ))
    };
    endpoint.addresses.iter().filter(|_| by_v4).filter_map(clash).collect()
}

/// Returns the listener of this host that is reached at an address for clients.
fn listener_at<'a>(address: &DataAddress, listen: &'a [ListenConfig]) -> Option<&'a ListenConfig> {
    let is_reached = |own: &&ListenConfig| {
        // A socket at another path is not found by the port.
        let by_port = own.transport == transport_name(address.transport) && !own.options.contains_key(SOCKET);
        by_port && is_at(own.address, address.address)
    };
    listen.iter().find(is_reached)
}

/// Reports whether a listener of this host is reached at an address.
fn is_at(listener: SocketAddr, address: SocketAddr) -> bool {
    let (own, ip) = (listener.ip().to_canonical(), address.ip().to_canonical());
    let everywhere = own.is_unspecified() && (own.is_ipv6() || ip.is_ipv4());
    // Only addresses of this host can be bound.
    listener.port() == address.port() && (own == ip || everywhere && UdpSocket::bind((ip, 0)).is_ok())
}

/// Returns the owners of the metadata server with this configuration: that of its state directory, and that of the running one. The finding
/// says that neither is known.
pub async fn own_owners(config: &Config, listen: &[ListenConfig], switch: &Switch) -> (Vec<Vec<u8>>, Option<Finding>) {
    let state_dir = config.server.state_dir.clone().unwrap_or_else(default_state_dir);
    let kept = HandleKey::find(&state_dir).map(|key| key.map(|key| key.server_owner().to_vec()));
    let running = running_owner(listen, switch).await;
    let unknown = kept.as_ref().err().filter(|_| running.is_none()).map(|error| {
        Finding::note(
            "metadata server",
            format!(
                "clients may take it for a data server of NFSv4, which is not checked, as it does not run: {error}"
            ),
            "run this command as the user of the metadata server",
        )
    });
    (kept.ok().flatten().into_iter().chain(running).collect(), unknown)
}

/// Returns the owner of the server that listens at these addresses of this host, if it answers at one of them.
async fn running_owner(listen: &[ListenConfig], switch: &Switch) -> Option<Vec<u8>> {
    for ListenConfig { transport, address, options, .. } in listen.iter().filter(|listen| listen.transport != "udp") {
        let mut address = *address;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let needed = [SOCKET, "provider"].into_iter().filter_map(|key| Some(format!("&{key}={}", options.get(key)?)));
        let url = format!("nfs://{address}/?proto={transport}{}", needed.collect::<String>());
        let Ok(mut url) = url.parse::<NfsUrl>() else { continue };
        url.options.deadline = ANSWER_TIME;
        if let Ok(Some(mount)) = versions::connect(&url, DataVersionConfig::V4_1, switch).await {
            let owner = mount.v4().and_then(V4::server_owner).map(<[u8]>::to_vec);
            let _ = mount.unmount().await;
            return owner;
        }
    }
    None
}

/// The option of a listener of shared memory that names its socket.
const SOCKET: &str = "socket";
/// The time in which the metadata server on this host answers.
const ANSWER_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_reached_at_their_own_addresses() {
        let at = |listener: &str, address: &str| is_at(listener.parse().unwrap(), address.parse().unwrap());
        assert!(at("192.0.2.1:2049", "192.0.2.1:2049") && at("[::ffff:192.0.2.1]:2049", "192.0.2.1:2049"));
        assert!(!at("192.0.2.1:2049", "192.0.2.1:2050") && !at("192.0.2.1:2049", "192.0.2.2:2049"));
        for everywhere in ["0.0.0.0:2049", "[::]:2049"] {
            assert!(at(everywhere, "127.0.0.1:2049"), "{everywhere}");
            assert!(!at(everywhere, "127.0.0.1:2050") && !at(everywhere, "192.0.2.1:2049"), "{everywhere}");
        }
        assert!(!at("0.0.0.0:2049", "[::1]:2049"), "IPv4 only");
    }
}
