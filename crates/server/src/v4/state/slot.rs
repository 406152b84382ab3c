//! [`SlotTable`]: executes each request of a session's channel exactly once.
//!
//! Read RFC 8881 §2.10.6.1 (slots and the reply cache), §2.10.6.2 (retries) and §18.46 (SEQUENCE). The table does not
//! look into replies. The caller that executes a request hands its reply to [`SlotTable::finish`]. The table owns the
//! reply until the next request of the slot shows that the client has received it. An error leaves the slot unchanged.

use nfs::v4::{Nfsstat4, SequenceArgs, Sequenceid4, Slotid4};

use super::ids::Principal;

/// Distinguishes a retry from a different request with the same slot and sequence ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The principal that sent the request, after squashing.
    pub principal: Principal,
    /// A checksum of everything after the RPC header.
    pub checksum: u64,
}

/// The permission to execute a request. Each ticket must be passed to [`SlotTable::finish`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot leaks if its request is not finished"]
pub struct Ticket {
    slot: Slotid4,
    sequence: Sequenceid4,
    cache: bool,
}

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Begun<R> {
    /// The request is new and must be executed.
    Execute(Ticket),
    /// The request was executed, with this reply.
    Replay(R),
    /// The request was executed, and its reply was not cached: SEQUENCE succeeds again, and the next operation fails
    /// with RETRY_UNCACHED_REP (RFC 8881 §2.10.6.1.3).
    Uncached,
}

/// The slots of a channel, on the side that executes requests.
#[derive(Debug)]
pub struct SlotTable<R> {
    /// The slots from 0 to the highest that was used.
    slots: Vec<Slot<R>>,
    /// The highest slot in which a new request is accepted.
    enforced: u32,
    /// The highest slot that the client is asked to use.
    target: u32,
    /// The highest slot that the session can have.
    limit: u32,
}

#[derive(Debug)]
struct Slot<R> {
    /// The sequence ID of the last request.
    sequence: Sequenceid4,
    last: Last<R>,
    /// The target in the last reply.
    sent_target: u32,
    /// The slot was retired and granted again: the client can continue with its sequence or begin again at 1.
    renewed: bool,
}

#[derive(Debug)]
enum Last<R> {
    Never,
    Executing(Fingerprint),
    Done(Fingerprint, Option<R>),
}

impl<R: Clone> SlotTable<R> {
    /// Creates a table of `slots` slots.
    ///
    /// # Panics
    /// Panics if `slots` is 0.
    pub fn new(slots: u32) -> Self {
        let limit = slots.checked_sub(1).expect("a session must have at least one slot");
        Self { slots: Vec::new(), enforced: limit, target: limit, limit }
    }

    /// Returns the highest slot in which a new request is accepted.
    pub fn enforced_highest(&self) -> Slotid4 {
        Slotid4(self.enforced)
    }

    /// Returns the highest slot that the client is asked to use.
    pub fn target_highest(&self) -> Slotid4 {
        Slotid4(self.target)
    }

    /// Sets the highest slot that the client should use, at most the number with which the session was created. A
    /// higher target takes effect at once. A lower target asks the client to use fewer slots; the others are retired
    /// when a request shows that the client has seen the new target.
    pub fn set_target(&mut self, highest: Slotid4) {
        self.target = highest.0.min(self.limit);
        self.enforced = self.enforced.max(self.target);
    }

    /// Returns the number of slots that were used and are not retired.
    pub fn in_use(&self) -> usize {
        self.slots.len().min(self.enforced as usize + 1)
    }

