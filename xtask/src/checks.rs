//! Format, lints and the workspace's own tests (which replay the fuzz corpora and the captures).

use std::path::Path;

use crate::report::{Outcome, Report};
use crate::shell::{cargo, project_root, run as execute, target_dir, tee};

/// Runs every check that needs only the toolchain.
pub fn run(report: &mut Report) {
    report.step("format", || plain(&["fmt", "--all", "--check"]));
    report.step("clippy", || plain(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]));
    tests(report);
    report.step("features", features);
    report.step("outside crate", outside);
    report.step("doc tests", || counted(&["test", "--workspace", "--doc"], None));
    report.step("documentation", || {
        let mut command = cargo(["doc", "--workspace", "--no-deps"]);
        // Links to private items help readers of the source; only broken links are errors.
        let flags = "-D warnings -A rustdoc::private_intra_doc_links";
        match execute(command.env("RUSTDOCFLAGS", flags).arg("--quiet")) {
            Ok(()) => Outcome::Passed { tests: 1 },
            Err(why) => Outcome::Failed(why),
        }
    });
}

fn tests(report: &mut Report) {
    let nextest = cargo(["nextest", "--version"]).output().is_ok_and(|output| output.status.success());
    let arguments: &[&str] = if nextest {
        &NEXTEST
    } else {
        &["test", "--workspace", "--all-targets", "--no-fail-fast", "--", "--nocapture"]
    };
    let mut skipped = Vec::new();
    report.step("tests", || {
        counted_with(arguments, None, |line| {
            // A test that cannot run on this machine prints "SKIPPED WHAT: WHY".
            if let Some((_, what)) = line.split_once("SKIPPED") {
                skipped.push(what.trim_start_matches([':', ' ']).to_owned());
            }
        })
    });
    skipped.sort();
    skipped.dedup();
    for what in skipped {
        let (name, why) = what.split_once(": ").unwrap_or((&what, "the test does not say why"));
        report.record(name, Outcome::Skipped(why.to_owned()));
    }
}

/// Checks that the transports build without features and with each feature alone.
fn features() -> Outcome {
    let mut built = 0;
    for feature in ["", "iwarp", "verbs", "shm"] {
        let mut command = cargo(["check", "--quiet", "--package", "slipway-transports", "--no-default-features"]);
        if let Err(why) = execute(command.args(["--features", feature])) {
            return Outcome::Failed(why);
        }
        built += 1;
    }
    Outcome::Passed { tests: built }
}

/// Tests a crate outside of the workspace, which defines a back end, passes the conformance suite with it, and serves it.
///
/// It is built with the workspace's versions of other crates, without the network, and into the workspace's target directory.
fn outside() -> Outcome {
    let of_crate = |name: &str| project_root().join("examples/outside").join(name);
    if let Err(error) = std::fs::copy(project_root().join("Cargo.lock"), of_crate("Cargo.lock")) {
        return Outcome::Failed(format!("{}: {error}", of_crate("Cargo.lock").display()));
    }
    let manifest = of_crate("Cargo.toml").display().to_string();
    let target = target_dir().display().to_string();
    let arguments = ["test", "--manifest-path", &manifest, "--offline", "--target-dir", &target];
    counted(&arguments, None)
}

fn plain(arguments: &[&str]) -> Outcome {
    match execute(&mut cargo(arguments)) {
        Ok(()) => Outcome::Passed { tests: 1 },
        Err(why) => Outcome::Failed(why),
    }
}

/// Runs a test command, and counts the tests that passed.
pub fn counted(arguments: &[&str], seed: Option<&str>) -> Outcome {
    counted_with(arguments, seed, |_| {})
}

/// Runs a test command, passes each line that it prints to `each`, and counts the tests that passed.
fn counted_with(arguments: &[&str], seed: Option<&str>, mut each: impl FnMut(&str)) -> Outcome {
    let mut command = cargo(arguments);
    // Use the same cases in every run, so that only the change affects the result.
    command.env("PROPTEST_RNG_SEED", "7");
    if let Some(seed) = seed {
        command.env("SLIPWAY_SEED", seed);
    }
    let mut summarised = false;
    let show = move |line: &str| {
        // After nextest's summary comes the output of passed tests, which only this program reads.
        let hidden = summarised && !line.contains("FAIL");
        summarised |= line.trim_start().starts_with("Summary [");
        !hidden
    };
    let (succeeded, output) = match tee(&mut command, show) {
        Ok(ended) => ended,
        Err(why) => return Outcome::Failed(why),
    };
    output.lines().for_each(&mut each);
    let log = target_dir().join("xtask");
    let log = log.join(format!("{}.log", arguments[0]));
    keep(&log, &output);
    let tests = passed(&output);
    match (succeeded, tests) {
        (false, _) => Outcome::Failed(format!("cargo {}: see {}", arguments.join(" "), log.display())),
        (true, 0) => Outcome::Failed("no test was run".into()),
        (true, tests) => Outcome::Passed { tests },
    }
}

fn keep(log: &Path, output: &str) {
    let written = std::fs::create_dir_all(log.parent().expect("a file in a directory"))
        .and_then(|()| std::fs::write(log, output));
    if let Err(error) = written {
        eprintln!("{}: {error}", log.display());
    }
}

/// Returns the number of tests that passed, from the summary of nextest or else from those of the standard harness.
fn passed(output: &str) -> u64 {
    let sum = |start: &str| -> Option<u64> {
        output
            .lines()
            .map(str::trim_start)
            .filter(|line| line.starts_with(start))
            .map(|line| {
                let before = line.split(" passed").next().unwrap_or_default();
                before.split_whitespace().next_back().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
            })
            .reduce(|one, other| one + other)
    };
    // Under nextest, the output of single tests can contain summaries of its own.
    sum("Summary [").or_else(|| sum("test result: ")).unwrap_or(0)
}

/// No test is run again: a test that fails by chance is a bug.
const NEXTEST: [&str; 12] = [
    "nextest",
    "run",
    "--workspace",
    "--no-fail-fast",
    "--status-level",
    "slow",
    "--success-output",
    "final",
    "--retries",
    "0",
    "--final-status-level",
    "fail",
];

#[cfg(test)]
mod tests {
    use super::passed;

    #[test]
    fn summaries_are_counted() {
        let nextest = "────\n     Summary [   0.012s] 85 tests run: 84 passed (1 slow), 1 failed, 0 skipped\n";
        assert_eq!(passed(nextest), 84);
        assert_eq!(passed(&format!("{nextest}    test result: ok. 1 passed; 0 failed\n")), 84);
        let harness = "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        assert_eq!(passed(&harness.repeat(2)), 10);
        assert_eq!(passed("5 passed"), 0);
    }
}
