//! Runs the attacks of `crates/hostile` on our server, while good clients use it.

use std::process::Command;

use super::Bench;
use super::lab::text;
use crate::report::{Outcome, Report};
use crate::shell;

/// Runs all attacks, and adds their results to the report.
pub fn run(bench: &Bench, report: &mut Report) -> Result<(), String> {
    // A program without integration tests is not built together with the tests.
    shell::run(&mut shell::cargo(["build", "--quiet", "--package", "slipway-hostile"]))?;
    let directory = bench.fresh("hostile")?;
    let program = |name: &str| text(&shell::target_dir().join("debug").join(name));
    let attack = [program("slipway-hostile"), text(&bench.slipway), program("examples/load"), text(&directory)];
    // In a separate network namespace, the server can run the built-in rpcbind, and does not interfere with other
    // suites.
    let mut command = if shell::is_root() {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", NETWORK, "hostile"]);
        command
    } else {
        Command::new("env")
    };
    let (succeeded, output) = shell::tee(command.args(&attack), |_| true)?;
    std::fs::write(directory.join("table"), &output).map_err(|error| error.to_string())?;
    let mut passed = 0;
    for line in output.lines() {
        if line.starts_with("ok ") {
            passed += 1;
        } else if let Some((name, why)) = line.strip_prefix("fail ").and_then(|line| line.split_once(": ")) {
            report.record(format!("interop: hostile: {name}"), Outcome::Failed(why.to_owned()));
        }
    }
    if passed > 0 {
        report.record("interop: hostile: attacks that did no harm", Outcome::Passed { tests: passed });
    }
    if succeeded || report.failed() {
        Ok(())
    } else {
        Err(format!("the attacks did not end: see {}", directory.display()))
    }
}

/// The last two are addresses of the network for documentation, for a UDP peer on another host than the server's.
const NETWORK: &str =
    "ip link set lo up && ip addr add 198.51.100.1/32 dev lo && ip addr add 198.51.100.7/32 dev lo && exec \"$@\"";
