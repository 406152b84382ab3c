//! When to look again at once, and when to sleep.
//!
//! Waking a sleeper costs tens of microseconds, spinning costs a processor. So a side spins for at most [`SPIN_MAX`]
//! when that has been worth it lately, as the kernel's `haltpoll` does: each wait that would have been short enough
//! doubles the time, each that was not halves it, down to nothing. An idle connection sleeps.

use std::time::{Duration, Instant};

/// How long to spin.
#[derive(Debug)]
pub(crate) struct Spin {
    /// Longest time that is ever worth it.
    max: Duration,
    budget: Duration,
    /// Since when there is nothing to do.
    idle: Option<Instant>,
}

impl Spin {
    /// For a machine of `processors`. On one alone, whoever spins keeps its peer from working.
    pub(crate) fn new(max: Duration, processors: usize) -> Self {
        Self { max: if processors > 1 { max } else { Duration::ZERO }, budget: Duration::ZERO, idle: None }
    }

    /// There was something to do.
    pub(crate) fn worked(&mut self, now: impl FnOnce() -> Instant) {
        let Some(since) = self.idle.take() else { return };
        self.budget = if now() - since <= self.max {
            (self.budget * 2).clamp(SPIN_MIN.min(self.max), self.max)
        } else if self.budget <= SPIN_MIN {
            Duration::ZERO
        } else {
            self.budget / 2
        };
    }

    /// There is nothing to do: whether to look again at once.
    pub(crate) fn again(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.budget.is_zero() && self.idle.is_some() {
            return false;
        }
        let now = now();
        let since = *self.idle.get_or_insert(now);
        now - since < self.budget
    }
}

/// The default of the longest spin.
pub(crate) const SPIN_MAX: Duration = Duration::from_micros(50);
const SPIN_MIN: Duration = Duration::from_micros(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_make_it_spin_and_long_ones_sleep() {
        let start = Instant::now();
        let at = |us: u64| move || start + Duration::from_micros(us);
        let mut spin = Spin::new(Duration::from_micros(50), 2);
        assert!(!spin.again(at(0)), "it has not been worth it yet");
        spin.worked(at(40));
        assert!(spin.again(at(100)) && spin.again(at(109)) && !spin.again(at(110)));
        spin.worked(at(120));
        spin.again(at(200));
        spin.worked(at(210));
        assert!(spin.again(at(300)) && spin.again(at(339)) && !spin.again(at(340)));
        for wait in 0..3 {
            spin.again(at(1000 * wait + 1000));
            spin.worked(at(1000 * wait + 1900));
        }
        assert!(!spin.again(at(9000)), "long waits have taught it to sleep");
    }

    #[test]
    fn with_one_processor_it_never_spins() {
        let start = Instant::now();
        let mut spin = Spin::new(Duration::from_micros(50), 1);
        spin.again(|| start);
        spin.worked(|| start);
        assert!(!spin.again(|| start));
    }
}
