//! [`Stateids`]: the stateids of opens, locks and delegations, and the validation of stateids in requests.
//!
//! Read RFC 8881 §8.2 (stateids) and §18.48 (TEST_STATEID). A stateid consists of its `other`, which never changes, and
//! a `seqid`, which counts the changes of the state. A lookup only finds the stateids of the client that asks.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    ops::Bound,
    sync::Arc,
};

use bytes::Bytes;
use entropy::HashMap;
use nfs::v4::{Clientid4, Nfsstat4, Stateid4};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use smallvec::SmallVec;

use super::{
    holds::Holds,
    hosts::Group,
    ids::Other,
    layout::LayoutGrant,
    recallable::{Delegation, Grant, Recallable, RecallableKind},
    shard::{Use, Uses},
};
use crate::{
    hash::{Map, digest},
    sharing::marks::Marks,
};

/// The stateids of all clients. `F` names a file.
#[derive(Debug)]
pub struct Stateids<F> {
    entries: Map<Other, Entry<F>>,
    by_client: Map<Clientid4, OfClient>,
    /// The number of stateids of each group.
    by_group: BTreeMap<Group, usize>,
    by_owner: Map<Key<F>, Other>,
    /// The number of opens under which a lock-owner has locks in a file.
    lock_owners: HashMap<(Clientid4, Bytes, F), u32>,
    /// The recallable state of each file, without revoked state.
    recallables: Map<F, SmallVec<[Other; 1]>>,
    recallable_counts: Map<RecallableKind, usize>,
    marks: Marks,
    holds: Holds<F>,
    /// The number of revoked stateids that each client has not freed, by their status.
    revoked: Map<(Clientid4, Nfsstat4), usize>,
    /// The number of this server start, so that stateids of earlier starts are not valid.
    instance: u32,
    /// Generates stateids that cannot be guessed.
    rng: StdRng,
}

/// The stateids of a client that has at least one.
#[derive(Debug)]
struct OfClient {
    group: Group,
    others: BTreeSet<Other>,
}

/// The key under which there is at most one stateid that is not revoked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Key<F> {
    Open(Clientid4, Bytes, F),
    /// The locks of an owner under an open.
    Lock(Other, Bytes),
    Recallable(RecallableKind, Clientid4, F),
}

// Bytes that a client chooses are hashed with a keyed digest.
impl<F: Hash> Hash for Key<F> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Open(client, owner, file) => (0, client, digest(owner), file).hash(state),
            Self::Lock(open, owner) => (1, open, digest(owner)).hash(state),
            Self::Recallable(kind, client, file) => (2, kind, client, file).hash(state),
        }
    }
}

/// The state of a stateid.
#[derive(Debug)]
pub struct Entry<F> {
    /// The client that holds it.
    pub client: Clientid4,
    /// The file.
    pub file: F,
    /// The kind of state.
    pub kind: Kind,
    /// EXPIRED, ADMIN_REVOKED or DELEG_REVOKED, if the state was revoked.
    pub revoked: Option<Nfsstat4>,
    seqid: u32,
    /// The shard that has this stateid among the stateids in use.
    cached_in: Option<Arc<Uses<F>>>,
}

/// The kinds of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An open.
    Open(Open),
    /// Byte-range locks of one owner, under one open.
    Lock {
        /// The owner.
        owner: Bytes,
        /// The open.
        open: Other,
    },
    /// Recallable state.
    Recallable(Recallable),
}

/// An open of one owner, who may have opened the file more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The owner.
    pub owner: Bytes,
    /// The `OPEN4_SHARE_ACCESS_` bits in effect.
    pub access: u32,
    /// The `OPEN4_SHARE_DENY_` bits in effect.
    pub deny: u32,
    /// The set of access values with which the file was opened: bit `n` for value `n`.
    pub(super) accesses: u8,
    /// The set of deny values, in the same form.
    pub(super) denials: u8,
    /// The lock stateids under this open.
    pub(super) locks: Vec<Other>,
}

