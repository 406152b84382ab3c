//! [`Rpcbind`]: the service, and [`Registry`], its table of bindings.

use std::{ops::RangeInclusive, sync::Arc};

use parking_lot::Mutex;
use xdr::{Decode, List, Message, Text};

use super::{
    Binding, DUMP, GETADDR, GETTIME, GETVERSADDR, Mapping, NULL, Netid, PROGRAM, Rpcb, SET, UNSET, any, from_universal,
    reachable, to_universal,
};
use crate::{AcceptError, Answering, Call, Procedure, Service};

/// The bindings of a host. Clones share the same table.
#[derive(Clone, Debug, Default)]
pub struct Registry(Arc<Mutex<Vec<Binding>>>);

impl Registry {
    /// Adds a binding. Returns `false` if the program version has a binding on that transport already, or the table is
    /// full.
    pub fn set(&self, binding: Binding) -> bool {
        let mut bindings = self.0.lock();
        let taken = bindings
            .iter()
            .any(|old| (old.program, old.version, &old.netid) == (binding.program, binding.version, &binding.netid));
        if taken || bindings.len() == BINDINGS_MAX {
            return false;
        }
        bindings.push(binding);
        true
    }

    /// Removes the bindings of a program version on one transport, or on all. Returns `false` if there were none.
    pub fn unset(&self, program: u32, version: u32, netid: Option<&Netid>) -> bool {
        let mut bindings = self.0.lock();
        let before = bindings.len();
        bindings.retain(|old| {
            (old.program, old.version) != (program, version) || netid.is_some_and(|netid| *netid != old.netid)
        });
        bindings.len() < before
    }

    /// Finds a program on a transport. If the version is not registered and `exact` is `false`, returns another
    /// version.
    pub fn find(&self, program: u32, version: u32, netid: &Netid, exact: bool) -> Option<Binding> {
        let bindings = self.0.lock();
        let mut candidates = bindings.iter().filter(|entry| entry.program == program && entry.netid == *netid);
        let other = candidates.clone().next_back();
        candidates.find(|entry| entry.version == version).or(other.filter(|_| !exact)).cloned()
    }

    /// Returns all bindings.
    pub fn list(&self) -> Vec<Binding> {
        self.0.lock().clone()
    }
}

/// The rpcbind program, versions 2 to 4, as a service. It leaves out the indirect calls (CALLIT, INDIRECT), by which
/// any host can make a server call programs on its behalf.
#[derive(Clone, Debug, Default)]
pub struct Rpcbind {
    registry: Registry,
}

impl Rpcbind {
    /// Creates a service that answers from `registry`.
    pub fn new(registry: Registry) -> Self {
        Self { registry }
    }

    fn answer(&self, mut call: Call<'_>) -> Result<Message, AcceptError> {
        match (call.procedure, call.version) {
            (NULL, _) => Ok(call.reply(&())),
            (SET | UNSET, 2) => {
                let mapping = arguments::<Mapping>(&mut call)?;
                Ok(call.reply(&self.change(&call, mapping.into())))
            }
            (SET | UNSET, _) => {
                let rpcb = arguments::<Rpcb>(&mut call)?;
                Ok(call.reply(&self.change(&call, rpcb.into())))
            }
            (GETADDR, 2) => {
                let mapping = arguments::<Mapping>(&mut call)?;
                let binding = Netid::of_protocol(mapping.protocol)
                    .and_then(|netid| self.registry.find(mapping.program, mapping.version, &netid, false));
                Ok(call.reply(&binding.map_or(0, |binding| u32::from(binding.address.port()))))
            }
            (GETADDR | GETVERSADDR, _) => {
                let rpcb = arguments::<Rpcb>(&mut call)?;
                Ok(call.reply(&self.address(&rpcb, call.procedure == GETVERSADDR)))
            }
            (DUMP, 2) => Ok(call.reply(&List(self.registry.list().iter().filter_map(mapping_of).collect()))),
            (DUMP, _) => Ok(call.reply(&List(self.registry.list().iter().map(Rpcb::from).collect()))),
            (GETTIME, _) => {
                let now = entropy::system_time().duration_since(std::time::UNIX_EPOCH);
                Ok(call.reply(&now.map_or(0, |since| since.as_secs() as u32)))
            }
            (procedure, version) => unreachable!("procedure {procedure} of version {version} is not listed"),
        }
    }

    /// Executes SET and UNSET for callers on this host; refuses all others.
    fn change(&self, call: &Call<'_>, request: Request) -> bool {
        let Some(netid) = request.netid.filter(|_| call.peer.ip().is_loopback()) else { return false };
        if call.procedure == UNSET {
            // Version 2 removes a program version from every transport (RFC 1833 §3.2); so does an empty netid.
            let every = call.version == 2 || netid.0.is_empty();
            return self.registry.unset(request.program, request.version, (!every).then_some(&netid));
        }
        let Some(address) = request.address else { return false };
        self.registry.set(Binding { program: request.program, version: request.version, netid, address })
    }

