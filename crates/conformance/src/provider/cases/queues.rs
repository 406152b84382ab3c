//! Queues and their bounds.

use buf::Rope;
use bytes::Bytes;
use rdma::{CompletionKind, PostError, QpOptions, Status, WorkId, WorkRequest};

use super::{expect_fault, greeted};
use crate::provider::{Fabric, Side, pattern};

pub async fn a_send_needs_a_receive(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    pair.server.send(Bytes::from_static(b"unexpected"));
    expect_fault(&mut pair, Side::Client).await;
}

pub async fn a_send_must_fit_the_receive(fabric: Fabric) {
    for len in [11, 5000] {
        let mut pair = greeted(&fabric).await;
        let recvs = [pair.client.recv(10), pair.client.recv(10)];
        pair.server.send(pattern(1, len));
        expect_fault(&mut pair, Side::Client).await;
        for id in recvs {
            let done = pair.client.find(id).unwrap();
            assert_eq!(done.status, Status::Flushed);
            assert!(matches!(&done.kind, CompletionKind::Receive { buffer, .. } if buffer.len() == 10));
        }
    }
}

pub async fn reads_beyond_the_limit_are_queued(fabric: Fabric) {
    let server = QpOptions { outbound_reads: 3, ..QpOptions::default() };
    let client = QpOptions { inbound_reads: 2, ..QpOptions::default() };
    let mut pair = fabric.pair_with(&client, &server, 1).await;
    assert_eq!(pair.server.qp.caps().outbound_reads, 2);
    pair.client.send(Bytes::from_static(b"hello"));
    let regions: Vec<_> = (0..50).map(|i| (i, pair.client.expose_for_read(&pattern(i, 5000)))).collect();
    pair.settle(Side::Client).await;
    let reads: Vec<_> =
        regions.iter().map(|(i, region)| (*i, pair.server.read(5000, region.stag, region.offset))).collect();
    let send = pair.server.send(Bytes::from_static(b"after"));
    pair.until(|pair| pair.server.has(&[send])).await;
    for (i, read) in &reads {
        assert!(pair.server.read_result(*read) == pattern(*i, 5000));
    }
    let order: Vec<_> = pair.server.done.iter().map(|done| done.id).filter(|id| *id != WorkId(1000)).collect();
    let expected: Vec<_> = reads.iter().map(|(_, id)| *id).chain([send]).collect();
    //= rfc5040-5.2.1-8 rfc5040-5.2.1-9 rfc5040-5.2.2-5 rfc5040-5.5-10 rfc5040-5.5-2 rfc5040-5.5-6 rfc5040-6.1-3
    //= rfc5040-6.1-4
    assert_eq!(order, expected, "completions must be in the order posted");
}

pub async fn reads_that_were_not_negotiated_fail_alone(fabric: Fabric) {
    let client = QpOptions { outbound_reads: 0, ..QpOptions::default() };
    let mut pair = fabric.pair_with(&client, &QpOptions::default(), 1).await;
    assert_eq!(pair.client.qp.caps().outbound_reads, 0);
    let source = pair.server.expose_for_read(&[1; 10]);
    let read = pair.client.read(10, source.stag, source.offset);
    let send = pair.client.send(Bytes::from_static(b"still here"));
    pair.until(|pair| pair.client.has(&[send]) && pair.server.has(&[WorkId(1000)])).await;
    assert_eq!(pair.client.find(read).unwrap().status, Status::LocalAccess);
    assert_eq!(pair.server.received(WorkId(1000)), b"still here");
}

pub async fn send_queue_is_bounded(fabric: Fabric) {
    let options = QpOptions { send_queue: 4, ..QpOptions::default() };
    let mut pair = fabric.pair_with(&options, &options, 5).await;
    let ids: Vec<_> = (0..4).map(|_| pair.client.send(Bytes::from_static(b"x"))).collect();
    let id = WorkId(99);
    let request = WorkRequest::Send { id, data: Rope::new(), invalidate: None, solicited: false };
    let Err(PostError::QueueFull(request)) = pair.client.qp.post(request) else { panic!("the queue must be full") };
    assert_eq!(request.id(), id);
    pair.until(|pair| pair.client.has(&ids)).await;
    pair.client.qp.post(request).unwrap();
    pair.until(|pair| pair.client.has(&[id])).await;
}