impl<F: Clone + Eq + Hash> Stateids<F> {
    /// Creates an empty table. Stateids are generated from `seed`, which must be secret.
    pub fn new(instance: u32, seed: [u8; 32]) -> Self {
        Self {
            entries: Map::default(),
            by_client: Map::default(),
            by_group: BTreeMap::new(),
            by_owner: Map::default(),
            lock_owners: HashMap::default(),
            recallables: Map::default(),
            recallable_counts: Map::default(),
            marks: Marks::new(),
            holds: Holds::default(),
            revoked: Map::default(),
            instance,
            rng: StdRng::from_seed(seed),
        }
    }

    /// Returns the number of stateids, revoked ones included.
    pub fn total(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of stateids of a client, revoked ones included.
    pub fn count(&self, client: Clientid4) -> usize {
        self.by_client.get(&client).map_or(0, |of_client| of_client.others.len())
    }

    /// Returns the number of stateids of a group.
    pub(super) fn of_group(&self, group: Group) -> usize {
        self.by_group.get(&group).copied().unwrap_or(0)
    }

    /// Returns the number of stateids of a client that were revoked with `status` and are not freed.
    pub fn revoked(&self, client: Clientid4, status: Nfsstat4) -> usize {
        self.revoked.get(&(client, status)).copied().unwrap_or(0)
    }

    /// Returns `true` if a client has revoked stateids that it has not freed.
    pub fn has_revoked(&self, client: Clientid4) -> bool {
        let statuses = [Nfsstat4::Expired, Nfsstat4::AdminRevoked, Nfsstat4::DelegRevoked];
        statuses.into_iter().any(|status| self.revoked(client, status) > 0)
    }

    /// Adds state of a client and returns its stateid.
    ///
    /// # Panics
    /// Panics if `kind` is a lock under a stateid that is not an open.
    pub(super) fn insert(&mut self, (client, group): (Clientid4, Group), file: F, kind: Kind) -> Stateid4 {
        let other = self.new_other();
        if holds(&kind) {
            self.holds.add(&file);
        }
        match &kind {
            Kind::Open(_) => {}
            Kind::Lock { owner, open } => {
                self.open_mut(open).locks.push(other);
                *self.lock_owners.entry((client, owner.clone(), file.clone())).or_default() += 1;
            }
            Kind::Recallable(held) => {
                self.recallables.entry(file.clone()).or_default().push(other);
                *self.recallable_counts.entry(held.grant.kind()).or_default() += 1;
                self.marks.add(&file);
            }
        }
        self.by_owner.insert(key(client, &file, &kind), other);
        self.entries.insert(other, Entry { client, file, kind, revoked: None, seqid: 1, cached_in: None });
        let of_client = self.by_client.entry(client).or_insert_with(|| OfClient { group, others: BTreeSet::new() });
        of_client.others.insert(other);
        *self.by_group.entry(of_client.group).or_default() += 1;
        Stateid4 { seqid: 1, other }
    }

    fn new_other(&mut self) -> Other {
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.instance.to_be_bytes());
        loop {
            self.rng.fill_bytes(&mut other[4..]);
            // The special stateids have these values (§8.2.3).
            let is_special = other.iter().all(|byte| *byte == 0) || other.iter().all(|byte| *byte == u8::MAX);
            if !is_special && !self.entries.contains_key(&other) {
                return other;
            }
        }
    }

    /// Returns `true` if a stateid exists.
    pub fn contains(&self, other: &Other) -> bool {
        self.entries.contains_key(other)
    }

    /// Returns the client that holds a stateid.
    pub fn client_of(&self, other: &Other) -> Option<Clientid4> {
        self.entries.get(other).map(|entry| entry.client)
    }

    /// Returns the status of 4.0 for an unknown stateid (RFC 7530 §9.1.4). It may be from before the server's restart.
    pub fn status_of_unknown(&self, other: &Other) -> Nfsstat4 {
        let special = other.iter().all(|byte| *byte == 0) || other.iter().all(|byte| *byte == u8::MAX);
        if special || other[..4] == self.instance.to_be_bytes() { Nfsstat4::BadStateid } else { Nfsstat4::StaleStateid }
    }

