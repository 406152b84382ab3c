//! Recalls: how the server takes back what a client holds of a file (RFC 8881 §10.2, §12.5.5).
//!
//! All kinds of [recallable state](crate::v4::state::recallable) have this in common. It conflicts with some accesses by others, who ask
//! [`State::recall`] first, whatever protocol they come by, and are told to come again. The holder is called back, by way of
//! [`State::poll_recall`]. A holder that does not return the state loses it after a lease ([`State::expire`]), and learns that by its next
//! SEQUENCE. The number of each kind is bounded, and an administrator gets a list.
//!
//! On error nothing has changed, but a recall may have begun.

use std::{
    hash::Hash,
    time::{Duration, Instant},
};

use nfs::v4::*;

use crate::{
    sharing::{conflict::Access, locks::LockTable},
    v4::state::{
        State,
        ids::Other,
        recallable::{Grant, Held, Recallable, RecallableKind},
        stateid::Kind,
    },
};

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Recalls state that conflicts with an access. To be called before a file is used, by this protocol or any other.
    ///
    /// # Errors
    /// DELAY: state of others is in the way, and has been recalled.
    pub fn recall(
        &mut self,
        locks: &mut LockTable<F>,
        file: &F,
        (by, access): (Option<Clientid4>, Access),
        now: Instant,
    ) -> Result<(), Nfsstat4> {
        if !self.marks().may_be_delegated(file) {
            return Ok(());
        }
        let mut in_the_way = false;
        for other in self.stateids.recallables(file) {
            let client = self.stateids.entry(&other).client;
            let conflicts = self.stateids.recallable(&other).is_some_and(|held| held.grant.conflicts(access));
            if Some(client) == by || !conflicts {
                continue;
            }
            if self.clients.is_expired(client, now) && !self.is_busy(client) {
                // §8.4.3: it had its time, and now another client wants the file.
                self.revoke_all(locks, client, Nfsstat4::Expired);
                continue;
            }
            in_the_way = true;
            self.begin_recall(&other, now);
        }
        if in_the_way { Err(Nfsstat4::Delay) } else { Ok(()) }
    }

    /// Grants a client state of a file, unless the file is being changed.
    pub(in crate::v4::state) fn grant_recallable(
        &mut self,
        client: Clientid4,
        file: &F,
        grant: Grant,
    ) -> Option<Stateid4> {
        // The order is what `marks.rs` says.
        let (group, kind) = (self.group_of(client), Kind::Recallable(Recallable { recalled: false, grant }));
        let stateid = self.stateids.insert((client, group), file.clone(), kind);
        if self.marks().may_be_changing(file) {
            self.stateids.remove(&stateid.other);
            return None;
        }
        Some(stateid)
    }

    /// Returns true if the limit of a kind is reached.
    pub(in crate::v4::state) fn is_full_of(&self, kind: RecallableKind) -> bool {
        let max = match kind {
            RecallableKind::Delegation => self.options.delegations_max,
        };
        self.stateids.recallable_count(kind) >= max
    }

    /// The next holder that is to be called.
    pub fn poll_recall(&mut self) -> Option<Held<F>> {
        self.recalls.queue.pop_front()
    }

    /// Returns true while a client holds state that is being recalled.
    pub fn is_recalling(&self, recall: &Held<F>) -> bool {
        let found = self.stateids.resolve(recall.client, Some(&recall.file), &recall.stateid);
        found.is_ok_and(|other| self.stateids.recallable(&other).is_some_and(|held| held.recalled))
    }

    /// Begins to recall, unless that has begun before.
    pub(in crate::v4::state) fn begin_recall(&mut self, other: &Other, now: Instant) {
        let Some(held) = self.stateids.recallable_mut(other) else { return };
        if std::mem::replace(&mut held.recalled, true) {
            return;
        }
        let entry = self.stateids.entry(other);
        let (client, file) = (entry.client, entry.file.clone());
        let contended = &mut self.recalls.contended;
        if contended.len() >= CONTENDED_MAX {
            contended.retain(|_, until| *until > now);
            if contended.len() >= CONTENDED_MAX {
                contended.clear();
            }
        }
        contended.insert(file.clone(), now + CONTENDED);
        // §10.2.1: a client has a lease's time at least.
        self.recalls.deadlines.push_back((now + self.options.lease, *other));
        let stateid = self.stateids.current(other);
        self.recalls.queue.push_back(Held { client, file, stateid });
    }

    /// Revokes what was recalled and not returned within a lease.
    pub(in crate::v4::state) fn revoke_overdue(&mut self, now: Instant) {
        while let Some(&(_, other)) = self.recalls.deadlines.front().filter(|(due, _)| *due <= now) {
            self.recalls.deadlines.pop_front();
            let Some(status) = self.stateids.recallable(&other).map(|held| held.grant.revoked()) else { continue };
            let client = self.stateids.entry(&other).client;
            self.lose_record(client);
            match self.is_legacy(client) {
                // 4.0 can neither be told nor free it: it is as if it had never been. So it takes no note, either.
                true => drop(self.stateids.remove(&other)),
                false => self.stateids.revoke(&other, status),
            }
        }
    }

    /// Returns true if state of a file was recalled lately, so that a new grant would soon be recalled as well.
    pub(in crate::v4::state) fn is_contended(&self, file: &F, now: Instant) -> bool {
        self.recalls.contended.get(file).is_some_and(|until| *until > now)
    }
}

const CONTENDED_MAX: usize = 1 << 16;
/// The time after a recall in which nothing is granted on the file.
const CONTENDED: Duration = Duration::from_secs(30);
