//! Tests of behaviour that only adapters have: peers that disappear without notice, and devices that stay open without
//! connections.

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

/// Returns a pair whose ends probe each other after a short time without completions, and have exchanged a message.
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
async fn an_idle_connection_stays_open_while_the_peer_answers() {
    let Some(mut pair) = pair().await else { return };
    let recv = pair.client.recv(10);
    let quiet = tokio::time::timeout(Duration::from_secs(5), pair.until(|pair| pair.client.error.is_some()));
    assert!(quiet.await.is_err(), "{:?} {:?}", pair.client.error, pair.server.error);
    assert!(
        pair.client.statuses().len() == 1 && pair.server.statuses().len() == 1,
        "probes must not produce completions"
    );
    pair.server.send(Bytes::from_static(b"still here"));
    pair.until(move |pair| pair.client.has(&[recv])).await;
    assert_eq!(pair.client.received(recv), b"still here");
}

#[tokio::test]
async fn a_peer_that_disappears_is_detected() {
    let Ok(cut) = std::env::var(VERBS_CUT) else {
        println!(
            "SKIPPED rdma: verbs: a peer that disappears: {VERBS_CUT} is not set to a command that cuts the adapter's network"
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
async fn an_idle_device_keeps_its_registrations() {
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
        assert_eq!(registered[0], registered[1], "{way}: the second connection must reuse the registrations");
    }
}

/// If a child shared registered pages copy-on-write, the parent's next write would move the data to a page that the
/// adapter does not know.
#[tokio::test]
async fn a_forked_child_does_not_detach_registered_pages() {
    let Some(fabric) = common::verbs() else { return };
    let mut pair = fabric.with_pool(Pool::default()).pair().await;
    let recvs = [pair.server.recv(5000), pair.server.recv(5000)];
    // Two buffers of one slab: the first one causes the slab to be registered.
    let [first, mut second] = [pair.client.buffer(5000), pair.client.buffer(5000)];
    pair.client.send(first.freeze());
    pair.until(move |pair| pair.server.has(&recvs[..1])).await;
    let (mut started, notify) = std::io::pipe().unwrap();
    let (wait, mut release) = std::io::pipe().unwrap();
    let parent = std::thread::spawn(move || {
        let mut child = Command::new("true");
        let run_until_released = move || {
            (&notify).write_all(b"!")?;
            (&wait).read_exact(&mut [0])
        };
        // SAFETY: between fork and exec the closure writes to a pipe and reads from another, which requires no lock.
        #[expect(unsafe_code)]
        let status = unsafe { child.pre_exec(run_until_released) }.status();
        assert!(status.unwrap().success());
    });
    started.read_exact(&mut [0]).unwrap();
    second.copy_from_slice(&pattern(3, 5000));
    pair.client.send(second.freeze());
    pair.until(move |pair| pair.server.has(&recvs)).await;
    assert_eq!(pair.server.received(recvs[1]), pattern(3, 5000));
    release.write_all(b"!").unwrap();
    parent.join().unwrap();
}

/// The environment variable with a shell command after which the two ends of the adapter can no longer communicate.
const VERBS_CUT: &str = "SLIPWAY_VERBS_CUT";
