//! Client and server over UDP, with datagrams that are lost, duplicated and delayed.
//!
//! The tests use the loopback interface, because simulated networks do not carry UDP.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::common::{Counter, RealHost, add, echo};
use buf::Buffer;
use bytes::Bytes;
use rpc::{Client, ClientOptions, UdpKind};
use tokio::net::UdpSocket;

/// Forwards the datagrams of one client. `fate` decides about each datagram by its number.
async fn proxy(server: SocketAddr, fate: fn(u64) -> Fate) -> SocketAddr {
    let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    far.connect(server).await.unwrap();
    let address = near.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut to_server, mut to_client) = (vec![0; 65536], vec![0; 65536]);
        let (mut client, mut number, mut late) = (None, 0, None);
        loop {
            let (len, from_client) = tokio::select! {
                got = near.recv_from(&mut to_server) => {
                    let (len, from) = got.unwrap();
                    client = Some(from);
                    (len, true)
                }
                got = far.recv(&mut to_client) => (got.unwrap(), false),
            };
            number += 1;
            let send = async |bytes: &[u8], from_client: bool| {
                let sent = match from_client {
                    true => far.send(bytes).await,
                    false => near.send_to(bytes, client.unwrap()).await,
                };
                sent.unwrap();
            };
            let bytes = if from_client { &to_server[..len] } else { &to_client[..len] };
            match fate(number) {
                Fate::Lost => {}
                Fate::Doubled => {
                    send(bytes, from_client).await;
                    send(bytes, from_client).await;
                }
                Fate::Late => late = Some((bytes.to_vec(), from_client)),
                Fate::Arrives => {
                    send(bytes, from_client).await;
                    if let Some((bytes, from_client)) = late.take() {
                        send(&bytes, from_client).await;
                    }
                }
            }
        }
    });
    address
}

enum Fate {
    Arrives,
    Lost,
    Doubled,
    Late,
}

async fn client(host: &RealHost, server: SocketAddr) -> Client {
    let retransmit = Duration::from_millis(10);
    let options = ClientOptions { retransmit, ..ClientOptions::new(Counter::PROGRAM, 1) };
    Client::connect(host.kind.clone(), server, options).await.unwrap()
}

#[tokio::test]
async fn concurrent_calls_get_their_own_answers() {
    let host = RealHost::start(Arc::new(UdpKind::default()));
    let client = client(&host, host.address).await;
    let calls = (0..200u64).map(|i| {
        let client = client.clone();
        tokio::spawn(async move {
            let data = Bytes::from(vec![i as u8; [0, 1, 1000, 30_000][i as usize % 4]]);
            let sink = Buffer::zeroed(30_000);
            let answer = echo(&client, data.clone(), Some(sink)).await.unwrap();
            assert!(answer.results.0.to_bytes().unwrap() == data);
            assert_eq!(answer.sink.unwrap().into_region().unwrap().len(), 30_000);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

#[tokio::test]
async fn call_is_executed_once_despite_lost_duplicated_and_late_datagrams() {
    /// Returns a pseudo-random number below eight, so that losses are not in step with calls and replies.
    fn dice(number: u64) -> u64 {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 61
    }
    let fates: [fn(u64) -> Fate; 3] = [
        |number| if dice(number) < 6 { Fate::Arrives } else { Fate::Lost },
        |_| Fate::Doubled,
        |number| match dice(number) {
            0 => Fate::Lost,
            1 | 2 => Fate::Doubled,
            3 | 4 => Fate::Late,
            _ => Fate::Arrives,
        },
    ];
    for fate in fates {
        let host = RealHost::start(Arc::new(UdpKind::default()));
        let client = client(&host, proxy(host.address, fate).await).await;
        for expected in 1..=30 {
            assert_eq!(add(&client, 1).await.unwrap(), expected);
        }
        assert_eq!(host.counter.value(), 30);
    }
}
