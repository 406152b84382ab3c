//! Tests of exactly-once semantics: several clients call the real service of NFSv4.1 over a network and on a machine
//! with all kinds of faults.
//!
//! Each run is determined by its seed. A failed run prints all its events. Repeat it with `SLIPWAY_SEED=N`, or `cargo
//! xtask sim --seed N`. `SLIPWAY_SEEDS=N` makes N runs.
//!
//! These properties are checked during the run:
//!
//! - Each worker knows the content of its directory, and so the result of each operation. An operation that is executed
//!   twice, or late, has another result. If a session ended with a request in doubt, the request was executed or not
//!   executed, and nothing else.
//! - A reply belongs to its request, by the tag, the session, the slot and the sequence ID.
//! - No two clients hold the same lock: a client holds it from the time it receives the grant until it releases it, or
//!   until its lease ends as far as it knows. Each holder increments a counter, in order.
//! - Only the last holder can reclaim a lock, and it can if its lease had not ended.

mod client;
mod judge;
mod work;
mod world;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use simnet::{Trace, assert_replays, seeds};
use tokio::{task::JoinSet, time::timeout};
use vfs::{
    Caller, CreateMode, Cred, Name, SetAttr, Vfs,
    memory::{Memory, MemoryOptions},
};

use self::client::Client;
use self::judge::{Counts, Judge};
use self::world::{Broken, Faults, LEASE, Lost, World};

/// The number of clients.
const CLIENTS: usize = 2;

/// Executes one run. Returns its counts, or the violation.
fn run(seed: u64, faults: Faults) -> Result<Ended, String> {
    simnet::simulate(seed, || async {
        let world = World::new(seed, faults, file_system(), Judge::new(CLIENTS, work::RANGES, LEASE));
        let clients: Vec<_> = (0..CLIENTS).map(|number| Arc::new(Client::new(&world, number))).collect();
        let mut working = JoinSet::new();
        for client in &clients {
            let client = client.clone();
            working.spawn(async move { client.run().await });
        }
        let mut trouble = JoinSet::new();
        trouble.spawn(crashes(world.clone()));
        trouble.spawn(partitions(world.clone()));
        trouble.spawn(full_disks(world.clone()));
        trouble.spawn(reboots(world.clone(), clients));
        let all = async {
            while working.join_next().await.is_some() {
                if world.judge.lock().has_failed() {
                    return;
                }
            }
        };
        let failed = async {
            while !world.judge.lock().has_failed() {
                world.wait(1000).await;
            }
        };
        let ended = timeout(Duration::from_secs(3600), async {
            tokio::select! { biased; () = all => {}, () = failed => {} }
        });
        if ended.await.is_err() {
            world.judge(|judge, at| judge.fail(at, "the work did not end".into()));
        }
        let mut counts = world.judge.lock().verdict()?;
        counts.full = world.disk.refused();
        Ok(Ended { counts, messages: world.messages(), writes: world.disk.done(), trace: world.trace() })
    })
}

/// The result of a run.
struct Ended {
    counts: Counts,
    messages: u64,
    writes: u64,
    trace: Trace,
}

/// Returns the file system of the clients.
fn file_system() -> Arc<dyn Vfs> {
    let memory = Memory::new(MemoryOptions { capacity: 1 << 20, mode: 0o777, ..MemoryOptions::default() });
    let (root, cred) = (memory.root(), Cred::root());
    let caller = Caller::blocking(&cred);
    fn name(name: &str) -> &Name {
        Name::new(name.as_bytes()).expect("name must be valid")
    }
    let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    for dir in (0..CLIENTS).flat_map(|client| (0..2).map(move |worker| work::directory(client, worker))) {
        memory.mkdir(&caller, &root, name(&dir), &set).expect("mkdir");
    }
    memory.create(&caller, &root, name(work::FILE), &CreateMode::Guarded(set)).expect("create");
    Arc::new(memory)
}

async fn crashes(world: Arc<World>) {
    if let Some(write) = world.faults.crash_at_write {
        world.disk.crash_at(write);
    }
    let mut left = world.faults.crashes;
    loop {
        let pause = world.random(|rng| rng.random_range(100..4000));
        world.wait(pause).await;
        let gone = world.disk.has_crashed();
        if !gone && left == 0 {
            continue;
        }
        if !gone {
            left -= 1;
            if world.random(|rng| rng.random()) {
                // At one of the next writes, if there are any. The test waits long enough for some.
                world.disk.crash_at(world.disk.done() + world.random(|rng| rng.random_range(1..20)));
                world.wait(2000).await;
            }
        }
        world.end_life();
        world.wait(world.random(|rng| rng.random_range(1..2000))).await;
        world.begin_life_soon().await;
    }
}

async fn full_disks(world: Arc<World>) {
    for _ in 0..world.faults.full {
        let (pause, len) = world.random(|rng| (rng.random_range(1..6000), rng.random_range(1..8000)));
        world.wait(pause).await;
        world.fill_disk(true);
        world.wait(len).await;
        world.fill_disk(false);
    }
}

async fn partitions(world: Arc<World>) {
    for _ in 0..world.faults.partitions {
        let (pause, len) = world.random(|rng| (rng.random_range(100..5000), rng.random_range(500..12_000)));
        let client = world.random(|rng| rng.random_range(0..CLIENTS));
        world.wait(pause).await;
        world.set_reachable(client, false);
        world.wait(len).await;
        world.set_reachable(client, true);
    }
}

