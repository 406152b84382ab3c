//! [`VfsError`]: what can go wrong in a file system, whatever the protocol above calls it.

use std::fmt;

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfsError {
    /// The operation has to wait and the caller must not. It has had no effect; it is called again on a thread that may wait.
    WouldBlock,
    /// The operation completes later, and may have had its effect already. Its future is in [`Caller::completion`](crate::Caller::completion);
    /// the [`pending`](crate::pending) module has the protocol.
    Pending,
    /// Not the owner, or not privileged.
    Perm,
    /// The name does not exist.
    NotFound,
    /// The storage failed.
    Io,
    /// No such device.
    NoDevice,
    /// The mode bits or ACL do not allow it.
    Access,
    /// The name exists.
    Exists,
    /// Across file systems.
    CrossDevice,
    /// Not a directory where one is needed.
    NotDir,
    /// A directory where none may be.
    IsDir,
    /// An argument makes no sense for this object.
    Invalid,
    /// Beyond the largest file.
    FileTooBig,
    /// No space.
    NoSpace,
    /// A read-only tree.
    ReadOnly,
    /// Too many links.
    TooManyLinks,
    /// A name or target that is too long.
    NameTooLong,
    /// A directory that is not empty.
    NotEmpty,
    /// Quota exceeded.
    Quota,
    /// The handle's object is gone.
    Stale,
    /// Not a handle of this tree.
    BadHandle,
    /// The guard is not the object's ctime.
    NotSync,
    /// A directory cookie that is no longer good.
    BadCookie,
    /// Not possible in this tree.
    NotSupported,
    /// Of a type that cannot be made here.
    BadType,
    /// There is no extended attribute of this name.
    NoXattr,
    /// An extended attribute is larger than it may be.
    XattrTooBig,
    /// Some resource is short; trying again later may help.
    Delay,
}

impl fmt::Display for VfsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VfsError::WouldBlock => "would block",
            VfsError::Pending => "pending",
            VfsError::Perm => "operation not permitted",
            VfsError::NotFound => "no such file or directory",
            VfsError::Io => "input/output error",
            VfsError::NoDevice => "no such device",
            VfsError::Access => "permission denied",
            VfsError::Exists => "file exists",
            VfsError::CrossDevice => "cross-device link",
            VfsError::NotDir => "not a directory",
            VfsError::IsDir => "is a directory",
            VfsError::Invalid => "invalid argument",
            VfsError::FileTooBig => "file too large",
            VfsError::NoSpace => "no space left",
            VfsError::ReadOnly => "read-only file system",
            VfsError::TooManyLinks => "too many links",
            VfsError::NameTooLong => "name too long",
            VfsError::NotEmpty => "directory not empty",
            VfsError::Quota => "quota exceeded",
            VfsError::Stale => "stale file handle",
            VfsError::BadHandle => "not a file handle of this tree",
            VfsError::NotSync => "object has changed",
            VfsError::BadCookie => "stale directory cookie",
            VfsError::NotSupported => "not supported",
            VfsError::BadType => "unsupported type",
            VfsError::NoXattr => "no such extended attribute",
            VfsError::XattrTooBig => "extended attribute too big",
            VfsError::Delay => "resource temporarily short",
        })
    }
}

impl std::error::Error for VfsError {}
