//! [`Counters`]: what each procedure was called, and how long it took.
//!
//! One row of atomics per procedure, in a few copies so that threads seldom share a cache line.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

/// Counters of a number of procedures.
#[derive(Debug)]
pub(crate) struct Counters {
    copies: Vec<Vec<Row>>,
}

#[derive(Debug, Default)]
struct Row {
    errors: AtomicU64,
    total_ns: AtomicU64,
    /// Calls by the logarithm of their time.
    buckets: [AtomicU64; BUCKETS],
}

/// What one procedure was called since the server started.
#[derive(Clone, Debug)]
pub struct ProcedureStats {
    /// Program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Procedure.
    pub procedure: u32,
    /// Its name.
    pub name: &'static str,
    /// Calls executed.
    pub calls: u64,
    /// Calls that ended in an error of RPC.
    pub errors: u64,
    /// Time of all calls, from the turn of the connection in which they arrived to the end of that in which they were answered.
    pub total: Duration,
    buckets: [u64; BUCKETS],
}

impl ProcedureStats {
    /// A time that this share of the calls (`0.0..=1.0`) did not exceed, to within a factor of two.
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
    pub fn count(&self, row: usize, took: Duration, ok: bool) {
        let row = &self.copies[copy_of_thread()][row];
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        row.total_ns.fetch_add(ns, Relaxed);
        row.buckets[bucket(ns)].fetch_add(1, Relaxed);
        if !ok {
            row.errors.fetch_add(1, Relaxed);
        }
    }

    /// The sums of one row, named by `stats`.
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
/// The first bucket is for 2⁷ ns and less, the last for 2³⁷ ns (two minutes) and more.
const FIRST_BUCKET: usize = 6;
const BUCKETS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_add_up() {
        let counters = Counters::new(2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (1..=100).for_each(|us| counters.count(1, Duration::from_micros(us), us != 7));
                });
            }
        });
        let stats = counters.read(1, "TWO", (3, 2, 1));
        assert_eq!((stats.calls, stats.errors, stats.total), (400, 4, Duration::from_micros(4 * 5050)));
        assert!((50..=128).contains(&stats.quantile(0.5).as_micros()), "{:?}", stats.quantile(0.5));
        assert!((100..=200).contains(&stats.quantile(1.0).as_micros()));
        assert_eq!(counters.read(0, "ONE", (3, 2, 0)).calls, 0);
        assert_eq!(counters.read(0, "ONE", (3, 2, 0)).quantile(0.9), Duration::ZERO);
    }
}
