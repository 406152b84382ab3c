//! [`Counters`]: the number, the bytes and the duration of calls of each procedure.
//!
//! There is one row of atomics for each procedure, in several copies, so that threads seldom share a cache line.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

/// The counters of a set of procedures.
#[derive(Debug)]
pub(crate) struct Counters {
    copies: Vec<Vec<Row>>,
}

#[derive(Debug, Default)]
struct Row {
    errors: AtomicU64,
    total_ns: AtomicU64,
    call_bytes: AtomicU64,
    reply_bytes: AtomicU64,
    /// The number of calls by the logarithm of their duration.
    buckets: [AtomicU64; BUCKETS],
}

/// The lengths of a call and its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    pub call: usize,
    pub reply: usize,
}

/// The statistics of one procedure since the server started.
#[derive(Clone, Debug)]
pub struct ProcedureStats {
    /// The program number.
    pub program: u32,
    /// The program version.
    pub version: u32,
    /// The procedure number.
    pub procedure: u32,
    /// The name of the procedure.
    pub name: &'static str,
    /// The number of calls executed.
    pub calls: u64,
    /// The number of calls that ended with an error of RPC.
    pub errors: u64,
    /// Total duration of all calls. A call lasts from the start of the connection's turn in which it arrived to the end
    /// of the turn in which it was answered.
    pub total: Duration,
    /// The bytes of all calls, with their headers and data.
    pub call_bytes: u64,
    /// The bytes of all replies, with their headers and data.
    pub reply_bytes: u64,
    buckets: [u64; BUCKETS],
}

impl ProcedureStats {
    /// Returns a duration that the given share of the calls (`0.0..=1.0`) did not exceed, to within a factor of two.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.calls as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Duration::from_nanos(2 << (bucket + FIRST_BUCKET));
            }
        }
        Duration::ZERO
    }
}

impl Counters {
    pub fn new(rows: usize) -> Self {
        let row = || (0..rows).map(|_| Row::default()).collect();
        Self { copies: (0..COPIES).map(|_| row()).collect() }
    }

    /// Counts one call.
    pub fn count(&self, row: usize, took: Duration, bytes: Bytes, ok: bool) {
        let row = &self.copies[copy_of_thread()][row];
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        row.total_ns.fetch_add(ns, Relaxed);
        row.call_bytes.fetch_add(bytes.call as u64, Relaxed);
        row.reply_bytes.fetch_add(bytes.reply as u64, Relaxed);
        row.buckets[bucket(ns)].fetch_add(1, Relaxed);
        if !ok {
            row.errors.fetch_add(1, Relaxed);
        }
    }

    /// Sums the copies of one row.
    pub fn read(
        &self,
        row: usize,
        name: &'static str,
        (program, version, procedure): (u32, u32, u32),
    ) -> ProcedureStats {
        let rows = || self.copies.iter().map(|copy| &copy[row]);
        let sum = |of: fn(&Row) -> &AtomicU64| rows().map(|row| of(row).load(Relaxed)).sum::<u64>();
        let buckets: [u64; BUCKETS] = std::array::from_fn(|i| rows().map(|row| row.buckets[i].load(Relaxed)).sum());
        ProcedureStats {
            program,
            version,
            procedure,
            name,
            calls: buckets.iter().sum(),
            errors: sum(|row| &row.errors),
            total: Duration::from_nanos(sum(|row| &row.total_ns)),
            call_bytes: sum(|row| &row.call_bytes),
            reply_bytes: sum(|row| &row.reply_bytes),
            buckets,
        }
    }
}

fn bucket(ns: u64) -> usize {
    (ns >> FIRST_BUCKET).checked_ilog2().map_or(0, |log| log as usize).min(BUCKETS - 1)
}

fn copy_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static COPY: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed) % COPIES);
    }
    COPY.get()
}

const COPIES: usize = 8;
/// The first bucket counts calls of 2⁷ ns and less, the last calls of 2³⁷ ns (two minutes) and more.
const FIRST_BUCKET: usize = 6;
const BUCKETS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_summed() {
        let counters = Counters::new(2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (1..=100).for_each(|us| {
                        counters.count(1, Duration::from_micros(us), Bytes { call: 3, reply: 5 }, us != 7);
                    });
                });
            }
        });
        let stats = counters.read(1, "TWO", (3, 2, 1));
        assert_eq!((stats.calls, stats.errors, stats.total), (400, 4, Duration::from_micros(4 * 5050)));
        assert_eq!((stats.call_bytes, stats.reply_bytes), (1200, 2000));
        assert!((50..=128).contains(&stats.quantile(0.5).as_micros()), "{:?}", stats.quantile(0.5));
        assert!((100..=200).contains(&stats.quantile(1.0).as_micros()));
        assert_eq!(counters.read(0, "ONE", (3, 2, 0)).calls, 0);
        assert_eq!(counters.read(0, "ONE", (3, 2, 0)).quantile(0.9), Duration::ZERO);
    }
}
