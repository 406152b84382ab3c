//! What was counted: a [`Tally`] for each task, a [`Sample`] for each run.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// What one task, or several together, did. It also keeps the task's time.
pub struct Tally {
    /// Operations completed.
    pub operations: u64,
    /// Bytes of file data moved.
    pub bytes: u64,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
    /// When the last operation ended.
    mark: Instant,
    end: Instant,
}

/// One run of one series at one point: counts, times, and what it cost.
pub struct Sample {
    /// Operations completed.
    pub operations: u64,
    /// Bytes of file data moved.
    pub bytes: u64,
    /// Wall clock.
    pub elapsed: Duration,
    /// CPU time of this process.
    pub client_cpu: Duration,
    /// CPU time of the server, if it is ours.
    pub server_cpu: Option<Duration>,
    /// Bytes that the machine's memory moved, where that can be read.
    pub memory_bytes: Option<u64>,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
}

impl Tally {
    /// Nothing yet; operations may begin until `end`.
    pub fn until(end: Instant) -> Self {
        Self { operations: 0, bytes: 0, latency: histogram(), mark: Instant::now(), end }
    }

    /// Whether another operation may begin: until time is up, and once in any case.
    pub fn goes_on(&self) -> bool {
        self.mark < self.end || self.operations == 0
    }

    /// An operation has ended that moved so many bytes. It took as long as since the last one, or since `since`.
    pub fn count(&mut self, bytes: usize, since: Option<Instant>) {
        let now = Instant::now();
        self.operations += 1;
        self.bytes += bytes as u64;
        self.latency.saturating_record((now - since.unwrap_or(self.mark)).as_nanos() as u64);
        self.mark = now;
    }

    /// Adds what another did.
    pub fn add(&mut self, other: &Tally) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.latency.add(&other.latency).expect("their bounds are the same");
    }
}

/// An empty histogram of latencies, from 64 ns to ten minutes in nanoseconds, to three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(64, 600_000_000_000, 3).expect("the bounds are in order")
}
