//! Mutation tests: one expression is changed at a time, and a test must fail.
//!
//! cargo-mutants lists the mutants. All mutants of a part are compiled into one copy of the project ([`schema`], [`build`]), and then
//! the tests run on each ([`judge`]). A part has two stages: the second runs more tests on the mutants that the first has missed.
//! docs/mutants.md has the scores, and the mutants that are missed for a reason.

mod build;
mod judge;
mod parts;
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;

use crate::report::{Outcome, Report};
use crate::shell::{capture, cargo, output, target_dir};
use build::{Contents, Tree};
use judge::Verdict;
use parts::{PARTS, Part, Stage};
use schema::Mutant;

/// The options of a run.
#[derive(Default)]
struct Plan<'a> {
    part: Option<&'a str>,
    /// `k/n`: every n-th mutant, from number k on.
    shard: Option<&'a str>,
    /// A file with names of mutants, one in each line. Only these are run.
    names: Option<&'a str>,
    /// The directory for the copy of the project.
    tree: Option<&'a str>,
    /// The number of mutants that are run at once.
    jobs: Option<usize>,
}

/// The outcome of the mutants of a part.
#[derive(Debug, Default, PartialEq, Eq)]
struct Score {
    verdicts: BTreeMap<u32, Verdict>,
    /// The number of mutants that do not compile.
    unviable: usize,
    /// The number of mutants that were not run, because they are constants or the like.
    left_out: usize,
}

/// Runs the mutants of all parts, or of those that `arguments` select. Returns `false` if the arguments are invalid.
pub fn run(arguments: &[&str], report: &mut Report) -> bool {
    let Some(plan) = parse(arguments) else { return false };
    if output("cargo", ["mutants", "--version"]).is_err() {
        let why = "cargo-mutants is missing: cargo install --locked cargo-mutants".to_owned();
        report.record("mutants", Outcome::Failed(why));
        return true;
    }
    for part in PARTS.iter().filter(|part| plan.part.is_none_or(|name| name == part.name)) {
        report.step(&format!("mutants of {}", part.name), || run_part(part, &plan).unwrap_or_else(Outcome::Failed));
    }
    true
}

fn parse<'a>(arguments: &[&'a str]) -> Option<Plan<'a>> {
    let mut plan = Plan::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--part" => plan.part = Some(arguments.next().filter(|name| PARTS.iter().any(|part| part.name == **name))?),
            "--shard" => plan.shard = Some(arguments.next().filter(|shard| is_shard(shard))?),
            "--names" => plan.names = Some(arguments.next()?),
            "--tree" => plan.tree = Some(arguments.next()?),
            "--jobs" => plan.jobs = Some(arguments.next()?.parse().ok().filter(|jobs| *jobs > 0)?),
            _ => return None,
        }
    }
    Some(plan)
}

fn is_shard(shard: &str) -> bool {
    let numbers = shard.split_once('/').and_then(|(k, n)| Some((k.parse::<u32>().ok()?, n.parse::<u32>().ok()?)));
    numbers.is_some_and(|(k, n)| k < n)
}

fn run_part(part: &Part, plan: &Plan) -> Result<Outcome, String> {
    let mutants = list(part, plan)?;
    let tree = plan.tree.map_or_else(|| target_dir().join("mutants"), PathBuf::from);
    let tree = Tree::copied(std::path::absolute(tree).map_err(|error| error.to_string())?)?;
    let contents = remove_unviable(&tree, part, &mutants)?;
    eprintln!(
        "{} mutants: {} do not compile, {} are left out",
        mutants.len(),
        contents.unviable.len(),
        contents.left_out.len()
    );
    let mut score = Score { unviable: contents.unviable.len(), left_out: contents.left_out.len(), ..Score::default() };
    let all = (1..=mutants.len() as u32).filter(|n| !contents.unviable.contains(n) && !contents.left_out.contains(n));
    let mut rest: Vec<u32> = all.collect();
    for stage in part.stages {
        let verdicts = run_stage(&tree, part, stage, &contents, (&mutants, &rest), plan)?;
        score.verdicts.extend(verdicts);
        rest.retain(|number| score.verdicts[number] == Verdict::Missed);
    }
    let missed = tree.root.join(format!("missed-{}.txt", part.name));
    std::fs::write(&missed, score.missed(&mutants).map(|name| format!("{name}\n")).collect::<String>())
        .map_err(|error| format!("{}: {error}", missed.display()))?;
    Ok(score.outcome(&mutants))
}

/// Lists the mutants of a part.
fn list(part: &Part, plan: &Plan) -> Result<Vec<Mutant>, String> {
    let mut command = cargo(["mutants", "--list", "--json", "--package", part.package]);
    for file in part.files {
        command.arg("--file").arg(format!("{}/{file}", part.root));
    }
    if let Some(shard) = plan.shard {
        command.args(["--sharding", "round-robin", "--shard", shard]);
    }
    let mut mutants: Vec<Mutant> =
        serde_json::from_str(&capture(&mut command)?).map_err(|error| format!("the list of mutants: {error}"))?;
    if let Some(path) = plan.names {
        let names = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let names: BTreeSet<&str> = names.lines().collect();
        mutants.retain(|mutant| names.contains(mutant.name.as_str()));
    }
    Ok(mutants)
}

