//! Floods of many connections and hosts stay within their limits, and other clients are served meanwhile.
//!
//! The tests use the loopback interface, because the limits of connections belong to worker threads, and the limits of memory depend on the
//! buffers of the sockets.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::common::{self, Counter, add, echo};
use buf::Pool;
use bytes::Bytes;
use rpc::{
    AcceptError, Answering, Call, CallHeader, Client, ClientOptions, ConnectionLimits, Hosts, OpaqueAuth, Procedure,
    RawOptions, Server, Service, TcpKind, TcpOptions, TransportKind, WorkerOptions, Workers, Xid,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
};
use xdr::{Encode, Encoder, Message};

/// Memory that all connections of [`LimitedServer`] share, in bytes.
const MEMORY: usize = 4 << 20;
const RECORD_MAX: usize = 256 << 10;

/// A server with a low memory limit.
struct LimitedServer {
    counter: Arc<Counter>,
    pool: Pool,
    address: SocketAddr,
    _workers: Workers,
}

impl LimitedServer {
    fn start(connections: ConnectionLimits, hosts: Hosts) -> Self {
        let counter = Arc::new(Counter::default());
        let builder = Server::builder().hosts(hosts).shared(counter.clone()).service(Concurrency::default());
        let pool = Pool::default();
        let raw = RawOptions::from([("memory".into(), "4m".into()), ("message_max".into(), "256k".into())]);
        let kind = TcpKind::new(TcpOptions::parse(&raw).unwrap(), pool.clone());
        let workers = Workers::new(WorkerOptions { threads: 2, connections, ..WorkerOptions::default() }).unwrap();
        let listener = kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr();
        workers.listen(builder.build(), listener);
        Self { counter, pool, address, _workers: workers }
    }

    /// Connects a client with one connection from 127.0.0.1.
    async fn client(&self) -> Client {
        let kind = Arc::new(TcpKind::default());
        Client::connect(kind, self.address, ClientOptions::new(Counter::PROGRAM, 1)).await.unwrap()
    }

    /// Returns the bytes of buffers in use.
    fn in_use(&self) -> usize {
        let stats = self.pool.stats();
        stats.mapped - stats.free
    }

    fn assert_bounded(&self) {
        let in_use = self.in_use();
        assert!(in_use <= MEMORY / 4 * 5 + 2 * RECORD_MAX, "{in_use} bytes of buffers");
    }

    /// Makes small calls, and checks the memory after each.
    async fn assert_serves(&self, client: &Client) {
        for _ in 0..200 {
            add(client, 1).await.unwrap();
            self.assert_bounded();
        }
    }
}

/// Connects from 127.0.0.`last`, which counts as a separate host.
async fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    socket.connect(to).await.unwrap()
}

fn call_to(program: u32, xid: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    let mut encoder = Encoder::default();
    CallHeader { xid: Xid(xid), program, version: 1, procedure, credential, verifier }.encode(&mut encoder);
    let message = [&encoder.finish().stream[..], arguments].concat();
    [&(1 << 31 | message.len() as u32).to_be_bytes()[..], &message].concat()
}

fn call(xid: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    call_to(Counter::PROGRAM, xid, procedure, arguments)
}

/// Waits until `condition` is `true`.
async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("timed out while waiting: {what}");
}

/// Returns `true` if the server closes the connection before the time limit for the first call of a connection.
async fn is_closed(socket: &mut TcpStream) -> bool {
    let mut byte = [0; 1];
    let read = tokio::time::timeout(Duration::from_secs(30), socket.read(&mut byte));
    matches!(read.await.expect("the connection must be closed"), Ok(0) | Err(_))
}

