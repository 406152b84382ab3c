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
        let Run { script, kind, mount } = run;
        let mut name = format!("{script}-{kind}");
        let mut environment = vec![("SLIPWAY", text(&bench.slipway)), ("KIND", (*kind).to_string())];
        if let Some((version, transport)) = mount {
            name += &format!("-{version}-{transport}");
            environment.extend([("VERSION", (*version).to_string()), ("TRANSPORT", (*transport).to_string())]);
        }
        let guest = Guest::new(bench, bench.fresh(&name)?.join("guest"))?;
        guest.environment(&environment)?;
        let succeeded = guest.run(&format!("{script}.sh"));
        guest.results(&name, succeeded, report)?;
    }
    Ok(())
}

/// A script, with the kind of its first two data servers, and the version and the transport of mounts if the script does not have several.
#[derive(Debug)]
struct Run {
    script: &'static str,
    kind: &'static str,
    mount: Option<(&'static str, &'static str)>,
}

const RUNS: [Run; 8] = [
    Run { script: "pnfs", kind: "nfs3", mount: None },
    Run { script: "pnfs_failures", kind: "slipway", mount: Some(("4.2", "tcp")) },
    Run { script: "pnfs_content", kind: "nfs3", mount: None },
    Run { script: "pnfs_failures", kind: "nfs3", mount: Some(("4.1", "rdma")) },
    Run { script: "pnfs", kind: "slipway", mount: None },
    Run { script: "pnfs_failures", kind: "nfs3", mount: Some(("4.2", "tcp")) },
    Run { script: "pnfs_content", kind: "slipway", mount: None },
    Run { script: "pnfs_failures", kind: "slipway", mount: Some(("4.2", "rdma")) },
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
    let succeeded = guest.run("pnfs_knfsd.sh");
    guest.results("pnfs-knfsd", succeeded, report)
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
        let succeeded = shell::run(script.arg(&bench.slipway).arg(&out).arg(version)).is_ok();
        lab::results(&out, "pnfs-gluster", succeeded, report)?;
    }
    Ok(())
}

/// The versions of our client.
const VERSIONS: [&str; 2] = ["4.1", "4.2"];
