//! [`Cache`]: a cache of registrations with least-recently-used eviction.
//!
//! Such a cache is wrong if a key can come to mean other memory: an application frees a buffer and maps other memory at
//! its address, and a registration of the old pages is used for the new ones. Two rules prevent this. Either a key
//! identifies memory permanently ([`buf::Slab::id`], or a number that is never reused), or the registration *owns* the
//! memory (an `Arc<Slab>`), so that its address cannot be reused while it is cached. Memory without such a key (memory
//! of no pool) is not cached: it is registered for one region.
//!
//! A cached registration gives no right to a peer. Rights are granted and revoked with each region.
//!
//! A user of a registration holds an [`Arc`] of it. A registration in use is not evicted. If all are in use, the cache
//! exceeds its limits until [`Cache::insert`] or [`Cache::trim`] finds unused ones; there cannot be more of them than
//! regions. Evicting a registration drops it, and its `Drop` undoes it.

use std::{hash::Hash, sync::Arc};

use entropy::HashMap;

/// The limits of a [`Cache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBounds {
    /// Maximum number of registrations.
    pub entries: usize,
    /// Maximum registered bytes.
    pub bytes: u64,
}

impl Default for CacheBounds {
    fn default() -> Self {
        Self { entries: 1024, bytes: 4 << 30 }
    }
}

/// The statistics of a [`Cache`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// The number of registrations.
    pub entries: usize,
    /// The registered bytes.
    pub bytes: u64,
    /// The number of lookups that found a registration.
    pub hits: u64,
    /// The number of lookups that found none.
    pub misses: u64,
    /// The number of evicted registrations.
    pub evictions: u64,
}

/// A cache of registrations by the memory that they register.
///
/// ```
/// use std::sync::Arc;
/// use rdma::registration::{Cache, CacheBounds};
///
/// struct Registered(&'static str);
/// let mut cache = Cache::new(CacheBounds { entries: 2, bytes: 1 << 20 });
/// for slab in [1, 2, 1, 3] {
///     if cache.get(&slab).is_none() {
///         cache.insert(slab, 4096, Arc::new(Registered("with the adapter")));
///     }
/// }
/// assert!(cache.get(&2).is_none(), "the least recently used one was evicted");
/// assert_eq!(cache.get(&1).unwrap().0, "with the adapter");
/// ```
#[derive(Debug)]
pub struct Cache<K, R> {
    bounds: CacheBounds,
    index: HashMap<K, usize>,
    /// The entries and free slots. Entries are linked from the most to the least recently used.
    nodes: Vec<Option<Node<K, R>>>,
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
    stats: CacheStats,
}

#[derive(Debug)]
struct Node<K, R> {
    key: K,
    bytes: u64,
    registration: Arc<R>,
    newer: usize,
    older: usize,
}

impl<K: Hash + Eq + Clone, R> Cache<K, R> {
    /// Creates an empty cache.
    pub fn new(bounds: CacheBounds) -> Self {
        let (index, stats) = (HashMap::default(), CacheStats::default());
        Self { bounds, index, nodes: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE, stats }
    }

    /// Returns the registration of this key, which becomes the most recently used.
    pub fn get(&mut self, key: &K) -> Option<&Arc<R>> {
        let Some(&at) = self.index.get(key) else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        if at != self.newest {
            self.unlink(at);
            self.link(at);
        }
        Some(&self.node(at).registration)
    }

    /// Adds a registration of `bytes` bytes, and evicts unused ones if necessary. Replaces a registration with the same
    /// key.
    pub fn insert(&mut self, key: K, bytes: u64, registration: Arc<R>) {
        self.remove(&key);
        let node = Node { key: key.clone(), bytes, registration, newer: NONE, older: NONE };
        let at = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[at] = Some(node);
        self.index.insert(key, at);
        self.stats.entries += 1;
        self.stats.bytes += bytes;
        self.link(at);
        self.trim_but(at);
    }

