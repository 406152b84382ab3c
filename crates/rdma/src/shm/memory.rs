//! Memory of two processes: the control memory, and the slabs of the connecting side.
//!
//! Each is a memfd. Whoever maps one that the other side made checks its seals and size first, since a file that could
//! shrink would turn an access into a signal. Control memory is all atomics; slabs are touched only through
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

/// The control memory: a ring each way, and the table of exposures. The accepting side makes it.
#[derive(Debug)]
pub(crate) struct Control {
    mapping: Mapping,
    /// On the accepting side.
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

// SAFETY: a mapping is memory like any other, the same for all threads; what is done with it is up to its users.
#[expect(unsafe_code)]
unsafe impl Send for Mapping {}
// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for Mapping {}

impl Control {
    /// Fresh control memory, all zeros, at the peer's expense, and its descriptor for the peer.
    ///
    /// # Errors
    /// The peer's user has as much as it may, or the system refuses.
    pub(crate) fn with_fd(account: &Account) -> io::Result<(Arc<Self>, OwnedFd)> {
        let charge = account.mapping(Need::Essential)?;
        let fd = rustix::fs::memfd_create("slipway-shm", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, CONTROL_LEN as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        account.memfd(fd.as_fd(), CONTROL_LEN as u64, Need::Essential)?;
        Ok((Arc::new(Self { mapping: Mapping::new(fd.as_fd(), CONTROL_LEN)?, _charge: Some(charge) }), fd))
    }

    /// Fresh control memory for both sides in this process.
    #[cfg(test)]
    pub(crate) fn create() -> io::Result<Arc<Self>> {
        let account = super::ledger::Ledger::of_process().account(0);
        Self::with_fd(&account).map(|(control, _)| control)
    }

    /// The control memory behind a descriptor of the peer's.
    pub(crate) fn open(fd: BorrowedFd<'_>) -> io::Result<Arc<Self>> {
        check(fd, CONTROL_LEN)?;
        Ok(Arc::new(Self { mapping: Mapping::new(fd, CONTROL_LEN)?, _charge: None }))
    }

    /// The writing end of the ring of the accepting or the connecting side.
    pub(crate) fn tx(self: &Arc<Self>, accepting: bool) -> Producer<SharedWords> {
        Producer::new(self.ring(accepting))
    }

    /// The reading end for the accepting or the connecting side: of the other's ring.
    pub(crate) fn rx(self: &Arc<Self>, accepting: bool) -> Consumer<SharedWords> {
        Consumer::new(self.ring(!accepting))
    }

    /// The table of exposures.
    pub(crate) fn table(self: &Arc<Self>) -> Table<SharedWords> {
        Table(SharedWords { control: self.clone(), start: TABLE_START, count: EXPOSURES_MAX * ENTRY_WORDS })
    }

    /// The words of a ring, as a peer that keeps to no rules sees them.
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
        // SAFETY: all parts lie inside the control memory, as the constants below say, which is mapped while `control`
        // lives and of full size, by its seals. It is aligned to pages. Nobody sees it but as atomics.
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
    /// Maps a slab that was checked.
    ///
    /// # Errors
    /// The peer's user has as many mappings as it may, or it cannot be mapped.
    pub(crate) fn map(fd: BorrowedFd<'_>, bytes: usize, account: &Account) -> io::Result<Self> {
        let charge = account.mapping(Need::Optional)?;
        Ok(Self { mapping: Mapping::new(fd, bytes)?, _charge: charge })
    }

    /// Whether a descriptor is of a slab that the peer says has `bytes`, to be mapped next or later.
    ///
    /// # Errors
    /// It is no memfd, is not sealed against shrinking, or is of another size.
    pub(crate) fn check(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        check(fd, bytes)
    }

    /// Maps `bytes` from `start` of a slab that was checked, with their pages: those of one access.
    ///
    /// # Errors
    /// As of [`map`](Self::map).
    pub(crate) fn window(fd: BorrowedFd<'_>, start: u64, bytes: usize, account: &Account) -> io::Result<Self> {
        let charge = account.mapping(Need::Optional)?;
        Ok(Self { mapping: Mapping::part(fd, start, bytes, MapFlags::POPULATE)?, _charge: charge })
    }

    /// The address of the bytes `offset .. offset + len`, if all lie in the slab.
    pub(crate) fn range(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len as u64)?;
        if end > self.mapping.bytes as u64 {
            return None;
        }
        // SAFETY: the offset is inside the mapping, or one past its end.
        #[expect(unsafe_code)]
        Some(unsafe { self.mapping.start.add(offset as usize) })
    }

