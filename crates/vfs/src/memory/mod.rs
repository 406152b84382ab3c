//! A file system in memory with the semantics of a local Linux file system.
//!
//! [`Memory`] keeps every object in a table by number, and directories refer to objects by number. Each object has a
//! lock of its own, and no operation blocks. Data moves without copies where possible: see `pages.rs`.
//!
//! **Lock order.** An operation on one object locks that object. An operation that changes names first locks `names`
//! shared, then the directory, then the object in it. A rename locks up to four objects in no particular order, so it
//! locks `names` exclusively. A thread that holds an object's lock never takes `names` and never calls back.

mod dir;
mod inode;
mod names;
mod pages;
mod ranges;
mod rename;
mod space;
mod table;
mod xattr;

use std::{ops::ControlFlow, sync::Arc};

use buf::{Pool, Rope};
use bytes::Bytes;
use parking_lot::RwLock;
use smallvec::SmallVec;

use self::{
    dir::{COOKIE_PARENT, COOKIE_SELF, Dir},
    inode::{Content, Inode, Origin, State},
    pages::PageSource,
    space::{Charge, Space},
    table::Table,
};
use crate::{
    Acl, AclKind, Attr, Caller, Change, CreateMode, Created, Device, DirEntry, FsCaps, Handle, Held, Hold, Kind,
    NAME_MAX, Name, NodeKind, PreAttr, Read, ReadDir, ReadInto, Report, Result, Rights, SeekFor, SetAttr, Stability,
    StatFs, Time, Vfs, VfsError, Written, XattrMode,
    permission::{EXECUTE, READ},
};

/// The options of a [`Memory`].
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Maximum bytes that data and objects can take together.
    pub capacity: u64,
    /// The pool from which pages are allocated.
    pub pool: Pool,
    /// The permission bits of the root.
    pub mode: u32,
    /// The owner of the root.
    pub uid: u32,
    /// The group of the root.
    pub gid: u32,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { capacity: 1 << 30, pool: Pool::default(), mode: 0o755, uid: 0, gid: 0 }
    }
}

/// A file system in memory. It is empty at first, and its contents are lost when it is dropped.
///
/// ```
/// use vfs::{Caller, CreateMode, Cred, Name, Report, SetAttr, Stability, Vfs, memory::{Memory, MemoryOptions}};
///
/// let fs = Memory::new(MemoryOptions { capacity: 16 << 20, ..Default::default() });
/// let root = Cred::root();
/// let caller = Caller::nonblocking(&root);
/// let mode = CreateMode::Guarded(SetAttr::default());
/// let file = fs.create(&caller, &fs.root(), Name::new(b"greeting")?, &mode)?.handle;
/// let hello = buf::Rope::from(bytes::Bytes::from_static(b"hello"));
/// fs.write(&caller, &file, 0, &hello, Stability::FileSync, Report::Nothing)?;
/// let read = fs.read(&caller, &file, 1, 100, &buf::Pool::default(), false)?;
/// assert_eq!(&read.data.to_bytes().unwrap()[..], b"ello");
/// assert!(read.eof);
/// # Ok::<(), vfs::VfsError>(())
/// ```
pub struct Memory {
    caps: FsCaps,
    /// A random number that distinguishes this instance's handles and writes from those of other instances.
    instance: [u8; 8],
    fsid: u64,
    space: Arc<Space>,
    source: PageSource,
    table: Arc<Table>,
    names: RwLock<()>,
}

impl Memory {
    /// Creates an empty file system.
    pub fn new(options: MemoryOptions) -> Self {
        let MemoryOptions { capacity, pool, mode, uid, gid } = options;
        // There is always space for the root.
        let space = Arc::new(Space::new(capacity.max(OBJECT_BYTES)));
        let fs = Self {
            caps: CAPS,
            instance: entropy::random(),
            fsid: entropy::random(),
            source: PageSource::new(pool),
            table: Arc::default(),
            names: RwLock::new(()),
            space,
        };
        let content = Content::Dir(Dir::new(ROOT));
        let mode = mode & 0o7777;
        let root = Origin { kind: Kind::Dir, device: Device::default(), mode, uid, gid, verifier: None, content };
        let charge = Charge::new(&fs.space, OBJECT_BYTES).expect("root must fit");
        let root = Inode::new(fs.table.next_id(), fs.fsid, root, charge);
        assert_eq!(root.id, ROOT);
        fs.table.insert(root);
        fs
    }

