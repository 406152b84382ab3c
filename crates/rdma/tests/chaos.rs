//! Random work under random cuts: whatever happens, everything posted or registered comes home once.
//!
//! A failure prints its seed.

mod common;

use std::{collections::BTreeMap, sync::Arc};

use common::{End, Fabric, Pair, Side, pattern, shared_pool};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rdma::{
    CompletionKind, QpOptions, Stag, Status, WorkId,
    hook::{FaultInjector, Hooked},
    iwarp::{Iwarp, IwarpOptions},
    registration::Registration,
    sim::{Sim, SimOptions},
};

/// What an end has posted and registered.
#[derive(Default)]
struct Books {
    sends: Vec<WorkId>,
    recvs: Vec<WorkId>,
    regions: Vec<Stag>,
}

/// Whether the connection was cut before all work was done.
async fn chaos(fabric: Fabric, seed: u64) -> bool {
    let mut rng = StdRng::seed_from_u64(seed);
    let options = QpOptions { outbound_reads: rng.random_range(1..5), ..QpOptions::default() };
    let mut pair = fabric.pair_with(&options, &options, 0).await;
    let mut books = [Books::default(), Books::default()];
    for round in 0..30 {
        for (side, other) in [(Side::Client, Side::Server), (Side::Server, Side::Client)] {
            work(&mut pair, side, other, &mut rng, &mut books);
        }
        if round % 3 == 0 {
            let last = *books[0].sends.last().unwrap();
            pair.until(|pair| pair.client.has(&[last]) || both_ended(pair)).await;
        }
    }
    let last = [0, 1].map(|side: usize| *books[side].sends.last().unwrap());
    pair.until(|pair| (pair.client.has(&last[..1]) && pair.server.has(&last[1..])) || both_ended(pair)).await;
    let cut = pair.client.error.is_some();
    pair.client.qp.disconnect();
    // What was posted after the end comes home, too.
    (pair.client.error, pair.server.error) = (None, None);
    pair.until(both_ended).await;
    for (side, books) in [Side::Client, Side::Server].into_iter().zip(books) {
        audit(pair.end(side), &books, seed);
    }
    cut
}

fn both_ended(pair: &Pair) -> bool {
    pair.client.error.is_some() && pair.server.error.is_some()
}

/// Posts something at `side` that is right, if the peer lives.
fn work(pair: &mut Pair, side: Side, other: Side, rng: &mut StdRng, books: &mut [Books; 2]) {
    let len = rng.random_range(1..4000);
    let data = pattern(len as u64, len);
    let recv = pair.end(other).recv(4000);
    let target = pair.end(other).expose_for_write(len);
    let source = pair.end(other).expose_for_read(&data);
    let end = pair.end(side);
    books[other as usize].recvs.push(recv);
    books[other as usize].regions.extend([target.stag, source.stag]);
    let sends = &mut books[side as usize].sends;
    sends.push(end.read(len, source.stag, source.offset));
    sends.push(end.write(data.clone(), target.stag, target.offset));
    sends.push(match rng.random_range(0..3) {
        0 => end.send(data),
        1 => end.send_invalidate(data, target.stag, false),
        _ => end.send_invalidate(data, source.stag, true),
    });
}

fn audit(end: &mut End, books: &Books, seed: u64) {
    let mut seen = BTreeMap::new();
    let mut regions_home = Vec::new();
    for done in &end.done {
        assert!(seen.insert(done.id.0, done.status).is_none(), "seed {seed}: {:?} completed twice", done.id);
        match &done.kind {
            CompletionKind::Read(into) if done.status == Status::Ok => {
                assert!(**into == pattern(into.len() as u64, into.len())[..], "seed {seed}: wrong bytes read");
            }
            CompletionKind::Receive { buffer, invalidated, .. } if done.status == Status::Ok => {
                assert!(
                    **buffer == pattern(buffer.len() as u64, buffer.len())[..],
                    "seed {seed}: wrong bytes received"
                );
                regions_home.extend(invalidated.as_ref().map(|(stag, _)| *stag));
            }
            CompletionKind::Receive { buffer, .. } => assert_eq!(buffer.len(), 4000),
            _ => {}
        }
        assert!(matches!(done.status, Status::Ok | Status::Flushed), "seed {seed}: {done:?}");
    }
    for id in books.sends.iter().chain(&books.recvs) {
        assert!(seen.contains_key(&id.0), "seed {seed}: {id:?} is lost");
    }
    let order: Vec<_> = end.done.iter().map(|done| done.id).filter(|id| books.sends.contains(id)).collect();
    assert_eq!(order, books.sends, "seed {seed}: completions out of order");
    // After the first that was flushed, all are.
    let flushed = order.iter().position(|id| seen[&id.0] == Status::Flushed).unwrap_or(order.len());
    assert!(order[flushed..].iter().all(|id| seen[&id.0] == Status::Flushed), "seed {seed}");
    for &stag in &books.regions {
        let came_home = regions_home.contains(&stag);
        assert_eq!(end.qp.reclaim(stag).is_none(), came_home, "seed {seed}: a region comes home once");
    }
}

#[tokio::test(start_paused = true)]
async fn on_sim_everything_comes_home() {
    let mut cuts = 0;
    for seed in 0..150 {
        let sim = Sim::new(SimOptions { seed, cut_probability: 0.005, ..SimOptions::default() });
        cuts += usize::from(chaos(Fabric::new(sim), seed).await);
    }
    assert!((10..150).contains(&cuts), "{cuts} connections were cut");
}

#[tokio::test]
async fn on_iwarp_everything_comes_home() {
    let mut cuts = 0;
    for seed in 0..60 {
        let linger = std::time::Duration::from_millis(200);
        let iwarp = Iwarp::new(IwarpOptions { crc: seed % 2 == 0, fpdu_max: 1500, linger, ..IwarpOptions::default() });
        let injector = Arc::new(FaultInjector::new(seed, 0.003));
        cuts += usize::from(chaos(Fabric::new(Hooked::new(iwarp, injector)), seed).await);
    }
    assert!((5..60).contains(&cuts), "{cuts} connections were cut");
}

#[tokio::test]
async fn on_shm_everything_comes_home() {
    let pool = shared_pool();
    let mut cuts = 0;
    for seed in 0..60 {
        let injector = Arc::new(FaultInjector::new(seed, 0.003));
        let fabric = Fabric::shm_as(|shm| Hooked::new(shm, injector));
        // Half of them by way of the ring, the others take turns at the ways of registration.
        let fabric = match seed % 2 {
            0 => fabric.with_pool(pool.clone()).registering(Registration::ALL[seed as usize / 2 % 4]),
            _ => fabric,
        };
        cuts += usize::from(chaos(fabric, seed).await);
    }
    assert!((5..60).contains(&cuts), "{cuts} connections were cut");
    let stats = pool.stats();
    assert_eq!(stats.free, stats.mapped, "every buffer is home");
}
