//! Tests of queue pairs that share their receives, for every provider that supports it.

mod common;

use std::task::{Context, Waker};

use buf::Pool;
use conformance::provider::{End, Fabric, Pair, pattern};
use rdma::{
    CompletionKind, QpOptions, ReceiveSource, ReceiveSourceOptions, ReceiveStats, Status, WorkId, iwarp::IwarpOptions,
};

conformance::over_fabrics! {
    [
        an_idle_queue_pair_holds_nothing
        a_send_that_waits_for_a_receive_blocks_no_other_connection
        waiting_sends_continue_when_a_buffer_is_released
        a_send_before_a_read_response_does_not_wait
        a_send_must_fit_a_buffer_of_the_source
    ]
    sim(seed) = common::sim(seed);
    iwarp = common::iwarp(IwarpOptions::default());
    iwarp_in_small_fpdus = common::iwarp_in_small_fpdus();
    shm = common::shm();
}

// The shared queue of an adapter holds some receives for all queue pairs, and the adapter does not report which peer
// waits.
conformance::over_fabrics! {
    [
        an_idle_queue_pair_holds_nothing
        waiting_sends_continue_when_a_buffer_is_released
        a_send_must_fit_a_buffer_of_the_source
        connections_that_end_keep_no_receive
        every_queue_pair_receives_its_own_messages
    ]
    verbs = common::verbs_sharing();
}

const RECEIVE: WorkId = WorkId(77);

fn source(budget: usize, guaranteed: usize) -> ReceiveSource {
    ReceiveSource::new(ReceiveSourceOptions { buffer_bytes: 4096, budget, guaranteed }, Pool::default())
}

/// Connects a pair whose server takes its receives from `source`.
async fn pair(fabric: &Fabric, source: &ReceiveSource) -> Pair {
    assert!(fabric.adapter || fabric.provider.caps().shared_receives);
    let server = QpOptions { receive_source: Some((source.clone(), RECEIVE)), ..Default::default() };
    fabric.pair_with(&QpOptions::default(), &server, 0).await
}

/// Returns the messages that the server has received, in order.
fn received(end: &End) -> Vec<&[u8]> {
    let receives = end.done.iter().filter(|done| done.id == RECEIVE && done.status == Status::Ok);
    receives
        .map(|done| match &done.kind {
            CompletionKind::Receive { buffer, .. } => &buffer[..],
            other => panic!("not a receive: {other:?}"),
        })
        .collect()
}

async fn an_idle_queue_pair_holds_nothing(fabric: Fabric) {
    let source = source(10, 1);
    let mut pair = pair(&fabric, &source).await;
    // A shared queue holds a quarter of the budget, for any number of queue pairs.
    let shared = if fabric.adapter { 2 } else { 0 };
    let _another = self::pair(&fabric, &source).await;
    assert_eq!(source.stats(), ReceiveStats { budget: 10, out: shared, active: 0 });
    let data: Vec<_> = (0..10).map(|i| pattern(i, 400 * i as usize)).collect();
    let sent: Vec<_> = data.iter().map(|data| pair.client.send(data.clone())).collect();
    pair.until(move |pair| pair.client.has(&sent) && received(&pair.server).len() == 10).await;
    assert_eq!(received(&pair.server), data);
    assert_eq!(source.stats(), ReceiveStats { budget: 10, out: 10, active: 1 });
    pair.server.done.clear();
    pair.until(|_| true).await;
    assert_eq!(source.stats(), ReceiveStats { budget: 10, out: shared, active: 0 });
}

async fn a_send_that_waits_for_a_receive_blocks_no_other_connection(fabric: Fabric) {
    let source = source(3, 1);
    let (mut greedy, mut modest) = (pair(&fabric, &source).await, pair(&fabric, &source).await);
    (0..5).for_each(|i| _ = greedy.client.send(pattern(i, 1000)));
    greedy.until(|pair| received(&pair.server).len() == 3).await;
    // The other connection is served beyond the budget every time, because of its guarantee.
    for i in 0..10 {
        modest.client.send(pattern(i, 3000));
        modest.until(|pair| received(&pair.server).len() == 1).await;
        assert_eq!(received(&modest.server), [pattern(i, 3000)]);
        modest.server.done.clear();
        greedy.until(|_| true).await;
        assert_eq!((received(&greedy.server).len(), source.stats().out), (3, 3));
    }
}

