//! Directory listings. Cookies are the kernel's: positions that stay valid while the directory changes, on the file
//! systems that Linux can export.

use std::{mem::MaybeUninit, ops::ControlFlow, os::fd::AsFd, sync::Arc};

use rustix::{
    fs::{Mode, OFlags, RawDir, ResolveFlags, SeekFrom},
    io::Errno,
};

use super::{Posix, objects::Object, resolve::open_beneath};
use crate::{Attr, Caller, DirEntry, Handle, ReadDir, Result, VfsError};

impl Posix {
    pub(super) fn list(
        &self,
        caller: &Caller<'_>,
        dir: &Arc<Object>,
        cookie: u64,
        attrs: bool,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<ReadDir> {
        let attr = self.attr(dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = {
            let _acting = self.identity.assume(caller)?;
            self.with_room(|| rustix::fs::openat(dir.fd(), c".", flags, Mode::empty()))?
        };
        if cookie != 0 {
            rustix::fs::seek(&open, SeekFrom::Start(cookie)).map_err(|_| VfsError::BadCookie)?;
        }
        let mut memory = vec![MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(&open, &mut memory);
        let eof = loop {
            let entry = match entries.next() {
                None => break true,
                // The directory was removed after it had been opened.
                Some(Err(Errno::NOENT)) => return Err(VfsError::Stale),
                Some(Err(errno)) => return Err(errno.into()),
                Some(Ok(entry)) => entry,
            };
            let name = entry.file_name().to_bytes();
            let object = if attrs { self.entry(caller, dir, name) } else { None };
            let fileid = match (&object, name) {
                (Some((_, attr)), _) => attr.fileid,
                // Clients must not see the parent of the root.
                (None, b"..") if dir.handle == self.root.handle => attr.fileid,
                _ => entry.ino(),
            };
            let cookie = entry.next_entry_cookie();
            if each(DirEntry { name, fileid, cookie, object }).is_break() {
                break false;
            }
        };
        Ok(ReadDir { verifier: VERIFIER, eof, attr })
    }

    /// Returns the object of an entry, if the caller may look it up.
    fn entry(&self, caller: &Caller<'_>, dir: &Arc<Object>, name: &[u8]) -> Option<(Handle, Attr)> {
        match name {
            b"." => Some((dir.handle.clone(), self.attr(dir).ok()?)),
            b".." => {
                let parent = self.parent(dir).ok()?;
                let attr = self.attr(&parent).ok()?;
                Some((parent.handle.clone(), attr))
            }
            name => self.named_entry(caller, dir, name),
        }
    }

    fn named_entry(&self, caller: &Caller<'_>, dir: &Arc<Object>, name: &[u8]) -> Option<(Handle, Attr)> {
        let fd = {
            let _acting = self.identity.assume(caller).ok()?;
            open_beneath(dir.fd(), name, ResolveFlags::empty()).ok()?
        };
        // Do not cache the object: the entries of a large directory would evict objects that are in use.
        let handle = self.naming.handle(fd.as_fd(), c"").ok()?;
        let attr = self.stat(fd.as_fd()).ok()?;
        self.note(&handle, dir, name);
        Some((handle, attr))
    }
}

/// The verifier of all cookies.
pub(super) const VERIFIER: [u8; 8] = [0; 8];

/// Bytes that one system call returns.
const BUFFER: usize = 8 << 10;
