//! [`History`]: knowledge about an object from the changes that this server has made itself.
//!
//! It saves system calls where it is reliable enough. Its users document the consequences if another program has
//! changed the object at the same time. A history belongs to one object, and is locked for each change of the object.

use std::{collections::VecDeque, time::Duration};

use rustix::time::ClockId;

use crate::{Attr, Handle, Name, Time, Writer};

/// Knowledge about an object from the server's own changes.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The recent names, for a directory.
    pub(super) names: RecentNames,
    /// The last change of names, for a directory.
    pub(super) last: LastChange,
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

/// The attributes of a directory after the last change of its names, if this server has not changed it otherwise since.
#[derive(Debug, Default)]
pub(super) struct LastChange(Option<Box<(Attr, Duration)>>);

impl LastChange {
    /// Records that these attributes were read at `now`.
    pub(super) fn set(&mut self, after: &Attr, now: Duration) {
        self.0 = Some(Box::new((after.clone(), now)));
    }

    /// Records another change of the directory.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }

    /// Takes the attributes. Returns `None` if they were read too long before `now`.
    pub(super) fn take(&mut self, now: Duration) -> Option<Attr> {
        let (after, read) = *self.0.take()?;
        (now.saturating_sub(read) < SHARED_MAX).then_some(after)
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
    /// The ctime of the file after the last write.
    ctime: Time,
}

impl Writers {
    /// Records a change of the file by somebody else.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }

    /// Begins a write by `writer`. Returns `true` if the writer knows the attributes from before the write, because only
    /// its own writes have changed them recently.
    pub(super) fn begin(&mut self, writer: Writer, now: Duration) -> bool {
        match &mut self.0 {
            Some(sole) if sole.writer == writer => {
                let pause = now.saturating_sub(sole.last);
                sole.last = now;
                pause < PAUSE_MAX && now.saturating_sub(sole.since) >= SOLE_WRITER_MIN
            }
            last => {
                *last = Some(SoleWriter { writer, since: now, last: now, ctime: Time::default() });
                false
            }
        }
    }

    /// Ends the write. The file had the ctime `before`, if the attributes were read before the write, and has now
    /// `after`. If another program has changed the file since the previous write, the writer does not know its
    /// attributes for a while. If none has, a long pause between the two writes does not matter.
    pub(super) fn end(&mut self, before: Option<Time>, after: Time) {
        let Some(sole) = &mut self.0 else { return };
        if before.is_some_and(|before| before != sole.ctime) {
            sole.since = sole.last;
        }
        sole.ctime = after;
    }
}

/// Returns the monotonic time, accurate to a few milliseconds, without a system call.
pub(super) fn now() -> Duration {
    time(ClockId::MonotonicCoarse)
}

/// Returns the monotonic time, accurate to less than a microsecond. It differs from [`now`] by up to a few milliseconds.
pub(super) fn exact_now() -> Duration {
    time(ClockId::Monotonic)
}

fn time(clock: ClockId) -> Duration {
    let now = rustix::time::clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Maximum number of recorded names of each directory.
const NAMES_MAX: usize = 32;
/// Maximum time between two changes of names of a directory that share the attributes between them. A change takes about as long.
const SHARED_MAX: Duration = Duration::from_micros(100);
/// Maximum pause between two writes after which the attributes are not read before the second one.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Time for which a writer must be the only one before it is assumed to know the attributes. It then has the replies to
/// all writes that it sent before the last change by somebody else. A client may process replies in another order.
const SOLE_WRITER_MIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Kind};

    fn name(name: &str) -> &Name {
        Name::new(name.as_bytes()).unwrap()
    }

    fn attr(size: u64) -> Attr {
        let (time, device) = (Time::default(), Device::default());
        let (mode, nlink, uid, gid, used, fsid, fileid, change) = (0o755, 2, 0, 0, 0, 1, 2, 3);
        let kind = Kind::Dir;
        let (atime, mtime, ctime) = (time, time, time);
        Attr { kind, mode, nlink, uid, gid, size, used, device, fsid, fileid, atime, mtime, ctime, change }
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
    fn attributes_after_a_change_are_taken_once_and_only_at_once() {
        let attr = attr(7);
        let (start, mut last) = (Duration::from_secs(9), LastChange::default());
        assert_eq!(last.take(start), None);
        last.set(&attr, start);
        assert_eq!(last.take(start + SHARED_MAX - Duration::from_nanos(1)), Some(attr.clone()));
        assert_eq!(last.take(start), None);
        last.set(&attr, start);
        assert_eq!(last.take(start + SHARED_MAX), None);
        last.set(&attr, start);
        last.forget();
        assert_eq!(last.take(start), None);
    }

    /// A file and its writers. Each write is later than the one before, and gives the file another ctime.
    struct File {
        writers: Writers,
        now: Duration,
        ctime: Time,
    }

    impl File {
        /// Writes after a pause. Returns `true` if the writer knows the attributes from before the write.
        fn write(&mut self, writer: Writer, pause: Duration) -> bool {
            self.now += pause;
            let is_known = self.writers.begin(writer, self.now);
            let before = (!is_known).then_some(self.ctime);
            self.ctime.seconds += 1;
            self.writers.end(before, self.ctime);
            is_known
        }

        /// Writes until the writer has been the only one for long enough. It must not know the attributes before.
        fn write_for_a_while(&mut self, writer: Writer) {
            let steps = SOLE_WRITER_MIN.as_millis().div_ceil(STEP.as_millis());
            for step in 1..steps {
                assert!(!self.write(writer, STEP), "write {step} of {steps}");
            }
        }
    }

    const STEP: Duration = Duration::from_millis(PAUSE_MAX.as_millis() as u64 / 2);
    const ONE: Writer = Writer(1);
    const OTHER: Writer = Writer(2);

    /// Returns a file of which `ONE` is the only writer, and knows the attributes.
    fn file() -> File {
        let mut file = File { writers: Writers::default(), now: Duration::from_secs(9), ctime: Time::default() };
        file.ctime.seconds = 1;
        assert!(!file.write(ONE, STEP));
        file.write_for_a_while(ONE);
        assert!(file.write(ONE, STEP));
        file
    }

    #[test]
    fn only_writer_knows_the_file_after_a_while() {
        let mut file = file();
        assert!(!file.write(OTHER, STEP), "another writer");
        assert!(!file.write(ONE, STEP), "the other writer has written in between");
        file.write_for_a_while(ONE);
        assert!(file.write(ONE, STEP));
        file.writers.forget();
        assert!(!file.write(ONE, STEP), "the file was changed by another operation");
    }

    #[test]
    fn attributes_are_read_once_after_a_pause() {
        let mut file = file();
        assert!(!file.write(ONE, PAUSE_MAX), "another program had time to write");
        assert!(file.write(ONE, STEP), "no other program has written");
        assert!(!file.write(ONE, PAUSE_MAX));
        assert!(!file.write(ONE, PAUSE_MAX));
    }

    #[test]
    fn writer_does_not_know_the_file_after_another_program_has_changed_it() {
        let mut file = file();
        file.ctime.nanoseconds += 1;
        assert!(!file.write(ONE, PAUSE_MAX));
        file.write_for_a_while(ONE);
        assert!(file.write(ONE, STEP));
    }
}
