//! [`Shared4`]: the state that all calls of NFSv4 share.
//!
//! Operations read or change the state of clients by [`Shared4::with_state`], [`Shared4::with_locks`] and
//! [`Shared4::grant`]. These functions also carry out the consequences of a change: they store the list of clients that
//! can reclaim, queue callbacks as background tasks, and release the locks of clients that were removed.

use std::{
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use nfs::v4::{
    Clientid4, EXCHGID4_FLAG_SUPP_MOVED_REFER, EXCHGID4_FLAG_USE_NON_PNFS, EXCHGID4_FLAG_USE_PNFS_DS,
    EXCHGID4_FLAG_USE_PNFS_MDS, NfsFh4, NfsImplId4, Nfsstat4, Nfstime4, ServerOwner4, callback::CbArgop4,
};
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::sleep};
use xdr::Message;

use super::{
    callback::{CallbackFlavors, Callbacks},
    cb_getattr::CbGetattrs,
    layouts::LayoutService,
    offload::Offloads,
    pseudo::Pseudo,
    state::{Event, State, StateOptions, session::ChannelLimits, shard::Shards, transitions::back::CallbackSubject},
    task::BackgroundTask,
};
use crate::{
    call::{
        self,
        core::{Core, ServiceState},
    },
    config::Settings,
    handle::FileId,
    identity::names::Names,
    recovery::{RecordChange, V4Clients},
    sharing::{
        conflict::Recall,
        grace::Reclaim,
        locks::{LockClient, LockTable},
    },
};

/// The call context of an operation.
pub(super) type Context<'a> = call::context::Context<'a, Shared4>;
/// The parts of a call that move with it to another thread.
pub(super) type Detached = call::context::Detached<Shared4>;

/// The state of the NFSv4 service.
pub(crate) struct Shared4 {
    pub(super) core: Arc<Core>,
    pub(super) state: Mutex<ServerState>,
    pub(super) pseudo: Pseudo,
    pub(super) names: Names,
    /// The lease time.
    pub(super) lease: Duration,
    pub(super) callbacks: Callbacks,
    pub(super) cb_getattrs: CbGetattrs,
    /// The state that each request of a client uses. It has its own locks, so that a request need not lock `state`.
    pub(super) shards: Shards<CachedReply, FileId>,
    pub(super) offloads: Offloads,
    pub(super) layouts: LayoutService,
    /// `true` if clients of NFSv4.1 and later may use this server as a data server of pNFS.
    pub(super) data_server: bool,
    /// Sends background tasks to `upkeep`.
    tasks: mpsc::UnboundedSender<BackgroundTask>,
    /// The receiver of `tasks`, until `upkeep` takes it.
    new_tasks: Mutex<Option<mpsc::UnboundedReceiver<BackgroundTask>>>,
    runs_tasks: AtomicBool,
}

/// The state of all clients. Files have the names that the lock table uses.
pub(super) type ServerState = State<CachedReply, FileId>;

/// The reply of a request that has ended; `None` if its slot does not cache it. It is shared, so that it is cheap to move.
pub(super) type CachedReply = Option<Arc<Message>>;

impl Shared4 {
    /// Creates the state at a start of the server. If clients held state before the start, a grace period begins, in
    /// which they can reclaim that state and no other state is granted. `instance` must differ from the number of each
    /// earlier start whose clients may still be active.
    pub(crate) fn new(core: Arc<Core>, settings: Settings, instance: u32) -> Arc<Self> {
        let time = vfs::Time::now();
        let name = core.key.server_owner();
        let options = StateOptions {
            server_owner: ServerOwner4 { minor_id: 0, major_id: name.clone().into() },
            server_scope: name,
            implementation: Some(NfsImplId4 {
                domain: "slipway".into(),
                name: concat!("slipway ", env!("CARGO_PKG_VERSION")).into(),
                date: Nfstime4::default(),
            }),
            //= rfc8881-18.35.3-11 rfc8881-18.35.3-13
            flags: pnfs_roles(&core, settings.data_server) | EXCHGID4_FLAG_SUPP_MOVED_REFER,
            lease: settings.lease,
            channel: CHANNEL,
            clients_max: CLIENTS_MAX,
            client_sessions_max: CLIENT_SESSIONS_MAX,
            sessions_max: SESSIONS_MAX,
            replies_max: REPLIES_MAX,
            client_stateids_max: CLIENT_STATEIDS_MAX,
            stateids_max: STATEIDS_MAX,
            owners_max: OWNERS_MAX,
            delegations_max: DELEGATIONS_MAX,
            layouts_max: settings.layouts_max,
            slots_max: SLOTS_MAX,
        };
        let mut state = State::new(options, instance, entropy::random());
        let V4Clients { reclaiming, forfeited } = core.recovery.v4_clients();
        let records_lost = core.recovery.clients_unknown();
        if !reclaiming.is_empty() || !forfeited.is_empty() || records_lost {
            let (clients, forfeited_by) = (reclaiming.len(), forfeited.len());
            tracing::info!(clients, forfeited_by, "NFSv4 clients can reclaim their state");
            state.begin_grace(V4Clients { reclaiming, forfeited }, records_lost);
            core.locks.begin_grace();
        }
        let (tasks, new_tasks) = mpsc::unbounded_channel();
        let marks = state.marks().clone();
        let shared = Arc::new(Self {
            shards: state.shards().clone(),
            state: Mutex::new(state),
            pseudo: Pseudo::new(&core.exports, time),
            names: Names::new(settings.idmap_domain),
            lease: settings.lease,
            callbacks: Callbacks::default(),
            cb_getattrs: CbGetattrs::default(),
            offloads: Offloads::default(),
            layouts: LayoutService::default(),
            data_server: settings.data_server,
            tasks,
            new_tasks: Mutex::new(Some(new_tasks)),
            runs_tasks: AtomicBool::new(false),
            core: core.clone(),
        });
        let protocol: Arc<dyn Recall> = shared.clone();
        core.conflicts.attach(marks, Arc::downgrade(&protocol));
        shared.subscribe_to_layouts();
        shared
    }