    /// Returns `true` if requests are being executed.
    pub fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot.last, Last::Executing(_)))
    }

    /// Returns `true` unless the client has shown that it has received the reply to a request: by a later request in the
    /// slot, or by complying with a lower target (§2.10.6.3). Also returns `true` while the request is executed.
    pub fn may_be_outstanding(&self, slot: Slotid4, sequence: Sequenceid4) -> bool {
        let slot = self.slots.get(slot.0 as usize);
        slot.is_some_and(|slot| slot.sequence == sequence && !matches!(slot.last, Last::Never))
    }

    /// Decides whether to execute or replay a request.
    ///
    /// # Errors
    /// - BADSLOT, BAD_HIGH_SLOT: the client does not have the slot.
    /// - SEQ_MISORDERED: the sequence ID is neither that of the slot's last request nor that of the next.
    /// - SEQ_FALSE_RETRY: the slot's last sequence ID, with a different request or from a different principal.
    /// - DELAY: the slot's last request is still being executed.
    pub fn begin(&mut self, args: &SequenceArgs, fingerprint: Fingerprint) -> Result<Begun<R>, Nfsstat4> {
        let Slotid4(id) = args.slotid;
        if id > self.limit {
            return Err(Nfsstat4::BadSlot);
        }
        // A client can report too low a number. The slot of its own request is a lower bound.
        let highest = args.highest_slotid.0.max(id);
        if let Some(slot) = self.slots.get(id as usize)
            && slot.sequence == args.sequenceid
            && !matches!(slot.last, Last::Never)
        {
            //= rfc8881-2.10.6-1 rfc8881-2.10.6-2 rfc8881-2.10.6.4-1 rfc8881-2.10.6.1.1-1 rfc8881-2.10.6.1.1-2
            return slot.retry(&fingerprint);
        }
        //= rfc8881-2.10.6.1-4 rfc8881-2.10.6.1.3-1 rfc8881-2.10.6.1-5 rfc8881-2.10.6.1-7
        if !self.is_next(id, args.sequenceid) {
            //= rfc8881-18.36.3-22 rfc8881-18.46.3-11 rfc8881-2.10.6.1-6 rfc8881-2.10.6.1.2-1 rfc8881-2.10.6.1.2-2
            return Err(Nfsstat4::SeqMisordered);
        }
        // A retry in a slot that is being retired is answered, but no new request begins there (§2.10.6.1).
        //= rfc8881-2.10.6.1-10
        if id > self.enforced {
            return Err(Nfsstat4::BadSlot);
        }
        if highest > self.enforced {
            return Err(Nfsstat4::BadHighSlot);
        }
        self.retire(id, highest);
        while self.slots.len() <= id as usize {
            self.slots.push(Slot {
                sequence: Sequenceid4(0),
                last: Last::Never,
                sent_target: self.limit,
                renewed: false,
            });
        }
        let sent_target = self.target;
        let slot = &mut self.slots[id as usize];
        slot.sequence = args.sequenceid;
        slot.last = Last::Executing(fingerprint);
        slot.sent_target = sent_target;
        slot.renewed = false;
        //= rfc8881-18.46.3-7
        Ok(Begun::Execute(Ticket { slot: args.slotid, sequence: args.sequenceid, cache: args.cachethis }))
    }

    /// Ends a request. The reply is cached if the client asked for that or if it is `cheap`: SEQUENCE alone, or an
    /// error before anything was executed.
    ///
    /// # Panics
    /// Panics if the ticket belongs to another table.
    pub fn finish(&mut self, ticket: Ticket, reply: R, cheap: bool) {
        let slot = &mut self.slots[ticket.slot.0 as usize];
        assert_eq!(slot.sequence, ticket.sequence, "a slot must have at most one request");
        let Last::Executing(fingerprint) = std::mem::replace(&mut slot.last, Last::Never) else {
            panic!("a ticket must be used only once");
        };
        slot.last = Last::Done(fingerprint, (ticket.cache || cheap).then_some(reply));
    }

    /// Returns `true` if `sequence` is the sequence ID of the next request in slot `id`.
    fn is_next(&self, id: u32, sequence: Sequenceid4) -> bool {
        let Some(slot) = self.slots.get(id as usize) else { return sequence == Sequenceid4(1) };
        let next = Sequenceid4(slot.sequence.0.wrapping_add(1));
        // A slot that was retired and granted again begins at 1, like any new slot (§2.10.6.1). Linux clients do that.
        // Others continue with the old sequence, which is correct if they never noticed.
        !matches!(slot.last, Last::Executing(_)) && (sequence == next || slot.renewed && sequence == Sequenceid4(1))
    }

    /// Retires the slots above the target if the client has seen the target. Its new request in slot `id` shows that it
    /// has received the slot's last reply, and `highest` shows that it uses no slot above the target (§2.10.6.1).
    fn retire(&mut self, id: u32, highest: u32) {
        let target_seen = self.slots.get(id as usize).is_some_and(|slot| slot.sent_target <= self.target);
        if self.target == self.enforced || !target_seen || highest > self.target {
            return;
        }
        let kept = self.target as usize + 1;
        if self.slots.iter().skip(kept).any(|slot| matches!(slot.last, Last::Executing(_))) {
            return;
        }
        for slot in self.slots.iter_mut().skip(kept) {
            slot.last = Last::Never;
            slot.renewed = true;
        }
        self.enforced = self.target;
    }
}

