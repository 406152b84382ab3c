//! [`Pool`]: page-aligned slabs cut into buffers of a few sizes.
//!
//! Sizes are powers of two from 4 KiB to 2 MiB; a larger request is served from the heap. A slab is
//! mapped when a size runs out. [`Pool::trim`], called at intervals, unmaps what a burst has left behind; taking a buffer
//! and giving it back never does.

use std::{
    cmp::Reverse,
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
    /// A stack: the block freed last is handed out first.
    free: Vec<Block>,
    /// All of one size, in the order of their addresses.
    slabs: Vec<Arc<Slab>>,
    /// The fewest free blocks there have been since the last trim.
    low: usize,
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
            let block = entry.free.pop().expect("grow adds a block");
            entry.low = entry.low.min(entry.free.len());
            block
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

    /// Unmaps whole slabs that are free, as far as their memory has not been needed since the last call; returns how many
    /// bytes. To be called at intervals, such as every ten seconds, by a thread that may wait for the kernel.
    ///
    /// A load that needs the same memory again within the interval keeps it. So does whoever holds an `Arc` of a slab: a
    /// slab that is registered with an adapter, or was passed to a peer, stays. One slab of each size stays, too, so that
    /// a few calls now and then map nothing.
    pub fn trim(&self) -> usize {
        let mut bytes = self.0.private.get().map_or(0, Pool::trim);
        for (class, entry) in self.0.classes.iter().enumerate() {
            // Unmapped when the lock is free again.
            let slabs = entry.lock().trim(class);
            bytes += slabs.iter().map(|slab| slab.len()).sum::<usize>();
        }
        bytes
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
        let after = self.slabs.partition_point(|other| other.base() < slab.base());
        self.slabs.insert(after, slab);
    }

    /// Takes out slabs that are free, of together no more blocks than were free at all times since the last call.
    fn trim(&mut self, class: usize) -> Vec<Arc<Slab>> {
        let mut unused = std::mem::replace(&mut self.low, self.free.len());
        let Some(blocks) = self.slabs.first().map(|slab| slab.len() / (CLASS_MIN << class)) else { return Vec::new() };
        let mut released = Vec::new();
        if unused < blocks || self.slabs.len() == 1 {
            return released;
        }
        // Buffers come from low addresses first from now on, so that the slabs at high ones run empty.
        self.free.sort_unstable_by_key(|block| Reverse(block.0));
        let mut start = 0;
        for index in (0..self.slabs.len()).rev() {
            let base = self.slabs[index].base();
            let count = self.free[start..].partition_point(|block| block.0.as_ptr() >= base);
            start += count;
            let is_free = count == blocks && unused >= blocks && self.slabs.len() > 1;
            // Nobody can get hold of a slab of which no buffer is out.
            if is_free && Arc::strong_count(&self.slabs[index]) == 1 {
                released.push(self.slabs.remove(index));
                unused -= blocks;
            }
        }
        self.forget_blocks(&released);
        self.low = self.free.len();
        released
    }

    /// Takes the blocks of `released` off the free list. Both are in descending order.
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

    const SLAB: usize = 64 << 10;

    fn small_slabs() -> Pool {
        Pool::new(PoolOptions { slab_bytes: SLAB, ..PoolOptions::default() })
    }

    fn take(pool: &Pool, count: usize) -> Vec<Buffer> {
        (0..count).map(|_| pool.take(4096)).collect()
    }

    #[test]
    fn slabs_of_a_burst_are_unmapped_by_the_second_trim() {
        let pool = small_slabs();
        let burst = take(&pool, 160);
        let slabs: Vec<_> = burst.iter().map(|buffer| Arc::downgrade(&Slab::of(buffer).unwrap().0)).collect();
        drop(burst);
        assert_eq!((pool.trim(), pool.stats().mapped), (0, 10 * SLAB), "it was needed a moment ago");
        assert_eq!((pool.trim(), pool.stats().mapped), (9 * SLAB, SLAB));
        assert_eq!(slabs.iter().filter(|slab| slab.strong_count() > 0).count(), 16, "the blocks of one slab");
        assert_eq!((pool.trim(), pool.stats()), (0, PoolStats { mapped: SLAB, free: SLAB }));
        let again = take(&pool, 160);
        assert_eq!(pool.stats(), PoolStats { mapped: 10 * SLAB, free: 0 });
        drop(again);
    }

    #[test]
    fn a_steady_load_keeps_its_slabs() {
        let pool = small_slabs();
        drop(take(&pool, 320));
        pool.trim();
        for round in 0..10 {
            drop(take(&pool, 160));
            pool.trim();
            // What the burst took beyond the load has gone at once, and nothing after it.
            assert_eq!(pool.stats().mapped, 10 * SLAB, "round {round}");
        }
    }

    #[test]
    fn slabs_with_a_buffer_out_or_held_by_others_stay() {
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
        let (slab, _) = Slab::of(&kept).expect("its slab is mapped");
        assert_ne!(slab.id(), registered.id());
        drop((registered, slab, kept));
        pool.trim();
        pool.trim();
        assert_eq!(pool.stats(), PoolStats { mapped: SLAB, free: SLAB });
    }

    #[test]
    fn the_private_pool_beside_a_shared_one_is_trimmed_with_it() {
        let pool = Pool::new(PoolOptions { shared: true, slab_bytes: SLAB, ..PoolOptions::default() });
        drop((take(&pool, 160), take(pool.private(), 160)));
        pool.trim();
        assert_eq!(pool.trim(), 18 * SLAB);
        assert_eq!((pool.stats().mapped, pool.private().stats().mapped), (SLAB, SLAB));
    }

    /// Buffers that are out when a trim sorts the free list come back to where they belong.
    #[test]
    fn a_load_that_shrinks_gathers_in_few_slabs() {
        let pool = small_slabs();
        let burst = take(&pool, 160);
        // One of each slab stays out, until others have taken its place.
        let scattered: Vec<_> = burst.into_iter().step_by(16).collect();
        pool.trim();
        pool.trim();
        assert_eq!(pool.stats().mapped, 10 * SLAB, "there is something in each");
        let moved = take(&pool, scattered.len());
        drop(scattered);
        pool.trim();
        pool.trim();
        assert_eq!(pool.stats().mapped, SLAB, "ten blocks are in one slab");
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
