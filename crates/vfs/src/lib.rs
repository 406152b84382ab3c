//! The file system interface, and the backends behind it.
//!
//! This crate knows nothing of NFS, RPC or RDMA. A [`Vfs`] is one exported tree; its objects are
//! named by opaque [`Handle`]s that stay valid as long as the object exists.
//!
//! **Operations are plain functions.** [`Caller::may_block`] tells whether the thread may wait for a disk. Where it must
//! not and has to, the operation returns [`VfsError::WouldBlock`] without an effect, and the caller runs it again on a
//! thread that may.
//!
//! **An operation can complete later.** It then returns [`VfsError::Pending`] and occupies no thread while it waits. The
//! [`pending`] module has the protocol.
//!
//! **Identity.** Every operation runs with the rights of its [`Caller::cred`].
//!
//! On error nothing has changed, unless the error's description says otherwise.

mod acl;
mod error;
pub mod interpose;
pub mod memory;
pub mod pending;
mod permission;
pub mod posix;
pub mod private;
mod types;

pub use acl::{ACL_ENTRIES_MAX, Acl, AclEntry, AclKind, AclWho};
pub use error::VfsError;
pub use pending::{Completion, CompletionFuture, CompletionSlot};
pub use types::*;

use std::ops::ControlFlow;

use buf::{Pool, Rope};

/// The result of an operation.
pub type Result<T> = std::result::Result<T, VfsError>;

