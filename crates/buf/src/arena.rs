//! [`Arena`]: memory into which small parts of messages are copied.
//!
//! The size of its blocks doubles with use, so that a busy connection allocates rarely. [`shrink_idle`](Arena::shrink_idle) frees the
//! memory and resets the size, so that an idle connection holds no memory.

use bytes::{BufMut, Bytes, BytesMut};

/// Memory that is filled one piece after the other. Each finished piece is returned as [`Bytes`].
#[derive(Debug)]
pub struct Arena {
    memory: BytesMut,
    /// The size of the next block in bytes.
    next: usize,
    max: usize,
}

impl Arena {
    /// Makes an empty arena. Its blocks have at most `max` bytes, unless one piece is longer.
    pub fn new(max: usize) -> Self {
        Self { memory: BytesMut::new(), next: FIRST.min(max), max }
    }

    /// Makes room for `len` more bytes, by a new block if no piece has begun. Returns `true` if there is room.
    pub fn make_room(&mut self, len: usize) -> bool {
        if self.memory.capacity() - self.memory.len() >= len {
            return true;
        }
        if !self.memory.is_empty() {
            return false;
        }
        self.memory = BytesMut::with_capacity(len.max(self.next));
        self.next = (2 * self.next).min(self.max);
        true
    }

    /// Appends bytes to the current piece.
    pub fn put(&mut self, bytes: &[u8]) {
        self.memory.put_slice(bytes);
    }

    /// Returns the current piece.
    pub fn piece(&mut self) -> &mut BytesMut {
        &mut self.memory
    }

    /// Ends the current piece and returns it.
    pub fn take(&mut self) -> Bytes {
        self.memory.split().freeze()
    }

    /// Frees the memory if no piece has begun.
    pub fn shrink_idle(&mut self) {
        if self.memory.is_empty() {
            *self = Self::new(self.max);
        }
    }
}

const FIRST: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_share_growing_blocks_and_rest_frees_them() {
        const LENS: [usize; 5] = [400, 1600, 2400, 3600, 20_000];
        let mut arena = Arena::new(8192);
        let mut pieces = Vec::new();
        for len in LENS {
            assert!(arena.make_room(len));
            arena.put(&vec![len as u8; len]);
            pieces.push(arena.take());
        }
        assert!(pieces.iter().zip(LENS).all(|(piece, len)| **piece == vec![len as u8; len]));
        assert_eq!(pieces[0].as_ptr().wrapping_add(LENS[0]), pieces[1].as_ptr(), "both pieces must be in one block");
        arena.make_room(10);
        arena.put(b"begun");
        assert!(!arena.make_room(100_000));
        arena.shrink_idle();
        assert_eq!(arena.take(), "begun");
        arena.shrink_idle();
        assert_eq!(arena.piece().capacity(), 0);
    }
}
