//! [`Cache`]: registrations that are kept for the next use, the least recently used given up first.
//!
//! What makes such a cache wrong is a key that comes to mean other memory: an application frees a buffer and maps
//! something else at its address, and a registration of the old pages answers for the new. Two rules exclude it. A
//! key names memory for ever ([`buf::Slab::id`], or a number that is never used again), or the registration *owns* the memory
//! (an `Arc<Slab>`), so that its address can belong to nothing else while it is in the cache. Memory with no such name
//! (that of no pool) is not for this cache: it is registered for its one region.
//!
//! A registration in the cache gives no right to a peer. Rights come and go with each region.
//!
//! Who uses a registration holds an [`Arc`] of it. One that is in use is not given up: if all are, the cache is over its bounds
//! until [`Cache::insert`] or [`Cache::trim`] finds some that are not, and there can be no more of them than regions.
//! Giving up is dropping: the registration's `Drop` undoes it.

use std::{hash::Hash, sync::Arc};

use entropy::HashMap;

/// What a [`Cache`] may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBounds {
    /// Registrations.
    pub entries: usize,
    /// Bytes registered.
    pub bytes: u64,
}

impl Default for CacheBounds {
    fn default() -> Self {
        Self { entries: 1024, bytes: 4 << 30 }
    }
}

/// What a [`Cache`] holds, and how it has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Registrations held.
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Lookups that found one.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Registrations given up for others.
    pub evictions: u64,
}

/// Registrations by what they register.
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
/// assert!(cache.get(&2).is_none(), "the least recently used");
/// assert_eq!(cache.get(&1).unwrap().0, "with the adapter");
/// ```
#[derive(Debug)]
pub struct Cache<K, R> {
    bounds: CacheBounds,
    index: HashMap<K, usize>,
    /// The entries, and places for others; linked from the most to the least recently used.
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
    /// An empty cache.
    pub fn new(bounds: CacheBounds) -> Self {
        let (index, stats) = (HashMap::default(), CacheStats::default());
        Self { bounds, index, nodes: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE, stats }
    }

    /// The registration of this key, which is now the most recently used.
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

    /// Keeps a registration of `bytes` bytes, giving up others for it that nobody uses. One of the same key is replaced.
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

    /// Forgets the registration of this key, whoever uses it.
    pub fn remove(&mut self, key: &K) -> Option<Arc<R>> {
        let at = self.index.remove(key)?;
        Some(self.take(at).registration)
    }

    /// Gives up what is beyond the bounds and not in use.
    pub fn trim(&mut self) {
        self.trim_but(NONE);
    }

    /// Forgets those that are not in use and for which `is_stale`: because the memory's owner has no more use for it.
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

    /// What it holds, and how it has done.
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
        let node = self.nodes[at].take().expect("what is linked is there");
        self.free.push(at);
        self.stats.entries -= 1;
        self.stats.bytes -= node.bytes;
        node
    }

    /// Makes an entry that is not linked the newest.
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
        self.nodes[at].as_ref().expect("what is linked is there")
    }

    fn node_mut(&mut self, at: usize) -> &mut Node<K, R> {
        self.nodes[at].as_mut().expect("what is linked is there")
    }
}

const NONE: usize = usize::MAX;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    use buf::{Pool, PoolOptions, Slab};
    use proptest::prelude::*;

    use super::*;

    /// A registration that counts how many there are.
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
        /// Against the obvious: a list in order of use.
        #[test]
        fn it_keeps_what_was_used_last_within_its_bounds(
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
                        // What is removed while it is in use is no entry any more.
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
                prop_assert_eq!(alive.load(Relaxed) as usize, model.len(), "what is given up is undone, and nothing else");
            }
            drop((cache, held));
            prop_assert_eq!(alive.load(Relaxed), 0);
        }
    }

    #[test]
    fn one_in_use_is_kept_beyond_the_bounds_and_given_up_when_it_is_not() {
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
    fn memory_that_was_freed_and_mapped_again_is_other_memory() {
        struct Registered(Arc<Slab>);
        let mut cache = Cache::new(CacheBounds::default());
        let mut seen = std::collections::HashSet::new();
        for _ in 0..50 {
            // A pool of its own each time, gone at the end: without the cache, its address would soon come again.
            let pool = Pool::new(PoolOptions { slab_bytes: 64 << 10, ..PoolOptions::default() });
            let buffer = pool.take(4096);
            let (slab, _) = Slab::of(&buffer).unwrap();
            assert!(cache.get(&slab.id()).is_none(), "a registration of other memory");
            assert!(seen.insert(slab.base() as usize), "the cache keeps what it has registered mapped");
            cache.insert(slab.id(), slab.len() as u64, Arc::new(Registered(slab)));
        }
        cache.forget(|_, registered| Arc::strong_count(&registered.0) == 1);
        assert_eq!(cache.stats().entries, 0, "nobody but the cache had them");
    }
}
