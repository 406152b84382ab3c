//! [`Usage`]: what a client has read and written with the layouts of a file, for the statistics of LAYOUTSTATS. No I/O.
//!
//! Read RFC 8435 §9.2 first. The counters are cumulative since the layouts were granted: they are not reset by a report.

use std::time::Duration;

use entropy::HashMap;
use nfs::v4::{Nfstime4, layout::flex::FfIoLatency4};
use tokio::time::Instant;

use super::held::DataFileId;

/// The direction of the data. COMMIT counts as a write without bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// The use of the data files of a file's layouts.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// The beginning of the first operation.
    since: Option<Instant>,
    /// The time of the last report.
    reported: Option<Instant>,
    files: HashMap<DataFileId, [Flow; 2]>,
}

/// The operations in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    requested: u64,
    requested_bytes: u64,
    completed: u64,
    completed_bytes: u64,
    not_delivered: u64,
    outstanding: u64,
    /// The time at which `outstanding` became positive.
    busy_since: Option<Instant>,
    busy: Duration,
    aggregate: Duration,
}

/// An operation that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    at: Instant,
    direction: Direction,
    bytes: u64,
}

impl Usage {
    /// Counts an operation that begins.
    pub fn begin(&mut self, file: &DataFileId, direction: Direction, bytes: usize, now: Instant) -> Begun {
        self.since.get_or_insert(now);
        if !self.files.contains_key(file) {
            self.files.insert(file.clone(), Default::default());
        }
        let flow = &mut self.files.get_mut(file).expect("the file was inserted")[direction as usize];
        flow.requested += 1;
        flow.requested_bytes += bytes as u64;
        flow.outstanding += 1;
        flow.busy_since.get_or_insert(now);
        Begun { at: now, direction, bytes: bytes as u64 }
    }

    /// Counts the end of an operation: the bytes that were moved, or `None` if it has failed. The end of an operation of former
    /// layouts is ignored.
    pub fn end(&mut self, file: &DataFileId, begun: Begun, moved: Option<usize>, now: Instant) {
        let Some(flows) = self.files.get_mut(file) else { return };
        let flow = &mut flows[begun.direction as usize];
        let Some(outstanding) = flow.outstanding.checked_sub(1) else { return };
        flow.outstanding = outstanding;
        if outstanding == 0 {
            flow.busy += flow.busy_since.take().map_or(Duration::ZERO, |since| now - since);
        }
        match moved {
            Some(bytes) => {
                flow.completed += 1;
                flow.completed_bytes += bytes as u64;
                flow.aggregate += now - begun.at;
            }
            None => flow.not_delivered += begun.bytes,
        }
    }

    /// Reports whether a report is due, and takes note that it is made.
    pub fn is_due(&mut self, interval: Duration, now: Instant) -> bool {
        let due = self.reported.or(self.since).is_some_and(|last| now - last >= interval);
        if due {
            self.reported = Some(now);
        }
        due
    }

    /// Returns the data files, what was read from each and written to it, and the time that this covers.
    pub fn report(&self, now: Instant) -> (Duration, Vec<(DataFileId, [Flow; 2])>) {
        let covers = self.since.map_or(Duration::ZERO, |since| now - since);
        (covers, self.files.iter().map(|(file, flows)| (file.clone(), *flows)).collect())
    }
}

impl Flow {
    /// Returns the number and the bytes of completed operations.
    pub fn completed(&self) -> (u64, u64) {
        (self.completed, self.completed_bytes)
    }

    /// Returns the counters in the form of the report.
    pub fn latency(&self, now: Instant) -> FfIoLatency4 {
        let busy = self.busy + self.busy_since.map_or(Duration::ZERO, |since| now - since);
        FfIoLatency4 {
            ops_requested: self.requested,
            bytes_requested: self.requested_bytes,
            ops_completed: self.completed,
            bytes_completed: self.completed_bytes,
            bytes_not_delivered: self.not_delivered,
            total_busy_time: time(busy),
            aggregate_completion_time: time(self.aggregate),
        }
    }
}

/// Returns a duration as a report has it.
pub(crate) fn time(duration: Duration) -> Nfstime4 {
    Nfstime4 { seconds: duration.as_secs() as i64, nseconds: duration.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use nfs::v4::Deviceid4;

    use super::{super::device::DataServerId, *};
    use crate::model::Handle;

    #[test]
    fn operations_at_the_same_time_are_busy_once() {
        let (file, start) =
            ((DataServerId { device: Deviceid4([1; 16]), index: 0 }, Handle::from("object")), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let mut usage = Usage::default();
        let first = usage.begin(&file, Direction::Read, 10, at(0));
        let second = usage.begin(&file, Direction::Read, 20, at(5));
        usage.end(&file, first, Some(7), at(10));
        usage.end(&file, second, None, at(15));
        let write = usage.begin(&file, Direction::Write, 5, at(20));
        usage.end(&file, write, Some(5), at(21));
        let (covers, files) = usage.report(at(100));
        assert_eq!((covers, files.len()), (Duration::from_millis(100), 1));
        let [read, write] = files[0].1;
        assert_eq!((read.completed(), write.completed()), ((1, 7), (1, 5)));
        let latency = read.latency(at(100));
        assert_eq!((latency.ops_requested, latency.bytes_requested, latency.bytes_not_delivered), (2, 30, 20));
        assert_eq!(latency.total_busy_time, time(Duration::from_millis(15)));
        assert_eq!(latency.aggregate_completion_time, time(Duration::from_millis(10)));
    }

    #[test]
    fn reports_are_due_at_intervals_after_the_first_operation() {
        let (file, start) =
            ((DataServerId { device: Deviceid4([1; 16]), index: 0 }, Handle::from("object")), Instant::now());
        let interval = Duration::from_secs(60);
        let mut usage = Usage::default();
        assert!(!usage.is_due(interval, start + interval), "nothing was done");
        usage.begin(&file, Direction::Write, 1, start);
        assert!(!usage.is_due(interval, start + interval / 2));
        assert!(usage.is_due(interval, start + interval));
        assert!(!usage.is_due(interval, start + interval));
        assert!(usage.is_due(interval, start + 2 * interval));
    }
}
