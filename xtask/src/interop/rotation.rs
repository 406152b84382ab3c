//! Test matrices that take too long for every run: each commit runs some of the cells, and successive commits run all.

use crate::shell;

/// The cells of a matrix that are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// All cells (`--all`).
    All,
    /// Those of a commit, by its hash.
    Commit(u64),
}

impl Rotation {
    /// All cells, or those of the commit that is checked out.
    pub fn new(all: bool) -> Self {
        let head = shell::output("git", ["rev-parse", "HEAD"]).unwrap_or_default();
        // Without git, all runs select the same cells.
        let hash = head.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if all { Self::All } else { Self::Commit(hash.unwrap_or(0)) }
    }

    /// `count` of the cells, which follow one another in their order. Prints which, and how to run all.
    pub fn pick<'a, T: std::fmt::Debug>(self, suite: &str, cells: &'a [T], count: usize) -> Vec<&'a T> {
        let picked: Vec<&T> = match self {
            Self::All => cells.iter().collect(),
            Self::Commit(hash) => {
                let first = (hash % cells.len() as u64) as usize;
                cells.iter().cycle().skip(first).take(count.min(cells.len())).collect()
            }
        };
        eprintln!("== interop: {suite}: runs {picked:?} of {} cells", cells.len());
        if picked.len() < cells.len() {
            eprintln!("== interop: {suite}: all by `cargo xtask interop --only {suite} --all`");
        }
        picked
    }
}

#[cfg(test)]
mod tests {
    use super::Rotation;

    #[test]
    fn successive_commits_select_successive_cells() {
        let cells = ["a", "b", "c"];
        let of = |rotation: Rotation, count| rotation.pick("test", &cells, count);
        assert_eq!(of(Rotation::Commit(2), 2), [&"c", &"a"]);
        assert_eq!(of(Rotation::Commit(3), 1), [&"a"]);
        assert_eq!(of(Rotation::Commit(1), 9).len(), 3, "no cell runs twice");
        assert_eq!(of(Rotation::All, 1).len(), 3);
    }
}
