//! Opens and byte-range locks of NFSv4.1: OPEN, OPEN_DOWNGRADE, CLOSE, LOCK, LOCKT, LOCKU, FREE_STATEID, TEST_STATEID, and
//! what READ and WRITE ask about a stateid.
//!
//! Read RFC 8881 §9 (opens, share reservations, locks) and §18.2, §18.10–18.12, §18.16, §18.18, §18.38, §18.48. What
//! conflicts is for the [`LockTable`] to say, which other protocols share; here is who owns what by which name.
//!
//! On error nothing has changed.

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

/// The part of OPEN that is known before the file is.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// The session's client.
    pub client: Clientid4,
    /// The open-owner.
    pub owner: Bytes,
    /// The `OPEN4_SHARE_ACCESS_` bits, without those of delegations.
    pub access: u32,
    /// The `OPEN4_SHARE_DENY_` bits.
    pub deny: u32,
    /// The `OPEN4_SHARE_ACCESS_WANT_` bits.
    pub want: u32,
    /// The client's right.
    pub claim: Claim,
    /// True if this server can recall a delegation.
    pub can_recall: bool,
}

/// An OPEN that [`State::plan_open`] has accepted and [`State::commit_open`] completes.
///
/// A plan reserves nothing: if the file cannot be found or made, the plan is dropped, and the client holds what it held before. So the
/// commit checks again what can have changed in between.
#[derive(Debug)]
#[must_use = "a plan gives the client nothing until it is committed"]
pub struct OpenPlan {
    request: OpenRequest,
    unremembered: Option<Bytes>,
    confirm: bool,
}

impl OpenPlan {
    /// The request.
    pub fn request(&self) -> &OpenRequest {
        &self.request
    }

    /// The client's name, if it must be stored before the client is given anything; [`State::remembered`] takes the outcome.
    pub fn unremembered(&self) -> Option<&Bytes> {
        self.unremembered.as_ref()
    }

    /// Returns true if a client of 4.0 must confirm the open.
    pub(in crate::v4::state) fn confirms(&self) -> bool {
        self.confirm
    }

    /// Returns true if a delegation may come with the open, for which the file's change attribute must be known.
    pub fn is_delegable(&self) -> bool {
        let OpenRequest { want, claim, can_recall, .. } = self.request;
        let is_wanted = match claim {
            Claim::New => want & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK != OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
            Claim::Reclaim(_) => true,
            Claim::Delegated(_) => false,
        };
        // RFC 7530 §16.16.5: the server may have to undo an open that is not confirmed, so it comes without a delegation.
        can_recall && is_wanted && !self.confirm
    }
}

/// A file that was found or made for an OPEN.
#[derive(Clone, Copy, Debug)]
pub struct OpenTarget<'a, F> {
    /// The file.
    pub file: &'a F,
    /// Its change attribute, if a delegation may come with the open.
    pub change: Option<u64>,
    /// The file is truncated after the commit. The delegation then comes by [`State::delegate_open`], with the change attribute of
    /// that time.
    pub truncates: bool,
}

/// The result of an OPEN.
#[derive(Clone, Debug, PartialEq)]
pub struct Opened {
    /// The open.
    pub stateid: Stateid4,
    /// True if a client of 4.0 must confirm it.
    pub confirm: bool,
    /// The delegation that comes with it, or why none does.
    pub delegation: OpenDelegation4,
}

/// Why LOCK or LOCKT fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockFailure {
    /// Another lock is in the way.
    Denied(LockDenied4),
    /// Anything else.
    Status(Nfsstat4),
}

