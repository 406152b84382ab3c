//! [`Left`]: what is held of a file goes with it to another server (RFC 8881 §11.11).

use std::{collections::HashMap, mem, sync::Arc};

use bytes::Bytes;

use super::{
    lock_state,
    opens::{Locked, OpenFile, Opens},
    unreclaimed::Unreclaimed,
};
use crate::{call::Deadline, session::compound::Counter};

/// What was held at a server that does not have the file any more.
#[derive(Debug)]
pub(crate) struct Left {
    /// For what it was open.
    access: Option<u32>,
    locks: HashMap<Bytes, Locked>,
}

impl OpenFile {
    /// The server does not have the file any more: takes what was held there.
    pub fn leave(&self, opens: &Opens) -> Left {
        let mut state = self.state.lock();
        let (open, locks, delegation) = (state.open.take(), mem::take(&mut state.locks), state.delegation.take());
        drop(state);
        if delegation.is_some() {
            opens.delegations.lost(&self.handle);
        }
        Left { access: open.map(|(_, access)| access), locks }
    }

    /// What was held at another server is held at this one, as far as it can be reclaimed. Locks that cannot are lost.
    pub async fn arrive(
        self: &Arc<Self>,
        opens: &Arc<Opens>,
        left: Left,
        deadline: &Deadline,
        unreclaimed: &mut Unreclaimed,
    ) {
        if left.access.is_none() && left.locks.is_empty() {
            return;
        }
        let _alone = self.changing().await;
        for (name, locked) in left.locks {
            // Its operations are counted anew.
            let locked = Locked { stateid: None, counter: Counter::default(), ..locked };
            self.state.lock().locks.insert(name, locked);
        }
        if let Some(access) = left.access
            && let Err(error) = self.reclaim(opens, access, None, deadline).await
        {
            unreclaimed.file(error);
        }
        lock_state::reclaim(opens, self, deadline, unreclaimed).await;
    }
}
