//! Byte-range locks of programs, as locks at the server (RFC 8881 §9, RFC 7530 §9): what `fcntl` and `flock` lock on one
//! machine holds on all.
//!
//! Each owner that the kernel names (a process for POSIX locks, an open file for `flock` and OFD locks) is an owner at the
//! server. The kernel keeps no list of such locks and does not unlock them at the end: a FLUSH, which each close is, means that
//! the owner has let go of the file; and with the RELEASE of an open file goes what was locked by it and is held yet.
//!
//! Who waits for a lock can be interrupted by any signal.

use client::{LockRange, V4};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{
    nodes::Node,
    tree::{Answer, Answered, Tree},
};

/// Who has locked, or tried to, in a file.
#[derive(Default)]
pub struct Owners(Mutex<Vec<Owner>>);

/// An owner, as the kernel names it, and the open file that it used.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Owner {
    name: u64,
    by: u64,
}

/// A lock as FUSE says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte; the largest that a file can have means to the end.
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

    /// Takes those out that this says; each once.
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

impl Tree {
    fn locking<'a>(&self, node: &'a Node) -> Answer<&'a V4> {
        // The kernel locks by itself where the URL's server has no locks; where another has none, there are none.
        let none = if self.mount.v4().is_some() { Errno::NOLCK } else { Errno::NOSYS };
        node.mount().v4().ok_or(none)
    }

    /// LOCKT: what is in the way of a lock, or `F_UNLCK`.
    pub async fn test_lock(&self, ino: u64, owner: u64, lock: Lock) -> Answer<Lock> {
        let node = self.node(ino)?;
        let v4 = self.locking(&node)?;
        let found = v4.test_lock(node.handle(), &owner.to_be_bytes(), lock.range()?).await.answer()?;
        Ok(found.map_or(Lock { kind: F_UNLCK, ..lock }, Lock::of))
    }

    /// LOCKU.
    pub async fn unlock(&self, ino: u64, owner: u64, lock: Lock) -> Answer<()> {
        let (node, range) = (self.node(ino)?, lock.range()?);
        let v4 = self.locking(&node)?;
        let name = owner.to_be_bytes();
        v4.unlock(node.handle(), &name, range.offset, range.length).await.answer().map_err(no_lock)
    }

    /// LOCK or LOCKU, by an open file of this number. Who may wait does so until `interrupted`.
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
        let (node, range) = (self.node(ino)?, lock.range()?);
        let v4 = self.locking(&node)?;
        let name = owner.to_be_bytes();
        let owner = Owner { name: owner, by };
        node.lockers.add(owner);
        match interrupted {
            None => match v4.lock(node.handle(), &name, range).await.answer().map_err(no_lock)? {
                None => {}
                Some(_) => return Err(Errno::AGAIN),
            },
            Some(interrupted) => {
                let waited = v4.lock_until(node.handle(), &name, range, interrupted).await.answer();
                // Denied is what it was until the signal came.
                waited.map_err(|error| if error == Errno::AGAIN { Errno::INTR } else { no_lock(error) })?;
            }
        }
        // Should it have let go of the file meanwhile by another thread, it does again with the open file.
        node.lockers.add(owner);
        // What others have written while they had the lock is to be seen.
        self.look_anew(&node).await
    }

    /// An owner has closed the file once: that ends its locks, however often it has opened it.
    pub async fn let_go(&self, ino: u64, owner: u64) -> Answer<()> {
        self.release_locks(ino, |locker| locker.name == owner).await
    }

    /// An open file is no more.
    pub async fn closed(&self, ino: u64, number: u64) -> Answer<()> {
        self.release_locks(ino, |locker| locker.by == number).await
    }

    async fn release_locks(&self, ino: u64, which: impl Fn(&Owner) -> bool) -> Answer<()> {
        let (node, mut done) = (self.node(ino)?, Ok(()));
        for name in node.lockers.take(which) {
            let released = self.locking(&node)?.release_locks(node.handle(), &name.to_be_bytes()).await.answer();
            done = done.and(released);
        }
        done
    }
}

/// What cannot be, of a lock: the file cannot be locked, or what was locked has been lost.
fn no_lock(error: Errno) -> Errno {
    if error == Errno::INVAL { Errno::NOLCK } else { error }
}

/// `OFFSET_MAX` of the kernel.
const END: u64 = i64::MAX as u64;
/// The kernel's numbers of kinds of locks, the same on every architecture that FUSE is on.
const F_RDLCK: i32 = 0;
const F_WRLCK: i32 = 1;
pub const F_UNLCK: i32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_back() {
        for (start, end) in [(0, END), (7, 7), (5, 1000)] {
            let lock = Lock { start, end, kind: F_WRLCK };
            assert_eq!(Lock::of(lock.range().unwrap()), lock);
        }
        let all = Lock { start: 0, end: END, kind: F_RDLCK }.range().unwrap();
        assert_eq!(all, LockRange { offset: 0, length: u64::MAX, exclusive: false });
        assert!(Lock { start: 2, end: 1, kind: F_RDLCK }.range().is_err());
    }

    #[test]
    fn owners_go_with_their_name_or_their_open_file() {
        let owners = Owners::default();
        for (name, by) in [(1, 10), (1, 11), (1, 10), (2, 11), (3, 12)] {
            owners.add(Owner { name, by });
        }
        assert_eq!(owners.take(|owner| owner.name == 1), [1]);
        assert_eq!(owners.take(|owner| owner.by == 11), [2]);
        assert_eq!(owners.take(|_| true), [3]);
    }
}