    fn handle(&self, id: u64) -> Handle {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.instance);
        bytes[8..].copy_from_slice(&id.to_be_bytes());
        Handle::new(&bytes)
    }

    /// Finds the object of a handle.
    ///
    /// # Errors
    /// Returns `BadHandle`, or `Stale` for an object that was removed or belongs to another instance.
    fn find(&self, handle: &Handle) -> Result<Arc<Inode>> {
        let bytes: &[u8; 16] = handle.as_bytes().try_into().map_err(|_| VfsError::BadHandle)?;
        let (instance, id) = bytes.split_at(8);
        if instance != self.instance {
            return Err(VfsError::Stale);
        }
        let id = u64::from_be_bytes(id.try_into().expect("object number must have eight bytes"));
        self.table.find(id).ok_or(VfsError::Stale)
    }

    /// Returns up to [`BATCH`] entries after `cookie`, and `true` if they include the last one.
    fn list(&self, dir: &Inode, state: &State, cookie: u64) -> Result<(SmallVec<[Listed; BATCH]>, bool)> {
        let content = state.dir()?;
        if !content.knows(cookie) {
            return Err(VfsError::BadCookie);
        }
        let dots = [(COOKIE_SELF, &b"."[..], dir.id), (COOKIE_PARENT, b"..", content.parent)];
        let dots = dots.into_iter().filter(|dot| dot.0 > cookie).map(|(at, name, id)| (at, Arc::from(name), id));
        let mut all = dots.chain(content.after(cookie).map(|(at, name, id)| (at, name.clone(), id)));
        let listed = all.by_ref().take(BATCH).collect();
        Ok((listed, all.next().is_none()))
    }

    /// Updates the atime if this is the first read since a change (like `relatime` of Linux mounts).
    fn accessed(&self, inode: &Inode) {
        if let Ok(mut state) = inode.write() {
            state.atime = Time::now().max(state.ctime).max(state.mtime);
            // The atime must differ from the time of the change, or every read would update it again.
            state.atime = inode::successor(state.atime);
        }
    }

    /// Locks a file for reading and runs a function on its data.
    fn open<T>(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        read: impl FnOnce(&pages::Pages) -> T,
    ) -> Result<(T, u64, Attr)> {
        let inode = self.find(file)?;
        let state = inode.read()?;
        let pages = state.pages()?;
        state.guarded().check_read(caller.cred)?;
        let out = (read(pages), pages.size(), inode.attr(&state));
        let old = state.atime_is_old();
        drop(state);
        if old {
            self.accessed(&inode);
        }
        Ok(out)
    }
}

/// A hold of a file.
struct MemoryHold {
    inode: Arc<Inode>,
    table: Arc<Table>,
}

impl Hold for MemoryHold {
    fn is_removed(&self) -> bool {
        self.inode.read().is_ok_and(|state| state.nlink == 0)
    }
}

impl Drop for MemoryHold {
    fn drop(&mut self) {
        let Ok(mut state) = self.inode.write() else { return };
        state.holds -= 1;
        if state.is_gone() {
            drop(state);
            self.table.remove(self.inode.id);
        }
    }
}

/// An entry to list: cookie, name, object.
type Listed = (u64, Arc<[u8]>, u64);

impl Vfs for Memory {
    fn caps(&self) -> &FsCaps {
        &self.caps
    }

    fn root(&self) -> Handle {
        self.handle(ROOT)
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.instance
    }

    fn lookup(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Attr)> {
        let dir = self.find(dir)?;
        let id = {
            let state = dir.read()?;
            let entries = state.dir()?;
            state.guarded().check(caller.cred, EXECUTE)?;
            match name.as_bytes() {
                b"." => dir.id,
                b".." => entries.parent,
                name => entries.find(name).ok_or(VfsError::NotFound)?,
            }
        };
        // If the object was removed between the two locks, it counts as not found.
        let inode = self.table.find(id).ok_or(VfsError::NotFound)?;
        let attr = inode.attr(&*inode.read().map_err(|_| VfsError::NotFound)?);
        Ok((self.handle(id), attr))
    }

    fn hold(&self, _: &Caller<'_>, file: &Handle) -> Result<Held> {
        let inode = self.find(file)?;
        let mut state = inode.write()?;
        state.pages()?;
        state.holds += 1;
        drop(state);
        Ok(Held::new(MemoryHold { inode, table: self.table.clone() }))
    }

