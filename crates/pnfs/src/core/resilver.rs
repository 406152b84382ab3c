//! The repair of copies: those that may differ after a failure are made equal, and stale ones are made again.
//!
//! Both copy one piece at a time, under a lock on its range. Other operations continue in between.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use buf::Rope;
use entropy::HashSet;
use tokio::time::Instant;
use vfs::{Caller, Cred, Result, Stability, VfsError, layout::LayoutModes};

use super::{Core, mirrors::unless_new};
use crate::{
    files::{File, Place},
    index::{DIRTY, LAYOUTS, TRUNCATING, UNHEALTHY},
    ranges::WHOLE,
    record::{Copy, CopyState, Epochs, Object, Record},
    servers::{Presence, ServerError, ServerFuture},
    stripes::Piece,
};

impl Core {
    /// Makes all copies of a file equal to those that readers see.
    ///
    /// # Errors
    /// Returns an error if a data server fails whose copy is the last one. The work stays recorded.
    pub async fn equalize(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let whole = loop {
            self.holders.recall(&file.handle, LayoutModes::WRITE, false);
            self.holders.recalled(&file.handle).await;
            let whole = file.ranges.lock(WHOLE, true).await;
            // While this waited, another operation may have done the work, and a client may have got a layout.
            if !self.has_work(&file.handle, TRUNCATING) && !self.is_unequal(&file.handle) {
                return Ok(());
            }
            if !self.holders.count(&file.handle).1.write {
                break whole;
            }
        };
        let differences = file.differences.load(Relaxed);
        {
            let _whole = whole;
            self.trim(file, None).await?;
            // Clients get layouts again now. Copies must not be compared while clients write to them.
            if !self.is_unequal(&file.handle) {
                return Ok(());
            }
            self.commit_copies(file).await?;
            self.make_durable(file).await?;
        }
        if let Place::Servers(_) = self.place(file).await? {
            let mut offset = 0;
            loop {
                let of = file.clone();
                if offset >= self.run(move |core| core.size_of(&of.handle)).await? {
                    break;
                }
                let _range = file.ranges.lock(offset..offset + PIECE, true).await;
                self.equalize_piece(file, offset).await?;
                offset += PIECE;
            }
        }
        // Writes that are in progress may still fail, and then make the copies differ again. No client has a layout to write: none
        // is granted for a file whose copies may differ.
        let _whole = file.ranges.lock(WHOLE, true).await;
        self.commit_copies(file).await?;
        // Another truncation or write may have failed at the data servers, or writes may have been lost. The next round begins again.
        if file.differences.load(Relaxed) != differences || self.has_work(&file.handle, TRUNCATING) {
            return Err(VfsError::Delay);
        }
        self.unequal.lock().remove(&file.handle);
        let of = file.clone();
        self.run(move |core| core.end_work(&of.handle, LAYOUTS)).await
    }

    /// Makes all writes to the copies durable, also those of clients and of an earlier process. The copies would differ again if a
    /// data server lost them.
    async fn make_durable(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let Place::Servers(record) = self.place(file).await? else { return Ok(()) };
        let work = record.written().map(|copy| (copy, self.commit_copy(file, &record, copy))).collect();
        let outcome = self.on_copies(&record, work, |_, _| true).await;
        self.settle(file, outcome).await
    }

    /// Makes all writes to a copy durable.
    pub fn commit_copy(self: &Arc<Self>, file: &Arc<File>, record: &Record, copy: usize) -> ServerFuture<()> {
        self.on_object(file, record, copy, |servers, object, presence| {
            let committed = servers.commit(object);
            unless_new(presence, Box::pin(async { committed.await.map(drop) }), ())
        })
    }

    async fn equalize_piece(self: &Arc<Self>, file: &Arc<File>, offset: u64) -> Result<()> {
        let of = file.clone();
        let size = self.run(move |core| core.size_of(&of.handle)).await?;
        let len = size.saturating_sub(offset).min(PIECE) as usize;
        let good = self.read_range(file, offset, len).await?;
        let good = good.to_bytes().map_err(|_| VfsError::Io)?;
        let Place::Servers(record) = self.place(file).await? else { return Err(VfsError::Io) };
        for Piece { stripe, range } in record.stripes.pieces(offset..offset + len as u64) {
            let good = good.slice((range.start - offset) as usize..(range.end - offset) as usize);
            for copy in record.in_sync_of(stripe).skip(1) {
                let object = record.copies[copy].object;
                let repaired = async {
                    if self.servers.read(object, range.start, good.len()).await? != good {
                        let data = Rope::from(good.clone());
                        let (stability, presence) = (Stability::FileSync, Presence::Exists);
                        self.servers.write(object, range.start, data, stability, presence).await?;
                    }
                    Ok::<_, ServerError>(())
                };
                if repaired.await.is_err() {
                    self.mark_stale(file, vec![object]).await?;
                }
            }
        }
        Ok(())
    }

