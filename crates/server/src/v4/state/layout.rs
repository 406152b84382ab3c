//! [`LayoutGrant`]: the layouts that a client holds on a file (RFC 8881 §12.5).
//!
//! The server grants layouts of whole files. A client can return a layout in parts, so the ranges that it still holds are
//! kept. A mode that has no range left is not held any more. Each mode that is held has a number for the back end
//! ([`LayoutHolder`]), which is not used again: so a return and a new grant of the same client cannot be confused, although
//! their operations of the back end are executed at the same time.

use std::{
    collections::VecDeque,
    hash::Hash,
    time::{Duration, Instant},
};

use entropy::HashMap;
use nfs::v4::{Clientid4, LENGTH_TO_EOF};
use smallvec::{SmallVec, smallvec};
use vfs::layout::{LayoutHolder, LayoutKind, LayoutMode, LayoutModes};

/// The layouts of one kind that a client holds on a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutGrant {
    /// The kind.
    pub kind: LayoutKind,
    /// The file system of the file within its export.
    pub fsid: u64,
    /// The layout for reading.
    pub read: Option<Hold>,
    /// The layout for reading and writing.
    pub write: Option<Hold>,
    /// The modes that are being recalled.
    pub recalling: LayoutModes,
    /// `true` if the client must not write cached data by the layout that is being recalled.
    pub changed: bool,
    /// `true` if the client must return its layouts when it closes the file.
    pub return_on_close: bool,
    /// `true` if the layout for writing must be recalled before another client truncates the file.
    pub recalled_by_truncation: bool,
    /// `true` once the client has got the stateid.
    pub known: bool,
}

/// A mode that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The number by which the back end knows it.
    pub holder: LayoutHolder,
    /// The ranges that the client holds. It is empty until the first LAYOUTGET has ended.
    pub ranges: Ranges,
    /// The number of LAYOUTGETs in progress.
    pub granting: u32,
}

/// A set of offsets, as ranges in order that do not touch. A range that ends at [`LENGTH_TO_EOF`] has no end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(SmallVec<[(u64, u64); 1]>);

/// A layout that is not held any more. The back end must be told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayoutEnd<F> {
    /// The file.
    pub file: F,
    /// The holder.
    pub holder: LayoutHolder,
    /// The mode.
    pub mode: LayoutMode,
    /// `true` if the client has not returned the layout, and must be fenced.
    pub fence: bool,
}

/// A recall of all layouts that a client has of one kind and file system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BulkRecall<F> {
    /// The client.
    pub client: Clientid4,
    /// One of the files.
    pub file: F,
    /// The kind.
    pub kind: LayoutKind,
    /// The file system within the export of the file.
    pub fsid: u64,
    /// `true` if the client must not write cached data by the layouts.
    pub changed: bool,
}

/// The layouts that have ended or must end.
#[derive(Debug)]
pub(super) struct LayoutQueue<F> {
    /// The layouts of which the back end must be told.
    pub(super) ended: VecDeque<LayoutEnd<F>>,
    /// The recalls to be sent.
    pub(super) bulk: VecDeque<BulkRecall<F>>,
    /// The number of fences of each file that are not complete.
    pub(super) fencing: HashMap<F, u32>,
    /// The files of which no layout for writing is granted before the given time, because somebody waits to truncate them.
    truncations: HashMap<F, Instant>,
    last_holder: u64,
}

impl<F> Default for LayoutQueue<F> {
    fn default() -> Self {
        let (fencing, truncations) = Default::default();
        Self { ended: VecDeque::new(), bulk: VecDeque::new(), fencing, truncations, last_holder: 0 }
    }
}

impl<F: Eq + Hash + Clone> LayoutQueue<F> {
    /// Returns `true` if nothing is queued.
    pub(super) fn is_settled(&self) -> bool {
        self.ended.is_empty() && self.bulk.is_empty()
    }

    /// Returns a number that no other holder has.
    pub(super) fn new_holder(&mut self) -> LayoutHolder {
        self.last_holder += 1;
        LayoutHolder(self.last_holder)
    }

    /// Returns `true` while a client that has lost its layout of a file may still use it.
    pub(super) fn is_fencing(&self, file: &F) -> bool {
        self.fencing.contains_key(file)
    }

    /// Notes that a call waits to truncate a file. The caller tries again soon, and a client that writes must not get
    /// another layout before.
    pub(super) fn expect_truncation(&mut self, file: &F, now: Instant) {
        if self.truncations.len() >= TRUNCATIONS_MAX {
            self.truncations.retain(|_, until| *until > now);
            if self.truncations.len() >= TRUNCATIONS_MAX {
                return;
            }
        }
        self.truncations.insert(file.clone(), now + TRUNCATION);
    }

    /// Notes that a truncation need not wait.
    pub(super) fn begin_truncation(&mut self, file: &F) {
        self.truncations.remove(file);
    }