#[tokio::test]
async fn incomplete_records_stay_within_memory_limit() {
    let server = LimitedServer::start(ConnectionLimits::default(), Hosts::all());
    let client = server.client().await;
    add(&client, 1).await.unwrap();
    let mut floods = JoinSet::new();
    for connection in 0..200 {
        let mut socket = connect_from(2 + connection % 50, server.address).await;
        floods.spawn(async move {
            let record = call(1, common::ECHO, &vec![0; RECORD_MAX - 100]);
            // The last bytes are never sent.
            let _ = socket.write_all(&record[..record.len() - 8]).await;
            is_closed(&mut socket).await
        });
    }
    until("records arrive", || server.in_use() > MEMORY / 2).await;
    server.assert_serves(&client).await;
    // A long call waits until stalled connections have been closed.
    let data = Bytes::from(vec![7; 100_000]);
    echo(&client, data, None).await.unwrap();
    assert!(floods.join_next().await.unwrap().unwrap(), "a stalled connection must be closed");
    server.assert_bounded();
}

#[tokio::test]
async fn calls_in_progress_stay_within_memory_limit_and_are_answered() {
    let server = LimitedServer::start(ConnectionLimits::default(), Hosts::all());
    let client = server.client().await;
    let (connections, calls) = (30, 20);
    let mut floods = JoinSet::new();
    for connection in 0..connections {
        let socket = connect_from(2 + connection, server.address).await;
        floods.spawn(async move {
            let (mut read, mut write) = socket.into_split();
            let writer = tokio::spawn(async move {
                for xid in 0..calls {
                    write.write_all(&call(xid, common::GATE, &[0; 100_000])).await.unwrap();
                }
                write
            });
            for _ in 0..calls {
                read.read_exact(&mut [0; 4 + 24]).await.unwrap();
            }
            drop(writer.await);
        });
    }
    let most = MEMORY / 100_000;
    until("calls arrive", || server.counter.at_gate() > most / 4).await;
    server.assert_serves(&client).await;
    assert!(server.counter.at_gate() <= most, "{} calls in progress", server.counter.at_gate());
    server.counter.open_gate();
    while let Some(answered) = floods.join_next().await {
        answered.unwrap();
    }
    until("buffers return to the pool", || server.in_use() == 0).await;
}

#[tokio::test]
async fn unread_replies_stay_within_memory_limit() {
    let server = LimitedServer::start(ConnectionLimits::default(), Hosts::all());
    let client = server.client().await;
    let mut floods = JoinSet::new();
    for connection in 0..60 {
        let mut socket = connect_from(2 + connection % 20, server.address).await;
        floods.spawn(async move {
            let mut encoder = Encoder::default();
            // Each call fills a buffer of 128 KiB, so that the bytes charged are the bytes in use.
            encoder.opaque(&vec![1; 130_000]);
            let arguments = encoder.finish().stream;
            for xid in 0..400 {
                if socket.write_all(&call(xid, common::ECHO, &arguments)).await.is_err() {
                    return;
                }
            }
            std::future::pending::<()>().await;
        });
    }
    until("replies are queued", || server.in_use() > MEMORY / 2).await;
    server.assert_serves(&client).await;
    let closed = tokio::time::timeout(Duration::from_secs(120), floods.join_next()).await;
    closed.expect("a connection that reads nothing must be closed").unwrap().unwrap();
    server.assert_serves(&client).await;
}

#[tokio::test]
async fn host_that_opens_all_connections_does_not_lock_out_others() {
    let limits = ConnectionLimits { per_host: 40, ..ConnectionLimits::total(50) };
    let server = LimitedServer::start(limits, Hosts::all());
    let client = server.client().await;
    add(&client, 1).await.unwrap();
    let kept = client.transport().unwrap();
    let mut silent = Vec::new();
    for connection in 0..300u16 {
        silent.push(connect_from(2 + (connection % 2) as u8, server.address).await);
    }
    let other = server.client().await;
    add(&other, 1).await.unwrap();
    // Each of the first 250 connections was evicted for a later one.
    for mut socket in silent.drain(..250) {
        assert!(is_closed(&mut socket).await);
    }
    add(&client, 1).await.unwrap();
    assert!(Arc::ptr_eq(&kept, &client.transport().unwrap()), "a connection in use must not be evicted");
}

