//! The negotiation of contexts, and their life.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use gss::{GssClient, GssLimits, Service, wire::TOKEN_MAX};
use rpc::{ClientError, Credential, Hosts};
use tokio::task::JoinSet;

use crate::{
    rig::{Rig, SECRET, SERVICES, add, alice, connect, run, who},
    toy::ToyInitiator,
};

#[test]
fn a_context_from_tcp_is_valid_over_rdma() {
    run(async || {
        let rig = Rig::new(GssLimits::default(), None);
        for service in SERVICES {
            let flavor = alice(service);
            let tcp = connect(&rig.tcp, &flavor).await;
            add(&tcp, 1).await.unwrap();
            drop(tcp);
            let rdma = connect(&rig.rdma, &flavor).await;
            add(&rdma, 1).await.unwrap();
            assert_eq!(rig.flavor.contexts(), 1, "the context must be used, not a new one");
            drop((rdma, flavor));
            forgotten(&rig, 0).await;
        }
    });
}

/// Waits until the server has this number of contexts.
async fn forgotten(rig: &Rig, contexts: usize) {
    let waiting = async {
        while rig.flavor.contexts() != contexts {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    waited.unwrap_or_else(|_| panic!("the server has {} contexts, not {contexts}", rig.flavor.contexts()));
}

#[test]
fn the_server_forgets_a_context_when_its_user_ends() {
    run(async || {
        let rig = Rig::new(GssLimits::default(), None);
        for way in rig.ways() {
            for service in SERVICES {
                let client = connect(way, &alice(service)).await;
                add(&client, 1).await.unwrap();
                // The last user of a connection, which is then closed.
                drop(client);
                forgotten(&rig, 0).await;
            }
            // One of two users of a connection, which stays.
            let client = connect(way, &alice(Service::Integrity)).await;
            let other = client.with_credential(&Credential::Flavor(alice(Service::Integrity)));
            add(&client, 1).await.unwrap();
            add(&other, 1).await.unwrap();
            assert_eq!(rig.flavor.contexts(), 2);
            drop(other);
            forgotten(&rig, 1).await;
            // A context that is used over a later connection.
            client.reset();
            add(&client, 1).await.unwrap();
            assert_eq!(rig.flavor.contexts(), 1);
            drop(client);
            forgotten(&rig, 0).await;
        }
    });
}

/// The call of a user in progress needs the context after the user was dropped.
#[test]
fn a_context_lasts_until_its_last_call_ends() {
    run(async || {
        let rig = Rig::new(GssLimits::default(), None);
        let client = connect(&rig.tcp, &alice(Service::Privacy)).await;
        let user = client.with_credential(&Credential::Flavor(alice(Service::Privacy)));
        let call = tokio::spawn(async move { add(&user, 1).await });
        assert_eq!(call.await.unwrap().unwrap(), 1);
        forgotten(&rig, 0).await;
        // The connection is lost: nothing can be sent, and nothing waits.
        let user = client.with_credential(&Credential::Flavor(alice(Service::Privacy)));
        add(&user, 1).await.unwrap();
        client.reset();
        let before = tokio::time::Instant::now();
        drop((user, client));
        assert_eq!(before.elapsed(), Duration::ZERO);
    });
}

#[test]
fn large_tokens_are_accepted_up_to_the_limit() {
    run(async || {
        let rig = Rig::new(GssLimits::default(), None);
        for way in rig.ways() {
            for (len, fits) in [(3000, true), (48 << 10, true), (TOKEN_MAX, true), (TOKEN_MAX + 1, false)] {
                let initiator = ToyInitiator { token_len: len, ..ToyInitiator::new("alice@TOY", SECRET) };
                let client = connect(way, &GssClient::new(Arc::new(initiator), Service::Integrity)).await;
                let outcome = add(&client, 0).await;
                assert_eq!(outcome.is_ok(), fits, "{len} bytes over {}: {outcome:?}", way.0.name());
                if fits {
                    assert_eq!(rig.faults.longest_token.load(SeqCst), len);
                }
            }
            rig.faults.longest_token.store(0, SeqCst);
        }
    });
}

#[test]
fn a_negotiation_can_have_several_rounds() {
    run(async || {
        let rig = Rig::new(GssLimits::default(), None);
        for rounds in [1, 2, 5] {
            let initiator = ToyInitiator { rounds, ..ToyInitiator::new("alice@TOY", SECRET) };
            let client = connect(&rig.tcp, &GssClient::new(Arc::new(initiator), Service::Privacy)).await;
            add(&client, 1).await.unwrap();
        }
        let initiator = ToyInitiator { rounds: 9, ..ToyInitiator::new("alice@TOY", SECRET) };
        let client = connect(&rig.tcp, &GssClient::new(Arc::new(initiator), Service::Privacy)).await;
        assert!(matches!(add(&client, 1).await, Err(ClientError::Security(_))), "the rounds must be bounded");
    });
}

#[test]
fn concurrent_calls_share_one_negotiation() {
    run(async || {
        let rig = Rig::new(GssLimits::default(), None);
        let client = connect(&rig.tcp, &alice(Service::Integrity)).await;
        let mut calls = JoinSet::new();
        for _ in 0..10 {
            let client = client.clone();
            calls.spawn(async move { add(&client, 1).await });
        }
        while let Some(sum) = calls.join_next().await {
            sum.unwrap().unwrap();
        }
        assert_eq!((rig.flavor.contexts(), rig.counter.sum.load(SeqCst)), (1, 10));
    });
}

#[test]
fn refused_users_get_the_reason() {
    run(async || {
        let rig = Rig::new(GssLimits::default(), None);
        let initiator = ToyInitiator::new("mallory@TOY", SECRET + 1);
        let client = connect(&rig.tcp, &GssClient::new(Arc::new(initiator), Service::None)).await;
        let error = add(&client, 1).await.unwrap_err();
        let ClientError::Security(text) = &error else { panic!("{error}") };
        assert!(text.contains("another secret") && text.contains("mallory"), "{text}");
        let initiator = ToyInitiator::new("alice@TOY", SECRET);
        initiator.has_ticket.store(false, SeqCst);
        let client = connect(&rig.tcp, &GssClient::new(Arc::new(initiator), Service::None)).await;
        let error = add(&client, 1).await.unwrap_err();
        assert!(error.to_string().contains("ticket expired"), "{error}");
        assert_eq!((rig.flavor.contexts(), rig.counter.sum.load(SeqCst)), (0, 0));
    });
}

/// The server admits the host for the first negotiation only.
#[test]
fn a_host_that_is_not_admitted_gets_no_context() {
    run(async || {
        let admitted = Arc::new(AtomicBool::new(true));
        let hosts = Hosts::admitted_by({
            let admitted = admitted.clone();
            move |_| admitted.load(SeqCst)
        });
        let rig = Rig::admitting(hosts, GssLimits::default(), None);
        for way in rig.ways() {
            admitted.store(true, SeqCst);
            let good = connect(way, &alice(Service::Integrity)).await;
            add(&good, 1).await.unwrap();
            let contexts = rig.flavor.contexts();
            rig.faults.longest_token.store(0, SeqCst);
            admitted.store(false, SeqCst);
            let error = add(&connect(way, &alice(Service::Integrity)).await, 1).await.unwrap_err();
            assert!(error.to_string().contains("not from this host"), "{error}");
            assert_eq!((rig.flavor.contexts(), rig.faults.longest_token.load(SeqCst)), (contexts, 0));
            add(&good, 1).await.expect("the services decide about calls in a context");
        }
    });
}

#[test]
fn a_context_ends_with_its_ticket() {
    run(async || {
        let lifetime = Some(Duration::from_secs(100));
        let rig = Rig::new(GssLimits::default(), lifetime);
        // One client knows the lifetime, and negotiates in time. The other learns it from the server.
        for known in [lifetime, None] {
            let initiator = ToyInitiator { lifetime: known, ..ToyInitiator::new("alice@TOY", SECRET) };
            let has_ticket = initiator.has_ticket.clone();
            let client = connect(&rig.tcp, &GssClient::new(Arc::new(initiator), Service::Integrity)).await;
            let before = add(&client, 1).await.unwrap();
            tokio::time::sleep(Duration::from_secs(101)).await;
            assert_eq!(add(&client, 1).await.unwrap(), before + 1, "the client must negotiate a new context");
            tokio::time::sleep(Duration::from_secs(101)).await;
            has_ticket.store(false, SeqCst);
            let error = add(&client, 1).await.unwrap_err();
            assert!(matches!(error, ClientError::Security(_)), "{error}");
            assert_eq!(rig.counter.sum.load(SeqCst), before + 1, "calls of an expired context must not be executed");
        }
    });
}

/// Several users of one connection, each with a ticket, as with `slipway mount --allow-other`.
#[test]
fn an_expired_ticket_harms_no_other_user_of_the_connection() {
    run(async || {
        let lifetime = Some(Duration::from_secs(100));
        let rig = Rig::new(GssLimits::default(), None);
        for service in SERVICES {
            let good = connect(&rig.tcp, &alice(service)).await;
            let initiator = ToyInitiator { lifetime, ..ToyInitiator::new("bob@TOY", SECRET) };
            let has_ticket = initiator.has_ticket.clone();
            let bob = good.with_credential(&Credential::Flavor(GssClient::new(Arc::new(initiator), service)));
            let flavor = [390_003, 390_004, 390_005][service as usize];
            assert_eq!(who(&bob).await.unwrap(), format!("bob@TOY {flavor}"));
            assert_eq!(who(&good).await.unwrap(), format!("alice@TOY {flavor}"));
            let connection = good.transport().unwrap();
            has_ticket.store(false, SeqCst);
            tokio::time::sleep(Duration::from_secs(101)).await;
            let (refused, answered) = tokio::join!(who(&bob), who(&good));
            assert!(matches!(refused, Err(ClientError::Security(_))), "{refused:?}");
            assert_eq!(answered.unwrap(), format!("alice@TOY {flavor}"));
            has_ticket.store(true, SeqCst);
            assert_eq!(who(&bob).await.unwrap(), format!("bob@TOY {flavor}"), "a new ticket is used at once");
            assert!(Arc::ptr_eq(&connection, &good.transport().unwrap()), "the connection must stay");
        }
    });
}

#[test]
fn a_flood_of_contexts_evicts_only_those_of_its_user() {
    run(async || {
        let limits = GssLimits { contexts_max: 4, ..GssLimits::default() };
        let rig = Rig::new(limits, None);
        let good = connect(&rig.tcp, &alice(Service::None)).await;
        add(&good, 1).await.unwrap();
        let mut evicted = Vec::new();
        for _ in 0..20 {
            let flavor = GssClient::new(Arc::new(ToyInitiator::new("mallory@TOY", SECRET)), Service::None);
            let client = connect(&rig.rdma, &flavor).await;
            assert_eq!(who(&client).await.unwrap(), "mallory@TOY 390003");
            evicted.push(client);
        }
        assert_eq!(rig.flavor.contexts(), 4);
        // If the context were evicted, this negotiation would fail.
        rig.faults.refuses.store(1, SeqCst);
        add(&good, 1).await.unwrap();
        rig.faults.refuses.store(0, SeqCst);
        assert_eq!(who(&evicted[0]).await.unwrap(), "mallory@TOY 390003", "an evicted client must negotiate again");
    });
}

#[test]
fn contexts_are_negotiated_again_after_the_server_restarts() {
    run(async || {
        let (first, second) = (Rig::new(GssLimits::default(), None), Rig::new(GssLimits::default(), None));
        let flavor = alice(Service::Privacy);
        add(&connect(&first.tcp, &flavor).await, 1).await.unwrap();
        assert_eq!(add(&connect(&second.tcp, &flavor).await, 1).await.unwrap(), 1);
        assert_eq!(second.flavor.contexts(), 1);
    });
}

#[test]
fn an_empty_token_is_refused_and_names_map_to_local_users() {
    run(async || {
        let rig = Rig::new(GssLimits::default(), None);
        assert_eq!(rig.flavor.local_name(b"alice@TOY").as_deref(), Some("alice"));
        assert_eq!(rig.flavor.local_name(b"alice@ELSEWHERE"), None);
        let initiator = ToyInitiator { rounds: 0, ..ToyInitiator::new("alice@TOY", SECRET) };
        let client = connect(&rig.tcp, &GssClient::new(Arc::new(initiator), Service::None)).await;
        assert!(matches!(add(&client, 1).await, Err(ClientError::Security(_))));
        assert_eq!(rig.flavor.contexts(), 0);
    });
}
