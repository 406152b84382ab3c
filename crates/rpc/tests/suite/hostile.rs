//! Peers that violate the protocol affect only themselves.

use crate::common;
use crate::common::{Counter, Host, add};
use bytes::Bytes;
use rpc::{CallHeader, OpaqueAuth, Xid};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use xdr::{Encode, Encoder};

fn record(message: &[u8]) -> Vec<u8> {
    let mut wire = (0x8000_0000 | message.len() as u32).to_be_bytes().to_vec();
    wire.extend(message);
    wire
}

fn call(xid: u32, procedure: u32, arguments: impl FnOnce(&mut Encoder)) -> Bytes {
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    let header = CallHeader { xid: Xid(xid), program: Counter::PROGRAM, version: 1, procedure, credential, verifier };
    let mut encoder = Encoder::default();
    header.encode(&mut encoder);
    arguments(&mut encoder);
    encoder.finish().stream
}

/// Sends `wire`, and reads until the server closes the connection.
async fn until_closed(host: &Host, wire: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(host.address).await.unwrap();
    socket.write_all(wire).await.unwrap();
    let mut got = Vec::new();
    // A reset also counts as a close.
    let _ = socket.read_to_end(&mut got).await;
    got
}

#[tokio::test]
async fn bytes_that_are_not_rpc_close_only_their_own_connection() {
    let host = Host::start(&[]);
    let client = host.client().await;
    let no_rpc: [&[u8]; 5] = [
        &record(b""),
        &record(b"1234567"),
        &record(&[0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]),
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 64],
    ];
    for (round, wire) in no_rpc.into_iter().enumerate() {
        assert_eq!(until_closed(&host, wire).await, b"", "{wire:?}");
        assert_eq!(add(&client, 1).await.unwrap(), round as u64 + 1);
    }
}

#[tokio::test]
async fn truncated_or_corrupted_call_is_answered_or_closes_connection() {
    let host = Host::start(&[]);
    let client = host.client().await;
    let whole = call(5, common::ADD, |encoder| encoder.u64(0));
    let mut messages: Vec<_> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
    messages.extend((0..whole.len() / 4).map(|word| {
        let mut message = whole.to_vec();
        message[word * 4..word * 4 + 4].fill(0xff);
        message
    }));
    for message in messages {
        let mut socket = TcpStream::connect(host.address).await.unwrap();
        socket.write_all(&record(&message)).await.unwrap();
        // The reply to a valid call shows that the server has processed the bad call before it.
        let _ = socket.write_all(&record(&call(6, common::ADD, |encoder| encoder.u64(0)))).await;
        let mut replies = Vec::new();
        while let Ok(mark) = socket.read_u32().await {
            let mut reply = vec![0; (mark & 0x7fff_ffff) as usize];
            socket.read_exact(&mut reply).await.unwrap();
            replies.push(reply);
            if replies.len() == 2 {
                break;
            }
        }
        let is_call = message.get(4..8) == Some(&[0; 4]);
        // A message with direction 0xffffffff is invalid. A reply without a pending call is dropped.
        assert_eq!(replies.len(), if is_call { 2 } else { 0 }, "{message:?}");
        assert!(replies.iter().all(|reply| reply[4..8] == [0, 0, 0, 1]));
    }
    add(&client, 1).await.unwrap();
}

#[tokio::test]
async fn calls_of_peer_that_does_not_read_replies_are_not_read() {
    let host = Host::start(&[]);
    let (len, calls) = (32 << 10, 4000);
    let socket = TcpStream::connect(host.address).await.unwrap();
    let (mut read, mut write) = socket.into_split();
    let writer = tokio::spawn(async move {
        for xid in 0..calls {
            write.write_all(&record(&call(xid, common::ECHO, |encoder| encoder.opaque(&vec![7; len])))).await.unwrap();
        }
        write
    });
    let echoed = || host.server.stats().iter().find(|stats| stats.name == "ECHO").unwrap().calls;
    let mut before = u64::MAX;
    while before != echoed() {
        before = echoed();
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
    // 4 MiB of replies are queued, and the buffers of the sockets are full; all replies are 128 MiB.
    assert!(!writer.is_finished() && echoed() < u64::from(calls) / 2, "{} of {calls} calls", echoed());
    assert_eq!(add(&host.client().await, 1).await.unwrap(), 1, "other clients must be served meanwhile");
    let mut reply = vec![0; 4 + 24 + 4 + len];
    for xid in 0..calls {
        read.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply[4..8], xid.to_be_bytes());
    }
    drop(writer.await.unwrap());
}
