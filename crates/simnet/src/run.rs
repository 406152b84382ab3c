//! Simulations: running them, their seeds, and the comparison of two runs.

use std::{env, fmt, fs::OpenOptions, future::Future, io::Write, ops::Range, path::PathBuf, time::Duration};

use tokio::time::{Instant, timeout};

use crate::Trace;

/// Runs a future in virtual time. All its random values follow from `seed`.
///
/// The future can do I/O only over a [`Network`](crate::Network): the creation of a socket panics.
///
/// # Panics
/// Panics if the future panics, and prints the seed to standard error; or if the future takes a day of virtual time.
pub fn simulate<F: Future>(seed: u64, work: impl FnOnce() -> F) -> F::Output {
    let _seed = SeedOnPanic(seed);
    entropy::simulate(seed, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("runtime must start");
        let (ended, took) = runtime.block_on(async {
            let began = Instant::now();
            (timeout(DAY, work()).await, began.elapsed())
        });
        report(seed, format_args!("took {took:?} next random {:016x}", entropy::random::<u64>()));
        ended.expect("simulation must end within a day of virtual time")
    })
}

/// Returns the seeds to run: `count` seeds from 0. `SLIPWAY_SEEDS` replaces `count`, and `SLIPWAY_SEED` replaces the first
/// seed. If only `SLIPWAY_SEED` is set, it is the only seed.
///
/// # Panics
/// Panics if one of the variables is not a number.
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str| {
        let value = env::var(name).ok()?;
        Some(value.parse::<u64>().unwrap_or_else(|_| panic!("{name} must be a number")))
    };
    let first = number("SLIPWAY_SEED");
    let count = number("SLIPWAY_SEEDS").unwrap_or(if first.is_some() { 1 } else { count });
    first.unwrap_or(0)..first.unwrap_or(0) + count
}

/// Runs a simulation twice and compares the traces.
///
/// # Panics
/// Panics if the traces differ. The message has the first difference.
pub fn assert_replays(run: impl Fn() -> Trace) {
    let (first, second) = (run(), run());
    if let Some((number, before, now)) = first.first_difference(&second) {
        panic!("message {number} differs: {before:?} in the first run, {now:?} in the second");
    }
}

/// Appends a line about a simulation to the file that `SLIPWAY_TRACES` names, for `cargo xtask sim --replay`. It begins with the
/// names of the program and of the test, and the seed.
pub(crate) fn report(seed: u64, outcome: fmt::Arguments<'_>) {
    let Some(path) = env::var_os("SLIPWAY_TRACES") else { return };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread").to_owned();
    let program = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    // The name of the file ends with a hash of cargo's, which builds may change.
    let program = program.file_name().unwrap_or_default().to_string_lossy();
    let program = program.rsplit_once('-').map_or(&*program, |(program, _)| program);
    let line = format!("{program} {test} seed {seed} {outcome}\n");
    let written =
        OpenOptions::new().create(true).append(true).open(&path).and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Prints the seed when it is dropped by a panic.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed of this run: {}", self.0);
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);
