//! Who locks: owners of locks, the clients they are on, and what each of them takes.

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use smallvec::SmallVec;

use super::{FileId, Limits};
use crate::hash::{Map, digest};

/// A client, by the number that its protocol gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockClient {
    /// A host that locks by NLM.
    Nlm(u32),
    /// An NFSv4 client: its `clientid4`.
    V4(u64),
}

/// Who owns locks: whatever the client tells its processes apart by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// On which client.
    pub client: LockClient,
    /// For NLM `svid` and `oh`, for NFSv4 the lock-owner or open-owner.
    pub opaque: SmallVec<[u8; 32]>,
}

impl Owner {
    /// What it is found by: all that a client chooses is in it only through its digest.
    fn key(&self) -> (LockClient, u64) {
        (self.client, digest(&self.opaque))
    }
}

/// An owner, while it has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OwnerId(u32);

/// What an owner has.
#[derive(Debug)]
pub(super) struct OwnerState {
    pub(super) owner: Arc<Owner>,
    key: (LockClient, u64),
    /// Ranges that it holds, in all files.
    pub(super) held: usize,
    /// Requests of its that wait: in which files, once for each.
    pub(super) waits: Vec<FileId>,
    /// Files in which it has anything, in order.
    files: SmallVec<[FileId; 2]>,
}

/// What a client has.
#[derive(Debug, Default)]
struct ClientState {
    owners: BTreeSet<OwnerId>,
    /// Ranges and shares, and what its owners take beside them.
    units: usize,
    waiters: usize,
}

/// All owners that have something.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Those of one digest, of which there is hardly ever more than one.
    ids: Map<(LockClient, u64), SmallVec<[OwnerId; 1]>>,
    states: Map<OwnerId, OwnerState>,
    clients: Map<LockClient, ClientState>,
    next: u32,
    units: usize,
    waiters: usize,
}

impl Owners {
    pub(super) fn find(&self, owner: &Owner) -> Option<OwnerId> {
        self.find_by(owner.key(), owner)
    }

    fn find_by(&self, key: (LockClient, u64), owner: &Owner) -> Option<OwnerId> {
        self.ids.get(&key)?.iter().copied().find(|id| *self.states[id].owner == *owner)
    }

    /// The number of an owner, who may be new. [`forget_if_idle`](Self::forget_if_idle) must follow if nothing came of
    /// it.
    pub(super) fn intern(&mut self, owner: &Owner) -> OwnerId {
        let key = owner.key();
        if let Some(id) = self.find_by(key, owner) {
            return id;
        }
        let id = loop {
            self.next = self.next.wrapping_add(1);
            if !self.states.contains_key(&OwnerId(self.next)) {
                break OwnerId(self.next);
            }
        };
        let owner = Arc::new(Owner { client: owner.client, opaque: SmallVec::from_slice(&owner.opaque) });
        let client = self.clients.entry(owner.client).or_default();
        client.owners.insert(id);
        client.units += units(&owner);
        self.units += units(&owner);
        self.ids.entry(key).or_default().push(id);
        self.states.insert(id, OwnerState { owner, key, held: 0, waits: Vec::new(), files: SmallVec::new() });
        id
    }

    pub(super) fn state(&self, id: OwnerId) -> &OwnerState {
        &self.states[&id]
    }

    fn state_mut(&mut self, id: OwnerId) -> &mut OwnerState {
        self.states.get_mut(&id).expect("an owner that has something is known")
    }

    fn client_of(&mut self, id: OwnerId) -> &mut ClientState {
        let client = self.states[&id].owner.client;
        self.clients.get_mut(&client).expect("a client with owners is known")
    }

    /// Whether the client of this owner, and all together, may have `more` ranges or shares.
    pub(super) fn has_room(&self, id: OwnerId, more: usize, limits: &Limits) -> bool {
        let client = &self.clients[&self.states[&id].owner.client];
        client.units + more <= limits.client_max && self.units + more <= limits.total_max
    }

    /// Whether one more may wait.
    pub(super) fn has_room_to_wait(&self, id: OwnerId, limits: &Limits) -> bool {
        let client = &self.clients[&self.states[&id].owner.client];
        client.waiters < limits.client_waiters_max && self.waiters < limits.total_waiters_max
    }

