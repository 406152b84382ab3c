//! Opens and byte-range locks: OPEN, OPEN_DOWNGRADE, CLOSE, LOCK, LOCKT, LOCKU, FREE_STATEID, TEST_STATEID, and the
//! check of stateids for READ and WRITE.
//!
//! Read RFC 8881 §9 (opens, share reservations, locks) and §18.2, §18.10–18.12, §18.16, §18.18, §18.38, §18.48. The
//! [`LockTable`], which all protocols share, decides what conflicts. This file assigns stateids to owners.
//!
//! An error leaves the state unchanged.

use std::{hash::Hash, time::Instant};

use bytes::Bytes;
use nfs::v4::*;
use smallvec::SmallVec;

use super::reduce::HOST_PART;
use crate::{
    sharing::{
        conflict::Access,
        locks::{Holder, LockClient, LockError, LockKind, LockTable, Locked, Owner, Range, Request, Share},
    },
    v4::state::{
        Event, State, StateOptions,
        client::Client,
        hosts::Group,
        ids::Other,
        owner::{OwnerKind, OwnerName},
        stateid::{Kind, Open},
    },
};

/// The right by which a client opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A new open (CLAIM_NULL, CLAIM_FH).
    New,
    /// The client had the file open before the server's restart, with this delegation (CLAIM_PREVIOUS).
    Reclaim(OpenDelegationType4),
    /// The client has this delegation (CLAIM_DELEGATE_CUR, CLAIM_DELEG_CUR_FH).
    Delegated(Stateid4),
}

/// The part of OPEN that is known before the file.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// The client.
    pub client: Clientid4,
    /// The open-owner.
    pub owner: Bytes,
    /// The `OPEN4_SHARE_ACCESS_` bits, without those about delegations.
    pub access: u32,
    /// The `OPEN4_SHARE_DENY_` bits.
    pub deny: u32,
    /// The `OPEN4_SHARE_ACCESS_WANT_` bits.
    pub want: u32,
    /// The claim.
    pub claim: Claim,
    /// `true` if this server can send recalls.
    pub can_recall: bool,
}

/// An OPEN that [`State::plan_open`] has accepted and [`State::commit_open`] completes.
///
/// A plan reserves nothing. If the file cannot be found or created, the plan is dropped, and the client's state is
/// unchanged. Therefore the commit repeats the checks whose outcome can have changed.
#[derive(Debug)]
#[must_use = "a plan grants nothing until it is committed"]
pub struct OpenPlan {
    request: OpenRequest,
    unstored_owner: Option<Bytes>,
    confirm: bool,
}

impl OpenPlan {
    /// Returns the request.
    pub fn request(&self) -> &OpenRequest {
        &self.request
    }

    /// Returns the client's owner name, if it must be stored before the client gets state. [`State::client_stored`]
    /// takes the outcome.
    pub fn unstored_owner(&self) -> Option<&Bytes> {
        self.unstored_owner.as_ref()
    }

    /// Returns `true` if a client of 4.0 must confirm the open.
    pub(in crate::v4::state) fn confirms(&self) -> bool {
        self.confirm
    }

    /// Returns `true` if a delegation may come with the open. The file's change attribute must be known for that.
    pub fn is_delegable(&self) -> bool {
        let OpenRequest { want, claim, can_recall, .. } = self.request;
        let is_wanted = match claim {
            Claim::New => want & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK != OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
            Claim::Reclaim(_) => true,
            Claim::Delegated(_) => false,
        };
        // RFC 7530 §16.16.5: the server may have to undo an unconfirmed open, so it grants no delegation with it.
        can_recall && is_wanted && !self.confirm
    }
}

/// A file that was found or created for an OPEN.
#[derive(Clone, Copy, Debug)]
pub struct OpenTarget<'a, F> {
    /// The file.
    pub file: &'a F,
    /// The change attribute, if a delegation may come with the open.
    pub change: Option<u64>,
    /// `true` if the file is truncated after the commit. [`State::delegate_open`] then grants the delegation, with the
    /// change attribute after the truncation.
    pub truncates: bool,
}

