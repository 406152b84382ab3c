//! The requester, against a peer that the test plays.

use std::time::Duration;

use crate::common::*;
use buf::{Buffer, Piece, Region};
use bytes::Bytes;
use rdma::{Memory, Stag};
use rpc::{CallError, Reply, ReplyPlan, TransportError, Xid};
use rpcrdma::{
    Options, Role,
    chunk::{Chunk, Lists, Segment, WriteList},
    header::{Body, Header, RdmaError},
};

fn client() -> (Node, Puppet) {
    (Node::client(Options::default()), Puppet::default())
}

fn plan(inline_max: usize, payload_max: usize) -> ReplyPlan {
    let sink = (payload_max > 0).then(|| Buffer::zeroed(payload_max).into());
    ReplyPlan { inline_max, payload_max, sink, locate: None }
}

fn header(xid: u32, credits: u32, body: Body) -> Header {
    Header { xid: Xid(xid), credits, body }
}

fn answer(node: &mut Node, puppet: &mut Puppet, xid: u32) {
    let reply = message(xid, REPLY, 0, b"");
    puppet.deliver(node, &header(xid, 16, Body::Msg(Lists::default())), &reply.stream);
}

/// Completes a first call, so that there are credits.
fn warm_up(node: &mut Node, puppet: &mut Puppet) {
    node.call(message(1, CALL, 0, b""), plan(16, 0));
    puppet.run(node);
    answer(node, puppet, 1);
    node.next_reply().unwrap();
    puppet.sent.clear();
}

