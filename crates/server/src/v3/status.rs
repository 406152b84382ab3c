//! Conversion of file system errors to the status codes of NFSv3.

use nfs::v3::Nfsstat3;
use vfs::VfsError;
use xdr::{Encode, Encoder};

use crate::{
    call::error::{Fault, WouldBlock},
    sharing::conflict::Conflict,
};

/// The failure of an NFSv3 procedure.
pub(crate) type Fault3 = Fault<Nfsstat3>;

/// Returns the status of RFC 1813 §2.6 for an error of the file system.
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
        // NFSv3 has no extended attributes.
        VfsError::NoXattr | VfsError::XattrTooBig => Nfsstat3::Inval,
    }
}

impl From<VfsError> for Fault3 {
    fn from(error: VfsError) -> Self {
        match error {
            VfsError::WouldBlock => Fault::WouldBlock,
            error => Fault::Status(nfsstat3(error)),
        }
    }
}

impl From<Nfsstat3> for Fault3 {
    fn from(status: Nfsstat3) -> Self {
        Fault::Status(status)
    }
}

impl From<Conflict> for Fault3 {
    fn from(conflict: Conflict) -> Self {
        match conflict {
            Conflict::WouldBlock => Fault::WouldBlock,
            Conflict::Recalled => Nfsstat3::Jukebox.into(),
        }
    }
}

/// Appends a result to a reply: OK and the value, or a status and the value of `failure`.
pub(crate) fn encode_result<T: Encode, F: Encode>(
    out: &mut Encoder,
    result: Result<T, Fault3>,
    failure: impl FnOnce() -> Result<F, WouldBlock>,
) -> Result<Nfsstat3, WouldBlock> {
    match result {
        Ok(value) => {
            Nfsstat3::Ok.encode(out);
            value.encode(out);
            Ok(Nfsstat3::Ok)
        }
        Err(Fault::WouldBlock) => Err(WouldBlock),
        Err(Fault::Status(status)) => {
            status.encode(out);
            failure()?.encode(out);
            Ok(status)
        }
    }
}