/// The result of an OPEN.
#[derive(Clone, Debug, PartialEq)]
pub struct Opened {
    /// The open.
    pub stateid: Stateid4,
    /// `true` if a client of 4.0 must confirm it.
    pub confirm: bool,
    /// The delegation that comes with it, or the reason for which none does.
    pub delegation: OpenDelegation4,
}

/// The reason for which LOCK or LOCKT fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockFailure {
    /// Another lock conflicts.
    Denied(LockDenied4),
    /// Any other error.
    Status(Nfsstat4),
}

impl From<Nfsstat4> for LockFailure {
    fn from(status: Nfsstat4) -> Self {
        Self::Status(status)
    }
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Executes the first half of OPEN (§18.16): rejects what can be rejected before the file is known, and therefore
    /// before it is created. If the client is not stored yet, this marks its record as pending. Until the record is
    /// written, each plan asks for it again.
    ///
    /// # Errors
    /// INVAL, GRACE, NO_GRACE, RECLAIM_BAD; DELAY if the client has reached its limit of stateids.
    pub fn plan_open(
        &mut self,
        locks: &LockTable<F>,
        request: OpenRequest,
        now: Instant,
    ) -> Result<OpenPlan, Nfsstat4> {
        let OpenRequest { client, access, deny, claim, .. } = request;
        let reclaim = matches!(claim, Claim::Reclaim(_));
        check_share(access, deny)?;
        self.check_reclaim(client, reclaim)?;
        if locks.in_grace() && !reclaim {
            return Err(Nfsstat4::Grace);
        }
        self.check_stateid_limit(client, None)?;
        let unstored_owner = self.unstored_owner(client, now);
        // RFC 7530 §9.1.11: a reclaimed open needs no confirmation. Nobody else can have used the owner's name since
        // the restart.
        let confirm = self.is_legacy(client) && !reclaim && !self.owners.is_confirmed(&open_owner_name(&request));
        Ok(OpenPlan { request, unstored_owner, confirm })
    }

    /// Executes the second half of OPEN (§18.16), after the file was found or created: grants the share reservation,
    /// and a delegation if possible. If the owner already has the file open, it gets the same stateid with the union of
    /// both opens.
    ///
    /// # Errors Those of `Stateids::resolve` for the delegation's stateid; SHARE_DENIED, GRACE, NO_GRACE; DELAY if
    /// there are too many opens, or if conflicting delegations are being recalled.
    pub fn commit_open(
        &mut self,
        locks: &mut LockTable<F>,
        plan: &OpenPlan,
        target: OpenTarget<'_, F>,
        now: Instant,
    ) -> Result<Opened, Nfsstat4> {
        let request = &plan.request;
        if let Claim::Delegated(stateid) = &request.claim {
            self.resolve_delegation(request.client, target.file, stateid)?;
        }
        let stateid = self.share_file(locks, request, target.file, now)?;
        if matches!(request.claim, Claim::Reclaim(_)) && self.is_legacy(request.client) {
            self.owners.confirm(&open_owner_name(request));
        }
        let delegation = match target.truncates {
            true => OpenDelegation4::None,
            false => self.delegate_open(locks, plan, (target.file, target.change), now),
        };
        Ok(Opened { stateid, confirm: plan.confirm, delegation })
    }

