//! NFSv4.0 in a compound: there is no session, so each operation says for whom it is, and those that change what an owner
//! has are counted by that owner. RFC 7530 §9.1.

use std::sync::Arc;

use bytes::Bytes;
use nfs::v4::{Argop4, Nfsstat4, Opnum4};

use super::{
    cursor::Cursor,
    place::Place,
    state::{
        owner::{Kept, OwnerName},
        transitions::v40::{Entered, Subject},
    },
};
use crate::{clock, handle::FileId, v4::service::Shared4};

/// An operation's turn in the sequence of its owner. It is ended at the latest when this is dropped.
pub(super) struct InTurn {
    shared: Arc<Shared4>,
    operation: Argop4,
    owner: Option<OwnerName>,
}

/// What is to be done with an operation.
pub(super) enum Entry {
    /// It is to be executed.
    Free,
    /// As that, and this is to be ended.
    InTurn(InTurn),
    /// It was executed.
    Replay(Kept<FileId>),
}

/// Finds for whom an operation is, and whether it is its turn.
pub(super) fn enter(shared: &Arc<Shared4>, at: &mut Cursor, operation: &Argop4) -> Result<Entry, Nfsstat4> {
    at.client = None;
    let Some(subject) = Subject::of(operation) else { return Ok(Entry::Free) };
    let now = clock::now();
    let enter = || shared.with_locks(|state, locks| state.enter(locks, now, subject));
    // What a client that is back had to wait for has been stored by the first attempt.
    let entered = match enter() {
        Err(Nfsstat4::Delay) => enter(),
        entered => entered,
    }?;
    Ok(match entered {
        Entered::Free(client) => {
            at.client = client;
            Entry::Free
        }
        Entered::InTurn(owner) => {
            at.client = Some(owner.client);
            Entry::InTurn(InTurn { shared: shared.clone(), operation: operation.clone(), owner: Some(owner) })
        }
        Entered::Replay(kept) => {
            if let Some((export, handle)) = &kept.file {
                at.current = Some(Place::Object(*export, handle.clone()).into());
            }
            Entry::Replay(kept)
        }
    })
}

/// A status that 4.0 has, for one that it has not (RFC 7530 §13.1; §16.16 has its own for OPEN).
pub(super) fn status(status: Nfsstat4, opnum: Opnum4) -> Nfsstat4 {
    match (status, opnum) {
        (Nfsstat4::WrongType, Opnum4::Open) => Nfsstat4::Symlink,
        (Nfsstat4::WrongType, _) => Nfsstat4::Inval,
        (status, _) => status,
    }
}

impl InTurn {
    /// Ends it with the result as it is sent, and with what has become the current file handle.
    pub(super) fn end(mut self, status: Nfsstat4, result: &[u8], at: &Cursor) {
        let opened = status == Nfsstat4::Ok && matches!(self.operation, Argop4::Open(_));
        let file = match at.current() {
            Ok(Place::Object(export, handle)) if opened => Some((*export, handle.clone())),
            _ => None,
        };
        self.leave(Kept { status, result: Bytes::copy_from_slice(result), file });
    }

    fn leave(&mut self, kept: Kept<FileId>) {
        if let Some(owner) = self.owner.take() {
            self.shared.with_state(|state| state.leave(&owner, &self.operation, kept));
        }
    }
}

impl Drop for InTurn {
    fn drop(&mut self) {
        // A status that is not counted: nobody was told anything.
        self.leave(Kept { status: Nfsstat4::Resource, result: Bytes::new(), file: None });
    }
}
