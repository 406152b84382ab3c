//! A Linux client and a Linux server over RPC-over-RDMA: every message of theirs is understood, and written back the same.

use std::collections::BTreeMap;

use bytes::Bytes;
use nfs::v3::*;
use rdma::{
    Stag,
    iwarp::{
        ddp,
        rdmap::{Opcode, ReadRequest},
    },
};
use rpc::{AcceptStat, CallHeader, ReplyBody, ReplyHeader, Xid};
use rpcrdma::{
    chunk::{Chunk, Lists},
    header::{Body, Header},
};
use smallvec::SmallVec;
use testkit::{capture, pcap};
use xdr::{Decode, Decoder, Encode, Encoder, Message, PlacedPayload};

const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/siw-v3.pcap.gz");

/// What has moved to and from the client's registered memory: by region, pieces by offset, the latest last.
#[derive(Default)]
struct ClientMemory(BTreeMap<Stag, BTreeMap<u64, Bytes>>);

impl ClientMemory {
    fn put(&mut self, stag: Stag, offset: u64, bytes: Bytes) {
        self.0.entry(stag).or_default().insert(offset, bytes);
    }

    /// The bytes of a chunk, which must all have moved.
    fn chunk(&self, chunk: &Chunk) -> Bytes {
        let mut out = Vec::new();
        for segment in chunk.segments() {
            let (mut at, end) = (segment.offset, segment.offset + u64::from(segment.length));
            while at < end {
                let (start, piece) = self.0[&segment.handle].range(..=at).next_back().expect("bytes that have moved");
                let piece = &piece[(at - start) as usize..];
                let len = piece.len().min((end - at) as usize);
                assert!(len > 0, "bytes that have moved");
                out.extend(&piece[..len]);
                at += len as u64;
            }
        }
        out.into()
    }
}

/// A call as it was sent, until its reply tells that its chunks have been read.
struct Outstanding {
    header: Header,
    stream: Bytes,
}

#[derive(Default)]
struct Seen {
    calls: BTreeMap<Proc3, usize>,
    replies: BTreeMap<Proc3, usize>,
    read_chunks: usize,
    write_chunks: usize,
    reply_chunks: usize,
    others: usize,
}

#[test]
fn every_message_of_linux_is_written_back_to_the_same_bytes() {
    let mut seen = Seen::default();
    for talk in pcap::read(CAPTURE).unwrap().iter().filter(|talk| talk.server.port() == 20049) {
        follow(&capture::messages(&capture::frames(talk)), &mut seen);
    }
    assert_eq!(seen.calls, seen.replies);
    assert!(seen.calls.len() >= 20, "{:?}", seen.calls);
    assert!(seen.calls.values().sum::<usize>() > 50, "{:?}", seen.calls);
    assert!(seen.read_chunks > 0 && seen.write_chunks > 0 && seen.reply_chunks > 0 && seen.others > 0);
}

fn follow(messages: &[capture::Message], seen: &mut Seen) {
    let mut memory = ClientMemory::default();
    let mut reads: Vec<ReadRequest> = Vec::new();
    let mut calls: BTreeMap<u32, Outstanding> = BTreeMap::new();
    for message in messages {
        match (message.opcode, &message.header) {
            (Opcode::ReadRequest, _) => reads.push(ReadRequest::parse(message.payload[..].try_into().unwrap())),
            (Opcode::ReadResponse, _) => {
                let request = reads.remove(0);
                memory.put(request.source_stag, request.source_offset, message.payload.clone());
            }
            (Opcode::Write, ddp::Header::Tagged { stag, offset, .. }) => {
                memory.put(*stag, *offset, message.payload.clone());
            }
            _ => {
                let (header, stream) = transport_header(&message.payload);
                if message.from_client {
                    calls.insert(header.xid.0, Outstanding { header, stream });
                } else {
                    let call = calls.remove(&header.xid.0).expect("a reply to a call");
                    let procedure = check_call(&call, &memory, seen);
                    check_reply(&header, stream, procedure, &memory, seen);
                }
            }
        }
    }
    assert!(calls.is_empty(), "every call was answered");
}

/// The RPC-over-RDMA header, which encodes to itself, and what follows it.
fn transport_header(payload: &Bytes) -> (Header, Bytes) {
    let message = Message::from(payload.clone());
    let mut decoder = Decoder::new(&message);
    let header = Header::decode(&mut decoder).expect("a header of version 1");
    let mut encoder = Encoder::default();
    header.encode(&mut encoder);
    assert_eq!(encoder.finish().stream, payload[..decoder.position()]);
    assert_eq!(header.wire_len(), decoder.position());
    (header, decoder.take_rest())
}

fn lists(header: &Header) -> (&Lists, bool) {
    match &header.body {
        Body::Msg(lists) => (lists, false),
        Body::NoMsg(lists) => (lists, true),
        other => panic!("{other:?}"),
    }
}

