//! From the file system's errors to NFS status codes.

use nfs::v3::Nfsstat3;
use vfs::VfsError;

/// The status of RFC 1813 §2.6 for an error of the file system.
pub(crate) fn nfsstat3(error: VfsError) -> Nfsstat3 {
    match error {
        VfsError::WouldBlock | VfsError::Delay => Nfsstat3::Jukebox,
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
    }
}

/// The thread may not wait and would have to: the call runs again where it may. Nothing has been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WouldBlock;

/// Why a procedure did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It has to run where it may wait.
    WouldBlock,
    /// The client is told this.
    Status(Nfsstat3),
}

impl From<VfsError> for Fault {
    fn from(error: VfsError) -> Self {
        match error {
            VfsError::WouldBlock => Fault::WouldBlock,
            error => Fault::Status(nfsstat3(error)),
        }
    }
}

impl From<Nfsstat3> for Fault {
    fn from(status: Nfsstat3) -> Self {
        Fault::Status(status)
    }
}
