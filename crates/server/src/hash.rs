//! Hash tables that are used several times in each call.
//!
//! [`Map`] is only for keys that this server makes, such as file handles and numbers, because a peer that could choose
//! the keys could make them collide. Data chosen by a peer goes into a key only as its [`digest`], or into an
//! [`entropy::HashMap`].

use std::hash::BuildHasher;

use entropy::{FastState, HashMap, RandomState};

/// A hash table whose keys are all made by this server.
pub(crate) type Map<K, V> = HashMap<K, V, FastState>;

/// Returns a hash of data chosen by a peer. It is SipHash with a random key of this process, so a peer cannot predict
/// it.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    RandomState::of_process().hash_one(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_depends_on_all_bytes_and_is_stable() {
        assert_eq!(digest(b"owner 1"), digest(b"owner 1"));
        let all: std::collections::HashSet<u64> = (0..1000u32).map(|n| digest(&n.to_be_bytes())).collect();
        assert_eq!(all.len(), 1000);
        assert_ne!(digest(b""), digest(&[0]));
    }
}
