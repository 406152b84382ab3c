//! Tests with random work and random connection cuts, for every provider and every registration method. In every case
//! everything posted or registered is returned exactly once, and announced data is present.
//!
//! A failure prints its seed.

mod common;

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use buf::Pool;
use bytes::Bytes;
use conformance::provider::{End, Fabric, Pair, Side, pattern, shared_pool};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rdma::{
    CompletionKind, Memory, QpOptions, Registered, Stag, Status, WorkId,
    hook::{FaultInjector, Hooked},
    iwarp::{Iwarp, IwarpOptions},
    registration::Registration,
    shm::ShmOptions,
    sim::{NetworkOptions, Sim},
    verbs::VerbsOptions,
};

/// The requests and regions of one end.
#[derive(Default)]
struct Records {
    sends: Vec<WorkId>,
    /// Each receive is for one Send of the peer, and has the region that the peer writes before the Send.
    recvs: Vec<(WorkId, Stag)>,
    /// Regions that the peer reads.
    sources: Vec<Stag>,
}

/// Runs one connection. Returns whether it was cut before all work was done.
async fn chaos(fabric: Fabric, seed: u64) -> bool {
    let mut rng = StdRng::seed_from_u64(seed);
    let options = QpOptions { outbound_reads: rng.random_range(1..5), ..QpOptions::default() };
    let mut pair = fabric.pair_with(&options, &options, 0).await;
    greet(&mut pair).await;
    let mut records = [Records::default(), Records::default()];
    for round in 0..30 {
        for (side, other) in [(Side::Client, Side::Server), (Side::Server, Side::Client)] {
            work(&mut pair, side, other, &mut rng, &mut records).await;
        }
        if round % 3 == 0 {
            let last = records[0].sends.last().copied();
            pair.until(|pair| last.is_some_and(|last| pair.client.has(&[last])) || both_ended(pair)).await;
        }
    }
    let last = [0, 1].map(|side: usize| records[side].sends.last().copied());
    let all_done = |pair: &Pair| match last {
        [Some(client), Some(server)] => pair.client.has(&[client]) && pair.server.has(&[server]),
        _ => false,
    };
    pair.until(|pair| all_done(pair) || both_ended(pair)).await;
    let cut = pair.client.error.is_some();
    pair.client.qp.disconnect();
    // Requests posted after the end are returned as well.
    (pair.client.error, pair.server.error) = (None, None);
    pair.until(both_ended).await;
    for (side, records) in [Side::Client, Side::Server].into_iter().zip(records) {
        audit(pair.end(side), &records, seed);
    }
    cut
}

/// Sends a message from the client, after which the server may send.
async fn greet(pair: &mut Pair) {
    let recv = pair.server.recv(4000);
    pair.client.send(Bytes::from_static(b"hello"));
    pair.until(|pair| pair.server.has(&[recv]) || both_ended(pair)).await;
}

fn both_ended(pair: &Pair) -> bool {
    pair.client.error.is_some() && pair.server.error.is_some()
}

/// Posts valid requests at `side`, if the connection still exists.
async fn work(pair: &mut Pair, side: Side, other: Side, rng: &mut StdRng, records: &mut [Records; 2]) {
    let len = rng.random_range(1..4000);
    let kind = rng.random_range(0..3);
    let data = pattern(len as u64, len);
    let Some([target, source]) = expose(pair.end(other), &data) else {
        assert!(pair.adapter);
        return;
    };
    let recv = pair.end(other).recv(4000);
    records[other as usize].recvs.push((recv, target.stag));
    records[other as usize].sources.push(source.stag);
    if pair.adapter {
        // The peer gets no message after which it can use the regions.
        pair.settle(other).await;
    }
    let end = pair.end(side);
    let sends = &mut records[side as usize].sends;
    sends.push(end.read(len, source.stag, source.offset));
    sends.push(end.write(data.clone(), target.stag, target.offset));
    sends.push(match kind {
        0 => end.send(data),
        1 => end.send_invalidate(data, target.stag, false),
        _ => end.send_invalidate(data, source.stag, true),
    });
}

/// Registers a region to be written and a region to be read. Returns `None` if the connection has ended, after which an
/// adapter registers nothing.
fn expose(end: &mut End, data: &[u8]) -> Option<[Registered; 2]> {
    let [target, mut source] = [end.buffer(data.len()), end.buffer(data.len())];
    source.copy_from_slice(data);
    let memories = [Memory::Write(target.into()), Memory::Read(source.freeze().into())];
    let [target, source] = memories.map(|memory| end.qp.register(memory).ok());
    Some([target?, source?])
}

