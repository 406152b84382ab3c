//! From handles and names to objects.

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
    database::Database,
    kernel::FileHandle,
    objects::{Descriptor, Object},
};
use crate::{Attr, Caller, HANDLE_MAX, Handle, Name, Result, VfsError};

/// What handles are made of.
///
/// | byte 0 | then |
/// |---|---|
/// | 1 | type (1), bytes of the kernel's handle |
/// | 2 | inode number (8), time of birth (8 + 4), big-endian |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// A handle of the kernel's that it can open.
    Kernel {
        /// The number of the export's mount.
        mount: i32,
    },
    /// One that it cannot open, but that tells objects apart: file systems that cannot be exported.
    Identity {
        /// The number of the export's mount.
        mount: i32,
    },
    /// Where there is not even that: number and time of birth. Two objects that had the same number within one tick of
    /// the file system's clock are not told apart.
    Birth,
}

impl Naming {
    /// What this file system gives.
    pub(super) fn of(root: BorrowedFd<'_>) -> Self {
        let kernel = FileHandle::of(root, c"", false).map(|(_, mount)| Self::Kernel { mount });
        let identity = || FileHandle::of(root, c"", true).map(|(_, mount)| Self::Identity { mount });
        let naming = kernel.or_else(|_| identity()).unwrap_or(Self::Birth);
        // Longer than there is room for: as if there were none.
        if naming.handle(root, c"").is_ok() { naming } else { Self::Birth }
    }

