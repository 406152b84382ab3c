//! Independent programs in user space, as Debian packages them: libnfs's tools over TCP, and fio over `slipway mount`.

use std::path::Path;
use std::process::Command;

use super::Bench;
use super::lab::text;
use super::mounted::{self, Mounted};
use super::server::Server;
use crate::report::{Outcome, Report};
use crate::shell;

/// The Debian packages of this file and of `capture.rs`, the headers with which a test of `rdma` compares its
/// structures, and the client of TLS of a test of `slipway`.
pub const PACKAGES: [&str; 7] =
    ["libnfs-utils", "fio", "tshark", "tcpdump", "libibverbs-dev", "librdmacm-dev", "openssl"];

/// Runs `nfs-ls`, `nfs-cp` and `nfs-cat`.
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

/// Runs fio's ordinary engines over `slipway mount`, over both transports. They verify the data that they have written.
pub fn fio(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let name = |transport: &str, what: &str| format!("interop: fio: {transport}: {what}");
    if let Some(why) = mounted::obstacle() {
        report.record("interop: fio", Outcome::Skipped(why));
        return Ok(());
    }
    let (directory, server) = serve(bench, "fio")?;
    for (transport, port) in [("tcp", server.tcp), ("rdma", server.rdma)] {
        let at = directory.join(format!("mnt-{transport}"));
        let url = format!("nfs://127.0.0.1:{port}/export?proto={transport}&mountproto=tcp&mountport={}", server.tcp);
        let log = directory.join(format!("mount-{transport}.log"));
        let mount = Mounted::start(&bench.slipway, &url, &at, &[], &log)?;
        for (what, engine) in FIO {
            let here = format!("--directory={}", at.display());
            let job = ["--name=job", "--bs=16k", "--size=32m", "--iodepth=8", "--numjobs=2", &here];
            let check = [
                "--verify=crc32c",
                "--do_verify=1",
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--fsync=512",
                "--unlink=1",
            ];
            report.step(&name(transport, what), || {
                outcome(program("fio", &[job.as_slice(), engine, &check].concat()).map(drop))
            });
        }
        report.step(&name(transport, "the mount ends when told to"), || outcome(mount.end()));
    }
    server.stop()
}

/// The fio jobs: engine and order.
const FIO: [(&str, &[&str]); 3] = [
    ("random writes through the page cache verify", &["--ioengine=psync", "--rw=randwrite"]),
    ("asynchronous direct mixed I/O verifies", &["--ioengine=libaio", "--direct=1", "--rw=randrw"]),
    ("memory maps verify", &["--ioengine=mmap", "--rw=randwrite"]),
];

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
