//! The provider `verbs` in the guest, on both of Linux's software devices: with the kernel's clients, its server, and
//! our own client and server; and the conformance suite of providers.

use super::Bench;
use super::lab::{Guest, text};
use crate::report::Report;

/// Runs `guest/verbs.sh`.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let program = |name| bench.test_program("rdma", name).map(|path| text(&path));
    let guest = Guest::new(bench, bench.fresh("verbs")?.join("guest"))?;
    guest.environment(&[
        ("SLIPWAY", text(&bench.slipway)),
        ("CONFORMANCE", program("conformance")?),
        ("CHAOS", program("chaos")?),
        ("SHARED", program("shared_receives")?),
        ("ALONE", program("verbs")?),
    ])?;
    let succeeded = guest.run("verbs.sh");
    guest.results("verbs", succeeded, report)
}