    fn address(&self, rpcb: &Rpcb, exact: bool) -> Text<{ super::STRING_MAX }> {
        let netid = Netid(rpcb.netid.0.clone());
        let Some(binding) = self.registry.find(rpcb.program, rpcb.version, &netid, exact) else {
            return Text::default();
        };
        // The caller can say at which address it reaches this host (RFC 1833 §2.2.1).
        let known_as = from_universal(&rpcb.address.0).map(|address| address.ip());
        Text(to_universal(reachable(binding.address, known_as)))
    }
}

fn arguments<T: Decode>(call: &mut Call<'_>) -> Result<T, AcceptError> {
    let value = T::decode(&mut call.arguments)?;
    call.arguments.finish()?;
    Ok(value)
}

/// The arguments of SET and UNSET of any version.
struct Request {
    program: u32,
    version: u32,
    netid: Option<Netid>,
    address: Option<std::net::SocketAddr>,
}

impl From<Mapping> for Request {
    fn from(mapping: Mapping) -> Self {
        let netid = Netid::of_protocol(mapping.protocol);
        let port = u16::try_from(mapping.port).ok();
        let address = netid.as_ref().zip(port).map(|(netid, port)| any(netid, port));
        // UNSET ignores the protocol, so an unknown protocol is valid.
        Self {
            program: mapping.program,
            version: mapping.version,
            netid: netid.or(Some(Netid(String::new()))),
            address,
        }
    }
}

impl From<Rpcb> for Request {
    fn from(rpcb: Rpcb) -> Self {
        let address = from_universal(&rpcb.address.0);
        Self { program: rpcb.program, version: rpcb.version, netid: Some(Netid(rpcb.netid.0)), address }
    }
}

fn mapping_of(binding: &Binding) -> Option<Mapping> {
    let protocol = binding.netid.protocol()?;
    let port = u32::from(binding.address.port());
    Some(Mapping { program: binding.program, version: binding.version, protocol, port })
}

impl From<&Binding> for Rpcb {
    fn from(binding: &Binding) -> Self {
        Self {
            program: binding.program,
            version: binding.version,
            netid: Text(binding.netid.0.clone()),
            address: Text(to_universal(binding.address)),
            owner: Text("slipway".to_owned()),
        }
    }
}

impl Service for Rpcbind {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        2..=4
    }

    fn procedure(&self, version: u32, procedure: u32) -> Option<Procedure> {
        let name = match (procedure, version) {
            (NULL, _) => "NULL",
            (SET, _) => "SET",
            (UNSET, _) => "UNSET",
            (GETADDR, 2) => "GETPORT",
            (GETADDR, _) => "GETADDR",
            (DUMP, _) => "DUMP",
            (GETTIME, 3..) => "GETTIME",
            (GETVERSADDR, 4..) => "GETVERSADDR",
            _ => return None,
        };
        Some(Procedure { name, idempotent: !matches!(procedure, SET | UNSET) })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        Answering::Ready(self.answer(call))
    }
}

const BINDINGS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(version: u32, netid: &str, address: &str) -> Binding {
        Binding { program: 100_003, version, netid: Netid(netid.into()), address: address.parse().unwrap() }
    }

    #[test]
    fn program_version_has_one_binding_per_transport() {
        let registry = Registry::default();
        assert!(registry.set(binding(3, "tcp", "0.0.0.0:2049")));
        assert!(!registry.set(binding(3, "tcp", "0.0.0.0:2050")));
        assert!(registry.set(binding(3, "rdma", "0.0.0.0:20049")));
        assert!(registry.set(binding(4, "tcp", "0.0.0.0:2049")));
        let find = |version, netid: &str, exact| {
            registry
                .find(100_003, version, &Netid(netid.into()), exact)
                .map(|found| (found.version, found.address.port()))
        };
        assert_eq!(find(3, "tcp", true), Some((3, 2049)));
        assert_eq!(find(3, "rdma", true), Some((3, 20049)));
        assert_eq!(find(2, "tcp", true), None);
        assert_eq!(find(2, "tcp", false), Some((4, 2049)));
        assert_eq!(find(3, "udp", false), None);
        assert!(registry.unset(100_003, 3, Some(&Netid("rdma".into()))));
        assert!(registry.unset(100_003, 3, None));
        assert!(!registry.unset(100_003, 3, None));
        assert_eq!(registry.list().len(), 1);
    }
}
