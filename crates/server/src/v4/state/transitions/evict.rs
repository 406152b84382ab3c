//! The administrator's operations: listing the state of clients, and evicting a client.

use std::hash::Hash;

use nfs::v4::Clientid4;

use crate::v4::state::{State, client::Client, ids::Other, recallable::Recallable, session::Session};

/// The outcome of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The client was removed.
    Gone,
    /// Requests of the client are still being executed, and no new one begins: retry.
    Busy,
    /// There was no such client.
    Unknown,
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Evicts a client, whatever its lease: all its state is revoked at once. The client gets BADSESSION or
    /// STALE_CLIENTID, introduces itself again, finds that it has lost all state, and cannot reclaim. Requests in
    /// progress end first, so that nobody gets state that is still in use. Of 4.0, which has no slots, requests in
    /// progress are not known.
    pub fn evict(&mut self, id: Clientid4) -> Evicted {
        let Some(client) = self.clients.find_mut(id) else { return Evicted::Unknown };
        client.evicted = true;
        if client.is_busy() {
            return Evicted::Busy;
        }
        self.end_client(id);
        Evicted::Gone
    }

    /// Returns the sessions of a client.
    pub fn sessions_of(&self, id: Clientid4) -> impl Iterator<Item = &Session> {
        self.clients.find(id).into_iter().flat_map(Client::sessions)
    }

    /// Returns the recallable state among the next `max` stateids of a client after `after`, and the position to
    /// continue from.
    pub fn recallables_of(
        &self,
        id: Clientid4,
        after: Option<Other>,
        max: usize,
    ) -> (Vec<(F, Recallable)>, Option<Other>) {
        self.stateids.recallables_of(id, after, max)
    }
}
