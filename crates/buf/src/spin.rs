//! [`Spin`]: when to look again at once, and when to sleep.
//!
//! Waking a sleeper costs tens of microseconds, spinning costs a processor. So a side spins for a while when that has
//! been worth it lately, in the manner of the kernel's `haltpoll`. What counts is the whole wait: one that was short enough
//! although somebody had to be woken ([`SHORT`]) would have been far shorter without, so that the next is begun by
//! spinning, twice as long each time; a long one halves the time. Who spins to no avail again and again, because the peer
//! takes a little longer than that each time, gives it up for a while. An idle connection sleeps, and nobody spins while more
//! threads want to run than there are processors.

use std::{
    future::Future,
    num::NonZero,
    pin::pin,
    sync::LazyLock,
    task::Context,
    thread,
    time::{Duration, Instant},
};

use crate::crowd::is_crowded;

/// How long the driver of a connection spins.
#[derive(Debug)]
pub struct Spin {
    /// Longest time that is ever worth it.
    max: Duration,
    budget: Duration,
    /// Since when there is nothing to do.
    idle: Option<Instant>,
    /// Short waits in a row that the longest spin did not outlast.
    misses: u32,
    /// Short waits that are still to be slept through after too many of these.
    rest: u32,
}

impl Spin {
    /// Never longer than `max`, and not at all where this process has one processor alone.
    pub fn new(max: Duration) -> Self {
        Self::among(max, *PROCESSORS)
    }

    /// With `processors` to run on. On one alone, whoever spins keeps its peer from working.
    fn among(max: Duration, processors: usize) -> Self {
        let max = if processors > 1 { max } else { Duration::ZERO };
        Self { max, budget: Duration::ZERO, idle: None, misses: 0, rest: 0 }
    }

    /// There was something to do.
    pub fn worked(&mut self, now: impl FnOnce() -> Instant) {
        let Some(since) = self.idle.take() else { return };
        let waited = now() - since;
        if waited < self.budget {
            (self.budget, self.misses) = (self.max, 0);
        } else if waited > SHORT {
            self.misses = 0;
            self.budget = if self.budget <= SPIN_MIN { Duration::ZERO } else { self.budget / 2 };
        } else if self.rest > 0 {
            self.rest -= 1;
        } else if self.budget < self.max {
            self.budget = (self.budget * 2).clamp(SPIN_MIN.min(self.max), self.max);
        } else {
            self.misses += 1;
            if self.misses >= MISSES_MAX {
                (self.budget, self.misses, self.rest) = (Duration::ZERO, 0, REST);
            }
        }
    }

    /// There is nothing to do: whether to look again at once.
    pub fn again(&mut self, now: impl FnOnce() -> Instant) -> bool {
        self.again_unless(now, is_crowded)
    }

    fn again_unless(&mut self, now: impl FnOnce() -> Instant, is_crowded: impl FnOnce(Instant) -> bool) -> bool {
        if self.budget.is_zero() && self.idle.is_some() {
            return false;
        }
        let now = now();
        let since = *self.idle.get_or_insert(now);
        now - since < self.budget && !is_crowded(now)
    }
}

impl Spin {
    /// [`Spin::again`] for a driver that waits for a socket: if so, its task is woken once the sockets of this thread
    /// have been looked at again, without sleeping. Only on a tokio runtime.
    pub fn poll_again(&mut self, cx: &mut Context<'_>) -> bool {
        let again = self.again(Instant::now);
        if again {
            let _ = pin!(tokio::task::yield_now()).poll(cx);
        }
        again
    }
}

/// The longest spin that is worth it as a rule.
pub const SPIN_MAX: Duration = Duration::from_micros(50);
/// The same for sockets, where more has to happen before the next bytes are there: as long as the kernel's own
/// `haltpoll` waits before it lets a virtual processor sleep.
pub const SOCKET_SPIN_MAX: Duration = Duration::from_micros(200);
/// Processors that this process may use.
static PROCESSORS: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));
const SPIN_MIN: Duration = Duration::from_micros(10);
/// A wait that may have consisted of waking two sleepers.
const SHORT: Duration = Duration::from_micros(250);
const MISSES_MAX: u32 = 16;
const REST: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for so many microseconds from now on; how many of them it spun.
    fn wait(spin: &mut Spin, clock: &mut Instant, us: u64) -> u64 {
        let mut spun = 0;
        for at in 0..us {
            let now = *clock + Duration::from_micros(at);
            if !spin.again_unless(|| now, |_| false) {
                break;
            }
            spun += 1;
        }
        *clock += Duration::from_micros(us);
        let now = *clock;
        spin.worked(|| now);
        spun
    }

    #[test]
    fn short_waits_make_it_spin_and_long_ones_sleep() {
        let (mut spin, mut clock) = (Spin::among(SPIN_MAX, 2), Instant::now());
        let waits: Vec<_> = (0..5).map(|_| wait(&mut spin, &mut clock, 90)).collect();
        assert_eq!(waits, [0, 10, 20, 40, 50], "two wake-ups are to be saved");
        assert_eq!(wait(&mut spin, &mut clock, 3), 3, "and are");
        let waits: Vec<_> = (0..5).map(|_| wait(&mut spin, &mut clock, 5000)).collect();
        assert_eq!(waits, [50, 25, 13, 7, 0], "long waits teach it to sleep");
    }

    #[test]
    fn who_spins_to_no_avail_gives_it_up_for_a_while() {
        let (mut spin, mut clock) = (Spin::among(SPIN_MAX, 2), Instant::now());
        let spun: u64 = (0..200).map(|_| wait(&mut spin, &mut clock, 90)).sum();
        assert!(spun < 20 * 50, "{spun}");
        let later: u64 = (0..100).map(|_| wait(&mut spin, &mut clock, 90)).sum();
        assert!(later > 0, "it is tried again");
    }

    #[test]
    fn in_a_crowd_it_does_not_spin() {
        let (mut spin, now) = (Spin::among(SPIN_MAX, 2), Instant::now());
        spin.budget = SPIN_MAX;
        assert!(!spin.again_unless(|| now, |_| true));
        assert!(spin.again_unless(|| now, |_| false), "as soon as it is none");
    }

    #[test]
    fn with_one_processor_it_never_spins() {
        let (mut spin, mut clock) = (Spin::among(SPIN_MAX, 1), Instant::now());
        assert_eq!((0..10).map(|_| wait(&mut spin, &mut clock, 20)).sum::<u64>(), 0);
    }
}
