//! [`NfsServer`]: from exports to the RPC programs that serve them.

use std::{io, path::Path, sync::Arc};

use buf::Pool;
use rpc::{Service, TransportKind};

use crate::{
    admin::Admin,
    call::core::Core,
    config::{Config, ExportConfig, Settings, backend::open::State},
    export::Exports,
    handle::HandleKey,
    mount::{Mount3, Mounts},
    nfsacl::NfsAcl3,
    nlm::{
        Nlm4,
        callbacks::{self, CallbackTransports},
        lockd::Lockd,
    },
    nsm::Nsm1,
    recovery::{Recovery, StorageReport, state_dir::StateDir},
    v3::Nfs3,
    v4::{Nfs4, service::Shared4, upkeep},
};

/// An NFS server: exports, and the RPC programs by which clients reach them.
///
/// It neither listens nor owns a thread. Register its [`services`](Self::services) where calls arrive:
///
/// ```
/// use std::{net::SocketAddr, path::Path, time::Duration};
/// use server::{ExportOptions, NfsServer, config::ExportConfig};
///
/// /// Serves a directory over TCP until `stop` ends; `port 0` picks a free port.
/// async fn serve(dir: &Path, state: &Path, stop: impl Future<Output = ()>) -> std::io::Result<SocketAddr> {
///     let pool = buf::Pool::default();
///     let export = ExportConfig::directory(dir, ExportOptions::default())?;
///     let nfs = NfsServer::open(&[export], state, &pool)?;
///     tokio::spawn(nfs.upkeep());
///     let server = nfs.services().into_iter().fold(rpc::Server::builder(), rpc::ServerBuilder::shared).build();
///
///     let tcp: &dyn rpc::TransportKind = &rpc::TcpKind::new(Default::default(), pool);
///     let listener = tcp.listen("127.0.0.1:0".parse().unwrap())?;
///     let address = listener.local_addr();
///     let workers = rpc::Workers::new(rpc::WorkerOptions::default())?;
///     workers.listen(server, listener);
///     stop.await;
///     workers.drain(Duration::from_secs(5)).await;
///     Ok(address)
/// }
/// # let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # assert_ne!(runtime.block_on(serve(dir.path(), state.path(), async {})).unwrap().port(), 0);
/// ```
///
/// Another tree is exported by an implementation of [`vfs::Vfs`], either with [`Export::new`](crate::Export::new) or, by a name in
/// configurations, with [`Backends`](crate::config::Backends).
pub struct NfsServer {
    core: Arc<Core>,
    mounts: Arc<Mounts>,
    lockd: Arc<Lockd>,
    v4: Arc<Shared4>,
}

impl NfsServer {
    /// A server of these exports, whose file handles are authenticated by `key`:
    /// [`HandleKey::load_or_create`] if they shall be valid after a restart, else [`HandleKey::random`].
    pub fn new(exports: impl Into<Exports>, key: HandleKey) -> Self {
        Self::recovering(exports, key, Recovery::in_memory(), Settings::default())
            .expect("memory takes what is to be kept")
    }

    /// As [`new`](Self::new), with what must survive a restart of the server. If clients may have held locks before,
    /// only these can be locked until [`upkeep`](Self::upkeep) ends the time of grace.
    ///
    /// # Errors
    /// The storage fails.
    pub fn recovering(
        exports: impl Into<Exports>,
        key: HandleKey,
        recovery: Recovery,
        settings: Settings,
    ) -> io::Result<Self> {
        Self::with_state(exports, key, recovery, settings, None)
    }

    /// A server of these exports.
    ///
    /// `state_dir` keeps the state that must survive a restart: the key of file handles, the holders of locks, and for an ordinary
    /// user's directories a database. It is created if it is needed, and locked as long as any part of this server exists. A
    /// memory back end takes its pages from `pool`: with the pool of the transports, data is sent without a copy.
    ///
    /// # Errors
    /// A tree cannot be opened; two exports are the same; clients could reach the state. The state directory is in use by another
    /// server; a file in it is damaged, missing, or open to others.
    pub fn open(exports: &[ExportConfig], state_dir: &Path, pool: &Pool) -> io::Result<Self> {
        let config = Config { export: exports.to_vec(), ..Config::default() };
        Self::open_with(&config, state_dir, pool, Settings::default())
    }

