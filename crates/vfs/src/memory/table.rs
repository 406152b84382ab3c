//! [`Table`]: every object by its number.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;

use super::inode::Inode;

/// Every object by its number. Numbers are never used again.
#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[RwLock<Shard>]>,
    next: AtomicU64,
}

type Shard = HashMap<u64, Arc<Inode>, BuildHasherDefault<ById>>;

/// Spreads numbers that this table gave itself, so nobody can choose them to collide.
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
        let removed = self.shard(id).write().remove(&id);
        // Its data is freed here, outside the lock.
        drop(removed);
    }

    fn shard(&self, id: u64) -> &RwLock<Shard> {
        &self.shards[id as usize % SHARDS]
    }
}

const SHARDS: usize = 64;
