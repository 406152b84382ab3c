//! [`Idle`]: notices that nobody uses a connection.
//!
//! It looks a few times in each period whether there was a call in either direction, rather than note the time at every
//! call. A connection that is closed for it is made again by its [`Client`](crate::Client) when that calls.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

use crate::CallsMade;

/// When the side that accepted takes a connection to be idle that the connecting side gives up after `idle`: later, so
/// that seldom one closes what the other is just about to use.
pub fn accepting_idle(idle: Option<Duration>) -> Option<Duration> {
    idle.map(|after| after + after / 5)
}

/// Watches one connection.
pub(crate) struct Idle {
    /// Calls of the peer so far.
    pub received: u64,
    /// What there was when last looked at.
    seen: (u64, u64),
    /// How often since then nothing had changed.
    unchanged: u32,
    pause: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Idle {
    /// Of a connection that is idle after this time, or up to a quarter more.
    pub fn new(after: Duration) -> Self {
        let pause = after / LOOKS;
        Self { received: 0, seen: (0, 0), unchanged: 0, pause, timer: Box::pin(sleep(pause)) }
    }

    /// Whether the connection is idle, `done` being whether no call of the peer is in progress. Else the task is woken
    /// when it is time to ask again.
    pub fn poll(&mut self, cx: &mut Context<'_>, done: bool, made: impl Fn() -> CallsMade) -> bool {
        while let Poll::Ready(()) = self.timer.as_mut().poll(cx) {
            let CallsMade { total, pending } = made();
            let now = (self.received, total);
            let quiet = done && pending == 0 && now == self.seen;
            self.unchanged = if quiet { self.unchanged + 1 } else { 0 };
            self.seen = now;
            if self.unchanged >= LOOKS {
                return true;
            }
            self.timer.as_mut().reset(Instant::now() + self.pause);
        }
        false
    }
}

/// In the time that makes a connection idle.
const LOOKS: u32 = 4;

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
    async fn whoever_calls_or_is_called_is_not_idle() {
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
