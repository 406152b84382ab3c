//! [`Shared4`]: what all calls of NFSv4 share: the state of all clients, and what is around it.
//!
//! Operations ask or change the state by [`Shared4::with_state`], [`Shared4::with_locks`] and [`Shared4::give`]. These also do what follows
//! from a change: they store which clients may reclaim, queue callbacks as background tasks, and release the locks of clients that are gone.

use std::{
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use nfs::v4::{
    Clientid4, EXCHGID4_FLAG_SUPP_MOVED_REFER, EXCHGID4_FLAG_USE_NON_PNFS, NfsFh4, NfsImplId4, Nfsstat4, Nfstime4,
    ServerOwner4, callback::CbArgop4,
};
use parking_lot::Mutex;
use tokio::{sync::mpsc, time::sleep};
use xdr::Message;

use super::{
    callback::Callbacks,
    cb_getattr::CbGetattrs,
    offload::Offloads,
    pseudo::Pseudo,
    state::{Event, State, StateOptions, session::ChannelLimits, shard::Shards},
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
/// The parts of a call that it needs on another thread.
pub(super) type Detached = call::context::Detached<Shared4>;

/// The state of the NFSv4 service.
pub(crate) struct Shared4 {
    pub(super) core: Arc<Core>,
    pub(super) state: Mutex<ServerState>,
    pub(super) pseudo: Pseudo,
    pub(super) names: Names,
    /// Of leases.
    pub(super) lease: Duration,
    pub(super) callbacks: Callbacks,
    pub(super) cb_getattrs: CbGetattrs,
    /// The state that each request of a client uses, without `state`.
    pub(super) shards: Shards<Message, FileId>,
    pub(super) offloads: Offloads,
    /// For `upkeep`.
    tasks: mpsc::UnboundedSender<BackgroundTask>,
    /// The other end of `tasks`, until `upkeep` runs.
    new_tasks: Mutex<Option<mpsc::UnboundedReceiver<BackgroundTask>>>,
    runs_tasks: AtomicBool,
}

/// Replies are kept as messages, files named as the lock table names them.
pub(super) type ServerState = State<Message, FileId>;

impl Shared4 {
    /// The state after a start. What clients held before can be reclaimed, and nothing else is granted, for a time. No other
    /// start of a server whose clients may still be there had the number `instance`.
    pub(crate) fn new(core: Arc<Core>, settings: Settings, instance: u32) -> Arc<Self> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = vfs::Time { seconds: started.as_secs() as i64, nanoseconds: started.subsec_nanos() };
        // The same key, the same file handles: the same server.
        let name = Bytes::from(format!("slipway {:032x}", core.key.server_id()));
        let options = StateOptions {
            server_owner: ServerOwner4 { minor_id: 0, major_id: name.clone().into() },
            server_scope: name,
            implementation: Some(NfsImplId4 {
                domain: "slipway".into(),
                name: concat!("slipway ", env!("CARGO_PKG_VERSION")).into(),
                date: Nfstime4::default(),
            }),
            //= rfc8881-18.35.3-11 rfc8881-18.35.3-13
            flags: EXCHGID4_FLAG_USE_NON_PNFS | EXCHGID4_FLAG_SUPP_MOVED_REFER,
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
            slots_max: SLOTS_MAX,
        };
        let mut state = State::new(options, instance, rand::random());
        let V4Clients { reclaiming, forfeited } = core.recovery.v4_clients();
        if !reclaiming.is_empty() || !forfeited.is_empty() || core.recovery.clients_unknown() {
            let (clients, forfeited_by) = (reclaiming.len(), forfeited.len());
            tracing::info!(clients, forfeited_by, "clients of version 4 can reclaim what they held");
            state.begin_grace(V4Clients { reclaiming, forfeited });
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
            tasks,
            new_tasks: Mutex::new(Some(new_tasks)),
            runs_tasks: AtomicBool::new(false),
            core: core.clone(),
        });
        let protocol: Arc<dyn Recall> = shared.clone();
        core.conflicts.attach(marks, Arc::downgrade(&protocol));
        shared
    }

    /// The connections of clients.
    pub(crate) fn callbacks(&self) -> &Callbacks {
        &self.callbacks
    }

    /// The background tasks, for the one that runs them. `None` if somebody does already.
    pub(super) fn take_tasks(&self) -> Option<mpsc::UnboundedReceiver<BackgroundTask>> {
        let new_tasks = self.new_tasks.lock().take();
        self.runs_tasks.store(new_tasks.is_some() || self.runs_tasks(), Relaxed);
        new_tasks
    }

    /// Sets the transport by which clients of 4.0 are called.
    pub(crate) fn call_by(&self, kind: &Arc<dyn rpc::TransportKind>) {
        self.callbacks.outgoing.by(kind);
    }

    /// Has a task run in the background.
    pub(super) fn run_in_background(&self, task: BackgroundTask) {
        // It fails only when the server ends.
        let _ = self.tasks.send(task);
    }

    /// Whether anybody runs background tasks; otherwise nothing can be given that has to be taken back.
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
        tracing::info!(clients, "the claims of these clients have ended");
    }
}