    /// Makes the stale copies of a file again: on their data servers, or on others if those are out of service or full.
    ///
    /// # Errors
    /// Returns an error if a data server or the inner file system fails. The work stays recorded.
    pub async fn resilver(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let Place::Servers(record) = self.place(file).await? else {
            let of = file.clone();
            return self.run(move |core| core.end_work(&of.handle, UNHEALTHY)).await;
        };
        self.await_undo(file).await?;
        let mut done = Ok(());
        // A data server that is still away must not keep the others from being repaired.
        for copy in (0..record.copies.len()).filter(|copy| record.copies[*copy].state != CopyState::InSync) {
            done = self.make_copy(file, copy).await.and(done);
        }
        done?;
        let _changing = file.changing.lock().await;
        let place = self.place(file).await?;
        let healthy = matches!(place, Place::Inner) || matches!(place, Place::Servers(record) if record.is_healthy());
        let of = file.clone();
        if healthy { self.run(move |core| core.end_work(&of.handle, UNHEALTHY)).await } else { Ok(()) }
    }

    /// Replaces a copy by a new object with the data of its stripe.
    async fn make_copy(self: &Arc<Self>, file: &Arc<File>, copy: usize) -> Result<()> {
        let object = self.begin_copy(file, copy).await?;
        let Err(error) = self.fill_copy(file, copy, object, false).await else { return Ok(()) };
        match error {
            // Clients can have layouts without this copy meanwhile. If copies differ, the next round makes them equal first.
            VfsError::Delay => {}
            // The next attempt is at another data server, if there is one.
            VfsError::NoSpace => self.note_full(object.server),
            _ => *file.resilver_after.lock() = Some(Instant::now() + RETRY_PAUSE),
        }
        self.mark_stale(file, vec![object]).await?;
        Err(error)
    }

    /// Copies the data of a stripe to a new object, with the rate of a rebalancing if `paced`.
    pub async fn fill_copy(self: &Arc<Self>, file: &Arc<File>, copy: usize, object: Object, paced: bool) -> Result<()> {
        // Clients with layouts do not write to the new copy. From now on, they get none to write.
        self.holders.recall(&file.handle, LayoutModes::WRITE, true);
        self.holders.recalled(&file.handle).await;
        self.commit_copies(file).await?;
        let Place::Servers(record) = self.place(file).await? else { return Err(VfsError::Io) };
        let (stripes, stripe) = (record.stripes, record.stripe_of(copy));
        let mut sources = HashSet::default();
        let mut offset = stripes.next(stripe, 0);
        loop {
            let end = offset.saturating_add(PIECE);
            let range = file.ranges.lock(offset..end, true).await;
            let of = file.clone();
            let size = self.run(move |core| core.size_of(&of.handle)).await?;
            if offset >= size {
                drop(range);
                let _whole = file.ranges.lock(WHOLE, true).await;
                let of = file.clone();
                let size = self.run(move |core| core.size_of(&of.handle)).await?;
                if offset >= size {
                    self.servers.set_size(object, size, Presence::Exists).await?;
                    return self.end_copy(file, copy, object, &sources).await;
                }
                continue;
            }
            self.copying(file, copy, object).await?;
            let Some(piece) = stripes.pieces(offset..end).next() else { return Err(VfsError::FileTooBig) };
            let behind = piece.range.end;
            let (data, source) = self.read_piece(file, piece).await?;
            sources.insert(source);
            if !is_zero(&data) {
                self.servers.write(object, offset, data, Stability::FileSync, Presence::Exists).await?;
            }
            let copied = (behind.min(size)).saturating_sub(offset);
            offset = stripes.next(stripe, behind);
            drop(range);
            match paced {
                true => self.pace(file, copied).await?,
                false => self.note_copied(file, offset, copied),
            }
        }
    }

