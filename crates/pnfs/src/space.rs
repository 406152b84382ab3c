//! [`Space`]: the bytes of storage that files take, as clients see them.
//!
//! The inner file of a file with data on data servers is sparse. If clients saw that it takes no storage, programs would believe that the
//! file has no data: GNU tar archives a file with `st_blocks == 0` as one hole, without reading it. So such a file is reported to take
//! at least as many bytes as it is long.
//!
//! Only the extended attribute with the record tells such files from those that are sparse and have all their data in the inner file. The
//! size does not: a file that is truncated below the threshold stays on data servers. To read the attribute at each GETATTR would be
//! expensive, so it is read only if the inner file is sparse, and the result is remembered: a file never returns from the data servers.
//! Most files that have their data in the inner file are not sparse, so their attribute is never read.
//!
//! An operation that must not wait for the attribute returns `WouldBlock` if it changes nothing. Otherwise the file is taken for one on
//! data servers: a number that is too large is harmless.

use std::{ops::ControlFlow, sync::Arc};

use buf::{Pool, Rope};
use bytes::Bytes;
use entropy::HashSet;
use parking_lot::Mutex;
use vfs::{
    Acl, AclKind, Attr, Caller, Change, CreateMode, Created, Cred, DirEntry, FsCaps, Handle, Held, Kind, Name,
    NodeKind, Read, ReadDir, ReadInto, Report, Result, Rights, SeekFor, SetAttr, Stability, StatFs, Time, Vfs,
    VfsError, Written, XattrMode,
};

use crate::core::attribute;

/// The inner file system, with the bytes of storage that clients see.
pub struct Space {
    inner: Arc<dyn Vfs>,
    /// Files with data on data servers.
    spilled: Mutex<HashSet<Handle>>,
}

impl Space {
    pub fn new(inner: Arc<dyn Vfs>) -> Self {
        Self { inner, spilled: Mutex::default() }
    }

    /// Corrects the attributes of an object.
    ///
    /// # Errors
    /// Returns `WouldBlock`.
    fn correct(&self, caller: &Caller<'_>, object: &Handle, attr: &mut Attr) -> Result<()> {
        if attr.kind == Kind::File && attr.used < attr.size && self.is_spilled(caller, object)? {
            attr.used = attr.size;
        }
        Ok(())
    }

    /// Corrects the attributes of an object after a change of it.
    fn correct_changed(&self, caller: &Caller<'_>, object: &Handle, attr: &mut Attr) {
        if self.correct(caller, object, attr).is_err() {
            attr.used = attr.used.max(attr.size);
        }
    }

    /// Reports whether a file has its data on data servers. If that cannot be found out, it may have.
    ///
    /// # Errors
    /// Returns `WouldBlock`.
    fn is_spilled(&self, caller: &Caller<'_>, file: &Handle) -> Result<bool> {
        if self.spilled.lock().contains(file) {
            return Ok(true);
        }
        let root = Cred::root();
        let caller = Caller { cred: &root, may_block: caller.may_block, completion: None };
        match self.inner.xattr(&caller, file, attribute()) {
            Ok(_) => self.note_spilled(file),
            Err(VfsError::WouldBlock) => return Err(VfsError::WouldBlock),
            Err(VfsError::NoXattr) => return Ok(false),
            Err(_) => {}
        }
        Ok(true)
    }

    fn note_spilled(&self, file: &Handle) {
        let mut spilled = self.spilled.lock();
        if spilled.len() >= SPILLED_MAX {
            spilled.clear();
        }
        spilled.insert(file.clone());
    }
}

/// Operations without attributes, or only with those of directories and symbolic links.
macro_rules! unchanged {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $($arg: $type),*) -> Result<$result> {
            self.inner.$name(caller, $($arg),*)
        }
    )*};
}

/// Operations that change nothing, with attributes of their first argument.
macro_rules! readers {
    ($(fn $name:ident($object:ident: $handle:ty $(, $arg:ident: $type:ty)*) -> $result:ty, $read:ident => $attr:expr;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $object: $handle $(, $arg: $type)*) -> Result<$result> {
            let mut $read = self.inner.$name(caller, $object $(, $arg)*)?;
            self.correct(caller, $object, $attr)?;
            Ok($read)
        }
    )*};
}

/// Operations that change their first argument.
macro_rules! changes {
    ($(fn $name:ident($object:ident: $handle:ty $(, $arg:ident: $type:ty)*) -> Change;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $object: $handle $(, $arg: $type)*) -> Result<Change> {
            let mut change = self.inner.$name(caller, $object $(, $arg)*)?;
            self.correct_changed(caller, $object, &mut change.after);
            Ok(change)
        }
    )*};
}

