//! [`Pages`]: the data of one file.
//!
//! A file is a map of pages of [`PAGE`] bytes. A missing page is a hole. The buffer of a page has a power of two of at
//! least 4 KiB, so that a small file takes little memory. The bytes of a page beyond its buffer are zero.
//!
//! Pages are *lent*: a read shares the buffer and copies no byte. A write to a lent page replaces its buffer, so lent
//! bytes never change. A write of exactly one whole page in one aligned piece of memory is *adopted*: the piece becomes
//! the page.

use std::{collections::BTreeMap, sync::Arc};

use buf::{Buffer, Piece, Pool, Rope};
use bytes::Bytes;

use super::space::{Charge, Space};
use crate::{SeekFor, VfsError};

/// The size of a page, in bytes. An aligned read or write of 128 KiB is one piece, and a small write to a lent page
/// does not copy too much.
pub(super) const PAGE: usize = 128 << 10;

/// The resources that the pages of one file system share.
#[derive(Debug)]
pub(super) struct PageSource {
    pub(super) pool: Pool,
    /// One page of zeros, which is lent for holes.
    zeros: Bytes,
}

impl PageSource {
    pub(super) fn new(pool: Pool) -> Self {
        let mut zeros = pool.take(PAGE);
        zeros.fill(0);
        Self { pool, zeros: zeros.freeze() }
    }

    fn buffer(&self, len: usize) -> Buffer {
        self.pool.take(len)
    }
}

/// The data of one file.
///
/// Invariant: all bytes at or beyond `size` are zero.
#[derive(Debug)]
pub(super) struct Pages {
    map: BTreeMap<u64, Page>,
    size: u64,
    charge: Charge,
}

#[derive(Debug)]
enum Page {
    Own(Arc<Buffer>),
    Adopted(Bytes),
}

