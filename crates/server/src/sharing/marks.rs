//! [`Marks`]: approximate counts of the delegations and the changes of files, which are read without a lock.
//!
//! Most calls use files that are not delegated, and one counter tells them so. Each counter counts all files with the
//! same hash. So it can report a delegation or change for a file that has none, but it never misses one.
//!
//! A call that changes a file counts the change *before* it looks for delegations. A call that grants a delegation
//! counts the delegation *before* it looks for changes. So at least one of the two sees the other, and no delegation is
//! granted during a change without being recalled.

use std::{
    hash::{BuildHasher, Hash},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use entropy::FastState;

/// Counters of delegations and of changes. Clones share the counters.
#[derive(Clone, Debug)]
pub struct Marks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hasher: FastState,
    /// The number of all delegations.
    total: AtomicU32,
    buckets: Box<[Bucket]>,
}

#[derive(Debug, Default)]
struct Bucket {
    delegations: AtomicU32,
    changes: AtomicU32,
}

/// A change of a file that is in progress.
#[derive(Debug)]
#[must_use = "the change ends when this is dropped"]
pub struct Changing {
    marks: Marks,
    at: usize,
}

impl Marks {
    /// Creates counters that are zero.
    pub fn new() -> Self {
        let buckets = (0..BUCKETS).map(|_| Bucket::default()).collect();
        Self(Arc::new(Inner { hasher: FastState::default(), total: AtomicU32::new(0), buckets }))
    }

    /// Returns `true` if there is any delegation.
    pub fn any(&self) -> bool {
        self.0.total.load(SeqCst) > 0
    }

    /// Returns `true` if there may be a delegation of a file.
    pub fn may_be_delegated(&self, file: &impl Hash) -> bool {
        self.any() && self.0.buckets[self.at(file)].delegations.load(SeqCst) > 0
    }

    /// Begins a change of a file.
    pub fn begin_change(&self, file: &impl Hash) -> Changing {
        let at = self.at(file);
        self.0.buckets[at].changes.fetch_add(1, SeqCst);
        Changing { marks: self.clone(), at }
    }

    /// Returns `true` if a file may be changing now.
    pub(crate) fn may_be_changing(&self, file: &impl Hash) -> bool {
        self.0.buckets[self.at(file)].changes.load(SeqCst) > 0
    }

    pub(crate) fn add(&self, file: &impl Hash) {
        self.0.total.fetch_add(1, SeqCst);
        self.0.buckets[self.at(file)].delegations.fetch_add(1, SeqCst);
    }

    pub(crate) fn remove(&self, file: &impl Hash) {
        self.0.buckets[self.at(file)].delegations.fetch_sub(1, SeqCst);
        self.0.total.fetch_sub(1, SeqCst);
    }

    fn at(&self, file: &impl Hash) -> usize {
        self.0.hasher.hash_one(file) as usize % BUCKETS
    }
}

impl Default for Marks {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.marks.0.buckets[self.at].changes.fetch_sub(1, SeqCst);
    }
}

/// Large enough that false positives are rare with some thousands of delegations.
const BUCKETS: usize = 1 << 14;
