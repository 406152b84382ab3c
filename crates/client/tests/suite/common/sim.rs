//! A server and a client in a simulation: in virtual time, over a simulated network that carries TCP and RDMA.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use buf::Pool;
use client::Mount;
use rdma::sim::Sim;
use rpc::{Server, ServerBuilder, Service, Switch, TcpKind, TcpOptions, TransportKind};
use rpcrdma::{Options, RdmaKind};
use simnet::{Network, NetworkOptions};
use tokio::task::JoinSet;

use super::{
    process,
    recorder::Record,
    scripted::{Scripted, ScriptedService},
};

/// Makes simulated tests from functions with a network and one more parameter: a module for each argument, with a test
/// for each function.
macro_rules! for_each_simulated {
    ($names:tt $($module:ident = $argument:expr)*) => {
        $($crate::common::sim::for_each_simulated!(@ $names $module $argument);)*
    };
    (@ [$($name:ident)*] $module:ident $argument:expr) => {
        mod $module {
            $(#[test]
            fn $name() {
                $crate::common::sim::simulate(|network| super::$name(network, $argument));
            })*
        }
    };
}
pub(crate) use for_each_simulated;

/// The address of the server.
pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 20049);

/// Runs a test with a mount of the services that `serve` returns, and with its second result. `url` has the path and
/// the query, which includes the transport.
pub fn run<S, T, F: Future<Output = T>>(
    url: &str,
    serve: impl FnOnce() -> (Vec<Arc<dyn Service>>, S),
    test: impl FnOnce(S, Mount) -> F,
) -> T {
    simulate(|network| async move {
        let (services, more) = serve();
        let _process = start(&network, services);
        let url = format!("nfs://{SERVER}{url}&uid=0&gid=0").parse().unwrap();
        test(more, Mount::connect(&url, &switch(&network, 1)).await.unwrap()).await
    })
}

/// Runs a test with a network. The seed is 0, or `SLIPWAY_SEED`.
pub fn simulate<T, F: Future<Output = T>>(test: impl FnOnce(Network) -> F) -> T {
    let seed = simnet::seeds(1).start;
    simnet::simulate(seed, || test(Network::new(NetworkOptions { seed, ..NetworkOptions::default() })))
}

/// Starts a server of these programs at [`SERVER`], which runs until the result is dropped.
pub fn start(network: &Network, services: Vec<Arc<dyn Service>>) -> JoinSet<()> {
    start_at(network, SERVER, services)
}

/// Starts a server of these programs at this address, which runs until the result is dropped.
pub fn start_at(network: &Network, address: SocketAddr, services: Vec<Arc<dyn Service>>) -> JoinSet<()> {
    let server = services.into_iter().fold(Server::builder(), ServerBuilder::shared).build();
    let mut tasks = JoinSet::new();
    for kind in kinds(&network.host(address.ip())) {
        tasks.spawn(process::serve(kind.listen(address).unwrap(), server.clone()));
    }
    tasks
}

/// Waits, in virtual time, until `is` returns `true`.
pub async fn until(is: impl Fn() -> bool) {
    while !is() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns the services of a scripted server, and its script.
pub fn scripted() -> (Vec<Arc<dyn Service>>, Arc<Scripted>) {
    let scripted = Scripted::new();
    (vec![Arc::new(ScriptedService(scripted.clone()))], scripted)
}

/// The services of a server, and what the test needs besides.
type Services<S> = (Vec<Arc<dyn Service>>, S);

/// Returns the services of a scripted server, its script, and the record of its requests.
pub fn recorded() -> Services<(Arc<Scripted>, Record)> {
    let ((services, scripted), record) = (scripted(), Record::default());
    (record.wrap(services), (scripted, record))
}

/// Returns the transports of the client with this number.
pub fn switch(network: &Network, number: u8) -> Switch {
    let mut switch = Switch::new();
    kinds(&network.host(IpAddr::from([127, 0, 1, number]))).into_iter().for_each(|kind| switch.register(kind));
    switch
}

/// Returns the transports of a host.
fn kinds(host: &Network) -> [Arc<dyn TransportKind>; 2] {
    let rdma = RdmaKind::new(Arc::new(Sim::on(host.clone())), Options::default());
    [Arc::new(rdma), Arc::new(TcpKind::simulated(host.clone(), TcpOptions::default(), Pool::default()))]
}
