//! Clients and a server over TCP.

use crate::common;
use std::{sync::Arc, time::Duration};

use crate::common::{Counter, Host, add, echo, tcp};
use buf::Buffer;
use bytes::Bytes;
use rpc::{
    AcceptStat, AuthStat, CallOptions, Client, ClientError, ClientOptions, OpaqueAuth, RejectStat, ReplyPlan,
    TransportError,
};
use tokio::time::{Instant, sleep};

#[simnet::test]
async fn concurrent_calls_get_their_own_answers() {
    let host = Host::start();
    let client = host.client().await;
    let calls = (0..600u64).map(|i| {
        let client = client.clone();
        tokio::spawn(async move {
            let len = [0, 1, 100, 3000, 20_000, 300_000][i as usize % 6];
            let data = Bytes::from(vec![i as u8; len]);
            let answer = echo(&client, data.clone(), None).await.unwrap();
            assert!(answer.results.0.to_bytes().unwrap() == data);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    // A call is counted after its reply has left.
    let echoed = loop {
        let echoed = host.server.stats().into_iter().find(|stats| stats.name == "ECHO").unwrap();
        if echoed.calls == 600 {
            break echoed;
        }
        sleep(Duration::from_millis(1)).await;
    };
    assert_eq!(echoed.errors, 0);
}

#[simnet::test]
async fn time_of_calls_is_counted() {
    let host = Host::start();
    let client = host.client().await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.call::<()>(common::GATE, &(), ReplyPlan::default(), CallOptions::default()).await.map(drop) }
    });
    host.counter.wait_for_gate(1).await;
    sleep(Duration::from_secs(1)).await;
    host.counter.open_gate();
    waiting.await.unwrap().unwrap();
    add(&client, 1).await.unwrap();
    let stats = host.server.stats();
    let of = |name| stats.iter().find(|stats| stats.name == name).unwrap();
    assert_eq!((of("GATE").calls, of("GATE").total, of("ADD").total), (1, Duration::from_secs(1), Duration::ZERO));
    assert!(of("GATE").quantile(0.5) >= Duration::from_secs(1) && of("GATE").quantile(0.99) < Duration::from_secs(2));
}

#[simnet::test]
async fn large_payload_is_placed_in_callers_buffer() {
    let host = Host::start();
    let client = host.client().await;
    let mut sink = Buffer::zeroed(1 << 20);
    for round in 0..20u8 {
        let data = Bytes::from(vec![round; 1 << 20]);
        let answer = echo(&client, data.clone(), Some(sink)).await.unwrap();
        let shared = answer.sink.unwrap();
        assert!(shared.holds(&answer.results.0), "the payload must be placed, not copied");
        assert!(answer.results.0.to_bytes().unwrap() == data);
        drop(answer.results);
        sink = Buffer::try_from(shared.into_region().unwrap()).unwrap();
        assert!(sink[..] == data[..]);
    }
}

#[simnet::test]
async fn each_reason_for_rejection_reaches_the_caller() {
    let host = Host::start();
    let client = host.client().await;
    let call = |client: Client, procedure| async move {
        client.call::<()>(procedure, &(), ReplyPlan::default(), CallOptions::default()).await.map(drop).unwrap_err()
    };
    let stat = |failed: rpc::CallFailed| match failed.error {
        ClientError::NotExecuted(stat) => stat,
        other => panic!("{other}"),
    };
    let unknown = call(client.with_program(77, 1), 0).await;
    assert_eq!(stat(unknown), AcceptStat::ProgUnavail);
    let mismatch = call(client.with_program(Counter::PROGRAM, 9), 0).await;
    assert_eq!(stat(mismatch), AcceptStat::ProgMismatch { low: 1, high: 2 });
    assert_eq!(stat(call(client.clone(), 200).await), AcceptStat::ProcUnavail);
    assert_eq!(stat(call(client.clone(), 99_999).await), AcceptStat::ProcUnavail);
    assert_eq!(stat(call(client.clone(), common::ADD).await), AcceptStat::GarbageArgs);
    assert_eq!(stat(call(client.clone(), common::PANIC).await), AcceptStat::SystemErr);
    assert_eq!(stat(call(client.clone(), common::PANIC_LATER).await), AcceptStat::SystemErr);
    client.call::<()>(0, &(), ReplyPlan::default(), CallOptions::default()).await.unwrap();
    assert_eq!(add(&client, 1).await.unwrap(), 1, "the connection must still work");
    let panics: u64 = host.server.stats().iter().filter(|s| s.name.starts_with("PANIC")).map(|s| s.errors).sum();
    assert_eq!(panics, 2);
}

#[simnet::test]
async fn unknown_flavour_is_denied() {
    let host = Host::start();
    let transport = host.kind.connect(host.address).await.unwrap();
    let driver = transport.clone();
    tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_recv(cx)).await.map(drop) });
    let header = rpc::CallHeader {
        xid: rpc::Xid(1),
        program: Counter::PROGRAM,
        version: 1,
        procedure: 0,
        credential: OpaqueAuth { flavor: 6, body: Bytes::from_static(&[1; 20]) },
        verifier: OpaqueAuth::NONE,
    };
    let reply = transport.clone().call(xdr::Message::encode(&header), ReplyPlan::default()).await.unwrap();
    let reply: rpc::ReplyHeader = reply.message.decode().unwrap();
    assert_eq!(reply.body, rpc::ReplyBody::Denied(RejectStat::AuthError(AuthStat::RejectedCred)));
}

