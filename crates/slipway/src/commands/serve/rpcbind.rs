//! How clients learn our ports without being told: this host's rpcbind, or our own answers in its place (RFC 1833).

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use rpc::{
    Hosts, RawOptions, Server, Switch, TransportKind, Workers,
    rpcbind::{self, Binding, LookupError, Netid, Registry, Rpcbind},
};
use server::config::{ListenConfig, RpcbindMode};

use super::listen_one;
use crate::exit::Failure;

/// A transport, and where it listens.
pub type Place = (String, SocketAddr);

/// Programs that are of use to clients only together, and where they are.
pub struct Group<'a> {
    /// What clients use them for.
    pub what: &'static str,
    /// Their numbers and versions.
    pub programs: Vec<(u32, u32)>,
    /// Where they are.
    pub places: &'a [Place],
}

/// What has been made known, to be taken back.
pub struct Published {
    kind: Arc<dyn TransportKind>,
    bindings: Vec<Binding>,
    /// Of the groups, in order, whether clients can find it.
    pub known: Vec<bool>,
}

/// Makes known where programs are.
///
/// # Errors
/// Our own rpcbind cannot listen. That another one does not do what it should is only said.
pub async fn publish(
    mode: RpcbindMode,
    (switch, workers): (&Switch, &Workers),
    hosts: &Hosts,
    groups: &[Group<'_>],
) -> Result<Published, Failure> {
    let kind = switch.find("tcp").expect("it is registered");
    let mut published = Published { kind, bindings: Vec::new(), known: vec![false; groups.len()] };
    let bindings = groups.iter().map(|group| bindings(&group.programs, group.places));
    match mode {
        RpcbindMode::Off => {}
        RpcbindMode::Auto => {
            for (at, (group, bindings)) in groups.iter().zip(bindings).enumerate() {
                match published.register(bindings).await {
                    Ok(known) => published.known[at] = known,
                    Err(why) => {
                        tracing::info!(%why, what = group.what, "not registered with rpcbind");
                        break;
                    }
                }
            }
        }
        RpcbindMode::Builtin => {
            builtin((switch, workers), hosts, bindings.flatten().collect())?;
            published.known.fill(true);
        }
    }
    Ok(published)
}

impl Published {
    /// Registers, unless somebody else serves the same: then false.
    async fn register(&mut self, bindings: Vec<Binding>) -> Result<bool, LookupError> {
        for Binding { program, version, netid, address } in &bindings {
            match rpcbind::lookup(self.kind.clone(), RPCBIND, *program, *version, netid).await {
                Ok(other) if other.port() != address.port() => {
                    eprintln!(
                        "slipway serve: program {program} is registered with rpcbind at port {} of {netid} already: left so",
                        other.port()
                    );
                    return Ok(false);
                }
                Ok(_) | Err(LookupError::NotRegistered { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        rpcbind::register(self.kind.clone(), RPCBIND, &bindings).await?;
        self.bindings.extend(bindings);
        Ok(true)
    }

    /// Takes back what has been registered.
    pub async fn withdraw(self) {
        if self.bindings.is_empty() {
            return;
        }
        if let Err(error) = rpcbind::unregister(self.kind, RPCBIND, &self.bindings).await {
            tracing::warn!(%error, "rpcbind still has our ports");
        }
    }
}

/// Answers as an rpcbind, at every address.
fn builtin((switch, workers): (&Switch, &Workers), hosts: &Hosts, bindings: Vec<Binding>) -> Result<(), Failure> {
    let registry = Registry::default();
    let mut listeners = Vec::new();
    for transport in ["tcp", "udp"] {
        let address = super::listen::everywhere(rpcbind::PORT);
        let listen = ListenConfig { transport: transport.to_owned(), address, options: options_of_few(transport) };
        let (_, listener) = listen_one(switch, &listen)
            .map_err(|failure| Failure { message: format!("--rpcbind builtin: {}", failure.message), ..failure })?;
        listeners.push((transport.to_owned(), listener));
    }
    let addresses: Vec<_> =
        listeners.iter().map(|(transport, listener)| (transport.clone(), listener.local_addr())).collect();
    let own = (2..=4).map(|version| (rpcbind::PROGRAM, version)).collect::<Vec<_>>();
    for binding in self::bindings(&own, &addresses).into_iter().chain(bindings) {
        registry.set(binding);
    }
    let server = Server::builder().hosts(hosts.clone()).service(Rpcbind::new(registry)).build();
    for (_, listener) in listeners {
        workers.listen(server.clone(), listener);
    }
    Ok(())
}

/// Options of a listener whose messages are small: the memory of connections is there for NFS.
pub fn options_of_few(transport: &str) -> RawOptions {
    let options: &[_] = match transport {
        "tcp" => &[("memory", "4m"), ("message_max", "64k")],
        _ => &[("reply_rate", "64k")],
    };
    options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Each program at each address. Who listens at every IPv6 address is there for IPv4, too.
fn bindings(programs: &[(u32, u32)], listeners: &[(String, SocketAddr)]) -> Vec<Binding> {
    let mut bindings = Vec::new();
    // Sockets of shm have names, not ports.
    for (transport, address) in listeners.iter().filter(|(transport, _)| transport != "shm") {
        let mut addresses = vec![*address];
        if address.is_ipv6() && address.ip().is_unspecified() {
            addresses.push((Ipv4Addr::UNSPECIFIED, address.port()).into());
        }
        for address in addresses {
            let netid = Netid::new(transport, address);
            let at = |&(program, version)| Binding { program, version, netid: netid.clone(), address };
            bindings.extend(programs.iter().map(at));
        }
    }
    bindings
}

/// This host's rpcbind.
const RPCBIND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), rpcbind::PORT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_at_each_address_and_family() {
        let listeners =
            [("tcp".to_owned(), "[::]:2049".parse().unwrap()), ("rdma".to_owned(), "10.0.0.1:20049".parse().unwrap())];
        let bindings = bindings(&[(100_003, 3), (100_005, 3)], &listeners);
        let text: Vec<_> = bindings
            .iter()
            .map(|binding| format!("{} {} {} {}", binding.program, binding.version, binding.netid, binding.address))
            .collect();
        assert_eq!(
            text,
            [
                "100003 3 tcp6 [::]:2049",
                "100005 3 tcp6 [::]:2049",
                "100003 3 tcp 0.0.0.0:2049",
                "100005 3 tcp 0.0.0.0:2049",
                "100003 3 rdma 10.0.0.1:20049",
                "100005 3 rdma 10.0.0.1:20049",
            ]
        );
    }
}
