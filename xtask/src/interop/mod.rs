//! Tests Slipway with programs of others: a Linux kernel on either end, libnfs, fio and tshark.
//!
//! The kernel runs in `interop/kernel-lab`; what happens in the guest is in `interop/guest/*.sh`. Each suite leaves its
//! logs in `target/interop/NAME`.

mod capture;
mod client;
mod fixture;
mod hostile;
mod knfsd;
mod lab;
mod locks;
mod ports;
mod restarts;
mod rotation;
mod server;
mod tools;
mod verbs;

use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use crate::report::{Outcome, Report};
use crate::{debian, shell};
use fixture::Fixture;
use ports::Ports;
use rotation::Rotation;

/// The paths and options that every suite uses.
struct Bench {
    /// The `slipway` binary.
    slipway: PathBuf,
    /// Cargo's messages of its build, with one line of JSON for each artifact.
    built: String,
    fixture: Fixture,
    ports: Ports,
    /// The cells of long matrices that are run.
    rotation: Rotation,
    /// `target/interop`.
    directory: PathBuf,
}

impl Bench {
    /// A fresh directory for one suite. What its last run left is kept beside it, in `SUITE.last`.
    fn fresh(&self, suite: &str) -> Result<PathBuf, String> {
        let directory = self.directory.join(suite);
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

    /// The program of `crates/KRATE/tests/NAME.rs`.
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

type Suite = fn(&Bench, &mut Report) -> Result<(), String>;

/// The suites, in lanes that run side by side, each in its order. In the first our server is on this machine, of which only one
/// can be the rpcbind. A guest keeps one processor busy at most, and the suites of each lane take about as long as another's.
const LANES: [&[(&str, Suite)]; 3] = [
    &[("client", client::run), ("libnfs", tools::libnfs), ("fio", tools::fio), ("capture", capture::run)],
    &[("verbs", verbs::run), ("restarts", restarts::run), ("hostile", hostile::run)],
    &[("locks", locks::run), ("knfsd", knfsd::version3), ("knfsd4", knfsd::version4), ("reference", client::reference)],
];

/// Runs only on request, because it tests only the harness.
const ON_REQUEST: [&str; 1] = ["reference"];

/// Runs one suite, or all that CI runs, with all cells of their matrices if `all`; false if there is no suite `only`.
pub fn run(only: Option<&str>, all: bool, report: &mut Report) -> bool {
    if only.is_some_and(|only| LANES.iter().copied().flatten().all(|(name, _)| *name != only)) {
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
fn in_turn(lane: &[(&str, Suite)], only: Option<&str>, bench: &Bench) -> Report {
    let mut report = Report::default();
    for (name, suite) in lane {
        if only.map_or(!ON_REQUEST.contains(name), |only| only == *name) {
            eprintln!("== interop: {name}");
            let started = Instant::now();
            let mut ended = attempt(name, *suite, bench);
            if only.is_none() && ended.failed() {
                // As with a test that fails (`checks`): a change is not held up by what fails by chance, which is named.
                eprintln!("== interop: {name}: once more");
                let again = attempt(name, *suite, bench);
                if !again.failed() {
                    let why = "failed, and passed when it was run again; the logs of the failure are in SUITE.last";
                    report.record(format!("interop: {name}"), Outcome::Unstable(why.to_owned()));
                }
                ended = again;
            }
            report.append(ended);
            eprintln!("== interop: {name}: {} s", started.elapsed().as_secs());
        }
    }
    report
}

fn attempt(name: &str, suite: Suite, bench: &Bench) -> Report {
    let mut report = Report::default();
    if let Err(why) = suite(bench, &mut report) {
        eprintln!("== interop: {name}: FAILED: {why}");
        report.record(format!("interop: {name}"), Outcome::Failed(why));
    }
    report
}

enum Unready {
    /// This machine lacks something that only its owner can provide.
    Skip(String),
    Broken(String),
}

/// Installs what the suites need from Debian, or says what is to be installed.
pub fn install() -> Result<(), String> {
    let kernel = || shell::output("interop/kernel-lab", ["packages"]);
    let all_there = |kernel: String| kernel.lines().chain(tools::PACKAGES).all(debian::is_installed);
    if shell::is_root() && !kernel().is_ok_and(all_there) {
        // A fresh machine has no lists of packages, or old ones, which name a kernel that is no longer to be had.
        debian::update()?;
    }
    let kernel = kernel()?;
    let packages: Vec<&str> = kernel.lines().chain(tools::PACKAGES).collect();
    debian::install(&packages)
}

fn prepare(rotation: Rotation) -> Result<Bench, Unready> {
    let broken_if_root = |why| if shell::is_root() { Unready::Broken(why) } else { Unready::Skip(why) };
    install().map_err(broken_if_root)?;
    // Build with the features of the tests, so that nothing is built again, neither here nor while a suite runs.
    let build = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
    let built = shell::capture(&mut shell::cargo(build)).map_err(Unready::Broken)?;
    shell::output("interop/kernel-lab", ["prepare"]).map_err(Unready::Broken)?;
    let directory = shell::target_dir().join("interop");
    let fixture = Fixture::make(&directory.join("fixture")).map_err(Unready::Broken)?;
    let slipway = shell::target_dir().join("debug/slipway");
    Ok(Bench { slipway, built, fixture, ports: Ports::default(), rotation, directory })
}
