//! Counts: a [`Tally`] for each task, a [`Sample`] for each run.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// The counts of one task, or of several together. It also decides when a task ends.
pub struct Tally {
    /// The number of completed operations.
    pub operations: u64,
    /// The bytes of file data.
    pub bytes: u64,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
    /// The end of the last operation.
    mark: Instant,
    end: Instant,
}

/// One run of one series at one point: counts, times and costs.
pub struct Sample {
    /// The number of completed operations.
    pub operations: u64,
    /// The bytes of file data.
    pub bytes: u64,
    /// The wall-clock time.
    pub elapsed: Duration,
    /// The CPU time of this process.
    pub client_cpu: Duration,
    /// The CPU time of the server, if this command started it.
    pub server_cpu: Option<Duration>,
    /// The CPU time of all data servers, if there is a cluster.
    pub data_server_cpu: Option<Duration>,
    /// The number of READs and WRITEs at the data servers, if there is a cluster.
    pub data_server_calls: Option<u64>,
    /// The bytes that the machine's memory moved, if known.
    pub memory_bytes: Option<u64>,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
}

impl Tally {
    /// Creates an empty tally. Operations can begin until `end`.
    pub fn until(end: Instant) -> Self {
        Self { operations: 0, bytes: 0, latency: histogram(), mark: Instant::now(), end }
    }

    /// Returns `true` if another operation can begin: before the end, and in any case once.
    pub fn goes_on(&self) -> bool {
        self.mark < self.end || self.operations == 0
    }

    /// Counts an operation that has moved `bytes` bytes. Its latency is the time since the last one, or since `since`.
    pub fn count(&mut self, bytes: usize, since: Option<Instant>) {
        let now = Instant::now();
        self.operations += 1;
        self.bytes += bytes as u64;
        self.latency.saturating_record((now - since.unwrap_or(self.mark)).as_nanos() as u64);
        self.mark = now;
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Tally) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.latency.add(&other.latency).expect("histograms must have the same bounds");
    }
}

/// Returns an empty histogram of latencies in nanoseconds, from 64 ns to ten minutes, with three digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(64, 600_000_000_000, 3).expect("bounds must be valid")
}
