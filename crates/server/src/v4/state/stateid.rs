//! [`Stateids`]: the names of opens, locks and delegations, and what is wrong with those that clients send.
//!
//! Read RFC 8881 §8.2 (stateids) and §18.48 (TEST_STATEID). A stateid is its `other`, which never changes, and a `seqid`,
//! which counts the changes of what it stands for. What is found is of the client that asks, always.

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
    hosts::Group,
    ids::Other,
    recallable::{Delegation, Grant, Recallable, RecallableKind},
    shard::{Use, Uses},
};
use crate::{
    hash::{Map, digest},
    sharing::marks::Marks,
};

/// All stateids; `F` names a file.
#[derive(Debug)]
pub struct Stateids<F> {
    entries: Map<Other, Entry<F>>,
    by_client: Map<Clientid4, OfClient>,
    /// How many the clients of each group have.
    by_group: BTreeMap<Group, usize>,
    by_owner: Map<Key<F>, Other>,
    /// Under how many opens a lock-owner has locks in a file.
    lock_owners: HashMap<(Clientid4, Bytes, F), u32>,
    /// The recallable state of a file, but what was revoked.
    recallables: Map<F, SmallVec<[Other; 1]>>,
    recallable_counts: Map<RecallableKind, usize>,
    marks: Marks,
    /// How many clients have lost and not freed.
    revoked: Map<(Clientid4, Nfsstat4), usize>,
    /// The server's incarnation, so that stateids of an earlier one are not taken for others.
    instance: u32,
    /// Nobody can guess the names that it makes.
    rng: StdRng,
}

/// The stateids of a client, which has at least one.
#[derive(Debug)]
struct OfClient {
    group: Group,
    others: BTreeSet<Other>,
}

/// What there is one stateid of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Key<F> {
    Open(Clientid4, Bytes, F),
    /// Under an open.
    Lock(Other, Bytes),
    Recallable(RecallableKind, Clientid4, F),
}

// By what a client chooses only through its digest.
impl<F: Hash> Hash for Key<F> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Open(client, owner, file) => (0, client, digest(owner), file).hash(state),
            Self::Lock(open, owner) => (1, open, digest(owner)).hash(state),
            Self::Recallable(kind, client, file) => (2, kind, client, file).hash(state),
        }
    }
}

/// What a stateid stands for.
#[derive(Debug)]
pub struct Entry<F> {
    /// Whose it is.
    pub client: Clientid4,
    /// Of which file.
    pub file: F,
    /// What.
    pub kind: Kind,
    /// EXPIRED, ADMIN_REVOKED or DELEG_REVOKED, if the client has lost it.
    pub revoked: Option<Nfsstat4>,
    seqid: u32,
    /// Where it is noted as good.
    noted: Option<Arc<Uses<F>>>,
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
    /// What the server can recall.
    Recallable(Recallable),
}

/// An open of one owner, which may have opened the file more than once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The owner.
    pub owner: Bytes,
    /// The `OPEN4_SHARE_ACCESS_` bits in effect.
    pub access: u32,
    /// The `OPEN4_SHARE_DENY_` bits in effect.
    pub deny: u32,
    /// The accesses with which it was opened: bit `n` for access `n`.
    pub(super) accesses: u8,
    /// The denials, as well.
    pub(super) denials: u8,
    /// Locks under it.
    pub(super) locks: Vec<Other>,
}

