//! Our client on the host against the Linux kernel's server in the guest, over tcp and over rdma on siw.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::Bench;
use super::acls::ACLS;
use super::lab::{Guest, text};
use super::mounted::{self, Mounted};
use crate::report::{Outcome, Report};
use crate::shell::{self, Daemon};

/// The maximum time for the guest to boot and to prepare its export.
const BOOT_LIMIT: Duration = Duration::from_secs(900);
/// The maximum time for the guest to check the written data, and to end.
const END_LIMIT: Duration = Duration::from_secs(900);
/// The maximum time of one step of the program `peer`. Only a hang reaches it.
const PEER_LIMIT: Duration = Duration::from_secs(1200);
/// The lease of the server for silent version 4 clients, and the time for reclaims after its restart, which is not shorter (RFC 8881
/// §8.4.2.1).
const LEASE: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(45);

/// Runs our command line against the server, with version 3.
pub fn version3(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let mut knfsd = Knfsd::boot(bench, "knfsd", &[])?;
    for transport in ["tcp", "rdma"] {
        knfsd.content(bench, report, (transport, "3"), &WHOLE)?;
        report.step(&format!("interop: knfsd: {transport}-3: locks of two clients"), || {
            outcome(1, shell::capture(peer().args(["locks", &knfsd.root((transport, "3"))])).map(drop))
        });
    }
    knfsd.end(report)
}

/// Runs version 4: each minor version over each transport, and its additional features, while other clients hold locks
/// and are idle. Then the server restarts under load.
pub fn version4(bench: &Bench, report: &mut Report) -> Result<(), String> {
    let seconds = |time: Duration| time.as_secs().to_string();
    let mut knfsd = Knfsd::boot(bench, "knfsd4", &[("LEASE_S", seconds(LEASE)), ("GRACE_S", seconds(GRACE))])?;
    let out = knfsd.guest.out.clone();
    let mut idle = knfsd.peer("idle", &[("tcp", "4.0"), ("rdma", "4.1"), ("tcp", "4.2")].map(|way| knfsd.root(way)))?;
    let holding = || out.join("holding").exists();
    if !shell::wait_until(BOOT_LIMIT, || holding() || !idle.is_running()) || !holding() {
        return Err(format!("locks cannot be taken: see {}", out.join("idle.log").display()));
    }
    let begun = Instant::now();
    for version in ["4.2", "4.1", "4.0"] {
        for transport in ["tcp", "rdma"] {
            let way = (transport, version);
            knfsd.content(bench, report, way, if way == ("tcp", "4.2") { &MOST } else { &BRIEF })?;
            report.step(&format!("interop: knfsd4: {transport}-{version}: what only version 4 has"), || {
                let checks = match version {
                    "4.0" => 5,
                    "4.1" => 6,
                    _ => 9,
                };
                outcome(checks, peer_checks(&knfsd, way))
            });
        }
    }
    for way in [("tcp", "3"), ("tcp", "4.2"), ("rdma", "4.1")] {
        let (transport, version) = way;
        report.step(&format!("interop: knfsd4: {transport}-{version}: setfacl and getfacl over a mount"), || {
            match mounted::obstacle() {
                Some(why) => Outcome::Skipped(why),
                None => outcome(1, acls(bench, &knfsd, way)),
            }
        });
    }
    thread::sleep((4 * LEASE).saturating_sub(begun.elapsed()));
    report.step("interop: knfsd4: locks of idle clients are held for several leases", || {
        let told = std::fs::write(out.join("enough"), "").map_err(|error| error.to_string());
        outcome(3, told.and_then(|()| ended(&mut idle, &out.join("idle.log"))))
    });
    report.step("interop: knfsd4: it restarts under load, and opens and locks are reclaimed", || {
        let ways = [("tcp", "3"), ("tcp", "4.0"), ("rdma", "4.0"), ("rdma", "4.1"), ("tcp", "4.2"), ("rdma", "4.2")];
        let mixed = format!("{}&addr={}", knfsd.root(("tcp", "4.1")), knfsd.also("tcp"));
        let urls: Vec<_> = ways.iter().map(|&way| knfsd.root(way)).chain([mixed]).collect();
        let peer = knfsd.peer("restart", &urls);
        outcome(urls.len() as u64, peer.and_then(|mut peer| ended(&mut peer, &out.join("restart.log"))))
    });
    knfsd.end(report)
}

