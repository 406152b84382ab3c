//! Every work request completes when a connection ends.

use std::io;

use bytes::Bytes;
use rdma::{CompletionKind, Memory, QpError, QpOptions, Stag, Status};

use super::greeted;
use crate::provider::{Fabric, Pair, Side, pattern};

pub async fn a_disconnect_returns_every_buffer(fabric: Fabric) {
    let options = QpOptions { outbound_reads: 2, ..QpOptions::default() };
    let mut pair = fabric.pair_with(&options, &options, 3).await;
    let exposed = pair.client.expose_for_write(77);
    let also = pair.client.expose_for_read(&[1; 88]);
    let source = pair.server.expose_for_read(&pattern(1, 10_000));
    let mut reads: Vec<_> = (0..20).map(|_| pair.client.read(10_000, source.stag, source.offset)).collect();
    let invalidate = pair.client.invalidate(also.stag);
    pair.server.qp.disconnect();
    let (_, server) = pair.until_ended().await;
    assert_eq!(server, QpError::Disconnected);

    let mut recvs = Vec::new();
    for done in std::mem::take(&mut pair.client.done) {
        match done.kind {
            CompletionKind::Receive { buffer, .. } => {
                assert_eq!((buffer.len(), done.status), (4096, Status::Flushed));
                recvs.push(done.id.0);
            }
            CompletionKind::Read(buffer) => {
                assert_eq!(buffer.len(), 10_000);
                assert_eq!(done.id, reads.remove(0), "reads must complete in the order posted");
            }
            CompletionKind::Invalidate(Some(Memory::Read(bytes))) => {
                assert_eq!((done.id, bytes.len()), (invalidate, 88));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(recvs, [1000, 1001, 1002]);
    assert!(reads.is_empty());
    assert!(matches!(pair.client.qp.reclaim(exposed.stag), Some(Memory::Write(buffer)) if buffer.len() == 77));
    assert!(pair.client.qp.reclaim(also.stag).is_none(), "the memory must have returned with its completion");
}

pub async fn dropping_one_end_ends_the_other(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let recv = pair.client.recv(10);
    let Pair { mut client, server, .. } = pair;
    drop(server);
    let mut ended = None;
    while ended.is_none() {
        ended = std::future::poll_fn(|cx| client.qp.poll_completions(cx, &mut client.done)).await.err();
    }
    assert!(client.has(&[recv]));
}

pub async fn data_posted_before_a_disconnect_arrives(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let data = pattern(9, 3 << 20);
    let target = pair.client.expose_for_write(data.len());
    pair.settle(Side::Client).await;
    let recv = pair.client.recv(10);
    pair.server.write(data.clone(), target.stag, target.offset);
    let send = pair.server.send_invalidate(Bytes::from_static(b"bye"), target.stag, false);
    pair.server.qp.disconnect();
    let (client, server) = pair.until_ended().await;
    //= rfc5041-6.2.1-3
    assert_eq!((client, server), (QpError::Disconnected, QpError::Disconnected));
    pair.server.ok(send);
    assert_eq!(pair.client.received(recv), b"bye");
    let Memory::Write(written) = pair.invalidated(Side::Client, recv, target.stag).await else {
        panic!("the memory must be writable")
    };
    assert!(written.as_host().unwrap()[..] == data[..]);
}

pub async fn abort_resets_the_connection(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let recv = pair.client.recv(10);
    let send = pair.server.send(Bytes::from_static(b"lost"));
    pair.server.qp.abort();
    let (client, server) = pair.until_ended().await;
    let reset = QpError::Io(io::ErrorKind::ConnectionReset);
    assert_eq!(server, reset);
    // A connection manager closes a connection that its end has not closed.
    assert!(client == reset || pair.adapter, "{client:?}");
    assert_eq!(pair.client.find(recv).unwrap().status, Status::Flushed);
    assert_eq!(pair.server.find(send).unwrap().status, Status::Flushed);
}

pub async fn after_the_end_everything_is_flushed(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    pair.client.qp.disconnect();
    pair.until_ended().await;
    for side in [Side::Client, Side::Server] {
        let end = pair.end(side);
        let error = end.error.take();
        let ids = [end.send(Bytes::from_static(b"late")), end.recv(10), end.read(10, Stag(0), 0)];
        pair.until(|pair| pair.client.error.is_some() && pair.server.error.is_some()).await;
        let end = pair.end(side);
        for id in ids {
            //= rfc5041-6.2.1-1
            assert_eq!(end.find(id).unwrap().status, Status::Flushed);
        }
        assert_eq!(end.error, error);
    }
}
