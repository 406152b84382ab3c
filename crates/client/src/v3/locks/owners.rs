//! The lock owners of a mount, by file and name, with the ranges that they have locked.
//!
//! An owner exists while it has locks, has lost some, or has an operation in progress.

use std::sync::Arc;

use bytes::Bytes;
use entropy::{HashMap, HashSet};
use nfs::nlm::{CallerName, Lock, Netobj};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::service::Connection;
use crate::model::{Caller, Handle, LockRange, cut};

/// The lock owners of a mount.
#[derive(Debug)]
pub(super) struct Owners {
    /// The name of this host (`caller_name`).
    host: CallerName,
    /// The number of this mount, which no other mount of this host has.
    mount: u64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    owners: HashMap<(Handle, Bytes), Arc<Owner>>,
    /// The numbers of the owners.
    svids: HashSet<u32>,
    /// Notified when a lock of a file is released here, for the owners on this machine that wait for one.
    waiting: HashMap<Handle, Arc<Notify>>,
}

/// The owner of the locks of a file.
#[derive(Debug)]
pub(super) struct Owner {
    pub file: Handle,
    pub name: Bytes,
    /// The number of the owner. Linux's server distinguishes the owners of a host only by it.
    svid: u32,
    /// The handle of the owner (`oh`).
    oh: Netobj,
    /// Held by each operation of the owner until its outcome is known, so that operations have their effects in their order.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// Held during each call for this owner. Recovery takes only this one, because an operation in progress can wait for it.
    pub call: tokio::sync::Mutex<()>,
    pub state: Mutex<Locked>,
}

/// The locks of an owner.
#[derive(Debug, Default)]
pub(super) struct Locked {
    /// The ranges: (offset, length, whether the lock is exclusive).
    pub ranges: Vec<(u64, u64, bool)>,
    /// The user that has locked last.
    pub caller: Option<Caller>,
    /// The connection over which the server was last known to have all ranges.
    pub seen: Option<Connection>,
    /// Set if the server has lost a lock, which another client may have had meanwhile.
    pub lost: bool,
}

/// An owner in use.
#[derive(Clone)]
pub(super) struct InUse {
    owners: Arc<Owners>,
    pub owner: Arc<Owner>,
}

/// An owner that waits until a lock of a file is released on this machine.
pub(super) struct Waiting {
    owners: Arc<Owners>,
    file: Handle,
    pub released: Arc<Notify>,
}

impl Owners {
    pub fn new(host: CallerName) -> Arc<Self> {
        Arc::new(Self { host, mount: entropy::random(), table: Mutex::default() })
    }

    /// Returns an owner, which is added if it is new.
    pub fn of(self: &Arc<Self>, file: &Handle, name: &[u8]) -> InUse {
        let mut table = self.table.lock();
        let name = Bytes::copy_from_slice(name);
        let key = (file.clone(), name.clone());
        if let Some(owner) = table.owners.get(&key) {
            return InUse { owners: self.clone(), owner: owner.clone() };
        }
        let mut svid = new_svid();
        while !table.svids.insert(svid) {
            svid = new_svid();
        }
        let owner = Arc::new(self.owner(file.clone(), name, svid));
        table.owners.insert(key, owner.clone());
        InUse { owners: self.clone(), owner }
    }

    /// Returns an owner that is not in the table, and has no locks.
    pub fn stranger(&self, file: &Handle) -> Owner {
        self.owner(file.clone(), Bytes::new(), new_svid())
    }

    fn owner(&self, file: Handle, name: Bytes, svid: u32) -> Owner {
        let oh = format!("{svid}@{} slipway {:016x}", String::from_utf8_lossy(&self.host), self.mount);
        let (turn, call, state) = Default::default();
        Owner { file, name, svid, oh: Bytes::from(oh).into(), turn, call, state }
    }

    /// Returns the owner if it is known.
    pub fn known(self: &Arc<Self>, file: &Handle, name: &[u8]) -> Option<InUse> {
        let table = self.table.lock();
        let owner = table.owners.get(&(file.clone(), Bytes::copy_from_slice(name)))?.clone();
        Some(InUse { owners: self.clone(), owner })
    }

    /// Returns the owners that have locks.
    pub fn holders(self: &Arc<Self>) -> Vec<InUse> {
        let table = self.table.lock();
        let holders = table.owners.values().filter(|owner| !owner.state.lock().ranges.is_empty());
        holders.map(|owner| InUse { owners: self.clone(), owner: owner.clone() }).collect()
    }

    /// Returns all owners.
    pub fn all(self: &Arc<Self>) -> Vec<InUse> {
        let table = self.table.lock();
        table.owners.values().map(|owner| InUse { owners: self.clone(), owner: owner.clone() }).collect()
    }

    /// Returns the protocol's form of bytes of an owner.
    pub fn lock_of(&self, owner: &Owner, offset: u64, length: u64) -> Lock {
        Lock {
            caller_name: self.host.clone(),
            fh: owner.file.0.clone().into(),
            oh: owner.oh.clone(),
            svid: owner.svid,
            offset,
            // 0 means up to the end of the file.
            len: if length == u64::MAX { 0 } else { length },
        }
    }

