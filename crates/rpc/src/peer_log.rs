//! [`PeerLog`]: limits log lines that peers cause.

use std::{
    hash::Hash,
    time::{Duration, Instant},
};

use entropy::HashSet;

/// Permits at most one line a minute for each peer, and a bounded number of lines for all peers.
#[derive(Debug)]
pub(crate) struct PeerLog<P> {
    since: Option<Instant>,
    written: HashSet<P>,
    suppressed: u64,
}

impl<P> Default for PeerLog<P> {
    fn default() -> Self {
        Self { since: None, written: HashSet::default(), suppressed: 0 }
    }
}

impl<P: Eq + Hash> PeerLog<P> {
    /// Decides about a line that `peer` causes. Returns the number of lines that were suppressed since the last one that was
    /// written, or `None` if this one must not be written.
    pub fn admit(&mut self, peer: P, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= PERIOD) {
            self.since = Some(now);
            self.written.clear();
        }
        if self.written.len() < PEERS_MAX && self.written.insert(peer) {
            return Some(std::mem::take(&mut self.suppressed));
        }
        self.suppressed += 1;
        None
    }
}

const PERIOD: Duration = Duration::from_secs(60);
/// Maximum lines of all peers in a period.
const PEERS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_per_peer_and_in_total() {
        let mut log = PeerLog::default();
        let now = Instant::now();
        assert_eq!([log.admit(1, now), log.admit(1, now)], [Some(0), None]);
        assert_eq!((0..1000).filter_map(|peer| log.admit(peer, now)).count(), PEERS_MAX - 1);
        let suppressed = 1000 - PEERS_MAX as u64;
        assert_eq!(log.admit(1, now + PERIOD), Some(suppressed), "the next line must report the suppressed ones");
    }
}
