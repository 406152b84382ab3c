//! Layouts of files: grants, the end of layouts, sizes of files that clients have written directly, and fences.
//!
//! Read RFC 8435 §2.2 (fencing by the users of data files) and §8.2 (errors of mirrors) first. Nothing here takes a lock on a
//! range of a file that exists on data servers: an operation that holds one may wait for the end of a layout.

use std::{ops::Range, slice, sync::Arc, time::Duration};

use buf::Rope;
use bytes::Bytes;
use entropy::HashMap;
use futures_util::future::join_all;
use tokio::time::Instant;
use vfs::{
    Attr, Caller, Change, Cred, Handle, Result, SetAttr, SetTime, Stability, Time, VfsError,
    layout::{
        DataError, DataFailure, DataFile, DataOperation, FilesLayout, FlexibleLayout, Layout, LayoutCommit,
        LayoutDeviceId, LayoutHolder, LayoutKind, LayoutMode, LayoutModes, LayoutRequest, Mirror,
    },
};

use super::{Core, ignore_removed, mirrors::unless_new};
use crate::{
    files::{File, Place},
    holders::{CLOCK_DIFFERENCE, Writing},
    index::{LAYOUTS, OWNERS, TRUNCATING},
    ranges::WHOLE,
    record::{CopyState, Epochs, Object, Owners, Record, ServerId},
    servers::{ClientAccess, DataServers, ObjectAttr, Presence, ServerError, ServerFuture},
    stripes::Stripes,
};

/// The result of an attempt to grant a layout.
enum Attempt {
    Granted(Layout),
    /// A client could not write to this copy.
    Unusable(Object),
}

impl Core {
    /// Grants a layout.
    ///
    /// # Errors
    /// See [`vfs::Layouts::grant`].
    pub async fn grant(self: Arc<Self>, handle: Handle, request: LayoutRequest) -> Result<Layout> {
        if self.options.layouts != Some(request.kind) {
            return Err(VfsError::NotSupported);
        }
        let file = self.files.get(&handle);
        if let Place::Inner = self.place(&file).await? {
            // With OPEN, nobody knows how long the file will be. The client asks again when it writes more than the threshold.
            if request.mode == LayoutMode::Read || request.with_open {
                return Err(VfsError::NotSupported);
            }
            // The client that writes first decides: it can use the file directly.
            let stripes = if accepts_stripes(&request) { self.options.stripes } else { Stripes::ONE };
            let _whole = file.ranges.lock(WHOLE, true).await;
            self.spill(&file, stripes, LAYOUTS).await?;
        }
        let granted = self.grant_usable(&file, &request).await;
        if granted.is_err() && self.has_work(&handle, LAYOUTS) {
            let _changing = file.changing.lock().await;
            self.end_layouts(&file).await?;
        }
        granted
    }

    /// Grants a layout of the copies that clients can use. Marks the others as stale if the layout is to write.
    async fn grant_usable(self: &Arc<Self>, file: &Arc<File>, request: &LayoutRequest) -> Result<Layout> {
        loop {
            match self.try_grant(file, request).await? {
                Attempt::Granted(layout) => return Ok(layout),
                // If this is the last copy, clients get the error when they use this server.
                Attempt::Unusable(object) => {
                    self.mark_stale(file, vec![object]).await.map_err(|_| VfsError::NotSupported)?;
                }
            }
        }
    }

    /// Records that no client has a layout to write any more, if that is true. The caller holds the lock on changes of the record.
    async fn end_layouts(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        if self.holders.count(&file.handle).1.write || self.is_unequal(&file.handle) {
            return Ok(());
        }
        let of = file.clone();
        self.run(move |core| core.end_work(&of.handle, LAYOUTS)).await
    }

