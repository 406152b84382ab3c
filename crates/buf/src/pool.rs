//! [`Pool`]: page-aligned slabs that are cut into buffers of fixed sizes.
//!
//! The sizes are powers of two from 4 KiB to 2 MiB. Larger buffers are allocated from the heap. A slab is mapped when
//! no buffer of a size is free. Taking and returning buffers unmaps nothing; [`Pool::trim`], called periodically,
//! unmaps slabs that are free after a burst.

use std::{
    cmp::Reverse,
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

use crate::{Buffer, Slab};

/// The options of a [`Pool`].
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Bytes mapped at a time, rounded up to at least one buffer of the requested size.
    pub slab_bytes: usize,
    /// Set to map sealed memfds, which a peer on this host can map too ([`Slab::fd`](crate::Slab::fd)), instead of
    /// private memory.
    pub shared: bool,
    /// Set to ask the kernel for huge pages if it has them. Bulk data then cause fewer page faults and TLB misses; a
    /// pool that is used little needs more memory.
    pub huge_pages: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { slab_bytes: 4 << 20, shared: false, huge_pages: false }
    }
}

/// The memory of a [`Pool`], in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes mapped from the system.
    pub mapped: usize,
    /// The part of `mapped` that is free now.
    pub free: usize,
}

/// A source of [`Buffer`]s. It is cheap to clone and to share among threads.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

struct Inner {
    options: PoolOptions,
    /// For a shared pool: the pool of private memory.
    private: OnceLock<Pool>,
    classes: [Mutex<Class>; CLASSES],
}

#[derive(Default)]
struct Class {
    /// The free blocks. It is a stack, so that the block freed last is reused first.
    free: Vec<Block>,
    /// The slabs, all of one size, sorted by address.
    slabs: Vec<Arc<Slab>>,
    /// The minimum number of free blocks since the last trim.
    low: usize,
}

/// A block of a slab: `CLASS_MIN << class` bytes.
struct Block(NonNull<u8>);

// SAFETY: a `Block` is the only reference to its memory (it is cut once from its slab, and moves between the free list
// and one `Chunk`), and plain memory has no thread affinity.
#[expect(unsafe_code)]
unsafe impl Send for Block {}
// SAFETY: `&Block` gives access only to the address; see `Chunk` for the memory itself.
#[expect(unsafe_code)]
unsafe impl Sync for Block {}

/// A block that a [`Buffer`] owns. It returns to the free list when it is dropped.
pub(crate) struct Chunk {
    block: NonNull<u8>,
    class: usize,
    pool: Arc<Inner>,
}

// SAFETY: as for `Block`; `&Chunk` only reads, `&mut Chunk` is exclusive.
#[expect(unsafe_code)]
unsafe impl Send for Chunk {}
// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for Chunk {}

impl Pool {
    /// Makes an empty pool. It maps memory when a buffer is first taken.
    pub fn new(options: PoolOptions) -> Self {
        Self(Arc::new(Inner { options, private: OnceLock::new(), classes: Default::default() }))
    }

    /// Returns a buffer of `len` visible bytes with unspecified content. It is page-aligned if it has at most 2 MiB.
    pub fn take(&self, len: usize) -> Buffer {
        let Some(class) = class_of(len) else { return Buffer::zeroed(len) };
        let block = {
            let mut entry = self.0.classes[class].lock();
            if entry.free.is_empty() {
                entry.grow(class, &self.0.options);
            }
            let block = entry.free.pop().expect("grow must add a block");
            entry.low = entry.low.min(entry.free.len());
            block
        };
        Buffer::from_chunk(Chunk { block: block.0, class, pool: self.0.clone() }, len)
    }

    /// Returns a pool whose memory no peer can map: this one, unless it is [shared](PoolOptions::shared). Data to be
    /// parsed must be in such memory, so that they do not change after they were checked.
    pub fn private(&self) -> &Pool {
        if !self.0.options.shared {
            return self;
        }
        self.0.private.get_or_init(|| Pool::new(PoolOptions { shared: false, ..self.0.options.clone() }))
    }

