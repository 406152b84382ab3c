//! Sharing a worker's time fairly among peers.
//!
//! The tasks of a worker run one after the other, one task for each connection. Without a limit, a peer with 200
//! connections gets 200 times as much of the worker's time as a peer with one connection, and in every round all other
//! peers wait for all 200.
//!
//! Therefore the connections of one peer share a [`QUANTUM`] of time in each round of the worker. When the peer has
//! used up its quantum, its connections are deferred to the next round, in the order in which they requested a turn. A
//! round ends when every task that was ready at the round's first turn has run: that turn wakes the task of
//! [`run_rounds`], which the executor queues behind all of them.
//!
//! A peer with a single connection is not limited: its connection yields by itself after a bounded number of calls.
//!
//! Each worker is one thread, so the accounts of its peers are thread-local.

use std::{
    cell::RefCell,
    convert::Infallible,
    future::poll_fn,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use entropy::HashMap;

/// The identity of a peer while at least one of its connections is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerId(pub usize);

/// A turn of a connection whose time is charged to its peer.
#[derive(Debug)]
pub(crate) struct Turn {
    peer: PeerId,
    began: Instant,
}

#[derive(Default)]
struct Rounds {
    /// The peers that had a turn in this round.
    peers: HashMap<PeerId, Account>,
    /// The waker of the task that ends the round. `None` if no such task runs on this thread; connections are not
    /// deferred then.
    marker: Option<Waker>,
}

#[derive(Default)]
struct Account {
    used: Duration,
    deferred: Vec<Waker>,
}

thread_local! {
    static ROUNDS: RefCell<Rounds> = RefCell::default();
}

impl Turn {
    /// Begins a turn of a connection of `peer`. If the peer has used up its time, returns `Pending` and wakes the task
    /// of `cx` in the next round.
    pub fn begin(peer: PeerId, now: Instant, cx: &mut Context<'_>) -> Poll<Self> {
        ROUNDS.with_borrow_mut(|rounds| {
            let Some(marker) = &rounds.marker else { return Poll::Ready(Self { peer, began: now }) };
            if rounds.peers.is_empty() {
                marker.wake_by_ref();
            }
            let account = rounds.peers.entry(peer).or_default();
            if account.used < QUANTUM {
                return Poll::Ready(Self { peer, began: now });
            }
            account.deferred.push(cx.waker().clone());
            Poll::Pending
        })
    }

    /// Ends the turn and charges its time to the peer.
    pub fn end(self, now: Instant) {
        ROUNDS.with_borrow_mut(|rounds| {
            if let Some(account) = rounds.peers.get_mut(&self.peer) {
                account.used += now.duration_since(self.began);
            }
        });
    }
}

/// Ends the rounds of this thread each time it is polled. Never completes.
pub(crate) async fn run_rounds() -> Infallible {
    poll_fn(|cx| {
        // A waker runs foreign code, so no waker is called while the accounts are borrowed.
        let ended = ROUNDS.with_borrow_mut(|rounds| {
            rounds.marker = Some(cx.waker().clone());
            std::mem::take(&mut rounds.peers)
        });
        ended.into_values().flat_map(|account| account.deferred).for_each(Waker::wake);
        Poll::Pending
    })
    .await
}

/// Maximum time of a peer with several connections in each round of a worker. The last turn can exceed it.
const QUANTUM: Duration = Duration::from_micros(500);

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn waker() -> (Arc<Woken>, Waker) {
        let woken = Arc::<Woken>::default();
        (woken.clone(), woken.into())
    }

    fn begin(peer: usize, now: Instant, waker: &Waker) -> Option<Turn> {
        match Turn::begin(PeerId(peer), now, &mut Context::from_waker(waker)) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn peer_over_quantum_is_deferred_to_next_round() {
        let start = Instant::now();
        let (connection, waker_of_connection) = waker();
        let (marker, waker_of_marker) = waker();
        let mut rounds = pin!(run_rounds());
        let mut end_round = || assert!(rounds.as_mut().poll(&mut Context::from_waker(&waker_of_marker)).is_pending());
        end_round();

        let half = QUANTUM / 2;
        begin(1, start, &waker_of_connection).unwrap().end(start + half);
        assert_eq!(marker.0.load(Relaxed), 1, "the first turn must schedule the end of the round");
        begin(1, start + half, &waker_of_connection).unwrap().end(start + 2 * half);
        assert!(begin(1, start + QUANTUM, &waker_of_connection).is_none());
        assert!(begin(2, start + QUANTUM, &waker_of_connection).is_some(), "another peer must have its own quantum");
        assert_eq!((connection.0.load(Relaxed), marker.0.load(Relaxed)), (0, 1));

        end_round();
        assert_eq!(connection.0.load(Relaxed), 1, "the deferred connection must be woken");
        assert!(begin(1, start + QUANTUM, &waker_of_connection).is_some());
    }

    #[test]
    fn connections_are_not_deferred_without_rounds() {
        let start = Instant::now();
        for turn in 0..3 {
            let now = start + turn * QUANTUM;
            begin(1, now, Waker::noop()).unwrap().end(now + QUANTUM);
        }
    }
}