    async fn try_grant(self: &Arc<Self>, file: &Arc<File>, request: &LayoutRequest) -> Result<Attempt> {
        // The record cannot change before the holder is known, so each change of it recalls the layout.
        let _changing = file.changing.lock().await;
        let Place::Servers(mut record) = self.place(file).await? else { return Err(VfsError::Delay) };
        if record.stripes.count() > 1 && !accepts_stripes(request) {
            return Err(VfsError::NotSupported);
        }
        let writes = request.mode == LayoutMode::Write;
        // A client of a files layout writes to one copy.
        if request.kind == LayoutKind::Files && writes && record.written().count() > record.stripes.count() {
            return Err(VfsError::NotSupported);
        }
        let denied = file.layouts_after.lock().is_some_and(|time| Instant::now() < time);
        let copying = record.copies.iter().any(|copy| copy.state == CopyState::Copying);
        if self.is_unequal(&file.handle) || self.has_work(&file.handle, TRUNCATING) || writes && copying || denied {
            return Err(VfsError::NotSupported);
        }
        if writes && file.is_rewriting() {
            return Err(VfsError::Delay);
        }
        if record.epochs == Epochs::default() {
            record = self.raise_epochs(file, &record, LayoutModes::ALL).await?;
        }
        // The users of the objects are new, or an operation that has raised the epochs was interrupted.
        if let Some(object) = self.set_owners(file, &record).await?.first() {
            return Ok(Attempt::Unusable(*object));
        }
        let mut stripes = vec![Vec::new(); record.stripes.count()];
        let of = file.clone();
        let size = self.run(move |core| core.size_of(&of.handle)).await?;
        let data_files = record.in_sync().map(|copy| {
            let data_file = self.data_file(&record, (copy, size), request);
            async move { (copy, data_file.await) }
        });
        for (copy, data_file) in join_all(data_files).await {
            let object = record.copies[copy].object;
            match data_file {
                Ok(data_file) => stripes[record.stripe_of(copy)].push((object.server, data_file)),
                // This is a setting of the administrator, and no failure.
                Err(None) => return Err(VfsError::NotSupported),
                Err(Some(error)) => {
                    self.note_server(object.server, error != ServerError::Unreachable);
                    if writes {
                        return Ok(Attempt::Unusable(object));
                    }
                }
            }
        }
        if stripes.iter().any(Vec::is_empty) {
            return Err(VfsError::NotSupported);
        }
        let (layout, devices) = self.layout_of(stripes, record.stripes, request)?;
        if writes {
            let of = file.clone();
            self.run(move |core| core.add_work(&of.handle, LAYOUTS)).await?;
        }
        let former = self.holders.of(&file.handle, request.holder);
        if !self.holders.add(&file.handle, request.holder, request.mode.into(), &devices) {
            return Err(VfsError::Delay);
        }
        // Work that has begun meanwhile must not find a layout later.
        if self.is_unequal(&file.handle) || writes && self.has_work(&file.handle, TRUNCATING) {
            self.holders.remove(&file.handle, request.holder, LayoutModes::from(request.mode).without(former));
            return Err(VfsError::Delay);
        }
        Ok(Attempt::Granted(layout))
    }

    /// Returns the layout of copies that a client can use, and takes note of its devices, which it returns, too.
    ///
    /// # Errors
    /// Returns `NotSupported` if the client cannot use a files layout of them.
    fn layout_of(
        &self,
        copies: Vec<Usable>,
        stripes: Stripes,
        request: &LayoutRequest,
    ) -> Result<(Layout, Vec<LayoutDeviceId>)> {
        let of = (request.kind, request.transport);
        match request.kind {
            LayoutKind::Flexible => {
                let used = copies.iter().flatten().map(|(server, file)| (file.device, slice::from_ref(server)));
                let devices = self.note_devices(of, used);
                Ok((Layout::Flexible(flexible(copies, stripes)), devices))
            }
            LayoutKind::Files => {
                let servers: Vec<_> = copies.iter().map(|files| files[0].0).collect();
                let device = self.servers.striped_device_id(&servers, request.transport);
                let device = device.ok_or(VfsError::NotSupported)?;
                let layout = files(device, &copies, stripes)?;
                Ok((Layout::Files(layout), self.note_devices(of, [(device, &servers[..])])))
            }
        }
    }

    /// Returns a copy of a file of `size` bytes for a client. The error is `None` if clients cannot use the data server.
    async fn data_file(
        &self,
        record: &Record,
        (copy, size): (usize, u64),
        request: &LayoutRequest,
    ) -> std::result::Result<DataFile, Option<ServerError>> {
        let object = record.copies[copy].object;
        // The handle can be known or computed, which does not show whether the data server answers.
        if self.is_avoidable(record, copy) && self.servers.probe(object.server).await == Err(ServerError::Unreachable) {
            return Err(Some(ServerError::Unreachable));
        }
        let device = self.servers.device_id(object.server, request.transport).ok_or(None)?;
        let owners = record.epochs.owners(object).ok_or(None)?;
        // RFC 8435 §2.2.1: a client that only reads is not the owner. It uses the group's number as its user, too.
        let uid = if request.mode == LayoutMode::Write { owners.owner } else { owners.group };
        let is_new = record.stripes.end(record.stripe_of(copy), size) == 0;
        let presence = if is_new { Presence::MayBeNew } else { Presence::Exists };
        let client = ClientAccess { mode: request.mode, epochs: record.epochs, presence };
        let users = Owners { owner: uid, ..owners };
        let handle = match request.kind {
            LayoutKind::Flexible => self.servers.handle(object, client).await?,
            LayoutKind::Files => self.servers.data_handle(object, client, users).await?.ok_or(None)?,
        };
        Ok(DataFile { device, efficiency: 1, handle, uid, gid: owners.group, stateid: None })
    }

