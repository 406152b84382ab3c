//! The space of a file system: its capacity, and the part that is used.

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

/// Bytes of a [`Space`] that are in use. Dropping the charge releases them.
#[derive(Debug)]
pub(super) struct Charge {
    space: Arc<Space>,
    bytes: u64,
}

impl Charge {
    /// Reserves `bytes`.
    ///
    /// # Errors
    /// Returns `NoSpace` if they do not fit; nothing is reserved then.
    pub(super) fn new(space: &Arc<Space>, bytes: u64) -> Result<Self, VfsError> {
        let mut charge = Self { space: space.clone(), bytes: 0 };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Reserves `bytes` more.
    ///
    /// # Errors
    /// Returns `NoSpace` if they do not fit; nothing is reserved then.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<(), VfsError> {
        let capacity = self.space.capacity;
        let take = |used: u64| used.checked_add(bytes).filter(|used| *used <= capacity);
        // Relaxed: the counter does not order other memory.
        let taken = self.space.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map_err(|_| VfsError::NoSpace)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Releases some of the bytes.
    pub(super) fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "charge must not be released twice");
        self.bytes -= bytes;
        self.space.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the capacity of the whole file system.
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
