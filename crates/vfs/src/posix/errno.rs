//! Conversion of the kernel's errors.

use rustix::io::Errno;

use crate::VfsError;

impl From<Errno> for VfsError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PERM => VfsError::Perm,
            Errno::NOENT => VfsError::NotFound,
            Errno::NXIO | Errno::NODEV => VfsError::NoDevice,
            // EBUSY: a mount point, or the root of another tree, which clients must not change.
            Errno::ACCESS | Errno::BUSY | Errno::TXTBSY => VfsError::Access,
            Errno::EXIST => VfsError::Exists,
            Errno::XDEV => VfsError::CrossDevice,
            Errno::NOTDIR => VfsError::NotDir,
            Errno::ISDIR => VfsError::IsDir,
            Errno::INVAL | Errno::LOOP => VfsError::Invalid,
            Errno::FBIG | Errno::OVERFLOW => VfsError::FileTooBig,
            Errno::NOSPC => VfsError::NoSpace,
            Errno::ROFS => VfsError::ReadOnly,
            Errno::MLINK => VfsError::TooManyLinks,
            Errno::NAMETOOLONG => VfsError::NameTooLong,
            Errno::NOTEMPTY => VfsError::NotEmpty,
            Errno::DQUOT => VfsError::Quota,
            Errno::STALE => VfsError::Stale,
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => VfsError::NotSupported,
            Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::AGAIN => VfsError::Delay,
            _ => VfsError::Io,
        }
    }
}