    /// Replaces the users of the objects in the record. The objects get them by [`set_owners`](Self::set_owners). The caller holds the
    /// lock on changes of the record.
    ///
    /// # Errors
    /// Returns an error if the record cannot be stored.
    async fn raise_epochs(
        self: &Arc<Self>,
        file: &Arc<File>,
        record: &Record,
        modes: LayoutModes,
    ) -> Result<Arc<Record>> {
        let mut next = record.clone();
        next.generation += 1;
        // The first users are those of epoch 1 for both.
        next.epochs.writers += u32::from(modes.write);
        next.epochs.readers += u32::from(modes.read);
        let of = file.clone();
        self.run(move |core| {
            // If the process ends before the objects have their users, the next one knows that.
            core.add_work(&of.handle, OWNERS)?;
            core.store(&of, next)
        })
        .await
    }

    /// Gives the objects the users of the record, unless they have them. Returns the objects for which that failed. The caller
    /// holds the lock on changes of the record.
    ///
    /// # Errors
    /// Returns an error if it failed for all copies of a stripe, and the errors of the index.
    async fn set_owners(self: &Arc<Self>, file: &Arc<File>, record: &Record) -> Result<Vec<Object>> {
        if !self.has_work(&file.handle, OWNERS) {
            return Ok(Vec::new());
        }
        let mut work = Vec::new();
        for copy in record.written() {
            let object = record.copies[copy].object;
            // The process has ended before the first epochs were stored.
            if record.epochs == Epochs::default() {
                break;
            }
            work.push((copy, self.servers.fence(object, record.epochs)));
        }
        let outcome = self.on_copies(record, work, |_, ()| true).await;
        if let Some(error) = outcome.lost {
            return Err(error);
        }
        if outcome.failed.is_empty() {
            let of = file.clone();
            self.run(move |core| core.end_work(&of.handle, OWNERS)).await?;
        }
        Ok(outcome.failed)
    }

    /// Gives the objects the users of the record, if an operation that has raised the epochs was interrupted.
    ///
    /// # Errors
    /// Returns the errors of [`set_owners`](Self::set_owners), of the inner file system and of the index.
    pub async fn complete_owners(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let _changing = file.changing.lock().await;
        match self.place(file).await? {
            Place::Servers(record) => self.set_owners(file, &record).await.map(drop),
            Place::Inner => Ok(()),
        }
    }

    /// Makes writes of a client visible (LAYOUTCOMMIT). There is no holder if the layout is of an earlier process.
    ///
    /// # Errors
    /// Returns the errors of the inner file system, and `Io` if the size must be compared with those of the objects and no data server
    /// with a copy of a stripe answers.
    pub async fn commit_layout(
        self: Arc<Self>,
        handle: Handle,
        holder: Option<LayoutHolder>,
        commit: LayoutCommit,
    ) -> Result<Change> {
        let (file, arrived) = (self.files.get(&handle), Time::now());
        let done = self.commit_writes(&file, commit, holder.is_none()).await;
        if let Some(holder) = holder {
            self.holders.note_commit(&handle, holder, done.is_ok().then_some(arrived));
        }
        done
    }

    async fn commit_writes(self: &Arc<Self>, file: &Arc<File>, commit: LayoutCommit, reclaims: bool) -> Result<Change> {
        let handle = &file.handle;
        let mtime = commit.mtime.map_or(SetTime::Now, SetTime::To);
        let mut size = commit.size.unwrap_or(0);
        let sized = {
            let sizing = file.sizing.lock();
            // A truncation that is in progress comes after the writes.
            size = if sizing.cutting { 0 } else { size };
            sizing.count
        };
        if reclaims || self.holders.is_cut(handle) {
            size = self.written_size(file, size).await?;
        }
        tracing::debug!(file = ?handle, named = commit.size, size, "a client commits its writes");
        self.write_ends(file, size, sized).await?;
        let of = file.clone();
        self.run(move |core| {
            let sizing = of.sizing.lock();
            // A truncation that the client has not awaited comes after its writes.
            let size = if sizing.count == sized { size } else { 0 };
            core.grow(&of, size, Some(mtime))
        })
        .await
    }