    /// Grants the client its share reservation on a file.
    fn share_file(
        &mut self,
        locks: &mut LockTable<F>,
        request: &OpenRequest,
        file: &F,
        now: Instant,
    ) -> Result<Stateid4, Nfsstat4> {
        let OpenRequest { client, owner, access, deny, claim, .. } = request;
        let reclaim = matches!(claim, Claim::Reclaim(_));
        self.check_reclaim(*client, reclaim)?;
        if !reclaim {
            let harmless = access & OPEN4_SHARE_ACCESS_WRITE == 0 && deny & OPEN4_SHARE_DENY_READ == 0;
            let access = if harmless { Access::Read } else { Access::Write };
            self.recall(locks, file, (Some(*client), access), now)?;
            if *claim == Claim::New {
                self.recall_own_delegation(*client, file, now)?;
            }
        }
        let had = self.stateids.find_open(*client, owner, file);
        self.check_stateid_limit(*client, had)?;
        let mut open = match had {
            Some(other) => {
                let open = self.stateids.open(&other).clone();
                // §9.7: a deny value also applies to the same owner.
                if !reclaim && (open.deny & access != 0 || open.access & deny != 0) {
                    return Err(Nfsstat4::ShareDenied);
                }
                open
            }
            None => {
                let owner = Bytes::copy_from_slice(owner);
                Open { owner, access: 0, deny: 0, accesses: 0, denials: 0, locks: Vec::new() }
            }
        };
        open.access |= access;
        open.deny |= deny;
        open.accesses |= 1 << access;
        open.denials |= 1 << deny;
        let (owner, share) = (open_owner(*client, owner), share(open.access, open.deny));
        while let Err(error) = locks.share(file, &owner, share, reclaim) {
            let LockError::Denied(holder) = error else { return Err(status(&error)) };
            if !self.revoke_if_expired(locks, &holder, *client, now) {
                return Err(Nfsstat4::ShareDenied);
            }
        }
        Ok(match had {
            Some(other) => {
                *self.stateids.open_mut(&other) = open;
                self.stateids.change(&other)
            }
            None => self.stateids.insert((*client, self.group_of(*client)), file.clone(), Kind::Open(open)),
        })
    }

    /// Executes OPEN_DOWNGRADE (§18.18).
    ///
    /// # Errors
    /// Those of `Stateids::resolve`; INVAL if no combination of the owner's opens has the requested access and deny.
    pub fn open_downgrade(
        &mut self,
        locks: &mut LockTable<F>,
        client: Clientid4,
        file: &F,
        args: &OpenDowngradeArgs,
    ) -> Result<Stateid4, Nfsstat4> {
        let access = args.share_access & !OPEN4_SHARE_ACCESS_WANT_DELEG_MASK;
        check_share(access, args.share_deny)?;
        let other = self.resolve_open(client, file, &args.open_stateid)?;
        let open = self.stateids.open(&other);
        if !is_union(open.accesses, access) || !is_union(open.denials, args.share_deny) {
            return Err(Nfsstat4::Inval);
        }
        let mut open = open.clone();
        (open.access, open.deny) = (access, args.share_deny);
        open.accesses &= subsets(access);
        open.denials &= subsets(args.share_deny);
        // A downgrade only removes rights, so it can only conflict with the grace period, in which it counts as a
        // reclaim.
        let (owner, reclaim) = (open_owner(client, &open.owner), locks.in_grace());
        locks.share(file, &owner, share(open.access, open.deny), reclaim).map_err(|error| status(&error))?;
        *self.stateids.open_mut(&other) = open;
        Ok(self.stateids.change(&other))
    }

    /// Executes CLOSE (§18.2). Locks under the open are released.
    ///
    /// # Errors
    /// Those of `Stateids::resolve`.
    pub fn close(
        &mut self,
        locks: &mut LockTable<F>,
        client: Clientid4,
        file: &F,
        stateid: &Stateid4,
    ) -> Result<Stateid4, Nfsstat4> {
        let closed = self.resolve_open(client, file, stateid)?;
        //= rfc8881-9.8-2
        self.close_open(locks, client, &closed);
        // §18.2.4: the returned stateid is never valid.
        //= rfc8881-18.2.3-1
        Ok(Stateid4::INVALID)
    }

