//! Queue pairs that share their receives, over every provider that can.

#[macro_use]
mod common;

use buf::Pool;
use common::{End, Fabric, Pair, pattern};
use rdma::{
    CompletionKind, QpOptions, ReceiveSource, ReceiveSourceOptions, ReceiveStats, Status, WorkId, iwarp::IwarpOptions,
};

over_fabrics! {
    [
        an_idle_queue_pair_holds_nothing
        a_send_waits_for_a_receive_and_no_other_connection_with_it
        what_waits_goes_on_as_soon_as_something_comes_back
        a_send_ahead_of_a_read_response_does_not_wait
        a_send_must_fit_what_the_source_gives
    ]
    sim;
    iwarp = Fabric::iwarp(IwarpOptions::default());
    iwarp_in_small_fpdus = Fabric::iwarp_in_small_fpdus();
    shm = Fabric::shm();
}

const RECEIVE: WorkId = WorkId(77);

fn source(budget: usize, guaranteed: usize) -> ReceiveSource {
    ReceiveSource::new(ReceiveSourceOptions { buffer_bytes: 4096, budget, guaranteed }, Pool::default())
}

/// A pair whose server takes its receives from `source`.
async fn pair(fabric: &Fabric, source: &ReceiveSource) -> Pair {
    assert!(fabric.provider.caps().shared_receives);
    let server = QpOptions { receive_source: Some((source.clone(), RECEIVE)), ..Default::default() };
    fabric.pair_with(&QpOptions::default(), &server, 0).await
}

/// What the server has received, in order.
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
    let data: Vec<_> = (0..10).map(|i| pattern(i, 400 * i as usize)).collect();
    let sent: Vec<_> = data.iter().map(|data| pair.client.send(data.clone())).collect();
    pair.until(move |pair| pair.client.has(&sent) && received(&pair.server).len() == 10).await;
    assert_eq!(received(&pair.server), data);
    assert_eq!(source.stats(), ReceiveStats { budget: 10, out: 10, active: 1 });
    pair.server.done.clear();
    assert_eq!(source.stats(), ReceiveStats { budget: 10, out: 0, active: 0 });
}

async fn a_send_waits_for_a_receive_and_no_other_connection_with_it(fabric: Fabric) {
    let source = source(3, 1);
    let (mut greedy, mut modest) = (pair(&fabric, &source).await, pair(&fabric, &source).await);
    (0..5).for_each(|i| _ = greedy.client.send(pattern(i, 1000)));
    greedy.until(|pair| received(&pair.server).len() == 3).await;
    // Another is served beyond the budget, as it is guaranteed, again and again.
    for i in 0..10 {
        modest.client.send(pattern(i, 3000));
        modest.until(|pair| received(&pair.server).len() == 1).await;
        assert_eq!(received(&modest.server), [pattern(i, 3000)]);
        modest.server.done.clear();
        greedy.until(|_| true).await;
        assert_eq!((received(&greedy.server).len(), source.stats().out), (3, 3));
    }
}

async fn what_waits_goes_on_as_soon_as_something_comes_back(fabric: Fabric) {
    let source = source(3, 1);
    let mut pair = pair(&fabric, &source).await;
    let data: Vec<_> = (0..50).map(|i| pattern(i, 4096 - i as usize)).collect();
    data.iter().for_each(|data| _ = pair.client.send(data.clone()));
    let mut got = Vec::new();
    while got.len() < data.len() {
        pair.until(|pair| !received(&pair.server).is_empty()).await;
        let arrived = received(&pair.server);
        assert!(arrived.len() <= 3, "never more than the budget");
        got.extend(arrived.into_iter().map(<[u8]>::to_vec));
        pair.server.done.clear();
    }
    assert_eq!(got, data);
}

async fn a_send_ahead_of_a_read_response_does_not_wait(fabric: Fabric) {
    let source = source(2, 1);
    let mut pair = pair(&fabric, &source).await;
    let content = pattern(9, 100_000);
    let region = pair.client.expose_for_read(&content);
    (0..4).for_each(|i| _ = pair.client.send(pattern(i, 1000)));
    pair.until(|pair| received(&pair.server).len() == 2).await;
    // As with calls whose data is read from behind further calls: they could never end if those had to wait for them.
    let read = pair.server.read(content.len(), region.stag, region.offset);
    pair.until(move |pair| pair.server.has(&[read])).await;
    assert_eq!(pair.server.read_result(read), content);
    assert_eq!(received(&pair.server).len(), 4);
    assert_eq!(source.stats().out, 4);
}

async fn a_send_must_fit_what_the_source_gives(fabric: Fabric) {
    let source = source(2, 1);
    let mut pair = pair(&fabric, &source).await;
    pair.client.send(pattern(1, 4097));
    pair.until_ended().await;
    assert!(received(&pair.server).is_empty());
    assert_eq!(source.stats().out, 0);
}
