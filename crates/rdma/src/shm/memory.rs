//! Memory shared by two processes: the control memory, and the slabs of the connecting side.
//!
//! Each is a memfd. A side that maps a memfd of the other side checks its seals and size first, because a file that
//! could shrink would turn an access into a signal. Control memory consists of atomics. Slabs are accessed only through
//! raw pointers and system calls, never through a reference, because the other side can change them at any time.
//!
//! On error nothing is mapped.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use buf::{FileRange, Piece, Rope};
use rustix::{
    fs::{MemfdFlags, SealFlags},
    mm::{MapFlags, ProtFlags},
};

use super::{
    ledger::{Account, Charge},
    ring::{Consumer, DATA, Producer, Words},
    table::{ENTRY_WORDS, Table},
};
use crate::shares::Need;

/// The control memory: a ring in each direction, and the table of exposures. The accepting side creates it.
#[derive(Debug)]
pub(crate) struct Control {
    mapping: Mapping,
    /// The charge for the mapping, on the accepting side.
    _charge: Option<Charge>,
}

/// A part of the control memory.
#[derive(Clone)]
pub(crate) struct SharedWords {
    control: Arc<Control>,
    start: usize,
    count: usize,
}

/// A slab of the connecting side, mapped by the accepting side.
#[derive(Debug)]
pub(crate) struct PeerSlab {
    mapping: Mapping,
    _charge: Charge,
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is the same memory for all threads; its users are responsible for their accesses.
#[expect(unsafe_code)]
unsafe impl Send for Mapping {}
// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for Mapping {}

impl Control {
    /// Creates control memory filled with zeros, charged to the peer, and returns it with its descriptor for the peer.
    ///
    /// # Errors
    /// The peer's user has reached its limit, or the system rejects the request.
    pub(crate) fn with_fd(account: &Account) -> io::Result<(Arc<Self>, OwnedFd)> {
        let charge = account.mapping(Need::Essential)?;
        let fd = rustix::fs::memfd_create("slipway-shm", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, CONTROL_LEN as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        account.memfd(fd.as_fd(), CONTROL_LEN as u64, Need::Essential)?;
        Ok((Arc::new(Self { mapping: Mapping::new(fd.as_fd(), CONTROL_LEN)?, _charge: Some(charge) }), fd))
    }

    /// Creates control memory for both sides in this process.
    #[cfg(test)]
    pub(crate) fn create() -> io::Result<Arc<Self>> {
        let account = super::ledger::Ledger::of_process().account(0);
        Self::with_fd(&account).map(|(control, _)| control)
    }

    /// Maps control memory by a descriptor of the peer.
    pub(crate) fn open(fd: BorrowedFd<'_>) -> io::Result<Arc<Self>> {
        check(fd, CONTROL_LEN)?;
        Ok(Arc::new(Self { mapping: Mapping::new(fd, CONTROL_LEN)?, _charge: None }))
    }

    /// Returns the writing end of the ring of the accepting or the connecting side.
    pub(crate) fn tx(self: &Arc<Self>, accepting: bool) -> Producer<SharedWords> {
        Producer::new(self.ring(accepting))
    }

    /// Returns the reading end for the accepting or the connecting side, which is of the other side's ring.
    pub(crate) fn rx(self: &Arc<Self>, accepting: bool) -> Consumer<SharedWords> {
        Consumer::new(self.ring(!accepting))
    }

    /// Returns the table of exposures.
    pub(crate) fn table(self: &Arc<Self>) -> Table<SharedWords> {
        Table(SharedWords { control: self.clone(), start: TABLE_START, count: EXPOSURES_MAX * ENTRY_WORDS })
    }

    /// Returns the words of a ring, to which a hostile peer can write anything.
    pub(crate) fn words_of_ring(self: &Arc<Self>, of_accepting: bool) -> SharedWords {
        self.ring(of_accepting)
    }

    fn ring(self: &Arc<Self>, of_accepting: bool) -> SharedWords {
        let start = if of_accepting { RING_SPACE } else { 0 };
        SharedWords { control: self.clone(), start, count: DATA + RING_WORDS }
    }
}

impl SharedWords {
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count);
        // SAFETY: all parts lie inside the control memory, as the constants below define. It is mapped while `control`
        // lives, and has its full size because of its seals. It is aligned to pages. It is accessed only as atomics.
        #[expect(unsafe_code)]
        unsafe {
            self.control.mapping.start.cast::<AtomicU64>().add(self.start / 8 + index).as_ref()
        }
    }
}

impl Words for SharedWords {
    #[inline]
    fn count(&self) -> usize {
        self.count
    }

    #[inline]
    fn load(&self, index: usize, order: Ordering) -> u64 {
        self.word(index).load(order)
    }

    #[inline]
    fn store(&self, index: usize, value: u64, order: Ordering) {
        self.word(index).store(value, order);
    }

    #[inline]
    fn swap(&self, index: usize, value: u64, order: Ordering) -> u64 {
        self.word(index).swap(value, order)
    }

