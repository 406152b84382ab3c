//! The Read-Read design, in which the responder exposes its replies: the work of both sides, and their defence against
//! a peer that violates the protocol.

use crate::common::*;
use buf::Buffer;
use rdma::{Memory, RemoteSegment, Stag};
use rpc::{CallError, ReplyPlan, TransportError, Xid};
use rpcrdma::{
    Design, Event, Options, Role,
    chunk::{Chunk, Lists, ReadList, Segment, WriteList},
    header::{Body, Header, RdmaError},
};

fn options() -> Options {
    Options { design: Design::ReadRead, ..Options::default() }
}

fn node(role: Role, ours: Options) -> Node {
    Node::new(role, ours, Some(options().private_data()))
}

fn server(ours: Options) -> (Node, Puppet) {
    (node(Role::Accepting, ours), Puppet::default())
}

fn client() -> (Node, Puppet) {
    (node(Role::Connecting, options()), Puppet::default())
}

fn header(xid: u32, body: Body) -> Header {
    Header { xid: Xid(xid), credits: 16, body }
}

fn plan(words: usize, payload_max: usize) -> ReplyPlan {
    let sink = (payload_max > 0).then(|| Buffer::zeroed(payload_max).into());
    ReplyPlan { inline_max: 16 + 4 * words, payload_max, sink, locate: None }
}

/// Calls `node`, which replies with a payload of `len` bytes. Returns the read list of the reply.
fn exposed(node: &mut Node, puppet: &mut Puppet, xid: u32, len: usize) -> ReadList {
    puppet.deliver(node, &header(xid, Body::Msg(Lists::default())), &message(xid, CALL, 0, b"").stream);
    let (_, token) = node.next_call();
    node.reply(token, message(xid, REPLY, 0, &bytes(xid, len))).unwrap();
    puppet.run(node);
    let (lists, _) = puppet.received_msg();
    assert!(lists.writes.is_empty() && lists.reply.is_none());
    lists.reads
}

fn only_segment(reads: &ReadList) -> Segment {
    let [read] = reads.chunks() else { panic!("{reads:?}") };
    let [segment] = read.chunk.segments() else { panic!("{reads:?}") };
    *segment
}

fn read(node: &mut Node, segment: Segment) -> Result<Vec<u8>, &'static str> {
    let mut into = vec![0; segment.length as usize];
    Peer::read(node, &mut into, segment.remote(0)).map(|()| into)
}

fn done(node: &mut Node, puppet: &mut Puppet, xid: u32) {
    puppet.deliver(node, &header(xid, Body::Done), &[]);
}

fn assert_ended(node: &mut Node, because: &str) {
    match node.events.make_contiguous() {
        [.., Event::Closed(TransportError::Protocol(what) | TransportError::Lost(what))] => {
            assert!(what.contains(because), "{what}");
        }
        events => panic!("{events:?}"),
    }
    node.assert_no_leak();
}

#[test]
fn payload_is_read_into_callers_buffer_and_done_is_sent() {
    let mut pair = Pair::new(options(), options());
    let sink = Buffer::zeroed(70_000);
    let address = sink.as_ptr();
    let plan = ReplyPlan { inline_max: 16, payload_max: 70_000, sink: Some(sink.into()), locate: None };
    pair.client().call(message(7, CALL, 0, b""), plan);
    assert!(pair.client().regions.entries.is_empty(), "the caller must not expose memory");
    pair.run(|| true, |_, _| Some(message(7, REPLY, 0, &bytes(7, 60_000))));
    let reply = pair.client().next_reply().unwrap();
    assert_eq!(payload_of(&reply.message, 7, REPLY, 0), bytes(7, 60_000));
    assert_eq!(reply.message.payloads[0].data.to_bytes().unwrap().as_ptr(), address);
    drop(reply);
    pair.nodes.iter_mut().for_each(Node::assert_no_leak);
}

