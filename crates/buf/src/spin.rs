//! [`Spin`]: decides whether an idle driver polls again or sleeps.
//!
//! Waking a sleeping thread costs tens of microseconds; spinning occupies a processor. So a side spins for a limited
//! time if spinning has helped recently, as the kernel's `haltpoll` does. The decision is based on the duration of each
//! whole wait. If a wait was short although a thread had to be woken ([`SHORT`]), it would have been much shorter
//! without that, so the next wait starts with spinning, for twice as long. A long wait halves the time. If spins fail
//! repeatedly, because the peer takes a little longer than the maximum each time, spinning stops for a number of waits.
//! An idle connection sleeps. A thread that spins for more than a microsecond calls sched_yield(2) before it polls again. If that took too
//! long recently, it does not, and then no connection spins while more threads want to run than there are processors. sched_yield(2) lets
//! only threads run that wait for the same processor. If there is none for some time, but threads wait for other processors, the thread
//! sleeps: Linux then gives its processor to one of them.

use std::{
    future::Future,
    num::NonZero,
    pin::pin,
    sync::LazyLock,
    task::Context,
    thread,
    time::{Duration, Instant},
};

use crate::{overload::is_overloaded, yielding};

/// Decides how long the driver of a connection spins.
#[derive(Debug)]
pub struct Spin {
    /// The maximum time to spin in one wait.
    max: Duration,
    budget: Duration,
    /// The start of the current wait.
    idle: Option<Instant>,
    /// The end of the last yield of the current wait in which another thread has worked.
    shared: Option<Instant>,
    /// The number of consecutive short waits that were longer than the longest spin.
    misses: u32,
    /// The number of short waits to sleep through after too many misses.
    rest: u32,
}

impl Spin {
    /// Makes one that spins for at most `max`, and never if this process has only one processor.
    pub fn new(max: Duration) -> Self {
        Self::among(max, *PROCESSORS)
    }

    /// Makes one for a number of processors. With one processor, spinning would keep the peer from running.
    fn among(max: Duration, processors: usize) -> Self {
        let max = if processors > 1 { max } else { Duration::ZERO };
        Self { max, budget: Duration::ZERO, idle: None, shared: None, misses: 0, rest: 0 }
    }

    /// Ends a wait because there was work.
    pub fn worked(&mut self, now: impl FnOnce() -> Instant) {
        let Some(since) = self.idle.take() else { return };
        self.shared = None;
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

    /// Starts or continues a wait because there is no work. Returns `true` if the driver should poll again at once:
    /// other threads have run first if the wait is longer than a microsecond.
    pub fn should_poll(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.budget.is_zero() && self.idle.is_some() {
            return false;
        }
        let now = now();
        match self.decide(now, yielding::is_short(now), is_overloaded) {
            Next::Sleep => return false,
            Next::Poll => {}
            Next::YieldAndPoll => {
                let (returned, worked) = yielding::yield_now(now);
                if worked {
                    self.shared = Some(returned);
                }
            }
        }
        true
    }

    fn decide(&mut self, now: Instant, yields_are_short: bool, is_overloaded: impl FnOnce(Instant) -> bool) -> Next {
        let since = *self.idle.get_or_insert(now);
        let (spun, alone) = (now - since, now - self.shared.unwrap_or(since));
        if spun >= self.budget || (!yields_are_short || alone >= ALONE_MAX) && is_overloaded(now) {
            Next::Sleep
        } else if yields_are_short && spun >= YIELD_AFTER {
            Next::YieldAndPoll
        } else {
            Next::Poll
        }
    }
}

/// The next step of a driver that has no work.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Sleep,
    Poll,
    YieldAndPoll,
}

impl Spin {
    /// Calls [`Spin::should_poll`] for a driver that waits for a socket. If it returns `true`, the task is woken after the
    /// sockets of this thread were polled again, without sleeping. It must be called on a tokio runtime.
    pub fn poll_again(&mut self, cx: &mut Context<'_>) -> bool {
        let again = self.should_poll(Instant::now);
        if again {
            Self::yield_to_sockets(cx);
        }
        again
    }

    /// Wakes the task after the other tasks and the sockets of this thread were polled. A task that wakes itself directly
    /// is polled again many times before the runtime polls sockets.
    pub fn yield_to_sockets(cx: &mut Context<'_>) {
        let _ = pin!(tokio::task::yield_now()).poll(cx);
    }
}

