//! Tests of a flavour that negotiates, numbers its transmissions and wraps bodies, over every transport.

use std::{
    fs::File,
    io::Write as _,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use buf::{Buffer, FileRange, Rope};
use bytes::Bytes;
use nfs::{
    mount::{Dirpath, MountProc3, MountRes},
    v3::*,
};
use rdma::sim::{NetworkOptions, Sim};
use rpc::{
    AcceptError, AcceptStat, Answer, Answering, AuthStat, Call, CallFailed, CallOptions, Client, ClientError,
    ClientOptions, Credential, Identity, Procedure, RejectStat, ReplyHeader, ReplyPlan, Server, ServerBuilder, Service,
    TcpKind, Transport, TransportKind, UdpKind,
    security::{ClientFlavor, Transmission},
};
use rpcrdma::{Options, RdmaKind};
use server::{Export, ExportId, ExportOptions, HandleKey, NfsServer, Sec, SecFlavors};
use testkit::{
    flavor::{Level, MAX_SEQUENCE, TestClient, TestServer},
    process::serve,
};
use tokio::task::JoinSet;
use vfs::memory::{Memory, MemoryOptions};
use xdr::{Decode, Encode, Encoder, Located, Message, Payload, PlacedPayload};

type Data = Payload<{ 1 << 20 }>;

const PROGRAM: u32 = 0x2000_0007;
/// A procedure that adds, and returns the sum; it is not idempotent.
const ADD: u32 = 1;
const ECHO: u32 = 2;
/// A procedure that returns the content of a file, as a file range.
const FILE: u32 = 3;
/// A procedure that returns the caller's name.
const NAME: u32 = 4;

const SECRET: u64 = 0x5ec2e7;
const TRANSPORTS: [&str; 3] = ["tcp", "udp", "rdma"];
const LEVELS: [Level; 3] = [Level::Header, Level::Integrity, Level::Privacy];

#[derive(Default)]
struct Counter {
    sum: AtomicU64,
    file: Option<FileRange>,
}

impl Service for Counter {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        let names = ["NULL", "ADD", "ECHO", "FILE", "NAME"];
        names.get(procedure as usize).map(|name| Procedure { name, idempotent: procedure != ADD })
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            match call.procedure {
                ADD => {
                    let add = u64::decode(&mut call.arguments)?;
                    call.arguments.finish()?;
                    Ok(call.reply(&(self.sum.fetch_add(add, SeqCst) + add)))
                }
                ECHO => {
                    let data = Data::decode(&mut call.arguments)?;
                    call.arguments.finish()?;
                    Ok(call.reply(&data))
                }
                FILE if call.is_wrapped && call.takes_file_ranges() => Err(AcceptError::SystemErr),
                FILE => Ok(call.reply(&Data::from(Rope::from(self.file.clone().expect("service must have a file"))))),
                NAME => {
                    let Identity::Principal(principal) = call.caller else { return Err(AcceptError::SystemErr) };
                    Ok(call.reply(&Data::from(principal.name.clone())))
                }
                _ => Ok(call.reply(&())),
            }
        }))
    }
}

/// A server of some services, and its address.
struct Rig {
    kind: Arc<dyn TransportKind>,
    address: SocketAddr,
    flavor: Arc<TestServer>,
    sim: Option<Sim>,
    _process: JoinSet<()>,
}

impl Rig {
    fn new(transport: &str, services: Vec<Arc<dyn Service>>) -> Self {
        let sim = (transport == "rdma").then(|| Sim::new(NetworkOptions::default()));
        let kind: Arc<dyn TransportKind> = match &sim {
            Some(sim) => Arc::new(RdmaKind::new(Arc::new(sim.clone()), Options::default())),
            None if transport == "tcp" => Arc::new(TcpKind::default()),
            None => Arc::new(UdpKind::default()),
        };
        let flavor = TestServer::new("alice", SECRET);
        let builder = services.into_iter().fold(Server::builder(), ServerBuilder::shared);
        let server = builder.flavor(flavor.clone()).build();
        let address = if sim.is_some() { "10.0.0.1:0" } else { "127.0.0.1:0" };
        let listener = kind.listen(address.parse().unwrap()).unwrap();
        let address = listener.local_addr();
        let mut process = JoinSet::new();
        process.spawn(serve(listener, server));
        Self { kind, address, flavor, sim, _process: process }
    }

