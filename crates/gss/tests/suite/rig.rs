//! A server of a counter with RPCSEC_GSS, and its clients.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use buf::{Buffer, Pool};
use bytes::Bytes;
use gss::{GssClient, GssLimits, GssServer, Service};
use parking_lot::Mutex;
use rdma::sim::{NetworkOptions, Sim};
use rpc::{
    AcceptError, Answering, Call, CallOptions, Client, ClientError, ClientOptions, Credential, Hosts, Identity,
    Procedure, ReplyHeader, ReplyPlan, Server, TcpKind, TcpOptions, Transport, TransportKind, security::ServerFlavor,
};
use rpcrdma::{Options, RdmaKind};
use simnet::Network;
use tokio::{sync::Semaphore, task::JoinSet};
use xdr::{Decode, Message, Payload};

use crate::process::serve;
use crate::toy::{Faults, ToyAcceptor, ToyInitiator};

pub type Data = Payload<{ 1 << 20 }>;

pub const PROGRAM: u32 = 0x2000_0008;
/// A procedure that adds, and returns the sum; it is not idempotent.
pub const ADD: u32 = 1;
pub const ECHO: u32 = 2;
/// A procedure that returns the caller's name and pseudo flavour.
pub const WHO: u32 = 3;
/// A procedure that ends when the test permits it.
pub const WAIT: u32 = 4;
pub const SECRET: u64 = 0x5ec2e7;
pub const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];

pub struct Counter {
    pub sum: AtomicU64,
    /// The number of executions of ADD, by their argument.
    pub executed: Mutex<BTreeMap<u64, u32>>,
    /// The calls of WAIT that can end.
    pub gate: Semaphore,
    /// The number of calls of WAIT that have begun.
    pub waiting: AtomicU64,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            sum: AtomicU64::default(),
            executed: Mutex::default(),
            gate: Semaphore::new(0),
            waiting: AtomicU64::default(),
        }
    }
}

impl rpc::Service for Counter {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        let names = ["NULL", "ADD", "ECHO", "WHO", "WAIT"];
        names.get(procedure as usize).map(|name| Procedure { name, idempotent: procedure != ADD })
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            match call.procedure {
                ADD => {
                    let add = u64::decode(&mut call.arguments)?;
                    call.arguments.finish()?;
                    *self.executed.lock().entry(add).or_default() += 1;
                    Ok(call.reply(&(self.sum.fetch_add(add, SeqCst) + add)))
                }
                ECHO => {
                    let data = Data::decode(&mut call.arguments)?;
                    call.arguments.finish()?;
                    Ok(call.reply(&data))
                }
                WHO => {
                    let Identity::Principal(principal) = call.caller else { return Err(AcceptError::SystemErr) };
                    let text = format!("{} {}", principal.name.escape_ascii(), principal.pseudo_flavor);
                    Ok(call.reply(&Data::from(Bytes::from(text))))
                }
                WAIT => {
                    self.waiting.fetch_add(1, SeqCst);
                    self.gate.acquire().await.expect("gate must be open").forget();
                    Ok(call.reply(&()))
                }
                _ => Ok(call.reply(&())),
            }
        }))
    }
}

/// A server that listens on TCP and on RDMA, with one table of contexts.
pub struct Rig {
    pub tcp: (Arc<dyn TransportKind>, SocketAddr),
    pub rdma: (Arc<dyn TransportKind>, SocketAddr),
    pub flavor: Arc<GssServer>,
    pub counter: Arc<Counter>,
    pub faults: Arc<Faults>,
    pub network: Network,
    lifetime: Option<Duration>,
    processes: JoinSet<()>,
}

impl Rig {
    pub fn new(limits: GssLimits, lifetime: Option<Duration>) -> Self {
        Self::admitting(Hosts::all(), limits, lifetime)
    }

    pub fn admitting(hosts: Hosts, limits: GssLimits, lifetime: Option<Duration>) -> Self {
        Self::over(NetworkOptions::default(), hosts, limits, lifetime)
    }