async fn waiting_sends_continue_when_a_buffer_is_released(fabric: Fabric) {
    let source = source(3, 1);
    let mut pair = pair(&fabric, &source).await;
    let data: Vec<_> = (0..50).map(|i| pattern(i, 4096 - i as usize)).collect();
    data.iter().for_each(|data| _ = pair.client.send(data.clone()));
    let mut got = Vec::new();
    while got.len() < data.len() {
        pair.until(|pair| !received(&pair.server).is_empty()).await;
        let arrived = received(&pair.server);
        assert!(arrived.len() <= 3, "the budget must not be exceeded");
        got.extend(arrived.into_iter().map(<[u8]>::to_vec));
        pair.server.done.clear();
    }
    assert_eq!(got, data);
}

async fn a_send_before_a_read_response_does_not_wait(fabric: Fabric) {
    let source = source(2, 1);
    let mut pair = pair(&fabric, &source).await;
    let content = pattern(9, 100_000);
    let region = pair.client.expose_for_read(&content);
    (0..4).for_each(|i| _ = pair.client.send(pattern(i, 1000)));
    pair.until(|pair| received(&pair.server).len() == 2).await;
    // This occurs when the data of a call is read while further calls arrive before it: the call could never finish if
    // these had to wait.
    let read = pair.server.read(content.len(), region.stag, region.offset);
    pair.until(move |pair| pair.server.has(&[read])).await;
    assert_eq!(pair.server.read_result(read), content);
    assert_eq!(received(&pair.server).len(), 4);
    assert_eq!(source.stats().out, 4);
}

async fn a_send_must_fit_a_buffer_of_the_source(fabric: Fabric) {
    let source = source(2, 1);
    let mut pair = pair(&fabric, &source).await;
    pair.client.send(pattern(1, 4097));
    pair.until_ended().await;
    assert!(received(&pair.server).is_empty());
    drop(pair);
    assert_eq!(source.stats().out, 0);
}

/// After connections were cut during a Send, the shared queue still holds all its receives.
async fn connections_that_end_keep_no_receive(fabric: Fabric) {
    let (len, shared) = (256 << 10, 8);
    let options = ReceiveSourceOptions { buffer_bytes: len, budget: 32, guaranteed: 1 };
    let source = ReceiveSource::new(options, Pool::default());
    let mut last = pair(&fabric, &source).await;
    for _ in 0..6 {
        let Pair { mut client, mut server, .. } = pair(&fabric, &source).await;
        (0..shared).for_each(|i| _ = client.send(pattern(i, len)));
        // A software device sends within the call, which therefore runs on another thread, so that this thread sees the
        // first message before the last has arrived.
        let runtime = tokio::runtime::Handle::current();
        let sender = std::thread::spawn(move || {
            let _entered = runtime.enter();
            client.poll(&mut Context::from_waker(Waker::noop()))
        });
        server.until(|server| !received(server).is_empty()).await;
        server.qp.abort();
        server.until(|server| server.error.is_some()).await;
        sender.join().unwrap();
    }
    // The server does not poll, so it replaces no receive.
    last.until(|_| true).await;
    assert_eq!(source.stats(), ReceiveStats { budget: 32, out: shared as usize, active: 0 });
    let sent: Vec<_> = (0..shared).map(|i| last.client.send(pattern(i, len))).collect();
    last.client.until(|client| client.has(&sent)).await;
    assert!(last.client.statuses().iter().all(|(_, status)| *status == Status::Ok));
}

async fn every_queue_pair_receives_its_own_messages(fabric: Fabric) {
    let source = source(16, 1);
    let mut pairs = Vec::new();
    for _ in 0..4 {
        pairs.push(pair(&fabric, &source).await);
    }
    for round in 0..30u64 {
        let mark = |at: usize| pattern(round * 4 + at as u64, 100 * at + 1000);
        (0..4).for_each(|at| (0..3).for_each(|_| _ = pairs[at].client.send(mark(at))));
        for (at, pair) in pairs.iter_mut().enumerate() {
            pair.until(|pair| received(&pair.server).len() == 3).await;
            assert_eq!(received(&pair.server), [mark(at), mark(at), mark(at)]);
            pair.server.done.clear();
        }
    }
}
