//! [`World`]: a whole server and its clients on one simulated fabric, in virtual time.
//!
//! Everything random comes from one seed and time is tokio's paused clock, so that what fails once fails again:
//! run it by [`Setup::run`], and a failure names its seed. The server's *machine* outlives its *process*:
//! [`World::restart_server`] starts a new process, with an empty duplicate request cache and a new write verifier,
//! over the same file system.

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use client::{Mount, NfsUrl};
use rdma::sim::{Sim, SimOptions};
use rpc::{DrcOptions, Server, Switch, TransportKind};
use rpcrdma::{Options, RdmaKind};
use server::{
    BlockingOptions, Export, ExportId, ExportOptions, HandleKey, NfsServer, Squash, config::Settings,
    recovery::Recovery,
};
use tokio::task::JoinSet;
use vfs::{
    Vfs,
    memory::{Memory, MemoryOptions},
};

use crate::process;

/// One server, any number of clients, and the network between them.
pub struct World {
    /// The network.
    pub sim: Sim,
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
    /// The server's file system.
    pub vfs: Arc<dyn Vfs>,
    /// The server's duplicate request cache.
    pub drc: DrcOptions,
}

impl Setup {
    /// An empty file system in memory that everybody may write.
    pub fn new(seed: u64) -> Self {
        let vfs = Memory::new(MemoryOptions { mode: 0o777, ..MemoryOptions::default() });
        Self { seed, vfs: Arc::new(vfs), drc: DrcOptions::default() }
    }

    /// Runs `test` in a new world of virtual time.
    ///
    /// # Panics
    /// If `test` does, with the seed on standard error; or if it takes an hour of virtual time.
    pub fn run<T, F: Future<Output = T>>(self, test: impl FnOnce(World) -> F) -> T {
        let told = SeedOnPanic(self.seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let result = runtime.expect("a runtime for the simulation").block_on(async {
            let Setup { seed, vfs, drc } = self;
            let sim = Sim::new(SimOptions { seed, ..SimOptions::default() });
            let mut world = World { sim, vfs, drc, key: HandleKey::random(), process: JoinSet::new() };
            world.start_server();
            tokio::time::timeout(Duration::from_secs(3600), test(world)).await
        });
        drop(told);
        result.expect("the test has not ended after an hour of virtual time")
    }
}

impl World {
    /// A client of its own address, mounted; `query` is what the URL has beyond the transport.
    ///
    /// # Panics
    /// If it cannot mount.
    pub async fn client(&self, number: u8, query: &str) -> Mount {
        let mut switch = Switch::new();
        switch.register(Arc::new(kind(self.sim.host(IpAddr::from([127, 0, 1, number])))));
        let url: NfsUrl = format!("nfs://127.0.0.1:{}/world?proto=rdma&uid=1000&gid=1000{query}", SERVER.port())
            .parse()
            .expect("a good URL");
        Mount::connect(&url, &switch).await.expect("a mount in the simulation")
    }

    /// Ends the server's process at once, whatever it is doing, and starts another.
    pub fn restart_server(&mut self) {
        self.sim.crash(SERVER);
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
        let listener = kind(self.sim.host(SERVER.ip())).listen(SERVER).expect("the server's address");
        let mut tasks = JoinSet::new();
        tasks.spawn(nfs.upkeep());
        tasks.spawn(process::serve(listener, server));
        // Whatever the former process was doing ends here.
        self.process = tasks;
    }
}

fn kind(host: Sim) -> RdmaKind {
    RdmaKind::new(Arc::new(host), Options::default())
}

/// Says with which seed a test has failed.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed of this run: {}", self.0);
        }
    }
}

/// The seeds to run: `count` from 0 on, or as many as `SLIPWAY_SEEDS` says; from `SLIPWAY_SEED` on if it is set, and then that one
/// alone unless more are asked for.
///
/// # Panics
/// If either is not a number.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| {
        let value = std::env::var(name).ok()?;
        Some(value.parse::<u64>().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let first = number("SLIPWAY_SEED");
    let count = number("SLIPWAY_SEEDS").unwrap_or(if first.is_some() { 1 } else { count });
    first.unwrap_or(0)..first.unwrap_or(0) + count
}

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 20049);
