//! One run of a guest: prepares its inputs, and adds its results to the report.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Bench;
use crate::report::{Outcome, Report};
use crate::shell::{self, Daemon};

/// The maximum time of a guest, in seconds. Emulation is slow, and the machine can be busy.
const TIMEOUT_S: u32 = 1800;

/// A Linux kernel of Debian's packages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Kernel(Option<&'static str>);

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Linux {}", self.0.unwrap_or("6.1"))
    }
}

impl Kernel {
    /// The release's own kernel: Linux 6.1.
    pub const STABLE: Self = Self(None);
    /// Linux 6.12, which supports RPC with TLS and uses READ_PLUS.
    pub const NEWER: Self = Self(Some("6.12"));
    pub const ALL: [Self; 2] = [Self::STABLE, Self::NEWER];

    /// Returns the command `kernel-lab` for this kernel.
    pub fn lab(self) -> Command {
        let mut command = Command::new("interop/kernel-lab");
        command.envs(self.0.map(|version| ("KERNEL", version)));
        command
    }

    /// Returns the name of a suite with this kernel.
    pub fn label(self, suite: &str) -> String {
        self.0.map_or_else(|| suite.to_owned(), |version| format!("{suite}-{version}"))
    }
}

/// The directory of a guest, which is /run/out in the guest.
pub struct Guest {
    pub out: PathBuf,
    kernel: Kernel,
}

impl Guest {
    /// Prepares the files that every guest script expects, for a guest with the kernel of `bench`.
    pub fn new(bench: &Bench, out: PathBuf) -> Result<Self, String> {
        let script = "set -euo pipefail; mkdir -p \"$1\"; cp -r interop/guest \"$1/\"; cp --reflink=auto \"$2\" \"$3\" \"$4\" \"$1/\"; \
                      cp \"$5\" \"$1/config\"";
        let fixture = &bench.fixture;
        let kernel = bench.kernel;
        let config = PathBuf::from(shell::capture(kernel.lab().arg("config"))?.trim());
        let arguments = [&out, &fixture.archive, &fixture.manifest, &fixture.random, &config];
        shell::capture(Command::new("bash").args(["-c", script, "lay-out"]).args(arguments))?;
        Ok(Self { out, kernel })
    }

    /// Writes the variables that the script reads.
    pub fn environment(&self, variables: &[(&str, String)]) -> Result<(), String> {
        let text: String = variables.iter().map(|(name, value)| format!("{name}='{value}'\n")).collect();
        std::fs::write(self.out.join("env"), text).map_err(|error| error.to_string())
    }

    fn command(&self, script: &str, forward: &str) -> Command {
        let mut command = self.kernel.lab();
        command.arg("run").arg(self.out.join("guest").join(script)).arg(&self.out);
        command.env("FWD", forward).env("TIMEOUT", TIMEOUT_S.to_string());
        command
    }

    /// Boots the guest, and runs `script` to its end.
    ///
    /// # Errors
    /// Returns an error with the exit status of `kernel-lab` if the script fails, or the guest times out.
    pub fn run(&self, script: &str) -> Result<(), String> {
        shell::run(&mut self.command(script, ""))
    }

    /// Boots the guest, and runs `script` in the background; `forward` is kernel-lab's FWD.
    pub fn start(&self, script: &str, forward: &str) -> Result<Daemon, String> {
        Daemon::start(&mut self.command(script, forward), &self.out.join("kernel-lab.log"))
    }

    /// Adds the guest's result lines to the report: see [`results`].
    pub fn results(&self, suite: &str, ended: Result<(), String>, report: &mut Report) -> Result<(), String> {
        results(&self.out, &self.kernel.label(suite), ended, report)
    }
}

/// Adds the result lines of a script in its directory to the report. Returns an error if there are none, or if the script has not
/// succeeded, as `ended` says, and names no failure.
pub fn results(directory: &Path, suite: &str, ended: Result<(), String>, report: &mut Report) -> Result<(), String> {
    let text = std::fs::read_to_string(directory.join("results")).unwrap_or_default();
    let (mut passed, mut failed) = (0, 0);
    for line in text.lines() {
        eprintln!("  {line}");
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, why) = rest.split_once(": ").map_or((rest, ""), |_| split_reason(rest));
        match kind {
            "ok" => passed += 1,
            "skip" => drop(report.record(format!("interop: {suite}: {name}"), Outcome::Skipped(why.to_owned()))),
            _ => {
                failed += 1;
                report.record(format!("interop: {suite}: {name}"), Outcome::Failed(why.to_owned()));
            }
        }
    }
    if passed > 0 {
        report.record(format!("interop: {suite}: checks of the script"), Outcome::Passed { tests: passed });
    }
    match ended {
        Ok(()) if passed + failed > 0 => Ok(()),
        Err(_) if failed > 0 => Ok(()),
        Ok(()) => Err(format!("no result of a check: see {}", directory.display())),
        Err(why) => Err(format!("{why} after {passed} checks that passed: see {}", directory.display())),
    }
}

/// Splits "TRANSPORT: CHECK: REASON" before REASON.
fn split_reason(line: &str) -> (&str, &str) {
    let first = line.find(": ").unwrap_or(line.len());
    match line[first + 2..].find(": ") {
        Some(second) => (&line[..first + 2 + second], &line[first + 4 + second..]),
        None => (&line[..first], &line[first + 2..]),
    }
}

/// Returns the parent directory of a path, as text for a command line.
pub fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
