//! What every provider must do, run for each.

#[macro_use]
mod common;

use std::{fs::File, io, sync::Arc};

use buf::{Buffer, FileRange, Piece, Rope};
use bytes::Bytes;
use common::{Fabric, Pair, Side, pattern, shared_pool};
use rdma::{
    CompletionKind, Memory, PostError, QpError, QpOptions, Stag, Status, WorkId, WorkRequest,
    hook::{Hooked, Tracer},
    iwarp::{Iwarp, IwarpOptions},
    registration::Registration,
};

over_fabrics! {
    [
        a_send_fills_the_receives_in_order
        private_data_goes_both_ways
        a_dropped_request_rejects_the_peer
        nobody_listens
        writes_are_there_when_the_send_after_them_arrives
        a_read_brings_the_bytes
        ropes_of_many_pieces_arrive_whole
        file_pieces_arrive_whole
        transfers_of_megabytes
        nothing_is_a_valid_length
        invalidation_gives_the_memory_back
        a_send_invalidates_on_its_way
        a_send_that_invalidates_nothing_is_refused
        writes_outside_a_region_are_refused
        reads_outside_a_region_are_refused
        a_send_needs_a_receive
        a_send_must_fit_the_receive
        a_disconnect_brings_every_buffer_home
        a_dropped_end_is_noticed
        what_was_posted_before_a_disconnect_arrives
        an_abort_is_seen_as_a_cut
        after_the_end_everything_is_flushed
        more_reads_than_may_be_outstanding
        reads_that_were_not_agreed_on_fail_alone
        the_send_queue_has_an_end
        traffic_both_ways_of_all_kinds
        what_was_started_completes_once_and_in_order
    ]
    sim;
    iwarp = Fabric::iwarp(IwarpOptions::default());
    iwarp_hooked = Fabric::new(Hooked::new(Iwarp::new(IwarpOptions::default()), Arc::new(Tracer)));
    iwarp_with_crc = Fabric::iwarp(IwarpOptions { crc: true, ..Default::default() });
    iwarp_in_small_fpdus = Fabric::iwarp_in_small_fpdus();
    iwarp_per_io = Fabric::iwarp(IwarpOptions::default()).registering(Registration::PerIo);
    iwarp_fast = Fabric::iwarp(IwarpOptions::default()).registering(Registration::Fast);
    iwarp_cache = Fabric::iwarp(IwarpOptions::default()).registering(Registration::Cache);
    iwarp_pool = Fabric::iwarp(IwarpOptions::default()).registering(Registration::Pool);
    verbs = Fabric::verbs();
    verbs_per_io = Fabric::verbs_registering(Registration::PerIo);
    verbs_fast = Fabric::verbs_registering(Registration::Fast);
    verbs_cache = Fabric::verbs_registering(Registration::Cache);
    verbs_pool = Fabric::verbs_registering(Registration::Pool);
    shm = Fabric::shm().with_pool(shared_pool());
    shm_of_private_memory = Fabric::shm();
    shm_hooked = Fabric::shm_as(|shm| Hooked::new(shm, Arc::new(Tracer)));
    shm_per_io = registering(Registration::PerIo);
    shm_fast = registering(Registration::Fast);
    shm_cache = registering(Registration::Cache);
    shm_pool = registering(Registration::Pool);
}

/// Shared memory, registered in a way that is not its own choice.
fn registering(way: Registration) -> Fabric {
    let fabric = Fabric::shm().with_pool(shared_pool()).registering(way);
    assert!(fabric.provider.registrations().contains(&way));
    fabric
}

async fn what_was_started_completes_once_and_in_order(fabric: Fabric) {
    let mut pair = fabric.pair().await;
    let data: Vec<_> = (0..4).map(|at| pattern(at, 1000 * at as usize + 1)).collect();
    let recvs: Vec<_> = data.iter().map(|_| pair.server.recv(4096)).collect();
    let mut sends = Vec::new();
    for data in &data {
        sends.push(pair.client.send(data.clone()));
        pair.client.qp.start();
    }
    let (sent, received) = (sends.clone(), recvs.clone());
    pair.until(move |pair| pair.client.has(&sent) && pair.server.has(&received)).await;
    assert_eq!(pair.client.done.iter().map(|done| done.id).collect::<Vec<_>>(), sends);
    for (recv, data) in recvs.iter().zip(&data) {
        assert_eq!(pair.server.received(*recv), data);
    }
}

