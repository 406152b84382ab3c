//! [`World`]: a whole server and its clients on one simulated network, in virtual time.
//!
//! All random numbers follow from one seed, and time is tokio's paused clock ([`simnet::simulate`]), so a failure can be
//! repeated. [`Setup::run`] runs a simulation. If it fails, it prints its seed. Clients reach the server over RDMA and over
//! TCP. The server's *machine* outlives its *process*: [`World::restart_server`] starts a new process, with an empty
//! duplicate request cache, no contexts of RPCSEC_GSS and a new write verifier, over the same file system and recovery database.
//!
//! A client whose query has `sec=krb5`, `krb5i` or `krb5p` uses RPCSEC_GSS with the mechanism [`toy`](crate::toy), as the
//! principal [`PRINCIPAL`], which is the user 1000. [`Setup::sec`] must allow the flavour.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use buf::Pool;
use client::{Mount, NfsUrl, TicketSource};
use gss::{GssClient, GssLimits, GssServer, Service, pseudo_flavor};
use rand::{SeedableRng, rngs::StdRng};
use rdma::sim::Sim;
use rpc::{
    DrcOptions, Server, Switch, TcpKind, TcpOptions, TransportKind,
    security::{ClientFlavor, Principal},
};
use rpcrdma::{Options, RdmaKind};
use server::{
    BlockingOptions, CallbackFlavors, CallbackTransports, Export, ExportId, ExportOptions, HandleKey, LocalUser,
    NfsServer, SecFlavors, Squash, User, UserDatabase, config::Settings, recovery::Recovery,
};
use simnet::{Network, NetworkOptions};
use tokio::task::JoinSet;
use vfs::{
    Vfs,
    memory::{Memory, MemoryOptions},
};

use crate::{
    disk::Disk,
    process,
    toy::{Faults, ToyAcceptor, ToyInitiator},
};

/// One server, any number of clients, and the network between them.
pub struct World {
    /// The network.
    pub network: Network,
    /// The server's file system.
    pub vfs: Arc<dyn Vfs>,
    /// The contexts of RPCSEC_GSS that the server's process has.
    pub contexts: Arc<GssServer>,
    /// The faults that a test injects into the server's mechanism of RPCSEC_GSS.
    pub faults: Arc<Faults>,
    drc: DrcOptions,
    settings: Settings,
    sec: SecFlavors,
    lifetime: Option<Duration>,
    /// The server's disk, which has the recovery database.
    disk: Disk,
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
    /// The security flavours of the export.
    pub sec: SecFlavors,
    /// The lifetime of a context of RPCSEC_GSS at the server.
    pub context_lifetime: Option<Duration>,
}

impl Setup {
    /// Creates options with this seed. The file system is [`memory`], and the duplicate request cache has its defaults.
    pub fn new(seed: u64) -> Self {
        let (drc, settings, sec) = (DrcOptions::default(), Settings::default(), SecFlavors::default());
        Self { seed, vfs: Box::new(memory), drc, settings, sec, context_lifetime: None }
    }

