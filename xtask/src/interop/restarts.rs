//! Two Linux clients in the guest that hold locks while our server restarts three times: with every version over tcp
//! and rdma, of files whose data are with the server or on data servers of pNFS.

use super::Bench;
use super::lab::{Guest, text};
use super::locks::BACKENDS;
use crate::report::Report;

/// Runs `guest/restarts.sh`.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    // A restart serves the clients of all versions over both transports at once, so only the signals alternate.
    let signals = bench.rotation.pick("restarts", &SIGNALS, 1, report);
    let signals: Vec<&str> = signals.into_iter().copied().collect();
    for backend in bench.rotation.pick("restarts", &BACKENDS, 1, report) {
        let name = format!("restarts-{backend}");
        let guest = Guest::new(bench, bench.fresh(&name)?.join("guest"))?;
        let backend = ("BACKEND", (*backend).to_string());
        guest.environment(&[("SLIPWAY", text(&bench.slipway)), ("SIGNALS", signals.join(" ")), backend])?;
        let ended = guest.run("restarts.sh");
        guest.results(&name, ended, report)?;
    }
    Ok(())
}

/// The signals that end the server: with a clean shutdown, and without.
const SIGNALS: [&str; 2] = ["TERM", "KILL"];
