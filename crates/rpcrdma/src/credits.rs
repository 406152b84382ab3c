//! Flow control: how many calls may be outstanding.
//!
//! Read RFC 8166 §3.3.1–§3.3.3, and RFC 8167 §4.1: each direction of a connection has credits of its own.
//! A call takes a credit, its reply gives it back. The responder posts a receive for every credit it grants.

/// The calling side: how many more calls may be sent.
#[derive(Clone, Debug)]
pub(crate) struct Credits {
    /// What we ask for: the replies that we have receives for.
    limit: u32,
    granted: u32,
    outstanding: u32,
}

impl Credits {
    pub(crate) fn new(limit: u32) -> Self {
        assert!(limit > 0, "a caller needs at least one credit");
        // RFC 8166 §3.3.3: until the first reply has told the grant, it is one.
        Self { limit, granted: 1, outstanding: 0 }
    }

    /// What to ask for.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Takes a credit for one call, if there is one.
    pub(crate) fn take(&mut self) -> bool {
        let free = self.outstanding < self.granted;
        self.outstanding += u32::from(free);
        free
    }

    /// A call has been answered, or was not sent after all.
    pub(crate) fn give_back(&mut self) {
        self.outstanding = self.outstanding.checked_sub(1).expect("no more credits come back than were taken");
    }

    /// A reply grants this many. Zero would stop us for ever and is taken as one; more than we have receives
    /// for would overrun our receive queue.
    pub(crate) fn grant(&mut self, granted: u32) {
        self.granted = granted.clamp(1, self.limit);
    }
}

/// The answering side: what to grant to a caller that asks for `requested`, when there are receives for `posted`.
pub(crate) fn grant(requested: u32, posted: u32) -> u32 {
    requested.clamp(1, posted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_until_the_first_grant_then_as_many_as_granted_and_received_for() {
        let mut credits = Credits::new(4);
        assert!(credits.take() && !credits.take());
        credits.grant(100);
        credits.give_back();
        assert_eq!((0..10).filter(|_| credits.take()).count(), 4);
    }

    #[test]
    fn a_grant_of_zero_counts_as_one() {
        let mut credits = Credits::new(8);
        credits.grant(0);
        assert!(credits.take() && !credits.take());
    }

    #[test]
    fn a_grant_that_shrinks_below_what_is_outstanding_waits_for_replies() {
        let mut credits = Credits::new(8);
        credits.grant(3);
        assert_eq!((0..10).filter(|_| credits.take()).count(), 3);
        credits.grant(2);
        credits.give_back();
        assert!(!credits.take());
        credits.give_back();
        assert!(credits.take());
    }

    #[test]
    fn what_is_asked_for_is_clamped_and_never_zero() {
        assert_eq!(grant(0, 64), 1);
        assert_eq!(grant(10, 64), 10);
        assert_eq!(grant(u32::MAX, 64), 64);
    }
}
