//! Rebuilds the RPC calls and replies of a captured RPC-over-RDMA conversation from Sends, and from the data that were
//! read and written in the client's memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use rdma::{
    Stag,
    iwarp::{
        ddp,
        rdmap::{Opcode, ReadRequest},
    },
};
use rpcrdma::{
    chunk::{Chunk, Lists, ReadChunk},
    header::{Body, Header},
};
use xdr::{Decoder, Encode, Encoder, Message, PlacedPayload};

use crate::capture;

/// A call and its reply.
#[derive(Debug)]
pub struct Exchange {
    /// `true` if the client called; otherwise it is a callback (RFC 8167).
    pub from_client: bool,
    /// The call, with its read chunks as payloads.
    pub call: Message,
    /// The reply, with its write chunks as payloads, which have no position.
    pub reply: Message,
    /// `true` if the reply came in a reply chunk.
    pub reply_chunk: bool,
}

/// The data that have moved to and from the client's registered memory: by region, pieces by offset. The latest data
/// replace older ones.
#[derive(Default)]
struct ClientMemory(BTreeMap<Stag, BTreeMap<u64, Bytes>>);

impl ClientMemory {
    fn put(&mut self, stag: Stag, offset: u64, bytes: Bytes) {
        self.0.entry(stag).or_default().insert(offset, bytes);
    }

    /// Returns the bytes of a chunk, all of which must have moved.
    fn chunk(&self, chunk: &Chunk) -> Bytes {
        let mut out = Vec::new();
        for segment in chunk.segments() {
            let (mut at, end) = (segment.offset, segment.offset + u64::from(segment.length));
            while at < end {
                let (start, piece) = self.0[&segment.handle].range(..=at).next_back().expect("data must have moved");
                let piece = &piece[(at - start) as usize..];
                let len = piece.len().min((end - at) as usize);
                assert!(len > 0, "data must have moved");
                out.extend(&piece[..len]);
                at += len as u64;
            }
        }
        out.into()
    }
}

/// A sent call. Its read chunks are known to be complete when the reply arrives.
struct Outstanding {
    header: Header,
    stream: Bytes,
}

/// Returns every answered call of `messages`, in the order of the replies, and the number of unanswered ones.
///
/// # Panics
/// The bytes are not RPC-over-RDMA, or a header does not encode to the same bytes: the test fails.
pub fn exchanges(messages: &[capture::Message]) -> (Vec<Exchange>, usize) {
    let mut memory = ClientMemory::default();
    let mut reads: Vec<ReadRequest> = Vec::new();
    let mut calls: BTreeMap<(bool, u32), Outstanding> = BTreeMap::new();
    let mut out = Vec::new();
    for message in messages {
        match (message.opcode, &message.header) {
            (Opcode::ReadRequest, _) => {
                reads.push(ReadRequest::parse(message.payload[..].try_into().expect("message must be a read request")));
            }
            (Opcode::ReadResponse, _) => {
                let request = reads.remove(0);
                memory.put(request.source_stag, request.source_offset, message.payload.clone());
            }
            (Opcode::Write, ddp::Header::Tagged { stag, offset, .. }) => {
                memory.put(*stag, *offset, message.payload.clone());
            }
            _ => {
                let (header, stream) = transport_header(&message.payload);
                if is_reply(&header, &stream) {
                    let from_client = !message.from_client;
                    let call = calls.remove(&(from_client, header.xid.0)).expect("reply must have a call");
                    out.push(exchange(from_client, &call, &header, stream, &memory));
                } else {
                    calls.insert((message.from_client, header.xid.0), Outstanding { header, stream });
                }
            }
        }
    }
    (out, calls.len())
}

/// Returns the RPC-over-RDMA header, which must encode to the same bytes, and the bytes after it.
///
/// # Panics
/// The header is invalid, or encodes to other bytes: the test fails.
pub fn transport_header(payload: &Bytes) -> (Header, Bytes) {
    let message = Message::from(payload.clone());
    let mut decoder = Decoder::new(&message);
    let header = Header::decode(&mut decoder).expect("header must have version 1");
    let mut encoder = Encoder::default();
    header.encode(&mut encoder);
    assert_eq!(encoder.finish().stream, payload[..decoder.position()]);
    assert_eq!(header.wire_len(), decoder.position());
    (header, decoder.take_rest())
}

/// The type of an RPC message is in its second word. If a reply is completely in chunks, its only list is the reply
/// chunk. If a call is, it has a position-zero read chunk.
fn is_reply(header: &Header, stream: &Bytes) -> bool {
    match (lists(header), stream.get(4..8)) {
        ((_, false), Some(kind)) => kind == [0, 0, 0, 1],
        ((lists, true), _) => lists.reads.is_empty(),
        (_, None) => panic!("an RPC message of {} bytes", stream.len()),
    }
}

fn lists(header: &Header) -> (&Lists, bool) {
    match &header.body {
        Body::Msg(lists) => (lists, false),
        Body::NoMsg(lists) => (lists, true),
        other => panic!("{other:?}"),
    }
}

fn exchange(from_client: bool, call: &Outstanding, header: &Header, stream: Bytes, memory: &ClientMemory) -> Exchange {
    let (of_call, _) = lists(&call.header);
    let (position_zero, chunks) = of_call.reads.split_stream();
    let payload =
        |chunk: &ReadChunk| PlacedPayload { position: Some(chunk.position), data: memory.chunk(&chunk.chunk).into() };
    let call = Message {
        stream: position_zero.map_or_else(|| call.stream.clone(), |chunk| memory.chunk(chunk)),
        payloads: chunks.iter().map(payload).collect(),
    };
    let (of_reply, reply_chunk) = lists(header);
    let stream = if reply_chunk {
        memory.chunk(of_reply.reply.as_ref().expect("reply must have a reply chunk"))
    } else {
        stream
    };
    let used = of_reply.writes.chunks().iter().map(|chunk| memory.chunk(chunk)).filter(|data| !data.is_empty());
    let payloads: Vec<_> = used.map(|data| PlacedPayload { position: None, data: data.into() }).collect();
    Exchange { from_client, call, reply: Message { stream, payloads }, reply_chunk }
}

/// Compares our encoding with the capture: the same stream, and the same payloads at the same positions. Items that
/// travelled inline can be payloads in ours.
pub fn same(ours: &Message, theirs: &Message) -> bool {
    let mut placed = theirs.clone();
    for (payload, ours) in placed.payloads.iter_mut().zip(&ours.payloads) {
        payload.position = payload.position.or(ours.position);
    }
    let gather = |message: &Message| message.to_rope().to_bytes().expect("memory");
    gather(ours) == gather(&placed)
}
