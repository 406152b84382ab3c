//! A server of a counter with RPCSEC_GSS, and its clients.

use std::{
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
use rdma::sim::{NetworkOptions, Sim};
use rpc::{
    AcceptError, Answering, Call, CallOptions, Client, ClientError, ClientOptions, Credential, Hosts, Identity,
    Procedure, ReplyHeader, ReplyPlan, Server, TcpKind, TcpOptions, Transport, TransportKind,
};
use rpcrdma::{Options, RdmaKind};
use tokio::task::JoinSet;
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
pub const SECRET: u64 = 0x5ec2e7;
pub const SERVICES: [Service; 3] = [Service::None, Service::Integrity, Service::Privacy];

#[derive(Default)]
pub struct Counter {
    pub sum: AtomicU64,
}

impl rpc::Service for Counter {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        let names = ["NULL", "ADD", "ECHO", "WHO"];
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
                WHO => {
                    let Identity::Principal(principal) = call.caller else { return Err(AcceptError::SystemErr) };
                    let text = format!("{} {}", principal.name.escape_ascii(), principal.pseudo_flavor);
                    Ok(call.reply(&Data::from(Bytes::from(text))))
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
    _processes: JoinSet<()>,
}

impl Rig {
    pub fn new(limits: GssLimits, lifetime: Option<Duration>) -> Self {
        Self::admitting(Hosts::all(), limits, lifetime)
    }

    pub fn admitting(hosts: Hosts, limits: GssLimits, lifetime: Option<Duration>) -> Self {
        let faults = Arc::<Faults>::default();
        let flavor = GssServer::new(ToyAcceptor { secret: SECRET, lifetime, faults: faults.clone() }, limits);
        let counter = Arc::<Counter>::default();
        let server = Server::builder().hosts(hosts).shared(counter.clone()).flavor(flavor.clone()).build();
        let sim = Sim::new(NetworkOptions::default());
        let network = sim.network().clone();
        let mut processes = JoinSet::new();
        let mut listen = |kind: Arc<dyn TransportKind>, address: &str| {
            let listener = kind.listen(address.parse().unwrap()).unwrap();
            let address = listener.local_addr();
            processes.spawn(serve(listener, server.clone()));
            (kind, address)
        };
        let tcp = listen(Arc::new(TcpKind::simulated(network, TcpOptions::default(), Pool::default())), "10.0.0.1:0");
        let rdma = listen(Arc::new(RdmaKind::new(Arc::new(sim), Options::default())), "10.0.0.1:0");
        Self { tcp, rdma, flavor, counter, faults, _processes: processes }
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
