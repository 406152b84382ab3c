//! Byte-range locks of programs, as locks at the server (RFC 8881 §9, RFC 7530 §9; NLM for NFSv3). Locks by `fcntl` and `flock` on one
//! machine hold on all machines.
//!
//! Each owner of the kernel (a process for POSIX locks, an open file for `flock` and OFD locks) is an owner at the
//! server. The kernel keeps no list of such locks and does not unlock them at the end. A FLUSH, which each close sends,
//! means that the owner releases its locks on the file. The RELEASE of an open file releases the remaining locks that
//! were taken through it.
//!
//! Any signal interrupts a wait for a lock.

use client::{LockRange, Protocol};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{
    tree::{Answer, Answered},
    view::{Target, View},
};

/// The lock owners of a file, including those whose lock failed.
#[derive(Default)]
pub struct Owners(Mutex<Vec<Owner>>);

/// An owner, by the kernel's number, and the open file that it used.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner {
    name: u64,
    by: u64,
}

/// A lock in FUSE's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The first byte.
    pub start: u64,
    /// The last byte; the largest offset of a file means the end.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
}

impl Owners {
    fn add(&self, owner: Owner) {
        let mut owners = self.0.lock();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }

    /// Removes and returns the owners for which `which` returns `true`, each once.
    fn take(&self, which: impl Fn(&Owner) -> bool) -> Vec<u64> {
        let mut names: Vec<u64> = self.0.lock().extract_if(.., |owner| which(owner)).map(|owner| owner.name).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Lock {
    fn range(self) -> Answer<LockRange> {
        if self.end < self.start {
            return Err(Errno::INVAL);
        }
        let length = if self.end >= END { u64::MAX } else { self.end - self.start + 1 };
        Ok(LockRange { offset: self.start, length, exclusive: self.kind == F_WRLCK })
    }

    fn of(range: LockRange) -> Self {
        let end = range.offset.saturating_add(range.length - 1).min(END);
        Self { start: range.offset, end, kind: if range.exclusive { F_WRLCK } else { F_RDLCK } }
    }
}

impl View {
    /// Returns the locks of the server that has an object. If the mount of the URL has the option `nolock`, the kernel keeps locks
    /// locally, and does not ask. If only the server of a referral has no locks, locking fails.
    fn locking<'a>(&self, node: &'a Target) -> Answer<&'a Protocol> {
        Some(node.mount().protocol()).filter(|protocol| protocol.has_locks()).ok_or(Errno::NOLCK)
    }

    /// LOCKT or TEST: returns a conflicting lock, or `F_UNLCK`.
    pub async fn test_lock(&self, ino: u64, owner: u64, lock: Lock) -> Answer<Lock> {
        let node = self.target(ino)?;
        let locks = self.locking(&node)?;
        let found = locks.test_lock(node.handle(), &owner.to_be_bytes(), lock.range()?).await.answer()?;
        Ok(found.map_or(Lock { kind: F_UNLCK, ..lock }, Lock::of))
    }

    /// LOCKU or UNLOCK.
    pub async fn unlock(&self, ino: u64, owner: u64, lock: Lock) -> Answer<()> {
        let (node, range) = (self.target(ino)?, lock.range()?);
        let locks = self.locking(&node)?;
        let name = owner.to_be_bytes();
        // The next holder of the lock must see the data.
        self.write_back(&node).await;
        node.staged.settle(false).await;
        locks.unlock(node.handle(), &name, range.offset, range.length).await.answer().map_err(no_lock)
    }

    /// LOCK, or LOCKU or UNLOCK, through the open file with this number. A blocking request waits until `interrupted`.
    pub async fn lock(
        &self,
        ino: u64,
        by: u64,
        owner: u64,
        lock: Lock,
        interrupted: Option<impl Future<Output = ()> + Send>,
    ) -> Answer<()> {
        if lock.kind == F_UNLCK {
            return self.unlock(ino, owner, lock).await;
        }
        let (node, range) = (self.target(ino)?, lock.range()?);
        let locks = self.locking(&node)?;
        let name = owner.to_be_bytes();
        let owner = Owner { name: owner, by };
        node.lockers.add(owner);
        match interrupted {
            None => match locks.lock(node.handle(), &name, range).await.answer().map_err(no_lock)? {
                None => {}
                Some(_) => return Err(Errno::AGAIN),
            },
            Some(interrupted) => {
                let waited = locks.lock_until(node.handle(), &name, range, interrupted).await.answer();
                // A denied lock was not granted before the signal arrived.
                waited.map_err(|error| if error == Errno::AGAIN { Errno::INTR } else { no_lock(error) })?;
            }
        }
        // If another thread has released the owner meanwhile, the close of the open file releases it again.
        node.lockers.add(owner);
        // The program must see data that previous holders of the lock have written.
        self.revalidate(&node).await
    }

    /// Releases the locks of an owner that has closed the file once, whatever the number of its open descriptors.
    pub async fn release_owner(&self, ino: u64, owner: u64) -> Answer<()> {
        self.release_locks(ino, |locker| locker.name == owner).await
    }

    /// Releases the locks of a closed open file.
    pub async fn closed(&self, ino: u64, number: u64) -> Answer<()> {
        self.release_locks(ino, |locker| locker.by == number).await
    }

    async fn release_locks(&self, ino: u64, which: impl Fn(&Owner) -> bool) -> Answer<()> {
        let (node, mut done) = (self.target(ino)?, Ok(()));
        for name in node.lockers.take(which) {
            let released = self.locking(&node)?.release_locks(node.handle(), &name.to_be_bytes()).await.answer();
            done = done.and(released);
        }
        done
    }
}

/// Maps an error of a lock: the file cannot be locked, or its locks were lost.
fn no_lock(error: Errno) -> Errno {
    if error == Errno::INVAL { Errno::NOLCK } else { error }
}

/// The kernel's `OFFSET_MAX`.
const END: u64 = i64::MAX as u64;
/// The kernel's numbers of lock types, the same on every architecture with FUSE.
const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
pub const F_UNLCK: i32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_round_trip() {
        for (start, end) in [(0, END), (7, 7), (5, 1000)] {
            let lock = Lock { start, end, kind: F_WRLCK };
            assert_eq!(Lock::of(lock.range().unwrap()), lock);
        }
        let all = Lock { start: 0, end: END, kind: F_RDLCK }.range().unwrap();
        assert_eq!(all, LockRange { offset: 0, length: u64::MAX, exclusive: false });
        assert!(Lock { start: 2, end: 1, kind: F_RDLCK }.range().is_err());
    }

    #[test]
    fn owners_are_removed_by_number_or_by_open_file() {
        let owners = Owners::default();
        for (name, by) in [(1, 10), (1, 11), (1, 10), (2, 11), (3, 12)] {
            owners.add(Owner { name, by });
        }
        assert_eq!(owners.take(|owner| owner.name == 1), [1]);
        assert_eq!(owners.take(|owner| owner.by == 11), [2]);
        assert_eq!(owners.take(|_| true), [3]);
    }
}