#[simnet::test]
async fn slow_call_does_not_block_others_and_times_out() {
    let host = Host::start();
    let client = host.client().await;
    let began = Instant::now();
    let slow = tokio::spawn({
        let client = client.clone();
        async move {
            let options = CallOptions { deadline: Some(Duration::from_millis(300)), ..CallOptions::default() };
            let failed = client.call::<()>(common::NEVER, &(), ReplyPlan::default(), options).await.map(drop);
            (failed.unwrap_err(), began.elapsed())
        }
    });
    for n in 1..=100 {
        assert_eq!(add(&client, 1).await.unwrap(), n);
    }
    let (failed, took) = slow.await.unwrap();
    assert_eq!(took, Duration::from_millis(300), "the call must end at its deadline");
    let text = failed.error.to_string();
    let procedure = format!("program {}, version 1, procedure {}", Counter::PROGRAM, common::NEVER);
    assert!(text.contains(&host.address.to_string()) && text.contains("tcp") && text.contains(&procedure), "{text}");
}

#[simnet::test]
async fn absent_server_is_an_error_at_once_or_at_the_deadline() {
    let mut host = Host::start();
    host.stop().await;
    let (kind, address) = (host.kind.clone(), host.address);
    let refused = Client::connect(kind.clone(), address, ClientOptions::new(1, 1)).await.map(drop).unwrap_err();
    assert!(matches!(refused, ClientError::Transport(TransportError::Connect(_))), "{refused}");
    let client = Client::new(kind, address, ClientOptions::new(1, 1));
    let plan = ReplyPlan { payload_max: 9, sink: Some(Buffer::zeroed(9).into()), ..ReplyPlan::default() };
    let options = CallOptions { deadline: Some(Duration::from_millis(500)), ..CallOptions::default() };
    let began = Instant::now();
    let failed = client.call::<()>(0, &(), plan, options).await.map(drop).unwrap_err();
    assert_eq!((failed.sink.unwrap().len(), began.elapsed()), (9, Duration::from_millis(500)));
    let text = failed.error.to_string();
    assert!(text.contains("cannot connect") && text.contains("500ms"), "{text}");
}

#[simnet::test]
async fn calls_beyond_the_limit_of_a_connection_wait() {
    let host = Host::start();
    let client = host.client().await;
    let blocked: Vec<_> = (0..common::CALLS_MAX)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                client.call::<()>(common::GATE, &(), ReplyPlan::default(), CallOptions::default()).await.map(drop)
            })
        })
        .collect();
    host.counter.wait_for_gate(common::CALLS_MAX).await;
    let beyond = tokio::spawn({
        let client = client.clone();
        async move { add(&client, 1).await }
    });
    assert_eq!(add(&host.client().await, 1).await.unwrap(), 1, "another connection must not be affected");
    sleep(Duration::from_secs(10)).await;
    assert!(!beyond.is_finished());
    host.counter.open_gate();
    assert_eq!(beyond.await.unwrap().unwrap(), 2);
    for call in blocked {
        call.await.unwrap().unwrap();
    }
}