    async fn client(&self, flavor: &Arc<TestClient>) -> Client {
        let options = ClientOptions {
            credential: Credential::Flavor(flavor.clone()),
            retransmit: Duration::from_millis(50),
            ..ClientOptions::new(PROGRAM, 1)
        };
        Client::connect(self.kind.clone(), self.address, options).await.unwrap()
    }

    /// Returns the largest payload of the transport.
    fn payload_max(&self) -> usize {
        if self.kind.name() == "udp" { 8192 } else { 1 << 20 }
    }
}

/// Runs a test: over the simulated network in a simulation.
fn run<F: Future<Output = ()>>(transport: &str, test: impl FnOnce() -> F) {
    if transport == "rdma" {
        return simnet::simulate(0, test);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(3600), test()).await.unwrap() });
}

/// Runs a test of a counter over every transport.
fn over_all(test: impl AsyncFn(&Rig, &Counter)) {
    for transport in TRANSPORTS {
        run(transport, || async {
            let counter = Arc::new(Counter::default());
            test(&Rig::new(transport, vec![counter.clone()]), &counter).await;
        });
    }
}

async fn add(client: &Client, add: u64) -> Result<u64, ClientError> {
    Ok(client.call(ADD, &add, ReplyPlan::default(), CallOptions::default()).await?.results)
}

fn locate<R: Decode>(prefix: &Bytes) -> Option<Located> {
    Message::locate::<R>(prefix, |decoder| ReplyHeader::decode(decoder).map(drop))
}

fn plan(len: usize) -> ReplyPlan {
    ReplyPlan { inline_max: 64, payload_max: len, sink: Some(Buffer::zeroed(len).into()), locate: Some(locate::<Data>) }
}

async fn echo(client: &Client, data: &Bytes) -> Result<Answer<Data>, CallFailed> {
    client.call(ECHO, &Data::from(data.clone()), plan(data.len()), CallOptions::default()).await
}

fn pattern(len: usize) -> Bytes {
    (0..len as u64).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect::<Vec<_>>().into()
}

#[test]
fn payloads_are_placed_only_without_wrapping() {
    over_all(async |rig, _| {
        for level in LEVELS {
            let client = rig.client(&TestClient::new("alice", SECRET, level)).await;
            for len in [0, 1, 500, 8192, rig.payload_max()] {
                let data = pattern(len);
                let answer = echo(&client, &data).await.unwrap();
                assert_eq!(answer.results.0.to_bytes().unwrap(), data);
                let sink = answer.sink.expect("the caller's buffer must return");
                if len == 1 << 20 {
                    assert_eq!(
                        sink.holds(&answer.results.0),
                        level == Level::Header,
                        "{level:?} over {}",
                        rig.kind.name()
                    );
                }
                drop(answer.results);
                assert_eq!(sink.into_region().unwrap().len(), len);
            }
            let named = client.call::<Data>(NAME, &(), ReplyPlan::default(), CallOptions::default()).await;
            assert_eq!(&named.unwrap().results.0.to_bytes().unwrap()[..], b"alice");
            client.call::<()>(0, &(), ReplyPlan::default(), CallOptions::default()).await.expect("NULL must succeed");
        }
        assert_eq!(rig.flavor.contexts_made(), LEVELS.len() as u32);
    });
}

#[test]
fn concurrent_calls_share_one_negotiation() {
    over_all(async |rig, counter| {
        let client = rig.client(&TestClient::new("alice", SECRET, Level::Integrity)).await;
        let mut calls = JoinSet::new();
        for _ in 0..10 {
            let client = client.clone();
            calls.spawn(async move { add(&client, 1).await });
        }
        while let Some(sum) = calls.join_next().await {
            sum.unwrap().unwrap();
        }
        assert_eq!((rig.flavor.contexts_made(), counter.sum.load(SeqCst)), (1, 10));
    });
}

