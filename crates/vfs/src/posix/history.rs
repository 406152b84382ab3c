//! [`History`]: knowledge about an object from the changes that this server has made itself.
//!
//! It saves system calls where it is reliable enough. Its users document the consequences if another program has
//! changed the object at the same time. A history belongs to one object, and is locked for each change of the object.

use std::{collections::VecDeque, time::Duration};

use rustix::time::ClockId;

use crate::{Handle, Name, Time, Writer};

/// Knowledge about an object from the server's own changes.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The recent names, for a directory.
    pub(super) names: RecentNames,
    /// The recent writers, for a file.
    pub(super) writers: Writers,
}

/// The names that were recently created in a directory, and their objects. They are valid as long as the directory has
/// the ctime of the last change by this server.
#[derive(Debug, Default)]
pub(super) struct RecentNames {
    ctime: Time,
    names: VecDeque<(Box<[u8]>, Handle)>,
}

impl RecentNames {
    /// Begins a change of the directory, which has this ctime. Drops the names if another program has changed it.
    pub(super) fn begin(&mut self, ctime: Time) {
        if self.ctime != ctime {
            self.names.clear();
        }
    }

    /// Ends a change that has been recorded here. The directory now has this ctime.
    pub(super) fn end(&mut self, ctime: Time) {
        self.ctime = ctime;
    }

    /// Records a new name of an object.
    pub(super) fn add(&mut self, name: &Name, object: &Handle) {
        if self.names.len() == NAMES_MAX {
            self.names.pop_front();
        }
        self.names.push_back((name.as_bytes().into(), object.clone()));
    }

    /// Removes a name. Returns its object, if that is known.
    pub(super) fn remove(&mut self, name: &Name) -> Option<Handle> {
        let at = self.names.iter().position(|(recent, _)| **recent == *name.as_bytes())?;
        Some(self.names.remove(at)?.1)
    }
}

/// The only recent writer of a file, if this server has made no other change of the file since.
#[derive(Debug, Default)]
pub(super) struct Writers(Option<SoleWriter>);

#[derive(Debug)]
struct SoleWriter {
    writer: Writer,
    since: Duration,
    last: Duration,
}

impl Writers {
    /// Records a change of the file by somebody else.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }

    /// Records a write by `writer`. Returns `true` if the writer knows the attributes from before the write, because
    /// only its own writes have changed them recently.
    pub(super) fn write(&mut self, writer: Writer, now: Duration) -> bool {
        match &mut self.0 {
            Some(sole) if sole.writer == writer && now.saturating_sub(sole.last) < PAUSE_MAX => {
                sole.last = now;
                now.saturating_sub(sole.since) >= SOLE_WRITER_MIN
            }
            last => {
                *last = Some(SoleWriter { writer, since: now, last: now });
                false
            }
        }
    }
}

/// Returns the monotonic time, accurate to a few milliseconds, without a system call.
pub(super) fn now() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Maximum number of recorded names of each directory.
const NAMES_MAX: usize = 32;
/// Maximum pause between two writes after which the writer still knows the attributes.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Time for which a writer must be the only one before it is assumed to know the attributes. It then has the replies to
/// all writes that it sent before the last change by somebody else. A client may process replies in another order.
const SOLE_WRITER_MIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> &Name {
        Name::new(name.as_bytes()).unwrap()
    }

    #[test]
    fn names_are_valid_until_somebody_else_changes_the_directory() {
        let at = |nanoseconds| Time { seconds: 1, nanoseconds };
        let (mut names, object) = (RecentNames::default(), Handle::new(b"object"));
        names.begin(at(1));
        names.add(name("a"), &object);
        names.end(at(2));
        names.begin(at(2));
        assert_eq!(names.remove(name("b")), None);
        assert_eq!(names.remove(name("a")), Some(object.clone()));
        assert_eq!(names.remove(name("a")), None);
        names.add(name("c"), &object);
        names.end(at(3));
        names.begin(at(4));
        assert_eq!(names.remove(name("c")), None, "the directory was changed between 3 and 4");
    }

    #[test]
    fn only_the_last_names_are_kept() {
        let mut names = RecentNames::default();
        let all: Vec<_> = (0..=NAMES_MAX).map(|number| number.to_string()).collect();
        all.iter().for_each(|each| names.add(name(each), &Handle::new(each.as_bytes())));
        assert_eq!(names.names.len(), NAMES_MAX);
        assert_eq!(names.remove(name("0")), None);
        assert_eq!(names.remove(name("1")), Some(Handle::new(b"1")));
    }

    #[test]
    fn only_writer_knows_the_file_after_a_while() {
        let (one, other) = (Writer(1), Writer(2));
        let (mut writers, mut now) = (Writers::default(), Duration::from_secs(9));
        let step = PAUSE_MAX / 2;
        let steps = SOLE_WRITER_MIN.as_millis().div_ceil(step.as_millis());
        for _ in 0..steps {
            assert!(!writers.write(one, now));
            now += step;
        }
        assert!(writers.write(one, now));
        assert!(!writers.write(other, now), "another writer");
        assert!(!writers.write(one, now), "the other writer has written in between");
        for _ in 0..=steps {
            writers.write(one, now);
            now += step;
        }
        assert!(writers.write(one, now));
        assert!(!writers.write(one, now + PAUSE_MAX), "another program had time to write");
        now += PAUSE_MAX + SOLE_WRITER_MIN;
        for _ in 0..=steps {
            writers.write(one, now);
            now += step;
        }
        assert!(writers.write(one, now));
        writers.forget();
        assert!(!writers.write(one, now), "the file was changed by another operation");
    }
}
