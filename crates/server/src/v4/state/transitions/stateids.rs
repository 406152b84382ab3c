//! The use and the end of stateids: the check for READ and WRITE, FREE_STATEID, TEST_STATEID, revocation, and the limits of
//! their number.
//!
//! Read RFC 8881 §8.2, §8.4.3, §9.1.2, §18.38 and §18.48.
//!
//! An error leaves the state unchanged.

use std::{hash::Hash, time::Instant};

use nfs::v4::*;
use vfs::layout::LayoutModes;

use super::{
    lock::lock_owner,
    open::{open_owner, share},
    reduce::HOST_PART,
};
use crate::{
    sharing::{
        conflict::Access,
        locks::{Holder, LockClient, LockTable},
    },
    v4::state::{
        Event, State, StateOptions,
        hosts::Group,
        ids::Other,
        recallable::{Grant, Recallable},
        stateid::Kind,
    },
};

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Executes FREE_STATEID (§18.38). Freeing a revoked stateid acknowledges the loss of its state.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID; LOCKS_HELD while the stateid has state.
    pub fn free_stateid(
        &mut self,
        locks: &LockTable<F>,
        client: Clientid4,
        stateid: &Stateid4,
    ) -> Result<(), Nfsstat4> {
        match self.stateids.resolve(client, None, stateid) {
            Ok(other) => {
                let entry = self.stateids.entry(&other);
                let Kind::Lock { owner, .. } = &entry.kind else { return Err(Nfsstat4::LocksHeld) };
                if locks.holds(&entry.file, &lock_owner(client, owner)) {
                    return Err(Nfsstat4::LocksHeld);
                }
            }
            Err(Nfsstat4::Expired | Nfsstat4::AdminRevoked | Nfsstat4::DelegRevoked) => {}
            Err(status) => return Err(status),
        }
        self.stateids.remove(&stateid.other);
        if !self.stateids.has_revoked(client) {
            self.regain_record(client);
        }
        Ok(())
    }

    /// Executes TEST_STATEID (§18.48). Returns the status of each stateid.
    pub fn test_stateid(&self, client: Clientid4, args: &TestStateidArgs) -> Vec<Nfsstat4> {
        let test = |stateid| self.stateids.resolve(client, None, stateid).err().unwrap_or(Nfsstat4::Ok);
        args.stateids.iter().map(test).collect()
    }

    /// Checks that a stateid permits READ or WRITE and similar operations (§9.1.2, §9.1.4). The caller has already
    /// replaced the special current stateid.
    ///
    /// # Errors
    /// Those of `Stateids::resolve`; OPENMODE; LOCKED if a share reservation denies the access; GRACE; DELAY while a
    /// conflicting delegation is recalled.
    pub fn check_io(
        &mut self,
        locks: &mut LockTable<F>,
        client: Clientid4,
        file: &F,
        stateid: &Stateid4,
        write: bool,
        now: Instant,
    ) -> Result<(), Nfsstat4> {
        if *stateid == Stateid4::ANONYMOUS || *stateid == Stateid4::READ_BYPASS {
            if locks.in_grace() {
                return Err(Nfsstat4::Grace);
            }
            let share = share(if write { OPEN4_SHARE_ACCESS_WRITE } else { OPEN4_SHARE_ACCESS_READ }, 0);
            if locks.denies(file, None, share) {
                return Err(Nfsstat4::Locked);
            }
            let access = if write { Access::Write } else { Access::Read };
            return self.recall(locks, file, (Some(client), access), now);
        }
        let other = self.stateids.resolve(client, Some(file), stateid)?;
        let (access, open) = match &self.stateids.entry(&other).kind {
            Kind::Open(open) => (open.access, Some(open)),
            Kind::Lock { open, .. } => (self.stateids.open(open).access, Some(self.stateids.open(open))),
            // A stateid of layouts is valid at data servers only.
            Kind::Recallable(Recallable { grant: Grant::Layout(_), .. }) => return Err(Nfsstat4::BadStateid),
            Kind::Recallable(held) if held.grant.may_write() => (OPEN4_SHARE_ACCESS_BOTH, None),
            Kind::Recallable(_) => (OPEN4_SHARE_ACCESS_READ, None),
        };
        let (may_read, may_write) = (access & OPEN4_SHARE_ACCESS_READ != 0, access & OPEN4_SHARE_ACCESS_WRITE != 0);
        if write && !may_write {
            return Err(Nfsstat4::OpenMode);
        }
        // §18.22.3: a client that opened the file only to write may read, because it may need that to write part of a
        // page. Another open can deny that at any time, so each such READ is checked here.
        let by = open.filter(|_| !write && !may_read).map(|open| open_owner(client, &open.owner));
        //= rfc8881-9.1.2-3
        if by.is_some_and(|by| locks.denies(file, Some(&by), share(OPEN4_SHARE_ACCESS_READ, 0))) {
            return Err(Nfsstat4::Locked);
        }
        if let Some(client) = self.clients.find(client).filter(|client| client.legacy.is_none()) {
            self.stateids.cache_use(&other, (may_read, may_write), client.shard.uses());
        }
        Ok(())
    }

    /// Revokes all state of a client with `status`: EXPIRED or ADMIN_REVOKED. The client learns that when it uses any
    /// of it.
    pub fn revoke_all(&mut self, locks: &mut LockTable<F>, client: Clientid4, status: Nfsstat4) {
        for other in self.stateids.of_client(client) {
            self.fence_layouts(&other, LayoutModes::ALL);
            self.stateids.revoke(&other, status);
        }
        locks.release_client(LockClient::V4(client.0));
        self.forfeit_record(client);
        self.events.push_back(Event::Revoked(client));
    }

    /// Revokes all state of the holder of a conflicting lock if its lease has expired (§8.4.3). Returns `false` if the
    /// lease is valid. A client's own state is never revoked: the client is active.
    pub(super) fn revoke_if_expired(
        &mut self,
        locks: &mut LockTable<F>,
        holder: &Holder,
        by: Clientid4,
        now: Instant,
    ) -> bool {
        let LockClient::V4(id) = holder.owner.client else { return false };
        let client = Clientid4(id);
        let expired = client != by && self.clients.is_expired(client, now) && !self.is_busy(client);
        if expired {
            self.revoke_all(locks, client, Nfsstat4::Expired);
        }
        expired
    }

    /// Checks that a client may have one more stateid, unless it already has this one (`had`).
    ///
    /// # Errors
    /// DELAY if the limit is reached.
    pub(super) fn check_stateid_limit(&self, client: Clientid4, had: Option<Other>) -> Result<(), Nfsstat4> {
        if had.is_none() && self.is_at_stateid_limit(client) { Err(Nfsstat4::Delay) } else { Ok(()) }
    }

    /// Returns `true` if a client has reached its limit of stateids. If half of all stateids are in use, each client
    /// still has an equal share of the other half, which no other client can use.
    pub(in crate::v4::state) fn is_at_stateid_limit(&self, client: Clientid4) -> bool {
        let &StateOptions { client_stateids_max, stateids_max, clients_max, .. } = &self.options;
        let (half, total) = (stateids_max / 2, self.stateids.total());
        // In the first half, all clients of a host together get only a part of what the other hosts leave. If that half is in
        // use, the others leave at most as much as the host has, and `is_fair` is `false`.
        let own = self.stateids.of_group(self.group_of(client));
        let is_fair = own < half.saturating_sub(total - own) / HOST_PART;
        let max = if is_fair { client_stateids_max } else { half / clients_max };
        self.stateids.count(client) >= max
    }

    /// Returns the group of a client.
    pub(in crate::v4::state) fn group_of(&self, client: Clientid4) -> Group {
        self.clients.find(client).map_or(Group::NotAdmitted, |client| client.group)
    }
}
