//! [`Table`]: all objects by number.

use std::{
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use entropy::HashMap;
use parking_lot::RwLock;

use super::inode::Inode;

/// All objects by number. Numbers are never reused.
#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[RwLock<Shard>]>,
    next: AtomicU64,
}

type Shard = HashMap<u64, Arc<Inode>, BuildHasherDefault<ById>>;

/// Hashes object numbers. The table assigns them, so nobody can choose them to collide.
#[derive(Debug, Default)]
pub(super) struct ById(u64);

impl Hasher for ById {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed");
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Default for Table {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| RwLock::default()).collect(), next: AtomicU64::new(1) }
    }
}

impl Table {
    pub(super) fn next_id(&self) -> u64 {
        // Relaxed: only uniqueness matters.
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn find(&self, id: u64) -> Option<Arc<Inode>> {
        self.shard(id).read().get(&id).cloned()
    }

    pub(super) fn insert(&self, inode: Arc<Inode>) {
        self.shard(inode.id).write().insert(inode.id, inode);
    }

    pub(super) fn remove(&self, id: u64) {
        let removed = {
            let mut shard = self.shard(id).write();
            let removed = shard.remove(&id);
            shrink(&mut shard);
            removed
        };
        // Free the object's data outside of the lock.
        drop(removed);
    }

    fn shard(&self, id: u64) -> &RwLock<Shard> {
        &self.shards[id as usize % SHARDS]
    }
}

/// Releases most of the memory of a map that has few entries left. Before the map shrinks again or grows, the number of
/// changes is proportional to its size, so the amortised cost of a removal is constant.
pub(super) fn shrink<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.capacity() > ROOM_MIN && map.len() < map.capacity() / 8 {
        map.shrink_to(2 * map.len());
    }
}

const SHARDS: usize = 64;
/// Number of entries below which the memory of a map is not released.
const ROOM_MIN: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_releases_memory_when_few_entries_are_left() {
        let mut map: HashMap<u32, u32> = (0..100_000).map(|number| (number, number)).collect();
        for number in 10..100_000 {
            map.remove(&number);
            shrink(&mut map);
        }
        assert!(map.capacity() <= ROOM_MIN, "{}", map.capacity());
        assert!((0..10).all(|number| map[&number] == number));
    }
}