/// Runs READ and WRITE of a real server, in all sizes.
#[test]
fn an_nfs_server_reads_and_writes_at_every_level() {
    for transport in TRANSPORTS {
        run(transport, || async {
            let vfs = Memory::new(MemoryOptions { mode: 0o777, ..MemoryOptions::default() });
            let sec = SecFlavors::new(vec![Sec::Krb5, Sec::Krb5i, Sec::Krb5p]).unwrap();
            let options = ExportOptions { sec, ..ExportOptions::default() };
            let export = Export::new("/m", ExportId::of(&[b"m"]), Arc::new(vfs), options).unwrap();
            let nfs = NfsServer::new(export, HandleKey::random());
            let rig = Rig::new(transport, nfs.services());
            for level in LEVELS {
                let client = rig.client(&TestClient::new("alice", SECRET, level)).await;
                reads_and_writes(&client, &format!("{level:?}"), rig.payload_max()).await;
            }
        });
    }
}

async fn reads_and_writes(client: &Client, name: &str, largest: usize) {
    let (mount, nfs) = (client.with_program(nfs::MOUNT_PROGRAM, 3), client.with_program(nfs::NFS_PROGRAM, 3));
    let short = || ReplyPlan { inline_max: 1024, ..ReplyPlan::default() };
    let once = CallOptions::default;
    let root = mount.call::<MountRes>(MountProc3::Mnt as u32, &Dirpath::from("/m"), short(), once()).await;
    let MountRes::Ok(root) = root.unwrap().results else { panic!("the root must be exported") };
    let what = Diropargs3 { dir: root.fhandle, name: name.into() };
    let how = CreateHow3::Unchecked(Sattr3 { mode: Some(0o644), ..Default::default() });
    let args = CreateArgs { what, how };
    let made = nfs.call::<<Create as Procedure3>::Res>(Create::NUMBER as u32, &args, short(), once());
    let file = made.await.unwrap().results.into_result().unwrap().obj.unwrap();
    for len in [1, 700, 8192, largest] {
        let data = pattern(len);
        let (stable, count) = (StableHow::FileSync, len as u32);
        let args = WriteArgs { file: file.clone(), offset: 0, count, stable, data: data.clone().into() };
        let wrote = nfs.call::<<Write as Procedure3>::Res>(Write::NUMBER as u32, &args, short(), once()).await;
        assert_eq!(wrote.unwrap().results.into_result().unwrap().count, count);
        let plan = ReplyPlan {
            inline_max: 1024,
            payload_max: len,
            sink: Some(Buffer::zeroed(len).into()),
            locate: Some(locate::<<Read as Procedure3>::Res>),
        };
        let args = ReadArgs { file: file.clone(), offset: 0, count };
        let read = nfs.call::<<Read as Procedure3>::Res>(Read::NUMBER as u32, &args, plan, once()).await;
        assert_eq!(read.unwrap().results.into_result().unwrap().data.0.to_bytes().unwrap(), data);
    }
}

/// Returns one transmission of a call, as it is on the wire.
fn transmission(
    flavor: &TestClient,
    (xid, procedure): (u32, u32),
    args: &impl Encode,
) -> (Message, Box<dyn Transmission>) {
    let mut encoder = Encoder::default();
    [xid, 0, 2, PROGRAM, 1, procedure].into_iter().for_each(|word| encoder.u32(word));
    let transmission = flavor.begin(&mut encoder).expect("client must have a context");
    transmission.wrap(Message::encode(args).stream, &mut encoder).unwrap();
    (encoder.finish(), transmission)
}

fn short() -> ReplyPlan {
    ReplyPlan { inline_max: 256, ..ReplyPlan::default() }
}

/// Returns a connection with a context, which the client drives.
async fn prepared(rig: &Rig, flavor: &Arc<TestClient>) -> (Client, Arc<dyn Transport>) {
    let client = rig.client(flavor).await;
    client.call::<()>(0, &(), ReplyPlan::default(), CallOptions::default()).await.unwrap();
    let transport = client.transport().unwrap();
    (client, transport)
}

