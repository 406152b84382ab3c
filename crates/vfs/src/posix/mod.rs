//! A directory of the local file system.
//!
//! **Paths never leave the export.** The server never resolves a path from a client as a whole. Each step opens one
//! name in a directory that is already open, by `openat2` with `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS` and
//! `RESOLVE_NO_XDEV`. So symbolic links are never followed, and file systems that are mounted inside are not entered.
//! `..` is handled separately, and ends at the root.
//!
//! **Handles** are those of the kernel (name_to_handle_at(2)). They consist of the object's inode number and
//! generation, so they stay the same as long as the object exists, even across restarts. Root opens objects by handle.
//! An ordinary user may not, and finds them with a database of their locations (`database.rs`).
//!
//! **Identity**: see `identity.rs`. The server opens the descriptors that identify objects. Operations that depend on
//! the caller's rights run as the caller.

mod acl;
mod attributes;
mod changes;
mod data;
mod database;
mod errno;
mod history;
mod identity;
mod kernel;
mod listing;
mod names;
mod objects;
mod ranges;
mod resolve;
mod xattr;

use std::{
    fs::File,
    io,
    ops::ControlFlow,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use buf::{Pool, Rope};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::{
    fs::{FallocateFlags, Mode, OFlags, Timespec, Timestamps},
    io::Errno,
};

pub use self::identity::keep_credentials;
use self::{
    changes::Changes,
    database::{Database, Loss},
    identity::Identity,
    objects::Object,
    objects::Objects,
    resolve::Naming,
};
use crate::{
    Acl, AclKind, Attr, Caller, Change, CreateMode, Created, DirEntry, FsCaps, Handle, Held, Kind, NAME_MAX, Name,
    NodeKind, Read, ReadDir, ReadInto, Report, Result, Rights, SeekFor, SetAttr, Stability, StatFs, Time, Vfs,
    VfsError, Written, XattrMode, types::check_overlap,
};

/// The options of a [`Posix`].
#[derive(Clone, Debug, Default)]
pub struct PosixOptions {
    /// The directory for the handle database, if one is needed. Without it, handles that need a database do not survive
    /// a restart. The directory must exist, belong to this user alone, and be outside the export.
    pub state_dir: Option<PathBuf>,
    /// The [names](Posix::database_name) of handle databases that the state directory had before. They must exist.
    pub known_databases: Vec<String>,
    /// Create a new handle database in place of one that is damaged or missing. A damaged one is renamed.
    pub accept_loss: bool,
    /// The way in which handles are resolved to objects.
    pub handles: Handles,
    /// The approximate maximum number of open descriptors. The default is half of the process's limit.
    pub descriptors: Option<usize>,
}

/// The way in which handles are resolved to objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handles {
    /// The kernel opens handles if it lets this process. Otherwise a database is used.
    #[default]
    Auto,
    /// The kernel must open handles.
    Kernel,
    /// A database is used.
    Database,
}

/// A directory of the local file system.
///
/// Opening it sets the umask of the process to 0, because clients choose the modes of new objects.
pub struct Posix {
    caps: FsCaps,
    root: Arc<Object>,
    fsid: u64,
    /// The root, open for reading. Handles are opened relative to it.
    mount: OwnedFd,
    /// `/proc/self/fd`, through which a path descriptor is opened for data.
    descriptors: OwnedFd,
    /// `true` if the file system stores each ctime exactly as this host's clock gave it.
    exact_times: bool,
    /// `true` if each change gives an object a ctime that was never read before.
    fine_times: bool,
    /// `true` if even cached attributes can require waiting for another host or program.
    remote: bool,
    identity: Identity,
    naming: Naming,
    /// The locations of objects, if the kernel does not open them by handle.
    database: Option<Database>,
    objects: Objects,
    changes: Changes,
    verifier: Mutex<[u8; 8]>,
}

