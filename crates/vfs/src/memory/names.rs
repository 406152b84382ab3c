//! Operations that change names: create, remove and link.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLockWriteGuard;

use super::{
    Memory, OBJECT_BYTES,
    dir::Dir,
    inode::{Content, Inode, Origin, State},
    pages::Pages,
    space::Charge,
};
use crate::{
    Attr, Caller, Change, CreateMode, Created, Cred, DEFAULT_DIR_MODE, DEFAULT_MODE, Device, EXCLUSIVE_MODE, Handle,
    Kind, Name, NodeKind, PreAttr, Result, SetAttr, VfsError,
    permission::{self, EXECUTE, SETGID, STICKY, WRITE},
    types::check_target,
};

/// An object to create.
struct New<'a> {
    kind: Kind,
    device: Device,
    mode: u32,
    set: &'a SetAttr,
    target: &'a [u8],
    verifier: Option<[u8; 8]>,
}

impl Memory {
    pub(super) fn create_file(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        name: &Name,
        mode: &CreateMode,
    ) -> Result<Created> {
        let nothing = SetAttr::default();
        let (set, default, verifier) = match mode {
            CreateMode::Unchecked(set) | CreateMode::Guarded(set) => (set, DEFAULT_MODE, None),
            CreateMode::Exclusive(verifier) => (&nothing, EXCLUSIVE_MODE, Some(*verifier)),
        };
        let mode_bits = set.mode.unwrap_or(default) & 0o7777;
        let device = Device::default();
        let new = New { kind: Kind::File, device, mode: mode_bits, set, target: b"", verifier };
        self.make(caller, dir, name, &new, |found| self.open_existing(caller, found, mode))
    }

    pub(super) fn make_dir(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, set: &SetAttr) -> Result<Created> {
        let mode = set.mode.unwrap_or(DEFAULT_DIR_MODE) & (0o777 | STICKY);
        let device = Device::default();
        let new = New { kind: Kind::Dir, device, mode, set, target: b"", verifier: None };
        self.make(caller, dir, name, &new, exists)
    }

    pub(super) fn make_symlink(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttr,
    ) -> Result<Created> {
        check_target(target)?;
        let device = Device::default();
        let new = New { kind: Kind::Symlink, device, mode: 0o777, set, target, verifier: None };
        self.make(caller, dir, name, &new, exists)
    }

    pub(super) fn make_node(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        name: &Name,
        node: NodeKind,
        set: &SetAttr,
    ) -> Result<Created> {
        let (kind, device) = match node {
            NodeKind::Block(device) => (Kind::Block, device),
            NodeKind::Char(device) => (Kind::Char, device),
            NodeKind::Socket => (Kind::Socket, Device::default()),
            NodeKind::Fifo => (Kind::Fifo, Device::default()),
        };
        if matches!(kind, Kind::Block | Kind::Char) && !permission::is_root(caller.cred) {
            return Err(VfsError::Perm);
        }
        let mode = set.mode.unwrap_or(DEFAULT_MODE) & 0o7777;
        let new = New { kind, device, mode, set, target: b"", verifier: None };
        self.make(caller, dir, name, &new, exists)
    }

