//! Runs of simulations.

use std::{env, fs::OpenOptions, future::Future, io::Write, ops::Range, time::Duration};

use crate::Trace;

/// Runs a future in virtual time, with everything random from `seed`.
///
/// There is no I/O but over a [`Network`](crate::Network): a socket panics.
///
/// # Panics
/// If the future does, with the seed on standard error; or if it takes a day of virtual time.
pub fn simulate<F: Future>(seed: u64, work: impl FnOnce() -> F) -> F::Output {
    let _told = SeedOnPanic(seed);
    entropy::simulate(seed, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime for the simulation");
        let ended = runtime.block_on(async { tokio::time::timeout(DAY, work()).await });
        ended.expect("the simulation has not ended after a day of virtual time")
    })
}

/// The seeds to run: `count` from 0 on, or as many as `SLIPWAY_SEEDS` says; from `SLIPWAY_SEED` on if it is set, and then that one
/// alone unless more are asked for.
///
/// # Panics
/// If either is not a number.
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str| {
        let value = env::var(name).ok()?;
        Some(value.parse::<u64>().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let first = number("SLIPWAY_SEED");
    let count = number("SLIPWAY_SEEDS").unwrap_or(if first.is_some() { 1 } else { count });
    first.unwrap_or(0)..first.unwrap_or(0) + count
}

/// Runs a simulation twice.
///
/// # Panics
/// The second run differs from the first. The first message that differs is named.
pub fn assert_replays(run: impl Fn() -> Trace) {
    let (first, second) = (run(), run());
    if let Some((number, before, now)) = first.first_difference(&second) {
        panic!("message {number} differs: {before:?} in the first run, {now:?} in the second");
    }
}

/// Appends a network's trace to the file that `SLIPWAY_TRACES` names, for `cargo xtask sim --replay`.
pub(crate) fn report(seed: u64, trace: &Trace) {
    let Some(path) = env::var_os("SLIPWAY_TRACES") else { return };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread").to_owned();
    let line = format!("{test} seed {seed} messages {} trace {:016x}\n", trace.events.len(), trace.digest());
    let written =
        OpenOptions::new().create(true).append(true).open(&path).and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Says with which seed a test has failed.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed of this run: {}", self.0);
        }
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);
