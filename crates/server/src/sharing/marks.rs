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

use entropy::{FastState, HashMap};
use parking_lot::Mutex;

use crate::handle::FileId;

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
    /// Counts the truncation, if the change is one.
    pub(super) truncation: Option<Counted>,
}

/// The number of operations of a kind that are in progress, for each file that has any.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts(Arc<Mutex<HashMap<FileId, u32>>>);

/// An operation that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    counts: Counts,
    file: FileId,
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
        Changing { marks: self.clone(), at, truncation: None }
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

impl Counts {
    /// Counts an operation.
    pub(super) fn begin(&self, file: &FileId) -> Counted {
        *self.0.lock().entry(file.clone()).or_default() += 1;
        Counted { counts: self.clone(), file: file.clone() }
    }

    /// Returns `true` if an operation on a file is in progress.
    pub(super) fn any(&self, file: &FileId) -> bool {
        self.0.lock().contains_key(file)
    }
}

impl Counted {
    /// Returns the file.
    pub(super) fn file(&self) -> &FileId {
        &self.file
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        let Some(count) = counts.get_mut(&self.file) else { return };
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.file);
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.marks.0.buckets[self.at].changes.fetch_sub(1, SeqCst);
    }
}

/// Large enough that false positives are rare with some thousands of delegations.
const BUCKETS: usize = 1 << 14;