/// A guest with the kernel's server.
struct Knfsd {
    suite: &'static str,
    /// The directory of the suite.
    directory: PathBuf,
    guest: Guest,
    lab: Daemon,
    /// The forwarded ports on the host.
    tcp: u16,
    rdma: u16,
    mount: u16,
    nlm: u16,
}

impl Knfsd {
    /// Runs `guest/knfsd.sh` with these variables, until the server is ready.
    fn boot(bench: &Bench, suite: &'static str, variables: &[(&str, String)]) -> Result<Self, String> {
        let directory = bench.fresh(suite)?;
        let guest = Guest::new(bench, directory.join("guest"))?;
        guest.environment(variables)?;
        let [tcp, rdma, mount, nlm] = std::array::from_fn(|_| bench.ports.take());
        let lab = guest.start("knfsd.sh", &format!("{tcp}:2049,{rdma}:20049,{mount}:20048,{nlm}:32803"))?;
        let mut knfsd = Self { suite, directory, guest, lab, tcp, rdma, mount, nlm };
        let ready = knfsd.guest.out.join("ready");
        let up = shell::wait_until(BOOT_LIMIT, || ready.exists() || !knfsd.lab.is_running());
        if !up || !ready.exists() {
            return Err(format!("knfsd does not come up in the guest: see {}", knfsd.guest.out.display()));
        }
        Ok(knfsd)
    }

    /// Returns the export over a transport and with a version.
    fn export(&self, (transport, version): (&str, &str)) -> Export {
        let port = if transport == "tcp" { self.tcp } else { self.rdma };
        // The kernel serves MOUNT and NLM only over TCP. Version 4 has neither, and its root is the export.
        let (path, query) = match version {
            "3" => {
                let ports = format!("mountport={}&mountproto=tcp&nlmport={}", self.mount, self.nlm);
                ("/run/export", format!("vers=3&proto={transport}&{ports}&uid=0&gid=0"))
            }
            _ => ("", format!("proto={transport}&vers={version}&uid=0&gid=0")),
        };
        Export { url: format!("nfs://127.0.0.1:{port}{path}"), query }
    }

    /// Runs checks of our command line over this transport and version.
    fn content(
        &self,
        bench: &Bench,
        report: &mut Report,
        way: (&str, &str),
        checks: &[(&str, Check)],
    ) -> Result<(), String> {
        let export = self.export(way);
        let way = format!("{}-{}", way.0, way.1);
        let scratch = self.directory.join(&way);
        std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
        for (name, check) in checks {
            let name = format!("interop: {}: {way}: {name}", self.suite);
            report.step(&name, || outcome(1, check(bench, &export, &way, &scratch)));
        }
        Ok(())
    }

    /// Returns the URL of the server's root.
    fn root(&self, way: (&str, &str)) -> String {
        self.export(way).at("")
    }

    /// Returns the server's address over the other transport.
    fn also(&self, transport: &str) -> String {
        match transport {
            "tcp" => format!("rdma@127.0.0.1:{}", self.rdma),
            _ => format!("tcp@127.0.0.1:{}", self.tcp),
        }
    }

    /// Starts the program `peer` for a longer check with these URLs. They communicate by files in the guest's
    /// directory.
    fn peer(&self, mode: &str, urls: &[String]) -> Result<Daemon, String> {
        let out = &self.guest.out;
        let mut program = peer();
        program.arg(mode).arg(out).args(urls);
        Daemon::start(&mut program, &out.join(format!("{mode}.log")))
    }

    /// Makes the guest check the written data, and end.
    fn end(&mut self, report: &mut Report) -> Result<(), String> {
        std::fs::write(self.guest.out.join("done"), "").map_err(|error| error.to_string())?;
        let has_ended = shell::wait_until(END_LIMIT, || !self.lab.is_running());
        let ended = if has_ended {
            Ok(())
        } else {
            Err(format!("the guest ran for {} s after its end was requested", END_LIMIT.as_secs()))
        };
        self.guest.results(self.suite, ended, report)
    }
}

