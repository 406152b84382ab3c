//! NFS versions 4.0, 4.1 and 4.2: RFC 7530, RFC 8881, RFC 7862 and RFC 8276.
//!
//! The parts, from the bottom up. A file uses only those listed before it:
//!
//! - [`state`] holds the state of all clients: clients, sessions, opens and locks. It is a state machine without I/O.
//!   Each client has a shard with the state that all its requests use; the rest is behind one mutex. Locks are taken in
//!   this order: that mutex, the lock table, a shard. [`callback`] sends callbacks to clients. `pseudo` is the tree
//!   that leads from the root to the exports, and `place` decodes file handles.
//! - `service` is the state that all calls share. `task` lists the background tasks that operations queue, `cb_getattr`
//!   tracks the CB_GETATTR callbacks for which operations wait, and `offload` tracks the asynchronous copies.
//! - `cursor` is the state that the operations of a compound share. `ops` has one function for each operation. `attr`
//!   and `acl` translate attributes. `holder` asks the holder of a delegation for them.
//! - `compound` executes requests: it decodes one operation after the other, and `ops` executes each on a cursor. `v40`
//!   adds what version 4.0 needs because it has no sessions.
//! - `upkeep` runs the background tasks and the periodic work. All protocols call `guard` before they use a file that
//!   can be delegated.

pub mod acl;
mod attr;
mod audit;
mod call_queue;
pub mod callback;
mod cb_getattr;
mod compound;
mod cursor;
mod guard;
mod holder;
mod layouts;
mod offload;
mod ops;
mod place;
mod pseudo;
pub(crate) mod service;
pub mod state;
mod status;
mod task;

pub(crate) mod upkeep;
mod v40;

use std::{ops::RangeInclusive, sync::Arc};

use nfs::v4;
use rpc::{Answering, Call, ConnectionId, Procedure, Reverse, Service};
use xdr::Decoder;

use service::Shared4;

/// The service of the NFS program, version 4, with its minor versions 0, 1 and 2.
pub struct Nfs4 {
    shared: Arc<Shared4>,
}

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

    fn needs_reliability(&self) -> bool {
        //= rfc8881-2.9.1-3 rfc8881-2.9.1-4
        true
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<Procedure> {
        // Sessions cache the replies of 4.1 and later. For 4.0, see `is_idempotent`.
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

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        match call.procedure {
            v4::PROC_NULL => Answering::Ready(Ok(call.encoder().finish())),
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
