//! The data that travels: a real source tree (Linux's own headers, the same on every machine that has the lab), its
//! checksums, and a large random file.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell;

const FILES_IN_TREE: usize = 2200;
const RANDOM_MIB: usize = 24;

/// The paths of the data.
pub struct Fixture {
    /// The tree, unpacked.
    pub tree: PathBuf,
    /// The same as a tar archive.
    pub archive: PathBuf,
    /// `sha256sum`'s list of the tree.
    pub manifest: PathBuf,
    /// 24 MiB of random bytes.
    pub random: PathBuf,
}

impl Fixture {
    /// Creates the data that do not exist yet.
    pub fn make(directory: &Path) -> Result<Self, String> {
        let fixture = Self {
            tree: directory.join("tree"),
            archive: directory.join("tree.tar"),
            manifest: directory.join("manifest"),
            random: directory.join("random"),
        };
        if !fixture.random.exists() {
            let mut command = Command::new("interop/make-fixture");
            shell::capture(command.arg(directory).args([FILES_IN_TREE, RANDOM_MIB].map(|number| number.to_string())))?;
        }
        let files = std::fs::read_to_string(&fixture.manifest).map_err(|error| error.to_string())?.lines().count();
        if files != FILES_IN_TREE {
            return Err(format!("the source tree has {files} files, not {FILES_IN_TREE}"));
        }
        Ok(fixture)
    }

    /// Fills an export before the first client connects: the tree, and a directory of 3,000 names.
    pub fn give(&self, export: &Path) -> Result<(), String> {
        let script = "set -euo pipefail; mkdir -p given/tree given/many; tar -xf \"$1\" -C given/tree; cd given/many; \
                      touch $(seq -f 'entry-%g' 3000)";
        let archive = self.archive.to_string_lossy();
        shell::capture(Command::new("bash").current_dir(export).args(["-c", script, "give", &archive])).map(drop)
    }

    /// `Err` unless `directory` holds exactly the tree.
    pub fn verify(&self, directory: &Path) -> Result<(), String> {
        let manifest = self.manifest.to_string_lossy();
        shell::capture(Command::new("sha256sum").current_dir(directory).args(["--quiet", "-c", &manifest]))?;
        let names = shell::capture(Command::new("find").current_dir(directory).args([".", "-type", "f"]))?;
        match names.lines().count() {
            FILES_IN_TREE => Ok(()),
            files => Err(format!("{}: {files} files, not {FILES_IN_TREE}", directory.display())),
        }
    }
}
