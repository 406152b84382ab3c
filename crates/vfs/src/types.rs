//! Handles, names, identities and attributes.

use std::time::UNIX_EPOCH;

use buf::Rope;
use smallvec::SmallVec;

use crate::{VfsError, pending::CompletionSlot};

/// The ID of an object in one tree. It is valid as long as the object exists, and opaque above this crate.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle {
    len: u8,
    /// The bytes after `len` are zero.
    bytes: [u8; HANDLE_MAX],
}

impl Handle {
    /// Creates a handle of these bytes.
    ///
    /// # Panics
    /// Panics if there are more than [`HANDLE_MAX`].
    pub fn new(bytes: &[u8]) -> Self {
        assert!(bytes.len() <= HANDLE_MAX, "handle of {} bytes is too long", bytes.len());
        let mut handle = Self { len: bytes.len() as u8, bytes: [0; HANDLE_MAX] };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        handle
    }

    /// Returns the bytes of the handle.
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

/// Maximum bytes of a [`Handle`]: the space that an NFSv3 file handle has beside export ID, version and MAC.
pub const HANDLE_MAX: usize = 40;

/// One component of a path, which has been checked.
#[derive(Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Name([u8]);

impl Name {
    /// Checks a component from a peer.
    ///
    /// # Errors
    /// Returns `Invalid` if it is empty or has a slash or zero byte, and `NameTooLong` if it has more than 255 bytes.
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

    /// Returns the bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns `true` for `.` and `..`.
    pub fn is_dots(&self) -> bool {
        matches!(&self.0, b"." | b"..")
    }
}

/// Maximum bytes of a [`Name`].
pub const NAME_MAX: usize = 255;

/// Maximum bytes of the target of a symbolic link.
pub const TARGET_MAX: usize = 4095;

/// Checks the target of a new symbolic link.
///
/// # Errors
/// Returns `Invalid` if it is empty or has a zero byte, and `NameTooLong` if it has more than [`TARGET_MAX`] bytes.
pub(crate) fn check_target(target: &[u8]) -> Result<(), VfsError> {
    if target.is_empty() || target.contains(&0) {
        return Err(VfsError::Invalid);
    }
    if target.len() > TARGET_MAX {
        return Err(VfsError::NameTooLong);
    }
    Ok(())
}

/// Checks that the ranges of a copy do not overlap.
///
/// # Errors
/// Returns `Invalid` if they do.
pub(crate) fn check_overlap(from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<(), VfsError> {
    let apart = from.0 != to.0 || from.1.abs_diff(to.1) >= len;
    if apart { Ok(()) } else { Err(VfsError::Invalid) }
}

/// The default mode of a new object.
pub const DEFAULT_MODE: u32 = 0o644;

/// The default mode of a new directory.
pub const DEFAULT_DIR_MODE: u32 = 0o755;

/// The mode of a file created with [`CreateMode::Exclusive`], until the client sets its attributes.
pub const EXCLUSIVE_MODE: u32 = 0o600;

/// The credentials of a user: user, group and supplementary groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cred {
    /// The user ID.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: SmallVec<[u32; 16]>,
}

impl Cred {
    /// Returns the credentials of the superuser.
    pub fn root() -> Self {
        Self { uid: 0, gid: 0, groups: SmallVec::new() }
    }
}

/// The identity with which an operation runs, and the ways in which it may wait.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The credentials whose rights apply.
    pub cred: &'a Cred,
    /// `true` if the thread may wait for storage.
    pub may_block: bool,
    /// The slot for an operation that completes later. Without a slot, no operation returns [`VfsError::Pending`].
    pub completion: Option<&'a CompletionSlot>,
}

impl<'a> Caller<'a> {
    /// Creates a caller on a thread that may wait for storage.
    pub fn blocking(cred: &'a Cred) -> Self {
        Self { cred, may_block: true, completion: None }
    }

    /// Creates a caller on a thread that must not wait.
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
    /// Returns the time of day.
    pub fn now() -> Self {
        let since = entropy::system_time().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
    }

