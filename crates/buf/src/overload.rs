//! [`is_overloaded`]: detects that more threads want to run than there are processors.
//!
//! Spinning without yields then takes a processor from other threads, possibly from the peer. Linux returns the number of threads that
//! run or wait for a processor in the fourth field of `/proc/loadavg` (proc_loadavg(5)). This number is for the whole
//! machine, so it is compared with all online processors, not with those that this process may use. Otherwise a
//! container that is confined to two of sixty-four processors would never spin while ten threads of other containers
//! run. (The opposite case is not detected: the processors of a container are overloaded, and the machine is not. Its
//! spins then fail, and [`Spin`](crate::Spin) stops spinning.) The file is read at most once in [`INTERVAL`], by the
//! thread that asks next. The samples are smoothed, because each is of one instant.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    sync::{
        LazyLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Returns `true` if more threads than processors run or wait to run, as far as the system reports it.
pub(crate) fn is_overloaded(now: Instant) -> bool {
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

/// Returns the number of threads that run or wait to run, including this one.
fn running() -> Option<u32> {
    static LOADAVG: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/loadavg").ok());
    let mut text = [0; 64];
    let len = LOADAVG.as_ref()?.read_at(&mut text, 0).ok()?;
    parse(&text[..len])
}

/// Parses a line such as `0.20 0.18 0.12 1/80 11206`. Returns the 1.
fn parse(loadavg: &[u8]) -> Option<u32> {
    let threads = std::str::from_utf8(loadavg).ok()?.split(' ').nth(3)?;
    threads.split_once('/')?.0.parse().ok()
}

/// Counts the processors in a list such as `0-3,6`, which has 5 (cputopology.rst of Linux, "online").
fn count(list: &str) -> Option<u32> {
    list.trim_end().split(',').try_fold(0, |sum: u32, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?)?.checked_add(1)
    })
}

/// Returns the new exponential mean after a sample, in units of 1/[`ONE`].
fn smooth(mean: u32, sample: u32) -> u32 {
    mean - mean / MEMORY + sample.min(SAMPLE_MAX) * ONE / MEMORY
}

/// The number of online processors at the first call; [`PROCESSORS_MAX`] if the system does not report it.
static ONLINE: LazyLock<u32> = LazyLock::new(|| {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    online.as_deref().and_then(count).unwrap_or(PROCESSORS_MAX)
});
const PROCESSORS_MAX: u32 = 1 << 16;
static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// The time of the last sample, in nanoseconds since `START`.
static SAMPLED: AtomicU64 = AtomicU64::new(0);
/// The mean number of running threads, in units of 1/[`ONE`].
static RUNNING: AtomicU32 = AtomicU32::new(0);
const ONE: u32 = 256;
/// A new sample has the weight 1/`MEMORY` in the mean.
const MEMORY: u32 = 4;
const SAMPLE_MAX: u32 = 1 << 16;
/// The minimum time between two samples. Reading one costs about two microseconds.
const INTERVAL: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_threads_are_parsed() {
        assert_eq!(parse(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(parse(b"0.20 0.18"), None);
        assert_eq!(parse(b"\xff \xff \xff \xff"), None);
        assert!(running().is_none_or(|running| running >= 1), "this thread must be counted");
    }

    #[test]
    fn online_processors_are_counted() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-3,6,8-9\n"), Some(7));
        assert_eq!(count("3-0"), None);
        assert_eq!(count("0-4294967295"), None);
        assert_eq!(count(""), None);
        let usable = std::thread::available_parallelism().map_or(1, |usable| usable.get() as u32);
        assert!(*ONLINE >= usable, "{} on line, {usable} for this process", *ONLINE);
    }

    #[test]
    fn a_single_sample_does_not_indicate_overload() {
        let mean = |samples: &[u32]| samples.iter().fold(0, |mean, &sample| smooth(mean, sample));
        assert!((2 * ONE - 16..=2 * ONE).contains(&mean(&[2; 40])), "{}", mean(&[2; 40]));
        let once = smooth(mean(&[2; 40]), 3);
        assert!(once < 2 * ONE + ONE / 2, "{once}");
        assert!(smooth(mean(&[2; 40]), 16) > 2 * ONE + ONE / 2);
        assert!(mean(&[u32::MAX; 100]) > 1 << 20, "the mean must not overflow");
    }
}