impl<R: Clone> Slot<R> {
    fn retry(&self, fingerprint: &Fingerprint) -> Result<Begun<R>, Nfsstat4> {
        match &self.last {
            Last::Never => Err(Nfsstat4::SeqMisordered),
            //= rfc8881-2.10.6.1.3.1-1 rfc8881-2.10.6.1.3.1-2
            Last::Executing(of) | Last::Done(of, _) if of != fingerprint => Err(Nfsstat4::SeqFalseRetry),
            Last::Executing(_) => Err(Nfsstat4::Delay),
            Last::Done(_, Some(reply)) => Ok(Begun::Replay(reply.clone())),
            Last::Done(_, None) => Ok(Begun::Uncached),
        }
    }
}

/// The maximum bytes of a reply that is cached although the client did not ask for it.
pub const REPLY_SMALL: usize = 512;

#[cfg(test)]
mod tests {
    use nfs::v4::Sessionid4;
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    struct Channel {
        table: SlotTable<u32>,
        executed: u32,
    }

    /// A request : slot, sequence ID, and the highest slot in use.
    type Request = (u32, u32, u32);

    impl Channel {
        fn new(slots: u32) -> Self {
            Self { table: SlotTable::new(slots), executed: 0 }
        }

        fn begin(&mut self, (slot, sequence, highest): Request, checksum: u64) -> Result<Begun<u32>, Nfsstat4> {
            let args = SequenceArgs {
                sessionid: Sessionid4::default(),
                sequenceid: Sequenceid4(sequence),
                slotid: Slotid4(slot),
                highest_slotid: Slotid4(highest),
                cachethis: !checksum.is_multiple_of(2),
            };
            let principal = Principal::Sys { uid: (checksum >> 32) as u32, gid: 0 };
            self.table.begin(&args, Fingerprint { principal, checksum })
        }

        /// Executes the request if it is new. Returns the reply, which is the number of requests executed so far.
        fn call(&mut self, request: Request, checksum: u64) -> Result<Option<u32>, Nfsstat4> {
            Ok(match self.begin(request, checksum)? {
                Begun::Execute(ticket) => {
                    self.executed += 1;
                    self.table.finish(ticket, self.executed, false);
                    Some(self.executed)
                }
                Begun::Replay(reply) => Some(reply),
                Begun::Uncached => None,
            })
        }
    }

    #[test]
    fn retry_returns_the_cached_reply_without_executing_again() {
        let mut channel = Channel::new(2);
        assert_eq!(channel.call((0, 1, 0), 11), Ok(Some(1)));
        assert_eq!(channel.call((0, 1, 0), 11), Ok(Some(1)));
        assert_eq!(channel.call((1, 1, 1), 13), Ok(Some(2)));
        assert_eq!(channel.call((0, 1, 1), 11), Ok(Some(1)), "slots are independent");
        assert_eq!(channel.call((0, 2, 1), 15), Ok(Some(3)));
        assert_eq!(channel.call((0, 1, 1), 11), Err(Nfsstat4::SeqMisordered));
        //= rfc8881-2.10.6-1 rfc8881-2.10.6-2 rfc8881-2.10.6.1-4 rfc8881-2.10.6.1.3-1
        assert_eq!(channel.executed, 3);
    }

    #[test]
    fn sequence_id_must_be_the_last_or_the_next() {
        let mut channel = Channel::new(1);
        // §18.36.3: the first sequence ID is 1, and 0 is not a retry.
        for sequence in [0, 2, 3, u32::MAX] {
            assert_eq!(channel.call((0, sequence, 0), 1), Err(Nfsstat4::SeqMisordered), "{sequence}");
        }
        //= rfc8881-18.36.3-22 rfc8881-18.46.3-11
        assert_eq!(channel.call((0, 1, 0), 1), Ok(Some(1)));
        for sequence in [0, 3, u32::MAX] {
            assert_eq!(channel.call((0, sequence, 0), 1), Err(Nfsstat4::SeqMisordered), "{sequence}");
        }
        //= rfc8881-2.10.6.1-5 rfc8881-2.10.6.1-7 rfc8881-2.10.6.1.2-1 rfc8881-2.10.6.1.2-2
        assert_eq!(channel.call((0, 2, 0), 3), Ok(Some(2)), "errors must not change the slot");
    }