    /// Runs `test` with a new world, in a simulation.
    ///
    /// # Panics
    /// Panics if `test` panics, and prints the seed to standard error; or if `test` takes a day of virtual time.
    pub fn run<T, F: Future<Output = T>>(self, test: impl FnOnce(World) -> F) -> T {
        let Setup { seed, vfs, drc, mut settings, sec, context_lifetime: lifetime } = self;
        settings.identity.principals.insert(PRINCIPAL.to_owned(), LocalUser::Uid(USER));
        simnet::simulate(seed, || {
            let network = Network::new(NetworkOptions { seed, ..NetworkOptions::default() });
            let (vfs, key, process) = (vfs(), HandleKey::random(), JoinSet::new());
            let faults = Arc::default();
            let (contexts, disk) = (gss_server(lifetime, &faults), Disk::default());
            let mut world = World { network, vfs, contexts, faults, drc, settings, sec, lifetime, disk, key, process };
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
        self.client_with(number, query, ToyInitiator::new(PRINCIPAL, SECRET)).await
    }

    /// Mounts the export as [`client`](Self::client) does, with this ticket if `query` asks for RPCSEC_GSS.
    ///
    /// # Panics
    /// Panics if the mount fails.
    pub async fn client_with(&self, number: u8, query: &str, ticket: ToyInitiator) -> Mount {
        let mut switch = Switch::new();
        kinds(&self.host(number)).into_iter().for_each(|kind| switch.register(kind));
        let proto = if query.contains("proto=") { "" } else { "&proto=rdma" };
        let user = if query.contains("sec=krb5") { "" } else { "&uid=1000&gid=1000" };
        let mut url: NfsUrl =
            format!("nfs://127.0.0.1:{}/world?{user}{proto}{query}", SERVER.port()).parse().expect("URL must be valid");
        url.options.tickets = TicketSource::new(Arc::new(ticket));
        Mount::connect(&url, &switch).await.expect("mount must succeed")
    }

    /// Returns the network from the view of the client with this number.
    pub fn host(&self, number: u8) -> Network {
        self.network.host(IpAddr::from([127, 0, 1, number]))
    }

    /// Kills the server's process without a shutdown, and starts another one.
    pub fn restart_server(&mut self) {
        self.network.crash(SERVER);
        // A process that is killed leaves its unsynced data in the cache of the system, and so does one that crashes.
        self.disk.crash();
        self.disk.restart(&mut StdRng::seed_from_u64(0));
        self.contexts = gss_server(self.lifetime, &self.faults);
        self.start_server();
    }

    fn start_server(&mut self) {
        let options = ExportOptions { squash: Squash::None, sec: self.sec.clone(), ..ExportOptions::default() };
        let export = Export::new("/world", ExportId::of(&[b"world"]), self.vfs.clone(), options);
        // In virtual time, no task may wait for another thread.
        let blocking = BlockingOptions { threads: 0, ..BlockingOptions::default() };
        let settings = Settings { blocking, ..self.settings.clone() };
        let (export, recovery) = (export.expect("export must be valid"), Recovery::on(self.disk.open()));
        let recovery = recovery.expect("the recovery database must be valid");
        let nfs = NfsServer::recovering(export, self.key.clone(), recovery, settings);
        let nfs = nfs.expect("the recovery database must accept all records");
        nfs.look_up_users_in(Arc::new(Users));
        nfs.authenticate_callbacks_by(Arc::new(CallbackKey));
        let builder = Server::builder().drc(self.drc.clone()).flavor(self.contexts.clone());
        let services = nfs.services().into_iter().chain([Arc::new(nfs.nsm1()) as Arc<dyn rpc::Service>]);
        let server = services.fold(builder, |builder, service| builder.shared(service)).build();
        let mut tasks = JoinSet::new();
        tasks.spawn(nfs.upkeep());
        let kinds = kinds(&self.network.host(SERVER.ip()));
        // The network has no UDP, and its hosts do not ask for it.
        let [_, tcp] = kinds.clone();
        nfs.call_back_by(tcp.clone());
        tasks.spawn(nfs.lock_callbacks(CallbackTransports { tcp: tcp.clone(), udp: tcp }));
        for kind in kinds {
            let listener = kind.listen(SERVER).expect("the server's address must be free");
            tasks.spawn(process::serve(listener, server.clone()));
        }
        // This drops the tasks of the former process.
        self.process = tasks;
    }
}

/// Creates the flavour of a server's process, without contexts.
fn gss_server(lifetime: Option<Duration>, faults: &Arc<Faults>) -> Arc<GssServer> {
    GssServer::new(ToyAcceptor { secret: SECRET, lifetime, faults: faults.clone() }, GssLimits::default())
}

/// The server's key, for callbacks to clients of NFSv4.0 whose principal is a service.
struct CallbackKey;

impl CallbackFlavors for CallbackKey {
    fn flavor(&self, principal: &Principal) -> Option<Arc<dyn ClientFlavor>> {
        let all = [Service::None, Service::Integrity, Service::Privacy];
        let protection = all.into_iter().find(|service| pseudo_flavor(*service) == principal.pseudo_flavor)?;
        let initiator = Arc::new(ToyInitiator::new(SERVER_PRINCIPAL, SECRET));
        principal.name.contains(&b'/').then(|| GssClient::new(initiator, protection) as _)
    }
}

/// Knows the groups of the user 1000.
struct Users;

impl UserDatabase for Users {
    fn by_uid(&self, uid: u32) -> io::Result<Option<User>> {
        Ok((uid == USER).then(|| User { uid, gid: uid, groups: [uid].into() }))
    }

    fn by_name(&self, _name: &str) -> io::Result<Option<User>> {
        Ok(None)
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

/// The principal of clients with RPCSEC_GSS.
pub const PRINCIPAL: &str = "alice@TOY";
/// The principal of the server.
pub const SERVER_PRINCIPAL: &str = "nfs/server@TOY";
/// The secret that the server knows, for [`ToyInitiator`].
pub const SECRET: u64 = 0x5ec2e7;
/// The user of all clients.
const USER: u32 = 1000;
/// The address of the server.
pub const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 20049);
