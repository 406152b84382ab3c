//! Rename. It locks objects in no particular order, so it excludes all other operations that lock two objects.

use std::sync::Arc;

use super::{
    Memory,
    inode::{Content, Inode, State},
    names::entry_bytes,
    space::Charge,
};
use crate::{
    Caller, Change, Handle, Kind, Name, PreAttr, Result, VfsError,
    permission::{EXECUTE, WRITE},
};

impl Memory {
    pub(super) fn move_name(
        &self,
        caller: &Caller<'_>,
        from_dir: &Handle,
        from: &Name,
        to_dir: &Handle,
        to: &Name,
    ) -> Result<(Change, Change)> {
        let _names = self.names.write();
        let source = Place { dir: self.find(from_dir)?, name: from };
        let target = Place { dir: self.find(to_dir)?, name: to };
        let before = (source.check(caller)?, target.check(caller)?);
        let moved = source.find(self)?.ok_or(VfsError::NotFound)?;
        let replaced = target.find(self)?;
        if replaced.as_ref().is_none_or(|replaced| replaced.id != moved.id) {
            self.check_move(caller, &source, &moved, &target, replaced.as_deref())?;
            self.apply_move(&source, &moved, &target, replaced.as_deref())?;
        }
        let change = |before, dir: &Inode| -> Result<_> { Ok(Change { before, after: dir.attr(&*dir.read()?) }) };
        Ok((change(before.0, &source.dir)?, change(before.1, &target.dir)?))
    }

    fn check_move(
        &self,
        caller: &Caller<'_>,
        source: &Place<'_>,
        moved: &Inode,
        target: &Place<'_>,
        replaced: Option<&Inode>,
    ) -> Result<()> {
        if moved.kind == Kind::Dir && self.is_inside(&target.dir, moved.id)? {
            return Err(VfsError::Invalid);
        }
        // A directory above the source is not empty. This check comes first because its error has precedence.
        if let Some(replaced) = replaced
            && self.is_inside(&source.dir, replaced.id)?
        {
            return Err(VfsError::NotEmpty);
        }
        source.check_remove(caller, moved)?;
        match replaced {
            None => target.dir.read()?.guarded().check(caller.cred, WRITE)?,
            Some(replaced) => {
                target.check_remove(caller, replaced)?;
                match (moved.kind, replaced.kind) {
                    (Kind::Dir, Kind::Dir) => {}
                    (Kind::Dir, _) => return Err(VfsError::NotDir),
                    (_, Kind::Dir) => return Err(VfsError::IsDir),
                    _ => {}
                }
            }
        }
        if moved.kind == Kind::Dir && source.dir.id != target.dir.id {
            // A directory that changes its parent is itself changed: its `..` entry.
            moved.read()?.guarded().check(caller.cred, WRITE)?;
            if replaced.is_none() && target.dir.read()?.nlink >= self.caps.link_max {
                return Err(VfsError::TooManyLinks);
            }
        }
        match replaced.map(|replaced| replaced.read()).transpose()?.as_deref() {
            Some(State { content: Content::Dir(entries), .. }) if !entries.is_empty() => Err(VfsError::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Applies a rename that has been checked. It holds one lock at a time, because all operations that could interfere
    /// are excluded.
    fn apply_move(
        &self,
        source: &Place<'_>,
        moved: &Inode,
        target: &Place<'_>,
        replaced: Option<&Inode>,
    ) -> Result<()> {
        let is_dir = moved.kind == Kind::Dir;
        {
            let mut state = target.dir.write()?;
            let entries = state.dir_mut()?;
            match replaced {
                Some(_) => entries.replace(target.name.as_bytes(), moved.id),
                None => {
                    let charge = Charge::new(&self.space, entry_bytes(target.name))?;
                    entries.insert(target.name.as_bytes(), moved.id, charge);
                    state.nlink += u32::from(is_dir);
                }
            }
            state.modified();
        }
        {
            let mut state = source.dir.write()?;
            state.dir_mut()?.remove(source.name.as_bytes());
            state.nlink -= u32::from(is_dir);
            state.modified();
        }
        if let Some(replaced) = replaced
            && replaced.write()?.unlink()
        {
            self.table.remove(replaced.id);
        }
        let mut state = moved.write()?;
        if is_dir {
            state.dir_mut()?.parent = target.dir.id;
        }
        state.changed();
        Ok(())
    }

    /// Returns `true` if `dir` is the directory `id` or below it.
    fn is_inside(&self, dir: &Arc<Inode>, id: u64) -> Result<bool> {
        let mut at = dir.clone();
        loop {
            if at.id == id {
                return Ok(true);
            }
            let parent = at.read()?.dir()?.parent;
            if parent == at.id {
                return Ok(false);
            }
            at = self.table.find(parent).ok_or(VfsError::Stale)?;
        }
    }
}

/// A name in a directory.
struct Place<'a> {
    dir: Arc<Inode>,
    name: &'a Name,
}

impl Place<'_> {
    /// Checks that the caller may look up the name. Returns the directory's attributes before the change.
    fn check(&self, caller: &Caller<'_>) -> Result<PreAttr> {
        let state = self.dir.read()?;
        state.dir()?;
        state.guarded().check(caller.cred, EXECUTE)?;
        if self.name.is_dots() {
            return Err(VfsError::Invalid);
        }
        Ok(PreAttr::from(&self.dir.attr(&state)))
    }

    fn find(&self, fs: &Memory) -> Result<Option<Arc<Inode>>> {
        Ok(self.dir.read()?.dir()?.find(self.name.as_bytes()).map(|id| fs.named(id)))
    }

    fn check_remove(&self, caller: &Caller<'_>, victim: &Inode) -> Result<()> {
        let state = self.dir.read()?;
        let dir = state.guarded();
        dir.check(caller.cred, WRITE)?;
        dir.check_sticky(caller.cred, victim.read()?.guarded())
    }
}
