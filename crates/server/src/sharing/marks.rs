//! [`Marks`]: which files may have delegations, and which are being changed, for those who must not take a lock to ask.
//!
//! Most calls are of files that nobody has a delegation of, and they learn so here, from one counter. A counter is of all
//! files that hash alike, so that it can say "perhaps" of a file that has none; never the reverse.
//!
//! Who changes a file says so *before* it looks for delegations, and whoever grants one marks the file *before* he looks
//! whether it is being changed. So at least one of the two sees the other, and no delegation is granted in the middle of a
//! change that nobody would tell its holder of.

use std::{
    hash::{BuildHasher, Hash},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use entropy::FastState;

/// Counters of delegations and of changes, shared by all who ask.
#[derive(Clone, Debug)]
pub struct Marks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hasher: FastState,
    /// All delegations.
    total: AtomicU32,
    buckets: Box<[Bucket]>,
}

#[derive(Debug, Default)]
struct Bucket {
    delegations: AtomicU32,
    changes: AtomicU32,
}

/// A change of a file that is being made.
#[derive(Debug)]
#[must_use = "the change is over when this is dropped"]
pub struct Changing {
    marks: Marks,
    at: usize,
}

impl Marks {
    /// Nobody has anything.
    pub fn new() -> Self {
        let buckets = (0..BUCKETS).map(|_| Bucket::default()).collect();
        Self(Arc::new(Inner { hasher: FastState::default(), total: AtomicU32::new(0), buckets }))
    }

    /// Whether anybody has a delegation of anything.
    pub fn any(&self) -> bool {
        self.0.total.load(SeqCst) > 0
    }

    /// Whether anybody may have a delegation of a file.
    pub fn may_be_delegated(&self, file: &impl Hash) -> bool {
        self.any() && self.0.buckets[self.at(file)].delegations.load(SeqCst) > 0
    }

    /// Begins a change of a file.
    pub fn begin_change(&self, file: &impl Hash) -> Changing {
        let at = self.at(file);
        self.0.buckets[at].changes.fetch_add(1, SeqCst);
        Changing { marks: self.clone(), at }
    }

    /// Whether a file may be being changed now.
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

/// So many that a false "perhaps" is rare with some thousands of delegations.
const BUCKETS: usize = 1 << 14;
