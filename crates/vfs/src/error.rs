//! [`VfsError`]: the errors of a file system, independent of the protocol above it.

use std::fmt;

/// The reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfsError {
    /// The operation would have to wait, and the caller must not. It has had no effect. Call it again on a thread that
    /// may wait.
    WouldBlock,
    /// The operation completes later, and may already have had its effect. Its future is in
    /// [`Caller::completion`](crate::Caller::completion). The [`pending`](crate::pending) module defines the protocol.
    Pending,
    /// The caller is not the owner or not privileged.
    Perm,
    /// The name does not exist.
    NotFound,
    /// The storage failed.
    Io,
    /// No such device.
    NoDevice,
    /// The mode or the ACL denies access.
    Access,
    /// The name already exists.
    Exists,
    /// The operation would cross file systems.
    CrossDevice,
    /// The object is not a directory, but must be one.
    NotDir,
    /// The object is a directory, but must not be one.
    IsDir,
    /// An argument is not valid for this object.
    Invalid,
    /// The operation would exceed the maximum file size.
    FileTooBig,
    /// No space is left.
    NoSpace,
    /// The tree is read-only.
    ReadOnly,
    /// The object would have too many links.
    TooManyLinks,
    /// A name or link target is too long.
    NameTooLong,
    /// The directory is not empty.
    NotEmpty,
    /// A quota is exceeded.
    Quota,
    /// The object of the handle does not exist any more.
    Stale,
    /// The bytes are not a handle of this tree.
    BadHandle,
    /// The guard differs from the object's ctime.
    NotSync,
    /// A directory cookie is no longer valid.
    BadCookie,
    /// The tree does not support the operation.
    NotSupported,
    /// Objects of this type cannot be created here.
    BadType,
    /// The object has no extended attribute of this name.
    NoXattr,
    /// An extended attribute is too large.
    XattrTooBig,
    /// A resource is temporarily exhausted. The caller can retry later.
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
            VfsError::BadHandle => "invalid file handle",
            VfsError::NotSync => "object has changed",
            VfsError::BadCookie => "stale directory cookie",
            VfsError::NotSupported => "not supported",
            VfsError::BadType => "unsupported type",
            VfsError::NoXattr => "no such extended attribute",
            VfsError::XattrTooBig => "extended attribute too big",
            VfsError::Delay => "resource temporarily unavailable",
        })
    }
}

impl std::error::Error for VfsError {}
