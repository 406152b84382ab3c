//! Waiting requests: their order, and the detection of deadlocks.

use std::{collections::VecDeque, hash::Hash, sync::Arc};

use entropy::HashSet;

use super::{FileId, FileLocks, LockError, LockKind, LockTable, Owner, OwnerId, Range};

/// The ID of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(
    /// The number, which is unique in its table.
    pub u64,
);

/// A waiting request that has been granted. The lock is held now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant<F> {
    /// The request.
    pub id: WaiterId,
    /// The file.
    pub file: F,
    /// The owner of the lock.
    pub owner: Arc<Owner>,
    /// The locked range.
    pub range: Range,
    /// The kind of lock.
    pub kind: LockKind,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) id: WaiterId,
    pub(super) owner: OwnerId,
    pub(super) range: Range,
    pub(super) kind: LockKind,
}

impl Waiter {
    pub(super) fn is(&self, owner: OwnerId, range: Range, kind: LockKind) -> bool {
        (self.owner, self.range, self.kind) == (owner, range, kind)
    }

    fn conflicts(&self, owner: OwnerId, range: Range, kind: LockKind) -> bool {
        self.owner != owner && self.range.overlaps(range) && self.kind.conflicts(kind)
    }
}

impl<F: Clone + Eq + Hash> LockTable<F> {
    /// Queues a request.
    pub(super) fn wait(
        &mut self,
        file: FileId,
        owner: OwnerId,
        range: Range,
        kind: LockKind,
    ) -> Result<WaiterId, LockError> {
        let state = &self.files[&file];
        if let Some(waiter) = state.waiting.iter().find(|waiter| waiter.is(owner, range, kind)) {
            return Ok(waiter.id);
        }
        if self.would_deadlock(state, owner, range, kind) {
            return Err(LockError::Deadlock);
        }
        let waiter = self.new_waiter(file, owner, range, kind).ok_or(LockError::Full)?;
        self.file_mut(file).waiting.push_back(waiter);
        Ok(waiter.id)
    }

    /// Creates a waiting request and counts it. Returns `None` if there are too many.
    pub(super) fn new_waiter(&mut self, file: FileId, owner: OwnerId, range: Range, kind: LockKind) -> Option<Waiter> {
        let state = &self.files[&file];
        let has_room = state.waiting.len() + state.watching.len() < self.limits.file_waiters_max;
        if !has_room || !self.owners.has_room_to_wait(owner, &self.limits) {
            return None;
        }
        self.next_waiter += 1;
        self.owners.begin_wait(owner, file);
        Some(Waiter { id: WaiterId(self.next_waiter), owner, range, kind })
    }

    pub(super) fn remove_waiter(&mut self, file: FileId, at: usize) -> Waiter {
        let waiter = self.file_mut(file).waiting.remove(at).expect("waiter must be in the queue");
        self.owners.end_wait(waiter.owner, file);
        waiter
    }

    /// Returns `true` if a request must wait behind one of the first `before` waiting requests.
    pub(super) fn must_yield(
        &self,
        file: &FileLocks<F>,
        owner: OwnerId,
        range: Range,
        kind: LockKind,
        before: usize,
    ) -> bool {
        self.owners.state(owner).held == 0
            && file.waiting.iter().take(before).any(|waiter| waiter.conflicts(owner, range, kind))
    }

    /// Grants the requests that can be granted in a file now, and in other files if that lets more requests be granted.
    /// Then notifies the owners of denied requests that can retry.
    pub(super) fn rescan(&mut self, file: FileId) {
        let mut files = VecDeque::from([file]);
        while let Some(file) = files.pop_front() {
            let mut at = 0;
            while let Some(&waiter) = self.files.get(&file).and_then(|file| file.waiting.get(at)) {
                let Waiter { id, owner, range, kind } = waiter;
                let state = &self.files[&file];
                let blocked = self.conflict(state, Some(owner), range, kind).is_some()
                    || self.must_yield(state, owner, range, kind, at)
                    || self.check_room(file, owner, range, Some(kind)).is_err();
                if blocked {
                    at += 1;
                    continue;
                }
                self.remove_waiter(file, at);
                let first = self.owners.state(owner).held == 0;
                self.set(file, owner, range, Some(kind));
                let holder = self.owners.state(owner);
                let (key, owner) = (self.files[&file].key.clone(), holder.owner.clone());
                self.grants.push_back(Grant { id, file: key, owner, range, kind });
                if first {
                    // The owner now holds a lock, so its requests need not yield any more. Scan the other files in
                    // which it waits.
                    files.extend(&holder.waits);
                } else if kind == LockKind::Shared {
                    // The owner may have downgraded a lock that blocked earlier requests.
                    at = 0;
                }
            }
            self.notify_watchers(file);
        }
    }

    /// Returns `true` if the request would wait, directly or through others, for its own owner.
    fn would_deadlock(&self, file: &FileLocks<F>, owner: OwnerId, range: Range, kind: LockKind) -> bool {
        let mut seen = HashSet::<OwnerId>::default();
        let mut next: Vec<OwnerId> = blockers(file, owner, range, kind).collect();
        while let Some(blocker) = next.pop() {
            if blocker == owner {
                return true;
            }
            if !seen.insert(blocker) || seen.len() > OWNERS_SEEN_MAX {
                continue;
            }
            for waited in &self.owners.state(blocker).waits {
                let file = &self.files[waited];
                for waiter in file.waiting.iter().filter(|waiter| waiter.owner == blocker) {
                    next.extend(blockers(file, blocker, waiter.range, waiter.kind));
                }
            }
        }
        false
    }
}

/// Returns the owners of locks that conflict with a lock of `owner` on a range.
fn blockers<F>(
    file: &FileLocks<F>,
    owner: OwnerId,
    range: Range,
    kind: LockKind,
) -> impl Iterator<Item = OwnerId> + '_ {
    let others = file.held.iter().filter(move |(other, _)| *other != owner);
    others.filter(move |(_, held)| held.conflict(range, kind).is_some()).map(|(other, _)| *other)
}

/// Maximum number of owners that the search for a deadlock visits. No real program makes longer chains. A deadlock that
/// is not found lasts until one of the requests is cancelled.
const OWNERS_SEEN_MAX: usize = 1024;
