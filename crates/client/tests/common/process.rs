//! A server of what it is given.

use std::{net::SocketAddr, sync::Arc};

use rpc::{Drain, ServerBuilder, Service, TransportKind};
use tokio::task::JoinSet;

/// A server until this is dropped, with its connections.
pub fn process(
    kind: &dyn TransportKind,
    address: SocketAddr,
    services: Vec<Arc<dyn Service>>,
) -> (SocketAddr, JoinSet<()>) {
    let server = services.into_iter().fold(rpc::Server::builder(), ServerBuilder::shared).build();
    let mut listener = kind.listen(address).unwrap();
    let address = listener.local_addr();
    let mut process = JoinSet::new();
    process.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok(incoming) = listener.accept().await {
            let server = server.clone();
            connections.spawn(async move {
                if let Ok(transport) = incoming().await {
                    server.serve(transport, Drain::never()).await;
                }
            });
        }
    });
    (address, process)
}