    /// Begins to wait for releases of locks of a file.
    pub fn wait(self: &Arc<Self>, file: &Handle) -> Waiting {
        let released = self.table.lock().waiting.entry(file.clone()).or_default().clone();
        Waiting { owners: self.clone(), file: file.clone(), released }
    }

    /// Tells the owners that wait for locks of a file that one has been released.
    pub fn released(&self, file: &Handle) {
        let waiting = self.table.lock().waiting.get(file).cloned();
        if let Some(waiting) = waiting {
            waiting.notify_waiters();
        }
    }
}

impl Owner {
    /// Returns the number of the owner.
    pub fn svid(&self) -> u32 {
        self.svid
    }

    /// Reports whether the holder of a lock is this owner.
    pub fn is(&self, svid: u32, oh: &Netobj) -> bool {
        self.svid == svid && self.oh == *oh
    }
}

impl Locked {
    /// Adds a lock that the server has granted. Returns those of its bytes that were not locked before.
    pub fn add(&mut self, range: LockRange, at: Connection) -> Vec<(u64, u64)> {
        let mut new = vec![(range.offset, range.length, range.exclusive)];
        for &(offset, length, _) in &self.ranges {
            cut(&mut new, offset, length);
        }
        if self.ranges.is_empty() {
            self.seen = Some(at);
        }
        cut(&mut self.ranges, range.offset, range.length);
        self.ranges.push((range.offset, range.length, range.exclusive));
        new.into_iter().map(|(offset, length, _)| (offset, length)).collect()
    }

    /// Removes bytes that the server has unlocked.
    pub fn remove(&mut self, offset: u64, length: u64) {
        cut(&mut self.ranges, offset, length);
    }

    /// Reports whether some of these bytes are locked.
    pub fn has(&self, offset: u64, length: u64) -> bool {
        let end = offset.saturating_add(length);
        self.ranges.iter().any(|&(at, len, _)| at < end && offset < at.saturating_add(len))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut table = self.owners.table.lock();
        let is_idle = {
            let state = self.owner.state.lock();
            state.ranges.is_empty() && !state.lost
        };
        // One reference is in the table, the other one is `self.owner`.
        if is_idle && Arc::strong_count(&self.owner) <= 2 {
            table.owners.remove(&(self.owner.file.clone(), self.owner.name.clone()));
            table.svids.remove(&self.owner.svid);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut table = self.owners.table.lock();
        // One reference is in the table, the other one is `self.released`.
        if Arc::strong_count(&self.released) <= 2 {
            table.waiting.remove(&self.file);
        }
    }
}

/// Returns a random number for an owner. The kernel of this host counts its own owners from 0, and some servers store the number with a
/// sign, so it is in the upper half of the positive ones. Mounts of other processes choose theirs independently.
fn new_svid() -> u32 {
    entropy::random_range(1 << 30..1 << 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> Connection {
        super::super::service::Connection::first()
    }

    #[test]
    fn added_lock_returns_the_bytes_that_are_new() {
        let mut locked = Locked::default();
        let range = |offset, length| LockRange { offset, length, exclusive: true };
        assert_eq!(locked.add(range(10, 10), at()), [(10, 10)]);
        assert_eq!(locked.add(range(5, 10), at()), [(5, 5)]);
        assert_eq!(locked.add(range(0, u64::MAX), at()), [(0, 5), (20, u64::MAX)]);
        assert_eq!(locked.ranges, [(0, u64::MAX, true)]);
        assert!(locked.has(1 << 40, 1));
        locked.remove(0, 100);
        assert!(!locked.has(0, 100) && locked.has(50, 51));
    }

    #[test]
    fn idle_owner_leaves_the_table() {
        let owners = Owners::new("host".into());
        let file = Handle::from(Bytes::from_static(b"file"));
        let (first, second) = (owners.of(&file, b"a"), owners.of(&file, b"b"));
        assert_ne!(first.owner.svid, second.owner.svid);
        let again = owners.of(&file, b"a");
        assert!(Arc::ptr_eq(&first.owner, &again.owner), "a name must be one owner");
        drop(first);
        again.owner.state.lock().add(LockRange { offset: 0, length: 1, exclusive: true }, at());
        drop((again, second));
        assert!(owners.known(&file, b"b").is_none());
        let held = owners.known(&file, b"a").expect("an owner with locks must stay");
        held.owner.state.lock().remove(0, 1);
        drop(held);
        assert!(owners.known(&file, b"a").is_none() && owners.holders().is_empty());
    }

    #[test]
    fn length_to_the_end_of_the_file_is_zero() {
        let owners = Owners::new("host".into());
        let stranger = owners.stranger(&Handle::from(Bytes::from_static(b"file")));
        assert_eq!(owners.lock_of(&stranger, 7, u64::MAX).len, 0);
        let lock = owners.lock_of(&stranger, 7, 9);
        assert_eq!((lock.offset, lock.len), (7, 9));
        assert!(lock.svid >= 1 << 30 && lock.svid as i32 > 0);
        assert!(stranger.is(lock.svid, &lock.oh));
    }
}
