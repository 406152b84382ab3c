//! Resolves handles and names to objects.

use std::{
    ffi::CStr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags},
    io::Errno,
    path::{Arg, DecInt},
};

use super::{
    Posix,
    data::check_is_file,
    database::Database,
    kernel::FileHandle,
    objects::{Descriptor, Object},
};
use crate::{Attr, Caller, HANDLE_MAX, Handle, Held, Name, Result, VfsError};

/// The contents of handles on a file system.
///
/// | byte 0 | then |
/// |---|---|
/// | 1 | type (1), bytes of the kernel's handle |
/// | 2 | inode number (8), time of birth (8 + 4), big-endian |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// A handle of the kernel that the kernel can open.
    Kernel {
        /// The ID of the export's mount.
        mount: i32,
    },
    /// A handle of the kernel that identifies objects but cannot be opened, on file systems that cannot be exported.
    Identity {
        /// The ID of the export's mount.
        mount: i32,
    },
    /// Inode number and time of birth, on file systems without handles. Two objects that had the same inode number
    /// within one tick of the file system's clock are not distinguished.
    Birth,
}

impl Naming {
    /// Returns the naming for a file system.
    pub(super) fn of(root: BorrowedFd<'_>) -> Self {
        let kernel = FileHandle::of(root, c"", false).map(|(_, mount)| Self::Kernel { mount });
        let identity = || FileHandle::of(root, c"", true).map(|(_, mount)| Self::Identity { mount });
        let naming = kernel.or_else(|_| identity()).unwrap_or(Self::Birth);
        // A handle that is too long for [`Handle`] cannot be used.
        if naming.handle(root, c"").is_ok() { naming } else { Self::Birth }
    }

    /// Returns the handle of `path` in `dir`, or of `dir` itself if `path` is empty.
    ///
    /// # Errors
    /// Returns `XDEV` if another file system is mounted there, because its objects can have the same handles.
    pub(super) fn handle(self, dir: BorrowedFd<'_>, path: &CStr) -> rustix::io::Result<Handle> {
        let mut bytes = [0; HANDLE_MAX];
        let len = match self {
            Self::Kernel { mount } | Self::Identity { mount } => {
                let (handle, found) = FileHandle::of(dir, path, matches!(self, Self::Identity { .. }))?;
                if found != mount {
                    return Err(Errno::XDEV);
                }
                let kind = u8::try_from(handle.kind()).map_err(|_| Errno::OVERFLOW)?;
                let len = 2 + handle.bytes().len();
                bytes[..2].copy_from_slice(&[BY_KERNEL, kind]);
                bytes.get_mut(2..len).ok_or(Errno::OVERFLOW)?.copy_from_slice(handle.bytes());
                len
            }
            Self::Birth => {
                let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
                let stat = rustix::fs::statx(dir, path, flags, StatxFlags::INO | StatxFlags::BTIME)?;
                bytes[0] = BY_BIRTH;
                bytes[1..9].copy_from_slice(&stat.stx_ino.to_be_bytes());
                bytes[9..17].copy_from_slice(&stat.stx_btime.tv_sec.to_be_bytes());
                bytes[17..21].copy_from_slice(&stat.stx_btime.tv_nsec.to_be_bytes());
                21
            }
        };
        Ok(Handle::new(&bytes[..len]))
    }

