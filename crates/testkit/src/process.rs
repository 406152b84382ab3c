//! A server of what it is given.
//!
//! This file uses nothing of the crates above `rpc`, so that tests of crates that this one is made of can include it.

use std::{net::SocketAddr, sync::Arc};

use rpc::{Drain, Hosts, Listener, Server, ServerBuilder, Service, TransportKind};
use tokio::task::JoinSet;

/// A server until this is dropped, with its connections.
///
/// # Panics
/// Nobody can listen there.
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

/// Serves whoever comes, until this is dropped.
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