    #[test]
    fn sequence_ids_wrap_around() {
        let mut channel = Channel::new(1);
        channel.call((0, 1, 0), 1).unwrap();
        channel.table.slots[0].sequence = Sequenceid4(u32::MAX);
        assert_eq!(channel.call((0, u32::MAX, 0), 1), Ok(Some(1)));
        //= rfc8881-2.10.6.1-6
        assert_eq!(channel.call((0, 1, 0), 3), Err(Nfsstat4::SeqMisordered));
        assert_eq!(channel.call((0, 0, 0), 3), Ok(Some(2)));
        assert_eq!(channel.call((0, 0, 0), 3), Ok(Some(2)));
    }

    #[test]
    fn uncached_reply_is_not_kept() {
        let mut channel = Channel::new(1);
        assert_eq!(channel.call((0, 1, 0), 2), Ok(Some(1)));
        assert_eq!(channel.call((0, 1, 0), 2), Ok(None));
        let Ok(Begun::Execute(ticket)) = channel.begin((0, 2, 0), 4) else { panic!("the request is new") };
        channel.table.finish(ticket, 77, true);
        assert_eq!(channel.call((0, 2, 0), 4), Ok(Some(77)), "a cheap reply is cached");
        assert_eq!(channel.executed, 1);
    }

    #[test]
    fn different_request_with_the_same_sequence_id_is_a_false_retry() {
        let mut channel = Channel::new(1);
        channel.call((0, 1, 0), 11).unwrap();
        assert_eq!(channel.call((0, 1, 0), 13), Err(Nfsstat4::SeqFalseRetry));
        //= rfc8881-2.10.6.1.3.1-1
        assert_eq!(channel.call((0, 1, 0), 11 | 1 << 32), Err(Nfsstat4::SeqFalseRetry), "a different principal");
        channel.call((0, 2, 0), 12).unwrap();
        assert_eq!(channel.call((0, 2, 0), 14), Err(Nfsstat4::SeqFalseRetry), "also if the reply was not cached");
        assert_eq!(channel.call((0, 2, 0), 12), Ok(None));
    }

    #[test]
    fn retry_of_an_executing_request_gets_delay() {
        let mut channel = Channel::new(1);
        let Ok(Begun::Execute(ticket)) = channel.begin((0, 1, 0), 11) else { panic!("the request is new") };
        assert!(channel.table.is_busy());
        assert_eq!(channel.call((0, 1, 0), 11), Err(Nfsstat4::Delay));
        assert_eq!(channel.call((0, 1, 0), 13), Err(Nfsstat4::SeqFalseRetry));
        assert_eq!(channel.call((0, 2, 0), 13), Err(Nfsstat4::SeqMisordered), "the slot is in use");
        channel.table.finish(ticket, 5, false);
        assert_eq!(channel.call((0, 1, 0), 11), Ok(Some(5)));
        assert!(!channel.table.is_busy());
    }

    #[test]
    fn request_may_be_outstanding_until_the_client_shows_that_it_has_the_reply() {
        let mut channel = Channel::new(4);
        let may_be =
            |channel: &Channel, slot, sequence| channel.table.may_be_outstanding(Slotid4(slot), Sequenceid4(sequence));
        assert!(!may_be(&channel, 1, 0) && !may_be(&channel, 1, 1));
        let Ok(Begun::Execute(ticket)) = channel.begin((1, 1, 1), 1) else { panic!("the request is new") };
        assert!(may_be(&channel, 1, 1));
        channel.table.finish(ticket, 5, false);
        channel.call((0, 1, 1), 1).unwrap();
        assert!(may_be(&channel, 1, 1) && !may_be(&channel, 1, 2) && !may_be(&channel, 2, 1));
        // The client has seen the lower target, and does not use slot 1 any more.
        channel.table.set_target(Slotid4(0));
        channel.call((0, 2, 1), 1).unwrap();
        assert!(may_be(&channel, 1, 1), "the client may still use slot 1");
        channel.call((0, 3, 0), 1).unwrap();
        assert!(!may_be(&channel, 1, 1) && may_be(&channel, 0, 3) && !may_be(&channel, 0, 2));
    }