    /// Returns the path of a directory. Files do not know their directories.
    fn path(&self, object: &Handle) -> Option<Vec<u8>> {
        let root = self.find(&self.root()).ok()?.id;
        let (mut inode, mut names) = (self.find(object).ok()?, Vec::new());
        while inode.id != root {
            let above = inode.read().ok()?.dir().ok()?.parent;
            let parent = self.table.find(above)?;
            names.push(parent.read().ok()?.dir().ok()?.name_of(inode.id)?.to_vec());
            inode = parent;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }

    fn getattr(&self, _: &Caller<'_>, object: &Handle) -> Result<Attr> {
        let inode = self.find(object)?;
        let state = inode.read()?;
        Ok(inode.attr(&state))
    }

    fn setattr(&self, caller: &Caller<'_>, object: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change> {
        let inode = self.find(object)?;
        let mut state = inode.write()?;
        if guard.is_some_and(|guard| guard != state.ctime) {
            return Err(VfsError::NotSync);
        }
        self.set(caller, &inode, &mut state, set)
    }

    fn access(&self, caller: &Caller<'_>, object: &Handle, wanted: Rights) -> Result<(Rights, Attr)> {
        let inode = self.find(object)?;
        let state = inode.read()?;
        Ok((state.guarded().rights(caller.cred, wanted), inode.attr(&state)))
    }

    fn readlink(&self, _: &Caller<'_>, link: &Handle) -> Result<(Bytes, Attr)> {
        let inode = self.find(link)?;
        let state = inode.read()?;
        match &state.content {
            Content::Symlink(target) => Ok((target.clone(), inode.attr(&state))),
            _ => Err(VfsError::Invalid),
        }
    }

    fn read_into(&self, caller: &Caller<'_>, file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto> {
        let (len, size, attr) = self.open(caller, file, |pages| pages.read_into(offset, into))?;
        Ok(ReadInto { len, eof: reaches_end(offset, len, size), attr })
    }

    fn read(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: usize, _: &Pool, _: bool) -> Result<Read> {
        let (data, size, attr) = self.open(caller, file, |pages| pages.read(offset, len, &self.source))?;
        Ok(Read { eof: reaches_end(offset, data.len(), size), data, attr })
    }

    fn write(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        data: &Rope,
        _: Stability,
        report: Report,
    ) -> Result<Written> {
        let inode = self.find(file)?;
        let mut state = inode.write()?;
        let before = PreAttr::from(&inode.attr(&state));
        state.pages()?;
        state.guarded().check_write(caller.cred)?;
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > self.caps.file_size_max) {
            return Err(VfsError::FileTooBig);
        }
        if !data.is_empty() {
            let written = state.pages_mut()?.write(offset, data, &self.source);
            state.drop_privileges(caller.cred);
            state.modified();
            written?;
        }
        // Memory cannot be more durable than this.
        let (before, after) = match report {
            Report::Nothing => (None, None),
            Report::Attributes(_) => (Some(before), Some(inode.attr(&state))),
        };
        Ok(Written { stability: Stability::FileSync, before, after })
    }

    fn commit(&self, caller: &Caller<'_>, file: &Handle, _: u64, _: u64) -> Result<Change> {
        let inode = self.find(file)?;
        let state = inode.read()?;
        state.pages()?;
        state.guarded().check_write(caller.cred)?;
        let after = inode.attr(&state);
        Ok(Change { before: PreAttr::from(&after), after })
    }

    fn create(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, mode: &CreateMode) -> Result<Created> {
        self.create_file(caller, dir, name, mode)
    }

