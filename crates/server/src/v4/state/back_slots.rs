//! [`BackSlots`]: the slots of a session's backchannel, seen from the side that calls (RFC 8881 §2.10.6.3, §20.9).
//!
//! A slot has one request at a time. One whose fate is unknown is lost with its sequence.

use nfs::v4::{Sequenceid4, Slotid4};

/// The slots of a session's backchannel.
#[derive(Clone, Debug)]
pub struct BackSlots {
    slots: Vec<BackSlot>,
    /// Above this the client wants none used.
    target: u32,
}

#[derive(Clone, Copy, Debug)]
struct BackSlot {
    /// Of the next request.
    sequence: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Busy,
    Lost,
}

/// The right to send one callback, which must be given back by [`State::end_callback`](super::State::end_callback).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot that is never given back is lost"]
pub struct BackTicket {
    /// The slot.
    pub slot: Slotid4,
    /// Its sequence.
    pub sequence: Sequenceid4,
    /// The highest slot in use.
    pub highest: Slotid4,
}

/// What became of a callback, as far as its slot is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackOutcome {
    /// CB_SEQUENCE succeeded. The client wants no slot above this used.
    Executed(Slotid4),
    /// CB_SEQUENCE failed, or nothing was sent: the sequence has not been used.
    NotBegun,
    /// It may have been executed or not, and cannot be sent again.
    Unknown,
}

impl BackSlots {
    /// As many as the client has, up to a bound of ours.
    pub(super) fn new(maxrequests: u32) -> Self {
        let count = maxrequests.clamp(1, SLOTS_MAX);
        //= rfc8881-18.36.4-4
        let slots = vec![BackSlot { sequence: 1, stage: Stage::Free }; count as usize];
        Self { slots, target: count - 1 }
    }

    pub(super) fn take(&mut self) -> Option<BackTicket> {
        let usable = self.slots.iter().take(self.target as usize + 1);
        let at = usable.enumerate().find(|(_, slot)| slot.stage == Stage::Free)?.0;
        self.slots[at].stage = Stage::Busy;
        let highest = self.slots.iter().rposition(|slot| slot.stage == Stage::Busy).expect("one has just been taken");
        let sequence = Sequenceid4(self.slots[at].sequence);
        Some(BackTicket { slot: Slotid4(at as u32), sequence, highest: Slotid4(highest as u32) })
    }

    pub(super) fn give_back(&mut self, ticket: &BackTicket, outcome: BackOutcome) {
        let slot = &mut self.slots[ticket.slot.0 as usize];
        assert!(slot.stage == Stage::Busy && slot.sequence == ticket.sequence.0, "a ticket is used once");
        slot.stage = Stage::Free;
        match outcome {
            BackOutcome::Executed(target) => {
                //= rfc8881-2.10.6.1-1 rfc8881-2.10.6.1-2
                slot.sequence = slot.sequence.wrapping_add(1);
                self.target = target.0.min(self.slots.len() as u32 - 1);
            }
            BackOutcome::NotBegun => {}
            BackOutcome::Unknown => slot.stage = Stage::Lost,
        }
    }

    /// Whether no slot will ever be free again.
    pub(super) fn is_lost(&self) -> bool {
        self.slots.iter().all(|slot| slot.stage == Stage::Lost)
    }
}

/// Most callbacks of one session at a time.
const SLOTS_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_counts_what_was_executed_and_is_lost_with_what_nobody_knows() {
        let mut slots = BackSlots::new(2);
        let first = slots.take().unwrap();
        let second = slots.take().unwrap();
        assert_eq!(
            (first.slot, first.sequence, second.slot, second.highest),
            (Slotid4(0), Sequenceid4(1), Slotid4(1), Slotid4(1))
        );
        assert_eq!(slots.take(), None);
        slots.give_back(&first, BackOutcome::Executed(Slotid4(1)));
        let third = slots.take().unwrap();
        assert_eq!((third.slot, third.sequence), (Slotid4(0), Sequenceid4(2)));
        slots.give_back(&third, BackOutcome::NotBegun);
        let again = slots.take().unwrap();
        assert_eq!(again.sequence, Sequenceid4(2), "it was not used");
        slots.give_back(&again, BackOutcome::Unknown);
        assert!(slots.take().is_none() && !slots.is_lost());
        slots.give_back(&second, BackOutcome::Executed(Slotid4(0)));
        assert_eq!(slots.take(), None, "the client wants slot 1 no more, and slot 0 is lost");
    }
}
