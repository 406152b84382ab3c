//! Publishes the server's ports: through this host's rpcbind, or a built-in one (RFC 1833).

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

/// A transport, and the address on which it listens.
pub type Place = (String, SocketAddr);

/// Programs that clients need together, and their addresses.
pub struct Group<'a> {
    /// The purpose of the programs, for messages.
    pub what: &'static str,
    /// Their numbers and versions.
    pub programs: Vec<(u32, u32)>,
    /// Their addresses.
    pub places: &'a [Place],
}

/// The published programs, which `withdraw` removes.
pub struct Published {
    kind: Arc<dyn TransportKind>,
    bindings: Vec<Binding>,
    /// For each group, in order, `true` if clients can find it.
    pub known: Vec<bool>,
}

/// Publishes the addresses of programs.
///
/// # Errors
/// The built-in rpcbind cannot listen. Errors of another rpcbind are only logged.
pub async fn publish(
    mode: RpcbindMode,
    (switch, workers): (&Switch, &Workers),
    hosts: &Hosts,
    groups: &[Group<'_>],
) -> Result<Published, Failure> {
    let kind = switch.find("tcp").expect("tcp must be registered");
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
    /// Registers the programs. Returns `false` if another server has registered one of them.
    async fn register(&mut self, bindings: Vec<Binding>) -> Result<bool, LookupError> {
        for Binding { program, version, netid, address } in &bindings {
            match rpcbind::lookup(self.kind.clone(), RPCBIND, *program, *version, netid).await {
                Ok(other) if other.port() != address.port() => {
                    eprintln!(
                        "slipway serve: program {program} is registered with rpcbind at port {} of {netid} already: unchanged",
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

    /// Unregisters the programs.
    pub async fn withdraw(self) {
        if self.bindings.is_empty() {
            return;
        }
        if let Err(error) = rpcbind::unregister(self.kind, RPCBIND, &self.bindings).await {
            tracing::warn!(%error, "rpcbind still has our ports");
        }
    }
}

/// Runs the built-in rpcbind, on every address.
fn builtin((switch, workers): (&Switch, &Workers), hosts: &Hosts, bindings: Vec<Binding>) -> Result<(), Failure> {
    let registry = Registry::default();
    let mut listeners = Vec::new();
    for transport in ["tcp", "udp"] {
        let address = super::listen::everywhere(rpcbind::PORT);
        let options = options_of_few(transport);
        let listen = ListenConfig { transport: transport.to_owned(), address, options, tls: None };
        let (_, listener, _) = listen_one(switch, &listen)
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

/// Returns the options of a listener with small messages, whose connections need little memory.
pub fn options_of_few(transport: &str) -> RawOptions {
    let options: &[_] = match transport {
        "tcp" => &[("memory", "4m"), ("message_max", "64k")],
        _ => &[("reply_rate", "64k")],
    };
    options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the binding of each program at each address. A listener on every IPv6 address also accepts IPv4.
fn bindings(programs: &[(u32, u32)], listeners: &[(String, SocketAddr)]) -> Vec<Binding> {
    let mut bindings = Vec::new();
    // Sockets of shm have names instead of ports.
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

/// The address of this host's rpcbind.
const RPCBIND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), rpcbind::PORT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_bound_for_each_address_and_family() {
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