    /// Returns `size`, or the size that a client can have written if that is smaller. RFC 8881 §18.42.3 does not demand that the server
    /// uses the last offset that a client names. A client that truncates the file itself keeps its layout, and can name an offset of
    /// before: Linux does, if its LAYOUTCOMMIT of earlier writes comes during the truncation or after it. If the data are in the inner file,
    /// no client has had a layout to write.
    ///
    /// # Errors
    /// Returns `Io` if no data server with a copy of one stripe answers, and the errors of the inner file system.
    async fn written_size(self: &Arc<Self>, file: &Arc<File>, size: u64) -> Result<u64> {
        let Place::Servers(record) = self.place(file).await? else { return Ok(0) };
        let of = file.clone();
        let known = self.run(move |core| core.size_of(&of.handle)).await?;
        if size <= known {
            return Ok(size);
        }
        let attrs = self.object_attrs(file, &record, known, 0..record.stripes.count()).await?;
        // The client has written to all copies. One that is longer has missed the truncation, and is about to be stale.
        let written = in_all_copies(&record, |copy| attrs.get(&copy).map(|attr| attr.size));
        Ok(written.map_or(size, |written| size.min(written)))
    }

    /// Returns the attributes of the objects in sync of these stripes whose data servers answer, by copy. Each size is that of the file that
    /// the object shows. The file has `known` bytes.
    ///
    /// # Errors
    /// Returns `Io` if no data server with a copy of one of the stripes answers.
    async fn object_attrs(
        self: &Arc<Self>,
        file: &Arc<File>,
        record: &Record,
        known: u64,
        stripes: Range<usize>,
    ) -> Result<HashMap<usize, ObjectAttr>> {
        let attr = |copy: usize| {
            let presence = self.presence_at(file, record, copy, known);
            let attr = self.servers.getattr(record.copies[copy].object);
            let attr = unless_new(presence, attr, ObjectAttr::default());
            async move {
                let attr = match attr.await {
                    Err(ServerError::Missing) => self.object_attr(file, record, copy).await,
                    attr => attr,
                };
                // An object can end with a byte of another stripe: see `write_ends`.
                let shown = |attr: ObjectAttr| record.stripes.end(record.stripe_of(copy), attr.size);
                attr.ok().map(|attr| (copy, ObjectAttr { size: shown(attr), ..attr }))
            }
        };
        let copies = stripes.clone().flat_map(|stripe| record.in_sync_of(stripe));
        let attrs: HashMap<_, _> = join_all(copies.map(attr)).await.into_iter().flatten().collect();
        let answered = |stripe| record.in_sync_of(stripe).any(|copy| attrs.contains_key(&copy));
        if stripes.into_iter().all(answered) { Ok(attrs) } else { Err(VfsError::Io) }
    }

    /// Creates the objects that clients have not created yet, and that a file of `size` bytes has. A client that has written to one copy only
    /// has left the others without an object. Nothing could be read or written if that copy failed next.
    ///
    /// # Errors
    /// Returns the errors of the inner file system, and an error if no object of a stripe could be created or a stale mark cannot be stored.
    async fn create_new(self: &Arc<Self>, file: &Arc<File>, record: &Record, size: u64) -> Result<()> {
        let of = file.clone();
        let former = self.run(move |core| core.size_of(&of.handle)).await?;
        let is_new = |stripe| record.stripes.end(stripe, former) == 0 && record.stripes.end(stripe, size) > 0;
        let create = |copy: usize| {
            let object = record.copies[copy].object;
            let creates = self.servers.creates_on_write(object.server) && is_new(record.stripe_of(copy));
            creates.then(|| (copy, self.servers.create(object, record.epochs)))
        };
        let outcome = self.on_copies(record, record.written().filter_map(create).collect(), |_, ()| true).await;
        match outcome.lost {
            Some(error) => Err(error),
            None => self.mark_stale(file, outcome.failed).await,
        }
    }

