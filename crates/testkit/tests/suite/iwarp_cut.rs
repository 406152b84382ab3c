//! Tests that an iWARP connection that is cut at any byte returns every buffer.

use std::net::SocketAddr;

use buf::Buffer;
use conformance::provider::{Fabric, Pair, Side, pattern};
use rdma::{
    BoxFuture, CompletionKind, Connected, Listener, Memory, Provider, ProviderCaps, QpError, QpOptions, Status, WorkId,
    iwarp::{Iwarp, IwarpOptions},
};
use testkit::proxy::{CutAfter, CutProxy};

/// Connects through a proxy.
struct ByProxy {
    iwarp: Iwarp,
    cut: CutAfter,
}

impl Provider for ByProxy {
    fn caps(&self) -> ProviderCaps {
        self.iwarp.caps()
    }

    fn listen(&self, local: SocketAddr) -> std::io::Result<Box<dyn Listener>> {
        self.iwarp.listen(local)
    }

    fn connect<'a>(
        &'a self,
        remote: SocketAddr,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, std::io::Result<Connected>> {
        Box::pin(async move {
            let proxy = CutProxy::start(remote, vec![self.cut]).await?;
            // Connections in progress outlive the proxy.
            self.iwarp.connect(proxy.local_addr(), options, private_data, recvs).await
        })
    }
}

fn fabric(cut: CutAfter) -> Fabric {
    let iwarp = Iwarp::new(IwarpOptions { linger: std::time::Duration::from_millis(100), ..IwarpOptions::default() });
    Fabric::new(ByProxy { iwarp, cut })
}

const SIZE: usize = 3000;

/// Posts a work request of every kind, in both directions.
fn post_everything(pair: &mut Pair) {
    for (side, other) in [(Side::Client, Side::Server), (Side::Server, Side::Client)] {
        let target = pair.end(other).expose_for_write(SIZE);
        let source = pair.end(other).expose_for_read(&pattern(1, SIZE));
        let from = pair.end(side);
        from.send(pattern(2, 100));
        from.read(SIZE, source.stag, source.offset);
        from.write(pattern(3, SIZE), target.stag, target.offset);
        from.send_invalidate(pattern(4, 100), target.stag, false);
    }
}

#[tokio::test]
async fn a_connection_cut_at_any_byte_returns_every_buffer() {
    // The handshake is 24 bytes in each direction. The following data end at byte 6364 in one direction, 6384 in the
    // other.
    for at in (24..6364).step_by(97) {
        for to_server in [false, true] {
            let limit = Some(at);
            let cut = if to_server {
                CutAfter { to_server: limit, to_client: None }
            } else {
                CutAfter { to_server: None, to_client: limit }
            };
            let fabric = fabric(cut);
            let options = QpOptions::default();
            let mut pair = fabric.pair_with(&options, &options, 2).await;
            post_everything(&mut pair);
            let errors = pair.until_ended().await;
            for error in [&errors.0, &errors.1] {
                assert!(matches!(error, QpError::Io(_) | QpError::Disconnected), "cut at {at}: {errors:?}");
            }
            for side in [Side::Client, Side::Server] {
                check_home(pair.end(side));
            }
        }
    }
}

/// Checks that four requests and two receives have completed, each once, with their memory.
fn check_home(end: &mut conformance::provider::End) {
    let mut ids: Vec<u64> = end.done.iter().map(|done| done.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [2, 3, 4, 5, 1000, 1001]);
    for done in &end.done {
        match &done.kind {
            CompletionKind::Read(into) => {
                assert_eq!(into.len(), SIZE);
                assert!(done.status == Status::Flushed || **into == pattern(1, SIZE)[..]);
            }
            CompletionKind::Receive { buffer, invalidated, .. } if done.status == Status::Ok => {
                assert_eq!(buffer.len(), 100);
                if let Some((_, Memory::Write(written))) = invalidated {
                    assert!(written.as_host().unwrap()[..] == pattern(3, SIZE)[..], "announced data must be complete");
                }
            }
            CompletionKind::Receive { buffer, .. } => assert_eq!(buffer.len(), 4096),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_handshake_cut_at_any_byte_fails_on_both_ends() {
    for at in 0..24 {
        for cut in
            [CutAfter { to_server: Some(at), to_client: None }, CutAfter { to_server: None, to_client: Some(at) }]
        {
            let fabric = fabric(cut);
            let (connected, accepted) = fabric
                .attempt(b"", |request| async move {
                    request.accept(&QpOptions::default(), b"", Vec::new()).await.map(|_| ())
                })
                .await;
            assert!(connected.is_err(), "cut at {at}");
            assert!(accepted.is_err() || cut.to_client.is_some(), "cut at {at}");
        }
    }
}