impl Posix {
    /// Opens the directory at `path`.
    ///
    /// # Errors
    /// Returns an error if `path` is not a directory or cannot be read; if the handle database cannot be used
    /// (`InvalidData` if it is damaged or missing); if the process is root but cannot act as its callers; and, with
    /// [`Handles::Kernel`], if the kernel does not open handles.
    pub fn open(path: impl AsRef<Path>, options: PosixOptions) -> io::Result<Self> {
        let identity = Identity::of_process()?;
        let directory = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = rustix::fs::open(path.as_ref(), directory | OFlags::RDONLY, Mode::empty())?;
        let fd = rustix::fs::openat(&mount, c".", directory | OFlags::PATH, Mode::empty())?;
        let descriptors = rustix::fs::open(c"/proc/self/fd", directory | OFlags::PATH, Mode::empty())?;
        let statfs = rustix::fs::fstatfs(&mount)?;
        let naming = Naming::of(fd.as_fd());
        let handle = naming.handle(fd.as_fd(), c"")?;
        let database = match options.handles {
            Handles::Database => true,
            Handles::Kernel => {
                naming.open(&handle, mount.as_fd())?;
                false
            }
            Handles::Auto => naming.open(&handle, mount.as_fd()).is_err(),
        };
        let database = database.then(|| open_database(&options, &handle)).transpose()?;
        let objects = Objects::new(options.descriptors.unwrap_or_else(default_descriptors));
        kernel::set_umask(0);
        let remote = !LOCAL_MAGIC.contains(&(statfs.f_type as u64));
        let fileid = rustix::fs::fstat(&fd)?.st_ino;
        Ok(Self {
            caps: caps(&mount, statfs.f_type as u64),
            root: objects.insert(handle, (Kind::Dir, fileid), fd.into()),
            fsid: attributes::fsid(&mount)?,
            exact_times: !remote && has_exact_times(&mount),
            fine_times: !remote && has_fine_times(&mount),
            remote,
            mount,
            descriptors,
            identity,
            naming,
            database,
            objects,
            changes: Changes::new(),
            verifier: Mutex::new(entropy::random()),
        })
    }

    /// Returns `true` if operations run with their callers' identities, because the process is root. Otherwise all
    /// operations run as this user.
    pub fn tells_callers_apart(&self) -> bool {
        matches!(self.identity, Identity::Caller)
    }

    /// Returns `true` if handles stay valid across a restart. They do not if they need a database and there is no
    /// directory for it.
    pub fn handles_persist(&self) -> bool {
        self.database.as_ref().is_none_or(Database::is_persistent)
    }

    /// Returns the name of the handle database in the state directory, if there is one.
    pub fn database_name(&self) -> Option<String> {
        self.database.as_ref().filter(|database| database.is_persistent()).map(|_| database_name(&self.root.handle))
    }

    /// Checks that the caller may wait for storage.
    ///
    /// # Errors
    /// Returns `WouldBlock` if it must not.
    fn may_wait(&self, caller: &Caller<'_>) -> Result<()> {
        if caller.may_block || !self.caps.blocks { Ok(()) } else { Err(VfsError::WouldBlock) }
    }

    /// Runs a function that needs a descriptor. If there is none left, closes some descriptors and runs it again.
    fn with_room<T>(&self, mut run: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        match run() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.objects.shrink();
                run()
            }
            done => done,
        }
    }
}

fn open_database(options: &PosixOptions, root: &Handle) -> io::Result<Database> {
    let name = database_name(root);
    let loss = match options.known_databases.contains(&name) {
        _ if options.accept_loss => Loss::Accept,
        true => Loss::Refuse,
        false => Loss::Create,
    };
    let path = options.state_dir.as_ref().map(|dir| dir.join(&name));
    let shown = path.as_deref().unwrap_or(Path::new(&name)).display().to_string();
    Database::open(path, loss).map_err(|error| io::Error::new(error.kind(), format!("{shown}: {error}")))
}

fn database_name(root: &Handle) -> String {
    let root: String = root.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("handles-{root}")
}

fn default_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    (limit / 2).clamp(64, 1 << 17) as usize
}

fn caps(root: &OwnedFd, file_system: u64) -> FsCaps {
    FsCaps {
        links: true,
        symlinks: true,
        link_max: kernel::link_max(root).unwrap_or(1).max(LINK_MAX_MIN),
        name_max: NAME_MAX as u32,
        file_size_max: file_size_max(root),
        time_resolution_ns: 1,
        counts_changes: false,
        chown_restricted: true,
        blocks: !matches!(file_system, TMPFS_MAGIC | RAMFS_MAGIC),
        completes_later: false,
        acls: acl::supported(root),
        xattrs: xattr::supported(root),
        clone_block: ranges::clone_block(root),
    }
}

