//! File locks for NFSv3: NLM and NSM on a separate port, which clients learn from rpcbind, and the calls of the server
//! to clients. NLM is also on the connections of NFS.

use std::{net::SocketAddr, sync::Arc};

use gss::GssServer;
use rpc::{Server, Switch, Workers};
use server::{
    CallbackTransports, NfsServer,
    config::{ListenConfig, RpcbindMode, ServerConfig},
};

use super::{
    kerberos, listen_one,
    rpcbind::{Place, options_of_few},
};
use crate::exit::Failure;

/// The running lock programs.
pub struct Locking {
    /// The server of NLM and NSM.
    pub server: Arc<Server>,
    /// Their transports and addresses.
    pub places: Vec<Place>,
}

/// Starts the calls to clients, and NLM and NSM over TCP and UDP, next to NFS, which listens on `nfs_at`. Does not start NLM and NSM if
/// no client could find them.
///
/// # Errors
/// The port cannot be used.
pub fn start(
    config: &ServerConfig,
    switch: &Switch,
    workers: &Workers,
    (nfs, gss): (&NfsServer, Option<&Arc<GssServer>>),
    nfs_at: &[Place],
) -> Result<Option<Locking>, Failure> {
    let kind = |name| switch.find(name).expect("transport must be registered");
    tokio::spawn(nfs.lock_callbacks(CallbackTransports { tcp: kind("tcp"), udp: kind("udp") }));
    if config.rpcbind == RpcbindMode::Off {
        return Ok(None);
    }
    let builder = kerberos::add(Server::builder().hosts(nfs.hosts()), gss);
    let server = nfs.lock_services().into_iter().fold(builder, rpc::ServerBuilder::shared).build();
    let port = config.nlm_port.unwrap_or(0);
    let address = match nfs_at.first() {
        Some((_, address)) => SocketAddr::new(address.ip(), port),
        None => super::listen::everywhere(port),
    };
    let mut places = Vec::new();
    for transport in ["tcp", "udp"] {
        let options = options_of_few(transport);
        let listen = ListenConfig { transport: transport.to_owned(), address, options, tls: None };
        let (transport, listener, _) = listen_one(switch, &listen)
            .map_err(|failure| Failure { message: format!("--nlm-port: {}", failure.message), ..failure })?;
        places.push((transport, listener.local_addr()));
        workers.listen(server.clone(), listener);
    }
    Ok(Some(Locking { server, places }))
}
