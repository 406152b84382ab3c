//! [`Changes`]: the change attribute of a file system whose kernel does not tell one.
//!
//! What the kernel tells is the time of the last change, by a clock that stands still for up to 10 ms. Two changes within one
//! of its ticks look the same, and who has looked in between would believe that nothing has happened. So an object's value is
//! its ctime, in nanoseconds, but one more than before where a change by this server has not moved that.
//!
//! **It never goes back.** What is more than the ctime is kept in a table of bounded size, which a restart empties. An object
//! that was last changed before the table was emptied has [`FORGOTTEN`] more than its ctime, whether it was in the table or
//! not: that is more than it can have had, since nothing is changed so often within a tick, and less than it will have, as its
//! next change comes a tick later. Who has cached such an object looks at it anew, once.
//!
//! Changes by other programs count by their ctime alone. The clock must not be set back, and be this host's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use entropy::HashMap;
use parking_lot::Mutex;
use rustix::time::ClockId;

use crate::{Attr, Time};

/// The values that are not what the ctime says.
#[derive(Debug)]
pub(super) struct Changes {
    shards: [Mutex<Shard>; SHARDS],
}

/// A tick of the kernel's clock: the ctime of everything that changes in it.
///
/// A kernel with multigrain timestamps (Linux 6.13) gives a change a later ctime than the tick's if someone has read the ctime since the
/// last change. Such a change attribute differs from the earlier one by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick(Time);

impl Tick {
    /// Reads the clock, without a system call.
    pub(super) fn now() -> Self {
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        Self(Time { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 })
    }

    /// The ctime of what changes in this tick.
    pub(super) fn time(self) -> Time {
        self.0
    }
}

#[derive(Debug)]
struct Shard {
    /// What was last changed before this, in nanoseconds, was perhaps in the table, and is not any more.
    forgotten: u64,
    /// The least values of objects, by their numbers.
    least: HashMap<u64, u64>,
}

impl Changes {
    /// Nothing is remembered of what was changed before now. Waits until the kernel's clock has moved on, so that what is
    /// changed from now on is told from that.
    pub(super) fn new() -> Self {
        let forgotten = nanoseconds(SystemTime::now());
        std::thread::sleep(TICK);
        Self { shards: std::array::from_fn(|_| Mutex::new(Shard { forgotten, least: HashMap::default() })) }
    }

    /// The value of an object that was last changed then.
    pub(super) fn of(&self, fileid: u64, ctime: Time) -> u64 {
        self.shard(fileid).lock().of(fileid, ctime)
    }

    /// An object has been changed that had the value `before`: `after` has another.
    pub(super) fn note(&self, before: u64, after: &mut Attr) {
        if after.change <= before {
            after.change = before + 1;
            self.shard(after.fileid).lock().raise(after.fileid, after.change, SystemTime::now());
        }
    }

    /// Gives an object another value than it ever had. It was changed, and its ctime is now `ctime`.
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
            // What may be changed once more within its tick stays.
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

/// Longer than a tick of any kernel's clock.
const TICK: Duration = Duration::from_millis(11);
/// Nanoseconds: more than there are changes of one object in a tick, and fewer than from one tick to the next.
const FORGOTTEN: u64 = 100_000;
const SHARDS: usize = 16;
/// Objects in one shard, beside those that were changed within the last two ticks.
const SHARD_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanoseconds: u64) -> (Time, SystemTime) {
        let time = Duration::from_nanos(nanoseconds);
        (Time { seconds: time.as_secs() as i64, nanoseconds: time.subsec_nanos() }, UNIX_EPOCH + time)
    }

    #[test]
    fn a_value_is_the_ctime_and_more_where_that_stands_still() {
        let mut shard = Shard { forgotten: 1000, least: HashMap::default() };
        let (ctime, now) = at(5_000_000);
        assert_eq!(shard.of(1, ctime), 5_000_000);
        shard.raise(1, 5_000_001, now);
        assert_eq!((shard.of(1, ctime), shard.of(2, ctime)), (5_000_001, 5_000_000));
        assert_eq!(shard.of(1, at(9_000_000).0), 9_000_000);
        assert_eq!(shard.of(3, at(999).0), 999 + FORGOTTEN, "nobody knows what it had in another life");
    }

    #[test]
    fn a_change_that_did_not_move_the_ctime_gets_a_new_value() {
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
        assert_eq!(changes.of(7, later), later.as_nanoseconds(), "a later ctime is the value again");
    }

    #[test]
    fn the_table_is_bounded_and_no_value_goes_back_when_it_is_emptied() {
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
        told.iter().for_each(|(fileid, (_, told))| assert!(shard.of(*fileid, next) > *told, "a later change is seen"));
    }
}