impl From<Nfsstat4> for LockFailure {
    fn from(status: Nfsstat4) -> Self {
        Self::Status(status)
    }
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// The first half of OPEN (§18.16): refuses what can be refused before the file is known, and so before one is made. Changes nothing but
    /// that the client counts as about to be stored, if it is not; the next plan then says so again.
    ///
    /// # Errors
    /// INVAL, GRACE, NO_GRACE, RECLAIM_BAD; DELAY if the client has as many opens as it may.
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
        self.check_room(client, None)?;
        let unremembered = self.unremembered(client, now);
        // §9.1.11 of RFC 7530: an open that is reclaimed is not confirmed. Nobody else can have had its owner's name since the restart.
        let confirm = self.is_legacy(client) && !reclaim && !self.owners.is_confirmed(&open_owner_name(&request));
        Ok(OpenPlan { request, unremembered, confirm })
    }

    /// The second half of OPEN (§18.16), after the file was found or made: gives the client its share of the file, and a delegation where that
    /// is possible. An owner that has the file open gets the same stateid, with the union of both opens.
    ///
    /// # Errors
    /// What is wrong with the stateid of the delegation; SHARE_DENIED, GRACE, NO_GRACE; DELAY if there are too many opens, or delegations in
    /// the way, which have been recalled.
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

    /// Gives the client its share of a file.
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
                self.recall_own(*client, file, now)?;
            }
        }
        let had = self.stateids.find_open(*client, owner, file);
        self.check_room(*client, had)?;
        let mut open = match had {
            Some(other) => {
                let open = self.stateids.open(&other).clone();
                // §9.7: what an owner denies is denied to itself.
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
            if !self.displace(locks, &holder, *client, now) {
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

    /// OPEN_DOWNGRADE (§18.18).
    ///
    /// # Errors
    /// What is wrong with the stateid; INVAL if no opens of the owner make up what is left.
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
        // It takes away, so nothing can be in its way but grace, for which it is as good as a reclaim.
        let (owner, reclaim) = (open_owner(client, &open.owner), locks.in_grace());
        locks.share(file, &owner, share(open.access, open.deny), reclaim).map_err(|error| status(&error))?;
        *self.stateids.open_mut(&other) = open;
        Ok(self.stateids.change(&other))
    }

    /// CLOSE (§18.2). Locks under the open are released.
    ///
    /// # Errors
    /// What is wrong with the stateid.
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
        // §18.2.4: what comes back is never valid.
        //= rfc8881-18.2.3-1
        Ok(Stateid4::INVALID)
    }

    /// Ends an open, and the locks under it.
    ///
    /// # Panics
    /// If there is no such open.
    pub(in crate::v4::state) fn close_open(&mut self, locks: &mut LockTable<F>, client: Clientid4, closed: &Other) {
        let Open { owner, locks: under, .. } = self.stateids.open(closed).clone();
        for lock in under {
            self.release_locks(locks, &lock);
        }
        let entry = self.stateids.remove(closed).expect("it was found");
        locks.unshare(&entry.file, &open_owner(client, &owner));
    }

    /// LOCK (§18.10). Who is denied it, and wants to wait, is told when to ask again, if there is a way.
    ///
    /// # Errors
    /// DENIED; what is wrong with the stateid; OPENMODE, INVAL, GRACE, NO_GRACE; DELAY if there are too many locks.
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
        self.check_room(client, had)?;
        let needed = if args.locktype.is_exclusive() { OPEN4_SHARE_ACCESS_WRITE } else { OPEN4_SHARE_ACCESS_READ };
        if self.stateids.open(&open).access & needed == 0 {
            return Err(Nfsstat4::OpenMode.into());
        }
        let request = Request { range, kind: kind(args.locktype), wait: false, reclaim: args.reclaim };
        loop {
            match locks.lock(file, &lock_owner(client, &owner), &request) {
                Ok(Locked::Granted) => break,
                Ok(Locked::Waiting(_)) => unreachable!("it does not wait"),
                Err(LockError::Denied(holder)) if self.displace(locks, &holder, client, now) => {}
                Err(LockError::Denied(holder)) => {
                    if args.locktype.waits() && !self.is_legacy(client) && self.can_be_called(client) {
                        // §9.6: it need not be, and if there are too many it is left to the client to ask again.
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

    /// LOCKT (§18.11). The owner's client is the session's.
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

    /// LOCKU (§18.12).
    ///
    /// # Errors
    /// What is wrong with the stateid; INVAL; DELAY if it would leave too many ranges.
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

    /// FREE_STATEID (§18.38). Loss of what was revoked is thereby acknowledged.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID; LOCKS_HELD while it stands for something.
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

    /// TEST_STATEID (§18.48): the status of each.
    pub fn test_stateid(&self, client: Clientid4, args: &TestStateidArgs) -> Vec<Nfsstat4> {
        let test = |stateid| self.stateids.resolve(client, None, stateid).err().unwrap_or(Nfsstat4::Ok);
        args.stateids.iter().map(test).collect()
    }

    /// Whether READ, or WRITE and the like, may be done on behalf of a stateid (§9.1.2, §9.1.4). The current stateid has
    /// been put in its place.
    ///
    /// # Errors
    /// What is wrong with the stateid; OPENMODE; LOCKED if somebody denies it; GRACE; DELAY while a delegation in the way
    /// is recalled.
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
        // §18.22.3: a client that has opened it to write may read, since it may have to for writing part of a page.
        if write && !may_write {
            return Err(Nfsstat4::OpenMode);
        }
        if let Some(client) = self.clients.find(client).filter(|client| client.legacy.is_none()) {
            self.stateids.note_use(&other, may_write, client.shard.uses());
        }
        Ok(())
    }

    /// Takes all that a client holds, for `status`: EXPIRED or ADMIN_REVOKED. The client learns it when it uses any.
    pub fn revoke_all(&mut self, locks: &mut LockTable<F>, client: Clientid4, status: Nfsstat4) {
        for other in self.stateids.of_client(client) {
            self.stateids.revoke(&other, status);
        }
        locks.release_client(LockClient::V4(client.0));
        self.lose_record(client);
        self.events.push_back(Event::Revoked(client));
    }

    /// Takes what is in the way of `by`, if its client has let its lease expire (§8.4.3); false if it has not. One's own is not
    /// taken: whoever asks is about to use it.
    fn displace(&mut self, locks: &mut LockTable<F>, holder: &Holder, by: Clientid4, now: Instant) -> bool {
        let LockClient::V4(id) = holder.owner.client else { return false };
        let client = Clientid4(id);
        let expired = client != by && self.clients.is_expired(client, now) && !self.is_busy(client);
        if expired {
            self.revoke_all(locks, client, Nfsstat4::Expired);
        }
        expired
    }

    /// A reclaim is for who had something before the restart, and until it has said that all is reclaimed; anything else
    /// is for who has said so (§18.51.3).
    fn check_reclaim(&self, client: Clientid4, reclaim: bool) -> Result<(), Nfsstat4> {
        // 4.0 has no way to say so; the grace period keeps it waiting.
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

    /// # Errors
    /// DELAY if there would be one stateid too many.
    fn check_room(&self, client: Clientid4, had: Option<Other>) -> Result<(), Nfsstat4> {
        if had.is_none() && self.has_enough(client) { Err(Nfsstat4::Delay) } else { Ok(()) }
    }

    /// Whether a client has as many stateids as it may. From a half of all on that is a share of the other half, which nobody else
    /// can take from it.
    pub(in crate::v4::state) fn has_enough(&self, client: Clientid4) -> bool {
        let &StateOptions { client_stateids_max, stateids_max, clients_max, .. } = &self.options;
        let (half, total) = (stateids_max / 2, self.stateids.total());
        // A host has no more than a part of what the others leave of the first half, for all of its clients.
        let own = self.stateids.of_group(self.group_of(client));
        let is_fair = own < half.saturating_sub(total - own) / HOST_PART;
        let max = if total < half && is_fair { client_stateids_max } else { half / clients_max };
        self.stateids.count(client) >= max
    }

    /// Of which group a client is.
    pub(in crate::v4::state) fn group_of(&self, client: Clientid4) -> Group {
        self.clients.find(client).map_or(Group::Strangers, |client| client.group)
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

    /// Forgets the locks of a stateid, and releases them if the owner has none under another open of the file.
    fn release_locks(&mut self, locks: &mut LockTable<F>, other: &Other) {
        let entry = self.stateids.remove(other).expect("it was found");
        let Kind::Lock { owner, .. } = entry.kind else { panic!("a lock") };
        if !self.stateids.has_locks(entry.client, &owner, &entry.file) {
            let all = Range::to_end(0);
            locks.unlock(&entry.file, &lock_owner(entry.client, &owner), all).expect("none are left");
        }
    }
}

/// # Errors
/// INVAL (§18.16.3, §18.18.3).
fn check_share(access: u32, deny: u32) -> Result<(), Nfsstat4> {
    let valid = (1..=OPEN4_SHARE_ACCESS_BOTH).contains(&access) && deny <= OPEN4_SHARE_DENY_BOTH;
    if valid { Ok(()) } else { Err(Nfsstat4::Inval) }
}

/// Whether `wanted` is the union of some of the values of which `seen` is the set.
fn is_union(seen: u8, wanted: u32) -> bool {
    let parts = (0..4).filter(|value| seen & subsets(wanted) & 1 << value != 0);
    wanted == 0 || parts.fold(0, |union, value| union | value) == wanted
}

/// The set of values that have no bits but those of `value`.
fn subsets(value: u32) -> u8 {
    (0..4).filter(|part| part & !value == 0).fold(0, |set, part| set | 1 << part)
}

/// The open-owner, by whose sequence the operations of 4.0 are counted.
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

/// # Errors
/// INVAL (§18.10.3): no bytes, or an end beyond 64 bits.
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

/// Open-owners and lock-owners are apart, also when they are called the same.
fn open_owner(client: Clientid4, name: &[u8]) -> Owner {
    owner(client, OPEN_OWNER, name)
}

pub(in crate::v4::state) fn lock_owner(client: Clientid4, name: &[u8]) -> Owner {
    owner(client, LOCK_OWNER, name)
}

/// The client, and the name by which it knows one of its lock-owners.
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

/// What the client `to` is told of a lock in its way. The client ID of another is not for it to know.
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
        // RESOURCE is of 4.0 alone; the client may have room when it comes again.
        LockError::Full => Nfsstat4::Delay,
    }
}

const OPEN_OWNER: u8 = b'o';
const LOCK_OWNER: u8 = b'l';
