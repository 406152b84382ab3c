//! A server that calls its clients over the connections that they opened (RFC 8167), on every provider that needs no
//! adapter.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use rdma::{Provider, iwarp::Iwarp, shm::Shm, sim::Sim};
use rpc::{
    Answering, Call, CallFailed, CallOptions, Client, ClientError, ClientOptions, ConnectionId, Credential, Drain,
    Hosts, Procedure, ReplyPlan, Reverse, ReverseTarget, Server, Service, TransportError, TransportKind,
};
use rpcrdma::{Options, RdmaKind};
use xdr::{Decode, Payload};

const PROGRAM: u32 = 0x2000_0001;
const ADD: u32 = 1;
const NEVER: u32 = 2;
const LENGTH: u32 = 3;

type Data = Payload<{ 1 << 20 }>;

/// A service that adds, records its callers, and does not answer some calls.
#[derive(Default)]
struct Peer {
    sum: AtomicU64,
    waiting: AtomicU64,
    callers: Mutex<Vec<Reverse>>,
}

impl Service for Peer {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        let name = *["", "ADD", "NEVER", "LENGTH"].get(procedure as usize)?;
        Some(Procedure { name, idempotent: procedure != ADD })
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            match call.procedure {
                ADD => {
                    let add = u64::decode(&mut call.arguments)?;
                    tokio::task::yield_now().await;
                    Ok(call.reply(&(self.sum.fetch_add(add, SeqCst) + add)))
                }
                LENGTH => {
                    let data = Data::decode(&mut call.arguments)?;
                    Ok(call.reply(&(data.0.len() as u64)))
                }
                _ => {
                    self.waiting.fetch_add(1, SeqCst);
                    std::future::pending().await
                }
            }
        }))
    }

    fn connected(&self, peer: &Reverse) {
        self.callers.lock().unwrap().push(peer.clone());
    }

    fn disconnected(&self, connection: ConnectionId) {
        self.callers.lock().unwrap().retain(|caller| caller.connection() != connection);
    }
}

struct World {
    server: Arc<Peer>,
    back: Arc<Peer>,
    client: Client,
}

impl World {
    /// Creates a server, and a client that has called it once and can be called. The provider `sim` needs no address of
    /// this host.
    async fn new(provider: Arc<dyn Provider>, options: Options, callbacks: bool) -> Self {
        let local = if provider.caps().name == "sim" { "10.0.0.1:0" } else { "127.0.0.1:0" };
        let kind = Arc::new(RdmaKind::new(provider, options));
        let (server, back) = (Arc::new(Peer::default()), Arc::new(Peer::default()));
        let mut listener = kind.listen(local.parse().unwrap()).unwrap();
        let at = listener.local_addr();
        let programs = Server::builder().shared(server.clone()).build();
        tokio::spawn(async move {
            loop {
                let incoming = listener.accept().await.unwrap();
                let programs = programs.clone();
                tokio::spawn(async move {
                    let transport = incoming.set_up(Hosts::all()).await.unwrap();
                    programs.serve(transport, Drain::never()).await;
                });
            }
        });
        let callbacks = callbacks.then(|| Server::builder().shared(back.clone()).build());
        let options = ClientOptions { callbacks, ..ClientOptions::new(PROGRAM, 1) };
        let client = Client::connect(kind, at, options).await.unwrap();
        let world = Self { server, back, client };
        world.add(0).await;
        world
    }

    async fn add(&self, amount: u64) -> u64 {
        let answer = self.client.call(ADD, &amount, ReplyPlan::default(), CallOptions::default()).await;
        answer.unwrap().results
    }

    fn caller(&self) -> Reverse {
        self.server.callers.lock().unwrap()[0].clone()
    }
}

async fn call(caller: &Reverse, procedure: u32, argument: u64, deadline: Duration) -> Result<u64, CallFailed> {
    let target = ReverseTarget::new(PROGRAM, 1, &Credential::None);
    let plan = ReplyPlan { inline_max: 64, ..ReplyPlan::default() };
    caller.call(&target, procedure, &argument, (plan, deadline)).await.map(|answer| answer.results)
}

const LONG: Duration = Duration::from_secs(3600);