    /// Writes a byte to each object that ends before the last byte that its stripe has in a file of `size` bytes: see
    /// [`Stripes::ends`]. Does nothing if the file has this size already, or was truncated since it had been sized `sized` times. If it is
    /// truncated meanwhile, or no copy of a stripe could be written, the objects get the size of the file later.
    ///
    /// # Errors
    /// Returns the errors of the inner file system, and an error if a stale mark cannot be stored. A data server that fails is no
    /// error: the data are readable by this server.
    async fn write_ends(self: &Arc<Self>, file: &Arc<File>, size: u64, sized: u64) -> Result<()> {
        let Place::Servers(record) = self.place(file).await? else { return Ok(()) };
        let _ending = file.ends.begin();
        // A truncation that begins later sees that this is in progress, and leaves its work recorded. One that has ended meanwhile has not:
        // after a crash, nobody would know of bytes that are written now.
        if file.sizing.lock().count != sized {
            return Ok(());
        }
        let of = file.clone();
        if record.stripes.count() == 1 || size <= self.run(move |core| core.size_of(&of.handle)).await? {
            return Ok(());
        }
        let work = record.written().filter_map(|copy| {
            let end = record.stripes.end(record.stripe_of(copy), size);
            let (core, of, record) = (self.clone(), file.clone(), record.clone());
            let write = async move {
                if core.object_attr(&of, &record, copy).await?.size < end {
                    let write = move |servers: &dyn DataServers, object, presence| {
                        let zero = Rope::from(Bytes::from_static(&[0]));
                        servers.write(object, end, zero, Stability::FileSync, presence)
                    };
                    core.on_object(&of, &record, copy, write).await?;
                }
                Ok(())
            };
            // In the stripe with the last byte of the file, the client has written that. A stripe can be empty.
            (end > 0 && end < size).then_some((copy, Box::pin(write) as ServerFuture<()>))
        });
        let work = work.collect();
        let outcome = self.on_copies(&record, work, |_, ()| true).await;
        // Objects that are too short get the size of the file, too, before clients use them again.
        if file.sizing.lock().count != sized || outcome.lost.is_some() {
            let of = file.clone();
            self.run(move |core| core.add_work(&of.handle, TRUNCATING)).await?;
            self.wake.notify_one();
        }
        if outcome.lost.is_some() { Ok(()) } else { self.mark_stale(file, outcome.failed).await }
    }

    /// Gives the inner file at least this size, durably. The times change if `mtime` is given or the file grows. The caller has
    /// locked the size. If this fails, the file stays marked until its size is durable.
    fn grow(&self, file: &File, size: u64, mtime: Option<SetTime>) -> Result<Change> {
        let root = Cred::root();
        let caller = Caller::blocking(&root);
        let former: Attr = self.inner.getattr(&caller, &file.handle)?;
        let size = Some(size).filter(|size| *size > former.size);
        // Another write may have set a later time since the client's proposal was checked.
        let mtime = mtime.map(|time| match time {
            SetTime::To(time) if time > former.mtime => SetTime::To(time),
            _ => SetTime::Now,
        });
        let mtime = mtime.or(size.map(|_| SetTime::Now));
        let set = SetAttr { size, mtime, ..SetAttr::default() };
        let grown = self.inner.setattr(&caller, &file.handle, &set, None);
        let grown = grown.and_then(|change| self.inner.commit(&caller, &file.handle, 0, 0).map(|_| change));
        // The file may have the size already, and a crash can undo that. The next call would have nothing to do.
        grown.inspect_err(|_| self.note_unequal(&file.handle))
    }

    /// Advances the change attribute of a file, and with it the ctime. The access time is set to its value: it is the one attribute that
    /// nobody minds if another caller sets it at the same time.
    fn touch(&self, file: &Handle) -> Result<()> {
        let root = Cred::root();
        let caller = Caller::blocking(&root);
        let former: Attr = self.inner.getattr(&caller, file)?;
        let set = SetAttr { atime: Some(SetTime::To(former.atime)), ..SetAttr::default() };
        self.inner.setattr(&caller, file, &set, None).map(drop)
    }

    /// Gives the file the size of its objects, if that is larger, and the time of their last write, if it is later than `since`: a client may
    /// have written without LAYOUTCOMMIT. Returns the time of the last write to any object.
    ///
    /// # Errors
    /// Returns an error if no data server with a copy of one stripe answers, and the errors of the inner file system.
    async fn take_size(self: &Arc<Self>, file: &Arc<File>, since: Time) -> Result<Time> {
        loop {
            let Place::Servers(record) = self.place(file).await? else { return Ok(Time::default()) };
            let sized = file.sizing.lock().count;
            // Objects that could not be cut have bytes that do not belong to the file any more.
            if self.has_work(&file.handle, TRUNCATING) {
                // Clients may have written, too.
                return Ok(Time::now());
            }
            let of = file.clone();
            let known = self.run(move |core| core.size_of(&of.handle)).await?;
            let attrs = self.object_attrs(file, &record, known, 0..record.stripes.count()).await?;
            let size = attrs.values().map(|attr| attr.size).max().unwrap_or(0);
            // A client writes to all copies. A copy with a later time than another one was made again.
            let written = in_all_copies(&record, |copy| attrs.get(&copy).map(|attr| attr.mtime));
            self.create_new(file, &record, size).await?;
            self.write_ends(file, size, sized).await?;
            let of = file.clone();
            let taken = self.run(move |core| {
                let sizing = of.sizing.lock();
                // A truncation has begun: the objects may have had their former sizes.
                if sizing.count != sized {
                    return Ok(false);
                }
                let attr = core.inner.getattr(&Caller::blocking(&Cred::root()), &of.handle)?;
                let is_later = |written: &Time| {
                    written.as_nanoseconds() > since.as_nanoseconds() + CLOCK_DIFFERENCE && *written > attr.mtime
                };
                let mtime = written.filter(is_later).map(|written| SetTime::To(written.min(Time::now())));
                if size > attr.size || mtime.is_some() {
                    core.grow(&of, size, mtime)?;
                }
                Ok(true)
            });
            if taken.await? {
                return Ok(last_write(&attrs));
            }
        }
    }

