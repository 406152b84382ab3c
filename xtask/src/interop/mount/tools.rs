//! The programs of the suite `mount` that Debian does not package: they are installed from crates.io, below the
//! directory of the suites.

use std::path::{Path, PathBuf};

use crate::shell;

/// The Debian packages of the suite. `libacl1-dev` is needed to build pjdfstest.
pub const PACKAGES: [&str; 6] = ["stress-ng", "sqlite3", "git", "libacl1-dev", "acl", "postgresql"];

/// The installed programs.
pub struct Tools {
    pub pjdfstest: PathBuf,
    pub fsx: PathBuf,
}

impl Tools {
    /// Installs what is missing in `directory`.
    pub fn install(directory: &Path) -> Result<Self, String> {
        let program = |name: &str, version: &str| {
            let (crate_name, root) = (format!("{name}@{version}"), directory.join(format!("{name}-{version}")));
            let program = root.join("bin").join(name);
            if !program.exists() {
                let mut install = shell::cargo(["install", "--quiet", "--locked", &crate_name, "--root"]);
                shell::capture(install.arg(&root))?;
            }
            Ok::<_, String>(program)
        };
        Ok(Self { pjdfstest: program("pjdfstest", "0.2.2")?, fsx: program("fsx", "0.3.2")? })
    }
}
