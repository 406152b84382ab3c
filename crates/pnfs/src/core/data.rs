//! Reads, writes and commits of file data at the data servers.
//!
//! Each holds a lock on its range, so the copies of a file get all writes in the same order.

use std::sync::Arc;

use buf::{Pool, Rope};
use bytes::{Bytes, BytesMut};
use entropy::HashSet;
use futures_util::future::join_all;
use vfs::{
    Caller, Change, Cred, PreAttr, Read, Report, Result, SeekFor, SetAttr, Stability, VfsError, Written,
    layout::LayoutModes,
};

use super::{
    Core,
    mirrors::{CopyWork, Outcome},
};
use crate::{
    files::{File, Place},
    index::{DIRTY, TRUNCATING},
    ranges::{RangeGuard, WHOLE},
    record::{Object, Record},
    servers::{DataServers, ServerError},
    stripes::{End, Piece},
};

/// A write of a caller.
pub struct Write {
    pub offset: u64,
    pub data: Rope,
    pub stability: Stability,
    pub report: Report,
}

/// Data for the copies of one stripe.
struct Part {
    stripe: usize,
    offset: u64,
    data: Rope,
}

impl Core {
    pub async fn read(
        self: Arc<Self>,
        file: Arc<File>,
        cred: Cred,
        offset: u64,
        len: usize,
        pool: Pool,
    ) -> Result<Read> {
        let _range = file.ranges.lock(offset..offset.saturating_add(len as u64), false).await;
        let place = self.place(&file).await?;
        let of = file.clone();
        if let Place::Inner = place {
            let read =
                move |core: &Core| core.inner.read(&Caller::blocking(&cred), &of.handle, offset, len, &pool, false);
            return self.run(read).await;
        }
        // The inner file system checks the permission, and has the attributes.
        let attr = self
            .run(move |core| core.inner.read_into(&Caller::blocking(&cred), &of.handle, offset, &mut []))
            .await?
            .attr;
        let rest = attr.size.saturating_sub(offset);
        let len = (len as u64).min(rest);
        let data = self.read_range(&file, offset, len as usize).await?;
        Ok(Read { data, eof: len == rest, attr })
    }

    /// Reads a range from the data servers. The caller holds a lock on it. What an object does not have is zero.
    ///
    /// # Errors
    /// Returns `Io` if no copy in sync can be read.
    pub async fn read_range(self: &Arc<Self>, file: &Arc<File>, offset: u64, len: usize) -> Result<Rope> {
        let Place::Servers(record) = self.place(file).await? else { return Err(VfsError::Io) };
        // Collected first: without the number of futures, `join_all` gives each a task of its own.
        let pieces: Vec<_> = record.stripes.pieces(offset..offset + len as u64).collect();
        // All are executed to their end: a stale mark must not be interrupted.
        let reads = join_all(pieces.into_iter().map(|piece| self.read_piece(file, piece))).await;
        let mut data = Rope::new();
        for read in reads {
            data.append(read?.0);
        }
        Ok(data)
    }

    /// Reads a piece from a copy of its stripe: see [`read_range`](Self::read_range). Returns the object from which it was read, too.
    ///
    /// # Errors
    /// Returns `Io` if no copy in sync can be read.
    pub async fn read_piece(
        self: &Arc<Self>,
        file: &Arc<File>,
        Piece { stripe, range }: Piece,
    ) -> Result<(Rope, Object)> {
        let (offset, len) = (range.start, (range.end - range.start) as usize);
        let mut tried: HashSet<Object> = HashSet::default();
        loop {
            let Place::Servers(record) = self.place(file).await? else { return Err(VfsError::Io) };
            // If the copies may differ, all readers must see the same one.
            let unequal = self.is_unequal(&file.handle);
            let mut copies: Vec<_> = record.in_sync_of(stripe).map(|copy| record.copies[copy].object).collect();
            if unequal {
                copies.truncate(1);
            } else {
                let failing = self.failing.lock();
                copies.sort_by_key(|object| failing.contains(&object.server));
            }
            let Some(object) = copies.into_iter().find(|object| !tried.contains(object)) else {
                return Err(VfsError::Io);
            };
            let read = self.servers.read(object, offset, len).await;
            self.note_server(object.server, read.as_ref().err() != Some(&ServerError::Unreachable));
            match read {
                Ok(data) if data.len() == len => return Ok((data.into(), object)),
                Ok(data) if data.len() < len => {
                    let mut padded = BytesMut::from(&data[..]);
                    padded.resize(len, 0);
                    return Ok((padded.freeze().into(), object));
                }
                Ok(_) => tried.insert(object),
                Err(error) => {
                    // A reader must not use another copy and later this one again.
                    if unequal || error == ServerError::Missing {
                        let marked = self.mark_stale(file, vec![object]).await;
                        if unequal {
                            marked?;
                        }
                    }
                    tried.insert(object)
                }
            };
        }
    }

