//! The provider `verbs` in the guest, on both of Linux's software devices: with the kernel's clients, with its server, and with
//! ourselves on the other end; and the conformance suite of providers.

use std::path::PathBuf;

use super::Bench;
use super::lab::{Guest, text};
use crate::report::Report;
use crate::shell::{self, cargo};

/// Runs `guest/verbs.sh`.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let [conformance, chaos, shared, alone] = test_programs()?;
    let guest = Guest::new(bench, bench.fresh("verbs")?.join("guest"))?;
    guest.environment(&[
        ("SLIPWAY", text(&bench.slipway)),
        ("CONFORMANCE", text(&conformance)),
        ("CHAOS", text(&chaos)),
        ("SHARED", text(&shared)),
        ("ALONE", text(&alone)),
    ])?;
    let succeeded = guest.run("verbs.sh");
    guest.results("verbs", succeeded, report)
}

/// The test programs of `crates/rdma/tests/`: `conformance.rs`, `chaos.rs`, `shared_receives.rs` and `verbs.rs`.
fn test_programs() -> Result<[PathBuf; 4], String> {
    let names = ["conformance", "chaos", "shared_receives", "verbs"];
    let select = names.iter().flat_map(|name| ["--test", name]);
    let build = ["test", "--package", "slipway-rdma", "--no-run", "--message-format=json"];
    let messages = shell::capture(&mut cargo(build.into_iter().chain(select)))?;
    let program = |name: &str| {
        let target = format!("\"name\":\"{name}\"");
        messages.lines().filter(|line| line.contains(&target)).find_map(|line| {
            let (_, rest) = line.split_once("\"executable\":\"")?;
            Some(PathBuf::from(rest.split_once('"')?.0))
        })
    };
    match names.map(program) {
        [Some(conformance), Some(chaos), Some(shared), Some(verbs)] => Ok([conformance, chaos, shared, verbs]),
        _ => Err("cargo does not say where it put the tests of adapters".to_owned()),
    }
}
