//! The current time by the clock of the runtime, so that a server in a simulation uses simulated time.

use std::time::Instant;

/// Returns the current time.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
