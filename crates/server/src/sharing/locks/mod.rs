//! The lock manager: byte-range locks and share reservations of all protocols, in one table.
//!
//! Pure: it does no I/O, knows no protocol, and takes the time from its caller. NLM and NFSv4 ask it the same
//! questions, and so see each other's locks. Read RFC 8881 §9 and fcntl(2) for what locks mean; `docs/locking.md` for how
//! NLM uses them.
//!
//! **Ranges** of one owner never conflict with each other: a new lock replaces what the owner had there, so that locks
//! are upgraded, downgraded, split and merged.
//!
//! **Waiting.** A request may wait; requests are granted in the order in which they came, each as soon as no held lock
//! conflicts. A request that is to wait also lets earlier ones that conflict with it go first, so that readers do not
//! starve a writer — if its owner holds nothing at all, so that nobody can be waiting for *it*, and no deadlock comes
//! from politeness. Who would wait for itself, by way of others, is told so at once. What was granted is fetched by
//! [`LockTable::poll_grant`]. Or else it is denied, and its owner is told when to ask again ([`LockTable::watch`]).
//!
//! **Grace.** After a restart, only what was held before can be locked, for a time.
//!
//! **Bounds.** [`Limits`]: of each client, of each file, and of all. On error nothing has changed.

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

/// Bounds of a [`LockTable`]. A unit is a range or a share; an owner with a long name takes one for each 64 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most units of one client.
    pub client_max: usize,
    /// Most units of all.
    pub total_max: usize,
    /// Most ranges of one owner in one file.
    pub owner_file_max: usize,
    /// Most requests of one client that wait.
    pub client_waiters_max: usize,
    /// Most requests that wait for one file.
    pub file_waiters_max: usize,
    /// Most requests of all that wait.
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

/// What somebody wants to lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which bytes.
    pub range: Range,
    /// How.
    pub kind: LockKind,
    /// Whether to wait where it cannot be had at once.
    pub wait: bool,
    /// Whether it was held before the server's restart. Who may say so is for the protocol to decide.
    pub reclaim: bool,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// It is held now.
    Granted,
    /// It waits.
    Waiting(WaiterId),
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockError {
    /// Somebody holds what conflicts.
    Denied(Holder),
    /// It would wait for itself.
    Deadlock,
    /// In grace, and this is no reclaim.
    Grace,
    /// A reclaim after grace.
    NoGrace,
    /// Some bound is reached.
    Full,
}

/// A lock that is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Whose it is.
    pub owner: Arc<Owner>,
    /// Its bytes.
    pub range: Range,
    /// How they are locked.
    pub kind: LockKind,
}

/// All locks and shares of a server; `F` names a file.
///
/// ```
/// use server::sharing::locks::*;
///
/// let mut table = LockTable::<&str>::new(Limits::default());
/// let owner = |name: &[u8]| Owner { client: LockClient::V4(1), opaque: name.into() };
/// let (kind, range) = (LockKind::Exclusive, Range::to_end(0));
/// let request = Request { range, kind, wait: true, reclaim: false };
/// assert_eq!(table.lock(&"file", &owner(b"a"), &request), Ok(Locked::Granted));
/// let Ok(Locked::Waiting(id)) = table.lock(&"file", &owner(b"b"), &request) else { panic!("it waits") };
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

/// A file, while it has locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct FileId(u64);

/// The locks of one file.
#[derive(Debug)]
struct FileLocks<F> {
    key: F,
    /// In the order of owners' numbers.
    held: SmallVec<[(OwnerId, Ranges); 1]>,
    waiting: VecDeque<Waiter>,
    /// Those that are to be told.
    watching: Vec<Waiter>,
    shares: SmallVec<[(OwnerId, Share); 1]>,
}

impl<F: Clone + Eq + Hash> LockTable<F> {
    /// No locks.
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

    /// Lets only reclaims through until it is [ended](Self::end_grace), which is not to be before then.
    pub fn begin_grace(&mut self, until: Instant) {
        self.grace_until = self.grace_until.max(Some(until));
    }

