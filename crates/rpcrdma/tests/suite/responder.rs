//! The responder, against a peer that the test plays: the wire format, and common errors of other implementations.

use crate::common::*;
use rdma::Stag;
use rpc::{TransportError, Xid};
use rpcrdma::{
    Options,
    chunk::{Chunk, Lists, Segment, WriteList},
    header::{Body, Header, RdmaError},
};
use xdr::Message;

fn segment(handle: u32, length: usize) -> Segment {
    Segment { handle: Stag(handle), length: length as u32, offset: 0 }
}

fn chunk(segments: &[(u32, usize)]) -> Chunk {
    Chunk::new(segments.iter().map(|&(handle, length)| segment(handle, length)))
}

fn reads(segments: &[(u32, u32, usize)]) -> Lists {
    let mut lists = Lists::default();
    for &(position, handle, length) in segments {
        lists.reads.push(position, segment(handle, length)).unwrap();
    }
    lists
}

fn writes(chunks: &[&[(u32, usize)]]) -> Lists {
    Lists { writes: WriteList::new(chunks.iter().map(|segments| chunk(segments))), ..Lists::default() }
}

fn header(xid: u32, body: Body) -> Header {
    Header { xid: Xid(xid), credits: 10, body }
}

/// Creates a server, and a puppet that has memory with this content under the STags 1, 2, ….
fn server(memory: &[&[u8]]) -> (Node, Puppet) {
    let mut puppet = Puppet::default();
    for (index, bytes) in memory.iter().enumerate() {
        puppet.memory.insert(Stag(index as u32 + 1), bytes.to_vec());
    }
    (Node::server(Options::default()), puppet)
}

/// Makes a call that offers `lists`, and answers it with `reply`.
fn exchange(node: &mut Node, puppet: &mut Puppet, lists: Lists, reply: Message) -> Result<(), TransportError> {
    puppet.deliver(node, &header(7, Body::Msg(lists)), &message(7, CALL, 0, b"").stream);
    let (_, token) = node.next_call();
    let replied = node.reply(token, reply);
    puppet.run(node);
    replied
}

fn assert_chunk_error(puppet: &mut Puppet, xid: u32) {
    let (header, rest, _) = puppet.received();
    assert_eq!((header.xid, header.body), (Xid(xid), Body::Error(RdmaError::Chunk)));
    assert!(rest.is_empty() && header.credits > 0);
}

#[test]
fn requested_credits_are_clamped_and_never_zero() {
    for (asked, granted) in [(0, 1), (1, 1), (60, 60), (u32::MAX, 128)] {
        let (mut node, mut puppet) = server(&[]);
        let call = Header { xid: Xid(7), credits: asked, body: Body::Msg(Lists::default()) };
        puppet.deliver(&mut node, &call, &message(7, CALL, 0, b"").stream);
        let (_, token) = node.next_call();
        node.reply(token, message(7, REPLY, 0, b"")).unwrap();
        puppet.run(&mut node);
        //= rfc8166-3.3.1-2 rfc8166-3.3.1-3
        assert_eq!(puppet.received().0.credits, granted);
        assert!(node.receives_posted() >= 128);
    }
}

#[test]
fn segments_with_the_same_position_form_one_chunk() {
    let (mut node, mut puppet) = server(&[b"hello, ", b"wor", b"ld"]);
    let call = message(7, CALL, 3, b"hello, world");
    let position = call.payloads[0].position.unwrap();
    let lists = reads(&[(position, 1, 7), (position, 2, 3), (position, 3, 2)]);
    puppet.deliver(&mut node, &header(7, Body::Msg(lists)), &call.stream);
    let (got, _) = node.next_call();
    assert_eq!(payload_of(&got, 7, CALL, 3), b"hello, world");
}

#[test]
fn empty_segments_of_a_read_chunk_are_skipped() {
    let (mut node, mut puppet) = server(&[b"", b"abcde", b""]);
    let call = message(7, CALL, 0, b"abcde");
    let at = call.payloads[0].position.unwrap();
    puppet.deliver(&mut node, &header(7, Body::Msg(reads(&[(at, 1, 0), (at, 2, 5), (at, 3, 0)]))), &call.stream);
    assert_eq!(payload_of(&node.next_call().0, 7, CALL, 0), b"abcde");

    let call = message(8, CALL, 0, b"");
    puppet.deliver(&mut node, &header(8, Body::Msg(reads(&[(12, 1, 0)]))), &call.stream);
    assert_eq!(payload_of(&node.next_call().0, 8, CALL, 0), b"");
}

