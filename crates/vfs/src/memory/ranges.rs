//! Ranges of files: holes, allocation, copies and clones.

use super::{Memory, inode::State, pages::Pages};
use crate::{Caller, Change, Handle, PreAttr, Result, VfsError, types::check_overlap};

impl Memory {
    /// Changes an object, and returns its attributes before and after.
    pub(super) fn change_state(
        &self,
        object: &Handle,
        change: impl FnOnce(&mut State) -> Result<()>,
    ) -> Result<Change> {
        let inode = self.find(object)?;
        let mut state = inode.write()?;
        let before = PreAttr::from(&inode.attr(&state));
        change(&mut state)?;
        Ok(Change { before, after: inode.attr(&state) })
    }

    /// Changes the data of a file.
    pub(super) fn change_pages(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        change: impl FnOnce(&mut Pages) -> Result<()>,
    ) -> Result<Change> {
        self.change_state(file, |state| {
            state.pages()?;
            state.guarded().check_write(caller.cred)?;
            change(state.pages_mut()?)?;
            state.drop_privileges(caller.cred);
            state.modified();
            Ok(())
        })
    }

    pub(super) fn copy_range(
        &self,
        caller: &Caller<'_>,
        from: (&Handle, u64),
        to: (&Handle, u64),
        len: u64,
    ) -> Result<u64> {
        check_overlap(from, to, len)?;
        let len = len.min(COPY_MAX) as usize;
        // Lent data does not change, so the copy is atomic.
        let (data, _, _) = self.open(caller, from.0, |pages| pages.read(from.1, len, &self.source))?;
        self.change_pages(caller, to.0, |pages| {
            self.check_end(to.1, data.len() as u64)?;
            pages.write(to.1, &data, &self.source)
        })?;
        Ok(data.len() as u64)
    }

    /// Copies a range by sharing its whole pages. The copy is atomic.
    pub(super) fn share_range(
        &self,
        caller: &Caller<'_>,
        from: (&Handle, u64),
        to: (&Handle, u64),
        len: u64,
    ) -> Result<Change> {
        let (_, size, _) = self.open(caller, from.0, |_| ())?;
        let len = if len == 0 { size.saturating_sub(from.1) } else { len };
        check_overlap(from, to, len)?;
        let end = from.1.checked_add(len).filter(|&end| end <= size).ok_or(VfsError::Invalid)?;
        let block = u64::from(self.caps.clone_block);
        let aligned = from.1.is_multiple_of(block) && to.1.is_multiple_of(block);
        // The last block of the source may be shorter.
        if !aligned || !len.is_multiple_of(block) && end != size {
            return Err(VfsError::Invalid);
        }
        let len = usize::try_from(len).map_err(|_| VfsError::FileTooBig)?;
        let (data, _, _) = self.open(caller, from.0, |pages| pages.read(from.1, len, &self.source))?;
        self.change_pages(caller, to.0, |pages| {
            self.check_end(to.1, len as u64)?;
            pages.write(to.1, &data, &self.source)
        })
    }

    fn check_end(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).filter(|&end| end <= self.caps.file_size_max);
        end.map(|_| ()).ok_or(VfsError::FileTooBig)
    }
}

/// Maximum bytes that are copied at a time. This takes some tens of milliseconds.
const COPY_MAX: u64 = 64 << 20;
