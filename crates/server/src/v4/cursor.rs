//! [`Cursor`]: the state that the operations of a compound share: file handles, session or client, and the space for
//! results.

use std::sync::Arc;

use nfs::v4::{Clientid4, Nfsstat4, Sessionid4, Stateid4};
use vfs::Cred;

use super::{
    cb_getattr::{CbGetattrResult, PendingCbGetattr},
    place::{Filehandle, Known, Place},
    service::CachedReply,
    state::{
        ids::{Principal, ReferringCall},
        session::Connection,
        shard::Shard,
    },
};
use crate::{handle::FileId, sharing::locks::LockClient};

/// The state that the operations of a compound share.
pub(super) struct Cursor {
    pub(super) minor: u32,
    pub(super) principal: Principal,
    pub(super) connection: Connection,
    pub(super) current: Option<Filehandle>,
    pub(super) saved: Option<Filehandle>,
    /// `true` after an operation that has set the current file handle, if the export of that does not allow the security
    /// flavour of the call. A later operation decides whether that is an error ([`may_follow_wrong_sec`](super::ops::may_follow_wrong_sec)).
    pub(super) wrong_sec: bool,
    pub(super) session: Option<InSession>,
    /// In 4.0: the client of the operation in progress, if the operation names a client or state.
    pub(super) client: Option<Clientid4>,
    /// The bytes that are left for results.
    pub(super) room: usize,
    /// The status of an operation whose result does not fit.
    pub(super) too_big: Nfsstat4,
    /// `true` if the operation in progress has created a file. It can still fail with a status after which the client
    /// retries it.
    pub(super) created: bool,
    /// The number of operations after the one that is being executed.
    pub(super) operations_left: u32,
    /// The callback for which the operation waits that has returned `WouldBlock`.
    pub(super) cb_getattr: Option<PendingCbGetattr>,
    /// The result of that callback, when the operation runs again.
    pub(super) cb_getattr_result: Option<CbGetattrResult>,
}

/// The session of a compound that began with SEQUENCE.
pub(super) struct InSession {
    pub(super) client: Clientid4,
    pub(super) id: Sessionid4,
    /// The request that this compound is.
    pub(super) call: ReferringCall,
    /// The shard of its client.
    pub(super) shard: Option<ClientShard>,
}

/// The state that the requests of a client share.
pub(super) type ClientShard = Arc<Shard<CachedReply, FileId>>;

impl Cursor {
    /// Returns the current file handle.
    pub(super) fn current(&self) -> Result<&Place, Nfsstat4> {
        self.current.as_ref().map(|current| &current.place).ok_or(Nfsstat4::NoFileHandle)
    }

    /// Returns the user of the current file handle, if that is a [`DataHandle`](crate::DataHandle).
    pub(super) fn data_user(&self) -> Option<&Cred> {
        self.current.as_ref().and_then(|current| current.user.as_ref())
    }

    /// Reports whether only operations on data are executed with the current file handle: it is a [`DataHandle`](crate::DataHandle) or
    /// an [`AdoptedHandle`](crate::AdoptedHandle).
    pub(super) fn is_for_data(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.user.is_some() || current.adopted)
    }

    /// Returns the saved file handle. A missing one has the same status as a missing current one (RFC 8881 §18.26.3).
    pub(super) fn saved(&self) -> Result<&Place, Nfsstat4> {
        self.saved.as_ref().map(|saved| &saved.place).ok_or(Nfsstat4::NoFileHandle)
    }

    /// Returns the client of the session; in 4.0, the client of the operation. Returns 0, which is no valid ID, if
    /// there is none.
    pub(super) fn client(&self) -> Clientid4 {
        let client = self.session.as_ref().map(|session| session.client).or(self.client);
        client.unwrap_or(Clientid4(0))
    }

    /// Returns the client as the lock table names it.
    pub(super) fn lock_client(&self) -> LockClient {
        LockClient::V4(self.client().0)
    }

    /// Resolves a stateid of a request: replaces the special current stateid by its value (RFC 8881 §16.2.3.1.2).
    pub(super) fn stateid(&self, stateid: Stateid4) -> Result<Stateid4, Nfsstat4> {
        resolve(stateid, self.current.as_ref())
    }

    /// Like [`stateid`](Self::stateid), for the saved file handle.
    pub(super) fn saved_stateid(&self, stateid: Stateid4) -> Result<Stateid4, Nfsstat4> {
        resolve(stateid, self.saved.as_ref())
    }

    /// Returns what is known about the current object.
    pub(super) fn known(&self) -> &Known {
        self.current.as_ref().map_or(&Known::Nothing, |current| &current.known)
    }

    /// Forgets what is known about the current object, because the next operation can change it.
    pub(super) fn forget_known(&mut self) {
        if let Some(current) = &mut self.current {
            current.known = Known::Nothing;
        }
    }

    /// Sets the current stateid.
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
    //= rfc8881-8.2.3-4
    // There is a current stateid only if an operation of this compound has set one.
    if current == Stateid4::ANONYMOUS { Err(Nfsstat4::BadStateid) } else { Ok(current) }
}
