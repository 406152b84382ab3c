//! NFS versions 4.0, 4.1 and 4.2: RFC 7530, RFC 8881, RFC 7862 and RFC 8276.
//!
//! From the bottom up; a file uses only those before it:
//!
//! - [`state`] is who has what: clients, sessions, opens and locks, as a pure machine: one shard for each client with what all its
//!   requests use, and the rest behind one mutex. Locks are taken in this order: that mutex, the lock table, a shard. [`callback`]
//!   calls clients. `pseudo` is the tree that leads from the root to the exports, `place` what a file handle names.
//! - `service` is what all calls share: the state, and what surrounds it. `task` is what operations leave to be done in the
//!   background, `cb_getattr` a callback for which they wait, `offload` the copies that go on behind their replies.
//! - `cursor` is what the operations of a compound share. `ops` has one function for each operation; `attr` and `acl` translate
//!   attributes, `holder` asks the holder of a delegation for them.
//! - `compound` executes requests: it reads one operation after the other, and has `ops` execute each on a cursor. `v40` is what
//!   it does for version 4.0, which has no sessions.
//! - `upkeep` runs the background tasks, and does what nobody has asked for. `guard` is what all versions ask before a file is used that
//!   somebody may have a delegation of.

mod acl;
mod attr;
pub mod callback;
mod cb_getattr;
mod compound;
mod cursor;
mod guard;
mod holder;
mod offload;
mod ops;
mod place;
mod pseudo;
pub(crate) mod service;
pub mod state;
mod status;
mod task;
mod turns;
pub(crate) mod upkeep;
mod v40;

use std::{ops::RangeInclusive, sync::Arc};

use nfs::v4;
use rpc::{Answering, Call, ConnectionId, Procedure, Reverse, Service};
use xdr::Decoder;

use service::Shared4;

/// The NFS program, version 4: its minor versions 1 and 2.
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