    #[inline]
    fn compare_exchange(&self, index: usize, old: u64, new: u64) -> Result<u64, u64> {
        self.word(index).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
    }
}

impl PeerSlab {
    /// Maps a slab that has been checked.
    ///
    /// # Errors
    /// The peer's user has reached its limit of mappings, or the slab cannot be mapped.
    pub(crate) fn map(fd: BorrowedFd<'_>, bytes: usize, account: &Account) -> io::Result<Self> {
        let charge = account.mapping(Need::Optional)?;
        Ok(Self { mapping: Mapping::new(fd, bytes)?, _charge: charge })
    }

    /// Checks that a descriptor is of a slab of `bytes` bytes, as stated by the peer, before it is mapped.
    ///
    /// # Errors
    /// The descriptor is not of a memfd, the memfd is not sealed against shrinking, or its size differs.
    pub(crate) fn check(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        check(fd, bytes)
    }

    /// Maps `bytes` bytes from `start` of a checked slab, with their pages, for one access.
    ///
    /// # Errors
    /// As for [`map`](Self::map).
    pub(crate) fn window(fd: BorrowedFd<'_>, start: u64, bytes: usize, account: &Account) -> io::Result<Self> {
        let charge = account.mapping(Need::Optional)?;
        Ok(Self { mapping: Mapping::part(fd, start, bytes, MapFlags::POPULATE)?, _charge: charge })
    }

    /// Returns the address of the bytes `offset .. offset + len`, or `None` if some of them lie outside the slab.
    pub(crate) fn range(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len as u64)?;
        if end > self.mapping.bytes as u64 {
            return None;
        }
        // SAFETY: the offset is inside the mapping, or one past its end.
        #[expect(unsafe_code)]
        Some(unsafe { self.mapping.start.add(offset as usize) })
    }

    /// Writes `data` to `offset .. offset + data.len()`. Returns `false` if some of the range lies outside the slab.
    ///
    /// # Errors
    /// A file range or device memory of the rope cannot be read.
    pub(crate) fn fill(&self, offset: u64, data: &Rope) -> io::Result<bool> {
        let Some(start) = self.range(offset, data.len()) else { return Ok(false) };
        let mut at = 0;
        for piece in data.pieces() {
            // SAFETY: the pieces together are as long as the range, which lies inside the mapping.
            #[expect(unsafe_code)]
            let target = unsafe { start.add(at) };
            match piece {
                Piece::Memory(bytes) => {
                    // SAFETY: the target has room for the bytes, as above. Memory of this process is never the peer's
                    // memory. The peer can read or write the target at the same time, but nothing here reads it.
                    #[expect(unsafe_code)]
                    unsafe {
                        target.copy_from_nonoverlapping(NonNull::from(&**bytes).cast(), bytes.len());
                    }
                }
                Piece::File(range) => read_file(range, target)?,
                Piece::Peer(bytes) => {
                    // SAFETY: as above. The source can be another peer's memory, or another range of the same memory.
                    #[expect(unsafe_code)]
                    unsafe {
                        std::ptr::copy(bytes.as_ptr(), target.as_ptr(), bytes.len());
                    }
                }
                Piece::Device(range) => {
                    let mut copy = vec![0; range.len()];
                    range.copy_out(0, &mut copy)?;
                    // SAFETY: as for memory of this process.
                    #[expect(unsafe_code)]
                    unsafe {
                        target.copy_from_nonoverlapping(NonNull::from(&*copy).cast(), copy.len());
                    }
                }
            }
            at += piece.len();
        }
        Ok(true)
    }

    /// Copies `offset .. offset + into.len()` to `into`. Returns `false` if some of the range lies outside the slab.
    pub(crate) fn copy_to(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(start) = self.range(offset, into.len()) else { return false };
        // SAFETY: the range lies inside the mapping, and `into` is memory of this process only. A peer that writes at
        // the same time determines what is copied, as it can anyway.
        #[expect(unsafe_code)]
        unsafe {
            start.copy_to_nonoverlapping(NonNull::from(&mut *into).cast(), into.len());
        }
        true
    }
}

