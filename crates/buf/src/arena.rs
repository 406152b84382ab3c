//! [`Arena`]: small parts of messages, copied together.
//!
//! It starts small and doubles with what is put into it, so that a busy connection allocates seldom; at
//! [`rest`](Arena::rest) it forgets that and lets its memory go, so that an idle one holds none.

use bytes::{BufMut, Bytes, BytesMut};

/// Memory that is filled piece by piece, each of which leaves as [`Bytes`].
#[derive(Debug)]
pub struct Arena {
    memory: BytesMut,
    /// Bytes of the next block.
    next: usize,
    max: usize,
}

impl Arena {
    /// An empty arena whose blocks have at most `max` bytes, unless one piece is longer.
    pub fn new(max: usize) -> Self {
        Self { memory: BytesMut::new(), next: FIRST.min(max), max }
    }

    /// Makes room for a piece of `len` more bytes, if there is none and no piece has begun; says whether there is.
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

    /// Adds to the piece that has begun.
    pub fn put(&mut self, bytes: &[u8]) {
        self.memory.put_slice(bytes);
    }

    /// The piece that has begun.
    pub fn piece(&mut self) -> &mut BytesMut {
        &mut self.memory
    }

    /// Ends the piece.
    pub fn take(&mut self) -> Bytes {
        self.memory.split().freeze()
    }

    /// Lets memory go that holds nothing.
    pub fn rest(&mut self) {
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
    fn pieces_share_blocks_that_grow_and_are_let_go() {
        const LENS: [usize; 5] = [400, 1600, 2400, 3600, 20_000];
        let mut arena = Arena::new(8192);
        let mut pieces = Vec::new();
        for len in LENS {
            assert!(arena.make_room(len));
            arena.put(&vec![len as u8; len]);
            pieces.push(arena.take());
        }
        assert!(pieces.iter().zip(LENS).all(|(piece, len)| **piece == vec![len as u8; len]));
        assert_eq!(pieces[0].as_ptr().wrapping_add(LENS[0]), pieces[1].as_ptr(), "one block");
        arena.make_room(10);
        arena.put(b"begun");
        assert!(!arena.make_room(100_000));
        arena.rest();
        assert_eq!(arena.take(), "begun");
        arena.rest();
        assert_eq!(arena.piece().capacity(), 0);
    }
}
