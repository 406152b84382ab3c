//! A program for tests, and servers that serve it: [`Host`] in a simulation, and [`RealHost`] on the loopback interface.

#![allow(dead_code, reason = "each test file uses a part of this module")]

pub mod stream;

#[path = "../../../../testkit/src/port.rs"]
pub mod port;

#[path = "../../../../testkit/src/process.rs"]
pub mod process;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use buf::{Buffer, Pool, Region};
use bytes::Bytes;
use rpc::{
    AcceptError, Answer, Answering, Call, CallFailed, CallOptions, Client, ClientOptions, ConnectionId, Credential,
    Limits, Procedure, RawOptions, ReplyHeader, ReplyPlan, Reverse, ReverseTarget, Server, Service, Signal, TcpKind,
    TcpOptions, TransportKind, WorkerOptions, Workers,
};
use simnet::{Network, NetworkOptions};
use tokio::{sync::watch, task::JoinSet};
use xdr::{Decode, Message, Payload};

pub type Data = Payload<{ 1 << 20 }>;

/// A service that counts, echoes, waits and panics.
pub struct Counter {
    value: AtomicU64,
    at_gate: watch::Sender<usize>,
    gate: Signal,
    /// The callers by their connection, while it is open.
    pub callers: Mutex<BTreeMap<ConnectionId, Reverse>>,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            value: AtomicU64::new(0),
            at_gate: watch::Sender::new(0),
            gate: Signal::default(),
            callers: Mutex::default(),
        }
    }
}

/// Adds the argument and returns the sum. Not idempotent.
pub const ADD: u32 = 1;
pub const ECHO: u32 = 2;
/// Waits until the gate is open.
pub const GATE: u32 = 3;
pub const NEVER: u32 = 4;
pub const PANIC: u32 = 5;
pub const PANIC_LATER: u32 = 6;
/// Calls `ADD` of the caller.
pub const CALL_BACK: u32 = 7;

/// Waits until the gate is open, then adds one and returns the sum. Not idempotent.
pub const GATED_ADD: u32 = 8;

pub const CALLS_MAX: usize = 100;

impl Counter {
    pub const PROGRAM: u32 = 0x2000_0001;

    pub fn value(&self) -> u64 {
        self.value.load(SeqCst)
    }

    pub async fn wait_for_gate(&self, calls: usize) {
        self.at_gate.subscribe().wait_for(|&at| at >= calls).await.unwrap();
    }

    pub fn open_gate(&self) {
        self.gate.send();
    }

    async fn pass_gate(&self) {
        self.at_gate.send_modify(|at| *at += 1);
        self.gate.wait().await;
    }

    /// Returns the number of calls that have reached the gate.
    pub fn at_gate(&self) -> usize {
        *self.at_gate.borrow()
    }

    async fn execute(&self, mut call: Call<'_>) -> Result<Message, AcceptError> {
        match call.procedure {
            ADD => {
                let add = u64::decode(&mut call.arguments)?;
                call.arguments.finish()?;
                Ok(call.reply(&self.value.fetch_add(add, SeqCst).wrapping_add(add)))
            }
            ECHO => {
                let data = Data::decode(&mut call.arguments)?;
                call.arguments.finish()?;
                Ok(call.reply(&data))
            }
            GATE => {
                self.pass_gate().await;
                Ok(call.reply(&()))
            }
            GATED_ADD => {
                self.pass_gate().await;
                Ok(call.reply(&(self.value.fetch_add(1, SeqCst) + 1)))
            }
            NEVER => std::future::pending().await,
            PANIC_LATER => {
                tokio::task::yield_now().await;
                panic!("the test asked for a later panic");
            }
            CALL_BACK => {
                let add = u64::decode(&mut call.arguments)?;
                let reverse = Reverse::new(call.connection, call.transport);
                let target = ReverseTarget::new(Self::PROGRAM, 1, &Credential::None);
                let plan = (ReplyPlan::default(), Duration::from_secs(60));
                let answer = reverse.call::<u64>(&target, ADD, &add, plan).await;
                Ok(call.reply(&answer.map_err(|_| AcceptError::SystemErr)?.results))
            }
            _ => unreachable!("`procedure` returns `None` for it"),
        }
    }
}

