//! Everything that a program takes from its environment and that differs from run to run: random numbers, the keys of hash
//! tables, the time of day, and numbers that a process uses only once.
//!
//! Ordinarily they come from the operating system. Inside [`simulate`], which only tests have (feature `sim`), all of them
//! follow from one seed and from the clock of the tokio runtime, so that a run can be repeated exactly. A simulation is a property
//! of its thread, as tokio's paused clock is; other threads are not affected. Code below `src` of the crates that run in
//! simulations uses this crate and nothing else for these purposes; `cargo xtask tidy` checks it.
//!
//! [`simulate`]: crate::simulate

mod hash;
mod sequence;
#[cfg(feature = "sim")]
mod simulation;

use std::time::SystemTime;

use rand::{
    Rng,
    distr::{
        Distribution, StandardUniform,
        uniform::{SampleRange, SampleUniform},
    },
};

pub use hash::{FastState, HashMap, HashSet, RandomState};
pub use sequence::Sequence;
#[cfg(feature = "sim")]
pub use simulation::{is_simulated, simulate};

/// A random value that nobody can predict; fit for keys.
pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    #[cfg(feature = "sim")]
    if let Some(value) = simulation::with(|simulation| simulation.rng.random()) {
        return value;
    }
    rand::random()
}

/// A random value of this range.
///
/// # Panics
/// The range is empty.
pub fn random_range<T: SampleUniform>(range: impl SampleRange<T>) -> T {
    // A generator of its own, so that one draw of the seed is enough whatever the range takes.
    #[cfg(feature = "sim")]
    if let Some(mut rng) = simulation::with(|simulation| simulation.fork()) {
        return rng.random_range(range);
    }
    rand::rng().random_range(range)
}

/// The time of day. In a simulation it begins at the same moment each time.
pub fn system_time() -> SystemTime {
    #[cfg(feature = "sim")]
    if let Some(time) = simulation::with(|simulation| simulation.system_time()) {
        return time;
    }
    SystemTime::now()
}