    /// Returns the state of a stateid.
    ///
    /// # Panics
    /// Panics if the stateid does not exist.
    pub fn entry(&self, other: &Other) -> &Entry<F> {
        &self.entries[other]
    }

    /// Returns an open for changes.
    ///
    /// # Panics
    /// Panics if the stateid is not an open.
    pub fn open_mut(&mut self, other: &Other) -> &mut Open {
        self.uncache_use(other);
        if let Some(Kind::Open(open)) = self.entries.get(other).map(|entry| &entry.kind) {
            // Its lock stateids permit the same accesses as the open.
            let locks: SmallVec<[Other; 4]> = open.locks.iter().copied().collect();
            locks.iter().for_each(|lock| self.uncache_use(lock));
        }
        match self.entries.get_mut(other).map(|entry| &mut entry.kind) {
            Some(Kind::Open(open)) => open,
            _ => panic!("the stateid must be an open"),
        }
    }

    /// Returns an open.
    ///
    /// # Panics
    /// Panics if the stateid is not an open.
    pub fn open(&self, other: &Other) -> &Open {
        match &self.entries[other].kind {
            Kind::Open(open) => open,
            _ => panic!("the stateid must be an open"),
        }
    }

    /// Returns the open of a file by an owner.
    pub fn find_open(&self, client: Clientid4, owner: &Bytes, file: &F) -> Option<Other> {
        self.by_owner.get(&Key::Open(client, owner.clone(), file.clone())).copied()
    }

    /// Returns the locks of an owner under an open.
    pub fn find_lock(&self, open: &Other, owner: &Bytes) -> Option<Other> {
        self.by_owner.get(&Key::Lock(*open, owner.clone())).copied()
    }

    /// Returns the recallable state of a file.
    pub fn recallables(&self, file: &F) -> SmallVec<[Other; 1]> {
        self.recallables.get(file).cloned().unwrap_or_default()
    }

    /// Returns the number of grants of a kind.
    pub fn recallable_count(&self, kind: RecallableKind) -> usize {
        self.recallable_counts.get(&kind).copied().unwrap_or(0)
    }

    /// Returns all grants of a kind, with their clients.
    pub fn all_recallables(&self, kind: RecallableKind) -> impl Iterator<Item = (Clientid4, Other)> {
        let is_of_kind = move |other: &&Other| self.recallable(other).is_some_and(|held| held.grant.kind() == kind);
        let all = self.recallables.values().flatten().filter(is_of_kind);
        all.map(|other| (self.entries[other].client, *other))
    }

    /// Returns the files that may be delegated. They can be read without a lock on this table.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Returns the holds of the files for changes.
    pub(super) fn holds_mut(&mut self) -> &mut Holds<F> {
        &mut self.holds
    }

    /// Returns `true` if a client has an open or a delegation of a file that has lost its last name.
    pub fn keeps_removed(&self, client: Clientid4) -> bool {
        let Some(of_client) = self.by_client.get(&client) else { return false };
        let entries = of_client.others.iter().map(|other| &self.entries[other]);
        let mut holding = entries.filter(|entry| entry.revoked.is_none() && holds(&entry.kind));
        holding.any(|entry| self.holds.is_removed(&entry.file))
    }

    /// Returns the grant of a kind that a client holds on a file.
    pub fn find_recallable(&self, client: Clientid4, kind: RecallableKind, file: &F) -> Option<Other> {
        self.by_owner.get(&Key::Recallable(kind, client, file.clone())).copied()
    }

    /// Returns the recallable state of a stateid, unless it was revoked.
    pub fn recallable(&self, other: &Other) -> Option<&Recallable> {
        match self.entries.get(other).filter(|entry| entry.revoked.is_none()).map(|entry| &entry.kind) {
            Some(Kind::Recallable(held)) => Some(held),
            _ => None,
        }
    }

    /// Returns the recallable state of a stateid for changes, unless it was revoked.
    pub fn recallable_mut(&mut self, other: &Other) -> Option<&mut Recallable> {
        match self.entries.get_mut(other).filter(|entry| entry.revoked.is_none()).map(|entry| &mut entry.kind) {
            Some(Kind::Recallable(held)) => Some(held),
            _ => None,
        }
    }

