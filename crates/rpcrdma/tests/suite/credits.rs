//! Credits: granted from what is free, never zero, and not to be overrun.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::common::{echo::*, *};
use bytes::Bytes;
use rdma::{
    Provider, QpOptions, ReceiveSource, ReceiveSourceOptions, WorkId, WorkRequest,
    sim::{NetworkOptions, Sim},
};
use rpc::{Hosts, ReplyToken, Transport, TransportError, TransportKind, Xid};
use rpcrdma::{
    Connection, Event, Options, RdmaKind,
    chunk::Lists,
    header::{Body, Header},
};
use tokio::task::JoinSet;
use xdr::Message;

const ASKED: u32 = 100;

fn call_header(xid: u32) -> Header {
    Header { xid: Xid(xid), credits: ASKED, body: Body::Msg(Lists::default()) }
}

/// A server whose receives are those of `source`, of which each call holds one as it would with a real queue pair.
fn server(source: &ReceiveSource) -> Node {
    let mut node = Node::server(Options::default());
    let options = Options::default();
    let settings =
        rpcrdma::Settings::negotiate(rpcrdma::Role::Accepting, options.clone(), Some(options.private_data()));
    node.connection = Connection::new(settings, node.pool.clone()).with_receive_source(source.clone());
    node
}

fn tell(node: &mut Node, puppet: &mut Puppet, xid: u32) {
    puppet.deliver(node, &call_header(xid), &message(xid, CALL, 0, b"").stream);
}

/// Answers a call; what the reply grants.
fn answer_one(node: &mut Node, puppet: &mut Puppet, token: ReplyToken) -> u32 {
    let xid = token.xid.0;
    node.reply(token, message(xid, REPLY, 0, b"")).unwrap();
    puppet.run(node);
    puppet.received().0.credits
}

fn source(budget: usize) -> ReceiveSource {
    ReceiveSource::new(ReceiveSourceOptions { buffer_bytes: 4096, budget, guaranteed: 2 }, buf::Pool::default())
}

#[test]
fn grants_follow_what_is_free_and_never_fall_below_the_guarantee() {
    let source = source(200);
    let (mut node, mut puppet) = (server(&source), Puppet::default());
    let (mut mine, mut others) = (source.account(), source.account());
    let mut grant = |held: usize| {
        let held: Vec<_> = (0..held).map(|_| others.take(false).unwrap()).collect();
        let call = mine.take(false).unwrap();
        tell(&mut node, &mut puppet, 1);
        let token = node.next_call().1;
        let granted = answer_one(&mut node, &mut puppet, token);
        drop((held, call));
        granted
    };
    assert_eq!([0, 50, 100, 150, 190, 196, 199].map(&mut grant), [100, 74, 49, 24, 4, 2, 2]);
    assert_eq!(grant(0), 100, "what is free again is granted again");
}

#[test]
fn calls_on_their_way_under_an_earlier_grant_are_served_and_the_next_is_one_too_many() {
    let source = source(300);
    let (mut node, mut puppet) = (server(&source), Puppet::default());
    let mut others = source.account();
    tell(&mut node, &mut puppet, 0);
    let token = node.next_call().1;
    assert_eq!(answer_one(&mut node, &mut puppet, token), ASKED);
    let _scarce: Vec<_> = std::iter::from_fn(|| others.take(false)).collect();
    // The caller uses all of the grant before it receives a smaller one.
    (1..=ASKED).for_each(|xid| tell(&mut node, &mut puppet, xid));
    for outstanding in (0..ASKED).rev() {
        assert!(!node.disconnecting);
        let token = node.next_call().1;
        let granted = answer_one(&mut node, &mut puppet, token);
        assert_eq!(granted, outstanding.max(2), "no more than are outstanding");
    }
    (1..=3).for_each(|xid| tell(&mut node, &mut puppet, xid));
    //= rfc5040-8.1.2-7
    assert!(node.disconnecting, "two were granted");
    assert!(node.events.iter().any(|event| matches!(event, Event::Closed(TransportError::Protocol(_)))));
}

#[test]
fn a_call_that_is_forgotten_gives_its_credit_back() {
    let source = source(300);
    let (mut node, mut puppet) = (server(&source), Puppet::default());
    for xid in 0..1000 {
        tell(&mut node, &mut puppet, xid);
        let token = node.next_call().1;
        node.connection.forget(&token);
        assert!(node.reply(token, message(xid, REPLY, 0, b"")).is_err(), "it is over");
        node.post_receive();
    }
    assert!(!node.disconnecting && puppet.sent.is_empty());
}

/// A server on the simulated fabric whose connections share few receives, and answers when the test requests it.
struct Host {
    sim: Sim,
    at: std::net::SocketAddr,
    go: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl Host {
    fn start(seed: u64, recv_memory: usize) -> Self {
        let sim = Sim::new(NetworkOptions { seed, ..NetworkOptions::default() });
        let kind = RdmaKind::new(Arc::new(sim.clone()), Options { recv_memory, ..Options::default() });
        let mut listener = kind.listen("10.0.0.1:0".parse().unwrap()).unwrap();
        let at = listener.local_addr();
        let go = Arc::new(AtomicBool::new(false));
        let told = go.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok(incoming) = listener.accept().await {
                let told = told.clone();
                connections
                    .spawn(async move { serve_slowly(incoming.set_up(Hosts::all()).await.unwrap(), told).await });
            }
        });
        Self { sim, at, go, _tasks: tasks }
    }
}