    #[test]
    fn slots_beyond_the_granted_ones_are_rejected() {
        let mut channel = Channel::new(2);
        assert_eq!(channel.call((2, 1, 2), 1), Err(Nfsstat4::BadSlot));
        assert_eq!(channel.call((u32::MAX, 1, u32::MAX), 1), Err(Nfsstat4::BadSlot));
        assert_eq!(channel.call((1, 1, 2), 1), Err(Nfsstat4::BadHighSlot));
        assert!(channel.table.slots.is_empty(), "rejected requests must not create slots");
        assert_eq!(
            channel.call((1, 1, 0), 1),
            Ok(Some(1)),
            "the slot of the request is a lower bound of the highest slot"
        );
    }

    #[test]
    fn slots_are_retired_after_the_client_has_seen_the_target() {
        let mut channel = Channel::new(8);
        for slot in 0..8 {
            channel.call((slot, 1, 7), 1).unwrap();
        }
        channel.table.set_target(Slotid4(3));
        assert_eq!((channel.table.target_highest(), channel.table.enforced_highest()), (Slotid4(3), Slotid4(7)));
        assert_eq!(channel.call((7, 2, 7), 3), Ok(Some(9)), "the client may not have seen the target");
        assert_eq!(channel.call((0, 2, 3), 3), Ok(Some(10)), "the last reply in this slot had the old target");
        assert_eq!(channel.table.enforced_highest(), Slotid4(7));
        assert_eq!(channel.call((7, 2, 7), 3), Ok(Some(9)), "a retry in a slot above the target is answered");
        assert_eq!(channel.call((0, 3, 3), 5), Ok(Some(11)), "the last reply in this slot had the new target");
        assert_eq!(channel.table.enforced_highest(), Slotid4(3));
        //= rfc8881-2.10.6.1-10
        assert_eq!(channel.call((7, 3, 7), 5), Err(Nfsstat4::BadSlot));
        assert_eq!(channel.call((1, 2, 4), 5), Err(Nfsstat4::BadHighSlot));
        assert_eq!(channel.call((3, 2, 3), 5), Ok(Some(12)));
    }

    #[test]
    fn slots_with_executing_requests_are_not_retired() {
        let mut channel = Channel::new(4);
        channel.call((0, 1, 0), 1).unwrap();
        let Ok(Begun::Execute(ticket)) = channel.begin((3, 1, 3), 1) else { panic!("the request is new") };
        channel.table.set_target(Slotid4(0));
        channel.call((0, 2, 0), 3).unwrap();
        channel.call((0, 3, 0), 5).unwrap();
        assert_eq!(channel.table.enforced_highest(), Slotid4(3));
        channel.table.finish(ticket, 9, false);
        channel.call((0, 4, 0), 7).unwrap();
        assert_eq!(channel.table.enforced_highest(), Slotid4(0));
    }

    #[test]
    fn regranted_slot_accepts_the_next_sequence_id_or_1() {
        for first in [1, 3] {
            let mut channel = Channel::new(2);
            channel.call((1, 1, 1), 1).unwrap();
            channel.call((1, 2, 1), 3).unwrap();
            channel.call((0, 1, 1), 1).unwrap();
            channel.table.set_target(Slotid4(0));
            channel.call((0, 2, 0), 3).unwrap();
            channel.call((0, 3, 0), 5).unwrap();
            channel.table.set_target(Slotid4(1));
            assert_eq!(channel.table.enforced_highest(), Slotid4(1));
            assert_eq!(channel.call((1, 2, 1), 3), Err(Nfsstat4::SeqMisordered), "its cached reply was dropped");
            assert!(channel.call((1, first, 1), 7).is_ok(), "{first}");
            assert_eq!(
                channel.call((1, 1 + first % 3, 1), 9).is_ok(),
                first == 1,
                "only one of both sequences is accepted"
            );
        }
    }