    /// Its ranges were `before`, and are `after` now.
    pub(super) fn count_held(&mut self, id: OwnerId, before: usize, after: usize) {
        let state = self.state_mut(id);
        state.held = state.held - before + after;
        self.count_units(id, before, after);
    }

    /// Its ranges or shares were `before`, and are `after` now.
    pub(super) fn count_units(&mut self, id: OwnerId, before: usize, after: usize) {
        let client = self.client_of(id);
        client.units = client.units - before + after;
        self.units = self.units - before + after;
    }

    pub(super) fn begin_wait(&mut self, id: OwnerId, file: FileId) {
        self.state_mut(id).waits.push(file);
        self.client_of(id).waiters += 1;
        self.waiters += 1;
    }

    pub(super) fn end_wait(&mut self, id: OwnerId, file: FileId) {
        let waits = &mut self.state_mut(id).waits;
        let at = waits.iter().position(|&other| other == file).expect("a waiter is counted");
        waits.swap_remove(at);
        self.client_of(id).waiters -= 1;
        self.waiters -= 1;
    }

    /// Notes whether an owner has anything in a file. He may have been forgotten, if he has nothing anywhere.
    pub(super) fn note_file(&mut self, id: OwnerId, file: FileId, present: bool) {
        if !present && !self.states.contains_key(&id) {
            return;
        }
        let files = &mut self.state_mut(id).files;
        match (files.binary_search(&file), present) {
            (Err(at), true) => files.insert(at, file),
            (Ok(at), false) => drop(files.remove(at)),
            _ => {}
        }
    }

    /// The files in which an owner has anything.
    pub(super) fn files(&self, id: OwnerId) -> Vec<FileId> {
        self.states[&id].files.to_vec()
    }

    pub(super) fn of_client(&self, client: LockClient) -> Vec<OwnerId> {
        self.clients.get(&client).map(|client| client.owners.iter().copied().collect()).unwrap_or_default()
    }

    /// Those of a client from one on, in order.
    pub(super) fn of_client_from(&self, client: LockClient, from: Option<OwnerId>) -> impl Iterator<Item = OwnerId> {
        let owners = self.clients.get(&client).map(|client| &client.owners);
        let from = from.map_or(Bound::Unbounded, Bound::Included);
        owners.into_iter().flat_map(move |owners| owners.range((from, Bound::Unbounded)).copied())
    }

    /// The files in which an owner has anything, behind one of them, in order.
    pub(super) fn files_behind(&self, id: OwnerId, last: Option<FileId>) -> &[FileId] {
        let files = &self.states[&id].files;
        &files[files.partition_point(|file| Some(*file) <= last)..]
    }

    pub(super) fn has_client(&self, client: LockClient) -> bool {
        self.clients.contains_key(&client)
    }

    /// Forgets an owner that has nothing, unless that has been done.
    pub(super) fn forget_if_idle(&mut self, id: OwnerId) {
        if self.states.get(&id).is_none_or(|state| !state.files.is_empty()) {
            return;
        }
        let state = self.states.remove(&id).expect("it was there");
        assert!(state.held == 0 && state.waits.is_empty(), "an owner has locks in no file");
        let alike = self.ids.get_mut(&state.key).expect("an owner is found by its key");
        alike.retain(|other| *other != id);
        if alike.is_empty() {
            self.ids.remove(&state.key);
        }
        let key = state.owner.client;
        let client = self.clients.get_mut(&key).expect("a client with owners is known");
        client.owners.remove(&id);
        client.units -= units(&state.owner);
        self.units -= units(&state.owner);
        if client.owners.is_empty() {
            assert!(client.units == 0 && client.waiters == 0, "a client has locks without owners");
            self.clients.remove(&key);
        }
    }

    /// Ranges, shares and owners in all; for tests and reports.
    pub(super) fn units(&self) -> usize {
        self.units
    }
}

/// What an owner takes, as long as it has anything: its name may be long.
fn units(owner: &Owner) -> usize {
    owner.opaque.len() / 64
}