/// Reads a file range to `target`, which has room for it, directly from the page cache into the peer's memory.
fn read_file(range: &FileRange, target: NonNull<u8>) -> io::Result<()> {
    let file: &File = &range.file;
    let mut done = 0;
    while done < range.len {
        let offset = i64::try_from(range.offset + done as u64).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel writes at most `len - done` bytes behind the first `done`, and checks the addresses
        // itself.
        #[expect(unsafe_code)]
        let read =
            unsafe { libc::pread64(file.as_raw_fd(), target.add(done).as_ptr().cast(), range.len - done, offset) };
        match read {
            0 => {
                // Bytes beyond the end of the file are zeros.
                // SAFETY: as above.
                #[expect(unsafe_code)]
                unsafe {
                    target.add(done).write_bytes(0, range.len - done);
                }
                break;
            }
            read if read > 0 => done += read as usize,
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Checks that `fd` is memory of exactly `bytes` bytes that cannot shrink.
fn check(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let refuse = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, format!("the peer's memory {what}")));
    // Only memfds have seals. A file of another kind could be truncated, or be on a disk.
    let Ok(seals) = rustix::fs::fcntl_get_seals(fd) else { return refuse("is not a memfd") };
    if !seals.contains(SealFlags::SHRINK) {
        return refuse("is not sealed against shrinking");
    }
    let size = rustix::fs::fstat(fd)?.st_size;
    if bytes == 0 || size != bytes as i64 {
        return refuse(&format!("has {size} bytes, not {bytes}"));
    }
    // Huge pages of a fixed pool can be exhausted at a page fault, which causes a signal. Ordinary memory cannot.
    if rustix::fs::fstatfs(fd)?.f_type != TMPFS_MAGIC {
        return refuse("is not ordinary memory (tmpfs)");
    }
    Ok(())
}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        Self::part(fd, 0, bytes, MapFlags::empty())
    }

    fn part(fd: BorrowedFd<'_>, start: u64, bytes: usize, flags: MapFlags) -> io::Result<Self> {
        let flags = flags | MapFlags::SHARED;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        #[expect(unsafe_code)]
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, flags, fd, start)? };
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap must not return null"), bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `part` created the mapping, and all users of its addresses hold it.
        #[expect(unsafe_code)]
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Maximum number of regions of the connecting side that the accepting side can access directly.
pub(crate) const EXPOSURES_MAX: usize = 4096;
/// The number of data words in a ring: 64 KiB.
const RING_WORDS: usize = 8 << 10;
/// The distance in bytes from one ring to the next, in whole pages.
const RING_SPACE: usize = ((DATA + RING_WORDS) * 8).next_multiple_of(4096);
const TABLE_START: usize = 2 * RING_SPACE;
const CONTROL_LEN: usize = TABLE_START + EXPOSURES_MAX * ENTRY_WORDS * 8;
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    fn account() -> Account {
        crate::shm::ledger::Ledger::of_process().account(0)
    }

    #[test]
    fn both_sides_share_rings_and_table_without_overlap() {
        let (ours, fd) = Control::with_fd(&account()).unwrap();
        let theirs = Control::open(fd.as_fd()).unwrap();
        let (mut down, mut up) = (ours.tx(true), theirs.tx(false));
        (0..RING_WORDS).for_each(|_| (down.push(u64::MAX), up.push(1)).0);
        down.publish();
        up.publish();
        let (mut down, mut up) = (theirs.rx(false), ours.rx(true));
        assert_eq!((down.available(), up.available()), (Ok(RING_WORDS), Ok(RING_WORDS)));
        assert!((0..RING_WORDS).all(|at| down.word(at) == u64::MAX && up.word(at) == 1));
        assert_eq!(ours.table().pin(crate::Stag(257), crate::Access::RemoteRead), None);
    }

    #[test]
    fn unsealed_or_wrongly_sized_memory_is_rejected() {
        let refused = |fd: &OwnedFd, bytes| PeerSlab::check(fd.as_fd(), bytes).unwrap_err().to_string();
        let seal = SealFlags::SHRINK;
        assert!(refused(&memfd(8192, SealFlags::GROW), 8192).contains("not sealed"));
        assert!(refused(&memfd(4096, seal), 8192).contains("4096 bytes, not 8192"));
        assert!(refused(&memfd(0, seal), 0).contains("0 bytes"));
        assert!(
            PeerSlab::map(memfd(8192, seal | SealFlags::WRITE).as_fd(), 8192, &account()).is_err(),
            "a read-only memfd must be rejected"
        );
        let file = tempfile();
        assert!(refused(&file, 8192).contains("no"), "an ordinary file must be rejected");
        assert!(Control::open(memfd(4096, seal).as_fd()).is_err());
        assert!(PeerSlab::check(memfd(8192, seal).as_fd(), 8192).is_ok());
    }

    fn tempfile() -> OwnedFd {
        let path = std::env::temp_dir().join(format!("slipway-shm-{}", std::process::id()));
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(8192).unwrap();
        std::fs::remove_file(path).unwrap();
        file.into()
    }

    #[test]
    fn access_beyond_a_slab_is_rejected() {
        let fd = memfd(8192, SealFlags::SHRINK);
        let slab = PeerSlab::map(fd.as_fd(), 8192, &account()).unwrap();
        let rope = Rope::from(Bytes::from(vec![7; 100]));
        assert!(slab.fill(8092, &rope).unwrap());
        for offset in [8093, 8192, u64::MAX, u64::MAX - 99] {
            assert!(!slab.fill(offset, &rope).unwrap(), "{offset}");
            assert!(!slab.copy_to(offset, &mut [0; 100]));
        }
        let mut back = [0; 101];
        assert!(slab.copy_to(8091, &mut back));
        assert_eq!((back[0], &back[1..]), (0, &[7; 100][..]));
    }
}
