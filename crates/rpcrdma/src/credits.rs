//! Flow control: the number of calls that can be outstanding.
//!
//! Read RFC 8166 §3.3.1–§3.3.3, and RFC 8167 §4.1: each direction of a connection has its own credits. A call takes a
//! credit, and its reply returns it. The responder posts a receive for each credit that it grants.

/// The requester's credits: the number of calls that can still be sent.
#[derive(Clone, Debug)]
pub(crate) struct Credits {
    /// The credits to request: the number of replies for which this side has receives.
    limit: u32,
    granted: u32,
    outstanding: u32,
}

impl Credits {
    pub(crate) fn new(limit: u32) -> Self {
        assert!(limit > 0, "a requester needs at least one credit");
        // RFC 8166 §3.3.3: before the first reply announces the grant, it is one.
        //= rfc8166-3.3.3-1
        Self { limit, granted: 1, outstanding: 0 }
    }

    /// Returns the number of credits to request.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Takes a credit for one call. Returns `false` if there is none.
    pub(crate) fn take(&mut self) -> bool {
        //= rfc8166-3.3.1-1
        let free = self.outstanding < self.granted;
        self.outstanding += u32::from(free);
        free
    }

    /// Returns the number of calls that can be sent now.
    pub(crate) fn free(&self) -> u32 {
        self.granted.saturating_sub(self.outstanding)
    }

    /// Returns the credit of a call that was answered, or that was not sent after all.
    pub(crate) fn release(&mut self) {
        self.outstanding = self.outstanding.checked_sub(1).expect("a credit must be returned once");
    }

    /// Applies the grant of a reply. A grant of zero would stop this side forever and counts as one. A grant above the
    /// number of receives would overrun the receive queue and is reduced.
    pub(crate) fn grant(&mut self, granted: u32) {
        //= rfc8166-3.3.1-4
        self.granted = granted.clamp(1, self.limit);
    }
}

/// The responder's credits: the number of calls that the caller can have sent by now.
///
/// A grant can shrink while calls that an earlier grant allowed are still in transit. So the limit is not the last
/// grant but the highest number of calls that any grant allowed: the `n`th reply with a grant of `g` allows `n + g`
/// calls. Like the edge of TCP's window, this limit never decreases. A caller that exceeds it has certainly violated
/// RFC 8166 §3.3.1.
#[derive(Clone, Debug)]
pub(crate) struct Grants {
    /// The number of calls received.
    received: u64,
    /// The number of calls answered or forgotten.
    ended: u64,
    /// The number of calls allowed.
    edge: u64,
}

impl Grants {
    /// Creates the state before the first call. RFC 8166 §3.3.3 guarantees one credit before the first reply; this side
    /// accepts `initial` calls.
    pub(crate) fn new(initial: u32) -> Self {
        Self { received: 0, ended: 0, edge: initial.max(1).into() }
    }

    /// Counts an arriving call. Returns `true` if it was allowed.
    #[must_use]
    pub(crate) fn receive(&mut self) -> bool {
        self.received += 1;
        self.received <= self.edge
    }

    /// Counts a reply that grants `granted` credits.
    pub(crate) fn reply(&mut self, granted: u32) {
        self.ended += 1;
        self.edge = self.edge.max(self.ended + u64::from(granted));
    }

    /// Counts a call that ends without a reply. Its caller can detect that and then reuses the credit.
    pub(crate) fn forget(&mut self) {
        self.ended += 1;
        self.edge += 1;
    }

    /// Returns the number of credits to grant to a caller that requests `requested`, if `room` are available. RFC 8166
    /// §3.3.1: never zero.
    pub(crate) fn clamp(requested: u32, room: u32) -> u32 {
        //= rfc8166-3.3.1-2
        requested.clamp(1, room.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_one_before_first_grant_then_limited_by_grant_and_receives() {
        let mut credits = Credits::new(4);
        assert!(credits.take() && !credits.take());
        credits.grant(100);
        credits.release();
        //= rfc8166-3.3.1-4
        assert_eq!((0..10).filter(|_| credits.take()).count(), 4);
    }

    #[test]
    fn grant_of_zero_counts_as_one() {
        let mut credits = Credits::new(8);
        credits.grant(0);
        assert!(credits.take() && !credits.take());
    }

    #[test]
    fn grant_below_outstanding_calls_waits_for_replies() {
        let mut credits = Credits::new(8);
        credits.grant(3);
        assert_eq!((0..10).filter(|_| credits.take()).count(), 3);
        credits.grant(2);
        credits.release();
        assert!(!credits.take());
        credits.release();
        assert!(credits.take());
    }

    #[test]
    fn requested_credits_are_clamped_and_never_zero() {
        assert_eq!(Grants::clamp(0, 64), 1);
        assert_eq!(Grants::clamp(10, 64), 10);
        assert_eq!(Grants::clamp(u32::MAX, 64), 64);
        assert_eq!(Grants::clamp(10, 0), 1);
    }

    #[test]
    fn calls_allowed_by_an_earlier_grant_are_accepted() {
        let mut grants = Grants::new(1);
        assert!(grants.receive());
        grants.reply(10);
        assert!((0..10).all(|_| grants.receive()));
        // The caller can have sent before it saw this grant. The grant does not allow more calls.
        grants.reply(2);
        assert!(!grants.clone().receive());
        (0..7).for_each(|_| grants.reply(2));
        assert!(!grants.clone().receive(), "the two allowed calls are outstanding");
        grants.reply(2);
        assert!(grants.receive() && !grants.receive());
    }

    #[test]
    fn caller_can_reuse_the_credit_of_a_forgotten_call() {
        let mut grants = Grants::new(1);
        assert!(grants.receive());
        grants.forget();
        assert!(grants.receive());
        grants.reply(1);
        assert!(grants.receive() && !grants.receive());
    }
}
