//! Delegations: who may use a file without asking, and how it is taken back (RFC 8881 §10.4, §18.16, §18.6, §20.2).
//!
//! A delegation to read promises that nobody else writes, one to write that nobody else does anything. Whoever is about
//! to break the promise asks [`State::recall`] first, whatever protocol it comes by: it is told to come again, and the
//! holder is told to give back what it has, by way of [`State::poll_recall`]. A holder that does not is deprived of it
//! after a lease's time ([`State::expire`]), and hears of that by its next SEQUENCE.
//!
//! **Policy.** A delegation is given with an OPEN if the client can be called, nobody else has the file open in a way
//! that is in conflict, nobody is changing it at the moment, and none of it was recalled lately: files that are shared are
//! not worth it.
//!
//! On error nothing has changed, but that a recall may have begun.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    time::{Duration, Instant},
};

use nfs::v4::*;

use super::{
    State,
    open::{Claim, OpenPlan, OpenRequest},
    stateid::{Kind, Other},
};
pub use crate::sharing::conflict::Access;
use crate::sharing::locks::{LockClient, LockTable};

/// A delegation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delegation {
    /// Whether it is to write.
    pub write: bool,
    /// Whether it is being recalled.
    pub recalled: bool,
    /// The change attribute when it was given, for one to write.
    pub change: u64,
    /// Whether the holder has said that it has changed the file.
    pub modified: bool,
}

/// A delegation, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<F> {
    /// The client.
    pub client: Clientid4,
    /// The file.
    pub file: F,
    /// The delegation.
    pub stateid: Stateid4,
}

/// A delegation that an open asks for.
#[derive(Clone, Debug)]
pub(super) struct DelegationRequest<'a, F> {
    /// The session's client.
    pub client: Clientid4,
    /// The file, which is a regular one and has just been opened.
    pub file: &'a F,
    /// The `OPEN4_SHARE_ACCESS_` bits, with what is said of delegations.
    pub share_access: u32,
    /// The file's change attribute.
    pub change: u64,
    /// What the client says that it had before the restart (CLAIM_PREVIOUS).
    pub reclaim: Option<OpenDelegationType4>,
}

/// What there is beside the stateids.
#[derive(Debug)]
pub(super) struct Delegations<F> {
    recalls: VecDeque<Held<F>>,
    /// When each is revoked that is being recalled, in order.
    deadlines: VecDeque<(Instant, Other)>,
    /// Files that are not delegated before then.
    contended: HashMap<F, Instant>,
}

impl<F> Default for Delegations<F> {
    fn default() -> Self {
        Self { recalls: VecDeque::new(), deadlines: VecDeque::new(), contended: HashMap::new() }
    }
}

