//! The oracle: which contents, sizes and times of each file can be observed.
//!
//! A file is an array of cells. Each write has a value of its own, and a truncation writes the value 0 into all cells from the new
//! size on. A write is *over* another one if it has begun after the other had ended, and it was acknowledged. A cell can have the
//! value of each write, unless another one is over it and is durable, or was not lost.

use std::{fmt::Write as _, ops::Range};

use vfs::Time;

/// The oracle for one file.
#[derive(Default)]
pub struct Model {
    writes: Vec<Write>,
    attributes: Option<Attributes>,
    /// The time of the last write to data servers that succeeded.
    written: Time,
    /// `true` if no client has a layout to write, and nothing fails any more.
    pub is_at_rest: bool,
}

struct Write {
    value: u32,
    cells: Range<usize>,
    /// The size in cells up to which the file grows, or to which it is truncated.
    bound: usize,
    truncates: bool,
    begun: u64,
    ended: Option<u64>,
    data: Effect,
    size: Effect,
}

/// The knowledge of the writer about an effect.
#[derive(Clone, Copy, Default)]
struct Effect {
    acknowledged: Option<u64>,
    durable: Option<u64>,
    lossy: bool,
}

impl Effect {
    /// Reports whether the effect is there at this time.
    fn holds(&self, at: u64) -> bool {
        self.durable.is_some_and(|since| since <= at)
            || !self.lossy && self.acknowledged.is_some_and(|since| since <= at)
    }
}

/// Attributes that do not go back.
#[derive(Clone, Copy)]
struct Attributes {
    at: u64,
    change: u64,
    mtime: Time,
}

/// A write, for [`Model`].
pub type WriteId = usize;

impl Model {
    /// Begins a write of a value into cells.
    pub fn begin(&mut self, value: u32, cells: Range<usize>, now: u64) -> WriteId {
        let bound = cells.end;
        self.add(value, cells, bound, false, now)
    }

    pub fn begin_truncation(&mut self, size: usize, now: u64) -> WriteId {
        self.add(0, size..usize::MAX, size, true, now)
    }

    fn add(&mut self, value: u32, cells: Range<usize>, bound: usize, truncates: bool, begun: u64) -> WriteId {
        let (data, size) = Default::default();
        self.writes.push(Write { value, cells, bound, truncates, begun, ended: None, data, size });
        self.writes.len() - 1
    }

    /// The write has ended, and its outcome is not known.
    pub fn fail(&mut self, write: WriteId, now: u64) {
        self.writes[write].ended = Some(now);
    }

    /// A client has written to data servers at this time or later.
    pub fn note_written(&mut self, time: Time) {
        self.written = self.written.max(time);
    }

    /// The data can be read.
    pub fn acknowledge(&mut self, write: WriteId, now: u64) {
        let write = &mut self.writes[write];
        write.ended.get_or_insert(now);
        write.data.acknowledged.get_or_insert(now);
    }

    /// The data are durable.
    pub fn make_durable(&mut self, write: WriteId, now: u64) {
        self.acknowledge(write, now);
        self.writes[write].data.durable = Some(now);
    }

    /// The size is visible, and durable if `durable`.
    pub fn size(&mut self, write: WriteId, durable: bool, now: u64) {
        let size = &mut self.writes[write].size;
        size.acknowledged = Some(now);
        size.durable = if durable { Some(now) } else { size.durable };
    }

    /// The client has ended without committing what it has written with a layout. A truncation that had not reached all objects may remove
    /// it: nobody knows that the file has these bytes (RFC 8881 §12.5.4).
    pub fn abandon(&mut self, write: WriteId) {
        let Write { data, size, .. } = &mut self.writes[write];
        (data.lossy, size.lossy) = (true, true);
    }

    /// The write is executed again.
    pub fn repeat(&mut self, write: WriteId) {
        self.writes[write].ended = None;
    }