    /// Replaces a stale copy by a new object that receives all writes. So no client with a former layout can write to it.
    async fn begin_copy(self: &Arc<Self>, file: &Arc<File>, copy: usize) -> Result<Object> {
        let _changing = file.changing.lock().await;
        let Place::Servers(record) = self.place(file).await? else { return Err(VfsError::Io) };
        let former = record.copies[copy].object;
        let object = Object::new(self.server_for(&record, copy)?);
        let mut next = Record::clone(&record);
        next.generation += 1;
        next.copies[copy] = Copy { object, state: CopyState::Copying };
        // A data server that does not answer leaves no entries in the index.
        self.servers.probe(object.server).await?;
        let _pinned = self.pin(vec![object, former]);
        let of = file.clone();
        self.run(move |core| {
            core.index.add(object, &of.handle)?;
            core.index.enqueue_removals(&[former])
        })
        .await?;
        let created = self.servers.create(object, record.epochs).await;
        if created == Err(ServerError::NoSpace) {
            self.note_full(object.server);
        }
        created?;
        let of = file.clone();
        self.run(move |core| core.store(&of, next)).await?;
        Ok(object)
    }

    /// Checks that a copy is still being made.
    ///
    /// # Errors
    /// Returns `Io` if the copy has missed a write meanwhile.
    async fn copying(self: &Arc<Self>, file: &Arc<File>, copy: usize, object: Object) -> Result<()> {
        let Place::Servers(record) = self.place(file).await? else { return Err(VfsError::Io) };
        let now = record.copies[copy];
        let copying = now.object == object && now.state == CopyState::Copying;
        if copying { Ok(()) } else { Err(VfsError::Io) }
    }

    /// Marks a copy as in sync whose data were read from these objects. The caller holds a lock on the whole file.
    async fn end_copy(
        self: &Arc<Self>,
        file: &Arc<File>,
        copy: usize,
        object: Object,
        sources: &HashSet<Object>,
    ) -> Result<()> {
        self.copying(file, copy, object).await?;
        // An object from which data were read may have lost unstable writes before, and this one those that it received.
        self.commit_copies(file).await?;
        let _changing = file.changing.lock().await;
        self.copying(file, copy, object).await?;
        let Place::Servers(record) = self.place(file).await? else { return Err(VfsError::Io) };
        let is_in_sync = |source: &Object| record.in_sync().any(|at| record.copies[at].object == *source);
        // If copies are unequal, readers see one only, and this one may have data of another.
        if self.is_unequal(&file.handle) || !sources.iter().all(is_in_sync) {
            return Err(VfsError::Delay);
        }
        let mut next = Record::clone(&record);
        next.generation += 1;
        next.copies[copy].state = CopyState::InSync;
        let replaces = self.drains.replace(&mut next, object);
        let of = file.clone();
        let stored = self.run(move |core| core.store(&of, next)).await;
        if replaces {
            // No write is acknowledged before clients have stopped reading the former copy, which does not get it. If the record
            // cannot be stored, it may have the new copy nevertheless.
            if record.epochs != Epochs::default() {
                self.holders.await_former(&file.handle);
            }
            self.holders.recall(&file.handle, LayoutModes::ALL, true);
        }
        stored?;
        tracing::info!(file = ?file.handle, server = object.server.0, "a copy is in sync again");
        Ok(())
    }

    /// Forgets that a file was written, if it has not been written since the last call. Writes that nobody has made durable
    /// are made durable before: a data server that loses them later would be left behind.
    ///
    /// # Errors
    /// Returns the errors of the index, and of the data servers if they cannot make the writes durable.
    pub async fn end_dirty(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let Some(_whole) = file.ranges.try_lock(WHOLE, true) else { return Ok(()) };
        let active = std::mem::take(&mut *file.active.lock());
        if active || self.is_unequal(&file.handle) {
            return Ok(());
        }
        if !file.unstable.lock().is_empty() {
            self.commit_copies(file).await?;
        }
        if !file.unstable.lock().is_empty() || self.is_unequal(&file.handle) {
            return Ok(());
        }
        let of = file.clone();
        self.run(move |core| {
            // The size may not be durable. If it went back, the objects would be longer than the file, and nobody would know.
            core.inner.commit(&Caller::blocking(&Cred::root()), &of.handle, 0, 0)?;
            core.end_work(&of.handle, DIRTY)
        })
        .await
    }
}

fn is_zero(data: &Rope) -> bool {
    data.to_bytes().is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0))
}

/// The time after a copy could not be made before the next attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// The number of bytes that are copied under one lock.
const PIECE: u64 = 1 << 20;