/// Ends the guest in any case.
impl Drop for Knfsd {
    fn drop(&mut self) {
        let _ = std::fs::write(self.guest.out.join("done"), "");
        shell::wait_until(END_LIMIT, || !self.lab.is_running());
    }
}

/// An export of the guest, without and with options.
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

/// The checks with the whole tree in and out, and with bench.
const WHOLE: [(&str, Check); 8] = [LISTING, CAT, TREE_OUT, TREE_IN, LARGE, WITHIN, STAT_DF_RM, BENCH];
/// The checks with the whole tree out, and a part of it in.
const MOST: [(&str, Check); 7] = [LISTING, CAT, TREE_OUT, PART_IN, LARGE, WITHIN, STAT_DF_RM];
/// The checks with a part of the tree.
const BRIEF: [(&str, Check); 4] = [CAT, PART_IN, LARGE, STAT_DF_RM];

const LISTING: (&str, Check) = ("ls -lR lists the whole tree", |bench, export, _, _| {
    let listing = slipway(bench, &["ls", "-lR", &export.at("given/tree")])?;
    let files = listing.lines().filter(|line| line.starts_with('-')).count();
    if files == 2200 { Ok(()) } else { Err(format!("{files} files listed, not 2200")) }
});

const CAT: (&str, Check) = ("cat is the file", |bench, export, _, _| {
    let name = "asm-generic/atomic.h";
    let want = std::fs::read_to_string(bench.fixture.tree.join(name)).map_err(|error| error.to_string())?;
    let have = slipway(bench, &["cat", &export.at(&format!("given/tree/{name}"))])?;
    if have == want { Ok(()) } else { Err(format!("{name} reads as {} bytes, not {}", have.len(), want.len())) }
});

const TREE_OUT: (&str, Check) = ("cp -r out is the tree", |bench, export, _, scratch| {
    let copy = scratch.join("tree");
    slipway(bench, &["cp", "-r", &export.at("given/tree"), &text(&copy)])?;
    bench.fixture.verify(&copy)
});

const TREE_IN: (&str, Check) = ("cp -r in, and out again", |bench, export, transport, scratch| {
    let directory = format!("by-{transport}");
    slipway(bench, &["mkdir", &export.at(&directory)])?;
    slipway(bench, &["cp", "-r", &text(&bench.fixture.tree), &export.at(&format!("{directory}/tree"))])?;
    let copy = scratch.join("again");
    slipway(bench, &["cp", "-r", &export.at(&format!("{directory}/tree")), &text(&copy)])?;
    bench.fixture.verify(&copy)
});

const PART_IN: (&str, Check) = ("cp -r of a part in, and out again", |bench, export, transport, scratch| {
    let (part, tree) = (bench.fixture.tree.join(PART), format!("by-{transport}/tree"));
    for directory in [&format!("by-{transport}"), &tree] {
        slipway(bench, &["mkdir", &export.at(directory)])?;
    }
    slipway(bench, &["cp", "-r", &text(&part), &export.at(&format!("{tree}/{PART}"))])?;
    let copy = scratch.join("again");
    slipway(bench, &["cp", "-r", &export.at(&format!("{tree}/{PART}")), &text(&copy)])?;
    shell::output("diff", ["-r".as_ref(), part.as_os_str(), copy.as_os_str()]).map(drop)
});

const LARGE: (&str, Check) = ("a large file goes in and out", |bench, export, transport, scratch| {
    let remote = export.at(&format!("by-{transport}/random"));
    let copy = scratch.join("random");
    slipway(bench, &["cp", &text(&bench.fixture.random), &remote])?;
    slipway(bench, &["cp", &remote, &text(&copy)])?;
    shell::output("cmp", [&bench.fixture.random, &copy]).map(drop)
});

const WITHIN: (&str, Check) = ("a copy from the server to itself", |bench, export, transport, scratch| {
    let (from, to) = (export.at(&format!("by-{transport}/random")), export.at(&format!("by-{transport}/twin")));
    let copy = scratch.join("twin");
    slipway(bench, &["cp", &from, &to])?;
    slipway(bench, &["cp", &to, &text(&copy)])?;
    slipway(bench, &["rm", &to])?;
    shell::output("cmp", [&bench.fixture.random, &copy]).map(drop)
});

