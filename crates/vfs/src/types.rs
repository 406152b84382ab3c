//! Handles, names, identities and attributes.

use buf::Rope;
use smallvec::SmallVec;

use crate::{VfsError, pending::CompletionSlot};

/// Names an object of one tree, for as long as the object exists. Opaque above this crate.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle {
    len: u8,
    /// Zeros behind `len`.
    bytes: [u8; HANDLE_MAX],
}

impl Handle {
    /// A handle of these bytes.
    ///
    /// # Panics
    /// If there are more than [`HANDLE_MAX`].
    pub fn new(bytes: &[u8]) -> Self {
        assert!(bytes.len() <= HANDLE_MAX, "a handle of {} bytes", bytes.len());
        let mut handle = Self { len: bytes.len() as u8, bytes: [0; HANDLE_MAX] };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        handle
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::hash::Hash for Handle {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle(")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// Most bytes in a [`Handle`]: what an NFSv3 file handle has room for beside export, version and MAC.
pub const HANDLE_MAX: usize = 40;

/// One component of a path, checked.
#[derive(Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Name([u8]);

impl Name {
    /// Checks a component that a peer sent.
    ///
    /// # Errors
    /// `Invalid` for an empty one or one with a slash or zero byte; `NameTooLong` above 255 bytes.
    pub fn new(bytes: &[u8]) -> Result<&Self, VfsError> {
        if bytes.is_empty() || bytes.contains(&b'/') || bytes.contains(&0) {
            return Err(VfsError::Invalid);
        }
        if bytes.len() > NAME_MAX {
            return Err(VfsError::NameTooLong);
        }
        // SAFETY: `Name` is a transparent wrapper of `[u8]`.
        #[expect(unsafe_code)]
        Ok(unsafe { &*(std::ptr::from_ref(bytes) as *const Name) })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is `.` or `..`.
    pub fn is_dots(&self) -> bool {
        matches!(&self.0, b"." | b"..")
    }
}

/// Most bytes in a [`Name`].
pub const NAME_MAX: usize = 255;

/// Most bytes in the target of a symbolic link.
pub const TARGET_MAX: usize = 4095;

/// Checks the target of a symbolic link that is to be made.
///
/// # Errors
/// `Invalid` for an empty one or one with a zero byte; `NameTooLong` above [`TARGET_MAX`].
pub(crate) fn check_target(target: &[u8]) -> Result<(), VfsError> {
    if target.is_empty() || target.contains(&0) {
        return Err(VfsError::Invalid);
    }
    if target.len() > TARGET_MAX {
        return Err(VfsError::NameTooLong);
    }
    Ok(())
}

/// # Errors
/// `Invalid` if a file is to be copied over what is read.
pub(crate) fn check_overlap(from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<(), VfsError> {
    let apart = from.0 != to.0 || from.1.abs_diff(to.1) >= len;
    if apart { Ok(()) } else { Err(VfsError::Invalid) }
}

/// The mode of a new object for which none was given.
pub const DEFAULT_MODE: u32 = 0o644;

/// The mode of a new directory for which none was given.
pub const DEFAULT_DIR_MODE: u32 = 0o755;

/// The mode of a file from [`CreateMode::Exclusive`], until the attributes that follow it are set.
pub const EXCLUSIVE_MODE: u32 = 0o600;

/// Who acts: user, group and further groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cred {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: SmallVec<[u32; 16]>,
}

impl Cred {
    /// The superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: SmallVec::new() }
    }
}

/// The identity with which an operation runs, and the ways in which it may wait.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// Its rights apply.
    pub cred: &'a Cred,
    /// Whether the thread may wait for storage.
    pub may_block: bool,
    /// A slot for an operation that completes later. Without one, no operation returns
    /// [`VfsError::Pending`].
    pub completion: Option<&'a CompletionSlot>,
}

impl<'a> Caller<'a> {
    /// A caller on a thread that may wait for storage.
    pub fn blocking(cred: &'a Cred) -> Self {
        Self { cred, may_block: true, completion: None }
    }

    /// A caller on a thread that must not wait.
    pub fn nonblocking(cred: &'a Cred) -> Self {
        Self { cred, may_block: false, completion: None }
    }
}

/// Seconds and nanoseconds since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

impl Time {
    /// All of it in nanoseconds; zero before 1970.
    pub fn as_nanoseconds(self) -> u64 {
        u64::try_from(self.seconds).unwrap_or(0).saturating_mul(1_000_000_000) + u64::from(self.nanoseconds)
    }
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A block device.
    Block,
    /// A character device.
    Char,
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// Attributes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, with set-user-id, set-group-id and sticky: 12 bits.
    pub mode: u32,
    /// Names it has.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes of storage that it takes.
    pub used: u64,
    /// For devices.
    pub device: Device,
    /// The file system it is on; equal for all objects of one.
    pub fsid: u64,
    /// Its number, unique in its file system.
    pub fileid: u64,
    /// Last read.
    pub atime: Time,
    /// Last write.
    pub mtime: Time,
    /// Last change of data or attributes.
    pub ctime: Time,
    /// Another and a greater one after each change of data or attributes, also if the clock of `ctime` has not moved since the
    /// last ([`FsCaps::counts_changes`] says whose changes).
    pub change: u64,
}

/// The attributes that weak cache consistency compares (RFC 1813 §2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreAttr {
    /// Bytes.
    pub size: u64,
    /// Last write.
    pub mtime: Time,
    /// Last change.
    pub ctime: Time,
    /// See [`Attr::change`].
    pub change: u64,
}

impl From<&Attr> for PreAttr {
    fn from(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime, ctime: attr.ctime, change: attr.change }
    }
}

/// An object before and after an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Before.
    pub before: PreAttr,
    /// After.
    pub after: Attr,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetTime {
    /// The server's time of now.
    Now,
    /// This.
    To(Time),
}

/// Attributes to be set; what is `None` stays, or is the default of a new object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes: truncates or extends with a hole.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last write.
    pub mtime: Option<SetTime>,
}