#[test]
fn read_chunk_can_include_padding_of_its_item() {
    let (mut node, mut puppet) = server(&[b"abcde", b"\0\0\0"]);
    let call = message(7, CALL, 0, b"abcde");
    let at = call.payloads[0].position.unwrap();
    puppet.deliver(&mut node, &header(7, Body::Msg(reads(&[(at, 1, 5), (at, 2, 3)]))), &call.stream);
    //= rfc8166-3.4.5.2-1
    assert_eq!(payload_of(&node.next_call().0, 7, CALL, 0), b"abcde");
}

#[test]
fn read_chunks_can_be_in_any_order() {
    let (mut node, mut puppet) = server(&[b"second!", b"first"]);
    let mut encoder = xdr::Encoder::default();
    [7, CALL].into_iter().for_each(|word| encoder.u32(word));
    encoder.payload(bytes::Bytes::from_static(b"first").into());
    encoder.payload(bytes::Bytes::from_static(b"second!").into());
    let call = encoder.finish();
    let [first, second] = [0, 1].map(|index| call.payloads[index].position.unwrap());
    let lists = reads(&[(second, 1, 7), (first, 2, 5)]);
    puppet.deliver(&mut node, &header(7, Body::Msg(lists)), &call.stream);
    let (got, _) = node.next_call();
    //= rfc8166-3.4.5-1
    assert_eq!(got.to_rope(), call.to_rope());
}

#[test]
fn position_zero_chunk_is_the_stream_of_other_chunks() {
    let call = message(7, CALL, 2000, b"payload");
    let (head, tail) = call.stream.split_at(3000);
    let (mut node, mut puppet) = server(&[head, tail, b"payload"]);
    let at = call.payloads[0].position.unwrap();
    let lists = reads(&[(0, 1, 3000), (0, 2, tail.len()), (at, 3, 7)]);
    puppet.deliver(&mut node, &header(7, Body::NoMsg(lists)), &[]);
    assert_eq!(payload_of(&node.next_call().0, 7, CALL, 2000), b"payload");
}

#[test]
fn payload_fills_segments_of_write_chunk_without_padding() {
    let (mut node, mut puppet) = server(&[&[0; 4], &[], &[0; 4], &[0xaa; 8]]);
    let lists = writes(&[&[(1, 4), (2, 0), (3, 4), (4, 8)]]);
    let reply = message(7, REPLY, 2, b"abcdefghi");
    exchange(&mut node, &mut puppet, lists, reply.clone()).unwrap();
    let written: Vec<_> = puppet.memory.values().map(|bytes| bytes.to_vec()).collect();
    assert_eq!(written, [&b"abcd"[..], b"", b"efgh", b"i\xaa\xaa\xaa\xaa\xaa\xaa\xaa"]);
    //= rfc8166-3.4.6.2-1 rfc8166-3.4.6-2 rfc8166-3.4.6.2-2 rfc8166-3.4.4.4-2
    let (lists, stream) = puppet.received_msg();
    assert_eq!(lists.writes.chunks(), [chunk(&[(1, 4), (2, 0), (3, 4), (4, 1)])]);
    assert_eq!(stream, reply.stream, "neither payload nor padding must be in the stream");
}

#[test]
fn payloads_use_write_chunks_in_order_and_unused_ones_are_returned_empty() {
    let (mut node, mut puppet) = server(&[&[0; 100], &[0; 100], &[0; 100]]);
    let mut encoder = xdr::Encoder::default();
    [7, REPLY].into_iter().for_each(|word| encoder.u32(word));
    encoder.payload(bytes::Bytes::from_static(b"one").into());
    encoder.payload(bytes::Bytes::from_static(b"two!").into());
    let lists = writes(&[&[(1, 100)], &[(2, 100)], &[(3, 100)]]);
    exchange(&mut node, &mut puppet, lists, encoder.finish()).unwrap();
    let (lists, _) = puppet.received_msg();
    //= rfc8166-4.3.2-1 rfc8166-4.3.2.2-1 rfc8166-4.3.2.2-3
    assert_eq!(lists.writes.chunks(), [chunk(&[(1, 3)]), chunk(&[(2, 4)]), chunk(&[(3, 0)])]);
    assert_eq!((&puppet.memory[&Stag(1)][..3], &puppet.memory[&Stag(2)][..4]), (&b"one"[..], &b"two!"[..]));
}

