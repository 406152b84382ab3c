//! Delegations: a client uses a file without asking the server, until a conflicting use (RFC 8881 §10.4, §18.16, §18.6,
//! §20.2).
//!
//! A read delegation promises that nobody else writes. A write delegation promises that nobody else uses the file. All
//! protocols call [`State::recall`] before they break the promise. [`recall`](super::recall) has the recall and
//! revocation, because they are the same for all recallable state.
//!
//! **Policy.** An OPEN grants a delegation if the client can be called, nobody else has the file open in a conflicting
//! way, the file is not being changed, and no delegation of it was recalled recently: delegations of files in shared
//! use are not worthwhile.
//!
//! An error leaves the state unchanged, except that a recall may have begun.

use std::{hash::Hash, time::Instant};

use nfs::v4::*;

use super::open::{Claim, OpenPlan, OpenRequest};
use crate::{
    sharing::{
        conflict::Access,
        locks::{LockClient, LockTable},
    },
    v4::state::{
        State,
        ids::{Other, ReferringCall},
        recallable::{Delegation, Grant, Held, Recallable, RecallableKind},
    },
};

/// A request for a delegation with an open.
#[derive(Clone, Debug)]
pub(in crate::v4::state) struct DelegationRequest<'a, F> {
    /// The client.
    pub client: Clientid4,
    /// The file, which is a regular file and has just been opened.
    pub file: &'a F,
    /// The `OPEN4_SHARE_ACCESS_` bits, including those about delegations.
    pub share_access: u32,
    /// The file's change attribute.
    pub change: u64,
    /// The delegation that the client claims to have own before the restart (CLAIM_PREVIOUS).
    pub reclaim: Option<OpenDelegationType4>,
    /// The request with the open; `None` in 4.0.
    pub call: Option<ReferringCall>,
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Finds the holder of a write delegation. The holder must be asked for size and change attribute before another
    /// client gets them.
    ///
    /// # Errors
    /// DELAY while the delegation is recalled, also because its holder cannot be called.
    pub fn holder(
        &mut self,
        locks: &mut LockTable<F>,
        file: &F,
        by: Option<Clientid4>,
        now: Instant,
    ) -> Result<Option<Held<F>>, Nfsstat4> {
        let others = self.stateids.recallables(file);
        let is_writer = |other: &Other| self.stateids.delegation(other).is_some_and(|delegation| delegation.write);
        let Some(other) = others.into_iter().find(is_writer) else { return Ok(None) };
        let client = self.stateids.entry(&other).client;
        if Some(client) == by {
            return Ok(None);
        }
        let recalled = self.stateids.recallable(&other).is_some_and(Recallable::is_recalled);
        if recalled || !self.can_be_called(client) || self.clients.is_expired(client, now) {
            return self.recall(locks, file, (by, Access::Read), now).map(|()| None);
        }
        Ok(Some(Held { client, file: file.clone(), stateid: self.stateids.current(&other) }))
    }

    /// Evaluates the attributes that a holder reported: the change attribute, and whether its size differs from the
    /// server's. Returns `true` if the holder has changed the file since the delegation was granted. Once that is so,
    /// it may continue to change the file without further notice (§10.4.3).
    pub fn is_modified(&mut self, held: &Held<F>, change: Option<u64>, size_differs: bool) -> bool {
        let Ok(other) = self.resolve_delegation(held.client, &held.file, &held.stateid) else { return false };
        let Some(delegation) = self.stateids.delegation_mut(&other) else { return false };
        delegation.modified |= size_differs || change.is_some_and(|change| change != delegation.change);
        delegation.modified
    }

    /// Recalls the client's own write delegation before it opens the file in another way. A holder of a write
    /// delegation opens the file without asking, so this client does not know that it is the same file, for example
    /// because it mounted it twice. It would lock and write locally although both uses must see each other.
    ///
    /// # Errors
    /// DELAY while its delegation is recalled.
    pub(in crate::v4::state) fn recall_own_delegation(
        &mut self,
        client: Clientid4,
        file: &F,
        now: Instant,
    ) -> Result<(), Nfsstat4> {
        match self.find_delegation(client, file) {
            Some(own) if self.stateids.delegation(&own).is_some_and(|delegation| delegation.write) => {
                self.begin_recall(&own, now);
                Err(Nfsstat4::Delay)
            }
            _ => Ok(()),
        }
    }

    /// Grants a delegation with an open, or returns the reason for which none is granted. `change` is the file's change
    /// attribute.
    pub fn delegate_open(
        &mut self,
        locks: &LockTable<F>,
        plan: &OpenPlan,
        (file, change): (&F, Option<u64>),
        now: Instant,
    ) -> OpenDelegation4 {
        let &OpenRequest { client, access, want, claim, can_recall, call, .. } = plan.request();
        let reclaim = match claim {
            Claim::Reclaim(kind) => Some(kind),
            _ => None,
        };
        match change.filter(|_| plan.is_delegable()) {
            Some(change) => {
                let request = DelegationRequest { client, file, share_access: access | want, change, reclaim, call };
                self.delegate(locks, &request, now)
            }
            None if can_recall && matches!(claim, Claim::Delegated(_)) => OpenDelegation4::None,
            None => no_delegation(want),
        }
    }

    /// Grants a delegation, or returns the reason for which it is not granted.
    pub(in crate::v4::state) fn delegate(
        &mut self,
        locks: &LockTable<F>,
        request: &DelegationRequest<'_, F>,
        now: Instant,
    ) -> OpenDelegation4 {
        let wanted = request.share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK;
        match self.try_delegate(locks, request, wanted, now) {
            Ok((stateid, true)) => OpenDelegation4::Write(OpenWriteDelegation4 {
                stateid,
                recall: false,
                // No space is reserved: a full file system is full with a delegation too.
                space_limit: SpaceLimit4::Size(u64::MAX),
                permissions: no_permissions(),
            }),
            Ok((stateid, false)) => {
                OpenDelegation4::Read(OpenReadDelegation4 { stateid, recall: false, permissions: no_permissions() })
            }
            // §18.16.3: only a client that stated a preference gets the reason.
            Err(_) if wanted == OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => OpenDelegation4::None,
            Err(why) => OpenDelegation4::NoneExt(why),
        }
    }

    /// Grants a delegation. The second value is `true` for a write delegation.
    fn try_delegate(
        &mut self,
        locks: &LockTable<F>,
        request: &DelegationRequest<'_, F>,
        wanted: u32,
        now: Instant,
    ) -> Result<(Stateid4, bool), OpenNoneDelegation4> {
        let &DelegationRequest { client, file, share_access, change, reclaim, call } = request;
        let write = wanted_kind(wanted, share_access, reclaim)?;
        if reclaim.is_none() && self.in_grace() {
            return Err(RESOURCE);
        }
        if let Some(own) = self.find_delegation(client, file) {
            let upgrade = write && self.stateids.delegation(&own).is_some_and(|delegation| !delegation.write);
            let why = if upgrade { WhyNoDelegation4::NotSuppUpgrade } else { WhyNoDelegation4::NotSuppDowngrade };
            return Err(OpenNoneDelegation4::Other(why));
        }
        let full = self.is_at_stateid_limit(client) || self.is_full_of(RecallableKind::Delegation);
        // GETATTR of 4.0 does not name its client. A holder of a write delegation would be asked about its own file, or
        // would have to return the delegation.
        if full || !self.can_be_called(client) || write && self.is_legacy(client) {
            return Err(RESOURCE);
        }
        let usage = locks.usage(file, LockClient::V4(client.0));
        let others = self.stateids.recallables(file).iter().any(|other| self.stateids.delegation(other).is_some());
        if usage.writes || (write && (usage.reads || others)) || self.is_contended(file, now) {
            return Err(CONTENTION);
        }
        let delegation = Delegation { write, change, modified: false };
        let grant = (Grant::Delegation(delegation), call);
        let stateid = self.grant_recallable(client, file, grant).ok_or(CONTENTION)?;
        Ok((stateid, write))
    }

    /// Executes DELEGRETURN (§18.6).
    ///
    /// # Errors
    /// Those of `Stateids::resolve`.
    pub fn delegreturn(&mut self, client: Clientid4, file: &F, stateid: &Stateid4) -> Result<(), Nfsstat4> {
        let other = self.resolve_delegation(client, file, stateid)?;
        self.stateids.remove(&other);
        Ok(())
    }

    /// Finds the delegation of a stateid, also while it is recalled (CLAIM_DELEGATE_CUR, §18.16.3).
    ///
    /// # Errors
    /// Those of `Stateids::resolve`.
    pub(in crate::v4::state) fn resolve_delegation(
        &self,
        client: Clientid4,
        file: &F,
        stateid: &Stateid4,
    ) -> Result<Other, Nfsstat4> {
        let other = self.stateids.resolve(client, Some(file), stateid)?;
        if self.stateids.delegation(&other).is_some() { Ok(other) } else { Err(Nfsstat4::BadStateid) }
    }

    fn find_delegation(&self, client: Clientid4, file: &F) -> Option<Other> {
        self.stateids.find_recallable(client, RecallableKind::Delegation, file)
    }
}