    /// Opens an object by its handle.
    ///
    /// The kernel opens any object of the file system, inside the export or not. So a handle must have been made by
    /// this server; the authentication of file handles above this crate ensures that. An object that was moved out of
    /// the export stays accessible to clients that have its handle, as on other servers without a subtree check.
    pub(super) fn open(self, handle: &Handle, mount: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
        match handle.as_bytes() {
            [BY_KERNEL, kind, bytes @ ..] => FileHandle::new(i32::from(*kind), bytes).ok_or(Errno::STALE)?.open(mount),
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

impl Posix {
    /// Returns the object of a handle.
    ///
    /// # Errors
    /// Returns `BadHandle` or `Stale`; or `WouldBlock` if the object is not cached and the caller must not wait.
    pub(super) fn resolve(&self, caller: &Caller<'_>, handle: &Handle) -> Result<Arc<Object>> {
        if self.remote {
            self.may_wait(caller)?;
        }
        if let Some(object) = self.objects.find(handle) {
            return Ok(object);
        }
        match handle.as_bytes() {
            _ if *handle == self.root.handle => return Ok(self.root.clone()),
            [BY_KERNEL | BY_BIRTH, _, _, ..] => self.may_wait(caller)?,
            _ => return Err(VfsError::BadHandle),
        }
        match &self.database {
            Some(database) => self.search(database, handle, 0),
            None => match self.open_by_handle(handle) {
                Ok(fd) => Ok(self.adopt(handle.clone(), fd).map_err(|_| VfsError::Stale)?.0),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Err(VfsError::Delay),
                Err(Errno::IO) => Err(VfsError::Io),
                Err(_) => Err(VfsError::Stale),
            },
        }
    }

    /// Holds a file. Needs no system call if the file is cached.
    pub(super) fn hold_file(&self, caller: &Caller<'_>, file: &Handle) -> Result<Held> {
        for _ in 0..REUSE_TRIES {
            let object = self.resolve(caller, file)?;
            check_is_file(&object)?;
            // Another thread may have evicted the object.
            if let Some(hold) = self.objects.hold(&object) {
                return Ok(Held::new(hold));
            }
        }
        Err(VfsError::Delay)
    }

    /// Opens an object by a handle of the kernel.
    ///
    /// The kernel also reports ENOMEM while it gives the inode number of a removed object to a new one (`iget_locked`
    /// meets `I_CREATING`). That takes only an instant, and afterwards the kernel reports that the handle is stale.
    fn open_by_handle(&self, handle: &Handle) -> rustix::io::Result<OwnedFd> {
        let mut opened = self.with_room(|| self.naming.open(handle, self.mount.as_fd()));
        for _ in 0..REUSE_TRIES {
            if !matches!(opened, Err(Errno::NOMEM)) {
                break;
            }
            std::thread::yield_now();
            opened = self.naming.open(handle, self.mount.as_fd());
        }
        opened
    }

    /// Returns the directory of a handle.
    ///
    /// # Errors
    /// Returns the errors of [`resolve`](Self::resolve), and `NotDir`.
    pub(super) fn resolve_dir(&self, caller: &Caller<'_>, handle: &Handle) -> Result<Arc<Object>> {
        let object = self.resolve(caller, handle)?;
        if object.is_dir() { Ok(object) } else { Err(VfsError::NotDir) }
    }

    /// Looks up `name` in `dir` with the caller's rights.
    pub(super) fn step(&self, caller: &Caller<'_>, dir: &Arc<Object>, name: &Name) -> Result<(Arc<Object>, Attr)> {
        match self.step_cached(caller, dir, name)? {
            Some(object) => {
                let attr = self.attr(&object).map_err(|_| VfsError::NotFound)?;
                Ok((object, attr))
            }
            None => self.step_uncached(caller, dir, name),
        }
    }

    /// Looks up a name like [`step`](Self::step), but always opens it.
    pub(super) fn step_uncached(
        &self,
        caller: &Caller<'_>,
        dir: &Arc<Object>,
        name: &Name,
    ) -> Result<(Arc<Object>, Attr)> {
        // Without waiting, the kernel can only resolve names in its cache.
        let cached = if self.may_wait(caller).is_err() { ResolveFlags::CACHED } else { ResolveFlags::empty() };
        let opened = {
            let _acting = self.identity.assume(caller)?;
            // Open `.` instead of `..`, only to check that the caller may search the directory.
            let path = if name.as_bytes() == b".." { b"." } else { name.as_bytes() };
            self.with_room(|| open_beneath(dir.fd(), path, cached))
        };
        let fd = match opened {
            Ok(fd) => fd,
            // A kernel that does not support this newer flag cannot say whether the name is cached.
            Err(Errno::AGAIN | Errno::INVAL) if !cached.is_empty() => return Err(VfsError::WouldBlock),
            // Another file system is mounted there, which this export must not expose.
            Err(Errno::XDEV) => return Err(VfsError::Access),
            Err(Errno::NOENT) => {
                // A removed directory has no names, but the error must be `Stale`.
                self.attr(dir)?;
                return Err(VfsError::NotFound);
            }
            Err(errno) => return Err(errno.into()),
        };
        match name.as_bytes() {
            b"." => Ok((dir.clone(), self.attr(dir)?)),
            b".." => {
                self.may_wait(caller)?;
                let parent = self.parent(dir)?;
                let attr = self.attr(&parent)?;
                Ok((parent, attr))
            }
            name => self.found(dir, name, fd),
        }
    }

    /// Returns the object `name` in `dir`, if it is cached and the caller may look it up.
    pub(super) fn step_cached(
        &self,
        caller: &Caller<'_>,
        dir: &Arc<Object>,
        name: &Name,
    ) -> Result<Option<Arc<Object>>> {
        // With `Naming::Birth`, an object on another file system could have the same handle.
        if name.is_dots() || self.naming == Naming::Birth || self.may_wait(caller).is_err() {
            return Ok(None);
        }
        let handle = {
            let _acting = self.identity.assume(caller)?;
            self.peek(dir, name)
        };
        let Some(object) = handle.and_then(|handle| self.objects.find(&handle)) else { return Ok(None) };
        self.note(&object.handle, dir, name.as_bytes());
        Ok(Some(object))
    }

    /// Adds an object that has been opened by a name to the cache.
    pub(super) fn found(&self, dir: &Object, name: &[u8], fd: impl Into<Descriptor>) -> Result<(Arc<Object>, Attr)> {
        let fd = fd.into();
        let handle = self.naming.handle(fd.as_fd(), c"")?;
        let found = self.adopt(handle, fd).map_err(|_| VfsError::NotFound)?;
        self.note(&found.0.handle, dir, name);
        Ok(found)
    }

    /// Records the location of an object.
    pub(super) fn note(&self, object: &Handle, dir: &Object, name: &[u8]) {
        if let Some(database) = &self.database {
            database.add(object, &dir.handle, name);
        }
    }

    /// Adds the object of a descriptor to the cache.
    ///
    /// # Errors
    /// Returns `Stale` if the object has been removed.
    fn adopt(&self, handle: Handle, fd: impl Into<Descriptor>) -> Result<(Arc<Object>, Attr)> {
        let fd = fd.into();
        let attr = self.stat(fd.as_fd())?;
        if attr.nlink == 0 {
            return Err(VfsError::Stale);
        }
        Ok((self.objects.insert(handle, (attr.kind, attr.fileid), fd), attr))
    }

    /// Returns the parent of a directory. The parent of the root is the root.
    ///
    /// If a directory was moved out of the export, its parent is outside. So the function checks that the path upwards
    /// reaches the root.
    pub(super) fn parent(&self, dir: &Arc<Object>) -> Result<Arc<Object>> {
        if dir.handle == self.root.handle {
            return Ok(dir.clone());
        }
        let mut parent = None;
        let mut last = dir.handle.clone();
        let mut at = up(dir.fd())?;
        for _ in 0..DEPTH_MAX {
            let handle = self.naming.handle(at.as_fd(), c"")?;
            if handle == self.root.handle {
                return match parent {
                    None => Ok(self.root.clone()),
                    Some((handle, fd)) => Ok(self.adopt(handle, fd)?.0),
                };
            }
            if handle == last {
                break;
            }
            let next = up(at.as_fd())?;
            last = handle.clone();
            let here = std::mem::replace(&mut at, next);
            parent.get_or_insert((handle, here));
        }
        Err(VfsError::Stale)
    }

    /// Finds an object at its recorded locations.
    fn search(&self, database: &Database, handle: &Handle, depth: usize) -> Result<Arc<Object>> {
        if *handle == self.root.handle {
            return Ok(self.root.clone());
        }
        if let Some(object) = self.objects.find(handle) {
            return Ok(object);
        }
        if depth > SEARCH_MAX {
            return Err(VfsError::Stale);
        }
        let places = database.places(handle);
        for place in &places {
            let Ok(dir) = self.search(database, &place.dir, depth + 1) else { continue };
            if let Some(object) = self.open_if(&dir, &place.name, handle) {
                return Ok(object);
            }
        }
        // Another program has renamed the object, perhaps in the same directory.
        for place in &places {
            let Ok(dir) = self.search(database, &place.dir, depth + 1) else { continue };
            let Ok(found) = self.name_of(&dir, handle) else { continue };
            let Some(name) = found else {
                // The object is not in this directory any more.
                database.remove(handle, &place.dir, &place.name);
                continue;
            };
            if let Some(object) = self.open_if(&dir, &name, handle) {
                database.remove(handle, &place.dir, &place.name);
                database.add(handle, &dir.handle, &name);
                return Ok(object);
            }
        }
        Err(VfsError::Stale)
    }

    /// Opens `name` in `dir` if it is this object.
    fn open_if(&self, dir: &Object, name: &[u8], handle: &Handle) -> Option<Arc<Object>> {
        let fd = self.with_room(|| open_beneath(dir.fd(), name, ResolveFlags::empty())).ok()?;
        let found = self.naming.handle(fd.as_fd(), c"").ok()?;
        if found == *handle { Some(self.adopt(found, fd).ok()?.0) } else { None }
    }

    /// Returns a name of the object in `dir`, if it has one.
    fn name_of(&self, dir: &Object, handle: &Handle) -> rustix::io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = self.with_room(|| rustix::fs::openat(dir.fd(), c".", flags, Mode::empty()))?;
        let mut entries = rustix::fs::Dir::new(open)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            let dots = matches!(name.to_bytes(), b"." | b"..");
            if !dots && self.naming.handle(dir.fd(), name).is_ok_and(|found| found == *handle) {
                return Ok(Some(name.to_bytes().to_vec()));
            }
        }
        Ok(None)
    }

    /// Returns the handle of `name` in `dir`, if the name exists.
    pub(super) fn peek(&self, dir: &Object, name: &Name) -> Option<Handle> {
        name.as_bytes().into_with_c_str(|name| self.naming.handle(dir.fd(), name)).ok()
    }

    /// Opens an object again through its path descriptor, with other flags.
    pub(super) fn reopen(&self, object: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let name = DecInt::from_fd(object);
        let flags = flags | OFlags::CLOEXEC;
        self.with_room(|| rustix::fs::openat(&self.descriptors, name.as_c_str(), flags, Mode::empty()))
    }
}

/// Opens a path descriptor of one name on the same file system, without following a symbolic link.
pub(super) fn open_beneath(dir: BorrowedFd<'_>, name: &[u8], more: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        match rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve | more) {
            // A concurrent rename has disturbed the check. Try again.
            Err(Errno::AGAIN) if more.is_empty() => {}
            opened => return opened,
        }
    }
}

fn up(dir: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, c"..", flags, Mode::empty())
}

const BY_KERNEL: u8 = 1;
const BY_BIRTH: u8 = 2;
/// Maximum number of attempts while an inode number is being reused, or while objects are evicted at once.
const REUSE_TRIES: usize = 64;
/// Maximum number of directories on the path from a directory up to the root.
const DEPTH_MAX: usize = 4096;
/// Maximum depth of the search for an object.
const SEARCH_MAX: usize = 1024;
