//! [`BackSlots`]: the slots of a session's backchannel, on the side that calls (RFC 8881 §2.10.6.3, §20.9).
//!
//! A slot has at most one request. If the outcome of a request is unknown, its slot is lost, because its sequence ID is
//! unknown.

use nfs::v4::{Sequenceid4, Slotid4};

/// The slots of a session's backchannel.
#[derive(Clone, Debug)]
pub struct BackSlots {
    slots: Vec<BackSlot>,
    /// The highest slot that the client wants to be used. There can be fewer slots.
    target: u32,
}

#[derive(Clone, Copy, Debug)]
struct BackSlot {
    /// The sequence ID of the next request.
    sequence: u32,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Busy,
    Lost,
}

/// The permission to send one callback. It must be passed to [`State::end_callback`](super::State::end_callback).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot leaks if it is not released"]
pub struct BackTicket {
    /// The slot.
    pub slot: Slotid4,
    /// The sequence ID.
    pub sequence: Sequenceid4,
    /// The highest slot in use.
    pub highest: Slotid4,
}

/// The outcome of a callback for its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackOutcome {
    /// CB_SEQUENCE succeeded. The value is the highest slot that the client wants to be used.
    Executed(Slotid4),
    /// CB_SEQUENCE failed, or nothing was sent: the sequence ID was not used.
    NotBegun,
    /// The callback may have been executed, and cannot be sent again.
    Unknown,
}

impl BackSlots {
    /// Creates as many slots as the client offers, at most [`SLOTS_MAX`].
    pub(super) fn new(maxrequests: u32) -> Self {
        let count = maxrequests.clamp(1, SLOTS_MAX);
        //= rfc8881-18.36.4-4
        let slots = vec![BackSlot { sequence: 1, stage: Stage::Free }; count as usize];
        Self { slots, target: count - 1 }
    }

    pub(super) fn acquire(&mut self) -> Option<BackTicket> {
        let usable = self.slots.iter().take(self.target as usize + 1);
        let at = usable.enumerate().find(|(_, slot)| slot.stage == Stage::Free)?.0;
        self.slots[at].stage = Stage::Busy;
        let highest = self.slots.iter().rposition(|slot| slot.stage == Stage::Busy).expect("a slot must be busy");
        let sequence = Sequenceid4(self.slots[at].sequence);
        Some(BackTicket { slot: Slotid4(at as u32), sequence, highest: Slotid4(highest as u32) })
    }

    pub(super) fn release(&mut self, ticket: &BackTicket, outcome: BackOutcome) {
        let slot = &mut self.slots[ticket.slot.0 as usize];
        assert!(slot.stage == Stage::Busy && slot.sequence == ticket.sequence.0, "a ticket must be used only once");
        slot.stage = Stage::Free;
        match outcome {
            BackOutcome::Executed(target) => {
                //= rfc8881-2.10.6.1-1 rfc8881-2.10.6.1-2
                slot.sequence = slot.sequence.wrapping_add(1);
                self.target = target.0;
            }
            BackOutcome::NotBegun => {}
            BackOutcome::Unknown => slot.stage = Stage::Lost,
        }
    }

    /// Returns `true` if all slots are lost.
    pub(super) fn is_lost(&self) -> bool {
        self.slots.iter().all(|slot| slot.stage == Stage::Lost)
    }
}

/// The maximum number of callbacks of one session at a time.
const SLOTS_MAX: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_advances_after_execution_and_unknown_outcome_loses_the_slot() {
        let mut slots = BackSlots::new(2);
        let first = slots.acquire().unwrap();
        let second = slots.acquire().unwrap();
        assert_eq!(
            (first.slot, first.sequence, second.slot, second.highest),
            (Slotid4(0), Sequenceid4(1), Slotid4(1), Slotid4(1))
        );
        assert_eq!(slots.acquire(), None);
        slots.release(&first, BackOutcome::Executed(Slotid4(1)));
        let third = slots.acquire().unwrap();
        assert_eq!((third.slot, third.sequence), (Slotid4(0), Sequenceid4(2)));
        slots.release(&third, BackOutcome::NotBegun);
        let again = slots.acquire().unwrap();
        assert_eq!(again.sequence, Sequenceid4(2), "the sequence ID was not used");
        slots.release(&again, BackOutcome::Unknown);
        assert!(slots.acquire().is_none() && !slots.is_lost());
        slots.release(&second, BackOutcome::Executed(Slotid4(0)));
        assert_eq!(slots.acquire(), None, "the client retired slot 1, and slot 0 is lost");
    }
}