/// One file system tree that can be served.
///
/// Every name is one component: [`Name`] refuses empty names, slashes and zero bytes; `.` and `..`
/// are decided by [`lookup`](Self::lookup), exist for whatever makes a name, and are invalid to whatever takes one.
///
/// Modes of new objects are as given, without a umask; where none is given, 0644 and for directories 0755. In a
/// set-group-id directory, new objects are of the directory's group.
pub trait Vfs: Send + Sync + 'static {
    /// What the tree can do, and its limits.
    fn caps(&self) -> &FsCaps;

    /// The root directory.
    fn root(&self) -> Handle;

    /// Changes whenever writes that were not committed may have been lost: at every start of the server
    /// for a backend that caches writes (RFC 1813 §3.3.7).
    fn write_verifier(&self) -> [u8; 8];

    /// Finds `name` in `dir`. `.` is `dir`; `..` is its parent, and the root's parent is the root.
    ///
    /// # Errors
    /// `NotFound`, `NotDir`, `Access`.
    fn lookup(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Attr)>;

    /// As [`lookup`](Self::lookup), where nobody asks for the attributes: what the object is called and what it is.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
    fn find(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Kind)> {
        self.lookup(caller, dir, name).map(|(handle, attr)| (handle, attr.kind))
    }

    /// The attributes of an object. Needs no permission.
    ///
    /// # Errors
    /// `Stale`.
    fn getattr(&self, caller: &Caller<'_>, object: &Handle) -> Result<Attr>;

    /// Sets attributes; all or, on error, possibly some of them.
    ///
    /// # Errors
    /// `NotSync` if `guard` is given and is not the object's ctime; `Perm`, `Access`, …
    fn setattr(&self, caller: &Caller<'_>, object: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change>;

    /// Which of the `wanted` rights the caller has.
    ///
    /// # Errors
    /// `Stale`.
    fn access(&self, caller: &Caller<'_>, object: &Handle, wanted: Rights) -> Result<(Rights, Attr)>;

    /// As [`access`](Self::access), where nobody asks for the attributes.
    ///
    /// # Errors
    /// As [`access`](Self::access); an object that has been removed may still have rights.
    fn permits(&self, caller: &Caller<'_>, object: &Handle, wanted: Rights) -> Result<Rights> {
        self.access(caller, object, wanted).map(|(rights, _)| rights)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` if it is none.
    fn readlink(&self, caller: &Caller<'_>, link: &Handle) -> Result<(bytes::Bytes, Attr)>;

    /// Reads up to `into.len()` bytes into `into`. A caller who owns the file may read it whatever its mode says, and
    /// so may one who may execute it (RFC 1813 §4.4).
    ///
    /// # Errors
    /// `IsDir`, `Invalid`, `Access`, …
    fn read_into(&self, caller: &Caller<'_>, file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto>;

    /// Reads up to `len` bytes, lent from the backend's own memory where it can, else in a buffer of `pool`.
    /// With `file_ranges`, the data may be a range of an open file.
    ///
    /// # Errors
    /// As [`read_into`](Self::read_into).
    fn read(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        len: usize,
        pool: &Pool,
        file_ranges: bool,
    ) -> Result<Read> {
        let _ = file_ranges;
        let mut buffer = pool.take(len);
        let ReadInto { len, eof, attr } = self.read_into(caller, file, offset, &mut buffer)?;
        buffer.set_len(len);
        Ok(Read { data: Rope::from(buffer.freeze()), eof, attr })
    }

    /// Writes all of `data` at `offset`. A caller who owns the file may write it whatever its mode says. The backend may
    /// keep pieces of `data` instead of copying them. It reports attributes only as far as `report` asks for them, because they can cost as
    /// much as a small write.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooBig`, `Quota`, …; the first bytes may have been written.
    fn write(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        data: &Rope,
        stability: Stability,
        report: Report,
    ) -> Result<Written>;

    /// Makes earlier writes to the range durable; `len` 0 means to the end.
    ///
    /// # Errors
    /// `Io` if they may have been lost: the write verifier has then changed.
    fn commit(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change>;

    /// Makes a regular file, or opens one that exists as `mode` allows.
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, …
    fn create(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, mode: &CreateMode) -> Result<Created>;

    /// Makes a directory.
    ///
    /// # Errors
    /// `Exists`, …
    fn mkdir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, set: &SetAttr) -> Result<Created>;

    /// Makes a symbolic link to `target`, which is not interpreted.
    ///
    /// # Errors
    /// `Exists`, `NameTooLong`, …
    fn symlink(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Result<Created>;

    /// Makes a device, socket or pipe.
    ///
    /// # Errors
    /// `Perm` for devices unless the caller may; `Exists`, `NotSupported`, …
    fn mknod(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Result<Created>;

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// `IsDir`, `NotFound`, …
    fn remove(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotEmpty`, `NotDir`, …
    fn rmdir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change>;

    /// Moves a name, replacing what is at the target if it can be; both directories' changes come back.
    ///
    /// # Errors
    /// `NotEmpty`, `IsDir`, `NotDir`, `Invalid` (into itself), `CrossDevice`, …
    fn rename(
        &self,
        caller: &Caller<'_>,
        from_dir: &Handle,
        from: &Name,
        to_dir: &Handle,
        to: &Name,
    ) -> Result<(Change, Change)>;

    /// Gives an object that is not a directory a further name. Returns the directory's change and the object's attributes.
    ///
    /// # Errors
    /// `Exists`, `TooManyLinks`, `IsDir`, …
    fn link(&self, caller: &Caller<'_>, object: &Handle, dir: &Handle, name: &Name) -> Result<(Change, Attr)>;

    /// Calls `each` for the entries after `cookie` (0: from the start, with `.` and `..`) until it breaks.
    /// Cookies stay valid while the directory changes: an entry that was there all along is seen exactly once.
    /// With `attrs`, entries come with handle and attributes where they are to be had.
    ///
    /// # Errors
    /// `BadCookie` if `cookie` or `verifier` (of the reply that gave the cookie) is no longer good.
    fn readdir(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        attrs: bool,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<ReadDir>;

    /// An object's ACL, and its attributes; no ACL if its mode says all, or, for [`AclKind::Default`], if there is none.
    ///
    /// # Errors
    /// `NotSupported` unless [`FsCaps::acls`].
    fn acl(&self, caller: &Caller<'_>, object: &Handle, kind: AclKind) -> Result<(Option<Acl>, Attr)> {
        let _ = (caller, object, kind);
        Err(VfsError::NotSupported)
    }

    /// Sets an object's ACL, and with it its mode's permission bits; without one, the mode decides alone.
    ///
    /// # Errors
    /// `NotSupported` unless [`FsCaps::acls`], and for symbolic links; `Perm` for all but the owner; `Access` for a default
    /// ACL of what is no directory.
    fn set_acl(&self, caller: &Caller<'_>, object: &Handle, kind: AclKind, acl: Option<&Acl>) -> Result<Change> {
        let _ = (caller, object, kind, acl);
        Err(VfsError::NotSupported)
    }

    /// Where data, or a hole, begins: at `offset` or behind it; `None` if there is none up to the end of the file.
    ///
    /// # Errors
    /// `NoDevice` from the end on; `NotSupported` if the tree does not know.
    fn seek(&self, caller: &Caller<'_>, file: &Handle, offset: u64, what: SeekFor) -> Result<Option<u64>> {
        let _ = (caller, file, offset, what);
        Err(VfsError::NotSupported)
    }

    /// Sees to it that writes to a range need no more space, and that the file reaches its end.
    ///
    /// # Errors
    /// `NoSpace`, `FileTooBig`, `NotSupported`, …
    fn allocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        let _ = (caller, file, offset, len);
        Err(VfsError::NotSupported)
    }

    /// Makes a range a hole, as far as it lies in the file, whose size stays.
    ///
    /// # Errors
    /// `NotSupported`, …
    fn deallocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        let _ = (caller, file, offset, len);
        Err(VfsError::NotSupported)
    }

    /// Copies up to `len` bytes from one file to another, or within one where the ranges do not overlap; returns how many,
    /// which are fewer where the source ends, or where it would take long. They are as durable as an unstable write.
    ///
    /// # Errors
    /// As of reading and writing; `Invalid` for ranges that overlap; `NotSupported`.
    fn copy(&self, caller: &Caller<'_>, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<u64> {
        let _ = (caller, from, to, len);
        Err(VfsError::NotSupported)
    }

    /// As [`copy`](Self::copy), all of it and at once, by sharing storage; `len` 0 means to the end of the source.
    ///
    /// # Errors
    /// `NotSupported` unless [`FsCaps::clone_block`]; `Invalid` for ranges that are not aligned to that, or beyond the end of
    /// the source.
    fn clone_range(&self, caller: &Caller<'_>, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<Change> {
        let _ = (caller, from, to, len);
        Err(VfsError::NotSupported)
    }

    /// The value of a user's extended attribute. Who may read a file or directory may read these.
    ///
    /// # Errors
    /// `NoXattr`; `NotSupported` unless [`FsCaps::xattrs`]; `Perm` for what is neither file nor directory.
    fn xattr(&self, caller: &Caller<'_>, object: &Handle, name: &Name) -> Result<bytes::Bytes> {
        let _ = (caller, object, name);
        Err(VfsError::NotSupported)
    }

    /// Sets a user's extended attribute. Who may write a file or directory may set these.
    ///
    /// # Errors
    /// `Exists` and `NoXattr` as `how` says; `XattrTooBig`, `NoSpace`; as [`xattr`](Self::xattr).
    fn set_xattr(
        &self,
        caller: &Caller<'_>,
        object: &Handle,
        name: &Name,
        value: &[u8],
        how: XattrMode,
    ) -> Result<Change> {
        let _ = (caller, object, name, value, how);
        Err(VfsError::NotSupported)
    }

    /// Removes a user's extended attribute.
    ///
    /// # Errors
    /// As [`xattr`](Self::xattr).
    fn remove_xattr(&self, caller: &Caller<'_>, object: &Handle, name: &Name) -> Result<Change> {
        let _ = (caller, object, name);
        Err(VfsError::NotSupported)
    }

    /// The names of an object's extended attributes that are users', in order.
    ///
    /// # Errors
    /// As [`xattr`](Self::xattr).
    fn xattrs(&self, caller: &Caller<'_>, object: &Handle) -> Result<Vec<bytes::Bytes>> {
        let _ = (caller, object);
        Err(VfsError::NotSupported)
    }

    /// Space and objects, total and free.
    ///
    /// # Errors
    /// `Stale`.
    fn statfs(&self, caller: &Caller<'_>, object: &Handle) -> Result<StatFs>;
}
