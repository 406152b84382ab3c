//! RPC with TLS with a Linux kernel as client and as server. The handshakes of the kernel are made by tlshd (GnuTLS).

use std::process::Command;

use super::Bench;
use super::lab::{Guest, text};
use crate::report::Report;
use crate::shell;

/// Runs `guest/tls.sh`.
pub fn linux(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let directory = bench.fresh("tls")?;
    let tlshd = bench.directory.join("tlshd");
    shell::capture(Command::new("interop/tls/fetch-tlshd").arg(&tlshd))?;
    let guest = Guest::new(bench, directory.join("guest"))?;
    let picked = bench.rotation.pick("tls", &CELLS, CELLS_OF_RUN, report);
    let cells =
        picked.iter().map(|(version, protection)| format!("{version}:{protection}")).collect::<Vec<_>>().join(" ");
    let reader = std::path::absolute("interop/tls/reader.py").map_err(|error| error.to_string())?;
    let programs =
        [("SLIPWAY", text(&bench.slipway)), ("TLSHD", text(&tlshd.join("tlshd"))), ("READER", text(&reader))];
    guest.environment(&[&programs[..], &[("CELLS", cells)]].concat())?;
    let ended = guest.run("tls.sh");
    guest.results("tls", ended, report)
}

const CELLS: [(&str, &str); 8] = [
    ("3", "tls"),
    ("4.2", "mtls"),
    ("4.0", "tls"),
    ("4.1", "mtls"),
    ("4.2", "tls"),
    ("3", "mtls"),
    ("4.1", "tls"),
    ("4.0", "mtls"),
];
/// The number of cells of one run in each direction.
const CELLS_OF_RUN: usize = 3;