#[test]
fn long_reply_is_read_from_position_zero_and_short_one_travels_inline() {
    for (words, payload) in [(3000, 0), (3000, 50_000), (3, 5)] {
        let mut pair = Pair::new(options(), options());
        pair.client().call(message(7, CALL, 0, b""), plan(words, payload));
        pair.run(|| true, |_, _| Some(message(7, REPLY, words, &bytes(7, payload))));
        assert!(pair.server().regions.entries.is_empty(), "all replies must be done");
        let reply = pair.client().next_reply().unwrap();
        assert_eq!(payload_of(&reply.message, 7, REPLY, words), bytes(7, payload));
        assert_eq!(pair.server().regions.registered() > 0, words > 3);
    }
}

#[test]
fn only_bytes_of_the_reply_are_readable_until_it_is_done() {
    let (mut node, mut puppet) = server(options());
    let segment = only_segment(&exposed(&mut node, &mut puppet, 7, 50_000));
    assert_eq!((segment.length, node.regions.entries.len()), (50_000, 1));
    assert!(matches!(node.regions.entries.values().next(), Some(Memory::Read(_))));
    assert_eq!(read(&mut node, segment), Ok(bytes(7, 50_000)));
    assert!(read(&mut node, Segment { offset: segment.offset + 1, ..segment }).is_err());
    let to = RemoteSegment { stag: segment.handle, offset: segment.offset };
    assert!(Peer::write(&mut node, b"mine".as_slice().into(), to).is_err());
    done(&mut node, &mut puppet, 7);
    assert_eq!(read(&mut node, segment), Err("bad stag"));
    assert_eq!(node.connection.poll_timeout(), None, "nothing is awaited");
    assert!(!node.disconnecting);
    node.assert_no_leak();
}

#[test]
fn caller_that_never_sends_done_times_out_and_its_reply_is_invalidated() {
    let timeout = options().peer_timeout;
    let (mut node, mut puppet) = server(options());
    exposed(&mut node, &mut puppet, 7, 50_000);
    node.advance_clock(timeout / 2);
    exposed(&mut node, &mut puppet, 8, 50_000);
    done(&mut node, &mut puppet, 8);
    assert_eq!(
        node.connection.poll_timeout(),
        Some(node.now + timeout / 2),
        "the deadline of the first reply must stand"
    );
    assert!(!node.disconnecting);
    node.advance_clock(timeout / 2);
    assert!(node.disconnecting);
    node.cut();
    assert_ended(&mut node, "RDMA_DONE");
}

#[test]
fn call_keeps_its_credit_until_its_reply_is_done() {
    let (mut node, mut puppet) = server(Options { credits: 3, ..options() });
    for xid in 1..=3 {
        exposed(&mut node, &mut puppet, xid, 5000);
    }
    done(&mut node, &mut puppet, 2);
    exposed(&mut node, &mut puppet, 4, 5000);
    assert_eq!(node.regions.entries.len(), 3);
    let call = message(5, CALL, 0, b"").stream;
    puppet.deliver(&mut node, &header(5, Body::Msg(Lists::default())), &call);
    assert_ended(&mut node, "more calls than its credits allow");
}

#[test]
fn receives_suffice_for_all_dones_and_following_calls() {
    let credits = 5;
    let (mut node, mut puppet) = server(Options { credits, ..options() });
    for xid in 1..=credits {
        exposed(&mut node, &mut puppet, xid, 5000);
    }
    // All messages arrive before the node can post a receive.
    for xid in 1..=credits {
        node.send(xdr::Message::encode(&header(xid, Body::Done)).stream, None).unwrap();
        let call = xdr::Message::encode(&header(xid + credits, Body::Msg(Lists::default()))).stream;
        node.send([&call[..], &message(xid + credits, CALL, 0, b"").stream].concat().into(), None).unwrap();
    }
    assert_eq!(node.events.len(), credits as usize);
    assert!(rpcrdma::receives(&Options { credits, ..options() }) >= 2 * credits as usize);
}