#[test]
fn payload_without_chunk_or_with_empty_chunk_travels_inline() {
    for lists in [Lists::default(), writes(&[&[]]), writes(&[&[(1, 0)]])] {
        let (mut node, mut puppet) = server(&[]);
        let reply = message(7, REPLY, 1, b"small");
        exchange(&mut node, &mut puppet, lists.clone(), reply.clone()).unwrap();
        let (returned, stream) = puppet.received_msg();
        //= rfc8166-4.3.1-1 rfc8166-4.3.2.3-1
        assert_eq!((returned, stream), (lists, reply.to_rope().to_bytes().unwrap()));
    }
}

#[test]
fn long_reply_uses_reply_chunk_and_write_chunks() {
    for with_payload in [false, true] {
        let payload = if with_payload { &b"payload"[..] } else { b"" };
        let reply = message(7, REPLY, 3000, payload);
        let (mut node, mut puppet) = server(&[&[0; 8], &[0; 5000], &[], &[0; 20000]]);
        let mut lists = if with_payload { writes(&[&[(1, 8)]]) } else { Lists::default() };
        lists.reply = Some(chunk(&[(2, 5000), (3, 0), (4, 20000)]));
        exchange(&mut node, &mut puppet, lists, reply.clone()).unwrap();
        let (header, rest, _) = puppet.received();
        let Body::NoMsg(lists) = header.body else { panic!("{header:?}") };
        assert!(rest.is_empty());
        //= rfc8166-3.5.3-3
        let tail = reply.stream.len() - 5000;
        assert_eq!(lists.reply, Some(chunk(&[(2, 5000), (3, 0), (4, tail)])));
        let written = [&puppet.memory[&Stag(2)][..], &puppet.memory[&Stag(4)][..tail]].concat();
        assert_eq!(written, reply.stream);
        assert_eq!(&puppet.memory[&Stag(1)][..payload.len()], payload);
        assert_eq!(puppet.written, reply.stream.len() + payload.len());
    }
}

#[test]
fn long_reply_without_write_chunk_contains_its_payload() {
    let (mut node, mut puppet) = server(&[&[0; 20000]]);
    let reply = message(7, REPLY, 2, &bytes(1, 9001));
    let lists = Lists { reply: Some(chunk(&[(1, 20000)])), ..Lists::default() };
    exchange(&mut node, &mut puppet, lists, reply.clone()).unwrap();
    //= rfc8166-3.5.3-4
    let flat = reply.to_rope().to_bytes().unwrap();
    assert_eq!(puppet.memory[&Stag(1)][..flat.len()], flat);
}

#[test]
fn reply_that_fits_inline_does_not_use_reply_chunk() {
    let (mut node, mut puppet) = server(&[&[0; 20000]]);
    let lists = Lists { reply: Some(chunk(&[(1, 20000)])), ..Lists::default() };
    exchange(&mut node, &mut puppet, lists, message(7, REPLY, 2, b"")).unwrap();
    //= rfc8166-4.3.3-2
    assert_eq!((puppet.received_msg().0, puppet.written), (Lists::default(), 0));
}

#[test]
fn reply_that_exceeds_the_offer_is_an_error_for_both_sides() {
    let offers = [
        (Lists::default(), message(7, REPLY, 3000, b"")),
        (Lists { reply: Some(chunk(&[(1, 100)])), ..Lists::default() }, message(7, REPLY, 3000, b"")),
        (writes(&[&[(1, 100)]]), message(7, REPLY, 0, &[1; 101])),
        (Lists::default(), message(7, REPLY, 0, &[1; 5000])),
    ];
    for (lists, reply) in offers {
        let (mut node, mut puppet) = server(&[&[0; 100]]);
        let error = exchange(&mut node, &mut puppet, lists, reply).unwrap_err();
        assert!(matches!(error, TransportError::TooLong { .. }));
        assert_chunk_error(&mut puppet, 7);
        assert_eq!(puppet.written, 0, "nothing must be written for a reply that does not fit");
        node.assert_no_leak();
    }
}

