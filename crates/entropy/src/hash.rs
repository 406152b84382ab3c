//! Hash tables, and the keys of their hash functions.

use std::{collections, fmt, hash::BuildHasher, sync::LazyLock};

use foldhash::{
    SharedSeed,
    fast::{FoldHasher, SeedableRandomState},
};
use siphasher::sip::SipHasher13;

/// The standard library's table, keyed by [`RandomState`]. In a simulation its order follows from the seed.
pub type HashMap<K, V, S = RandomState> = collections::HashMap<K, V, S>;

/// The standard library's set, keyed by [`RandomState`].
pub type HashSet<K, S = RandomState> = collections::HashSet<K, S>;

/// The standard library's hash function, SipHash 1-3, with a random key. It is for keys that a peer can choose.
#[derive(Clone)]
pub struct RandomState {
    key: (u64, u64),
}

impl RandomState {
    /// Creates a state with a new key.
    pub fn new() -> Self {
        Self { key: crate::random() }
    }

    /// Returns a state with the key of this process, which is the same in each call. Each simulation has its own key.
    pub fn of_process() -> Self {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        #[cfg(feature = "sim")]
        if let Some(key) = crate::simulation::with(|simulation| simulation.key) {
            return Self { key };
        }
        KEY.clone()
    }
}

impl Default for RandomState {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for RandomState {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.key.0, self.key.1)
    }
}

impl fmt::Debug for RandomState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RandomState")
    }
}

/// A fast hash function with a random seed. It is for keys that no peer can choose.
#[derive(Clone)]
pub struct FastState(SeedableRandomState);

impl Default for FastState {
    fn default() -> Self {
        #[cfg(feature = "sim")]
        if let Some(seed) = crate::simulation::with(|simulation| simulation.next()) {
            return Self(SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()));
        }
        Self(SeedableRandomState::with_seed(rand::random(), SharedSeed::global_random()))
    }
}

impl BuildHasher for FastState {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        self.0.build_hasher()
    }
}

impl fmt::Debug for FastState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FastState")
    }
}
