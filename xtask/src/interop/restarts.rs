//! Two Linux clients in the guest that hold locks while our server restarts three times: with every version over tcp
//! and rdma.

use super::Bench;
use super::lab::{Guest, text};
use crate::report::Report;

/// Runs `guest/restarts.sh`.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    // A restart serves the clients of all versions over both transports at once, so only the signals alternate.
    let signals = bench.rotation.pick("restarts", &SIGNALS, 1, report);
    let signals: Vec<&str> = signals.into_iter().copied().collect();
    let guest = Guest::new(bench, bench.fresh("restarts")?.join("guest"))?;
    guest.environment(&[("SLIPWAY", text(&bench.slipway)), ("SIGNALS", signals.join(" "))])?;
    let succeeded = guest.run("restarts.sh");
    guest.results("restarts", succeeded, report)
}

/// The signals that end the server: with a clean shutdown, and without.
const SIGNALS: [&str; 2] = ["TERM", "KILL"];
