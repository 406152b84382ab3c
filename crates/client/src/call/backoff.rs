//! Pauses between the attempts of an operation.
//!
//! [`Backoff`] doubles each pause up to a maximum. [`Notice`] warns the user about a server that asks to retry later.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Deadline, Program};
use crate::model::{Error, Status};

/// The pauses between the attempts of one operation.
pub(crate) struct Backoff {
    delay: Duration,
    /// The maximum of a pause.
    delay_max: Duration,
    /// The time when the server first asked to retry later.
    since: Option<Instant>,
}

impl Backoff {
    pub fn new() -> Self {
        Self::up_to(DELAY_MAX)
    }

    /// Creates pauses of at most this time.
    pub fn up_to(delay_max: Duration) -> Self {
        Self { delay: FIRST_DELAY, delay_max, since: None }
    }

    /// Pauses if the error asks to retry later. Returns `true` if the caller is to retry.
    pub async fn pause_if_delayed(&mut self, program: &Program, error: &Error, deadline: &Deadline) -> bool {
        if !error.is_later() {
            return false;
        }
        self.pause_for_delay(program, error.operation(), error.status() == Some(Status::Grace), deadline).await
    }

    /// Pauses because the server asks to retry this operation later. The pause does not count against the deadline.
    /// Returns `false` only if the deadline is strict and the pause would end after it.
    pub async fn pause_for_delay(
        &mut self,
        program: &Program,
        operation: &'static str,
        is_grace: bool,
        deadline: &Deadline,
    ) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        program.notice().record_delay(program.server(), operation, is_grace, since.elapsed());
        deadline.restart();
        let waited = self.pause_before(deadline).await;
        deadline.restart();
        waited
    }

    /// Sets all further pauses to the maximum, because the server will notify the client.
    pub fn slow_down(&mut self) {
        self.delay = self.delay_max;
    }

    /// Pauses and returns `true`. Returns `false` without a pause if the pause would end after the deadline.
    pub async fn pause_before(&mut self, deadline: &Deadline) -> bool {
        let at = Instant::now() + self.delay;
        if at >= deadline.at() {
            return false;
        }
        self.pause().await;
        true
    }

    /// Pauses for a random time between half of the current delay and all of it, so that the clients of a server do not
    /// all retry at the same time.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.delay.mul_f64(entropy::random_range(0.5..=1.0))).await;
        self.delay = (self.delay * 2).min(self.delay_max);
    }
}

/// Warns the user when a server keeps asking to retry later. All users of a connection share it, so that the warnings
/// are rate-limited.
#[derive(Debug, Default)]
pub(crate) struct Notice {
    /// The time of the last answer that delayed an operation which had already waited for [`WARN_AFTER`].
    last: Mutex<Option<Instant>>,
}

impl Notice {
    fn record_delay(&self, server: &Arc<str>, operation: &'static str, is_grace: bool, waited: Duration) {
        if waited < WARN_AFTER {
            return;
        }
        let now = Instant::now();
        let before = self.last.lock().replace(now);
        if before.is_some_and(|before| now - before < WARN_AGAIN) {
            tracing::debug!(%server, operation, ?waited, is_grace, "the server still asks to retry later");
        } else if is_grace {
            tracing::warn!(%server, operation, ?waited, "the server is in its grace period; retrying");
        } else {
            tracing::warn!(%server, operation, ?waited, "the server asks to retry later; retrying");
        }
    }
}

const FIRST_DELAY: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// The time that an operation waits before the user is warned.
const WARN_AFTER: Duration = Duration::from_secs(2);
/// The time without a delayed operation after which the user is warned again.
const WARN_AGAIN: Duration = Duration::from_secs(60);