#[test]
fn a_cached_reply_has_the_verifier_of_its_retransmission() {
    over_all(async |rig, counter| {
        for (round, level) in (1..).zip(LEVELS.into_iter().filter(|level| *level != Level::Header)) {
            let flavor = TestClient::new("alice", SECRET, level);
            let (_client, transport) = prepared(rig, &flavor).await;
            let mut verifiers = Vec::new();
            for _ in 0..3 {
                let (message, sent) = transmission(&flavor, (0x1000, ADD), &5u64);
                let reply = transport.clone().call(message, short()).await.unwrap().message;
                let mut decoder = xdr::Decoder::new(&reply);
                let header = ReplyHeader::decode(&mut decoder).unwrap();
                let rpc::ReplyBody::Accepted { verifier, stat: AcceptStat::Success } = header.body else { panic!() };
                assert!(sent.verifies(&verifier), "the verifier must be of this transmission");
                assert!(!verifiers.contains(&verifier));
                verifiers.push(verifier);
                let results = sent.unwrap(decoder.take_rest()).expect("body must be wrapped for this transmission");
                assert_eq!(Message::from(results).decode::<u64>().unwrap(), 5 * round);
            }
            // The call with another level is another call: a reply to an encrypted call must not be repeated in clear.
            assert_eq!(counter.sum.load(SeqCst), 5 * round, "round {round}: the call must be executed once");
        }
    });
}

#[test]
fn a_replayed_transmission_gets_no_reply() {
    run("tcp", || async {
        let counter = Arc::new(Counter::default());
        let rig = Rig::new("tcp", vec![counter.clone()]);
        let flavor = TestClient::new("alice", SECRET, Level::Integrity);
        let (client, transport) = prepared(&rig, &flavor).await;
        let (message, _) = transmission(&flavor, (0x1000, ADD), &5u64);
        transport.clone().call(message.clone(), short()).await.unwrap();
        let mut replayed = std::pin::pin!(transport.clone().call(message, short()));
        // A connection answers in order, so a reply would arrive before this one's.
        tokio::select! {
            biased;
            _ = &mut replayed => panic!("a replay must be dropped without a reply"),
            sum = add(&client, 1) => assert_eq!(sum.unwrap(), 6),
        }
        assert!(futures_util::FutureExt::now_or_never(replayed).is_none());
    });
}

#[test]
fn a_call_continues_over_a_new_connection_and_with_a_new_context() {
    over_all(async |rig, counter| {
        for level in LEVELS {
            let before = counter.sum.load(SeqCst);
            let flavor = TestClient::new("alice", SECRET, level);
            let client = rig.client(&flavor).await;
            assert_eq!(add(&client, 1).await.unwrap(), before + 1);
            rig.flavor.forget();
            assert_eq!(add(&client, 1).await.unwrap(), before + 2, "the client must negotiate a new context");
            client.transport().unwrap().abort();
            assert_eq!(add(&client, 1).await.unwrap(), before + 3, "the client must reconnect");
            client.transport().unwrap().abort();
            rig.flavor.forget();
            assert_eq!(add(&client, 1).await.unwrap(), before + 4, "both");
            flavor.sequence.store(MAX_SEQUENCE, SeqCst);
            assert_eq!(add(&client, 1).await.unwrap(), before + 5, "an exhausted context must be replaced");
        }
    });
}

#[test]
fn calls_are_executed_once_despite_cut_connections() {
    for seed in 0..4 {
        run("rdma", || async move {
            let counter = Arc::new(Counter::default());
            let rig = Rig::new("rdma", vec![counter.clone()]);
            let client = rig.client(&TestClient::new("alice", SECRET, LEVELS[seed % 3])).await;
            rig.sim.as_ref().unwrap().network().set_cut_probability(0.05);
            for sum in 1..=100 {
                let options = CallOptions { deadline: Some(Duration::from_secs(3000)), ..CallOptions::default() };
                let answer = client.call::<u64>(ADD, &1u64, ReplyPlan::default(), options).await;
                assert_eq!(answer.unwrap().results, sum);
            }
        });
    }
}

