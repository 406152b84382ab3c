//! `cargo xtask sim`: runs the simulations of the test suite with a seed, or many times to compare what they do.
//!
//! A repetition starts the test programs directly, which cargo has built once. Each simulation reports its outcome in one line: the
//! messages of its networks, and the state at its end (`simnet/src/run.rs`). The first run executes all tests of the programs, and so finds
//! the tests that are simulations. The others execute only these. Some programs run at once, each in a process of its own: a simulation
//! shares nothing with others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use serde_json::Value;

use crate::checks;
use crate::report::{Outcome, Report};
use crate::shell::{capture, cargo, target_dir};

/// Replays one seed of the simulated worlds. Returns `false` if `seed` is not a number.
pub fn replay(seed: &str, report: &mut Report) -> bool {
    if seed.parse::<u64>().is_err() {
        return false;
    }
    report.step(&format!("seed {seed}"), || match packages() {
        Ok(packages) => {
            let packages: Vec<&str> = packages.iter().flat_map(|package| ["--package", package]).collect();
            checks::counted(&[&["test"], &packages[..], &["--", "--nocapture"]].concat(), Some(seed))
        }
        Err(why) => Outcome::Failed(why),
    });
    true
}

/// Runs all simulations so many times, `jobs` programs at once, and compares their outcomes. Returns `false` if `times` is not a number
/// above 1, or `jobs` is not one above 0.
pub fn replays(times: &str, jobs: &str, report: &mut Report) -> bool {
    let Some(times) = times.parse::<u32>().ok().filter(|&times| times > 1) else { return false };
    let Some(jobs) = jobs.parse::<usize>().ok().filter(|&jobs| jobs > 0) else { return false };
    report.step(&format!("{times} runs of all simulations"), || match repeat(times, jobs) {
        Ok(simulations) => Outcome::Passed { tests: simulations },
        Err(why) => Outcome::Failed(why),
    });
    true
}

/// Runs all simulations so many times, on so many threads. Returns the number of outcomes in one run.
///
/// # Errors
/// A test fails in the first run, or the outcomes of a run differ from those of the first.
fn repeat(times: u32, jobs: usize) -> Result<u64, String> {
    let mut programs = build()?;
    let directory = target_dir().join("simulations");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    for program in &mut programs {
        program.keep(&directory)?;
    }
    let mut first = Vec::new();
    for program in &programs {
        let started = Instant::now();
        first.push(program.run(&directory, "first")?);
        program.report(started);
    }
    for (program, outcomes) in programs.iter_mut().zip(&first) {
        program.tests = outcomes.keys().map(|(test, _)| test.clone()).collect();
        eprintln!("{}: {} simulated tests", program.name, program.tests.len());
    }
    programs.retain(|program| !program.tests.is_empty());
    first.retain(|outcomes| !outcomes.is_empty());
    let (started, differ, next) = (Instant::now(), Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (programs, first, directory, differ, next) = (&programs, &first, &directory, &differ, &next);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Relaxed);
                    let (number, program) = (2 + at / programs.len(), at % programs.len());
                    if number > times as usize {
                        return;
                    }
                    let (program, first) = (&programs[program], &first[program]);
                    let now = program.run(directory, &number.to_string());
                    let mut differ = differ.lock().expect("no thread must panic");
                    let difference = match now {
                        Ok(now) if now == *first => None,
                        Ok(now) => Some(format!("run {number}: {}: {}", program.name, difference(first, &now))),
                        Err(why) => Some(format!("run {number}: {why}")),
                    };
                    if let Some(difference) = difference {
                        eprintln!("{difference}");
                        differ.push(difference);
                    }
                    if (at + 1) % (programs.len() * REPORTED_RUNS) == 0 || at == 0 {
                        let seconds = started.elapsed().as_secs_f32();
                        eprintln!("{number} runs, {} differences, {seconds:.0} s", differ.len());
                    }
                }
            });
        }
    });
    let seconds = started.elapsed().as_secs_f32();
    eprintln!("{times} runs, {:.1} s for each, {jobs} programs at once", seconds / (times - 1) as f32);
    let differ = differ.into_inner().expect("no thread must panic");
    match &differ[..] {
        [] => Ok(first.iter().flat_map(BTreeMap::values).map(|lines| lines.len() as u64).sum()),
        [one, ..] => Err(format!("{} runs of a program differ from its first run. {one}", differ.len())),
    }
}

/// The outcomes of a run of a test program: the sorted lines of each test and seed.
type Outcomes = BTreeMap<(String, String), BTreeSet<String>>;

/// A test program.
struct Program {
    name: String,
    executable: PathBuf,
    /// The directory in which cargo runs it.
    directory: PathBuf,
    /// The tests to run. If it is empty, all tests are run.
    tests: BTreeSet<String>,
}

impl Program {
    /// Keeps the executable in `directory`, so that a later build does not replace it.
    fn keep(&mut self, directory: &Path) -> Result<(), String> {
        let kept = directory.join(&self.name);
        let linked = fs::hard_link(&self.executable, &kept).or_else(|_| fs::copy(&self.executable, &kept).map(drop));
        linked.map_err(|error| format!("{}: {error}", kept.display()))?;
        self.executable = kept;
        Ok(())
    }

    /// Prints the time of a run.
    fn report(&self, started: Instant) {
        eprintln!("{}: {:.1} s", self.name, started.elapsed().as_secs_f32());
    }

