//! Simulations: the seed of a thread.

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
    /// The hash key of its process.
    pub(crate) key: (u64, u64),
    /// When the time of day was asked for first.
    began: Option<Instant>,
    /// The last number of each sequence, by its address.
    sequences: BTreeMap<usize, u64>,
}

/// Runs `work` with all randomness of this thread from `seed`. The time of day follows tokio's clock, which is to be paused.
///
/// # Panics
/// This thread is in a simulation already.
pub fn simulate<T>(seed: u64, work: impl FnOnce() -> T) -> T {
    struct Ends;
    impl Drop for Ends {
        fn drop(&mut self) {
            CURRENT.set(None);
        }
    }
    let mut rng = StdRng::seed_from_u64(seed);
    let simulation = Simulation { key: rng.random(), rng, began: None, sequences: BTreeMap::new() };
    let former = CURRENT.replace(Some(simulation));
    let _ends = Ends;
    assert!(former.is_none(), "a simulation in a simulation");
    work()
}

/// Whether this thread is in a simulation.
pub fn is_simulated() -> bool {
    with(|_| ()).is_some()
}

/// What `ask` says of this thread's simulation, if it is in one.
pub(crate) fn with<T>(ask: impl FnOnce(&mut Simulation) -> T) -> Option<T> {
    // A thread that ends is in none.
    CURRENT.try_with(|current| current.borrow_mut().as_mut().map(ask)).ok().flatten()
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

/// When the time of day of each simulation begins, since 1970.
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
    fn everything_follows_from_the_seed() {
        let first = simulate(1, draws);
        assert_eq!(simulate(1, draws), first);
        assert_ne!(simulate(2, draws), first);
    }

    #[test]
    fn outside_of_a_simulation_nothing_comes_twice() {
        let draw = random::<u128>;
        assert_ne!(draw(), draw());
        assert!(simulate(1, is_simulated));
        assert_ne!(simulate(1, draw), draw(), "a simulation has an end");
        assert!(!is_simulated());
    }

    #[test]
    fn the_time_of_day_follows_the_paused_clock() {
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
