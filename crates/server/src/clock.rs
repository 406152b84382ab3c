//! What time it is: by the clock of the runtime, so that a server in a simulated world has that world's time.

use std::time::Instant;

/// Now.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
