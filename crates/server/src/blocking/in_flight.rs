//! [`InFlight`]: bounds the calls of an export whose operations complete later.
//!
//! Such a call occupies no thread while it waits, so the thread pools do not bound how many of these calls one back end
//! has. The share of a host is a dynamic threshold (Choudhury and Hahne, 1998): a host gets another permit while it
//! holds fewer permits than are free. One host alone gets half of the permits, *n* hosts get one part in *n* + 1 each,
//! and some permits always stay free for another host.
//!
//! A permit is taken before the first operation of a call, so that a refused call has had no effect.

use std::{collections::hash_map::Entry, sync::Arc};

use entropy::HashMap;
use parking_lot::Mutex;

use super::Source;

/// The permits of one export.
#[derive(Debug)]
pub(crate) struct InFlight {
    limit: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    sources: HashMap<Source, usize>,
}

/// The right of one call to have operations in flight. Dropping it returns the permit.
#[derive(Debug)]
pub(crate) struct Permit {
    of: Arc<InFlight>,
    source: Source,
}

impl InFlight {
    /// Creates the permits for at most `limit` calls.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, counts: Mutex::default() }
    }

    /// Returns a permit for a call of `source`, or `None` if `source` holds as many permits as are free.
    pub(crate) fn admit(self: &Arc<Self>, source: Source) -> Option<Permit> {
        let mut counts = self.counts.lock();
        let free = self.limit - counts.total;
        let held = counts.sources.entry(source).or_default();
        if *held >= free {
            if *held == 0 {
                counts.sources.remove(&source);
            }
            return None;
        }
        *held += 1;
        counts.total += 1;
        Some(Permit { of: self.clone(), source })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.of.counts.lock();
        counts.total -= 1;
        if let Entry::Occupied(mut held) = counts.sources.entry(self.source) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Source = Source::User(1);
    const B: Source = Source::User(2);

    fn all(of: &Arc<InFlight>, source: Source) -> Vec<Permit> {
        std::iter::from_fn(|| of.admit(source)).collect()
    }

    #[test]
    fn one_host_leaves_permits_for_others_and_drop_returns_them() {
        let of = Arc::new(InFlight::new(100));
        let a = all(&of, A);
        assert_eq!(a.len(), 50, "one host alone must get half");
        let b = all(&of, B);
        assert_eq!(b.len(), 25, "a second host must get half of the rest");
        assert!(of.admit(A).is_none());
        drop(a);
        assert_eq!(of.counts.lock().total, 25);
        assert_eq!(all(&of, A).len(), 38);
        drop(b);
        assert_eq!(of.counts.lock().total, 0);
        assert!(of.counts.lock().sources.is_empty(), "hosts without permits must be removed");
    }

    #[test]
    fn refused_host_leaves_no_entry() {
        let of = Arc::new(InFlight::new(0));
        assert!(of.admit(A).is_none());
        assert!(of.counts.lock().sources.is_empty());
    }
}
