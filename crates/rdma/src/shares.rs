//! [`Shares`]: a resource of the process that its users share, each getting no more than it leaves to others.
//!
//! A user may hold as much as is still free. So one user alone gets half of the total, two get a third each, and `n` users
//! that take all they can leave one part of `n + 1` free: whoever comes next finds something. No configuration is needed for
//! that, nor the number of users in advance. What a user can do without is granted only while it holds half as much as is
//! free (alone: up to a third of the total), so that something is left for what it cannot do without. (Choudhury and Hahne,
//! "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998, with factors of one and one half.)

use std::{hash::Hash, sync::Arc};

use entropy::HashMap;
use parking_lot::Mutex;

/// A resource of `total` units, and who has how many.
#[derive(Debug)]
pub(crate) struct Shares<K> {
    total: u64,
    held: Mutex<Held<K>>,
}

/// How much a user depends on what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// It is refused a connection without it.
    Essential,
    /// It goes on without it, slower.
    Optional,
}

#[derive(Debug)]
struct Held<K> {
    sum: u64,
    by: HashMap<K, u64>,
}

/// Units that one user holds, given back on drop.
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

    /// Takes `units` for `user`; `None` if it has its part.
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

    /// Units that all users hold.
    #[cfg(test)]
    pub(crate) fn sum(&self) -> u64 {
        self.held.lock().sum
    }
}

impl<K: Hash + Eq + Copy> Drop for Share<K> {
    fn drop(&mut self) {
        let mut held = self.of.held.lock();
        held.sum -= self.units;
        let mine = held.by.get_mut(&self.user).expect("it holds this share");
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
    fn each_user_gets_an_equal_part_and_leaves_another() {
        let shares = Shares::new(1200);
        let first = take_all(&shares, 1);
        assert_eq!(first.len(), 600);
        let second = take_all(&shares, 2);
        assert_eq!(second.len(), 300, "half of what was left");
        assert!(shares.take(1, 1, Need::Essential).is_none());
        // When the first gives back what is beyond its part, both come to a third.
        let first: Vec<_> = first.into_iter().take(400).collect();
        let more = take_all(&shares, 2);
        assert_eq!((first.len(), second.len() + more.len()), (400, 400));
        drop((first, second, more));
        assert_eq!(shares.sum(), 0);
        assert!(shares.held.lock().by.is_empty(), "users that hold nothing are forgotten");
    }

    #[test]
    fn no_amount_overflows() {
        let shares = Shares::new(100);
        let take = |user, units| shares.take(user, units, Need::Essential);
        assert!([u64::MAX, 101, 51].iter().all(|&units| take(1, units).is_none()));
        let _all = take(1, 50).unwrap();
        assert!(take(1, 1).is_none() && take(2, 25).is_some());
    }

    #[test]
    fn what_is_optional_leaves_room_for_what_is_essential() {
        let shares = Shares::new(1200);
        let optional: Vec<_> = std::iter::from_fn(|| shares.take(1, 1, Need::Optional)).collect();
        assert_eq!(optional.len(), 400);
        assert_eq!(take_all(&shares, 1).len(), 200);
    }
}