    /// Returns the delegation of a stateid, unless it was revoked.
    pub fn delegation(&self, other: &Other) -> Option<&Delegation> {
        match &self.recallable(other)?.grant {
            Grant::Delegation(delegation) => Some(delegation),
            Grant::Layout(_) => None,
        }
    }

    /// Returns the delegation of a stateid for changes, unless it was revoked.
    pub fn delegation_mut(&mut self, other: &Other) -> Option<&mut Delegation> {
        match &mut self.recallable_mut(other)?.grant {
            Grant::Delegation(delegation) => Some(delegation),
            Grant::Layout(_) => None,
        }
    }

    /// Returns the layouts of a stateid.
    pub fn layout(&self, other: &Other) -> Option<&LayoutGrant> {
        match &self.recallable(other)?.grant {
            Grant::Layout(layout) => Some(layout),
            Grant::Delegation(_) => None,
        }
    }

    /// Returns the layouts of a stateid for changes.
    pub fn layout_mut(&mut self, other: &Other) -> Option<&mut LayoutGrant> {
        match &mut self.recallable_mut(other)?.grant {
            Grant::Layout(layout) => Some(layout),
            Grant::Delegation(_) => None,
        }
    }

    /// Validates a stateid of layouts (§12.5.5.2.1.4). Its `seqid` counts grants, returns and recalls, and the client sends
    /// several requests with the same one at a time. So an older one is valid as long as it can be that of a request in
    /// progress.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID.
    pub fn resolve_layout(&self, client: Clientid4, file: &F, stateid: &Stateid4) -> Result<Other, Nfsstat4> {
        let entry = self.entries.get(&stateid.other).ok_or(Nfsstat4::BadStateid)?;
        let known = self.layout(&stateid.other).is_some_and(|layout| layout.known);
        if entry.client != client || entry.file != *file || !known {
            return Err(Nfsstat4::BadStateid);
        }
        // Zero is skipped when the number wraps around, which makes no difference for this range.
        match entry.seqid.wrapping_sub(stateid.seqid) {
            _ if stateid.seqid == 0 => Err(Nfsstat4::BadStateid),
            0..=LAYOUT_SEQIDS_VALID => Ok(stateid.other),
            behind if behind < 1 << 31 => Err(Nfsstat4::OldStateid),
            _ => Err(Nfsstat4::BadStateid),
        }
    }

    /// Returns a stateid with its current `seqid`.
    ///
    /// # Panics
    /// Panics if the stateid does not exist.
    pub fn current(&self, other: &Other) -> Stateid4 {
        Stateid4 { seqid: self.entries[other].seqid, other: *other }
    }

    /// Returns `true` if a lock-owner has locks in a file, under any open.
    pub fn has_locks(&self, client: Clientid4, owner: &Bytes, file: &F) -> bool {
        self.lock_owners.contains_key(&(client, owner.clone(), file.clone()))
    }

    /// Increments the `seqid` of a stateid and returns the new stateid.
    ///
    /// # Panics
    /// Panics if the stateid does not exist.
    pub fn change(&mut self, other: &Other) -> Stateid4 {
        self.uncache_use(other);
        let entry = self.entries.get_mut(other).expect("the stateid must exist");
        // §8.2.2: a seqid of zero means the most recent one, so it is skipped.
        entry.seqid = entry.seqid.checked_add(1).unwrap_or(1);
        Stateid4 { seqid: entry.seqid, other: *other }
    }

    /// Adds a stateid to the stateids in use of its client's shard, until anything about it changes.
    ///
    /// # Panics
    /// Panics if the stateid does not exist.
    pub(super) fn cache_use(&mut self, other: &Other, (may_read, may_write): (bool, bool), uses: &Arc<Uses<F>>) {
        let entry = self.entries.get_mut(other).expect("the stateid must exist");
        let found = Use { file: entry.file.clone(), seqid: entry.seqid, may_read, may_write };
        entry.cached_in = Some(uses.clone());
        uses.insert(*other, found);
    }