    /// Returns the offset of the next data or hole. NFSv3 data servers do not tell where holes are, so they are reported as
    /// data, as lseek(2) permits.
    ///
    /// # Errors
    /// Returns `NoDevice` if `offset` is at or beyond the end of the file, and the errors of the inner file system.
    pub async fn seek(self: Arc<Self>, file: Arc<File>, cred: Cred, offset: u64, what: SeekFor) -> Result<Option<u64>> {
        let _range = file.ranges.lock(offset..offset.saturating_add(1), false).await;
        let place = self.place(&file).await?;
        let seek = move |core: &Core| {
            let caller = Caller::blocking(&cred);
            if let Place::Inner = place {
                return core.inner.seek(&caller, &file.handle, offset, what);
            }
            // The inner file system checks the permission.
            let size = core.inner.read_into(&caller, &file.handle, offset, &mut [])?.attr.size;
            if offset < size { Ok((what == SeekFor::Data).then_some(offset)) } else { Err(VfsError::NoDevice) }
        };
        self.run(seek).await
    }

    /// Locks a range of a file for a write. Spills the file if the write does not fit into the inner file.
    ///
    /// # Errors
    /// Returns the errors of the inner file system and of the data servers.
    pub async fn lock_for_write(
        self: &Arc<Self>,
        file: &Arc<File>,
        range: std::ops::Range<u64>,
    ) -> Result<(RangeGuard, Place)> {
        loop {
            if self.has_work(&file.handle, TRUNCATING) {
                drop(self.lock_trimmed(file).await?);
            }
            let guard = file.ranges.lock(range.clone(), true).await;
            let place = self.place(file).await?;
            match place {
                Place::Inner if range.end > self.options.threshold => {
                    drop(guard);
                    let _whole = file.ranges.lock(WHOLE, true).await;
                    self.spill(file, self.options.stripes, DIRTY).await?;
                }
                Place::Servers(_) if self.has_work(&file.handle, TRUNCATING) => {}
                place => return Ok((guard, place)),
            }
        }
    }

    /// Makes the part of a range that lies in the file zeros. NFSv3 has no operation for holes, so zeros are written where other bytes
    /// are: RFC 7862 §15.4.3 demands zeros of what cannot be deallocated. If this fails, a part of the range can have its former bytes.
    ///
    /// # Errors
    /// Returns `NotSupported` if more than [`REWRITTEN_MAX`] bytes would be read and written, and the errors of writes.
    pub async fn deallocate(self: Arc<Self>, file: Arc<File>, cred: Cred, offset: u64, len: u64) -> Result<Change> {
        {
            let _whole = file.ranges.lock(WHOLE, true).await;
            if let Place::Inner = self.place(&file).await? {
                let inner =
                    move |core: &Core| core.inner.deallocate(&Caller::blocking(&cred), &file.handle, offset, len);
                return self.run(inner).await;
            }
        }
        let size = self.size_for_writer(&file, &cred).await?;
        let end = offset.saturating_add(len).min(size);
        if end.saturating_sub(offset) > REWRITTEN_MAX {
            return Err(VfsError::NotSupported);
        }
        let mut start = offset;
        while start < end {
            let stop = end.min(start + COPY_PIECE);
            self.zero(&file, start..stop).await?;
            start = stop;
        }
        self.run(move |core| core.note_change(&file, &cred, 0, Stability::Unstable)).await
    }