/// Keeps calls in progress for a while each, and those whose payload is `HELD` until told.
async fn serve_slowly(transport: Arc<dyn Transport>, told: Arc<AtomicBool>) {
    let mut calls = JoinSet::new();
    while let Ok(call) = poll_fn(|cx| transport.poll_recv(cx)).await {
        let (transport, told) = (transport.clone(), told.clone());
        calls.spawn(async move {
            let held = xdr::Decoder::new(&call.message).payload_is(HELD);
            tokio::time::sleep(Duration::from_millis(20)).await;
            while held && !told.load(SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let _ = transport.reply(call.token, answer(&call.message));
        });
    }
}

const HELD: u8 = 0xee;

trait PayloadIs {
    fn payload_is(&mut self, byte: u8) -> bool;
}

impl PayloadIs for xdr::Decoder<'_> {
    fn payload_is(&mut self, byte: u8) -> bool {
        let words = [(); 4].map(|()| self.u32());
        assert!(words.iter().all(Result::is_ok));
        self.payload(1 << 20).is_ok_and(|data| data.to_bytes().unwrap().first() == Some(&byte))
    }
}

async fn connect(host: &Host) -> Arc<dyn Transport> {
    let kind = RdmaKind::new(Arc::new(host.sim.clone()), Options::default());
    let transport = kind.connect(host.at).await.unwrap();
    tokio::spawn(drive(transport.clone()));
    transport
}

#[test]
fn under_overload_everybody_goes_on_and_what_waits_is_served_in_the_end() {
    simnet::simulate(0, || async {
        for seed in 0..5 {
            let host = Host::start(seed, 16 * 4096);
            // Two take all there is, with calls that are not answered for now, some of them read from their memory.
            let mut hogs = JoinSet::new();
            for _ in 0..2 {
                let transport = connect(&host).await;
                for xid in 0..100u32 {
                    let transport = transport.clone();
                    hogs.spawn(async move {
                        let payload = if xid % 3 == 0 { 20_000 } else { 100 };
                        let message = call(xid, 50, 0, Bytes::from(vec![HELD; payload]));
                        check(
                            &transport.call(message, plan(50, 0)).await.unwrap(),
                            xid,
                            50,
                            0,
                            (HELD as usize * payload) as u8,
                        );
                    });
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            // Others are guaranteed what it takes to be served, reads from their memory included.
            let mut modest = JoinSet::new();
            for _ in 0..20 {
                let transport = connect(&host).await;
                modest.spawn(async move {
                    for xid in 0..30u32 {
                        let payload = if xid % 2 == 0 { 20_000 } else { 100 };
                        let message = call(xid, 5000, 0, Bytes::from(vec![1; payload]));
                        check(&transport.call(message, plan(5000, 0)).await.unwrap(), xid, 5000, 0, payload as u8);
                    }
                });
            }
            let served = tokio::time::timeout(Duration::from_secs(50), modest.join_all()).await;
            assert!(served.is_ok(), "seed {seed}: they are not served");
            assert_eq!(hogs.len(), 200);
            assert!(hogs.try_join_next().is_none());
            host.go.store(true, SeqCst);
            tokio::time::timeout(Duration::from_secs(50), hogs.join_all()).await.expect("what waited is served");
        }
    });
}

#[test]
fn a_client_that_overruns_its_credits_is_disconnected_alone() {
    simnet::simulate(0, || async {
        let host = Host::start(1, 16 * 4096);
        let honest = connect(&host).await;
        let serve = |xid| {
            let honest = honest.clone();
            async move {
                check(&honest.call(call(xid, 10, 0, vec![1; 10].into()), plan(10, 0)).await.unwrap(), xid, 10, 0, 10)
            }
        };
        serve(1).await;
        let data = Options::default().private_data().encode();
        let receives = (0..300).map(|id| (WorkId(id), buf::Buffer::zeroed(4096))).collect();
        let mut hostile = host.sim.connect(host.at, &QpOptions::default(), &data, receives).await.unwrap().qp;
        for xid in 0..200 {
            let stream = call(xid, 0, 0, vec![1; 100].into()).to_rope().to_bytes().unwrap();
            let data = Bytes::from([&Message::encode(&call_header(xid)).stream[..], &stream].concat()).into();
            hostile.post(WorkRequest::Send { id: WorkId(1), data, invalidate: None, solicited: false }).unwrap();
        }
        let mut completions = Vec::new();
        let ended = async { while poll_fn(|cx| hostile.poll_completions(cx, &mut completions)).await.is_ok() {} };
        tokio::time::timeout(Duration::from_secs(10), ended).await.expect("the server still talks to it");
        serve(2).await;
    });
}
