//! What an administrator sees and does: the state of one client after the other, and the end of one of them.

use std::hash::Hash;

use nfs::v4::Clientid4;

use crate::v4::state::{State, client::Client, ids::Other, recallable::Recallable, session::Session};

/// What became of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// There is no such client any more.
    Gone,
    /// Requests of its are still being executed. Nothing of its is begun any more: ask again.
    Busy,
    /// There was none.
    Unknown,
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Ends a client, whatever its lease: as if it had expired, but that it is not waited until somebody wants what it has. It
    /// hears BADSESSION or STALE_CLIENTID, makes itself known anew, and finds that it has lost all and can reclaim nothing. What is being
    /// executed on its behalf ends first, so that nobody gets what is still in use; of 4.0, which has no slots, that is not known.
    pub fn evict(&mut self, id: Clientid4) -> Evicted {
        let Some(client) = self.clients.find_mut(id) else { return Evicted::Unknown };
        client.evicted = true;
        if client.is_busy() {
            return Evicted::Busy;
        }
        self.end_client(id);
        Evicted::Gone
    }

    /// The sessions of a client.
    pub fn sessions_of(&self, id: Clientid4) -> impl Iterator<Item = &Session> {
        self.clients.find(id).into_iter().flat_map(Client::sessions)
    }

    /// The recallable state of a client, in pages: those among its next `max` stateids behind `after`, and where to go on.
    pub fn recallables_of(
        &self,
        id: Clientid4,
        after: Option<Other>,
        max: usize,
    ) -> (Vec<(F, Recallable)>, Option<Other>) {
        self.stateids.recallables_of(id, after, max)
    }
}