impl Shared4 {
    /// Asks or changes the state.
    pub(crate) fn with_state<T>(&self, go: impl FnOnce(&mut ServerState) -> T) -> T {
        let mut state = self.state.lock();
        let result = go(&mut state);
        self.settle(&mut state, None);
        result
    }

    /// Asks or changes the state and the locks of all protocols.
    pub(super) fn with_locks<T>(&self, go: impl FnOnce(&mut ServerState, &mut LockTable<FileId>) -> T) -> T {
        let mut state = self.state.lock();
        self.core.locks.with_table(|table| {
            let result = go(&mut state, table);
            self.settle(&mut state, Some(table));
            result
        })
    }

    /// Refuses for now whatever gives a client something, as long as what another has lost is not stored: the other could reclaim
    /// that after a restart.
    pub(super) fn may_give(&self) -> Result<(), Nfsstat4> {
        if !self.core.recovery.is_behind() {
            return Ok(());
        }
        self.core.recovery.count_refusal();
        Err(Nfsstat4::Delay)
    }

    /// As [`with_locks`](Self::with_locks), for what gives a client something. If storage fails in the middle, what the client
    /// was to get is its own, and it is told so when it asks again.
    pub(super) fn give<T, E: From<Nfsstat4>>(
        &self,
        go: impl FnOnce(&mut ServerState, &mut LockTable<FileId>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.may_give()?;
        let given = self.with_locks(go)?;
        self.may_give()?;
        Ok(given)
    }

    /// Does what follows from a change. Waits for storage where a client has lost what it held: that is rare, and nobody else
    /// may get it before.
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
            // Clients that were to be stored again, and are not.
            recovery.note_v4_clients(iter::from_fn(|| state.poll_record()));
        }
        while let Some(recall) = state.poll_recall() {
            self.run_in_background(BackgroundTask::Recall(recall));
        }
        while let Some((client, reduction)) = state.poll_reduction() {
            self.run_in_background(BackgroundTask::Reduce(client, reduction));
        }
        while let Some(event) = state.poll_event() {
            if let Event::Gone(client) | Event::Revoked(client) = event {
                self.offloads.cancel_all(client);
            }
            if let Event::Listens(client) = event {
                self.run_in_background(BackgroundTask::Try(client));
            }
            let Event::Gone(client) = event else { continue };
            self.callbacks.outgoing.forget(client);
            let client = LockClient::V4(client.0);
            match &mut table {
                Some(table) => table.release_client(client),
                None => self.core.locks.with_table(|table| table.release_client(client)),
            }
        }
    }
}

impl Shared4 {
    /// A file as callbacks name it.
    pub(super) fn callback_fh(&self, (export, handle): &FileId) -> NfsFh4 {
        bytes::Bytes::copy_from_slice(&self.core.key.seal(*export, handle)).into()
    }

    /// Calls a client until it has heard, as long as there is something to be heard.
    pub(super) async fn call_until_heard(&self, client: Clientid4, operation: &CbArgop4, is_of_use: impl Fn() -> bool) {
        let mut pause = PAUSE_MIN;
        while is_of_use() {
            match self.callbacks.call(&self.state, client, operation).await {
                Ok(result) if result.status() == Nfsstat4::Ok => return,
                // The reply with what it is about may still be on its way.
                Ok(result) => tracing::debug!(client = client.0, ?result, "a client does not take what it is told"),
                Err(error) => {
                    let operation = operation.opnum();
                    tracing::debug!(client = client.0, ?operation, %error, "a client does not hear what it is told");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// What fits a READ or WRITE of 1 MiB and all that can be around it.
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
/// Two of each client are certain.
const SESSIONS_MAX: usize = 1 << 16;
/// Bytes. Of these 2 KiB are certain for each session that there can be.
const REPLIES_MAX: usize = 256 << 20;
const CLIENT_STATEIDS_MAX: usize = 1 << 18;
/// 128 of each client are certain.
const STATEIDS_MAX: usize = 1 << 22;
/// 32 of each client are certain.
const OWNERS_MAX: usize = 1 << 20;
const DELEGATIONS_MAX: usize = 1 << 18;
/// Each keeps a reply of up to 4 KiB, as `CHANNEL` says.
const SLOTS_MAX: usize = 1 << 16;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