    /// Returns `true` if a call waits to truncate a file.
    pub(super) fn awaits_truncation(&self, file: &F, now: Instant) -> bool {
        self.truncations.get(file).is_some_and(|until| *until > now)
    }
}

impl LayoutGrant {
    /// Returns the hold of a mode.
    pub fn hold(&self, mode: LayoutMode) -> Option<&Hold> {
        match mode {
            LayoutMode::Read => self.read.as_ref(),
            LayoutMode::Write => self.write.as_ref(),
        }
    }

    /// Returns the place of the hold of a mode.
    pub fn hold_mut(&mut self, mode: LayoutMode) -> &mut Option<Hold> {
        match mode {
            LayoutMode::Read => &mut self.read,
            LayoutMode::Write => &mut self.write,
        }
    }

    /// Returns the modes that are held.
    pub fn modes(&self) -> LayoutModes {
        LayoutModes { read: self.read.is_some(), write: self.write.is_some() }
    }

    /// Returns the modes of which the client has a layout: not those whose first LAYOUTGET is in progress.
    pub fn granted(&self) -> LayoutModes {
        let has = |hold: &Option<Hold>| hold.as_ref().is_some_and(|hold| !hold.ranges.is_empty());
        LayoutModes { read: has(&self.read), write: has(&self.write) }
    }
}

impl Ranges {
    /// Returns the whole file.
    pub fn all() -> Self {
        Self(smallvec![(0, LENGTH_TO_EOF)])
    }

    /// Returns `true` if nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if the byte at `offset` is in the set.
    pub fn contains(&self, offset: u64) -> bool {
        self.0.iter().any(|&(start, end)| start <= offset && offset < end)
    }

    /// Returns `true` if a byte of a range is in the set.
    pub fn overlaps(&self, offset: u64, length: u64) -> bool {
        let until = end(offset, length);
        self.0.iter().any(|&(start, end)| start < until && offset < end)
    }

    /// Removes a range. If the set would have more than [`PARTS_MAX`] parts, a part of the range stays: the client then has
    /// to return the rest in a simpler way.
    pub fn remove(&mut self, offset: u64, length: u64) {
        let until = end(offset, length);
        let mut left = SmallVec::new();
        for &(start, end) in &self.0 {
            if end <= offset || until <= start {
                left.push((start, end));
                continue;
            }
            if start < offset {
                left.push((start, offset));
            }
            if until < end {
                left.push((until, end));
            }
        }
        if left.len() <= PARTS_MAX {
            self.0 = left;
        }
    }
}

/// Returns the offset behind a range. The caller has checked that it does not overflow.
fn end(offset: u64, length: u64) -> u64 {
    offset.saturating_add(length)
}

const PARTS_MAX: usize = 64;
const TRUNCATIONS_MAX: usize = 1 << 12;
/// The time in which a call that waits to truncate a file tries again.
const TRUNCATION: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_returned_in_parts() {
        let mut ranges = Ranges::all();
        ranges.remove(10, 10);
        assert!(ranges.contains(9) && !ranges.contains(10) && !ranges.contains(19) && ranges.contains(20));
        assert!(ranges.overlaps(0, 11) && !ranges.overlaps(10, 10) && ranges.overlaps(19, LENGTH_TO_EOF));
        ranges.remove(0, 10);
        ranges.remove(20, LENGTH_TO_EOF);
        assert!(ranges.is_empty());
    }

    #[test]
    fn number_of_parts_is_bounded() {
        let mut ranges = Ranges::all();
        (0..1000).for_each(|part| ranges.remove(part * 2, 1));
        assert_eq!(ranges.0.len(), PARTS_MAX);
        ranges.remove(0, LENGTH_TO_EOF);
        assert!(ranges.is_empty());
    }

    #[test]
    fn truncations_are_bounded_and_expire() {
        let mut queue = LayoutQueue::default();
        let start = Instant::now();
        let most = TRUNCATIONS_MAX as u32;
        (0..most).for_each(|file| queue.expect_truncation(&file, start));
        let awaited =
            |queue: &LayoutQueue<u32>, now| (0..=most).filter(|file| queue.awaits_truncation(file, now)).count();
        queue.expect_truncation(&most, start);
        assert!(
            awaited(&queue, start) == TRUNCATIONS_MAX && !queue.awaits_truncation(&most, start),
            "the table is full"
        );
        let end = start + TRUNCATION;
        assert_eq!(awaited(&queue, end - Duration::from_nanos(1)), TRUNCATIONS_MAX);
        assert_eq!(awaited(&queue, end), 0);
        queue.expect_truncation(&most, end);
        assert!(awaited(&queue, end) == 1 && queue.awaits_truncation(&most, end), "the others have expired");
        assert_eq!(queue.truncations.len(), 1);
    }
}