    /// Returns the connections of clients.
    pub(crate) fn callbacks(&self) -> &Callbacks {
        &self.callbacks
    }

    /// Takes the receiver of background tasks. Returns `None` if it was taken before.
    pub(super) fn take_tasks(&self) -> Option<mpsc::UnboundedReceiver<BackgroundTask>> {
        let new_tasks = self.new_tasks.lock().take();
        self.runs_tasks.store(new_tasks.is_some() || self.runs_tasks(), Relaxed);
        new_tasks
    }

    /// Sets the transport that connects to NFSv4.0 clients for callbacks.
    pub(crate) fn set_callback_transport(&self, kind: &Arc<dyn rpc::TransportKind>) {
        self.callbacks.outgoing.set_transport(kind);
    }

    /// Sets the credentials for callbacks to principals.
    pub(crate) fn set_callback_flavors(&self, flavors: Arc<dyn CallbackFlavors>) {
        self.callbacks.outgoing.set_flavors(flavors);
    }

    /// Queues a task that runs in the background.
    pub(super) fn run_in_background(&self, task: BackgroundTask) {
        // Sending fails only while the server stops.
        let _ = self.tasks.send(task);
    }

    /// Returns `true` if background tasks run. Without them, no state that must be recalled later can be granted.
    pub(super) fn runs_tasks(&self) -> bool {
        self.runs_tasks.load(Relaxed)
    }
}

impl ServiceState for Shared4 {
    fn core(&self) -> &Core {
        &self.core
    }
}

impl Reclaim for Shared4 {
    fn is_awaited(&self) -> bool {
        !self.with_state(|state| state.may_end_grace())
    }

    fn end_claims(&self) {
        let clients = self.with_state(|state| state.end_grace());
        tracing::info!(clients, "the grace period has ended: these clients can no longer reclaim");
    }
}

impl Shared4 {
    /// Reads or changes the state.
    pub(crate) fn with_state<T>(&self, f: impl FnOnce(&mut ServerState) -> T) -> T {
        let mut state = self.state.lock();
        let result = f(&mut state);
        self.settle(&mut state, None);
        let ended = state.ended_holds();
        drop(state);
        drop(ended);
        result
    }

    /// Reads or changes the state and the locks of all protocols.
    pub(super) fn with_locks<T>(&self, f: impl FnOnce(&mut ServerState, &mut LockTable<FileId>) -> T) -> T {
        let mut state = self.state.lock();
        let result = self.core.locks.with_table(|table| {
            let result = f(&mut state, table);
            self.settle(&mut state, Some(table));
            result
        });
        let ended = state.ended_holds();
        drop(state);
        drop(ended);
        result
    }

    /// Returns DELAY as long as the storage of recovery records is behind. During that time no state may be granted:
    /// after a restart, a client whose state was revoked could reclaim it although another client has been granted
    /// conflicting state.
    pub(super) fn may_grant(&self) -> Result<(), Nfsstat4> {
        if !self.core.recovery.is_behind() {
            return Ok(());
        }
        self.core.recovery.count_refusal();
        Err(Nfsstat4::Delay)
    }

