//! [`Slots`]: which requests of a session are under way, and what their sequence is. No I/O. Read RFC 8881 §2.10.6 first.
//!
//! A request has its slot, and its place in the sequence of that slot, until it is answered, however often and over
//! whichever connection it is sent: that is what makes it exactly one request. Only an answer of SEQUENCE moves the
//! sequence on. A request that nobody waits for any more leaves its slot *in doubt*; it is not used before the server
//! has answered something in its place (§2.10.6.2).

use nfs::v4::{Sequenceid4, Slotid4};

/// The slots of a session's fore channel.
#[derive(Debug)]
pub(crate) struct Slots {
    /// By number; grows with the load up to `limit`.
    slots: Vec<Slot>,
    /// No slot below this number is free.
    first_free: usize,
    /// Slots that the session has.
    limit: u32,
    /// Slots that the server would like to be used.
    target: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Of the next request, or of that under way.
    sequence: u32,
    taken: bool,
}

/// The place of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotUse {
    pub slot: Slotid4,
    pub sequence: Sequenceid4,
}

impl Slots {
    /// Of a session that has just been made with so many slots.
    pub fn new(limit: u32) -> Self {
        let limit = limit.clamp(1, SLOTS_MAX);
        Self { slots: Vec::new(), first_free: 0, limit, target: limit }
    }

    /// A place for a request, if there is one: the lowest, so that the server can do with few.
    pub fn take(&mut self) -> Option<SlotUse> {
        let most = self.limit.min(self.target).max(1) as usize;
        let free = (self.first_free..self.slots.len().min(most)).find(|&number| !self.slots[number].taken);
        let number = match free {
            Some(number) => number,
            None if self.slots.len() < most => {
                // RFC 8881 §2.10.6.1: the first request of a slot has sequence 1.
                self.slots.push(Slot { sequence: 1, taken: false });
                self.slots.len() - 1
            }
            None => return None,
        };
        self.slots[number].taken = true;
        self.first_free = number + 1;
        Some(SlotUse { slot: Slotid4(number as u32), sequence: Sequenceid4(self.slots[number].sequence) })
    }

    /// The highest slot with a request under way, for SEQUENCE (§18.46.3).
    pub fn highest(&self) -> Slotid4 {
        Slotid4(self.slots.iter().rposition(|slot| slot.taken).unwrap_or(0) as u32)
    }

    /// Frees a slot. `used` says whether the server has taken the request into the slot's sequence.
    pub fn release(&mut self, place: SlotUse, used: bool) {
        let slot = &mut self.slots[place.slot.0 as usize];
        assert!(slot.taken && slot.sequence == place.sequence.0, "a slot is released by who has it");
        slot.taken = false;
        self.first_free = self.first_free.min(place.slot.0 as usize);
        if used {
            // §2.10.6.1: from all ones to zero.
            slot.sequence = slot.sequence.wrapping_add(1);
        }
    }

    /// What the server has said of its slots: the highest that it takes, and the highest it would like to be used.
    pub fn adjust(&mut self, highest: Slotid4, target: Slotid4) {
        self.limit = highest.0.saturating_add(1).min(SLOTS_MAX);
        self.target = target.0.saturating_add(1);
        // §2.10.6.1: above both, the server may forget; a slot that comes back begins anew.
        let keep = self.limit.max(self.target) as usize;
        while self.slots.len() > keep && self.slots.last().is_some_and(|slot| !slot.taken) {
            self.slots.pop();
        }
    }

    /// The server would like none above this to be used.
    pub fn wish(&mut self, target: Slotid4) {
        self.adjust(Slotid4(self.limit.saturating_sub(1)), target);
    }

    /// How many requests can be under way.
    pub fn len(&self) -> u32 {
        self.limit.min(self.target).max(1)
    }
}

/// The bound that we put on a server's generosity.
pub(crate) const SLOTS_MAX: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(slot: u32, sequence: u32) -> SlotUse {
        SlotUse { slot: Slotid4(slot), sequence: Sequenceid4(sequence) }
    }

    #[test]
    fn the_lowest_free_slot_is_taken_and_its_sequence_moves_on() {
        let mut slots = Slots::new(2);
        let (a, b) = (slots.take().unwrap(), slots.take().unwrap());
        assert_eq!((a, b, slots.take()), (place(0, 1), place(1, 1), None));
        assert_eq!(slots.highest(), Slotid4(1));
        slots.release(a, true);
        assert_eq!(slots.take(), Some(place(0, 2)));
        slots.release(b, false);
        assert_eq!(slots.take(), Some(place(1, 1)), "what SEQUENCE refused has not been a request");
    }

    #[test]
    fn the_server_says_how_many() {
        let mut slots = Slots::new(4);
        let all: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(all.len(), 4);
        slots.adjust(Slotid4(3), Slotid4(0));
        all.iter().for_each(|&one| slots.release(one, true));
        assert_eq!(slots.take(), Some(place(0, 2)));
        assert_eq!(slots.take(), None, "one slot is wanted");
        slots.adjust(Slotid4(3), Slotid4(7));
        assert_eq!(slots.take(), Some(place(1, 2)), "a slot that the server still has goes on");
        slots.adjust(Slotid4(1), Slotid4(1));
        slots.adjust(Slotid4(3), Slotid4(3));
        assert_eq!(slots.take(), Some(place(2, 1)), "a slot that was given up begins anew");
    }

    #[test]
    fn a_sequence_wraps() {
        let mut slots = Slots::new(1);
        slots.take().unwrap();
        slots.slots[0].sequence = u32::MAX;
        slots.release(place(0, u32::MAX), true);
        assert_eq!(slots.take(), Some(place(0, 0)));
    }
}
