//! Data servers that are not different ones: two with the same directory, and servers that clients take for one.
//!
//! RFC 8881 §2.10.4: a client takes two servers with the same owner for one, and uses any of their addresses for both. So the metadata
//! server and its data servers must have different ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use client::{CreateHow, Mount, NfsUrl, SetAttr, V4};
use rpc::Switch;
use server::config::{DataVersionConfig, ListenConfig};

use super::{Finding, data_servers::test_name};
use crate::pnfs::versions;

/// A data server that answers.
pub struct Present {
    /// The name of its check.
    pub name: String,
    /// The directory of the objects.
    pub mount: Mount,
    /// The connection by the version of clients, if they use NFSv4.
    pub newer: Option<Mount>,
}

impl Present {
    /// Ends the connections.
    pub async fn end(self) {
        for mount in [Some(self.mount), self.newer].into_iter().flatten() {
            // The data server removes the client later if this fails.
            let _ = mount.unmount().await;
        }
    }

    fn owner(&self) -> Option<&[u8]> {
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
        let owner = one.owner()?;
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

/// Returns the owners of the metadata server that listens at these addresses of this host: none if it does not run.
pub async fn own_owners(listen: &[ListenConfig], switch: &Switch) -> Vec<Vec<u8>> {
    let mut owners = Vec::new();
    for ListenConfig { transport, address, .. } in listen.iter().filter(|listen| listen.transport == "tcp") {
        let mut address = *address;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let Ok(url) = format!("nfs://{address}/?proto={transport}").parse::<NfsUrl>() else { continue };
        if let Ok(Some(mount)) = versions::connect(&url, DataVersionConfig::V4_1, switch).await {
            owners.extend(mount.v4().and_then(V4::server_owner).map(<[u8]>::to_vec));
            let _ = mount.unmount().await;
        }
    }
    owners
}
