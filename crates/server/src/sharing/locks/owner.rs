//! Lock owners, their clients, and the locks that each of them counts.

use std::{collections::BTreeSet, ops::Bound, sync::Arc};

use smallvec::SmallVec;

use super::{FileId, Limits};
use crate::hash::{Map, digest};

/// A client, identified by the number that its protocol gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockClient {
    /// A host that locks by NLM.
    Nlm(u32),
    /// An NFSv4 client: its `clientid4`.
    V4(u64),
}

/// The owner of locks: a process or file description of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The client.
    pub client: LockClient,
    /// The name of the owner: `svid` and `oh` for NLM, the lock-owner or open-owner for NFSv4.
    pub opaque: SmallVec<[u8; 32]>,
}

impl Owner {
    /// Returns the key of the hash table of owners. Data chosen by the client is only part of it as a digest.
    fn key(&self) -> (LockClient, u64) {
        (self.client, digest(&self.opaque))
    }
}

/// The number of an owner that has locks, shares or requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct OwnerId(u32);

/// The locks, shares and requests of an owner.
#[derive(Debug)]
pub(super) struct OwnerState {
    pub(super) owner: Arc<Owner>,
    key: (LockClient, u64),
    /// The number of ranges that the owner has locked, in all files.
    pub(super) held: usize,
    /// The file of each waiting or watching request.
    pub(super) waits: Vec<FileId>,
    /// The files in which the owner has a lock, share or request, sorted.
    files: SmallVec<[FileId; 2]>,
}

/// The locks, shares and requests of a client.
#[derive(Debug, Default)]
struct ClientState {
    owners: BTreeSet<OwnerId>,
    /// The number of ranges and shares, and of units for the names of owners.
    units: usize,
    waiters: usize,
}

/// All owners that have locks, shares or requests.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The owners of each digest. There is rarely more than one.
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

    /// Returns the number of an owner, which is added if it is new. The caller must call
    /// [`forget_if_idle`](Self::forget_if_idle) if the owner gets no lock, share or request.
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
        self.states.get_mut(&id).expect("owner must be in `states`")
    }

    fn client_of(&mut self, id: OwnerId) -> &mut ClientState {
        let client = self.states[&id].owner.client;
        self.clients.get_mut(&client).expect("client of an owner must be in `clients`")
    }

    /// Returns `true` if `more` ranges or shares stay within the bounds of the owner's client and of the table.
    pub(super) fn has_room(&self, id: OwnerId, more: usize, limits: &Limits) -> bool {
        let client = &self.clients[&self.states[&id].owner.client];
        client.units + more <= limits.client_max && self.units + more <= limits.total_max
    }

    /// Returns `true` if one more waiting request stays within the bounds of the owner's client and of the table.
    pub(super) fn has_room_to_wait(&self, id: OwnerId, limits: &Limits) -> bool {
        let client = &self.clients[&self.states[&id].owner.client];
        client.waiters < limits.client_waiters_max && self.waiters < limits.total_waiters_max
    }

    /// Updates the counters after the number of an owner's ranges has changed.
    pub(super) fn count_held(&mut self, id: OwnerId, before: usize, after: usize) {
        let state = self.state_mut(id);
        state.held = state.held - before + after;
        self.count_units(id, before, after);
    }

    /// Updates the counters after the number of an owner's ranges or shares has changed.
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
        let at = waits.iter().position(|&other| other == file).expect("waiter must have been counted");
        waits.swap_remove(at);
        self.client_of(id).waiters -= 1;
        self.waiters -= 1;
    }

    /// Records whether an owner has a lock, share or request in a file. The owner may already have been removed if it
    /// has none in any file.
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

    /// Returns the files in which an owner has a lock, share or request.
    pub(super) fn files(&self, id: OwnerId) -> Vec<FileId> {
        self.states[&id].files.to_vec()
    }

    pub(super) fn of_client(&self, client: LockClient) -> Vec<OwnerId> {
        self.clients.get(&client).map(|client| client.owners.iter().copied().collect()).unwrap_or_default()
    }

    /// Returns the owners of a client in order, beginning with `from`.
    pub(super) fn of_client_from(&self, client: LockClient, from: Option<OwnerId>) -> impl Iterator<Item = OwnerId> {
        let owners = self.clients.get(&client).map(|client| &client.owners);
        let from = from.map_or(Bound::Unbounded, Bound::Included);
        owners.into_iter().flat_map(move |owners| owners.range((from, Bound::Unbounded)).copied())
    }

    /// Returns the files after `last` in which an owner has a lock, share or request, in order.
    pub(super) fn files_after(&self, id: OwnerId, last: Option<FileId>) -> &[FileId] {
        let files = &self.states[&id].files;
        &files[files.partition_point(|file| Some(*file) <= last)..]
    }

    pub(super) fn has_client(&self, client: LockClient) -> bool {
        self.clients.contains_key(&client)
    }

    /// Removes an owner that has no lock, share or request. Does nothing if that has already been done.
    pub(super) fn forget_if_idle(&mut self, id: OwnerId) {
        if self.states.get(&id).is_none_or(|state| !state.files.is_empty()) {
            return;
        }
        let state = self.states.remove(&id).expect("owner must be in `states`");
        assert!(state.held == 0 && state.waits.is_empty(), "owner without files must have no locks");
        let alike = self.ids.get_mut(&state.key).expect("owner must be in `ids`");
        alike.retain(|other| *other != id);
        if alike.is_empty() {
            self.ids.remove(&state.key);
        }
        let key = state.owner.client;
        let client = self.clients.get_mut(&key).expect("client of an owner must be in `clients`");
        client.owners.remove(&id);
        client.units -= units(&state.owner);
        self.units -= units(&state.owner);
        if client.owners.is_empty() {
            assert!(client.units == 0 && client.waiters == 0, "client without owners must have no locks");
            self.clients.remove(&key);
        }
    }

    /// Returns the number of units in the table, for tests and reports.
    pub(super) fn units(&self) -> usize {
        self.units
    }
}

/// Returns the number of units for the name of an owner, which can be long.
fn units(owner: &Owner) -> usize {
    owner.opaque.len() / 64
}
