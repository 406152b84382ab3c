//! Our client on the host against the Linux kernel's server in the guest, over tcp and over rdma on siw.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Bench;
use super::lab::{Guest, text};
use crate::report::{Outcome, Report};
use crate::shell;

/// Longest that the guest may take to boot and to lay out its export.
const BOOT_LIMIT: Duration = Duration::from_secs(900);

/// Our command line against it, by version 3.
pub fn version3(bench: &Bench, report: &mut Report) -> Result<(), String> {
    run(bench, report, "knfsd", &[("tcp", "3"), ("rdma", "3")])
}

/// And by version 4: each minor version and each transport once.
pub fn version4(bench: &Bench, report: &mut Report) -> Result<(), String> {
    run(bench, report, "knfsd4", &[("tcp", "4.2"), ("rdma", "4.1")])
}

/// The other way round.
pub fn version4_crosswise(bench: &Bench, report: &mut Report) -> Result<(), String> {
    run(bench, report, "knfsd4-crosswise", &[("tcp", "4.1"), ("rdma", "4.2")])
}

/// Runs `guest/knfsd.sh`, and our command line against it, by these transports and versions.
fn run(bench: &Bench, report: &mut Report, suite: &str, ways: &[(&str, &str)]) -> Result<(), String> {
    let directory = bench.fresh(suite)?;
    let guest = Guest::new(bench, directory.join("guest"))?;
    let (tcp, rdma, mount) = (bench.ports.take(), bench.ports.take(), bench.ports.take());
    let mut lab = guest.start("knfsd.sh", &format!("{tcp}:2049,{rdma}:20049,{mount}:20048"))?;
    let ready = guest.out.join("ready");
    let up = shell::wait_until(BOOT_LIMIT, || ready.exists() || !lab.is_running());
    if !up || !ready.exists() {
        return Err(format!("knfsd does not come up in the guest: see {}", guest.out.display()));
    }
    for &(transport, version) in ways {
        let port = if transport == "tcp" { tcp } else { rdma };
        // The kernel's MOUNT is on TCP alone; version 4 has none, and its root is the export.
        let (path, query) = match version {
            "3" => ("/run/export", format!("proto={transport}&mountport={mount}&mountproto=tcp&uid=0&gid=0")),
            _ => ("", format!("proto={transport}&vers={version}&uid=0&gid=0")),
        };
        let export = Export { url: format!("nfs://127.0.0.1:{port}{path}"), query };
        let also = if transport == "tcp" { format!("rdma@127.0.0.1:{rdma}") } else { format!("tcp@127.0.0.1:{tcp}") };
        let label = format!("{transport}-{version}");
        let transport = label.as_str();
        let scratch = directory.join(transport);
        std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
        for (name, check) in CHECKS {
            report.step(&format!("interop: {suite}: {transport}: {name}"), || {
                match check(bench, &export, transport, &scratch) {
                    Ok(()) => Outcome::Passed { tests: 1 },
                    Err(why) => Outcome::Failed(why),
                }
            });
        }
        if version != "3" {
            report.step(&format!("interop: {suite}: {transport}: what only version 4 has"), || {
                match peer(&export.at(""), &also) {
                    Ok(()) => Outcome::Passed { tests: 7 },
                    Err(why) => Outcome::Failed(why),
                }
            });
        }
    }
    std::fs::write(guest.out.join("done"), "").map_err(|error| error.to_string())?;
    let ended = shell::wait_until(BOOT_LIMIT, || !lab.is_running());
    guest.results(suite, ended, report)
}

/// An export of the guest's, without and with options.
struct Export {
    url: String,
    query: String,
}

impl Export {
    fn at(&self, path: &str) -> String {
        format!("{}/{path}?{}", self.url, self.query)
    }
}

type Check = fn(&Bench, &Export, &str, &Path) -> Result<(), String>;

