//! Reading and writing data.

use std::{
    fs::File,
    io::IoSliceMut,
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
};

use buf::{Piece, Rope};
use rustix::{
    fs::OFlags,
    io::{Errno, ReadWriteFlags},
};
use smallvec::SmallVec;

use super::{Posix, identity::Identity, kernel, objects::Object};
use crate::{Attr, Caller, Change, Kind, PreAttr, ReadInto, Report, Result, Stability, VfsError};

impl Posix {
    /// A descriptor of a file for data, with the caller's rights.
    pub(super) fn data(&self, caller: &Caller<'_>, object: &Arc<Object>, write: bool) -> Result<Arc<File>> {
        let cred = self.identity.effective(caller.cred);
        if let Some(file) = self.objects.opened(object, cred, write) {
            return Ok(file);
        }
        match object.kind {
            Kind::File => {}
            Kind::Dir => return Err(VfsError::IsDir),
            _ => return Err(VfsError::Invalid),
        }
        let file = Arc::new(self.open_data(caller, object, write)?);
        self.objects.keep_open(object, cred, write, file.clone());
        Ok(file)
    }

    fn open_data(&self, caller: &Caller<'_>, object: &Object, write: bool) -> Result<File> {
        let flags = if write { OFlags::WRONLY } else { OFlags::RDONLY } | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = {
            let _acting = self.identity.assume(caller)?;
            self.reopen(object.fd(), flags)
        };
        match opened {
            Ok(fd) => Ok(fd.into()),
            Err(Errno::ACCESS) => self.open_overriding(caller, object, write, flags),
            Err(errno) => Err(errno.into()),
        }
    }

    /// RFC 1813 §4.4: the owner may always read and write, and who may execute may read.
    fn open_overriding(&self, caller: &Caller<'_>, object: &Object, write: bool, flags: OFlags) -> Result<File> {
        let attr = self.attr(object)?;
        match &self.identity {
            Identity::Caller => {
                let may = attr.uid == caller.cred.uid
                    || (!write && {
                        let _acting = self.identity.assume(caller)?;
                        kernel::may_access(object.fd(), libc::X_OK)
                    });
                if may { Ok(self.reopen(object.fd(), flags)?.into()) } else { Err(VfsError::Access) }
            }
            Identity::Own(own) if own.uid == attr.uid => {
                // The owner may change the mode, and so may open the file with another one.
                let mut history = object.changing.lock();
                history.writers.forget();
                self.chmod(object.fd(), attr.mode | 0o600)?;
                let opened = self.reopen(object.fd(), flags);
                self.chmod(object.fd(), attr.mode)?;
                Ok(opened?.into())
            }
            Identity::Own(_) => Err(VfsError::Access),
        }
    }

    /// Reads into memory, without waiting if the caller must not.
    pub(super) fn read_file(
        &self,
        caller: &Caller<'_>,
        object: &Object,
        file: &File,
        offset: u64,
        into: &mut [u8],
    ) -> Result<ReadInto> {
        let len = self.fill(caller, file, offset, into)?;
        let attr = self.attr_by(object, file.as_fd())?;
        Ok(ReadInto { len, eof: offset.saturating_add(len as u64) >= attr.size, attr })
    }

    /// Reads as much as there is, and fits. Returns how much that was.
    pub(super) fn fill(&self, caller: &Caller<'_>, file: &File, offset: u64, into: &mut [u8]) -> Result<usize> {
        let wait = self.may_wait(caller).is_ok();
        let flags = if wait { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT };
        let mut len = 0;
        // The kernel's offsets are signed; beyond them there is nothing to read.
        while len < into.len() && offset.saturating_add(into.len() as u64) <= i64::MAX as u64 {
            let rest = &mut [IoSliceMut::new(&mut into[len..])];
            match rustix::io::preadv2(file, rest, offset + len as u64, flags) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::OPNOTSUPP) if !wait => return Err(VfsError::WouldBlock),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(len)
    }

