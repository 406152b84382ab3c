//! The provider `verbs` in the guest, on both of Linux's software devices: with the kernel's clients, its server, and
//! our own client and server; and the conformance suite of providers.

use super::Bench;
use super::lab::{Guest, text};
use crate::report::Report;

/// Runs `guest/verbs.sh`.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let program = |name| bench.test_program("rdma", name).map(|path| text(&path));
    let mut pick = |cells: &[&'static str], count| {
        let cells = bench.rotation.pick("verbs", cells, count, report);
        cells.into_iter().copied().collect::<Vec<_>>().join(" ")
    };
    let (version4, ways, knfsd) = (pick(&VERSION4, 2), pick(&WAYS, 1), pick(&KNFSD, 1));
    let guest = Guest::new(bench, bench.fresh("verbs")?.join("guest"))?;
    guest.environment(&[
        ("SLIPWAY", text(&bench.slipway)),
        ("VERSION4", version4),
        ("WAYS", ways),
        ("KNFSD", knfsd),
        ("CONFORMANCE", program("conformance")?),
        ("CHAOS", program("chaos")?),
        ("SHARED", program("shared_receives")?),
        ("ALONE", program("verbs")?),
    ])?;
    let ended = guest.run("verbs.sh");
    guest.results("verbs", ended, report)
}

/// Mounts by version 4: the device and the version. A commit runs one for each device.
const VERSION4: [&str; 6] = ["rxe:4.0", "siw:4.1", "rxe:4.2", "siw:4.0", "rxe:4.1", "siw:4.2"];
/// The devices over which our client uses the kernel's server. A commit runs one.
const KNFSD: [&str; 2] = ["siw", "rxe"];
/// The ways of registering memory. A commit runs one.
const WAYS: [&str; 4] = ["per-io", "fast", "cache", "pool"];
