//! pNFS: a cluster of ours with Linux as client, and our client at metadata servers of other implementations.

use std::process::Command;

use super::Bench;
use super::lab::{self, Guest, text};
use crate::report::{Outcome, Report};
use crate::shell;

/// The Debian packages of [`gluster`].
pub const PACKAGES: [&str; 3] = ["nfs-ganesha", "nfs-ganesha-gluster", "glusterfs-server"];

/// Runs `guest/pnfs.sh` and `guest/pnfs_content.sh`, in which knfsd is one of the data servers, and `guest/pnfs_failures.sh`.
pub fn linux(bench: &Bench, report: &mut Report) -> Result<(), String> {
    for run in bench.rotation.pick("pnfs", &RUNS, 1, report) {
        let Run { script, kind, version } = run;
        let name = format!("{run:?}");
        let guest = Guest::new(bench, bench.fresh(&name)?.join("guest"))?;
        guest.environment(&[
            ("SLIPWAY", text(&bench.slipway)),
            ("KIND", (*kind).to_string()),
            ("VERSION", (*version).to_string()),
        ])?;
        let ended = guest.run(&format!("{script}.sh"));
        guest.results(&name, ended, report)?;
    }
    Ok(())
}

/// A script, with the kind of its first two data servers, and the version of its mounts, unless it has several.
struct Run {
    script: &'static str,
    kind: &'static str,
    version: &'static str,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.script, self.kind)
    }
}

const RUNS: [Run; 6] = [
    Run { script: "pnfs", kind: "nfs3", version: "" },
    Run { script: "pnfs_failures", kind: "slipway", version: "4.2" },
    Run { script: "pnfs_content", kind: "nfs3", version: "" },
    Run { script: "pnfs", kind: "slipway", version: "" },
    Run { script: "pnfs_failures", kind: "nfs3", version: "4.1" },
    Run { script: "pnfs_content", kind: "slipway", version: "" },
];

/// Runs `guest/pnfs_knfsd.sh`: the metadata server is knfsd, built with flexible files layouts.
pub fn knfsd(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let guest = Guest::new(bench, bench.fresh("pnfs-knfsd")?.join("guest"))?;
    let module = shell::capture(bench.kernel.lab().arg("nfsd"))?;
    let copied = std::fs::copy(module.trim(), guest.out.join("nfsd.ko"));
    copied.map_err(|error| format!("{}: {error}", module.trim()))?;
    let versions: Vec<&str> = bench.rotation.pick("pnfs-knfsd", &VERSIONS, 1, report).into_iter().copied().collect();
    guest.environment(&[
        ("SLIPWAY", text(&bench.slipway)),
        ("PEER", text(&shell::target_dir().join("debug/examples/peer"))),
        ("VERSIONS", versions.join(" ")),
    ])?;
    let ended = guest.run("pnfs_knfsd.sh");
    guest.results("pnfs-knfsd", ended, report)
}

/// Runs `pnfs_gluster.sh`: the metadata server is NFS-Ganesha with files layouts, and the data servers, too.
pub fn gluster(bench: &Bench, report: &mut Report) -> Result<(), String> {
    if !shell::is_root() {
        report
            .record("interop: pnfs-gluster", Outcome::Skipped("only root can start GlusterFS and NFS-Ganesha".into()));
        return Ok(());
    }
    let directory = bench.fresh("pnfs-gluster")?;
    for version in bench.rotation.pick("pnfs-gluster", &VERSIONS, 1, report) {
        let out = directory.join(version);
        std::fs::create_dir(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        let mut script = Command::new("interop/pnfs_gluster.sh");
        let ended = shell::run(script.arg(&bench.slipway).arg(&out).arg(version));
        lab::results(&out, "pnfs-gluster", ended, report)?;
    }
    Ok(())
}

/// The versions of our client.
const VERSIONS: [&str; 2] = ["4.1", "4.2"];

#[cfg(test)]
mod tests {
    use super::{RUNS, Report};
    use crate::interop::rotation::Rotation;

    #[test]
    fn report_names_the_skipped_scripts() {
        let mut report = Report::default();
        let picked = Rotation::Commit(0).pick("pnfs", &RUNS, 1, &mut report);
        let report = format!("{report:?}");
        let named: Vec<_> = RUNS.iter().filter(|run| report.contains(&format!("{run:?}"))).collect();
        assert_eq!(named.len(), RUNS.len() - picked.len(), "{report}");
    }
}
