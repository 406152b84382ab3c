//! [`Inode`]: an object of any kind.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{
    dir::Dir,
    pages::{PageSource, Pages},
    space::{Charge, Space},
    xattr::Xattrs,
};
use crate::{
    Acl, AclKind, Attr, Cred, Device, Kind, Result, SetAttr, SetTime, Time, VfsError,
    permission::{self, Guarded},
};

/// An object.
#[derive(Debug)]
pub(super) struct Inode {
    pub(super) id: u64,
    pub(super) fsid: u64,
    pub(super) kind: Kind,
    pub(super) device: Device,
    state: RwLock<State>,
    _charge: Charge,
}

/// The mutable part of an object.
#[derive(Debug)]
pub(super) struct State {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    /// The number of names. It is 0 when the object has been removed, but another thread may still be about to lock it, or
    /// it is held.
    pub(super) nlink: u32,
    /// The number of holds.
    pub(super) holds: usize,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    /// The verifier of the exclusive create that created the file, until data or times are set.
    pub(super) verifier: Option<[u8; 8]>,
    /// The access ACL, unless the mode has the same meaning.
    pub(super) acl: Option<StoredAcl>,
    /// The default ACL of a directory.
    pub(super) default_acl: Option<StoredAcl>,
    pub(super) xattrs: Xattrs,
    pub(super) content: Content,
}

/// An ACL and the space that it takes.
#[derive(Debug)]
pub(super) struct StoredAcl {
    pub(super) acl: Acl,
    _charge: Charge,
}

impl StoredAcl {
    /// Stores an ACL and charges its space.
    ///
    /// # Errors
    /// Returns `NoSpace`.
    pub(super) fn new(acl: Acl, space: &Arc<Space>) -> Result<Self> {
        let charge = Charge::new(space, size_of_val(acl.entries()) as u64)?;
        Ok(Self { acl, _charge: charge })
    }
}

/// The content of an object.
#[derive(Debug)]
pub(super) enum Content {
    File(Pages),
    Dir(Dir),
    Symlink(Bytes),
    Special,
}

/// The initial properties of a new object.
pub(super) struct Origin {
    pub(super) kind: Kind,
    pub(super) device: Device,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) verifier: Option<[u8; 8]>,
    pub(super) content: Content,
}

impl Inode {
    pub(super) fn new(id: u64, fsid: u64, origin: Origin, charge: Charge) -> Arc<Self> {
        let Origin { kind, device, mode, uid, gid, verifier, content } = origin;
        let time = Time::now();
        let nlink = if kind == Kind::Dir { 2 } else { 1 };
        let state = State {
            kind,
            mode,
            nlink,
            holds: 0,
            uid,
            gid,
            atime: time,
            mtime: time,
            ctime: time,
            verifier,
            acl: None,
            default_acl: None,
            xattrs: Xattrs::default(),
            content,
        };
        Arc::new(Self { id, fsid, kind, device, state: RwLock::new(state), _charge: charge })
    }

    /// Locks the state for reading.
    ///
    /// # Errors
    /// Returns `Stale` if the object has been removed.
    pub(super) fn read(&self) -> Result<RwLockReadGuard<'_, State>> {
        let state = self.state.read();
        if state.is_gone() { Err(VfsError::Stale) } else { Ok(state) }
    }

    /// Locks the state for writing.
    ///
    /// # Errors
    /// Returns `Stale` if the object has been removed.
    pub(super) fn write(&self) -> Result<RwLockWriteGuard<'_, State>> {
        let state = self.state.write();
        if state.is_gone() { Err(VfsError::Stale) } else { Ok(state) }
    }

    pub(super) fn attr(&self, state: &State) -> Attr {
        let (size, used) = match &state.content {
            Content::File(pages) => (pages.size(), pages.used()),
            Content::Dir(_) => (4096, 4096),
            Content::Symlink(target) => (target.len() as u64, 0),
            Content::Special => (0, 0),
        };
        Attr {
            kind: self.kind,
            mode: state.mode,
            nlink: state.nlink,
            uid: state.uid,
            gid: state.gid,
            size,
            used,
            device: self.device,
            fsid: self.fsid,
            fileid: self.id,
            atime: state.atime,
            mtime: state.mtime,
            ctime: state.ctime,
            // Each change makes the ctime later.
            change: state.ctime.as_nanoseconds(),
        }
    }
}

