//! RPC messages as they are put together from their parts.
//!
//! Read RFC 8166 §3.4.4–§3.4.5 first. Pure functions: the stream and the chunks of a message in, the message out.

use buf::{Piece, Rope};
use bytes::{Bytes, BytesMut};
use rpc::Xid;
use smallvec::SmallVec;
use xdr::{Message, PlacedPayload};

use crate::{
    chunk::{Chunk, ReadChunk, ReadList},
    pull::Pull,
};

/// Direction of an RPC message (RFC 5531 §9).
pub(crate) enum Direction {
    Call,
    Reply,
}

impl Direction {
    /// The direction of a message, if `stream` is one and has this XID.
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

/// The XID of an RPC message.
pub(crate) fn xid_of(stream: &[u8]) -> Option<Xid> {
    stream.first_chunk().map(|&xid| Xid(u32::from_be_bytes(xid)))
}

/// Whether `stream` begins as the reply to this call.
pub(crate) fn is_reply_to(stream: &[u8], xid: Xid) -> bool {
    matches!(Direction::of(stream, xid), Some(Direction::Reply))
}

/// Checks that the chunks make up a message: none lies inside another or beyond the end, the stream is
/// in exactly one place, and the whole is no longer than `message_max`.
pub(crate) fn reads_make_sense(reads: &ReadList, inline: Option<&Bytes>, message_max: usize) -> bool {
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

/// Puts the parts of a message together.
pub(crate) fn assemble(pull: Pull, reads: &ReadList) -> Message {
    let (stream_chunk, items) = reads.split_stream();
    let (inline, mut parts) = pull.into_parts();
    let mut take = |chunk: &Chunk| -> SmallVec<[Piece; 1]> { parts.by_ref().take(chunk.parts().count()).collect() };
    let stream = match stream_chunk {
        None => inline.expect("checked by reads_make_sense"),
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

/// RFC 8166 §3.4.5.2: a requester may include an item's XDR padding in its chunk. The item's length, in the stream
/// before it, tells.
pub(crate) fn without_padding(stream: &Bytes, at: usize, len: usize) -> usize {
    let word = at.checked_sub(4).and_then(|start| stream.get(start..)?.first_chunk());
    match word.map(|&word| u32::from_be_bytes(word) as usize) {
        //= rfc8166-3.4.5.2-1
        Some(item) if item < len && item.next_multiple_of(4) == len => item,
        _ => len,
    }
}

/// A stream, which has been read and so is memory.
fn join(parts: SmallVec<[Piece; 1]>) -> Bytes {
    let parts: SmallVec<[Bytes; 1]> =
        parts.into_iter().map(|part| part.into_memory().expect("it is memory already")).collect();
    if let [part] = &parts[..] {
        return part.clone();
    }
    let mut joined = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| joined.extend_from_slice(part));
    joined.freeze()
}
