//! Worker threads: they drain, and keep the credentials that connections need.
//!
//! The tests do not run in simulations, because they are about threads.

use std::{sync::Arc, time::Duration};

use crate::common::port::Port;
use crate::common::{self, Counter, RealHost};
use rpc::{
    Answering, BoxFuture, Call, CallOptions, Client, ClientOptions, Incoming, Listener, Procedure, ReplyPlan, Server,
    Service, TcpKind, TransportKind, WorkerOptions, Workers,
};

#[tokio::test]
async fn drain_answers_calls_in_progress_and_accepts_no_more() {
    // A new connection must find nothing at the address of the closed listener.
    let port = Port::take();
    let host = RealHost::start_at(Arc::new(TcpKind::default()), port.address());
    let options = ClientOptions::new(Counter::PROGRAM, 1);
    let client = Client::connect(host.kind.clone(), host.address, options).await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.call::<()>(common::GATE, &(), ReplyPlan::default(), CallOptions::default()).await.map(drop) }
    });
    host.counter.wait_for_gate(1).await;
    let RealHost { workers, counter, kind, address } = host;
    let drained = tokio::spawn(workers.drain(Duration::from_secs(60)));
    // The listener is closed first.
    while kind.connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!drained.is_finished());
    counter.open_gate();
    waiting.await.unwrap().unwrap();
    assert!(drained.await.unwrap());
}

thread_local! {
    static FIXED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A service that returns `true` if its thread keeps its credentials.
struct FixedCredentials;

impl Service for FixedCredentials {
    fn program(&self) -> u32 {
        Counter::PROGRAM
    }

    fn versions(&self) -> std::ops::RangeInclusive<u32> {
        1..=1
    }

    fn procedure(&self, _: u32, _: u32) -> Option<Procedure> {
        Some(Procedure { name: "FIXED", idempotent: true })
    }

    fn call<'a>(&'a self, call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move { Ok(call.reply(&FIXED.get())) }))
    }
}

/// A listener of two parts: connections of the second part need threads that keep their credentials.
struct SplitListener(Box<dyn Listener>, Option<Box<dyn Listener>>);

impl Listener for SplitListener {
    fn local_addr(&self) -> std::net::SocketAddr {
        self.0.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, std::io::Result<Incoming>> {
        self.0.accept()
    }

    fn keeps_credentials(&self) -> bool {
        self.1.is_some()
    }

    fn take_fixed_credentials_part(&mut self) -> Option<Box<dyn Listener>> {
        self.1.take()
    }
}

struct FixedListener(Box<dyn Listener>);

impl Listener for FixedListener {
    fn local_addr(&self) -> std::net::SocketAddr {
        self.0.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, std::io::Result<Incoming>> {
        self.0.accept()
    }

    fn keeps_credentials(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn connections_with_fixed_credentials_have_their_own_threads() {
    let kind: Arc<dyn TransportKind> = Arc::new(TcpKind::default());
    let listen = || kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (ordinary, fixed) = (listen(), listen());
    let at = [ordinary.local_addr(), fixed.local_addr()];
    let options = WorkerOptions { threads: 2, keep_credentials: Some(|| FIXED.set(true)), ..Default::default() };
    let workers = Workers::new(options).unwrap();
    workers.listen(
        Server::builder().service(FixedCredentials).build(),
        Box::new(SplitListener(ordinary, Some(Box::new(FixedListener(fixed))))),
    );
    // There are more connections than threads of either kind.
    for connection in 0..10 {
        let (at, is_fixed) = (at[connection % 2], connection % 2 == 1);
        let client = Client::connect(kind.clone(), at, ClientOptions::new(Counter::PROGRAM, 1)).await.unwrap();
        let answer = client.call::<bool>(1, &(), ReplyPlan::default(), CallOptions::default()).await.unwrap();
        assert_eq!(answer.results, is_fixed);
    }
}
