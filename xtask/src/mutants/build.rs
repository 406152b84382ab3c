//! Builds the tests of a crate that contains mutants, and removes mutants that do not compile.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::schema::{self, Mutant};
use crate::shell::{cargo, project_root};
use crate::tidy::tracked_paths;

/// A copy of the project's sources.
pub struct Tree {
    pub root: PathBuf,
    /// The build profile of fast compilation.
    pub target: PathBuf,
}

/// A test program, and the directory of its package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub directory: PathBuf,
}

/// The mutants that a tree contains, and those that it does not.
#[derive(Debug, Default)]
pub struct Contents {
    pub unviable: BTreeSet<u32>,
    pub left_out: BTreeSet<u32>,
    /// The mutants of each rewritten file, and their places in it.
    places: BTreeMap<String, Vec<(u32, Range<usize>)>>,
}

impl Tree {
    /// Copies the project's files. Files that have not changed keep their times, so cargo does not compile them again.
    pub fn copied(root: PathBuf) -> Result<Self, String> {
        for path in tracked_paths() {
            let bytes = std::fs::read(project_root().join(&path)).map_err(|error| format!("{path}: {error}"))?;
            write_if_changed(&root.join(&path), &bytes)?;
        }
        Ok(Self { target: root.join("target"), root })
    }

    /// Puts mutants into the crate whose root is `lib`. Mutant number `n` is the `n`th of the list.
    pub fn mutate(&self, lib: &str, mutants: &[Mutant], unviable: &BTreeSet<u32>) -> Result<Contents, String> {
        let mut files = BTreeMap::<&str, Vec<(u32, &Mutant)>>::new();
        for (number, mutant) in (1..).zip(mutants) {
            let mutants = files.entry(&mutant.file).or_default();
            if !unviable.contains(&number) {
                mutants.push((number, mutant));
            }
        }
        let mut contents = Contents { unviable: unviable.clone(), ..Contents::default() };
        for (path, mutants) in files {
            let text =
                std::fs::read_to_string(project_root().join(path)).map_err(|error| format!("{path}: {error}"))?;
            let rewritten = schema::rewrite(&text, &mutants).map_err(|why| format!("{path}: {why}"))?;
            write_if_changed(&self.root.join(path), rewritten.text.as_bytes())?;
            contents.left_out.extend(rewritten.left_out);
            contents.places.insert(path.to_owned(), rewritten.places);
        }
        let root = std::fs::read_to_string(project_root().join(lib)).map_err(|error| format!("{lib}: {error}"))?;
        write_if_changed(&self.root.join(lib), schema::with_selector(&root).as_bytes())?;
        Ok(contents)
    }

    /// Builds test programs. Returns them, or the numbers of mutants that do not compile.
    ///
    /// # Errors
    /// Something else does not compile.
    pub fn build(
        &self,
        arguments: &[&str],
        contents: &Contents,
    ) -> Result<Result<Vec<Program>, BTreeSet<u32>>, String> {
        let output = self
            .cargo(["test", "--no-run", "--message-format=json"])
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| format!("cargo: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if output.status.success() {
            return Ok(Ok(messages.iter().filter_map(program).collect()));
        }
        let errors = messages.iter().filter(|message| message["message"]["level"] == "error");
        let mut unviable = BTreeSet::new();
        for error in errors {
            let spans = error["message"]["spans"].as_array().map_or(&[][..], Vec::as_slice);
            let found = spans.iter().filter_map(|span| contents.mutant_at(span)).collect::<Vec<_>>();
            if found.is_empty() && !spans.is_empty() {
                return Err(error["message"]["rendered"].to_string().replace("\\n", "\n"));
            }
            unviable.extend(found);
        }
        if unviable.is_empty() { Err("the tests cannot be built".to_owned()) } else { Ok(Err(unviable)) }
    }

    fn cargo<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = cargo(arguments);
        // Compiling takes most of the time.
        let fast = [("OPT_LEVEL", "0"), ("DEBUG", "0"), ("INCREMENTAL", "true")];
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        command.envs(fast.map(|(key, value)| (format!("CARGO_PROFILE_DEV_{key}"), value)));
        command
    }
}

impl Contents {
    /// Returns the mutant in which a span of a compiler message is.
    fn mutant_at(&self, span: &Value) -> Option<u32> {
        let at = span["byte_start"].as_u64()? as usize;
        let places = self.places.get(span["file_name"].as_str()?)?;
        places.iter().find(|(_, place)| place.contains(&at)).map(|(number, _)| *number)
    }
}

fn program(message: &Value) -> Option<Program> {
    if message["profile"]["test"] != true {
        return None;
    }
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    Some(Program { path: message["executable"].as_str()?.into(), directory })
}

fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if std::fs::read(path).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    let folder = path.parent().expect("a file is in a folder");
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, bytes))
        .map_err(|error| format!("{}: {error}", path.display()))
}
