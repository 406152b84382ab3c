//! [`Changes`]: the change attribute of objects, for a file system whose kernel does not provide one.
//!
//! The kernel provides the ctime, the time of the last change, from a clock that ticks only every 10 ms or so. Two
//! changes within one tick have the same ctime. A client that reads the ctime between them would not notice the second
//! change. So the change attribute of an object is its ctime in nanoseconds, but at least one more than before after
//! each change by this server.
//!
//! **It never decreases.** Values above the ctime are in a table of bounded size, which a restart empties. When the
//! table is emptied, every object that was last changed before gets a value of ctime + [`FORGOTTEN`], whether it was in
//! the table or not. That is more than any value that it had, because no object is changed so often within one tick. It
//! is less than any later value, because the next change happens in a later tick. A client that has cached such an
//! object revalidates it once.
//!
//! Changes by other programs count only by their ctime. The clock must not be set back, and must be the clock of this
//! host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use entropy::{FastState, HashMap};
use parking_lot::Mutex;
use rustix::time::ClockId;

use crate::{Attr, Time};

/// The values that differ from the ctime.
#[derive(Debug)]
pub(super) struct Changes {
    shards: [Mutex<Shard>; SHARDS],
}

/// A tick of the kernel's clock: the ctime of all objects that change during it.
///
/// A kernel with multigrain timestamps (Linux 6.13) gives a change a later ctime than the tick's if the ctime was read
/// since the last change. The change attribute then differs from the earlier one without further action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick(Time);

impl Tick {
    /// Returns the current tick without a system call.
    pub(super) fn now() -> Self {
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        Self(Time { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 })
    }

    /// Returns the ctime of objects that change in this tick.
    pub(super) fn time(self) -> Time {
        self.0
    }
}

#[derive(Debug)]
struct Shard {
    /// Objects that were last changed before this time, in nanoseconds, may have been removed from the table.
    forgotten: u64,
    /// The minimum values of objects, by file number. The file system chooses the numbers.
    least: HashMap<u64, u64, FastState>,
}

impl Changes {
    /// Creates an empty table. Waits until the kernel's clock has ticked, so that later changes differ from those
    /// before.
    pub(super) fn new() -> Self {
        let forgotten = nanoseconds(SystemTime::now());
        std::thread::sleep(TICK);
        Self { shards: std::array::from_fn(|_| Mutex::new(Shard { forgotten, least: HashMap::default() })) }
    }

    /// Returns the change attribute of an object that was last changed at `ctime`.
    pub(super) fn of(&self, fileid: u64, ctime: Time) -> u64 {
        self.shard(fileid).lock().of(fileid, ctime)
    }

    /// Makes the change attribute in `after` greater than `before`, the value before a change.
    pub(super) fn note(&self, before: u64, after: &mut Attr) {
        if after.change <= before {
            after.change = before + 1;
            self.shard(after.fileid).lock().raise(after.fileid, after.change, SystemTime::now());
        }
    }

    /// Gives an object a new change attribute after a change. `ctime` is its ctime after the change.
    pub(super) fn advance(&self, fileid: u64, ctime: Time) {
        let mut shard = self.shard(fileid).lock();
        let value = shard.of(fileid, ctime) + 1;
        shard.raise(fileid, value, SystemTime::now());
    }

    fn shard(&self, fileid: u64) -> &Mutex<Shard> {
        &self.shards[fileid as usize % SHARDS]
    }
}

impl Shard {
    fn of(&self, fileid: u64, ctime: Time) -> u64 {
        let ctime = ctime.as_nanoseconds();
        let value = if ctime < self.forgotten { ctime + FORGOTTEN } else { ctime };
        self.least.get(&fileid).map_or(value, |least| value.max(*least))
    }

    fn raise(&mut self, fileid: u64, value: u64, now: SystemTime) {
        if self.least.len() >= SHARD_MAX {
            // Keep the objects that can change again within the same tick.
            let ago = nanoseconds(now).saturating_sub(2 * TICK.as_nanos() as u64);
            if ago > self.forgotten {
                self.forgotten = ago;
                self.least.retain(|_, least| *least >= ago);
            }
        }
        self.least.insert(fileid, value);
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Longer than one tick of any kernel's clock.
const TICK: Duration = Duration::from_millis(11);
/// Nanoseconds. More than the number of changes of one object in a tick, and less than the time between two ticks.
const FORGOTTEN: u64 = 100_000;
const SHARDS: usize = 16;
/// Maximum number of objects in one shard, in addition to those that were changed within the last two ticks.
const SHARD_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanoseconds: u64) -> (Time, SystemTime) {
        let time = Duration::from_nanos(nanoseconds);
        (Time { seconds: time.as_secs() as i64, nanoseconds: time.subsec_nanos() }, UNIX_EPOCH + time)
    }

    #[test]
    fn value_is_ctime_or_more_if_the_clock_has_not_ticked() {
        let mut shard = Shard { forgotten: 1000, least: HashMap::default() };
        let (ctime, now) = at(5_000_000);
        assert_eq!(shard.of(1, ctime), 5_000_000);
        shard.raise(1, 5_000_001, now);
        assert_eq!((shard.of(1, ctime), shard.of(2, ctime)), (5_000_001, 5_000_000));
        assert_eq!(shard.of(1, at(9_000_000).0), 9_000_000);
        assert_eq!(shard.of(3, at(999).0), 999 + FORGOTTEN, "the value before the restart is unknown");
    }

    #[test]
    fn change_within_one_tick_gets_a_new_value() {
        let changes = Changes::new();
        let tick = Tick::now().time();
        let mut last = changes.of(7, tick);
        for change in 0..100 {
            changes.advance(7, tick);
            let value = changes.of(7, tick);
            assert!(value > last, "change {change}: {value} after {last}");
            last = value;
        }
        let (later, _) = at(tick.as_nanoseconds() + 4_000_000);
        assert_eq!(
            changes.of(7, later),
            later.as_nanoseconds(),
            "with a later ctime, the value must be the ctime again"
        );
    }

    #[test]
    fn table_is_bounded_and_values_never_decrease() {
        let mut shard = Shard { forgotten: 0, least: HashMap::default() };
        let mut told: HashMap<u64, (Time, u64)> = HashMap::default();
        let tick = 4_000_000;
        for step in 0..4 * SHARD_MAX as u64 {
            let (ctime, now) = at((1000 + step / 8) * tick);
            for fileid in [step, 1_000_000] {
                let before = shard.of(fileid, ctime);
                shard.raise(fileid, before + 1, now);
                told.insert(fileid, (ctime, before + 1));
            }
            assert!(shard.least.len() <= SHARD_MAX + 8 * 8, "{}", shard.least.len());
            if step % 1024 == 0 {
                told.iter().for_each(|(fileid, (ctime, told))| assert!(shard.of(*fileid, *ctime) >= *told));
            }
        }
        let next = at((1001 + SHARD_MAX as u64 / 2) * tick).0;
        told.iter()
            .for_each(|(fileid, (_, told))| assert!(shard.of(*fileid, next) > *told, "a later change must be noticed"));
    }
}
