//! The values that differ from run to run: random numbers, the keys of hash tables, the time of day, and numbers that a
//! process uses only once.
//!
//! Ordinarily they come from the operating system. Inside [`simulate`], which only tests have (feature `sim`), all of them
//! follow from one seed and from the clock of the tokio runtime, so a run can be repeated exactly. A simulation affects only
//! its own thread, like tokio's paused clock. Code below `src` of the crates that run in simulations takes these values from
//! no other source; `cargo xtask tidy` checks this.
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

/// Returns a random value that nobody can predict, so it can be a key. In a simulation it follows from the seed.
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

/// Returns a random value from this range.
///
/// # Panics
/// Panics if the range is empty.
pub fn random_range<T: SampleUniform>(range: impl SampleRange<T>) -> T {
    // The generator is separate, so that each call draws once from the seed's generator, however often `range` draws.
    #[cfg(feature = "sim")]
    if let Some(mut rng) = simulation::with(|simulation| simulation.fork()) {
        return rng.random_range(range);
    }
    rand::rng().random_range(range)
}

/// Returns the time of day. Each simulation begins at the same time.
pub fn system_time() -> SystemTime {
    #[cfg(feature = "sim")]
    if let Some(time) = simulation::with(|simulation| simulation.system_time()) {
        return time;
    }
    SystemTime::now()
}
