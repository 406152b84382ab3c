//! [`Shares`]: divides a resource of the process fairly among its users.
//!
//! A user can hold as much as is still free. So a single user gets half of the total, two users get a third each, and
//! `n` users that take as much as they can leave one part of `n + 1` free for the next user. This needs no
//! configuration, and the number of users need not be known. An optional request succeeds only while the user holds
//! half as much as is free (a single user: up to a third of the total), so that some is left for essential requests.
//! (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998, with factors of one
//! and one half.)

use std::{hash::Hash, sync::Arc};

use entropy::HashMap;
use parking_lot::Mutex;

/// A resource of `total` units, and the units that each user holds.
#[derive(Debug)]
pub(crate) struct Shares<K> {
    total: u64,
    held: Mutex<Held<K>>,
}

/// The importance of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Without it, the user's connection is refused.
    Essential,
    /// Without it, the user continues more slowly.
    Optional,
}

#[derive(Debug)]
struct Held<K> {
    sum: u64,
    by: HashMap<K, u64>,
}

/// The units that one user holds. Dropping them releases them.
#[derive(Debug)]
pub(crate) struct Share<K: Hash + Eq + Copy> {
    of: Arc<Shares<K>>,
    user: K,
    units: u64,
}

impl<K: Hash + Eq + Copy> Shares<K> {
    pub(crate) fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, held: Mutex::new(Held { sum: 0, by: HashMap::default() }) })
    }

    /// Takes `units` for `user`. Returns `None` if they exceed its share.
    pub(crate) fn take(self: &Arc<Self>, user: K, units: u64, need: Need) -> Option<Share<K>> {
        let mut held = self.held.lock();
        let free = (self.total - held.sum).checked_sub(units)?;
        let mine = held.by.get(&user).copied().unwrap_or(0) + units;
        let most = if need == Need::Essential { free } else { free / 2 };
        if mine > most {
            return None;
        }
        held.sum += units;
        held.by.insert(user, mine);
        Some(Share { of: self.clone(), user, units })
    }

    /// Returns the units that all users hold.
    #[cfg(test)]
    pub(crate) fn sum(&self) -> u64 {
        self.held.lock().sum
    }
}

impl<K: Hash + Eq + Copy> Drop for Share<K> {
    fn drop(&mut self) {
        let mut held = self.of.held.lock();
        held.sum -= self.units;
        let mine = held.by.get_mut(&self.user).expect("the user of a share must have an entry");
        *mine -= self.units;
        if *mine == 0 {
            held.by.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &Arc<Shares<u32>>, user: u32) -> Vec<Share<u32>> {
        std::iter::from_fn(|| shares.take(user, 1, Need::Essential)).collect()
    }

    #[test]
    fn users_get_equal_shares_and_leave_one_for_the_next() {
        let shares = Shares::new(1200);
        let first = take_all(&shares, 1);
        assert_eq!(first.len(), 600);
        let second = take_all(&shares, 2);
        assert_eq!(second.len(), 300, "the second user must get half of the rest");
        assert!(shares.take(1, 1, Need::Essential).is_none());
        // After the first user has released the units beyond its share, both get a third.
        let first: Vec<_> = first.into_iter().take(400).collect();
        let more = take_all(&shares, 2);
        assert_eq!((first.len(), second.len() + more.len()), (400, 400));
        drop((first, second, more));
        assert_eq!(shares.sum(), 0);
        assert!(shares.held.lock().by.is_empty(), "users that hold nothing must be removed");
    }

    #[test]
    fn large_requests_do_not_overflow() {
        let shares = Shares::new(100);
        let take = |user, units| shares.take(user, units, Need::Essential);
        assert!([u64::MAX, 101, 51].iter().all(|&units| take(1, units).is_none()));
        let _all = take(1, 50).unwrap();
        assert!(take(1, 1).is_none() && take(2, 25).is_some());
    }

    #[test]
    fn optional_requests_leave_room_for_essential_ones() {
        let shares = Shares::new(1200);
        let optional: Vec<_> = std::iter::from_fn(|| shares.take(1, 1, Need::Optional)).collect();
        assert_eq!(optional.len(), 400);
        assert_eq!(take_all(&shares, 1).len(), 200);
    }
}
