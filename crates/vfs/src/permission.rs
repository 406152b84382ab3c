//! Permission checks by the mode (owner, group and others) or an ACL, as Linux makes them.

use crate::{Acl, Attr, Cred, Kind, Rights, SetAttr, SetTime, VfsError};

/// The permission to read: a bit in the last digit of a mode.
pub(crate) const READ: u32 = 4;
/// The permission to write.
pub(crate) const WRITE: u32 = 2;
/// The permission to execute a file or to search a directory.
pub(crate) const EXECUTE: u32 = 1;

/// The set-user-id bit.
pub(crate) const SETUID: u32 = 0o4000;
/// The set-group-id bit. New objects in a directory with this bit get its group.
pub(crate) const SETGID: u32 = 0o2000;
/// The sticky bit. Only owners can remove names from a directory with this bit.
pub(crate) const STICKY: u32 = 0o1000;

/// The attributes that decide about permissions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded<'a> {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The ACL, if there is one in addition to the mode.
    pub(crate) acl: Option<&'a Acl>,
}

impl From<&Attr> for Guarded<'_> {
    fn from(attr: &Attr) -> Self {
        Self { kind: attr.kind, mode: attr.mode, uid: attr.uid, gid: attr.gid, acl: None }
    }
}

impl Guarded<'_> {
    /// Returns `true` if all of `wanted` ([`READ`], [`WRITE`], [`EXECUTE`]) is granted.
    pub(crate) fn allows(self, cred: &Cred, wanted: u32) -> bool {
        if is_root(cred) {
            //= rfc8881-18.1.3-7
            return wanted & EXECUTE == 0 || self.kind == Kind::Dir || self.mode & 0o111 != 0;
        }
        if let Some(acl) = self.acl {
            return acl.allows(self.uid, self.gid, cred, wanted);
        }
        let bits = if self.uid == cred.uid {
            self.mode >> 6
        } else if in_group(cred, self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        bits & wanted == wanted
    }

    /// Checks that all of `wanted` is granted.
    ///
    /// # Errors
    /// Returns `Access` if it is not.
    pub(crate) fn check(self, cred: &Cred, wanted: u32) -> Result<(), VfsError> {
        if self.allows(cred, wanted) { Ok(()) } else { Err(VfsError::Access) }
    }

    /// Returns `true` if the caller owns the object or is privileged.
    pub(crate) fn is_owned_by(self, cred: &Cred) -> bool {
        is_root(cred) || cred.uid == self.uid
    }

    /// Checks the permission to read data. The owner always has it, and so has a caller that may execute the file,
    /// because a server cannot distinguish reading from paging in a program (RFC 1813 §4.4).
    pub(crate) fn check_read(self, cred: &Cred) -> Result<(), VfsError> {
        let may = self.allows(cred, READ) || self.is_owned_by(cred) || self.allows(cred, EXECUTE);
        if may { Ok(()) } else { Err(VfsError::Access) }
    }

    /// Checks the permission to write data. The owner always has it, because the owner may have opened the file before
    /// its mode was changed (RFC 1813 §4.4).
    pub(crate) fn check_write(self, cred: &Cred) -> Result<(), VfsError> {
        if self.allows(cred, WRITE) || self.is_owned_by(cred) { Ok(()) } else { Err(VfsError::Access) }
    }

    /// Checks that the sticky bit of this directory lets the caller remove the name of `victim`.
    pub(crate) fn check_sticky(self, cred: &Cred, victim: Guarded<'_>) -> Result<(), VfsError> {
        if self.mode & STICKY == 0 || self.is_owned_by(cred) || victim.uid == cred.uid {
            return Ok(());
        }
        Err(VfsError::Perm)
    }

    /// Returns the subset of `wanted` that the caller has.
    pub(crate) fn rights(self, cred: &Cred, wanted: Rights) -> Rights {
        let (read, write, execute) = (self.allows(cred, READ), self.allows(cred, WRITE), self.allows(cred, EXECUTE));
        wanted.intersect(rights_of(self.kind, read, write, execute))
    }

    /// Checks that the caller may set these attributes.
    ///
    /// # Errors
    /// Returns `Perm` or `Access` if the caller may not set them, and `IsDir`, `Invalid` or `NotSupported` if the
    /// object does not have them.
    pub(crate) fn check_set(self, cred: &Cred, set: &SetAttr) -> Result<(), VfsError> {
        let owner = self.is_owned_by(cred);
        if set.mode.is_some() && self.kind == Kind::Symlink {
            return Err(VfsError::NotSupported);
        }
        let explicit = |time| matches!(time, Some(SetTime::To(_)));
        if !owner && (set.mode.is_some() || explicit(set.atime) || explicit(set.mtime)) {
            return Err(VfsError::Perm);
        }
        if !is_root(cred) {
            let keeps_uid = set.uid.is_none_or(|uid| owner && uid == self.uid);
            let takes_gid = set.gid.is_none_or(|gid| owner && (gid == self.gid || in_group(cred, gid)));
            if !keeps_uid || !takes_gid {
                return Err(VfsError::Perm);
            }
        }
        if set.size.is_some() {
            match self.kind {
                Kind::File => self.check_write(cred)?,
                Kind::Dir => return Err(VfsError::IsDir),
                _ => return Err(VfsError::Invalid),
            }
        }
        let touches = set.atime.is_some() || set.mtime.is_some();
        if touches && !owner {
            self.check(cred, WRITE)?;
        }
        Ok(())
    }

    /// Returns the mode after this caller has changed the owner or, if not privileged, has written data.
    pub(crate) fn without_privileges(self, cred: &Cred) -> u32 {
        if self.kind == Kind::Dir {
            return self.mode;
        }
        // If the group has no permission to execute, the bit has another meaning, and a member of the group keeps it.
        let trusted = is_root(cred) || in_group(cred, self.gid);
        let setgid = if self.mode & 0o010 != 0 || !trusted { SETGID } else { 0 };
        self.mode & !(SETUID | setgid)
    }

    /// Returns the mode that results when this caller sets `mode`: set-group-id is cleared if the caller is not in the
    /// group.
    pub(crate) fn settable_mode(self, cred: &Cred, mode: u32) -> u32 {
        let mode = mode & 0o7777;
        if is_root(cred) || in_group(cred, self.gid) { mode } else { mode & !SETGID }
    }
}

/// Returns the rights that the three permissions give on an object of this kind.
pub(crate) fn rights_of(kind: Kind, read: bool, write: bool, execute: bool) -> Rights {
    let dir = kind == Kind::Dir;
    let change = write && (!dir || execute);
    Rights {
        read,
        lookup: dir && execute,
        modify: change,
        extend: change,
        delete: dir && change,
        execute: !dir && execute,
    }
}

/// Returns `true` if the caller is privileged.
pub(crate) fn is_root(cred: &Cred) -> bool {
    cred.uid == 0
}

/// Returns `true` if the caller is in the group.
pub(crate) fn in_group(cred: &Cred, gid: u32) -> bool {
    cred.gid == gid || cred.groups.contains(&gid)
}
