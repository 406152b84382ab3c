//! [`Buffer`]: memory with one owner that is always initialized.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use bytes::Bytes;

use crate::{division::Part, pool::Chunk};

/// Contiguous memory with one owner. It is filled, and then frozen or returned to its pool.
///
/// `len` bytes are visible; [`set_len`](Self::set_len) can make up to [`capacity`](Self::capacity) bytes visible. The
/// whole capacity is always initialized memory, but its content is unspecified: a byte must be written before a peer
/// can see it.
pub struct Buffer {
    storage: Storage,
    len: usize,
    /// Declared after the storage, so that the account is notified when the memory is already free.
    charge: Option<Charge>,
}

/// A counter of buffers in use, which is notified when they return.
pub trait Account: Send + Sync {
    /// Called when a [`Buffer`] that was charged to the account has returned to its pool or was freed.
    fn returned(&self);
}

struct Charge(Arc<dyn Account>);

impl Drop for Charge {
    fn drop(&mut self) {
        self.0.returned();
    }
}

enum Storage {
    Pooled(Chunk),
    Heap(Vec<u8>),
    /// A part of another buffer.
    Part(Part),
}

impl Buffer {
    /// Returns a zeroed buffer of `len` bytes from the heap instead of a pool.
    pub fn zeroed(len: usize) -> Self {
        Self::from(vec![0; len])
    }

    pub(crate) fn from_chunk(chunk: Chunk, len: usize) -> Self {
        assert!(len <= chunk.capacity());
        Self { storage: Storage::Pooled(chunk), len, charge: None }
    }

    pub(crate) fn from_part(part: Part) -> Self {
        Self { len: part.len(), storage: Storage::Part(part), charge: None }
    }

    /// Returns the part, if this is one of another buffer.
    pub(crate) fn part(&self) -> Option<&Part> {
        match &self.storage {
            Storage::Part(part) => Some(part),
            Storage::Pooled(_) | Storage::Heap(_) => None,
        }
    }

    /// Returns the number of bytes that the buffer can hold.
    pub fn capacity(&self) -> usize {
        match &self.storage {
            Storage::Pooled(chunk) => chunk.capacity(),
            Storage::Heap(vec) => vec.len(),
            Storage::Part(part) => part.len(),
        }
    }

    /// Makes exactly the first `len` bytes visible.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "set_len {len} beyond capacity {}", self.capacity());
        self.len = len;
    }

    /// Charges the buffer to `account`, which is notified when the buffer returns. The former account is notified now.
    pub fn charge(&mut self, account: Arc<dyn Account>) {
        self.charge = Some(Charge(account));
    }

    /// Converts the visible bytes to shared, immutable memory, without a copy.
    pub fn freeze(self) -> Bytes {
        if self.len == 0 {
            return Bytes::new();
        }
        Bytes::from_owner(self)
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(vec: Vec<u8>) -> Self {
        Self { len: vec.len(), storage: Storage::Heap(vec), charge: None }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.storage {
            Storage::Pooled(chunk) => &chunk.bytes()[..self.len],
            Storage::Heap(vec) => &vec[..self.len],
            Storage::Part(part) => &part.bytes()[..self.len],
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.storage {
            Storage::Pooled(chunk) => &mut chunk.bytes_mut()[..self.len],
            Storage::Heap(vec) => &mut vec[..self.len],
            Storage::Part(part) => &mut part.bytes_mut()[..self.len],
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pooled = matches!(self.storage, Storage::Pooled(_));
        write!(f, "Buffer {{ len: {}, capacity: {}, pooled: {pooled} }}", self.len, self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_len_shows_and_hides_bytes_within_the_capacity() {
        let mut buffer = Buffer::from(vec![1, 2, 3, 4]);
        buffer.set_len(2);
        assert_eq!(&*buffer, [1, 2]);
        buffer.set_len(4);
        assert_eq!(&*buffer, [1, 2, 3, 4]);
    }

    #[test]
    #[should_panic(expected = "beyond capacity")]
    fn set_len_refuses_more_than_the_capacity() {
        Buffer::zeroed(4).set_len(5);
    }

    #[test]
    fn freeze_shares_the_same_memory() {
        let buffer = Buffer::from(vec![7; 100]);
        let before = buffer.as_ptr();
        let frozen = buffer.freeze();
        assert_eq!(frozen.as_ptr(), before);
        assert_eq!(frozen, vec![7; 100]);
    }
}