const STAT_DF_RM: (&str, Check) = ("stat, df and rm", |bench, export, transport, _| {
    let made = export.at(&format!("by-{transport}/made"));
    slipway(bench, &["mkdir", &made])?;
    slipway(bench, &["stat", &made])?;
    slipway(bench, &["df", &export.at("")])?;
    slipway(bench, &["rm", "-r", &made])?;
    match slipway(bench, &["stat", &made]) {
        Ok(_) => Err("a removed directory is still there".into()),
        Err(_) => Ok(()),
    }
});

const BENCH: (&str, Check) = ("bench runs to the end", |bench, export, transport, _| {
    for kind in ["read", "write", "getattr", "create"] {
        let url = export.at(&format!("by-{transport}"));
        slipway(
            bench,
            &["bench", kind, "--url", &url, "--seconds", "2", "--rounds", "1", "--file-size", "8M", "--json"],
        )?;
    }
    Ok(())
});

/// A directory of the tree, which the guest knows as well.
const PART: &str = "asm-generic";

/// Checks the features of version 4, over one transport, and in one session over both.
fn peer_checks(knfsd: &Knfsd, (transport, version): (&str, &str)) -> Result<(), String> {
    let (url, also) = (knfsd.root((transport, version)), knfsd.also(transport));
    shell::capture(peer().args(["checks", &url, &also])).map(drop)
}

/// Sets ACLs over a mount of the server, which must then have them.
fn acls(bench: &Bench, knfsd: &Knfsd, way: (&str, &str)) -> Result<(), String> {
    let (name, out) = (format!("acls-{}", way.1), text(&knfsd.guest.out));
    let (logs, at) = (knfsd.directory.join(&name), knfsd.directory.join(format!("mnt-{}", way.1)));
    std::fs::create_dir(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let mount = Mounted::start(&bench.slipway, &knfsd.root(way), &at, &[], &logs.join("mount.log"))?;
    let script = format!("mkdir \"$1\"; cd \"$1\"\n{ACLS_AT_SERVER}{ACLS}");
    let mut command = Command::new("timeout");
    command.args(["600", "bash", "-xeuo", "pipefail", "-c", &script, "script", &name]);
    command.current_dir(&mount.at).env("OUT", out);
    let (succeeded, output) = shell::tee(&mut command, |_| false)?;
    std::fs::write(logs.join("acls.log"), &output).map_err(|error| error.to_string())?;
    mount.end()?;
    let last = output.lines().last().unwrap_or_default();
    if succeeded { Ok(()) } else { Err(format!("{last}: see {}", logs.display())) }
}

/// Asks the guest, `guest/knfsd.sh`, for the ACLs of an exported directory.
const ACLS_AT_SERVER: &str = r#"
server() {
  rm -f "$OUT/acls"
  echo "$1" >"$OUT/list-acls.part"
  mv "$OUT/list-acls.part" "$OUT/list-acls"
  for _ in {1..600}; do
    if [ -e "$OUT/acls" ]; then cat "$OUT/acls"; return; fi
    sleep 0.2
  done
  return 1
}
"#;

/// Returns the example `peer` of our client.
fn peer() -> Command {
    let mut program = Command::new("timeout");
    program.arg(PEER_LIMIT.as_secs().to_string()).arg(shell::target_dir().join("debug/examples/peer"));
    // The last lines of the output are shown, and must be the reason of a failure.
    program.env("RUST_BACKTRACE", "0");
    program
}

/// Waits until a program with this log ends. The error contains the end of the log.
fn ended(peer: &mut Daemon, log: &Path) -> Result<(), String> {
    peer.wait(PEER_LIMIT).map_err(|why| {
        let output = std::fs::read_to_string(log).unwrap_or_default();
        format!("{why}: {}: see {}", shell::end(&output), log.display())
    })
}

fn outcome(tests: u64, result: Result<(), String>) -> Outcome {
    match result {
        Ok(()) => Outcome::Passed { tests },
        Err(why) => Outcome::Failed(why),
    }
}

fn slipway(bench: &Bench, arguments: &[&str]) -> Result<String, String> {
    // No call of the client should hang for ever. This is a safeguard.
    let mut command = Command::new("timeout");
    command.arg("300").arg(&bench.slipway).args(arguments).env("RUST_BACKTRACE", "1");
    shell::capture(&mut command)
}
