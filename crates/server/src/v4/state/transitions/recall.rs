//! Recalls: the server takes back state that a client holds on a file (RFC 8881 §10.2, §12.5.5).
//!
//! All kinds of [recallable state](crate::v4::state::recallable) have this in common. They conflict with some accesses
//! by others. All protocols call [`State::recall`] before such an access. If a conflicting grant exists, the access
//! fails with DELAY and must be retried. The holder is called back, see [`State::poll_recall`]. A holder that does not
//! return the state within a lease time loses it ([`State::expire`]), and learns that by its next SEQUENCE. The number
//! of grants of each kind is bounded, and an administrator can list them.
//!
//! An error leaves the state unchanged, except that a recall may have begun.

use std::{
    hash::Hash,
    time::{Duration, Instant},
};

use nfs::v4::*;
use vfs::layout::LayoutModes;

use crate::{
    sharing::{conflict::Access, locks::LockTable},
    v4::state::{
        State,
        ids::{Other, ReferringCall},
        recallable::{Grant, Held, Recallable, RecallableKind},
        stateid::Kind,
    },
};

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Recalls state that conflicts with an access. All protocols must call this before they use a file.
    ///
    /// # Errors
    /// DELAY if conflicting state of other clients exists. Its recall has begun.
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
        let mut conflict = false;
        for other in self.stateids.recallables(file) {
            let client = self.stateids.entry(&other).client;
            let conflicts = self.stateids.recallable(&other).is_some_and(|held| held.grant.conflicts(access));
            if Some(client) == by || !conflicts {
                continue;
            }
            if self.clients.is_expired(client, now) && !self.is_busy(client) {
                // §8.4.3: the lease has expired, and another client wants the file.
                self.revoke_all(locks, client, Nfsstat4::Expired);
                continue;
            }
            conflict = true;
            self.begin_recall(&other, now);
        }
        if access == Access::Truncate && self.layouts.is_fencing(file) {
            conflict = true;
        }
        match (access, conflict) {
            (Access::Truncate, true) => self.layouts.expect_truncation(file, now),
            (Access::Truncate, false) => self.layouts.begin_truncation(file),
            _ => {}
        }
        if conflict { Err(Nfsstat4::Delay) } else { Ok(()) }
    }

    /// Grants state on a file to a client. `granted_by` is the request that asked for it. Returns `None` if the file is being changed.
    pub(in crate::v4::state) fn grant_recallable(
        &mut self,
        client: Clientid4,
        file: &F,
        (grant, granted_by): (Grant, Option<ReferringCall>),
    ) -> Option<Stateid4> {
        // `marks.rs` defines this order.
        let kind = Kind::Recallable(Recallable { due: None, granted_by, grant });
        let group = self.group_of(client);
        let stateid = self.stateids.insert((client, group), file.clone(), kind);
        if self.marks().may_be_changing(file) {
            self.stateids.remove(&stateid.other);
            return None;
        }
        Some(stateid)
    }

    /// Returns `true` if the limit of a kind is reached.
    pub(in crate::v4::state) fn is_full_of(&self, kind: RecallableKind) -> bool {
        self.stateids.recallable_count(kind) >= self.recallables_max(kind)
    }

    /// Returns the maximum number of grants of a kind.
    pub(in crate::v4::state) fn recallables_max(&self, kind: RecallableKind) -> usize {
        match kind {
            RecallableKind::Delegation => self.options.delegations_max,
            RecallableKind::Layout(_) => self.options.layouts_max,
        }
    }

    /// Returns the next holder to call.
    pub fn poll_recall(&mut self) -> Option<Held<F>> {
        self.recalls.queue.pop_front()
    }

    /// Returns `true` while a client holds state that is being recalled.
    pub fn is_recalling(&self, recall: &Held<F>) -> bool {
        self.stateids.recallable(&recall.stateid.other).is_some_and(Recallable::is_recalled)
    }

    /// Begins a recall, unless it has begun before.
    pub(in crate::v4::state) fn begin_recall(&mut self, other: &Other, now: Instant) {
        let due = now + self.options.lease;
        let Some(held) = self.stateids.recallable_mut(other) else { return };
        if let Grant::Layout(_) = held.grant {
            // Only a truncation conflicts with layouts.
            return self.begin_layout_recall(other, (LayoutModes::WRITE, false), now);
        }
        if held.due.is_some() {
            return;
        }
        held.due = Some(due);
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
        // §10.2.1: a client has at least one lease time.
        self.recalls.deadlines.push_back((due, *other));
        let stateid = self.stateids.current(other);
        self.recalls.queue.push_back(Held { client, file, stateid });
    }

    /// Revokes state that was recalled and not returned within a lease time.
    pub(in crate::v4::state) fn revoke_overdue(&mut self, now: Instant) {
        while let Some(&(_, other)) = self.recalls.deadlines.front().filter(|(due, _)| *due <= now) {
            self.recalls.deadlines.pop_front();
            let Some(held) = self.stateids.recallable(&other) else { continue };
            if held.due.is_none_or(|due| due > now) {
                // The recall of layouts has ended, and this is the deadline of an earlier one.
                continue;
            }
            if let Grant::Layout(layout) = &held.grant {
                let modes = layout.recalling;
                self.fence_layouts(&other, modes);
                continue;
            }
            let client = self.stateids.entry(&other).client;
            self.forfeit_record(client);
            match self.is_legacy(client) {
                // A 4.0 client cannot be told and cannot free the stateid, so it is removed at once. The client does
                // not acknowledge the loss.
                true => drop(self.stateids.remove(&other)),
                false => self.stateids.revoke(&other, Nfsstat4::DelegRevoked),
            }
        }
    }

    /// Returns `true` if state on a file was recalled recently. A new grant would soon be recalled too.
    pub(in crate::v4::state) fn is_contended(&self, file: &F, now: Instant) -> bool {
        self.recalls.contended.get(file).is_some_and(|until| *until > now)
    }
}

pub(in crate::v4::state) const CONTENDED_MAX: usize = 1 << 16;
/// The time after a recall in which nothing is granted on the file.
const CONTENDED: Duration = Duration::from_secs(30);
