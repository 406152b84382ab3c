//! Denied requests whose owners are notified when they can retry. NFSv4 has this instead of waiting requests (RFC 8881
//! §9.6).
//!
//! No lock is reserved for a denied request: other requests do not yield to it, and it is not part of a deadlock. So an
//! owner that has lost interest blocks nobody. Denied requests count as waiting requests.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::Hash,
    sync::Arc,
    time::Instant,
};

use super::{FileId, LockKind, LockTable, Owner, Range, WaiterId, wait::Waiter};

/// A notice that the owner of a denied request can retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice<F> {
    /// The file.
    pub file: F,
    /// The owner of the request.
    pub owner: Arc<Owner>,
}

/// All denied requests whose owners are to be notified.
#[derive(Debug)]
pub(super) struct Watches<F> {
    /// The time and file of each request, in the order of arrival.
    since: BTreeMap<WaiterId, (Instant, FileId)>,
    notices: VecDeque<Notice<F>>,
}

impl<F> Default for Watches<F> {
    fn default() -> Self {
        Self { since: BTreeMap::new(), notices: VecDeque::new() }
    }
}

impl<F: Clone + Eq + Hash> LockTable<F> {
    /// Adds a denied request of `owner`, who will be notified once when it can retry. Returns `false` if there are too
    /// many.
    pub fn watch(&mut self, file: &F, owner: &Owner, range: Range, kind: LockKind, now: Instant) -> bool {
        let (file, owner) = (self.intern(file), self.owners.intern(owner));
        self.unwatch(file, |watcher| watcher.is(owner, range, kind));
        let watcher = self.new_waiter(file, owner, range, kind);
        if let Some(watcher) = watcher {
            self.file_mut(file).watching.push(watcher);
            self.watches.since.insert(watcher.id, (now, file));
        }
        self.clean_up(file, owner);
        watcher.is_some()
    }

    /// Returns the next owner that can retry. Call this until it returns `None` after each operation that may have
    /// released a lock.
    pub fn poll_notice(&mut self) -> Option<Notice<F>> {
        self.watches.notices.pop_front()
    }

    /// Removes the requests that were denied before `then`. A client that still wants such a lock has retried since.
    pub fn forget_watches(&mut self, then: Instant) {
        while let Some((&id, &(_, file))) = self.watches.since.first_key_value().filter(|(_, (since, _))| *since < then)
        {
            let owner = self.files[&file]
                .watching
                .iter()
                .find(|watcher| watcher.id == id)
                .expect("request must be in `watching`")
                .owner;
            self.unwatch(file, |watcher| watcher.id == id);
            self.clean_up(file, owner);
        }
    }

    /// Removes the requests of a file that match `which`. The caller must clean up the records of their owners.
    pub(super) fn unwatch(&mut self, file: FileId, which: impl Fn(&Waiter) -> bool) {
        let state = self.files.get_mut(&file).expect("file must have been interned");
        while let Some(at) = state.watching.iter().position(&which) {
            let watcher = state.watching.remove(at);
            self.owners.end_wait(watcher.owner, file);
            self.watches.since.remove(&watcher.id);
        }
    }

    /// Notifies the owners whose requests no lock blocks any more.
    pub(super) fn notify_watchers(&mut self, file: FileId) {
        let Some(state) = self.files.get(&file) else { return };
        let is_free =
            |watcher: &&Waiter| self.conflict(state, Some(watcher.owner), watcher.range, watcher.kind).is_none();
        let free: Vec<Waiter> = state.watching.iter().filter(is_free).copied().collect();
        let key = free.first().map(|_| state.key.clone());
        for watcher in free {
            self.unwatch(file, |other| other.id == watcher.id);
            let owner = self.owners.state(watcher.owner).owner.clone();
            self.watches.notices.push_back(Notice { file: key.clone().expect("`free` must not be empty"), owner });
            self.clean_up(file, watcher.owner);
        }
    }
}
