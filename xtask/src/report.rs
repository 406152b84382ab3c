//! What was run, how it ended, and the summary at the end: a line for each with its reason, then counts.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Instant;

/// How one step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It ran and is right; `tests` is how many single tests or checks it counts for.
    Passed {
        /// Single tests in this step.
        tests: u64,
    },
    /// It ran and is wrong, or could not be run though this machine should be able to.
    Failed(String),
    /// It was not run, and why.
    Skipped(String),
    /// It failed, and then passed when it was run again: nothing to stop others for, and something to be mended.
    Unstable(String),
}

/// All steps so far.
#[derive(Debug, Default)]
pub struct Report {
    entries: Vec<(String, Outcome)>,
}

impl Report {
    /// Runs a step under a heading, records its outcome and returns whether it did not fail.
    pub fn step(&mut self, name: &str, run: impl FnOnce() -> Outcome) -> bool {
        eprintln!("== {name}");
        let started = Instant::now();
        let outcome = run();
        let seconds = started.elapsed().as_secs_f32();
        match &outcome {
            Outcome::Passed { tests } => eprintln!("== {name}: passed ({tests} in {seconds:.1} s)\n"),
            Outcome::Failed(why) => eprintln!("== {name}: FAILED ({seconds:.1} s): {why}\n"),
            Outcome::Skipped(why) => eprintln!("== {name}: skipped: {why}\n"),
            Outcome::Unstable(why) => eprintln!("== {name}: UNSTABLE ({seconds:.1} s): {why}\n"),
        }
        self.record(name, outcome)
    }

    /// Records an outcome without a heading and returns whether it is not a failure.
    pub fn record(&mut self, name: impl Display, outcome: Outcome) -> bool {
        let fine = !matches!(outcome, Outcome::Failed(_));
        self.entries.push((name.to_string(), outcome));
        fine
    }

    /// Whether anything has failed.
    pub fn failed(&self) -> bool {
        self.entries.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
    }

    /// Adds what another one has, behind what is here.
    pub fn append(&mut self, other: Self) {
        self.entries.extend(other.entries);
    }

    /// Prints the summary and turns it into the exit code.
    pub fn finish(self) -> ExitCode {
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        println!("summary:");
        for (name, outcome) in &self.entries {
            match outcome {
                Outcome::Passed { tests } => {
                    passed += tests;
                    println!("  passed   {name} ({tests})");
                }
                Outcome::Failed(why) => {
                    failed += 1;
                    println!("  FAILED   {name}: {why}");
                }
                Outcome::Skipped(why) => {
                    skipped += 1;
                    println!("  skipped  {name}: {why}");
                }
                Outcome::Unstable(why) => println!("  UNSTABLE {name}: {why}"),
            }
        }
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        ExitCode::from(u8::from(failed > 0))
    }
}