    /// Ends grace: everybody has what they had.
    pub fn end_grace(&mut self) {
        self.grace_until = None;
    }

    /// Whether only reclaims are let through.
    pub fn in_grace(&self) -> bool {
        self.grace_until.is_some()
    }

    /// Whether grace has had its time, and is to be [ended](Self::end_grace).
    pub fn is_grace_over(&self, now: Instant) -> bool {
        self.grace_until.is_some_and(|until| now >= until)
    }

    /// Locks a range, or waits for it. A request that waits already is not queued twice.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn lock(&mut self, file: &F, owner: &Owner, request: &Request) -> Result<Locked, LockError> {
        self.check_grace(request.reclaim)?;
        let (file, owner) = (self.intern(file), self.owners.intern(owner));
        let done = self.lock_interned(file, owner, request);
        self.settle(file, owner);
        done
    }

    /// Unlocks a range, which need not have been locked.
    ///
    /// # Errors
    /// `Full` if more ranges would be left than there may be.
    pub fn unlock(&mut self, file: &F, owner: &Owner, range: Range) -> Result<(), LockError> {
        let (Some(&file), Some(owner)) = (self.ids.get(file), self.owners.find(owner)) else { return Ok(()) };
        if self.files[&file].ranges(owner).is_none() {
            return Ok(());
        }
        self.check_room(file, owner, range, None)?;
        self.set(file, owner, range, None);
        self.rescan(file);
        self.settle(file, owner);
        Ok(())
    }

    /// What keeps `owner` from locking a range, if anything does.
    pub fn test(&self, file: &F, owner: &Owner, range: Range, kind: LockKind) -> Option<Holder> {
        let file = &self.files[self.ids.get(file)?];
        self.conflict(file, self.owners.find(owner), range, kind)
    }

    /// Takes back a request that waits, if one such does.
    pub fn cancel(&mut self, file: &F, owner: &Owner, range: Range, kind: LockKind) -> Option<WaiterId> {
        let (file, owner) = (*self.ids.get(file)?, self.owners.find(owner)?);
        let waiting = &self.files[&file].waiting;
        let at = waiting.iter().position(|waiter| waiter.is(owner, range, kind))?;
        let id = self.remove_waiter(file, at).id;
        self.rescan(file);
        self.settle(file, owner);
        Some(id)
    }

    /// Opens a file: sets what `owner` has it open for, whatever that was before.
    ///
    /// # Errors
    /// `Denied` with the owner in the way (its range and kind say nothing); `Grace`, `NoGrace`, `Full`.
    pub fn share(&mut self, file: &F, owner: &Owner, share: Share, reclaim: bool) -> Result<(), LockError> {
        self.check_grace(reclaim)?;
        let (file, owner) = (self.intern(file), self.owners.intern(owner));
        let done = self.share_interned(file, owner, share);
        self.settle(file, owner);
        done
    }

    /// What `owner` has a file open for.
    pub fn share_of(&self, file: &F, owner: &Owner) -> Option<Share> {
        let (file, owner) = (&self.files[self.ids.get(file)?], self.owners.find(owner)?);
        file.shares.iter().find(|(other, _)| *other == owner).map(|(_, share)| *share)
    }

    /// Whether anybody who has a file open denies others what `share` is for, or is denied by it.
    pub fn denies(&self, file: &F, share: Share) -> bool {
        let shares = self.ids.get(file).map(|file| &self.files[file].shares);
        shares.is_some_and(|shares| shares.iter().any(|(_, held)| held.conflicts(share)))
    }

    /// What all but one client do with a file.
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

    /// Whether `owner` has locked any of a file.
    pub fn holds(&self, file: &F, owner: &Owner) -> bool {
        let file = self.ids.get(file).map(|file| &self.files[file]);
        file.zip(self.owners.find(owner)).is_some_and(|(file, owner)| file.ranges(owner).is_some())
    }

    /// Closes a file; false if `owner` had not opened it.
    pub fn unshare(&mut self, file: &F, owner: &Owner) -> bool {
        let (Some(&file), Some(owner)) = (self.ids.get(file), self.owners.find(owner)) else { return false };
        let shares = &mut self.file_mut(file).shares;
        let Some(at) = shares.iter().position(|(other, _)| *other == owner) else { return false };
        shares.remove(at);
        self.owners.count_units(owner, 1, 0);
        self.settle(file, owner);
        true
    }

    /// Releases what an owner has in all files: locks, shares and requests that wait.
    pub fn release_owner(&mut self, owner: &Owner) {
        if let Some(owner) = self.owners.find(owner) {
            self.release(&[owner]);
        }
    }

    /// Releases what a client has: it is gone, or has forgotten.
    pub fn release_client(&mut self, client: LockClient) {
        self.release(&self.owners.of_client(client));
    }

    /// Whether a client has anything, or waits for it.
    pub fn has_client(&self, client: LockClient) -> bool {
        self.owners.has_client(client)
    }

    /// Whether there are grants to poll.
    pub fn has_grants(&self) -> bool {
        !self.grants.is_empty()
    }

    /// The next request that has been granted after it waited. Fetch all after whatever may have freed something.
    pub fn poll_grant(&mut self) -> Option<Grant<F>> {
        self.grants.pop_front()
    }

    /// Units in all (see [`Limits`]).
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
        // It may wait already, and ask again.
        let queued = state.waiting.iter().position(|waiter| waiter.is(owner, range, kind));
        let before = queued.unwrap_or(state.waiting.len());
        if holder.is_none() && !(wait && self.is_polite(state, owner, range, kind, before)) {
            self.check_room(file, owner, range, Some(kind))?;
            if let Some(at) = queued {
                self.remove_waiter(file, at);
            }
            self.unwatch(file, |watcher| watcher.is(owner, range, kind));
            let first = self.owners.state(owner).held == 0;
            self.set(file, owner, range, Some(kind));
            // A downgrade may have let others in.
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
        // Requests first: none of them is to be granted by what is freed.
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
            self.settle_file(file, owner);
        }
        owners.iter().for_each(|&owner| self.owners.forget_if_idle(owner));
    }

    /// The first lock that keeps `owner` from a range.
    fn conflict(&self, file: &FileLocks<F>, owner: Option<OwnerId>, range: Range, kind: LockKind) -> Option<Holder> {
        let others = file.held.iter().filter(|(other, _)| Some(*other) != owner);
        let found = others.filter_map(|(other, held)| Some((*other, held.conflict(range, kind)?)));
        let (other, (range, kind)) = found.min_by_key(|(_, (range, _))| range.first())?;
        Some(Holder { owner: self.owners.state(other).owner.clone(), range, kind })
    }

    /// # Errors
    /// `Full` if there may not be as many ranges as there would be.
    fn check_room(&self, file: FileId, owner: OwnerId, range: Range, to: Option<LockKind>) -> Result<(), LockError> {
        let (held, growth) = match self.files[&file].ranges(owner) {
            Some(ranges) => (ranges.len(), ranges.growth(range, to)),
            None => (0, usize::from(to.is_some())),
        };
        let fits = held + growth <= self.limits.owner_file_max && self.owners.has_room(owner, growth, &self.limits);
        if growth == 0 || fits { Ok(()) } else { Err(LockError::Full) }
    }

    fn set(&mut self, file: FileId, owner: OwnerId, range: Range, to: Option<LockKind>) {
        let held = &mut self.files.get_mut(&file).expect("it has been interned").held;
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
        self.files.get_mut(&file).expect("it has been interned")
    }

    /// Notes what an operation has left of an owner and a file, and forgets those that have nothing.
    fn settle(&mut self, file: FileId, owner: OwnerId) {
        self.settle_file(file, owner);
        self.owners.forget_if_idle(owner);
    }

    fn settle_file(&mut self, file: FileId, owner: OwnerId) {
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
