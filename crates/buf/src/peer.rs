//! [`PeerBytes`]: memory that another process can change at any time.

use std::{any::Any, ptr::NonNull, sync::Arc};

/// Bytes in memory that is shared with a peer, to be copied from or written to a file, and never to be looked at.
///
/// The peer may change them between any two instructions, so that there can be no `&[u8]` of them, and nothing that was
/// checked in place stays true: bulk data can travel so, what is parsed has to be [copied](Self::copy_to) first. Cheap to
/// clone; the memory stays mapped, and whatever `keeper` stands for, while any clone lives.
#[derive(Clone)]
pub struct PeerBytes {
    start: NonNull<u8>,
    len: usize,
    _keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an address range and its keeper, which may move; the memory is accessed by copies alone, which are as right or
// wrong from one thread as from another, since the peer can write at any time in any case.
#[expect(unsafe_code)]
unsafe impl Send for PeerBytes {}
// SAFETY: as above.
#[expect(unsafe_code)]
unsafe impl Sync for PeerBytes {}

impl PeerBytes {
    /// `len` bytes at `start`.
    ///
    /// # Safety
    /// They are mapped for reading while `keeper` lives, in memory that no reference of this process refers to.
    #[expect(unsafe_code)]
    pub unsafe fn new(keeper: Arc<dyn Any + Send + Sync>, start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, _keeper: keeper }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they are, for a system call.
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
        // SAFETY: not beyond the end of the range.
        #[expect(unsafe_code)]
        let rest = unsafe { self.start.add(at) };
        (self.start, self.len) = (rest, self.len - at);
        head
    }

    /// Copies them, as they are now, into `into`, which must be of their length.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.len);
        // SAFETY: mapped while the keeper lives, as `new` was promised; `into` is of this process and so no part of it.
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
    fn peers_bytes_are_cut_and_copied_like_others_and_keep_their_memory() {
        let memory: Arc<Vec<u8>> = Arc::new((0..100).collect());
        let start = NonNull::new(memory.as_ptr().cast_mut()).unwrap();
        // SAFETY: it is kept by itself, and only read.
        #[expect(unsafe_code)]
        let bytes = unsafe { PeerBytes::new(memory.clone(), start, 100) };
        let mut rope = Rope::from(bytes::Bytes::from_static(b"in front"));
        rope.push(Piece::Peer(bytes));
        assert_eq!(rope.slice(6, 5).to_bytes().unwrap(), [b'n', b't', 0, 1, 2][..]);
        assert_eq!(rope.slice(98, 10).to_bytes().unwrap(), (90..100).collect::<Vec<u8>>());
        assert!(Arc::strong_count(&memory) > 1);
        drop(rope);
        assert_eq!(Arc::strong_count(&memory), 1);
    }
}