impl State {
    pub(super) fn guarded(&self) -> Guarded<'_> {
        let acl = self.acl.as_ref().map(|kept| &kept.acl);
        Guarded { kind: self.kind, mode: self.mode, uid: self.uid, gid: self.gid, acl }
    }

    /// Returns the entries of a directory.
    ///
    /// # Errors
    /// Returns `NotDir`.
    pub(super) fn dir(&self) -> Result<&Dir> {
        match &self.content {
            Content::Dir(dir) => Ok(dir),
            _ => Err(VfsError::NotDir),
        }
    }

    /// Returns the entries of a directory.
    ///
    /// # Errors
    /// Returns `NotDir`.
    pub(super) fn dir_mut(&mut self) -> Result<&mut Dir> {
        match &mut self.content {
            Content::Dir(dir) => Ok(dir),
            _ => Err(VfsError::NotDir),
        }
    }

    /// Returns the data of a file.
    ///
    /// # Errors
    /// Returns `IsDir`, or `Invalid` for other objects without data.
    pub(super) fn pages(&self) -> Result<&Pages> {
        match &self.content {
            Content::File(pages) => Ok(pages),
            Content::Dir(_) => Err(VfsError::IsDir),
            _ => Err(VfsError::Invalid),
        }
    }

    /// Returns the data of a file.
    ///
    /// # Errors
    /// Returns `IsDir`, or `Invalid` for other objects without data.
    pub(super) fn pages_mut(&mut self) -> Result<&mut Pages> {
        match &mut self.content {
            Content::File(pages) => Ok(pages),
            Content::Dir(_) => Err(VfsError::IsDir),
            _ => Err(VfsError::Invalid),
        }
    }

    /// Returns the time for a change now. It is later than that of the previous change, so that clients notice every
    /// change.
    fn next(&self) -> Time {
        Time::now().max(successor(self.ctime))
    }

    /// Sets the ctime after a change of attributes.
    pub(super) fn changed(&mut self) {
        self.ctime = self.next();
    }

    /// Sets mtime and ctime after a change of data or entries.
    pub(super) fn modified(&mut self) {
        self.ctime = self.next();
        self.mtime = self.ctime;
        self.verifier = None;
    }

    /// Returns `true` if no read has been recorded since the last change.
    pub(super) fn atime_is_old(&self) -> bool {
        self.atime <= self.mtime || self.atime <= self.ctime
    }

    /// Reports whether the object has no name and is not held.
    pub(super) fn is_gone(&self) -> bool {
        self.nlink == 0 && self.holds == 0
    }

    /// Removes one name. Returns `true` if the object is then gone.
    pub(super) fn unlink(&mut self) -> bool {
        self.nlink = if self.kind == Kind::Dir { 0 } else { self.nlink - 1 };
        self.changed();
        self.is_gone()
    }

    /// Clears set-user-id and set-group-id if the writer is not privileged.
    pub(super) fn drop_privileges(&mut self, cred: &Cred) {
        if !permission::is_root(cred) {
            self.mode = self.guarded().without_privileges(cred);
        }
    }

    /// Sets attributes. `set` has been checked.
    pub(super) fn set(&mut self, cred: &Cred, set: &SetAttr, source: &PageSource) -> Result<()> {
        if *set == SetAttr::default() {
            return Ok(());
        }
        let now = self.next();
        if let Some(size) = set.size {
            self.pages_mut()?.truncate(size, source);
            self.mtime = now;
            self.drop_privileges(cred);
        }
        if set.uid.is_some() || set.gid.is_some() {
            self.mode = self.guarded().without_privileges(cred);
            self.uid = set.uid.unwrap_or(self.uid);
            self.gid = set.gid.unwrap_or(self.gid);
        }
        if let Some(mode) = set.mode {
            self.mode = self.guarded().settable_mode(cred, mode);
            if let Some(kept) = &mut self.acl {
                kept.acl.set_mode(mode);
            }
        }
        if set.size.is_some() || set.atime.is_some() || set.mtime.is_some() {
            self.verifier = None;
        }
        let time = |set| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        self.atime = set.atime.map_or(self.atime, time);
        self.mtime = set.mtime.map_or(self.mtime, time);
        self.ctime = now;
        Ok(())
    }
}

impl State {
    /// Returns the ACL of this kind.
    pub(super) fn acl(&self, kind: AclKind) -> Option<&Acl> {
        let kept = match kind {
            AclKind::Access => &self.acl,
            AclKind::Default => &self.default_acl,
        };
        kept.as_ref().map(|kept| &kept.acl)
    }

    /// Sets an ACL.
    ///
    /// # Errors
    /// Returns the errors of [`set_acl`](crate::Vfs::set_acl), and `NoSpace`.
    pub(super) fn set_acl(&mut self, cred: &Cred, kind: AclKind, acl: Option<&Acl>, space: &Arc<Space>) -> Result<()> {
        if self.kind == Kind::Symlink {
            return Err(VfsError::NotSupported);
        }
        if !self.guarded().is_owned_by(cred) {
            return Err(VfsError::Perm);
        }
        if kind == AclKind::Default && self.kind != Kind::Dir {
            return if acl.is_some() { Err(VfsError::Access) } else { Ok(()) };
        }
        let says_more = acl.filter(|acl| kind == AclKind::Default || !acl.is_minimal());
        let kept = says_more.map(|acl| StoredAcl::new(acl.clone(), space)).transpose()?;
        match (kind, acl) {
            (AclKind::Default, _) => self.default_acl = kept,
            (AclKind::Access, acl) => {
                if let Some(acl) = acl {
                    let mode = self.mode & 0o7000 | acl.mode();
                    self.mode = self.guarded().settable_mode(cred, mode);
                }
                self.acl = kept;
            }
        }
        self.changed();
        Ok(())
    }

    /// Gives a new object the ACLs that it inherits from its directory's default ACL.
    ///
    /// # Errors
    /// Returns `NoSpace`.
    pub(super) fn inherit(&mut self, parent: &State, space: &Arc<Space>) -> Result<()> {
        let Some(default) = parent.acl(AclKind::Default).filter(|_| self.kind != Kind::Symlink) else { return Ok(()) };
        let acl = default.inherited(self.mode);
        self.mode = self.mode & 0o7000 | acl.mode();
        if !acl.is_minimal() {
            self.acl = Some(StoredAcl::new(acl, space)?);
        }
        if self.kind == Kind::Dir {
            self.default_acl = Some(StoredAcl::new(default.clone(), space)?);
        }
        Ok(())
    }
}

pub(super) fn successor(time: Time) -> Time {
    match time.nanoseconds {
        999_999_999 => Time { seconds: time.seconds + 1, nanoseconds: 0 },
        nanoseconds => Time { nanoseconds: nanoseconds + 1, ..time },
    }
}