/// Rights to an object, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Read a file's data or a directory's entries.
    pub read: bool,
    /// Find a name in a directory.
    pub lookup: bool,
    /// Change a file's data or a directory's entries.
    pub modify: bool,
    /// Add data at the end or entries to a directory.
    pub extend: bool,
    /// Remove entries from a directory.
    pub delete: bool,
    /// Execute a file.
    pub execute: bool,
}

impl Rights {
    /// All of them.
    pub const ALL: Self = Self { read: true, lookup: true, modify: true, extend: true, delete: true, execute: true };

    /// Those in both sets.
    pub fn intersect(self, other: Self) -> Self {
        Self {
            read: self.read && other.read,
            lookup: self.lookup && other.lookup,
            modify: self.modify && other.modify,
            extend: self.extend && other.extend,
            delete: self.delete && other.delete,
            execute: self.execute && other.execute,
        }
    }
}

/// What [`Vfs::read_into`](crate::Vfs::read_into) brought.
#[derive(Clone, Debug)]
pub struct ReadInto {
    /// Bytes read.
    pub len: usize,
    /// Whether they reach the end of the file.
    pub eof: bool,
    /// The file's attributes.
    pub attr: Attr,
}

/// What [`Vfs::read`](crate::Vfs::read) brought.
#[derive(Clone, Debug)]
pub struct Read {
    /// The bytes.
    pub data: Rope,
    /// Whether they reach the end of the file.
    pub eof: bool,
    /// The file's attributes.
    pub attr: Attr,
}

/// How durable a write must be before it is acknowledged; later ones include earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stability {
    /// It may still be lost if the server dies.
    Unstable,
    /// The data, and what is needed to read it back.
    DataSync,
    /// Data and all attributes.
    FileSync,
}

