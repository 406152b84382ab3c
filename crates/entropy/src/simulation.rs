//! Simulations: a thread whose random values follow from a seed.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use crate::Sequence;

thread_local! {
    static CURRENT: RefCell<Option<Simulation>> = const { RefCell::new(None) };
}

pub(crate) struct Simulation {
    pub(crate) rng: StdRng,
    /// The key that [`RandomState::of_process`](crate::RandomState::of_process) returns.
    pub(crate) key: (u64, u64),
    /// The time of the first request for the time of day.
    began: Option<Instant>,
    /// The last number of each sequence, by its address.
    sequences: BTreeMap<usize, u64>,
}

/// Runs `work` in a simulation: all random values of this thread follow from `seed`. The time of day follows tokio's clock,
/// which the caller must have paused.
///
/// # Panics
/// Panics if this thread is in a simulation already.
pub fn simulate<T>(seed: u64, work: impl FnOnce() -> T) -> T {
    struct EndOnDrop;
    impl Drop for EndOnDrop {
        fn drop(&mut self) {
            CURRENT.set(None);
        }
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let simulation = Simulation { key: rng.random(), rng, began: None, sequences: BTreeMap::new() };
    let former = CURRENT.replace(Some(simulation));
    let _end = EndOnDrop;
    assert!(former.is_none(), "simulations must not be nested");
    work()
}

/// Returns `true` if this thread is in a simulation.
pub fn is_simulated() -> bool {
    with(|_| ()).is_some()
}

/// Calls `read` with the simulation of this thread and returns its result, or `None` if the thread is in no simulation.
pub(crate) fn with<T>(read: impl FnOnce(&mut Simulation) -> T) -> Option<T> {
    // A thread whose locals have been destroyed is in no simulation.
    CURRENT.try_with(|current| current.borrow_mut().as_mut().map(read)).ok().flatten()
}

impl Simulation {
    pub(crate) fn next(&mut self) -> u64 {
        self.rng.random()
    }

    pub(crate) fn fork(&mut self) -> StdRng {
        StdRng::seed_from_u64(self.next())
    }

    pub(crate) fn count(&mut self, sequence: &'static Sequence) -> u64 {
        let last = self.sequences.entry(std::ptr::from_ref(sequence).addr()).or_default();
        *last += 1;
        *last
    }

    pub(crate) fn system_time(&mut self) -> SystemTime {
        let now = Instant::now();
        UNIX_EPOCH + BEGINS + (now - *self.began.get_or_insert(now))
    }
}

/// The time of day at which each simulation begins, since 1970.
const BEGINS: Duration = Duration::from_secs(1_600_000_000);

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;
    use crate::{FastState, HashMap, RandomState, random, random_range, system_time};

    fn draws() -> impl Eq + std::fmt::Debug {
        static NUMBERS: Sequence = Sequence::new();
        let order = |map: HashMap<u32, ()>| map.into_keys().collect::<Vec<_>>();
        (
            (random::<[u8; 16]>(), random_range(0..1_000_000u32), system_time()),
            (FastState::default().hash_one(1), RandomState::of_process().hash_one(1), NUMBERS.next(), NUMBERS.next()),
            order((0..100).map(|number| (number, ())).collect()),
        )
    }

    #[test]
    fn all_values_follow_from_the_seed() {
        let first = simulate(1, draws);
        assert_eq!(simulate(1, draws), first);
        assert_ne!(simulate(2, draws), first);
    }

    #[test]
    fn values_outside_of_a_simulation_do_not_repeat() {
        let draw = random::<u128>;
        assert_ne!(draw(), draw());
        assert!(simulate(1, is_simulated));
        assert_ne!(simulate(1, draw), draw(), "the seed must not affect values after the simulation");
        assert!(!is_simulated());
    }

    #[test]
    fn time_of_day_follows_the_paused_clock() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        simulate(1, || {
            runtime.block_on(async {
                let before = system_time();
                tokio::time::sleep(Duration::from_secs(3600)).await;
                assert_eq!(system_time().duration_since(before).unwrap(), Duration::from_secs(3600));
            });
        });
    }
}