/// Puts the mutants into the tree, without those that do not compile.
fn remove_unviable(tree: &Tree, part: &Part, mutants: &[Mutant]) -> Result<Contents, String> {
    let mut unviable = BTreeSet::new();
    loop {
        let contents = tree.mutate(part.lib, mutants, &unviable)?;
        match tree.build(&[&["--package", part.package], part.stages[0].targets].concat(), &contents)? {
            Ok(_) => return Ok(contents),
            // An error can hide others.
            Err(found) => {
                eprintln!("{} more mutants do not compile", found.len());
                unviable.extend(found);
            }
        }
    }
}

/// Runs the tests of a stage on the mutants `numbers`.
fn run_stage(
    tree: &Tree,
    part: &Part,
    stage: &Stage,
    contents: &Contents,
    (mutants, numbers): (&[Mutant], &[u32]),
    plan: &Plan,
) -> Result<BTreeMap<u32, Verdict>, String> {
    let built = tree.build(&[&["--package", part.package], stage.targets].concat(), contents)?;
    let programs = built.map_err(|_| "a mutant that compiled does not compile now".to_owned())?;
    let verdicts = Mutex::new(BTreeMap::new());
    judge::judge((&programs, stage.filters), numbers, plan.jobs.unwrap_or(1), |number, verdict| {
        eprintln!("{verdict:?} {}", mutants[number as usize - 1].name);
        verdicts.lock().expect("no thread must panic").insert(number, verdict);
    })?;
    Ok(verdicts.into_inner().expect("no thread must panic"))
}

impl Score {
    /// Returns the names of the missed mutants.
    fn missed<'a>(&self, mutants: &'a [Mutant]) -> impl Iterator<Item = &'a str> {
        let missed = self.verdicts.iter().filter(|(_, verdict)| **verdict == Verdict::Missed);
        missed.map(|(number, _)| mutants[*number as usize - 1].name.as_str())
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.verdicts.values().filter(|one| **one == verdict).count()
    }

    /// Returns the percentage of the mutants that were run and caught.
    fn percent(&self) -> f64 {
        let run = self.verdicts.len();
        100.0 * (run - self.count(Verdict::Missed)) as f64 / run.max(1) as f64
    }

    /// Prints the score and the missed mutants, and compares the score with the required one.
    fn outcome(&self, mutants: &[Mutant]) -> Outcome {
        let score = format!(
            "{} mutants: {} caught, {} timed out, {} missed, {} unviable, {} left out: {:.1} % caught",
            self.verdicts.len() + self.unviable + self.left_out,
            self.count(Verdict::Caught),
            self.count(Verdict::TimedOut),
            self.count(Verdict::Missed),
            self.unviable,
            self.left_out,
            self.percent()
        );
        eprintln!("{score}");
        self.missed(mutants).for_each(|name| eprintln!("missed: {name}"));
        match self.verdicts.len() {
            0 => Outcome::Failed("no mutant was run".to_owned()),
            _ if self.percent() < CAUGHT_MIN => Outcome::Failed(format!("{score}, less than {CAUGHT_MIN} %")),
            run => Outcome::Passed { tests: run as u64 },
        }
    }
}

/// The least percentage of caught mutants.
const CAUGHT_MIN: f64 = 90.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn score(caught: u32, timed_out: u32, missed: u32) -> Score {
        let verdicts = [(Verdict::Caught, caught), (Verdict::TimedOut, timed_out), (Verdict::Missed, missed)];
        let verdicts = verdicts.into_iter().flat_map(|(verdict, count)| vec![verdict; count as usize]);
        Score { verdicts: (1..).zip(verdicts).collect(), unviable: 30, left_out: 3 }
    }

    fn outcome(score: &Score) -> Outcome {
        let mutant = serde_json::json!({
            "name": "", "file": "", "genre": "FnValue", "replacement": "",
            "span": { "start": { "line": 1, "column": 1 }, "end": { "line": 1, "column": 1 } },
        });
        let mutant: Mutant = serde_json::from_value(mutant).unwrap();
        score.outcome(&vec![mutant; score.verdicts.len()])
    }

    #[test]
    fn missed_mutants_lower_the_score_and_unviable_ones_do_not() {
        assert_eq!((score(17, 2, 1).percent(), outcome(&score(17, 2, 1))), (95.0, Outcome::Passed { tests: 20 }));
        let low = outcome(&score(6, 2, 1));
        assert!(
            matches!(&low, Outcome::Failed(why) if why.contains("42 mutants") && why.contains("88.9 %")),
            "{low:?}"
        );
        assert!(matches!(outcome(&score(0, 0, 0)), Outcome::Failed(_)));
    }

    #[test]
    fn options_are_checked() {
        let plan = parse(&["--part", "iwarp", "--shard", "1/3", "--jobs", "2"]).unwrap();
        assert_eq!((plan.part, plan.shard, plan.jobs), (Some("iwarp"), Some("1/3"), Some(2)));
        let invalid =
            [&["--part", "tcp"][..], &["--part"], &["--shard", "3/3"], &["--shard", "1"], &["--jobs", "0"], &["iwarp"]];
        for invalid in invalid {
            assert!(parse(invalid).is_none(), "{invalid:?}");
        }
    }
}
