//! Requests that wait: in order, without deadlocks.

use std::{collections::VecDeque, hash::Hash, sync::Arc};

use entropy::HashSet;

use super::{FileId, FileLocks, LockError, LockKind, LockTable, Owner, OwnerId, Range};

/// Names a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaiterId(
    /// Unique in its table.
    pub u64,
);

/// A request that waited and has been granted: the lock is held now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant<F> {
    /// Which request it was.
    pub id: WaiterId,
    /// In which file.
    pub file: F,
    /// Whose.
    pub owner: Arc<Owner>,
    /// Which bytes.
    pub range: Range,
    /// How they are locked.
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

    /// One that is counted, unless there are too many.
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
        let waiter = self.file_mut(file).waiting.remove(at).expect("it was found there");
        self.owners.end_wait(waiter.owner, file);
        waiter
    }

    /// Whether a request lets one of the first `before` that wait go first.
    pub(super) fn is_polite(
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

    /// Grants what can be granted in a file now, and in those where that lets more be granted, and then tells who else may ask.
    pub(super) fn rescan(&mut self, file: FileId) {
        let mut files = VecDeque::from([file]);
        while let Some(file) = files.pop_front() {
            let mut at = 0;
            while let Some(&waiter) = self.files.get(&file).and_then(|file| file.waiting.get(at)) {
                let Waiter { id, owner, range, kind } = waiter;
                let state = &self.files[&file];
                let blocked = self.conflict(state, Some(owner), range, kind).is_some()
                    || self.is_polite(state, owner, range, kind, at)
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
                    // It need no longer be polite elsewhere; nor here, to those before it.
                    files.extend(&holder.waits);
                } else if kind == LockKind::Shared {
                    // What it held exclusively may have been in the way of those before it.
                    at = 0;
                }
            }
            self.tell_watchers(file);
        }
    }

    /// Whether somebody whom this request would wait for waits, by way of others perhaps, for its owner.
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

/// Who holds what keeps `owner` from a range.
fn blockers<F>(
    file: &FileLocks<F>,
    owner: OwnerId,
    range: Range,
    kind: LockKind,
) -> impl Iterator<Item = OwnerId> + '_ {
    let others = file.held.iter().filter(move |(other, _)| *other != owner);
    others.filter(move |(_, held)| held.conflict(range, kind).is_some()).map(|(other, _)| *other)
}

/// Owners that are followed in search of a deadlock: a longer chain than any program makes. What is not found then waits
/// until somebody gives up.
const OWNERS_SEEN_MAX: usize = 1024;