    /// Closes an open and releases the locks under it.
    ///
    /// # Panics
    /// Panics if there is no such open.
    pub(in crate::v4::state) fn close_open(&mut self, locks: &mut LockTable<F>, client: Clientid4, closed: &Other) {
        let Open { owner, locks: under, .. } = self.stateids.open(closed).clone();
        for lock in under {
            self.release_locks(locks, &lock);
        }
        let entry = self.stateids.remove(closed).expect("the open must exist");
        locks.unshare(&entry.file, &open_owner(client, &owner));
    }

    /// Executes LOCK (§18.10). A client that is denied a lock and wants to wait is notified when the lock is available,
    /// if it has a callback path.
    ///
    /// # Errors
    /// DENIED; those of `Stateids::resolve`; OPENMODE, INVAL, GRACE, NO_GRACE; DELAY if there are too many locks.
    pub fn lock(
        &mut self,
        locks: &mut LockTable<F>,
        client: Clientid4,
        file: &F,
        args: &LockArgs,
        now: Instant,
    ) -> Result<Stateid4, LockFailure> {
        let range = range(args.offset, args.length)?;
        let (open, owner, had) = match &args.locker {
            Locker4::New { open_stateid, lock_owner, .. } => {
                let open = self.resolve_open(client, file, open_stateid)?;
                let owner = lock_owner.owner.0.clone();
                let had = self.stateids.find_lock(&open, &owner);
                (open, owner, had)
            }
            Locker4::Exist { lock_stateid, .. } => {
                let had = self.stateids.resolve(client, Some(file), lock_stateid)?;
                let Kind::Lock { owner, open } = &self.stateids.entry(&had).kind else {
                    return Err(Nfsstat4::BadStateid.into());
                };
                (*open, owner.clone(), Some(had))
            }
        };
        self.check_reclaim(client, args.reclaim)?;
        self.check_stateid_limit(client, had)?;
        let needed = if args.locktype.is_exclusive() { OPEN4_SHARE_ACCESS_WRITE } else { OPEN4_SHARE_ACCESS_READ };
        if self.stateids.open(&open).access & needed == 0 {
            return Err(Nfsstat4::OpenMode.into());
        }
        let request = Request { range, kind: kind(args.locktype), wait: false, reclaim: args.reclaim };
        loop {
            match locks.lock(file, &lock_owner(client, &owner), &request) {
                Ok(Locked::Granted) => break,
                Ok(Locked::Waiting(_)) => unreachable!("a request without `wait` must not wait"),
                Err(LockError::Denied(holder)) if self.revoke_if_expired(locks, &holder, client, now) => {}
                Err(LockError::Denied(holder)) => {
                    if args.locktype.waits() && !self.is_legacy(client) && self.can_be_called(client) {
                        // §9.6: notification is optional. If too many clients wait, the client must poll.
                        locks.watch(file, &lock_owner(client, &owner), range, request.kind, now);
                    }
                    return Err(LockFailure::Denied(denied(client, &holder)));
                }
                Err(error) => return Err(status(&error).into()),
            }
        }
        Ok(match had {
            Some(other) => self.stateids.change(&other),
            None => {
                let owner = Bytes::copy_from_slice(&owner);
                self.stateids.insert((client, self.group_of(client)), file.clone(), Kind::Lock { owner, open })
            }
        })
    }

    /// Executes LOCKT (§18.11). The owner belongs to the client of the session.
    ///
    /// # Errors
    /// DENIED, INVAL, GRACE.
    pub fn lockt(
        &self,
        locks: &LockTable<F>,
        client: Clientid4,
        file: &F,
        args: &LockTArgs,
    ) -> Result<(), LockFailure> {
        let range = range(args.offset, args.length)?;
        if locks.in_grace() {
            return Err(Nfsstat4::Grace.into());
        }
        //= rfc8881-18.11.3-1 rfc8881-18.11.3-2
        match locks.test(file, &lock_owner(client, &args.owner.owner.0), range, kind(args.locktype)) {
            Some(holder) => Err(LockFailure::Denied(denied(client, &holder))),
            None => Ok(()),
        }
    }