async fn reboots(world: Arc<World>, clients: Vec<Arc<Client>>) {
    for _ in 0..world.faults.reboots {
        let pause = world.random(|rng| rng.random_range(100..8000));
        world.wait(pause).await;
        clients[world.random(|rng| rng.random_range(0..CLIENTS))].reboot();
    }
}

/// Returns the faults of a seed. One of four runs has one fault after the other. Every second run has Kerberos.
fn faults(seed: u64) -> Faults {
    let mut rng = StdRng::seed_from_u64(!seed);
    let times = if seed % 4 == 3 { 4 } else { 1 };
    Faults {
        cut: *pick(&mut rng, &[0.0, 0.02, 0.1]),
        double: *pick(&mut rng, &[0.0, 0.1, 0.5]),
        late: *pick(&mut rng, &[0.0, 0.02, 0.1]),
        crashes: rng.random_range(0..=2 * times),
        partitions: rng.random_range(0..=2 * times),
        reboots: rng.random_range(0..=times),
        full: rng.random_range(0..=2 * times),
        kerberos: seed / 4 % 2 == 1,
        ..Faults::default()
    }
}

fn pick<'a, T>(rng: &mut StdRng, from: &'a [T]) -> &'a T {
    &from[rng.random_range(0..from.len())]
}

/// Runs seeds on all processors. Returns the sum of the counts, or the failure of the lowest seed that fails. The threads have the name
/// of the test, by which `cargo xtask sim --replay` knows it.
fn run_all(seeds: Range<u64>, faults: impl Fn(u64) -> Faults + Sync) -> Result<Counts, String> {
    let (next, total) = (AtomicU64::new(seeds.start), Mutex::new(Counts::default()));
    let failure: Mutex<Option<(u64, String)>> = Mutex::new(None);
    let test = std::thread::current().name().expect("the harness names the thread of a test").to_owned();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let thread = std::thread::Builder::new().name(test.clone());
            let spawned = thread.spawn_scoped(scope, || {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    // Runs with a lower seed than the failed one continue, because they may fail, too.
                    if seed >= seeds.end || failure.lock().is_some() {
                        return;
                    }
                    match run(seed, faults(seed)) {
                        Ok(ended) => total.lock().add(&ended.counts),
                        Err(why) => {
                            let mut failure = failure.lock();
                            if failure.as_ref().is_none_or(|(lowest, _)| seed < *lowest) {
                                *failure = Some((seed, why));
                            }
                        }
                    }
                }
            });
            spawned.expect("a thread must start");
        }
    });
    match failure.into_inner() {
        Some((seed, why)) => Err(format!("{why}\nseed {seed}")),
        None => Ok(total.into_inner()),
    }
}

#[test]
fn every_operation_is_executed_once_despite_faults() {
    let seeds = seeds(10_000);
    let count = seeds.end - seeds.start;
    let counts = run_all(seeds, faults).unwrap_or_else(|why| panic!("{why}"));
    println!("{count} runs: {counts:?}");
    assert!(
        count < 1000
            || counts.again > count && counts.reclaimed > count / 10 && counts.refused > 0 && counts.full > count / 4,
        "{counts:?}"
    );
}

#[test]
fn runs_with_the_same_seed_are_equal() {
    for seed in seeds(100) {
        assert_replays(|| run(seed, faults(seed)).unwrap_or_else(|why| panic!("{why}")).trace);
    }
}

#[test]
fn a_connection_can_be_lost_with_any_message() {
    let run = |faults| run(1, faults).unwrap_or_else(|why| panic!("{why}"));
    let messages = run(Faults::default()).messages;
    assert!(messages > 50, "{messages} messages");
    for message in 1..=messages {
        for lost in [Lost::Call, Lost::Reply] {
            run(Faults { cut_at: Some((message, lost)), ..Faults::default() });
        }
    }
}

#[test]
fn the_machine_can_crash_in_any_write() {
    let run = |faults| run(2, faults).unwrap_or_else(|why| panic!("{why}"));
    let writes = run(Faults { reboots: 1, partitions: 2, ..Faults::default() }).writes;
    assert!(writes > 20, "{writes} writes");
    for write in 1..=writes {
        run(Faults { reboots: 1, partitions: 2, crash_at_write: Some(write), ..Faults::default() });
    }
}

/// Shows that the tests above can fail.
#[test]
fn broken_servers_are_detected() {
    for (broken, what) in
        [(Broken::NoReplyCache, " for "), (Broken::NoStableStorage, ""), (Broken::IgnoresFullDisk, "range")]
    {
        let faults = |seed| Faults { broken: Some(broken), ..faults(seed) };
        // In order and on this thread, so that each replay makes the same runs.
        let failed = (0..500).find_map(|seed| Some(format!("{}\nseed {seed}", run(seed, faults(seed)).err()?)));
        let why = failed.unwrap_or_else(|| panic!("{broken:?} must be detected"));
        assert!(why.contains(what), "{broken:?} must be detected by that check: {why}");
        println!("{broken:?}: {}", why.lines().rev().take(2).collect::<Vec<_>>().join(", "));
    }
}