/// The owner of lent bytes, which keeps a page's buffer alive.
struct Lent(Arc<Buffer>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Page {
    fn bytes(&self) -> &[u8] {
        match self {
            Page::Own(buffer) => buffer,
            Page::Adopted(bytes) => bytes,
        }
    }

    fn lend(&self, start: usize, end: usize) -> Bytes {
        match self {
            Page::Own(buffer) => Bytes::from_owner(Lent(buffer.clone())).slice(start..end),
            Page::Adopted(bytes) => bytes.slice(start..end),
        }
    }

    /// Returns at least `len` bytes of the page's memory for writing. The previous contents of the range `written` may
    /// be lost.
    fn writable(&mut self, len: usize, written: (usize, usize), source: &PageSource) -> &mut [u8] {
        let fits = self.bytes().len() >= len;
        let exclusive = match self {
            Page::Own(buffer) => Arc::get_mut(buffer).is_some(),
            Page::Adopted(_) => false,
        };
        if !(fits && exclusive) {
            let old = self.bytes();
            let mut new = source.buffer(buffer_len(len).max(old.len()));
            let (start, end) = written;
            copy_or_zero(&mut new, old, 0, start);
            copy_or_zero(&mut new, old, end, usize::MAX);
            *self = Page::Own(Arc::new(new));
        }
        let Page::Own(buffer) = self else { unreachable!("adopted page must have been replaced") };
        Arc::get_mut(buffer).expect("buffer must not be shared")
    }
}

/// Fills `new[start..end]` with the bytes of `old` at the same position, and with zeros beyond the end of `old`.
fn copy_or_zero(new: &mut [u8], old: &[u8], start: usize, end: usize) {
    let end = end.min(new.len());
    if start >= end {
        return;
    }
    let old = &old[start.min(old.len())..end.min(old.len())];
    let (copied, zeroed) = new[start..end].split_at_mut(old.len());
    copied.copy_from_slice(old);
    zeroed.fill(0);
}

impl Pages {
    /// Creates an empty file.
    pub(super) fn new(space: &Arc<Space>) -> Self {
        let charge = Charge::new(space, 0).expect("a charge of 0 bytes must fit");
        Self { map: BTreeMap::new(), size: 0, charge }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the bytes of memory that the file takes.
    pub(super) fn used(&self) -> u64 {
        self.charge.bytes()
    }

    /// Lends the bytes of `offset .. offset + len` that lie inside the file.
    pub(super) fn read(&self, offset: u64, len: usize, source: &PageSource) -> Rope {
        let mut rope = Rope::new();
        self.for_each(offset, len, |page, start, end| {
            let held = page.map_or(0, |page| page.bytes().len());
            let middle = held.clamp(start, end);
            if let Some(page) = page.filter(|_| start < middle) {
                rope.push(Piece::Memory(page.lend(start, middle)));
            }
            if middle < end {
                rope.push(Piece::Memory(source.zeros.slice(..end - middle)));
            }
        });
        rope
    }

    /// Copies the bytes from `offset` that lie inside the file. Returns their number.
    pub(super) fn read_into(&self, offset: u64, into: &mut [u8]) -> usize {
        let mut at = 0;
        self.for_each(offset, into.len(), |page, start, end| {
            let target = &mut into[at..at + (end - start)];
            at += target.len();
            let bytes = page.map_or(&[][..], Page::bytes);
            let middle = bytes.len().clamp(start, end);
            let (data, hole) = target.split_at_mut(middle - start);
            data.copy_from_slice(&bytes[start.min(bytes.len())..][..data.len()]);
            hole.fill(0);
        });
        at
    }

    /// Calls `each` for every page or hole that the range touches, with the part of the range inside of it.
    fn for_each(&self, offset: u64, len: usize, mut each: impl FnMut(Option<&Page>, usize, usize)) {
        let end = self.size.min(offset.saturating_add(len as u64));
        let mut at = offset;
        while at < end {
            let (index, start) = split(at);
            let stop = (end - at).min((PAGE - start) as u64) as usize + start;
            each(self.map.get(&index), start, stop);
            at += (stop - start) as u64;
        }
    }

    /// Writes `data` at `offset`. `offset + data.len()` must not overflow.
    ///
    /// # Errors
    /// Returns `NoSpace` if there is not enough space; nothing is written then. Returns `Io` if a file piece of `data`
    /// cannot be read; the first bytes may have been written then.
    pub(super) fn write(&mut self, offset: u64, data: &Rope, source: &PageSource) -> Result<(), VfsError> {
        self.charge.grow(self.growth(offset, data.len()))?;
        let mut cursor = Cursor { pieces: data.pieces(), skip: 0 };
        let end = offset + data.len() as u64;
        let mut at = offset;
        while at < end {
            let (index, start) = split(at);
            let stop = (end - at).min((PAGE - start) as u64) as usize + start;
            if let Some(piece) = cursor.whole_page().filter(|_| stop - start == PAGE) {
                self.map.insert(index, Page::Adopted(piece.clone()));
                cursor.advance(PAGE);
            } else {
                let page = self.map.entry(index).or_insert_with(|| Page::Adopted(Bytes::new()));
                let memory = page.writable(stop, (start, stop), source);
                if let Err(error) = cursor.copy_to(&mut memory[start..stop]) {
                    // Readers must not see the earlier contents of a reused buffer.
                    memory[start..stop].fill(0);
                    let held: u64 = self.map.values().map(|page| page.bytes().len() as u64).sum();
                    self.charge.shrink(self.charge.bytes() - held);
                    return Err(error);
                }
            }
            at += (stop - start) as u64;
            self.size = self.size.max(at);
        }
        Ok(())
    }

    /// Returns the bytes of memory that a write of this range needs in addition.
    fn growth(&self, offset: u64, len: usize) -> u64 {
        let end = offset + len as u64;
        let (mut at, mut growth) = (offset, 0);
        while at < end {
            let (index, start) = split(at);
            let stop = (end - at).min((PAGE - start) as u64) as usize + start;
            let held = self.map.get(&index).map_or(0, |page| page.bytes().len());
            growth += buffer_len(stop).saturating_sub(held) as u64;
            at += (stop - start) as u64;
        }
        growth
    }

    /// Truncates the file, or extends it with a hole.
    pub(super) fn truncate(&mut self, size: u64, source: &PageSource) {
        if size < self.size {
            let (index, start) = split(size);
            let mut gone = self.map.split_off(&index);
            if start > 0
                && let Some(mut page) = gone.remove(&index)
            {
                let len = page.bytes().len();
                if start < len {
                    page.writable(len, (start, len), source)[start..].fill(0);
                }
                self.map.insert(index, page);
            }
            self.charge.shrink(gone.values().map(|page| page.bytes().len() as u64).sum());
        }
        self.size = size;
    }
}

impl Pages {
    /// Returns the offset of the next data or hole at or after `offset`.
    pub(super) fn seek(&self, offset: u64, what: SeekFor) -> Result<Option<u64>, VfsError> {
        if offset >= self.size {
            return Err(VfsError::NoDevice);
        }
        let (first, _) = split(offset);
        let mut at = offset;
        for (index, page) in self.map.range(first..) {
            let start = index * PAGE as u64;
            let end = start + page.bytes().len() as u64;
            if what == SeekFor::Hole && at < start {
                break;
            }
            if at < end {
                if what == SeekFor::Data {
                    let found = at.max(start);
                    return Ok((found < self.size).then_some(found));
                }
                at = end;
            }
        }
        Ok((what == SeekFor::Hole && at < self.size).then_some(at))
    }

    /// Allocates the memory for a range, and extends the file to the end of the range.
    ///
    /// # Errors
    /// Returns `NoSpace` or `FileTooBig`; nothing has changed then.
    pub(super) fn allocate(&mut self, offset: u64, len: u64, source: &PageSource) -> Result<(), VfsError> {
        let end = offset.checked_add(len).filter(|&end| end <= i64::MAX as u64).ok_or(VfsError::FileTooBig)?;
        // Check this before counting pages, because the range can be of any length.
        if len > self.charge.capacity() {
            return Err(VfsError::NoSpace);
        }
        self.charge.grow(self.growth(offset, len as usize))?;
        let mut at = offset;
        while at < end {
            let (index, start) = split(at);
            let stop = (end - at).min((PAGE - start) as u64) as usize + start;
            let page = self.map.entry(index).or_insert_with(|| Page::Adopted(Bytes::new()));
            if page.bytes().len() < stop {
                page.writable(stop, (0, 0), source);
            }
            at += (stop - start) as u64;
        }
        self.size = self.size.max(end);
        Ok(())
    }

    /// Zeroes a range, and frees the memory of its whole pages.
    pub(super) fn deallocate(&mut self, offset: u64, len: u64, source: &PageSource) {
        let end = offset.saturating_add(len).min(self.size);
        if offset >= end {
            return;
        }
        let (first, last) = (split(offset).0, split(end - 1).0);
        let touched: Vec<u64> = self.map.range(first..=last).map(|(index, _)| *index).collect();
        for index in touched {
            let page_start = index * PAGE as u64;
            let start = offset.saturating_sub(page_start) as usize;
            let stop = (end - page_start).min(PAGE as u64) as usize;
            let page = self.map.get_mut(&index).expect("page must be in the map");
            let held = page.bytes().len();
            if start == 0 && stop >= held.min((self.size - page_start) as usize) {
                self.map.remove(&index);
                self.charge.shrink(held as u64);
            } else if start < held {
                let stop = stop.min(held);
                page.writable(held, (start, stop), source)[start..stop].fill(0);
            }
        }
    }
}

/// The position of a write in its rope.
struct Cursor<'a> {
    pieces: &'a [Piece],
    skip: usize,
}

impl Cursor<'_> {
    /// Returns the next piece if it is one page of memory that can become a page of the file. It must be whole, so that
    /// the file does not hold a larger buffer, and aligned, like memory that an adapter can register.
    fn whole_page(&self) -> Option<&Bytes> {
        match self.pieces {
            [Piece::Memory(bytes), ..] if self.skip == 0 && bytes.len() == PAGE => {
                (bytes.as_ptr() as usize).is_multiple_of(ALIGN).then_some(bytes)
            }
            _ => None,
        }
    }

    fn copy_to(&mut self, mut into: &mut [u8]) -> Result<(), VfsError> {
        while !into.is_empty() {
            let piece = self.pieces.first().expect("rope must be as long as its length");
            let len = into.len().min(piece.len() - self.skip);
            let (target, rest) = into.split_at_mut(len);
            match piece {
                Piece::Memory(bytes) => target.copy_from_slice(&bytes[self.skip..self.skip + len]),
                Piece::Peer(bytes) => {
                    let mut bytes = bytes.clone();
                    bytes.split_to(self.skip);
                    bytes.split_to(len).copy_to(target);
                }
                Piece::Device(range) => range.copy_out(self.skip, target).map_err(|_| VfsError::Io)?,
                Piece::File(range) => {
                    let mut range = range.clone();
                    range.offset += self.skip as u64;
                    range.len = len;
                    range.read(target).map_err(|_| VfsError::Io)?;
                }
            }
            into = rest;
            self.advance(len);
        }
        Ok(())
    }

    fn advance(&mut self, len: usize) {
        self.skip += len;
        if self.pieces.first().is_some_and(|piece| piece.len() == self.skip) {
            self.pieces = &self.pieces[1..];
            self.skip = 0;
        }
    }
}

