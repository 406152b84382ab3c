//! [`yield_now`]: lets other threads run while a thread spins, as long as they run only for a short time.
//!
//! If the threads that want to run are peers, which each run for some microseconds and then wait, sched_yield(2) costs little,
//! and the peer that the spinning thread waits for needs no wake-up. If another program computes, sched_yield(2)
//! returns only after its time slice, which has some milliseconds, and an operation then takes hundreds of times as long.
//! So after a late yield, no thread of this process yields for a time that is [`PAUSE`] times as long.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

/// Returns `true` if no yield returned late recently.
pub(crate) fn is_short(now: Instant) -> bool {
    LAST.is_short(now)
}

/// Lets other threads run, and records how long they ran. Returns the time of the return, and whether another thread has worked.
pub(crate) fn yield_now(now: Instant) -> (Instant, bool) {
    thread::yield_now();
    let returned = Instant::now();
    LAST.returned(now, returned);
    (returned, returned - now >= SWITCH)
}

static LAST: Late = Late(AtomicU64::new(0));
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// A yield is late if other threads ran for longer. Peers that answer each other run for tens of microseconds at a time.
const LATE: Duration = Duration::from_millis(1);
/// The minimum duration of a yield in which another thread has worked. A yield takes 0.4 µs if no thread waits for the same processor, and
/// 1.9 µs if one does that yields at once.
const SWITCH: Duration = Duration::from_micros(2);
/// The duration of the pause after a late yield, divided by that of the yield. So late yields take at most one fiftieth of the time of a thread.
const PAUSE: u32 = 50;
/// The maximum duration of a pause, for a process that was stopped while it yielded.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The end of the pause after the last late yield, in nanoseconds since `START`.
struct Late(AtomicU64);

impl Late {
    fn is_short(&self, now: Instant) -> bool {
        let pause_ends = self.0.load(Relaxed);
        // Without a late yield, the clock is not converted.
        pause_ends == 0 || since_start(now) >= pause_ends
    }

    fn returned(&self, before: Instant, after: Instant) {
        let took = after.saturating_duration_since(before);
        if took > LATE {
            self.0.store(since_start(after + (took * PAUSE).min(PAUSE_MAX)), Relaxed);
        }
    }
}

fn since_start(at: Instant) -> u64 {
    at.saturating_duration_since(*START).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_yield_is_followed_by_a_pause() {
        let (late, start) = (Late(AtomicU64::new(0)), *START);
        let at = |us| start + Duration::from_micros(us);
        late.returned(at(0), at(900));
        assert!(late.is_short(at(900)), "peers run for less than a millisecond");
        late.returned(at(1000), at(5000));
        assert!(!late.is_short(at(5000)));
        assert!(!late.is_short(at(204_999)));
        assert!(late.is_short(at(205_000)), "the pause must end");
        late.returned(at(206_000), at(206_010));
        assert!(late.is_short(at(206_010)));
        late.returned(at(206_000), at(10_000_000));
        assert!(!late.is_short(at(10_999_999)));
        assert!(late.is_short(at(11_000_000)), "a pause must not last longer than a second");
    }

    #[test]
    fn a_yield_of_two_microseconds_lets_another_thread_work() {
        assert!(yield_now(Instant::now() - SWITCH).1);
        assert!(!yield_now(Instant::now() + LATE).1, "a yield that has taken no time");
    }

    #[test]
    fn yields_of_this_process_are_recorded() {
        yield_now(Instant::now() - 2 * LATE);
        assert!(!is_short(Instant::now()), "a yield that began two milliseconds ago must be late");
    }
}
