//! [`Backoff`]: pauses between attempts, each longer than the last; [`Notice`] warns the user about a server that asks to wait.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Deadline, Program};
use crate::model::{Error, Status};

/// The pauses of one operation.
pub(crate) struct Backoff {
    delay: Duration,
    /// When the server first asked to retry later.
    since: Option<Instant>,
}

impl Backoff {
    pub fn new() -> Self {
        Self { delay: FIRST, since: None }
    }

    /// Pauses if this error asks to retry later. Returns whether to retry.
    pub async fn later(&mut self, program: &Program, error: &Error, deadline: &Deadline) -> bool {
        if !error.is_later() {
            return false;
        }
        self.put_off(program, error.operation(), error.status() == Some(Status::Grace), deadline).await
    }

    /// Pauses because the server asks to retry this operation later. The pause does not count against the deadline. Returns false
    /// only if the deadline is strict and would pass.
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

    /// Makes all further pauses the longest: the server will notify the client.
    pub fn slow_down(&mut self) {
        self.delay = MOST;
    }

    /// Pauses, and returns true; but not beyond the deadline.
    pub async fn waits(&mut self, deadline: &Deadline) -> bool {
        let at = Instant::now() + self.delay;
        if at >= deadline.at() {
            return false;
        }
        self.pause().await;
        true
    }

    /// Pauses for a random part, at least half, of the present delay, so that the clients of a server do not all retry at once.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.delay.mul_f64(entropy::random_range(0.5..=1.0))).await;
        self.delay = (self.delay * 2).min(MOST);
    }
}

/// Warns the user once about a server that asks to wait. The users of a connection share it.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    /// When a server last put off an operation that had waited for long.
    last: Mutex<Option<Instant>>,
}

impl Notice {
    fn put_off(&self, server: &Arc<str>, operation: &'static str, is_grace: bool, waited: Duration) {
        if waited < WARN_AFTER {
            return;
        }
        let now = Instant::now();
        let before = self.last.lock().replace(now);
        if before.is_some_and(|before| now - before < WARN_AGAIN) {
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
/// The time for which an operation waits before the user is warned.
const WARN_AFTER: Duration = Duration::from_secs(2);
/// The time without a pause after which the user is warned again.
const WARN_AGAIN: Duration = Duration::from_secs(60);
