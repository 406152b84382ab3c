//! NFS versions 4.1 and 4.2: RFC 8881, RFC 7862 and RFC 8276.
//!
//! [`compound`] executes requests: it reads one operation after the other, and has [`ops`] execute each on a
//! [`Cursor`](compound::Cursor), which is all that operations of a compound share. [`state`] is who has what: clients,
//! sessions, opens and locks, as a pure machine behind one mutex, taken before that of the lock table. [`pseudo`] is the
//! tree that leads from the root to the exports.

mod acl;
mod attr;
pub mod callback;
mod compound;
mod ops;
mod place;
mod pseudo;
pub mod state;

use std::{
    future::ready,
    ops::RangeInclusive,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use nfs::v4::{self, EXCHGID4_FLAG_USE_NON_PNFS, NfsImplId4, Nfstime4, ServerOwner4};
use parking_lot::Mutex;
use rpc::{AcceptError, BoxFuture, Call, ConnectionId, Procedure, Service};
use xdr::Message;

use crate::{
    context::Shared,
    export::Exports,
    handle::HandleKey,
    locks::{LockClient, LockTable},
    nlm::lockd::LockFile,
};
use pseudo::Pseudo;
use state::{Event, State, StateOptions, session::ChannelLimits};

/// The NFS program, version 4: its minor versions 1 and 2.
pub struct Nfs4 {
    shared: Arc<Shared>,
}

/// What version 4 keeps beside the exports.
pub(crate) struct Shared4 {
    state: Mutex<ServerState>,
    pseudo: Pseudo,
    /// Of leases.
    lease: Duration,
}

/// Replies are kept as messages, files named as the lock table names them.
type ServerState = State<Message, LockFile>;

impl Nfs4 {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
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
        // What was executed is remembered by sessions, not by the duplicate request cache.
        let name = match procedure {
            v4::PROC_NULL => "NULL",
            v4::PROC_COMPOUND => "COMPOUND",
            _ => return None,
        };
        Some(Procedure { name, idempotent: true })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Message, AcceptError>> {
        match call.procedure {
            v4::PROC_NULL => Box::pin(ready(Ok(call.encoder().finish()))),
            _ => compound::run(&self.shared, call),
        }
    }

    fn disconnected(&self, connection: ConnectionId) {
        self.shared.with_state(|state| state.disconnect(connection));
    }
}

impl Shared4 {
    pub(crate) fn new(exports: &Exports, key: &HandleKey) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = vfs::Time { seconds: started.as_secs() as i64, nanoseconds: started.subsec_nanos() };
        // The same key, the same file handles: the same server.
        let name = Bytes::from(format!("slipway {:032x}", key.server_id()));
        let options = StateOptions {
            server_owner: ServerOwner4 { minor_id: 0, major_id: name.clone().into() },
            server_scope: name,
            implementation: Some(NfsImplId4 {
                domain: "slipway".into(),
                name: concat!("slipway ", env!("CARGO_PKG_VERSION")).into(),
                date: Nfstime4::default(),
            }),
            flags: EXCHGID4_FLAG_USE_NON_PNFS,
            lease: LEASE,
            channel: CHANNEL,
            clients_max: CLIENTS_MAX,
            client_sessions_max: CLIENT_SESSIONS_MAX,
            client_stateids_max: CLIENT_STATEIDS_MAX,
        };
        let state = State::new(options, started.as_secs() as u32, rand::random());
        Self { state: Mutex::new(state), pseudo: Pseudo::new(exports, time), lease: LEASE }
    }
}

impl Shared {
    /// Asks or changes the state.
    fn with_state<T>(&self, go: impl FnOnce(&mut ServerState) -> T) -> T {
        let mut state = self.v4.state.lock();
        let result = go(&mut state);
        self.settle(&mut state, None);
        result
    }

    /// Asks or changes the state and the locks of all protocols.
    fn with_locks<T>(&self, go: impl FnOnce(&mut ServerState, &mut LockTable<LockFile>) -> T) -> T {
        let mut state = self.v4.state.lock();
        self.lockd.with_table(|table| {
            let result = go(&mut state, table);
            self.settle(&mut state, Some(table));
            result
        })
    }

    /// Does what follows from a change.
    fn settle(&self, state: &mut ServerState, mut table: Option<&mut LockTable<LockFile>>) {
        while let Some(event) = state.poll_event() {
            let Event::Gone(client) = event else { continue };
            let client = LockClient::V4(client.0);
            match &mut table {
                Some(table) => table.release_client(client),
                None => self.lockd.with_table(|table| table.release_client(client)),
            }
        }
    }
}

const LEASE: Duration = Duration::from_secs(90);
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
const CLIENT_STATEIDS_MAX: usize = 1 << 18;
