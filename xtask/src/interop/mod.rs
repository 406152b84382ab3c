//! Tests against independent implementations: a Linux kernel as client and as server, libnfs, NFS-Ganesha, fio and tshark; and
//! other programs over `slipway mount`.
//!
//! The kernel runs in `interop/kernel-lab`. The scripts for the guest are `interop/guest/*.sh`. Each suite leaves its
//! logs in `target/interop/NAME`.

mod acls;
mod capture;
mod client;
mod fixture;
mod ganesha;
mod hostile;
mod kerberos;
mod knfsd;
mod lab;
mod locks;
mod mount;
mod mounted;
mod pnfs;
pub mod ports;
pub mod realm;
mod restarts;
mod rotation;
mod server;
mod tls;
mod tools;
mod verbs;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crate::report::{Outcome, Report};
use crate::{debian, shell};
use fixture::Fixture;
use lab::Kernel;
use ports::Ports;
use rotation::Rotation;

/// The inputs of every suite.
#[derive(Clone)]
struct Bench {
    /// The `slipway` binary.
    slipway: PathBuf,
    /// The JSON output of cargo for the build, one line for each artifact.
    built: String,
    fixture: Arc<Fixture>,
    ports: Arc<Ports>,
    /// Selects the cells of long matrices.
    rotation: Rotation,
    /// The kernel of guests.
    kernel: Kernel,
    /// `target/interop`.
    directory: PathBuf,
}

impl Bench {
    /// Returns an empty directory for one suite and kernel. The results of its last run are kept in `SUITE.last`.
    fn fresh(&self, suite: &str) -> Result<PathBuf, String> {
        let suite = self.kernel.label(suite);
        let directory = self.directory.join(&suite);
        if directory.exists() {
            let last = self.directory.join(format!("{suite}.last"));
            if last.exists() {
                std::fs::remove_dir_all(&last).map_err(|error| format!("{}: {error}", last.display()))?;
            }
            std::fs::rename(&directory, &last).map_err(|error| format!("{}: {error}", directory.display()))?;
        }
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(directory)
    }

    /// Returns the program of `crates/KRATE/tests/NAME.rs`.
    fn test_program(&self, krate: &str, name: &str) -> Result<PathBuf, String> {
        let (manifest, target) = (format!("/crates/{krate}/Cargo.toml\""), format!("\"name\":\"{name}\""));
        let of_it = |line: &&str| line.contains(&manifest) && line.contains(&target);
        let program = self.built.lines().filter(of_it).find_map(|line| {
            let (_, rest) = line.split_once("\"executable\":\"")?;
            Some(PathBuf::from(rest.split_once('"')?.0))
        });
        program.ok_or_else(|| format!("cargo does not say where it put the test {name} of {krate}"))
    }
}

struct Suite {
    name: &'static str,
    run: fn(&Bench, &mut Report) -> Result<(), String>,
    /// A commit runs the suite with one of these kernels.
    kernels: &'static [Kernel],
}

const fn suite(name: &'static str, run: fn(&Bench, &mut Report) -> Result<(), String>) -> Suite {
    Suite { name, run, kernels: &[Kernel::STABLE] }
}

const fn on(kernels: &'static [Kernel], suite: Suite) -> Suite {
    Suite { kernels, ..suite }
}

/// The suites, in lanes that run in parallel. In the first lane our server runs on the host, where only one server can
/// be the rpcbind. A guest uses at most one processor, and all lanes take about the same time.
const LANES: [&[Suite]; 3] = [
    &[
        on(&Kernel::ALL, suite("client", client::run)),
        suite("libnfs", tools::libnfs),
        suite("fio", tools::fio),
        suite("mount", mount::run),
        suite("capture", capture::run),
        suite("kerberos", kerberos::run),
        suite("ganesha", ganesha::run),
    ],
    &[
        suite("verbs", verbs::run),
        suite("restarts", restarts::run),
        suite("hostile", hostile::run),
        on(&Kernel::ALL, suite("kerberos-linux", kerberos::linux)),
        suite("pnfs-knfsd", pnfs::knfsd),
        suite("pnfs-gluster", pnfs::gluster),
    ],
    &[
        suite("locks", locks::run),
        suite("knfsd", knfsd::version3),
        suite("knfsd4", knfsd::version4),
        on(&[Kernel::NEWER], suite("tls", tls::linux)),
        on(&Kernel::ALL, suite("kerberos-state", kerberos::state)),
        on(&Kernel::ALL, suite("pnfs", pnfs::linux)),
        suite("reference", client::reference),
    ],
];