/// Puts a call together, checks it, and says which procedure it calls if it is one of NFS.
fn check_call(call: &Outstanding, memory: &ClientMemory, seen: &mut Seen) -> Option<Proc3> {
    let (lists, _) = lists(&call.header);
    let (position_zero, chunks) = lists.reads.split_stream();
    let stream = position_zero.map_or_else(|| call.stream.clone(), |chunk| memory.chunk(chunk));
    let payload = |chunk: &rpcrdma::chunk::ReadChunk| PlacedPayload {
        position: Some(chunk.position),
        data: memory.chunk(&chunk.chunk).into(),
    };
    seen.read_chunks += chunks.len();
    let message = Message { stream, payloads: chunks.iter().map(payload).collect() };
    let mut decoder = Decoder::new(&message);
    let header = CallHeader::decode(&mut decoder).unwrap();
    assert_eq!(header.xid, call.header.xid);
    if header.program != nfs::NFS_PROGRAM {
        seen.others += 1;
        return None;
    }
    let procedure = Proc3::from_number(header.procedure).unwrap();
    *seen.calls.entry(procedure).or_default() += 1;
    let mut encoder = Encoder::default();
    header.encode(&mut encoder);
    again(procedure, Side::Args, &mut decoder, &mut encoder);
    assert_same(&encoder.finish(), &message);
    Some(procedure)
}

fn check_reply(header: &Header, stream: Bytes, procedure: Option<Proc3>, memory: &ClientMemory, seen: &mut Seen) {
    let (lists, no_msg) = lists(header);
    seen.reply_chunks += usize::from(no_msg);
    let stream = if no_msg { memory.chunk(lists.reply.as_ref().expect("a reply chunk")) } else { stream };
    let used = lists.writes.chunks().iter().map(|chunk| memory.chunk(chunk)).filter(|data| !data.is_empty());
    let payloads: SmallVec<_> = used.map(|data| PlacedPayload { position: None, data: data.into() }).collect();
    seen.write_chunks += payloads.len();
    let message = Message { stream, payloads };
    let Some(procedure) = procedure else { return };
    *seen.replies.entry(procedure).or_default() += 1;
    let mut decoder = Decoder::new(&message);
    let reply = ReplyHeader::decode(&mut decoder).unwrap();
    assert_eq!(reply.xid, header.xid);
    assert!(matches!(reply.body, ReplyBody::Accepted { stat: AcceptStat::Success, .. }));
    let mut encoder = Encoder::default();
    reply.encode(&mut encoder);
    again(procedure, Side::Res, &mut decoder, &mut encoder);
    assert_same(&encoder.finish(), &message);
}

#[derive(Clone, Copy)]
enum Side {
    Args,
    Res,
}

/// Decodes a procedure's arguments or results, all that is left, and encodes them again.
fn again(procedure: Proc3, side: Side, decoder: &mut Decoder<'_>, encoder: &mut Encoder) {
    fn one<T: Decode + Encode>(decoder: &mut Decoder<'_>, encoder: &mut Encoder) {
        T::decode(decoder).unwrap().encode(encoder);
        decoder.finish().unwrap();
    }
    macro_rules! procedures {
        ($($name:ident)*) => {
            match (procedure, side) {
                $((Proc3::$name, Side::Args) => one::<<$name as Procedure3>::Args>(decoder, encoder),
                (Proc3::$name, Side::Res) => one::<<$name as Procedure3>::Res>(decoder, encoder),)*
            }
        };
    }
    procedures!(Null GetAttr SetAttr Lookup Access ReadLink Read Write Create MkDir SymLink MkNod Remove RmDir Rename
        Link ReadDir ReadDirPlus FsStat FsInfo PathConf Commit);
}

/// The same stream, and the same payloads at the same places; items that travelled inline may be payloads of ours.
fn assert_same(ours: &Message, theirs: &Message) {
    let mut placed = theirs.clone();
    for (payload, ours) in placed.payloads.iter_mut().zip(&ours.payloads) {
        payload.position = payload.position.or(ours.position);
    }
    assert_eq!(ours.to_rope().to_bytes().unwrap(), placed.to_rope().to_bytes().unwrap());
}

#[test]
fn xids_are_used_once() {
    let mut xids = std::collections::BTreeSet::new();
    for talk in pcap::read(CAPTURE).unwrap().iter().filter(|talk| talk.server.port() == 20049) {
        for message in capture::messages(&capture::frames(talk)) {
            let send = !matches!(message.opcode, Opcode::Write | Opcode::ReadRequest | Opcode::ReadResponse);
            if send && message.from_client {
                let Xid(xid) = transport_header(&message.payload).0.xid;
                assert!(xids.insert(xid), "{xid:#x}");
            }
        }
    }
}
