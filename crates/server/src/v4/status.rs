//! Converts errors of the file system to the status codes of NFSv4.

use nfs::v4::Nfsstat4;
use vfs::VfsError;

use crate::{call::error::Fault, export::policy::Refusal, identity::names::NameError, sharing::conflict::Conflict};

/// The failure of an operation.
pub(crate) type Fault4 = Fault<Nfsstat4>;

/// Returns the status of RFC 8881 §15.1 for an error of the file system.
pub(crate) fn nfsstat4(error: VfsError) -> Nfsstat4 {
    match error {
        // Version 4 has no guarded SETATTR, so NOT_SYNC does not exist. A concurrent change makes the client retry.
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

impl From<VfsError> for Fault4 {
    fn from(error: VfsError) -> Self {
        match error {
            VfsError::WouldBlock => Fault::WouldBlock,
            error => Fault::Status(nfsstat4(error)),
        }
    }
}

/// Returns the status for a caller that may not use an export.
pub(crate) fn refusal(refusal: Refusal) -> Nfsstat4 {
    match refusal {
        Refusal::WrongSec => Nfsstat4::WrongSec,
        refusal => nfsstat4(refusal.into()),
    }
}

impl From<Refusal> for Fault4 {
    fn from(refused: Refusal) -> Self {
        refusal(refused).into()
    }
}

impl From<Nfsstat4> for Fault4 {
    fn from(status: Nfsstat4) -> Self {
        Fault::Status(status)
    }
}

impl From<Conflict> for Fault4 {
    fn from(conflict: Conflict) -> Self {
        match conflict {
            Conflict::WouldBlock => Fault::WouldBlock,
            Conflict::Recalled => Nfsstat4::Delay.into(),
        }
    }
}

impl From<NameError> for Fault4 {
    fn from(error: NameError) -> Self {
        match error {
            NameError::WouldBlock => Fault::WouldBlock,
            NameError::Invalid => Nfsstat4::Inval.into(),
            NameError::Unknown => Nfsstat4::BadOwner.into(),
        }
    }
}
