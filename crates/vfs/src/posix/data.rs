//! Reading and writing data.

use std::{
    cmp::Ordering,
    fs::File,
    io::IoSliceMut,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
};

use buf::{FileRange, Piece, Pool, Rope};
use rustix::{
    fs::OFlags,
    io::{Errno, ReadWriteFlags},
};
use smallvec::SmallVec;

use super::{Posix, identity::Identity, kernel, objects::Object};
use crate::{Attr, Caller, Change, Handle, Kind, PreAttr, Read, ReadInto, Report, Result, Stability, VfsError};

impl Posix {
    /// Returns a descriptor for a file's data, opened with the caller's rights.
    pub(super) fn data(&self, caller: &Caller<'_>, object: &Arc<Object>, write: bool) -> Result<Arc<File>> {
        let cred = self.identity.effective(caller.cred);
        if let Some(file) = self.objects.opened(object, cred, write) {
            return Ok(file);
        }
        check_is_file(object)?;
        let file = Arc::new(self.open_data(caller, object, write)?);
        self.objects.keep_open(object, cred, write, file.clone());
        Ok(file)
    }

    /// Returns a file, and a descriptor for reading its data.
    pub(super) fn open_to_read(&self, caller: &Caller<'_>, file: &Handle) -> Result<(Arc<Object>, Arc<File>)> {
        let object = self.resolve(caller, file)?;
        let file = self.data(caller, &object, false)?;
        Ok((object, file))
    }

    /// Returns a new descriptor for reading, with a file description of its own.
    pub(super) fn open_to_pass(&self, caller: &Caller<'_>, file: &Handle) -> Result<OwnedFd> {
        let object = self.resolve(caller, file)?;
        check_is_file(&object)?;
        // The attributes of a remote file system can be old, so only its own caches know when data have changed.
        if self.remote {
            return Err(VfsError::NotSupported);
        }
        self.may_wait(caller)?;
        self.open_data(caller, &object, false).map(OwnedFd::from)
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

    /// Opens a file despite its mode. RFC 1813 §4.4: the owner may always read and write, and a caller that may execute
    /// may read.
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
                // The owner may change the mode, so temporarily set one that allows opening the file.
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

    /// Reads into memory. Does not block if the caller must not.
    pub(super) fn read_file(
        &self,
        caller: &Caller<'_>,
        object: &Object,
        file: &File,
        offset: u64,
        into: &mut [u8],
    ) -> Result<ReadInto> {
        let len = self.fill(caller, file, offset, (into, &mut []))?;
        let attr = self.attr_by(object, file.as_fd())?;
        Ok(ReadInto { len, eof: offset.saturating_add(len as u64) >= attr.size, attr })
    }

    /// Reads a range, and the attributes of the file.
    pub(super) fn read_and_stat(
        &self,
        caller: &Caller<'_>,
        (object, file): (&Object, Arc<File>),
        (offset, len): (u64, usize),
        pool: &Pool,
        file_ranges: bool,
    ) -> Result<Read> {
        // Read the attributes before the data, so that old data is never returned with newer attributes.
        let attr = self.attr_by(object, file.as_fd())?;
        let len = attr.size.saturating_sub(offset).min(len as u64) as usize;
        if file_ranges && len >= RANGE_MIN && self.may_lend(caller, &file, offset, len)? {
            let eof = offset.saturating_add(len as u64) >= attr.size;
            return Ok(Read { data: Rope::from(FileRange { file, offset, len }), eof, attr });
        }
        if len == 0 {
            return Ok(Read { data: Rope::new(), eof: offset >= attr.size, attr });
        }
        let mut buffer = pool.take(len);
        let read = self.fill(caller, &file, offset, (&mut buffer, &mut []))?;
        buffer.set_len(read);
        // If fewer bytes than expected were read, the file has been truncated meanwhile and ends there.
        let eof = read < len || offset.saturating_add(read as u64) >= attr.size;
        Ok(Read { data: Rope::from(buffer.freeze()), eof, attr })
    }

    /// Reads a short range without the attributes of the file. Returns the data, and `true` if they reach its end. Returns
    /// `None` if the range is not short, or if reading might wait for storage behind it.
    pub(super) fn read_short(
        &self,
        caller: &Caller<'_>,
        (object, file): (&Object, &File),
        (offset, len): (u64, usize),
        pool: &Pool,
    ) -> Result<Option<(Rope, bool)>> {
        if !(1..RANGE_MIN).contains(&len) || self.caps.blocks && self.may_wait(caller).is_ok() {
            return Ok(None);
        }
        let mut buffer = pool.take(len);
        // One byte more tells whether the file goes on.
        let read = self.fill(caller, file, offset, (&mut buffer, &mut [0]))?;
        let eof = match read.cmp(&len) {
            Ordering::Less => true,
            Ordering::Greater => false,
            // The file ends here, or its next page is not in the page cache.
            Ordering::Equal => offset.saturating_add(len as u64) >= self.attr_by(object, file.as_fd())?.size,
        };
        buffer.set_len(read.min(len));
        Ok(Some((Rope::from(buffer.freeze()), eof)))
    }

    /// Reads until `into` is full or the file ends, and into `beyond` what the same system call returns behind it. Returns
    /// the number of bytes.
    pub(super) fn fill(
        &self,
        caller: &Caller<'_>,
        file: &File,
        offset: u64,
        (into, beyond): (&mut [u8], &mut [u8]),
    ) -> Result<usize> {
        // The kernel's offsets are signed: nothing can be read beyond the largest one, and it rejects a longer range.
        let room = usize::try_from((i64::MAX as u64).saturating_sub(offset)).unwrap_or(usize::MAX);
        let (wanted, probed) = (room.min(into.len()), (room - room.min(into.len())).min(beyond.len()));
        let (into, beyond) = (&mut into[..wanted], &mut beyond[..probed]);
        let wait = self.may_wait(caller).is_ok();
        let flags = if wait { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT };
        let mut len = 0;
        while len < into.len() {
            let rest = &mut [IoSliceMut::new(&mut into[len..]), IoSliceMut::new(beyond)];
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

    /// Returns `true` if a range of a file can be lent to a socket, which sends it by itself. The data must be in the
    /// page cache, so that the sending thread does not wait for storage. This is never certain on a remote file system.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the data is not in the page cache and the caller must not block.
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

    /// Writes data, and returns the attributes before and after that the caller has asked for.
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
            // Write as the caller, so that set-user-id bits are cleared, and quotas and reserved space are the
            // caller's.
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

    /// Changes the write verifier after a failure of storage. Uncommitted writes may be lost, and the new verifier
    /// makes the clients write them again.
    pub(super) fn note_failure(&self, error: VfsError) {
        if error == VfsError::Io {
            *self.verifier.lock() = entropy::random();
        }
    }
}

/// # Errors
/// Returns `IsDir` for a directory, and `Invalid` for any other object that is not a regular file.
pub(super) fn check_is_file(object: &Object) -> Result<()> {
    match object.kind {
        Kind::File => Ok(()),
        Kind::Dir => Err(VfsError::IsDir),
        _ => Err(VfsError::Invalid),
    }
}

/// Checks that reading the range would not wait for storage, as far as a few samples show.
///
/// # Errors
/// Returns `WouldBlock` if it would.
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
    // Pieces of files and of device memory are copied to host memory. Only the kernel may read a peer's memory.
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

/// Calls `pwritev2` with memory that may be shared with a peer, so it cannot be passed as Rust slices.
fn pwritev(file: &File, slices: &[libc::iovec], offset: u64, flags: ReadWriteFlags) -> rustix::io::Result<usize> {
    let offset = offset.try_into().map_err(|_| Errno::INVAL)?;
    let (count, flags) = (slices.len() as libc::c_int, flags.bits() as libc::c_int);
    // SAFETY: the kernel only reads the slices. The caller holds the pieces, or copies of them, to which they point.
    #[expect(unsafe_code)]
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), slices.as_ptr(), count, offset, flags) };
    usize::try_from(written).map_err(|_| {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        Errno::from_raw_os_error(errno)
    })
}

