//! Test matrices that take too long for every run: each commit runs some of the cells, so that all of them run over
//! time.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::report::{Outcome, Report};
use crate::shell;

/// Selects the cells of a matrix to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// All cells (`--all`).
    All,
    /// The cells of a commit, by its hash.
    Commit(u64),
}

impl Rotation {
    /// Returns all cells, or those of the current commit.
    pub fn new(all: bool) -> Self {
        let head = shell::output("git", ["rev-parse", "HEAD"]).unwrap_or_default();
        // Without git, all runs use the same cells.
        let hash = head.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if all { Self::All } else { Self::Commit(hash.unwrap_or(0)) }
    }

    /// Returns `count` consecutive cells, and prints them. Reports the others as skipped, with the command that runs all.
    pub fn pick<'a, T: std::fmt::Debug>(
        self,
        suite: &str,
        cells: &'a [T],
        count: usize,
        report: &mut Report,
    ) -> Vec<&'a T> {
        let (first, count) = match self {
            Self::All => (0, cells.len()),
            Self::Commit(commit) => {
                // A suite can have several matrices, such as its kernels and its versions. Each commit runs independent parts of them, so
                // that all combinations run over time.
                let mut hasher = DefaultHasher::new();
                (commit, suite, format!("{cells:?}")).hash(&mut hasher);
                ((hasher.finish() % cells.len() as u64) as usize, count.min(cells.len()))
            }
        };
        let mut picked: Vec<&T> = cells.iter().cycle().skip(first).take(cells.len()).collect();
        let left = picked.split_off(count);
        eprintln!("== interop: {suite}: runs {picked:?} of {} cells", cells.len());
        if !left.is_empty() {
            let what = if left.len() > NAMED_MAX { String::new() } else { format!("{left:?} ") };
            let why = format!("{what}run for other commits, and by `cargo xtask interop --only {suite} --all`");
            report.record(format!("interop: {suite}: {} of {} cells", left.len(), cells.len()), Outcome::Skipped(why));
        }
        picked
    }
}

/// The number of skipped cells that a report names.
const NAMED_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Report, Rotation};

    #[test]
    fn commits_run_different_cells_and_all_selects_all() {
        let cells = ["a", "b", "c"];
        let mut report = Report::default();
        let mut of = |rotation: Rotation, count| rotation.pick("test", &cells, count, &mut report);
        let firsts: HashSet<_> = (0..50).map(|commit| of(Rotation::Commit(commit), 1)).collect();
        assert_eq!(firsts, [vec![&"a"], vec![&"b"], vec![&"c"]].into());
        assert!(
            [[&"a", &"b"], [&"b", &"c"], [&"c", &"a"]].contains(&of(Rotation::Commit(2), 2)[..].try_into().unwrap())
        );
        assert_eq!(of(Rotation::Commit(1), 9).len(), 3, "no cell may run twice");
        assert_eq!(of(Rotation::All, 1).len(), 3);
    }

    #[test]
    fn all_combinations_of_two_matrices_run_over_time() {
        let (kernels, cells) = (["6.1", "6.12"], [1, 2, 3, 4, 5, 6]);
        let mut report = Report::default();
        let mut pair = |commit| {
            let rotation = Rotation::Commit(commit);
            (rotation.pick("test", &kernels, 1, &mut report)[0], rotation.pick("test", &cells, 1, &mut report)[0])
        };
        let pairs: HashSet<_> = (0..200).map(&mut pair).collect();
        assert_eq!(pairs.len(), kernels.len() * cells.len());
    }
}
