//! [`Rate`]: limits the bytes of calls and replies that a server passes in a second, as a link of that speed would.

use std::{num::NonZeroU64, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// A limit of the bytes per second of a server, over all its connections together.
///
/// A call and its reply pass together, when the call has been executed. A reply leaves at the time at which a link of this speed
/// would have passed both, after all those before. After a pause, [`BURST`] of the time are not waited for, so that the
/// granularity of timers does not lower the rate, and single small calls are not delayed.
#[derive(Debug)]
pub(crate) struct Rate {
    bytes_per_s: NonZeroU64,
    /// The time at which all that has been admitted will have passed.
    passed: Mutex<Instant>,
}

impl Rate {
    pub fn new(bytes_per_s: NonZeroU64) -> Self {
        Self { bytes_per_s, passed: Mutex::new(Instant::now()) }
    }

    /// Waits until these bytes may pass.
    pub async fn pass(&self, bytes: usize) {
        let now = Instant::now();
        let until = self.admit(bytes, now);
        if until > now {
            sleep_until(until).await;
        }
    }

    /// Returns the time at which these bytes will have passed.
    fn admit(&self, bytes: usize, now: Instant) -> Instant {
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_s.get());
        let takes = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(LONGEST);
        let mut passed = self.passed.lock();
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        *passed = (*passed).max(earliest) + takes;
        *passed
    }
}

/// The time of silence that counts as unused.
const BURST: Duration = Duration::from_millis(10);
/// Maximum time for one message. It bounds the wait at an absurdly low rate.
const LONGEST: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn messages_pass_at_the_rate_and_a_pause_gives_a_short_burst() {
        let rate = Rate::new(NonZeroU64::new(1_000_000).unwrap());
        let begun = Instant::now();
        for _ in 0..100 {
            rate.pass(10_000).await;
        }
        let took = begun.elapsed();
        assert!((Duration::from_millis(990)..=Duration::from_millis(1001)).contains(&took), "{took:?}");
        tokio::time::advance(Duration::from_secs(100)).await;
        let begun = Instant::now();
        rate.pass(10_000).await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "ten milliseconds of silence count");
        rate.pass(500_000).await;
        let took = begun.elapsed();
        assert!((Duration::from_millis(500)..=Duration::from_millis(502)).contains(&took), "{took:?}");
    }
}
