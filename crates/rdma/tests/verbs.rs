//! What only adapters have: peers that vanish without a word.

mod common;

use std::{process::Command, time::Duration};

use bytes::Bytes;
use common::{Fabric, Pair};
use rdma::{QpError, verbs::VerbsOptions};

/// A pair whose ends ask soon for signs of life; both have exchanged a message.
async fn pair() -> Option<Pair> {
    let keepalive = Duration::from_secs(1);
    let fabric = Fabric::verbs_with(VerbsOptions { keepalive, ..VerbsOptions::default() })?;
    let mut pair = fabric.pair().await;
    let recv = pair.server.recv(10);
    pair.client.send(Bytes::from_static(b"hello"));
    pair.until(move |pair| pair.server.has(&[recv])).await;
    Some(pair)
}

#[tokio::test]
async fn an_idle_connection_lasts_while_the_peer_is_there() {
    let Some(mut pair) = pair().await else { return };
    let recv = pair.client.recv(10);
    let quiet = tokio::time::timeout(Duration::from_secs(5), pair.until(|pair| pair.client.error.is_some()));
    assert!(quiet.await.is_err(), "{:?} {:?}", pair.client.error, pair.server.error);
    assert!(pair.client.statuses().len() == 1 && pair.server.statuses().len() == 1, "nobody notices");
    pair.server.send(Bytes::from_static(b"still here"));
    pair.until(move |pair| pair.client.has(&[recv])).await;
    assert_eq!(pair.client.received(recv), b"still here");
}

#[tokio::test]
async fn a_peer_that_vanishes_is_noticed() {
    let Ok(cut) = std::env::var(VERBS_CUT) else {
        println!(
            "SKIPPED rdma: verbs: a peer that vanishes: {VERBS_CUT} names no command that cuts the adapter's network"
        );
        return;
    };
    let Some(mut pair) = pair().await else { return };
    assert!(Command::new("sh").args(["-c", &cut]).status().unwrap().success());
    let (client, server) = pair.until_ended().await;
    for error in [client, server] {
        assert!(matches!(error, QpError::Io(_)), "{error:?}");
    }
}

/// The environment variable with a command for a shell: after it, the adapter's two ends do not hear of each other.
const VERBS_CUT: &str = "SLIPWAY_VERBS_CUT";
