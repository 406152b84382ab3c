//! The rules of STYLE.md and ARCHITECTURE.md that a program can check.

mod arrows;
mod entropy;
mod folders;
mod imports;
mod lengths;
mod links;
mod retired;
mod subjects;
mod text;

use std::path::{Path, PathBuf};

use crate::report::{Outcome, Report};
use crate::shell;

/// A file of the project, with its path from the root.
pub struct File {
    path: String,
    text: String,
}

/// Checks every rule and records one step for each.
pub fn run(report: &mut Report) {
    let files = tracked();
    let rules: [(&str, Vec<String>); 15] = [
        ("arrows between crates", arrows::broken()),
        ("arrows between folders", folders::broken(&files)),
        ("unsafe stays where it may be", text::unsafe_elsewhere(&files)),
        ("randomness follows from the seed", entropy::unseeded(&files)),
        ("files are short", lengths::files(&files)),
        ("functions are short", lengths::functions(&files)),
        ("comments are narrow", lengths::comments(&files)),
        ("subjects of commits", subjects::malformed()),
        ("nothing is left to do", text::unfinished(&files)),
        ("docs of items are no questions", text::questions(&files)),
        ("no machine is named", text::machine_names(&files)),
        ("no registry but the public one", text::registries(&files)),
        ("ARCHITECTURE.md knows every crate", arrows::unmentioned(&files)),
        ("links resolve", links::dangling(&files)),
        ("no retired term", retired::found(&files)),
    ];
    for (rule, complaints) in rules {
        report.step(&format!("tidy: {rule}"), || {
            for complaint in &complaints {
                eprintln!("{complaint}");
            }
            match complaints.len() {
                0 => Outcome::Passed { tests: 1 },
                several => Outcome::Failed(format!("{several} complaints, the first: {}", complaints[0])),
            }
        });
    }
}

/// The project's text files.
fn tracked() -> Vec<File> {
    // No rule applies to files that are not text.
    let read = |path: String| std::fs::read_to_string(&path).ok().map(|text| File { path, text });
    tracked_paths().into_iter().filter_map(read).collect()
}

/// The project's files: those that git tracks or would add, or all but build products where there is no git.
pub fn tracked_paths() -> Vec<String> {
    let listed = shell::output("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let mut paths: Vec<String> = match listed {
        Ok(names) => names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        Err(_) => walk(Path::new(".")).into_iter().filter_map(|path| Some(path.to_str()?[2..].to_owned())).collect(),
    };
    paths.sort();
    paths.retain(|path| Path::new(path).is_file());
    paths
}

fn walk(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| !["target", ".git", "lab-out"].iter().any(|built| entry.file_name() == *built))
        .flat_map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { vec![entry.path()] })
        .collect()
}
