//! Changes of sizes, and removal of names.

use std::sync::Arc;

use futures_util::future::join_all;
use vfs::{
    Caller, Change, CreateMode, Created, Cred, Handle, Kind, Name, Result, SetAttr, Time, VfsError, layout::LayoutModes,
};

use super::{Core, attribute};
use crate::{
    files::{File, Place},
    index::{LAYOUTS, TRUNCATING},
    ranges::{RangeGuard, WHOLE},
    record::{Object, Record},
    servers::{Presence, ServerError},
};

impl Core {
    /// Sets attributes, among them the size.
    pub async fn set_size(
        self: Arc<Self>,
        file: Arc<File>,
        cred: Cred,
        set: SetAttr,
        guard: Option<Time>,
    ) -> Result<Change> {
        self.end_former_layouts(&file).await?;
        let _whole = self.lock_trimmed(&file).await?;
        let spilled = matches!(self.place(&file).await?, Place::Servers(_));
        let of = file.clone();
        let ends = file.ends.now();
        let changed = self
            .run(move |core| {
                let root = Cred::root();
                let (caller, root) = (Caller::blocking(&cred), Caller::blocking(&root));
                let former = core.inner.getattr(&root, &of.handle)?.size;
                // If the file grows, too: a client that reads beyond the end of an object believes that the file ends there.
                // Objects can be longer than the file if a client has not committed its writes, or if the size went back in a crash.
                let committed = !core.has_work(&of.handle, LAYOUTS) && !core.is_unequal(&of.handle);
                let resizes = spilled && set.size.is_some_and(|size| size != former || !committed);
                if resizes {
                    core.add_work(&of.handle, TRUNCATING)?;
                }
                let changed = {
                    let mut sizing = of.sizing.lock();
                    sizing.count += 1;
                    let changed = core.inner.setattr(&caller, &of.handle, &set, guard);
                    sizing.cutting = resizes && changed.is_ok();
                    if sizing.cutting {
                        core.holders.note_cut(&of.handle);
                    }
                    if changed.is_ok() && set.mtime.is_some() {
                        core.holders.note_time(&of.handle);
                    }
                    changed
                };
                // What the client has written and not committed must stay.
                if resizes && changed.is_err() && core.size_of(&of.handle)? == former {
                    core.end_work_if(&of.handle, TRUNCATING, || of.ends.none_since(ends))?;
                }
                let change = changed?;
                if spilled && set.size.is_some() {
                    // The objects must not be cut before the file is, or a crash would leave zeros in the file. RFC 1813 §3.3.2: the size is
                    // durable after SETATTR, also if an unstable write has set it before.
                    core.inner.commit(&root, &of.handle, 0, 0)?;
                }
                Ok((change, former))
            })
            .await;
        let Ok((change, former)) = changed else {
            // It is not known which size the file has. What a client has written and not committed must stay until its layout has ended.
            file.sizing.lock().cutting = false;
            self.wake.notify_one();
            return changed.map(|(change, _)| change);
        };
        if !self.has_work(&file.handle, TRUNCATING) {
            return Ok(change);
        }
        let trimmed = self.trim(&file, Some(former)).await;
        file.sizing.lock().cutting = false;
        let Err(error) = trimmed else { return Ok(change) };
        self.wake.notify_one();
        // The objects are cut before the next write, and no read passes the end of the file. But the client that truncates the file
        // could write with its layout before they are cut, and then lose what it has written.
        if self.holders.count(&file.handle).1.write { Err(error) } else { Ok(change) }
    }

    /// Locks a whole file whose objects are not longer than the file. An earlier truncation may have left some that are: they are cut now, and
    /// clients return their layouts to write before that, because the objects have the data that they have written since.
    ///
    /// # Errors
    /// Returns the errors of [`trim`](Self::trim).
    pub async fn lock_trimmed(self: &Arc<Self>, file: &Arc<File>) -> Result<RangeGuard> {
        loop {
            let truncating = self.has_work(&file.handle, TRUNCATING);
            if truncating {
                self.holders.recall(&file.handle, LayoutModes::WRITE, false);
                self.holders.recalled(&file.handle).await;
            }
            let whole = file.ranges.lock(WHOLE, true).await;
            // Another operation may have done it or left it, and a client may have got a layout since.
            if !self.has_work(&file.handle, TRUNCATING) {
                return Ok(whole);
            }
            if truncating && !self.holders.count(&file.handle).1.write {
                self.trim(file, None).await?;
                return Ok(whole);
            }
        }
    }

