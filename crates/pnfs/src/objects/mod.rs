//! [`Objects`]: the store of a data server of kind `slipway`, a layer over a directory that has the objects as files.
//!
//! Every operation is decided by its file handle ([`handle`]), which the metadata server has computed, and by nothing else: the user
//! of the call counts only for the handles of the metadata server. Read RFC 8435 §2.2 (fencing) first.
//!
//! - A handle of a client permits READ, or READ and WRITE, until a fence raises the epoch of the object ([`fences`]). No such operation
//!   is in progress when a fence has returned.
//! - The first WRITE to an object creates it, if the handle says that the object may not exist yet. Until then, the object is an empty
//!   file to its readers. A handle of a file that has data says that the object must exist: if it has been lost, its clients get an
//!   error, and use another copy.
//! - A handle that creates has an end, and a removed object is remembered for longer. So a client that was late cannot create an
//!   object again of which the metadata server does not know any more.
//! - With a handle of the metadata server, SETATTR of the owner and of the group raises the epochs (owner: those of writers, group:
//!   those of readers), SETATTR of the size creates an object, REMOVE removes it, and READDIR lists all objects. Such a handle is
//!   accepted from a user with the number 0 only: from a host whose root the export does not squash.
//!
//! **Errors.** A handle of a former epoch, or without the right for the operation, is `Access`, as a fence of other data servers is. An
//! object that must exist and does not, or a handle of another store, is `Stale`.

pub mod fences;
pub mod handle;

use std::{
    io,
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use buf::{Pool, Rope};
use bytes::Bytes;
use entropy::HashMap;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use vfs::{
    Attr, Caller, Change, CreateMode, Created, Cred, DirEntry, FsCaps, Handle, Kind, Name, NodeKind, Read, ReadDir,
    ReadInto, Report, Result, Rights, SetAttr, Stability, StatFs, Time, Vfs, VfsError, Written,
};

use self::{
    fences::Fences,
    handle::{BODY_LEN, ClusterKey, ObjectHandle, Right, StoreId},
};
use crate::record::Epochs;

/// A store of objects.
pub struct Objects {
    inner: Arc<dyn Vfs>,
    caps: FsCaps,
    key: ClusterKey,
    store: StoreId,
    fences: Fences,
    /// The handles of objects in the inner file system.
    known: Mutex<HashMap<u128, Handle>>,
    /// Each object has one of these. Held for reading during operations, and for writing during fences and removals.
    gates: [RwLock<()>; GATES],
}

/// The inner file system, whose operations have no identity of the client, and do not complete later.
struct Inner<'a> {
    vfs: &'a dyn Vfs,
    root: Cred,
    may_block: bool,
}

impl Inner<'_> {
    fn caller(&self) -> Caller<'_> {
        Caller { cred: &self.root, may_block: self.may_block, completion: None }
    }
}

impl Objects {
    /// Opens the store in a directory. If the directory or the fences belong to another store, or to none, this is a new store: no
    /// former handle is valid.
    ///
    /// # Errors
    /// Returns an error if the directory or the fences cannot be used.
    pub fn open(inner: Arc<dyn Vfs>, fences: Fences, key: ClusterKey) -> io::Result<Self> {
        let failed = |error: VfsError| io::Error::other(format!("the file {STORE_FILE}: {error}"));
        let found = read_store(&*inner).map_err(failed)?;
        let known = fences.store().map_err(failed)?;
        let store = match found {
            Some(found) if known == Some(found) => found,
            _ => {
                if known.is_some() || found.is_some() {
                    tracing::warn!(
                        "the objects and the epochs in the state directory do not belong together: earlier handles are stale"
                    );
                }
                let store = StoreId(entropy::random());
                fences.set_store(store).map_err(failed)?;
                write_store(&*inner, store).map_err(failed)?;
                store
            }
        };
        let caps = FsCaps {
            links: false,
            symlinks: false,
            blocks: true,
            completes_later: false,
            acls: false,
            xattrs: false,
            clone_block: 0,
            ..inner.caps().clone()
        };
        Ok(Self { inner, caps, key, store, fences, known: Mutex::default(), gates: [const { RwLock::new(()) }; GATES] })
    }

    /// Returns the store of a root directory's handle. The metadata server gets that by MOUNT.
    pub fn store_of(root: &[u8]) -> Option<StoreId> {
        match root.split_first() {
            Some((&ROOT, store)) => store.try_into().ok().map(StoreId),
            _ => None,
        }
    }

