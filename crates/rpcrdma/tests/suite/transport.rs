//! Tests of the transport over the simulated network: with its tasks and timers, real queue pairs, and virtual time.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::common::echo::*;
use buf::{Buffer, Pool, Rope};
use bytes::Bytes;
use rdma::{
    BoxFuture, Completion, CompletionKind, Connected, Listener, Provider, ProviderCaps, QpOptions, QueuePair,
    RemoteSegment, Stag, WorkId, WorkRequest,
    hook::{Hook, Hooked, QpId, Verdict},
    sim::{Cut, NetworkOptions, Sim},
};
use rpc::{Hosts, RawOptions, Transport, TransportError, TransportKind};
use rpcrdma::{
    Design, Options, RdmaKind,
    chunk::{Chunk, Lists, Segment, WriteList},
    header::{Body, Header},
};
use tokio::task::JoinHandle;
use xdr::Message;

struct World {
    sim: Sim,
    server: SocketAddr,
    client_pool: Pool,
    server_pool: Pool,
    client: RdmaKind,
    listener: JoinHandle<()>,
}

impl World {
    /// Creates a client, and a server that answers every call.
    fn new(options: NetworkOptions) -> Self {
        Self::with(Sim::new(options), Options::default(), Options::default())
    }

    fn with(sim: Sim, client: Options, server: Options) -> Self {
        Self::with_client(Arc::new(sim.clone()), sim, client, server)
    }

    /// Creates a client with a provider of its own, and a server.
    fn with_client(provider: Arc<dyn Provider>, sim: Sim, client: Options, server: Options) -> Self {
        let (client_pool, server_pool) = (Pool::default(), Pool::default());
        let server = RdmaKind::new(Arc::new(sim.clone()), server).with_pool(server_pool.clone());
        let client = RdmaKind::new(provider, client).with_pool(client_pool.clone());
        let mut listener = server.listen("10.0.0.1:0".parse().unwrap()).unwrap();
        let at = listener.local_addr();
        let listener = tokio::spawn(async move {
            loop {
                let incoming = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    if let Ok(transport) = incoming.set_up(Hosts::all()).await {
                        drive(transport).await;
                    }
                });
            }
        });
        Self { sim, server: at, client_pool, server_pool, client, listener }
    }

    async fn connect(&self) -> Arc<dyn Transport> {
        let transport = self.client.connect(self.server).await.unwrap();
        tokio::spawn(drive(transport.clone()));
        transport
    }

    /// Cuts all connections, and checks that every buffer has returned to its pool.
    async fn assert_no_leak(self) {
        self.sim.network().cut_all();
        self.listener.abort();
        let _ = self.listener.await;
        tokio::time::sleep(Duration::from_secs(1)).await; // The tasks detect the cut.
        assert_eq!(self.sim.network().connections(), 0);
        for (side, pool) in [("client", self.client_pool), ("server", self.server_pool)] {
            let stats = pool.stats();
            assert_eq!(stats.free, stats.mapped, "the {side} must not leak buffers");
        }
    }
}

#[simnet::test]
async fn concurrent_calls_of_all_sizes_are_answered() {
    calls_of_all_sizes(World::new(NetworkOptions::default())).await;
}

