//! [`Backoff`]: waits longer each time that a server says "later"; [`Notice`] tells the user about it.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Deadline, Program};
use crate::model::{Error, Status};

/// Waits longer each time that a server says "later": JUKEBOX, or DELAY and GRACE.
pub(crate) struct Backoff {
    delay: Duration,
    /// When the server first said "later".
    since: Option<Instant>,
}

impl Backoff {
    pub fn new() -> Self {
        Self { delay: FIRST, since: None }
    }

    /// Whether to call again after this error: waits and says yes if the server has said "later".
    pub async fn later(&mut self, program: &Program, error: &Error, deadline: &Deadline) -> bool {
        if !error.is_later() {
            return false;
        }
        self.put_off(program, error.operation(), error.status() == Some(Status::Grace), deadline).await
    }

    /// The server has said "later" to this operation: waits, which does not count against the deadline. Says no only if that
    /// is strict and would pass.
    pub async fn put_off(
        &mut self,
        program: &Program,
        operation: &'static str,
        is_grace: bool,
        deadline: &Deadline,
    ) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        program.notice().put_off(program.server(), operation, is_grace, since.elapsed());
        deadline.heard();
        let waited = self.waits(deadline).await;
        deadline.heard();
        waited
    }

    /// Waits as long as it ever does from now on: who asks will be told otherwise.
    pub fn slow_down(&mut self) {
        self.delay = MOST;
    }

    /// Waits, unless that would be too long.
    pub async fn waits(&mut self, deadline: &Deadline) -> bool {
        let at = Instant::now() + self.delay;
        if at >= deadline.at() {
            return false;
        }
        self.pause().await;
        true
    }

    /// Waits: at least half of the present delay, so that not all clients of a server come again at once.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.delay.mul_f64(rand::random_range(0.5..=1.0))).await;
        self.delay = (self.delay * 2).min(MOST);
    }
}

/// Tells the user once, for each time that it happens, that a server asks to wait. The users of a connection share it.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    /// When a server last put off an operation that had waited for long.
    last: Mutex<Option<Instant>>,
}

impl Notice {
    fn put_off(&self, server: &Arc<str>, operation: &'static str, is_grace: bool, waited: Duration) {
        if waited < TOLD_AFTER {
            return;
        }
        let now = Instant::now();
        let before = self.last.lock().replace(now);
        if before.is_some_and(|before| now - before < TOLD_AGAIN) {
            tracing::debug!(%server, operation, ?waited, is_grace, "the server still asks to wait");
        } else if is_grace {
            tracing::warn!(%server, operation, ?waited, "the server is in its grace period; waiting");
        } else {
            tracing::warn!(%server, operation, ?waited, "the server asks to try again later; waiting");
        }
    }
}

const FIRST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(5);
/// How long an operation waits before the user is told.
const TOLD_AFTER: Duration = Duration::from_secs(2);
/// For how long nothing may be put off before the user is told again.
const TOLD_AGAIN: Duration = Duration::from_secs(60);
