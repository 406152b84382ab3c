//! Sends, RDMA Writes and RDMA Reads that succeed.

use std::{fs::File, sync::Arc};

use buf::{Buffer, FileRange, Piece, Rope};
use bytes::Bytes;
use rdma::{CompletionKind, Memory, Stag};

use super::{greeted, solicited};
use crate::provider::{Fabric, Side, pattern};

pub async fn a_send_fills_the_receives_in_order(fabric: Fabric) {
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
            //= rfc5041-5.3-3 rfc5041-5.3-4 rfc5041-4.3-7
            //= rfc5040-5.3-3 rfc5040-5.3-4 rfc5040-5.5-1 rfc5040-5.5-5 rfc5040-5.5-7
            assert_eq!(to.received(*recv), data);
        }
        let from = pair.end(side);
        let order: Vec<_> = from.done.iter().map(|done| done.id).filter(|id| sends.contains(id)).collect();
        assert_eq!(order, sends);
    }
}

pub async fn writes_are_visible_before_a_later_send(fabric: Fabric) {
    let mut pair = fabric.pair().await;
    let region = pair.client.expose_for_write(100_000);
    pair.settle(Side::Client).await;
    let recv = pair.client.recv(16);
    let data = pattern(3, 100_000);
    // Write in pieces, the last one first.
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
    let CompletionKind::Invalidate(Some(Memory::Write(buffer))) = pair.client.ok(id) else {
        panic!("the memory must be returned")
    };
    //= rfc5041-5.2-6 rfc5041-5.3-1 rfc5041-5.3-2 rfc5041-4.1-7
    assert!(buffer.as_host().unwrap()[..] == data[..]);
}

pub async fn read_fetches_remote_data(fabric: Fabric) {
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
        //= rfc5040-5.2-1 rfc5040-5.2.1-4 rfc5040-5.2.1-5 rfc5040-5.2.1-12 rfc5040-5.2.2-4 rfc5040-5.5-9 rfc5040-5.5-11
        assert!(pair.end(side).read_result(whole) == data);
        assert!(pair.end(side).read_result(part) == &data[99..1100]);
    }
}

pub async fn ropes_of_many_pieces_arrive_whole(fabric: Fabric) {
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
    let Memory::Write(written) = pair.invalidated(Side::Client, recv, region.stag).await else {
        panic!("the memory must be writable")
    };
    assert!(written.as_host().unwrap()[..] == expected[..]);
}

pub async fn file_pieces_arrive_whole(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let content = pattern(6, 300_000);
    let path = std::env::temp_dir().join(format!("slipway-rdma-{}-{:p}", std::process::id(), content.as_ptr()));
    std::fs::write(&path, &content).unwrap();
    let file = Arc::new(File::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let mut rope = Rope::new();
    rope.push(Piece::File(FileRange { file: file.clone(), offset: 1000, len: 200_000 }));
    rope.push(Piece::Memory(Bytes::from_static(b"between")));
    // A range beyond the end of the file reads as zeros.
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
    let Memory::Write(written) = pair.invalidated(Side::Client, recv, region.stag).await else {
        panic!("the memory must be writable")
    };
    assert!(written.as_host().unwrap()[..] == expected[..]);
}

pub async fn transfers_of_megabytes(fabric: Fabric) {
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
        //= rfc5041-4.1-1 rfc5041-4.1-2 rfc5041-5.2-1 rfc5041-5.2-3 rfc5041-5.2-4 rfc5041-5.2-7 rfc5041-4.1-3
        //= rfc5041-4.1-4 rfc5041-4.1-5 rfc5041-4.1-6
        assert!(pair.server.read_result(read) == data);
        assert!(pair.client.received(recv) == data);
        let Memory::Write(written) = pair.invalidated(Side::Client, recv, target.stag).await else {
            panic!("the memory must be writable")
        };
        assert!(written.as_host().unwrap()[..] == data[..]);
    }
}

pub async fn zero_length_transfers_succeed(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let write = pair.server.write(Bytes::new(), Stag(0), 0);
    let read = pair.server.read(0, Stag(0), 0);
    let recv = pair.client.recv(0);
    let send = pair.server.send(Bytes::new());
    pair.until(|pair| pair.server.has(&[write, read, send]) && pair.client.has(&[recv])).await;
    //= rfc5041-5.2-8 rfc5041-5.2-9 rfc5041-5.2-10
    assert_eq!(pair.client.received(recv), b"");
    //= rfc5040-5.2.1-14 rfc5040-5.2.1-15 rfc5040-5.3-7 rfc5040-5.1-3
    assert_eq!(pair.server.read_result(read), b"");
    let region = pair.client.qp.register(Memory::Write(Buffer::zeroed(0).into())).unwrap();
    assert_eq!(region.len, 0);
    assert!(matches!(pair.server.ok(write), CompletionKind::Write));
}

/// Both ends send, write and read at the same time, and all data is compared.
pub async fn traffic_both_ways_of_all_kinds(fabric: Fabric) {
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
        let Memory::Write(written) = pair.invalidated(other, recv, target.stag).await else {
            panic!("the memory must be writable")
        };
        assert!(written.as_host().unwrap()[..] == data[..]);
    }
}

pub async fn requests_complete_once_and_in_order(fabric: Fabric) {
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
