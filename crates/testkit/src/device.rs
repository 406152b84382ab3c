//! [`Device`]: device memory for tests.
//!
//! Its bytes can only be copied in and out, and it counts them. So a test with it also holds for the memory of a GPU.
//! This file uses only `buf`, so that tests of the crates below this one can include it.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use buf::{DeviceMemory, DeviceRange};

/// The memory of a device.
#[derive(Default)]
pub struct Device {
    bytes: Mutex<Vec<u8>>,
    copied_in: AtomicUsize,
    copied_out: AtomicUsize,
    is_broken: AtomicBool,
}

impl Device {
    /// Creates memory with this content.
    pub fn new(content: impl Into<Vec<u8>>) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(content.into()), ..Self::default() })
    }

    /// Returns a range of all its bytes.
    pub fn range(self: &Arc<Self>) -> DeviceRange {
        DeviceRange::new(self.clone(), 0, self.content().len())
    }

    /// Returns the content, as the device sees it.
    pub fn content(&self) -> Vec<u8> {
        self.bytes.lock().expect("lock must not be poisoned").clone()
    }

    /// Returns the number of bytes that were copied in, and out.
    pub fn copied(&self) -> (usize, usize) {
        (self.copied_in.load(SeqCst), self.copied_out.load(SeqCst))
    }

    /// Makes all further copies fail.
    pub fn break_down(&self) {
        self.is_broken.store(true, SeqCst);
    }

    fn check(&self) -> io::Result<()> {
        if self.is_broken.load(SeqCst) { Err(io::Error::other("the device has failed")) } else { Ok(()) }
    }
}

impl DeviceMemory for Device {
    fn copy_in(&self, offset: usize, from: &[u8]) -> io::Result<()> {
        self.check()?;
        self.bytes.lock().expect("lock must not be poisoned")[offset..][..from.len()].copy_from_slice(from);
        self.copied_in.fetch_add(from.len(), SeqCst);
        Ok(())
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        self.check()?;
        into.copy_from_slice(&self.bytes.lock().expect("lock must not be poisoned")[offset..][..into.len()]);
        self.copied_out.fetch_add(into.len(), SeqCst);
        Ok(())
    }
}
