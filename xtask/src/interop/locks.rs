//! Two Linux clients and our server in network namespaces of one guest: file locks need calls in both directions, which
//! the lab's network to the host does not forward. The data of the files are with the server, or on data servers of pNFS.

use super::Bench;
use super::lab::{Guest, text};
use crate::report::Report;

/// Runs `guest/locks.sh`.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    for backend in bench.rotation.pick("locks", &BACKENDS, 1, report) {
        let name = format!("locks-{backend}");
        let guest = Guest::new(bench, bench.fresh(&name)?.join("guest"))?;
        guest.environment(&[("SLIPWAY", text(&bench.slipway)), ("BACKEND", (*backend).to_string())])?;
        let ended = guest.run("locks.sh");
        guest.results(&name, ended, report)?;
    }
    Ok(())
}

/// The back ends of the export.
pub const BACKENDS: [&str; 2] = ["posix", "pnfs"];
