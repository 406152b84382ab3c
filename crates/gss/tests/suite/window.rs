//! Our client at a server with a short sequence window.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use gss::{
    GssLimits, GssServer,
    mechanism::Context as _,
    wire::{InitResult, RPCSEC_GSS},
};
use rpc::{
    CallOptions, Client, ClientError, Hosts, OpaqueAuth, ReplyPlan,
    security::{Authentication, Claim, ServerFlavor, Verdict},
};
use tokio::{task::JoinSet, time::sleep};
use xdr::Message;

use crate::{
    rig::{Rig, SECRET, SERVICES, WAIT, add, alice, connect},
    toy::ToyContext,
};

/// A server that grants alice a window of [`LENGTH`].
struct Short(Arc<GssServer>);

impl ServerFlavor for Short {
    fn flavor(&self) -> u32 {
        RPCSEC_GSS
    }

    fn authenticate<'a>(&'a self, claim: Claim<'a>) -> Authentication<'a> {
        match self.0.authenticate(claim) {
            Authentication::Pending(negotiation) => {
                Authentication::Pending(Box::pin(async { shorten(negotiation.await) }))
            }
            ready => ready,
        }
    }
}

fn shorten(verdict: Verdict) -> Verdict {
    let Verdict::Answered { verifier, results } = verdict else { return verdict };
    let mut result: InitResult = Message::from(results).decode().unwrap();
    if result.major != 0 {
        return Verdict::Answered { verifier, results: Message::encode(&result).stream };
    }
    result.window = LENGTH;
    let body = ToyContext::of(SECRET, b"alice@TOY").mic(&LENGTH.to_be_bytes()).unwrap();
    Verdict::Answered { verifier: OpaqueAuth { flavor: RPCSEC_GSS, body }, results: Message::encode(&result).stream }
}

async fn wait(client: Client) -> Result<(), ClientError> {
    client.call::<()>(WAIT, &(), ReplyPlan::default(), CallOptions::default()).await?;
    Ok(())
}

// RFC 2203 §5.2.3.1: the window is the maximum number of requests that may be outstanding.
#[simnet::test]
async fn no_more_calls_are_outstanding_than_the_window_permits() {
    let mut rig = Rig::new(GssLimits::default(), None);
    rig.listen(Hosts::all(), Arc::new(Short(rig.flavor.clone())));
    for way in rig.ways() {
        for service in SERVICES {
            let client = connect(way, &alice(service)).await;
            add(&client, 1).await.unwrap();
            let began = rig.counter.waiting.load(SeqCst);
            let mut calls = JoinSet::new();
            (0..CALLS).for_each(|_| drop(calls.spawn(wait(client.clone()))));
            for ended in 0..CALLS {
                // Virtual time passes only when no task can continue.
                sleep(Duration::from_secs(1)).await;
                let outstanding = rig.counter.waiting.load(SeqCst) - began - ended;
                assert_eq!(outstanding, u64::from(LENGTH).min(CALLS - ended), "{service:?}, {}", way.0.name());
                rig.counter.gate.add_permits(1);
                calls.join_next().await.unwrap().unwrap().unwrap();
            }
        }
    }
}

/// A call that is given up has no place any more.
#[simnet::test]
async fn abandoned_calls_free_their_places() {
    let mut rig = Rig::new(GssLimits::default(), None);
    rig.listen(Hosts::all(), Arc::new(Short(rig.flavor.clone())));
    let client = connect(&rig.tcp, &alice(SERVICES[0])).await;
    let calls: Vec<_> = (0..CALLS).map(|_| tokio::spawn(wait(client.clone()))).collect();
    sleep(Duration::from_secs(1)).await;
    calls.iter().for_each(|call| call.abort());
    add(&client, 1).await.unwrap();
}

/// The calls that wait for a place get one of the new context, if the server has lost the old one.
#[simnet::test]
async fn waiting_calls_continue_after_a_restart() {
    let mut rig = Rig::new(GssLimits::default(), None);
    rig.listen(Hosts::all(), Arc::new(Short(rig.flavor.clone())));
    let client = connect(&rig.rdma, &alice(SERVICES[1])).await;
    let mut calls = JoinSet::new();
    (0..CALLS).for_each(|_| drop(calls.spawn(wait(client.clone()))));
    sleep(Duration::from_secs(1)).await;
    rig.restart();
    rig.counter.gate.add_permits(2 * CALLS as usize);
    while let Some(ended) = calls.join_next().await {
        ended.unwrap().unwrap();
    }
}

const LENGTH: u32 = 3;
const CALLS: u64 = 10;