    /// Removes the registration of this key, even if it is in use.
    pub fn remove(&mut self, key: &K) -> Option<Arc<R>> {
        let at = self.index.remove(key)?;
        Some(self.take(at).registration)
    }

    /// Evicts unused registrations until the cache is within its limits.
    pub fn trim(&mut self) {
        self.trim_but(NONE);
    }

    /// Removes unused registrations for which `is_stale` returns `true`, because the owner no longer needs the memory.
    pub fn forget(&mut self, mut is_stale: impl FnMut(&K, &R) -> bool) {
        for at in 0..self.nodes.len() {
            if let Some(node) = &self.nodes[at]
                && Arc::strong_count(&node.registration) == 1
                && is_stale(&node.key, &node.registration)
            {
                let key = node.key.clone();
                self.remove(&key);
            }
        }
    }

    /// Returns the statistics.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    fn trim_but(&mut self, spared: usize) {
        let mut at = self.oldest;
        while at != NONE && (self.stats.entries > self.bounds.entries || self.stats.bytes > self.bounds.bytes) {
            let node = self.node(at);
            let newer = node.newer;
            if at != spared && Arc::strong_count(&node.registration) == 1 {
                let key = node.key.clone();
                self.remove(&key);
                self.stats.evictions += 1;
            }
            at = newer;
        }
    }

    fn take(&mut self, at: usize) -> Node<K, R> {
        self.unlink(at);
        let node = self.nodes[at].take().expect("a linked node must exist");
        self.free.push(at);
        self.stats.entries -= 1;
        self.stats.bytes -= node.bytes;
        node
    }

    /// Links an entry as the most recently used.
    fn link(&mut self, at: usize) {
        let newest = self.newest;
        let node = self.node_mut(at);
        (node.newer, node.older) = (NONE, newest);
        match newest {
            NONE => self.oldest = at,
            newest => self.node_mut(newest).newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: usize) {
        let Node { newer, older, .. } = *self.node(at);
        match newer {
            NONE => self.newest = older,
            newer => self.node_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.node_mut(older).newer = newer,
        }
    }

    fn node(&self, at: usize) -> &Node<K, R> {
        self.nodes[at].as_ref().expect("a linked node must exist")
    }

    fn node_mut(&mut self, at: usize) -> &mut Node<K, R> {
        self.nodes[at].as_mut().expect("a linked node must exist")
    }
}

