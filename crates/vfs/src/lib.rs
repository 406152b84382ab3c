//! The file system interface and its back ends.
//!
//! This crate is independent of NFS, RPC and RDMA. A [`Vfs`] is one exported tree. Opaque [`Handle`]s identify its
//! objects, and stay valid as long as the objects exist.
//!
//! **Operations are plain functions.** [`Caller::may_block`] is `true` if the thread may wait for a disk. If it must
//! not wait but the operation has to, the operation returns [`VfsError::WouldBlock`] without an effect, and the caller
//! runs it again on a thread that may wait.
//!
//! **An operation can complete later.** It then returns [`VfsError::Pending`] and occupies no thread while it waits.
//! The [`pending`] module defines the protocol.
//!
//! **Data can be on other servers.** [`Vfs::layouts`] then tells clients where. The [`layout`] module defines it.
//!
//! **A removed file can be kept.** [`Vfs::hold`] keeps it for those that have it open.
//!
//! **Identity.** Every operation runs with the rights of its [`Caller::cred`].
//!
//! An operation that fails changes nothing, unless the documentation of its errors says otherwise.

mod acl;
mod error;
mod hold;
pub mod interpose;
pub mod layout;
pub mod memory;
pub mod passthrough;
pub mod pending;
mod permission;
pub mod posix;
pub mod private;
mod types;

pub use acl::{ACL_ENTRIES_MAX, Acl, AclEntry, AclKind, AclWho};
pub use error::VfsError;
pub use hold::{Held, Hold};
pub use layout::Layouts;
pub use pending::{Completion, CompletionFuture, CompletionSlot};
pub use types::*;

use std::{ops::ControlFlow, os::fd::OwnedFd};

use buf::{Pool, Rope};

/// The result of an operation.
pub type Result<T> = std::result::Result<T, VfsError>;

