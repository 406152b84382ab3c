//! Assembling RPC messages from their parts.
//!
//! Read RFC 8166 §3.4.4–§3.4.5 first. These are pure functions from the stream and the chunks of a message to the
//! message.

use buf::{Piece, Rope};
use bytes::{Bytes, BytesMut};
use rpc::Xid;
use smallvec::SmallVec;
use xdr::{Message, PlacedPayload};

use crate::{
    chunk::{Chunk, ReadChunk, ReadList},
    pull::Pull,
};

/// The direction of an RPC message (RFC 5531 §9).
pub(crate) enum Direction {
    Call,
    Reply,
}

impl Direction {
    /// Returns the direction, or `None` if `stream` is no RPC message with this XID.
    pub(crate) fn of(stream: &[u8], xid: Xid) -> Option<Self> {
        let direction = u32::from_be_bytes(*stream.get(4..)?.first_chunk()?);
        match direction {
            _ if xid_of(stream) != Some(xid) => None,
            0 => Some(Direction::Call),
            1 => Some(Direction::Reply),
            _ => None,
        }
    }
}

/// Returns the XID of an RPC message.
pub(crate) fn xid_of(stream: &[u8]) -> Option<Xid> {
    stream.first_chunk().map(|&xid| Xid(u32::from_be_bytes(xid)))
}

/// Returns `true` if `stream` begins as the reply to the call `xid`.
pub(crate) fn is_reply_to(stream: &[u8], xid: Xid) -> bool {
    matches!(Direction::of(stream, xid), Some(Direction::Reply))
}

/// Returns `true` if the chunks form a message: no chunk overlaps another or lies beyond the end, the stream is in
/// exactly one place, and the message is not longer than `message_max`.
pub(crate) fn reads_are_valid(reads: &ReadList, inline: Option<&Bytes>, message_max: usize) -> bool {
    let (stream, items) = reads.split_stream();
    //= rfc8166-4.2.4-1
    let stream_len = match (inline, stream) {
        (Some(inline), None) => inline.len(),
        (None, Some(chunk)) => chunk.len(),
        _ => return false,
    };
    if inline.map_or(0, Bytes::len) + reads.total() > message_max {
        return false;
    }
    let (mut end, mut reduced) = (0, 0);
    items.iter().all(|ReadChunk { position, chunk }| {
        let position = *position as usize;
        // RFC 8166 §3.4.5: positions count the unreduced stream.
        //= rfc8166-3.4.5-1
        let fits = position >= end && position - reduced <= stream_len;
        reduced += chunk.len().next_multiple_of(4);
        end = position + chunk.len().next_multiple_of(4);
        fits
    })
}

/// Assembles the parts of a message.
pub(crate) fn assemble(pull: Pull, reads: &ReadList) -> Message {
    let (stream_chunk, items) = reads.split_stream();
    let (inline, mut parts) = pull.into_parts();
    let mut take = |chunk: &Chunk| -> SmallVec<[Piece; 1]> { parts.by_ref().take(chunk.parts().count()).collect() };
    let stream = match stream_chunk {
        None => inline.expect("reads_are_valid must have found an inline stream"),
        Some(chunk) => join(take(chunk)),
    };
    let mut message = Message::from(stream);
    let mut reduced = 0;
    for ReadChunk { position, chunk } in items.iter().filter(|item| !item.chunk.is_empty()) {
        let mut data = Rope::new();
        take(chunk).into_iter().for_each(|piece| data.push(piece));
        let len = without_padding(&message.stream, *position as usize - reduced, data.len());
        reduced += data.len().next_multiple_of(4);
        message.payloads.push(PlacedPayload { position: Some(*position), data: data.slice(0, len) });
    }
    message
}

/// Returns the length of an item without its XDR padding, which a requester can include in the chunk (RFC 8166
/// §3.4.5.2). The item's length is in the stream before it.
pub(crate) fn without_padding(stream: &Bytes, at: usize, len: usize) -> usize {
    let word = at.checked_sub(4).and_then(|start| stream.get(start..)?.first_chunk());
    match word.map(|&word| u32::from_be_bytes(word) as usize) {
        //= rfc8166-3.4.5.2-1
        Some(item) if item.next_multiple_of(4) == len => item,
        _ => len,
    }
}

/// Joins the parts of a stream, which are in memory because they were read.
fn join(parts: SmallVec<[Piece; 1]>) -> Bytes {
    let parts: SmallVec<[Bytes; 1]> =
        parts.into_iter().map(|part| part.into_memory().expect("a part that was read must be in memory")).collect();
    if let [part] = &parts[..] {
        return part.clone();
    }
    let mut joined = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| joined.extend_from_slice(part));
    joined.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_padding_is_removed_from_an_item() {
        let stream = Bytes::from_iter([0u32, 5].into_iter().flat_map(u32::to_be_bytes));
        for (at, len, expected) in [(8, 8, 5), (8, 5, 5), (8, 12, 12), (8, 4, 4), (4, 8, 8), (3, 8, 8), (12, 8, 8)] {
            assert_eq!(without_padding(&stream, at, len), expected, "{len} bytes at {at}");
        }
    }
}
