//! [`Vfs`] for [`Pnfs`]: which operations the inner file system executes, and which are pending.

use std::{
    future::Future,
    ops::{ControlFlow, Range},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use buf::{Pool, Rope};
use bytes::Bytes;
use vfs::{
    Acl, AclKind, Attr, Caller, Change, CreateMode, Created, Cred, DirEntry, FsCaps, Handle, Held, Hold, Kind, Layouts,
    Name, NodeKind, Read, ReadDir, ReadInto, Report, Result, Rights, SeekFor, SetAttr, Stability, StatFs, Time, Vfs,
    VfsError, Written, XattrMode,
};

use crate::{
    core::{ATTRIBUTE, Core, Pnfs, Write, attribute},
    files::{File, Place},
    ranges::WHOLE,
    space::Attributed,
};

/// The lock that an operation needs.
type Lock = (Range<u64>, bool);

impl Pnfs {
    /// Executes an operation on data: by `inner` if it is given, the data are in the inner file and nobody has locked the
    /// range; and otherwise by `later`.
    fn on_data<T, F>(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        (range, exclusive): Lock,
        inner: Option<impl FnOnce(&dyn Vfs) -> Result<T>>,
        later: impl FnOnce(Arc<Core>, Arc<File>, Cred) -> F,
    ) -> Result<T>
    where
        T: Attributed + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if let Some(done) = caller.completion.and_then(|slot| slot.take::<Result<T>>()) {
            return done;
        }
        let core = &self.0;
        let file = core.files.get(file);
        let place = core.place_now(&file, caller.may_block);
        if let (Ok(Place::Inner), Some(inner)) = (&place, inner)
            && let Some(_lock) = file.ranges.try_lock(range, exclusive)
            // A spill may have ended before the lock was taken.
            && matches!(*file.place.lock(), Some(Place::Inner))
        {
            return inner(&*core.inner);
        }
        match place {
            Ok(_) | Err(VfsError::WouldBlock) => caller.complete(|| {
                let later = later(core.clone(), file.clone(), caller.cred.clone());
                let core = core.clone();
                async move { later.await.map(|done| core.with_space_after(false, &file.handle, done)) }
            }),
            Err(error) => Err(error),
        }
    }

    /// Executes an operation that may wait for the inner file system and the index.
    fn on_names<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        operation: impl FnOnce(&Core, &Caller<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if let Some(done) = caller.completion.and_then(|slot| slot.take::<Result<T>>()) {
            return done;
        }
        if caller.may_block || !self.0.caps.blocks {
            return operation(&self.0, &Caller { completion: None, ..*caller });
        }
        let (core, cred) = (self.0.clone(), caller.cred.clone());
        caller.complete(|| async move { core.run(move |core| operation(core, &Caller::blocking(&cred))).await })
    }
}

/// A hold of a file.
struct TreeHold {
    held: Held,
    core: Arc<Core>,
}

impl Hold for TreeHold {
    fn is_removed(&self) -> bool {
        self.held.is_removed()
    }
}

impl Drop for TreeHold {
    fn drop(&mut self) {
        let was_removed = self.is_removed();
        drop(std::mem::take(&mut self.held));
        if was_removed {
            // If this was the last hold, the objects can be removed.
            self.core.wake.notify_one();
        }
    }
}

/// Operations without attributes, or only with those of directories and special files.
macro_rules! inner {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $($arg: $type),*) -> Result<$result> {
            self.0.inner.$name(caller, $($arg),*)
        }
    )*};
}

/// Operations that change nothing.
macro_rules! readers {
    ($(fn $name:ident($object:ident: &Handle $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $object: &Handle $(, $arg: $type)*) -> Result<$result> {
            let read = self.0.inner.$name(caller, $object $(, $arg)*)?;
            self.0.with_space(caller.may_block, $object, read)
        }
    )*};
}

impl Vfs for Pnfs {
    fn caps(&self) -> &FsCaps {
        &self.0.caps
    }

    fn root(&self) -> Handle {
        self.0.inner.root()
    }

    fn write_verifier(&self) -> [u8; 8] {
        let inner = u64::from_be_bytes(self.0.inner.write_verifier());
        (inner ^ self.0.verifier.load(Relaxed)).to_be_bytes()
    }

