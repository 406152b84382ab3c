//! Tests of credits: the server grants them by the number of free receives, never grants zero, and disconnects a client that
//! exceeds its grant.

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

/// Creates a server that takes its receives from `source`. Each call holds one receive, as with a real queue pair.
fn server(source: &ReceiveSource) -> Node {
    let mut node = Node::server(Options::default());
    let options = Options::default();
    let settings =
        rpcrdma::Settings::negotiate(rpcrdma::Role::Accepting, options.clone(), Some(options.private_data()));
    node.connection = Connection::new(settings, node.pool.clone()).with_receive_source(source.clone());
    node
}

fn send_call(node: &mut Node, puppet: &mut Puppet, xid: u32) {
    puppet.deliver(node, &call_header(xid), &message(xid, CALL, 0, b"").stream);
}

/// Answers a call. Returns the credits that the reply grants.
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
fn grants_depend_on_free_receives_and_are_at_least_the_guarantee() {
    let source = source(200);
    let (mut node, mut puppet) = (server(&source), Puppet::default());
    let (mut mine, mut others) = (source.account(), source.account());
    let mut grant = |held: usize| {
        let held: Vec<_> = (0..held).map(|_| others.take(false).unwrap()).collect();
        let call = mine.take(false).unwrap();
        send_call(&mut node, &mut puppet, 1);
        let token = node.next_call().1;
        let granted = answer_one(&mut node, &mut puppet, token);
        drop((held, call));
        granted
    };
    assert_eq!([0, 50, 100, 150, 190, 196, 199].map(&mut grant), [100, 74, 49, 24, 4, 2, 2]);
    assert_eq!(grant(0), 100, "returned receives must be granted again");
}

#[test]
fn calls_in_transit_under_an_earlier_grant_are_served_but_no_further_ones() {
    let source = source(300);
    let (mut node, mut puppet) = (server(&source), Puppet::default());
    let mut others = source.account();
    send_call(&mut node, &mut puppet, 0);
    let token = node.next_call().1;
    assert_eq!(answer_one(&mut node, &mut puppet, token), ASKED);
    let _scarce: Vec<_> = std::iter::from_fn(|| others.take(false)).collect();
    // The client uses the whole grant before it receives a smaller one.
    (1..=ASKED).for_each(|xid| send_call(&mut node, &mut puppet, xid));
    for outstanding in (0..ASKED).rev() {
        assert!(!node.disconnecting);
        let token = node.next_call().1;
        let granted = answer_one(&mut node, &mut puppet, token);
        assert_eq!(granted, outstanding.max(2), "the grant must not exceed the outstanding calls");
    }
    (1..=3).for_each(|xid| send_call(&mut node, &mut puppet, xid));
    //= rfc5040-8.1.2-7
    assert!(node.disconnecting, "a third call must exceed the grant of two");
    assert!(node.events.iter().any(|event| matches!(event, Event::Closed(TransportError::Protocol(_)))));
}

#[test]
fn forgotten_call_returns_its_credit() {
    let source = source(300);
    let (mut node, mut puppet) = (server(&source), Puppet::default());
    for xid in 0..1000 {
        send_call(&mut node, &mut puppet, xid);
        let token = node.next_call().1;
        node.connection.forget(&token);
        assert!(node.reply(token, message(xid, REPLY, 0, b"")).is_err(), "a forgotten call must not be answered");
        node.post_receive();
    }
    assert!(!node.disconnecting && puppet.sent.is_empty());
}

/// A server on the simulated network whose connections share few receives.
struct Host {
    sim: Sim,
    at: std::net::SocketAddr,
    /// Set when the server may answer the calls with the payload `HELD`.
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
        let may_answer = go.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok(incoming) = listener.accept().await {
                let go = may_answer.clone();
                connections.spawn(async move { serve_slowly(incoming.set_up(Hosts::all()).await.unwrap(), go).await });
            }
        });
        Self { sim, at, go, _tasks: tasks }
    }
}

/// Answers calls after 20 ms, and calls whose payload is `HELD` not before `go` is set.
async fn serve_slowly(transport: Arc<dyn Transport>, go: Arc<AtomicBool>) {
    let mut calls = JoinSet::new();
    while let Ok(call) = poll_fn(|cx| transport.poll_recv(cx)).await {
        let (transport, go) = (transport.clone(), go.clone());
        calls.spawn(async move {
            let held = xdr::Decoder::new(&call.message).payload_is(HELD);
            tokio::time::sleep(Duration::from_millis(20)).await;
            while held && !go.load(SeqCst) {
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

#[simnet::test]
async fn all_clients_are_served_while_two_hold_the_shared_receives() {
    for seed in 0..5 {
        let host = Host::start(seed, 16 * 4096);
        // Two clients take all shared receives with calls that are not answered yet. Some calls have read chunks.
        let mut held_calls = JoinSet::new();
        for _ in 0..2 {
            let transport = connect(&host).await;
            for xid in 0..100u32 {
                let transport = transport.clone();
                held_calls.spawn(async move {
                    let payload = if xid % 3 == 0 { 20_000 } else { 100 };
                    let message = call(xid, 50, 0, Bytes::from(vec![HELD; payload]));
                    check(
                        &transport.clone().call(message, plan(50, 0)).await.unwrap(),
                        xid,
                        50,
                        0,
                        (HELD as usize * payload) as u8,
                    );
                });
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Other clients are guaranteed enough receives to be served, also for calls with read chunks.
        let mut other_calls = JoinSet::new();
        for _ in 0..20 {
            let transport = connect(&host).await;
            other_calls.spawn(async move {
                for xid in 0..30u32 {
                    let payload = if xid % 2 == 0 { 20_000 } else { 100 };
                    let message = call(xid, 5000, 0, Bytes::from(vec![1; payload]));
                    check(&transport.clone().call(message, plan(5000, 0)).await.unwrap(), xid, 5000, 0, payload as u8);
                }
            });
        }
        let served = tokio::time::timeout(Duration::from_secs(50), other_calls.join_all()).await;
        assert!(served.is_ok(), "seed {seed}: the other clients must be served");
        assert_eq!(held_calls.len(), 200);
        assert!(held_calls.try_join_next().is_none());
        host.go.store(true, SeqCst);
        tokio::time::timeout(Duration::from_secs(50), held_calls.join_all()).await.expect("held calls must be served");
    }
}

#[simnet::test]
async fn client_that_exceeds_its_credits_is_disconnected_without_effect_on_others() {
    let host = Host::start(1, 16 * 4096);
    let honest = connect(&host).await;
    let serve = |xid| {
        let honest = honest.clone();
        async move {
            check(
                &honest.clone().call(call(xid, 10, 0, vec![1; 10].into()), plan(10, 0)).await.unwrap(),
                xid,
                10,
                0,
                10,
            )
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
    tokio::time::timeout(Duration::from_secs(10), ended).await.expect("the server must disconnect the client");
    serve(2).await;
}
