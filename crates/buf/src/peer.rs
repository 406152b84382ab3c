//! [`PeerBytes`]: memory that another process can change at any time.

use std::{
    any::Any,
    ptr::NonNull,
    sync::{Arc, atomic::AtomicU8},
};

/// Bytes in memory that is shared with a peer. They can be copied, or written to a file, but not referenced.
///
/// The peer can change them between any two instructions. Therefore there can be no `&[u8]` of them, and a check of
/// them in place proves nothing: use this type for bulk data, and [copy](Self::copy_to) data before parsing them. It is
/// cheap to clone. The memory stays mapped, and `keeper` exists, while any clone exists.
#[derive(Clone)]
pub struct PeerBytes {
    start: NonNull<u8>,
    len: usize,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: this is an address range and its keeper, which may move between threads. The memory is accessed only by
// copies, which are as correct from one thread as from another, because the peer can write at any time in any case.
#[expect(unsafe_code)]
unsafe impl Send for PeerBytes {}
// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for PeerBytes {}

impl PeerBytes {
    /// Makes the range of `len` bytes at `start`.
    ///
    /// # Safety
    /// The bytes must be mapped for reading while `keeper` exists, in memory to which no reference of this process
    /// refers.
    #[expect(unsafe_code)]
    pub unsafe fn new(keeper: Arc<dyn Any + Send + Sync>, start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, _keeper: keeper }
    }

    /// Makes the range of these bytes of this process, which other threads can change.
    pub fn of_atomics(bytes: Arc<[AtomicU8]>) -> Self {
        let start = NonNull::from(&*bytes).cast();
        // SAFETY: the keeper is the memory. Atomics can be changed while there are references to them.
        #[expect(unsafe_code)]
        unsafe {
            Self::new(Arc::new(bytes.clone()), start, bytes.len())
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte, for a system call.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Removes and returns the first `at` bytes.
    ///
    /// # Panics
    /// If `at` exceeds the length.
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len);
        let head = Self { len: at, ..self.clone() };
        // SAFETY: the address is not beyond the end of the range.
        #[expect(unsafe_code)]
        let rest = unsafe { self.start.add(at) };
        (self.start, self.len) = (rest, self.len - at);
        head
    }

    /// Copies the bytes, as they are now, to `into`, which must have the same length.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.len);
        // SAFETY: the bytes are mapped while the keeper exists, as the caller of `new` has promised. `into` is not part
        // of that memory, because references of this process do not refer to it.
        #[expect(unsafe_code)]
        unsafe {
            self.start.copy_to_nonoverlapping(NonNull::from(&mut *into).cast(), self.len);
        }
    }
}

impl std::fmt::Debug for PeerBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerBytes {{ len: {} }}", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Piece, Rope};

    #[test]
    fn peer_bytes_are_sliced_and_copied_and_keep_their_memory() {
        let memory: Arc<[AtomicU8]> = (0..100).map(AtomicU8::new).collect();
        let bytes = PeerBytes::of_atomics(memory.clone());
        let mut rope = Rope::from(bytes::Bytes::from_static(b"in front"));
        rope.push(Piece::Peer(bytes));
        assert_eq!(rope.slice(6, 5).to_bytes().unwrap(), [b'n', b't', 0, 1, 2][..]);
        assert_eq!(rope.slice(98, 10).to_bytes().unwrap(), (90..100).collect::<Vec<u8>>());
        assert!(Arc::strong_count(&memory) > 1);
        drop(rope);
        assert_eq!(Arc::strong_count(&memory), 1);
    }
}