#[test]
fn replies_beyond_the_byte_limit_wait_for_others_to_be_done() {
    let (mut node, mut puppet) = server(Options { exposed_max: 1 << 20, ..options() });
    for xid in 1..=3 {
        let call = message(xid, CALL, 0, b"").stream;
        puppet.deliver(&mut node, &header(xid, Body::Msg(Lists::default())), &call);
        let (_, token) = node.next_call();
        node.reply(token, message(xid, REPLY, 0, &bytes(xid, 600_000))).unwrap();
    }
    puppet.run(&mut node);
    for xid in 1..=3 {
        assert_eq!(
            (puppet.sent.len(), node.regions.entries.len()),
            (1, 1),
            "one reply of 600 kB must be exposed at a time"
        );
        assert_eq!(puppet.received().0.xid, Xid(xid));
        done(&mut node, &mut puppet, xid);
    }
    node.assert_no_leak();
}

#[test]
fn replies_of_exactly_the_byte_limit_are_exposed_at_once_and_one_can_exceed_it() {
    let (mut node, mut puppet) = server(Options { exposed_max: 10_000, ..options() });
    exposed(&mut node, &mut puppet, 7, 5000);
    exposed(&mut node, &mut puppet, 8, 5000);
    assert_eq!(node.regions.entries.len(), 2);
    (7..=8).for_each(|xid| done(&mut node, &mut puppet, xid));
    exposed(&mut node, &mut puppet, 9, 10_001);
    done(&mut node, &mut puppet, 9);
    // Of the reply that is done, no byte counts any more.
    exposed(&mut node, &mut puppet, 10, 5000);
    exposed(&mut node, &mut puppet, 11, 5000);
    (10..=11).for_each(|xid| done(&mut node, &mut puppet, xid));
    node.assert_no_leak();
}

#[test]
fn unsent_reply_counts_by_its_length() {
    let (mut node, _) = server(options());
    for xid in 1..=2 {
        // A reply of one megabyte is far below the limit, so the next call is processed before it has been sent.
        let call = xdr::Message::encode(&header(xid, Body::Msg(Lists::default()))).stream;
        node.send([&call[..], &message(xid, CALL, 0, b"").stream].concat().into(), None).unwrap();
        let (_, token) = node.next_call();
        node.reply(token, message(xid, REPLY, 0, &bytes(xid, 1_000_000))).unwrap();
    }
    node.cut();
    node.assert_no_leak();
}

#[test]
fn reply_that_is_read_grants_its_credits() {
    let (mut node, mut puppet) = client();
    for xid in 7..=9 {
        node.call(message(xid, CALL, 0, b""), plan(0, 1000));
    }
    puppet.run(&mut node);
    assert_eq!(puppet.sent.len(), 1, "there is one credit before the first reply");
    let reply = message(7, REPLY, 0, &bytes(7, 1000));
    let mut lists = Lists::default();
    let segment = Segment { handle: Stag(1), length: 1000, offset: 0 };
    lists.reads.push(reply.payloads[0].position.unwrap(), segment).unwrap();
    puppet.memory.insert(Stag(1), bytes(7, 1000));
    puppet.deliver(&mut node, &header(7, Body::Msg(lists)), &reply.stream);
    assert_eq!(payload_of(&node.next_reply().unwrap().message, 7, REPLY, 0), bytes(7, 1000));
    assert_eq!(puppet.sent.len(), 4, "RDMA_DONE and the other calls must be sent");
}

#[test]
fn caller_with_invalid_done_is_disconnected() {
    // RDMA_DONE is sent twice, for a reply that was never exposed, and for a call that has not been answered.
    type Violation = fn(&mut Node, &mut Puppet);
    let violations: [Violation; 4] = [
        |node, puppet| (0..2).for_each(|_| done(node, puppet, 7)),
        |node, puppet| done(node, puppet, 8),
        |node, puppet| {
            puppet.deliver(node, &header(9, Body::Msg(Lists::default())), &message(9, CALL, 0, b"").stream);
            done(node, puppet, 9);
        },
        // An RDMA Read of a reply that is done.
        |node, puppet| {
            let segment = only_segment(&exposed(node, puppet, 10, 5000));
            done(node, puppet, 10);
            assert!(read(node, segment).is_err());
            done(node, puppet, 10);
        },
    ];
    for violate in violations {
        let (mut node, mut puppet) = server(options());
        exposed(&mut node, &mut puppet, 7, 50_000);
        violate(&mut node, &mut puppet);
        assert!(node.disconnecting);
        assert_ended(&mut node, "RDMA_DONE for a reply that is not exposed");
    }
}

