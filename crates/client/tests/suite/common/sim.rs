//! A server and a client in a simulation: in virtual time, over a simulated network that carries TCP and RDMA.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use buf::Pool;
use client::Mount;
use rdma::sim::Sim;
use rpc::{Service, Switch, TcpKind, TcpOptions, TransportKind};
use rpcrdma::{Options, RdmaKind};
use simnet::{Network, NetworkOptions};

use super::{
    process,
    scripted::{Scripted, ScriptedService},
};

/// Where the server is.
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 20049);

/// Runs a test with a mount of what `serve` serves, and what else `serve` returns. `url` is its path and its query, the transport
/// included. The seed is 0, or `SLIPWAY_SEED`.
pub fn run<S, T, F: Future<Output = T>>(
    url: &str,
    serve: impl FnOnce() -> (Vec<Arc<dyn Service>>, S),
    test: impl FnOnce(S, Mount) -> F,
) -> T {
    let seed = simnet::seeds(1).start;
    simnet::simulate(seed, || async move {
        let network = Network::new(NetworkOptions { seed, ..NetworkOptions::default() });
        let (services, more) = serve();
        let _processes = kinds(&network.host(SERVER.ip())).map(|kind| process(&*kind, SERVER, services.clone()).1);
        let url = format!("nfs://{SERVER}{url}&uid=0&gid=0").parse().unwrap();
        test(more, Mount::connect(&url, &switch(&network, 1)).await.unwrap()).await
    })
}

/// The server that does what it is told.
pub fn scripted() -> (Vec<Arc<dyn Service>>, Arc<Scripted>) {
    let scripted = Scripted::new();
    (vec![Arc::new(ScriptedService(scripted.clone()))], scripted)
}

/// What the client of this number reaches the server by.
fn switch(network: &Network, number: u8) -> Switch {
    let mut switch = Switch::new();
    kinds(&network.host(IpAddr::from([127, 0, 1, number]))).into_iter().for_each(|kind| switch.register(kind));
    switch
}

/// The transports of a host.
fn kinds(host: &Network) -> [Arc<dyn TransportKind>; 2] {
    let rdma = RdmaKind::new(Arc::new(Sim::on(host.clone())), Options::default());
    [Arc::new(rdma), Arc::new(TcpKind::simulated(host.clone(), TcpOptions::default(), Pool::default()))]
}