#[test]
fn changed_messages_are_rejected() {
    over_all(async |rig, counter| {
        for level in [Level::Integrity, Level::Privacy] {
            counter.sum.store(0, SeqCst);
            let flavor = TestClient::new("alice", SECRET, level);
            let client = rig.client(&flavor).await;
            assert_eq!(add(&client, 1).await.unwrap(), 1);
            flavor.tampers.store(1, SeqCst);
            assert_eq!(add(&client, 2).await.unwrap(), 3, "a changed call must be sent again");
            rig.flavor.tampers.store(2, SeqCst);
            assert_eq!(
                add(&client, 4).await.unwrap(),
                7,
                "a call with a changed reply must be sent again, and executed once"
            );
            flavor.tampers.store(u32::MAX, SeqCst);
            let garbage = add(&client, 8).await.unwrap_err();
            assert!(matches!(garbage, ClientError::NotExecuted(AcceptStat::GarbageArgs)), "{garbage}");
            flavor.tampers.store(0, SeqCst);
            rig.flavor.tampers.store(u32::MAX, SeqCst);
            let security = add(&client, 16).await.unwrap_err();
            assert!(matches!(security, ClientError::Security(_)), "{security}");
            rig.flavor.tampers.store(0, SeqCst);
            assert_eq!(add(&client, 0).await.unwrap(), 23, "invalid calls must not be executed");
        }
    });
}

#[test]
fn forged_verifiers_are_rejected() {
    over_all(async |rig, counter| {
        for level in LEVELS {
            counter.sum.store(0, SeqCst);
            let flavor = TestClient::new("alice", SECRET, level);
            let client = rig.client(&flavor).await;
            assert_eq!(add(&client, 1).await.unwrap(), 1);
            rig.flavor.forges.store(2, SeqCst);
            assert_eq!(add(&client, 2).await.unwrap(), 3, "the call must be sent again, and executed once");
            rig.flavor.forges.store(u32::MAX, SeqCst);
            let security = add(&client, 4).await.unwrap_err();
            assert!(matches!(security, ClientError::Security(_)), "{security}");
            rig.flavor.forges.store(0, SeqCst);
            let contexts = rig.flavor.contexts_made();
            flavor.forges.store(1, SeqCst);
            assert_eq!(add(&client, 8).await.unwrap(), 15, "the call must use a new context");
            assert_eq!(rig.flavor.contexts_made(), contexts + 1);
            flavor.forges.store(u32::MAX, SeqCst);
            let denied = add(&client, 16).await.unwrap_err();
            assert!(matches!(denied, ClientError::Denied(RejectStat::AuthError(AuthStat::GssCredProblem))), "{denied}");
            assert_eq!(counter.sum.load(SeqCst), 15, "forged calls must not be executed");
        }
    });
}

#[test]
fn results_that_cannot_be_wrapped_are_not_sent() {
    run("tcp", || async {
        let counter = Arc::new(Counter::default());
        let rig = Rig::new("tcp", vec![counter.clone()]);
        let flavor = TestClient::new("alice", SECRET, Level::Privacy);
        let (client, transport) = prepared(&rig, &flavor).await;
        rig.flavor.fails.store(1, SeqCst);
        let (message, _) = transmission(&flavor, (0x1000, ADD), &5u64);
        let mut silent = std::pin::pin!(transport.clone().call(message, short()));
        tokio::select! {
            biased;
            _ = &mut silent => panic!("nothing may be sent in clear text"),
            sum = add(&client, 1) => assert_eq!(sum.unwrap(), 6, "the call must be executed"),
        }
        assert!(futures_util::FutureExt::now_or_never(silent).is_none());
        let (message, sent) = transmission(&flavor, (0x1000, ADD), &5u64);
        // A separate connection, because the first one has an outstanding call with this XID.
        let (_client, transport) = prepared(&rig, &flavor).await;
        let again = transport.clone().call(message, short()).await.unwrap().message;
        let mut decoder = xdr::Decoder::new(&again);
        ReplyHeader::decode(&mut decoder).unwrap();
        let sum = Message::from(sent.unwrap(decoder.take_rest()).unwrap()).decode::<u64>();
        assert_eq!(sum.unwrap(), 5, "the results must be cached");
    });
}