    fn uncache_use(&mut self, other: &Other) {
        if let Some(uses) = self.entries.get_mut(other).and_then(|entry| entry.cached_in.take()) {
            uses.remove(other);
        }
    }

    /// Revokes the state of a stateid. Uses of the stateid fail with `status` until the client frees it.
    pub fn revoke(&mut self, other: &Other, status: Nfsstat4) {
        if self.entries.get(other).is_some_and(|entry| entry.revoked.is_none()) {
            self.uncache_use(other);
            self.unlink(other);
            let entry = self.entries.get_mut(other).expect("the stateid must exist");
            entry.revoked = Some(status);
            *self.revoked.entry((entry.client, status)).or_default() += 1;
        }
    }

    /// Removes a stateid with its state.
    pub fn remove(&mut self, other: &Other) -> Option<Entry<F>> {
        self.uncache_use(other);
        let Entry { client, revoked, .. } = self.entries.get(other)?;
        match revoked {
            None => self.unlink(other),
            Some(status) => {
                let lost = (*client, *status);
                let count = self.revoked.get_mut(&lost).expect("revoked stateids must be counted");
                *count -= 1;
                if *count == 0 {
                    self.revoked.remove(&lost);
                }
            }
        }
        let entry = self.entries.remove(other)?;
        let of_client = self.by_client.get_mut(&entry.client).expect("a stateid must be listed under its client");
        of_client.others.remove(other);
        let count = self.by_group.get_mut(&of_client.group).expect("the stateids of a group must be counted");
        *count -= 1;
        if *count == 0 {
            self.by_group.remove(&of_client.group);
        }
        if of_client.others.is_empty() {
            self.by_client.remove(&entry.client);
        }
        Some(entry)
    }

    /// Checks that all tables agree, and that all clients exist according to `is_client`.
    #[cfg(test)]
    pub(super) fn check(&self, is_client: impl Fn(Clientid4) -> bool) {
        assert_eq!(self.entries.len(), self.by_client.values().map(|of_client| of_client.others.len()).sum::<usize>());
        let mut by_group = BTreeMap::new();
        for OfClient { group, others } in self.by_client.values() {
            *by_group.entry(*group).or_insert(0) += others.len();
        }
        assert_eq!(self.by_group, by_group);
        let (mut revoked, mut lock_owners, mut recallables, mut owned) = (HashMap::default(), HashMap::default(), 0, 0);
        let mut held = HashMap::default();
        for (other, entry) in &self.entries {
            assert!(is_client(entry.client), "the client of a stateid must exist");
            assert!(self.by_client[&entry.client].others.contains(other));
            if let Some(status) = entry.revoked {
                *revoked.entry((entry.client, status)).or_insert(0) += 1;
                continue;
            }
            owned += 1;
            if holds(&entry.kind) {
                *held.entry(&entry.file).or_insert(0) += 1;
            }
            assert_eq!(self.by_owner.get(&key(entry.client, &entry.file, &entry.kind)), Some(other));
            match &entry.kind {
                Kind::Open(open) => assert!(open.locks.iter().all(|lock| self.entries.contains_key(lock))),
                Kind::Lock { owner, open } => {
                    assert!(self.open(open).locks.contains(other), "a lock must be listed under its open");
                    *lock_owners.entry((entry.client, owner.clone(), entry.file.clone())).or_insert(0) += 1;
                }
                Kind::Recallable(_) => {
                    assert!(self.recallables[&entry.file].contains(other));
                    recallables += 1;
                }
            }
        }
        assert_eq!((self.by_owner.len(), self.recallable_counts.values().sum()), (owned, recallables));
        assert_eq!(self.recallables.values().map(SmallVec::len).sum::<usize>(), recallables);
        assert_eq!(self.marks.any(), recallables > 0);
        assert!(self.lock_owners == lock_owners, "lock owners must be counted");
        assert!(self.holds.counts().collect::<HashMap<_, _>>() == held, "opens and delegations must be counted");
        assert_eq!(self.revoked.iter().map(|(of, count)| (*of, *count)).collect::<HashMap<_, _>>(), revoked);
    }