/// A file system tree that can be exported.
///
/// Every name is one component. [`Name`] rejects empty names, slashes and zero bytes. Only [`lookup`](Self::lookup)
/// accepts `.` and `..`. They exist for operations that create a name, and are invalid for operations that remove or
/// rename one.
///
/// New objects get the given mode, without a umask. The default is 0644, and 0755 for directories. New objects in a
/// set-group-id directory get the directory's group.
pub trait Vfs: Send + Sync + 'static {
    /// Returns the capabilities and limits of the tree.
    fn caps(&self) -> &FsCaps;

    /// Returns the root directory.
    fn root(&self) -> Handle;

    /// Returns the write verifier. It changes whenever uncommitted writes may have been lost. A back end that caches
    /// writes changes it at every start of the server (RFC 1813 §3.3.7).
    fn write_verifier(&self) -> [u8; 8];

    /// Returns the object of a handle that another program has computed. A tree that has such handles verifies that the program was
    /// allowed to do so. The default is that there are none.
    ///
    /// # Errors
    /// Returns `BadHandle` for bytes that are no such handle, and `Stale` for a handle that is forged or of another tree.
    fn adopt(&self, handle: &[u8]) -> Result<Handle> {
        let _ = handle;
        Err(VfsError::Stale)
    }

    /// Looks up `name` in `dir`. `.` is `dir`, and `..` is its parent. The parent of the root is the root.
    ///
    /// # Errors
    /// Returns `NotFound`, `NotDir` or `Access`.
    fn lookup(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Attr)>;

    /// Looks up `name` like [`lookup`](Self::lookup), for a caller that needs only the handle and the kind of the
    /// object.
    ///
    /// # Errors
    /// Returns the errors of [`lookup`](Self::lookup).
    fn find(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<(Handle, Kind)> {
        self.lookup(caller, dir, name).map(|(handle, attr)| (handle, attr.kind))
    }

    /// Holds a regular file: it keeps its data, and all operations on its handle still succeed, after its last name was
    /// removed or replaced by an operation of this tree, until the last hold ends. Its link count is then 0, and it gets no new
    /// name: [`link`](Self::link) returns `NotFound`. A file need not be kept if another program removes it. Holds do not
    /// survive a restart.
    ///
    /// A file can be held any number of times. The default holds nothing: it is for trees whose removed files are lost.
    ///
    /// # Errors
    /// Returns `IsDir` or `Invalid` for other objects, `Stale`, `Delay`, and `WouldBlock`.
    fn hold(&self, caller: &Caller<'_>, file: &Handle) -> Result<Held> {
        let _ = (caller, file);
        Ok(Held::default())
    }

    /// Returns the attributes of an object. No permission is required.
    ///
    /// # Errors
    /// Returns `Stale`.
    fn getattr(&self, caller: &Caller<'_>, object: &Handle) -> Result<Attr>;

    /// Sets attributes. If this fails, some of them may have been set.
    ///
    /// # Errors
    /// Returns `NotSync` if `guard` is given and differs from the object's ctime; `Perm`, `Access` and others.
    fn setattr(&self, caller: &Caller<'_>, object: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change>;

    /// Returns the subset of the `wanted` rights that the caller has, and the attributes.
    ///
    /// # Errors
    /// Returns `Stale`.
    fn access(&self, caller: &Caller<'_>, object: &Handle, wanted: Rights) -> Result<(Rights, Attr)>;

    /// Returns rights like [`access`](Self::access), for a caller that does not need the attributes.
    ///
    /// # Errors
    /// Returns the errors of [`access`](Self::access). A removed object need not be an error here.
    fn permits(&self, caller: &Caller<'_>, object: &Handle, wanted: Rights) -> Result<Rights> {
        self.access(caller, object, wanted).map(|(rights, _)| rights)
    }

    /// Returns the target and the attributes of a symbolic link.
    ///
    /// # Errors
    /// Returns `Invalid` if the object is not a symbolic link.
    fn readlink(&self, caller: &Caller<'_>, link: &Handle) -> Result<(bytes::Bytes, Attr)>;

    /// Reads up to `into.len()` bytes into `into`. The owner of a file may read it whatever its mode is, and so may a
    /// caller with permission to execute it (RFC 1813 §4.4).
    ///
    /// # Errors
    /// Returns `IsDir`, `Invalid`, `Access` and others.
    fn read_into(&self, caller: &Caller<'_>, file: &Handle, offset: u64, into: &mut [u8]) -> Result<ReadInto>;

    /// Reads up to `len` bytes. The data is lent from the back end's own memory if possible, and is otherwise in a
    /// buffer of `pool`. With `file_ranges`, the data can be a range of an open file.
    ///
    /// # Errors
    /// Returns the errors of [`read_into`](Self::read_into).
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

    /// Reads data like [`read`](Self::read), for a caller that does not need the attributes. Returns the data, and `true`
    /// if they reach the end of the file.
    ///
    /// # Errors
    /// Returns the errors of [`read_into`](Self::read_into).
    fn read_data(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        len: usize,
        pool: &Pool,
        file_ranges: bool,
    ) -> Result<(Rope, bool)> {
        self.read(caller, file, offset, len, pool, file_ranges).map(|read| (read.data, read.eof))
    }

    /// Opens a regular file for reading, for a process on this host that gets the descriptor and then reads without this back end. The
    /// caller needs the permission to read. Nobody else uses the open file description.
    ///
    /// # Errors
    /// Returns `NotSupported` if the data are not a file of a local file system; otherwise the errors of
    /// [`read_into`](Self::read_into).
    fn pass_file(&self, caller: &Caller<'_>, file: &Handle) -> Result<OwnedFd> {
        let _ = (caller, file);
        Err(VfsError::NotSupported)
    }

    /// Writes all of `data` at `offset`. The owner of a file may write it whatever its mode is. The back end can keep
    /// pieces of `data` instead of copying them. It returns only the attributes that `report` asks for, because reading
    /// them can cost as much as a small write.
    ///
    /// # Errors
    /// Returns `NoSpace`, `FileTooBig`, `Quota` and others. The first bytes may have been written.
    fn write(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        data: &Rope,
        stability: Stability,
        report: Report,
    ) -> Result<Written>;

    /// Makes earlier writes to a range durable. `len` 0 means to the end of the file.
    ///
    /// # Errors
    /// Returns `Io` if they may have been lost. The write verifier has then changed.
    fn commit(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change>;

    /// Creates a regular file, or opens an existing one if `mode` allows that.
    ///
    /// # Errors
    /// Returns `Exists`, `NoSpace` and others.
    fn create(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, mode: &CreateMode) -> Result<Created>;

    /// Creates a directory.
    ///
    /// # Errors
    /// Returns `Exists` and others.
    fn mkdir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, set: &SetAttr) -> Result<Created>;

    /// Creates a symbolic link to `target`, which is not interpreted.
    ///
    /// # Errors
    /// Returns `Exists`, `NameTooLong` and others.
    fn symlink(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Result<Created>;

    /// Creates a device, socket or named pipe.
    ///
    /// # Errors
    /// Returns `Perm` if the caller may not create devices; `Exists`, `NotSupported` and others.
    fn mknod(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Result<Created>;

    /// Removes a name of an object that is not a directory.
    ///
    /// # Errors
    /// Returns `IsDir`, `NotFound` and others; `Delay` if it is the last name of a [held](Self::hold) file and too many such files are
    /// kept already.
    fn remove(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Returns `NotEmpty`, `NotDir` and others.
    fn rmdir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name) -> Result<Change>;

    /// Renames an object, and replaces an existing object at the target if possible. Returns the changes of both
    /// directories.
    ///
    /// # Errors
    /// Returns `NotEmpty`, `IsDir`, `NotDir`, `Invalid` (a directory into itself), `CrossDevice` and others; `Delay` like
    /// [`remove`](Self::remove).
    fn rename(
        &self,
        caller: &Caller<'_>,
        from_dir: &Handle,
        from: &Name,
        to_dir: &Handle,
        to: &Name,
    ) -> Result<(Change, Change)>;

    /// Creates a hard link to an object that is not a directory. Returns the directory's change and the object's
    /// attributes.
    ///
    /// # Errors
    /// Returns `Exists`, `TooManyLinks`, `IsDir` and others.
    fn link(&self, caller: &Caller<'_>, object: &Handle, dir: &Handle, name: &Name) -> Result<(Change, Attr)>;

    /// Calls `each` for the entries after `cookie`, in order, until it returns `Break`. Cookie 0 means from the start,
    /// with `.` and `..`. Cookies stay valid while the directory changes: an entry that exists during the whole listing
    /// is listed exactly once. With `attrs`, entries have a handle and attributes if they are available.
    ///
    /// # Errors
    /// Returns `BadCookie` if `cookie` is no longer valid, or `verifier` is not that of the reply with the cookie.
    fn readdir(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        cookie: u64,
        verifier: [u8; 8],
        attrs: bool,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<ReadDir>;

    /// Returns an object's ACL and its attributes. The ACL is `None` if the mode has the same meaning or, for
    /// [`AclKind::Default`], if there is none.
    ///
    /// # Errors
    /// Returns `NotSupported` without [`FsCaps::acls`].
    fn acl(&self, caller: &Caller<'_>, object: &Handle, kind: AclKind) -> Result<(Option<Acl>, Attr)> {
        let _ = (caller, object, kind);
        Err(VfsError::NotSupported)
    }

    /// Sets or removes an object's ACL, and sets the permission bits of its mode accordingly. Without an ACL, only the
    /// mode decides.
    ///
    /// # Errors
    /// Returns `NotSupported` without [`FsCaps::acls`] and for symbolic links; `Perm` if the caller is not the owner;
    /// and `Access` for a default ACL of an object that is not a directory.
    fn set_acl(&self, caller: &Caller<'_>, object: &Handle, kind: AclKind, acl: Option<&Acl>) -> Result<Change> {
        let _ = (caller, object, kind, acl);
        Err(VfsError::NotSupported)
    }

    /// Returns the offset of the next data or hole at or after `offset`, or `None` if there is none before the end of
    /// the file.
    ///
    /// # Errors
    /// Returns `NoDevice` if `offset` is at or beyond the end of the file, and `NotSupported` if the tree does not know
    /// its holes.
    fn seek(&self, caller: &Caller<'_>, file: &Handle, offset: u64, what: SeekFor) -> Result<Option<u64>> {
        let _ = (caller, file, offset, what);
        Err(VfsError::NotSupported)
    }

    /// Allocates space for a range, so that writes to it need no more, and extends the file to the end of the range if
    /// it is shorter.
    ///
    /// # Errors
    /// Returns `NoSpace`, `FileTooBig`, `NotSupported` and others.
    fn allocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        let _ = (caller, file, offset, len);
        Err(VfsError::NotSupported)
    }

    /// Makes the part of a range that lies in the file a hole. The size of the file does not change.
    ///
    /// # Errors
    /// Returns `NotSupported` and others.
    fn deallocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        let _ = (caller, file, offset, len);
        Err(VfsError::NotSupported)
    }

    /// Copies up to `len` bytes from one file to another, or within one file if the ranges do not overlap. Returns the
    /// number of copied bytes, which is less if the source ends or if the copy would take too long. The copy is as
    /// durable as an unstable write.
    ///
    /// # Errors
    /// Returns the errors of reading and writing; `Invalid` for ranges that overlap; `NotSupported`.
    fn copy(&self, caller: &Caller<'_>, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<u64> {
        let _ = (caller, from, to, len);
        Err(VfsError::NotSupported)
    }

    /// Copies a whole range atomically by sharing storage. `len` 0 means to the end of the source.
    ///
    /// # Errors
    /// Returns `NotSupported` without [`FsCaps::clone_block`], and `Invalid` for ranges that are not aligned to it or
    /// extend beyond the end of the source.
    fn clone_range(&self, caller: &Caller<'_>, from: (&Handle, u64), to: (&Handle, u64), len: u64) -> Result<Change> {
        let _ = (caller, from, to, len);
        Err(VfsError::NotSupported)
    }

    /// Returns the value of an extended attribute of class `user`. A caller that may read a file or directory may read
    /// its attributes.
    ///
    /// # Errors
    /// Returns `NoXattr`; `NotSupported` without [`FsCaps::xattrs`]; `Perm` if the object is neither a file nor a
    /// directory.
    fn xattr(&self, caller: &Caller<'_>, object: &Handle, name: &Name) -> Result<bytes::Bytes> {
        let _ = (caller, object, name);
        Err(VfsError::NotSupported)
    }

    /// Sets an extended attribute of class `user`. A caller that may write a file or directory may set its attributes.
    ///
    /// # Errors
    /// Returns `Exists` or `NoXattr` according to `how`; `XattrTooBig`; `NoSpace`; and the errors of
    /// [`xattr`](Self::xattr).
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

    /// Removes an extended attribute of class `user`.
    ///
    /// # Errors
    /// Returns the errors of [`xattr`](Self::xattr).
    fn remove_xattr(&self, caller: &Caller<'_>, object: &Handle, name: &Name) -> Result<Change> {
        let _ = (caller, object, name);
        Err(VfsError::NotSupported)
    }

    /// Returns the names of an object's extended attributes of class `user`, in order.
    ///
    /// # Errors
    /// Returns the errors of [`xattr`](Self::xattr).
    fn xattrs(&self, caller: &Caller<'_>, object: &Handle) -> Result<Vec<bytes::Bytes>> {
        let _ = (caller, object);
        Err(VfsError::NotSupported)
    }

    /// Returns the path of an object from the root, without a slash at its start, if it is known without waiting for storage.
    /// The path is for logs: it can change at any time. An object can have several paths or none. The default is `None`.
    fn path(&self, object: &Handle) -> Option<Vec<u8>> {
        let _ = object;
        None
    }

    /// Returns the total and the free space and number of objects.
    ///
    /// # Errors
    /// Returns `Stale`.
    fn statfs(&self, caller: &Caller<'_>, object: &Handle) -> Result<StatFs>;

    /// Returns the layouts of the tree, if its files can be on data servers that clients use directly. A tree has layouts
    /// always or never. The default is `None`.
    fn layouts(&self) -> Option<&dyn Layouts> {
        None
    }
}