#[test]
fn reply_whose_memory_the_caller_invalidates_can_be_done() {
    let (mut node, mut puppet) = server(options());
    for (xid, before_done) in [(7, true), (8, false)] {
        let segment = only_segment(&exposed(&mut node, &mut puppet, xid, 50_000));
        let done = xdr::Message::encode(&header(xid, Body::Done)).stream;
        if before_done {
            let call = xdr::Message::encode(&header(20, Body::Msg(Lists::default()))).stream;
            let call = [&call[..], &message(20, CALL, 0, b"").stream].concat();
            puppet.deliver_bytes(&mut node, call.into(), Some(segment.handle));
            node.next_call();
            assert!(read(&mut node, segment).is_err());
            node.send(done, None).unwrap();
        } else {
            node.send(done, Some(segment.handle)).unwrap();
        }
        assert!(!node.disconnecting && node.posted.is_empty(), "no region must be invalidated twice");
    }
    node.assert_no_leak();
}

#[test]
fn failed_registration_is_reported_and_nothing_stays_exposed() {
    let (mut node, mut puppet) = server(options());
    node.regions.room = Some(1);
    puppet.deliver(&mut node, &header(7, Body::Msg(Lists::default())), &message(7, CALL, 0, b"").stream);
    let (_, token) = node.next_call();
    // The stream and the payload need two regions.
    node.reply(token, message(7, REPLY, 3000, &bytes(7, 50_000))).unwrap();
    puppet.run(&mut node);
    assert_eq!(puppet.received().0.body, Body::Error(RdmaError::Chunk));
    node.assert_no_leak();
    assert!(!node.disconnecting);
}

/// Makes a call with XID 7 and a sink of 1000 bytes, and sends the given reply.
fn answered_by(body: Body, stream: &[u8], memory: &[(u32, Vec<u8>)]) -> (Node, Puppet) {
    let (mut node, mut puppet) = client();
    node.call(message(7, CALL, 0, b""), plan(0, 1000));
    puppet.run(&mut node);
    puppet.sent.clear();
    puppet.memory = memory.iter().map(|(stag, bytes)| (Stag(*stag), bytes.clone())).collect();
    puppet.deliver(&mut node, &header(7, body), stream);
    (node, puppet)
}

fn reads(segments: &[(u32, u32, usize)]) -> Lists {
    let mut lists = Lists::default();
    for &(position, stag, length) in segments {
        lists.reads.push(position, Segment { handle: Stag(stag), length: length as u32, offset: 0 }).unwrap();
    }
    lists
}

#[test]
fn payload_in_pieces_is_read_and_callers_buffer_is_returned() {
    let reply = message(7, REPLY, 0, &bytes(7, 700));
    let memory = [(1, bytes(7, 700)[..300].to_vec()), (2, bytes(7, 700)[300..].to_vec())];
    let lists = reads(&[(12, 1, 300), (12, 2, 400)]);
    let (mut node, mut puppet) = answered_by(Body::Msg(lists), &reply.stream, &memory);
    assert!(matches!(puppet.received(), (Header { xid: Xid(7), body: Body::Done, .. }, rest, None) if rest.is_empty()));
    let reply = node.next_reply().unwrap();
    assert_eq!(payload_of(&reply.message, 7, REPLY, 0), bytes(7, 700));
    assert_eq!(reply.sink.unwrap().into_region_or_copy().len(), 1000);
}

#[test]
fn empty_payload_is_not_read() {
    // The peer has no memory, so an RDMA Read would end the connection.
    let reply = message(7, REPLY, 0, b"");
    let (mut node, mut puppet) = answered_by(Body::Msg(reads(&[(12, 1, 0)])), &reply.stream, &[]);
    assert_eq!(puppet.received().0.body, Body::Done);
    let reply = node.next_reply().unwrap();
    assert_eq!(payload_of(&reply.message, 7, REPLY, 0), b"");
    assert_eq!(reply.sink.unwrap().into_region_or_copy().len(), 1000);
}