async fn calls_of_all_sizes(world: World) {
    let transport = world.connect().await;
    let calls = (0..200u32).map(|xid| {
        let transport = transport.clone();
        tokio::spawn(async move {
            let (want, words, payload) = SIZES[xid as usize % SIZES.len()];
            let payload = Bytes::from(vec![xid as u8; payload]);
            let sum = payload.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            let reply = transport.clone().call(call(xid, want, words, payload), plan(want, words)).await.unwrap();
            check(&reply, xid, want, words, sum);
            let payload = reply.message.payloads.first();
            let placed = reply.sink.as_ref().zip(payload).is_some_and(|(sink, payload)| sink.holds(&payload.data));
            assert_eq!(placed, want > 4000, "large payloads, and no others, must be placed in the sink");
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    drop(transport);
    world.assert_no_leak().await;
}

#[simnet::test]
async fn cut_at_any_message_ends_all_calls_and_leaks_no_buffer() {
    async fn run(options: Options, cut: Option<(u64, Cut)>) -> u64 {
        let world = World::with(Sim::new(NetworkOptions::default()), options.clone(), options);
        if let Some((message, cut)) = cut {
            world.sim.network().cut_at(message, cut);
        }
        let transport = world.connect().await;
        let calls = (0..SIZES.len() as u32).map(|xid| {
            let transport = transport.clone();
            tokio::spawn(async move {
                let (want, words, payload) = SIZES[xid as usize];
                let message = call(xid, want, words, Bytes::from(vec![0; payload]));
                match transport.clone().call(message, plan(want, words)).await {
                    Ok(reply) => check(&reply, xid, want, words, 0),
                    Err(error) => {
                        assert!(matches!(error.error, TransportError::Lost(_)), "{error:?}");
                        assert_eq!(error.sink.map_or(0, |sink| sink.len()), want);
                    }
                }
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        drop(transport);
        let messages = world.sim.network().messages();
        world.assert_no_leak().await;
        messages
    }
    for options in [Options::default(), read_read()] {
        let messages = run(options.clone(), None).await;
        assert!(messages > 25, "{messages}");
        for message in 0..messages {
            run(options.clone(), Some((message, Cut::Before))).await;
            run(options.clone(), Some((message, Cut::After))).await;
        }
    }
}

#[simnet::test]
async fn cancelled_call_leaks_no_buffer_and_leaves_the_connection_usable() {
    for after_ms in [0, 1, 3, 5, 8, 12, 20, 30] {
        let world = World::new(NetworkOptions::default());
        let transport = world.connect().await;
        let cancelled =
            transport.clone().call(call(1, 100_000, 2000, Bytes::from(vec![1; 100_000])), plan(100_000, 2000));
        let _ = tokio::time::timeout(Duration::from_millis(after_ms), cancelled).await;
        let reply = transport.clone().call(call(2, 7, 0, Bytes::from_static(b"\x05")), plan(7, 0)).await.unwrap();
        check(&reply, 2, 7, 0, 5);
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop((reply, transport));
        world.assert_no_leak().await;
    }
}

#[simnet::test]
async fn close_ends_both_sides_and_pending_calls() {
    let world = World::new(NetworkOptions::default());
    let transport = world.client.connect(world.server).await.unwrap();
    let driver = tokio::spawn(drive(transport.clone()));
    let pending = tokio::spawn({
        let transport = transport.clone();
        async move { transport.clone().call(call(1, 9000, 0, Bytes::new()), plan(9000, 0)).await }
    });
    tokio::task::yield_now().await;
    transport.close();
    assert!(matches!(driver.await.unwrap(), TransportError::Lost(_)));
    let error = pending.await.unwrap().unwrap_err();
    assert_eq!(error.sink.unwrap().len(), 9000);
    let late = transport.clone().call(call(2, 0, 0, Bytes::new()), plan(0, 0)).await.unwrap_err();
    assert!(matches!(late.error, TransportError::Lost(_)));
    drop(transport);
    world.assert_no_leak().await;
}

/// A provider whose queue pairs have short send queues.
struct ShortSendQueues(Sim);

impl Provider for ShortSendQueues {
    fn caps(&self) -> ProviderCaps {
        self.0.caps()
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        self.0.listen(local)
    }

    fn connect<'a>(
        &'a self,
        remote: SocketAddr,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Connected>> {
        let options = QpOptions { send_queue: 2, ..options.clone() };
        Box::pin(async move { self.0.connect(remote, &options, private_data, recvs).await })
    }
}

/// Counts the posts of work requests, and the completions of those that the send queue had room for.
#[derive(Default)]
struct Posts {
    attempts: AtomicUsize,
    completed: AtomicUsize,
}

impl Hook for Posts {
    fn posted(&self, _: QpId, _: &WorkRequest) -> Verdict {
        self.attempts.fetch_add(1, Relaxed);
        Verdict::Pass
    }

    fn completed(&self, _: QpId, completion: &Completion) -> Verdict {
        let is_receive = matches!(completion.kind, CompletionKind::Receive { .. });
        self.completed.fetch_add(usize::from(!is_receive), Relaxed);
        Verdict::Pass
    }
}

#[simnet::test]
async fn calls_succeed_with_few_credits_a_full_send_queue_and_no_private_data() {
    let sim = Sim::new(NetworkOptions::default()).with_private_data_max(4);
    let posts = Arc::new(Posts::default());
    let provider = Arc::new(Hooked::new(ShortSendQueues(sim.clone()), posts.clone()));
    let world = World::with_client(provider, sim, Options::default(), Options::default());
    let raw = RawOptions::from([("credits".to_owned(), "2".to_owned()), ("min_chunk".to_owned(), "1".to_owned())]);
    let kind = world.client.with_options(&raw).unwrap();
    let transport = kind.connect(world.server).await.unwrap();
    tokio::spawn(drive(transport.clone()));
    let calls = (0..50u32).map(|xid| {
        let transport = transport.clone();
        tokio::spawn(async move {
            // The network has no room for private data, so the inline threshold is 1024 bytes.
            let (want, words) = (600, 200);
            let reply =
                transport.clone().call(call(xid, want, words, Bytes::from_static(b"\x03")), plan(want, words)).await;
            check(&reply.unwrap(), xid, want, words, 3);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    // All work has completed, so the other attempts found the send queue full.
    let rejected = posts.attempts.load(Relaxed) - posts.completed.load(Relaxed);
    assert!(rejected > 0, "{} posts", posts.attempts.load(Relaxed));
    drop((transport, kind));
    world.assert_no_leak().await;
}

#[simnet::test]
async fn connection_setup_times_out_on_both_sides() {
    let sim = Sim::new(NetworkOptions::default());
    let kind = RdmaKind::new(Arc::new(sim.clone()), Options::default());
    let mut listener = kind.listen("10.0.0.1:0".parse().unwrap()).unwrap();
    // The server does not accept the connection.
    let error = kind.connect(listener.local_addr()).await.err().unwrap();
    assert!(matches!(&error, TransportError::Connect(why) if why.contains("timed out")), "{error}");
    // The client has given up.
    assert!(listener.accept().await.unwrap().set_up(Hosts::all()).await.is_err());
    let refused = kind.connect("10.0.0.1:9".parse().unwrap()).await.err().unwrap();
    assert!(matches!(refused, TransportError::Connect(_)));
}

#[simnet::test]
async fn message_limit_is_lower_for_unadmitted_hosts() {
    let sim = Sim::new(NetworkOptions::default());
    let kind = RdmaKind::new(Arc::new(sim.clone()), Options::default());
    let mut listener = kind.listen("10.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr();
    for (hosts, message_max) in
        [(Hosts::admitted_by(|_| false), 64 << 10), (Hosts::all(), Options::default().message_max)]
    {
        let accepting = async {
            let incoming = listener.accept().await.unwrap();
            assert_eq!(incoming.peer().map(|peer| peer.user), Some(None));
            incoming.set_up(hosts).await.unwrap()
        };
        let (near, far) = tokio::join!(kind.connect(at), accepting);
        assert_eq!(far.caps().message_max, message_max);
        far.abort();
        let error = std::future::poll_fn(|cx| far.poll_recv(cx)).await.unwrap_err();
        assert!(matches!(error, TransportError::Lost(_)), "{error}");
        drop(near.unwrap());
    }
}

fn read_read() -> Options {
    Options { design: Design::ReadRead, allow_read_read: true, ..Options::default() }
}

#[simnet::test]
async fn read_read_is_used_if_both_ends_request_it() {
    let asking = Options { allow_read_read: false, ..read_read() };
    calls_of_all_sizes(World::with(Sim::new(NetworkOptions::default()), asking, read_read())).await;
    // A client that does not request Read-Read uses Read-Write.
    calls_of_all_sizes(World::with(Sim::new(NetworkOptions::default()), Options::default(), read_read())).await;
}

#[simnet::test]
async fn read_read_is_refused_if_one_end_does_not_allow_it() {
    let world = World::with(Sim::new(NetworkOptions::default()), read_read(), Options::default());
    let error = world.client.connect(world.server).await.err().unwrap().to_string();
    assert!(error.contains("the server does not offer it") && error.contains("allow_read_read=on"), "{error}");
    let raw = RawOptions::from([("design".to_owned(), "read-read".to_owned())]);
    let kind = world.client.with_options(&raw).unwrap().with_options(&[("allow_read_read", "off")].map(owned).into());
    let error = kind.unwrap().listen("10.0.0.1:0".parse().unwrap()).err().unwrap().to_string();
    assert!(error.contains("allow_read_read=on") && error.contains("RDMA_DONE"), "{error}");
    world.assert_no_leak().await;
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[simnet::test]
async fn client_that_never_sends_rdma_done_is_disconnected_without_effect_on_others() {
    let world = World::with(Sim::new(NetworkOptions::default()), read_read(), read_read());
    let honest = world.connect().await;
    let mut hostile = Hostile::connect(&world).await;
    hostile.send(7, Body::Msg(Lists::default()), &call(7, 100_000, 0, Bytes::new()).stream);
    let began = tokio::time::Instant::now();
    let reply = honest.clone().call(call(1, 50_000, 10, Bytes::from(vec![2; 50_000])), plan(50_000, 10)).await;
    check(&reply.unwrap(), 1, 50_000, 10, (50_000u32 * 2) as u8);
    hostile.wait_for_disconnect().await;
    let waited = began.elapsed();
    assert!(waited >= read_read().peer_timeout && waited < 2 * read_read().peer_timeout, "{waited:?}");
    drop((hostile, honest));
    world.assert_no_leak().await;
}

/// A client that can send any message.
struct Hostile {
    qp: Box<dyn QueuePair>,
}

impl Hostile {
    async fn connect(world: &World) -> Self {
        let data = read_read().private_data().encode();
        let receives = (0..300).map(|id| (WorkId(id), Buffer::zeroed(4096))).collect();
        let connected = world.sim.connect(world.server, &QpOptions::default(), &data, receives).await.unwrap();
        Self { qp: connected.qp }
    }

    fn send(&mut self, xid: u32, body: Body, stream: &[u8]) {
        let header = Message::encode(&Header { xid: rpc::Xid(xid), credits: 1, body }).stream;
        self.send_bytes([&header[..], stream].concat().into());
    }

    fn send_bytes(&mut self, bytes: Bytes) {
        let data = Rope::from(bytes);
        self.qp.post(WorkRequest::Send { id: WorkId(1), data, invalidate: None, solicited: false }).unwrap();
    }

    /// Waits until the server disconnects the client.
    async fn wait_for_disconnect(&mut self) {
        let mut completions = Vec::new();
        let ended = async { while poll_fn(|cx| self.qp.poll_completions(cx, &mut completions)).await.is_ok() {} };
        tokio::time::timeout(Duration::from_secs(200), ended).await.expect("the server must disconnect the client");
    }
}

#[simnet::test]
async fn hostile_client_is_disconnected_without_effect_on_others() {
    let world = World::new(NetworkOptions::default());
    let honest = world.connect().await;
    let segment = |handle: u32, length: u32| Segment { handle: Stag(handle), length, offset: 0 };
    let reads = move |position: u32, length: u32| {
        let mut lists = Lists::default();
        lists.reads.push(position, segment(0xbad, length)).unwrap();
        lists
    };
    let plain = call(7, 0, 0, Bytes::new()).stream;
    type Attack = Box<dyn Fn(&mut Hostile)>;
    let attacks: Vec<Attack> = vec![
        Box::new(|hostile| hostile.send_bytes(Bytes::from_static(b"short"))),
        Box::new(|hostile| hostile.send_bytes(vec![0; 4097].into())),
        // Read chunks, a write chunk and a reply chunk whose memory is not exposed.
        Box::new(move |hostile| hostile.send(7, Body::Msg(reads(20, 8)), &call(7, 0, 0, vec![0; 8].into()).stream)),
        Box::new(move |hostile| hostile.send(7, Body::NoMsg(reads(0, 100_000)), &[])),
        Box::new(move |hostile| {
            let writes = WriteList::new([Chunk::new([segment(1, 900)])]);
            let stream = call(7, 900, 0, Bytes::new()).stream;
            hostile.send(7, Body::Msg(Lists { writes, ..Lists::default() }), &stream);
        }),
        Box::new(move |hostile| {
            let reply = Some(Chunk::new([segment(1, 1 << 20)]));
            let stream = call(7, 0, 4000, Bytes::new()).stream.slice(..20);
            hostile.send(7, Body::Msg(Lists { reply, ..Lists::default() }), &stream);
        }),
        // More calls than the client has credits.
        Box::new(move |hostile| (0..300).for_each(|_| hostile.send(7, Body::Msg(Lists::default()), &plain))),
        // An RDMA Write into the server.
        Box::new(|hostile| {
            let to = RemoteSegment { stag: Stag(0x100), offset: 0 };
            let data = Rope::from(Bytes::from_static(b"mine"));
            hostile.qp.post(WorkRequest::Write { id: WorkId(1), data, to }).unwrap();
        }),
    ];
    for (number, attack) in attacks.iter().enumerate() {
        let mut hostile = Hostile::connect(&world).await;
        attack(&mut hostile);
        hostile.wait_for_disconnect().await;
        drop(hostile);
        let reply =
            honest.clone().call(call(number as u32, 50_000, 10, Bytes::from(vec![2; 50_000])), plan(50_000, 10)).await;
        check(&reply.unwrap(), number as u32, 50_000, 10, (50_000u32 * 2) as u8);
    }
    drop(honest);
    world.assert_no_leak().await;
}

/// Checks the memory limit of calls. Calls whose data the server has read hold memory until they are answered, and
/// calls that request data until the replies have been sent. All connections of a host together get a part of the
/// memory; the other calls wait and then proceed.
#[simnet::test]
async fn memory_of_calls_is_limited_over_all_connections() {
    memory_of_calls(200_000, 10).await;
    memory_of_calls(10, 200_000).await;
}

async fn memory_of_calls(sent: usize, wanted: usize) {
    const CALL: usize = 200_000;
    let options = Options { message_max: 300_000, call_memory: 8 << 20, ..Options::default() };
    let (sim, pool) = (Sim::new(NetworkOptions::default()), Pool::default());
    let server = RdmaKind::new(Arc::new(sim.clone()), options.clone()).with_pool(pool.clone());
    let client = RdmaKind::new(Arc::new(sim), options);
    let mut listener = server.listen("10.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr();
    let (held, mut calls) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let incoming = listener.accept().await.unwrap();
            let held = held.clone();
            tokio::spawn(async move {
                let transport = incoming.set_up(Hosts::all()).await.unwrap();
                while let Ok(call) = poll_fn(|cx| transport.poll_recv(cx)).await {
                    let _ = held.send((transport.clone(), call));
                }
            });
        }
    });
    let mut answered = Vec::new();
    for xid in 0..40 {
        let transport = client.connect(at).await.unwrap();
        tokio::spawn(drive(transport.clone()));
        for xid in [2 * xid, 2 * xid + 1] {
            let transport = transport.clone();
            answered.push(tokio::spawn(async move {
                let reply = transport.clone().call(call(xid, wanted, 0, vec![1; sent].into()), plan(wanted, 0)).await;
                check(&reply.unwrap(), xid, wanted, 0, (sent % 256) as u8);
            }));
        }
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut unanswered: Vec<_> = std::iter::from_fn(|| calls.try_recv().ok()).collect();
    let used = pool.stats().mapped - pool.stats().free;
    // One host can use half of 8 MiB, which is less than one call of each connection needs.
    assert!((16..=4_194_304 / CALL).contains(&unanswered.len()), "{} calls are in service", unanswered.len());
    assert!(used <= 6 << 20, "{used} bytes are in use");
    for _ in 0..answered.len() {
        let (transport, call) = match unanswered.pop() {
            Some(held) => held,
            None => calls.recv().await.unwrap(),
        };
        transport.reply(call.token, answer(&call.message)).unwrap();
        drop(call.message);
        while let Ok(more) = calls.try_recv() {
            unanswered.push(more);
        }
        assert!(pool.stats().mapped - pool.stats().free <= 6 << 20);
    }
    for call in answered {
        call.await.unwrap();
    }
}