/// Returns `true` if the client wants a write delegation, `false` if it wants a read delegation.
///
/// # Errors
/// The reason for which no delegation is granted.
fn wanted_kind(
    wanted: u32,
    share_access: u32,
    reclaim: Option<OpenDelegationType4>,
) -> Result<bool, OpenNoneDelegation4> {
    let opens_to_write = share_access & OPEN4_SHARE_ACCESS_WRITE != 0;
    match reclaim {
        Some(OpenDelegationType4::Read) => return Ok(false),
        Some(OpenDelegationType4::Write) => return Ok(true),
        Some(OpenDelegationType4::None | OpenDelegationType4::NoneExt) => {
            return Err(OpenNoneDelegation4::Other(WhyNoDelegation4::NotWanted));
        }
        None => {}
    }
    match wanted {
        OPEN4_SHARE_ACCESS_WANT_NO_DELEG => Err(OpenNoneDelegation4::Other(WhyNoDelegation4::NotWanted)),
        OPEN4_SHARE_ACCESS_WANT_CANCEL => Err(OpenNoneDelegation4::Other(WhyNoDelegation4::Cancelled)),
        OPEN4_SHARE_ACCESS_WANT_READ_DELEG => Ok(false),
        OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG if !opens_to_write => {
            Err(OpenNoneDelegation4::Other(WhyNoDelegation4::NotSuppUpgrade))
        }
        _ => Ok(opens_to_write),
    }
}

/// §18.16.3: a client that stated a preference gets the reason for which there is no delegation.
fn no_delegation(want: u32) -> OpenDelegation4 {
    match want & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK {
        OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => OpenDelegation4::None,
        OPEN4_SHARE_ACCESS_WANT_NO_DELEG => {
            OpenDelegation4::NoneExt(OpenNoneDelegation4::Other(WhyNoDelegation4::NotWanted))
        }
        _ => OpenDelegation4::NoneExt(RESOURCE),
    }
}

/// Returns an entry that permits no access without ACCESS: an entry cannot express the server's rules.
fn no_permissions() -> acl::Nfsace4 {
    acl::Nfsace4 { acetype: acl::Acetype4::ACCESS_ALLOWED, flag: 0, access_mask: 0, who: "".into() }
}

//= rfc8881-18.16.3-14
const RESOURCE: OpenNoneDelegation4 = OpenNoneDelegation4::Resource { server_will_signal_avail: false };
const CONTENTION: OpenNoneDelegation4 = OpenNoneDelegation4::Contention { server_will_push_deleg: false };
