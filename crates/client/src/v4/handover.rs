//! [`HeldState`]: the open and the locks of a file whose file system moves to another server (RFC 8881 §11.11).

use std::{mem, sync::Arc};

use bytes::Bytes;
use entropy::HashMap;

use super::{
    lock_state,
    opens::{Locked, OpenFile, Opens},
    unreclaimed::Unreclaimed,
};
use crate::{call::Deadline, session::compound::Counter};

/// The open and the locks that were held at a server that does not have the file any more.
#[derive(Debug)]
pub(crate) struct HeldState {
    /// The access for which it was open.
    access: Option<u32>,
    locks: HashMap<Bytes, Locked>,
}

impl OpenFile {
    /// Takes what was held of the file at a server that does not have it any more.
    pub fn take_held(&self, opens: &Opens) -> HeldState {
        let mut state = self.state.lock();
        let (open, locks, delegation) = (state.open.take(), mem::take(&mut state.locks), state.delegation.take());
        drop(state);
        if delegation.is_some() {
            opens.delegations.lost(&self.handle);
        }
        HeldState { access: open.map(|(_, access)| access), locks }
    }

    /// Reclaims at this server what was held at another. Locks that cannot be reclaimed are lost.
    pub async fn reclaim_held(
        self: &Arc<Self>,
        opens: &Arc<Opens>,
        held: HeldState,
        deadline: &Deadline,
        unreclaimed: &mut Unreclaimed,
    ) {
        if held.access.is_none() && held.locks.is_empty() {
            return;
        }
        let _alone = self.changing().await;
        for (name, locked) in held.locks {
            // Its operations are counted anew.
            let locked = Locked { stateid: None, counter: Counter::default(), ..locked };
            self.state.lock().locks.insert(name, locked);
        }
        if let Some(access) = held.access
            && let Err(error) = self.reclaim(opens, access, None, deadline).await
        {
            unreclaimed.file(error);
        }
        lock_state::reclaim(opens, self, deadline, unreclaimed).await;
    }
}