    pub fn over(network: NetworkOptions, hosts: Hosts, limits: GssLimits, lifetime: Option<Duration>) -> Self {
        let faults = Arc::<Faults>::default();
        let flavor = Self::flavor(limits, lifetime, &faults);
        let counter = Arc::<Counter>::default();
        let sim = Sim::new(network);
        let network = sim.network().clone();
        let tcp: Arc<dyn TransportKind> =
            Arc::new(TcpKind::simulated(network.clone(), TcpOptions::default(), Pool::default()));
        let rdma: Arc<dyn TransportKind> = Arc::new(RdmaKind::new(Arc::new(sim), Options::default()));
        let any = "10.0.0.1:0".parse().unwrap();
        let (tcp, rdma, processes) = ((tcp, any), (rdma, any), JoinSet::new());
        let mut rig = Self { tcp, rdma, flavor, counter, faults, network, lifetime, processes };
        rig.listen(hosts, rig.flavor.clone());
        rig
    }

    fn flavor(limits: GssLimits, lifetime: Option<Duration>, faults: &Arc<Faults>) -> Arc<GssServer> {
        GssServer::new(ToyAcceptor { secret: SECRET, lifetime, faults: faults.clone() }, limits)
    }

    /// Listens with another flavour, on the same addresses if there are some.
    pub fn listen(&mut self, hosts: Hosts, flavor: Arc<dyn ServerFlavor>) {
        let server = Server::builder().hosts(hosts).shared(self.counter.clone()).flavor(flavor).build();
        for (kind, address) in [&mut self.tcp, &mut self.rdma] {
            self.network.crash(*address);
            let listener = kind.listen(*address).unwrap();
            *address = listener.local_addr();
            self.processes.spawn(serve(listener, server.clone()));
        }
    }

    /// Kills the server's process, and starts another one, which knows no context and no earlier call.
    pub fn restart(&mut self) {
        self.processes.abort_all();
        self.flavor = Self::flavor(GssLimits::default(), self.lifetime, &self.faults);
        self.listen(Hosts::all(), self.flavor.clone());
    }

    /// Returns the ways to the server.
    pub fn ways(&self) -> [&(Arc<dyn TransportKind>, SocketAddr); 2] {
        [&self.tcp, &self.rdma]
    }
}

pub async fn connect((kind, address): &(Arc<dyn TransportKind>, SocketAddr), flavor: &Arc<GssClient>) -> Client {
    let options = ClientOptions { credential: Credential::Flavor(flavor.clone()), ..ClientOptions::new(PROGRAM, 1) };
    Client::connect(kind.clone(), *address, options).await.unwrap()
}

pub fn alice(service: Service) -> Arc<GssClient> {
    GssClient::new(Arc::new(ToyInitiator::new("alice@TOY", SECRET)), service)
}

/// Runs a test in a simulation.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    simnet::simulate(0, test);
}

pub async fn add(client: &Client, add: u64) -> Result<u64, ClientError> {
    Ok(client.call(ADD, &add, ReplyPlan::default(), CallOptions::default()).await?.results)
}

pub async fn who(client: &Client) -> Result<String, ClientError> {
    let answer = client.call::<Data>(WHO, &(), ReplyPlan::default(), CallOptions::default()).await?;
    Ok(String::from_utf8(answer.results.0.to_bytes().unwrap().to_vec()).unwrap())
}

/// Sends data and receives them. Returns whether the reply's data were placed in the caller's buffer.
pub async fn echo(client: &Client, data: &Bytes) -> bool {
    let locate = |prefix: &Bytes| Message::locate::<Data>(prefix, |decoder| ReplyHeader::decode(decoder).map(drop));
    let plan = ReplyPlan {
        inline_max: 64,
        payload_max: data.len(),
        sink: Some(Buffer::zeroed(data.len()).into()),
        locate: Some(locate),
    };
    let answer = client.call::<Data>(ECHO, &Data::from(data.clone()), plan, CallOptions::default()).await.unwrap();
    assert_eq!(answer.results.0.to_bytes().unwrap(), data);
    answer.sink.expect("the caller's buffer must return").holds(&answer.results.0)
}

/// Returns a connection that the client drives, after a first call.
pub async fn transport(client: &Client) -> Arc<dyn Transport> {
    client.call::<()>(0, &(), ReplyPlan::default(), CallOptions::default()).await.unwrap();
    client.transport().unwrap()
}
