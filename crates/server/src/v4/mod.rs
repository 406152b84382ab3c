//! NFS versions 4.0, 4.1 and 4.2: RFC 7530, RFC 8881, RFC 7862 and RFC 8276.
//!
//! `compound` executes requests: it reads one operation after the other, and has `ops` execute each on a
//! cursor, which is all that operations of a compound share. [`state`] is who has what: clients,
//! sessions, opens and locks, as a pure machine: one shard for each client with what all its requests use, and the rest behind one mutex.
//! Locks are taken in this order: that mutex, the lock table, a shard. `pseudo` is the
//! tree that leads from the root to the exports. `guard` is what all versions ask before a file is used that somebody may have
//! a delegation of; `upkeep` does what nobody has asked for, and calls clients by [`callback`].

mod acl;
mod attr;
pub mod callback;
mod compound;
mod guard;
mod holder;
mod offload;
mod ops;
mod place;
mod pseudo;
pub mod state;
mod status;
mod turns;
pub(crate) mod upkeep;
mod v40;

use std::{
    future::ready,
    iter,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use nfs::v4::{self, EXCHGID4_FLAG_USE_NON_PNFS, NfsImplId4, Nfsstat4, Nfstime4, ServerOwner4};
use parking_lot::Mutex;
use rpc::{AcceptError, BoxFuture, Call, ConnectionId, Procedure, Reverse, Service};
use tokio::sync::mpsc;
use xdr::{Decoder, Message};

use crate::{
    call::{
        self,
        core::{Core, ServiceState},
    },
    config::Settings,
    handle::FileId,
    identity::names::Names,
    recovery::V4Clients,
    sharing::{
        conflict::Recall,
        grace::Reclaim,
        locks::{LockClient, LockTable},
    },
};
use callback::Callbacks;
use holder::Questions;
use offload::Offloads;
use pseudo::Pseudo;
use state::{Event, State, StateOptions, session::ChannelLimits, shard::Shards};
use upkeep::BackgroundTask;

/// The NFS program, version 4: its minor versions 1 and 2.
pub struct Nfs4 {
    shared: Arc<Shared4>,
}

/// The call context of an operation.
type Context<'a> = call::context::Context<'a, Shared4>;
/// The parts of a call that it needs on another thread.
type Detached = call::context::Detached<Shared4>;

/// The state of the NFSv4 service.
pub(crate) struct Shared4 {
    core: Arc<Core>,
    state: Mutex<ServerState>,
    pseudo: Pseudo,
    names: Names,
    /// Of leases.
    lease: Duration,
    callbacks: Callbacks,
    questions: Questions,
    /// The state that each request of a client uses, without `state`.
    shards: Shards<Message, FileId>,
    offloads: Offloads,
    /// For [`upkeep`].
    errands: mpsc::UnboundedSender<BackgroundTask>,
    awaited: Mutex<Option<mpsc::UnboundedReceiver<BackgroundTask>>>,
    /// Whether somebody runs them.
    kept_up: AtomicBool,
}

/// Replies are kept as messages, files named as the lock table names them.
type ServerState = State<Message, FileId>;

impl Nfs4 {
    pub(crate) fn new(shared: Arc<Shared4>) -> Self {
        Self { shared }
    }
}

impl Service for Nfs4 {
    fn program(&self) -> u32 {
        nfs::NFS_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        v4::VERSION..=v4::VERSION
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        // What was executed is remembered by sessions; of 4.0, see below.
        let name = match procedure {
            v4::PROC_NULL => "NULL",
            v4::PROC_COMPOUND => "COMPOUND",
            _ => return None,
        };
        Some(Procedure { name, idempotent: true })
    }

    fn is_idempotent(&self, _: &Procedure, arguments: &Decoder<'_>) -> bool {
        compound::is_idempotent(arguments.clone())
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Message, AcceptError>> {
        match call.procedure {
            v4::PROC_NULL => Box::pin(ready(Ok(call.encoder().finish()))),
            _ => compound::run(&self.shared, call),
        }
    }

    fn connected(&self, peer: &Reverse) {
        self.shared.callbacks.connected(peer);
    }

    fn disconnected(&self, connection: ConnectionId) {
        self.shared.callbacks.disconnected(connection);
        self.shared.with_state(|state| state.disconnect(connection));
    }
}

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
            flags: EXCHGID4_FLAG_USE_NON_PNFS,
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
        let (errands, awaited) = mpsc::unbounded_channel();
        let marks = state.marks().clone();
        let shared = Arc::new(Self {
            shards: state.shards().clone(),
            state: Mutex::new(state),
            pseudo: Pseudo::new(&core.exports, time),
            names: Names::new(settings.idmap_domain),
            lease: settings.lease,
            callbacks: Callbacks::default(),
            questions: Questions::default(),
            offloads: Offloads::default(),
            errands,
            awaited: Mutex::new(Some(awaited)),
            kept_up: AtomicBool::new(false),
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

    /// What is to be done; for the one that does it.
    fn begin_upkeep(&self) -> Option<mpsc::UnboundedReceiver<BackgroundTask>> {
        let awaited = self.awaited.lock().take();
        self.kept_up.store(awaited.is_some() || self.is_kept_up(), Relaxed);
        awaited
    }

    /// By what clients of 4.0 are called.
    pub(crate) fn call_by(&self, kind: &Arc<dyn rpc::TransportKind>) {
        self.callbacks.outgoing.by(kind);
    }

    /// Has something done.
    fn run(&self, errand: BackgroundTask) {
        // It fails only when the server ends.
        let _ = self.errands.send(errand);
    }

    /// Whether anybody does what is to be done; otherwise nothing can be given that has to be taken back.
    fn is_kept_up(&self) -> bool {
        self.kept_up.load(Relaxed)
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
    fn with_locks<T>(&self, go: impl FnOnce(&mut ServerState, &mut LockTable<FileId>) -> T) -> T {
        let mut state = self.state.lock();
        self.core.locks.with_table(|table| {
            let result = go(&mut state, table);
            self.settle(&mut state, Some(table));
            result
        })
    }

    /// Refuses for now whatever gives a client something, as long as what another has lost is not stored: the other could reclaim
    /// that after a restart.
    fn may_give(&self) -> Result<(), Nfsstat4> {
        if !self.core.recovery.is_behind() {
            return Ok(());
        }
        self.core.recovery.count_refusal();
        Err(Nfsstat4::Delay)
    }

    /// As [`with_locks`](Self::with_locks), for what gives a client something. If storage fails in the middle, what the client
    /// was to get is its own, and it is told so when it asks again.
    fn give<T, E: From<Nfsstat4>>(
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
        if !changes.is_empty() {
            let recovery = &self.core.recovery;
            let stored = recovery.note_v4_clients(changes.iter().cloned());
            state.records_stored(&changes, stored);
            // Clients that were to be stored again, and are not.
            recovery.note_v4_clients(iter::from_fn(|| state.poll_record()));
        }
        while let Some(recall) = state.poll_recall() {
            self.run(BackgroundTask::Recall(recall));
        }
        while let Some((client, ask)) = state.poll_ask() {
            self.run(BackgroundTask::Ask(client, ask));
        }
        while let Some(event) = state.poll_event() {
            if let Event::Gone(client) | Event::Revoked(client) = event {
                self.offloads.cancel_all(client);
            }
            if let Event::Listens(client) = event {
                self.run(BackgroundTask::Try(client));
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

/// What fits a READ or WRITE of 1 MiB and all that can be around it.
const MESSAGE_MAX: u32 = (1 << 20) + (16 << 10);
const CHANNEL: ChannelLimits = ChannelLimits {
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