#[test]
fn reply_invalidates_memory_that_it_wrote_if_agreed() {
    let mut lists = reads(&[(12, 1, 4)]);
    lists.writes = writes(&[&[(2, 100)]]).writes;
    for (agreed, expected) in [(true, Some(Stag(2))), (false, None)] {
        let peer =
            rpcrdma::private_data::PrivateData { remote_invalidation: agreed, ..Options::default().private_data() };
        let mut node = Node::new(rpcrdma::Role::Accepting, Options::default(), Some(peer));
        let (_, mut puppet) = server(&[b"abcd", &[0; 100]]);
        exchange(&mut node, &mut puppet, lists.clone(), message(7, REPLY, 0, b"hello")).unwrap();
        //= rfc8797-4.1-1 rfc8797-4.1-2
        assert_eq!(puppet.received().2, expected);
    }
}

#[test]
fn other_version_is_answered_with_supported_versions() {
    let (mut node, mut puppet) = server(&[]);
    let call = [7u32, 2, 10, 0, 0, 0, 0].into_iter().flat_map(u32::to_be_bytes).collect::<Vec<_>>();
    puppet.deliver_bytes(&mut node, call.into(), None);
    let (answer, _) = puppet.sent.pop_front().unwrap();
    let words: Vec<_> = answer.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
    //= rfc8166-4.5-4 rfc8166-4.5-5 rfc8166-4.5-6 rfc8166-4.5.1-1
    assert_eq!(
        words,
        [7, 2, 1, 4, 1, 1, 1],
        "reply must be: XID, version of the call, credits, RDMA_ERROR, ERR_VERS, 1 to 1"
    );
    assert!(!node.disconnecting);
}

#[test]
fn invalid_messages_are_answered_with_err_chunk() {
    let call = message(7, CALL, 0, b"abcd").stream;
    let nonsense = [
        (Body::Msg(reads(&[(0, 1, 16)])), &call[..]), // The stream is in two places.
        (Body::NoMsg(Lists::default()), &[]),         // The stream is missing.
        (Body::NoMsg(reads(&[(8, 1, 4)])), &[]),      // A chunk has no stream around it.
        (Body::NoMsg(reads(&[(0, 1, 16)])), &[0; 4]), // Bytes follow an RDMA_NOMSG header.
        (Body::Msg(reads(&[(12, 1, 8), (16, 1, 4)])), &call[..]), // One chunk is inside another.
        (Body::Msg(reads(&[(4000, 1, 4)])), &call[..]), // The position is beyond the end.
        (Body::Msg(reads(&[(12, 1, 1 << 30)])), &call[..]), // The chunk is longer than any message.
        (Body::Msg(Lists::default()), &[0, 0, 0, 8, 0, 0, 0, 0]), // The XID differs from the header's.
        (Body::Msg(Lists::default()), &[0, 0, 0, 7, 0, 0, 0, 2]), // The message is neither a call nor a reply.
        (Body::Msg(Lists::default()), &[0, 0, 0, 7]), // The message ends after its XID.
        (Body::NoMsg(reads(&[(0, 1, 4)])), &[]),      // The stream is too short to be a message.
    ];
    for (body, stream) in nonsense {
        // The peer's memory holds a valid stream, so only the header is invalid.
        let (mut node, mut puppet) = server(&[&call]);
        puppet.deliver(&mut node, &header(7, body.clone()), stream);
        //= rfc8166-4.2.1-1 rfc8166-4.2.4-1 rfc8166-4.5-2 rfc8166-4.5.2-1
        assert_chunk_error(&mut puppet, 7);
        assert!(node.events.is_empty() && !node.disconnecting, "{body:?}");
        puppet.deliver(&mut node, &header(9, Body::Msg(Lists::default())), &message(9, CALL, 0, b"").stream);
        assert_eq!(node.next_call().1.xid, Xid(9));
        node.assert_no_leak();
    }
}

#[test]
fn obsolete_procedures_are_ignored_or_rejected() {
    let (mut node, mut puppet) = server(&[]);
    puppet.deliver(&mut node, &header(7, Body::Done), &[]);
    //= rfc8166-4.6.2-2
    assert!(puppet.sent.is_empty());
    let msgp = [8u32, 1, 10, 2, 0, 0, 0, 0, 0].into_iter().flat_map(u32::to_be_bytes).collect::<Vec<_>>();
    puppet.deliver_bytes(&mut node, msgp.into(), None);
    assert_chunk_error(&mut puppet, 8);
    puppet.deliver(&mut node, &header(9, Body::Error(RdmaError::Chunk)), &[]);
    //= rfc8166-4.2.4-3
    assert!(puppet.sent.is_empty() && node.events.is_empty() && !node.disconnecting);
    let unknown = [9u32, 1, 10, 4, 3].into_iter().flat_map(u32::to_be_bytes).collect::<Vec<_>>();
    puppet.deliver_bytes(&mut node, unknown.into(), None);
    //= rfc8166-4.5-7
    assert!(puppet.sent.is_empty() && node.events.is_empty() && !node.disconnecting, "an unknown RDMA_ERROR");
}