    /// Executes LOCKU (§18.12).
    ///
    /// # Errors
    /// Those of `Stateids::resolve`; INVAL; DELAY if the owner would have too many ranges.
    pub fn locku(
        &mut self,
        locks: &mut LockTable<F>,
        client: Clientid4,
        file: &F,
        args: &LockUArgs,
    ) -> Result<Stateid4, Nfsstat4> {
        let range = range(args.offset, args.length)?;
        //= rfc8881-18.12.3-1 rfc8881-18.12.3-2
        let other = self.stateids.resolve(client, Some(file), &args.lock_stateid)?;
        let Kind::Lock { owner, .. } = &self.stateids.entry(&other).kind else { return Err(Nfsstat4::BadStateid) };
        //= rfc8881-9.4-1
        locks.unlock(file, &lock_owner(client, owner), range).map_err(|error| status(&error))?;
        Ok(self.stateids.change(&other))
    }

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
            let share = Share { read: !write, write, deny_read: false, deny_write: false };
            if locks.denies(file, share) {
                return Err(Nfsstat4::Locked);
            }
            let access = if write { Access::Write } else { Access::Read };
            return self.recall(locks, file, (Some(client), access), now);
        }
        let other = self.stateids.resolve(client, Some(file), stateid)?;
        let may_write = match &self.stateids.entry(&other).kind {
            Kind::Open(open) => open.access & OPEN4_SHARE_ACCESS_WRITE != 0,
            Kind::Lock { open, .. } => self.stateids.open(open).access & OPEN4_SHARE_ACCESS_WRITE != 0,
            Kind::Recallable(held) => held.grant.may_write(),
        };
        // §18.22.3: a client that opened the file only to write may read, because it may need that to write part of a
        // page.
        if write && !may_write {
            return Err(Nfsstat4::OpenMode);
        }
        if let Some(client) = self.clients.find(client).filter(|client| client.legacy.is_none()) {
            self.stateids.cache_use(&other, may_write, client.shard.uses());
        }
        Ok(())
    }

    /// Revokes all state of a client with `status`: EXPIRED or ADMIN_REVOKED. The client learns that when it uses any
    /// of it.
    pub fn revoke_all(&mut self, locks: &mut LockTable<F>, client: Clientid4, status: Nfsstat4) {
        for other in self.stateids.of_client(client) {
            self.stateids.revoke(&other, status);
        }
        locks.release_client(LockClient::V4(client.0));
        self.forfeit_record(client);
        self.events.push_back(Event::Revoked(client));
    }

    /// Revokes all state of the holder of a conflicting lock if its lease has expired (§8.4.3). Returns `false` if the
    /// lease is valid. A client's own state is never revoked: the client is active.
    fn revoke_if_expired(&mut self, locks: &mut LockTable<F>, holder: &Holder, by: Clientid4, now: Instant) -> bool {
        let LockClient::V4(id) = holder.owner.client else { return false };
        let client = Clientid4(id);
        let expired = client != by && self.clients.is_expired(client, now) && !self.is_busy(client);
        if expired {
            self.revoke_all(locks, client, Nfsstat4::Expired);
        }
        expired
    }

    /// Checks that a client may reclaim, or may get new state. It may reclaim if it held state before the restart and
    /// has not sent RECLAIM_COMPLETE. It gets new state only after RECLAIM_COMPLETE (§18.51.3).
    fn check_reclaim(&self, client: Clientid4, reclaim: bool) -> Result<(), Nfsstat4> {
        // 4.0 has no RECLAIM_COMPLETE: its clients get no new state in the grace period.
        let found = self.clients.find(client).filter(|client| client.confirmed);
        let client_is = |what: fn(&Client<R, F>) -> bool| found.is_some_and(what);
        let complete = client_is(|client| client.reclaim_complete || client.legacy.is_some());
        if reclaim && client_is(|client| client.legacy.is_some()) {
            let grace = if self.in_grace() { Nfsstat4::ReclaimBad } else { Nfsstat4::NoGrace };
            return if self.may_reclaim(client) { Ok(()) } else { Err(grace) };
        }
        match reclaim {
            true if complete || !self.in_grace() => Err(Nfsstat4::NoGrace),
            true if !self.may_reclaim(client) => Err(Nfsstat4::ReclaimBad),
            false if !complete => Err(Nfsstat4::Grace),
            _ => Ok(()),
        }
    }

    /// Checks that a client may have one more stateid, unless it already has this one (`had`).
    ///
    /// # Errors
    /// DELAY if the limit is reached.
    fn check_stateid_limit(&self, client: Clientid4, had: Option<Other>) -> Result<(), Nfsstat4> {
        if had.is_none() && self.is_at_stateid_limit(client) { Err(Nfsstat4::Delay) } else { Ok(()) }
    }

    /// Returns `true` if a client has reached its limit of stateids. If half of all stateids are in use, each client
    /// still has an equal share of the other half, which no other client can use.
    pub(in crate::v4::state) fn is_at_stateid_limit(&self, client: Clientid4) -> bool {
        let &StateOptions { client_stateids_max, stateids_max, clients_max, .. } = &self.options;
        let (half, total) = (stateids_max / 2, self.stateids.total());
        // In the first half, all clients of a host together get only a part of what the other hosts leave.
        let own = self.stateids.of_group(self.group_of(client));
        let is_fair = own < half.saturating_sub(total - own) / HOST_PART;
        let max = if total < half && is_fair { client_stateids_max } else { half / clients_max };
        self.stateids.count(client) >= max
    }

    /// Returns the group of a client.
    pub(in crate::v4::state) fn group_of(&self, client: Clientid4) -> Group {
        self.clients.find(client).map_or(Group::NotAdmitted, |client| client.group)
    }

    pub(in crate::v4::state) fn resolve_open(
        &self,
        client: Clientid4,
        file: &F,
        stateid: &Stateid4,
    ) -> Result<Other, Nfsstat4> {
        let other = self.stateids.resolve(client, Some(file), stateid)?;
        match self.stateids.entry(&other).kind {
            Kind::Open(_) => Ok(other),
            _ => Err(Nfsstat4::BadStateid),
        }
    }

    /// Removes a lock stateid. Releases the locks if the owner has no locks under another open of the file.
    fn release_locks(&mut self, locks: &mut LockTable<F>, other: &Other) {
        let entry = self.stateids.remove(other).expect("the lock stateid must exist");
        let Kind::Lock { owner, .. } = entry.kind else { panic!("the stateid must be a lock") };
        if !self.stateids.has_locks(entry.client, &owner, &entry.file) {
            let all = Range::to_end(0);
            locks
                .unlock(&entry.file, &lock_owner(entry.client, &owner), all)
                .expect("removing all locks of an owner must not fail");
        }
    }
}

