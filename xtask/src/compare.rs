//! Compares the speed with other NFS servers, in one run on one machine: libnfs's client on NFS-Ganesha
//! (`bench/compare.sh`), and the kernel's server (`interop/guest/compare.sh`). `--mount` compares `slipway mount` with the local
//! file system that its server exports (`bench/mount.sh`), and with the kernel's NFS client (`interop/guest/mount.sh`), and `--security`
//! our security flavours and TLS with AUTH_SYS, with their ciphers, and with Kerberos of NFS-Ganesha (`bench/security.sh`).

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
    /// `slipway mount`, with the local file system and with Linux's own client.
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
        With::Mount => debian::install(&MOUNT_PACKAGES).and_then(|()| interop::install()),
        With::Security => debian::install(&[&realm::PACKAGES[..], &SECURITY_PACKAGES].concat()),
    };
    report.step("compare", || {
        if let Err(why) = packages {
            return Outcome::Skipped(why);
        }
        let mut build = shell::cargo(["build", "--release", "--package", "slipway", "--bin", "slipway"]);
        match plan.with {
            With::Knfsd => drop(build.args(["--example", "floor"])),
            With::Mount => drop(build.args(["--example", "floor_mount"])),
            With::Libnfs | With::Security => {}
        }
        let built = shell::run(&mut build);
        let release = shell::target_dir().join("release");
        let (slipway, floor) = (release.join("slipway"), release.join("examples/floor"));
        let compared = built.and_then(|()| match plan.with {
            With::Knfsd => with_knfsd(&slipway, &floor, plan.seconds),
            With::Security => security(&slipway, &plan),
            With::Mount => {
                let mut script = Command::new("bench/mount.sh");
                script.arg(&slipway).arg(ROUNDS.to_string()).env("SECONDS_EACH", plan.seconds);
                script.env("FLOOR", release.join("examples/floor_mount"));
                shell::run(&mut script).and_then(|()| mount_with_kernel(&slipway, plan.seconds))
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

/// Compares the kernel's server, the user-space floor and our server, which export one tmpfs in a guest.
fn with_knfsd(slipway: &Path, floor: &Path, seconds: &str) -> Result<(), String> {
    let environment = format!("FLOOR=/run/out/floor\nSECONDS_EACH={seconds}\nROUNDS={ROUNDS}\n");
    in_guest("knfsd", "compare.sh", &[("slipway", slipway), ("floor", floor)], &environment)
}

/// Compares the kernel's client and `slipway mount`, which use one server in a guest.
fn mount_with_kernel(slipway: &Path, seconds: &str) -> Result<(), String> {
    in_guest("kernel", "mount.sh", &[("slipway", slipway)], &format!("{OF_GUEST}SECONDS_EACH={seconds}\n"))
}

/// Boots a guest that measures with a script, and prints the table of this name. The guest is emulated, so only the ratios are
/// meaningful.
fn in_guest(table: &str, script: &str, programs: &[(&str, &Path)], environment: &str) -> Result<(), String> {
    let out = empty(&format!("compare-{table}"))?;
    shell::run(Command::new("cp").args(["-r", "interop/guest", "bench"]).arg(&out))?;
    // Reading a file of the host is slow in the guest, and debugging symbols are most of the program.
    for (name, program) in programs {
        shell::run(Command::new("strip").arg("-o").arg(out.join(name)).arg(program))?;
    }
    std::fs::write(out.join("env"), format!("SLIPWAY=/run/out/slipway\n{environment}"))
        .map_err(|error| error.to_string())?;
    // Two processors, so that the server and its client run in parallel.
    let mut guest = Command::new("interop/kernel-lab");
    guest.env("SMP", "2").env("TIMEOUT", TIMEOUT_S).arg("run").arg(out.join("guest").join(script)).arg(&out);
    shell::run(&mut guest).map_err(|why| format!("{why}: see {}", out.display()))?;
    shell::run(Command::new("python3").args(["bench/table.py", table]).arg(out.join("samples")))
}

/// The number of runs; each cell of the table is their median.
const ROUNDS: u32 = 3;
/// The work of `interop/guest/mount.sh`, which must not take more than a few minutes under emulation.
const OF_GUEST: &str = "FILES=300\nMIB=32\nCREATES=500\nROUNDS=1\n";
/// The maximum time of the guest, in seconds.
const TIMEOUT_S: &str = "7200";
