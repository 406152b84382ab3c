//! [`Slab`]: a mapping that is cut into buffers, and has an identity.
//!
//! Registering memory with a network adapter or with a peer on the same host is expensive, and buffers are many and
//! short-lived. So a provider registers the *slab* of a buffer once. After that it refers to a buffer by the
//! registration of the slab and an offset:
//!
//! ```
//! use buf::{Pool, PoolOptions, Slab};
//!
//! let pool = Pool::new(PoolOptions { shared: true, ..PoolOptions::default() });
//! let data = pool.take(100).freeze();
//! let (slab, offset) = Slab::of(&data).expect("a buffer of a pool has a slab");
//! assert_eq!(slab.base() as usize + offset, data.as_ptr() as usize);
//! // Registered with a peer by its descriptor, or with an adapter by its address range.
//! assert!(slab.fd().is_some() && offset + data.len() <= slab.len());
//! // Memory that is not of a pool has no slab. A provider copies it into a buffer of a pool.
//! assert!(Slab::of(&[0; 100]).is_none());
//! ```
//!
//! [`Slab::of`] takes a lock that all threads share. Therefore a provider calls it once for each slab: it keeps the
//! `Arc<Slab>` with its registration, and finds later buffers by their addresses in its own list. This is sound because
//! a slab stays mapped while an `Arc` of it exists, so that its addresses belong to no other memory. A provider drops
//! the `Arc` after it has undone the registration.
//!
//! Errors: a failure to map memory panics, as in any allocator.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use rustix::{
    fs::{MemfdFlags, SealFlags},
    mm::{Advice, MapFlags, ProtFlags},
};

use crate::PoolOptions;

/// A mapping that is cut into buffers. It stays mapped while one of its buffers or an `Arc` of it exists, and until its
/// pool is dropped or [trimmed](crate::Pool::trim).
#[derive(Debug)]
pub struct Slab {
    id: u64,
    start: NonNull<u8>,
    bytes: usize,
    fd: Option<OwnedFd>,
}

// SAFETY: a slab is an address range and a descriptor. It gives no access to the memory, whose blocks are handed out
// separately and have one owner each.
#[expect(unsafe_code)]
unsafe impl Send for Slab {}
// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for Slab {}

impl Slab {
    /// Returns the slab that contains `bytes`, and their offset in it; `None` if they are not of a pool.
    pub fn of(bytes: &[u8]) -> Option<(Arc<Slab>, usize)> {
        let start = bytes.as_ptr() as usize;
        // The lock is released before the slab can be dropped, because dropping it takes the lock.
        let slab = SLABS.read().range(..=start).next_back()?.1.upgrade()?;
        let offset = slab.offset_of(bytes)?;
        Some((slab, offset))
    }

    /// Returns the offset of `bytes` in this slab, if it contains all of them.
    pub fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.base() as usize)?;
        (offset < self.bytes && bytes.len() <= self.bytes - offset).then_some(offset)
    }

    /// Returns a number that no other slab of this process ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the address of the first byte, for a registration. Only the owners of the buffers may dereference it.
    pub fn base(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the number of bytes, a multiple of 4 KiB.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the memfd of the memory, which has exactly [`len`](Self::len) bytes and is sealed against a change of
    /// its size; `None` unless [`PoolOptions::shared`] is set.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(OwnedFd::as_fd)
    }

    pub(crate) fn map(bytes: usize, options: &PoolOptions) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let fd = options.shared.then(|| sealed_memfd(bytes).unwrap_or_else(|error| cannot_map(bytes, error)));
        let (null, prot) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        #[expect(unsafe_code)]
        let start = unsafe {
            match &fd {
                Some(fd) => rustix::mm::mmap(null, bytes, prot, MapFlags::SHARED, fd, 0),
                None => rustix::mm::mmap_anonymous(null, bytes, prot, MapFlags::PRIVATE),
            }
        };
        let start = start.unwrap_or_else(|error| cannot_map(bytes, error));
        if options.huge_pages {
            // SAFETY: this advises about a mapping that was just made, and changes no content.
            #[expect(unsafe_code)]
            let advised = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxHugepage) };
            // A kernel without huge pages returns an error. Ordinary pages work too.
            let _ = advised;
        }
        let start = NonNull::new(start.cast()).expect("mmap must not return address zero");
        let slab = Arc::new(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), start, bytes, fd });
        SLABS.write().insert(start.as_ptr() as usize, Arc::downgrade(&slab));
        slab
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // Remove the entry before unmapping, because after that another slab can have the address.
        SLABS.write().remove(&(self.base() as usize));
        // SAFETY: `map` made the mapping. The pool owns the slab until all of its blocks are free and removed from the
        // free list, and every buffer keeps the pool alive, so no block is in use when the slab is dropped.
        #[expect(unsafe_code)]
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn sealed_memfd(bytes: usize) -> rustix::io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("slipway-slab", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    // A peer that maps the memfd relies on its size: no access inside of it may fault.
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

fn cannot_map(bytes: usize, error: rustix::io::Errno) -> ! {
    panic!("mapping {bytes} bytes for a buffer pool: {error}")
}

/// The slabs of all pools, by address.
static SLABS: RwLock<BTreeMap<usize, Weak<Slab>>> = RwLock::new(BTreeMap::new());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn only_buffers_and_their_slices_are_found_in_their_slab() {
        let (a, b) = (Pool::default(), Pool::default());
        let (mut first, second) = (a.take(5000), b.take(5000));
        first.set_len(0);
        let (slab, at) = Slab::of(&first).unwrap();
        first.set_len(5000);
        let slice = first.freeze().slice(10..);
        let (same, offset) = Slab::of(&slice).unwrap();
        assert_eq!((same.id(), offset), (slab.id(), at + 10));
        assert_ne!(Slab::of(&second).unwrap().0.id(), slab.id());
        assert!(Slab::of(&[0; 10]).is_none() && Slab::of(&[]).is_none());
        assert_eq!(slab.offset_of(&second), None);
    }

    #[test]
    fn shared_slab_is_a_sealed_memfd_with_the_content_of_its_buffers() {
        let pool = Pool::new(PoolOptions { shared: true, huge_pages: true, ..PoolOptions::default() });
        let mut buffer = pool.take(9000);
        buffer.fill(7);
        let (slab, offset) = Slab::of(&buffer).unwrap();
        let fd = slab.fd().expect("a shared slab must have a descriptor");
        assert_eq!(rustix::fs::fstat(fd).unwrap().st_size as usize, slab.len());
        assert_eq!(rustix::fs::fcntl_get_seals(fd).unwrap(), SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        let mut seen = vec![0; 9000];
        assert_eq!(rustix::io::pread(fd, &mut seen, offset as u64).unwrap(), 9000);
        assert_eq!(seen, [7; 9000]);
        assert!(Slab::of(&Pool::default().take(1)).unwrap().0.fd().is_none());
    }

    #[test]
    fn slab_outlives_its_pool_while_held() {
        let pool = Pool::default();
        let (slab, offset) = Slab::of(&pool.take(100)).unwrap();
        drop(pool);
        let range = slab.base() as usize..slab.base() as usize + slab.len();
        assert!(range.contains(&(range.start + offset)));
        assert_eq!(Arc::strong_count(&slab), 1);
        let base = range.start;
        assert!(SLABS.read().contains_key(&base));
        let weak = Arc::downgrade(&slab);
        drop(slab);
        // The slab of another test may have the address now.
        assert!(SLABS.read().get(&base).is_none_or(|now| !Weak::ptr_eq(now, &weak)));
    }
}
