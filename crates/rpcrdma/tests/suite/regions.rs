//! Calls with device memory, on queue pairs that can access it and on others. The test plays the peer.

use std::sync::Arc;

use crate::common::{device::Device, *};
use buf::{Buffer, Piece, Region, Rope};
use rdma::Memory;
use rpc::{CallError, Reply, ReplyPlan, TransportError, Xid};
use rpcrdma::{
    Options,
    chunk::{Lists, WriteList},
    header::{Body, Header},
};
use xdr::{Encoder, Message};

const LEN: usize = 9000;

fn client(refuses_devices: bool) -> (Node, Puppet) {
    let mut node = Node::client(Options::default());
    node.regions.refuses_devices = refuses_devices;
    (node, Puppet::default())
}

fn plan(sink: impl Into<Region>, payload_max: usize) -> ReplyPlan {
    ReplyPlan { inline_max: 100, payload_max, sink: Some(sink.into()), locate: None }
}

fn send_reply(node: &mut Node, puppet: &mut Puppet, lists: Lists, reply: &[u8]) {
    puppet.deliver(node, &Header { xid: Xid(1), credits: 16, body: Body::Msg(lists) }, reply);
}

/// Makes a call whose sink is longer than the maximum payload. The peer writes the payload to the write chunk.
fn read_into(node: &mut Node, puppet: &mut Puppet, device: &Arc<Device>) -> Reply {
    node.call(message(1, CALL, 0, b""), plan(device.range(), LEN));
    puppet.run(node);
    let offered = puppet.received_msg().0.writes.chunks()[0].clone();
    assert_eq!(offered.len(), LEN);
    node.write(bytes(3, LEN).into(), offered.segments()[0].remote(0)).unwrap();
    let lists = Lists { writes: WriteList::new([offered.used(LEN)]), ..Lists::default() };
    send_reply(node, puppet, lists, &message(1, REPLY, 0, &bytes(3, LEN)).stream);
    assert!(node.regions.entries.is_empty(), "memory must be invalidated before the caller gets it");
    node.next_reply().unwrap()
}

#[test]
fn accessible_device_sink_is_exposed_directly() {
    let (mut node, mut puppet) = client(false);
    let device = Device::new(vec![0; LEN + 10]);
    let Reply { message, sink } = read_into(&mut node, &mut puppet, &device);
    let sink = sink.unwrap();
    assert!(sink.holds(&message.payloads[0].data), "the payload must be placed");
    assert_eq!(device.copied(), (LEN, 0), "only the peer must copy");
    assert_eq!(device.content(), [bytes(3, LEN), vec![0; 10]].concat());
    assert_eq!(sink.into_region().unwrap().len(), LEN + 10);
    drop(message);
    node.assert_no_leak();
}

#[test]
fn host_memory_is_exposed_for_inaccessible_device_sink() {
    let (mut node, mut puppet) = client(true);
    let device = Device::new(vec![0; LEN + 10]);
    let Reply { message, sink } = read_into(&mut node, &mut puppet, &device);
    let sink = sink.unwrap();
    assert_eq!(payload_of(&message, 1, REPLY, 0), bytes(3, LEN));
    assert!(!sink.holds(&message.payloads[0].data));
    assert_eq!(device.copied(), (0, 0), "copying is left to the caller");
    let region = sink.into_region().unwrap();
    assert_eq!((region.len(), region.as_host().is_none()), (LEN + 10, true));
    drop(message);
    node.assert_no_leak();
}

#[test]
fn sink_is_returned_for_every_outcome() {
    for refuses_devices in [false, true] {
        // No memory can be registered, including host memory in its place.
        let (mut node, mut puppet) = client(refuses_devices);
        node.regions.room = Some(0);
        let device = Device::new(vec![0; LEN + 10]);
        node.call(message(1, CALL, 0, b""), plan(device.range(), LEN));
        puppet.run(&mut node);
        let Err(CallError { error: TransportError::Refused(_), sink: Some(sink) }) = node.next_reply() else {
            panic!("the call must be refused")
        };
        assert_eq!((sink.len(), sink.as_host().is_none()), (LEN + 10, true));
        // The connection is lost while the chunk is exposed.
        let (mut node, mut puppet) = client(refuses_devices);
        node.call(message(1, CALL, 0, b""), plan(device.range(), LEN));
        puppet.run(&mut node);
        node.cut();
        let sink = node.next_reply().unwrap_err().sink.unwrap();
        assert_eq!((sink.len(), sink.as_host().is_none()), (LEN + 10, true));
        node.assert_no_leak();
    }
}

/// Creates a call with a payload in this memory.
fn call_with(payload: impl Into<Rope>) -> Message {
    let mut encoder = Encoder::default();
    [1, CALL].into_iter().for_each(|word| encoder.u32(word));
    encoder.payload(payload.into());
    encoder.finish()
}

#[test]
fn payload_is_read_from_device_or_from_a_copy() {
    for refuses_devices in [false, true] {
        let (mut node, mut puppet) = client(refuses_devices);
        let device = Device::new(bytes(5, LEN));
        node.call(call_with(device.range()), plan(Buffer::zeroed(0), 0));
        puppet.run(&mut node);
        let read = puppet.received_msg().0.reads.chunks()[0].chunk.segments()[0];
        let exposed = node.regions.entries.values().next();
        assert_eq!(matches!(exposed, Some(Memory::Read(Piece::Device(_)))), !refuses_devices);
        let mut got = vec![0; LEN];
        Peer::read(&mut node, &mut got, read.remote(0)).unwrap();
        assert_eq!(got, bytes(5, LEN));
        assert_eq!(device.copied(), (0, LEN), "the payload must be copied once, by the peer or for it");
        send_reply(&mut node, &mut puppet, Lists::default(), &message(1, REPLY, 0, b"").stream);
        node.next_reply().unwrap();
        node.assert_no_leak();
    }
}

#[test]
fn failed_device_ends_only_its_call() {
    // A small payload travels inline, so it is always copied.
    for (len, refuses_devices) in [(10, false), (10, true), (LEN, true)] {
        let (mut node, mut puppet) = client(refuses_devices);
        let device = Device::new(vec![0; len]);
        device.break_down();
        node.call(call_with(device.range()), plan(Buffer::zeroed(7), 0));
        puppet.run(&mut node);
        let Err(CallError { error: TransportError::Refused(why), sink: Some(sink) }) = node.next_reply() else {
            panic!("the call must fail, but {len} bytes were sent")
        };
        assert!(why.contains("the device has failed") && sink.len() == 7, "{why}");
        assert!(puppet.sent.is_empty() && !node.disconnecting);
        node.assert_no_leak();
    }
}