fn refused(result: Result<Reply, CallError>) -> Option<Region> {
    match result {
        Err(CallError { error: TransportError::Refused(_), sink }) => sink,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_call_is_sent_before_first_grant_and_grant_of_zero_counts_as_one() {
    let (mut node, mut puppet) = client();
    for xid in 1..=5 {
        node.call(message(xid, CALL, 0, b""), plan(16, 0));
    }
    puppet.run(&mut node);
    //= rfc8166-3.3.1-1 rfc8166-3.3.3-1
    assert_eq!(puppet.sent.len(), 1);
    assert_eq!(puppet.received().0.credits, 128, "the call must request all credits");
    let zero = header(1, 0, Body::Msg(Lists::default()));
    puppet.deliver(&mut node, &zero, &message(1, REPLY, 0, b"").stream);
    assert_eq!(puppet.sent.len(), 1, "only the next call must be sent");
    answer(&mut node, &mut puppet, 2);
    assert_eq!(puppet.sent.len(), 4);
}

#[test]
fn small_calls_and_replies_need_no_chunks() {
    let (mut node, mut puppet) = client();
    let call = message(1, CALL, 3, b"small");
    node.call(call.clone(), plan(100, 3900));
    puppet.run(&mut node);
    assert_eq!(puppet.received_msg(), (Lists::default(), call.to_rope().to_bytes().unwrap()));
    assert!(node.regions.entries.is_empty());
}

#[test]
fn payload_is_exposed_without_copy_for_one_call() {
    let (mut node, mut puppet) = client();
    let (one, two) = (Bytes::from(bytes(1, 5000)), Bytes::from(bytes(2, 333)));
    let mut encoder = xdr::Encoder::default();
    [1, CALL].into_iter().for_each(|word| encoder.u32(word));
    encoder.payload([one.clone(), two.clone()].into_iter().collect());
    let call = encoder.finish();
    node.call(call.clone(), plan(100, 0));
    puppet.run(&mut node);
    let (lists, stream) = puppet.received_msg();
    let [read] = lists.reads.chunks() else { panic!("{lists:?}") };
    //= rfc8166-3.4.4.4-1
    assert_eq!((Some(read.position), stream), (call.payloads[0].position, call.stream));
    //= rfc8166-3.4.4.1-1 rfc8166-3.4.5.2-2
    let lengths: Vec<_> = read.chunk.segments().iter().map(|segment| segment.length).collect();
    assert_eq!(lengths, [5000, 333], "only the payload must be exposed, without padding");
    let exposed = node.regions.entries.values().map(|memory| match memory {
        Memory::Read(Piece::Memory(bytes)) => bytes.as_ptr(),
        _ => panic!("the peer must only read a call"),
    });
    assert_eq!(exposed.collect::<Vec<_>>(), [one.as_ptr(), two.as_ptr()], "no byte must be copied");
    answer(&mut node, &mut puppet, 1);
    assert!(node.regions.entries.is_empty());
    node.next_reply().unwrap();
}

#[test]
fn payload_in_many_pieces_is_copied_into_one() {
    let (mut node, mut puppet) = client();
    let pieces: Vec<_> = (0..500).map(|i| Bytes::from(bytes(i, 10))).collect();
    let mut encoder = xdr::Encoder::default();
    [1, CALL].into_iter().for_each(|word| encoder.u32(word));
    encoder.payload(pieces.into_iter().collect());
    node.call(encoder.finish(), plan(100, 0));
    puppet.run(&mut node);
    assert_eq!(puppet.received_msg().0.reads.chunks()[0].chunk.segments().len(), 1);
}

#[test]
fn minimum_chunk_size_decides_what_travels_inline() {
    for (min_chunk, chunks) in [(100, 1), (101, 0)] {
        let mut node = Node::client(Options { min_chunk, ..Options::default() });
        let mut puppet = Puppet::default();
        node.call(message(1, CALL, 0, &[5; 100]), plan(100, 0));
        puppet.run(&mut node);
        assert_eq!(puppet.received_msg().0.reads.chunks().len(), chunks);
    }
}

#[test]
fn long_call_with_long_reply_and_payloads_uses_every_list() {
    let (mut node, mut puppet) = client();
    let call = message(1, CALL, 3000, &bytes(1, 70_000));
    node.call(call.clone(), plan(9000, 50_000));
    puppet.run(&mut node);
    let (header, rest, _) = puppet.received();
    let Body::NoMsg(lists) = header.body else { panic!("{header:?}") };
    assert!(rest.is_empty());
    //= rfc8166-3.5.3-1 rfc8166-3.5.3-2 rfc8166-4.3.3-1
    let (stream, items) = lists.reads.split_stream();
    assert_eq!(stream.unwrap().len(), call.stream.len());
    assert_eq!((items.len(), items[0].chunk.len()), (1, 70_000));
    assert_eq!(lists.writes.chunks().iter().map(Chunk::len).collect::<Vec<_>>(), [50_000]);
    assert_eq!(lists.reply.unwrap().len(), 9000);
}

#[test]
fn small_payload_of_long_call_travels_in_the_stream() {
    let (mut node, mut puppet) = client();
    let call = message(1, CALL, 3000, b"small");
    node.call(call.clone(), plan(100, 0));
    puppet.run(&mut node);
    let Body::NoMsg(lists) = puppet.received().0.body else { panic!() };
    assert_eq!(lists.reads.total(), call.len());
    assert_eq!(lists.reads.chunks().len(), 1);
}

#[test]
fn only_chunks_that_the_reply_needs_are_offered() {
    let offers = [
        (100, 0, 0, 0),
        (4068, 0, 0, 0),
        (4069, 0, 0, 4069),
        (100, 3968, 0, 0),
        (100, 3969, 3969, 0),
        (4044, 5000, 5000, 0),
        (4045, 5000, 5000, 4045),
        (4045, 50, 0, 4097),
    ];
    for (inline_max, payload_max, write, reply) in offers {
        let (mut node, mut puppet) = client();
        node.call(message(1, CALL, 0, b""), plan(inline_max, payload_max));
        puppet.run(&mut node);
        let lists = puppet.received_msg().0;
        let offered = lists.writes.chunks().iter().map(Chunk::len).sum::<usize>();
        assert_eq!((offered, lists.reply.map_or(0, |chunk| chunk.len())), (write, reply), "{inline_max} {payload_max}");
    }
}

/// Makes a call with a sink of `room` bytes. The reply uses `used` bytes of the write chunk.
fn read_into_sink(invalidate: bool, room: usize, used: usize) -> (Node, Puppet, Result<Reply, CallError>) {
    let (mut node, mut puppet) = client();
    node.call(message(1, CALL, 0, b""), ReplyPlan { sink: Some(Buffer::zeroed(room + 10).into()), ..plan(100, room) });
    puppet.run(&mut node);
    let offered = puppet.received_msg().0.writes.chunks()[0].clone();
    //= rfc8166-3.4.6-1 rfc8166-4.3.2.2-2
    assert_eq!(offered.len(), room, "the chunk must have the maximum length of the payload, not of the buffer");
    let segment = offered.segments()[0];
    node.write(bytes(3, used).into(), segment.remote(0)).unwrap();
    let lists = Lists { writes: WriteList::new([offered.used(used)]), ..Lists::default() };
    let reply = message(1, REPLY, 0, &bytes(3, used));
    let head = xdr::Message::encode(&header(1, 16, Body::Msg(lists))).stream;
    let invalidated = invalidate.then_some(segment.handle);
    puppet.deliver_bytes(&mut node, [&head[..], &reply.stream[..]].concat().into(), invalidated);
    let result = node.next_reply();
    (node, puppet, result)
}

#[test]
fn payload_is_placed_in_callers_buffer_with_its_length() {
    for invalidate in [false, true] {
        for used in [9000, 4999, 1] {
            let (node, _, result) = read_into_sink(invalidate, 9000, used);
            assert!(node.regions.entries.is_empty(), "memory must be invalidated before the caller gets it");
            let Reply { message, sink } = result.unwrap();
            assert_eq!(payload_of(&message, 1, REPLY, 0), bytes(3, used));
            let sink = sink.unwrap();
            assert!(sink.holds(&message.payloads[0].data));
            drop(message);
            assert_eq!(sink.into_region().unwrap().len(), 9010);
        }
    }
}

#[test]
fn payload_is_inline_if_write_chunk_is_returned_empty() {
    let (mut node, mut puppet) = client();
    node.call(message(1, CALL, 0, b""), plan(100, 9000));
    puppet.run(&mut node);
    let offered = puppet.received_msg().0.writes.chunks()[0].clone();
    let lists = Lists { writes: WriteList::new([offered.used(0)]), ..Lists::default() };
    let reply = message(1, REPLY, 0, b"inline").to_rope().to_bytes().unwrap();
    puppet.deliver(&mut node, &header(1, 16, Body::Msg(lists)), &reply);
    let Reply { message, sink } = node.next_reply().unwrap();
    //= rfc8166-4.3.2.2-4
    assert_eq!(payload_of(&message, 1, REPLY, 0), b"inline");
    assert_eq!(sink.unwrap().into_region().unwrap().len(), 9000);
}

#[test]
fn pool_buffer_is_used_if_caller_has_no_sink() {
    let (mut node, mut puppet) = client();
    node.call(message(1, CALL, 0, b""), ReplyPlan { sink: None, ..plan(100, 9000) });
    puppet.run(&mut node);
    let offered = puppet.received_msg().0.writes.chunks()[0].clone();
    node.write(bytes(3, 7777).into(), offered.segments()[0].remote(0)).unwrap();
    let lists = Lists { writes: WriteList::new([offered.used(7777)]), ..Lists::default() };
    puppet.deliver(&mut node, &header(1, 16, Body::Msg(lists)), &message(1, REPLY, 0, &bytes(3, 7777)).stream);
    let reply = node.next_reply().unwrap();
    assert_eq!(payload_of(&reply.message, 1, REPLY, 0), bytes(3, 7777));
    assert!(reply.sink.is_none());
    drop(reply);
    node.assert_no_leak();
}

#[test]
fn rdma_error_ends_only_its_call() {
    for error in [RdmaError::Chunk, RdmaError::Version { low: 2, high: 2 }] {
        let (mut node, mut puppet) = client();
        warm_up(&mut node, &mut puppet);
        node.call(message(2, CALL, 0, b""), plan(100, 9000));
        node.call(message(3, CALL, 0, b""), plan(100, 0));
        puppet.run(&mut node);
        puppet.deliver(&mut node, &header(2, 16, Body::Error(error)), &[]);
        assert_eq!(refused(node.next_reply()).unwrap().len(), 9000, "the sink must be returned");
        answer(&mut node, &mut puppet, 3);
        node.next_reply().unwrap();
    }
}

#[test]
fn reply_without_call_is_ignored() {
    let (mut node, mut puppet) = client();
    warm_up(&mut node, &mut puppet);
    answer(&mut node, &mut puppet, 99);
    answer(&mut node, &mut puppet, 1);
    assert!(node.events.is_empty() && !node.disconnecting && puppet.sent.is_empty());
}

#[test]
fn invalid_reply_closes_connection_and_returns_every_sink() {
    let other = Chunk::new([Segment { handle: Stag(77), length: 5, offset: 0 }]);
    let reads = {
        let mut lists = Lists::default();
        lists.reads.push(4, other.segments()[0]).unwrap();
        lists
    };
    let nonsense = [
        Body::Msg(reads),
        Body::Msg(Lists { writes: WriteList::new([other.clone()]), ..Lists::default() }),
        Body::Msg(Lists { writes: WriteList::new([other.used(0), other.used(0)]), ..Lists::default() }),
        Body::Msg(Lists { reply: Some(other), ..Lists::default() }),
        Body::NoMsg(Lists::default()),
    ];
    for body in nonsense {
        let (mut node, mut puppet) = client();
        warm_up(&mut node, &mut puppet);
        node.call(message(2, CALL, 0, b""), plan(100, 9000));
        node.call(message(3, CALL, 0, b""), plan(9000, 0));
        puppet.run(&mut node);
        puppet.deliver(&mut node, &header(2, 16, body.clone()), &message(2, REPLY, 0, b"").stream);
        assert!(node.disconnecting, "{body:?}");
        //= rfc8166-4.2.4-2 rfc8166-4.5-3 rfc8166-4.6.1-2
        assert!(puppet.sent.iter().all(|(sent, _)| sent[12..16] != [0, 0, 0, 4]), "a requester sends no RDMA_ERROR");
        for _ in 0..2 {
            let error = node.next_reply().unwrap_err();
            assert!(matches!(error.error, TransportError::Protocol(_)), "{error:?}");
            if let Some(sink) = error.sink {
                assert_eq!(sink.len(), 9000);
            }
        }
        node.assert_no_leak();
    }
}

#[test]
fn reply_chunk_must_hold_the_reply() {
    for (stream, ok) in [(message(1, REPLY, 2000, b""), true), (message(2, REPLY, 2000, b""), false)] {
        let (mut node, mut puppet) = client();
        node.call(message(1, CALL, 0, b""), plan(9000, 0));
        puppet.run(&mut node);
        let offered = puppet.received_msg().0.reply.unwrap();
        node.write(stream.stream.clone(), offered.segments()[0].remote(0)).unwrap();
        let lists = Lists { reply: Some(offered.used(stream.stream.len())), ..Lists::default() };
        puppet.deliver(&mut node, &header(1, 16, Body::NoMsg(lists)), &[]);
        match node.next_reply() {
            Ok(reply) => assert!(ok && reply.message.stream == stream.stream),
            Err(error) => assert!(!ok && matches!(error.error, TransportError::Protocol(_))),
        }
        assert_eq!(node.disconnecting, !ok);
    }
}

#[test]
fn empty_reply_chunk_that_was_not_offered_is_ignored() {
    let (mut node, mut puppet) = client();
    node.call(message(1, CALL, 0, b""), plan(16, 0));
    puppet.run(&mut node);
    let empty = Chunk::new([Segment { handle: Stag(77), length: 0, offset: 0 }]);
    let lists = Lists { reply: Some(empty), ..Lists::default() };
    puppet.deliver(&mut node, &header(1, 16, Body::Msg(lists)), &message(1, REPLY, 0, b"").stream);
    assert!(node.next_reply().unwrap().message.payloads.is_empty(), "the reply has no payload");
}

#[test]
fn reply_cannot_be_inline_and_in_its_chunk() {
    let (mut node, mut puppet) = client();
    node.call(message(1, CALL, 0, b""), plan(9000, 0));
    puppet.run(&mut node);
    let offered = puppet.received_msg().0.reply.unwrap();
    let lists = Lists { reply: Some(offered.used(100)), ..Lists::default() };
    puppet.deliver(&mut node, &header(1, 16, Body::Msg(lists)), &message(1, REPLY, 0, b"").stream);
    assert!(matches!(node.next_reply().unwrap_err().error, TransportError::Protocol(_)));
}

#[test]
fn peer_can_invalidate_any_region_of_a_call() {
    for index in 0..2 {
        let (mut node, mut puppet) = client();
        node.call(message(1, CALL, 0, b""), plan(7000, 9000));
        puppet.run(&mut node);
        let lists = puppet.received_msg().0;
        let [write, reply] = [lists.writes.chunks()[0].clone(), lists.reply.unwrap()];
        let stream = message(1, REPLY, 1500, &bytes(3, 9000)).stream;
        node.write(bytes(3, 9000).into(), write.segments()[0].remote(0)).unwrap();
        node.write(stream.clone(), reply.segments()[0].remote(0)).unwrap();
        let used = Lists {
            writes: WriteList::new([write.used(9000)]),
            reply: Some(reply.used(stream.len())),
            ..Lists::default()
        };
        let head = xdr::Message::encode(&header(1, 16, Body::NoMsg(used))).stream;
        let stag = [&write, &reply][index].segments()[0].handle;
        puppet.deliver_bytes(&mut node, head, Some(stag));
        let Reply { message, sink } = node.next_reply().unwrap();
        assert_eq!(payload_of(&message, 1, REPLY, 1500), bytes(3, 9000));
        assert!(sink.unwrap().holds(&message.payloads[0].data));
        drop(message);
        node.assert_no_leak();
    }
}

#[test]
fn message_without_a_whole_rpc_header_is_refused() {
    let call = message(1, CALL, 0, b"").stream;
    for (len, is_refused) in [(0, true), (4, true), (7, true), (8, false)] {
        let (mut node, mut puppet) = client();
        node.call(call.slice(..len).into(), plan(16, 7));
        puppet.run(&mut node);
        assert_eq!(puppet.sent.is_empty(), is_refused, "{len} bytes");
        if is_refused {
            assert_eq!(refused(node.next_reply()).unwrap().len(), 7);
        }
    }
}

#[test]
fn invalidation_of_another_calls_memory_affects_only_that_call() {
    let (mut node, mut puppet) = client();
    warm_up(&mut node, &mut puppet);
    node.call(message(2, CALL, 0, b""), plan(100, 0));
    node.call(message(3, CALL, 0, b""), plan(100, 9000));
    puppet.run(&mut node);
    puppet.received();
    let other = puppet.received_msg().0.writes.chunks()[0].segments()[0].handle;
    let head = xdr::Message::encode(&header(2, 16, Body::Msg(Lists::default()))).stream;
    puppet.deliver_bytes(&mut node, [&head[..], &message(2, REPLY, 0, b"").stream[..]].concat().into(), Some(other));
    node.next_reply().unwrap();
    answer(&mut node, &mut puppet, 3);
    assert_eq!(node.next_reply().unwrap().sink.unwrap().into_region().unwrap().len(), 9000);
}

#[test]
fn calls_that_cannot_be_sent_are_refused() {
    let options = Options { message_max: 100_000, ..Options::default() };
    let mut node = Node::client(options);
    let mut puppet = Puppet::default();
    node.call(message(1, CALL, 0, &[0; 100_001]), plan(100, 9000));
    puppet.run(&mut node);
    let error = node.next_reply().unwrap_err();
    assert!(matches!(error.error, TransportError::TooLong { .. }), "{error:?}");
    assert_eq!(error.sink.unwrap().len(), 9000);
    node.call(message(2, CALL, 0, b""), plan(100, 9000));
    node.call(message(2, CALL, 0, b"other"), plan(100, 7));
    assert_eq!(refused(node.next_reply()).unwrap().len(), 7, "an XID must identify one call");
    node.cut();
    assert!(matches!(node.next_reply().unwrap_err().error, TransportError::Lost(_)));
    node.events.clear();
    node.call(message(4, CALL, 0, b""), plan(100, 7));
    assert!(matches!(node.next_reply().unwrap_err().error, TransportError::Lost(_)));
    node.assert_no_leak();
}

#[test]
fn call_fails_without_leak_if_no_memory_can_be_registered() {
    for room in 0..3 {
        let (mut node, mut puppet) = client();
        warm_up(&mut node, &mut puppet);
        node.regions.room = Some(room);
        node.call(message(2, CALL, 3000, &[1; 9000]), plan(9000, 9000));
        puppet.run(&mut node);
        assert_eq!(refused(node.next_reply()).unwrap().len(), 9000);
        node.regions.room = None;
        node.call(message(3, CALL, 0, b""), plan(100, 0));
        puppet.run(&mut node);
        answer(&mut node, &mut puppet, 3);
        node.next_reply().unwrap();
        node.assert_no_leak();
    }
}

#[test]
fn cancelled_call_keeps_its_memory_until_it_is_answered() {
    let (mut node, mut puppet) = client();
    warm_up(&mut node, &mut puppet);
    let sent = node.call(message(2, CALL, 0, b""), plan(100, 9000));
    puppet.run(&mut node);
    node.cancel(sent);
    assert_eq!(node.regions.entries.len(), 1, "the memory must stay exposed, because the peer can still write");
    answer(&mut node, &mut puppet, 2);
    assert!(node.events.is_empty(), "a cancelled call must have no event");
    node.assert_no_leak();
    // A call that was cancelled before it was sent is not sent.
    let id = node.connection.call(message(3, CALL, 0, b""), plan(100, 9000));
    node.cancel(id);
    puppet.sent.clear();
    puppet.run(&mut node);
    assert!(puppet.sent.is_empty());
    node.assert_no_leak();
}

#[test]
fn cancelled_call_that_is_never_answered_times_out() {
    let (mut node, mut puppet) = client();
    let timeout = Options::default().peer_timeout;
    let id = node.call(message(1, CALL, 0, b""), plan(100, 9000));
    puppet.run(&mut node);
    node.advance_clock(timeout);
    assert_eq!(node.connection.poll_timeout(), None, "a call that is not cancelled must have no deadline here");
    node.cancel(id);
    node.advance_clock(timeout - Duration::from_millis(1));
    assert!(!node.disconnecting);
    node.advance_clock(Duration::from_millis(1));
    assert!(node.disconnecting);
    node.cut();
    node.assert_no_leak();
}

#[test]
fn a_silent_peer_gets_no_more_than_1024_bytes_and_is_expected_to_send_no_more() {
    let mut node = Node::new(Role::Connecting, Options::default(), None);
    let mut puppet = Puppet::default();
    node.call(message(1, CALL, 0, &[7; 1000]), plan(1000, 0));
    puppet.run(&mut node);
    let lists = puppet.received_msg().0;
    assert_eq!((lists.reads.total(), lists.reply.unwrap().len()), (1000, 1000));
    //= rfc8166-3.3.3-2 rfc8166-3.3.3-3
    assert!(node.longest_send <= 1024);
}

#[test]
fn close_sends_queued_calls_and_then_disconnects() {
    let (mut node, mut puppet) = client();
    node.call(message(1, CALL, 0, b""), plan(100, 0));
    node.connection.close();
    puppet.run(&mut node);
    assert_eq!(puppet.sent.len(), 1);
    assert!(node.disconnecting);
    assert!(matches!(node.next_reply().unwrap_err().error, TransportError::Lost(_)));
    node.assert_no_leak();
}

#[test]
fn callbacks_have_no_chunks_and_their_own_credits() {
    let (mut node, mut puppet) = client();
    node.call(message(1, CALL, 0, b""), plan(16, 0));
    puppet.run(&mut node);
    puppet.received();
    // The peer calls while this side's only credit is in use.
    puppet.deliver(&mut node, &header(1, 99, Body::Msg(Lists::default())), &message(1, CALL, 0, b"").stream);
    let (_, token) = node.next_call();
    node.reply(token, message(1, REPLY, 0, b"")).unwrap();
    puppet.run(&mut node);
    assert_eq!(puppet.received().0.credits, 8, "the reply must grant the callback credits");
    let mut lists = Lists::default();
    lists.reads.push(12, Segment { handle: Stag(1), length: 4, offset: 0 }).unwrap();
    puppet.deliver(&mut node, &header(2, 1, Body::Msg(lists)), &message(2, CALL, 0, b"abcd").stream);
    assert_eq!(puppet.received().0.body, Body::Error(RdmaError::Chunk));
    answer(&mut node, &mut puppet, 1);
    node.next_reply().unwrap();

    let mut server = Node::server(Options::default());
    server.call(message(1, CALL, 0, &[0; 5000]), plan(100, 0));
    assert!(matches!(server.next_reply().unwrap_err().error, TransportError::TooLong { .. }));
    server.call(message(2, CALL, 0, &[0; 3000]), plan(100, 9000));
    puppet.run(&mut server);
    assert!(puppet.received_msg().0.is_empty() && server.regions.entries.is_empty());
}

#[test]
fn calls_are_counted_and_work_that_was_put_back_is_next() {
    let (mut node, mut puppet) = client();
    let made = |node: &Node| (node.connection.calls_made().total, node.connection.calls_made().pending);
    assert_eq!(made(&node), (0, 0));
    node.call(message(1, CALL, 0, b""), plan(16, 0));
    assert_eq!(made(&node), (1, 1));
    let request = node.posted.pop_front().unwrap();
    node.connection.put_back(request);
    assert!(node.posted.is_empty());
    puppet.run(&mut node);
    assert_eq!(puppet.sent.len(), 1, "the call must be sent");
    answer(&mut node, &mut puppet, 1);
    node.next_reply().unwrap();
    assert_eq!(made(&node), (1, 0));
}

#[test]
fn queued_call_with_a_credit_is_sent_before_the_connection_is_closed() {
    let (mut node, mut puppet) = client();
    node.connection.call(message(1, CALL, 0, b""), plan(16, 0));
    node.connection.close();
    puppet.run(&mut node);
    assert_eq!(puppet.sent.len(), 1, "the call must be sent");
    assert!(node.disconnecting);
    node.cut();
    assert!(node.next_reply().is_err());
}

#[test]
fn waiting_call_is_not_sent_after_close_and_is_not_answered_before_it_is_sent() {
    let (mut node, mut puppet) = client();
    for xid in 1..=2 {
        node.call(message(xid, CALL, 0, b""), plan(16, 0));
    }
    puppet.run(&mut node);
    answer(&mut node, &mut puppet, 2);
    assert!(node.events.is_empty(), "a reply to a call that was not sent must be ignored");
    node.connection.close();
    let reply = xdr::Message::encode(&header(1, 16, Body::Msg(Lists::default()))).stream;
    node.send([&reply[..], &message(1, REPLY, 0, b"").stream].concat().into(), None).unwrap();
    assert!(node.disconnecting && node.posted.is_empty());
    node.next_reply().unwrap();
    node.cut();
    assert!(node.next_reply().is_err(), "the waiting call must fail");
}
