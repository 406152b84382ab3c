//! The data of a READ's reply: in the caller's buffer, or piece by piece as it was received.

use buf::{Buffer, Piece, Rope, SharedBuffer};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::model::{Error, ErrorKind, Result};

/// Data as they were received: mostly one piece.
pub(crate) type Pieces = SmallVec<[Bytes; 1]>;

/// The data of a READ piece by piece, as it was received.
pub(crate) fn pieces(data: Rope) -> Result<Pieces> {
    let pieces = data.into_iter().map(|piece| piece.into_memory().map_err(|_| unreadable("READ")));
    pieces.collect()
}

/// The sink with the data in its first bytes, wherever the transport has put them.
pub(crate) fn settle(data: Rope, sink: SharedBuffer, wanted: usize) -> std::result::Result<Buffer, Buffer> {
    let start = sink.as_ref().as_ptr();
    let placed = matches!(data.pieces(), [Piece::Memory(bytes)] if bytes.as_ptr() == start);
    if placed || data.is_empty() {
        drop(data);
        return Ok(reclaim(sink, wanted));
    }
    let mut buffer = reclaim(sink, wanted);
    let result = data.copy_to(&mut buffer[..data.len()]);
    if result.is_ok() { Ok(buffer) } else { Err(buffer) }
}

/// The caller's buffer, as long as it was.
pub(crate) fn reclaim(sink: SharedBuffer, wanted: usize) -> Buffer {
    let mut buffer = sink.into_buffer().unwrap_or_else(|shared| {
        // The transport holds on to it for another moment: its bytes are worth a copy.
        Buffer::from(shared.as_ref().to_vec())
    });
    buffer.set_len(wanted);
    buffer
}

pub(crate) fn unreadable(operation: &'static str) -> Error {
    Error::new(ErrorKind::Protocol("its data cannot be read".to_owned()), operation)
}
