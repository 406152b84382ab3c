//! [`History`]: what this server knows of an object by the changes that it has made itself.
//!
//! It saves system calls where it is certain enough, and whoever uses it says what follows if another program has changed the
//! object at the same moment. It belongs to one object, and is locked for each change of that.

use std::{collections::VecDeque, time::Duration};

use rustix::time::ClockId;

use crate::{Handle, Name, Time, Writer};

/// What this server knows of an object by its own changes.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Of a directory.
    pub(super) names: RecentNames,
    /// Of a file.
    pub(super) writers: Writers,
}

/// The names that were given in a directory lately, and the objects that have them. They hold as long as the directory has the ctime that
/// the last change by this server left.
#[derive(Debug, Default)]
pub(super) struct RecentNames {
    ctime: Time,
    names: VecDeque<(Box<[u8]>, Handle)>,
}

impl RecentNames {
    /// The directory, which is about to be changed, has this ctime.
    pub(super) fn begin(&mut self, ctime: Time) {
        if self.ctime != ctime {
            self.names.clear();
        }
    }

    /// The change is done, and was noted here; the directory now has this ctime.
    pub(super) fn end(&mut self, ctime: Time) {
        self.ctime = ctime;
    }

    /// An object was given a name that nothing had.
    pub(super) fn add(&mut self, name: &Name, object: &Handle) {
        if self.names.len() == NAMES_MAX {
            self.names.pop_front();
        }
        self.names.push_back((name.as_bytes().into(), object.clone()));
    }

    /// A name is to be removed. Returns the object that has it, if that is known.
    pub(super) fn remove(&mut self, name: &Name) -> Option<Handle> {
        let at = self.names.iter().position(|(recent, _)| **recent == *name.as_bytes())?;
        Some(self.names.remove(at)?.1)
    }
}

/// Who has written a file lately, without another change by this server since.
#[derive(Debug, Default)]
pub(super) struct Writers(Option<Sole>);

#[derive(Debug)]
struct Sole {
    writer: Writer,
    since: Duration,
    last: Duration,
}

impl Writers {
    /// Somebody else changes the file.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }

    /// `writer` writes the file now. Returns whether it knows the attributes that the file had before, as only its own writes have changed
    /// them lately.
    pub(super) fn write(&mut self, writer: Writer, now: Duration) -> bool {
        match &mut self.0 {
            Some(sole) if sole.writer == writer && now.saturating_sub(sole.last) < PAUSE_MAX => {
                sole.last = now;
                now.saturating_sub(sole.since) >= SETTLED
            }
            last => {
                *last = Some(Sole { writer, since: now, last: now });
                false
            }
        }
    }
}

/// The time, within a few milliseconds, without a system call.
pub(super) fn now() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Names that are kept for each directory.
const NAMES_MAX: usize = 32;
/// Longest pause between two writes after which the writer still knows the file.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// The time that a writer has to be the only one. By then it has the replies to all writes that it had sent before the last change by
/// somebody else: a client may process them in another order.
const SETTLED: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> &Name {
        Name::new(name.as_bytes()).unwrap()
    }

    #[test]
    fn names_hold_until_somebody_else_changes_the_directory() {
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
    fn a_writer_knows_the_file_when_it_has_been_the_only_one_for_a_while() {
        let (one, other) = (Writer(1), Writer(2));
        let (mut writers, mut now) = (Writers::default(), Duration::from_secs(9));
        let step = PAUSE_MAX / 2;
        let steps = SETTLED.as_millis().div_ceil(step.as_millis());
        for _ in 0..steps {
            assert!(!writers.write(one, now));
            now += step;
        }
        assert!(writers.write(one, now));
        assert!(!writers.write(other, now), "somebody else");
        assert!(!writers.write(one, now), "somebody else has written in between");
        for _ in 0..=steps {
            writers.write(one, now);
            now += step;
        }
        assert!(writers.write(one, now));
        assert!(!writers.write(one, now + PAUSE_MAX), "another program had time to write");
        now += PAUSE_MAX + SETTLED;
        for _ in 0..=steps {
            writers.write(one, now);
            now += step;
        }
        assert!(writers.write(one, now));
        writers.forget();
        assert!(!writers.write(one, now), "the file was changed by something else than a write");
    }
}
