//! ACLs, stored in extended attributes. The kernel enforces them and keeps the mode consistent with them.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::Arc,
};

use rustix::{fs::XattrFlags, io::Errno};

use super::{Posix, objects::Object};
use crate::{ACL_ENTRIES_MAX, Acl, AclKind, Attr, Caller, Change, Kind, Result, VfsError};

/// Returns `true` if a file system supports ACLs.
pub(super) fn supported(root: impl AsFd) -> bool {
    let name = attribute(AclKind::Access);
    !matches!(rustix::fs::fgetxattr(root, name, &mut [0u8; 0][..]), Err(Errno::OPNOTSUPP | Errno::NOSYS))
}

impl Posix {
    pub(super) fn acl_of(&self, object: &Object, kind: AclKind) -> Result<(Option<Acl>, Attr)> {
        let mut bytes = vec![0; 4 + 8 * ACL_ENTRIES_MAX];
        if !self.caps.acls || object.kind == Kind::Symlink {
            return Err(VfsError::NotSupported);
        }
        let acl = match rustix::fs::getxattr(path(object.fd()), attribute(kind), &mut bytes[..]) {
            Ok(len) => Some(Acl::from_xattr(&bytes[..len])?),
            // For an object that is not a directory, the kernel reports that there is no default ACL, but some file
            // systems report an error.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
            Err(error) => return Err(error.into()),
        };
        Ok((acl.filter(|acl| kind == AclKind::Default || !acl.is_minimal()), self.attr(object)?))
    }

    pub(super) fn replace_acl(
        &self,
        caller: &Caller<'_>,
        object: &Arc<Object>,
        kind: AclKind,
        acl: Option<&Acl>,
    ) -> Result<Change> {
        if !self.caps.acls || object.kind == Kind::Symlink {
            return Err(VfsError::NotSupported);
        }
        let ((), change) = self.change(object, |_| {
            let _acting = self.identity.assume(caller)?;
            let (path, name) = (path(object.fd()), attribute(kind));
            match acl {
                Some(acl) => rustix::fs::setxattr(path, name, &acl.to_xattr(), XattrFlags::empty())?,
                None => match rustix::fs::removexattr(path, name) {
                    Ok(()) | Err(Errno::NODATA) => {}
                    Err(Errno::OPNOTSUPP) if kind == AclKind::Default && !object.is_dir() => {}
                    Err(error) => return Err(error.into()),
                },
            }
            Ok(())
        })?;
        self.objects.close(object);
        Ok(change)
    }
}

/// Returns a path to an object that is open only as a path descriptor, because the system calls for its extended
/// attributes need a path.
pub(super) fn path(object: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", object.as_raw_fd())
}

fn attribute(kind: AclKind) -> &'static str {
    match kind {
        AclKind::Access => "system.posix_acl_access",
        AclKind::Default => "system.posix_acl_default",
    }
}