/// Returns `true` if times are stored with nanoseconds. No system call reports this, so the function tries it on an
/// unnamed file.
fn has_exact_times(root: &OwnedFd) -> bool {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let exact = || -> rustix::io::Result<bool> {
        let file = rustix::fs::openat(root, c".", flags, Mode::RUSR | Mode::WUSR)?;
        let time = Timespec { tv_sec: 1_234_567_891, tv_nsec: 123_456_789 };
        rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
        let kept = rustix::fs::fstat(&file)?;
        Ok((kept.st_mtime, kept.st_mtime_nsec as i64) == (time.tv_sec, time.tv_nsec))
    };
    exact().unwrap_or(false)
}

/// Returns `true` if each change gives an object a ctime that was never read before: multigrain timestamps, which some
/// file systems have since Linux 6.13. No system call reports this, so the function tries it on an unnamed file.
fn has_fine_times(root: &OwnedFd) -> bool {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let fine = || -> rustix::io::Result<bool> {
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(root, c".", flags, mode)?;
        let mut last = None;
        // Make more changes than there can be ticks of the kernel's clock meanwhile.
        for _ in 0..FINE_TIMES_TRIES {
            rustix::fs::fchmod(&file, mode)?;
            let stat = rustix::fs::fstat(&file)?;
            let ctime = Some((stat.st_ctime, stat.st_ctime_nsec));
            if std::mem::replace(&mut last, ctime) == ctime {
                return Ok(false);
            }
        }
        Ok(true)
    };
    fine().unwrap_or(false)
}

/// Returns the maximum file size. No system call reports it, so the function tries it on an unnamed file.
fn file_size_max(root: &OwnedFd) -> u64 {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(root, c".", flags, Mode::RUSR | Mode::WUSR) else { return i64::MAX as u64 };
    let file = File::from(file);
    // Beyond a limit of the process, the call would not fail but cause a signal that kills the process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX);
    let (mut fits, mut exceeds) = (0, (1u64 << 63).min(limit.saturating_add(1)));
    while exceeds - fits > 1 {
        let middle = fits + (exceeds - fits) / 2;
        match file.set_len(middle) {
            Ok(()) => fits = middle,
            Err(_) => exceeds = middle,
        }
    }
    // If a quota allows nothing, rely on the errors of the file system.
    if fits > 0 { fits } else { i64::MAX as u64 }
}

impl Vfs for Posix {
    fn caps(&self) -> &FsCaps {
        &self.caps
    }

    fn root(&self) -> Handle {
        self.root.handle.clone()
    }

    fn write_verifier(&self) -> [u8; 8] {
        *self.verifier.lock()
    }

    fn lookup(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Attr)> {
        let dir = self.resolve_dir(caller, dir)?;
        let (object, attr) = self.step(caller, &dir, name)?;
        Ok((object.handle.clone(), attr))
    }

    fn find(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Kind)> {
        let dir = self.resolve_dir(caller, dir)?;
        let object = match self.step_cached(caller, &dir, name)? {
            Some(object) => object,
            None => self.step_uncached(caller, &dir, name)?.0,
        };
        Ok((object.handle.clone(), object.kind))
    }

    /// Returns the path of an object that is cached, as the kernel knows it.
    fn path(&self, object: &Handle) -> Option<Vec<u8>> {
        let object = self.objects.find(object).or_else(|| (*object == self.root.handle).then(|| self.root.clone()))?;
        let path = |object: &Object| rustix::fs::readlink(acl::path(object.fd()), Vec::new()).ok();
        let (root, path) = (path(&self.root)?.into_bytes(), path(&object)?.into_bytes());
        let below = path.strip_prefix(if root == b"/" { &b""[..] } else { &root[..] })?;
        match below.strip_prefix(b"/") {
            Some(below) if !below.ends_with(DELETED) => Some(below.to_vec()),
            None if below.is_empty() => Some(Vec::new()),
            _ => None,
        }
    }

    fn hold(&self, caller: &Caller<'_>, file: &Handle) -> Result<Held> {
        self.hold_file(caller, file)
    }

    fn getattr(&self, caller: &Caller<'_>, object: &Handle) -> Result<Attr> {
        let object = self.resolve(caller, object)?;
        self.attr(&object)
    }

    fn setattr(&self, caller: &Caller<'_>, object: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, object)?;
        self.set(caller, &object, set, guard)
    }

