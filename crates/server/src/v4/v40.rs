//! NFSv4.0 in a compound (RFC 7530 §9.1). There is no session: each operation names its client, and operations that
//! change the state of an open or lock owner carry a sequence ID of that owner.

use std::sync::Arc;

use bytes::Bytes;
use nfs::v4::{Argop4, Nfsstat4, Opnum4};

use super::{
    cursor::Cursor,
    place::Place,
    state::{
        owner::{Caller, Kept, OwnerName},
        transitions::v40::{Entered, Subject},
    },
};
use crate::{
    clock,
    export::sec::Sec,
    handle::FileId,
    v4::service::{Context, Shared4},
};

/// An operation in progress that carries its owner's sequence ID. Dropping this value ends the operation if it has not
/// ended.
pub(super) struct SequencedOp {
    shared: Arc<Shared4>,
    operation: Argop4,
    owner: Option<OwnerName>,
    caller: Caller,
}

/// The decision about an operation.
pub(super) enum Entry {
    /// Execute the operation.
    Free,
    /// Execute the operation. Then end this value with its result.
    Sequenced(SequencedOp),
    /// The operation is a retry, and this is its cached result.
    Replay(Kept<FileId>),
}

/// Finds the client of an operation and checks its sequence ID.
pub(super) fn enter(cx: &Context<'_>, at: &mut Cursor, operation: &Argop4) -> Result<Entry, Nfsstat4> {
    let shared = cx.shared;
    at.client = None;
    let Some(subject) = Subject::of(operation) else { return Ok(Entry::Free) };
    let now = clock::now();
    let caller = Caller { principal: at.principal.clone(), sec: Sec::of(cx.identity), tls: at.connection.tls };
    let enter = || shared.with_locks(|state, locks| state.enter(locks, now, subject, &caller));
    // The recovery record of a client that is back after its lease is stored again before its requests are executed.
    // The first attempt stores it.
    let entered = match enter() {
        Err(Nfsstat4::Delay) => enter(),
        entered => entered,
    }?;
    Ok(match entered {
        Entered::Free(client) => {
            at.client = client;
            Entry::Free
        }
        Entered::Sequenced(owner) => {
            at.client = Some(owner.client);
            let (shared, operation) = (shared.clone(), operation.clone());
            Entry::Sequenced(SequencedOp { shared, operation, owner: Some(owner), caller })
        }
        // RFC 7530 §9.1.7: it is no retry. The result may show what this caller may not see, such as a file handle.
        Entered::Replay(kept) if kept.caller != caller => return Err(Nfsstat4::BadSeqid),
        Entered::Replay(kept) => {
            if let Some((export, handle)) = &kept.file {
                at.current = Some(Place::Object(*export, handle.clone()).into());
            }
            Entry::Replay(kept)
        }
    })
}

/// Replaces a status that 4.0 does not have by one of 4.0 (RFC 7530 §13.1; §16.16 for OPEN).
pub(super) fn status(status: Nfsstat4, opnum: Opnum4) -> Nfsstat4 {
    match (status, opnum) {
        (Nfsstat4::WrongType, Opnum4::Open) => Nfsstat4::Symlink,
        (Nfsstat4::WrongType, _) => Nfsstat4::Inval,
        (status, _) => status,
    }
}

impl SequencedOp {
    /// Ends the operation. `result` is cached as it was encoded, together with the current file handle after an OPEN.
    pub(super) fn end(mut self, status: Nfsstat4, result: &[u8], at: &Cursor) {
        let opened = status == Nfsstat4::Ok && matches!(self.operation, Argop4::Open(_));
        let file = match at.current() {
            Ok(Place::Object(export, handle)) if opened => Some((*export, handle.clone())),
            _ => None,
        };
        self.leave(status, Bytes::copy_from_slice(result), file);
    }

    fn leave(&mut self, status: Nfsstat4, result: Bytes, file: Option<FileId>) {
        if let Some(owner) = self.owner.take() {
            let kept = Kept { status, result, file, caller: self.caller.clone() };
            self.shared.with_state(|state| state.leave(clock::now(), &owner, &self.operation, kept));
        }
    }
}

impl Drop for SequencedOp {
    fn drop(&mut self) {
        // RESOURCE does not advance the sequence ID. No reply was sent.
        self.leave(Nfsstat4::Resource, Bytes::new(), None);
    }
}
