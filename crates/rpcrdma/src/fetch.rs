//! [`Fetch`]: a reply that this side reads from the responder's memory: the requester's side of the Read-Read design.
//!
//! Read `expose.rs` first. A reply with a read list names memory of the responder. The requester reads that memory,
//! directly into the caller's buffer if the payload is one segment. Then it sends RDMA_DONE, and only then is the call
//! answered and its credit free.
//!
//! The read list is validated: it must form a message that is not longer than the call's plan allows.
//!
//! Buffers: the caller's buffer moves into the RDMA Read and is returned with its completion, flushed or not. On error
//! the connection is closed.

use buf::{Buffer, Piece};
use bytes::Bytes;
use rdma::WorkRequest;
use xdr::Message;

use crate::{
    chunk::{Lists, ReadChunk, ReadList, SEGMENTS_MAX, Segment},
    link::{Link, Name},
    message::{assemble, reads_are_valid, without_padding},
    pull::Pull,
    table::Key,
};

/// A reply that is being read.
#[derive(Debug)]
pub(crate) struct Fetch {
    granted: u32,
    /// All of the reply except the part that goes to the caller's buffer.
    pull: Pull,
    reads: ReadList,
    sink: Option<SinkRead>,
}

/// The read of the payload into the caller's buffer.
#[derive(Debug)]
struct SinkRead {
    position: u32,
    segment: Segment,
    arrived: bool,
}

impl Fetch {
    /// Posts the RDMA Reads of a reply to the call `key`, of at most `reply_max` bytes. The reply consists of the
    /// credits that it grants, its lists, and the stream if it is inline. `sink` returns the caller's buffer if a
    /// payload of the given length fits in it.
    ///
    /// # Errors
    /// Returns a description of the problem if the lists do not form such a reply.
    pub(crate) fn start(
        link: &mut Link,
        key: Key,
        reply_max: usize,
        (granted, lists, inline): (u32, Lists, Option<Bytes>),
        sink: impl FnOnce(usize) -> Option<Buffer>,
    ) -> Result<Self, String> {
        let mut reads = lists.reads;
        let len = reads.total() + inline.as_ref().map_or(0, Bytes::len);
        if !lists.writes.is_empty() || lists.reply.is_some() {
            return Err("the reply has chunks that were not offered".into());
        }
        if len > reply_max {
            return Err(format!("the reply has {len} bytes, but the call allows {reply_max}"));
        }
        if !reads_are_valid(&reads, inline.as_ref(), reply_max) {
            return Err("the read chunks of the reply do not form a message".into());
        }
        let mut sink_read = None;
        if let Some((position, segment)) = single_segment_payload(&reads)
            && let Some(mut into) = sink(segment.length as usize)
        {
            into.set_len(segment.length as usize);
            link.post(read(key, SINK_PART, into, segment));
            reads = reads.only_stream();
            sink_read = Some(SinkRead { position, segment, arrived: false });
        }
        for (part, (_, segment)) in reads.chunks().iter().flat_map(|read| read.chunk.parts()).enumerate() {
            let into = link.pool.take(segment.length as usize);
            link.post(read(key, part, into, segment));
        }
        let pull = Pull::new(inline, &reads);
        Ok(Self { granted, pull, reads, sink: sink_read })
    }

    /// Returns the number of credits that the reply grants.
    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    /// Records the completion of RDMA Read number `part`.
    pub(crate) fn arrived(&mut self, part: usize, piece: Piece) {
        self.pull.arrived(part, piece);
    }

    /// Records the completion of the RDMA Read into the caller's buffer.
    pub(crate) fn sink_filled(&mut self) {
        self.sink.as_mut().expect("the sink must be filled only by its RDMA Read").arrived = true;
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.pull.is_complete() && self.sink.as_ref().is_none_or(|sink| sink.arrived)
    }

    /// Returns the message, and the position and length of a payload in the caller's buffer.
    pub(crate) fn into_message(self) -> (Message, Option<(u32, usize)>) {
        let message = assemble(self.pull, &self.reads);
        let placed = self.sink.map(|SinkRead { position, segment, .. }| {
            (position, without_padding(&message.stream, position as usize, segment.length as usize))
        });
        (message, placed)
    }
}

fn read(key: Key, part: usize, into: Buffer, segment: Segment) -> WorkRequest {
    WorkRequest::Read { id: Name::Fetch(key, part).into(), into, from: segment.remote(0) }
}

/// Returns the payload if it is the only one and is one segment.
fn single_segment_payload(reads: &ReadList) -> Option<(u32, Segment)> {
    match reads.split_stream().1 {
        [ReadChunk { position, chunk }] if !chunk.is_empty() => match chunk.segments() {
            [segment] => Some((*position, *segment)),
            _ => None,
        },
        _ => None,
    }
}

/// The number of the RDMA Read into the caller's buffer. The other reads count from zero.
pub(crate) const SINK_PART: usize = SEGMENTS_MAX;
