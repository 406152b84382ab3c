//! The Debian packages that a step needs. They are installed if this process may do that, and named otherwise.

use std::process::Command;
use std::sync::OnceLock;

use crate::shell;

/// Installs those of `packages` that are missing. The error tells the user what to do.
pub fn install(packages: &[&str]) -> Result<(), String> {
    if shell::find("dpkg-query").is_none() {
        return Err(format!("not a Debian system; it needs the equivalents of: {}", packages.join(" ")));
    }
    let missing: Vec<&str> = packages.iter().copied().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let wanted = missing.join(" ");
    if !shell::is_root() {
        return Err(format!("needs packages: run 'sudo apt-get install --no-install-recommends {wanted}'"));
    }
    eprintln!("installing {wanted}");
    update()?;
    apt(&[&["install", "-y", "--no-install-recommends"], missing.as_slice()].concat())
}

/// Updates the lists of packages, once for each process.
pub fn update() -> Result<(), String> {
    static UPDATED: OnceLock<Result<(), String>> = OnceLock::new();
    UPDATED.get_or_init(|| apt(&["update"])).clone()
}

/// Returns `true` if a package is installed.
pub fn is_installed(package: &str) -> bool {
    shell::output("dpkg-query", ["-W", "-f", "${db:Status-Status}", package]).is_ok_and(|status| status == "installed")
}

fn apt(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    command.arg("-qq").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    shell::capture(&mut command).map(drop)
}
