//! [`DeviceMemory`]: memory that the processor cannot address.

use std::{io, sync::Arc};

/// Memory of a device, such as a GPU. Its bytes are copied in and out; the processor cannot reference them.
///
/// A transport moves data directly to and from it if it can. Otherwise the transport copies the data with these
/// methods. They can be called on several threads at the same time. Bytes in two overlapping copies are unspecified
/// afterwards.
pub trait DeviceMemory: Send + Sync {
    /// Copies `from` to the bytes from `offset` on.
    ///
    /// # Errors
    /// The bytes are not all inside the memory, or the device fails.
    fn copy_in(&self, offset: usize, from: &[u8]) -> io::Result<()>;

    /// Copies the bytes from `offset` on to `into`.
    ///
    /// # Errors
    /// The bytes are not all inside the memory, or the device fails.
    fn copy_out(&self, offset: usize, into: &mut [u8]) -> io::Result<()>;
}

/// `len` bytes of device memory from `offset`. It is cheap to clone. Clones refer to the same bytes, which stay
/// allocated while any clone exists.
#[derive(Clone)]
pub struct DeviceRange {
    memory: Arc<dyn DeviceMemory>,
    offset: usize,
    len: usize,
}

impl DeviceRange {
    /// Makes the range of `len` bytes of `memory` from `offset`.
    ///
    /// # Panics
    /// If offset and length overflow.
    pub fn new(memory: Arc<dyn DeviceMemory>, offset: usize, len: usize) -> Self {
        assert!(offset.checked_add(len).is_some(), "offset and length overflow");
        Self { memory, offset, len }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the range has no bytes.
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
    /// If the bytes are not all inside the range.
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
    /// If the bytes are not all inside the range.
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        self.check(at, into.len());
        self.memory.copy_out(self.offset + at, into)
    }

    /// Returns `true` if both ranges begin with the same byte of the same memory.
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
