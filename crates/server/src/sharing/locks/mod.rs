//! The lock manager: byte-range locks and share reservations of all protocols, in one table.
//!
//! It is a pure data structure: it does no I/O, depends on no protocol, and takes the time from its caller. NLM and
//! NFSv4 use the same functions, so their locks conflict with each other. Read RFC 8881 §9 and fcntl(2) for the meaning
//! of locks, and `docs/locking.md` for their use by NLM.
//!
//! **Ranges** of one owner never conflict with each other: a new lock replaces the owner's locks in its range. This
//! upgrades, downgrades, splits and merges locks.
//!
//! **Waiting.** A request can wait. Waiting requests are granted in the order of their arrival, each as soon as no held
//! lock conflicts. A new request that can wait also yields to earlier conflicting requests that wait, so that readers
//! do not starve a writer. It yields only if its owner holds no lock, because then nobody can be waiting for that
//! owner, and yielding causes no deadlock. A request that would deadlock is refused at once. [`LockTable::poll_grant`]
//! returns the granted requests. Alternatively a request is denied, and its owner is notified when it can retry
//! ([`LockTable::watch`]).
//!
//! **Grace period.** For a time after a restart, clients can only reclaim the locks that they held before.
//!
//! **Bounds.** [`Limits`] bounds each client, each file, and the whole table. An operation that fails changes nothing.

mod held;
mod owner;
mod range;
mod share;
#[cfg(test)]
mod tests;
mod wait;
mod watch;

use std::{collections::VecDeque, hash::Hash, sync::Arc, time::Instant};

use smallvec::SmallVec;

pub use held::{Held, PageEnd};
pub use owner::{LockClient, Owner};
pub use range::{LockKind, Range};
pub use share::{Share, Usage};
pub use wait::{Grant, WaiterId};
pub use watch::Notice;

use owner::{OwnerId, Owners};
use range::Ranges;
use wait::Waiter;
use watch::Watches;

use crate::hash::Map;

/// Bounds of a [`LockTable`]. A unit is a range or a share. In addition, an owner takes one unit for each full 64 bytes
/// of its name.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of units of one client.
    pub client_max: usize,
    /// Maximum number of units in the table.
    pub total_max: usize,
    /// Maximum number of ranges of one owner in one file.
    pub owner_file_max: usize,
    /// Maximum number of waiting or watching requests of one client.
    pub client_waiters_max: usize,
    /// Maximum number of waiting or watching requests for one file.
    pub file_waiters_max: usize,
    /// Maximum number of waiting or watching requests in the table.
    pub total_waiters_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            client_max: 1 << 18,
            total_max: 1 << 20,
            owner_file_max: 1 << 14,
            client_waiters_max: 1 << 12,
            file_waiters_max: 1 << 10,
            total_waiters_max: 1 << 14,
        }
    }
}

/// A request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The range to lock.
    pub range: Range,
    /// The kind of lock.
    pub kind: LockKind,
    /// `true` if the request should wait if it cannot be granted at once.
    pub wait: bool,
    /// `true` if the client held the lock before the server's restart. The protocol decides who may reclaim.
    pub reclaim: bool,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// The lock is held now.
    Granted,
    /// The request waits.
    Waiting(WaiterId),
}

/// The reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockError {
    /// Another owner holds a conflicting lock or share.
    Denied(Holder),
    /// The request would wait for itself.
    Deadlock,
    /// The server is in its grace period, and the request is not a reclaim.
    Grace,
    /// The request is a reclaim, and the server is not in its grace period.
    NoGrace,
    /// A bound of [`Limits`] has been reached.
    Full,
}

/// A conflicting lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The owner of the lock.
    pub owner: Arc<Owner>,
    /// The locked range.
    pub range: Range,
    /// The kind of lock.
    pub kind: LockKind,
}