    /// Creates an object. If the name already exists, `existing` decides.
    fn make(
        &self,
        caller: &Caller<'_>,
        dir: &Handle,
        name: &Name,
        new: &New<'_>,
        existing: impl FnOnce(&Inode) -> Result<Attr>,
    ) -> Result<Created> {
        let cred = caller.cred;
        let _names = self.names.read();
        let parent = self.find(dir)?;
        let mut state = parent.write()?;
        let before = PreAttr::from(&parent.attr(&state));
        state.dir()?;
        state.guarded().check(cred, EXECUTE)?;
        if name.is_dots() {
            return Err(VfsError::Exists);
        }
        if let Some(found) = state.dir()?.find(name.as_bytes()) {
            let attr = existing(&self.named(found))?;
            let dir = Change { before, after: parent.attr(&state) };
            return Ok(Created { handle: self.handle(found), attr, dir });
        }
        state.guarded().check(cred, WRITE)?;
        if new.kind == Kind::Dir && state.nlink >= self.caps.link_max {
            return Err(VfsError::TooManyLinks);
        }
        let inode = self.new_inode(cred, &state, parent.id, new)?;
        let charge = Charge::new(&self.space, entry_bytes(name))?;
        state.dir_mut()?.insert(name.as_bytes(), inode.id, charge);
        state.nlink += u32::from(new.kind == Kind::Dir);
        state.modified();
        let attr = inode.attr(&*inode.read()?);
        self.table.insert(inode.clone());
        let dir = Change { before, after: parent.attr(&state) };
        Ok(Created { handle: self.handle(inode.id), attr, dir })
    }

    fn new_inode(&self, cred: &Cred, parent: &State, parent_id: u64, new: &New<'_>) -> Result<Arc<Inode>> {
        let inherits = parent.mode & SETGID != 0;
        let gid = if inherits { parent.gid } else { cred.gid };
        let mut mode = new.mode;
        if inherits && new.kind == Kind::Dir {
            mode |= SETGID;
        }
        if mode & (SETGID | 0o010) == SETGID | 0o010 && new.kind != Kind::Dir {
            let trusted = permission::is_root(cred) || permission::in_group(cred, gid);
            mode = if trusted { mode } else { mode & !SETGID };
        }
        let content = match new.kind {
            Kind::File => Content::File(Pages::new(&self.space)),
            Kind::Dir => Content::Dir(Dir::new(parent_id)),
            Kind::Symlink => Content::Symlink(Bytes::copy_from_slice(new.target)),
            _ => Content::Special,
        };
        let origin =
            Origin { kind: new.kind, device: new.device, mode, uid: cred.uid, gid, verifier: new.verifier, content };
        let charge = Charge::new(&self.space, OBJECT_BYTES + new.target.len() as u64)?;
        let inode = Inode::new(self.table.next_id(), self.fsid, origin, charge);
        let mut state = inode.write()?;
        state.inherit(parent, &self.space)?;
        // The mode has already been set. A symbolic link has no mode, and only a file has a size.
        let set = SetAttr { mode: None, size: new.set.size.filter(|_| new.kind == Kind::File), ..new.set.clone() };
        if set != SetAttr::default() {
            let mode = state.mode;
            self.check_set(cred, &state, &set)?;
            state.set(cred, &set, &self.source)?;
            state.mode = mode;
        }
        drop(state);
        Ok(inode)
    }

    /// Opens an existing file as `mode` requires.
    fn open_existing(&self, caller: &Caller<'_>, found: &Inode, mode: &CreateMode) -> Result<Attr> {
        let mut state = found.write()?;
        match mode {
            _ if found.kind != Kind::File => Err(VfsError::Exists),
            CreateMode::Unchecked(set) => {
                let set = SetAttr { size: set.size, ..SetAttr::default() };
                Ok(self.set(caller, found, &mut state, &set)?.after)
            }
            CreateMode::Exclusive(verifier) if state.verifier == Some(*verifier) => Ok(found.attr(&state)),
            _ => Err(VfsError::Exists),
        }
    }

    pub(super) fn set(&self, caller: &Caller<'_>, inode: &Inode, state: &mut State, set: &SetAttr) -> Result<Change> {
        let before = PreAttr::from(&inode.attr(state));
        self.check_set(caller.cred, state, set)?;
        state.set(caller.cred, set, &self.source)?;
        Ok(Change { before, after: inode.attr(state) })
    }

    fn check_set(&self, cred: &Cred, state: &State, set: &SetAttr) -> Result<()> {
        state.guarded().check_set(cred, set)?;
        if set.size.is_some_and(|size| size > self.caps.file_size_max) { Err(VfsError::FileTooBig) } else { Ok(()) }
    }