/// Returns the part of `slices` after the first `len` bytes.
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

/// Minimum bytes of a range of a file that is lent. Fewer bytes are copied to memory.
const RANGE_MIN: usize = 32 << 10;
/// Distance in bytes between the samples that show whether a range is in the page cache.
const PROBE_STEP: usize = 64 << 10;
/// Maximum number of slices in one system call (`UIO_MAXIOV`).
const GATHER_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bytes::Bytes;

    use super::*;
    use crate::{CreateMode, Cred, Handle, Name, SetAttr, Vfs, Writer, posix::PosixOptions};

    /// Writes repeatedly until the attributes before the write are not reported any more, because the writer knows
    /// them.
    fn write_until_known(write: impl Fn() -> Option<PreAttr>) {
        let deadline = Instant::now() + Duration::from_secs(600);
        while write().is_some() {
            assert!(Instant::now() < deadline, "the only writer must get to know the file");
        }
    }

    #[test]
    fn last_bytes_of_the_longest_file_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let fs = Posix::open(dir.path(), PosixOptions::default()).unwrap();
        let cred = Cred::root();
        let caller = Caller::blocking(&cred);
        // A file in memory can have the largest size that the kernel's offsets allow.
        let file = File::from(rustix::fs::memfd_create("longest", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(i64::MAX as u64).unwrap();
        let fill = |before_end: u64, len: usize, probe: usize| {
            let (into, beyond) = (&mut vec![1; len][..], &mut vec![1; probe][..]);
            fs.fill(&caller, &file, i64::MAX as u64 - before_end, (into, beyond)).unwrap()
        };
        assert_eq!([fill(8, 8, 0), fill(8, 8, 1), fill(9, 8, 1), fill(8, 20, 1), fill(0, 8, 1)], [8, 8, 9, 8, 0]);
        assert_eq!(fs.fill(&caller, &file, u64::MAX, (&mut [1; 8], &mut [])), Ok(0));
    }

    #[test]
    fn writer_learns_of_changes_by_others() {
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
            eprintln!("SKIPPED writer_learns_of_changes_by_others: the file system has no fine-grained ctime");
            return;
        }
        write_until_known(|| write(&file, 1));
        let before = attr();
        assert_eq!(write(&file, 2), before, "another writer");
        let before = attr();
        assert_eq!(write(&file, 1), before, "the other writer has written");
        write_until_known(|| write(&file, 1));
        fs.setattr(&caller, &file, &SetAttr { size: Some(1), ..SetAttr::default() }, None).unwrap();
        let before = attr();
        assert_eq!(write(&file, 1), before, "the file has been truncated");
        write_until_known(|| write(&file, 1));
        fs.write(&caller, &file, 0, &data, Stability::Unstable, Report::Nothing).unwrap();
        let before = attr();
        assert_eq!(write(&file, 1), before, "there was a write without a report");
    }
}