    /// Permits the loss of data that are not durable, and of sizes if the metadata server has failed.
    pub fn lose(&mut self, sizes: bool) {
        for write in &mut self.writes {
            write.data.lossy = true;
            write.size.lossy |= sizes;
        }
        // After a restart, a change of other attributes hides the write.
        self.written = Time::default();
        if sizes {
            self.attributes = None;
        }
    }

    /// Checks the values of cells from `first` on. The read lasted from `from` to `to`.
    ///
    /// # Errors
    /// Returns the violation.
    pub fn check(&self, first: usize, values: &[u32], (from, to): (u64, u64)) -> Result<(), String> {
        for (cell, value) in (first..).zip(values) {
            let covering = || self.writes.iter().filter(move |write| write.cells.contains(&cell));
            let is_hidden = |ended: u64| covering().any(|over| over.begun >= ended && over.data.holds(from));
            let initial = *value == 0 && !is_hidden(0);
            let possible =
                |write: &Write| write.value == *value && write.begun < to && !write.ended.is_some_and(is_hidden);
            if !initial && !covering().any(possible) {
                let mut text = format!("cell {cell} has the value {value} during {from}..{to}:");
                for write in covering() {
                    let Write { value, begun, ended, data, truncates, .. } = write;
                    let cut = if *truncates { " truncation" } else { "" };
                    let Effect { acknowledged, durable, lossy } = data;
                    let _ = write!(
                        text,
                        "\n  {value}{cut}: {begun} to {ended:?}, acknowledged {acknowledged:?}, durable {durable:?}, lossy {lossy}"
                    );
                }
                return Err(text);
            }
        }
        Ok(())
    }

    /// Checks a size in cells.
    ///
    /// # Errors
    /// Returns the violation.
    pub fn check_size(&self, size: usize, (from, to): (u64, u64)) -> Result<(), String> {
        let cuts = || self.writes.iter().filter(|write| write.truncates);
        let is_cut = |write: &Write| {
            let Some(ended) = write.ended else { return false };
            cuts().any(|cut| cut.begun >= ended && cut.size.holds(from))
        };
        let possible = self.writes.iter().filter(|write| write.begun < to && !is_cut(write));
        let max = possible.map(|write| write.bound).max().unwrap_or(0);
        if size > max {
            return Err(format!(
                "invariant 5: the size is {size} cells during {from}..{to}, and must be at most {max}"
            ));
        }
        for write in self.writes.iter().filter(|write| write.size.holds(from) && write.bound > size) {
            let may_be_cut = |cut: &Write| {
                cut.begun < to && cut.ended.is_none_or(|ended| ended > write.begun) && cut.bound < write.bound
            };
            if !cuts().any(may_be_cut) {
                let Write { value, bound, .. } = write;
                return Err(format!("the size is {size} cells during {from}..{to}, but write {value} needs {bound}"));
            }
        }
        Ok(())
    }

    /// Checks attributes.
    ///
    /// # Errors
    /// Returns the violation.
    pub fn check_times(&mut self, change: u64, mtime: Time, (from, to): (u64, u64)) -> Result<(), String> {
        if let Some(former) = self.attributes
            && former.at <= from
            && (former.change > change || former.mtime > mtime)
        {
            let Attributes { at, change: then, mtime: before } = former;
            return Err(format!(
                "invariant 5: change {then}, mtime {before:?} at {at}, and {change}, {mtime:?} during {from}..{to}"
            ));
        }
        if self.is_at_rest && mtime.as_nanoseconds() + CLOCK_DIFFERENCE < self.written.as_nanoseconds() {
            return Err(format!("invariant 5: the mtime is {mtime:?}, but a client has written at {:?}", self.written));
        }
        if self.attributes.is_none_or(|former| former.at <= from) {
            self.attributes = Some(Attributes { at: to, change, mtime });
        }
        Ok(())
    }
}

/// The nanoseconds by which a write to an object must be later than the layout for the metadata server.
pub const CLOCK_DIFFERENCE: u64 = 100_000_000;