    /// Returns the time in nanoseconds; zero before 1970.
    pub fn as_nanoseconds(self) -> u64 {
        u64::try_from(self.seconds).unwrap_or(0).saturating_mul(1_000_000_000) + u64::from(self.nanoseconds)
    }
}

/// The type of an object.
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
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

/// The attributes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The type of the object.
    pub kind: Kind,
    /// The permission bits with set-user-id, set-group-id and sticky bit: 12 bits.
    pub mode: u32,
    /// The number of names.
    pub nlink: u32,
    /// The user ID of the owner.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The bytes of storage that the object takes.
    pub used: u64,
    /// The device number, for devices.
    pub device: Device,
    /// The ID of the file system. All objects of one file system have the same.
    pub fsid: u64,
    /// The file number, which is unique in its file system.
    pub fileid: u64,
    /// The time of the last read.
    pub atime: Time,
    /// The time of the last change of data.
    pub mtime: Time,
    /// The time of the last change of data or attributes.
    pub ctime: Time,
    /// The change attribute. It increases with each change of data or attributes, even if the clock of `ctime` has not
    /// ticked since the last change. [`FsCaps::counts_changes`] tells whether this includes changes by other programs.
    pub change: u64,
}

/// The attributes for weak cache consistency (RFC 1813 §2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreAttr {
    /// The size in bytes.
    pub size: u64,
    /// The time of the last change of data.
    pub mtime: Time,
    /// The time of the last change of data or attributes.
    pub ctime: Time,
    /// The change attribute: see [`Attr::change`].
    pub change: u64,
}

impl From<&Attr> for PreAttr {
    fn from(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime, ctime: attr.ctime, change: attr.change }
    }
}

/// The attributes of an object before and after an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The attributes before the operation.
    pub before: PreAttr,
    /// The attributes after the operation.
    pub after: Attr,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetTime {
    /// The current time of the server.
    Now,
    /// The given time.
    To(Time),
}

/// Attributes to set. An attribute that is `None` is not changed, or gets the default of a new object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SetAttr {
    /// The permission bits.
    pub mode: Option<u32>,
    /// The user ID of the owner.
    pub uid: Option<u32>,
    /// The group ID.
    pub gid: Option<u32>,
    /// The size in bytes. Setting it truncates the file or extends it with a hole.
    pub size: Option<u64>,
    /// The time of the last read.
    pub atime: Option<SetTime>,
    /// The time of the last change of data.
    pub mtime: Option<SetTime>,
}

/// A set of rights to an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights {
    /// The right to read a file's data or a directory's entries.
    pub read: bool,
    /// The right to look up names in a directory.
    pub lookup: bool,
    /// The right to change a file's data or a directory's entries.
    pub modify: bool,
    /// The right to append data to a file or add entries to a directory.
    pub extend: bool,
    /// The right to remove entries from a directory.
    pub delete: bool,
    /// The right to execute a file.
    pub execute: bool,
}

impl Rights {
    /// All rights.
    pub const ALL: Self = Self { read: true, lookup: true, modify: true, extend: true, delete: true, execute: true };

    /// Returns the rights that are in both sets.
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

/// The result of [`Vfs::read_into`](crate::Vfs::read_into).
#[derive(Clone, Debug)]
pub struct ReadInto {
    /// The number of bytes read.
    pub len: usize,
    /// `true` if they reach the end of the file.
    pub eof: bool,
    /// The attributes of the file.
    pub attr: Attr,
}

/// The result of [`Vfs::read`](crate::Vfs::read).
#[derive(Clone, Debug)]
pub struct Read {
    /// The data.
    pub data: Rope,
    /// `true` if the data reaches the end of the file.
    pub eof: bool,
    /// The attributes of the file.
    pub attr: Attr,
}

/// The durability that a write must have before it is acknowledged. Later variants include earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stability {
    /// The data may be lost if the server crashes.
    Unstable,
    /// The data is durable, with the metadata that is needed to read it.
    DataSync,
    /// The data and all attributes are durable.
    FileSync,
}

/// The result of [`Vfs::write`](crate::Vfs::write).
#[derive(Clone, Debug)]
pub struct Written {
    /// The durability of the data, which is at least the requested one.
    pub stability: Stability,
    /// The attributes before the write, if the caller asked for them: see [`Report::Attributes`].
    pub before: Option<PreAttr>,
    /// The attributes after the write, if the caller asked for them.
    pub after: Option<Attr>,
}

