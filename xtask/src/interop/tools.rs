//! Other people's clients in user space, as Debian ships them: libnfs's tools and fio's `nfs` engine, over TCP.

use std::path::Path;
use std::process::Command;

use super::Bench;
use super::lab::text;
use super::server::Server;
use crate::report::{Outcome, Report};
use crate::shell;

/// The Debian packages of this file and of `capture.rs`.
pub const PACKAGES: [&str; 4] = ["libnfs-utils", "fio", "tshark", "tcpdump"];

/// `nfs-ls`, `nfs-cp` and `nfs-cat`.
pub fn libnfs(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let (directory, server) = serve(bench, "libnfs")?;
    let at = |path: &str| {
        format!("nfs://127.0.0.1/export/{path}?nfsport={port}&mountport={port}&uid=0&gid=0", port = server.tcp)
    };
    report.step("interop: libnfs: nfs-ls lists the tree", || {
        outcome(program("nfs-ls", &["-R", &at("given/tree")]).and_then(|listing| {
            let files = listing.lines().filter(|line| line.starts_with('-')).count();
            if files == 2200 { Ok(()) } else { Err(format!("{files} files listed, not 2200")) }
        }))
    });
    report.step("interop: libnfs: nfs-cp in and out", || {
        let copy = directory.join("copy");
        outcome(
            program("nfs-cp", &[&text(&bench.fixture.random), &at("random")])
                .and_then(|_| program("nfs-cp", &[&at("random"), &text(&copy)]))
                .and_then(|_| same(&bench.fixture.random, &copy))
                .and_then(|()| same(&bench.fixture.random, &directory.join("export/random"))),
        )
    });
    report.step("interop: libnfs: nfs-cat", || {
        let name = "asm-generic/atomic.h";
        let want = std::fs::read_to_string(bench.fixture.tree.join(name)).unwrap_or_default();
        outcome(program("nfs-cat", &[&at(&format!("given/tree/{name}"))]).and_then(|have| {
            if have == want { Ok(()) } else { Err(format!("{} bytes, not {}", have.len(), want.len())) }
        }))
    });
    server.stop()
}

/// fio's `nfs` engine, which verifies what it wrote; Debian does not always build it.
pub fn fio(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let engines = shell::output("fio", ["--enghelp"])?;
    if !engines.split_whitespace().any(|engine| engine == "nfs") {
        let version = shell::output("fio", ["--version"])?;
        let why = format!("Debian builds {} without its nfs engine", version.trim());
        report.record("interop: fio", Outcome::Skipped(why));
        return Ok(());
    }
    let (_, server) = serve(bench, "fio")?;
    report.step("interop: fio: random writes verify", || {
        let url = format!("nfs://127.0.0.1/export?nfsport={port}&mountport={port}&uid=0&gid=0", port = server.tcp);
        let job = ["--name=job", "--ioengine=nfs", "--rw=randwrite", "--bs=16k", "--size=32m", "--iodepth=8"];
        let check = ["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", &format!("--nfs_url={url}")];
        outcome(program("fio", &[job.as_slice(), check.as_slice()].concat()).map(drop))
    });
    server.stop()
}

fn serve(bench: &Bench, suite: &str) -> Result<(std::path::PathBuf, Server), String> {
    let directory = bench.fresh(suite)?;
    let export = directory.join("export");
    std::fs::create_dir_all(&export).map_err(|error| error.to_string())?;
    bench.fixture.give(&export)?;
    let exports = format!("[[export]]\nname = \"/export\"\npath = \"{}\"\nsquash = \"none\"\n", export.display());
    let server = Server::start(bench, &directory, &exports)?;
    Ok((directory, server))
}

fn program(name: &str, arguments: &[&str]) -> Result<String, String> {
    shell::capture(Command::new("timeout").args(["120", name]).args(arguments))
}

fn same(one: &Path, other: &Path) -> Result<(), String> {
    shell::output("cmp", [one, other]).map(drop)
}

fn outcome(result: Result<(), String>) -> Outcome {
    match result {
        Ok(()) => Outcome::Passed { tests: 1 },
        Err(why) => Outcome::Failed(why),
    }
}