#[test]
fn truncated_call_is_rejected_or_closes_its_connection() {
    let call = message(7, CALL, 2, b"abcd");
    let lists = Lists { reply: Some(chunk(&[(1, 100)])), ..reads(&[(call.payloads[0].position.unwrap(), 1, 4)]) };
    let bytes = [&Message::encode(&header(7, Body::Msg(lists))).stream[..], &call.stream[..]].concat();
    let headers = bytes.len() - call.stream.len();
    for len in 0..bytes.len() {
        let (mut node, mut puppet) = server(&[&[1; 4]]);
        puppet.deliver_bytes(&mut node, bytes[..len].to_vec().into(), None);
        //= rfc8166-4.5-1
        match len {
            0..16 => assert!(node.disconnecting, "{len}: a header without an XID must close the connection"),
            // The RPC program validates the rest of the message; its payload must violate inside the message.
            _ if len >= headers + call.payloads[0].position.unwrap() as usize => {
                assert_eq!(node.next_call().1.xid, Xid(7), "{len}");
            }
            _ => assert_chunk_error(&mut puppet, 7),
        }
        node.assert_no_leak();
    }
}

#[test]
fn invalid_stag_closes_connection_and_leaks_no_buffer() {
    let (mut node, mut puppet) = server(&[b"abcd"]);
    let call = message(7, CALL, 0, b"abcdefgh");
    puppet.deliver(&mut node, &header(7, Body::Msg(reads(&[(12, 1, 4), (12, 99, 4)]))), &call.stream);
    assert!(node.events.iter().all(|event| matches!(event, rpcrdma::Event::Closed(_))));
    node.assert_no_leak();
}

#[test]
fn empty_payload_uses_its_write_chunk() {
    let (mut node, mut puppet) = server(&[&[0; 100], &[0; 100], &[0; 100]]);
    let mut encoder = xdr::Encoder::default();
    [7, REPLY].into_iter().for_each(|word| encoder.u32(word));
    for data in [&b"one"[..], b"", b"three"] {
        encoder.payload(bytes::Bytes::copy_from_slice(data).into());
    }
    exchange(&mut node, &mut puppet, writes(&[&[(1, 100)], &[(2, 100)], &[(3, 100)]]), encoder.finish()).unwrap();
    let (lists, stream) = puppet.received_msg();
    let lens: Vec<_> = lists.writes.chunks().iter().map(Chunk::len).collect();
    assert_eq!(lens, [3, 0, 5]);
    assert_eq!(stream.len(), 4 * 5, "the payloads must not be in the stream");
    assert_eq!((&puppet.memory[&Stag(1)][..3], &puppet.memory[&Stag(3)][..5]), (&b"one"[..], &b"three"[..]));
    assert_eq!(puppet.memory[&Stag(2)], [0; 100]);
}

#[test]
fn payload_that_fills_a_segment_leaves_the_next_one_alone() {
    let (mut node, mut puppet) = server(&[&[0; 4], &[0; 4]]);
    let call = header(7, Body::Msg(writes(&[&[(1, 4), (2, 4)]])));
    puppet.deliver(&mut node, &call, &message(7, CALL, 0, b"").stream);
    let (_, token) = node.next_call();
    node.reply(token, message(7, REPLY, 0, b"four")).unwrap();
    assert_eq!(node.posted.len(), 2, "one RDMA Write and one Send");
}

