//! [`Deadline`]: the time for which a server may be silent while an operation waits for it.
//!
//! A server that asks to retry later (NFS3ERR_JUKEBOX, NFS4ERR_DELAY, NFS4ERR_GRACE) is not silent. Each such answer restarts the
//! time, as on a hard mount of Linux: an operation ends when the server has answered, when it has not answered for the whole timeout, or
//! when the caller drops the future.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

/// The end of an operation whose server is silent. All requests of the operation share it.
#[derive(Debug)]
pub(crate) struct Deadline {
    start: Instant,
    timeout: Duration,
    /// Nanoseconds from the start to the deadline.
    until_ns: AtomicU64,
    is_strict: bool,
}

impl Deadline {
    /// Passes when the server has been silent for this time.
    pub fn after(timeout: Duration) -> Self {
        Self { start: Instant::now(), timeout, until_ns: AtomicU64::new(nanoseconds(timeout)), is_strict: false }
    }

    /// Passes after this time, whatever the server says: for work in the background that can be left undone.
    pub fn strict(timeout: Duration) -> Self {
        Self { is_strict: true, ..Self::after(timeout) }
    }

    /// When the operation began. Its requests were sent later.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// When it passes, as far as is known now.
    pub fn at(&self) -> Instant {
        self.start + Duration::from_nanos(self.until_ns.load(Relaxed))
    }

    /// Waits until it has passed.
    pub async fn passed(&self) {
        while Instant::now() < self.at() {
            tokio::time::sleep_until(self.at()).await;
        }
    }

    /// Restarts the time: the server has answered.
    pub fn heard(&self) {
        self.not_before(self.start.elapsed().saturating_add(self.timeout));
    }

    /// Does not count time in which another operation, with a deadline of its own, waited for the server.
    pub fn excuse(&self, time: Duration) {
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
        deadline.heard();
        strict.heard();
        assert_eq!(deadline.at() - start, Duration::from_secs(110));
        deadline.excuse(Duration::from_secs(5));
        strict.excuse(Duration::from_secs(5));
        assert_eq!(deadline.at() - start, Duration::from_secs(115));
        deadline.heard();
        assert_eq!(deadline.at() - start, Duration::from_secs(115), "an answer takes no time away");
        assert_eq!(strict.at() - start, Duration::from_secs(60));
    }
}
