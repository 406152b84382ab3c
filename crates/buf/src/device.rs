//! [`DeviceMemory`]: memory that the processor cannot address.

use std::{io, sync::Arc};

/// Memory of a device, such as a GPU: bytes are copied in and out, and there is no reference to them.
///
/// A transport moves data to and from it directly where it can. Where it cannot, it copies them by these methods.
/// Either can run at the same time as others, on any thread. What a range holds after two overlapping copies is unspecified.
pub trait DeviceMemory: Send + Sync {
    /// Copies `from` to the bytes from `offset` on.
    ///
    /// # Errors
    /// Not all of them lie in the memory, or the device fails.
    fn copy_in(&self, offset: usize, from: &[u8]) -> io::Result<()>;

    /// Copies the bytes from `offset` on to `into`.
    ///
    /// # Errors
    /// Not all of them lie in the memory, or the device fails.
    fn copy_out(&self, offset: usize, into: &mut [u8]) -> io::Result<()>;
}

/// `len` bytes of device memory from `offset`. Cheap to clone; clones name the same bytes, which stay allocated while any
/// clone lives.
#[derive(Clone)]
pub struct DeviceRange {
    memory: Arc<dyn DeviceMemory>,
    offset: usize,
    len: usize,
}

impl DeviceRange {
    /// `len` bytes of `memory` from `offset`.
    ///
    /// # Panics
    /// If offset and length overflow.
    pub fn new(memory: Arc<dyn DeviceMemory>, offset: usize, len: usize) -> Self {
        assert!(offset.checked_add(len).is_some(), "offset and length overflow");
        Self { memory, offset, len }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Removes and returns the first `at` bytes.
    ///
    /// # Panics
    /// If `at` exceeds the length.
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len);
        let head = Self { len: at, ..self.clone() };
        (self.offset, self.len) = (self.offset + at, self.len - at);
        head
    }

    /// Copies `from` to the bytes from `at` on.
    ///
    /// # Errors
    /// The device fails.
    ///
    /// # Panics
    /// If not all of them lie in the range.
    pub fn copy_in(&self, at: usize, from: &[u8]) -> io::Result<()> {
        self.check(at, from.len());
        self.memory.copy_in(self.offset + at, from)
    }

    /// Copies the bytes from `at` on to `into`.
    ///
    /// # Errors
    /// The device fails.
    ///
    /// # Panics
    /// If not all of them lie in the range.
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        self.check(at, into.len());
        self.memory.copy_out(self.offset + at, into)
    }

    /// Whether both begin with the same byte of the same memory.
    pub(crate) fn starts_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && self.offset == other.offset
    }

    fn check(&self, at: usize, len: usize) {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len), "beyond the range");
    }
}

impl std::fmt::Debug for DeviceRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceRange {{ offset: {}, len: {} }}", self.offset, self.len)
    }
}
