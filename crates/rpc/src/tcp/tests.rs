use std::{
    future::poll_fn,
    io::{Read, Write},
    sync::Arc,
};

use buf::Buffer;
use xdr::{Encoder, Located};

use super::*;
use crate::{Host, Hosts, RawOptions, TransportKind, budget::Budget};

async fn pair(options: &[(&str, &str)]) -> (Arc<dyn Transport>, Arc<dyn Transport>) {
    let raw: RawOptions = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let kind = TcpKind::default().with_options(&raw).unwrap();
    let mut listener = kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let near = kind.connect(listener.local_addr()).await.unwrap();
    let far = listener.accept().await.unwrap().set_up(Hosts::all()).await.unwrap();
    (near, far)
}

#[tokio::test]
async fn only_bbr_paces() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for (name, is_paced) in [("reno", false), ("bbr", true)] {
        let options = TcpOptions { congestion: Some(name.to_owned()), ..TcpOptions::default() };
        match Sockets.connect(listener.local_addr().unwrap(), &options).await {
            Ok(stream) => assert_eq!(Stream::is_paced(&stream), is_paced, "{name}"),
            // Every kernel has reno. The others are modules.
            Err(error) if name != "reno" => eprintln!("SKIPPED {name}: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Drives `transport` until it is closed, and replies to each call with the result of `answer`.
fn drive(
    transport: Arc<dyn Transport>,
    answer: impl Fn(&Message) -> Option<Message> + Send + 'static,
) -> tokio::task::JoinHandle<TransportError> {
    tokio::spawn(async move {
        loop {
            match poll_fn(|cx| transport.poll_recv(cx)).await {
                Ok(call) => {
                    if let Some(message) = answer(&call.message) {
                        let _ = transport.reply(call.token, message);
                    }
                }
                Err(error) => return error,
            }
        }
    })
}

/// Only root can use the ports below 1024, and other connections can hold all of them.
#[tokio::test]
async fn reserved_port_is_used_or_the_error_says_why_not() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, is_root) = (listener.local_addr().unwrap(), rustix::process::geteuid().is_root());
    for (resvport, must) in [("on", true), ("off", false)] {
        let options = RawOptions::from([("resvport".to_owned(), resvport.to_owned())]);
        match TcpKind::default().with_options(&options).unwrap().connect(address).await {
            Ok(_connection) => assert_eq!(listener.accept().unwrap().1.port() < 1024, must),
            Err(error) => {
                let why = if is_root { "no port below 1024 is free" } else { "Permission denied" };
                assert!(must && error.to_string().contains(why), "{error}");
            }
        }
    }
}

fn message(xid: u32, direction: u32, words: usize) -> Message {
    let mut encoder = Encoder::default();
    [xid, direction].into_iter().for_each(|word| encoder.u32(word));
    (0..words).for_each(|word| encoder.u32(word as u32));
    encoder.finish()
}

/// Creates a reply whose payload, at position 12, is as long as the call.
fn reply_of_words(call: &Message) -> Option<Message> {
    let word = |at: usize| u32::from_be_bytes(call.stream[at..at + 4].try_into().unwrap());
    let mut encoder = Encoder::default();
    [word(0), REPLY].into_iter().for_each(|word| encoder.u32(word));
    encoder.payload(Bytes::from(vec![word(0) as u8; call.stream.len()]).into());
    Some(encoder.finish())
}

#[tokio::test]
async fn replies_of_all_sizes_reach_their_calls_and_sinks() {
    let (near, far) = pair(&[]).await;
    drive(far, reply_of_words);
    let driver = drive(near.clone(), |_| None);
    let calls = (0..200u32).map(|xid| {
        let near = near.clone();
        tokio::spawn(async move {
            let words = [0, 10, 1000, 30_000, 100_000][xid as usize % 5];
            let len = words * 4 + 8;
            let plan = ReplyPlan {
                inline_max: 12,
                payload_max: len,
                sink: Some(Buffer::zeroed(len).into()),
                locate: Some(|prefix| {
                    let len = u32::from_be_bytes(prefix[8..12].try_into().unwrap()) as usize;
                    Some(Located { position: 12, len })
                }),
            };
            let reply = near.clone().call(message(xid, CALL, words), plan).await.unwrap();
            let flat = reply.message.to_rope().to_bytes().unwrap();
            assert_eq!(flat.len(), 12 + len);
            assert!(flat[12..].iter().all(|&byte| byte == xid as u8));
            let sink = reply.sink.unwrap();
            assert_eq!(!reply.message.payloads.is_empty(), len > 512, "payloads above 512 bytes must be placed");
            drop((reply.message, flat));
            assert_eq!(sink.into_region().unwrap().len(), len);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    near.close();
    driver.await.unwrap();
}

#[tokio::test]
async fn late_reply_to_dropped_call_is_discarded() {
    let (near, far) = pair(&[]).await;
    drive(near.clone(), |_| None);
    let abandoned = tokio::spawn({
        let near = near.clone();
        async move { near.clone().call(message(1, CALL, 1), ReplyPlan::default()).await.map(drop) }
    });
    let call = poll_fn(|cx| far.poll_recv(cx)).await.unwrap();
    abandoned.abort();
    assert!(abandoned.await.unwrap_err().is_cancelled());
    far.reply(call.token, message(1, REPLY, 3)).unwrap();
    drive(far, reply_of_words);
    near.clone().call(message(2, CALL, 1), ReplyPlan::default()).await.unwrap();
    near.clone().call(message(1, CALL, 1), ReplyPlan::default()).await.unwrap();
}

#[tokio::test]
async fn lost_connection_returns_sinks() {
    let (near, far) = pair(&[]).await;
    let driver = drive(near.clone(), |_| None);
    let waiting = tokio::spawn({
        let near = near.clone();
        let plan = ReplyPlan { payload_max: 7, sink: Some(Buffer::zeroed(7).into()), ..ReplyPlan::default() };
        async move { near.clone().call(message(1, CALL, 1), plan).await }
    });
    poll_fn(|cx| far.poll_recv(cx)).await.unwrap();
    drop(far);
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error.error, TransportError::Lost(_)), "{error:?}");
    assert_eq!(error.sink.unwrap().len(), 7);
    driver.await.unwrap();
    let late = near.clone().call(message(2, CALL, 1), ReplyPlan::default()).await;
    assert!(matches!(late.unwrap_err().error, TransportError::Lost(_)));
}

#[tokio::test]
async fn too_long_messages_are_rejected_on_both_sides() {
    let (near, far) = pair(&[("message_max", "1k")]).await;
    drive(near.clone(), |_| None);
    let driver = drive(far.clone(), |call| Some(message(peek(&call.stream).unwrap().0.0, REPLY, 400)));
    let error = near.clone().call(message(1, CALL, 400), ReplyPlan::default()).await.unwrap_err();
    assert!(matches!(error.error, TransportError::TooLong { len: 1608, max: 1024 }));
    let reply = near.clone().call(message(2, CALL, 1), ReplyPlan::default()).await.unwrap();
    assert_eq!(reply.message.stream, ReplyHeader::of_error(Xid(2), AcceptError::SystemErr).unwrap().stream);

    assert!(!driver.is_finished());
}

#[tokio::test]
async fn too_long_record_closes_connection() {
    let mut listener = TcpKind::default().listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut hostile = std::net::TcpStream::connect(listener.local_addr()).unwrap();
    let transport = listener.accept().await.unwrap().set_up(Hosts::all()).await.unwrap();
    std::io::Write::write_all(&mut hostile, &[0xff; 4]).unwrap();
    let error = poll_fn(|cx| transport.poll_recv(cx)).await.unwrap_err();
    assert!(matches!(&error, TransportError::Protocol(why) if why.contains("2147483647")), "{error}");
    drop(transport);
    let gone = std::io::Read::read(&mut hostile, &mut [0; 1]);
    assert!(matches!(gone, Ok(0) | Err(_)));
}

#[tokio::test]
async fn connection_on_hold_defers_calls_and_receives_replies() {
    let (near, far) = pair(&[]).await;
    drive(far.clone(), reply_of_words);
    near.hold(true);
    let driver = drive(near.clone(), reply_of_words);
    near.clone().call(message(1, CALL, 1), ReplyPlan::default()).await.unwrap();
    let back = tokio::spawn({
        let far = far.clone();
        async move { far.clone().call(message(9, CALL, 1), ReplyPlan::default()).await.map(drop) }
    });
    tokio::task::yield_now().await;
    near.clone().call(message(2, CALL, 1), ReplyPlan::default()).await.unwrap();
    assert!(!back.is_finished());
    near.hold(false);
    back.await.unwrap().unwrap();
    assert!(!driver.is_finished());
}

#[test]
fn options_are_validated() {
    let parse = |name: &str, value: &str| TcpOptions::parse(&RawOptions::from([(name.into(), value.into())]));
    assert!(!parse("nodelay", "off").unwrap().nodelay);
    assert_eq!(parse("sndbuf", "1m").unwrap().send_buffer, Some(1 << 20));
    let error = parse("congestion", "no-such").unwrap_err();
    assert!(error.problem.contains("this system has"), "{error}");
    assert!(parse("port", "1").unwrap_err().problem.contains("congestion, connect_timeout, dead_after"));
}

/// Creates a socket on this runtime.
fn driven(socket: std::net::TcpStream) -> tokio::net::TcpStream {
    socket.set_nonblocking(true).unwrap();
    tokio::net::TcpStream::from_std(socket).unwrap()
}

/// Creates a connection that is charged to a budget. Returns the socket of its other end, too.
fn charged(budget: &Budget) -> (std::net::TcpStream, Arc<TcpTransport>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, peer) = listener.accept().unwrap();
    let terms = Terms::admitted(budget.account(Host::of(peer.ip())));
    (near, Arc::new(TcpTransport::new(Wire::clear(driven(far)), (2 << 20, None), terms, Pool::default()).unwrap()))
}

async fn until(condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "the condition did not become true");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn held(transport: &TcpTransport) -> isize {
    transport.shared.lock().ledger.held()
}

#[tokio::test]
async fn all_memory_is_released_when_calls_are_answered() {
    let budget = Budget::new(8 << 20);
    let (socket, far) = charged(&budget);
    drive(far.clone(), reply_of_words);
    let terms = Terms::connecting();
    let near =
        Arc::new(TcpTransport::new(Wire::clear(driven(socket)), (2 << 20, None), terms, Pool::default()).unwrap());
    drive(near.clone(), |_| None);
    let calls = (0..200u32).map(|xid| {
        let near = near.clone();
        let words = [0, 10, 1000, 30_000, 100_000][xid as usize % 5];
        async move { near.clone().call(message(xid, CALL, words), ReplyPlan::default()).await.map(drop) }
    });
    futures_util::future::try_join_all(calls).await.unwrap();
    until(|| held(&far) == 0).await;
    assert_eq!(budget.used(), 0);
}

#[tokio::test(start_paused = true)]
async fn replies_do_not_wait_for_calls_that_take_long() {
    let (mut peer, transport) = charged(&Budget::new(8 << 20));
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let calls: Vec<_> = (1..=3).flat_map(|xid| crate::tls::wire::record(&message(xid, CALL, 0))).collect();
    peer.write_all(&calls).unwrap();
    for xid in 1..=3 {
        let call = poll_fn(|cx| transport.poll_recv(cx)).await.unwrap();
        assert_eq!(call.token.xid, Xid(xid));
        if xid < 3 {
            transport.reply(call.token, message(xid, REPLY, 0)).unwrap();
            tokio::time::advance(WAITING_MAX).await;
        }
    }
    let mut replies = [0; 24];
    peer.read_exact(&mut replies).expect("the replies must be sent before the last call ends");
    assert_eq!((replies[7], replies[19]), (1, 2));
}

#[tokio::test]
async fn memory_is_charged_until_it_is_released() {
    let budget = Budget::new(8 << 20);
    let (mut socket, far) = charged(&budget);
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let driver = tokio::spawn({
        let (far, tokens) = (far.clone(), tokens.clone());
        async move {
            loop {
                match poll_fn(|cx| far.poll_recv(cx)).await {
                    Ok(call) => tokens.lock().push((call.token, call.message)),
                    Err(error) => return error,
                }
            }
        }
    });
    let mut send = |bytes: &[u8]| std::io::Write::write_all(&mut socket, bytes).unwrap();
    let mark = |len: usize, last: bool| (u32::from(last) << 31 | len as u32).to_be_bytes();
    // Sends a complete record, half a record, and fragments.
    let call = message(1, CALL, 50_000).stream;
    send(&[&mark(call.len(), true), &call[..]].concat());
    until(|| tokens.lock().len() == 1).await;
    assert!(held(&far) >= 256 << 10, "a call in progress must be charged");
    let (token, _) = tokens.lock().pop().unwrap();
    far.reply(token, message(1, REPLY, 1)).unwrap();
    until(|| held(&far) == 0).await;
    send(&[&mark(call.len(), true), &call[..1000]].concat());
    until(|| held(&far) == 256 << 10).await;
    send(&call[1000..]);
    until(|| tokens.lock().len() == 1).await;
    far.forget(tokens.lock().pop().unwrap().0);
    until(|| held(&far) == 0).await;
    send(&[&mark(30_000, false), &call[..30_000]].concat());
    until(|| held(&far) == 32 << 10).await;
    send(&[&mark(100, false), &call[30_000..30_100], &mark(10_000, true), &call[30_100..30_200]].concat());
    until(|| held(&far) == 32 << 10).await;
    drop(socket);
    driver.await.unwrap();
    assert_eq!((held(&far), budget.used()), (0, 0), "the memory of an incomplete record must be released, too");
}

#[tokio::test]
async fn reply_is_charged_until_its_last_byte_is_sent() {
    let (mut peer, far) = charged(&Budget::new(64 << 20));
    // The buffers of the sockets cannot hold all replies, so one of them is sent in part.
    let (calls, words) = (16, 400_000);
    let mut tokens = Vec::new();
    for xid in 1..=calls {
        peer.write_all(&crate::tls::wire::record(&message(xid, CALL, 0))).unwrap();
        tokens.push(poll_fn(|cx| far.poll_recv(cx)).await.unwrap().token);
    }
    for token in tokens {
        let xid = token.xid.0;
        far.reply(token, message(xid, REPLY, words)).unwrap();
    }
    let len = message(1, REPLY, words).stream.len();
    let driver = drive(far.clone(), |_| None);
    until(|| far.shared.lock().sleeping.is_some()).await;
    let charged = held(&far) as usize;
    // The length of the queue includes the record marks.
    assert!(charged >= len && charged % len <= 4 * calls as usize, "{charged} bytes charged, {len} for each reply");
    let reader = std::thread::spawn(move || {
        peer.read_exact(&mut vec![0; calls as usize * (4 + len)]).unwrap();
        peer
    });
    until(|| held(&far) == 0).await;
    drop(reader.join());
    driver.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stalled_connection_is_closed_when_another_waits_for_memory() {
    let budget = Budget::new(1 << 20);
    let mark = |len: u32| (1 << 31 | len).to_be_bytes();
    let (mut stalled, stalling) = charged(&budget);
    std::io::Write::write_all(&mut stalled, &[&mark(400 << 10)[..], &[0; 600]].concat()).unwrap();
    let stalling = drive(stalling, |_| None);
    until(|| budget.used() > 0).await;
    let (mut waiting, far) = charged(&budget);
    drive(far, reply_of_words);
    let call = message(1, CALL, 100_000).stream;
    let writer = std::thread::spawn(move || {
        std::io::Write::write_all(&mut waiting, &[&mark(call.len() as u32), &call[..]].concat()).unwrap();
        std::io::Read::read_exact(&mut waiting, &mut [0; 100]).unwrap();
    });
    until(|| stalling.is_finished()).await;
    let error = stalling.await.unwrap();
    assert!(error.to_string().contains("memory"), "{error}");
    until(|| writer.is_finished()).await;
    writer.join().unwrap();
}
