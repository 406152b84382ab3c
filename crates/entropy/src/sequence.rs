//! Numbers that are used only once.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter that begins at 1. A static counter returns each number once in a process. Each simulation counts separately.
#[derive(Debug)]
pub struct Sequence {
    last: AtomicU64,
}

impl Sequence {
    /// Creates a counter whose first number is 1.
    #[allow(clippy::new_without_default, reason = "counters are statics, which cannot use Default")]
    pub const fn new() -> Self {
        Self { last: AtomicU64::new(0) }
    }

    /// Returns the next number.
    pub fn next(&'static self) -> u64 {
        #[cfg(feature = "sim")]
        if let Some(number) = crate::simulation::with(|simulation| simulation.count(self)) {
            return number;
        }
        self.last.fetch_add(1, Relaxed) + 1
    }
}
