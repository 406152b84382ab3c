//! Tests of features that only the simulator has. `tests/conformance.rs` tests what all providers share.

use std::{future::poll_fn, io, net::SocketAddr, time::Duration};

use buf::{Buffer, Rope};
use bytes::Bytes;

use tokio::time::Instant;

use super::*;
use crate::{Completion, CompletionKind, QpError, QueuePair, Status, WorkRequest};

async fn pair(sim: &Sim) -> (Box<dyn QueuePair>, Box<dyn QueuePair>, SocketAddr) {
    let mut listener = sim.listen("10.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr();
    let options = QpOptions::default();
    let (client, server) =
        tokio::join!(sim.connect(at, &options, b"", vec![(WorkId(100), Buffer::zeroed(64))]), async {
            let request = listener.accept().await.unwrap();
            request.accept(&options, b"", vec![(WorkId(200), Buffer::zeroed(64))]).await.unwrap()
        });
    (client.unwrap().qp, server, at)
}

async fn next(qp: &mut Box<dyn QueuePair>) -> Result<Vec<Completion>, QpError> {
    let mut completions = Vec::new();
    poll_fn(|cx| qp.poll_completions(cx, &mut completions)).await?;
    Ok(completions)
}

fn send(id: u64) -> WorkRequest {
    let data = Rope::from(Bytes::from_static(b"hello"));
    WorkRequest::Send { id: WorkId(id), data, invalidate: None, solicited: false }
}

/// Returns the completions until the end of the connection, each with its ID and status, and the error.
async fn drain(qp: &mut Box<dyn QueuePair>) -> (Vec<(u64, Status)>, QpError) {
    let mut seen = Vec::new();
    loop {
        match next(qp).await {
            Ok(completions) => seen.extend(completions.iter().map(|done| (done.id.0, done.status))),
            Err(error) => return (seen, error),
        }
    }
}

const RESET: QpError = QpError::Io(io::ErrorKind::ConnectionReset);

#[simnet::test]
async fn cut_before_a_message_loses_it_and_cut_after_delivers_it() {
    for (cut, received) in [(Cut::Before, Status::Flushed), (Cut::After, Status::Ok)] {
        let sim = Sim::new(NetworkOptions::default());
        sim.network().cut_at(0, cut);
        let (mut client, mut server, _) = pair(&sim).await;
        client.post(send(1)).unwrap();
        let ((_, client_error), (server_saw, server_error)) = tokio::join!(drain(&mut client), drain(&mut server));
        assert_eq!(server_saw, [(200, received)], "{cut:?}");
        assert_eq!((client_error, server_error), (RESET, RESET));
        assert_eq!((sim.network().messages(), sim.network().connections()), (1, 0));
    }
}

#[simnet::test]
async fn crash_removes_listener_and_connections() {
    let sim = Sim::new(NetworkOptions::default());
    let (mut client, _server, at) = pair(&sim).await;
    let _other = sim.listen(at).expect("the first listener must have been dropped");
    sim.network().crash(at);
    assert_eq!(drain(&mut client).await.1, RESET);
    let error = sim.connect(at, &QpOptions::default(), b"", Vec::new()).await.err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[simnet::test]
async fn stalled_network_delays_messages() {
    let sim = Sim::new(NetworkOptions::default());
    let (mut client, mut server, _) = pair(&sim).await;
    sim.network().stall(Duration::from_secs(7));
    let start = Instant::now();
    client.post(send(1)).unwrap();
    let (sent, received) = tokio::join!(next(&mut client), next(&mut server));
    assert_eq!(sent.unwrap().len(), 1);
    let CompletionKind::Receive { buffer, .. } = &received.unwrap()[0].kind else { panic!("not a receive") };
    assert_eq!(&**buffer, b"hello");
    assert!(start.elapsed() >= Duration::from_secs(7));
}

#[simnet::test]
async fn same_seed_gives_the_same_run() {
    async fn run(seed: u64) -> (u64, Duration, Vec<(u64, Status)>) {
        let sim = Sim::new(NetworkOptions { seed, cut_probability: 0.05, ..NetworkOptions::default() });
        let start = Instant::now();
        let (mut client, mut server, _) = pair(&sim).await;
        for id in 0..200 {
            client.post(send(id)).unwrap();
            server.post_recv(WorkId(1000 + id), Buffer::zeroed(64));
        }
        let (_, (seen, _)) = tokio::join!(drain(&mut client), drain(&mut server));
        (sim.network().messages(), start.elapsed(), seen)
    }
    assert_eq!(run(7).await, run(7).await);
    assert_ne!(run(7).await, run(8).await);
}
