//! Extended attributes of the class `user`, which ordinary programs use (xattr(7)).

use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::{fs::XattrFlags, io::Errno};

use super::{Posix, acl::path, objects::Object};
use crate::{Caller, Change, Kind, Name, Result, VfsError, XATTR_MAX, XattrMode};

/// Returns `true` if a file system supports them.
pub(super) fn supported(root: impl AsFd) -> bool {
    !matches!(rustix::fs::fgetxattr(root, c"user.slipway", &mut [0u8; 0][..]), Err(Errno::OPNOTSUPP | Errno::NOSYS))
}

impl Posix {
    pub(super) fn xattr_of(&self, caller: &Caller<'_>, object: &Object, name: &Name) -> Result<Bytes> {
        self.check_xattrs(object)?;
        let mut value = vec![0; XATTR_MAX];
        let _acting = self.identity.assume(caller)?;
        let len = rustix::fs::getxattr(path(object.fd()), attribute(name), &mut value[..]).map_err(error)?;
        value.truncate(len);
        Ok(value.into())
    }

    pub(super) fn replace_xattr(
        &self,
        caller: &Caller<'_>,
        object: &Object,
        name: &Name,
        value: &[u8],
        how: XattrMode,
    ) -> Result<Change> {
        self.check_xattrs(object)?;
        let flags = match how {
            XattrMode::Either => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        let ((), change) = self.change(object, |_| {
            let _acting = self.identity.assume(caller)?;
            rustix::fs::setxattr(path(object.fd()), attribute(name), value, flags).map_err(error)
        })?;
        Ok(change)
    }

    pub(super) fn unset_xattr(&self, caller: &Caller<'_>, object: &Object, name: &Name) -> Result<Change> {
        self.check_xattrs(object)?;
        let ((), change) = self.change(object, |_| {
            let _acting = self.identity.assume(caller)?;
            rustix::fs::removexattr(path(object.fd()), attribute(name)).map_err(error)
        })?;
        Ok(change)
    }

    pub(super) fn xattr_names(&self, caller: &Caller<'_>, object: &Object) -> Result<Vec<Bytes>> {
        self.check_xattrs(object)?;
        let mut names = vec![0u8; LIST_MAX];
        {
            let _acting = self.identity.assume(caller)?;
            if !super::kernel::may_access(object.fd(), libc::R_OK) {
                return Err(VfsError::Access);
            }
        }
        let len = rustix::fs::listxattr(path(object.fd()), &mut names[..]).map_err(error)?;
        let users = names[..len].split(|&byte| byte == 0).filter_map(|name| name.strip_prefix(USER.as_bytes()));
        let mut users: Vec<Bytes> = users.map(Bytes::copy_from_slice).collect();
        users.sort_unstable();
        Ok(users)
    }

    fn check_xattrs(&self, object: &Object) -> Result<()> {
        match object.kind {
            _ if !self.caps.xattrs => Err(VfsError::NotSupported),
            Kind::File | Kind::Dir => Ok(()),
            _ => Err(VfsError::Perm),
        }
    }
}

fn attribute(name: &Name) -> Vec<u8> {
    [USER.as_bytes(), name.as_bytes()].concat()
}

fn error(errno: Errno) -> VfsError {
    match errno {
        Errno::NODATA => VfsError::NoXattr,
        Errno::RANGE | Errno::TOOBIG => VfsError::XattrTooBig,
        errno => errno.into(),
    }
}

const USER: &str = "user.";
/// Maximum bytes of names that the kernel lists (`XATTR_LIST_MAX`).
const LIST_MAX: usize = 64 << 10;