const CHECKS: [(&str, Check); 8] = [
    ("ls -lR lists the whole tree", |bench, export, _, _| {
        let listing = slipway(bench, &["ls", "-lR", &export.at("given/tree")])?;
        let files = listing.lines().filter(|line| line.starts_with('-')).count();
        if files == 2200 { Ok(()) } else { Err(format!("{files} files listed, not 2200")) }
    }),
    ("cat is the file", |bench, export, _, _| {
        let name = "asm-generic/atomic.h";
        let want = std::fs::read_to_string(bench.fixture.tree.join(name)).map_err(|error| error.to_string())?;
        let have = slipway(bench, &["cat", &export.at(&format!("given/tree/{name}"))])?;
        if have == want { Ok(()) } else { Err(format!("{name} reads as {} bytes, not {}", have.len(), want.len())) }
    }),
    ("cp -r out is the tree", |bench, export, _, scratch| {
        let copy = scratch.join("tree");
        slipway(bench, &["cp", "-r", &export.at("given/tree"), &text(&copy)])?;
        bench.fixture.verify(&copy)
    }),
    ("cp -r in, and out again", |bench, export, transport, scratch| {
        let directory = format!("by-{transport}");
        slipway(bench, &["mkdir", &export.at(&directory)])?;
        slipway(bench, &["cp", "-r", &text(&bench.fixture.tree), &export.at(&format!("{directory}/tree"))])?;
        let copy = scratch.join("again");
        slipway(bench, &["cp", "-r", &export.at(&format!("{directory}/tree")), &text(&copy)])?;
        bench.fixture.verify(&copy)
    }),
    ("a large file goes in and out", |bench, export, transport, scratch| {
        let remote = export.at(&format!("by-{transport}/random"));
        let copy = scratch.join("random");
        slipway(bench, &["cp", &text(&bench.fixture.random), &remote])?;
        slipway(bench, &["cp", &remote, &text(&copy)])?;
        shell::output("cmp", [&bench.fixture.random, &copy]).map(drop)
    }),
    ("a copy from the server to itself", |bench, export, transport, scratch| {
        let (from, to) = (export.at(&format!("by-{transport}/random")), export.at(&format!("by-{transport}/twin")));
        let copy = scratch.join("twin");
        slipway(bench, &["cp", &from, &to])?;
        slipway(bench, &["cp", &to, &text(&copy)])?;
        slipway(bench, &["rm", &to])?;
        shell::output("cmp", [&bench.fixture.random, &copy]).map(drop)
    }),
    ("stat, df and rm", |bench, export, transport, _| {
        let made = export.at(&format!("by-{transport}/made"));
        slipway(bench, &["mkdir", &made])?;
        slipway(bench, &["stat", &made])?;
        slipway(bench, &["df", &export.at("")])?;
        slipway(bench, &["rm", "-r", &made])?;
        match slipway(bench, &["stat", &made]) {
            Ok(_) => Err("a removed directory is still there".into()),
            Err(_) => Ok(()),
        }
    }),
    ("bench runs to the end", |bench, export, transport, _| {
        for kind in ["read", "write", "getattr", "create"] {
            let url = export.at(&format!("by-{transport}"));
            slipway(
                bench,
                &["bench", kind, "--url", &url, "--seconds", "2", "--rounds", "1", "--file-size", "8M", "--json"],
            )?;
        }
        Ok(())
    }),
];

/// Locks, holes, extended attributes, delegations, several connections, and both transports in one session.
fn peer(url: &str, also: &str) -> Result<(), String> {
    let mut program = Command::new(shell::target_dir().join("debug/examples/peer"));
    // The end of what it says is shown, which is to be why it ended.
    program.env("SLIPWAY_NFS4_URL", url).env("SLIPWAY_NFS4_ALSO", also).env("RUST_BACKTRACE", "0");
    shell::capture(&mut program).map(drop)
}

fn slipway(bench: &Bench, arguments: &[&str]) -> Result<String, String> {
    // No call of the client can hang for ever; this is for the day when one does.
    let mut command = Command::new("timeout");
    command.arg("300").arg(&bench.slipway).args(arguments).env("RUST_BACKTRACE", "1");
    shell::capture(&mut command)
}