    /// Removes a stateid from the indexes, so that its owner can get another one.
    fn unlink(&mut self, other: &Other) {
        let Entry { client, file, kind, .. } = &self.entries[other];
        if holds(kind) {
            self.holds.remove(file);
        }
        self.by_owner.remove(&key(*client, file, kind));
        let (owner, open) = match kind {
            Kind::Open(_) => return,
            Kind::Lock { owner, open } => (owner, open),
            Kind::Recallable(held) => {
                let of_file = self.recallables.get_mut(file).expect("recallable state must be listed under its file");
                of_file.retain(|delegation| delegation != other);
                if of_file.is_empty() {
                    self.recallables.remove(file);
                }
                *self.recallable_counts.get_mut(&held.grant.kind()).expect("recallable state must be counted") -= 1;
                return self.marks.remove(file);
            }
        };
        let owner = (*client, owner.clone(), file.clone());
        let count = self.lock_owners.get_mut(&owner).expect("lock owners must be counted");
        *count -= 1;
        if *count == 0 {
            self.lock_owners.remove(&owner);
        }
        let open = *open;
        if let Some(Kind::Open(open)) = self.entries.get_mut(&open).map(|entry| &mut entry.kind) {
            open.locks.retain(|lock| lock != other);
        }
    }

    /// Returns the stateids of a client.
    pub fn of_client(&self, client: Clientid4) -> Vec<Other> {
        self.by_client.get(&client).map_or_else(Vec::new, |of_client| of_client.others.iter().copied().collect())
    }

    /// Returns the recallable state among the next `max` stateids of a client after `after`, and the position to
    /// continue from if there may be more.
    pub fn recallables_of(
        &self,
        client: Clientid4,
        after: Option<Other>,
        max: usize,
    ) -> (Vec<(F, Recallable)>, Option<Other>) {
        let Some(of_client) = self.by_client.get(&client) else { return (Vec::new(), None) };
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page: Vec<Other> = of_client.others.range((behind, Bound::Unbounded)).take(max).copied().collect();
        let entries = page.iter().map(|other| &self.entries[other]).filter(|entry| entry.revoked.is_none());
        let found = entries.filter_map(|entry| match &entry.kind {
            Kind::Recallable(held) => Some((entry.file.clone(), held.clone())),
            _ => None,
        });
        (found.collect(), page.last().copied().filter(|_| page.len() == max))
    }

    /// Validates a stateid that is not special, by the procedure of §8.2.4. `file` is the current file handle, if there
    /// is one.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, or the status with which it was revoked.
    pub fn resolve(&self, client: Clientid4, file: Option<&F>, stateid: &Stateid4) -> Result<Other, Nfsstat4> {
        //= rfc8881-8.2.3-6
        let entry = self.entries.get(&stateid.other).ok_or(Nfsstat4::BadStateid)?;
        if file.is_some_and(|file| entry.file != *file) || entry.client != client {
            return Err(Nfsstat4::BadStateid);
        }
        if let Some(status) = entry.revoked {
            return Err(status);
        }
        if stateid.seqid == 0 || stateid.seqid == entry.seqid {
            return Ok(stateid.other);
        }
        // Sequence numbers wrap around: a number is older if the distance to the current one is less than half of the
        // range.
        let behind = entry.seqid.wrapping_sub(stateid.seqid);
        Err(if behind < 1 << 31 { Nfsstat4::OldStateid } else { Nfsstat4::BadStateid })
    }
}

/// The number of `seqid`s of layouts before the current one that are valid. It is at least the number of operations that the
/// largest possible number of sessions can have in one request each (§12.5.5.2.1.4).
const LAYOUT_SEQIDS_VALID: u32 = 64 * 64;

/// Returns `true` for state that keeps the file.
fn holds(kind: &Kind) -> bool {
    match kind {
        Kind::Open(_) => true,
        Kind::Lock { .. } => false,
        Kind::Recallable(held) => matches!(held.grant, Grant::Delegation(_)),
    }
}

