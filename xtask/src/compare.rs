//! Compares the speed with other NFS servers, in one run on one machine: libnfs's client on NFS-Ganesha
//! (`bench/compare.sh`), and the kernel's server (`interop/guest/compare.sh`). `--mount` compares `slipway mount` with the local
//! file system that its server exports (`bench/mount.sh`), and `--security` our security flavours and TLS with AUTH_SYS, with
//! their ciphers, and with Kerberos of NFS-Ganesha (`bench/security.sh`).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::interop::{ports::Ports, realm};
use crate::report::{Outcome, Report};
use crate::{debian, interop, shell};

const PACKAGES: [&str; 6] = ["libnfs-dev", "nfs-ganesha", "nfs-ganesha-vfs", "rpcbind", "build-essential", "python3"];

/// The packages of `bench/mount.sh`.
const MOUNT_PACKAGES: [&str; 4] = ["fio", "git", "python3", "iproute2"];

/// The packages of `bench/security.sh`, in addition to those of the realm.
const SECURITY_PACKAGES: [&str; 4] = ["nfs-ganesha", "nfs-ganesha-vfs", "rpcbind", "python3"];

/// The comparison and its options.
struct Plan<'a> {
    with: With,
    seconds: &'a str,
    congestion: &'a str,
}

/// The subjects of a comparison.
#[derive(Clone, Copy, PartialEq)]
enum With {
    /// libnfs's client on NFS-Ganesha.
    Libnfs,
    /// Linux's own server.
    Knfsd,
    /// `slipway mount`, with the local file system.
    Mount,
    /// Security flavours and TLS, with AUTH_SYS.
    Security,
}

/// Runs the comparison that `arguments` select: `--seconds` (of each measurement), `--congestion` (one, or several
/// with libnfs), and `--knfsd`, `--mount` or `--security`. Returns `false` if they are invalid.
pub fn run(arguments: &[&str], report: &mut Report) -> bool {
    let Some(plan) = parse(arguments) else { return false };
    let packages = match plan.with {
        With::Libnfs => debian::install(&PACKAGES),
        With::Knfsd => interop::install(),
        With::Mount => debian::install(&MOUNT_PACKAGES),
        With::Security => debian::install(&[&realm::PACKAGES[..], &SECURITY_PACKAGES].concat()),
    };
    report.step("compare", || {
        if let Err(why) = packages {
            return Outcome::Skipped(why);
        }
        let mut build = shell::cargo(["build", "--release", "--package", "slipway", "--bin", "slipway"]);
        if plan.with == With::Knfsd {
            build.args(["--example", "floor"]);
        }
        let built = shell::run(&mut build);
        let release = shell::target_dir().join("release");
        let (slipway, floor) = (release.join("slipway"), release.join("examples/floor"));
        let compared = built.and_then(|()| match plan.with {
            With::Knfsd => with_knfsd(&slipway, &floor, plan.seconds),
            With::Security => security(&slipway, &plan),
            With::Mount => {
                let mut script = Command::new("bench/mount.sh");
                shell::run(script.arg(slipway).arg(MOUNT_ROUNDS.to_string()).env("SECONDS_EACH", plan.seconds))
            }
            With::Libnfs => {
                let mut script = Command::new("bench/compare.sh");
                shell::run(script.arg(slipway).arg(plan.seconds).env("CONGESTION", plan.congestion))
            }
        });
        match compared {
            Ok(()) => Outcome::Passed { tests: 1 },
            Err(why) => Outcome::Failed(why),
        }
    });
    true
}

fn parse<'a>(arguments: &[&'a str]) -> Option<Plan<'a>> {
    let mut plan = Plan { with: With::Libnfs, seconds: "5", congestion: "cubic" };
    let has = |option: &&&str| arguments.contains(*option);
    if ["--knfsd", "--mount", "--security"].iter().filter(has).count() > 1
        || ["--knfsd", "--mount"].iter().any(|option| has(&option)) && arguments.contains(&"--congestion")
    {
        return None;
    }
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--knfsd" => plan.with = With::Knfsd,
            "--mount" => plan.with = With::Mount,
            "--security" => plan.with = With::Security,
            "--seconds" => {
                plan.seconds = arguments.next().filter(|value| value.parse().is_ok_and(|value: u32| value > 0))?
            }
            "--congestion" => plan.congestion = arguments.next()?,
            _ => return None,
        }
    }
    Some(plan)
}

/// Runs `slipway bench security` and `bench/security.sh` in a realm of its own. Both print a table.
fn security(slipway: &Path, plan: &Plan<'_>) -> Result<(), String> {
    let out = empty("compare-security")?;
    let realm = realm::Realm::start(&Ports::default(), &out.join("realm"))?;
    let ticket = realm.ticket("alice", &[])?;
    let mut bench = realm::in_realm(&slipway.display().to_string(), &realm.directory);
    bench.env("KRB5CCNAME", &ticket).args(["bench", "security", "--json", "--seconds", plan.seconds]);
    bench.args(["--rounds", &ROUNDS.to_string(), "--congestion", plan.congestion]);
    let report = shell::capture(bench.arg("--keytab").arg(realm.directory.join("server.keytab")))?;
    let file = out.join("report.json");
    std::fs::write(&file, report).map_err(|error| error.to_string())?;
    shell::run(Command::new("python3").args(["bench/table.py", "security"]).arg(file))?;
    let mut script = Command::new("bench/security.sh");
    script.arg(slipway).arg(&realm.directory).arg(plan.seconds).env("KRB5CCNAME", ticket);
    shell::run(script.env("ROUNDS", ROUNDS.to_string()))
}

/// Makes an empty directory in `target/interop`.
fn empty(name: &str) -> Result<PathBuf, String> {
    let out = shell::target_dir().join("interop").join(name);
    if out.exists() {
        std::fs::remove_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    Ok(out)
}

/// Boots a guest in which the kernel's server, the user-space floor and our server export one tmpfs, and prints the table.
/// The guest is emulated, so only the ratios are meaningful.
fn with_knfsd(slipway: &Path, floor: &Path, seconds: &str) -> Result<(), String> {
    let out = empty("compare-knfsd")?;
    shell::run(Command::new("cp").args(["-r", "interop/guest"]).arg(&out))?;
    // Reading a file of the host is slow in the guest, and debugging symbols are most of the program.
    for (name, program) in [("slipway", slipway), ("floor", floor)] {
        shell::run(Command::new("strip").arg("-o").arg(out.join(name)).arg(program))?;
    }
    let environment =
        format!("SLIPWAY=/run/out/slipway\nFLOOR=/run/out/floor\nSECONDS_EACH={seconds}\nROUNDS={ROUNDS}\n");
    std::fs::write(out.join("env"), environment).map_err(|error| error.to_string())?;
    // Two processors, so that the server and its client run in parallel.
    let mut guest = Command::new("interop/kernel-lab");
    guest.env("SMP", "2");
    shell::run(guest.args(["run", "interop/guest/compare.sh"]).arg(&out).env("TIMEOUT", TIMEOUT_S))
        .map_err(|why| format!("{why}: see {}", out.display()))?;
    shell::run(Command::new("python3").args(["bench/table.py", "knfsd"]).arg(out.join("samples")))
}

/// The number of runs; each cell of the table is their median.
const ROUNDS: u32 = 3;
/// The number of rounds of `bench/mount.sh`.
const MOUNT_ROUNDS: u32 = 3;
/// The maximum time of the guest, in seconds.
const TIMEOUT_S: &str = "7200";