    fn mkdir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, set: &SetAttr) -> Result<Created> {
        self.make_dir(caller, dir, name, set)
    }

    fn symlink(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Result<Created> {
        self.make_symlink(caller, dir, name, target, set)
    }

    fn mknod(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Result<Created> {
        self.make_node(caller, dir, name, node, set)
    }

    fn remove(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change> {
        self.remove_name(caller, dir, name, false)
    }

    fn rmdir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change> {
        self.remove_name(caller, dir, name, true)
    }

    fn rename(
        &self,
        caller: &Caller<'_>,
        from_dir: &Handle,
        from: &Name,
        to_dir: &Handle,
        to: &Name,
    ) -> Result<(Change, Change)> {
        self.move_name(caller, from_dir, from, to_dir, to)
    }

    fn link(&self, caller: &Caller<'_>, object: &Handle, dir: &Handle, name: &Name) -> Result<(Change, Attr)> {
        self.add_name(caller, object, dir, name)
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
        let dir = self.find(dir)?;
        dir.read()?.dir()?;
        if cookie != 0 && verifier != self.instance {
            return Err(VfsError::BadCookie);
        }
        let mut cookie = cookie;
        loop {
            let (listed, eof, attr) = {
                let state = dir.read()?;
                state.guarded().check(caller.cred, READ)?;
                let (listed, eof) = self.list(&dir, &state, cookie)?;
                (listed, eof, dir.attr(&state))
            };
            for (at, name, id) in listed {
                cookie = at;
                let object = if attrs { self.object(id) } else { None };
                let entry = DirEntry { name: &name, fileid: id, cookie: at, object };
                if each(entry).is_break() {
                    return Ok(ReadDir { verifier: self.instance, eof: false, attr });
                }
            }
            if eof {
                return Ok(ReadDir { verifier: self.instance, eof, attr });
            }
        }
    }

    fn acl(&self, _: &Caller<'_>, object: &Handle, kind: AclKind) -> Result<(Option<Acl>, Attr)> {
        let inode = self.find(object)?;
        let state = inode.read()?;
        Ok((state.acl(kind).cloned(), inode.attr(&state)))
    }

    fn set_acl(&self, caller: &Caller<'_>, object: &Handle, kind: AclKind, acl: Option<&Acl>) -> Result<Change> {
        let inode = self.find(object)?;
        let mut state = inode.write()?;
        let before = PreAttr::from(&inode.attr(&state));
        state.set_acl(caller.cred, kind, acl, &self.space)?;
        Ok(Change { before, after: inode.attr(&state) })
    }

    fn seek(&self, caller: &Caller<'_>, file: &Handle, offset: u64, what: SeekFor) -> Result<Option<u64>> {
        self.open(caller, file, |pages| pages.seek(offset, what))?.0
    }

    fn allocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        self.change_pages(caller, file, |pages| pages.allocate(offset, len, &self.source))
    }

    fn deallocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        self.change_pages(caller, file, |pages| {
            pages.deallocate(offset, len, &self.source);
            Ok(())
        })
    }

    fn copy(&self, caller: &Caller<'_>, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<u64> {
        self.copy_range(caller, from, to, len)
    }

    fn clone_range(&self, caller: &Caller<'_>, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<Change> {
        self.share_range(caller, from, to, len)
    }

    fn xattr(&self, caller: &Caller<'_>, object: &Handle, name: &Name) -> Result<Bytes> {
        let inode = self.find(object)?;
        inode.read()?.xattr(caller.cred, name.as_bytes())
    }

    fn set_xattr(
        &self,
        caller: &Caller<'_>,
        object: &Handle,
        name: &Name,
        value: &[u8],
        how: XattrMode,
    ) -> Result<Change> {
        self.change_state(object, |state| state.set_xattr(caller.cred, name.as_bytes(), value, how, &self.space))
    }

    fn remove_xattr(&self, caller: &Caller<'_>, object: &Handle, name: &Name) -> Result<Change> {
        self.change_state(object, |state| state.remove_xattr(caller.cred, name.as_bytes()))
    }

    fn xattrs(&self, caller: &Caller<'_>, object: &Handle) -> Result<Vec<Bytes>> {
        let inode = self.find(object)?;
        inode.read()?.xattr_names(caller.cred)
    }

    fn statfs(&self, _: &Caller<'_>, object: &Handle) -> Result<StatFs> {
        let inode = self.find(object)?;
        let attr = inode.attr(&*inode.read()?);
        let (total, free) = (self.space.capacity(), self.space.free());
        let (files_total, files_free) = (total / OBJECT_BYTES, free / OBJECT_BYTES);
        Ok(StatFs {
            bytes_total: total,
            bytes_free: free,
            bytes_available: free,
            files_total,
            files_free,
            files_available: files_free,
            attr,
        })
    }
}

fn reaches_end(offset: u64, len: usize, size: u64) -> bool {
    offset.saturating_add(len as u64) >= size
}

const ROOT: u64 = 1;
/// Number of entries that are copied at a time while a directory is locked.
const BATCH: usize = 32;
/// Approximate bytes that an object takes beside its data.
const OBJECT_BYTES: u64 = 1024;

const CAPS: FsCaps = FsCaps {
    links: true,
    symlinks: true,
    link_max: 65_000,
    name_max: NAME_MAX as u32,
    file_size_max: i64::MAX as u64,
    time_resolution_ns: 1,
    counts_changes: true,
    chown_restricted: true,
    blocks: false,
    completes_later: false,
    acls: true,
    xattrs: true,
    clone_block: pages::PAGE as u32,
};