    /// Returns the time of the last write to an object, or `None` if the file has a byte behind its size in the object that would have the next
    /// one. A client that has committed its writes, and then violates the protocol by writing on without LAYOUTCOMMIT, has normally
    /// written that one. If the file has one copy, this asks only for that object, and else also for all of stripes with data.
    ///
    /// # Errors
    /// Returns `Io` if no data server with a copy of a stripe answers, and the errors of the inner file system.
    async fn last_write_within_size(self: &Arc<Self>, file: &Arc<File>) -> Result<Option<Time>> {
        let Place::Servers(record) = self.place(file).await? else { return Ok(Some(Time::default())) };
        let of = file.clone();
        let size = self.run(move |core| core.size_of(&of.handle)).await?;
        let next = record.stripes.pieces(size..size.saturating_add(1)).next().map_or(0, |next| next.stripe);
        let with_data = (0..record.stripes.count()).take_while(|stripe| record.stripes.end(*stripe, size) > 0).count();
        let stripes = match has_copies(&record) {
            true => 0..with_data.max(next + 1),
            false => next..next + 1,
        };
        let attrs = self.object_attrs(file, &record, size, stripes).await?;
        Ok(attrs.values().all(|attr| attr.size <= size).then(|| last_write(&attrs)))
    }

    /// Takes what a holder of a layout to write has written: see [`take_size`](Self::take_size). If it has written without LAYOUTCOMMIT, the
    /// change attribute advances also if size and time stay. If it has written since its last LAYOUTCOMMIT, these writes are made durable,
    /// and the copies are compared if a data server may have lost some of them.
    ///
    /// # Errors
    /// Returns the errors of [`take_size`](Self::take_size).
    async fn take_writes(self: &Arc<Self>, file: &Arc<File>, holder: LayoutHolder, writing: Writing) -> Result<()> {
        let since = self.holders.written_since(&file.handle).unwrap_or_default();
        let within_size = match self.holders.has_committed(&file.handle, holder) {
            true => self.last_write_within_size(file).await?,
            false => None,
        };
        let last = match within_size {
            Some(last) => last,
            None => self.take_size(file, since).await?,
        };
        if !writing.may_lack(last) {
            return Ok(());
        }
        if within_size.is_none() {
            let of = file.clone();
            self.run(move |core| core.touch(&of.handle)).await?;
        }
        let Place::Servers(record) = self.place(file).await? else { return Ok(()) };
        if !has_copies(&record) {
            return Ok(());
        }
        // A data server that hangs would keep the client waiting.
        let (left_out, asked): (Vec<_>, Vec<_>) = record.in_sync().partition(|copy| self.is_avoidable(&record, *copy));
        let work = asked.into_iter().map(|copy| (copy, self.commit_copy(file, &record, copy))).collect();
        let kept = |object: Object, ()| self.services.has_kept_writes(object.server, writing.granted);
        let failed = self.on_copies(&record, work, kept).await.failed;
        // Nothing can differ from the only copy in sync of a stripe.
        let may_differ = |copy: usize| record.in_sync_of(record.stripe_of(copy)).nth(1).is_some();
        let has_failed = |copy: usize| left_out.contains(&copy) || failed.contains(&record.copies[copy].object);
        if record.in_sync().any(|copy| has_failed(copy) && may_differ(copy)) {
            tracing::info!(file = ?file.handle, "a client may have left different copies");
            self.note_unequal(&file.handle);
        }
        Ok(())
    }