    /// Like [`with_locks`](Self::with_locks), for an operation that grants state. If storage fails while `f` runs, this
    /// returns DELAY although the client has the state. The client gets the state when it retries.
    pub(super) fn grant<T, E: From<Nfsstat4>>(
        &self,
        f: impl FnOnce(&mut ServerState, &mut LockTable<FileId>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.may_grant()?;
        let given = self.with_locks(f)?;
        self.may_grant()?;
        Ok(given)
    }

    /// Carries out the consequences of a change. Waits for storage if a client has lost state, because nobody else may
    /// be granted that state before the loss is stored. This is rare.
    fn settle(&self, state: &mut ServerState, mut table: Option<&mut LockTable<FileId>>) {
        if state.is_settled() {
            return;
        }
        let changes: Vec<_> = iter::from_fn(|| state.poll_record()).collect();
        let recovery = &self.core.recovery;
        if changes.iter().all(|change| matches!(change, RecordChange::Retire(_))) {
            recovery.defer_v4_clients(changes);
        } else {
            let stored = recovery.note_v4_clients(changes.iter().cloned());
            state.records_stored(&changes, stored);
            // These clients would have been stored, but storing failed.
            recovery.note_v4_clients(iter::from_fn(|| state.poll_record()));
        }
        while let Some(recall) = state.poll_recall() {
            self.run_in_background(BackgroundTask::Recall(recall));
        }
        while let Some((client, reduction)) = state.poll_reduction() {
            self.run_in_background(BackgroundTask::Reduce(client, reduction));
        }
        while let Some(bulk) = state.poll_bulk_recall() {
            self.run_in_background(BackgroundTask::RecallAll(bulk));
        }
        while let Some(end) = state.poll_layout_end() {
            self.run_in_background(BackgroundTask::EndLayout(end));
        }
        while let Some(event) = state.poll_event() {
            if let Event::Removed(client) | Event::Revoked(client) = event {
                self.offloads.cancel_all(client);
            }
            if let Event::NewListener(client) = event {
                self.run_in_background(BackgroundTask::ProbeListener(client));
            }
            let Event::Removed(client) = event else { continue };
            self.callbacks.outgoing.forget(client);
            self.layouts.forget(client);
            let client = LockClient::V4(client.0);
            match &mut table {
                Some(table) => table.release_client(client),
                None => self.core.locks.with_table(|table| table.release_client(client)),
            }
        }
    }
}

impl Shared4 {
    /// Returns the file handle of a file for use in callbacks.
    pub(super) fn callback_fh(&self, (export, handle): &FileId) -> NfsFh4 {
        bytes::Bytes::copy_from_slice(&self.core.key.seal(*export, handle)).into()
    }

    /// Sends a callback until the client returns OK or NOMATCHING_LAYOUT, or `is_needed` returns `false`. The pause between
    /// attempts doubles each time. Returns the client's status.
    pub(super) async fn call_until_acknowledged(
        &self,
        client: Clientid4,
        (about, operation): (CallbackSubject, &CbArgop4),
        is_needed: impl Fn() -> bool,
    ) -> Option<Nfsstat4> {
        let mut pause = PAUSE_MIN;
        while is_needed() {
            match self.callbacks.call_about(&self.state, client, about, operation).await {
                Ok(result) if matches!(result.status(), Nfsstat4::Ok | Nfsstat4::NoMatchingLayout) => {
                    return Some(result.status());
                }
                // The client may not have processed the reply that the callback refers to.
                Ok(result) => tracing::debug!(client = client.0, ?result, "a client rejected a callback"),
                Err(error) => {
                    let operation = operation.opnum();
                    tracing::debug!(client = client.0, ?operation, %error, "a callback failed");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        None
    }
}

/// Returns the flags of the roles that a server has in pNFS (RFC 8881 §13.1). A server that is not a metadata server and is
/// not a data server has the role of neither; the flags exclude each other.
fn pnfs_roles(core: &Core, data_server: bool) -> u32 {
    let metadata_server = core.exports.iter().any(|export| export.vfs().layouts().is_some());
    let role = |has: bool, flag: u32| if has { flag } else { 0 };
    match role(metadata_server, EXCHGID4_FLAG_USE_PNFS_MDS) | role(data_server, EXCHGID4_FLAG_USE_PNFS_DS) {
        0 => EXCHGID4_FLAG_USE_NON_PNFS,
        roles => roles,
    }
}

/// The maximum bytes of a message: a READ or WRITE of 1 MiB, and everything around it.
const MESSAGE_MAX: u32 = (1 << 20) + (16 << 10);
pub(super) const CHANNEL: ChannelLimits = ChannelLimits {
    request_max: MESSAGE_MAX,
    response_max: MESSAGE_MAX,
    response_cached_max: 4 << 10,
    operations_max: 64,
    slots_max: 64,
};
const CLIENTS_MAX: usize = 1 << 14;
const CLIENT_SESSIONS_MAX: usize = 64;
/// The maximum number of sessions. At least two are guaranteed for each client.
const SESSIONS_MAX: usize = 1 << 16;
/// The maximum bytes of cached replies. 2 KiB are guaranteed for each possible session.
const REPLIES_MAX: usize = 256 << 20;
const CLIENT_STATEIDS_MAX: usize = 1 << 18;
/// The maximum number of stateids. 128 are guaranteed for each client.
const STATEIDS_MAX: usize = 1 << 22;
/// The maximum number of owners of 4.0. 32 are guaranteed for each client.
const OWNERS_MAX: usize = 1 << 20;
const DELEGATIONS_MAX: usize = 1 << 18;
/// The limit of slots in use. Each slot can cache a reply of up to 4 KiB, as `CHANNEL` says.
const SLOTS_MAX: usize = 1 << 16;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