async fn a_send_fills_the_receives_in_order(fabric: Fabric) {
    let mut pair = fabric.pair().await;
    for side in [Side::Client, Side::Server] {
        let data: Vec<_> = (0..20).map(|i| pattern(i, i as usize * 37)).collect();
        let (from, to) = match side {
            Side::Client => (&mut pair.client, &mut pair.server),
            Side::Server => (&mut pair.server, &mut pair.client),
        };
        let recvs: Vec<_> = (0..20).map(|_| to.recv(1000)).collect();
        let sends: Vec<_> = data.iter().map(|data| from.send(data.clone())).collect();
        let got = recvs.clone();
        let sent = sends.clone();
        pair.until(move |pair| match side {
            Side::Client => pair.server.has(&got) && pair.client.has(&sent),
            Side::Server => pair.client.has(&got) && pair.server.has(&sent),
        })
        .await;
        let to = pair.end(match side {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        });
        for (recv, data) in recvs.iter().zip(&data) {
            assert_eq!(to.received(*recv), data);
        }
        let from = pair.end(side);
        let order: Vec<_> = from.done.iter().map(|done| done.id).filter(|id| sends.contains(id)).collect();
        assert_eq!(order, sends);
    }
}

async fn private_data_goes_both_ways(fabric: Fabric) {
    let (connected, asked) = fabric
        .attempt(b"request", |mut request| async move {
            let asked = request.private_data().await.unwrap();
            let qp = request.accept(&QpOptions::default(), b"the reply", Vec::new()).await.unwrap();
            (asked, qp)
        })
        .await;
    let same = |have: &[u8], sent: &[u8]| {
        let (data, padding) = have.split_at(sent.len());
        assert!(data == sent && padding.iter().all(|&byte| byte == 0), "{have:?}");
        assert!(padding.is_empty() || fabric.adapter);
    };
    same(&asked.0, b"request");
    same(&connected.unwrap().private_data, b"the reply");

    let max = fabric.provider.caps().private_data_max;
    let longest = pattern(1, max);
    let (connected, asked) =
        fabric.attempt(&longest, |mut request| async move { request.private_data().await.unwrap() }).await;
    assert!(connected.is_err());
    same(&asked, &longest);
    let (nobody, options, too_long) = ("127.0.0.1:9".parse().unwrap(), QpOptions::default(), pattern(1, max + 1));
    let error = fabric.provider.connect(nobody, &options, &too_long, Vec::new()).await.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

async fn a_dropped_request_rejects_the_peer(fabric: Fabric) {
    let (connected, ()) = fabric
        .attempt(b"", |mut request| async move {
            request.private_data().await.unwrap();
        })
        .await;
    assert_eq!(connected.err().unwrap().kind(), io::ErrorKind::ConnectionRefused);
    // Dropped without a look, the reason is not always known.
    let (connected, ()) = fabric.attempt(b"", |request| async move { drop(request) }).await;
    assert!(connected.is_err());
}

async fn nobody_listens(fabric: Fabric) {
    let at = fabric.provider.listen(fabric.listen).unwrap().local_addr();
    let error = fabric.provider.connect(at, &QpOptions::default(), b"", Vec::new()).await.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

async fn writes_are_there_when_the_send_after_them_arrives(fabric: Fabric) {
    let mut pair = fabric.pair().await;
    let region = pair.client.expose_for_write(100_000);
    pair.settle(Side::Client).await;
    let recv = pair.client.recv(16);
    let data = pattern(3, 100_000);
    // In pieces, last first.
    let mut writes = Vec::new();
    for start in (0..100_000).step_by(7_777).rev() {
        let piece = data.slice(start..(start + 7_777).min(100_000));
        writes.push(pair.server.write(piece, region.stag, region.offset + start as u64));
    }
    pair.client.recv(16);
    pair.client.send(Bytes::from_static(b"go"));
    pair.server.recv(16);
    let send = pair.server.send(Bytes::from_static(b"written"));
    pair.until(|pair| pair.client.has(&[recv]) && pair.server.has(&[send])).await;
    assert_eq!(pair.client.received(recv), b"written");
    writes.iter().for_each(|&id| assert!(matches!(pair.server.ok(id), CompletionKind::Write)));
    let id = pair.client.invalidate(region.stag);
    pair.until(|pair| pair.client.has(&[id])).await;
    let CompletionKind::Invalidate(Some(Memory::Write(buffer))) = pair.client.ok(id) else { panic!("no memory") };
    assert!(**buffer == data[..]);
}

/// The client speaks first, so that the server may.
async fn greeted(fabric: &Fabric) -> Pair {
    let mut pair = fabric.pair().await;
    let recv = pair.server.recv(16);
    pair.client.send(Bytes::from_static(b"hello"));
    pair.until(|pair| pair.server.has(&[recv])).await;
    pair
}

async fn a_read_brings_the_bytes(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let data = pattern(4, 150_000);
    for side in [Side::Client, Side::Server] {
        let other = match side {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        let region = pair.end(other).expose_for_read(&data);
        pair.settle(other).await;
        let whole = pair.end(side).read(150_000, region.stag, region.offset);
        let part = pair.end(side).read(1001, region.stag, region.offset + 99);
        pair.until(|pair| match side {
            Side::Client => pair.client.has(&[whole, part]),
            Side::Server => pair.server.has(&[whole, part]),
        })
        .await;
        assert!(pair.end(side).read_result(whole) == data);
        assert!(pair.end(side).read_result(part) == &data[99..1100]);
    }
}

async fn ropes_of_many_pieces_arrive_whole(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let data = pattern(5, 50_000);
    let lens = [0, 1, 2, 255, 256, 257, 3, 4096, 1, 1, 10_000, 5];
    let mut rope = Rope::new();
    let mut at = 0;
    for len in lens {
        rope.push(Piece::Memory(data.slice(at..at + len)));
        at += len;
    }
    let expected = data.slice(..at);
    let region = pair.client.expose_for_write(at);
    pair.settle(Side::Client).await;
    let recv = pair.client.recv(at);
    pair.server.write(rope.clone(), region.stag, region.offset);
    pair.server.send_invalidate(rope, region.stag, false);
    pair.until(|pair| pair.client.has(&[recv])).await;
    assert!(pair.client.received(recv) == expected);
    let Memory::Write(written) = pair.invalidated(Side::Client, recv, region.stag).await else { panic!("read-only") };
    assert!(*written == expected[..]);
}

async fn file_pieces_arrive_whole(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let content = pattern(6, 300_000);
    let path = std::env::temp_dir().join(format!("slipway-rdma-{}-{:p}", std::process::id(), content.as_ptr()));
    std::fs::write(&path, &content).unwrap();
    let file = Arc::new(File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let mut rope = Rope::new();
    rope.push(Piece::File(FileRange { file: file.clone(), offset: 1000, len: 200_000 }));
    rope.push(Piece::Memory(Bytes::from_static(b"between")));
    // What a file no longer has is zeros.
    rope.push(Piece::File(FileRange { file, offset: 299_000, len: 1500 }));
    let expected = [&content[1000..201_000], b"between", &content[299_000..], &[0; 500]].concat();
    let region = pair.client.expose_for_write(rope.len());
    pair.settle(Side::Client).await;
    let recv = pair.client.recv(rope.len());
    pair.server.write(rope.clone(), region.stag, region.offset);
    pair.server.send_invalidate(rope, region.stag, true);
    pair.until(|pair| pair.client.has(&[recv])).await;
    assert!(pair.client.received(recv) == expected);
    assert_eq!(solicited(&pair, recv), !pair.adapter);
    let Memory::Write(written) = pair.invalidated(Side::Client, recv, region.stag).await else { panic!("read-only") };
    assert!(*written == expected[..]);
}

async fn transfers_of_megabytes(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    for len in [1 << 20, (3 << 20) + 1, (1 << 20) - 3] {
        let data = pattern(7, len);
        let target = pair.client.expose_for_write(len);
        let source = pair.client.expose_for_read(&data);
        pair.settle(Side::Client).await;
        let read = pair.server.read(len, source.stag, source.offset);
        let write = pair.server.write(data.clone(), target.stag, target.offset);
        let recv = pair.client.recv(len);
        let send = pair.server.send_invalidate(data.clone(), target.stag, false);
        pair.until(|pair| pair.server.has(&[read, write, send]) && pair.client.has(&[recv])).await;
        assert!(pair.server.read_result(read) == data);
        assert!(pair.client.received(recv) == data);
        let Memory::Write(written) = pair.invalidated(Side::Client, recv, target.stag).await else {
            panic!("read-only")
        };
        assert!(*written == data[..]);
    }
}

async fn nothing_is_a_valid_length(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let write = pair.server.write(Bytes::new(), Stag(0), 0);
    let read = pair.server.read(0, Stag(0), 0);
    let recv = pair.client.recv(0);
    let send = pair.server.send(Bytes::new());
    pair.until(|pair| pair.server.has(&[write, read, send]) && pair.client.has(&[recv])).await;
    assert_eq!(pair.client.received(recv), b"");
    assert_eq!(pair.server.read_result(read), b"");
    let region = pair.client.qp.register(Memory::Write(Buffer::zeroed(0))).unwrap();
    assert_eq!(region.len, 0);
    assert!(matches!(pair.server.ok(write), CompletionKind::Write));
}

async fn invalidation_gives_the_memory_back(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let region = pair.client.expose_for_write(10);
    let other = pair.client.expose_for_read(b"read me");
    assert_ne!(region.stag, other.stag);
    assert!(pair.client.qp.reclaim(region.stag).is_none(), "the peer can still reach it");
    let ids = [region.stag, other.stag, region.stag, Stag(0)].map(|stag| pair.client.invalidate(stag));
    pair.until(|pair| pair.client.has(&ids)).await;
    let [first, second, third, fourth] = ids.map(|id| pair.client.find(id).unwrap());
    assert!(matches!(&first.kind, CompletionKind::Invalidate(Some(Memory::Write(buffer))) if buffer.len() == 10));
    assert!(matches!(&second.kind, CompletionKind::Invalidate(Some(Memory::Read(bytes))) if bytes == "read me"));
    for gone in [third, fourth] {
        assert_eq!(gone.status, Status::LocalAccess);
        assert!(matches!(gone.kind, CompletionKind::Invalidate(None)));
    }
    // The connection is still well, but not for who uses a stale tag.
    pair.server.write(Bytes::from_static(b"late"), region.stag, region.offset);
    expect_fault(&mut pair, Side::Client).await;
}

async fn a_send_invalidates_on_its_way(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let data = pattern(8, 64);
    let read = pair.client.expose_for_read(&data);
    pair.settle(Side::Client).await;
    let recvs = [pair.client.recv(100), pair.client.recv(100)];
    pair.server.send_invalidate(Bytes::from_static(b"done"), read.stag, false);
    let id = pair.server.id();
    let data_only = Rope::from(Bytes::from_static(b"event"));
    pair.server.qp.post(WorkRequest::Send { id, data: data_only, invalidate: None, solicited: true }).unwrap();
    pair.until(|pair| pair.client.has(&recvs)).await;
    assert!(matches!(pair.client.ok(recvs[1]), CompletionKind::Receive { invalidated: None, .. }));
    assert_eq!(recvs.map(|recv| solicited(&pair, recv)), [false, !pair.adapter]);
    let Memory::Read(bytes) = pair.invalidated(Side::Client, recvs[0], read.stag).await else { panic!("written") };
    assert_eq!(bytes, data);
    let id = pair.client.invalidate(read.stag);
    pair.until(|pair| pair.client.has(&[id])).await;
    assert_eq!(pair.client.find(id).unwrap().status, Status::LocalAccess);
}

fn solicited(pair: &Pair, recv: WorkId) -> bool {
    matches!(pair.client.ok(recv), CompletionKind::Receive { solicited: true, .. })
}

async fn a_send_that_invalidates_nothing_is_refused(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let recv = pair.client.recv(100);
    pair.server.invalidates = true;
    pair.server.send_invalidate(Bytes::from_static(b"done"), Stag(0x1234_5678), false);
    expect_fault(&mut pair, Side::Client).await;
    assert_eq!(pair.client.find(recv).unwrap().status, Status::Flushed);
}

/// The end at `side` says that the peer broke the protocol, and the peer knows.
async fn expect_fault(pair: &mut Pair, side: Side) {
    let (client, server) = pair.until_ended().await;
    let (finder, culprit) = match side {
        Side::Client => (client, server),
        Side::Server => (server, client),
    };
    if pair.adapter {
        // What either hears of it is the fabric's affair; Linux's siw keeps it to itself.
        return;
    }
    assert!(matches!(finder, QpError::Protocol(_)), "{finder:?}");
    assert!(matches!(culprit, QpError::Terminated(_)), "{culprit:?}");
}

async fn writes_outside_a_region_are_refused(fabric: Fabric) {
    for case in 0..6 {
        let mut pair = greeted(&fabric).await;
        let target = pair.client.expose_for_write(1000);
        let source = pair.client.expose_for_read(&[0; 1000]);
        pair.settle(Side::Client).await;
        let (stag, offset, len) = match case {
            0 => (target.stag, target.offset + 995, 10),
            1 => (target.stag, target.offset.wrapping_sub(1), 10),
            2 if fabric.siw => continue,
            2 => (target.stag, u64::MAX, 2),
            3 => (source.stag, source.offset, 10),
            4 => (Stag(target.stag.0 ^ 1), target.offset, 10),
            _ => (target.stag, target.offset + 1000, 1),
        };
        pair.server.write(pattern(1, len), stag, offset);
        expect_fault(&mut pair, Side::Client).await;
        let Some(Memory::Write(buffer)) = pair.client.qp.reclaim(target.stag) else { panic!("not reclaimed") };
        assert!(buffer.iter().all(|&byte| byte == 0), "case {case}: nothing may be placed");
        assert!(pair.client.qp.reclaim(target.stag).is_none());
    }
}

async fn reads_outside_a_region_are_refused(fabric: Fabric) {
    for case in 0..5 {
        let mut pair = greeted(&fabric).await;
        let target = pair.client.expose_for_write(1000);
        let source = pair.client.expose_for_read(&[7; 1000]);
        pair.settle(Side::Client).await;
        let (stag, offset, len) = match case {
            0 => (source.stag, source.offset + 1, 1000),
            1 | 2 if fabric.siw => continue,
            1 => (source.stag, u64::MAX, 2),
            2 => (target.stag, target.offset, 10),
            3 => (Stag(source.stag.0 ^ 1), source.offset, 10),
            _ => (source.stag, source.offset + 1000, 1),
        };
        let good = pair.server.read(1000, source.stag, source.offset);
        let bad = pair.server.read(len, stag, offset);
        expect_fault(&mut pair, Side::Client).await;
        let done = pair.server.find(bad).unwrap();
        let flushed = pair.adapter && done.status == Status::Flushed;
        assert!(done.status == Status::RemoteAccess || flushed, "case {case}: {:?}", done.status);
        assert!(
            matches!(&done.kind, CompletionKind::Read(buffer) if buffer.len() == len && buffer.iter().all(|&b| b == 0))
        );
        // The one before it is answered first, or lost with the connection.
        let done = pair.server.find(good).unwrap();
        assert_ne!(done.status, Status::RemoteAccess, "case {case}");
    }
}

async fn a_send_needs_a_receive(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    pair.server.send(Bytes::from_static(b"unexpected"));
    expect_fault(&mut pair, Side::Client).await;
}

async fn a_send_must_fit_the_receive(fabric: Fabric) {
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

async fn a_disconnect_brings_every_buffer_home(fabric: Fabric) {
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
                assert_eq!(done.id, reads.remove(0), "in the order posted");
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
    assert!(pair.client.qp.reclaim(also.stag).is_none(), "it came home with its completion");
}

async fn a_dropped_end_is_noticed(fabric: Fabric) {
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

async fn what_was_posted_before_a_disconnect_arrives(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let data = pattern(9, 3 << 20);
    let target = pair.client.expose_for_write(data.len());
    pair.settle(Side::Client).await;
    let recv = pair.client.recv(10);
    pair.server.write(data.clone(), target.stag, target.offset);
    let send = pair.server.send_invalidate(Bytes::from_static(b"bye"), target.stag, false);
    pair.server.qp.disconnect();
    let (client, server) = pair.until_ended().await;
    assert_eq!((client, server), (QpError::Disconnected, QpError::Disconnected));
    pair.server.ok(send);
    assert_eq!(pair.client.received(recv), b"bye");
    let Memory::Write(written) = pair.invalidated(Side::Client, recv, target.stag).await else { panic!("read-only") };
    assert!(*written == data[..]);
}

async fn an_abort_is_seen_as_a_cut(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let recv = pair.client.recv(10);
    let send = pair.server.send(Bytes::from_static(b"lost"));
    pair.server.qp.abort();
    let (client, server) = pair.until_ended().await;
    let reset = QpError::Io(io::ErrorKind::ConnectionReset);
    assert_eq!(server, reset);
    // A connection manager closes for whoever does not.
    assert!(client == reset || pair.adapter, "{client:?}");
    assert_eq!(pair.client.find(recv).unwrap().status, Status::Flushed);
    assert_eq!(pair.server.find(send).unwrap().status, Status::Flushed);
}

async fn after_the_end_everything_is_flushed(fabric: Fabric) {
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
            assert_eq!(end.find(id).unwrap().status, Status::Flushed);
        }
        assert_eq!(end.error, error);
    }
}

async fn more_reads_than_may_be_outstanding(fabric: Fabric) {
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
    assert_eq!(order, expected, "completions come in the order posted");
}

async fn reads_that_were_not_agreed_on_fail_alone(fabric: Fabric) {
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

async fn the_send_queue_has_an_end(fabric: Fabric) {
    let options = QpOptions { send_queue: 4, ..QpOptions::default() };
    let mut pair = fabric.pair_with(&options, &options, 5).await;
    let ids: Vec<_> = (0..4).map(|_| pair.client.send(Bytes::from_static(b"x"))).collect();
    let id = WorkId(99);
    let request = WorkRequest::Send { id, data: Rope::new(), invalidate: None, solicited: false };
    let Err(PostError::QueueFull(request)) = pair.client.qp.post(request) else { panic!("not full") };
    assert_eq!(request.id(), id);
    pair.until(|pair| pair.client.has(&ids)).await;
    pair.client.qp.post(request).unwrap();
    pair.until(|pair| pair.client.has(&[id])).await;
}

/// Both ends send, write and read at once, and everything is compared.
async fn traffic_both_ways_of_all_kinds(fabric: Fabric) {
    const ROUNDS: u64 = 60;
    let mut pair = greeted(&fabric).await;
    let mut exposed = Vec::new();
    for round in 0..ROUNDS {
        for (side, other) in [(Side::Client, Side::Server), (Side::Server, Side::Client)] {
            let seed = round * 2 + matches!(side, Side::Client) as u64;
            let len = (seed as usize * 7919) % 20_000 + 1;
            let data = pattern(seed, len);
            let target = pair.end(other).expose_for_write(len);
            let source = pair.end(other).expose_for_read(&data);
            let recv = pair.end(other).recv(len);
            exposed.push((side, other, data, target, source, recv));
        }
    }
    pair.settle(Side::Client).await;
    pair.settle(Side::Server).await;
    let mut checks = Vec::new();
    for (side, other, data, target, source, recv) in exposed {
        let from = pair.end(side);
        let read = from.read(data.len(), source.stag, source.offset);
        from.write(data.clone(), target.stag, target.offset);
        let send = from.send_invalidate(data.clone(), target.stag, false);
        checks.push((side, other, data, read, recv, send, target));
    }
    let last = checks[checks.len() - 2..].iter().map(|check| (check.4, check.5)).collect::<Vec<_>>();
    let [(server_recv, client_send), (client_recv, server_send)] = last[..] else { unreachable!() };
    pair.until(|pair| pair.client.has(&[client_recv, client_send]) && pair.server.has(&[server_recv, server_send]))
        .await;
    for (side, other, data, read, recv, send, target) in checks {
        assert!(pair.end(side).read_result(read) == data);
        pair.end(side).ok(send);
        assert!(pair.end(other).received(recv) == data);
        let Memory::Write(written) = pair.invalidated(other, recv, target.stag).await else { panic!("read-only") };
        assert!(*written == data[..]);
    }
}
