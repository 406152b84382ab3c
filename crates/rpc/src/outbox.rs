//! [`Outbox`]: encodes messages as records of a byte stream. RFC 5531 §11.
//!
//! This is the sending half of record marking; like the [receiving](crate::record) half it does no I/O. Consecutive
//! small parts, including record marks, are copied into one piece, so that fewer pieces are gathered. Large parts are
//! shared.

use buf::{Arena, Piece, SendQueue};
use bytes::Bytes;
use xdr::Message;

use crate::record::{ARENA_BYTES, LAST_FRAGMENT, padding};

/// Messages that wait to be sent.
#[derive(Debug)]
pub(crate) struct Outbox {
    pieces: Vec<Piece>,
    arena: Arena,
    len: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { pieces: Vec::new(), arena: Arena::new(ARENA_BYTES), len: 0 }
    }
}

impl Outbox {
    /// Returns `true` if no bytes are queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of queued bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends `message`, whose length is `len` bytes, as a record of one fragment.
    ///
    /// # Panics
    /// If `len` does not fit in 31 bits, or a payload has no position.
    pub fn push(&mut self, message: Message, len: usize) {
        debug_assert_eq!(len, message.len());
        assert!(len < LAST_FRAGMENT as usize, "the length of a fragment must fit in 31 bits");
        self.copy(&(LAST_FRAGMENT | len as u32).to_be_bytes());
        let (mut at, mut reduced) = (0, 0);
        for payload in message.payloads {
            let position = payload.position.expect("a payload to be sent must have a position") as usize;
            let (end, padding) = (position - reduced, padding(payload.data.len()));
            self.bytes(message.stream.slice(at..end));
            reduced += payload.data.len() + padding;
            for piece in payload.data {
                match piece {
                    Piece::Memory(bytes) => self.bytes(bytes),
                    other => self.piece(other),
                }
            }
            self.copy(&[0; 3][..padding]);
            at = end;
        }
        match at {
            0 => self.bytes(message.stream),
            _ => self.bytes(message.stream.slice(at..)),
        }
    }

    /// Moves all pieces to `queue`.
    pub fn drain_to(&mut self, queue: &mut SendQueue) {
        self.seal();
        self.pieces.drain(..).for_each(|piece| queue.push(piece));
        self.len = 0;
    }

    /// Frees the memory if nothing is queued.
    pub fn release_if_empty(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    #[cfg(test)]
    pub fn into_pieces(mut self) -> Vec<Piece> {
        self.seal();
        self.pieces
    }

    fn bytes(&mut self, bytes: Bytes) {
        if bytes.len() <= COPY_MAX { self.copy(&bytes) } else { self.piece(Piece::Memory(bytes)) }
    }

    fn piece(&mut self, piece: Piece) {
        self.seal();
        self.len += piece.len();
        self.pieces.push(piece);
    }

    fn copy(&mut self, bytes: &[u8]) {
        if !self.arena.make_room(bytes.len()) {
            self.seal();
            self.arena.make_room(bytes.len());
        }
        self.arena.put(bytes);
        self.len += bytes.len();
    }

    fn seal(&mut self) {
        let piece = self.arena.take();
        if !piece.is_empty() {
            self.pieces.push(Piece::Memory(piece));
        }
    }
}

/// Maximum length in bytes for which a copy costs less than gathering one more piece.
const COPY_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_small_messages_become_one_piece() {
        let small = || Message::from(Bytes::from_static(&[0; 100]));
        let mut outbox = Outbox::default();
        for _ in 0..10 {
            outbox.push(small(), 100);
        }
        let mut encoder = xdr::Encoder::default();
        encoder.payload(Bytes::from_static(&[7; 5001]).into());
        encoder.u32(1);
        outbox.push(encoder.finish(), 4 + 5004 + 4);
        outbox.push(small(), 100);
        let lens: Vec<_> = outbox.into_pieces().iter().map(Piece::len).collect();
        assert_eq!(lens, [10 * 104 + 4 + 4, 5001, 3 + 4 + 104]);
    }
}
