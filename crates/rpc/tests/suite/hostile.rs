//! Peers that violate the protocol affect only themselves.

use std::{sync::Arc, time::Duration};

use crate::common::{
    self, Counter, Host, add,
    stream::{read_exact, read_until_closed, write_all},
};
use bytes::Bytes;
use rpc::{CallHeader, OpaqueAuth, Xid};
use simnet::Stream;
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
    let stream = Stream::connect(&host.network, host.address).await.unwrap();
    write_all(&stream, wire).await.unwrap();
    read_until_closed(&stream).await
}

#[simnet::test]
async fn bytes_that_are_not_rpc_close_only_their_own_connection() {
    let host = Host::start();
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

#[simnet::test]
async fn truncated_or_corrupted_call_is_answered_or_closes_connection() {
    let host = Host::start();
    let client = host.client().await;
    let whole = call(5, common::ADD, |encoder| encoder.u64(0));
    let mut messages: Vec<_> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
    messages.extend((0..whole.len() / 4).map(|word| {
        let mut message = whole.to_vec();
        message[word * 4..word * 4 + 4].fill(0xff);
        message
    }));
    for message in messages {
        let stream = Stream::connect(&host.network, host.address).await.unwrap();
        write_all(&stream, &record(&message)).await.unwrap();
        // The reply to a valid call shows that the server has processed the bad call before it.
        let _ = write_all(&stream, &record(&call(6, common::ADD, |encoder| encoder.u64(0)))).await;
        let mut replies = Vec::new();
        while let Ok(mark) = read_exact(&stream, 4).await {
            let mark = u32::from_be_bytes(mark.try_into().unwrap());
            replies.push(read_exact(&stream, (mark & 0x7fff_ffff) as usize).await.unwrap());
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

#[simnet::test]
async fn calls_of_peer_that_does_not_read_replies_are_not_read() {
    let host = Host::start();
    let (len, calls) = (32 << 10, 1000);
    let stream = Arc::new(Stream::connect(&host.network, host.address).await.unwrap());
    let writing = stream.clone();
    let writer = tokio::spawn(async move {
        for xid in 0..calls {
            let call = call(xid, common::ECHO, |encoder| encoder.opaque(&vec![7; len]));
            write_all(&writing, &record(&call)).await.unwrap();
        }
    });
    let echoed = || host.server.stats().iter().find(|stats| stats.name == "ECHO").unwrap().calls;
    tokio::time::sleep(Duration::from_secs(60)).await;
    // 4 MiB of replies are queued, and the windows of the connection are full; all replies are 32 MiB.
    let before = echoed();
    assert!(!writer.is_finished() && (1..u64::from(calls) / 2).contains(&before), "{before} of {calls} calls");
    assert_eq!(add(&host.client().await, 1).await.unwrap(), 1, "other clients must be served meanwhile");
    assert_eq!(echoed(), before, "no call may be read");
    for xid in 0..calls {
        let reply = read_exact(&stream, 4 + 24 + 4 + len).await.unwrap();
        assert_eq!(reply[4..8], xid.to_be_bytes());
    }
    writer.await.unwrap();
}