/// The locks and shares of all files of a server. `F` identifies a file.
///
/// ```
/// use server::sharing::locks::*;
///
/// let mut table = LockTable::<&str>::new(Limits::default());
/// let owner = |name: &[u8]| Owner { client: LockClient::V4(1), opaque: name.into() };
/// let (kind, range) = (LockKind::Exclusive, Range::to_end(0));
/// let request = Request { range, kind, wait: true, reclaim: false };
/// assert_eq!(table.lock(&"file", &owner(b"a"), &request), Ok(Locked::Granted));
/// let Ok(Locked::Waiting(id)) = table.lock(&"file", &owner(b"b"), &request) else { panic!("the request must wait") };
/// table.unlock(&"file", &owner(b"a"), range).unwrap();
/// assert_eq!(table.poll_grant().unwrap().id, id);
/// ```
#[derive(Debug)]
pub struct LockTable<F> {
    limits: Limits,
    ids: Map<F, FileId>,
    files: Map<FileId, FileLocks<F>>,
    owners: Owners,
    next_file: u64,
    next_waiter: u64,
    grants: VecDeque<Grant<F>>,
    watches: Watches<F>,
    grace_until: Option<Instant>,
}

/// The number of a file that has locks, shares or requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct FileId(u64);

/// The locks of one file.
#[derive(Debug)]
struct FileLocks<F> {
    key: F,
    /// The locked ranges, sorted by owner ID.
    held: SmallVec<[(OwnerId, Ranges); 1]>,
    waiting: VecDeque<Waiter>,
    /// Denied requests whose owners are to be notified.
    watching: Vec<Waiter>,
    shares: SmallVec<[(OwnerId, Share); 1]>,
}