/// Checks the access and deny values of a request.
///
/// # Errors
/// INVAL (§18.16.3, §18.18.3).
fn check_share(access: u32, deny: u32) -> Result<(), Nfsstat4> {
    let valid = (1..=OPEN4_SHARE_ACCESS_BOTH).contains(&access) && deny <= OPEN4_SHARE_DENY_BOTH;
    if valid { Ok(()) } else { Err(Nfsstat4::Inval) }
}

/// Returns `true` if `wanted` is the union of some values of the set `seen`.
fn is_union(seen: u8, wanted: u32) -> bool {
    let parts = (0..4).filter(|value| seen & subsets(wanted) & 1 << value != 0);
    wanted == 0 || parts.fold(0, |union, value| union | value) == wanted
}

/// Returns the set of values that only have bits of `value`.
fn subsets(value: u32) -> u8 {
    (0..4).filter(|part| part & !value == 0).fold(0, |set, part| set | 1 << part)
}

/// Returns the identity of the open-owner, which has the sequence ID in 4.0.
fn open_owner_name(request: &OpenRequest) -> OwnerName {
    OwnerName { client: request.client, kind: OwnerKind::Open, name: request.owner.clone() }
}

fn share(access: u32, deny: u32) -> Share {
    Share {
        read: access & OPEN4_SHARE_ACCESS_READ != 0,
        write: access & OPEN4_SHARE_ACCESS_WRITE != 0,
        deny_read: deny & OPEN4_SHARE_DENY_READ != 0,
        deny_write: deny & OPEN4_SHARE_DENY_WRITE != 0,
    }
}

