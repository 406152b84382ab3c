//! Speed beside libnfs's client on NFS-Ganesha, in one run on one machine: `bench/compare.sh` does it.

use std::process::Command;

use crate::report::{Outcome, Report};
use crate::{debian, shell};

const PACKAGES: [&str; 6] = ["libnfs-dev", "nfs-ganesha", "nfs-ganesha-vfs", "rpcbind", "build-essential", "python3"];

/// Runs the comparison as `--seconds` (of each measurement) and `--congestion` (one or several) say; false if they cannot
/// be understood.
pub fn run(arguments: &[&str], report: &mut Report) -> bool {
    let (mut seconds, mut congestion) = ("5", "cubic");
    for pair in arguments.chunks(2) {
        match *pair {
            ["--seconds", value] if value.parse::<u32>().is_ok_and(|value| value > 0) => seconds = value,
            ["--congestion", value] => congestion = value,
            _ => return false,
        }
    }
    report.step("compare", || {
        if let Err(why) = debian::install(&PACKAGES) {
            return Outcome::Skipped(why);
        }
        let built = shell::run(&mut shell::cargo(["build", "--release", "--package", "slipway"]));
        let compared = built.and_then(|()| {
            let slipway = shell::target_dir().join("release/slipway");
            shell::run(Command::new("bench/compare.sh").arg(slipway).arg(seconds).env("CONGESTION", congestion))
        });
        match compared {
            Ok(()) => Outcome::Passed { tests: 1 },
            Err(why) => Outcome::Failed(why),
        }
    });
    true
}