impl<F: Clone + Eq + Hash> Stateids<F> {
    /// None. Their names come from `seed`, which nobody else may know.
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
            revoked: Map::default(),
            instance,
            rng: StdRng::from_seed(seed),
        }
    }

    /// How many there are, those included that clients have lost.
    pub fn total(&self) -> usize {
        self.entries.len()
    }

    /// How many a client has, those included that it has lost.
    pub fn count(&self, client: Clientid4) -> usize {
        self.by_client.get(&client).map_or(0, |of_client| of_client.others.len())
    }

    /// How many the clients of a group have.
    pub(super) fn of_group(&self, group: Group) -> usize {
        self.by_group.get(&group).copied().unwrap_or(0)
    }

    /// How many a client has lost for `status`, and not freed.
    pub fn revoked(&self, client: Clientid4, status: Nfsstat4) -> usize {
        self.revoked.get(&(client, status)).copied().unwrap_or(0)
    }

    /// Whether a client has lost any, and not freed it.
    pub fn has_revoked(&self, client: Clientid4) -> bool {
        let statuses = [Nfsstat4::Expired, Nfsstat4::AdminRevoked, Nfsstat4::DelegRevoked];
        statuses.into_iter().any(|status| self.revoked(client, status) > 0)
    }

    /// A new one of a client, which is of this group.
    ///
    /// # Panics
    /// If it is of locks under what is no open.
    pub(super) fn insert(&mut self, (client, group): (Clientid4, Group), file: F, kind: Kind) -> Stateid4 {
        let other = self.new_other();
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
        self.entries.insert(other, Entry { client, file, kind, revoked: None, seqid: 1, noted: None });
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
            // No special one is of this kind (§8.2.3).
            let is_special = other.iter().all(|byte| *byte == 0) || other.iter().all(|byte| *byte == u8::MAX);
            if !is_special && !self.entries.contains_key(&other) {
                return other;
            }
        }
    }

    /// Whether there is such a one.
    pub fn contains(&self, other: &Other) -> bool {
        self.entries.contains_key(other)
    }

    /// Whose it is.
    pub fn client_of(&self, other: &Other) -> Option<Clientid4> {
        self.entries.get(other).map(|entry| entry.client)
    }

    /// What 4.0 says of one that there is not (RFC 7530 §9.1.4): it may be from before the server's restart.
    pub fn unknown(&self, other: &Other) -> Nfsstat4 {
        let special = other.iter().all(|byte| *byte == 0) || other.iter().all(|byte| *byte == u8::MAX);
        if special || other[..4] == self.instance.to_be_bytes() { Nfsstat4::BadStateid } else { Nfsstat4::StaleStateid }
    }

    /// What a stateid stands for.
    ///
    /// # Panics
    /// If there is no such one.
    pub fn entry(&self, other: &Other) -> &Entry<F> {
        &self.entries[other]
    }

    /// The open that a stateid stands for, to be changed.
    ///
    /// # Panics
    /// If there is no such one.
    pub fn open_mut(&mut self, other: &Other) -> &mut Open {
        self.forget_noted(other);
        if let Some(Kind::Open(open)) = self.entries.get(other).map(|entry| &entry.kind) {
            // They are good for what the open is good for.
            let locks: SmallVec<[Other; 4]> = open.locks.iter().copied().collect();
            locks.iter().for_each(|lock| self.forget_noted(lock));
        }
        match self.entries.get_mut(other).map(|entry| &mut entry.kind) {
            Some(Kind::Open(open)) => open,
            _ => panic!("an open that was found"),
        }
    }

    /// The open that a stateid stands for.
    ///
    /// # Panics
    /// If there is no such one.
    pub fn open(&self, other: &Other) -> &Open {
        match &self.entries[other].kind {
            Kind::Open(open) => open,
            _ => panic!("an open that was found"),
        }
    }

    /// The open of a file by an owner.
    pub fn find_open(&self, client: Clientid4, owner: &Bytes, file: &F) -> Option<Other> {
        self.by_owner.get(&Key::Open(client, owner.clone(), file.clone())).copied()
    }

    /// The locks of an owner under an open.
    pub fn find_lock(&self, open: &Other, owner: &Bytes) -> Option<Other> {
        self.by_owner.get(&Key::Lock(*open, owner.clone())).copied()
    }

    /// The recallable state of a file.
    pub fn recallables(&self, file: &F) -> SmallVec<[Other; 1]> {
        self.recallables.get(file).cloned().unwrap_or_default()
    }

    /// How much there is of a kind.
    pub fn recallable_count(&self, kind: RecallableKind) -> usize {
        self.recallable_counts.get(&kind).copied().unwrap_or(0)
    }

    /// The recallable state of a kind that clients have, and whose it is.
    pub fn all_recallables(&self, kind: RecallableKind) -> impl Iterator<Item = (Clientid4, Other)> {
        let is_of_kind = move |other: &&Other| self.recallable(other).is_some_and(|held| held.grant.kind() == kind);
        let all = self.recallables.values().flatten().filter(is_of_kind);
        all.map(|other| (self.entries[other].client, *other))
    }

    /// The files that may have delegations, for asking without this table.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// What a client has of a file, of a kind.
    pub fn find_recallable(&self, client: Clientid4, kind: RecallableKind, file: &F) -> Option<Other> {
        self.by_owner.get(&Key::Recallable(kind, client, file.clone())).copied()
    }

    /// The recallable state that one stands for, if its client has it still.
    pub fn recallable(&self, other: &Other) -> Option<&Recallable> {
        match self.entries.get(other).filter(|entry| entry.revoked.is_none()).map(|entry| &entry.kind) {
            Some(Kind::Recallable(held)) => Some(held),
            _ => None,
        }
    }

    /// The recallable state that one stands for, if its client has it still, to be changed.
    pub fn recallable_mut(&mut self, other: &Other) -> Option<&mut Recallable> {
        match self.entries.get_mut(other).filter(|entry| entry.revoked.is_none()).map(|entry| &mut entry.kind) {
            Some(Kind::Recallable(held)) => Some(held),
            _ => None,
        }
    }

    /// The delegation that one stands for, if its client has it still.
    pub fn delegation(&self, other: &Other) -> Option<&Delegation> {
        self.recallable(other).map(|Recallable { grant: Grant::Delegation(delegation), .. }| delegation)
    }

    /// The delegation that one stands for, if its client has it still, to be changed.
    pub fn delegation_mut(&mut self, other: &Other) -> Option<&mut Delegation> {
        self.recallable_mut(other).map(|Recallable { grant: Grant::Delegation(delegation), .. }| delegation)
    }

    /// A stateid as it is now.
    ///
    /// # Panics
    /// If there is no such one.
    pub fn current(&self, other: &Other) -> Stateid4 {
        Stateid4 { seqid: self.entries[other].seqid, other: *other }
    }

    /// Whether a lock-owner has locks in a file, under any open.
    pub fn has_locks(&self, client: Clientid4, owner: &Bytes, file: &F) -> bool {
        self.lock_owners.contains_key(&(client, owner.clone(), file.clone()))
    }

    /// Counts a change, and gives the stateid as it is from now on.
    ///
    /// # Panics
    /// If there is no such one.
    pub fn change(&mut self, other: &Other) -> Stateid4 {
        self.forget_noted(other);
        let entry = self.entries.get_mut(other).expect("a stateid that was found");
        // §8.2.2: zero means the most recent, so it is passed over.
        entry.seqid = entry.seqid.checked_add(1).unwrap_or(1);
        Stateid4 { seqid: entry.seqid, other: *other }
    }

    /// Notes that one is good to read by, or to write, until anything about it changes.
    ///
    /// # Panics
    /// If there is no such one.
    pub(super) fn note_use(&mut self, other: &Other, may_write: bool, uses: &Arc<Uses<F>>) {
        let entry = self.entries.get_mut(other).expect("a stateid that was found");
        let found = Use { file: entry.file.clone(), seqid: entry.seqid, may_write };
        entry.noted = Some(uses.clone());
        uses.note(*other, found);
    }

    fn forget_noted(&mut self, other: &Other) {
        if let Some(uses) = self.entries.get_mut(other).and_then(|entry| entry.noted.take()) {
            uses.forget(other);
        }
    }

    /// Takes what one stands for; the client is told so with `status`, until it frees the stateid.
    pub fn revoke(&mut self, other: &Other, status: Nfsstat4) {
        if self.entries.get(other).is_some_and(|entry| entry.revoked.is_none()) {
            self.forget_noted(other);
            self.disown(other);
            let entry = self.entries.get_mut(other).expect("it is there");
            entry.revoked = Some(status);
            *self.revoked.entry((entry.client, status)).or_default() += 1;
        }
    }

    /// Forgets one.
    pub fn remove(&mut self, other: &Other) -> Option<Entry<F>> {
        self.forget_noted(other);
        let Entry { client, revoked, .. } = self.entries.get(other)?;
        match revoked {
            None => self.disown(other),
            Some(status) => {
                let lost = (*client, *status);
                let count = self.revoked.get_mut(&lost).expect("it was counted");
                *count -= 1;
                if *count == 0 {
                    self.revoked.remove(&lost);
                }
            }
        }
        let entry = self.entries.remove(other)?;
        let of_client = self.by_client.get_mut(&entry.client).expect("each is some client's");
        of_client.others.remove(other);
        let count = self.by_group.get_mut(&of_client.group).expect("it was counted");
        *count -= 1;
        if *count == 0 {
            self.by_group.remove(&of_client.group);
        }
        if of_client.others.is_empty() {
            self.by_client.remove(&entry.client);
        }
        Some(entry)
    }

    /// Checks that all tables agree, and that all are of such clients.
    #[cfg(test)]
    pub(super) fn check(&self, is_client: impl Fn(Clientid4) -> bool) {
        assert_eq!(self.entries.len(), self.by_client.values().map(|of_client| of_client.others.len()).sum::<usize>());
        let mut by_group = BTreeMap::new();
        for OfClient { group, others } in self.by_client.values() {
            *by_group.entry(*group).or_insert(0) += others.len();
        }
        assert_eq!(self.by_group, by_group);
        let (mut revoked, mut lock_owners, mut recallables, mut owned) = (HashMap::default(), HashMap::default(), 0, 0);
        for (other, entry) in &self.entries {
            assert!(is_client(entry.client), "a client for each stateid");
            assert!(self.by_client[&entry.client].others.contains(other));
            if let Some(status) = entry.revoked {
                *revoked.entry((entry.client, status)).or_insert(0) += 1;
                continue;
            }
            owned += 1;
            assert_eq!(self.by_owner.get(&key(entry.client, &entry.file, &entry.kind)), Some(other));
            match &entry.kind {
                Kind::Open(open) => assert!(open.locks.iter().all(|lock| self.entries.contains_key(lock))),
                Kind::Lock { owner, open } => {
                    assert!(self.open(open).locks.contains(other), "locks are under an open");
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
        assert!(self.lock_owners == lock_owners, "owners of locks are counted");
        assert_eq!(self.revoked.iter().map(|(of, count)| (*of, *count)).collect::<HashMap<_, _>>(), revoked);
    }

    /// Lets its owner have another in its place.
    fn disown(&mut self, other: &Other) {
        let Entry { client, file, kind, .. } = &self.entries[other];
        self.by_owner.remove(&key(*client, file, kind));
        let (owner, open) = match kind {
            Kind::Open(_) => return,
            Kind::Lock { owner, open } => (owner, open),
            Kind::Recallable(held) => {
                let of_file = self.recallables.get_mut(file).expect("it is listed");
                of_file.retain(|delegation| delegation != other);
                if of_file.is_empty() {
                    self.recallables.remove(file);
                }
                *self.recallable_counts.get_mut(&held.grant.kind()).expect("it was counted") -= 1;
                return self.marks.remove(file);
            }
        };
        let owner = (*client, owner.clone(), file.clone());
        let count = self.lock_owners.get_mut(&owner).expect("it was counted");
        *count -= 1;
        if *count == 0 {
            self.lock_owners.remove(&owner);
        }
        let open = *open;
        if let Some(Kind::Open(open)) = self.entries.get_mut(&open).map(|entry| &mut entry.kind) {
            open.locks.retain(|lock| lock != other);
        }
    }

    /// Those of a client.
    pub fn of_client(&self, client: Clientid4) -> Vec<Other> {
        self.by_client.get(&client).map_or_else(Vec::new, |of_client| of_client.others.iter().copied().collect())
    }

    /// The recallable state of a client that is among its next `max` stateids behind `after`, and where to go on, if there may be
    /// more.
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

    /// Finds what a client means by a stateid that is none of the special ones, by the procedure of §8.2.4. `file` is the
    /// current file handle, where there is one.
    ///
    /// # Errors
    /// BAD_STATEID, OLD_STATEID, or what it was revoked with.
    pub fn resolve(&self, client: Clientid4, file: Option<&F>, stateid: &Stateid4) -> Result<Other, Nfsstat4> {
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
        // Counts wrap around, so that one is older than another if it is less than half of all behind it.
        let behind = entry.seqid.wrapping_sub(stateid.seqid);
        Err(if behind < 1 << 31 { Nfsstat4::OldStateid } else { Nfsstat4::BadStateid })
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
    fn a_stateid_is_good_for_its_client_and_file_and_time() {
        let mut table = Stateids::new(3, [1; 32]);
        let first = table.insert((CLIENT, Group::Strangers), 'f', open());
        let resolve = |table: &Stateids<char>, client, file, seqid| {
            table.resolve(client, file, &Stateid4 { seqid, ..first }).map(drop)
        };
        assert_eq!(resolve(&table, CLIENT, Some(&'f'), 1), Ok(()));
        assert_eq!(resolve(&table, CLIENT, Some(&'f'), 0), Ok(()), "the most recent");
        assert_eq!(resolve(&table, CLIENT, None, 1), Ok(()));
        assert_eq!(resolve(&table, CLIENT, Some(&'g'), 1), Err(Nfsstat4::BadStateid));
        assert_eq!(resolve(&table, Clientid4(2), Some(&'f'), 1), Err(Nfsstat4::BadStateid));
        assert_eq!(resolve(&table, CLIENT, Some(&'f'), 2), Err(Nfsstat4::BadStateid), "of the future");
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
    fn counts_wrap_around_and_pass_over_zero() {
        let mut table = Stateids::new(3, [1; 32]);
        let first = table.insert((CLIENT, Group::Strangers), 'f', open());
        table.entries.get_mut(&first.other).unwrap().seqid = u32::MAX;
        assert_eq!(table.change(&first.other).seqid, 1);
        let old = Stateid4 { seqid: u32::MAX, ..first };
        assert_eq!(table.resolve(CLIENT, None, &old), Err(Nfsstat4::OldStateid));
    }

    #[test]
    fn no_two_are_alike_nor_those_of_another_incarnation() {
        let (mut one, mut two) = (Stateids::new(1, [1; 32]), Stateids::new(2, [2; 32]));
        let names: BTreeSet<Other> =
            (0..100).map(|_| one.insert((CLIENT, Group::Strangers), 'f', open()).other).collect();
        assert_eq!(names.len(), 100);
        let foreign = two.insert((CLIENT, Group::Strangers), 'f', open());
        assert_eq!(one.resolve(CLIENT, None, &foreign), Err(Nfsstat4::BadStateid));
        for special in [Stateid4::ANONYMOUS, Stateid4::READ_BYPASS, Stateid4::CURRENT, Stateid4::INVALID] {
            assert_eq!(one.resolve(CLIENT, None, &special), Err(Nfsstat4::BadStateid));
        }
    }
}
