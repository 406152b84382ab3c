//! [`HeldState`]: the open and the locks of a file that moves with its file system to another server (RFC 8881 §11.11).

use std::{mem, sync::Arc};

use bytes::Bytes;
use entropy::HashMap;

use super::{
    lock_state,
    opens::{OpenFile, Opens, OwnerLocks},
    unreclaimed::Unreclaimed,
};
use crate::{call::Deadline, model::Caller, session::compound::Counter};

/// The open and the locks of a file at the server from which its file system has moved.
#[derive(Debug)]
pub(crate) struct HeldState {
    /// The callers that have it open, and their access.
    opens: Vec<(Option<Caller>, u32)>,
    locks: HashMap<Bytes, OwnerLocks>,
}

impl HeldState {
    /// Marks the state as lost, because it cannot be reclaimed. The file is opened again when it is used.
    pub fn lose(&mut self, unreclaimed: &mut Unreclaimed) {
        self.opens.clear();
        for locked in self.locks.values_mut().filter(|locked| !locked.lost && !locked.ranges.is_empty()) {
            locked.lost = true;
            unreclaimed.lock(None);
        }
    }
}

impl OpenFile {
    /// Removes the file's open and locks at the former server from the table.
    pub fn take_held(&self, opens: &Opens) -> HeldState {
        let mut state = self.state.lock();
        let (opened, locks, delegation) =
            (mem::take(&mut state.opens), mem::take(&mut state.locks), state.delegation.take());
        drop(state);
        if delegation.is_some() {
            opens.delegations.lost(&self.handle);
        }
        HeldState { opens: opened.into_iter().map(|open| (open.caller, open.access)).collect(), locks }
    }

    /// Reclaims at this server the open and locks from another one. Locks that cannot be reclaimed are lost.
    pub async fn reclaim_held(
        self: &Arc<Self>,
        opens: &Arc<Opens>,
        held: HeldState,
        deadline: &Deadline,
        unreclaimed: &mut Unreclaimed,
    ) {
        if held.opens.is_empty() && held.locks.is_empty() {
            return;
        }
        let _changes = self.lock_changes().await;
        for (name, locked) in held.locks {
            // The seqid of the owner starts again at the new server.
            let locked = OwnerLocks { stateid: None, counter: Counter::default(), ..locked };
            self.state.lock().locks.insert(name, locked);
        }
        for (caller, access) in held.opens {
            if let Err(error) = self.reclaim(opens, (caller.as_ref(), access), None, deadline).await {
                unreclaimed.file(error);
            }
        }
        lock_state::reclaim(opens, self, deadline, unreclaimed).await;
    }
}
