//! [`Device`]: device memory for tests.
//!
//! Its bytes can only be copied in and out, which it counts. So what a test does with it works with the memory of a GPU.
//! This file uses nothing of the crates above `buf`, so that tests of crates that this one is made of can include it.

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
    /// Memory with this content.
    pub fn new(content: impl Into<Vec<u8>>) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(content.into()), ..Self::default() })
    }

    /// All of it.
    pub fn range(self: &Arc<Self>) -> DeviceRange {
        DeviceRange::new(self.clone(), 0, self.content().len())
    }

    /// Its content, as the device sees it.
    pub fn content(&self) -> Vec<u8> {
        self.bytes.lock().expect("no test panics there").clone()
    }

    /// Bytes that were copied in and out.
    pub fn copied(&self) -> (usize, usize) {
        (self.copied_in.load(SeqCst), self.copied_out.load(SeqCst))
    }

    /// Lets all copies fail from now on.
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
        self.bytes.lock().expect("no test panics there")[offset..][..from.len()].copy_from_slice(from);
        self.copied_in.fetch_add(from.len(), SeqCst);
        Ok(())
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        self.check()?;
        into.copy_from_slice(&self.bytes.lock().expect("no test panics there")[offset..][..into.len()]);
        self.copied_out.fetch_add(into.len(), SeqCst);
        Ok(())
    }
}