#[test]
fn a_wrapped_body_must_be_complete() {
    run("rdma", || async {
        let counter = Arc::new(Counter::default());
        let rig = Rig::new("rdma", vec![counter.clone()]);
        let flavor = TestClient::new("alice", SECRET, Level::Integrity);
        let (_client, transport) = prepared(&rig, &flavor).await;
        let data = Data::from(pattern(16 << 10));
        let args = Encoded(&data);
        let (message, sent) = transmission(&flavor, (0x1000, ECHO), &args);
        // Move the end of the body from the stream into a read chunk.
        let at = message.stream.len() - 8192;
        let placed = PlacedPayload { position: Some(at as u32), data: message.stream.slice(at..).into() };
        let reduced = Message { stream: message.stream.slice(..at), payloads: [placed].into_iter().collect() };
        let plan = || ReplyPlan { inline_max: 32 << 10, ..ReplyPlan::default() };
        let reply = transport.clone().call(reduced, plan()).await.unwrap();
        let header = ReplyHeader::decode(&mut xdr::Decoder::new(&reply.message)).unwrap();
        let rpc::ReplyBody::Accepted { verifier, stat } = header.body else { panic!("{header:?}") };
        assert!(sent.verifies(&verifier));
        assert_eq!(stat, AcceptStat::GarbageArgs);
        let (message, _) = transmission(&flavor, (0x1001, ECHO), &args);
        let reply = transport.clone().call(message, plan()).await.unwrap();
        let header = ReplyHeader::decode(&mut xdr::Decoder::new(&reply.message)).unwrap();
        assert!(
            matches!(header.body, rpc::ReplyBody::Accepted { stat: AcceptStat::Success, .. }),
            "the complete body must be accepted"
        );
    });
}

/// Encodes a value completely in the stream.
struct Encoded<'a>(&'a Data);

impl Encode for Encoded<'_> {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.opaque(&self.0.0.to_bytes().unwrap());
    }
}

#[test]
fn file_ranges_are_read_before_wrapping() {
    let mut file = tempfile::tempfile().unwrap();
    let content = pattern(100_003);
    file.write_all(&content).unwrap();
    let range = |file: &Arc<File>| FileRange { file: file.clone(), offset: 3, len: 100_000 };
    let file = Arc::new(file);
    for transport in ["tcp", "rdma"] {
        run(transport, || async {
            let counter = Counter { file: Some(range(&file)), ..Counter::default() };
            let rig = Rig::new(transport, vec![Arc::new(counter)]);
            for level in LEVELS {
                let client = rig.client(&TestClient::new("alice", SECRET, level)).await;
                let answer = client.call::<Data>(FILE, &(), plan(100_000), CallOptions::default()).await;
                assert_eq!(answer.unwrap().results.0.to_bytes().unwrap(), content.slice(3..));
            }
        });
    }
}

#[test]
fn unauthenticated_calls_are_denied_and_not_executed() {
    over_all(async |rig, counter| {
        for (user, secret) in [("mallory", SECRET), ("alice", SECRET + 1)] {
            let client = rig.client(&TestClient::new(user, secret, Level::Integrity)).await;
            let denied = add(&client, 1).await.unwrap_err();
            let expected = RejectStat::AuthError(AuthStat::GssCredProblem);
            assert!(matches!(&denied, ClientError::Denied(stat) if *stat == expected), "{denied}");
        }
        assert_eq!(counter.sum.load(SeqCst), 0);
    });
}

#[test]
fn a_server_without_the_flavour_rejects_it() {
    run("tcp", || async {
        let kind: Arc<dyn TransportKind> = Arc::new(TcpKind::default());
        let counter: Arc<dyn Service> = Arc::new(Counter::default());
        let (address, _process) =
            testkit::process::process(&*kind, "127.0.0.1:0".parse().unwrap(), vec![counter.clone()]);
        let flavor = TestClient::new("alice", SECRET, Level::Header);
        let options = ClientOptions { credential: Credential::Flavor(flavor), ..ClientOptions::new(PROGRAM, 1) };
        let client = Client::connect(kind, address, options).await.unwrap();
        let denied = add(&client, 1).await.unwrap_err();
        let expected = RejectStat::AuthError(AuthStat::RejectedCred);
        assert!(matches!(&denied, ClientError::Denied(stat) if *stat == expected), "{denied}");
    });
}
