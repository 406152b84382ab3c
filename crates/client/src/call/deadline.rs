//! [`Deadline`]: bounds the time that an operation waits for a silent server.
//!
//! A server that asks to retry later (NFS3ERR_JUKEBOX, NFS4ERR_DELAY, NFS4ERR_GRACE) is not silent. Each such answer
//! restarts the timeout, as on a hard mount of Linux. So an operation ends when the server has answered, when the
//! server has sent nothing for the whole timeout, or when the caller drops the future.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

/// The deadline of an operation. All requests of the operation share it.
#[derive(Debug)]
pub(crate) struct Deadline {
    start: Instant,
    timeout: Duration,
    /// Nanoseconds from `start` to the deadline.
    until_ns: AtomicU64,
    is_strict: bool,
}

impl Deadline {
    /// Makes a deadline that passes when the server has been silent for `timeout`.
    pub fn after(timeout: Duration) -> Self {
        Self { start: Instant::now(), timeout, until_ns: AtomicU64::new(nanoseconds(timeout)), is_strict: false }
    }

    /// Makes a deadline that passes after `timeout`, whatever the server answers. It is for background work that can be
    /// left undone.
    pub fn strict(timeout: Duration) -> Self {
        Self { is_strict: true, ..Self::after(timeout) }
    }

    /// Returns the time at which the operation began. Its requests were sent later.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// Returns the time at which the deadline passes, unless it is extended before.
    pub fn at(&self) -> Instant {
        self.start + Duration::from_nanos(self.until_ns.load(Relaxed))
    }

    /// Waits until the deadline has passed.
    pub async fn passed(&self) {
        while Instant::now() < self.at() {
            tokio::time::sleep_until(self.at()).await;
        }
    }

    /// Restarts the timeout because the server has answered.
    pub fn restart(&self) {
        self.not_before(self.start.elapsed().saturating_add(self.timeout));
    }

    /// Extends the deadline by the time that this operation waited for another one with a deadline of its own.
    pub fn extend(&self, time: Duration) {
        self.not_before(Duration::from_nanos(self.until_ns.load(Relaxed)).saturating_add(time));
    }

    fn not_before(&self, until: Duration) {
        if !self.is_strict {
            self.until_ns.fetch_max(nanoseconds(until), Relaxed);
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_silence_counts() {
        let (deadline, strict) = (Deadline::after(Duration::from_secs(60)), Deadline::strict(Duration::from_secs(60)));
        let start = Instant::now();
        tokio::time::advance(Duration::from_secs(50)).await;
        deadline.restart();
        strict.restart();
        assert_eq!(deadline.at() - start, Duration::from_secs(110));
        deadline.extend(Duration::from_secs(5));
        strict.extend(Duration::from_secs(5));
        assert_eq!(deadline.at() - start, Duration::from_secs(115));
        deadline.restart();
        assert_eq!(deadline.at() - start, Duration::from_secs(115), "an answer must not shorten the deadline");
        assert_eq!(strict.at() - start, Duration::from_secs(60));
    }
}
