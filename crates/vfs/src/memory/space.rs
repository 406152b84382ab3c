//! Space: how much of the capacity is taken, and by whom it is given back.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::VfsError;

/// The capacity of one file system.
#[derive(Debug)]
pub(super) struct Space {
    capacity: u64,
    used: AtomicU64,
}

impl Space {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, used: AtomicU64::new(0) }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn free(&self) -> u64 {
        self.capacity - self.used.load(Ordering::Relaxed)
    }
}

/// Bytes taken from a [`Space`], given back on drop.
#[derive(Debug)]
pub(super) struct Charge {
    space: Arc<Space>,
    bytes: u64,
}

impl Charge {
    /// Takes `bytes`.
    ///
    /// # Errors
    /// `NoSpace`, and nothing is taken.
    pub(super) fn new(space: &Arc<Space>, bytes: u64) -> Result<Self, VfsError> {
        let mut charge = Self { space: space.clone(), bytes: 0 };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Takes `bytes` more.
    ///
    /// # Errors
    /// `NoSpace`, and nothing is taken.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<(), VfsError> {
        let capacity = self.space.capacity;
        let take = |used: u64| used.checked_add(bytes).filter(|used| *used <= capacity);
        // Relaxed: the counter orders no other memory.
        let taken = self.space.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map_err(|_| VfsError::NoSpace)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives `bytes` of it back.
    pub(super) fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "more space given back than was taken");
        self.bytes -= bytes;
        self.space.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Of the whole file system.
    pub(super) fn capacity(&self) -> u64 {
        self.space.capacity
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}
