//! A program for tests, and a server that serves it.

#![allow(dead_code, reason = "each test file uses a part of this module")]

#[path = "../../../../testkit/src/port.rs"]
pub mod port;

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

use buf::{Buffer, Region};
use bytes::Bytes;
use port::Port;
use rpc::{
    AcceptError, Answer, Answering, Call, CallFailed, CallOptions, Client, ClientOptions, ConnectionId, Credential,
    Limits, Procedure, RawOptions, ReplyHeader, ReplyPlan, Reverse, ReverseTarget, Server, Service, TcpKind,
    TransportKind, WorkerOptions, Workers,
};
use tokio::sync::watch;
use xdr::{Decode, Message, Payload};

pub type Data = Payload<{ 1 << 20 }>;

/// A service that counts, echoes, waits and panics.
pub struct Counter {
    value: AtomicU64,
    at_gate: watch::Sender<usize>,
    gate: watch::Sender<bool>,
    /// The callers by their connection, while it is open.
    pub callers: Mutex<BTreeMap<ConnectionId, Reverse>>,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            value: AtomicU64::new(0),
            at_gate: watch::Sender::new(0),
            gate: watch::Sender::new(false),
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
        self.gate.send_replace(true);
    }

    async fn pass_gate(&self) {
        self.at_gate.send_modify(|at| *at += 1);
        self.gate.subscribe().wait_for(|&open| open).await.unwrap();
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

/// A server on the loopback interface.
pub struct Host {
    pub counter: Arc<Counter>,
    pub server: Arc<Server>,
    pub workers: Workers,
    pub kind: Arc<dyn TransportKind>,
    pub address: SocketAddr,
    /// A port on which nothing listens after the server has stopped.
    pub port: Port,
}

impl Host {
    pub fn start(options: &[(&str, &str)]) -> Self {
        Self::start_with(Arc::new(TcpKind::default()), options)
    }

    pub fn start_with(kind: Arc<dyn TransportKind>, options: &[(&str, &str)]) -> Self {
        let raw: RawOptions = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let kind = kind.with_options(&raw).unwrap();
        let counter = Arc::new(Counter::default());
        let server = Server::builder()
            .shared(counter.clone())
            .limits(Limits { calls_max: CALLS_MAX, ..Limits::default() })
            .build();
        let workers = Workers::new(WorkerOptions { threads: 2, ..WorkerOptions::default() }).unwrap();
        let port = Port::take();
        let address = port.address();
        let listener = kind.listen(address).unwrap();
        workers.listen(server.clone(), listener);
        Self { counter, server, workers, kind, address, port }
    }

    pub fn options(&self) -> ClientOptions {
        ClientOptions::new(Counter::PROGRAM, 1)
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.kind.clone(), self.address, self.options()).await.unwrap()
    }
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

/// Returns the error text of `call` at its deadline, and the deadline. Increases the deadline until the text contains
/// `happens`, because a busy machine can need more time for it.
pub async fn at_its_deadline(call: impl AsyncFn(Duration) -> String, happens: &str) -> (String, Duration) {
    for deadline_ms in [200, 2_000, 20_000] {
        let deadline = Duration::from_millis(deadline_ms);
        let said = call(deadline).await;
        if said.contains(happens) {
            return (said, deadline);
        }
    }
    panic!("no error contains: {happens}");
}