const NONE: usize = usize::MAX;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    use buf::{Pool, PoolOptions, Slab};
    use proptest::prelude::*;

    use super::*;

    /// A registration that counts the existing ones.
    struct Counted(Arc<AtomicI64>);

    impl Counted {
        fn new(alive: &Arc<AtomicI64>) -> Arc<Self> {
            alive.fetch_add(1, Relaxed);
            Arc::new(Self(alive.clone()))
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Relaxed);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Use { key: u8, bytes: u64, hold: bool },
        Release(usize),
        Remove(u8),
        Trim,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..12u8, 1..50u64, prop::bool::weighted(0.2)).prop_map(|(key, bytes, hold)| Step::Use { key, bytes, hold }),
            2 => any::<usize>().prop_map(Step::Release),
            1 => (0..12u8).prop_map(Step::Remove),
            1 => Just(Step::Trim),
        ]
    }

    proptest! {
        /// Compares the cache with a list in order of use.
        #[test]
        fn most_recently_used_registrations_are_kept_within_limits(
            steps in prop::collection::vec(any_step(), 0..200), entries in 1..8usize, bytes in 40..200u64,
        ) {
            let alive = Arc::new(AtomicI64::new(0));
            let mut cache = Cache::new(CacheBounds { entries, bytes });
            let mut model: Vec<(u8, u64)> = Vec::new();
            let mut held: Vec<(u8, Arc<Counted>)> = Vec::new();
            let trim = |model: &mut Vec<(u8, u64)>, held: &[(u8, Arc<Counted>)], spared: Option<u8>| {
                let mut at = 0;
                while at < model.len() && (model.len() > entries || model.iter().map(|(_, bytes)| bytes).sum::<u64>() > bytes) {
                    let key = model[at].0;
                    if Some(key) == spared || held.iter().any(|(held, _)| *held == key) { at += 1 } else { model.remove(at); }
                }
            };
            for step in steps {
                match step {
                    Step::Use { key, bytes, hold } => {
                        let found = cache.get(&key).cloned();
                        let known = model.iter().position(|(known, _)| *known == key);
                        prop_assert_eq!(found.is_some(), known.is_some());
                        let registration = match (found, known) {
                            (Some(found), Some(at)) => {
                                let entry = model.remove(at);
                                model.push(entry);
                                found
                            }
                            _ => {
                                let new = Counted::new(&alive);
                                cache.insert(key, bytes, new.clone());
                                model.push((key, bytes));
                                trim(&mut model, &held, Some(key));
                                new
                            }
                        };
                        if hold {
                            held.push((key, registration));
                        }
                    }
                    Step::Release(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                    Step::Release(_) => {}
                    Step::Remove(key) => {
                        // A registration that is removed while in use is no longer an entry.
                        held.retain(|(held, _)| *held != key);
                        let known = model.iter().position(|(known, _)| *known == key);
                        prop_assert_eq!(cache.remove(&key).is_some(), known.map(|at| model.remove(at)).is_some());
                    }
                    Step::Trim => {
                        cache.trim();
                        trim(&mut model, &held, None);
                    }
                }
                let stats = cache.stats();
                prop_assert_eq!(stats.entries, model.len());
                prop_assert_eq!(stats.bytes, model.iter().map(|(_, bytes)| bytes).sum::<u64>());
                prop_assert_eq!(alive.load(Relaxed) as usize, model.len(), "exactly the removed registrations must be undone");
            }
            drop((cache, held));
            prop_assert_eq!(alive.load(Relaxed), 0);
        }
    }

    #[test]
    fn registration_in_use_exceeds_limits_until_it_is_unused() {
        let alive = Arc::new(AtomicI64::new(0));
        let mut cache = Cache::new(CacheBounds { entries: 1, bytes: 100 });
        let first = Counted::new(&alive);
        cache.insert(1, 100, first.clone());
        let second = Counted::new(&alive);
        cache.insert(2, 100, second.clone());
        assert_eq!((cache.stats().entries, cache.stats().bytes, cache.stats().evictions), (2, 200, 0));
        drop(first);
        cache.trim();
        assert_eq!((cache.stats().entries, cache.stats().evictions, alive.load(Relaxed)), (1, 1, 1));
        assert!(cache.get(&1).is_none() && cache.get(&2).is_some());
    }

    #[test]
    fn key_of_freed_memory_is_not_reused() {
        struct Registered(Arc<Slab>);
        let mut cache = Cache::new(CacheBounds::default());
        let mut seen = std::collections::HashSet::new();
        for _ in 0..50 {
            // Each round has its own pool, which is freed at the end. Without the cache, its address would soon be
            // reused.
            let pool = Pool::new(PoolOptions { slab_bytes: 64 << 10, ..PoolOptions::default() });
            let buffer = pool.take(4096);
            let (slab, _) = Slab::of(&buffer).unwrap();
            assert!(cache.get(&slab.id()).is_none(), "the cache must not return a registration of other memory");
            assert!(seen.insert(slab.base() as usize), "the cache must keep registered memory mapped");
            cache.insert(slab.id(), slab.len() as u64, Arc::new(Registered(slab)));
        }
        cache.forget(|_, registered| Arc::strong_count(&registered.0) == 1);
        assert_eq!(cache.stats().entries, 0, "memory held only by the cache must be removed");
    }
}
