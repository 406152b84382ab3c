//! Two Linux clients and our server in network namespaces of one guest: file locks need calls in both directions, which
//! the lab's network to the host does not forward.

use super::Bench;
use super::lab::{Guest, text};
use crate::report::Report;

/// Runs `guest/locks.sh`.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let guest = Guest::new(bench, bench.fresh("locks")?.join("guest"))?;
    guest.environment(&[("SLIPWAY", text(&bench.slipway))])?;
    let succeeded = guest.run("locks.sh");
    guest.results("locks", succeeded, report)
}