    fn access(&self, caller: &Caller<'_>, object: &Handle, wanted: Rights) -> Result<(Rights, Attr)> {
        let object = self.resolve(caller, object)?;
        self.rights(caller, &object, wanted)
    }

    fn permits(&self, caller: &Caller<'_>, object: &Handle, wanted: Rights) -> Result<Rights> {
        let object = self.resolve(caller, object)?;
        self.rights_now(caller, &object, wanted)
    }

    fn readlink(&self, caller: &Caller<'_>, link: &Handle) -> Result<(Bytes, Attr)> {
        self.may_wait(caller)?;
        let link = self.resolve(caller, link)?;
        self.target(&link)
    }

    fn read_into(&self, caller: &Caller<'_>, file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto> {
        let (object, file) = self.open_to_read(caller, file)?;
        self.read_file(caller, &object, &file, offset, into)
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
        let (object, file) = self.open_to_read(caller, file)?;
        self.read_and_stat(caller, (&object, file), (offset, len), pool, file_ranges)
    }

    fn read_data(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        len: usize,
        pool: &Pool,
        file_ranges: bool,
    ) -> Result<(Rope, bool)> {
        let (object, file) = self.open_to_read(caller, file)?;
        if let Some(read) = self.read_short(caller, (&object, &file), (offset, len), pool)? {
            return Ok(read);
        }
        self.read_and_stat(caller, (&object, file), (offset, len), pool, file_ranges).map(|read| (read.data, read.eof))
    }

    fn pass_file(&self, caller: &Caller<'_>, file: &Handle) -> Result<OwnedFd> {
        self.open_to_pass(caller, file)
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
        self.may_wait(caller)?;
        let object = self.resolve(caller, file)?;
        let file = self.data(caller, &object, true)?;
        let (before, after) = self.write_file(caller, (&object, &file), offset, data, (stability, report))?;
        Ok(Written { stability, before, after })
    }

    fn commit(&self, caller: &Caller<'_>, file: &Handle, _: u64, _: u64) -> Result<Change> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, file)?;
        let file = self.data(caller, &object, true)?;
        let synced = self.sync(&object, &file);
        drop(file);
        self.objects.close_writers(&object);
        synced
    }

    fn create(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, mode: &CreateMode) -> Result<Created> {
        self.may_wait(caller)?;
        let dir = self.resolve_dir(caller, dir)?;
        self.create_file(caller, &dir, name, mode)
    }