    pub(super) fn remove_name(&self, caller: &Caller<'_>, dir: &Handle, name: &Name, rmdir: bool) -> Result<Change> {
        let _names = self.names.read();
        let parent = self.find(dir)?;
        let mut state = parent.write()?;
        let before = PreAttr::from(&parent.attr(&state));
        let victim = self.victim(caller.cred, &state, name)?;
        let gone = victim.write()?;
        state.guarded().check(caller.cred, WRITE)?;
        state.guarded().check_sticky(caller.cred, gone.guarded())?;
        match &gone.content {
            Content::Dir(_) if !rmdir => return Err(VfsError::IsDir),
            Content::Dir(entries) if !entries.is_empty() => return Err(VfsError::NotEmpty),
            Content::Dir(_) => state.nlink -= 1,
            _ if rmdir => return Err(VfsError::NotDir),
            _ => {}
        }
        state.dir_mut()?.remove(name.as_bytes());
        state.modified();
        self.unlink(&victim, gone);
        Ok(Change { before, after: parent.attr(&state) })
    }

    /// Removes one name of an object, and the object with its last name unless it is held.
    fn unlink(&self, inode: &Inode, mut state: RwLockWriteGuard<'_, State>) {
        if state.unlink() {
            drop(state);
            self.table.remove(inode.id);
        }
    }

    /// Returns the object whose name is to be removed.
    fn victim(&self, cred: &Cred, dir: &State, name: &Name) -> Result<Arc<Inode>> {
        let entries = dir.dir()?;
        dir.guarded().check(cred, EXECUTE)?;
        if name.is_dots() {
            return Err(VfsError::Invalid);
        }
        entries.find(name.as_bytes()).map(|id| self.named(id)).ok_or(VfsError::NotFound)
    }

    /// Returns an object to which a locked directory refers.
    pub(super) fn named(&self, id: u64) -> Arc<Inode> {
        self.table.find(id).expect("object with a name must be in the table")
    }

    /// Returns the handle and the attributes of an object, if it still exists.
    pub(super) fn object(&self, id: u64) -> Option<(Handle, Attr)> {
        let inode = self.table.find(id)?;
        let attr = inode.attr(&*inode.read().ok()?);
        Some((self.handle(id), attr))
    }

    pub(super) fn add_name(
        &self,
        caller: &Caller<'_>,
        object: &Handle,
        dir: &Handle,
        name: &Name,
    ) -> Result<(Change, Attr)> {
        let _names = self.names.read();
        let inode = self.find(object)?;
        let parent = self.find(dir)?;
        parent.read()?.dir()?;
        if inode.kind == Kind::Dir {
            return Err(VfsError::IsDir);
        }
        let mut state = parent.write()?;
        let before = PreAttr::from(&parent.attr(&state));
        state.guarded().check(caller.cred, EXECUTE)?;
        if name.is_dots() || state.dir()?.find(name.as_bytes()).is_some() {
            return Err(VfsError::Exists);
        }
        state.guarded().check(caller.cred, WRITE)?;
        let mut linked = inode.write()?;
        if linked.nlink == 0 {
            return Err(VfsError::NotFound);
        }
        if linked.nlink >= self.caps.link_max {
            return Err(VfsError::TooManyLinks);
        }
        let charge = Charge::new(&self.space, entry_bytes(name))?;
        state.dir_mut()?.insert(name.as_bytes(), inode.id, charge);
        state.modified();
        linked.nlink += 1;
        linked.changed();
        Ok((Change { before, after: parent.attr(&state) }, inode.attr(&linked)))
    }
}

fn exists(_: &Inode) -> Result<Attr> {
    Err(VfsError::Exists)
}

/// Returns the bytes that an entry takes.
pub(super) fn entry_bytes(name: &Name) -> u64 {
    256 + name.as_bytes().len() as u64
}
