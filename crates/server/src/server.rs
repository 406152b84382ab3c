//! [`NfsServer`]: creates the RPC programs that serve a set of exports.

use std::{io, path::Path, sync::Arc};

use buf::Pool;
use rpc::{Service, TransportKind};

use crate::{
    admin::Admin,
    audit::Audit,
    call::core::{Core, CoreOptions},
    config::{Config, ExportConfig, Settings, backend::open::State},
    export::Exports,
    handle::HandleKey,
    identity::{principals::PrincipalNames, users::UserDatabase},
    mount::{Mount3, Mounts},
    nfsacl::NfsAcl3,
    nlm::{
        Nlm4,
        callbacks::{self, CallbackTransports},
        lockd::Lockd,
    },
    nsm::Nsm1,
    passthrough::Passthrough,
    recovery::{Recovery, StorageReport, state_dir::StateDir},
    v3::Nfs3,
    v4::{Nfs4, callback::CallbackFlavors, service::Shared4, upkeep},
};

/// An NFS server: a set of exports, and the RPC programs by which clients use them.
///
/// It neither listens nor owns a thread. Register its [`services`](Self::services) with an [`rpc::Server`]:
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
/// To serve another kind of tree, implement [`vfs::Vfs`]. Export it with [`Export::new`](crate::Export::new), or
/// register it with [`Backends`](crate::config::Backends) under a name for configurations.
pub struct NfsServer {
    core: Arc<Core>,
    mounts: Arc<Mounts>,
    lockd: Arc<Lockd>,
    v4: Arc<Shared4>,
}

impl NfsServer {
    /// Creates a server of these exports, whose file handles are authenticated by `key`. Use
    /// [`HandleKey::load_or_create`] if file handles must stay valid after a restart, otherwise [`HandleKey::random`].
    pub fn new(exports: impl Into<Exports>, key: HandleKey) -> Self {
        Self::recovering(exports, key, Recovery::in_memory(), Settings::default())
            .expect("in-memory state must not fail")
    }

    /// Creates a server like [`new`](Self::new), with state that survives a restart. If clients may have held locks
    /// before, only these locks can be reclaimed until [`upkeep`](Self::upkeep) ends the grace period.
    ///
    /// # Errors
    /// Returns an error if the storage fails.
    pub fn recovering(
        exports: impl Into<Exports>,
        key: HandleKey,
        recovery: Recovery,
        settings: Settings,
    ) -> io::Result<Self> {
        Self::with_state(exports, key, recovery, settings, None)
    }

    /// Creates a server of these exports.
    ///
    /// `state_dir` is the directory for state that must survive a restart: the key of file handles, the holders of
    /// locks, and a handle database for each directory that an ordinary user exports. It is created if it is needed,
    /// and stays locked as long as any part of this server exists. A memory back end takes its pages from `pool`. If
    /// `pool` is also the pool of the transports, data is sent without a copy.
    ///
    /// # Errors
    /// Returns an error if a tree cannot be opened, if two exports are the same, if clients could reach the state
    /// directory, if another server uses it, or if a file in it is damaged, missing, or accessible to others.
    pub fn open(exports: &[ExportConfig], state_dir: &Path, pool: &Pool) -> io::Result<Self> {
        let config = Config { export: exports.to_vec(), ..Config::default() };
        Self::open_with(&config, state_dir, pool, Settings::default())
    }