/// Converts the range of a request.
///
/// # Errors
/// INVAL (§18.10.3) for no bytes, or an end beyond 64 bits.
fn range(offset: u64, length: u64) -> Result<Range, Nfsstat4> {
    match length {
        //= rfc8881-18.10.3-1
        LENGTH_TO_EOF => Ok(Range::to_end(offset)),
        _ if offset.checked_add(length).is_none() => Err(Nfsstat4::Inval),
        _ => Range::new(offset, length).ok_or(Nfsstat4::Inval),
    }
}

fn kind(locktype: NfsLockType4) -> LockKind {
    if locktype.is_exclusive() { LockKind::Exclusive } else { LockKind::Shared }
}

/// Returns the lock table's name of an open-owner. Open-owners and lock-owners differ even if their names are equal.
fn open_owner(client: Clientid4, name: &[u8]) -> Owner {
    owner(client, OPEN_OWNER, name)
}

pub(in crate::v4::state) fn lock_owner(client: Clientid4, name: &[u8]) -> Owner {
    owner(client, LOCK_OWNER, name)
}

/// Returns the client of a lock-owner, and the name that the client chose; `None` for other owners.
pub(in crate::v4) fn name_of_lock_owner(owner: &Owner) -> Option<StateOwner4> {
    let LockClient::V4(client) = owner.client else { return None };
    let name = Bytes::copy_from_slice(owner.opaque.strip_prefix(&[LOCK_OWNER])?);
    Some(StateOwner4 { clientid: Clientid4(client), owner: name.into() })
}

fn owner(Clientid4(client): Clientid4, kind: u8, name: &[u8]) -> Owner {
    let mut opaque = SmallVec::from_slice(&[kind]);
    opaque.extend_from_slice(name);
    Owner { client: LockClient::V4(client), opaque }
}

/// Describes a conflicting lock to the client `to`. The result does not disclose the client ID of another client.
fn denied(to: Clientid4, holder: &Holder) -> LockDenied4 {
    let (clientid, name) = match holder.owner.client {
        LockClient::V4(id) if id == to.0 => (to, &holder.owner.opaque[1..]),
        //= rfc8881-18.10.3-6
        LockClient::V4(_) => (Clientid4(0), &holder.owner.opaque[1..]),
        LockClient::Nlm(_) => (Clientid4(0), &holder.owner.opaque[..]),
    };
    let name = Bytes::copy_from_slice(&name[..name.len().min(OPAQUE_LIMIT)]);
    LockDenied4 {
        offset: holder.range.first(),
        length: holder.range.length().unwrap_or(LENGTH_TO_EOF),
        locktype: match holder.kind {
            LockKind::Shared => NfsLockType4::Read,
            LockKind::Exclusive => NfsLockType4::Write,
        },
        owner: StateOwner4 { clientid, owner: name.into() },
    }
}

fn status(error: &LockError) -> Nfsstat4 {
    match error {
        LockError::Denied(_) => Nfsstat4::Denied,
        LockError::Deadlock => Nfsstat4::Deadlock,
        LockError::Grace => Nfsstat4::Grace,
        LockError::NoGrace => Nfsstat4::NoGrace,
        // RESOURCE exists only in 4.0. The request may succeed later.
        LockError::Full => Nfsstat4::Delay,
    }
}

const OPEN_OWNER: u8 = b'o';
const LOCK_OWNER: u8 = b'l';
