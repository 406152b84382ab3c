//! Opens: OPEN, OPEN_DOWNGRADE and CLOSE.
//!
//! Read RFC 8881 §9.7–§9.11 (share reservations, opens) and §18.2, §18.16, §18.18. The [`LockTable`], which all protocols
//! share, decides what conflicts. This file assigns stateids to owners.
//!
//! An error leaves the state unchanged.

use std::{hash::Hash, time::Instant};

use bytes::Bytes;
use nfs::v4::*;

use super::lock::{owner, status};
use crate::{
    sharing::{
        conflict::Access,
        locks::{LockError, LockTable, Owner, Share},
    },
    v4::state::{
        State,
        client::Client,
        ids::{Other, ReferringCall},
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
    /// `true` if this server can send recalls, and they are as protected as the request.
    pub can_recall: bool,
    /// The request that contains the OPEN; `None` in 4.0.
    pub call: Option<ReferringCall>,
}

/// An OPEN that [`State::plan_open`] has accepted and [`State::commit_open`] completes.
///
/// A plan reserves nothing. If the file cannot be found or created, the plan is dropped, and the client's state is
/// unchanged. Therefore the commit repeats the checks whose outcome can have changed.
#[derive(Clone, Debug)]
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
        //= rfc8881-10.2.1-4
        if !self.is_by_reclaimed_delegation(locks, &request) {
            self.check_reclaim(client, reclaim)?;
            if locks.in_grace() && !reclaim {
                return Err(Nfsstat4::Grace);
            }
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

    /// Returns `true` if a client opens a file, in the grace period, by a delegation that it has reclaimed. The server grants
    /// no other delegation before the end of that period.
    fn is_by_reclaimed_delegation(&self, locks: &LockTable<F>, request: &OpenRequest) -> bool {
        let Claim::Delegated(stateid) = &request.claim else { return false };
        let held = |other| self.stateids.delegation(&other).is_some();
        locks.in_grace() && self.stateids.resolve(request.client, None, stateid).is_ok_and(held)
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
        // While the client held the delegation, no other client could get an open or lock that conflicts with this one.
        let is_safe_in_grace = self.is_by_reclaimed_delegation(locks, request);
        if !is_safe_in_grace {
            self.check_reclaim(*client, reclaim)?;
        }
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
                // §9.7: a deny value also applies to the same owner. A repeated reclaim changes nothing.
                let repeated = reclaim && access & !open.access == 0 && deny & !open.deny == 0;
                //= rfc8881-8.4.2.1.1-1
                if !repeated && (open.deny & access != 0 || open.access & deny != 0) {
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
        //= rfc8881-8.4.2.1.1-1
        while let Err(error) = locks.share(file, &owner, share, reclaim || is_safe_in_grace) {
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

    /// Checks that a client may reclaim, or may get new state. It may reclaim if it held state before the restart and
    /// has not sent RECLAIM_COMPLETE. It gets new state only after RECLAIM_COMPLETE (§18.51.3).
    pub(super) fn check_reclaim(&self, client: Clientid4, reclaim: bool) -> Result<(), Nfsstat4> {
        // 4.0 has no RECLAIM_COMPLETE: its clients get no new state in the grace period.
        let found = self.clients.find(client).filter(|client| client.confirmed);
        let client_is = |what: fn(&Client<R, F>) -> bool| found.is_some_and(what);
        let complete = client_is(|client| client.reclaim_complete || client.legacy.is_some());
        if reclaim && client_is(|client| client.legacy.is_some()) {
            return if self.may_reclaim(client) { Ok(()) } else { Err(self.reclaim_error(client)) };
        }
        match reclaim {
            true if complete || !self.in_grace() => Err(Nfsstat4::NoGrace),
            true if !self.may_reclaim(client) => Err(self.reclaim_error(client)),
            false if !complete => Err(Nfsstat4::Grace),
            _ => Ok(()),
        }
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
            //= rfc8881-8.2.4-1
            _ => Err(Nfsstat4::BadStateid),
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
    (0..4).filter(|part| part & !value == 0).map(|part| 1 << part).sum()
}

/// Returns the identity of the open-owner, which has the sequence ID in 4.0.
fn open_owner_name(request: &OpenRequest) -> OwnerName {
    OwnerName { client: request.client, kind: OwnerKind::Open, name: request.owner.clone() }
}

pub(super) fn share(access: u32, deny: u32) -> Share {
    Share {
        read: access & OPEN4_SHARE_ACCESS_READ != 0,
        write: access & OPEN4_SHARE_ACCESS_WRITE != 0,
        deny_read: deny & OPEN4_SHARE_DENY_READ != 0,
        deny_write: deny & OPEN4_SHARE_DENY_WRITE != 0,
    }
}

/// Returns the lock table's name of an open-owner. Open-owners and lock-owners differ even if their names are equal.
pub(super) fn open_owner(client: Clientid4, name: &[u8]) -> Owner {
    owner(client, OPEN_OWNER, name)
}

const OPEN_OWNER: u8 = b'o';