/// : Checks that everything was returned once and in order, and that all data is correct.
fn audit(end: &mut End, records: &Records, seed: u64) {
    let (mut seen, mut order, mut invalidated_regions) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
    for done in std::mem::take(&mut end.done) {
        assert!(seen.insert(done.id.0, done.status).is_none(), "seed {seed}: {:?} completed twice", done.id);
        order.extend(records.sends.contains(&done.id).then_some(done.id));
        assert!(matches!(done.status, Status::Ok | Status::Flushed), "seed {seed}: {done:?}");
        match done.kind {
            CompletionKind::Read(into) if done.status == Status::Ok => is_pattern(&into, seed),
            CompletionKind::Receive { buffer, invalidated, .. } if done.status == Status::Ok => {
                if *buffer != b"hello"[..] {
                    is_pattern(&buffer, seed);
                }
                invalidated_regions.extend(invalidated);
            }
            CompletionKind::Receive { buffer, .. } => assert_eq!(buffer.len(), 4000),
            _ => {}
        }
    }
    assert_eq!(order, records.sends, "seed {seed}: completions out of order, or missing");
    assert!(
        order.is_sorted_by_key(|id| seen[&id.0] != Status::Ok),
        "seed {seed}: every request after the first flushed one must be flushed"
    );
    for &(recv, target) in &records.recvs {
        let written = take_region(end, target, &mut invalidated_regions, seed);
        let status = seen.get(&recv.0).unwrap_or_else(|| panic!("seed {seed}: {recv:?} is missing"));
        if *status == Status::Ok {
            is_pattern(written.as_host().unwrap(), seed);
        }
    }
    for &source in &records.sources {
        is_pattern(take_region(end, source, &mut invalidated_regions, seed).as_host().unwrap(), seed);
    }
}

/// Returns the memory of a region, which must be returned exactly once: with the message that invalidated it, or after
/// the end.
fn take_region(end: &mut End, stag: Stag, invalidated: &mut BTreeMap<Stag, Memory>, seed: u64) -> Memory {
    match (invalidated.remove(&stag), end.qp.reclaim(stag)) {
        (Some(memory), None) | (None, Some(memory)) => memory,
        (first, _) => panic!("seed {seed}: {stag:?} was returned {} times", if first.is_some() { 2 } else { 0 }),
    }
}

fn is_pattern(bytes: &[u8], seed: u64) {
    assert!(bytes == &pattern(bytes.len() as u64, bytes.len())[..], "seed {seed}: wrong bytes");
}

/// Runs one connection for each seed, with the registration methods in turn, and returns the number of connections that
/// were cut.
async fn cuts(seeds: Range<u64>, fabric: impl Fn(u64) -> Fabric) -> usize {
    let mut cuts = 0;
    for seed in seeds {
        let way = Registration::ALL[seed as usize % Registration::ALL.len()];
        cuts += usize::from(chaos(fabric(seed).registering(way), seed).await);
    }
    cuts
}

fn injector(seed: u64) -> Arc<FaultInjector> {
    Arc::new(FaultInjector::new(seed, 0.003))
}

fn assert_returned(pool: &Pool) {
    let stats = pool.stats();
    assert_eq!(stats.free, stats.mapped, "every buffer must be returned to the pool");
}

#[simnet::test]
async fn on_sim_everything_is_returned() {
    let sim =
        |seed| Fabric::new(Sim::new(NetworkOptions { seed, cut_probability: 0.005, ..NetworkOptions::default() }));
    let cuts = cuts(0..150, sim).await;
    assert!((10..150).contains(&cuts), "{cuts} connections were cut");
}

#[tokio::test]
async fn on_iwarp_everything_is_returned() {
    let linger = std::time::Duration::from_millis(200);
    let cuts = cuts(0..60, |seed| {
        let crc = seed % 8 < 4;
        let iwarp = Iwarp::new(IwarpOptions { crc, fpdu_max: 1500, linger, ..IwarpOptions::default() });
        Fabric::new(Hooked::new(iwarp, injector(seed)))
    });
    let cuts = cuts.await;
    assert!((5..60).contains(&cuts), "{cuts} connections were cut");
}

#[tokio::test]
async fn on_shm_everything_is_returned() {
    let pool = shared_pool();
    let cuts = cuts(0..60, |seed| {
        let fabric = common::shm_as(ShmOptions::default(), |shm| Hooked::new(shm, injector(seed)));
        // Half of the connections transfer data through the ring.
        if seed % 8 < 4 { fabric.with_pool(pool.clone()) } else { fabric }
    });
    let cuts = cuts.await;
    assert!((5..60).contains(&cuts), "{cuts} connections were cut");
    assert_returned(&pool);
}

#[tokio::test]
async fn on_verbs_everything_is_returned() {
    if common::verbs().is_none() {
        return;
    }
    let pool = Pool::default();
    let cuts = cuts(0..24, |seed| {
        let fabric = common::verbs_as(VerbsOptions::default(), |verbs| Hooked::new(verbs, injector(seed)));
        fabric.expect("the adapter must still be available").with_pool(pool.clone())
    });
    let cuts = cuts.await;
    assert!((3..24).contains(&cuts), "{cuts} connections were cut");
    assert_returned(&pool);
}