/// What [`Vfs::write`](crate::Vfs::write) did.
#[derive(Clone, Debug)]
pub struct Written {
    /// How durable the data is, at least as asked.
    pub stability: Stability,
    /// The file before, if the caller asked for it: see [`Report::Attributes`].
    pub before: Option<PreAttr>,
    /// The file afterwards, if the caller asked for it.
    pub after: Option<Attr>,
}

/// What [`Vfs::write`](crate::Vfs::write) reports of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// Nothing.
    Nothing,
    /// The attributes after the write, and those before it. Those before can be missing if this writer knows them, because its own writes
    /// were the only changes of the file lately, and each of them was reported.
    Attributes(Writer),
}

/// Tells apart who writes, as far as one does not hear what another one is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Writer(pub u128);

/// What [`Vfs::seek`](crate::Vfs::seek) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SeekFor {
    /// Bytes that take storage.
    Data,
    /// Bytes that are zero and take none.
    Hole,
}

/// Whether an extended attribute may, or must, be there when it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XattrMode {
    /// It may.
    Either,
    /// It must not.
    Create,
    /// It must.
    Replace,
}

/// Most bytes in the value of an extended attribute.
pub const XATTR_MAX: usize = 64 << 10;

/// How a file is created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CreateMode {
    /// An existing file is opened, its size set if given.
    Unchecked(SetAttr),
    /// An existing file is an error.
    Guarded(SetAttr),
    /// As guarded, but a file made earlier with the same verifier is that file (RFC 1813 §3.3.8).
    Exclusive([u8; 8]),
}

/// A new object.
#[derive(Clone, Debug)]
pub struct Created {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes.
    pub attr: Attr,
    /// Its directory before and after.
    pub dir: Change,
}

/// What [`Vfs::mknod`](crate::Vfs::mknod) makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// A block device.
    Block(Device),
    /// A character device.
    Char(Device),
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
}

/// One entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry<'a> {
    /// Its name, `.` and `..` included.
    pub name: &'a [u8],
    /// The object's number.
    pub fileid: u64,
    /// Continues after this entry.
    pub cookie: u64,
    /// The object, if asked for and to be had.
    pub object: Option<(Handle, Attr)>,
}

/// What [`Vfs::readdir`](crate::Vfs::readdir) says besides the entries.
#[derive(Clone, Debug)]
pub struct ReadDir {
    /// Goes with the cookies.
    pub verifier: [u8; 8],
    /// Whether the last entry has been given.
    pub eof: bool,
    /// The directory's attributes.
    pub attr: Attr,
}

/// Space and objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes in all.
    pub bytes_total: u64,
    /// Bytes free.
    pub bytes_free: u64,
    /// Bytes free for the caller.
    pub bytes_available: u64,
    /// Objects in all.
    pub files_total: u64,
    /// Objects free.
    pub files_free: u64,
    /// Objects free for the caller.
    pub files_available: u64,
    /// The object's attributes.
    pub attr: Attr,
}

/// What a tree can do, and its limits.
#[derive(Clone, Debug)]
pub struct FsCaps {
    /// Hard links.
    pub links: bool,
    /// Symbolic links.
    pub symlinks: bool,
    /// Most names of an object.
    pub link_max: u32,
    /// Longest component, in bytes.
    pub name_max: u32,
    /// Largest file, in bytes.
    pub file_size_max: u64,
    /// Finest difference between two times that is kept, in nanoseconds.
    pub time_resolution_ns: u32,
    /// Whether [`Attr::change`] counts all changes; else those of other programs count only where the time has moved.
    pub counts_changes: bool,
    /// Whether only a privileged caller may give files away.
    pub chown_restricted: bool,
    /// Whether operations can have to wait for storage at all.
    pub blocks: bool,
    /// Whether operations can return [`VfsError::Pending`].
    pub completes_later: bool,
    /// Whether objects can have ACLs.
    pub acls: bool,
    /// Whether files and directories can have extended attributes.
    pub xattrs: bool,
    /// To what ranges must be aligned that are cloned, in bytes; 0 if nothing can be.
    pub clone_block: u32,
}