impl Service for Counter {
    fn program(&self) -> u32 {
        Self::PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=2
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        let names = ["", "ADD", "ECHO", "GATE", "NEVER", "PANIC", "PANIC_LATER", "CALL_BACK", "GATED_ADD"];
        let name = names.get(procedure as usize).filter(|name| !name.is_empty())?;
        Some(Procedure { name, idempotent: ![ADD, GATED_ADD].contains(&procedure) })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        assert_ne!(call.procedure, PANIC, "the test asked for a panic");
        Answering::Pending(Box::pin(self.execute(call)))
    }

    fn connected(&self, peer: &Reverse) {
        self.callers.lock().unwrap().insert(peer.connection(), peer.clone());
    }

    fn disconnected(&self, connection: ConnectionId) {
        self.callers.lock().unwrap().remove(&connection);
    }
}

/// A server over TCP in a simulation. Its tasks end when it is dropped.
pub struct Host {
    pub counter: Arc<Counter>,
    pub server: Arc<Server>,
    pub network: Network,
    pub kind: Arc<dyn TransportKind>,
    pub address: SocketAddr,
    process: JoinSet<()>,
}

impl Host {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with these options of its transport.
    pub fn start_with(options: &[(&str, &str)]) -> Self {
        let network = Network::new(NetworkOptions { seed: simnet::seeds(1).start, ..NetworkOptions::default() });
        let kind = tcp(&network, options);
        let (counter, server) = program();
        let listener = kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr();
        let mut process = JoinSet::new();
        process.spawn(process::serve(listener, server.clone()));
        Self { counter, server, network, kind, address, process }
    }

    pub fn options(&self) -> ClientOptions {
        ClientOptions::new(Counter::PROGRAM, 1)
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.kind.clone(), self.address, self.options()).await.unwrap()
    }

    /// Ends the server with its connections. Nothing listens at its address any more.
    pub async fn stop(&mut self) {
        self.process.shutdown().await;
    }
}

/// Returns TCP over a simulated network.
pub fn tcp(network: &Network, options: &[(&str, &str)]) -> Arc<dyn TransportKind> {
    let kind = TcpKind::simulated(network.clone(), TcpOptions::default(), Pool::default());
    kind.with_options(&raw(options)).unwrap()
}

/// A server on the loopback interface, on threads of its own.
pub struct RealHost {
    pub counter: Arc<Counter>,
    pub workers: Workers,
    pub kind: Arc<dyn TransportKind>,
    pub address: SocketAddr,
}

impl RealHost {
    pub fn start(kind: Arc<dyn TransportKind>) -> Self {
        Self::start_at(kind, "127.0.0.1:0".parse().unwrap())
    }

    pub fn start_at(kind: Arc<dyn TransportKind>, address: SocketAddr) -> Self {
        let (counter, server) = program();
        let workers = Workers::new(WorkerOptions { threads: 2, ..WorkerOptions::default() }).unwrap();
        let listener = kind.listen(address).unwrap();
        let address = listener.local_addr();
        workers.listen(server, listener);
        Self { counter, workers, kind, address }
    }
}

fn program() -> (Arc<Counter>, Arc<Server>) {
    let counter = Arc::new(Counter::default());
    let limits = Limits { calls_max: CALLS_MAX, ..Limits::default() };
    (counter.clone(), Server::builder().shared(counter).limits(limits).build())
}

fn raw(options: &[(&str, &str)]) -> RawOptions {
    options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

pub async fn add(client: &Client, add: u64) -> Result<u64, CallFailed> {
    let answer = client.call(ADD, &add, ReplyPlan::default(), CallOptions::default()).await?;
    Ok(answer.results)
}

pub fn echo_plan(sink: Option<Buffer>) -> ReplyPlan {
    fn locate(prefix: &Bytes) -> Option<xdr::Located> {
        Message::locate::<Data>(prefix, |decoder| ReplyHeader::decode(decoder).map(drop))
    }
    let payload_max = sink.as_ref().map_or(1 << 20, |sink| sink.len());
    ReplyPlan { inline_max: 64, payload_max, sink: sink.map(Region::from), locate: Some(locate) }
}

pub async fn echo(client: &Client, data: Bytes, sink: Option<Buffer>) -> Result<Answer<Data>, CallFailed> {
    client.call(ECHO, &Data::from(data), echo_plan(sink), CallOptions::default()).await
}
