//! [`Turns`]: no more than [`CALLS_MAX`] callbacks are being made to one client at a time.
//!
//! Each is a task that waits for the client, and looks again and again for a slot to call it by. What a client causes, by what
//! it has had delegated and others want, is bounded only by what it may hold; so one that never answers would have the server
//! do little else. Recalls beyond the bound wait for their turn, and have their deadline all the same. What is of no use later
//! is left out.

use std::collections::VecDeque;

use entropy::HashMap;
use nfs::v4::Clientid4;

/// Who is being called, and what waits: `W`.
#[derive(Debug)]
pub(super) struct Turns<W>(HashMap<Clientid4, OfClient<W>>);

#[derive(Debug)]
struct OfClient<W> {
    /// At least one.
    running: usize,
    waiting: VecDeque<W>,
}

impl<W> Default for Turns<W> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<W> Turns<W> {
    /// Whether another call can begin now, which is then to be [ended](Self::end).
    pub(super) fn begin(&mut self, client: Clientid4) -> bool {
        let of_client = self.0.entry(client).or_insert_with(|| OfClient { running: 0, waiting: VecDeque::new() });
        let begins = of_client.running < CALLS_MAX;
        of_client.running += usize::from(begins);
        begins
    }

    /// What can begin now, as [`begin`](Self::begin) says; else it waits.
    pub(super) fn queue(&mut self, client: Clientid4, what: W) -> Option<W> {
        if self.begin(client) {
            return Some(what);
        }
        self.0.get_mut(&client).expect("it is being called").waiting.push_back(what);
        None
    }

    /// A call has ended: what begins in its place.
    ///
    /// # Panics
    /// If the client is not being called.
    pub(super) fn end(&mut self, client: Clientid4) -> Option<W> {
        let of_client = self.0.get_mut(&client).expect("it is being called");
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

/// Most calls of one client at a time: as many as fill the slots of four sessions.
const CALLS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const SILENT: Clientid4 = Clientid4(1);
    const OTHER: Clientid4 = Clientid4(2);

    #[test]
    fn who_never_answers_waits_for_itself_alone() {
        let mut turns = Turns::default();
        let begun = (0..100_000).filter_map(|recall| turns.queue(SILENT, recall)).collect::<Vec<_>>();
        assert_eq!(begun, (0..CALLS_MAX).collect::<Vec<_>>());
        assert!(!turns.begin(SILENT), "nor is it told anything else");
        assert_eq!(turns.queue(OTHER, 7), Some(7));
        assert!(turns.begin(OTHER));
        assert_eq!((turns.end(OTHER), turns.end(OTHER)), (None, None));
        // What waits comes in its order, one for each that has ended.
        for next in CALLS_MAX..100_000 {
            assert_eq!(turns.end(SILENT), Some(next));
        }
        assert!((0..CALLS_MAX).all(|_| turns.end(SILENT).is_none()));
        assert!(turns.0.is_empty(), "nothing is left of who is not called");
    }
}