    inner! {
        fn find(dir: &Handle, name: &Name) -> (Handle, Kind);
        fn permits(object: &Handle, wanted: Rights) -> Rights;
        fn readlink(link: &Handle) -> (Bytes, Attr);
        fn mkdir(dir: &Handle, name: &Name, set: &SetAttr) -> Created;
        fn symlink(dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Created;
        fn mknod(dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Created;
        fn rmdir(dir: &Handle, name: &Name) -> Change;
    }

    readers! {
        fn lookup(dir: &Handle, name: &Name) -> (Handle, Attr);
        fn getattr(object: &Handle) -> Attr;
        fn access(object: &Handle, wanted: Rights) -> (Rights, Attr);
        fn acl(object: &Handle, kind: AclKind) -> (Option<Acl>, Attr);
        fn statfs(object: &Handle) -> StatFs;
    }

    fn readdir(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        attrs: bool,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<ReadDir> {
        self.0.inner.readdir(caller, dir, cookie, verifier, attrs, &mut |entry| {
            // The entries before this one cannot be taken back.
            let object = entry.object.map(|object| self.0.with_space_after(caller.may_block, dir, object));
            each(DirEntry { object, ..entry })
        })
    }

    fn set_acl(&self, caller: &Caller<'_>, object: &Handle, kind: AclKind, acl: Option<&Acl>) -> Result<Change> {
        let changed = self.0.inner.set_acl(caller, object, kind, acl)?;
        Ok(self.0.with_space_after(caller.may_block, object, changed))
    }

    /// Holds the inner file. While it is held without a name, its objects stay in the queue of removals.
    fn hold(&self, caller: &Caller<'_>, file: &Handle) -> Result<Held> {
        let held = self.0.inner.hold(&Caller { completion: None, ..*caller }, file)?;
        Ok(Held::new(TreeHold { held, core: self.0.clone() }))
    }

    fn setattr(&self, caller: &Caller<'_>, object: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change> {
        if set.size.is_none() {
            let changed = self.0.inner.setattr(caller, object, set, guard)?;
            if set.mtime.is_some() {
                self.0.holders.note_time(object);
            }
            return Ok(self.0.with_space_after(caller.may_block, object, changed));
        }
        let inner = |vfs: &dyn Vfs| vfs.setattr(&Caller { completion: None, ..*caller }, object, set, guard);
        self.on_data(caller, object, (WHOLE, true), Some(inner), |core, file, cred| {
            core.set_size(file, cred, set.clone(), guard)
        })
    }

    fn read_into(&self, caller: &Caller<'_>, file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto> {
        let len = into.len();
        let lock = (offset..offset.saturating_add(len as u64), false);
        let pool = Pool::default();
        let read = self.on_data(
            caller,
            file,
            lock,
            Some(|vfs: &dyn Vfs| vfs.read(&Caller { completion: None, ..*caller }, file, offset, len, &pool, false)),
            |core, file, cred| core.read(file, cred, offset, len, pool.clone()),
        )?;
        let Read { data, eof, attr } = read;
        data.copy_to(&mut into[..data.len()]).map_err(|_| VfsError::Io)?;
        Ok(ReadInto { len: data.len(), eof, attr })
    }

    fn read(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        len: usize,
        pool: &Pool,
        file_ranges: bool,
    ) -> Result<Read> {
        let lock = (offset..offset.saturating_add(len as u64), false);
        self.on_data(
            caller,
            file,
            lock,
            Some(|vfs: &dyn Vfs| {
                vfs.read(&Caller { completion: None, ..*caller }, file, offset, len, pool, file_ranges)
            }),
            |core, file, cred| core.read(file, cred, offset, len, pool.clone()),
        )
    }

    fn write(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        data: &Rope,
        stability: Stability,
        report: Report,
    ) -> Result<Written> {
        let end = offset.saturating_add(data.len() as u64);
        let fits = end <= self.0.options.threshold;
        let write = Write { offset, data: data.clone(), stability, report };
        let inner =
            |vfs: &dyn Vfs| vfs.write(&Caller { completion: None, ..*caller }, file, offset, data, stability, report);
        let inner = (fits || data.is_empty()).then_some(inner);
        self.on_data(caller, file, (offset..end, true), inner, |core, file, cred| core.write(file, cred, write))
    }

    fn commit(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        self.on_data(
            caller,
            file,
            (0..0, false),
            Some(|vfs: &dyn Vfs| vfs.commit(&Caller { completion: None, ..*caller }, file, offset, len)),
            |core, file, cred| core.commit(file, cred, offset, len),
        )
    }

    fn create(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, mode: &CreateMode) -> Result<Created> {
        let CreateMode::Unchecked(set @ SetAttr { size: Some(size), .. }) = mode else {
            // This may be a file that existed.
            let created = self.0.inner.create(caller, dir, name, mode)?;
            return Ok(self.0.with_space_after(caller.may_block, dir, created));
        };
        caller.complete(|| {
            let (core, dir) = (self.0.clone(), dir.clone());
            let name = name.as_bytes().into();
            let created = core.clone().create_sized(caller.cred.clone(), dir.clone(), name, (set.clone(), *size));
            async move { created.await.map(|created| core.with_space_after(false, &dir, created)) }
        })
    }

    fn remove(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change> {
        let (dir, name): (_, Box<[u8]>) = (dir.clone(), name.as_bytes().into());
        self.on_names(caller, move |core, caller| {
            let name = Name::new(&name)?;
            core.unlink(caller, (&dir, name), |caller| core.inner.remove(caller, &dir, name))
        })
    }

    fn rename(
        &self,
        caller: &Caller<'_>,
        from_dir: &Handle,
        from: &Name,
        to_dir: &Handle,
        to: &Name,
    ) -> Result<(Change, Change)> {
        let (from_dir, to_dir) = (from_dir.clone(), to_dir.clone());
        let (from, to): (Box<[u8]>, Box<[u8]>) = (from.as_bytes().into(), to.as_bytes().into());
        self.on_names(caller, move |core, caller| {
            let (from, to) = (Name::new(&from)?, Name::new(&to)?);
            let _renaming = core.renames.begin();
            let rename = |caller: &Caller<'_>| core.inner.rename(caller, &from_dir, from, &to_dir, to);
            let renamed = core.unlink(caller, (&to_dir, to), rename)?;
            core.note_moved(&to_dir, to);
            Ok(renamed)
        })
    }

    fn link(&self, caller: &Caller<'_>, object: &Handle, dir: &Handle, name: &Name) -> Result<(Change, Attr)> {
        let _renaming = self.0.renames.begin();
        let linked = self.0.inner.link(caller, object, dir, name)?;
        self.0.scan.note_moved(object, Kind::File);
        Ok(self.0.with_space_after(caller.may_block, object, linked))
    }

    fn seek(&self, caller: &Caller<'_>, file: &Handle, offset: u64, what: SeekFor) -> Result<Option<u64>> {
        let inner = |vfs: &dyn Vfs| vfs.seek(&Caller { completion: None, ..*caller }, file, offset, what);
        let lock = (offset..offset.saturating_add(1), false);
        self.on_data(caller, file, lock, Some(inner), |core, file, cred| core.seek(file, cred, offset, what))
    }

    fn allocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        let inner = |vfs: &dyn Vfs| vfs.allocate(&Caller { completion: None, ..*caller }, file, offset, len);
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.0.options.threshold);
        self.on_data(caller, file, (WHOLE, true), fits.then_some(inner), |core, file, cred| {
            core.allocate(file, cred, offset, len)
        })
    }

    fn deallocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        let inner = |vfs: &dyn Vfs| vfs.deallocate(&Caller { completion: None, ..*caller }, file, offset, len);
        self.on_data(caller, file, (WHOLE, true), Some(inner), |core, file, cred| {
            core.deallocate(file, cred, offset, len)
        })
    }

    fn copy(&self, caller: &Caller<'_>, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<u64> {
        if from.0 == to.0 && from.1.abs_diff(to.1) < len {
            return Err(VfsError::Invalid);
        }
        caller.complete(|| {
            let files = &self.0.files;
            let (from, to) = ((files.get(from.0), from.1), (files.get(to.0), to.1));
            self.0.clone().copy(from, to, len, caller.cred.clone())
        })
    }

    fn xattr(&self, caller: &Caller<'_>, object: &Handle, name: &Name) -> Result<Bytes> {
        if name == attribute() { Err(VfsError::NoXattr) } else { self.0.inner.xattr(caller, object, name) }
    }

    fn set_xattr(
        &self,
        caller: &Caller<'_>,
        object: &Handle,
        name: &Name,
        value: &[u8],
        how: XattrMode,
    ) -> Result<Change> {
        if name == attribute() {
            return Err(VfsError::Access);
        }
        let changed = self.0.inner.set_xattr(caller, object, name, value, how)?;
        Ok(self.0.with_space_after(caller.may_block, object, changed))
    }

    fn remove_xattr(&self, caller: &Caller<'_>, object: &Handle, name: &Name) -> Result<Change> {
        if name == attribute() {
            return Err(VfsError::NoXattr);
        }
        let changed = self.0.inner.remove_xattr(caller, object, name)?;
        Ok(self.0.with_space_after(caller.may_block, object, changed))
    }

    fn xattrs(&self, caller: &Caller<'_>, object: &Handle) -> Result<Vec<Bytes>> {
        let mut names = self.0.inner.xattrs(caller, object)?;
        names.retain(|name| name != ATTRIBUTE.as_bytes());
        Ok(names)
    }

    fn layouts(&self) -> Option<&dyn Layouts> {
        self.0.options.layouts.is_some().then_some(self)
    }

    fn path(&self, object: &Handle) -> Option<Vec<u8>> {
        self.0.inner.path(object)
    }
}