    /// Ends layouts that a client has returned.
    ///
    /// # Errors
    /// Returns an error if the size of the file is not known. Then the upkeep finds it.
    pub async fn release(self: Arc<Self>, handle: Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()> {
        let file = self.files.get(&handle);
        let writing = self.holders.writing(&handle, holder).filter(|_| modes.write);
        let since = self.holders.written_since(&handle);
        let sized = match writing {
            Some(writing) => ignore_removed(self.take_writes(&file, holder, writing).await),
            None => Ok(()),
        };
        if sized.is_err() {
            self.unmeasured.lock().insert(handle.clone(), since.unwrap_or_default());
            self.note_unequal(&handle);
        }
        let _changing = file.changing.lock().await;
        self.holders.remove(&handle, holder, modes);
        if writing.is_some() {
            self.end_layouts(&file).await?;
        }
        sized
    }

    /// Ends layouts whose client may still use them.
    ///
    /// # Errors
    /// Returns an error if the client is not locked out yet.
    pub async fn fence(self: Arc<Self>, handle: Handle, holder: LayoutHolder, modes: LayoutModes) -> Result<()> {
        let file = self.files.get(&handle);
        let held = self.holders.of(&handle, holder).intersect(modes);
        if held.is_empty() {
            return Ok(());
        }
        // The time matters only for layouts to write.
        let since = self.holders.written_since(&handle).unwrap_or_default();
        ignore_removed(self.lock_out(&file, held, since).await)?;
        if held.write {
            // The client may have written to some copies only.
            self.note_unequal(&handle);
        }
        self.holders.remove(&handle, holder, modes);
        // The users of their layouts are not valid any more.
        self.holders.recall(&handle, held, true);
        Ok(())
    }

    /// Makes the data servers reject all clients with layouts of these modes. If they can write, takes size and time of the file from the objects:
    /// see [`take_size`](Self::take_size).
    ///
    /// # Errors
    /// Returns an error if no copy is left that rejects them, or if the size is not known.
    async fn lock_out(self: &Arc<Self>, file: &Arc<File>, modes: LayoutModes, since: Time) -> Result<()> {
        let failed = {
            let _changing = file.changing.lock().await;
            let Place::Servers(record) = self.place(file).await? else { return Ok(()) };
            let record = self.raise_epochs(file, &record, modes).await?;
            self.set_owners(file, &record).await?
        };
        // No client gets a layout with a stale copy, and its object is replaced before it is used again.
        self.mark_stale(file, failed).await?;
        if modes.write { self.take_size(file, since).await.map(drop) } else { Ok(()) }
    }

    /// Locks out the clients of an earlier process, if the file has some, and takes the size of the file if that failed when a client
    /// returned a layout.
    ///
    /// # Errors
    /// Returns an error if the clients are not locked out yet, or if the size is not known.
    pub async fn end_former_layouts(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let unfenced = self.unfenced.lock().get(&file.handle).copied();
        if let Some(known) = unfenced {
            let since = match known {
                Some(since) => since,
                None => {
                    // When the layouts were granted is not known, and a new epoch changes the ctime.
                    let of = file.handle.clone();
                    let attr = self.run(move |core| core.inner.getattr(&Caller::blocking(&Cred::root()), &of)).await?;
                    self.unfenced.lock().insert(file.handle.clone(), Some(attr.ctime));
                    attr.ctime
                }
            };
            self.lock_out(file, LayoutModes::ALL, since).await?;
            self.unfenced.lock().remove(&file.handle);
        }
        let Some(since) = self.unmeasured.lock().remove(&file.handle) else { return Ok(()) };
        let mut measuring = Measuring { core: self, file, since: Some(since) };
        self.take_size(file, since).await?;
        measuring.since = None;
        Ok(())
    }

    /// Takes note of errors that a client had at data servers. Copies that may have missed a write are stale when this returns.
    /// Reports of clients that could not write are ignored. So are those about layouts of an earlier process: such copies are
    /// compared in any case.
    ///
    /// # Errors
    /// Returns an error if a stale mark cannot be stored.
    pub async fn report(
        self: Arc<Self>,
        handle: Handle,
        holder: Option<LayoutHolder>,
        failures: Vec<DataFailure>,
    ) -> Result<()> {
        let Some(holder) = holder.filter(|holder| self.holders.of(&handle, *holder).write) else { return Ok(()) };
        self.holders.note_commit(&handle, holder, None);
        let file = self.files.get(&handle);
        let noted = self.note_failures(&file, failures).await;
        // Nobody else knows that the copies may differ, and clients need not report the errors again.
        noted.inspect_err(|_| self.note_unequal(&handle))
    }

    async fn note_failures(self: &Arc<Self>, file: &Arc<File>, failures: Vec<DataFailure>) -> Result<()> {
        let Place::Servers(record) = self.place(file).await? else { return Ok(()) };
        for failure in failures {
            let server = self.servers.server_of(failure.device);
            tracing::warn!(file = ?file.handle, ?server, operation = ?failure.operation, error = ?failure.error,
                "a client had an error at a data server");
            // A failed read leaves no copy behind.
            if failure.operation == DataOperation::Read {
                continue;
            }
            // The client has a layout from before a fence, or the data server replaces the users of clients. It repeats the write by
            // this server, to all copies.
            if failure.error == DataError::Denied {
                *file.layouts_after.lock() = Some(Instant::now() + DENIED_PAUSE);
                continue;
            }
            // The last copy of a stripe: clients get the error when they use this server.
            let is_elsewhere = |copy: usize| Some(record.copies[copy].object.server) != server;
            let spared = |copy: &usize| record.in_sync_of(record.stripe_of(*copy)).any(is_elsewhere);
            let copies = (0..record.copies.len()).filter(|copy| !is_elsewhere(*copy)).filter(spared);
            let objects: Vec<_> = copies.map(|copy| record.copies[copy].object).collect();
            if objects.is_empty() {
                continue;
            }
            *file.resilver_after.lock() = Some(Instant::now() + RESILVER_PAUSE);
            self.mark_stale(file, objects).await?;
        }
        Ok(())
    }
}

/// An attempt to take the size of a file. Unless it succeeds, dropping it leaves that to the next one.
struct Measuring<'a> {
    core: &'a Core,
    file: &'a File,
    /// See [`Core::take_size`]; `None` after a success.
    since: Option<Time>,
}

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            self.core.unmeasured.lock().insert(self.file.handle.clone(), since);
        }
    }
}

