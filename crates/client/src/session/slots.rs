//! [`Slots`]: the slots of a session, their outstanding requests and their sequence IDs, without I/O. Read RFC 8881
//! §2.10.6 first.
//!
//! A request keeps its slot and sequence ID until it is answered, however often and over whichever connection it is
//! sent. So the server executes it exactly once. Only a reply with a result of SEQUENCE advances the sequence ID. A
//! request that was given up leaves its slot *in doubt*: the slot is not used again before the server has answered in
//! it (§2.10.6.2).

use nfs::v4::{Sequenceid4, Slotid4};

/// The slots of a session's fore channel.
#[derive(Debug)]
pub(crate) struct Slots {
    /// The slots by number. The vector grows with the load, up to `limit`.
    slots: Vec<Slot>,
    /// No slot below this number is free.
    first_free: usize,
    /// The number of slots that the session has.
    limit: u32,
    /// The number of slots that the server asks the client to use.
    target: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The sequence ID of the outstanding request, or of the next one.
    sequence: u32,
    taken: bool,
}

/// The slot and sequence ID of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotUse {
    pub slot: Slotid4,
    pub sequence: Sequenceid4,
}

impl Slots {
    /// Makes the slots of a new session, which has `limit` of them.
    pub fn new(limit: u32) -> Self {
        let limit = limit.clamp(1, SLOTS_MAX);
        Self { slots: Vec::new(), first_free: 0, limit, target: limit }
    }

    /// Takes the lowest free slot, so that the server needs to keep few slots. Returns `None` if no slot is free.
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

    /// Returns `true` if this request is outstanding.
    pub fn is_outstanding(&self, place: SlotUse) -> bool {
        let slot = self.slots.get(place.slot.0 as usize);
        slot.is_some_and(|slot| slot.taken && slot.sequence == place.sequence.0)
    }

    /// Returns the highest slot with an outstanding request, for SEQUENCE (§18.46.3).
    pub fn highest(&self) -> Slotid4 {
        Slotid4(self.slots.iter().rposition(|slot| slot.taken).unwrap_or(0) as u32)
    }

    /// Frees a slot. `used` is `true` if the server has advanced the slot's sequence ID for the request.
    pub fn release(&mut self, place: SlotUse, used: bool) {
        let slot = &mut self.slots[place.slot.0 as usize];
        assert!(
            slot.taken && slot.sequence == place.sequence.0,
            "a slot must be released by the request that holds it"
        );
        slot.taken = false;
        self.first_free = self.first_free.min(place.slot.0 as usize);
        if used {
            // §2.10.6.1: the sequence ID wraps from all ones to zero.
            slot.sequence = slot.sequence.wrapping_add(1);
        }
    }

    /// Sets the server's limits: the highest slot that it accepts, and the highest that it asks the client to use.
    pub fn adjust(&mut self, highest: Slotid4, target: Slotid4) {
        self.limit = highest.0.saturating_add(1).min(SLOTS_MAX);
        self.target = target.0.saturating_add(1);
        // §2.10.6.1: the server may discard slots above both limits. Such a slot starts again with sequence 1.
        let keep = self.limit.max(self.target) as usize;
        while self.slots.len() > keep && self.slots.last().is_some_and(|slot| !slot.taken) {
            self.slots.pop();
        }
    }

    /// Sets the highest slot that the server asks the client to use.
    pub fn set_target(&mut self, target: Slotid4) {
        self.adjust(Slotid4(self.limit.saturating_sub(1)), target);
    }

    /// Returns `true` if a request is outstanding.
    pub fn any_taken(&self) -> bool {
        self.slots.iter().any(|slot| slot.taken)
    }

    /// Returns the maximum number of outstanding requests.
    pub fn len(&self) -> u32 {
        self.limit.min(self.target).max(1)
    }
}

/// Maximum number of slots, whatever number the server grants.
pub(crate) const SLOTS_MAX: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(slot: u32, sequence: u32) -> SlotUse {
        SlotUse { slot: Slotid4(slot), sequence: Sequenceid4(sequence) }
    }

    #[test]
    fn take_returns_lowest_free_slot_with_its_next_sequence() {
        let mut slots = Slots::new(2);
        let (a, b) = (slots.take().unwrap(), slots.take().unwrap());
        assert_eq!((a, b, slots.take()), (place(0, 1), place(1, 1), None));
        assert_eq!(slots.highest(), Slotid4(1));
        assert!(slots.is_outstanding(a) && !slots.is_outstanding(place(0, 2)) && !slots.is_outstanding(place(7, 1)));
        slots.release(a, true);
        assert!(!slots.is_outstanding(a) && !slots.is_outstanding(place(0, 2)));
        assert_eq!(slots.take(), Some(place(0, 2)));
        slots.release(b, false);
        assert_eq!(
            slots.take(),
            Some(place(1, 1)),
            "a request whose SEQUENCE was refused must not advance the sequence"
        );
    }

    #[test]
    fn server_asks_for_fewer_slots_and_its_limit_stays() {
        let mut slots = Slots::new(4);
        slots.set_target(Slotid4(1));
        let taken: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken, [place(0, 1), place(1, 1)]);
        slots.set_target(Slotid4(9));
        assert_eq!((slots.take(), slots.take(), slots.take()), (Some(place(2, 1)), Some(place(3, 1)), None));
    }

    #[test]
    fn server_limits_number_of_slots() {
        let mut slots = Slots::new(4);
        let all: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(all.len(), 4);
        slots.adjust(Slotid4(3), Slotid4(0));
        all.iter().for_each(|&one| slots.release(one, true));
        assert_eq!(slots.take(), Some(place(0, 2)));
        assert_eq!(slots.take(), None, "the server asks for one slot");
        slots.adjust(Slotid4(3), Slotid4(7));
        assert_eq!(slots.take(), Some(place(1, 2)), "a slot that the server keeps must continue its sequence");
        slots.adjust(Slotid4(1), Slotid4(1));
        slots.adjust(Slotid4(3), Slotid4(3));
        assert_eq!(slots.take(), Some(place(2, 1)), "a discarded slot must start with sequence 1");
        let mut slots = Slots::new(4);
        let only = slots.take().unwrap();
        slots.release(only, true);
        slots.adjust(Slotid4(0), Slotid4(0));
        assert_eq!(slots.take(), Some(place(0, 2)), "the last slot that the server keeps");
    }

    #[test]
    fn sequence_wraps_to_zero() {
        let mut slots = Slots::new(1);
        slots.take().unwrap();
        slots.slots[0].sequence = u32::MAX;
        slots.release(place(0, u32::MAX), true);
        assert_eq!(slots.take(), Some(place(0, 0)));
    }
}
