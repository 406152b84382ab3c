//! A server of the given programs.
//!
//! This file uses no crate above `rpc`, so that tests of the crates below this one can include it.

use std::{net::SocketAddr, sync::Arc};

use rpc::{Drain, Hosts, Listener, Server, ServerBuilder, Service, TransportKind};
use tokio::task::JoinSet;

/// Runs a server with its connections until this is dropped.
///
/// # Panics
/// The server cannot listen on the address.
pub fn process(
    kind: &dyn TransportKind,
    address: SocketAddr,
    services: Vec<Arc<dyn Service>>,
) -> (SocketAddr, JoinSet<()>) {
    let server = services.into_iter().fold(Server::builder(), ServerBuilder::shared).build();
    let listener = kind.listen(address).unwrap();
    let address = listener.local_addr();
    let mut process = JoinSet::new();
    process.spawn(serve(listener, server));
    (address, process)
}

/// Serves all connections, until this is dropped.
pub async fn serve(mut listener: Box<dyn Listener>, server: Arc<Server>) {
    let mut connections = JoinSet::new();
    while let Ok(incoming) = listener.accept().await {
        let server = server.clone();
        connections.spawn(async move {
            if let Ok(transport) = incoming.set_up(Hosts::all()).await {
                server.serve(transport, Drain::never()).await;
            }
        });
    }
}
