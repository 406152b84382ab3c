//! Ranges of files: holes, allocation, copies and clones, all of which the kernel implements.

use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use rustix::{
    fs::{FallocateFlags, Mode, OFlags, SeekFrom},
    io::Errno,
};

use super::{Posix, objects::Object};
use crate::{Caller, Change, Result, SeekFor, VfsError};

/// Returns the alignment of clones in bytes, or 0 if the file system does not support them. The function tries it on
/// two unnamed files.
pub(super) fn clone_block(root: &OwnedFd) -> u32 {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let nameless = || rustix::fs::openat(root, c".", flags, Mode::RUSR | Mode::WUSR);
    let (Ok(one), Ok(other)) = (nameless(), nameless()) else { return 0 };
    let block = rustix::fs::fstatfs(root).map_or(0, |stat| stat.f_bsize as u32);
    if rustix::fs::ioctl_ficlone(&one, &other).is_ok() { block } else { 0 }
}

impl Posix {
    pub(super) fn seek_for(&self, object: &Object, file: &File, offset: u64, what: SeekFor) -> Result<Option<u64>> {
        let size = self.attr_by(object, file.as_fd())?.size;
        if offset >= size {
            return Err(VfsError::NoDevice);
        }
        let position = match what {
            SeekFor::Data => SeekFrom::Data(offset),
            SeekFor::Hole => SeekFrom::Hole(offset),
        };
        // No other code uses the position of the descriptor.
        match rustix::fs::seek(file, position) {
            Ok(found) => Ok((found < size).then_some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn fallocate(
        &self,
        caller: &Caller<'_>,
        (object, file): (&Object, &File),
        flags: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Result<Change> {
        let end = offset.checked_add(len).filter(|&end| end <= self.caps.file_size_max);
        if end.is_none() && !flags.contains(FallocateFlags::KEEP_SIZE) {
            return Err(VfsError::FileTooBig);
        }
        let len = len.min(self.caps.file_size_max.saturating_sub(offset));
        let ((), change) = self.change_if(len > 0, object, |_| {
            if len == 0 {
                return Ok(());
            }
            let _acting = self.identity.assume(caller)?;
            Ok(rustix::fs::fallocate(file, flags, offset, len)?)
        })?;
        Ok(change)
    }

    pub(super) fn copy_range(
        &self,
        caller: &Caller<'_>,
        (source, mut from): (&File, u64),
        (object, target, mut to): (&Object, &File, u64),
        len: u64,
    ) -> Result<u64> {
        let end = to.checked_add(len).filter(|&end| end <= self.caps.file_size_max);
        if end.is_none() {
            return Err(VfsError::FileTooBig);
        }
        let len = len.min(COPY_MAX);
        let mut copied = 0;
        let (copied, _) = self.change(object, |_| {
            let _acting = self.identity.assume(caller)?;
            while copied < len {
                let rest = (len - copied) as usize;
                match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), rest) {
                    Ok(0) => break,
                    Ok(more) => copied += more as u64,
                    Err(Errno::INTR) => {}
                    // Report the copied bytes. The client gets the error again if it continues.
                    Err(_) if copied > 0 => break,
                    Err(errno) => return Err(errno.into()),
                }
            }
            Ok(copied)
        })?;
        Ok(copied)
    }

    pub(super) fn reflink(
        &self,
        caller: &Caller<'_>,
        (source, from): (&File, u64),
        (object, target, to): (&Object, &File, u64),
        len: u64,
    ) -> Result<Change> {
        if self.caps.clone_block == 0 {
            return Err(VfsError::NotSupported);
        }
        let ((), change) = self.change(object, |_| {
            let _acting = self.identity.assume(caller)?;
            let range = libc::file_clone_range {
                src_fd: source.as_raw_fd().into(),
                src_offset: from,
                src_length: len,
                dest_offset: to,
            };
            // SAFETY: both descriptors are open, and the kernel only reads `range`.
            #[expect(unsafe_code)]
            let done = unsafe { libc::ioctl(target.as_raw_fd(), libc::FICLONERANGE, &raw const range) };
            if done == 0 {
                return Ok(());
            }
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            Err(Errno::from_raw_os_error(errno).into())
        })?;
        Ok(change)
    }
}

/// Maximum bytes that are copied at a time, so that other calls do not wait for long.
const COPY_MAX: u64 = 256 << 20;