/// The maximum time to spin. It includes the time that a program needs between two operations, for example for a message
/// of FUSE. It is the time that the kernel's `haltpoll` spins before it lets a virtual processor sleep.
pub const SPIN_MAX: Duration = Duration::from_micros(200);
/// The number of processors that this process may use.
static PROCESSORS: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));
/// The time after which a spinning thread lets others run first.
const YIELD_AFTER: Duration = Duration::from_micros(1);
/// The time after which a thread that yields to no other thread sleeps, if threads wait for other processors.
const ALONE_MAX: Duration = Duration::from_micros(60);
const SPIN_MIN: Duration = Duration::from_micros(10);
/// The maximum duration of a short wait, which can include waking two threads.
const SHORT: Duration = Duration::from_micros(250);
const MISSES_MAX: u32 = 16;
const REST: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(50);

    /// Waits for `us` microseconds. Returns how many of them it spun.
    fn wait(spin: &mut Spin, clock: &mut Instant, us: u64) -> u64 {
        let mut spun = 0;
        for at in 0..us {
            let now = *clock + Duration::from_micros(at);
            if spin.decide(now, true, |_| false) == Next::Sleep {
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
    fn short_waits_increase_and_long_waits_decrease_the_spin_time() {
        let (mut spin, mut clock) = (Spin::among(MAX, 2), Instant::now());
        let waits: Vec<_> = (0..5).map(|_| wait(&mut spin, &mut clock, 90)).collect();
        assert_eq!(waits, [0, 10, 20, 40, 50], "the spin time must double up to the maximum");
        assert_eq!(wait(&mut spin, &mut clock, 3), 3, "a short wait must be spun completely");
        let waits: Vec<_> = (0..5).map(|_| wait(&mut spin, &mut clock, 5000)).collect();
        assert_eq!(waits, [50, 25, 13, 7, 0], "long waits must halve the spin time");
    }

    #[test]
    fn repeated_misses_stop_spinning_for_a_while() {
        let (mut spin, mut clock) = (Spin::among(MAX, 2), Instant::now());
        let spun: u64 = (0..200).map(|_| wait(&mut spin, &mut clock, 90)).sum();
        assert!(spun < 20 * 50, "{spun}");
        let later: u64 = (0..100).map(|_| wait(&mut spin, &mut clock, 90)).sum();
        assert!(later > 0, "spinning must be tried again");
    }

    #[test]
    fn a_spinning_thread_yields_while_yields_are_short() {
        let (mut spin, now) = (Spin::among(SPIN_MAX, 2), Instant::now());
        spin.budget = SPIN_MAX;
        let unused = |_| panic!("the number of threads must not be read");
        assert_eq!(spin.decide(now, true, unused), Next::Poll);
        assert_eq!(spin.decide(now + YIELD_AFTER, true, unused), Next::YieldAndPoll);
        assert_eq!(spin.decide(now + SPIN_MAX, true, unused), Next::Sleep);
    }

    #[test]
    fn a_thread_sleeps_if_its_yields_do_not_let_waiting_threads_run() {
        let (mut spin, now) = (Spin::among(SPIN_MAX, 2), Instant::now());
        let at = |us| now + Duration::from_micros(us);
        spin.budget = SPIN_MAX;
        assert_eq!(spin.decide(at(0), true, |_| true), Next::Poll);
        assert_eq!(spin.decide(at(59), true, |_| true), Next::YieldAndPoll);
        assert_eq!(spin.decide(at(60), true, |_| false), Next::YieldAndPoll, "no thread waits for a processor");
        spin.shared = Some(at(15));
        assert_eq!(spin.decide(at(74), true, |_| true), Next::YieldAndPoll);
        assert_eq!(spin.decide(at(75), true, |_| true), Next::Sleep);
        spin.worked(|| at(76));
        assert_eq!(spin.decide(at(80), true, |_| true), Next::Poll, "the next wait must begin with spinning");
        assert_eq!(spin.decide(at(139), true, |_| true), Next::YieldAndPoll);
    }

    #[test]
    fn no_spinning_while_overloaded_unless_yields_are_short() {
        let (mut spin, now) = (Spin::among(SPIN_MAX, 2), Instant::now());
        spin.budget = SPIN_MAX;
        assert_eq!(spin.decide(now, false, |_| true), Next::Sleep);
        assert_eq!(
            spin.decide(now + YIELD_AFTER, false, |_| false),
            Next::Poll,
            "spinning must resume when the overload ends"
        );
        assert_eq!(spin.decide(now + YIELD_AFTER, true, |_| true), Next::YieldAndPoll);
    }

    #[test]
    fn no_spinning_with_one_processor() {
        let (mut spin, mut clock) = (Spin::among(SPIN_MAX, 1), Instant::now());
        assert_eq!((0..10).map(|_| wait(&mut spin, &mut clock, 20)).sum::<u64>(), 0);
    }
}