/// The attributes that [`Vfs::write`](crate::Vfs::write) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// No attributes.
    Nothing,
    /// The attributes after the write and those before it. Those before can be missing if this writer knows them,
    /// because its own writes were the only recent changes of the file and each of them was reported.
    Attributes(Writer),
}

/// The ID of a writer. Writers with different IDs do not see each other's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Writer(pub u128);

/// The target of [`Vfs::seek`](crate::Vfs::seek).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SeekFor {
    /// Bytes that take storage.
    Data,
    /// A hole: bytes that are zero and take no storage.
    Hole,
}

/// The condition for setting an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum XattrMode {
    /// The attribute may exist.
    Either,
    /// The attribute must not exist.
    Create,
    /// The attribute must exist.
    Replace,
}

/// Maximum bytes of the value of an extended attribute.
pub const XATTR_MAX: usize = 64 << 10;

/// The way in which a file is created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CreateMode {
    /// Open an existing file, and set its size if given.
    Unchecked(SetAttr),
    /// Fail if the file exists.
    Guarded(SetAttr),
    /// Fail if the file exists, unless it was created with the same verifier (RFC 1813 §3.3.8).
    Exclusive([u8; 8]),
}

/// The result of creating an object.
#[derive(Clone, Debug)]
pub struct Created {
    /// The handle of the object.
    pub handle: Handle,
    /// The attributes of the object.
    pub attr: Attr,
    /// The change of the directory.
    pub dir: Change,
}

/// The type of object that [`Vfs::mknod`](crate::Vfs::mknod) creates.
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

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry<'a> {
    /// The name; it can be `.` or `..`.
    pub name: &'a [u8],
    /// The file number of the object.
    pub fileid: u64,
    /// The cookie to continue after this entry.
    pub cookie: u64,
    /// The handle and attributes of the object, if the caller asked for them and they are available.
    pub object: Option<(Handle, Attr)>,
}

/// The result of [`Vfs::readdir`](crate::Vfs::readdir) in addition to the entries.
#[derive(Clone, Debug)]
pub struct ReadDir {
    /// The verifier of the cookies.
    pub verifier: [u8; 8],
    /// `true` if the last entry has been listed.
    pub eof: bool,
    /// The attributes of the directory.
    pub attr: Attr,
}

/// The space and the number of objects of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// The total number of bytes.
    pub bytes_total: u64,
    /// The number of free bytes.
    pub bytes_free: u64,
    /// The number of bytes that the caller can use.
    pub bytes_available: u64,
    /// The total number of objects.
    pub files_total: u64,
    /// The number of free objects.
    pub files_free: u64,
    /// The number of objects that the caller can create.
    pub files_available: u64,
    /// The attributes of the object.
    pub attr: Attr,
}

/// The capabilities and limits of a tree.
#[derive(Clone, Debug)]
pub struct FsCaps {
    /// `true` if the tree supports hard links.
    pub links: bool,
    /// `true` if the tree supports symbolic links.
    pub symlinks: bool,
    /// Maximum number of names of an object.
    pub link_max: u32,
    /// Maximum length of a component, in bytes.
    pub name_max: u32,
    /// Maximum size of a file, in bytes.
    pub file_size_max: u64,
    /// The resolution of stored times, in nanoseconds.
    pub time_resolution_ns: u32,
    /// `true` if [`Attr::change`] counts all changes. Otherwise it counts changes by other programs only if they have
    /// changed the ctime.
    pub counts_changes: bool,
    /// `true` if only a privileged caller can change the owner of a file.
    pub chown_restricted: bool,
    /// `true` if operations may have to wait for storage.
    pub blocks: bool,
    /// `true` if operations can return [`VfsError::Pending`].
    pub completes_later: bool,
    /// `true` if objects can have ACLs.
    pub acls: bool,
    /// `true` if files and directories can have extended attributes.
    pub xattrs: bool,
    /// The required alignment of cloned ranges, in bytes; 0 if the tree does not support clones.
    pub clone_block: u32,
}
