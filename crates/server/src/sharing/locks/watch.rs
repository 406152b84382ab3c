//! Requests that were denied, and whose owners are told when they may ask again: what waiting is in NFSv4 (RFC 8881 §9.6).
//!
//! Nothing is kept for them meanwhile: nobody is polite to them, and they wait for nobody, so that one who has lost interest
//! without a word is in nobody's way. They count as requests that wait.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::Hash,
    sync::Arc,
    time::Instant,
};

use super::{FileId, LockKind, LockTable, Owner, Range, WaiterId, wait::Waiter};

/// Somebody who was denied a lock may ask again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice<F> {
    /// In which file.
    pub file: F,
    /// Who.
    pub owner: Arc<Owner>,
}

/// All requests that were denied and are remembered.
#[derive(Debug)]
pub(super) struct Watches<F> {
    /// Since when, in the order in which they came.
    since: BTreeMap<WaiterId, (Instant, FileId)>,
    notices: VecDeque<Notice<F>>,
}

impl<F> Default for Watches<F> {
    fn default() -> Self {
        Self { since: BTreeMap::new(), notices: VecDeque::new() }
    }
}

impl<F: Clone + Eq + Hash> LockTable<F> {
    /// Remembers that `owner` was denied a lock and wants to be told, once, when it may ask again. False if there are too many
    /// such.
    pub fn watch(&mut self, file: &F, owner: &Owner, range: Range, kind: LockKind, now: Instant) -> bool {
        let (file, owner) = (self.intern(file), self.owners.intern(owner));
        self.unwatch(file, |watcher| watcher.is(owner, range, kind));
        let watcher = self.new_waiter(file, owner, range, kind);
        if let Some(watcher) = watcher {
            self.file_mut(file).watching.push(watcher);
            self.watches.since.insert(watcher.id, (now, file));
        }
        self.settle(file, owner);
        watcher.is_some()
    }

    /// The next one that may ask again. Fetch all after whatever may have freed something.
    pub fn poll_notice(&mut self) -> Option<Notice<F>> {
        self.watches.notices.pop_front()
    }

    /// Forgets requests that were denied before `then`: who still wants a lock has asked again since.
    pub fn forget_watches(&mut self, then: Instant) {
        while let Some((&id, &(_, file))) = self.watches.since.first_key_value().filter(|(_, (since, _))| *since < then)
        {
            let owner = self.files[&file].watching.iter().find(|watcher| watcher.id == id).expect("it is there").owner;
            self.unwatch(file, |watcher| watcher.id == id);
            self.settle(file, owner);
        }
    }

    /// Forgets some of a file's. Whatever becomes of their owners is for the caller to see to.
    pub(super) fn unwatch(&mut self, file: FileId, which: impl Fn(&Waiter) -> bool) {
        let state = self.files.get_mut(&file).expect("it has been interned");
        while let Some(at) = state.watching.iter().position(&which) {
            let watcher = state.watching.remove(at);
            self.owners.end_wait(watcher.owner, file);
            self.watches.since.remove(&watcher.id);
        }
    }

    /// Tells those whose lock nothing is in the way of any more.
    pub(super) fn tell_watchers(&mut self, file: FileId) {
        let Some(state) = self.files.get(&file) else { return };
        let is_free =
            |watcher: &&Waiter| self.conflict(state, Some(watcher.owner), watcher.range, watcher.kind).is_none();
        let free: Vec<Waiter> = state.watching.iter().filter(is_free).copied().collect();
        let key = free.first().map(|_| state.key.clone());
        for watcher in free {
            self.unwatch(file, |other| other.id == watcher.id);
            let owner = self.owners.state(watcher.owner).owner.clone();
            self.watches.notices.push_back(Notice { file: key.clone().expect("there is one"), owner });
            self.settle(file, watcher.owner);
        }
    }
}
