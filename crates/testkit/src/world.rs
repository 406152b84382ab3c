//! [`World`]: a whole server and its clients on one simulated network, in virtual time.
//!
//! All random numbers follow from one seed, and time is tokio's paused clock ([`simnet::simulate`]), so a failure can be
//! repeated. [`Setup::run`] runs a simulation. If it fails, it prints its seed. Clients reach the server over RDMA and over
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
    settings: Settings,
    /// The server's handle key, which survives restarts.
    key: HandleKey,
    process: JoinSet<()>,
}

/// The options of a [`World`].
pub struct Setup {
    /// The seed of the simulation.
    pub seed: u64,
    /// Creates the server's file system. It is called in the simulation.
    pub vfs: Box<dyn FnOnce() -> Arc<dyn Vfs>>,
    /// The options of the server's duplicate request cache.
    pub drc: DrcOptions,
    /// The settings of the server. No thread may block in a simulation, so `blocking` is ignored.
    pub settings: Settings,
}

impl Setup {
    /// Creates options with this seed. The file system is [`memory`], and the duplicate request cache has its defaults.
    pub fn new(seed: u64) -> Self {
        Self { seed, vfs: Box::new(memory), drc: DrcOptions::default(), settings: Settings::default() }
    }

    /// Runs `test` with a new world, in a simulation.
    ///
    /// # Panics
    /// Panics if `test` panics, and prints the seed to standard error; or if `test` takes a day of virtual time.
    pub fn run<T, F: Future<Output = T>>(self, test: impl FnOnce(World) -> F) -> T {
        let Setup { seed, vfs, drc, settings } = self;
        simnet::simulate(seed, || {
            let network = Network::new(NetworkOptions { seed, ..NetworkOptions::default() });
            let mut world =
                World { network, vfs: vfs(), drc, settings, key: HandleKey::random(), process: JoinSet::new() };
            world.start_server();
            test(world)
        })
    }
}

impl World {
    /// Mounts the export for the client with this number, which has its own address. `query` is appended to the URL. If it
    /// names no transport, the transport is RDMA.
    ///
    /// # Panics
    /// Panics if the mount fails.
    pub async fn client(&self, number: u8, query: &str) -> Mount {
        let mut switch = Switch::new();
        kinds(&self.network.host(IpAddr::from([127, 0, 1, number]))).into_iter().for_each(|kind| switch.register(kind));
        let proto = if query.contains("proto=") { "" } else { "&proto=rdma" };
        let url: NfsUrl = format!("nfs://127.0.0.1:{}/world?uid=1000&gid=1000{proto}{query}", SERVER.port())
            .parse()
            .expect("URL must be valid");
        Mount::connect(&url, &switch).await.expect("mount must succeed")
    }

    /// Kills the server's process without a shutdown, and starts another one.
    pub fn restart_server(&mut self) {
        self.network.crash(SERVER);
        self.start_server();
    }

    fn start_server(&mut self) {
        let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
        let export = Export::new("/world", ExportId::of(&[b"world"]), self.vfs.clone(), options);
        // In virtual time, no task may wait for another thread.
        let blocking = BlockingOptions { threads: 0, ..BlockingOptions::default() };
        let settings = Settings { blocking, ..self.settings.clone() };
        let (export, recovery) = (export.expect("export must be valid"), Recovery::in_memory());
        let nfs = NfsServer::recovering(export, self.key.clone(), recovery, settings);
        let nfs = nfs.expect("a recovery database in memory must accept all records");
        let server = nfs
            .services()
            .into_iter()
            .fold(Server::builder().drc(self.drc.clone()), |builder, service| builder.shared(service));
        let server = server.build();
        let mut tasks = JoinSet::new();
        tasks.spawn(nfs.upkeep());
        for kind in kinds(&self.network.host(SERVER.ip())) {
            let listener = kind.listen(SERVER).expect("the server's address must be free");
            tasks.spawn(process::serve(listener, server.clone()));
        }
        // This drops the tasks of the former process.
        self.process = tasks;
    }
}

/// Creates an empty file system in memory, whose root every user can write.
pub fn memory() -> Arc<dyn Vfs> {
    Arc::new(Memory::new(MemoryOptions { mode: 0o777, ..MemoryOptions::default() }))
}

/// Returns the transports of a host.
fn kinds(host: &Network) -> [Arc<dyn TransportKind>; 2] {
    let rdma = RdmaKind::new(Arc::new(Sim::on(host.clone())), Options::default());
    [Arc::new(rdma), Arc::new(TcpKind::simulated(host.clone(), TcpOptions::default(), Pool::default()))]
}

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 20049);