impl<F: Clone + Eq + Hash> LockTable<F> {
    /// Creates an empty table.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ids: Map::default(),
            files: Map::default(),
            owners: Owners::default(),
            next_file: 0,
            next_waiter: 0,
            grants: VecDeque::new(),
            watches: Watches::default(),
            grace_until: None,
        }
    }

    /// Begins the grace period, in which only reclaims are granted, until [`end_grace`](Self::end_grace) is called.
    /// That should not be before `until`.
    pub fn begin_grace(&mut self, until: Instant) {
        self.grace_until = self.grace_until.max(Some(until));
    }

    /// Ends the grace period. Clients keep their reclaimed locks.
    pub fn end_grace(&mut self) {
        self.grace_until = None;
    }

    /// Returns `true` in the grace period.
    pub fn in_grace(&self) -> bool {
        self.grace_until.is_some()
    }

    /// Returns `true` if the time of the grace period has passed, and [`end_grace`](Self::end_grace) has not been
    /// called.
    pub fn is_grace_over(&self, now: Instant) -> bool {
        self.grace_until.is_some_and(|until| now >= until)
    }

    /// Locks a range, or waits for it. A request that already waits is not queued twice.
    ///
    /// # Errors
    /// Returns the reason for the refusal.
    pub fn lock(&mut self, file: &F, owner: &Owner, request: &Request) -> Result<Locked, LockError> {
        self.check_grace(request.reclaim)?;
        let (file, owner) = (self.intern(file), self.owners.intern(owner));
        let done = self.lock_interned(file, owner, request);
        self.clean_up(file, owner);
        done
    }

    /// Unlocks a range, which need not have been locked.
    ///
    /// # Errors
    /// Returns `Full` if the unlocking would split a range and exceed a bound.
    pub fn unlock(&mut self, file: &F, owner: &Owner, range: Range) -> Result<(), LockError> {
        let (Some(&file), Some(owner)) = (self.ids.get(file), self.owners.find(owner)) else { return Ok(()) };
        if self.files[&file].ranges(owner).is_none() {
            return Ok(());
        }
        self.check_room(file, owner, range, None)?;
        self.set(file, owner, range, None);
        self.rescan(file);
        self.clean_up(file, owner);
        Ok(())
    }

    /// Returns a lock that conflicts with a lock of `owner` on a range, if there is one.
    pub fn test(&self, file: &F, owner: &Owner, range: Range, kind: LockKind) -> Option<Holder> {
        let file = &self.files[self.ids.get(file)?];
        self.conflict(file, self.owners.find(owner), range, kind)
    }

    /// Removes a waiting request, if there is one with this range and kind.
    pub fn cancel(&mut self, file: &F, owner: &Owner, range: Range, kind: LockKind) -> Option<WaiterId> {
        let (file, owner) = (*self.ids.get(file)?, self.owners.find(owner)?);
        let waiting = &self.files[&file].waiting;
        let at = waiting.iter().position(|waiter| waiter.is(owner, range, kind))?;
        let id = self.remove_waiter(file, at).id;
        self.rescan(file);
        self.clean_up(file, owner);
        Some(id)
    }

    /// Opens a file: sets the access and deny modes of `owner`, and replaces the previous ones.
    ///
    /// # Errors
    /// Returns `Denied` with the conflicting owner (the holder's range and kind have no meaning), `Grace`, `NoGrace` or
    /// `Full`.
    pub fn share(&mut self, file: &F, owner: &Owner, share: Share, reclaim: bool) -> Result<(), LockError> {
        self.check_grace(reclaim)?;
        let (file, owner) = (self.intern(file), self.owners.intern(owner));
        let done = self.share_interned(file, owner, share);
        self.clean_up(file, owner);
        done
    }

    /// Returns the access and deny modes of `owner` for a file, if `owner` has opened it.
    pub fn share_of(&self, file: &F, owner: &Owner) -> Option<Share> {
        let (file, owner) = (&self.files[self.ids.get(file)?], self.owners.find(owner)?);
        file.shares.iter().find(|(other, _)| *other == owner).map(|(_, share)| *share)
    }

    /// Returns `true` if `share` conflicts with the share of any owner except `by`.
    pub fn denies(&self, file: &F, by: Option<&Owner>, share: Share) -> bool {
        let by = by.and_then(|owner| self.owners.find(owner));
        let shares = self.ids.get(file).map(|file| &self.files[file].shares);
        shares.is_some_and(|shares| shares.iter().any(|(owner, held)| Some(*owner) != by && held.conflicts(share)))
    }

    /// Returns the use of a file by all clients except `but`.
    pub fn usage(&self, file: &F, but: LockClient) -> Usage {
        let mut usage = Usage::default();
        let Some(file) = self.ids.get(file).map(|file| &self.files[file]) else { return usage };
        let is_other = |owner: OwnerId| self.owners.state(owner).owner.client != but;
        for (_, share) in file.shares.iter().filter(|(owner, _)| is_other(*owner)) {
            usage.reads |= share.read || share.deny_write;
            usage.writes |= share.write || share.deny_read;
        }
        for (_, held) in file.held.iter().filter(|(owner, _)| is_other(*owner)) {
            usage.reads = true;
            usage.writes |= held.conflict(Range::to_end(0), LockKind::Shared).is_some();
        }
        usage
    }

    /// Returns `true` if `owner` holds a lock on any range of a file.
    pub fn holds(&self, file: &F, owner: &Owner) -> bool {
        let file = self.ids.get(file).map(|file| &self.files[file]);
        file.zip(self.owners.find(owner)).is_some_and(|(file, owner)| file.ranges(owner).is_some())
    }

    /// Closes a file. Returns `false` if `owner` had not opened it.
    pub fn unshare(&mut self, file: &F, owner: &Owner) -> bool {
        let (Some(&file), Some(owner)) = (self.ids.get(file), self.owners.find(owner)) else { return false };
        let shares = &mut self.file_mut(file).shares;
        let Some(at) = shares.iter().position(|(other, _)| *other == owner) else { return false };
        shares.remove(at);
        self.owners.count_units(owner, 1, 0);
        self.clean_up(file, owner);
        true
    }

    /// Releases the locks, shares and waiting requests of an owner in all files.
    pub fn release_owner(&mut self, owner: &Owner) {
        if let Some(owner) = self.owners.find(owner) {
            self.release(&[owner]);
        }
    }

    /// Releases the locks, shares and waiting requests of a client that is gone or has restarted.
    pub fn release_client(&mut self, client: LockClient) {
        self.release(&self.owners.of_client(client));
    }

    /// Returns `true` if a client has locks, shares or waiting requests.
    pub fn has_client(&self, client: LockClient) -> bool {
        self.owners.has_client(client)
    }

    /// Returns `true` if [`poll_grant`](Self::poll_grant) will return a grant.
    pub fn has_grants(&self) -> bool {
        !self.grants.is_empty()
    }

    /// Returns the next waiting request that has been granted. Call this until it returns `None` after each operation
    /// that may have released a lock.
    pub fn poll_grant(&mut self) -> Option<Grant<F>> {
        self.grants.pop_front()
    }

    /// Returns the number of units in the table (see [`Limits`]).
    pub fn units(&self) -> usize {
        self.owners.units()
    }

    fn check_grace(&self, reclaim: bool) -> Result<(), LockError> {
        match (self.in_grace(), reclaim) {
            (true, false) => Err(LockError::Grace),
            (false, true) => Err(LockError::NoGrace),
            _ => Ok(()),
        }
    }

    fn lock_interned(&mut self, file: FileId, owner: OwnerId, request: &Request) -> Result<Locked, LockError> {
        let Request { range, kind, wait, .. } = *request;
        let state = &self.files[&file];
        let holder = self.conflict(state, Some(owner), range, kind);
        if let (Some(holder), false) = (&holder, wait) {
            return Err(LockError::Denied(holder.clone()));
        }
        // The request may already wait.
        let queued = state.waiting.iter().position(|waiter| waiter.is(owner, range, kind));
        let before = queued.unwrap_or(state.waiting.len());
        if holder.is_none() && !(wait && self.must_yield(state, owner, range, kind, before)) {
            self.check_room(file, owner, range, Some(kind))?;
            if let Some(at) = queued {
                self.remove_waiter(file, at);
            }
            self.unwatch(file, |watcher| watcher.is(owner, range, kind));
            let first = self.owners.state(owner).held == 0;
            self.set(file, owner, range, Some(kind));
            // A downgrade may have made room for other requests.
            self.rescan(file);
            if first {
                self.owners.state(owner).waits.clone().into_iter().for_each(|file| self.rescan(file));
            }
            return Ok(Locked::Granted);
        }
        self.wait(file, owner, range, kind).map(Locked::Waiting)
    }

    fn share_interned(&mut self, file: FileId, owner: OwnerId, share: Share) -> Result<(), LockError> {
        let state = &self.files[&file];
        let mut others = state.shares.iter().filter(|(other, _)| *other != owner);
        if let Some((other, _)) = others.find(|(_, held)| held.conflicts(share)) {
            let owner = self.owners.state(*other).owner.clone();
            return Err(LockError::Denied(Holder { owner, range: Range::to_end(0), kind: LockKind::Exclusive }));
        }
        let at = state.shares.iter().position(|(other, _)| *other == owner);
        if at.is_none() && !self.owners.has_room(owner, 1, &self.limits) {
            return Err(LockError::Full);
        }
        let shares = &mut self.file_mut(file).shares;
        match at {
            Some(at) => shares[at].1 = share,
            None => {
                shares.push((owner, share));
                self.owners.count_units(owner, 0, 1);
            }
        }
        Ok(())
    }

    fn release(&mut self, owners: &[OwnerId]) {
        let places =
            owners.iter().flat_map(|&owner| self.owners.files(owner).into_iter().map(move |file| (file, owner)));
        let places: Vec<(FileId, OwnerId)> = places.collect();
        // Remove the requests first, so that none of them is granted by the release of a lock.
        for &(file, owner) in &places {
            while let Some(at) = self.files[&file].waiting.iter().position(|waiter| waiter.owner == owner) {
                self.remove_waiter(file, at);
            }
            self.unwatch(file, |watcher| watcher.owner == owner);
        }
        for &(file, owner) in &places {
            self.set(file, owner, Range::to_end(0), None);
            let shares = &mut self.file_mut(file).shares;
            if let Some(at) = shares.iter().position(|(other, _)| *other == owner) {
                shares.remove(at);
                self.owners.count_units(owner, 1, 0);
            }
        }
        for &(file, owner) in &places {
            if self.files.contains_key(&file) {
                self.rescan(file);
            }
            self.clean_up_file(file, owner);
        }
        owners.iter().for_each(|&owner| self.owners.forget_if_idle(owner));
    }

    /// Returns the first lock that conflicts with a lock of `owner` on a range.
    fn conflict(&self, file: &FileLocks<F>, owner: Option<OwnerId>, range: Range, kind: LockKind) -> Option<Holder> {
        let others = file.held.iter().filter(|(other, _)| Some(*other) != owner);
        let found = others.filter_map(|(other, held)| Some((*other, held.conflict(range, kind)?)));
        let (other, (range, kind)) = found.min_by_key(|(_, (range, _))| range.first())?;
        Some(Holder { owner: self.owners.state(other).owner.clone(), range, kind })
    }

    /// Checks that a change of an owner's locks stays within the bounds.
    ///
    /// # Errors
    /// Returns `Full` if there would be too many ranges.
    fn check_room(&self, file: FileId, owner: OwnerId, range: Range, to: Option<LockKind>) -> Result<(), LockError> {
        let (held, growth) = match self.files[&file].ranges(owner) {
            Some(ranges) => (ranges.len(), ranges.growth(range, to)),
            None => (0, usize::from(to.is_some())),
        };
        let fits = held + growth <= self.limits.owner_file_max && self.owners.has_room(owner, growth, &self.limits);
        if growth == 0 || fits { Ok(()) } else { Err(LockError::Full) }
    }

    fn set(&mut self, file: FileId, owner: OwnerId, range: Range, to: Option<LockKind>) {
        let held = &mut self.files.get_mut(&file).expect("file must have been interned").held;
        let at = match (held.binary_search_by_key(&owner, |(owner, _)| *owner), to) {
            (Ok(at), _) => at,
            (Err(_), None) => return,
            (Err(at), Some(_)) => {
                held.insert(at, (owner, Ranges::default()));
                at
            }
        };
        let before = held[at].1.len();
        held[at].1.set(range, to);
        let after = held[at].1.len();
        if after == 0 {
            held.remove(at);
        }
        self.owners.count_held(owner, before, after);
    }

    fn intern(&mut self, file: &F) -> FileId {
        if let Some(&id) = self.ids.get(file) {
            return id;
        }
        self.next_file += 1;
        let id = FileId(self.next_file);
        self.ids.insert(file.clone(), id);
        self.files.insert(id, FileLocks::new(file.clone()));
        id
    }

    fn file_mut(&mut self, file: FileId) -> &mut FileLocks<F> {
        self.files.get_mut(&file).expect("file must have been interned")
    }

    /// Updates the records of an owner and a file after an operation, and removes those that are empty.
    fn clean_up(&mut self, file: FileId, owner: OwnerId) {
        self.clean_up_file(file, owner);
        self.owners.forget_if_idle(owner);
    }

    fn clean_up_file(&mut self, file: FileId, owner: OwnerId) {
        let Some(state) = self.files.get(&file) else { return self.owners.note_file(owner, file, false) };
        self.owners.note_file(owner, file, state.has(owner));
        if state.is_empty() {
            self.ids.remove(&state.key);
            self.files.remove(&file);
        }
    }
}

impl<F: Clone + Eq + Hash> Default for LockTable<F> {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl<F> FileLocks<F> {
    fn new(key: F) -> Self {
        let (held, shares) = (SmallVec::new(), SmallVec::new());
        Self { key, held, waiting: VecDeque::new(), watching: Vec::new(), shares }
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty() && self.watching.is_empty() && self.shares.is_empty()
    }

    fn ranges(&self, owner: OwnerId) -> Option<&Ranges> {
        let at = self.held.binary_search_by_key(&owner, |(owner, _)| *owner).ok()?;
        Some(&self.held[at].1)
    }

    fn has(&self, owner: OwnerId) -> bool {
        self.ranges(owner).is_some()
            || self.waiting.iter().chain(&self.watching).any(|waiter| waiter.owner == owner)
            || self.shares.iter().any(|(other, _)| *other == owner)
    }
}
