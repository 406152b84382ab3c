//! [`is_crowded`]: whether more threads want to run than there are processors.
//!
//! Whoever spins then keeps somebody from working, perhaps the very peer that he waits for. Linux tells how many threads run or
//! wait for a processor in `/proc/loadavg` (proc_loadavg(5), the fourth field). That is of the whole machine, so it is compared
//! with all processors that are on line, not with those that this process may use: a container that is confined to two
//! of sixty-four would else never spin while ten threads of others run. (The opposite, two that are crowded on a machine
//! that is not, goes unseen; then the spins bear no fruit, and [`Spin`](crate::Spin) gives them up by itself.) It is read at
//! most once in [`INTERVAL`], by whoever asks then, and smoothed, since it is of one instant.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    sync::{
        LazyLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Whether more threads than processors run or wait to run, as far as the system says.
pub(crate) fn is_crowded(now: Instant) -> bool {
    let at = now.saturating_duration_since(*START).as_nanos() as u64;
    let last = SAMPLED.load(Relaxed);
    if at.saturating_sub(last) >= INTERVAL.as_nanos() as u64
        && SAMPLED.compare_exchange(last, at, Relaxed, Relaxed).is_ok()
        && let Some(running) = running()
    {
        RUNNING.store(smooth(RUNNING.load(Relaxed), running), Relaxed);
    }
    RUNNING.load(Relaxed) > *ONLINE * ONE + ONE / 2
}

/// Threads that run or wait to run, this one included.
fn running() -> Option<u32> {
    static LOADAVG: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/loadavg").ok());
    let mut text = [0; 64];
    let len = LOADAVG.as_ref()?.read_at(&mut text, 0).ok()?;
    parse(&text[..len])
}

/// `0.20 0.18 0.12 1/80 11206`: the 1.
fn parse(loadavg: &[u8]) -> Option<u32> {
    let threads = std::str::from_utf8(loadavg).ok()?.split(' ').nth(3)?;
    threads.split_once('/')?.0.parse().ok()
}

/// `0-3,6`: 5 processors (cputopology.rst of Linux, "online").
fn count(list: &str) -> Option<u32> {
    list.trim_end().split(',').try_fold(0, |sum: u32, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?)?.checked_add(1)
    })
}

/// The mean of the last few, in parts of [`ONE`].
fn smooth(mean: u32, sample: u32) -> u32 {
    mean - mean / MEMORY + sample.min(SAMPLE_MAX) * ONE / MEMORY
}

/// Processors that are on line when first asked; without limit where the system does not say.
static ONLINE: LazyLock<u32> = LazyLock::new(|| {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    online.as_deref().and_then(count).unwrap_or(PROCESSORS_MAX)
});
const PROCESSORS_MAX: u32 = 1 << 16;
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// When it was last read, in nanoseconds since `START`.
static SAMPLED: AtomicU64 = AtomicU64::new(0);
/// The mean, in parts of [`ONE`].
static RUNNING: AtomicU32 = AtomicU32::new(0);
const ONE: u32 = 256;
/// So many samples count.
const MEMORY: u32 = 4;
const SAMPLE_MAX: u32 = 1 << 16;
/// Reading it costs about two microseconds.
const INTERVAL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_how_many_run() {
        assert_eq!(parse(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(parse(b"0.20 0.18"), None);
        assert_eq!(parse(b"\xff \xff \xff \xff"), None);
        assert!(running().is_none_or(|running| running >= 1), "this thread runs");
    }

    #[test]
    fn all_processors_of_the_machine_count() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-3,6,8-9\n"), Some(7));
        assert_eq!(count("3-0"), None);
        assert_eq!(count("0-4294967295"), None);
        assert_eq!(count(""), None);
        let usable = std::thread::available_parallelism().map_or(1, |usable| usable.get() as u32);
        assert!(*ONLINE >= usable, "{} on line, {usable} for this process", *ONLINE);
    }

    #[test]
    fn one_sample_is_not_a_crowd_and_some_are() {
        let mean = |samples: &[u32]| samples.iter().fold(0, |mean, &sample| smooth(mean, sample));
        assert!((2 * ONE - 16..=2 * ONE).contains(&mean(&[2; 40])), "{}", mean(&[2; 40]));
        let once = smooth(mean(&[2; 40]), 3);
        assert!(once < 2 * ONE + ONE / 2, "{once}");
        assert!(smooth(mean(&[2; 40]), 16) > 2 * ONE + ONE / 2);
        assert!(mean(&[u32::MAX; 100]) > 1 << 20, "nothing overflows");
    }
}
