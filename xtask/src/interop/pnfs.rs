//! pNFS: a cluster of ours with Linux as client, and our client at metadata servers of other implementations.

use std::process::Command;

use super::Bench;
use super::lab::{self, Guest, text};
use super::rotation::Rotation;
use crate::report::{Outcome, Report};
use crate::shell;

/// The Debian packages of [`gluster`].
pub const PACKAGES: [&str; 3] = ["nfs-ganesha", "nfs-ganesha-gluster", "glusterfs-server"];

/// Runs `guest/pnfs.sh`: knfsd is one of the data servers, and the first two are of each kind with `--all`.
pub fn linux(bench: &Bench, report: &mut Report) -> Result<(), String> {
    // Kind `slipway` has not passed with Linux yet, so no commit runs it by itself.
    let kinds = if bench.rotation == Rotation::All { &KINDS[..] } else { &KINDS[..1] };
    for kind in bench.rotation.pick("pnfs", kinds, kinds.len(), report) {
        let name = format!("pnfs-{kind}");
        let guest = Guest::new(bench, bench.fresh(&name)?.join("guest"))?;
        guest.environment(&[("SLIPWAY", text(&bench.slipway)), ("KIND", kind.to_string())])?;
        let succeeded = guest.run("pnfs.sh");
        guest.results(&name, succeeded, report)?;
    }
    Ok(())
}

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
/// The kinds of data servers that are `slipway serve`.
const KINDS: [&str; 2] = ["nfs3", "slipway"];
