//! [`Backoff`]: waits longer each time that a server says "later".

use std::time::Duration;

use nfs::v3::Nfsstat3;
use tokio::time::Instant;

use crate::Error;

/// Waits longer each time that a server says "later": JUKEBOX, or DELAY and GRACE.
pub(crate) struct Backoff {
    delay: Duration,
}

impl Backoff {
    pub fn new() -> Self {
        Self { delay: FIRST }
    }

    /// Whether to call again after this error; waits before it says yes.
    pub async fn retries(&mut self, error: &Error, deadline: Instant) -> bool {
        error.status() == Some(Nfsstat3::Jukebox) && self.waits(deadline).await
    }

    /// Waits as long as it ever does from now on: who asks will be told otherwise.
    pub fn slow_down(&mut self) {
        self.delay = MOST;
    }

    /// Waits, unless that would be too long.
    pub async fn waits(&mut self, deadline: Instant) -> bool {
        let at = Instant::now() + self.delay;
        if at >= deadline {
            return false;
        }
        self.pause().await;
        true
    }

    /// Waits.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.delay).await;
        self.delay = (self.delay * 2).min(MOST);
    }
}

const FIRST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(5);