impl<F> Delegations<F> {
    /// Whether none is to be recalled.
    pub(super) fn is_settled(&self) -> bool {
        self.recalls.is_empty()
    }
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Asks before a file is used by a client of this protocol, or by anybody else.
    ///
    /// # Errors
    /// DELAY: delegations are in the way, and have been recalled.
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
        for other in self.stateids.delegations(file) {
            let entry = self.stateids.entry(&other);
            let Kind::Delegation(delegation) = &entry.kind else { continue };
            if Some(entry.client) == by || !(delegation.write || access == Access::Write) {
                continue;
            }
            let client = entry.client;
            if self.clients.is_expired(client, now) && !self.is_busy(client) {
                // §8.4.3: it had its time, and now somebody wants what it has.
                self.revoke_all(locks, client, Nfsstat4::Expired);
                continue;
            }
            in_the_way = true;
            self.begin_recall(&other, now);
        }
        if in_the_way { Err(Nfsstat4::Delay) } else { Ok(()) }
    }

    /// Who has a delegation to write a file, and is to be asked about it before anybody else hears of its size or changes.
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
        let others = self.stateids.delegations(file);
        let Some(other) = others.into_iter().find(|other| self.stateids.delegation(other).write) else {
            return Ok(None);
        };
        let client = self.stateids.entry(&other).client;
        if Some(client) == by {
            return Ok(None);
        }
        let recalled = self.stateids.delegation(&other).recalled;
        if recalled || !self.can_be_called(client) || self.clients.is_expired(client, now) {
            return self.recall(locks, file, (by, Access::Read), now).map(|()| None);
        }
        Ok(Some(Held { client, file: file.clone(), stateid: self.stateids.current(&other) }))
    }

    /// A holder has told what it knows of its file: its change attribute, and whether the size is another than here. Whether it has
    /// changed the file since it got the delegation; once it has, it may go on to do so unseen (§10.4.3).
    pub fn is_modified(&mut self, held: &Held<F>, change: Option<u64>, size_differs: bool) -> bool {
        let Ok(other) = self.resolve_delegation(held.client, &held.file, &held.stateid) else { return false };
        let delegation = self.stateids.delegation_mut(&other);
        delegation.modified |= size_differs || change.is_some_and(|change| change != delegation.change);
        delegation.modified
    }

    /// Asks before a client opens a file other than by its delegation. Who has one to write does not ask; so the client does
    /// not know that it is the same file, as when it has mounted it twice, and would lock and write by itself what it should
    /// share with itself.
    ///
    /// # Errors
    /// DELAY: it has one to write, which has been recalled.
    pub(super) fn recall_own(&mut self, client: Clientid4, file: &F, now: Instant) -> Result<(), Nfsstat4> {
        match self.stateids.find_delegation(client, file) {
            Some(own) if self.stateids.delegation(&own).write => {
                self.begin_recall(&own, now);
                Err(Nfsstat4::Delay)
            }
            _ => Ok(()),
        }
    }

    /// The next delegation that is to be recalled.
    pub fn poll_recall(&mut self) -> Option<Held<F>> {
        self.delegations.recalls.pop_front()
    }

    /// Whether a client still has a delegation that is being recalled.
    pub fn is_recalling(&self, recall: &Held<F>) -> bool {
        let found = self.stateids.resolve(recall.client, Some(&recall.file), &recall.stateid);
        found.is_ok_and(|other| matches!(&self.stateids.entry(&other).kind, Kind::Delegation(held) if held.recalled))
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
    pub(super) fn delegate(
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
        if let Some(had) = self.stateids.find_delegation(client, file) {
            let upgrade = write && !self.stateids.delegation(&had).write;
            let why = if upgrade { WhyNoDelegation4::NotSuppUpgrade } else { WhyNoDelegation4::NotSuppDowngrade };
            return Err(OpenNoneDelegation4::Other(why));
        }
        let full = self.has_enough(client) || self.stateids.delegations_count() >= self.options.delegations_max;
        // GETATTR of 4.0 does not say whose it is, so that a writer would be asked about its own file, or have to give it back.
        if full || !self.can_be_called(client) || write && self.is_legacy(client) {
            return Err(RESOURCE);
        }
        let usage = locks.usage(file, LockClient::V4(client.0));
        let others = !self.stateids.delegations(file).is_empty();
        if usage.writes || (write && (usage.reads || others)) || self.is_contended(file, now) {
            return Err(CONTENTION);
        }
        // The order is what `marks.rs` says.
        let delegation = Delegation { write, recalled: false, change, modified: false };
        let group = self.group_of(client);
        let stateid = self.stateids.insert((client, group), file.clone(), Kind::Delegation(delegation));
        if self.marks().may_be_changing(file) {
            self.stateids.remove(&stateid.other);
            return Err(CONTENTION);
        }
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

    /// Deprives those of their delegations who were told to give them back, and had time enough.
    pub(super) fn revoke_overdue(&mut self, now: Instant) {
        while let Some(&(_, other)) = self.delegations.deadlines.front().filter(|(due, _)| *due <= now) {
            self.delegations.deadlines.pop_front();
            if !self.stateids.is_delegation(&other) {
                continue;
            }
            let client = self.stateids.entry(&other).client;
            self.lose_record(client);
            match self.is_legacy(client) {
                // 4.0 can neither be told nor free it: it is as if it had never been. So it takes no note, either.
                true => drop(self.stateids.remove(&other)),
                false => self.stateids.revoke(&other, Nfsstat4::DelegRevoked),
            }
        }
    }

    pub(super) fn begin_recall(&mut self, other: &Other, now: Instant) {
        if std::mem::replace(&mut self.stateids.delegation_mut(other).recalled, true) {
            return;
        }
        let entry = self.stateids.entry(other);
        let (client, file) = (entry.client, entry.file.clone());
        let contended = &mut self.delegations.contended;
        if contended.len() >= CONTENDED_MAX {
            contended.retain(|_, until| *until > now);
            if contended.len() >= CONTENDED_MAX {
                contended.clear();
            }
        }
        contended.insert(file.clone(), now + CONTENDED);
        // §10.2.1: a client has a lease's time at least.
        self.delegations.deadlines.push_back((now + self.options.lease, *other));
        let stateid = self.stateids.current(other);
        self.delegations.recalls.push_back(Held { client, file, stateid });
    }

    fn is_contended(&mut self, file: &F, now: Instant) -> bool {
        self.delegations.contended.get(file).is_some_and(|until| *until > now)
    }

    /// The delegation that a client means by a stateid, also while it is recalled (CLAIM_DELEGATE_CUR, §18.16.3).
    ///
    /// # Errors
    /// What is wrong with the stateid.
    pub(super) fn resolve_delegation(
        &self,
        client: Clientid4,
        file: &F,
        stateid: &Stateid4,
    ) -> Result<Other, Nfsstat4> {
        let other = self.stateids.resolve(client, Some(file), stateid)?;
        if self.stateids.is_delegation(&other) { Ok(other) } else { Err(Nfsstat4::BadStateid) }
    }
}

/// Whether a delegation to write is wanted, or one to read.
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

const RESOURCE: OpenNoneDelegation4 = OpenNoneDelegation4::Resource { server_will_signal_avail: false };
const CONTENTION: OpenNoneDelegation4 = OpenNoneDelegation4::Contention { server_will_push_deleg: false };
const CONTENDED_MAX: usize = 1 << 16;
/// How long a file is not delegated after it was recalled.
const CONTENDED: Duration = Duration::from_secs(30);
