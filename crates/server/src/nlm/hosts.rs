//! [`Hosts`]: the hosts that lock by NLM.
//!
//! A host is identified by its address and its name (`caller_name`). The name alone is often `localhost`, and several
//! hosts can share an address. The protocol authenticates neither.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use entropy::HashMap;

use crate::export::policy::PORT_PRIVILEGED;

/// The number of a host; never 0.
pub(super) type HostId = u32;

/// A host that locks by NLM.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) address: IpAddr,
    pub(super) name: Bytes,
    /// The NSM state number of the host, or 0 if it is not known.
    pub(super) state: i32,
    /// `true` if the host is in the recovery database.
    pub(super) monitored: bool,
    /// `true` if the host may have held locks before this server restarted.
    pub(super) may_reclaim: bool,
    /// `true` if the host calls by UDP, so that the server calls it by UDP.
    pub(super) lossy: bool,
}

/// All known hosts, at most [`HOSTS_MAX`].
#[derive(Debug, Default)]
pub(super) struct Hosts {
    ids: HashMap<(IpAddr, Bytes), HostId>,
    hosts: HashMap<HostId, Host>,
    last: HostId,
    /// Hosts that were removed to make room but are still in the recovery database.
    forgotten: Vec<(IpAddr, Bytes)>,
}

impl Hosts {
    pub(super) fn find(&self, address: IpAddr, name: &[u8]) -> Option<HostId> {
        // The lookup needs an owned key, and a slice that is not static must be copied to become owned.
        self.ids.get(&(address.to_canonical(), Bytes::copy_from_slice(name))).copied()
    }

    /// Returns the number of a host, which is added if it is new. If there are too many hosts, one for which `is_idle`
    /// returns `true` makes room. Returns `None` if there is no such host.
    pub(super) fn intern(
        &mut self,
        address: IpAddr,
        name: &[u8],
        is_idle: impl Fn(HostId, &Host) -> bool,
    ) -> Option<HostId> {
        if let Some(id) = self.find(address, name) {
            return Some(id);
        }
        if self.hosts.len() >= HOSTS_MAX {
            let idle = self.hosts.iter().find(|(id, host)| is_idle(**id, host)).map(|(id, _)| *id)?;
            let host = self.remove(idle)?;
            if host.monitored {
                self.forgotten.push((host.address, host.name));
            }
        }
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.hosts.contains_key(&self.last) {
                break;
            }
        }
        let (address, name) = (address.to_canonical(), Bytes::copy_from_slice(name));
        self.ids.insert((address, name.clone()), self.last);
        let host = Host { address, name, state: 0, monitored: false, may_reclaim: false, lossy: false };
        self.hosts.insert(self.last, host);
        Some(self.last)
    }

    pub(super) fn get(&self, id: HostId) -> Option<&Host> {
        self.hosts.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: HostId) -> Option<&mut Host> {
        self.hosts.get_mut(&id)
    }

    pub(super) fn remove(&mut self, id: HostId) -> Option<Host> {
        let host = self.hosts.remove(&id)?;
        self.ids.remove(&(host.address, host.name.clone()));
        Some(host)
    }

    /// Takes the list of hosts that can be removed from the recovery database.
    pub(super) fn take_forgotten(&mut self) -> Vec<(IpAddr, Bytes)> {
        let mut forgotten = std::mem::take(&mut self.forgotten);
        forgotten.retain(|key| !self.ids.contains_key(key));
        forgotten
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (HostId, &Host)> {
        self.hosts.iter().map(|(id, host)| (*id, host))
    }

    /// Returns the hosts that have restarted, according to a NOTIFY from `peer` about `name`. The name can differ from
    /// the one in the host's locks (one of them may be fully qualified). If no host has both the address and the name,
    /// all hosts with the address are returned. A host with several addresses may send NOTIFY from another one; then
    /// the name must match and the port must be privileged.
    pub(super) fn restarted(&self, peer: SocketAddr, name: &[u8]) -> Vec<HostId> {
        let address = peer.ip().to_canonical();
        if let Some(id) = self.find(address, name) {
            return vec![id];
        }
        let there: Vec<_> = self.iter().filter(|(_, host)| host.address == address).map(|(id, _)| id).collect();
        if !there.is_empty() || peer.port() >= PORT_PRIVILEGED {
            return there;
        }
        self.iter().filter(|(_, host)| host.name == name).map(|(id, _)| id).collect()
    }
}

const HOSTS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarted_host_is_found_by_address_and_name() {
        let mut hosts = Hosts::default();
        let mut add = |address: &str, name: &str| hosts.intern(address.parse().unwrap(), name.as_bytes(), |_, _| false);
        let a = add("10.0.0.1", "venus").unwrap();
        let b = add("10.0.0.2", "localhost").unwrap();
        let c = add("::ffff:10.0.0.2", "mars").unwrap();
        let d = add("10.0.0.3", "localhost").unwrap();
        assert_eq!(add("::ffff:10.0.0.1", "venus"), Some(a));
        let said = |peer: &str, name: &str| {
            let mut found = hosts.restarted(peer.parse().unwrap(), name.as_bytes());
            found.sort_unstable();
            found
        };
        assert_eq!(said("10.0.0.1:900", "venus"), [a]);
        assert_eq!(
            said("[::ffff:10.0.0.1]:5000", "venus.example.com"),
            [a],
            "by its address, because the name differs"
        );
        assert_eq!(said("10.0.0.2:900", "mars"), [c], "not the other host behind the same address");
        assert_eq!(said("10.0.0.2:900", "pluto"), [b, c]);
        assert_eq!(said("10.0.0.9:900", "venus"), [a], "by its name, from another address of the host");
        assert!(said("10.0.0.9:1024", "venus").is_empty(), "an unprivileged port proves nothing");
        assert_eq!(said("10.0.0.9:900", "localhost"), [b, d]);
    }

    #[test]
    fn hosts_are_bounded_and_idle_ones_make_room() {
        let mut hosts = Hosts::default();
        let address = |i: usize| IpAddr::from([10, 1, (i >> 8) as u8, i as u8]);
        for i in 0..HOSTS_MAX {
            hosts.intern(address(i), b"", |_, _| false).unwrap();
        }
        assert_eq!(hosts.intern(address(HOSTS_MAX), b"", |_, _| false), None);
        let idle = hosts.find(address(7), b"").unwrap();
        assert!(hosts.intern(address(HOSTS_MAX), b"", |id, _| id == idle).is_some());
        assert_eq!((hosts.hosts.len(), hosts.ids.len(), hosts.find(address(7), b"")), (HOSTS_MAX, HOSTS_MAX, None));
    }
}