    /// Returns the size of a file, if the caller may write to it.
    ///
    /// # Errors
    /// Returns the errors of the inner file system, which checks the permission.
    async fn size_for_writer(self: &Arc<Self>, file: &Arc<File>, cred: &Cred) -> Result<u64> {
        let (of, by) = (file.clone(), cred.clone());
        self.run(move |core| {
            let (caller, nothing) = (Caller::blocking(&by), Rope::new());
            core.inner.write(&caller, &of.handle, 0, &nothing, Stability::Unstable, Report::Nothing)?;
            core.size_of(&of.handle)
        })
        .await
    }

    /// Writes zeros to the part of a range that lies in the file and has other bytes.
    async fn zero(self: &Arc<Self>, file: &Arc<File>, range: std::ops::Range<u64>) -> Result<()> {
        let (_range, place) = self.lock_for_write(file, range.clone()).await?;
        let Place::Servers(record) = place else { return Err(VfsError::Io) };
        // The file may have been truncated.
        let of = file.clone();
        let size = self.run(move |core| core.size_of(&of.handle)).await?;
        let len = range.end.min(size).saturating_sub(range.start) as usize;
        let data = self.read_range(file, range.start, len).await?;
        if data.to_bytes().is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0)) {
            return Ok(());
        }
        let zeros = Bytes::from(vec![0; len]).into();
        self.write_range(file, &record, range.start, zeros, Stability::FileSync).await
    }

    /// Reserves the space of a range, so that later writes to it do not fail with NOSPC (RFC 7862 §15.1.3). NFSv3 has no operation for it, so
    /// the bytes of the range are written again, and zeros behind the end of the file. The file gets longer if the range ends behind it.
    ///
    /// # Errors
    /// Returns `NotSupported` if more than [`REWRITTEN_MAX`] bytes would be written, and the errors of reads and writes.
    pub async fn allocate(self: Arc<Self>, file: Arc<File>, cred: Cred, offset: u64, len: u64) -> Result<Change> {
        let end = offset.checked_add(len).filter(|end| *end <= self.caps.file_size_max);
        let end = end.ok_or(VfsError::FileTooBig)?;
        self.size_for_writer(&file, &cred).await?;
        let is_long = len > REWRITTEN_MAX;
        if is_long && end > self.options.threshold {
            return Err(VfsError::NotSupported);
        }
        {
            let (_range, place) = self.lock_for_write(&file, offset..end).await?;
            if let Place::Inner = place {
                let inner = move |core: &Core| core.inner.allocate(&Caller::blocking(&cred), &file.handle, offset, len);
                return self.run(inner).await;
            }
        }
        if is_long {
            return Err(VfsError::NotSupported);
        }
        // A client that writes to the data servers meanwhile would lose its data.
        let _rewriting = file.begin_rewriting();
        // Grants that have not seen this end before.
        drop(file.changing.lock().await);
        self.holders.recall(&file.handle, LayoutModes::WRITE, false);
        self.holders.recalled(&file.handle).await;
        let rewritten = async {
            let mut start = offset;
            while start < end {
                let stop = end.min(start + COPY_PIECE);
                self.rewrite(&file, start..stop).await?;
                start = stop;
            }
            let of = file.clone();
            self.run(move |core| core.note_change(&of, &cred, end, Stability::FileSync)).await
        };
        // The objects may be longer than the file now.
        rewritten.await.inspect_err(|_| self.note_unequal(&file.handle))
    }

    /// Writes the bytes of a range again, and zeros behind the end of the file.
    async fn rewrite(self: &Arc<Self>, file: &Arc<File>, range: std::ops::Range<u64>) -> Result<()> {
        let (_range, place) = self.lock_for_write(file, range.clone()).await?;
        let Place::Servers(record) = place else { return Err(VfsError::Io) };
        let of = file.clone();
        let size = self.run(move |core| core.size_of(&of.handle)).await?;
        let known = range.end.min(size).saturating_sub(range.start);
        let mut data = self.read_range(file, range.start, known as usize).await?;
        let zeros = (range.end - range.start - known) as usize;
        data.append(Bytes::from(vec![0; zeros]).into());
        self.write_range(file, &record, range.start, data, Stability::FileSync).await
    }

    pub async fn write(self: Arc<Self>, file: Arc<File>, cred: Cred, write: Write) -> Result<Written> {
        let Write { offset, mut data, stability, report } = write;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= self.caps.file_size_max);
        let end = end.ok_or(VfsError::FileTooBig)?;
        // Data in files and devices cannot be sent.
        data.bounce().map_err(|_| VfsError::Io)?;
        let (of, by) = (file.clone(), cred.clone());
        // An empty write has no effect, but needs the same permission.
        let allowed = move |core: &Core, data: &Rope, stability| {
            core.inner.write(&Caller::blocking(&by), &of.handle, offset, data, stability, report)
        };
        let check = allowed.clone();
        let checked = self.run(move |core| check(core, &Rope::new(), Stability::Unstable)).await?;
        if data.is_empty() {
            return Ok(Written { stability, ..checked });
        }
        let (_range, place) = self.lock_for_write(&file, offset..end).await?;
        let Place::Servers(record) = place else {
            return self.run(move |core| allowed(core, &data, stability)).await;
        };
        self.write_range(&file, &record, offset, data, stability).await?;
        let handle = file.handle.clone();
        let extended = self.run(move |core| core.extend(&file, &cred, end, stability, report)).await;
        // The objects may be longer than the file now.
        extended.inspect_err(|_| self.note_unequal(&handle))
    }

    /// Writes a range to all copies. The caller holds a lock on it.
    ///
    /// # Errors
    /// Returns an error if no copy has the data. Some copies may have it.
    pub async fn write_range(
        self: &Arc<Self>,
        file: &Arc<File>,
        record: &Record,
        offset: u64,
        data: Rope,
        stability: Stability,
    ) -> Result<()> {
        let of = file.clone();
        let parts = self.parts(file, record, offset, &data).await?;
        *file.active.lock() = true;
        if !self.has_durable_work(&file.handle, DIRTY) {
            self.run(move |core| core.add_work(&of.handle, DIRTY)).await?;
        }
        let mut outcome = self.write_copies(file, record, &parts, stability).await;
        if outcome.lost.is_some() && !file.unstable.lock().is_empty() {
            // The data servers have lost earlier writes. Clients repeat those, and this one can succeed.
            self.lose_unstable(file, |_, _| true);
            outcome = self.write_copies(file, record, &parts, stability).await;
        }
        self.settle(file, outcome).await
    }

    /// Divides data into parts. Adds a byte for each object that would end too early.
    async fn parts(self: &Arc<Self>, file: &Arc<File>, record: &Record, offset: u64, data: &Rope) -> Result<Vec<Part>> {
        let range = offset..offset + data.len() as u64;
        let part = |Piece { stripe, range }: Piece| {
            let len = (range.end - range.start) as usize;
            Part { stripe, offset: range.start, data: data.slice((range.start - offset) as usize, len) }
        };
        let mut parts: Vec<_> = record.stripes.pieces(range.clone()).map(part).collect();
        if record.stripes.count() > 1 {
            let of = file.clone();
            let size = self.run(move |core| core.size_of(&of.handle)).await?;
            let zero = |End { stripe, offset }| Part { stripe, offset, data: Bytes::from_static(&[0]).into() };
            parts.extend(record.stripes.ends(size, range).map(zero));
        }
        Ok(parts)
    }

    async fn write_copies(
        self: &Arc<Self>,
        file: &Arc<File>,
        record: &Record,
        parts: &[Part],
        stability: Stability,
    ) -> Outcome {
        let mut work: Vec<CopyWork<_>> = Vec::new();
        for Part { stripe, offset, data } in parts {
            work.extend(record.written_of(*stripe).map(|copy| {
                let (offset, data) = (*offset, data.clone());
                let write = move |servers: &dyn DataServers, object, presence| {
                    servers.write(object, offset, data.clone(), stability, presence)
                };
                (copy, self.on_object(file, record, copy, write))
            }));
        }
        let unstable = stability == Stability::Unstable;
        self.on_copies(record, work, |object, verifier| self.note_write(file, object, verifier, unstable)).await
    }

    /// Sets the size and the times of the inner file after a write up to `end`.
    ///
    /// # Errors
    /// Returns the errors of the inner file system.
    pub fn extend(&self, file: &File, cred: &Cred, end: u64, stability: Stability, report: Report) -> Result<Written> {
        let Change { before, after } = self.note_change(file, cred, end, stability)?;
        let wanted = report != Report::Nothing;
        let (before, after): (Option<PreAttr>, _) = (wanted.then_some(before), wanted.then_some(after));
        Ok(Written { stability, before, after })
    }

    /// Sets the times of the inner file as after a write up to `end`, and its size, if it was shorter.
    fn note_change(&self, file: &File, cred: &Cred, end: u64, stability: Stability) -> Result<Change> {
        let _sizing = file.sizing.lock();
        let (caller, root) = (Caller::blocking(cred), Cred::root());
        let former = self.inner.getattr(&caller, &file.handle)?.size;
        let set = SetAttr { size: Some(former.max(end)), ..SetAttr::default() };
        let change = self.inner.setattr(&caller, &file.handle, &set, None)?;
        // The size may be that of an earlier unstable write, so it matters also if the file does not grow.
        if stability != Stability::Unstable {
            self.inner.commit(&Caller::blocking(&root), &file.handle, 0, 0)?;
        }
        Ok(change)
    }

    pub async fn commit(self: Arc<Self>, file: Arc<File>, cred: Cred, offset: u64, len: u64) -> Result<Change> {
        if let Place::Servers(_) = self.place(&file).await? {
            self.commit_copies(&file).await?;
        }
        self.run(move |core| core.inner.commit(&Caller::blocking(&cred), &file.handle, offset, len)).await
    }

    /// Makes the unstable writes of a file durable. If all copies have lost some, changes the write verifier.
    ///
    /// # Errors
    /// Returns an error if a copy that has lost writes cannot be marked as stale.
    pub async fn commit_copies(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let Place::Servers(record) = self.place(file).await? else { return Ok(()) };
        let unstable = file.unstable.lock().clone();
        let copies = (0..record.copies.len()).filter(|copy| unstable.contains_key(&record.copies[*copy].object));
        let work = copies.map(|copy| (copy, self.servers.commit(record.copies[copy].object))).collect();
        let check = |object, verifier| unstable.get(&object).is_some_and(|writes| writes.verifier == verifier);
        let outcome = self.on_copies(&record, work, check).await;
        if outcome.lost.is_some() {
            // RFC 1813 §3.3.21: the new verifier makes the clients write again.
            self.lose_unstable(file, |object, last| {
                unstable.get(object).is_some_and(|lost| lost.number == last.number)
            });
            return Ok(());
        }
        self.settle(file, outcome).await?;
        let mut writes = file.unstable.lock();
        writes.retain(|object, last| unstable.get(object).is_none_or(|done| done.number != last.number));
        Ok(())
    }

    /// Copies a part of a range between files. Returns the number of bytes, which is 0 only at the end of the source.
    pub async fn copy(
        self: Arc<Self>,
        (from, start): (Arc<File>, u64),
        (to, target): (Arc<File>, u64),
        len: u64,
        cred: Cred,
    ) -> Result<u64> {
        if target.checked_add(len).is_none_or(|end| end > self.caps.file_size_max) {
            return Err(VfsError::FileTooBig);
        }
        let pool = Pool::default();
        let mut copied = 0;
        while copied < len.min(COPY_MAX) {
            let piece = (len - copied).min(COPY_PIECE) as usize;
            let read = self.clone().read(from.clone(), cred.clone(), start + copied, piece, pool.clone()).await;
            let done = match read {
                Ok(read) => {
                    let len = read.data.len() as u64;
                    let (data, offset) = (read.data, target + copied);
                    let (stability, report) = (Stability::Unstable, Report::Nothing);
                    let write = Write { offset, data, stability, report };
                    self.clone().write(to.clone(), cred.clone(), write).await.map(|_| len)
                }
                Err(error) => Err(error),
            };
            match done {
                Ok(0) => break,
                Ok(len) => copied += len,
                // The client gets the error again if it continues.
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(copied)
    }
}

const COPY_PIECE: u64 = 1 << 20;
/// Maximum bytes of one ALLOCATE or DEALLOCATE: they have no partial result, so a client waits for all of them.
const REWRITTEN_MAX: u64 = 256 << 20;
/// Maximum bytes that are copied at a time, so that a call is answered soon.
const COPY_MAX: u64 = 16 << 20;
