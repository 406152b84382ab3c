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

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use std::{iter, thread};

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

/// The suites whose server runs on the host, where only one server can be the rpcbind. They run one after the other.
const ON_HOST: [Suite; 7] = [
    on(&Kernel::ALL, suite("client", client::run)),
    suite("libnfs", tools::libnfs),
    suite("fio", tools::fio),
    suite("mount", mount::run),
    suite("capture", capture::run),
    suite("kerberos", kerberos::run),
    suite("ganesha", ganesha::run),
];

/// The suites that run beside any other, those first that are the longest with all cells.
const BESIDE_OTHERS: [Suite; 13] = [
    on(&Kernel::ALL, suite("kerberos-linux", kerberos::linux)),
    on(&Kernel::ALL, suite("pnfs", pnfs::linux)),
    suite("verbs", verbs::run),
    suite("restarts", restarts::run),
    on(&[Kernel::NEWER], suite("tls", tls::linux)),
    on(&Kernel::ALL, suite("kerberos-state", kerberos::state)),
    suite("locks", locks::run),
    suite("knfsd4", knfsd::version4),
    suite("hostile", hostile::run),
    suite("knfsd", knfsd::version3),
    suite("reference", client::reference),
    suite("pnfs-knfsd", pnfs::knfsd),
    suite("pnfs-gluster", pnfs::gluster),
];

/// The number of suites that run at the same time. A guest uses at most one processor, and waits for much of its time.
const WORKERS: usize = 3;

/// Suites that run only on request: one only checks the harness, and some checks of the others fail if the machine is busy.
const ON_REQUEST: [&str; 3] = ["reference", "pnfs-knfsd", "pnfs-gluster"];

/// Runs these suites (names with commas between them), or all that CI runs, with all cells of their matrices if `all`. Returns `false` if
/// there is no suite of one of the names.
pub fn run(only: Option<&str>, all: bool, report: &mut Report) -> bool {
    let only: Option<Vec<&str>> = only.map(|names| names.split(',').collect());
    let exists = |name: &&str| ON_HOST.iter().chain(&BESIDE_OTHERS).any(|suite| suite.name == *name);
    if !only.iter().flatten().all(exists) {
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
    let wanted = |suite: &&Suite| {
        only.as_ref().map_or_else(|| !ON_REQUEST.contains(&suite.name), |only| only.contains(&suite.name))
    };
    let mut jobs = |suites: &'static [Suite]| {
        let of_suite = |suite: &'static Suite| {
            let kernels = bench.rotation.pick(suite.name, suite.kernels, 1, report);
            kernels.into_iter().map(move |kernel| Job { suite, kernel: *kernel }).collect::<Vec<_>>()
        };
        suites.iter().filter(wanted).flat_map(of_suite).collect::<VecDeque<_>>()
    };
    let on_host = jobs(&ON_HOST);
    let beside_others = Mutex::new(jobs(&BESIDE_OTHERS));
    let next = || beside_others.lock().expect("no holder panics").pop_front();
    let reports = thread::scope(|scope| {
        // The first worker helps the others when it has run what can run only alone.
        let mut workers = vec![scope.spawn(|| in_turn(on_host.into_iter().chain(iter::from_fn(next)), &bench))];
        workers.extend((1..WORKERS).map(|_| scope.spawn(|| in_turn(iter::from_fn(next), &bench))));
        workers.into_iter().map(|worker| worker.join().expect("a suite fails without panicking")).collect::<Vec<_>>()
    });
    reports.into_iter().for_each(|of_worker| report.append(of_worker));
    true
}

/// One run of a suite.
struct Job {
    suite: &'static Suite,
    kernel: Kernel,
}

/// Runs jobs one after the other.
fn in_turn(jobs: impl Iterator<Item = Job>, bench: &Bench) -> Report {
    let mut report = Report::default();
    for Job { suite: Suite { name, run, .. }, kernel } in jobs {
        let label = kernel.label(name);
        eprintln!("== interop: {label}");
        let started = Instant::now();
        if let Err(why) = run(&Bench { kernel, ..bench.clone() }, &mut report) {
            eprintln!("== interop: {label}: FAILED: {why}");
            report.record(format!("interop: {label}"), Outcome::Failed(why));
        }
        eprintln!("== interop: {label}: {} s", started.elapsed().as_secs());
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