/// An answer with ERR_VERS ends a call: it returns one credit, and does not allow more calls.
#[test]
fn calls_of_another_version_take_credits() {
    let mut node = Node::server(Options { credits: 4, ..Options::default() });
    let mut puppet = Puppet::default();
    for xid in 1..=10 {
        let call = [xid, 2, 10, 0, 0, 0, 0].into_iter().flat_map(u32::to_be_bytes).collect::<Vec<_>>();
        puppet.deliver_bytes(&mut node, call.into(), None);
        assert_eq!(puppet.sent.pop_front().unwrap().0[8..12], [0, 0, 0, 1], "one credit is granted");
    }
    for (xid, allowed) in [(11, true), (12, false)] {
        puppet.deliver(&mut node, &header(xid, Body::Msg(Lists::default())), &message(xid, CALL, 0, b"").stream);
        assert_eq!(node.disconnecting, !allowed, "call {xid}");
    }
    node.assert_no_leak();
}

#[test]
fn more_calls_than_credits_close_the_connection() {
    let options = Options { credits: 4, ..Options::default() };
    let mut node = Node::server(options);
    let mut puppet = Puppet::default();
    for xid in 1..=4 {
        puppet.deliver(&mut node, &header(xid, Body::Msg(Lists::default())), &message(xid, CALL, 0, b"").stream);
    }
    assert!(!node.disconnecting);
    puppet.deliver(&mut node, &header(5, Body::Msg(Lists::default())), &message(5, CALL, 0, b"").stream);
    assert!(node.disconnecting);
    node.assert_no_leak();
}

#[test]
fn messages_of_peer_that_does_not_receive_replies_are_not_processed() {
    let options = Options { credits: 4, callback_credits: 0, ..Options::default() };
    let mut node = Node::server(options);
    let posted = node.receives_posted();
    let mut sent = 0;
    // No request of the node is executed, as if the TCP window of the peer were closed.
    for xid in 1..100 {
        let call = Message::encode(&header(xid, Body::Msg(Lists::default()))).stream;
        let call = [&call[..], &message(xid, CALL, 0, b"").stream].concat();
        if node.send(call.into(), None).is_err() {
            break;
        }
        sent += 1;
        while let Some(rpcrdma::Event::Call { token, .. }) = node.events.pop_front() {
            node.reply(token, message(xid, REPLY, 0, b"")).unwrap();
        }
    }
    assert_eq!(
        sent,
        posted + 8,
        "replies must stop at twice the credits, and messages at the end of the receive queue"
    );
    // When the window opens, the other messages are processed, and exceed the credits.
    let mut puppet = Puppet::default();
    puppet.run(&mut node);
    assert_eq!(puppet.sent.len(), 8);
    (0..4).for_each(|_| drop(node.next_call()));
    assert!(matches!(node.events.make_contiguous(), [rpcrdma::Event::Closed(TransportError::Protocol(_))]));
}

#[test]
fn reads_beyond_the_limit_wait_and_unanswered_reads_time_out() {
    let options = Options { pull_max: 1 << 20, ..Options::default() };
    let mut node = Node::server(options.clone());
    let call = |xid: u32| message(xid, CALL, 0, &bytes(xid, 600_000));
    for xid in [1, 2, 3] {
        let lists = reads(&[(12, xid, 600_000)]);
        let header = Message::encode(&header(xid, Body::Msg(lists))).stream;
        node.send([&header[..], &call(xid).stream].concat().into(), None).unwrap();
    }
    assert_eq!(node.posted.len(), 1, "one call of 600 kB must be read at a time");
    let mut puppet = Puppet::default();
    for xid in [1, 2, 3] {
        puppet.memory.insert(Stag(xid), bytes(xid, 600_000));
    }
    let mut other = Node::server(options.clone());
    let header = Message::encode(&header(1, Body::Msg(reads(&[(12, 1, 600_000)])))).stream;
    other.send([&header[..], &call(1).stream].concat().into(), None).unwrap();
    puppet.run(&mut node);
    for xid in [1, 2, 3] {
        assert_eq!(payload_of(&node.next_call().0, xid, CALL, 0), bytes(xid, 600_000));
    }
    other.advance_clock(options.peer_timeout);
    assert!(other.disconnecting);
    other.cut();
    other.assert_no_leak();
}

#[test]
fn slow_peer_does_not_time_out_while_reads_progress() {
    let timeout = Options::default().peer_timeout;
    let (mut node, mut puppet) = server(&[b"abcd"]);
    let lists = reads(&[(12, 1, 4), (12, 1, 4), (12, 1, 4)]);
    let header = Message::encode(&header(7, Body::Msg(lists))).stream;
    node.send([&header[..], &message(7, CALL, 0, b"abcdabcdabcd").stream].concat().into(), None).unwrap();
    for _ in 0..2 {
        node.advance_clock(timeout * 3 / 4);
        assert!(!node.disconnecting);
        node.step(&mut puppet).unwrap();
    }
    node.advance_clock(timeout * 3 / 4);
    assert!(!node.disconnecting);
    node.advance_clock(timeout);
    assert!(node.disconnecting, "the last read must time out");
}

