//! The move of a file's data from the inner file system to data servers.
//!
//! The data are durable at the data servers before the record is, and are removed from the inner file after that. So after a
//! crash, the record decides which data are valid.

use std::sync::Arc;

use buf::Pool;
use vfs::{Attr, Caller, Cred, Result, SeekFor, SetAttr, SetTime, Stability, VfsError};

use super::{Core, mirrors::CopyWork};
use crate::{
    files::{File, Place},
    index::{UNHEALTHY, Work},
    record::{Copy, CopyState, Epochs, Object, Record, ServerId},
    servers::Presence,
    stripes::{Piece, Stripes},
};

impl Core {
    /// Moves the data of a file to data servers, with these stripes, if they are in the inner file. The file gets this work to do. It must
    /// not be 0: after a crash, the next process makes sure that the record of a file with work is durable before it uses it. The caller
    /// holds a lock on the whole file.
    ///
    /// # Errors
    /// Returns an error if no data server has all data of a stripe, or the inner file system fails. The data stay where they were.
    pub async fn spill(self: &Arc<Self>, file: &Arc<File>, stripes: Stripes, work: Work) -> Result<()> {
        if let Place::Servers(_) = self.place(file).await? {
            return Ok(());
        }
        let record = self.new_record(stripes);
        let objects: Vec<Object> = record.copies.iter().map(|copy| copy.object).collect();
        let _pinned = self.pin(objects.clone());
        let of = file.clone();
        let attr = self
            .run(move |core| {
                let attr = core.inner.getattr(&Caller::blocking(&Cred::root()), &of.handle)?;
                core.begin_new(&of.handle, &objects, work)?;
                Ok(attr)
            })
            .await?;
        let spilled = self.spill_to(file, record, &attr, work).await;
        if spilled.is_err() {
            let of = file.clone();
            // If this fails, the next process adds the objects to the queue of removals.
            let _ = self.run(move |core| core.end_new(&of, false)).await;
        }
        spilled
    }

