//! Replies that we read from the responder's memory: the requester's side of the Read-Read design.
//!
//! Read `expose.rs` first. A reply with a read list names memory of the responder. We read it, the payload straight into
//! the caller's buffer where it is one piece, say RDMA_DONE, and only then is the call answered and its credit free.
//!
//! Nothing of the read list is believed: it must make up a message, one no longer than the call's plan allows.
//!
//! Buffers: the caller's moves into the RDMA Read and comes home with it, flushed or not. On error the connection ends.

use std::time::Instant;

use buf::{Buffer, Piece};
use bytes::Bytes;
use rdma::WorkRequest;
use rpc::Xid;

use crate::{
    Connection, Work,
    chunk::{Lists, ReadChunk, ReadList, SEGMENTS_MAX, Segment},
    connection::{Deadline, Name},
    fit::encode_header,
    header::{Body, Header},
    recv::{assemble, is_reply_to, reads_make_sense, without_padding},
    requester::{Outcome, Purpose, Stage},
    rw::Pull,
    table::Key,
};

/// A reply that is being read.
#[derive(Debug)]
pub(crate) struct Fetch {
    granted: u32,
    /// All of the reply but the part that goes into the caller's buffer.
    pull: Pull,
    reads: ReadList,
    sink: Option<SinkRead>,
}

/// The payload, as it is read into the caller's buffer.
#[derive(Debug)]
struct SinkRead {
    position: u32,
    segment: Segment,
    arrived: bool,
}

impl Fetch {
    fn is_complete(&self) -> bool {
        self.pull.is_complete() && self.sink.as_ref().is_none_or(|sink| sink.arrived)
    }
}

impl Connection {
    /// A reply has come of which parts are to be read from the responder.
    pub(crate) fn fetch_reply(&mut self, key: Key, granted: u32, lists: Lists, inline: Option<Bytes>, now: Instant) {
        let reads = lists.reads;
        let call = self.calls.get_mut(key).expect("the caller has found it");
        let len = reads.total() + inline.as_ref().map_or(0, Bytes::len);
        if !lists.writes.is_empty() || lists.reply.is_some() {
            return self.fail_protocol("a reply with chunks that were not offered");
        }
        let max = call.reply_max;
        if len > max {
            return self.fail_protocol(format!("a reply of {len} bytes to a call that allows {max}"));
        }
        if !reads_make_sense(&reads, inline.as_ref(), max) {
            return self.fail_protocol("a reply whose read chunks make no message");
        }
        let sink_len = call.sink_len.unwrap_or(0);
        let payload = whole_payload(&reads).filter(|(_, segment)| segment.length as usize <= sink_len);
        let (mut reads, mut sink) = (reads, None);
        if let Some((position, segment)) = payload
            && let Some(mut into) = call.take_home(Purpose::Sink)
        {
            into.set_len(segment.length as usize);
            self.work.push_back(read(key, SINK_PART, into, segment));
            reads = reads.only_stream();
            sink = Some(SinkRead { position, segment, arrived: false });
        }
        for (part, (_, segment)) in reads.chunks().iter().flat_map(|read| read.chunk.parts()).enumerate() {
            self.work.push_back(read(key, part, self.pool.take(segment.length as usize), segment));
        }
        let pull = Pull::new(inline, &reads);
        call.stage = Stage::Fetching(Fetch { granted, pull, reads, sink });
        self.last_read = Some(now);
        self.add_deadline(Deadline::Fetch(key), now);
        self.finish_fetch_if_complete(key); // all of its segments may be empty
    }

    /// One RDMA Read of a reply is over.
    pub(crate) fn handle_fetched(&mut self, key: Key, part: usize, buffer: Buffer, is_ok: bool, now: Instant) {
        let call = self.calls.get_mut(key).expect("a call stands while its reply is read");
        if part == SINK_PART {
            call.put_home(Purpose::Sink, buffer);
            if let Stage::Fetching(Fetch { sink: Some(sink), .. }) = &mut call.stage {
                sink.arrived = is_ok;
            }
        } else if let Stage::Fetching(fetch) = &mut call.stage
            && is_ok
        {
            fetch.pull.arrived(part, Piece::Memory(buffer.freeze()));
        }
        if is_ok {
            self.last_read = Some(now);
            self.finish_fetch_if_complete(key);
        }
    }

    /// An RDMA Read that was never posted: the caller has its buffer back.
    pub(crate) fn take_back_fetch(&mut self, request: WorkRequest) {
        if let WorkRequest::Read { id, into, .. } = request
            && let Name::Fetch(key, SINK_PART) = id.into()
            && let Some(call) = self.calls.get_mut(key)
        {
            call.put_home(Purpose::Sink, into);
        }
    }

    fn finish_fetch_if_complete(&mut self, key: Key) {
        let call = self.calls.get_mut(key).expect("a call stands while its reply is read");
        if !matches!(&call.stage, Stage::Fetching(fetch) if fetch.is_complete()) {
            return;
        }
        let Stage::Fetching(fetch) = std::mem::replace(&mut call.stage, Stage::Sent) else { unreachable!("just seen") };
        let xid = call.xid;
        let message = assemble(fetch.pull, &fetch.reads);
        if !is_reply_to(&message.stream, xid) {
            return self.fail_protocol("a position-zero chunk that holds no reply to its call");
        }
        let placed = fetch.sink.map(|SinkRead { position, segment, .. }| {
            (position, without_padding(&message.stream, position as usize, segment.length as usize))
        });
        self.send_done(xid);
        self.answered(key, fetch.granted, Outcome::Fetched { message, placed });
    }

    /// Tells the responder that its memory is not needed any more, before the call's credit is used again.
    fn send_done(&mut self, xid: Xid) {
        let header = Header { xid, credits: self.credits.limit(), body: Body::Done };
        let data = encode_header(&header).into();
        self.post(WorkRequest::Send { id: Name::Call.into(), data, invalidate: None, solicited: false });
    }
}

fn read(key: Key, part: usize, into: Buffer, segment: Segment) -> Work {
    Work::Post(WorkRequest::Read { id: Name::Fetch(key, part).into(), into, from: segment.remote(0) })
}

/// The only payload, if it is one segment.
fn whole_payload(reads: &ReadList) -> Option<(u32, Segment)> {
    match reads.split_stream().1 {
        [ReadChunk { position, chunk }] if !chunk.is_empty() => match chunk.segments() {
            [segment] => Some((*position, *segment)),
            _ => None,
        },
        _ => None,
    }
}

/// The number of the RDMA Read into the caller's buffer; the others count from zero.
const SINK_PART: usize = SEGMENTS_MAX;
