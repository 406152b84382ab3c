//! [`Idle`]: detects idle connections.
//!
//! It checks several times in each period whether there was a call in either direction, instead of reading the clock at
//! every call. A [`Client`](crate::Client) reopens a connection that was closed as idle when it makes the next call.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

use crate::CallsMade;

/// Returns the idle time for the accepting side of a connection, if the connecting side uses `idle`. It is longer, so
/// that the accepting side seldom closes a connection that the connecting side is about to use.
pub fn accepting_idle(idle: Option<Duration>) -> Option<Duration> {
    idle.map(|after| after + after / 5)
}

/// The idle detector of one connection.
pub(crate) struct Idle {
    /// The number of calls received from the peer.
    pub received: u64,
    /// The numbers of calls received and made at the last check.
    seen: (u64, u64),
    /// The number of consecutive checks that found no change.
    unchanged: u32,
    pause: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    /// Creates a detector for a connection that is idle after `after`. It can take up to a quarter longer.
    pub fn new(after: Duration) -> Self {
        let pause = after / CHECKS;
        Self { received: 0, seen: (0, 0), unchanged: 0, pause, timer: Box::pin(sleep(pause)) }
    }

    /// Returns `true` if the connection is idle. `done` means that no call of the peer is in progress. Otherwise wakes
    /// the task when the next check is due.
    pub fn poll(&mut self, cx: &mut Context<'_>, done: bool, made: impl Fn() -> CallsMade) -> bool {
        while let Poll::Ready(()) = self.timer.as_mut().poll(cx) {
            let CallsMade { total, pending } = made();
            let now = (self.received, total);
            let quiet = done && pending == 0 && now == self.seen;
            self.unchanged = if quiet { self.unchanged + 1 } else { 0 };
            self.seen = now;
            if self.unchanged >= CHECKS {
                return true;
            }
            self.timer.as_mut().reset(Instant::now() + self.pause);
        }
        false
    }
}

/// The number of checks in the time after which a connection is idle.
const CHECKS: u32 = 4;

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::poll_fn};

    use super::*;

    async fn idle_after(idle: &mut Idle, done: &Cell<bool>, made: &Cell<CallsMade>) -> Duration {
        let start = Instant::now();
        poll_fn(|cx| if idle.poll(cx, done.get(), || made.get()) { Poll::Ready(()) } else { Poll::Pending }).await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_calls_in_either_direction_is_not_idle() {
        let (done, made) = (Cell::new(true), Cell::new(CallsMade::default()));
        let period = Duration::from_secs(100);
        let mut idle = Idle::new(period);
        let busy = async {
            for turn in 0..20 {
                sleep(period / 2).await;
                match turn % 4 {
                    0 => made.set(CallsMade { total: made.get().total + 1, pending: 1 }),
                    1 => done.set(false),
                    2 => made.set(CallsMade { pending: 0, ..made.get() }),
                    _ => done.set(true),
                }
            }
        };
        let (after, ()) = tokio::join!(idle_after(&mut idle, &done, &made), busy);
        assert!((period * 11..period * 12).contains(&after), "{after:?}");
        let again = idle_after(&mut Idle::new(period), &done, &made).await;
        assert!((period..=period * 5 / 4).contains(&again), "{again:?}");
    }
}