    /// Creates a server like [`open`](Self::open), with the exports and referrals of a configuration, and with
    /// `settings`.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open).
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
        // The database is created before the key, and after the first start it records that there is a key. So each of
        // the two reveals that the other is missing.
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
        let options =
            CoreOptions { blocking: settings.blocking, grace: settings.grace, identity: settings.identity.clone() };
        let audit = settings.audit.clone().map(Audit::open).transpose()?;
        let core = Core::new(exports.into(), key, recovery, options, (state_dir, audit));
        let lockd = Lockd::start(core.clone())?;
        // If starts are counted, the count is unique. Otherwise use a random number, which is unique even if another
        // start follows at once.
        let instance = if core.recovery.is_persistent() { lockd.identity().1 as u32 } else { entropy::random() };
        let v4 = Shared4::new(core.clone(), settings, instance);
        Ok(Self { mounts: Mounts::new(core.clone()), core, lockd, v4 })
    }

    /// Returns the exports and referrals.
    pub fn exports(&self) -> &Exports {
        &self.core.exports
    }

    /// Returns the state directory. It is `None` for a server with only memory back ends, unless its configuration
    /// names one.
    pub fn state_dir(&self) -> Option<&Path> {
        self.core.state_dir.as_ref().map(StateDir::path)
    }

    /// Returns the condition of the storage for state that survives a restart.
    pub fn storage(&self) -> StorageReport {
        self.core.recovery.report()
    }

    /// Returns the hosts that any export or referral admits.
    pub fn hosts(&self) -> rpc::Hosts {
        let core = self.core.clone();
        rpc::Hosts::admitted_by(move |address| core.exports.admit(address))
    }

    /// Returns the service of NFS version 3.
    pub fn nfs3(&self) -> Nfs3 {
        Nfs3::new(self.core.clone())
    }

    /// Returns the service of NFS versions 4.0, 4.1 and 4.2.
    pub fn nfs4(&self) -> Nfs4 {
        Nfs4::new(self.v4.clone())
    }

    /// Returns the service of MOUNT version 3.
    pub fn mount3(&self) -> Mount3 {
        Mount3::new(self.mounts.clone())
    }

    /// Returns the service of NFS_ACL version 3.
    pub fn nfsacl3(&self) -> NfsAcl3 {
        NfsAcl3::new(self.core.clone())
    }

    /// Returns the service that passes files to clients on this host.
    pub fn passthrough(&self) -> Passthrough {
        Passthrough::new(self.core.clone())
    }

    /// Returns the service of NLM version 4.
    pub fn nlm4(&self) -> Nlm4 {
        Nlm4::new(self.lockd.clone())
    }

    /// Returns the service of NSM version 1.
    pub fn nsm1(&self) -> Nsm1 {
        Nsm1::new(self.lockd.clone())
    }

    /// Returns the administrator's interface.
    pub fn admin(&self) -> Admin {
        Admin::new(self.lockd.clone(), self.v4.clone())
    }

    /// Returns the services at the address of NFS: NFS, MOUNT and NFS_ACL, PASSTHROUGH if an export passes files, and NLM for clients
    /// that look for it there, as ours does. So NLM has the transport and the TLS of NFS. A request that would have to wait for a lock is
    /// denied, unless [`lock_callbacks`](Self::lock_callbacks) runs.
    pub fn services(&self) -> Vec<Arc<dyn Service>> {
        let mut services: Vec<Arc<dyn Service>> = vec![Arc::new(self.nfs3()), Arc::new(self.nfs4())];
        services.extend([Arc::new(self.mount3()) as Arc<dyn Service>, Arc::new(self.nfsacl3()), Arc::new(self.nlm4())]);
        if self.exports().iter().any(|export| export.options().passthrough) {
            services.push(Arc::new(self.passthrough()));
        }
        services
    }

    /// Runs the periodic work of the server. It recalls delegations, which are granted only while this runs, revokes
    /// the state of silent clients when others need it, and ends the grace period of all protocols. Call it once for
    /// each server.
    pub fn upkeep(&self) -> impl Future<Output = ()> + Send + 'static {
        upkeep::run(self.v4.clone(), self.lockd.clone())
    }

    /// Sets the names that a security mechanism has for its principals. Call it before the first call of a client. Without
    /// it, only the principals that the configuration names are users of this host.
    pub fn name_principals_by(&self, names: Arc<dyn PrincipalNames>) {
        assert!(self.core.users.set_names(names), "the names of principals must be set once");
    }

    /// Sets the source of users and their groups, instead of the host's name service. Call it before the first call of a
    /// client.
    pub fn look_up_users_in(&self, database: Arc<dyn UserDatabase>) {
        assert!(self.core.users.set_database(database), "the source of users must be set once, before it is used");
    }

    /// Opens the file of the audit log again, after another program has renamed it. Records that were made before this go to
    /// the old file.
    pub fn reopen_audit(&self) {
        if let Some(audit) = &self.core.audit {
            audit.reopen();
        }
    }

    /// Writes what waits to be written, when the server ends: changes of client records, for example that a client has ended
    /// (without them, the next server waits in its grace period for clients that no longer exist), and the records of the audit log,
    /// which is closed. Later records are dropped. Returns the number of records of the audit log that were dropped.
    pub fn close(&self) -> u64 {
        self.core.recovery.maintain();
        let Some(audit) = &self.core.audit else { return 0 };
        audit.close();
        audit.dropped()
    }

    /// Lets the server call NFSv4.0 clients back by `tcp`, from an unprivileged port; these clients listen for
    /// callbacks. Without this, they get no delegations.
    pub fn call_back_by(&self, tcp: Arc<dyn TransportKind>) {
        self.v4.set_callback_transport(&tcp);
    }

    /// Lets the server authenticate itself to NFSv4.0 clients that use a flavour with principals. Without this, these clients get
    /// no delegations. It has an effect only with [`call_back_by`](Self::call_back_by). Call it before the first call of a client.
    pub fn authenticate_callbacks_by(&self, flavors: Arc<dyn CallbackFlavors>) {
        self.v4.set_callback_flavors(flavors);
    }

    /// Returns the services with which Linux's and other NFSv3 clients lock files. They are for TCP and UDP only, at ports that clients
    /// learn from rpcbind. Run [`lock_callbacks`](Self::lock_callbacks) with them.
    pub fn lock_services(&self) -> Vec<Arc<dyn Service>> {
        vec![Arc::new(self.nlm4()), Arc::new(self.nsm1())]
    }

    /// Calls hosts that wait for a lock when they get it, and notifies hosts when the server has restarted. Call it
    /// once for each server.
    pub fn lock_callbacks(&self, transports: CallbackTransports) -> impl Future<Output = ()> + Send + 'static {
        callbacks::run(self.lockd.clone(), transports)
    }
}