    /// Unmaps whole slabs that are free, up to the amount of memory that was not needed since the last call. Returns
    /// the number of bytes. It should be called periodically, for example every ten seconds, by a thread that may block
    /// in the kernel.
    ///
    /// A load that needs the same memory again within the interval keeps it. A slab of which others hold an `Arc` stays
    /// mapped, because it is registered with an adapter or was passed to a peer. One slab of each size stays mapped
    /// too, so that occasional calls need not map memory.
    pub fn trim(&self) -> usize {
        let mut bytes = self.0.private.get().map_or(0, Pool::trim);
        for (class, entry) in self.0.classes.iter().enumerate() {
            // The slabs are unmapped when they are dropped, after the lock was released.
            let slabs = entry.lock().trim(class);
            bytes += slabs.iter().map(|slab| slab.len()).sum::<usize>();
        }
        bytes
    }

    /// Returns the amounts of mapped and free memory.
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
        let start = NonNull::new(slab.base()).expect("a mapping must not be at address zero");
        // Push the last address first, so that blocks are taken in ascending order.
        for offset in (0..slab.len()).step_by(size).rev() {
            // SAFETY: offset < slab.len(), so the address is inside the mapping.
            #[expect(unsafe_code)]
            let block = unsafe { start.add(offset) };
            self.free.push(Block(block));
        }
        let after = self.slabs.partition_point(|other| other.base() < slab.base());
        self.slabs.insert(after, slab);
    }

    /// Removes and returns free slabs. Their blocks are at most as many as were free at all times since the last call.
    fn trim(&mut self, class: usize) -> Vec<Arc<Slab>> {
        let mut unused = std::mem::replace(&mut self.low, self.free.len());
        let Some(blocks) = self.slabs.first().map(|slab| slab.len() / (CLASS_MIN << class)) else { return Vec::new() };
        let mut released = Vec::new();
        if unused < blocks || self.slabs.len() == 1 {
            return released;
        }
        // Take buffers from low addresses first from now on, so that the slabs at high addresses become free.
        self.free.sort_unstable_by_key(|block| Reverse(block.0));
        let mut start = 0;
        for index in (0..self.slabs.len()).rev() {
            let base = self.slabs[index].base();
            let count = self.free[start..].partition_point(|block| block.0.as_ptr() >= base);
            start += count;
            let is_free = count == blocks && unused >= blocks && self.slabs.len() > 1;
            // All blocks of the slab are free, and the lock is held, so no new reference to it can be made.
            if is_free && Arc::strong_count(&self.slabs[index]) == 1 {
                released.push(self.slabs.remove(index));
                unused -= blocks;
            }
        }
        self.forget_blocks(&released);
        self.low = self.free.len();
        released
    }

    /// Removes the blocks of `released` from the free list. Both are in descending order.
    fn forget_blocks(&mut self, mut released: &[Arc<Slab>]) {
        if released.is_empty() {
            return;
        }
        self.free.retain(|block| {
            let address = block.0.as_ptr();
            while let [slab, rest @ ..] = released
                && address < slab.base()
            {
                released = rest;
            }
            released.first().is_none_or(|slab| address as usize - slab.base() as usize >= slab.len())
        });
        self.free.shrink_to_fit();
    }
}

