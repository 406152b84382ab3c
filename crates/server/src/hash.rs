//! Hash tables that are asked several times in each call.
//!
//! [`Map`] is for keys that this server makes, file handles and numbers: whoever could choose them could have them collide. What
//! a peer chooses goes into a key by its [`digest`] alone, or into [`entropy::HashMap`].

use std::hash::BuildHasher;

use entropy::{FastState, HashMap, RandomState};

/// A table of which all keys are this server's.
pub(crate) type Map<K, V> = HashMap<K, V, FastState>;

/// A number for what a peer has chosen, who cannot know which: by SipHash, with a key of this process.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    RandomState::of_process().hash_one(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_of_all_bytes_and_the_same_for_the_same() {
        assert_eq!(digest(b"owner 1"), digest(b"owner 1"));
        let all: std::collections::HashSet<u64> = (0..1000u32).map(|n| digest(&n.to_be_bytes())).collect();
        assert_eq!(all.len(), 1000);
        assert_ne!(digest(b""), digest(&[0]));
    }
}