    /// The handle of `path` in `dir`, or of `dir` itself if it is empty.
    ///
    /// # Errors
    /// `XDEV` if something else is mounted there: its objects can have the same handles.
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
    /// The kernel opens any object of the file system, inside the export or not: a handle must have been made by this
    /// server, which is what the authentication of handles above this crate sees to. An object that was moved out of
    /// the export stays reachable by those who hold its handle, as with other servers that do not check for it.
    pub(super) fn open(self, handle: &Handle, mount: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
        match handle.as_bytes() {
            [BY_KERNEL, kind, bytes @ ..] => FileHandle::new(i32::from(*kind), bytes).ok_or(Errno::STALE)?.open(mount),
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

impl Posix {
    /// The object of a handle.
    ///
    /// # Errors
    /// `BadHandle`, `Stale`; `WouldBlock` if it is not at hand and the caller must not wait.
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

    /// Opens an object by a handle of the kernel's.
    ///
    /// The kernel also says that memory is short when the inode number of a removed object is just being given to a new
    /// one (`iget_locked` meets `I_CREATING`). That is over in an instant, and then the handle is known to be stale.
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

    /// The directory of a handle.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve), and `NotDir`.
    pub(super) fn resolve_dir(&self, caller: &Caller<'_>, handle: &Handle) -> Result<Arc<Object>> {
        let object = self.resolve(caller, handle)?;
        if object.is_dir() { Ok(object) } else { Err(VfsError::NotDir) }
    }

    /// The object `name` in `dir`, by the caller's rights.
    pub(super) fn step(&self, caller: &Caller<'_>, dir: &Arc<Object>, name: &Name) -> Result<(Arc<Object>, Attr)> {
        match self.step_at_hand(caller, dir, name)? {
            Some(object) => {
                let attr = self.attr(&object).map_err(|_| VfsError::NotFound)?;
                Ok((object, attr))
            }
            None => self.step_anew(caller, dir, name),
        }
    }

    /// As [`step`](Self::step), by opening it.
    pub(super) fn step_anew(&self, caller: &Caller<'_>, dir: &Arc<Object>, name: &Name) -> Result<(Arc<Object>, Attr)> {
        // Names that the kernel has at hand can be followed without waiting.
        let cached = if self.may_wait(caller).is_err() { ResolveFlags::CACHED } else { ResolveFlags::empty() };
        let opened = {
            let _acting = self.identity.assume(caller)?;
            // `.` in place of `..`: only to see whether the caller may search.
            let path = if name.as_bytes() == b".." { b"." } else { name.as_bytes() };
            self.with_room(|| open_beneath(dir.fd(), path, cached))
        };
        let fd = match opened {
            Ok(fd) => fd,
            // The flag is newer than the call: a kernel that does not know it cannot tell.
            Err(Errno::AGAIN | Errno::INVAL) if !cached.is_empty() => return Err(VfsError::WouldBlock),
            // Another file system is mounted there, which is not for this export to show.
            Err(Errno::XDEV) => return Err(VfsError::Access),
            Err(Errno::NOENT) => {
                // In a directory that was removed there are no names, but that is not the reason to give.
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

    /// The object `name` in `dir`, by the caller's rights, if it is at hand.
    pub(super) fn step_at_hand(
        &self,
        caller: &Caller<'_>,
        dir: &Arc<Object>,
        name: &Name,
    ) -> Result<Option<Arc<Object>>> {
        // By birth, another object on another file system could have the same handle.
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

    /// An object that has been opened by a name.
    pub(super) fn found(&self, dir: &Object, name: &[u8], fd: impl Into<Descriptor>) -> Result<(Arc<Object>, Attr)> {
        let fd = fd.into();
        let handle = self.naming.handle(fd.as_fd(), c"")?;
        let found = self.adopt(handle, fd).map_err(|_| VfsError::NotFound)?;
        self.note(&found.0.handle, dir, name);
        Ok(found)
    }

    /// Notes where an object is.
    pub(super) fn note(&self, object: &Handle, dir: &Object, name: &[u8]) {
        if let Some(database) = &self.database {
            database.place(object, &dir.handle, name);
        }
    }

    /// Takes a descriptor in.
    ///
    /// # Errors
    /// `Stale` if the object has been removed.
    fn adopt(&self, handle: Handle, fd: impl Into<Descriptor>) -> Result<(Arc<Object>, Attr)> {
        let fd = fd.into();
        let attr = self.stat(fd.as_fd())?;
        if attr.nlink == 0 {
            return Err(VfsError::Stale);
        }
        Ok((self.objects.insert(handle, (attr.kind, attr.fileid), fd), attr))
    }

    /// The parent of a directory; the root's is the root.
    ///
    /// A directory that was moved out of the export has a parent outside; so the way up must lead to the root.
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

    /// Finds an object by where it was last seen.
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
        // Renamed behind our back: perhaps in the same directory.
        for place in &places {
            let Ok(dir) = self.search(database, &place.dir, depth + 1) else { continue };
            let Ok(found) = self.name_of(&dir, handle) else { continue };
            let Some(name) = found else {
                // For good, as far as anyone knows.
                database.displace(handle, &place.dir, &place.name);
                continue;
            };
            if let Some(object) = self.open_if(&dir, &name, handle) {
                database.displace(handle, &place.dir, &place.name);
                database.place(handle, &dir.handle, &name);
                return Ok(object);
            }
        }
        Err(VfsError::Stale)
    }

    /// Opens `name` in `dir` if it is the object.
    fn open_if(&self, dir: &Object, name: &[u8], handle: &Handle) -> Option<Arc<Object>> {
        let fd = self.with_room(|| open_beneath(dir.fd(), name, ResolveFlags::empty())).ok()?;
        let found = self.naming.handle(fd.as_fd(), c"").ok()?;
        if found == *handle { Some(self.adopt(found, fd).ok()?.0) } else { None }
    }

    /// A name of the object in `dir`, if it has one there.
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

    /// The handle of `name` in `dir`, if there is one.
    pub(super) fn peek(&self, dir: &Object, name: &Name) -> Option<Handle> {
        name.as_bytes().into_with_c_str(|name| self.naming.handle(dir.fd(), name)).ok()
    }

    /// Opens an object, by its path descriptor, for something else.
    pub(super) fn reopen(&self, object: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let name = DecInt::from_fd(object);
        let flags = flags | OFlags::CLOEXEC;
        self.with_room(|| rustix::fs::openat(&self.descriptors, name.as_c_str(), flags, Mode::empty()))
    }
}

/// A path descriptor of one name, on the same file system, not through a symbolic link.
pub(super) fn open_beneath(dir: BorrowedFd<'_>, name: &[u8], more: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        match rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve | more) {
            // A rename somewhere got in the way of the check.
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
/// How often to look again whether an inode number is still being given away.
const REUSE_TRIES: usize = 64;
/// Directories that are climbed to see whether one is inside the export.
const DEPTH_MAX: usize = 4096;
/// Directories that are gone down to find an object.
const SEARCH_MAX: usize = 1024;