/// Makes many more callbacks than there are credits, while calls go in the other direction.
async fn both_directions_at_once(provider: Arc<dyn Provider>) {
    let world = World::new(provider, Options { callback_credits: 3, credits: 4, ..Options::default() }, true).await;
    let caller = world.caller();
    let callbacks = (0..100).map(|_| call(&caller, ADD, 1, LONG));
    let calls = (0..100).map(|_| world.add(1));
    let (sums, _) = tokio::join!(futures_util::future::join_all(callbacks), futures_util::future::join_all(calls));
    let mut sums: Vec<u64> = sums.into_iter().map(Result::unwrap).collect();
    sums.sort();
    assert_eq!(sums, (1..=100).collect::<Vec<_>>(), "each callback must be executed once");
    assert_eq!(world.server.sum.load(SeqCst), 100);
    assert_eq!(world.back.sum.load(SeqCst), 100);
}

/// Checks that a callback that fails does not affect the connection.
async fn failed_callback_does_not_affect_others(provider: Arc<dyn Provider>) {
    let world = World::new(provider, Options::default(), true).await;
    let caller = world.caller();
    // RFC 8167 §5.3: callbacks have no chunks, so a message that does not fit in a Send is rejected.
    let target = ReverseTarget::new(PROGRAM, 1, &Credential::None);
    let long = Data::from(Bytes::from(vec![1; 9000]));
    let failed = caller.call::<u64>(&target, LENGTH, &long, (ReplyPlan::default(), LONG)).await.unwrap_err();
    assert!(matches!(failed.error, ClientError::Transport(TransportError::TooLong { .. })), "{}", failed.error);
    let fits = Data::from(Bytes::from(vec![1; 3900]));
    let answer = caller.call::<u64>(&target, LENGTH, &fits, (ReplyPlan::default(), LONG)).await;
    assert_eq!(answer.unwrap().results, 3900);
    let unanswered = call(&caller, NEVER, 0, Duration::from_millis(30)).await.unwrap_err();
    assert!(matches!(unanswered.error, ClientError::Deadline(_)), "{}", unanswered.error);
    let answers = futures_util::future::join_all((0..20).map(|_| call(&caller, ADD, 1, LONG))).await;
    assert!(answers.iter().all(Result::is_ok), "other callbacks must use the remaining credits");
    assert_eq!(world.add(1).await, 1);
}

async fn client_without_callbacks_rejects_them(provider: Arc<dyn Provider>) {
    let world = World::new(provider.clone(), Options::default(), false).await;
    let failed = call(&world.caller(), ADD, 1, LONG).await.unwrap_err();
    assert!(matches!(failed.error, ClientError::NotExecuted(rpc::AcceptStat::ProgUnavail)), "{}", failed.error);
    let world = World::new(provider, Options { callback_credits: 0, ..Options::default() }, true).await;
    let failed = call(&world.caller(), ADD, 1, LONG).await.unwrap_err();
    assert!(matches!(failed.error, ClientError::Transport(TransportError::Refused(_))), "{}", failed.error);
    assert_eq!(world.add(1).await, 1);
}

async fn closed_connection_ends_callbacks(provider: Arc<dyn Provider>) {
    let World { server, client, back } = World::new(provider, Options::default(), true).await;
    let caller = server.callers.lock().unwrap()[0].clone();
    let waiting = tokio::spawn({
        let caller = caller.clone();
        async move { call(&caller, NEVER, 0, LONG).await }
    });
    while back.waiting.load(SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    client.transport().unwrap().close();
    let failed = waiting.await.unwrap().unwrap_err();
    assert!(matches!(failed.error, ClientError::Transport(TransportError::Lost(_))), "{}", failed.error);
    while !server.callers.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(call(&caller, ADD, 1, LONG).await.is_err());
}

macro_rules! on_every_provider {
    ($($name:ident)*) => {
        mod sim {
            $(#[simnet::test]
            async fn $name() {
                super::$name(super::Arc::new(super::Sim::new(Default::default()))).await;
            })*
        }
        mod iwarp {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Arc::new(super::Iwarp::new(Default::default()))).await;
            })*
        }
        mod shm {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Arc::new(super::Shm::new(Default::default()))).await;
            })*
        }
    };
}

on_every_provider! {
    both_directions_at_once
    failed_callback_does_not_affect_others
    client_without_callbacks_rejects_them
    closed_connection_ends_callbacks
}