impl Vfs for Space {
    fn caps(&self) -> &FsCaps {
        self.inner.caps()
    }

    fn root(&self) -> Handle {
        self.inner.root()
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.inner.write_verifier()
    }

    unchanged! {
        fn find(dir: &Handle, name: &Name) -> (Handle, Kind);
        fn permits(object: &Handle, wanted: Rights) -> Rights;
        fn readlink(link: &Handle) -> (Bytes, Attr);
        fn mkdir(dir: &Handle, name: &Name, set: &SetAttr) -> Created;
        fn symlink(dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Created;
        fn mknod(dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Created;
        fn remove(dir: &Handle, name: &Name) -> Change;
        fn rmdir(dir: &Handle, name: &Name) -> Change;
        fn rename(from_dir: &Handle, from: &Name, to_dir: &Handle, to: &Name) -> (Change, Change);
        fn seek(file: &Handle, offset: u64, what: SeekFor) -> Option<u64>;
        fn copy(from: (&Handle, u64), to: (&Handle, u64), len: u64) -> u64;
        fn xattr(object: &Handle, name: &Name) -> Bytes;
        fn xattrs(object: &Handle) -> Vec<Bytes>;
    }

    readers! {
        fn getattr(object: &Handle) -> Attr, attr => &mut attr;
        fn access(object: &Handle, wanted: Rights) -> (Rights, Attr), read => &mut read.1;
        fn read_into(file: &Handle, offset: u64, into: &mut [u8]) -> ReadInto, read => &mut read.attr;
        fn read(file: &Handle, offset: u64, len: usize, pool: &Pool, file_ranges: bool) -> Read, read => &mut read.attr;
        fn acl(object: &Handle, kind: AclKind) -> (Option<Acl>, Attr), read => &mut read.1;
        fn statfs(object: &Handle) -> StatFs, read => &mut read.attr;
    }

    changes! {
        fn setattr(object: &Handle, set: &SetAttr, guard: Option<Time>) -> Change;
        fn commit(file: &Handle, offset: u64, len: u64) -> Change;
        fn set_acl(object: &Handle, kind: AclKind, acl: Option<&Acl>) -> Change;
        fn allocate(file: &Handle, offset: u64, len: u64) -> Change;
        fn deallocate(file: &Handle, offset: u64, len: u64) -> Change;
        fn remove_xattr(object: &Handle, name: &Name) -> Change;
    }

    fn hold(&self, caller: &Caller<'_>, file: &Handle) -> Result<Held> {
        self.inner.hold(caller, file)
    }

    fn lookup(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Attr)> {
        let (object, mut attr) = self.inner.lookup(caller, dir, name)?;
        self.correct(caller, &object, &mut attr)?;
        Ok((object, attr))
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
        let mut written = self.inner.write(caller, file, offset, data, stability, report)?;
        written.after.iter_mut().for_each(|attr| self.correct_changed(caller, file, attr));
        Ok(written)
    }

    fn create(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, mode: &CreateMode) -> Result<Created> {
        // This may be a file that existed.
        let mut created = self.inner.create(caller, dir, name, mode)?;
        self.correct_changed(caller, &created.handle, &mut created.attr);
        Ok(created)
    }

    fn link(&self, caller: &Caller<'_>, object: &Handle, dir: &Handle, name: &Name) -> Result<(Change, Attr)> {
        let (change, mut attr) = self.inner.link(caller, object, dir, name)?;
        self.correct_changed(caller, object, &mut attr);
        Ok((change, attr))
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
        self.inner.readdir(caller, dir, cookie, verifier, attrs, &mut |mut entry| {
            // The entries before this one cannot be taken back.
            entry.object.iter_mut().for_each(|(object, attr)| self.correct_changed(caller, object, attr));
            each(entry)
        })
    }

    fn set_xattr(
        &self,
        caller: &Caller<'_>,
        object: &Handle,
        name: &Name,
        value: &[u8],
        how: XattrMode,
    ) -> Result<Change> {
        let mut change = self.inner.set_xattr(caller, object, name, value, how)?;
        if name == attribute() {
            self.note_spilled(object);
        }
        self.correct_changed(caller, object, &mut change.after);
        Ok(change)
    }

    fn path(&self, object: &Handle) -> Option<Vec<u8>> {
        self.inner.path(object)
    }
}

/// The number of files with data on data servers that are remembered.
const SPILLED_MAX: usize = 1 << 16;
