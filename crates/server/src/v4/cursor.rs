//! [`Cursor`]: what the operations of a compound share: its file handles, its session or client, and the room for results.

use std::sync::Arc;

use nfs::v4::{Clientid4, Nfsstat4, Sessionid4, Stateid4};
use xdr::Message;

use super::{
    cb_getattr::{CbGetattrResult, PendingCbGetattr},
    place::{Filehandle, Place},
    state::{ids::Principal, session::Connection, shard::Shard},
};
use crate::{handle::FileId, sharing::locks::LockClient};

/// What the operations of a compound share.
pub(super) struct Cursor {
    pub(super) minor: u32,
    pub(super) principal: Principal,
    pub(super) connection: Connection,
    pub(super) current: Option<Filehandle>,
    pub(super) saved: Option<Filehandle>,
    pub(super) session: Option<InSession>,
    /// In 4.0, whose the operation is, if it names a client or state.
    pub(super) client: Option<Clientid4>,
    /// Bytes left for results.
    pub(super) room: usize,
    /// What a result that needs more is answered with.
    pub(super) too_big: Nfsstat4,
    /// The number of operations after the one that is being executed.
    pub(super) operations_left: u32,
    /// The callback for which the operation waits that has ended with `WouldBlock`.
    pub(super) cb_getattr: Option<PendingCbGetattr>,
    /// Its result, when the operation runs again.
    pub(super) cb_getattr_result: Option<CbGetattrResult>,
}

/// The session of a compound that began with SEQUENCE.
pub(super) struct InSession {
    pub(super) client: Clientid4,
    pub(super) id: Sessionid4,
    /// The shard of its client.
    pub(super) shard: Option<ClientShard>,
}

/// What the requests of a client share.
pub(super) type ClientShard = Arc<Shard<Message, FileId>>;

impl Cursor {
    /// The current file handle.
    pub(super) fn current(&self) -> Result<&Place, Nfsstat4> {
        self.current.as_ref().map(|current| &current.place).ok_or(Nfsstat4::NoFileHandle)
    }

    /// The saved file handle. That there is none has the same status as for the current one (RFC 8881 §18.26.3).
    pub(super) fn saved(&self) -> Result<&Place, Nfsstat4> {
        self.saved.as_ref().map(|saved| &saved.place).ok_or(Nfsstat4::NoFileHandle)
    }

    /// The client of the session; in 4.0 that of the operation, or one that there is not.
    pub(super) fn client(&self) -> Clientid4 {
        let client = self.session.as_ref().map(|session| session.client).or(self.client);
        client.unwrap_or(Clientid4(0))
    }

    /// The client, as the lock table names it.
    pub(super) fn lock_client(&self) -> LockClient {
        LockClient::V4(self.client().0)
    }

    /// What a client means by a stateid: the current one's place is taken by it (RFC 8881 §16.2.3.1.2).
    pub(super) fn stateid(&self, stateid: Stateid4) -> Result<Stateid4, Nfsstat4> {
        resolve(stateid, self.current.as_ref())
    }

    /// As [`stateid`](Self::stateid), of the saved file handle.
    pub(super) fn saved_stateid(&self, stateid: Stateid4) -> Result<Stateid4, Nfsstat4> {
        resolve(stateid, self.saved.as_ref())
    }

    /// Makes a stateid the current one.
    pub(super) fn set_stateid(&mut self, stateid: Stateid4) {
        if let Some(current) = &mut self.current {
            current.stateid = stateid;
        }
    }
}

fn resolve(stateid: Stateid4, at: Option<&Filehandle>) -> Result<Stateid4, Nfsstat4> {
    if stateid != Stateid4::CURRENT {
        return Ok(stateid);
    }
    let current = at.map_or(Stateid4::ANONYMOUS, |at| at.stateid);
    // There is none unless an operation of this compound has left one.
    if current == Stateid4::ANONYMOUS { Err(Nfsstat4::BadStateid) } else { Ok(current) }
}
