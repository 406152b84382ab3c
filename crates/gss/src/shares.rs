//! [`Shares`]: contexts grouped by who must lose one if there are too many. It is pure.
//!
//! Each operation costs the logarithm of the number of contexts, except [`Share::least_used`], which reads one share.

use std::{
    collections::{BTreeMap, BTreeSet, hash_map::Entry},
    hash::Hash,
    sync::Arc,
};

use entropy::HashMap;

use crate::table::ServerContext;

/// The limits of [`Shares`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareLimits {
    /// Maximum number of contexts.
    pub all: usize,
    /// Maximum number of contexts of one owner.
    pub each: usize,
    /// Maximum length of the tokens of all contexts, in bytes.
    pub tokens: usize,
}

/// The contexts of each owner.
pub(crate) struct Shares<K> {
    limits: ShareLimits,
    of: HashMap<K, Share>,
    /// The owners by size: bytes of tokens, number of contexts.
    ranked: BTreeSet<(usize, usize, K)>,
    len: usize,
    tokens: usize,
}

/// The contexts of one owner.
#[derive(Default)]
pub(crate) struct Share {
    /// The contexts by age.
    contexts: BTreeMap<u64, Arc<ServerContext>>,
    tokens: usize,
}

impl Share {
    /// Returns the context that was established first.
    pub fn oldest(&self) -> Option<&Arc<ServerContext>> {
        self.contexts.values().next()
    }

    /// Returns the context that was not used for the longest time.
    pub fn least_used(&self) -> Option<&Arc<ServerContext>> {
        self.contexts.values().min_by_key(|context| context.last_use())
    }

    fn rank<K>(&self, key: K) -> (usize, usize, K) {
        (self.tokens, self.contexts.len(), key)
    }
}

impl<K: Clone + Eq + Ord + Hash> Shares<K> {
    pub fn new(limits: ShareLimits) -> Self {
        Self { limits, of: HashMap::default(), ranked: BTreeSet::new(), len: 0, tokens: 0 }
    }

    /// Adds a context. The caller then removes contexts while [`excess`](Self::excess) returns a share.
    pub fn add(&mut self, key: &K, context: Arc<ServerContext>) {
        let share = self.of.entry(key.clone()).or_default();
        self.ranked.remove(&share.rank(key.clone()));
        self.len += 1;
        self.tokens += context.tokens;
        share.tokens += context.tokens;
        share.contexts.insert(context.serial, context);
        self.ranked.insert(share.rank(key.clone()));
    }

    /// Removes a context, if it is there.
    pub fn remove(&mut self, key: &K, context: &ServerContext) {
        let Entry::Occupied(mut entry) = self.of.entry(key.clone()) else { return };
        let share = entry.get_mut();
        let rank = share.rank(key.clone());
        if share.contexts.remove(&context.serial).is_none() {
            return;
        }
        self.ranked.remove(&rank);
        self.len -= 1;
        self.tokens -= context.tokens;
        share.tokens -= context.tokens;
        match share.contexts.is_empty() {
            true => drop(entry.remove()),
            false => drop(self.ranked.insert(share.rank(key.clone()))),
        }
    }

    /// Returns the share that must lose a context after one of `key` was added: its own if that is too large, the
    /// largest one if all together are.
    pub fn excess(&self, key: &K) -> Option<&Share> {
        let own = self.of.get(key);
        if own.is_some_and(|share| share.contexts.len() > self.limits.each) {
            return own;
        }
        if self.len <= self.limits.all && self.tokens <= self.limits.tokens {
            return None;
        }
        self.ranked.last().and_then(|(_, _, largest)| self.of.get(largest))
    }

    /// Returns the number of contexts.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        debug_assert_eq!(self.of.len(), self.ranked.len());
        self.len
    }
}
