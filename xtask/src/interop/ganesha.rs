//! NFS-Ganesha as a data server of a pNFS cluster, with our metadata server, another data server and our client
//! (`interop/ganesha.sh`).

use std::process::Command;

use super::Bench;
use super::lab;
use crate::report::{Outcome, Report};
use crate::shell;

/// The Debian packages of this suite.
pub const PACKAGES: [&str; 3] = ["nfs-ganesha", "nfs-ganesha-vfs", "rpcbind"];

/// Runs the script with the client's version of this commit.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    if !shell::is_root() {
        report.record("interop: ganesha", Outcome::Skipped("only root can start NFS-Ganesha".into()));
        return Ok(());
    }
    let directory = bench.fresh("ganesha")?;
    for version in bench.rotation.pick("ganesha", &VERSIONS, 1, report) {
        let out = directory.join(version);
        std::fs::create_dir(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        let mut script = Command::new("interop/ganesha.sh");
        let ended = shell::run(script.arg(&bench.slipway).arg(&out).arg(version));
        lab::results(&out, "ganesha", ended, report)?;
    }
    Ok(())
}

/// The versions of the client. With 3, all data pass through the metadata server.
const VERSIONS: [&str; 3] = ["3", "4.1", "4.2"];
