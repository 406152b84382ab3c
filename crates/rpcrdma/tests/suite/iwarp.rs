//! The transport over iWARP on real sockets.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::echo::*;
use buf::Pool;
use bytes::Bytes;
use rdma::iwarp::{Iwarp, IwarpOptions};
use rpc::{Hosts, Transport, TransportError, TransportKind};
use rpcrdma::{Options, RdmaKind};
use tokio::io::AsyncReadExt;

struct World {
    server: SocketAddr,
    kind: RdmaKind,
    pool: Pool,
}

impl World {
    fn new(iwarp: IwarpOptions, options: Options) -> Self {
        let pool = Pool::default();
        let kind = RdmaKind::new(Arc::new(Iwarp::new(iwarp)), options).with_pool(pool.clone());
        let mut listener = kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let server = listener.local_addr();
        tokio::spawn(async move {
            loop {
                let incoming = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    if let Ok(transport) = incoming.set_up(Hosts::all()).await {
                        drive(transport).await;
                    }
                });
            }
        });
        Self { server, kind, pool }
    }

    async fn connect(&self) -> Arc<dyn Transport> {
        self.connect_to(self.server).await
    }

    async fn connect_to(&self, at: SocketAddr) -> Arc<dyn Transport> {
        let transport = self.kind.connect(at).await.unwrap();
        tokio::spawn(drive(transport.clone()));
        transport
    }

    /// Asserts that all buffers return to the pool after both ends have closed all connections.
    async fn assert_no_leak(&self) {
        let patience = Instant::now() + Duration::from_secs(120);
        while Instant::now() < patience {
            let stats = self.pool.stats();
            if stats.free == stats.mapped {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("buffers are missing: {:?}", self.pool.stats());
    }
}

async fn call_all(transport: &Arc<dyn Transport>, count: u32) -> usize {
    let calls = (0..count).map(|xid| {
        let transport = transport.clone();
        tokio::spawn(async move {
            let (want, words, payload) = SIZES[xid as usize % SIZES.len()];
            let payload = Bytes::from(vec![xid as u8; payload]);
            let sum = payload.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            match transport.clone().call(call(xid, want, words, payload), plan(want, words)).await {
                Ok(reply) => {
                    check(&reply, xid, want, words, sum);
                    true
                }
                Err(error) => {
                    assert!(matches!(error.error, TransportError::Lost(_)), "{error:?}");
                    assert_eq!(error.sink.map_or(0, |sink| sink.len()), want);
                    false
                }
            }
        })
    });
    let mut answered = 0;
    for call in calls.collect::<Vec<_>>() {
        answered += usize::from(call.await.unwrap());
    }
    answered
}

#[tokio::test]
async fn concurrent_calls_of_all_sizes_with_all_protocol_variants() {
    let iwarps = [
        IwarpOptions::default(),
        IwarpOptions { crc: true, fpdu_max: 1400, ..IwarpOptions::default() },
        IwarpOptions { revision: 1, peer_to_peer: false, ..IwarpOptions::default() },
    ];
    let plain = Options { remote_invalidation: false, inline_send: 1024, credits: 3, ..Options::default() };
    for iwarp in iwarps {
        for options in [Options::default(), plain.clone()] {
            let world = World::new(iwarp.clone(), options);
            let transport = world.connect().await;
            assert_eq!(call_all(&transport, 64).await, 64);
            transport.close();
            drop(transport);
            world.assert_no_leak().await;
        }
    }
}

/// Forwards one connection to `to`, and cuts it after `count` bytes from there.
async fn cut_after(to: SocketAddr, count: u64) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = tokio::net::TcpStream::connect(to).await.unwrap();
        let (mut near_read, mut near_write) = near.split();
        let (far_read, mut far_write) = far.split();
        let mut back = far_read.take(count);
        tokio::select! {
            _ = tokio::io::copy(&mut near_read, &mut far_write) => {}
            _ = tokio::io::copy(&mut back, &mut near_write) => {}
        }
    });
    at
}

#[tokio::test]
async fn cut_connection_ends_every_call_and_releases_all_memory() {
    let world = World::new(IwarpOptions::default(), Options::default());
    let mut lost = 0;
    for count in [200, 1000, 5000, 50_000, 500_000, 2_000_000, 3_000_000] {
        let transport = world.connect_to(cut_after(world.server, count).await).await;
        lost += 40 - call_all(&transport, 40).await;
    }
    assert!(lost > 40, "{lost} of 280");
    world.assert_no_leak().await;
}

#[tokio::test]
async fn connection_works_after_cancelled_calls() {
    let world = World::new(IwarpOptions::default(), Options::default());
    let transport = world.connect().await;
    for round in 0..50 {
        let given_up =
            transport.clone().call(call(1000 + round, 1 << 20, 0, vec![1; 1 << 20].into()), plan(1 << 20, 0));
        let _ = tokio::time::timeout(Duration::from_micros(u64::from(round) * 50), given_up).await;
        let reply = transport.clone().call(call(round, 5000, 0, Bytes::new()), plan(5000, 0)).await.unwrap();
        check(&reply, round, 5000, 0, 0);
    }
    transport.close();
    drop(transport);
    world.assert_no_leak().await;
}