fn split(offset: u64) -> (u64, usize) {
    (offset / PAGE as u64, (offset % PAGE as u64) as usize)
}

/// Returns the size of the buffer for the first `len` bytes of a page.
fn buffer_len(len: usize) -> usize {
    len.next_power_of_two().max(ALIGN)
}

const ALIGN: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> (Pages, PageSource) {
        (Pages::new(&Arc::new(Space::new(64 << 20))), PageSource::new(Pool::default()))
    }

    fn rope(bytes: &[u8]) -> Rope {
        Rope::from(Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn buffer_of_a_small_file_is_small_and_grows() {
        let (mut pages, source) = fresh();
        pages.write(0, &rope(b"x"), &source).unwrap();
        assert_eq!(pages.used(), 4096);
        pages.write(5000, &rope(b"y"), &source).unwrap();
        assert_eq!(pages.used(), 8192);
        pages.write(3 * PAGE as u64, &rope(b"z"), &source).unwrap();
        assert_eq!(pages.used(), 8192 + 4096);
        pages.truncate(1, &source);
        assert_eq!(pages.used(), 8192);
        pages.truncate(0, &source);
        assert_eq!(pages.used(), 0);
    }

    #[test]
    fn aligned_page_is_adopted_and_not_changed_by_later_writes() {
        let (mut pages, source) = fresh();
        let mut buffer = source.pool.take(PAGE);
        buffer.fill(7);
        let page = buffer.freeze();
        pages.write(0, &Rope::from(page.clone()), &source).unwrap();
        let lent = pages.read(0, PAGE, &source).to_bytes().unwrap();
        assert_eq!(lent.as_ptr(), page.as_ptr(), "the page must be adopted and lent without a copy");
        pages.write(10, &rope(b"new"), &source).unwrap();
        assert!(page.iter().all(|byte| *byte == 7));
        assert_eq!(&pages.read(9, 5, &source).to_bytes().unwrap()[..], b"\x07new\x07");
    }

    #[test]
    fn write_in_place_keeps_the_buffer_unless_it_is_lent() {
        let (mut pages, source) = fresh();
        pages.write(0, &rope(&[1; 100]), &source).unwrap();
        let place = pages.read(0, 1, &source).to_bytes().unwrap().as_ptr();
        pages.write(0, &rope(&[2; 100]), &source).unwrap();
        let lent = pages.read(0, 100, &source).to_bytes().unwrap();
        assert_eq!(lent.as_ptr(), place);
        pages.write(0, &rope(&[3; 100]), &source).unwrap();
        assert_eq!(&lent[..], [2; 100]);
        assert_eq!(&pages.read(0, 100, &source).to_bytes().unwrap()[..], [3; 100]);
    }

    #[test]
    fn reused_buffers_do_not_expose_old_data() {
        let (mut pages, source) = fresh();
        for _ in 0..2 {
            pages.write(0, &rope(&[0xff; 3 * PAGE]), &source).unwrap();
            pages.truncate(0, &source);
        }
        pages.write(100, &rope(b"a"), &source).unwrap();
        pages.write(2 * PAGE as u64 + 9000, &rope(b"b"), &source).unwrap();
        pages.truncate(3 * PAGE as u64, &source);
        let bytes = pages.read(0, usize::MAX, &source).to_bytes().unwrap();
        let set: Vec<_> = (0..bytes.len()).filter(|&i| bytes[i] != 0).collect();
        assert_eq!(set, [100, 2 * PAGE + 9000]);
    }
}
