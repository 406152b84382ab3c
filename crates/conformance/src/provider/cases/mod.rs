//! The cases of the suite. Each is a function that [`provider_suite!`](crate::provider_suite) expands to a test.

mod connecting;
mod endings;
mod queues;
mod regions;
mod transfers;

pub use connecting::*;
pub use endings::*;
pub use queues::*;
pub use regions::*;
pub use transfers::*;

use bytes::Bytes;
use rdma::{CompletionKind, QpError, WorkId};

use super::{Fabric, Pair, Side};

/// Connects two ends. Then the client sends first, so that the server may send (RFC 5044 §7.1.2).
async fn greeted(fabric: &Fabric) -> Pair {
    let mut pair = fabric.pair().await;
    let recv = pair.server.recv(16);
    pair.client.send(Bytes::from_static(b"hello"));
    pair.until(|pair| pair.server.has(&[recv])).await;
    pair
}

fn solicited(pair: &Pair, recv: WorkId) -> bool {
    matches!(pair.client.ok(recv), CompletionKind::Receive { solicited: true, .. })
}

/// Waits until the end at `side` reports that its peer has violated the protocol, and the peer reports that it was
/// notified.
async fn expect_fault(pair: &mut Pair, side: Side) {
    let (client, server) = pair.until_ended().await;
    let (finder, culprit) = match side {
        Side::Client => (client, server),
        Side::Server => (server, client),
    };
    if pair.adapter {
        // The fabric decides which error each end gets. Linux's siw reports none.
        return;
    }
    assert!(matches!(finder, QpError::Protocol(_)), "{finder:?}");
    assert!(matches!(culprit, QpError::Terminated(_)), "{culprit:?}");
}