    /// Runs the tests. Returns the outcomes of the simulations. If a test fails, the output of this run is kept.
    fn run(&self, directory: &Path, run: &str) -> Result<Outcomes, String> {
        let file = |kind: &str| directory.join(format!("{}.{run}.{kind}", self.name));
        let (traces, log) = (file("traces"), file("log"));
        let _ = fs::remove_file(&traces);
        let output = fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let error_output = output.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.executable);
        // A test that the harness runs on its main thread could not be told by the name of its thread.
        command.args(["--test-threads", "2"]);
        if !self.tests.is_empty() {
            command.arg("--exact").args(&self.tests);
        }
        command.env("SLIPWAY_TRACES", &traces).env("SLIPWAY_SEEDS", SEEDS).env("PROPTEST_RNG_SEED", "7");
        command.current_dir(&self.directory).stdin(Stdio::null()).stdout(output).stderr(error_output);
        let status = command.status().map_err(|error| format!("{}: {error}", self.executable.display()))?;
        if !status.success() {
            return Err(format!("{}: a test failed, see {}", self.name, log.display()));
        }
        // There is no file if the program has no simulation.
        let outcomes = outcomes(&fs::read_to_string(&traces).unwrap_or_default());
        for file in [traces, log] {
            let _ = fs::remove_file(file);
        }
        Ok(outcomes)
    }
}

/// Sorts the lines of a file of traces: "PROGRAM TEST seed SEED OUTCOME".
fn outcomes(text: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in text.lines() {
        let mut words = line.splitn(5, ' ');
        let (Some(_), Some(test), Some("seed"), Some(seed), Some(outcome)) =
            (words.next(), words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let lines = outcomes.entry((test.to_owned(), seed.to_owned())).or_default();
        // A test can run a seed twice, and then has the same line twice.
        let copy = (1..).find(|copy| !lines.contains(&format!("{outcome} #{copy}"))).expect("numbers do not end");
        lines.insert(format!("{outcome} #{copy}"));
    }
    outcomes
}

/// Describes the first difference between two runs.
fn difference(first: &Outcomes, now: &Outcomes) -> String {
    let keys: BTreeSet<_> = first.keys().chain(now.keys()).collect();
    let key = keys.into_iter().find(|key| first.get(key) != now.get(key));
    let Some(key @ (test, seed)) = key else { return "no difference".to_owned() };
    let lines = |outcomes: &Outcomes| outcomes.get(key).cloned().unwrap_or_default();
    let (before, after) = (lines(first), lines(now));
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| {
        one.difference(other).next().cloned().unwrap_or_else(|| "nothing".to_owned())
    };
    format!("{test}, seed {seed}: {}, but {} in the first run", only(&after, &before), only(&before, &after))
}

/// Returns the packages with simulations, among other tests: those that depend on simnet, and simnet itself.
fn packages() -> Result<Vec<String>, String> {
    let metadata = capture(&mut cargo(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let simulates = |package: &Value| {
        let dependencies = list(&package["dependencies"]);
        dependencies.iter().chain([package]).any(|one| one["name"] == "slipway-simnet")
    };
    let packages = list(&metadata["packages"]).into_iter().filter(simulates);
    Ok(packages.filter_map(|package| Some(package["name"].as_str()?.to_owned())).collect())
}

/// Builds the test programs of the packages with simulations.
fn build() -> Result<Vec<Program>, String> {
    let options = ["--profile", "sim", "--tests", "--no-run", "--message-format=json-render-diagnostics"];
    let mut command = cargo(["test"]);
    for package in packages()? {
        command.args(["--package", &package]);
    }
    let built = capture(command.args(options))?;
    let mut programs: Vec<Program> =
        built.lines().filter_map(|line| program(&serde_json::from_str(line).ok()?)).collect();
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    if programs.is_empty() { Err("cargo has built no test program".to_owned()) } else { Ok(programs) }
}

/// Returns the test program of a message of cargo.
fn program(message: &Value) -> Option<Program> {
    let executable = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = directory.file_name()?.to_str()?;
    let name = format!("{package}-{}-{}", message["target"]["kind"][0].as_str()?, message["target"]["name"].as_str()?);
    Some(Program { name, executable: executable.into(), directory, tests: BTreeSet::new() })
}

/// After so many runs, the number of differences is printed.
const REPORTED_RUNS: usize = 20;

/// The number of seeds for tests that run several.
const SEEDS: &str = "3";

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str =
        "suite a::b seed 0 took 1s next random 1\nsuite a::b seed 0 messages 3 trace 1\nsuite a::b seed 1 took 1s\n";

    #[test]
    fn outcomes_do_not_depend_on_the_order_of_lines() {
        let turned: Vec<&str> = FIRST.lines().rev().collect();
        assert_eq!(outcomes(FIRST), outcomes(&turned.join("\n")));
        assert_eq!(outcomes(FIRST).len(), 2);
    }

    #[test]
    fn differences_are_described() {
        let first = outcomes(FIRST);
        let now = outcomes(&FIRST.replace("trace 1", "trace 2"));
        let wanted = "a::b, seed 0: messages 3 trace 2 #1, but messages 3 trace 1 #1 in the first run";
        assert_eq!(difference(&first, &now), wanted);
        let missing = outcomes(FIRST.lines().next().unwrap());
        assert_ne!(first, missing);
        assert!(difference(&first, &missing).contains("messages 3 trace 1 #1 in the first run"));
        let twice = outcomes(&FIRST.repeat(2));
        assert!(difference(&first, &twice).contains("#2, but nothing in the first run"));
    }
}