impl Chunk {
    pub(crate) fn capacity(&self) -> usize {
        CLASS_MIN << self.class
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the block is `capacity` bytes of zero-initialised mapped memory, owned by this chunk alone; the slab
        // outlives it through `pool`.
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
        self.pool.classes[self.class].lock().free.push(Block(self.block));
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
    fn frozen_buffer_returns_to_its_pool_with_the_last_clone() {
        let pool = Pool::default();
        let frozen = pool.take(100).freeze();
        let clone = frozen.slice(10..20);
        let mapped = pool.stats().mapped;
        assert_eq!(pool.stats().free, mapped - 4096);
        drop(frozen);
        assert_eq!(pool.stats().free, mapped - 4096, "the slice must keep the buffer");
        drop(clone);
        assert_eq!(pool.stats().free, mapped);
    }

    #[test]
    fn sizes_are_rounded_up_and_large_buffers_are_from_the_heap() {
        let pool = Pool::default();
        assert_eq!(pool.take(0).capacity(), 4096);
        assert_eq!(pool.take(4097).capacity(), 8192);
        assert_eq!(pool.take(2 << 20).capacity(), 2 << 20);
        assert_eq!(pool.take((2 << 20) + 1).capacity(), (2 << 20) + 1);
        assert_eq!(pool.take(5).as_ptr() as usize % 4096, 0);
    }

    #[test]
    fn shared_pool_has_a_private_pool() {
        let pool = Pool::new(PoolOptions { shared: true, ..PoolOptions::default() });
        let is_shared = |pool: &Pool| Slab::of(&pool.take(1)).unwrap().0.fd().is_some();
        assert!(is_shared(&pool) && !is_shared(pool.private()));
        assert!(Arc::ptr_eq(&pool.private().0, &pool.private().private().0));
    }

    const SLAB: usize = 64 << 10;

    fn small_slabs() -> Pool {
        Pool::new(PoolOptions { slab_bytes: SLAB, ..PoolOptions::default() })
    }

    fn take(pool: &Pool, count: usize) -> Vec<Buffer> {
        (0..count).map(|_| pool.take(4096)).collect()
    }

    #[test]
    fn second_trim_unmaps_the_slabs_of_a_burst() {
        let pool = small_slabs();
        let burst = take(&pool, 160);
        let slabs: Vec<_> = burst.iter().map(|buffer| Arc::downgrade(&Slab::of(buffer).unwrap().0)).collect();
        drop(burst);
        assert_eq!((pool.trim(), pool.stats().mapped), (0, 10 * SLAB), "memory used since the last trim must stay");
        assert_eq!((pool.trim(), pool.stats().mapped), (9 * SLAB, SLAB));
        assert_eq!(slabs.iter().filter(|slab| slab.strong_count() > 0).count(), 16, "one slab must stay");
        assert_eq!((pool.trim(), pool.stats()), (0, PoolStats { mapped: SLAB, free: SLAB }));
        let again = take(&pool, 160);
        assert_eq!(pool.stats(), PoolStats { mapped: 10 * SLAB, free: 0 });
        drop(again);
    }

    #[test]
    fn steady_load_keeps_its_slabs() {
        let pool = small_slabs();
        drop(take(&pool, 320));
        pool.trim();
        for round in 0..10 {
            drop(take(&pool, 160));
            pool.trim();
            // The first trim has unmapped the slabs that only the burst needed; later trims must unmap nothing.
            assert_eq!(pool.stats().mapped, 10 * SLAB, "round {round}");
        }
    }

    #[test]
    fn slabs_in_use_or_held_stay_mapped() {
        let pool = small_slabs();
        let mut burst = take(&pool, 160);
        let kept = burst.swap_remove(40);
        let (registered, _) = Slab::of(&burst.swap_remove(100)).unwrap();
        assert_ne!(registered.offset_of(&kept), Some(0));
        drop(burst);
        pool.trim();
        pool.trim();
        let mapped = pool.stats().mapped;
        assert!((2 * SLAB..=3 * SLAB).contains(&mapped), "{mapped}");
        let (slab, _) = Slab::of(&kept).expect("the slab of a buffer in use must be mapped");
        assert_ne!(slab.id(), registered.id());
        drop((registered, slab, kept));
        pool.trim();
        pool.trim();
        assert_eq!(pool.stats(), PoolStats { mapped: SLAB, free: SLAB });
    }

    #[test]
    fn trim_includes_the_private_pool() {
        let pool = Pool::new(PoolOptions { shared: true, slab_bytes: SLAB, ..PoolOptions::default() });
        drop((take(&pool, 160), take(pool.private(), 160)));
        pool.trim();
        assert_eq!(pool.trim(), 18 * SLAB);
        assert_eq!((pool.stats().mapped, pool.private().stats().mapped), (SLAB, SLAB));
    }

    /// Blocks that are in use while a trim sorts the free list must return to the right slab.
    #[test]
    fn shrinking_load_concentrates_in_few_slabs() {
        let pool = small_slabs();
        let burst = take(&pool, 160);
        // One buffer of each slab stays in use until others have replaced it.
        let scattered: Vec<_> = burst.into_iter().step_by(16).collect();
        pool.trim();
        pool.trim();
        assert_eq!(pool.stats().mapped, 10 * SLAB, "each slab must have a buffer in use");
        let moved = take(&pool, scattered.len());
        drop(scattered);
        pool.trim();
        pool.trim();
        assert_eq!(pool.stats().mapped, SLAB, "ten blocks must fit in one slab");
        drop(moved);
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