    /// As [`open`](Self::open), with the exports and referrals of a configuration, and with `settings`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(config: &Config, state_dir: &Path, pool: &Pool, settings: Settings) -> io::Result<Self> {
        let persistent = config.export.iter().any(|export| export.backend.is_persistent());
        let named = config.server.state_dir.is_some();
        let state_dir = (persistent || named)
            .then(|| StateDir::open(state_dir))
            .transpose()
            .map_err(|error| io::Error::new(error.kind(), format!("the state directory cannot be used: {error}")))?;
        let Some(dir) = state_dir.as_ref().filter(|_| persistent) else {
            // No file handle survives a restart, so no lock can.
            let exports = Exports::open(config, None, pool)?;
            return Self::with_state(exports, HandleKey::random(), Recovery::in_memory(), settings, state_dir);
        };
        // The database is made before the key, and knows after the first start that there is one: either shows that the other is
        // missing.
        let recovery = Recovery::open(dir, HandleKey::exists_in(dir), settings.on_loss)?;
        let key = HandleKey::load_or_create(dir, recovery.was_used(), settings.on_loss)?;
        let state = State { dir, recovery: &recovery, on_loss: settings.on_loss };
        let exports = Exports::open(config, Some(&state), pool)?;
        Self::with_state(exports, key, recovery, settings, state_dir)
    }

    fn with_state(
        exports: impl Into<Exports>,
        key: HandleKey,
        recovery: Recovery,
        settings: Settings,
        state_dir: Option<StateDir>,
    ) -> io::Result<Self> {
        let core = Core::new(exports.into(), key, recovery, (settings.blocking, settings.grace), state_dir);
        let lockd = Lockd::start(core.clone())?;
        // Where starts are counted, none has the number of another, however soon it follows that.
        let instance = if core.recovery.is_persistent() { lockd.identity().1 as u32 } else { entropy::random() };
        let v4 = Shared4::new(core.clone(), settings, instance);
        Ok(Self { mounts: Mounts::new(core.clone()), core, lockd, v4 })
    }

    /// What is exported.
    pub fn exports(&self) -> &Exports {
        &self.core.exports
    }

    /// The directory of what survives a restart; none for a server of memory alone, unless one was named.
    pub fn state_dir(&self) -> Option<&Path> {
        self.core.state_dir.as_ref().map(StateDir::path)
    }

    /// How the storage of what survives a restart has worked so far.
    pub fn storage(&self) -> StorageReport {
        self.core.recovery.report()
    }

    /// The hosts that any export admits, or any referral is shown to.
    pub fn hosts(&self) -> rpc::Hosts {
        let core = self.core.clone();
        rpc::Hosts::admitted_by(move |address| core.exports.admit(address))
    }

    /// NFS version 3.
    pub fn nfs3(&self) -> Nfs3 {
        Nfs3::new(self.core.clone())
    }

    /// NFS versions 4.1 and 4.2.
    pub fn nfs4(&self) -> Nfs4 {
        Nfs4::new(self.v4.clone())
    }

    /// MOUNT version 3.
    pub fn mount3(&self) -> Mount3 {
        Mount3::new(self.mounts.clone())
    }

    /// NFS_ACL version 3.
    pub fn nfsacl3(&self) -> NfsAcl3 {
        NfsAcl3::new(self.core.clone())
    }

    /// NLM version 4.
    pub fn nlm4(&self) -> Nlm4 {
        Nlm4::new(self.lockd.clone())
    }

    /// NSM version 1.
    pub fn nsm1(&self) -> Nsm1 {
        Nsm1::new(self.lockd.clone())
    }

    /// What an administrator asks.
    pub fn admin(&self) -> Admin {
        Admin::new(self.lockd.clone(), self.v4.clone())
    }

    /// NFS and what clients expect at the same address.
    pub fn services(&self) -> Vec<Arc<dyn Service>> {
        vec![Arc::new(self.nfs3()), Arc::new(self.nfs4()), Arc::new(self.mount3()), Arc::new(self.nfsacl3())]
    }

    /// What a server does unasked: it recalls delegations, which are given only where this runs; revokes what silent clients
    /// keep from others; and ends grace, for all protocols, which nothing else does. Once for a server.
    pub fn upkeep(&self) -> impl Future<Output = ()> + Send + 'static {
        upkeep::run(self.v4.clone(), self.lockd.clone())
    }

    /// Lets clients of NFSv4.0 be called, by TCP from an unprivileged port: they listen for that themselves. Without it they get
    /// no delegations.
    pub fn call_back_by(&self, tcp: Arc<dyn TransportKind>) {
        self.v4.call_by(&tcp);
    }

    /// What NFSv3 locks files by: over TCP and UDP alone, at addresses that clients learn from rpcbind. Run
    /// [`lock_callbacks`](Self::lock_callbacks) with them.
    pub fn lock_services(&self) -> Vec<Arc<dyn Service>> {
        vec![Arc::new(self.nlm4()), Arc::new(self.nsm1())]
    }

    /// Tells clients what they wait for: that they have a lock, or that the server has restarted. Once for a server.
    pub fn lock_callbacks(&self, transports: CallbackTransports) -> impl Future<Output = ()> + Send + 'static {
        callbacks::run(self.lockd.clone(), transports)
    }
}