    /// Whether a range of a file may be lent to a socket, which sends it by itself: its data are in memory, so the thread that
    /// sends them does not wait for storage. Of a remote file system that is never known.
    ///
    /// # Errors
    /// `WouldBlock` if they are not, and the caller must not read them.
    pub(super) fn may_lend(&self, caller: &Caller<'_>, file: &File, offset: u64, len: usize) -> Result<bool> {
        if !self.caps.blocks {
            return Ok(true);
        }
        if self.remote {
            return Ok(false);
        }
        match probe(file, offset, len) {
            Ok(()) => Ok(true),
            Err(VfsError::WouldBlock) if caller.may_block => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes data, and returns the attributes of the file before and after as far as the caller asked for them.
    pub(super) fn write_file(
        &self,
        caller: &Caller<'_>,
        (object, file): (&Object, &File),
        offset: u64,
        data: &Rope,
        (stability, report): (Stability, Report),
    ) -> Result<(Option<PreAttr>, Option<Attr>)> {
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > self.caps.file_size_max) {
            return Err(VfsError::FileTooBig);
        }
        let flags = match stability {
            Stability::Unstable => ReadWriteFlags::empty(),
            Stability::DataSync => ReadWriteFlags::DSYNC,
            Stability::FileSync => ReadWriteFlags::DSYNC | ReadWriteFlags::SYNC,
        };
        let write = || {
            // As the caller: set-user-id bits go, and quotas and reserved space are the caller's.
            let _acting = self.identity.assume(caller)?;
            let written = write_all(file, offset, data, flags);
            written.inspect_err(|error| self.note_failure(*error))
        };
        match report {
            Report::Nothing if data.is_empty() => write()?,
            Report::Nothing => self.change_unreported(object, write)?,
            Report::Attributes(_) if data.is_empty() => {
                let change = self.unchanged(object, write)?;
                return Ok((Some(change.before), Some(change.after)));
            }
            Report::Attributes(writer) => {
                let (before, after) = self.change_data(object, writer, write)?;
                return Ok((before, Some(after)));
            }
        }
        Ok((None, None))
    }

    pub(super) fn sync(&self, object: &Object, file: &File) -> Result<Change> {
        self.unchanged(object, || {
            let synced = rustix::fs::fsync(file).map_err(VfsError::from);
            synced.inspect_err(|error| self.note_failure(*error))
        })
    }

    /// After a failure of storage, what was written and not yet committed may be lost: clients must write it again,
    /// which a new verifier tells them.
    fn note_failure(&self, error: VfsError) {
        if error == VfsError::Io {
            *self.verifier.lock() = entropy::random();
        }
    }
}

/// # Errors
/// `WouldBlock` if reading the range would wait for storage, as far as a few samples tell.
fn probe(file: &File, offset: u64, len: usize) -> Result<()> {
    let last = len.saturating_sub(1);
    for at in (0..last).step_by(PROBE_STEP).chain([last]) {
        let byte = &mut [0];
        match rustix::io::preadv2(file, &mut [IoSliceMut::new(byte)], offset + at as u64, ReadWriteFlags::NOWAIT) {
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => return Err(VfsError::WouldBlock),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn write_all(file: &File, mut offset: u64, data: &Rope, flags: ReadWriteFlags) -> Result<()> {
    // Pieces of files and of device memory go through host memory. What is a peer's is for the kernel alone to look at.
    let copies: SmallVec<[Option<Vec<u8>>; 4]> = data
        .pieces()
        .iter()
        .map(|piece| match piece {
            Piece::Memory(_) | Piece::Peer(_) => Ok(None),
            Piece::File(_) | Piece::Device(_) => {
                let mut copy = vec![0; piece.len()];
                piece.copy_to(&mut copy).map(|()| Some(copy)).map_err(|_| VfsError::Io)
            }
        })
        .collect::<Result<_>>()?;
    let mut slices: SmallVec<[libc::iovec; 8]> = data
        .pieces()
        .iter()
        .zip(&copies)
        .map(|(piece, copy)| {
            let start = match piece {
                Piece::Memory(bytes) => bytes.as_ptr(),
                Piece::Peer(bytes) => bytes.as_ptr(),
                Piece::File(_) | Piece::Device(_) => copy.as_deref().unwrap_or_default().as_ptr(),
            };
            libc::iovec { iov_base: start.cast_mut().cast(), iov_len: piece.len() }
        })
        .collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        match pwritev(file, &rest[..rest.len().min(GATHER_MAX)], offset, flags) {
            Ok(0) => return Err(VfsError::Io),
            Ok(written) => {
                offset += written as u64;
                rest = skip(rest, written);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// `pwritev2` of memory that may be a peer's, of which there can be no slices.
fn pwritev(file: &File, slices: &[libc::iovec], offset: u64, flags: ReadWriteFlags) -> rustix::io::Result<usize> {
    let offset = offset.try_into().map_err(|_| Errno::INVAL)?;
    let (count, flags) = (slices.len() as libc::c_int, flags.bits() as libc::c_int);
    // SAFETY: the kernel only reads the slices, which are of pieces that the caller holds, or of copies of them.
    #[expect(unsafe_code)]
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), slices.as_ptr(), count, offset, flags) };
    usize::try_from(written).map_err(|_| {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Errno::from_raw_os_error(errno)
    })
}

/// What is left of `slices` behind the first `len` bytes.
fn skip(mut slices: &mut [libc::iovec], mut len: usize) -> &mut [libc::iovec] {
    while let [first, ..] = slices
        && len >= first.iov_len
    {
        len -= first.iov_len;
        slices = &mut slices[1..];
    }
    if let [first, ..] = slices {
        // SAFETY: the address stays inside the piece.
        #[expect(unsafe_code)]
        let base = unsafe { first.iov_base.byte_add(len) };
        (first.iov_base, first.iov_len) = (base, first.iov_len - len);
    }
    slices
}

/// Fewer bytes than this are copied to memory even if a range of a file would do.
pub(super) const RANGE_MIN: usize = 32 << 10;
/// Distance of the samples that tell whether a range is in memory.
const PROBE_STEP: usize = 64 << 10;
/// Slices that one system call takes (`UIO_MAXIOV`).
const GATHER_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bytes::Bytes;

    use super::*;
    use crate::{CreateMode, Cred, Handle, Name, SetAttr, Vfs, Writer, posix::PosixOptions};

    /// Writes again and again until the attributes before are not reported any more, as the writer knows them.
    fn write_until_known(write: impl Fn() -> Option<PreAttr>) {
        let deadline = Instant::now() + Duration::from_secs(600);
        while write().is_some() {
            assert!(Instant::now() < deadline, "the only writer knows the file");
        }
    }

    #[test]
    fn a_writer_is_told_what_others_have_changed() {
        let dir = tempfile::tempdir().unwrap();
        let fs = Posix::open(dir.path(), PosixOptions::default()).unwrap();
        let cred = Cred { uid: rustix::process::geteuid().as_raw(), ..Cred::root() };
        let caller = Caller::blocking(&cred);
        let name = Name::new(b"f").unwrap();
        let file = fs.create(&caller, &fs.root(), name, &CreateMode::Guarded(SetAttr::default())).unwrap().handle;
        let data = Rope::from(Bytes::from_static(b"data"));
        let write = |file: &Handle, writer| {
            let report = Report::Attributes(Writer(writer));
            let written = fs.write(&caller, file, 0, &data, Stability::Unstable, report).unwrap();
            assert_eq!(written.after.unwrap(), fs.getattr(&caller, file).unwrap());
            written.before
        };
        let attr = || Some(PreAttr::from(&fs.getattr(&caller, &file).unwrap()));
        if !fs.fine_times {
            eprintln!("SKIPPED writers who know a file: its ctime does not tell all changes");
            return;
        }
        write_until_known(|| write(&file, 1));
        let before = attr();
        assert_eq!(write(&file, 2), before, "another writer");
        let before = attr();
        assert_eq!(write(&file, 1), before, "the other one has written");
        write_until_known(|| write(&file, 1));
        fs.setattr(&caller, &file, &SetAttr { size: Some(1), ..SetAttr::default() }, None).unwrap();
        let before = attr();
        assert_eq!(write(&file, 1), before, "somebody has truncated it");
        write_until_known(|| write(&file, 1));
        fs.write(&caller, &file, 0, &data, Stability::Unstable, Report::Nothing).unwrap();
        let before = attr();
        assert_eq!(write(&file, 1), before, "somebody has written without a report");
    }
}
