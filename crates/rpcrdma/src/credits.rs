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
        //= rfc8166-3.3.3-1
        Self { limit, granted: 1, outstanding: 0 }
    }

    /// What to ask for.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Takes a credit for one call, if there is one.
    pub(crate) fn take(&mut self) -> bool {
        //= rfc8166-3.3.1-1
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
        //= rfc8166-3.3.1-4
        self.granted = granted.clamp(1, self.limit);
    }
}

/// The answering side: how many calls the caller may have sent by now.
///
/// A grant can shrink while calls that an earlier one allowed are still on their way, so what counts is not the last
/// grant but the highest number of calls that any allowed: a reply that is the `n`th and grants `g` allows `n + g` calls.
/// As with TCP's window, this edge never moves back. A caller beyond it has broken RFC 8166 §3.3.1 for certain.
#[derive(Clone, Debug)]
pub(crate) struct Grants {
    /// Calls received.
    received: u64,
    /// Calls answered or forgotten.
    ended: u64,
    /// Calls allowed.
    edge: u64,
}

impl Grants {
    /// RFC 8166 §3.3.3: a caller may count on one credit before the first reply; `initial` are borne.
    pub(crate) fn new(initial: u32) -> Self {
        Self { received: 0, ended: 0, edge: initial.max(1).into() }
    }

    /// A call has come; whether it was allowed.
    #[must_use]
    pub(crate) fn receive(&mut self) -> bool {
        self.received += 1;
        self.received <= self.edge
    }

    /// A reply leaves, and grants this many.
    pub(crate) fn reply(&mut self, granted: u32) {
        self.ended += 1;
        self.edge = self.edge.max(self.ended + u64::from(granted));
    }

    /// A call ends without a reply. Its caller may know that by itself, and then takes its credit back.
    pub(crate) fn forget(&mut self) {
        self.ended += 1;
        self.edge += 1;
    }

    /// What to grant to a caller that asks for `requested`, when there is room for `room`. RFC 8166 §3.3.1: never zero.
    pub(crate) fn clamp(requested: u32, room: u32) -> u32 {
        //= rfc8166-3.3.1-2
        requested.clamp(1, room.max(1))
    }
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
        //= rfc8166-3.3.1-4
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
        assert_eq!(Grants::clamp(0, 64), 1);
        assert_eq!(Grants::clamp(10, 64), 10);
        assert_eq!(Grants::clamp(u32::MAX, 64), 64);
        assert_eq!(Grants::clamp(10, 0), 1);
    }

    #[test]
    fn calls_that_an_earlier_grant_allowed_are_borne_and_no_more() {
        let mut grants = Grants::new(1);
        assert!(grants.receive());
        grants.reply(10);
        assert!((0..10).all(|_| grants.receive()));
        // The caller may not have seen this yet; nor does it allow more.
        grants.reply(2);
        assert!(!grants.clone().receive());
        (0..7).for_each(|_| grants.reply(2));
        assert!(!grants.clone().receive(), "two are outstanding, as is allowed");
        grants.reply(2);
        assert!(grants.receive() && !grants.receive());
    }

    #[test]
    fn a_caller_may_take_the_credit_of_a_forgotten_call_back() {
        let mut grants = Grants::new(1);
        assert!(grants.receive());
        grants.forget();
        assert!(grants.receive() && !grants.receive());
    }
}