    fn mkdir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, set: &SetAttr) -> Result<Created> {
        self.may_wait(caller)?;
        let dir = self.resolve_dir(caller, dir)?;
        self.make_dir(caller, &dir, name, set)
    }

    fn symlink(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Result<Created> {
        self.may_wait(caller)?;
        let dir = self.resolve_dir(caller, dir)?;
        self.make_symlink(caller, &dir, name, target, set)
    }

    fn mknod(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Result<Created> {
        self.may_wait(caller)?;
        let dir = self.resolve_dir(caller, dir)?;
        self.make_node(caller, &dir, name, node, set)
    }

    fn remove(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change> {
        self.may_wait(caller)?;
        let dir = self.resolve_dir(caller, dir)?;
        self.unlink(caller, &dir, name, rustix::fs::AtFlags::empty())
    }

    fn rmdir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change> {
        self.may_wait(caller)?;
        let dir = self.resolve_dir(caller, dir)?;
        self.unlink(caller, &dir, name, rustix::fs::AtFlags::REMOVEDIR)
    }

    fn rename(
        &self,
        caller: &Caller<'_>,
        from_dir: &Handle,
        from: &Name,
        to_dir: &Handle,
        to: &Name,
    ) -> Result<(Change, Change)> {
        self.may_wait(caller)?;
        let from_dir = self.resolve_dir(caller, from_dir)?;
        let to_dir = self.resolve_dir(caller, to_dir)?;
        self.move_name(caller, (&from_dir, from), (&to_dir, to))
    }

    fn link(&self, caller: &Caller<'_>, object: &Handle, dir: &Handle, name: &Name) -> Result<(Change, Attr)> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, object)?;
        let dir = self.resolve_dir(caller, dir)?;
        self.add_name(caller, &object, &dir, name)
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
        self.may_wait(caller)?;
        let dir = self.resolve_dir(caller, dir)?;
        // Cookies are those of the file system and do not depend on a verifier, as on other servers on Linux.
        if cookie != 0 && verifier != listing::VERIFIER {
            return Err(VfsError::BadCookie);
        }
        self.list(caller, &dir, cookie, attrs, each)
    }

    fn acl(&self, caller: &Caller<'_>, object: &Handle, kind: AclKind) -> Result<(Option<Acl>, Attr)> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, object)?;
        self.acl_of(&object, kind)
    }

    fn set_acl(&self, caller: &Caller<'_>, object: &Handle, kind: AclKind, acl: Option<&Acl>) -> Result<Change> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, object)?;
        self.replace_acl(caller, &object, kind, acl)
    }

    fn seek(&self, caller: &Caller<'_>, file: &Handle, offset: u64, what: SeekFor) -> Result<Option<u64>> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, file)?;
        let file = self.data(caller, &object, false)?;
        self.seek_for(&object, &file, offset, what)
    }

    fn allocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, file)?;
        let file = self.data(caller, &object, true)?;
        self.fallocate(caller, (&object, &file), FallocateFlags::empty(), offset, len)
    }

    fn deallocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, file)?;
        let file = self.data(caller, &object, true)?;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.fallocate(caller, (&object, &file), punch, offset, len)
    }

    fn copy(&self, caller: &Caller<'_>, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<u64> {
        self.may_wait(caller)?;
        check_overlap(from, to, len)?;
        let (source, object) = (self.resolve(caller, from.0)?, self.resolve(caller, to.0)?);
        let (source, target) = (self.data(caller, &source, false)?, self.data(caller, &object, true)?);
        self.copy_range(caller, (&source, from.1), (&object, &target, to.1), len)
    }

    fn clone_range(&self, caller: &Caller<'_>, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<Change> {
        self.may_wait(caller)?;
        let (source, object) = (self.resolve(caller, from.0)?, self.resolve(caller, to.0)?);
        let (source, target) = (self.data(caller, &source, false)?, self.data(caller, &object, true)?);
        self.reflink(caller, (&source, from.1), (&object, &target, to.1), len)
    }

    fn xattr(&self, caller: &Caller<'_>, object: &Handle, name: &Name) -> Result<Bytes> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, object)?;
        self.xattr_of(caller, &object, name)
    }

    fn set_xattr(
        &self,
        caller: &Caller<'_>,
        object: &Handle,
        name: &Name,
        value: &[u8],
        how: XattrMode,
    ) -> Result<Change> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, object)?;
        self.replace_xattr(caller, &object, name, value, how)
    }

    fn remove_xattr(&self, caller: &Caller<'_>, object: &Handle, name: &Name) -> Result<Change> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, object)?;
        self.unset_xattr(caller, &object, name)
    }

    fn xattrs(&self, caller: &Caller<'_>, object: &Handle) -> Result<Vec<Bytes>> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, object)?;
        self.xattr_names(caller, &object)
    }

    fn statfs(&self, caller: &Caller<'_>, object: &Handle) -> Result<StatFs> {
        self.may_wait(caller)?;
        let object = self.resolve(caller, object)?;
        self.space(&object)
    }
}

/// The end of a path that the kernel reports for a removed object.
const DELETED: &[u8] = b" (deleted)";
const FINE_TIMES_TRIES: usize = 32;
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
/// File systems on a disk or in memory: ext2 to ext4, xfs, btrfs, f2fs, bcachefs, ZFS, JFS, ReiserFS, NILFS, overlayfs,
/// tmpfs, ramfs, squashfs, EROFS, ISO 9660, UDF, FAT, exFAT and NTFS. All others count as remote, known or not. NFS,
/// CIFS, 9P, Ceph, AFS and FUSE are among them.
const LOCAL_MAGIC: [u64; 19] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0xca45_1a4e,
    0x2fc1_2fc1,
    0x3153_464a,
    0x5265_4973,
    0x3434,
    0x794c_7630,
    TMPFS_MAGIC,
    RAMFS_MAGIC,
    0x7371_7368,
    0xe0f5_e1e2,
    0x9660,
    0x1501_3346,
    0x4d44,
    0x2011_bab0,
    0x7366_746e,
];
/// Minimum link count that all file systems with hard links support. The C library reports less for file systems that
/// it does not know.
const LINK_MAX_MIN: u32 = 32_000;