#[simnet::test]
async fn callback_works_on_connection_at_its_call_limit() {
    let back = Arc::new(Counter::default());
    let host = Host::start();
    let options =
        ClientOptions { callbacks: Some(rpc::Server::builder().shared(back.clone()).build()), ..host.options() };
    let client = Client::connect(host.kind.clone(), host.address, options).await.unwrap();
    // The last accepted call waits for the answer to a callback. That answer arrives behind calls that are not
    // accepted.
    let calls = (1..=3 * common::CALLS_MAX).map(|call| {
        let client = client.clone();
        tokio::spawn(async move {
            let procedure = if call == common::CALLS_MAX { common::CALL_BACK } else { common::GATE };
            match procedure {
                common::GATE => {
                    client.call::<()>(procedure, &(), ReplyPlan::default(), CallOptions::default()).await.map(drop)
                }
                _ => client.call::<u64>(procedure, &1u64, ReplyPlan::default(), CallOptions::default()).await.map(drop),
            }
        })
    });
    let mut calls: Vec<_> = calls.collect();
    calls.remove(common::CALLS_MAX - 1).await.unwrap().unwrap();
    assert_eq!(back.value(), 1);
    host.counter.open_gate();
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

#[simnet::test]
async fn dropped_call_does_not_affect_others() {
    let host = Host::start();
    let client = host.client().await;
    for round in 0..50u64 {
        let data = Bytes::from(vec![1; 200_000]);
        let abandoned =
            tokio::time::timeout(Duration::from_millis(round), echo(&client, data, Some(Buffer::zeroed(200_000))));
        drop(abandoned.await);
        let data = Bytes::from(vec![round as u8; 70_000]);
        let answer = echo(&client, data.clone(), Some(Buffer::zeroed(70_000))).await.unwrap();
        assert!(answer.results.0.to_bytes().unwrap() == data);
    }
}

#[simnet::test]
async fn server_can_call_back_on_the_same_connection() {
    let back = Arc::new(Counter::default());
    let callbacks = rpc::Server::builder().shared(back.clone()).build();
    let host = Host::start();
    let options = ClientOptions { callbacks: Some(callbacks), ..host.options() };
    let client = Client::connect(host.kind.clone(), host.address, options).await.unwrap();
    let answer = client.call::<u64>(common::CALL_BACK, &5u64, ReplyPlan::default(), CallOptions::default()).await;
    assert_eq!(answer.unwrap().results, 5);
    assert_eq!(back.value(), 5);
}

/// A service stores its callers, calls them later over their own connections, and is told when each connection is
/// closed.
#[simnet::test]
async fn service_can_call_back_after_its_call_until_connection_closes() {
    let host = Host::start();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let back = Arc::new(Counter::default());
        let callbacks = Some(rpc::Server::builder().shared(back.clone()).build());
        let options = ClientOptions { callbacks, ..host.options() };
        let client = Client::connect(host.kind.clone(), host.address, options).await.unwrap();
        add(&client, 1).await.unwrap();
        clients.push((client, back));
    }
    let callers: Vec<_> = host.counter.callers.lock().unwrap().values().cloned().collect();
    assert_eq!(callers.len(), 2, "each connection must have its own ID");
    let target = rpc::ReverseTarget::new(Counter::PROGRAM, 1, &rpc::Credential::None);
    let plan = || (ReplyPlan::default(), Duration::from_secs(60));
    for (caller, amount) in callers.iter().zip([5u64, 7]) {
        let sums = (0..3).map(|_| caller.call::<u64>(&target, common::ADD, &amount, plan()));
        let sums = futures_util::future::join_all(sums).await.into_iter().map(|answer| answer.unwrap().results);
        assert_eq!(sums.max(), Some(3 * amount));
    }
    let mut values: Vec<u64> = clients.iter().map(|(_, back)| back.value()).collect();
    values.sort();
    assert_eq!(values, [15, 21], "each client must be called over its own connection");
    let gone = clients.remove(0).0;
    drop(gone);
    while host.counter.callers.lock().unwrap().len() > 1 {
        sleep(Duration::from_millis(5)).await;
    }
    let left = *host.counter.callers.lock().unwrap().keys().next().unwrap();
    let over = callers.iter().find(|caller| caller.connection() != left).unwrap();
    let failed = over.call::<u64>(&target, common::ADD, &1u64, plan()).await.unwrap_err();
    assert!(matches!(failed.error, rpc::ClientError::Transport(rpc::TransportError::Lost(_))), "{}", failed.error);
    let unknown = rpc::ReverseTarget::new(Counter::PROGRAM + 1, 1, &rpc::Credential::None);
    let caller = callers.iter().find(|caller| caller.connection() == left).unwrap();
    let failed = caller.call::<u64>(&unknown, common::ADD, &1u64, plan()).await.unwrap_err();
    assert!(matches!(failed.error, rpc::ClientError::NotExecuted(rpc::AcceptStat::ProgUnavail)), "{}", failed.error);
}

#[simnet::test]
async fn idle_connection_is_closed_and_reopened_for_the_next_call() {
    // In the second case, the server closes the connection first.
    for (server, client) in [("off", "1s"), ("1s", "off")] {
        let host = Host::start_with(&[("idle", server)]);
        let kind = tcp(&host.network, &[("idle", client)]);
        let client = Client::connect(kind, host.address, host.options()).await.unwrap();
        for sum in 1..=3 {
            assert_eq!(add(&client, 1).await.unwrap(), sum);
            sleep(Duration::from_millis(900)).await;
            assert!(client.transport().is_some(), "the connection was not idle for so long");
            while client.transport().is_some() {
                sleep(Duration::from_millis(5)).await;
            }
        }
    }
}
