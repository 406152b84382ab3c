//! [`CallQueue`]: limits the callbacks in progress to one client to [`CALLS_MAX`].
//!
//! Each callback is a task that waits for the client and polls for a free slot. A client can cause as many callbacks as
//! it holds delegations that others want. Without this limit, a client that never answers would occupy the server.
//! Recalls beyond the limit are queued; their deadlines do not move. Callbacks that are useless later are not queued
//! but dropped.

use std::collections::VecDeque;

use entropy::HashMap;
use nfs::v4::Clientid4;

/// The number of calls in progress and the queued items `W` of each client.
#[derive(Debug)]
pub(super) struct CallQueue<W>(HashMap<Clientid4, OfClient<W>>);

#[derive(Debug)]
struct OfClient<W> {
    /// At least 1.
    running: usize,
    waiting: VecDeque<W>,
}

impl<W> Default for CallQueue<W> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<W> CallQueue<W> {
    /// Begins a call if the limit permits it. The caller must [end](Self::end) a call for which this returns `true`.
    pub(super) fn begin(&mut self, client: Clientid4) -> bool {
        let of_client = self.0.entry(client).or_insert_with(|| OfClient { running: 0, waiting: VecDeque::new() });
        let begins = of_client.running < CALLS_MAX;
        of_client.running += usize::from(begins);
        begins
    }

    /// Begins a call and returns `item`, or queues `item` and returns `None`.
    pub(super) fn push(&mut self, client: Clientid4, item: W) -> Option<W> {
        if self.begin(client) {
            return Some(item);
        }
        self.0.get_mut(&client).expect("a call must be in progress").waiting.push_back(item);
        None
    }

    /// Ends a call and returns the queued item whose call begins in its place.
    ///
    /// # Panics
    /// Panics if no call to the client is in progress.
    pub(super) fn end(&mut self, client: Clientid4) -> Option<W> {
        let of_client = self.0.get_mut(&client).expect("a call must be in progress");
        let next = of_client.waiting.pop_front();
        if next.is_none() {
            of_client.running -= 1;
            if of_client.running == 0 {
                self.0.remove(&client);
            }
        }
        next
    }
}

/// The maximum number of calls to one client at a time. It equals the slots of four sessions.
const CALLS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Clientid4 = Clientid4(1);
    const OTHER: Clientid4 = Clientid4(2);

    #[test]
    fn silent_client_delays_only_its_own_calls() {
        let mut queue = CallQueue::default();
        let begun = (0..100_000).filter_map(|recall| queue.push(SILENT, recall)).collect::<Vec<_>>();
        assert_eq!(begun, (0..CALLS_MAX).collect::<Vec<_>>());
        assert!(!queue.begin(SILENT), "the limit also applies to calls that are not queued");
        assert_eq!(queue.push(OTHER, 7), Some(7));
        assert!(queue.begin(OTHER));
        assert_eq!((queue.end(OTHER), queue.end(OTHER)), (None, None));
        // The queued items begin in order, one for each call that ends.
        for next in CALLS_MAX..100_000 {
            assert_eq!(queue.end(SILENT), Some(next));
        }
        assert!((0..CALLS_MAX).all(|_| queue.end(SILENT).is_none()));
        assert!(queue.0.is_empty(), "clients without calls leave no entry");
    }
}