#[test]
fn callers_buffer_is_returned_from_a_read_that_was_not_posted() {
    let (mut node, mut puppet) = client();
    node.call(message(7, CALL, 0, b""), plan(0, 1000));
    puppet.run(&mut node);
    let reply = xdr::Message::encode(&header(7, Body::Msg(reads(&[(12, 1, 1000)])))).stream;
    node.send([&reply[..], &message(7, REPLY, 0, &bytes(7, 1000)).stream].concat().into(), None).unwrap();
    let request = node.posted.pop_front().unwrap();
    assert!(matches!(request, rdma::WorkRequest::Read { .. }));
    // The queue pair has no room for the RDMA Read, and then the connection is lost.
    node.connection.put_back(request);
    node.connection.handle_disconnect(TransportError::Lost("cut".into()), &mut node.regions);
    node.cut();
    assert_eq!(node.next_reply().unwrap_err().sink.unwrap().len(), 1000);
    node.assert_no_leak();
}

#[test]
fn invalid_reply_closes_connection_and_callers_buffer_is_returned() {
    let stream = message(7, REPLY, 0, b"").stream;
    let long = |position, length| Body::Msg(reads(&[(position, 1, length)]));
    let chunk = Chunk::new([Segment { handle: Stag(1), length: 4, offset: 0 }]);
    let with_writes = Lists { writes: WriteList::new([chunk.clone()]), ..reads(&[(12, 1, 8)]) };
    let with_reply = Lists { reply: Some(chunk), ..reads(&[(12, 1, 8)]) };
    let all = vec![0; 5000];
    for (body, because) in [
        (long(12, 1001), "but the call allows"),
        (long(12, u32::MAX as usize), "but the call allows"),
        (long(400, 8), "do not form a message"),
        (long(0, 8), "do not form a message"),
        (Body::Msg(with_writes), "not offered"),
        (Body::Msg(with_reply), "not offered"),
        (Body::NoMsg(reads(&[(0, 1, 16)])), "does not hold a reply"),
        (Body::NoMsg(reads(&[(12, 1, 16)])), "do not form a message"),
        // The STag is unknown.
        (Body::Msg(reads(&[(12, 9, 8)])), "cut"),
    ] {
        let stream = if matches!(body, Body::Msg(_)) { &stream[..] } else { &[] };
        let (mut node, puppet) = answered_by(body, stream, &[(1, all.clone())]);
        assert!(puppet.sent.is_empty(), "RDMA_DONE must not be sent");
        match node.next_reply() {
            Err(CallError { sink: Some(sink), .. }) => assert_eq!(sink.len(), 1000),
            other => panic!("{other:?}"),
        }
        assert_ended(&mut node, because);
    }
}

#[test]
fn unanswered_read_times_out_and_cancelled_call_still_sends_done() {
    let (mut node, mut puppet) = client();
    let id = node.call(message(7, CALL, 0, b""), plan(0, 1000));
    puppet.run(&mut node);
    puppet.sent.clear();
    puppet.memory.insert(Stag(1), bytes(7, 1000));
    let reply = xdr::Message::encode(&header(7, Body::Msg(reads(&[(12, 1, 1000)])))).stream;
    let reply: bytes::Bytes = [&reply[..], &message(7, REPLY, 0, &bytes(7, 1000)).stream].concat().into();
    node.send(reply.clone(), None).unwrap();
    node.cancel(id);
    puppet.run(&mut node);
    assert_eq!(puppet.received().0.body, Body::Done);
    assert!(node.events.is_empty(), "a cancelled call must have no event");
    node.advance_clock(options().peer_timeout);
    assert!(!node.disconnecting, "a reply that has been read has no deadline");

    node.call(message(7, CALL, 0, b""), plan(0, 1000));
    puppet.run(&mut node);
    node.send(reply, None).unwrap();
    node.advance_clock(options().peer_timeout);
    assert!(node.disconnecting);
    node.cut();
    assert_eq!(node.next_reply().unwrap_err().sink.unwrap().len(), 1000);
    assert_ended(&mut node, "RDMA Read");
}
