//! ACLs: extended attributes of the kernel's, which enforces them and keeps the mode in step.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::Arc,
};

use rustix::{fs::XattrFlags, io::Errno};

use super::{Posix, objects::Object};
use crate::{ACL_ENTRIES_MAX, Acl, AclKind, Attr, Caller, Change, Kind, Result, VfsError};

/// Whether a file system keeps ACLs.
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
            // What is no directory has no default one to the kernel, but for some file systems that is an error.
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

/// The extended attributes of an object that is open by path alone are reached by its name among our descriptors.
pub(super) fn path(object: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", object.as_raw_fd())
}

fn attribute(kind: AclKind) -> &'static str {
    match kind {
        AclKind::Access => "system.posix_acl_access",
        AclKind::Default => "system.posix_acl_default",
    }
}
