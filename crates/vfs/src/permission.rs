//! Who may do what: the classic rules of owner, group and others, or an ACL, as Linux applies them.

use crate::{Acl, Attr, Cred, Kind, Rights, SetAttr, SetTime, VfsError};

/// Permission to read, as a bit of a mode's last digit.
pub(crate) const READ: u32 = 4;
/// Permission to write.
pub(crate) const WRITE: u32 = 2;
/// Permission to execute a file or search a directory.
pub(crate) const EXECUTE: u32 = 1;

/// Set-user-id.
pub(crate) const SETUID: u32 = 0o4000;
/// Set-group-id; on a directory: new objects are of the directory's group.
pub(crate) const SETGID: u32 = 0o2000;
/// On a directory: only owners remove names.
pub(crate) const STICKY: u32 = 0o1000;

/// What permissions are decided by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded<'a> {
    pub(crate) kind: Kind,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Beside the mode, if there is one.
    pub(crate) acl: Option<&'a Acl>,
}

impl From<&Attr> for Guarded<'_> {
    fn from(attr: &Attr) -> Self {
        Self { kind: attr.kind, mode: attr.mode, uid: attr.uid, gid: attr.gid, acl: None }
    }
}

impl Guarded<'_> {
    /// Whether all of `wanted` ([`READ`], [`WRITE`], [`EXECUTE`]) is allowed.
    pub(crate) fn allows(self, cred: &Cred, wanted: u32) -> bool {
        if is_root(cred) {
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

    /// # Errors
    /// `Access` unless all of `wanted` is allowed.
    pub(crate) fn check(self, cred: &Cred, wanted: u32) -> Result<(), VfsError> {
        if self.allows(cred, wanted) { Ok(()) } else { Err(VfsError::Access) }
    }

    /// Whether the caller owns it, or is privileged.
    pub(crate) fn is_owned_by(self, cred: &Cred) -> bool {
        is_root(cred) || cred.uid == self.uid
    }

    /// Reading data. RFC 1813 §4.4: the owner always may, and so may who may execute the file, because a server
    /// cannot tell a read from paging in a program.
    pub(crate) fn check_read(self, cred: &Cred) -> Result<(), VfsError> {
        let may = self.allows(cred, READ) || self.is_owned_by(cred) || self.allows(cred, EXECUTE);
        if may { Ok(()) } else { Err(VfsError::Access) }
    }

    /// Writing data. RFC 1813 §4.4: the owner always may, as after opening a file and then making it read-only.
    pub(crate) fn check_write(self, cred: &Cred) -> Result<(), VfsError> {
        if self.allows(cred, WRITE) || self.is_owned_by(cred) { Ok(()) } else { Err(VfsError::Access) }
    }

    /// Removing the name of `victim` from this directory: the sticky bit's rule.
    pub(crate) fn check_sticky(self, cred: &Cred, victim: Guarded<'_>) -> Result<(), VfsError> {
        if self.mode & STICKY == 0 || self.is_owned_by(cred) || victim.uid == cred.uid {
            return Ok(());
        }
        Err(VfsError::Perm)
    }

    /// Those of `wanted` that the caller has.
    pub(crate) fn rights(self, cred: &Cred, wanted: Rights) -> Rights {
        let (read, write, execute) = (self.allows(cred, READ), self.allows(cred, WRITE), self.allows(cred, EXECUTE));
        wanted.intersect(rights_of(self.kind, read, write, execute))
    }

    /// # Errors
    /// `Perm` or `Access` if the caller may not set these; `IsDir`, `Invalid`, `NotSupported` if the object has none of it.
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

    /// The mode that is left when this caller gives the object to other hands or, not being privileged, writes data.
    pub(crate) fn without_privileges(self, cred: &Cred) -> u32 {
        if self.kind == Kind::Dir {
            return self.mode;
        }
        // Without execution by the group, the bit means something else, and stays with the group's members.
        let trusted = is_root(cred) || in_group(cred, self.gid);
        let setgid = if self.mode & 0o010 != 0 || !trusted { SETGID } else { 0 };
        self.mode & !(SETUID | setgid)
    }

    /// The mode that `mode` amounts to when this caller sets it: no set-group-id for a group that is not the caller's.
    pub(crate) fn settable_mode(self, cred: &Cred, mode: u32) -> u32 {
        let mode = mode & 0o7777;
        if is_root(cred) || in_group(cred, self.gid) { mode } else { mode & !SETGID }
    }
}

/// What an object's three permissions amount to.
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

/// Whether the caller is privileged.
pub(crate) fn is_root(cred: &Cred) -> bool {
    cred.uid == 0
}

/// Whether the caller is of the group.
pub(crate) fn in_group(cred: &Cred, gid: u32) -> bool {
    cred.gid == gid || cred.groups.contains(&gid)
}
