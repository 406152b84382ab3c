//! Fuzzing on the project's own toolchain: the coverage instrumentation that cargo-fuzz asks for is stable LLVM
//! options, so neither it nor a nightly compiler is needed.

use std::path::Path;

use crate::report::{Outcome, Report};
use crate::shell::{cargo, output, run as execute};

const INSTRUMENTATION: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks";

/// Maximum memory of a target, so that an unbounded allocation is a finding.
const MEMORY_LIMIT_MIB: u32 = 1024;

/// Maximum time of one input, so that a hang is a finding.
const TIMEOUT_S: u32 = 10;

/// Fuzzes `target` for `minutes`. Returns `false` if `minutes` is not a number.
pub fn run(target: &str, minutes: &str, report: &mut Report) -> bool {
    let Ok(minutes) = minutes.parse::<f64>() else { return false };
    report.step(&format!("fuzz {target} for {minutes} minutes"), || match fuzz(target, minutes) {
        Ok(()) => Outcome::Passed { tests: 1 },
        Err(why) => Outcome::Failed(why),
    });
    true
}

fn fuzz(target: &str, minutes: f64) -> Result<(), String> {
    if !Path::new("fuzz/fuzz_targets").join(target).with_extension("rs").exists() {
        return Err(format!("no such target: there are {}", targets().join(", ")));
    }
    // With a target triple, build scripts and derive macros are not instrumented.
    let host = output("rustc", ["-vV"])?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc names no host")?;
    let mut build =
        cargo(["build", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", host, "--bin", target]);
    execute(build.env("RUSTFLAGS", INSTRUMENTATION).env_remove("CARGO_TARGET_DIR"))?;
    let corpus = Path::new("fuzz/corpus").join(target);
    let found = Path::new("fuzz/target/corpus").join(target);
    let artifacts = Path::new("fuzz/artifacts").join(target);
    for directory in [&corpus, &found, &artifacts] {
        std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    let mut fuzzer = std::process::Command::new(Path::new("fuzz/target").join(host).join("release").join(target));
    fuzzer
        .arg(format!("-max_total_time={}", (minutes * 60.0) as u64))
        .arg(format!("-rss_limit_mb={MEMORY_LIMIT_MIB}"))
        .arg(format!("-timeout={TIMEOUT_S}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg("-print_final_stats=1")
        // New inputs go into the first directory. The inputs that are committed are chosen by hand.
        .args([found, corpus]);
    execute(&mut fuzzer)
}

fn targets() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("fuzz/fuzz_targets") else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    names
}
