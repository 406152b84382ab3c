//! The outcome of each step, and the summary at the end: one line with a reason for each, then counts.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Instant;

/// The outcome of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The step passed.
    Passed {
        /// The number of tests or checks in this step.
        tests: u64,
    },
    /// The step failed, or could not run although this machine should support it.
    Failed(String),
    /// The step was not run, with the reason.
    Skipped(String),
}

/// The outcomes of all steps so far.
#[derive(Debug, Default)]
pub struct Report {
    entries: Vec<(String, Outcome)>,
}

impl Report {
    /// Runs a step under a heading, and records its outcome. Returns `true` unless it failed.
    pub fn step(&mut self, name: &str, run: impl FnOnce() -> Outcome) -> bool {
        eprintln!("== {name}");
        let started = Instant::now();
        let outcome = run();
        let seconds = started.elapsed().as_secs_f32();
        match &outcome {
            Outcome::Passed { tests } => eprintln!("== {name}: passed ({tests} in {seconds:.1} s)\n"),
            Outcome::Failed(why) => eprintln!("== {name}: FAILED ({seconds:.1} s): {why}\n"),
            Outcome::Skipped(why) => eprintln!("== {name}: skipped: {why}\n"),
        }
        self.record(name, outcome)
    }

    /// Records an outcome without a heading. Returns `true` unless it is a failure.
    pub fn record(&mut self, name: impl Display, outcome: Outcome) -> bool {
        let fine = !matches!(outcome, Outcome::Failed(_));
        self.entries.push((name.to_string(), outcome));
        fine
    }

    /// Returns `true` if any step has failed.
    pub fn failed(&self) -> bool {
        self.entries.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
    }

    /// Appends the steps of another report.
    pub fn append(&mut self, other: Self) {
        self.entries.extend(other.entries);
    }

    /// Prints the summary, and returns the exit code.
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
            }
        }
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        ExitCode::from(u8::from(failed > 0))
    }
}
