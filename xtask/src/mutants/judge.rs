//! Runs test programs on one mutant after another.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use super::build::Program;
use super::schema::VARIABLE;

/// The outcome of the tests of a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A test failed.
    Caught,
    /// The tests did not end. This counts as caught.
    TimedOut,
    /// All tests passed.
    Missed,
}

/// Runs the tests on each of `numbers`, on so many threads. Calls `report` with each outcome.
///
/// # Errors
/// The tests do not pass without a mutant.
pub fn judge(
    (programs, filters): (&[Program], &[&str]),
    numbers: &[u32],
    jobs: usize,
    report: impl Fn(u32, Verdict) + Sync,
) -> Result<(), String> {
    let started = Instant::now();
    if verdict(programs, filters, 0, BASELINE_MAX)? != Verdict::Missed {
        return Err("a test fails without a mutant".to_owned());
    }
    let limit = TIMEOUT_MIN.max(10 * started.elapsed());
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(&number) = numbers.get(next.fetch_add(1, Relaxed)) {
                    match verdict(programs, filters, number, limit) {
                        Ok(verdict) => report(number, verdict),
                        Err(why) => *failure.lock().expect("no thread must panic") = Some(why),
                    }
                }
            });
        }
    });
    failure.into_inner().expect("no thread must panic").map_or(Ok(()), Err)
}

/// Runs the programs on one mutant until a test fails.
fn verdict(programs: &[Program], filters: &[&str], number: u32, limit: Duration) -> Result<Verdict, String> {
    let deadline = Instant::now() + limit;
    for Program { path, directory } in programs {
        // A mutant can allocate without end.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -v \"$0\" && exec \"$@\"", MEMORY_MAX_KIB]).arg(path).args(filters);
        // Property tests try the same cases for each mutant.
        command.current_dir(directory).env(VARIABLE, number.to_string()).env("PROPTEST_RNG_SEED", "7");
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let verdict = wait(child.map_err(|error| format!("{}: {error}", path.display()))?, deadline);
        // The next mutants must not repeat the cases in which this one failed.
        let _ = std::fs::remove_dir_all(directory.join("proptest-regressions"));
        if verdict != Verdict::Missed {
            return Ok(verdict);
        }
    }
    Ok(Verdict::Missed)
}

/// Waits for the end of a test program, or for the first test that fails.
fn wait(mut child: Child, deadline: Instant) -> Verdict {
    let stdout = child.stdout.take().expect("stdout is a pipe");
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let ended = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if line.starts_with("test ") && line.ends_with(" FAILED") => break Some(Verdict::Caught),
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => break Some(Verdict::TimedOut),
            Err(mpsc::RecvTimeoutError::Disconnected) => break None,
        }
    };
    if ended.is_some() {
        let _ = child.kill();
    }
    let status = child.wait();
    ended.unwrap_or_else(|| match status {
        Ok(status) if status.success() => Verdict::Missed,
        _ => Verdict::Caught,
    })
}

/// The minimum of the time limit, which is ten times what the tests need without a mutant.
const TIMEOUT_MIN: Duration = Duration::from_secs(20);
const BASELINE_MAX: Duration = Duration::from_secs(600);
/// The address space of a test program.
const MEMORY_MAX_KIB: &str = "16777216";
