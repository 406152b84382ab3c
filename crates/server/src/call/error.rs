//! From the file system's errors to NFS status codes.

use nfs::{v3::Nfsstat3, v4::Nfsstat4};
use vfs::VfsError;

/// The status of RFC 1813 §2.6 for an error of the file system.
pub(crate) fn nfsstat3(error: VfsError) -> Nfsstat3 {
    match error {
        VfsError::WouldBlock | VfsError::Pending | VfsError::Delay => Nfsstat3::Jukebox,
        VfsError::Perm => Nfsstat3::Perm,
        VfsError::NotFound => Nfsstat3::NoEnt,
        VfsError::Io => Nfsstat3::Io,
        VfsError::NoDevice => Nfsstat3::NxIo,
        VfsError::Access => Nfsstat3::Acces,
        VfsError::Exists => Nfsstat3::Exist,
        VfsError::CrossDevice => Nfsstat3::XDev,
        VfsError::NotDir => Nfsstat3::NotDir,
        VfsError::IsDir => Nfsstat3::IsDir,
        VfsError::Invalid => Nfsstat3::Inval,
        VfsError::FileTooBig => Nfsstat3::FBig,
        VfsError::NoSpace => Nfsstat3::NoSpc,
        VfsError::ReadOnly => Nfsstat3::RoFs,
        VfsError::TooManyLinks => Nfsstat3::MLink,
        VfsError::NameTooLong => Nfsstat3::NameTooLong,
        VfsError::NotEmpty => Nfsstat3::NotEmpty,
        VfsError::Quota => Nfsstat3::DQuot,
        VfsError::Stale => Nfsstat3::Stale,
        VfsError::BadHandle => Nfsstat3::BadHandle,
        VfsError::NotSync => Nfsstat3::NotSync,
        VfsError::BadCookie => Nfsstat3::BadCookie,
        VfsError::NotSupported => Nfsstat3::NotSupp,
        VfsError::BadType => Nfsstat3::BadType,
        // Version 3 has no extended attributes.
        VfsError::NoXattr | VfsError::XattrTooBig => Nfsstat3::Inval,
    }
}

/// The status of RFC 8881 §15.1 for an error of the file system.
pub(crate) fn nfsstat4(error: VfsError) -> Nfsstat4 {
    match error {
        // There is no guard in version 4, so NotSync is of nobody who came first either.
        VfsError::WouldBlock | VfsError::Pending | VfsError::Delay | VfsError::NotSync => Nfsstat4::Delay,
        VfsError::Perm => Nfsstat4::Perm,
        VfsError::NotFound => Nfsstat4::NoEnt,
        VfsError::Io => Nfsstat4::Io,
        VfsError::NoDevice => Nfsstat4::NxIo,
        VfsError::Access => Nfsstat4::Access,
        VfsError::Exists => Nfsstat4::Exist,
        VfsError::CrossDevice => Nfsstat4::XDev,
        VfsError::NotDir => Nfsstat4::NotDir,
        VfsError::IsDir => Nfsstat4::IsDir,
        VfsError::Invalid => Nfsstat4::Inval,
        VfsError::FileTooBig => Nfsstat4::FBig,
        VfsError::NoSpace => Nfsstat4::NoSpc,
        VfsError::ReadOnly => Nfsstat4::RoFs,
        VfsError::TooManyLinks => Nfsstat4::MLink,
        VfsError::NameTooLong => Nfsstat4::NameTooLong,
        VfsError::NotEmpty => Nfsstat4::NotEmpty,
        VfsError::Quota => Nfsstat4::DQuot,
        VfsError::Stale => Nfsstat4::Stale,
        VfsError::BadHandle => Nfsstat4::BadHandle,
        VfsError::BadCookie => Nfsstat4::BadCookie,
        VfsError::NotSupported => Nfsstat4::NotSupp,
        VfsError::BadType => Nfsstat4::BadType,
        VfsError::NoXattr => Nfsstat4::NoXattr,
        VfsError::XattrTooBig => Nfsstat4::Xattr2Big,
    }
}

/// The call cannot go on in this run. Either the thread must not wait and has to, and the call runs again on one that may; or an
/// operation is pending ([`Journal::is_pending`](super::journal::Journal::is_pending)), and the call runs again when that has
/// completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WouldBlock;

/// Why a procedure or operation did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault<S = Nfsstat3> {
    /// It cannot go on in this run.
    WouldBlock,
    /// The client is told this.
    Status(S),
}

/// Why an operation of version 4 did not succeed.
pub(crate) type Fault4 = Fault<Nfsstat4>;

impl From<VfsError> for Fault {
    fn from(error: VfsError) -> Self {
        match error {
            VfsError::WouldBlock => Fault::WouldBlock,
            error => Fault::Status(nfsstat3(error)),
        }
    }
}

impl From<VfsError> for Fault4 {
    fn from(error: VfsError) -> Self {
        match error {
            VfsError::WouldBlock => Fault::WouldBlock,
            error => Fault::Status(nfsstat4(error)),
        }
    }
}

impl From<Nfsstat3> for Fault {
    fn from(status: Nfsstat3) -> Self {
        Fault::Status(status)
    }
}

impl From<Nfsstat4> for Fault4 {
    fn from(status: Nfsstat4) -> Self {
        Fault::Status(status)
    }
}
