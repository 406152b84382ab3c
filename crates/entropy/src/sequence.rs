//! Numbers that are each used once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts from 1. Of a static, no number comes twice in a process; each simulation counts for itself.
#[derive(Debug)]
pub struct Sequence {
    last: AtomicU64,
}

impl Sequence {
    /// One whose first number is 1.
    #[allow(clippy::new_without_default, reason = "it is made for statics, where there is no default")]
    pub const fn new() -> Self {
        Self { last: AtomicU64::new(0) }
    }

    /// The next number.
    pub fn next(&'static self) -> u64 {
        #[cfg(feature = "sim")]
        if let Some(number) = crate::simulation::with(|simulation| simulation.count(self)) {
            return number;
        }
        self.last.fetch_add(1, Relaxed) + 1
    }
}