    fn inner(&self, caller: &Caller<'_>) -> Inner<'_> {
        Inner { vfs: &*self.inner, root: Cred::root(), may_block: caller.may_block }
    }

    /// Returns the contents of a handle, or `None` for the root directory.
    fn parse(&self, handle: &Handle) -> Result<Option<ObjectHandle>> {
        let bytes = handle.as_bytes();
        if bytes == self.root().as_bytes() {
            return Ok(None);
        }
        let body: &[u8; BODY_LEN] = bytes.try_into().map_err(|_| VfsError::Stale)?;
        ObjectHandle::of_body(body).map(Some)
    }

    /// Begins an operation on the data of an object. No fence of the object is executed until the result is dropped.
    ///
    /// # Errors
    /// Returns `Access` if the handle does not permit the operation, and `WouldBlock`.
    fn begin(
        &self,
        caller: &Caller<'_>,
        handle: &Handle,
        writes: bool,
    ) -> Result<(ObjectHandle, RwLockReadGuard<'_, ()>)> {
        let handle = self.parse(handle)?.ok_or(VfsError::IsDir)?;
        let gate = self.gate(handle.object);
        let guard = match gate.try_read() {
            Some(guard) => guard,
            None if caller.may_block => gate.read(),
            None => return Err(VfsError::WouldBlock),
        };
        let needed = self.fences.epochs(handle.object);
        let permitted = match handle.right {
            Right::Read => !writes && handle.epoch >= needed.readers,
            Right::Write => handle.epoch >= needed.writers,
            Right::Control => is_metadata_server(caller),
            Right::Store => false,
        };
        if permitted { Ok((handle, guard)) } else { Err(VfsError::Access) }
    }

    /// Begins an operation of the metadata server, while no other operation on the object is executed.
    ///
    /// # Errors
    /// Returns `WouldBlock`.
    fn begin_alone(&self, caller: &Caller<'_>, object: u128) -> Result<RwLockWriteGuard<'_, ()>> {
        if caller.may_block { Ok(self.gate(object).write()) } else { Err(VfsError::WouldBlock) }
    }

    /// Checks that a call of the metadata server is about the store itself.
    fn check_store(&self, caller: &Caller<'_>, dir: &Handle) -> Result<()> {
        match self.parse(dir)? {
            Some(ObjectHandle { right: Right::Store, .. }) if is_metadata_server(caller) => Ok(()),
            _ => Err(VfsError::Access),
        }
    }

    fn gate(&self, object: u128) -> &RwLock<()> {
        &self.gates[object as usize % GATES]
    }

    /// Returns an object in the inner file system, if it exists.
    fn find(&self, inner: &Inner<'_>, object: u128) -> Result<Option<Handle>> {
        if let Some(known) = self.known.lock().get(&object) {
            return Ok(Some(known.clone()));
        }
        let text = name(object);
        match inner.vfs.find(&inner.caller(), &inner.vfs.root(), Name::new(text.as_bytes())?) {
            Ok((handle, _)) => Ok(Some(self.remember(object, handle))),
            Err(VfsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn remember(&self, object: u128, handle: Handle) -> Handle {
        let mut known = self.known.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(object, handle.clone());
        handle
    }

    /// Runs an operation on an object that exists, or returns `None` if it does not, and need not.
    ///
    /// # Errors
    /// Returns `Stale` if the object must exist and does not, or was removed, and the errors of the operation.
    fn on<T>(
        &self,
        inner: &Inner<'_>,
        handle: &ObjectHandle,
        operation: impl FnOnce(&Handle) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(object) = self.find(inner, handle.object)? else {
            // A client that still reads a removed file must not take it for an empty one.
            let may_be_new = handle.create_until.is_some() && !self.fences.is_removed(handle.object);
            return if may_be_new { Ok(None) } else { Err(VfsError::Stale) };
        };
        self.at(handle.object, operation(&object)).map(Some)
    }

    /// Runs an operation on an object, which is created if it does not exist and may be created.
    ///
    /// # Errors
    /// Returns `Stale` if the object must exist and does not; `Access` if the handle does not create it any more; and the errors of
    /// the operation.
    fn on_new<T>(
        &self,
        inner: &Inner<'_>,
        handle: &ObjectHandle,
        operation: impl FnOnce(&Handle) -> Result<T>,
    ) -> Result<T> {
        let object = match self.find(inner, handle.object)? {
            Some(object) => object,
            None => self.create_object(inner, handle)?,
        };
        self.at(handle.object, operation(&object))
    }

    fn create_object(&self, inner: &Inner<'_>, handle: &ObjectHandle) -> Result<Handle> {
        let until = handle.create_until.ok_or(VfsError::Stale)?.get().into();
        if self.fences.is_removed(handle.object) {
            return Err(VfsError::Stale);
        }
        let now = now_s();
        if handle.right != Right::Control && !(now..=now + CREATE_S.as_secs()).contains(&until) {
            tracing::debug!(
                now,
                until,
                "a handle does not create its object any more, or the clocks of the servers differ"
            );
            return Err(VfsError::Access);
        }
        let text = name(handle.object);
        let name = Name::new(text.as_bytes())?;
        // The object must not vanish in a crash after a write to it was acknowledged: only exclusive creation is durable.
        let how = CreateMode::Exclusive((handle.object as u64).to_be_bytes());
        match inner.vfs.create(&inner.caller(), &inner.vfs.root(), name, &how) {
            Ok(created) => Ok(self.remember(handle.object, created.handle)),
            // Another write has created it.
            Err(VfsError::Exists) => self.find(inner, handle.object)?.ok_or(VfsError::Stale),
            Err(error) => Err(error),
        }
    }

    /// Forgets the handle of an object that the inner file system does not know any more.
    fn at<T>(&self, object: u128, result: Result<T>) -> Result<T> {
        if let Err(VfsError::Stale | VfsError::BadHandle) = result {
            self.known.lock().remove(&object);
        }
        result
    }

    /// Returns the attributes of an object as all callers see them, whether it exists or not.
    fn shown(&self, inner: &Inner<'_>, handle: &ObjectHandle, attr: Option<Attr>) -> Result<Attr> {
        let exists = u32::from(attr.is_some());
        let attr = match attr {
            Some(attr) => attr,
            None => {
                Attr { kind: Kind::File, size: 0, used: 0, ..inner.vfs.getattr(&inner.caller(), &inner.vfs.root())? }
            }
        };
        let fileid = (handle.object as u64).max(1);
        Ok(Attr { fileid, mode: OBJECT_MODE, nlink: exists, uid: 0, gid: 0, ..attr })
    }

    fn attributes(&self, inner: &Inner<'_>, handle: &ObjectHandle) -> Result<Attr> {
        let attr = match handle.right {
            Right::Store => return inner.vfs.getattr(&inner.caller(), &inner.vfs.root()),
            _ => self.on(inner, handle, |object| inner.vfs.getattr(&inner.caller(), object))?,
        };
        self.shown(inner, handle, attr)
    }

    /// Sets the size of an object, which is created if it need not exist. The caller has a handle of the metadata server.
    fn set_size(&self, inner: &Inner<'_>, handle: &ObjectHandle, size: u64) -> Result<Change> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let Change { before, after } =
            self.on_new(inner, handle, |object| inner.vfs.setattr(&inner.caller(), object, &set, None))?;
        Ok(Change { before, after: self.shown(inner, handle, Some(after))? })
    }

    /// Raises the epochs of an object. The caller has a handle of the metadata server.
    fn fence(&self, inner: &Inner<'_>, handle: &ObjectHandle, epochs: Epochs) -> Result<Change> {
        self.fences.raise(handle.object, epochs)?;
        let attr = self.on(inner, handle, |object| inner.vfs.getattr(&inner.caller(), object));
        let after = self.shown(inner, handle, attr.unwrap_or_default())?;
        Ok(Change { before: (&after).into(), after })
    }
}

impl Vfs for Objects {
    fn caps(&self) -> &FsCaps {
        &self.caps
    }

    fn root(&self) -> Handle {
        Handle::new(&[&[ROOT][..], &self.store.0].concat())
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.inner.write_verifier()
    }

    fn adopt(&self, handle: &[u8]) -> Result<Handle> {
        self.key.open(self.store, handle).map(|handle| Handle::new(&handle.body()))
    }

    fn lookup(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Attr)> {
        if !name.is_dots() {
            return Err(VfsError::Access);
        }
        self.getattr(caller, dir).map(|attr| (dir.clone(), attr))
    }

    fn getattr(&self, caller: &Caller<'_>, object: &Handle) -> Result<Attr> {
        let inner = self.inner(caller);
        match self.parse(object)? {
            None => inner.vfs.getattr(&inner.caller(), &inner.vfs.root()),
            Some(handle) => self.attributes(&inner, &handle),
        }
    }

    fn setattr(&self, caller: &Caller<'_>, object: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change> {
        let handle = self.parse(object)?.ok_or(VfsError::Access)?;
        if handle.right != Right::Control || !is_metadata_server(caller) {
            return Err(VfsError::Access);
        }
        let _alone = self.begin_alone(caller, handle.object)?;
        let inner = self.inner(caller);
        match (set, guard) {
            (SetAttr { mode: None, uid: None, gid: None, size: Some(size), atime: None, mtime: None }, None) => {
                self.set_size(&inner, &handle, *size)
            }
            (
                SetAttr { mode: None, uid: Some(writers), gid: Some(readers), size: None, atime: None, mtime: None },
                None,
            ) => self.fence(&inner, &handle, Epochs { writers: *writers, readers: *readers }),
            _ => Err(VfsError::Invalid),
        }
    }

    fn access(&self, caller: &Caller<'_>, object: &Handle, wanted: Rights) -> Result<(Rights, Attr)> {
        let may = |writes| match self.begin(caller, object, writes) {
            Err(VfsError::WouldBlock) => Err(VfsError::WouldBlock),
            begun => Ok(begun.is_ok()),
        };
        let (read, modify) = (may(false)?, may(true)?);
        let granted = Rights { read, modify, extend: modify, ..Rights::default() };
        Ok((granted.intersect(wanted), self.getattr(caller, object)?))
    }

    fn readlink(&self, _: &Caller<'_>, _: &Handle) -> Result<(Bytes, Attr)> {
        Err(VfsError::Invalid)
    }

    fn read_into(&self, caller: &Caller<'_>, file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto> {
        let Read { data, eof, attr } = self.read(caller, file, offset, into.len(), &Pool::default(), false)?;
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
        let (handle, _guard) = self.begin(caller, file, false)?;
        let inner = self.inner(caller);
        let read =
            self.on(&inner, &handle, |object| inner.vfs.read(&inner.caller(), object, offset, len, pool, file_ranges))?;
        let (data, eof, attr) = read.map_or((Rope::new(), true, None), |read| (read.data, read.eof, Some(read.attr)));
        Ok(Read { data, eof, attr: self.shown(&inner, &handle, attr)? })
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
        let (handle, _guard) = self.begin(caller, file, true)?;
        let inner = self.inner(caller);
        let Written { stability, before, after } = self.on_new(&inner, &handle, |object| {
            inner.vfs.write(&inner.caller(), object, offset, data, stability, report)
        })?;
        let after = after.map(|attr| self.shown(&inner, &handle, Some(attr))).transpose()?;
        Ok(Written { stability, before, after })
    }

    fn commit(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        let (handle, _guard) = self.begin(caller, file, true)?;
        let inner = self.inner(caller);
        let change = self.on(&inner, &handle, |object| inner.vfs.commit(&inner.caller(), object, offset, len))?;
        let before = change.as_ref().map(|change| change.before);
        let after = self.shown(&inner, &handle, change.map(|change| change.after))?;
        Ok(Change { before: before.unwrap_or((&after).into()), after })
    }

    fn remove(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change> {
        self.check_store(caller, dir)?;
        let object = object_of(name.as_bytes()).ok_or(VfsError::Invalid)?;
        let _alone = self.begin_alone(caller, object)?;
        let inner = self.inner(caller);
        // A client that has a handle must not create the object again.
        self.fences.remove(object, now_s())?;
        self.known.lock().remove(&object);
        match inner.vfs.remove(&inner.caller(), &inner.vfs.root(), name) {
            Err(VfsError::NotFound) => {
                let after = inner.vfs.getattr(&inner.caller(), &inner.vfs.root())?;
                Ok(Change { before: (&after).into(), after })
            }
            removed => removed,
        }
    }

    fn statfs(&self, caller: &Caller<'_>, object: &Handle) -> Result<StatFs> {
        let inner = self.inner(caller);
        let attr = self.getattr(caller, object)?;
        Ok(StatFs { attr, ..inner.vfs.statfs(&inner.caller(), &inner.vfs.root())? })
    }

    fn create(&self, _: &Caller<'_>, _: &Handle, _: &Name, _: &CreateMode) -> Result<Created> {
        Err(VfsError::Access)
    }

    fn mkdir(&self, _: &Caller<'_>, _: &Handle, _: &Name, _: &SetAttr) -> Result<Created> {
        Err(VfsError::Access)
    }

    fn symlink(&self, _: &Caller<'_>, _: &Handle, _: &Name, _: &[u8], _: &SetAttr) -> Result<Created> {
        Err(VfsError::Access)
    }

    fn mknod(&self, _: &Caller<'_>, _: &Handle, _: &Name, _: NodeKind, _: &SetAttr) -> Result<Created> {
        Err(VfsError::Access)
    }

    fn rmdir(&self, _: &Caller<'_>, _: &Handle, _: &Name) -> Result<Change> {
        Err(VfsError::Access)
    }

    fn rename(&self, _: &Caller<'_>, _: &Handle, _: &Name, _: &Handle, _: &Name) -> Result<(Change, Change)> {
        Err(VfsError::Access)
    }

    fn link(&self, _: &Caller<'_>, _: &Handle, _: &Handle, _: &Name) -> Result<(Change, Attr)> {
        Err(VfsError::Access)
    }

    /// Lists the objects, for the metadata server.
    fn readdir(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        _: bool,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<ReadDir> {
        self.check_store(caller, dir)?;
        let inner = self.inner(caller);
        let mut objects = |entry: DirEntry<'_>| match object_of(entry.name) {
            Some(_) => each(DirEntry { object: None, ..entry }),
            None => ControlFlow::Continue(()),
        };
        inner.vfs.readdir(&inner.caller(), &inner.vfs.root(), cookie, verifier, false, &mut objects)
    }
}

/// Reports whether a call can be one of the metadata server: its host is one whose root is not squashed.
fn is_metadata_server(caller: &Caller<'_>) -> bool {
    caller.cred.uid == 0
}

/// Returns the name of an object, which is that of its file.
pub fn name(object: u128) -> String {
    format!("{object:032x}")
}

/// Returns the object whose file has this name, if it is the name of one.
pub fn object_of(name: &[u8]) -> Option<u128> {
    let object = u128::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()?;
    (self::name(object).as_bytes() == name).then_some(object)
}

fn read_store(inner: &dyn Vfs) -> Result<Option<StoreId>> {
    let root = Cred::root();
    let caller = Caller::blocking(&root);
    let file = match inner.find(&caller, &inner.root(), Name::new(STORE_FILE.as_bytes())?) {
        Err(VfsError::NotFound) => return Ok(None),
        found => found?.0,
    };
    let mut bytes = [0; 17];
    let read = inner.read_into(&caller, &file, 0, &mut bytes)?;
    Ok(bytes[..read.len].try_into().ok().map(StoreId))
}

fn write_store(inner: &dyn Vfs, store: StoreId) -> Result<()> {
    let root = Cred::root();
    let caller = Caller::blocking(&root);
    let set = SetAttr { mode: Some(OBJECT_MODE), size: Some(0), ..SetAttr::default() };
    let name = Name::new(STORE_FILE.as_bytes())?;
    let file = inner.create(&caller, &inner.root(), name, &CreateMode::Unchecked(set))?.handle;
    let data = Rope::from(Bytes::copy_from_slice(&store.0));
    inner.write(&caller, &file, 0, &data, Stability::FileSync, Report::Nothing).map(drop)
}

/// Returns the time of day in seconds since 1970.
fn now_s() -> u64 {
    entropy::system_time().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the end of the time in which a handle that is computed now creates its object. It changes once in an hour only, so that
/// clients get the same handle again.
pub fn create_until() -> Option<std::num::NonZeroU32> {
    let hour = 3600;
    u32::try_from((now_s() / hour + 2) * hour).ok().and_then(std::num::NonZeroU32::new)
}

/// Maximum time for which a handle can create its object. The metadata server makes handles for one to two hours.
pub const CREATE_S: Duration = Duration::from_secs(3 * 3600);
/// The first byte of the handle of the root directory. No handle of an object begins with it.
const ROOT: u8 = 0;
/// The file with the identity of the store.
const STORE_FILE: &str = ".slipway-store";
/// The permission bits of objects: nobody but the data server uses them.
const OBJECT_MODE: u32 = 0o600;
const GATES: usize = 256;
/// The number of handles after which all are forgotten.
const KNOWN_MAX: usize = 1 << 16;