#[test]
fn the_same_xid_twice_is_two_calls() {
    // The duplicate request cache decides which of them is executed.
    let (mut node, mut puppet) = server(&[]);
    for payload in [&b"one"[..], b"other"] {
        let call = message(7, CALL, 0, payload).to_rope().to_bytes().unwrap();
        puppet.deliver(&mut node, &header(7, Body::Msg(Lists::default())), &call);
    }
    let (_, first) = node.next_call();
    let (second_call, second) = node.next_call();
    assert_eq!(payload_of(&second_call, 7, CALL, 0), b"other");
    node.reply(second, message(7, REPLY, 2, b"")).unwrap();
    node.reply(first, message(7, REPLY, 1, b"")).unwrap();
    puppet.run(&mut node);
    assert_eq!(puppet.received_msg().1.len(), puppet.received_msg().1.len() + 4);
}

#[test]
fn token_answers_one_call_once() {
    let (mut node, mut puppet) = server(&[]);
    puppet.deliver(&mut node, &header(7, Body::Msg(Lists::default())), &message(7, CALL, 0, b"").stream);
    let (_, token) = node.next_call();
    let other = rpc::ReplyToken { xid: Xid(8), call: token.call };
    assert!(node.reply(other, message(8, REPLY, 0, b"")).is_err(), "a token is valid for its XID only");
    let stale = rpc::ReplyToken { xid: token.xid, call: token.call };
    node.reply(token, message(7, REPLY, 0, b"")).unwrap();
    assert!(node.reply(stale, message(7, REPLY, 0, b"")).is_err());
}

#[test]
fn refused_call_gets_an_error_and_a_forgotten_one_no_answer() {
    let (mut node, mut puppet) = server(&[]);
    for (xid, forgets) in [(7, false), (8, true)] {
        puppet.deliver(&mut node, &header(xid, Body::Msg(Lists::default())), &message(xid, CALL, 0, b"").stream);
        let (_, token) = node.next_call();
        let same = rpc::ReplyToken { xid: token.xid, call: token.call };
        match forgets {
            true => node.connection.forget(&token),
            false => node.connection.refuse_call(token).unwrap(),
        }
        puppet.run(&mut node);
        if !forgets {
            assert_chunk_error(&mut puppet, xid);
        }
        assert!(puppet.sent.is_empty());
        assert!(node.reply(same, message(xid, REPLY, 0, b"")).is_err(), "the call has ended");
    }
}

#[test]
fn every_read_chunk_can_include_padding() {
    let (mut node, mut puppet) = server(&[b"first\0\0\0", b"second\0\0"]);
    let mut encoder = xdr::Encoder::default();
    [7, CALL].into_iter().for_each(|word| encoder.u32(word));
    encoder.payload(bytes::Bytes::from_static(b"first").into());
    encoder.payload(bytes::Bytes::from_static(b"second").into());
    let call = encoder.finish();
    let [first, second] = [0, 1].map(|index| call.payloads[index].position.unwrap());
    puppet.deliver(&mut node, &header(7, Body::Msg(reads(&[(first, 1, 8), (second, 2, 8)]))), &call.stream);
    let (got, _) = node.next_call();
    let payloads: Vec<_> = got.payloads.iter().map(|payload| payload.data.to_bytes().unwrap()).collect();
    assert_eq!(payloads, [&b"first"[..], b"second"], "the padding must not be in the payloads");
    assert_eq!(got.to_rope(), call.to_rope());
}

#[test]
fn messages_after_a_violation_are_not_processed() {
    let (mut node, _) = server(&[]);
    node.send(bytes::Bytes::from_static(&[0; 8]), None).unwrap();
    assert!(node.disconnecting && node.events.is_empty());
    let call = Message::encode(&header(7, Body::Msg(Lists::default()))).stream;
    node.send([&call[..], &message(7, CALL, 0, b"").stream].concat().into(), None).unwrap();
    assert!(node.events.is_empty());
    node.cut();
    assert!(matches!(node.events.make_contiguous(), [rpcrdma::Event::Closed(TransportError::Protocol(_))]));
}