/// Suites that run only on request: one only checks the harness, and some checks of the others fail if the machine is busy.
const ON_REQUEST: [&str; 3] = ["reference", "pnfs-knfsd", "pnfs-gluster"];

/// Runs one suite, or all that CI runs, with all cells of their matrices if `all`. Returns `false` if there is no suite
/// `only`.
pub fn run(only: Option<&str>, all: bool, report: &mut Report) -> bool {
    if only.is_some_and(|only| LANES.iter().copied().flatten().all(|suite| suite.name != only)) {
        return false;
    }
    let bench = match prepare(Rotation::new(all)) {
        Ok(bench) => bench,
        Err(Unready::Skip(why)) => {
            report.record("interop", Outcome::Skipped(why));
            return true;
        }
        Err(Unready::Broken(why)) => {
            report.record("interop", Outcome::Failed(why));
            return true;
        }
    };
    if only.is_none() {
        for suite in ON_REQUEST {
            let how = format!("runs when asked for: cargo xtask interop --only {suite}");
            report.record(format!("interop: {suite}"), Outcome::Skipped(how));
        }
    }
    let reports = thread::scope(|scope| {
        let lanes = LANES.map(|lane| scope.spawn(|| in_turn(lane, only, &bench)));
        lanes.map(|lane| lane.join().expect("a suite fails without panicking"))
    });
    reports.into_iter().for_each(|lane| report.append(lane));
    true
}

/// Runs the selected suites of a lane.
fn in_turn(lane: &[Suite], only: Option<&str>, bench: &Bench) -> Report {
    let mut report = Report::default();
    for Suite { name, run, kernels } in lane {
        if !only.map_or(!ON_REQUEST.contains(name), |only| only == *name) {
            continue;
        }
        for kernel in bench.rotation.pick(name, kernels, 1, &mut report) {
            eprintln!("== interop: {name}");
            let started = Instant::now();
            if let Err(why) = run(&Bench { kernel: *kernel, ..bench.clone() }, &mut report) {
                eprintln!("== interop: {name}: FAILED: {why}");
                report.record(format!("interop: {}", kernel.label(name)), Outcome::Failed(why));
            }
            eprintln!("== interop: {name}: {} s", started.elapsed().as_secs());
        }
    }
    report
}

enum Unready {
    /// This machine lacks something that only its administrator can provide.
    Skip(String),
    Broken(String),
}

/// Installs the Debian packages of the suites, or returns an error that names them.
pub fn install() -> Result<(), String> {
    let kernel = || {
        Kernel::ALL
            .map(|kernel| shell::capture(kernel.lab().arg("packages")))
            .into_iter()
            .collect::<Result<String, _>>()
    };
    let own = || {
        let suites = tools::PACKAGES.into_iter().chain(realm::PACKAGES).chain(mount::PACKAGES);
        suites.chain(ganesha::PACKAGES).chain(pnfs::PACKAGES)
    };
    let all_there = |kernel: String| kernel.lines().chain(own()).all(debian::is_installed);
    if shell::is_root() && !kernel().is_ok_and(all_there) {
        // A new machine has no package lists, or old ones with a kernel that is no longer available.
        debian::update()?;
    }
    let kernel = kernel()?;
    let packages: Vec<&str> = kernel.lines().chain(own()).collect();
    debian::install(&packages)
}

fn prepare(rotation: Rotation) -> Result<Bench, Unready> {
    let broken_if_root = |why| if shell::is_root() { Unready::Broken(why) } else { Unready::Skip(why) };
    install().map_err(broken_if_root)?;
    // Use the same features as the tests, so that nothing is built twice, neither here nor while a suite runs.
    let build = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let built = shell::capture(&mut shell::cargo(build)).map_err(Unready::Broken)?;
    for kernel in Kernel::ALL {
        shell::capture(kernel.lab().arg("prepare")).map_err(Unready::Broken)?;
    }
    let directory = shell::target_dir().join("interop");
    let fixture = Arc::new(Fixture::make(&directory.join("fixture")).map_err(Unready::Broken)?);
    let slipway = shell::target_dir().join("debug/slipway");
    Ok(Bench { slipway, built, fixture, ports: Arc::default(), rotation, kernel: Kernel::STABLE, directory })
}
