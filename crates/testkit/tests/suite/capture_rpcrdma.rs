//! Tests that the RPC-over-RDMA traffic of Linux's client and server decodes, encodes to the same bytes, and that our
//! responder rebuilds the calls.

use std::{collections::BTreeMap, time::Instant};

use buf::{Buffer, Pool};
use bytes::Bytes;
use rdma::{
    Completion, CompletionKind, Memory, Registered, Stag, Status, WorkId, WorkRequest,
    iwarp::{
        ddp,
        rdmap::{Opcode, ReadRequest},
    },
};
use rpcrdma::{
    Connection, Event, Options, Registry, Role, Settings, Work,
    header::{Body, Header},
    private_data::PrivateData,
};
use testkit::{
    capture::{self, FrameKind},
    pcap,
};
use xdr::{Decoder, Message};

const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/siw-v3.pcap.gz");

fn conversations() -> Vec<Vec<capture::Frame>> {
    let conversations = pcap::read(CAPTURE).unwrap();
    conversations.iter().filter(|talk| talk.server.port() == 20049).map(capture::frames).collect()
}

fn is_send(message: &capture::Message) -> bool {
    matches!(message.header, ddp::Header::Untagged { queue: 0, .. }) && message.opcode != Opcode::Terminate
}

#[test]
fn every_header_encodes_to_the_same_bytes() {
    let mut seen = BTreeMap::<_, usize>::new();
    for frames in conversations() {
        for sent in capture::messages(&frames).iter().filter(|message| is_send(message)) {
            let message = Message::from(sent.payload.clone());
            let mut decoder = Decoder::new(&message);
            let header = Header::decode(&mut decoder).unwrap();
            let encoded = Message::encode(&header).stream;
            assert_eq!(encoded, sent.payload[..encoded.len()]);
            assert_eq!(encoded.len() + decoder.remaining(), sent.payload.len());
            let (Body::Msg(lists) | Body::NoMsg(lists)) = &header.body else { panic!("{header:?}") };
            let chunks = (!lists.reads.is_empty(), !lists.writes.is_empty(), lists.reply.is_some());
            *seen.entry((sent.from_client, chunks)).or_default() += 1;
        }
    }
    for kind in [
        (true, (false, false, false)),
        (true, (true, false, false)),
        (true, (false, true, false)),
        (true, (false, false, true)),
        (false, (false, true, false)),
        (false, (false, false, true)),
    ] {
        assert!(seen.contains_key(&kind), "none of {kind:?} in {seen:?}");
    }
}

#[test]
fn private_data_of_both_sides_decode() {
    for frames in conversations() {
        let handshakes = frames.iter().filter_map(|frame| match &frame.kind {
            FrameKind::Handshake(handshake) => Some(PrivateData::decode(&handshake.private_data).unwrap()),
            FrameKind::Segment { .. } => None,
        });
        let [client, server] = handshakes.collect::<Vec<_>>()[..] else { panic!("there must be two handshakes") };
        assert_eq!(
            client,
            PrivateData { remote_invalidation: true, send_size: 4096, recv_size: 4096, read_read: false }
        );
        assert_eq!(server, PrivateData { remote_invalidation: false, ..client });
    }
}

/// The responder registers no memory.
struct Nothing;

impl Registry for Nothing {
    fn register(&mut self, _: Memory) -> Result<Registered, Memory> {
        panic!("the responder must not expose memory")
    }

    fn reclaim(&mut self, _: Stag) -> Option<Memory> {
        None
    }
}

#[test]
fn the_responder_rebuilds_the_calls_of_a_linux_client() {
    let (mut calls, mut pulled) = (0, 0);
    for frames in conversations() {
        let messages = capture::messages(&frames);
        let mut responses = read_responses(&messages);
        let peer = PrivateData { remote_invalidation: true, send_size: 4096, recv_size: 4096, read_read: false };
        let settings = Settings::negotiate(Role::Accepting, Options::default(), Some(peer));
        let mut connection = Connection::new(settings, Pool::default());
        for sent in messages.iter().filter(|message| message.from_client && is_send(message)) {
            let buffer = Buffer::from(sent.payload.to_vec());
            let kind = CompletionKind::Receive { buffer, invalidated: None, solicited: false };
            complete(&mut connection, WorkId(0), kind);
            while let Some(work) = connection.poll_work(&mut Nothing) {
                let Work::Post(request) = work else { continue };
                let id = request.id();
                match request {
                    WorkRequest::Read { mut into, from, .. } => {
                        let data = responses.remove(&(from.stag, from.offset)).expect("Linux must have read the same");
                        into.copy_from_slice(&data);
                        pulled += data.len();
                        complete(&mut connection, id, CompletionKind::Read(into));
                    }
                    WorkRequest::Send { .. } => complete(&mut connection, id, CompletionKind::Send),
                    other => panic!("{other:?}"),
                }
            }
            let Some(Event::Call { message, token }) = connection.poll_event() else { panic!("there must be a call") };
            calls += 1;
            for payload in &message.payloads {
                let at = payload.position.unwrap() as usize;
                let len = u32::from_be_bytes(message.stream[at - 4..at].try_into().unwrap());
                assert_eq!(payload.data.len(), len as usize);
            }
            assert_eq!(message.stream[..4], token.xid.0.to_be_bytes());
            let reply = [&token.xid.0.to_be_bytes()[..], &[0, 0, 0, 1], &[0; 16]].concat();
            connection.reply(token, Bytes::from(reply).into()).unwrap();
        }
        assert!(responses.is_empty(), "the responder must read all data that Linux read: {:?}", responses.keys());
    }
    assert!(calls > 100 && pulled > 100_000, "{calls} calls, {pulled} bytes pulled");
}

fn complete(connection: &mut Connection, id: WorkId, kind: CompletionKind) {
    connection.handle_completion(Completion { id, status: Status::Ok, kind }, Instant::now());
}

/// Returns the data that the server read, by steering tag and offset of the client.
fn read_responses(messages: &[capture::Message]) -> BTreeMap<(Stag, u64), Bytes> {
    let mut asked = std::collections::VecDeque::new();
    let mut responses = BTreeMap::new();
    for message in messages {
        match message.opcode {
            Opcode::ReadRequest => {
                let request = ReadRequest::parse(message.payload[..].try_into().unwrap());
                asked.push_back((request.source_stag, request.source_offset));
            }
            Opcode::ReadResponse => {
                responses.insert(asked.pop_front().unwrap(), message.payload.clone());
            }
            _ => {}
        }
    }
    responses
}