    /// Ends the creation of the first objects of a file. They are added to the queue of removals if the record with them was not `stored`, or
    /// the file has no name any more.
    fn end_new(&self, file: &File, stored: bool) -> Result<()> {
        let is_linked =
            || self.inner.getattr(&Caller::blocking(&Cred::root()), &file.handle).is_ok_and(|attr| attr.nlink > 0);
        let used = {
            // A removal of the last name that has not seen the record has ended now.
            let _removing = self.removing.write();
            stored && is_linked()
        };
        self.index.end_new(&file.handle, used)?;
        if !used {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Returns a record with new objects. Data servers that have failed last, or are full, are used last.
    fn new_record(&self, stripes: Stripes) -> Record {
        let mut servers = self.servers.servers();
        let first = entropy::random_range(0..servers.len());
        servers.rotate_left(first);
        let failing = self.failing.lock();
        let is_unfit = |server: &ServerId| failing.contains(server) || self.is_full(*server);
        servers.sort_by_cached_key(is_unfit);
        let fit = servers.iter().filter(|server| !is_unfit(server)).count();
        drop(failing);
        let copies = stripes.place(self.options.mirrors, &servers, fit).into_iter();
        let copies = copies.map(|server| Copy { object: Object::new(server), state: CopyState::InSync }).collect();
        let epoch = u32::from(self.options.layouts.is_some());
        Record { generation: 1, epochs: Epochs { writers: epoch, readers: epoch }, stripes, copies }
    }

    async fn spill_to(self: &Arc<Self>, file: &Arc<File>, mut record: Record, attr: &Attr, work: Work) -> Result<()> {
        let create = |copy: usize| {
            let object = record.copies[copy].object;
            if !self.servers.creates_on_write(object.server) {
                return Some((copy, self.servers.create(object, record.epochs)));
            }
            // The first write creates the object. A data server that is away must not get a copy that is in sync.
            self.failing.lock().contains(&object.server).then(|| (copy, self.servers.probe(object.server)))
        };
        let created = (0..record.copies.len()).filter_map(create).collect();
        let created = self.on_copies(&record, created, |_, ()| true).await;
        exclude(&mut record, &created.failed, created.lost)?;
        let pool = Pool::default();
        let mut offset = 0;
        while let Some(data) = self.next_data(file, offset, attr.size).await? {
            let (of, from) = (file.clone(), pool.clone());
            let read = self
                .run(move |core| {
                    let root = Cred::root();
                    core.inner.read(&Caller::blocking(&root), &of.handle, data, PIECE, &from, false)
                })
                .await?;
            if read.data.is_empty() {
                break;
            }
            offset = data + read.data.len() as u64;
            let mut writes = Vec::new();
            for Piece { stripe, range } in record.stripes.pieces(data..offset) {
                let (from, len) = ((range.start - data) as usize, (range.end - range.start) as usize);
                let write = |object| {
                    let (data, stability) = (read.data.slice(from, len), Stability::FileSync);
                    self.servers.write(object, range.start, data, stability, Presence::MayBeNew)
                };
                writes.extend(record.in_sync_of(stripe).map(|copy| (copy, write(record.copies[copy].object))));
            }
            self.on_all(&mut record, writes).await?;
        }
        if attr.size > 0 {
            let set = |object| self.servers.set_size(object, attr.size, Presence::MayBeNew);
            let cuts = record.in_sync().map(|copy| (copy, set(record.copies[copy].object))).collect();
            self.on_all(&mut record, cuts).await?;
        }
        let (of, attr) = (file.clone(), attr.clone());
        self.run(move |core| {
            // The upkeep may have ended the work of the file meanwhile.
            core.add_work(&of.handle, if record.is_healthy() { work } else { work | UNHEALTHY })?;
            if !record.is_healthy() {
                core.wake.notify_one();
            }
            core.store(&of, record)?;
            core.punch(&of, &attr);
            // If this fails, the next process examines the objects.
            let _ = core.end_new(&of, true);
            Ok(())
        })
        .await
    }

    /// Executes operations on the copies of a record that is not stored yet.
    async fn on_all<T>(&self, record: &mut Record, work: Vec<CopyWork<T>>) -> Result<()> {
        let done = self.on_copies(record, work, |_, _| true).await;
        exclude(record, &done.failed, done.lost)
    }

    /// Returns the offset of the next byte of the inner file that is not in a hole.
    async fn next_data(self: &Arc<Self>, file: &Arc<File>, offset: u64, size: u64) -> Result<Option<u64>> {
        if offset >= size {
            return Ok(None);
        }
        let of = file.clone();
        let root = Cred::root();
        let seek = move |core: &Core| core.inner.seek(&Caller::blocking(&root), &of.handle, offset, SeekFor::Data);
        match self.run(seek).await {
            Err(VfsError::NotSupported) => Ok(Some(offset)),
            found => found,
        }
    }

    /// Frees the space of the data in the inner file. If this fails, they are only a waste of space.
    fn punch(&self, file: &File, attr: &Attr) {
        if attr.size == 0 {
            return;
        }
        let root = Cred::root();
        let caller = Caller::blocking(&root);
        let punched = self.inner.deallocate(&caller, &file.handle, 0, attr.size);
        let set = SetAttr { mtime: Some(SetTime::To(attr.mtime)), ..SetAttr::default() };
        match punched.and_then(|_| self.inner.setattr(&caller, &file.handle, &set, None)) {
            Ok(_) | Err(VfsError::NotSupported) => {}
            Err(error) => tracing::warn!(file = ?file.handle, %error, "cannot free the space of a file that was moved"),
        }
    }
}

/// Marks copies as stale in a record that is not stored yet.
fn exclude(record: &mut Record, failed: &[Object], lost: Option<VfsError>) -> Result<()> {
    if let Some(error) = lost {
        return Err(error);
    }
    for copy in record.copies.iter_mut().filter(|copy| failed.contains(&copy.object)) {
        copy.state = CopyState::Stale;
    }
    Ok(())
}

/// The number of bytes that are copied at a time.
const PIECE: usize = 1 << 20;