#[tokio::test]
async fn host_with_only_busy_connections_does_not_lock_out_others() {
    let server = LimitedServer::start(ConnectionLimits { per_host: 8, ..ConnectionLimits::total(8) }, Hosts::all());
    let mut busy = Vec::new();
    for connection in 0..8 {
        let mut socket = connect_from(2, server.address).await;
        socket.write_all(&call(1, common::NEVER, &[])).await.unwrap();
        // The reply to a later call shows that the first call is in progress.
        socket.write_all(&call(2, common::ADD, &0u64.to_be_bytes())).await.unwrap();
        socket.read_exact(&mut [0; 4 + 24 + 8]).await.unwrap();
        assert!(connection < 8);
        busy.push(socket);
    }
    assert!(
        is_closed(&mut connect_from(2, server.address).await).await,
        "a host's own busy connections must not be evicted"
    );
    add(&server.client().await, 1).await.unwrap();
    assert!(is_closed(&mut busy[0]).await);
}

/// A service that counts how many of its calls are in progress at the same time.
#[derive(Default)]
struct Concurrency {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Concurrency {
    const PROGRAM: u32 = 0x2000_0002;

    async fn execute(&self, call: Call<'_>) -> Result<Message, AcceptError> {
        let now = self.now.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(now, SeqCst);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.now.fetch_sub(1, SeqCst);
        Ok(call.reply(&(self.most.load(SeqCst) as u32)))
    }
}

impl Service for Concurrency {
    fn program(&self) -> u32 {
        Self::PROGRAM
    }

    fn versions(&self) -> std::ops::RangeInclusive<u32> {
        1..=1
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        (procedure == 1).then_some(Procedure { name: "CONCURRENCY", idempotent: true })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(self.execute(call)))
    }
}

/// Sends many calls at once. Returns the maximum number of calls in progress.
async fn max_in_progress(mut socket: TcpStream) -> u32 {
    let calls = 40;
    let wire: Vec<u8> = (0..calls).flat_map(|xid| call_to(Concurrency::PROGRAM, xid, 1, &[])).collect();
    socket.write_all(&wire).await.unwrap();
    let mut most = 0;
    for _ in 0..calls {
        let mut reply = [0; 4 + 24 + 4];
        socket.read_exact(&mut reply).await.unwrap();
        most = u32::from_be_bytes(reply[28..].try_into().unwrap());
    }
    most
}

#[tokio::test]
async fn unadmitted_host_has_low_limits_on_calls_messages_and_connections() {
    let server =
        LimitedServer::start(ConnectionLimits::default(), Hosts::admitted_by(|ip| ip.to_string() == "127.0.0.1"));
    assert_eq!(max_in_progress(connect_from(2, server.address).await).await, 4);
    assert!(
        max_in_progress(connect_from(1, server.address).await).await > 4,
        "an admitted host must have a higher limit"
    );

    let mut long = connect_from(2, server.address).await;
    long.write_all(&call(1, common::ECHO, &[0; 20_000])[..100]).await.unwrap();
    assert!(is_closed(&mut long).await);
    echo(&server.client().await, Bytes::from(vec![7; 20_000]), None).await.unwrap();

    let mut connections = Vec::new();
    for _ in 0..20 {
        connections.push(connect_from(2, server.address).await);
    }
    for socket in &mut connections[..4] {
        assert!(is_closed(socket).await, "the host can have at most 16 connections");
    }
    // The last connections are served, but the duplicate request cache does not keep their replies.
    for socket in &mut connections[18..] {
        socket.write_all(&call(1, common::ADD, &1u64.to_be_bytes())).await.unwrap();
        socket.read_exact(&mut [0; 4 + 24 + 8]).await.unwrap();
    }
    assert_eq!(server.counter.value(), 2);
    for mut socket in [connect_from(1, server.address).await, connect_from(1, server.address).await] {
        socket.write_all(&call(1, common::ADD, &1u64.to_be_bytes())).await.unwrap();
        socket.read_exact(&mut [0; 4 + 24 + 8]).await.unwrap();
    }
    assert_eq!(server.counter.value(), 3, "a retransmitted call of an admitted host must be executed once");
}