    #[test]
    fn no_request_executes_in_a_slot_that_the_client_does_not_have() {
        let mut refused = 0;
        for seed in 0..100 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut channel = Channel::new(6);
            // The highest slot that the client was granted and that is not retired.
            let (mut given, mut target, mut sequences) = (5, 5, [0; 8]);
            for step in 0..2000 {
                if rng.random_range(0..8) == 0 {
                    target = rng.random_range(0..8).min(5);
                    channel.table.set_target(Slotid4(target));
                    given = given.max(target);
                    continue;
                }
                let (slot, highest) = (rng.random_range(0..8), rng.random_range(0..8));
                let sequence = if rng.random() { sequences[slot as usize] + 1 } else { rng.random_range(0..3) };
                let had = channel.executed;
                let called = channel.call((slot, sequence, highest), 2 * step + 1);
                if channel.executed > had {
                    assert!(
                        slot <= given && highest <= given,
                        "seed {seed}, step {step}: {slot}, {highest} of {given}"
                    );
                    sequences[slot as usize] = sequence;
                } else {
                    refused += u32::from(matches!(called, Err(Nfsstat4::BadSlot | Nfsstat4::BadHighSlot)));
                }
                let enforced = channel.table.enforced_highest().0;
                assert!((target..=given).contains(&enforced), "seed {seed}, step {step}: {enforced} of {given}");
                given = enforced;
                assert!(channel.table.in_use() <= given as usize + 1);
            }
        }
        assert!(refused > 1000, "{refused}");
    }

    /// A client whose requests are lost, delayed and retransmitted. Each must be executed once and get its own reply.
    struct Client {
        slots: Vec<(u32, Option<u64>)>,
        highest: u32,
        next: u64,
    }

    fn simulate(seed: u64, moving: bool) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut table = SlotTable::<u64>::new(6);
        let mut client = Client { slots: vec![(0, None); 6], highest: 5, next: 0 };
        let mut network: Vec<(SequenceArgs, u64)> = Vec::new();
        let mut running: Vec<(Ticket, u64)> = Vec::new();
        let mut executed = std::collections::HashSet::new();
        for _ in 0..2000 {
            match rng.random_range(0..10) {
                0..=3 => client.send(rng.random_range(0..6), &mut network),
                4..=6 if !network.is_empty() => {
                    let at = rng.random_range(0..network.len());
                    // Some requests arrive more than once.
                    let (args, id) = if rng.random() { network[at] } else { network.swap_remove(at) };
                    let fingerprint = Fingerprint { principal: Principal::None, checksum: id };
                    match table.begin(&args, fingerprint) {
                        Ok(Begun::Execute(ticket)) => {
                            assert!(executed.insert(id), "seed {seed}: executed twice");
                            running.push((ticket, id));
                        }
                        Ok(Begun::Replay(reply)) => client.receive(&args, id, reply, &table, seed),
                        Ok(Begun::Uncached) => panic!("seed {seed}: all replies must be cached"),
                        Err(_) => {}
                    }
                    if moving {
                        network.retain(|(_, id)| client.slots.iter().any(|slot| slot.1 == Some(*id)));
                    }
                }
                7 | 8 if !running.is_empty() => {
                    let (ticket, id) = running.swap_remove(rng.random_range(0..running.len()));
                    // The reply itself is lost. The client gets it by a retry.
                    table.finish(ticket, id, false);
                }
                9 if moving => table.set_target(Slotid4(rng.random_range(0..6))),
                _ => {}
            }
        }
        assert!(executed.len() > 50, "seed {seed}: {} executed", executed.len());
    }

    impl Client {
        /// Sends the slot's outstanding request again, or a new one.
        fn send(&mut self, slot: u32, network: &mut Vec<(SequenceArgs, u64)>) {
            if slot > self.highest && self.slots[slot as usize].1.is_none() {
                return;
            }
            let (sequence, outstanding) = &mut self.slots[slot as usize];
            let id = *outstanding.get_or_insert_with(|| {
                self.next += 1;
                *sequence += 1;
                self.next
            });
            let args = SequenceArgs {
                sessionid: Sessionid4::default(),
                sequenceid: Sequenceid4(*sequence),
                slotid: Slotid4(slot),
                highest_slotid: Slotid4(self.in_use()),
                cachethis: true,
            };
            network.push((args, id));
        }

        fn in_use(&self) -> u32 {
            self.slots.iter().rposition(|slot| slot.1.is_some()).unwrap_or(0) as u32
        }

        fn receive(&mut self, args: &SequenceArgs, id: u64, reply: u64, table: &SlotTable<u64>, seed: u64) {
            assert_eq!(reply, id, "seed {seed}: got the reply of another request");
            let slot = &mut self.slots[args.slotid.0 as usize];
            if slot.1 == Some(id) {
                slot.1 = None;
                self.highest = table.target_highest().0;
            }
        }
    }

    #[test]
    fn requests_are_executed_once_on_an_unreliable_network() {
        for seed in 0..200 {
            simulate(seed, false);
            simulate(seed, true);
        }
    }
}