    /// Fills `offset .. offset + data.len()` with `data`. False if not all of it lies in the slab.
    ///
    /// # Errors
    /// A file or device memory of the rope that cannot be read.
    pub(crate) fn fill(&self, offset: u64, data: &Rope) -> io::Result<bool> {
        let Some(start) = self.range(offset, data.len()) else { return Ok(false) };
        let mut at = 0;
        for piece in data.pieces() {
            // SAFETY: the pieces together are as long as the range, which lies inside the mapping.
            #[expect(unsafe_code)]
            let target = unsafe { start.add(at) };
            match piece {
                Piece::Memory(bytes) => {
                    // SAFETY: the target has room for it, as above; our own memory is never the peer's. That the peer may
                    // look at, or write to, the target meanwhile is its own affair: nothing here reads it.
                    #[expect(unsafe_code)]
                    unsafe {
                        target.copy_from_nonoverlapping(NonNull::from(&**bytes).cast(), bytes.len());
                    }
                }
                Piece::File(range) => read_file(range, target)?,
                Piece::Peer(bytes) => {
                    // SAFETY: as above; from one peer's memory to another's, or to another place in it.
                    #[expect(unsafe_code)]
                    unsafe {
                        std::ptr::copy(bytes.as_ptr(), target.as_ptr(), bytes.len());
                    }
                }
                Piece::Device(range) => {
                    let mut copy = vec![0; range.len()];
                    range.copy_out(0, &mut copy)?;
                    // SAFETY: as for memory of ours.
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

    /// Copies `offset .. offset + into.len()` out. False if not all of it lies in the slab.
    pub(crate) fn copy_to(&self, offset: u64, into: &mut [u8]) -> bool {
        let Some(start) = self.range(offset, into.len()) else { return false };
        // SAFETY: the range lies inside the mapping; `into` is ours alone. A peer that writes there meanwhile decides what
        // is copied, as it does in any case.
        #[expect(unsafe_code)]
        unsafe {
            start.copy_to_nonoverlapping(NonNull::from(&mut *into).cast(), into.len());
        }
        true
    }
}

/// Reads a range of a file to `target`, which has room for it: straight from the page cache into the peer's memory.
fn read_file(range: &FileRange, target: NonNull<u8>) -> io::Result<()> {
    let file: &File = &range.file;
    let mut done = 0;
    while done < range.len {
        let offset = i64::try_from(range.offset + done as u64).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel writes at most `len - done` bytes behind the first `done`, and checks the addresses itself.
        #[expect(unsafe_code)]
        let read =
            unsafe { libc::pread64(file.as_raw_fd(), target.add(done).as_ptr().cast(), range.len - done, offset) };
        match read {
            0 => {
                // What a file no longer has is zeros.
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

/// Whether `fd` is memory of exactly `bytes` bytes that can never have fewer.
fn check(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let refuse = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, format!("the peer's memory {what}")));
    // Only memfds have seals of their own; a file of any other kind could be truncated, or be somebody's disk.
    let Ok(seals) = rustix::fs::fcntl_get_seals(fd) else { return refuse("is no memfd") };
    if !seals.contains(SealFlags::SHRINK) {
        return refuse("is not sealed against shrinking");
    }
    let size = rustix::fs::fstat(fd)?.st_size;
    if bytes == 0 || size != bytes as i64 {
        return refuse(&format!("has {size} bytes, not {bytes}"));
    }
    // Huge pages of a fixed pool can run out at a fault, which is a signal; ordinary memory cannot.
    if rustix::fs::fstatfs(fd)?.f_type != TMPFS_MAGIC {
        return refuse("is not ordinary memory");
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
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        #[expect(unsafe_code)]
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, flags, fd, start)? };
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap gives no null"), bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nobody has its addresses without holding it.
        #[expect(unsafe_code)]
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Regions of the connecting side that the accepting side can reach without asking.
pub(crate) const EXPOSURES_MAX: usize = 4096;
/// Words of data in a ring: 64 KiB.
const RING_WORDS: usize = 8 << 10;
/// Bytes from one ring to the next, in whole pages.
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
    fn both_sides_see_the_same_rings_and_table_and_none_overlaps() {
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
    fn memory_that_is_not_sealed_or_not_of_its_size_is_refused() {
        let refused = |fd: &OwnedFd, bytes| PeerSlab::check(fd.as_fd(), bytes).unwrap_err().to_string();
        let seal = SealFlags::SHRINK;
        assert!(refused(&memfd(8192, SealFlags::GROW), 8192).contains("not sealed"));
        assert!(refused(&memfd(4096, seal), 8192).contains("4096 bytes, not 8192"));
        assert!(refused(&memfd(0, seal), 0).contains("0 bytes"));
        assert!(PeerSlab::map(memfd(8192, seal | SealFlags::WRITE).as_fd(), 8192, &account()).is_err(), "read-only");
        let file = tempfile();
        assert!(refused(&file, 8192).contains("no"), "an ordinary file");
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
    fn nothing_beyond_a_slab_is_touched() {
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
