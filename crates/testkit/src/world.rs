//! [`World`]: a whole server and its clients on one simulated fabric, in virtual time.
//!
//! All random numbers come from one seed, and time is tokio's paused clock ([`simnet::simulate`]), so a failure can be
//! repeated: [`Setup::run`] runs a simulation, and a failure names its seed. Clients reach the server over RDMA and over
//! TCP. The server's *machine* outlives its *process*: [`World::restart_server`] starts a new process, with an empty
//! duplicate request cache and a new write verifier, over the same file system.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use buf::Pool;
use client::{Mount, NfsUrl};
use rdma::sim::Sim;
use rpc::{DrcOptions, Server, Switch, TcpKind, TcpOptions, TransportKind};
use rpcrdma::{Options, RdmaKind};
use server::{
    BlockingOptions, Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings,
    recovery::Recovery,
};
use simnet::{Network, NetworkOptions};
use tokio::task::JoinSet;
use vfs::{
    Vfs,
    memory::{Memory, MemoryOptions},
};

use crate::process;

/// One server, any number of clients, and the network between them.
pub struct World {
    /// The network.
    pub network: Network,
    /// The server's file system.
    pub vfs: Arc<dyn Vfs>,
    drc: DrcOptions,
    /// The server's secret, which it keeps on its disk.
    key: HandleKey,
    process: JoinSet<()>,
}

/// What a [`World`] is made of.
pub struct Setup {
    /// Everything random comes from it.
    pub seed: u64,
    /// Makes the server's file system, in the simulation.
    pub vfs: Box<dyn FnOnce() -> Arc<dyn Vfs>>,
    /// The server's duplicate request cache.
    pub drc: DrcOptions,
}

impl Setup {
    /// An empty file system in memory that everybody may write.
    pub fn new(seed: u64) -> Self {
        Self { seed, vfs: Box::new(memory), drc: DrcOptions::default() }
    }

    /// Runs `test` in a new world of virtual time.
    ///
    /// # Panics
    /// If `test` does, with the seed on standard error; or if it takes a day of virtual time.
    pub fn run<T, F: Future<Output = T>>(self, test: impl FnOnce(World) -> F) -> T {
        let Setup { seed, vfs, drc } = self;
        simnet::simulate(seed, || {
            let network = Network::new(NetworkOptions { seed, ..NetworkOptions::default() });
            let mut world = World { network, vfs: vfs(), drc, key: HandleKey::random(), process: JoinSet::new() };
            world.start_server();
            test(world)
        })
    }
}

impl World {
    /// A client of its own address, mounted. `query` is the rest of the URL; unless it says otherwise, the transport is RDMA.
    ///
    /// # Panics
    /// If it cannot mount.
    pub async fn client(&self, number: u8, query: &str) -> Mount {
        let mut switch = Switch::new();
        kinds(&self.network.host(IpAddr::from([127, 0, 1, number]))).into_iter().for_each(|kind| switch.register(kind));
        let proto = if query.contains("proto=") { "" } else { "&proto=rdma" };
        let url: NfsUrl = format!("nfs://127.0.0.1:{}/world?uid=1000&gid=1000{proto}{query}", SERVER.port())
            .parse()
            .expect("a good URL");
        Mount::connect(&url, &switch).await.expect("a mount in the simulation")
    }

    /// Ends the server's process at once, whatever it is doing, and starts another.
    pub fn restart_server(&mut self) {
        self.network.crash(SERVER);
        self.start_server();
    }

    fn start_server(&mut self) {
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let export = Export::new("/world", ExportId::of(&[b"world"]), self.vfs.clone(), options);
        // In virtual time nothing waits for another thread.
        let blocking = BlockingOptions { threads: 0, ..BlockingOptions::default() };
        let settings = Settings { blocking, ..Settings::default() };
        let (export, recovery) = (export.expect("a good export"), Recovery::in_memory());
        let nfs = NfsServer::recovering(export, self.key.clone(), recovery, settings);
        let nfs = nfs.expect("memory takes what is to be kept");
        let server = nfs
            .services()
            .into_iter()
            .fold(Server::builder().drc(self.drc.clone()), |builder, service| builder.shared(service));
        let server = server.build();
        let mut tasks = JoinSet::new();
        tasks.spawn(nfs.upkeep());
        for kind in kinds(&self.network.host(SERVER.ip())) {
            let listener = kind.listen(SERVER).expect("the server's address");
            tasks.spawn(process::serve(listener, server.clone()));
        }
        // Whatever the former process was doing ends here.
        self.process = tasks;
    }
}

/// An empty file system in memory that everybody may write.
pub fn memory() -> Arc<dyn Vfs> {
    Arc::new(Memory::new(MemoryOptions { mode: 0o777, ..MemoryOptions::default() }))
}

/// The transports of a host.
fn kinds(host: &Network) -> [Arc<dyn TransportKind>; 2] {
    let rdma = RdmaKind::new(Arc::new(Sim::on(host.clone())), Options::default());
    [Arc::new(rdma), Arc::new(TcpKind::simulated(host.clone(), TcpOptions::default(), Pool::default()))]
}

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 20049);
