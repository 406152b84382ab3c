//! A pNFS cluster with Linux as client, and knfsd as one of the data servers.

use super::Bench;
use super::lab::{Guest, text};
use crate::report::Report;

/// Runs `guest/pnfs.sh`.
pub fn linux(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let directory = bench.fresh("pnfs")?;
    let guest = Guest::new(bench, directory.join("guest"))?;
    guest.environment(&[("SLIPWAY", text(&bench.slipway))])?;
    let succeeded = guest.run("pnfs.sh");
    guest.results("pnfs", succeeded, report)
}
