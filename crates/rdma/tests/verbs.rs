//! What only adapters have: peers that vanish without a word, and devices that outlast connections.

mod common;

use std::{
    io::{Read, Write},
    os::unix::process::CommandExt,
    process::Command,
    time::Duration,
};

use buf::Pool;
use bytes::Bytes;
use conformance::provider::{Pair, pattern};
use rdma::{
    QpError,
    registration::Registration,
    verbs::{Devices, VerbsOptions},
};

/// A pair whose ends ask soon for signs of life; both have exchanged a message.
async fn pair() -> Option<Pair> {
    let keepalive = Duration::from_secs(1);
    let fabric = common::verbs_as(VerbsOptions { keepalive, ..VerbsOptions::default() }, |verbs| verbs)?;
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

#[tokio::test]
async fn an_idle_device_keeps_what_is_registered_with_it() {
    for way in [Registration::Fast, Registration::Cache] {
        let devices = Devices::default();
        let options = VerbsOptions { devices: devices.clone(), ..VerbsOptions::default() };
        let Some(fabric) = common::verbs_as(options, |verbs| verbs) else { return };
        let fabric = fabric.with_pool(Pool::default()).registering(way);
        assert_eq!(format!("{devices:?}"), "{}");
        let mut registered = Vec::new();
        for _ in 0..2 {
            let mut pair = fabric.pair().await;
            let recv = pair.server.recv(5000);
            let mut buffer = pair.client.buffer(5000);
            buffer.copy_from_slice(&pattern(1, 5000));
            pair.client.send(buffer.freeze());
            pair.until(move |pair| pair.server.has(&[recv])).await;
            assert_eq!(pair.server.received(recv), pattern(1, 5000));
            drop(pair);
            registered.push(format!("{devices:?}"));
        }
        assert!(registered[0].contains(" slabs") && !registered[0].contains("\"0 slabs"), "{registered:?}");
        assert_eq!(registered[0], registered[1], "{way}: nothing is registered again");
    }
}

/// A child that shared registered pages copy-on-write would leave the adapter the old ones when the parent writes.
#[tokio::test]
async fn a_child_takes_no_page_from_the_adapter() {
    let Some(fabric) = common::verbs() else { return };
    let mut pair = fabric.with_pool(Pool::default()).pair().await;
    let recvs = [pair.server.recv(5000), pair.server.recv(5000)];
    // Two buffers of one slab: with the first it becomes known to the adapter.
    let [first, mut second] = [pair.client.buffer(5000), pair.client.buffer(5000)];
    pair.client.send(first.freeze());
    pair.until(move |pair| pair.server.has(&recvs[..1])).await;
    let (mut born, told) = std::io::pipe().unwrap();
    let parent = std::thread::spawn(move || {
        let mut child = Command::new("true");
        let lives_a_while = move || {
            (&told).write_all(b"!")?;
            std::thread::sleep(Duration::from_secs(2));
            Ok(())
        };
        // SAFETY: between fork and exec it writes to a pipe and sleeps, for which no lock is needed.
        #[expect(unsafe_code)]
        let status = unsafe { child.pre_exec(lives_a_while) }.status();
        assert!(status.unwrap().success());
    });
    born.read_exact(&mut [0]).unwrap();
    second.copy_from_slice(&pattern(3, 5000));
    pair.client.send(second.freeze());
    pair.until(move |pair| pair.server.has(&recvs)).await;
    assert_eq!(pair.server.received(recvs[1]), pattern(3, 5000));
    parent.join().unwrap();
}

/// The environment variable with a command for a shell: after it, the adapter's two ends do not hear of each other.
const VERBS_CUT: &str = "SLIPWAY_VERBS_CUT";