/// Returns the time of the last write to an object. If all are empty, there was none: the objects were created, or the file was truncated.
fn last_write(attrs: &HashMap<usize, ObjectAttr>) -> Time {
    if attrs.values().all(|attr| attr.size == 0) {
        return Time::default();
    }
    attrs.values().map(|attr| attr.mtime).max().unwrap_or_default()
}

/// Reports whether a file has several copies of each stripe, in sync or not.
fn has_copies(record: &Record) -> bool {
    record.copies.len() > record.stripes.count()
}

/// Returns the maximum of all stripes of the minimum of the copies in sync of a stripe that have a value.
fn in_all_copies<T: Ord>(record: &Record, value: impl Fn(usize) -> Option<T>) -> Option<T> {
    (0..record.stripes.count()).filter_map(|stripe| record.in_sync_of(stripe).filter_map(&value).min()).max()
}

/// Reports whether a client can use a file that is striped.
fn accepts_stripes(request: &LayoutRequest) -> bool {
    request.kind == LayoutKind::Files || request.striped_copies
}

/// The copies of a stripe that clients can use, and their data servers.
type Usable = Vec<(ServerId, DataFile)>;

/// Joins the data files of each stripe to mirrors. A client reads from any mirror, and writes to all of them. So a stripe with
/// fewer copies in sync than another one has the same data file in several mirrors.
fn flexible(copies: Vec<Usable>, stripes: Stripes) -> FlexibleLayout {
    let count = copies.iter().map(Vec::len).max().unwrap_or(0);
    let mut mirrors: Vec<_> = (0..count).map(|_| Mirror { data_files: Vec::with_capacity(copies.len()) }).collect();
    for files in copies {
        for at in files.len()..count {
            mirrors[at].data_files.push(files[at % files.len()].1.clone());
        }
        for (mirror, (_, file)) in mirrors.iter_mut().zip(files) {
            mirror.data_files.push(file);
        }
    }
    FlexibleLayout {
        mirrors,
        stripe_unit: stripes.unit(),
        no_commit: false,
        no_io_through_server: false,
        no_read: false,
        stats_interval_s: STATS_INTERVAL_S,
        return_on_close: false,
    }
}

/// Returns the layout of the first copy of each stripe.
///
/// # Errors
/// Returns `NotSupported` if the stripe unit is too large for a files layout.
fn files(device: LayoutDeviceId, copies: &[Usable], stripes: Stripes) -> Result<FilesLayout> {
    let unit = if stripes.count() == 1 { Ok(UNIT_OF_ONE_STRIPE) } else { stripes.unit().try_into() };
    Ok(FilesLayout {
        device,
        stripe_unit: unit.map_err(|_| VfsError::NotSupported)?,
        // Objects have the same packing for all layouts (RFC 8881 §13.4.4).
        dense: false,
        first_stripe: 0,
        pattern_offset: 0,
        commit_through_server: false,
        handles: copies.iter().map(|files| files[0].1.handle.clone()).collect(),
        // Data servers do not know which files clients have open (RFC 8881 §13.9.2.2).
        return_on_close: true,
    })
}

/// The time after a client's report before the copy is made again. It bounds the load that a client can cause.
const RESILVER_PAUSE: Duration = Duration::from_secs(20);
/// The time for which clients get no layouts after a data server has denied access.
const DENIED_PAUSE: Duration = Duration::from_secs(60);
/// The stripe unit of a files layout with one stripe. It has no effect.
const UNIT_OF_ONE_STRIPE: u32 = 1 << 30;
/// The interval in which clients report their use of data servers.
const STATS_INTERVAL_S: u32 = 60;
