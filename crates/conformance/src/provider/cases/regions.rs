//! Registered memory: its bounds, access rights and invalidation.

use std::{
    io,
    sync::{Arc, Mutex},
};

use buf::{DeviceMemory, DeviceRange, Piece, Rope};
use bytes::Bytes;
use rdma::{Access, CompletionKind, Memory, Stag, Status, WorkRequest};

use super::{expect_fault, greeted, solicited};
use crate::provider::{Fabric, Side, pattern};

pub async fn invalidation_returns_the_memory(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let region = pair.client.expose_for_write(10);
    let other = pair.client.expose_for_read(b"read me");
    assert_ne!(region.stag, other.stag);
    assert!(pair.client.qp.reclaim(region.stag).is_none(), "the peer can still access the memory");
    let ids = [region.stag, other.stag, region.stag, Stag(0)].map(|stag| pair.client.invalidate(stag));
    pair.until(|pair| pair.client.has(&ids)).await;
    let [first, second, third, fourth] = ids.map(|id| pair.client.find(id).unwrap());
    assert!(matches!(&first.kind, CompletionKind::Invalidate(Some(Memory::Write(buffer))) if buffer.len() == 10));
    let CompletionKind::Invalidate(Some(memory @ Memory::Read(_))) = &second.kind else {
        panic!("the memory must be readable by the peer")
    };
    assert_eq!(memory.as_host(), Some(&b"read me"[..]));
    for gone in [third, fourth] {
        assert_eq!(gone.status, Status::LocalAccess);
        assert!(matches!(gone.kind, CompletionKind::Invalidate(None)));
    }
    // The connection stays open until the peer uses a stale tag.
    //= rfc5041-8.3-1 rfc5041-8.3-2 rfc5041-8.3.1-5 rfc5040-8.1.1-5
    pair.server.write(Bytes::from_static(b"late"), region.stag, region.offset);
    expect_fault(&mut pair, Side::Client).await;
}

pub async fn send_with_invalidate_returns_the_memory(fabric: Fabric) {
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
    //= rfc5040-4.1-3 rfc5040-5.3-8 rfc5040-5.3-9 rfc5040-5.3-10
    let memory = pair.invalidated(Side::Client, recvs[0], read.stag).await;
    assert!(matches!(memory, Memory::Read(_)) && memory.as_host() == Some(&data[..]));
    let id = pair.client.invalidate(read.stag);
    pair.until(|pair| pair.client.has(&[id])).await;
    assert_eq!(pair.client.find(id).unwrap().status, Status::LocalAccess);
}

pub async fn a_send_that_invalidates_nothing_is_refused(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let recv = pair.client.recv(100);
    pair.server.invalidates = true;
    pair.server.send_invalidate(Bytes::from_static(b"done"), Stag(0x1234_5678), false);
    expect_fault(&mut pair, Side::Client).await;
    //= rfc5040-7.2-4
    assert_eq!(pair.client.find(recv).unwrap().status, Status::Flushed);
}

pub async fn writes_outside_a_region_are_refused(fabric: Fabric) {
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
        //= rfc5041-7.1-3 rfc5041-8.3.1-4 rfc5040-8.1.1-4
        let Some(Memory::Write(buffer)) = pair.client.qp.reclaim(target.stag) else {
            panic!("the memory must be returned")
        };
        assert!(buffer.as_host().unwrap().iter().all(|&byte| byte == 0), "case {case}: nothing may be placed");
        assert!(pair.client.qp.reclaim(target.stag).is_none());
    }
}

pub async fn reads_outside_a_region_are_refused(fabric: Fabric) {
    for case in 0..5 {
        let mut pair = greeted(&fabric).await;
        let target = pair.client.expose_for_write(1000);
        let source = pair.client.expose_for_read(&[7; 1000]);
        pair.settle(Side::Client).await;
        let (stag, offset, len) = match case {
            0 => (source.stag, source.offset + 1, 1000),
            1 | 2 if fabric.siw => continue,
            1 => (source.stag, u64::MAX, 2),
            //= rfc5041-8.3.1-6 rfc5040-8.1.1-6
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
        // The previous read completes first, or is lost with the connection.
        let done = pair.server.find(good).unwrap();
        assert_ne!(done.status, Status::RemoteAccess, "case {case}");
    }
}

/// Memory whose bytes a provider can only copy.
struct Device(Mutex<Vec<u8>>);

impl DeviceMemory for Device {
    fn copy_in(&self, offset: usize, from: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap()[offset..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn copy_out(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.0.lock().unwrap()[offset..][..into.len()]);
        Ok(())
    }
}

pub async fn device_memory_is_used_or_returned(fabric: Fabric) {
    let mut pair = greeted(&fabric).await;
    let (before, data) = (pattern(1, 1000), pattern(2, 800));
    let device = Arc::new(Device(Mutex::new(before.to_vec())));
    let range = DeviceRange::new(device.clone(), 100, data.len());
    match pair.client.qp.register(Memory::Read(Piece::Device(range.clone()))) {
        Err(memory) => assert_eq!((memory.access(), memory.len()), (Access::RemoteRead, 800)),
        Ok(source) => {
            pair.settle(Side::Client).await;
            let read = pair.server.read(800, source.stag, source.offset);
            pair.until(|pair| pair.server.has(&[read])).await;
            assert!(pair.server.read_result(read) == &before[100..900]);
        }
    }
    match pair.client.qp.register(Memory::Write(range.into())) {
        Err(memory) => assert_eq!((memory.access(), memory.len()), (Access::RemoteWrite, 800)),
        Ok(target) => {
            pair.settle(Side::Client).await;
            let recv = pair.client.recv(10);
            pair.server.write(data.clone(), target.stag, target.offset);
            pair.server.send_invalidate(Bytes::from_static(b"done"), target.stag, false);
            pair.until(|pair| pair.client.has(&[recv])).await;
            let memory = pair.invalidated(Side::Client, recv, target.stag).await;
            assert_eq!((memory.access(), memory.len()), (Access::RemoteWrite, 800));
            assert!(*device.0.lock().unwrap() == [&before[..100], &data[..], &before[900..]].concat());
        }
    }
}
