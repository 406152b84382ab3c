//! [`Pool`]: page-aligned slabs cut into buffers of a few sizes.
//!
//! Sizes are powers of two from 4 KiB to 2 MiB; a larger request is served from the heap. A slab is
//! mapped when a size runs out and stays until the pool and all its buffers are gone.

use std::{
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

use crate::{Buffer, Slab};

/// How a [`Pool`] behaves.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Bytes mapped at a time; at least one buffer of the size asked for.
    pub slab_bytes: usize,
    /// Map sealed memfds that a peer on this host can map, too ([`Slab::fd`](crate::Slab::fd)), instead of private memory.
    pub shared: bool,
    /// Ask the kernel for huge pages where it has them: fewer faults and misses under bulk data, more memory
    /// for a pool that is used little.
    pub huge_pages: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { slab_bytes: 4 << 20, shared: false, huge_pages: false }
    }
}

/// What a [`Pool`] holds, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Mapped from the system.
    pub mapped: usize,
    /// Of these, now free.
    pub free: usize,
}

/// A source of [`Buffer`]s, cheap to clone and to share among threads.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    options: PoolOptions,
    /// If it is shared: the one beside it that is not.
    private: OnceLock<Pool>,
    classes: [Mutex<Class>; CLASSES],
}

#[derive(Default)]
struct Class {
    free: Vec<Block>,
    slabs: Vec<Arc<Slab>>,
}

/// One block of a slab: `CLASS_MIN << class` bytes.
struct Block(NonNull<u8>);

// SAFETY: a `Block` is the only reference to its memory (it is cut once from its slab, and moves
// between the free list and one `Chunk`), and plain memory has no thread affinity.
#[expect(unsafe_code)]
unsafe impl Send for Block {}
// SAFETY: `&Block` gives no access but the address; see `Chunk` for the memory itself.
#[expect(unsafe_code)]
unsafe impl Sync for Block {}

/// A block that is out with a [`Buffer`]; goes back on drop.
pub(crate) struct Chunk {
    block: NonNull<u8>,
    class: usize,
    home: Arc<Inner>,
}

// SAFETY: as for `Block`; `&Chunk` only reads, `&mut Chunk` is exclusive.
#[expect(unsafe_code)]
unsafe impl Send for Chunk {}
// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for Chunk {}

impl Pool {
    /// An empty pool; memory is mapped when first asked for.
    pub fn new(options: PoolOptions) -> Self {
        Self(Arc::new(Inner { options, private: OnceLock::new(), classes: Default::default() }))
    }

    /// A buffer of `len` visible bytes, page-aligned up to 2 MiB. Its content is unspecified.
    pub fn take(&self, len: usize) -> Buffer {
        let Some(class) = class_of(len) else { return Buffer::zeroed(len) };
        let block = {
            let mut entry = self.0.classes[class].lock();
            if entry.free.is_empty() {
                entry.grow(class, &self.0.options);
            }
            entry.free.pop().expect("grow adds a block")
        };
        Buffer::from_chunk(Chunk { block: block.0, class, home: self.0.clone() }, len)
    }

    /// A pool whose memory no peer can map: this one, unless it is [shared](PoolOptions::shared). What is parsed belongs
    /// there, so that it stays what it was when it was checked.
    pub fn private(&self) -> &Pool {
        if !self.0.options.shared {
            return self;
        }
        self.0.private.get_or_init(|| Pool::new(PoolOptions { shared: false, ..self.0.options.clone() }))
    }

    /// What the pool holds now.
    pub fn stats(&self) -> PoolStats {
        let mut stats = PoolStats::default();
        for (class, entry) in self.0.classes.iter().enumerate() {
            let entry = entry.lock();
            stats.mapped += entry.slabs.iter().map(|slab| slab.len()).sum::<usize>();
            stats.free += entry.free.len() * (CLASS_MIN << class);
        }
        stats
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new(PoolOptions::default())
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stats().fmt(f)
    }
}

impl Class {
    fn grow(&mut self, class: usize, options: &PoolOptions) {
        let size = CLASS_MIN << class;
        let slab = Slab::map(options.slab_bytes.next_multiple_of(size).max(size), options);
        let start = NonNull::new(slab.base()).expect("a mapping is not at null");
        // Last address first, so that blocks are handed out in ascending order.
        for offset in (0..slab.len()).step_by(size).rev() {
            // SAFETY: offset < slab.len(), so the address is inside the mapping.
            #[expect(unsafe_code)]
            let block = unsafe { start.add(offset) };
            self.free.push(Block(block));
        }
        self.slabs.push(slab);
    }
}

impl Chunk {
    pub(crate) fn capacity(&self) -> usize {
        CLASS_MIN << self.class
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the block is `capacity` bytes of zero-initialised mapped memory, owned by this
        // chunk alone; the slab outlives it through `home`.
        #[expect(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.block.as_ptr(), self.capacity())
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access exclusive.
        #[expect(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.block.as_ptr(), self.capacity())
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.home.classes[self.class].lock().free.push(Block(self.block));
    }
}

fn class_of(len: usize) -> Option<usize> {
    let size = len.max(CLASS_MIN).next_power_of_two();
    let class = (size / CLASS_MIN).trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

const CLASS_MIN: usize = 4096;
const CLASSES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_to_its_pool_even_when_frozen_and_shared() {
        let pool = Pool::default();
        let frozen = pool.take(100).freeze();
        let clone = frozen.slice(10..20);
        let mapped = pool.stats().mapped;
        assert_eq!(pool.stats().free, mapped - 4096);
        drop(frozen);
        assert_eq!(pool.stats().free, mapped - 4096, "a slice still holds it");
        drop(clone);
        assert_eq!(pool.stats().free, mapped);
    }

    #[test]
    fn sizes_round_up_to_a_class_and_beyond_the_last_come_from_the_heap() {
        let pool = Pool::default();
        assert_eq!(pool.take(0).capacity(), 4096);
        assert_eq!(pool.take(4097).capacity(), 8192);
        assert_eq!(pool.take(2 << 20).capacity(), 2 << 20);
        assert_eq!(pool.take((2 << 20) + 1).capacity(), (2 << 20) + 1);
        assert_eq!(pool.take(5).as_ptr() as usize % 4096, 0);
    }

    #[test]
    fn beside_a_shared_pool_is_one_that_no_peer_maps() {
        let pool = Pool::new(PoolOptions { shared: true, ..PoolOptions::default() });
        let is_shared = |pool: &Pool| Slab::of(&pool.take(1)).unwrap().0.fd().is_some();
        assert!(is_shared(&pool) && !is_shared(pool.private()));
        assert!(Arc::ptr_eq(&pool.private().0, &pool.private().private().0));
    }

    #[test]
    fn buffers_do_not_overlap_and_outlive_the_pool() {
        let pool = Pool::default();
        let mut buffers: Vec<_> = (0..3000).map(|_| pool.take(4096)).collect();
        drop(pool);
        for (i, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill(i as u8);
        }
        for (i, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|&byte| byte == i as u8));
        }
    }
}