    /// Gives all objects the size of the file, which had `former` bytes before, if that is known. The caller holds a lock on the
    /// whole file, and no client has a layout to write, except for one that truncates the file. The work stays recorded if
    /// objects may have become longer meanwhile.
    ///
    /// # Errors
    /// Returns an error if no copy could be changed.
    pub async fn trim(self: &Arc<Self>, file: &Arc<File>, former: Option<u64>) -> Result<()> {
        let ends = file.ends.now();
        if let Place::Servers(record) = self.place(file).await? {
            let of = file.clone();
            let size = self.run(move |core| {
                // If the size went back in a crash, the file would have lost data. The change of the size may have failed.
                core.inner.commit(&Caller::blocking(&Cred::root()), &of.handle, 0, 0)?;
                core.size_of(&of.handle)
            });
            let size = size.await?;
            tracing::debug!(file = ?file.handle, size, "objects get the size of their file");
            let mut work = Vec::new();
            for stripe in 0..record.stripes.count() {
                let presence = self.presence_before(&record, stripe, size, former).await;
                let set = |copy: usize| self.servers.set_size(record.copies[copy].object, size, presence);
                work.extend(record.written_of(stripe).map(|copy| (copy, set(copy))));
            }
            let outcome = self.on_copies(&record, work, |_, ()| true).await;
            // What a client has written from now on lies behind this change.
            file.sizing.lock().cutting = false;
            self.settle(file, outcome).await?;
        }
        let of = file.clone();
        self.run(move |core| core.end_work_if(&of.handle, TRUNCATING, || of.ends.none_since(ends))).await
    }

    /// Returns whether the objects of a stripe exist of a file that gets `size` bytes. If its former size is not known, they do not
    /// exist if all data servers with copies in sync say so.
    async fn presence_before(&self, record: &Record, stripe: usize, size: u64, former: Option<u64>) -> Presence {
        let has_data = |size| record.stripes.end(stripe, size) > 0;
        if !has_data(size) {
            return Presence::MayBeNew;
        }
        let exists = match former {
            Some(former) => has_data(former),
            None if !self.has_new(record, stripe) => true,
            None => {
                let attrs = record.in_sync_of(stripe).map(|copy| self.servers.getattr(record.copies[copy].object));
                join_all(attrs).await.into_iter().any(|attr| attr != Err(ServerError::Missing))
            }
        };
        if exists { Presence::Exists } else { Presence::MayBeNew }
    }

    /// Reports whether writes create an object in sync of a stripe.
    fn has_new(&self, record: &Record, stripe: usize) -> bool {
        record.in_sync_of(stripe).any(|copy| self.servers.creates_on_write(record.copies[copy].object.server))
    }

    /// Returns the size of a file in bytes.
    ///
    /// # Errors
    /// Returns the errors of the inner file system.
    pub fn size_of(&self, file: &Handle) -> Result<u64> {
        self.inner.getattr(&Caller::blocking(&Cred::root()), file).map(|attr| attr.size)
    }

    /// Creates a file, or opens an existing one and sets its size.
    pub async fn create_sized(
        self: Arc<Self>,
        cred: Cred,
        dir: Handle,
        name: Box<[u8]>,
        (set, size): (SetAttr, u64),
    ) -> Result<Created> {
        let by = cred.clone();
        let mode = CreateMode::Unchecked(SetAttr { size: None, ..set });
        let created = self.run(move |core| core.inner.create(&Caller::blocking(&by), &dir, Name::new(&name)?, &mode));
        let created = created.await?;
        // Every open with a size changes the times, even if the size stays the same.
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let file = self.files.get(&created.handle);
        match self.set_size(file, cred, set, None).await {
            Ok(change) => Ok(Created { attr: change.after, ..created }),
            Err(error) => Err(error),
        }
    }

    /// Runs an operation that removes a name. If the object of the name has data on data servers, they are first added to
    /// the queue of removals.
    ///
    /// # Errors
    /// Returns the errors of the operation, and `Io` if the queue cannot be written.
    pub fn unlink<T>(
        &self,
        caller: &Caller<'_>,
        (dir, name): (&Handle, &Name),
        operation: impl FnOnce(&Caller<'_>) -> Result<T>,
    ) -> Result<T> {
        let _removing = self.removing.read();
        let objects = match self.inner.find(caller, dir, name) {
            Ok((object, Kind::File)) => self.objects_of(&object)?,
            _ => Vec::new(),
        };
        if objects.is_empty() {
            return operation(caller);
        }
        self.index.enqueue_removals(&objects)?;
        let done = operation(caller);
        self.wake.notify_one();
        done
    }

    fn objects_of(&self, file: &Handle) -> Result<Vec<Object>> {
        match self.place_now(&self.files.get(file), true) {
            Ok(Place::Servers(record)) => Ok(record.copies.iter().map(|copy| copy.object).collect()),
            Ok(Place::Inner) | Err(VfsError::Stale) => Ok(Vec::new()),
            // A file with a damaged record can be removed. The scan for orphans finds its objects.
            Err(VfsError::Io) if self.is_damaged(file) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn is_damaged(&self, file: &Handle) -> bool {
        let record = self.inner.xattr(&Caller::blocking(&Cred::root()), file, attribute());
        record.is_ok_and(|bytes| Record::decode(&bytes).is_err())
    }
}
