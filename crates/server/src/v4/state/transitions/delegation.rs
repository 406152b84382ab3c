//! Delegations: who may use a file without asking, and how it is taken back (RFC 8881 §10.4, §18.16, §18.6, §20.2).
//!
//! A delegation to read promises that nobody else writes, one to write that nobody else does anything. Whoever is about
//! to break the promise asks [`State::recall`] first, whatever protocol it comes by. How a delegation is recalled and revoked is in
//! [`recall`](super::recall), because it is the same for all state that can be recalled.
//!
//! **Policy.** A delegation is given with an OPEN if the client can be called, nobody else has the file open in a way
//! that is in conflict, nobody is changing it at the moment, and none of it was recalled lately: files that are shared are
//! not worth it.
//!
//! On error nothing has changed, but that a recall may have begun.

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
        ids::Other,
        recallable::{Delegation, Grant, Held, RecallableKind},
    },
};

/// A delegation that an open asks for.
#[derive(Clone, Debug)]
pub(in crate::v4::state) struct DelegationRequest<'a, F> {
    /// The session's client.
    pub client: Clientid4,
    /// The file, which is a regular one and has just been opened.
    pub file: &'a F,
    /// The `OPEN4_SHARE_ACCESS_` bits, with what is said of delegations.
    pub share_access: u32,
    /// The file's change attribute.
    pub change: u64,
    /// The delegation that the client claims to have had before the restart (CLAIM_PREVIOUS).
    pub reclaim: Option<OpenDelegationType4>,
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Finds the holder of a delegation to write a file. Ask it about the file before another client is told its size or change attribute.
    ///
    /// # Errors
    /// DELAY: it is being recalled, also because its holder cannot be asked.
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
        let recalled = self.stateids.recallable(&other).is_some_and(|held| held.recalled);
        if recalled || !self.can_be_called(client) || self.clients.is_expired(client, now) {
            return self.recall(locks, file, (by, Access::Read), now).map(|()| None);
        }
        Ok(Some(Held { client, file: file.clone(), stateid: self.stateids.current(&other) }))
    }

    /// A holder has told what it knows of its file: its change attribute, and whether the size is another than here. Whether it has
    /// changed the file since it got the delegation; once it has, it may go on to do so unseen (§10.4.3).
    pub fn is_modified(&mut self, held: &Held<F>, change: Option<u64>, size_differs: bool) -> bool {
        let Ok(other) = self.resolve_delegation(held.client, &held.file, &held.stateid) else { return false };
        let Some(delegation) = self.stateids.delegation_mut(&other) else { return false };
        delegation.modified |= size_differs || change.is_some_and(|change| change != delegation.change);
        delegation.modified
    }

    /// Asks before a client opens a file other than by its delegation. Who has one to write does not ask; so the client does
    /// not know that it is the same file, as when it has mounted it twice, and would lock and write by itself what it should
    /// share with itself.
    ///
    /// # Errors
    /// DELAY: it has one to write, which has been recalled.
    pub(in crate::v4::state) fn recall_own(
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

    /// The delegation that comes with an open, or why none does. `change` is the file's change attribute.
    pub fn delegate_open(
        &mut self,
        locks: &LockTable<F>,
        plan: &OpenPlan,
        (file, change): (&F, Option<u64>),
        now: Instant,
    ) -> OpenDelegation4 {
        let &OpenRequest { client, access, want, claim, can_recall, .. } = plan.request();
        let reclaim = match claim {
            Claim::Reclaim(kind) => Some(kind),
            _ => None,
        };
        match change.filter(|_| plan.is_delegable()) {
            Some(change) => {
                let request = DelegationRequest { client, file, share_access: access | want, change, reclaim };
                self.delegate(locks, &request, now)
            }
            None if plan.confirms() || can_recall && matches!(claim, Claim::Delegated(_)) => OpenDelegation4::None,
            None => no_delegation(want),
        }
    }

    /// Gives a delegation, or says why not.
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
                // Nothing is reserved: a full file system is as full as without the delegation.
                space_limit: SpaceLimit4::Size(u64::MAX),
                permissions: nobody(),
            }),
            Ok((stateid, false)) => {
                OpenDelegation4::Read(OpenReadDelegation4 { stateid, recall: false, permissions: nobody() })
            }
            // §18.16.3: the reason is for those who have said what they want.
            Err(_) if wanted == OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => OpenDelegation4::None,
            Err(why) => OpenDelegation4::NoneExt(why),
        }
    }

    /// A new delegation, and whether it is to write.
    fn try_delegate(
        &mut self,
        locks: &LockTable<F>,
        request: &DelegationRequest<'_, F>,
        wanted: u32,
        now: Instant,
    ) -> Result<(Stateid4, bool), OpenNoneDelegation4> {
        let &DelegationRequest { client, file, share_access, change, reclaim } = request;
        let write = wanted_kind(wanted, share_access, reclaim)?;
        if reclaim.is_none() && self.in_grace() {
            return Err(RESOURCE);
        }
        if let Some(had) = self.find_delegation(client, file) {
            let upgrade = write && self.stateids.delegation(&had).is_some_and(|delegation| !delegation.write);
            let why = if upgrade { WhyNoDelegation4::NotSuppUpgrade } else { WhyNoDelegation4::NotSuppDowngrade };
            return Err(OpenNoneDelegation4::Other(why));
        }
        let full = self.has_enough(client) || self.is_full_of(RecallableKind::Delegation);
        // GETATTR of 4.0 does not say whose it is, so that a writer would be asked about its own file, or have to give it back.
        if full || !self.can_be_called(client) || write && self.is_legacy(client) {
            return Err(RESOURCE);
        }
        let usage = locks.usage(file, LockClient::V4(client.0));
        let others = !self.stateids.recallables(file).is_empty();
        if usage.writes || (write && (usage.reads || others)) || self.is_contended(file, now) {
            return Err(CONTENTION);
        }
        let delegation = Delegation { write, change, modified: false };
        let stateid = self.grant_recallable(client, file, Grant::Delegation(delegation)).ok_or(CONTENTION)?;
        Ok((stateid, write))
    }

    /// DELEGRETURN (§18.6).
    ///
    /// # Errors
    /// What is wrong with the stateid.
    pub fn delegreturn(&mut self, client: Clientid4, file: &F, stateid: &Stateid4) -> Result<(), Nfsstat4> {
        let other = self.resolve_delegation(client, file, stateid)?;
        self.stateids.remove(&other);
        Ok(())
    }

    /// The delegation that a client means by a stateid, also while it is recalled (CLAIM_DELEGATE_CUR, §18.16.3).
    ///
    /// # Errors
    /// What is wrong with the stateid.
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

/// Returns true if a delegation to write is wanted, and false if one to read is.
///
/// # Errors
/// None is.
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

/// §18.16.3: a client that has said which delegation it wants is told why there is none.
fn no_delegation(want: u32) -> OpenDelegation4 {
    match want & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK {
        OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => OpenDelegation4::None,
        OPEN4_SHARE_ACCESS_WANT_NO_DELEG => {
            OpenDelegation4::NoneExt(OpenNoneDelegation4::Other(WhyNoDelegation4::NotWanted))
        }
        _ => OpenDelegation4::NoneExt(RESOURCE),
    }
}

/// Lets nobody open the file without ACCESS having been asked: the server's rules are more than an entry can say.
fn nobody() -> acl::Nfsace4 {
    acl::Nfsace4 { acetype: acl::Acetype4::ACCESS_ALLOWED, flag: 0, access_mask: 0, who: "".into() }
}

//= rfc8881-18.16.3-14
const RESOURCE: OpenNoneDelegation4 = OpenNoneDelegation4::Resource { server_will_signal_avail: false };
const CONTENTION: OpenNoneDelegation4 = OpenNoneDelegation4::Contention { server_will_push_deleg: false };
