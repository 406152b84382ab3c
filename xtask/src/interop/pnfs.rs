//! A pNFS cluster with Linux as client, and knfsd as one of the data servers.

use super::Bench;
use super::lab::{Guest, text};
use crate::report::Report;

/// Runs `guest/pnfs.sh`, with the first two data servers of each kind in turn.
pub fn linux(bench: &Bench, report: &mut Report) -> Result<(), String> {
    for kind in bench.rotation.pick("pnfs", &KINDS, 1) {
        let name = format!("pnfs-{kind}");
        let guest = Guest::new(bench, bench.fresh(&name)?.join("guest"))?;
        guest.environment(&[("SLIPWAY", text(&bench.slipway)), ("KIND", kind.to_string())])?;
        let succeeded = guest.run("pnfs.sh");
        guest.results(&name, succeeded, report)?;
    }
    Ok(())
}

/// The kinds of data servers that are `slipway serve`.
const KINDS: [&str; 2] = ["nfs3", "slipway"];
