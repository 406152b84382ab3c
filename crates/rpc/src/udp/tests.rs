use std::future::poll_fn;

use buf::Buffer;

use super::*;
use crate::Xid;

fn message(xid: u32, direction: u32, words: usize) -> Message {
    let mut bytes = [xid.to_be_bytes(), direction.to_be_bytes()].concat();
    bytes.resize(8 + 4 * words, 7);
    Message::from(Bytes::from(bytes))
}

async fn server() -> (SocketAddr, Arc<dyn Transport>) {
    let mut listener = UdpKind::default().listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let transport = listener.accept().await.unwrap().set_up(Hosts::all()).await.unwrap();
    (listener.local_addr(), transport)
}

async fn client(server: SocketAddr) -> Arc<dyn Transport> {
    let transport = UdpKind::default().connect(server).await.unwrap();
    let driver = transport.clone();
    tokio::spawn(async move { while poll_fn(|cx| driver.poll_recv(cx)).await.is_ok() {} });
    transport
}

#[tokio::test]
async fn replies_are_sent_to_the_callers() {
    let (address, server) = server().await;
    let (a, b) = (client(address).await, client(address).await);
    let sink = || ReplyPlan { payload_max: 9, sink: Some(Buffer::zeroed(9).into()), ..ReplyPlan::default() };
    let call_a = tokio::spawn(async move { a.clone().call(message(5, CALL, 1), sink()).await.unwrap() });
    let call_b = tokio::spawn(async move { b.clone().call(message(5, CALL, 2), sink()).await.unwrap() });
    let first = poll_fn(|cx| server.poll_recv(cx)).await.unwrap();
    let second = poll_fn(|cx| server.poll_recv(cx)).await.unwrap();
    for call in [second, first] {
        let words = call.message.len() / 4;
        server.reply(call.token, message(5, REPLY, 10 * words)).unwrap();
    }
    tokio::spawn(async move { poll_fn(|cx| server.poll_recv(cx)).await.map(drop) });
    let (a, b) = (call_a.await.unwrap(), call_b.await.unwrap());
    assert_eq!((a.message.len(), b.message.len()), (8 + 120, 8 + 160));
    assert_eq!(a.sink.unwrap().into_region().unwrap().len(), 9);
}

#[tokio::test]
async fn messages_longer_than_a_datagram_are_rejected_on_both_sides() {
    let (address, server) = server().await;
    let client = client(address).await;
    let error = client.clone().call(message(1, CALL, 17_000), ReplyPlan::default()).await.unwrap_err();
    assert!(matches!(error.error, TransportError::TooLong { len: 68_008, max: DATAGRAM_MAX }));
    let call =
        tokio::spawn(async move { client.clone().call(message(2, CALL, 1), ReplyPlan::default()).await.unwrap() });
    let incoming = poll_fn(|cx| server.poll_recv(cx)).await.unwrap();
    let refused = server.reply(incoming.token, message(2, REPLY, 17_000));
    assert!(matches!(refused, Err(TransportError::TooLong { .. })));
    tokio::spawn(async move { poll_fn(|cx| server.poll_recv(cx)).await.map(drop) });
    let error = ReplyHeader::of_error(Xid(2), AcceptError::SystemErr).unwrap();
    assert_eq!(call.await.unwrap().message.stream, error.stream);
}

#[tokio::test]
async fn garbage_is_dropped_and_socket_stays_usable() {
    let (address, server) = server().await;
    let hostile = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    hostile.send_to(b"", address).unwrap();
    hostile.send_to(b"abc", address).unwrap();
    hostile.send_to(&[9; 100], address).unwrap();
    hostile.send_to(&message(8, REPLY, 3).stream, address).unwrap();
    hostile.send_to(&message(7, CALL, 3).stream, address).unwrap();
    assert_eq!(poll_fn(|cx| server.poll_recv(cx)).await.unwrap().token.xid, Xid(7));
}

/// Creates a server that admits no host, and the socket of a client.
async fn with_unadmitted_client() -> (Arc<UdpTransport>, std::net::UdpSocket) {
    let mut bounds = Bounds::new(Hosts::admitted_by(|_| false), 1 << 20);
    bounds.outflow.trusts_loopback = false;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(socket.local_addr().unwrap()).unwrap();
    (Arc::new(UdpTransport::new(socket, Pool::default(), Some(bounds)).unwrap()), client)
}

#[tokio::test(start_paused = true)]
async fn long_replies_to_unadmitted_host_are_limited() {
    let (server, client) = with_unadmitted_client().await;
    let call = message(1, CALL, 30);
    let mut sent = 0;
    for words in [90, 400, 400, 400, 400, 2000] {
        client.send(&call.stream).unwrap();
        let incoming = poll_fn(|cx| server.poll_recv(cx)).await.unwrap();
        let reply = message(1, REPLY, words);
        sent += match server.reply(incoming.token, reply.clone()) {
            Ok(()) => reply.len(),
            Err(TransportError::TooLong { .. }) => ReplyHeader::of_error(Xid(1), AcceptError::SystemErr).unwrap().len(),
            Err(_) => 0,
        };
    }
    tokio::spawn(async move { poll_fn(|cx| server.poll_recv(cx)).await.map(drop) });
    client.set_nonblocking(true).unwrap();
    let client = UdpSocket::from_std(client).unwrap();
    let mut received = 0;
    for _ in 0..5 {
        received += client.recv(&mut [0; 9000]).await.unwrap();
    }
    assert_eq!(received, sent, "the fourth long reply must be dropped, and a too long one must become an error");
    assert!(sent <= (4 << 10) + 6 * 3 * call.len(), "{sent}");
}

#[tokio::test]
async fn unadmitted_host_can_make_few_and_short_calls() {
    let (server, client) = with_unadmitted_client().await;
    client.send(&message(1, CALL, 5000).stream).unwrap();
    for xid in 2..2 + 2 * UNADMITTED_CALLS as u32 {
        client.send(&message(xid, CALL, 1).stream).unwrap();
    }
    let mut tokens = Vec::new();
    while tokens.len() < UNADMITTED_CALLS {
        tokens.push(poll_fn(|cx| server.poll_recv(cx)).await.unwrap().token);
    }
    let xids: Vec<_> = tokens.iter().map(|token| token.xid.0).collect();
    assert_eq!(xids, (2..2 + UNADMITTED_CALLS as u32).collect::<Vec<_>>());
    tokens.drain(..).for_each(|token| server.forget(token));
    // The excess calls were dropped when they were read, or are still in the socket buffer.
    client.send(&message(99, CALL, 1).stream).unwrap();
    while poll_fn(|cx| server.poll_recv(cx)).await.unwrap().token.xid != Xid(99) {
        server.shared.lock().bounds.as_mut().unwrap().unadmitted.clear();
    }
}

#[test]
fn only_the_latest_callers_are_stored() {
    let mut callers = Callers::default();
    let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    for port in 0..CALLERS_MAX as u16 {
        assert_eq!(callers.store(address(port), 5), u64::from(port));
    }
    let call = callers.store(address(9), 7);
    assert_eq!((callers.find(0), callers.find(1)), (None, Some((address(1), 5))));
    assert_eq!((callers.find(call), callers.find(call + 1)), (Some((address(9), 7)), None));
}
