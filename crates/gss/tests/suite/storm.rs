//! Connections that are lost and overtake each other, contexts that end, and servers that restart, all under load.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use gss::{GssLimits, Service};
use rpc::{Client, Hosts};
use simnet::{NetworkOptions, seeds, simulate};
use tokio::task::JoinSet;

use crate::rig::{Rig, SERVICES, add, alice, connect};

/// A network that loses one of so many messages with its connection, and whose connections overtake each other.
fn network(seed: u64, loss: f64) -> NetworkOptions {
    let latency = Duration::from_millis(1)..=Duration::from_millis(40);
    NetworkOptions { seed, latency, cut_probability: loss }
}

/// Returns clients with two contexts for each service: one that is used over TCP and RDMA in turn, and one for each.
async fn clients(rig: &Rig) -> Vec<Client> {
    let mut clients = Vec::new();
    for service in SERVICES {
        let shared = alice(service);
        for way in rig.ways() {
            clients.push(connect(way, &shared).await);
            clients.push(connect(way, &alice(service)).await);
        }
    }
    clients
}

/// Calls ADD with the numbers from `first` on, some at a time for each client. Panics if a call fails.
fn load(clients: &[Client], first: u64) -> JoinSet<()> {
    let mut load = JoinSet::new();
    for (at, client) in (0..).zip(clients) {
        for task in 0..AT_ONCE {
            let client = client.clone();
            load.spawn(async move {
                for call in 0..CALLS {
                    add(&client, first + (at * AT_ONCE + task) * CALLS + call).await.unwrap();
                }
            });
        }
    }
    load
}

async fn done(mut load: JoinSet<()>) {
    while let Some(ended) = load.join_next().await {
        ended.unwrap();
    }
}

/// Checks that each call of [`load`] was executed a number of times that `is_right`.
fn check(rig: &Rig, clients: usize, first: u64, is_right: impl Fn(u32) -> bool) {
    let executed = rig.counter.executed.lock();
    for number in first..first + clients as u64 * AT_ONCE * CALLS {
        let times = executed.get(&number).copied().unwrap_or(0);
        assert!(is_right(times), "call {number} was executed {times} times");
    }
}

#[test]
fn calls_are_executed_once_over_connections_that_are_lost() {
    for seed in seeds(6) {
        simulate(seed, async || {
            let rig = Rig::over(network(seed, 0.0), Hosts::all(), GssLimits::default(), None);
            let clients = clients(&rig).await;
            rig.network.set_cut_probability(0.01);
            done(load(&clients, 0)).await;
            check(&rig, clients.len(), 0, |times| times == 1);
        });
    }
}

/// The server forgets contexts in the middle of the load: it denies their calls, and the clients negotiate again.
#[test]
fn calls_are_executed_once_while_contexts_expire() {
    for seed in seeds(6) {
        simulate(seed, async || {
            let lifetime = Some(Duration::from_millis(300));
            let rig = Rig::over(network(seed, 0.0), Hosts::all(), GssLimits::default(), lifetime);
            let clients = clients(&rig).await;
            let before = rig.faults.tokens.load(SeqCst);
            rig.network.set_cut_probability(0.002);
            done(load(&clients, 0)).await;
            check(&rig, clients.len(), 0, |times| times == 1);
            let made = rig.faults.tokens.load(SeqCst) - before;
            assert!(made >= 2 * clients.len() as u32, "only {made} contexts were made again");
        });
    }
}

/// The new process knows neither contexts nor the calls that the old one has executed. So a call that was in progress can be
/// executed by both; no other one is, and none fails.
#[test]
fn calls_continue_with_new_contexts_after_a_restart() {
    for seed in seeds(6) {
        simulate(seed, async || {
            let mut rig = Rig::over(network(seed, 0.0), Hosts::all(), GssLimits::default(), None);
            let clients = clients(&rig).await;
            done(load(&clients, 0)).await;
            let second = load(&clients, SECOND);
            tokio::time::sleep(Duration::from_millis(100)).await;
            let old = Arc::downgrade(&rig.flavor);
            rig.restart();
            let interrupted = rig.counter.executed.lock().clone();
            done(second).await;
            check(&rig, clients.len(), 0, |times| times == 1);
            check(&rig, clients.len(), SECOND, |times| times == 1 || times == 2);
            let executed = rig.counter.executed.lock();
            let twice = executed.iter().filter(|(_, times)| **times == 2);
            let twice: Vec<u64> = twice.map(|(number, _)| *number).collect();
            assert!(
                twice.iter().all(|number| interrupted.contains_key(number)),
                "{twice:?} ran twice after the restart"
            );
            assert!(twice.len() as u64 <= clients.len() as u64 * AT_ONCE, "{} calls ran twice", twice.len());
            assert!(rig.flavor.contexts() > 0 && old.upgrade().is_none(), "contexts must be of the new process");
        });
    }
}

/// A user whose contexts others evict: each of more clients than the limit of the principal negotiates again and again.
#[test]
fn calls_are_executed_once_while_contexts_are_evicted() {
    for seed in seeds(4) {
        simulate(seed, async || {
            let limits = GssLimits { contexts_per_principal: 3, ..GssLimits::default() };
            let rig = Rig::over(network(seed, 0.0), Hosts::all(), limits, None);
            let mut clients = Vec::new();
            for way in rig.ways() {
                clients.push(connect(way, &alice(Service::Integrity)).await);
                clients.push(connect(way, &alice(Service::Privacy)).await);
            }
            for round in 0..20 {
                for (at, client) in (0..).zip(&clients) {
                    add(client, round * 4 + at).await.unwrap();
                }
            }
            let executed = rig.counter.executed.lock();
            assert!(executed.len() == 80 && executed.values().all(|times| *times == 1), "{executed:?}");
            assert!(rig.flavor.contexts() <= 3);
        });
    }
}

const AT_ONCE: u64 = 4;
const CALLS: u64 = 20;
/// The first number of the second load.
const SECOND: u64 = 1_000_000;