fn key<F: Clone>(client: Clientid4, file: &F, kind: &Kind) -> Key<F> {
    match kind {
        Kind::Open(open) => Key::Open(client, open.owner.clone(), file.clone()),
        Kind::Lock { owner, open } => Key::Lock(*open, owner.clone()),
        Kind::Recallable(held) => Key::Recallable(held.grant.kind(), client, file.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Clientid4 = Clientid4(1);

    fn open() -> Kind {
        Kind::Open(Open { owner: Bytes::new(), access: 1, deny: 0, accesses: 2, denials: 1, locks: Vec::new() })
    }

    #[test]
    fn stateid_is_valid_for_its_client_file_and_seqid() {
        let mut table = Stateids::new(3, [1; 32]);
        let first = table.insert((CLIENT, Group::NotAdmitted), 'f', open());
        let resolve = |table: &Stateids<char>, client, file, seqid| {
            table.resolve(client, file, &Stateid4 { seqid, ..first }).map(drop)
        };
        assert_eq!(resolve(&table, CLIENT, Some(&'f'), 1), Ok(()));
        assert_eq!(resolve(&table, CLIENT, Some(&'f'), 0), Ok(()), "zero means the most recent");
        assert_eq!(resolve(&table, CLIENT, None, 1), Ok(()));
        assert_eq!(resolve(&table, CLIENT, Some(&'g'), 1), Err(Nfsstat4::BadStateid));
        assert_eq!(resolve(&table, Clientid4(2), Some(&'f'), 1), Err(Nfsstat4::BadStateid));
        assert_eq!(resolve(&table, CLIENT, Some(&'f'), 2), Err(Nfsstat4::BadStateid), "a seqid of the future");
        let second = table.change(&first.other);
        assert_eq!(second, Stateid4 { seqid: 2, ..first });
        assert_eq!(resolve(&table, CLIENT, Some(&'f'), 1), Err(Nfsstat4::OldStateid));
        assert_eq!(resolve(&table, CLIENT, Some(&'f'), 2), Ok(()));
        table.revoke(&first.other, Nfsstat4::Expired);
        assert_eq!(resolve(&table, CLIENT, Some(&'f'), 2), Err(Nfsstat4::Expired));
        table.remove(&first.other);
        assert_eq!(resolve(&table, CLIENT, Some(&'f'), 2), Err(Nfsstat4::BadStateid));
        assert_eq!(table.count(CLIENT), 0);
    }

    #[test]
    fn seqids_wrap_around_and_skip_zero() {
        let mut table = Stateids::new(3, [1; 32]);
        let first = table.insert((CLIENT, Group::NotAdmitted), 'f', open());
        table.entries.get_mut(&first.other).unwrap().seqid = u32::MAX;
        assert_eq!(table.change(&first.other).seqid, 1);
        let old = Stateid4 { seqid: u32::MAX, ..first };
        assert_eq!(table.resolve(CLIENT, None, &old), Err(Nfsstat4::OldStateid));
        let behind = |distance: u32| Stateid4 { seqid: 1u32.wrapping_sub(distance), ..first };
        assert_eq!(table.resolve(CLIENT, None, &behind((1 << 31) - 1)), Err(Nfsstat4::OldStateid));
        assert_eq!(table.resolve(CLIENT, None, &behind(1 << 31)), Err(Nfsstat4::BadStateid), "it is of the future");
    }

    #[test]
    fn stateids_are_unique_and_belong_to_one_server_instance() {
        let (mut one, mut two) = (Stateids::new(1, [1; 32]), Stateids::new(2, [2; 32]));
        let names: BTreeSet<Other> =
            (0..100).map(|_| one.insert((CLIENT, Group::NotAdmitted), 'f', open()).other).collect();
        assert_eq!(names.len(), 100);
        let foreign = two.insert((CLIENT, Group::NotAdmitted), 'f', open());
        assert_eq!(one.resolve(CLIENT, None, &foreign), Err(Nfsstat4::BadStateid));
        for special in [Stateid4::ANONYMOUS, Stateid4::READ_BYPASS, Stateid4::CURRENT, Stateid4::INVALID] {
            assert_eq!(one.resolve(CLIENT, None, &special), Err(Nfsstat4::BadStateid));
        }
    }
}
