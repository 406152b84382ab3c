//! [`Table`]: entries by a key that is never valid for a later entry. [`Map`]: a hash map by numbers that this side
//! chooses.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use entropy::HashMap;

/// A map whose keys are not chosen by a peer, so that a cheap hash is sufficient.
pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// A hasher that spreads one number over all bits.
#[derive(Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }
}

/// The key of an entry of a [`Table`]: an index in the lowest 20 bits, and above it 28 bits that change with each use
/// of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(u64);

#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// The bits above the index in the first key of a new slot.
    fresh: Key,
}

#[derive(Debug)]
struct Slot<T> {
    key: Key,
    entry: Option<T>,
}

impl Key {
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the key with these bits. Ignores bits above those of a key.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Key(bits & ((1 << KEY_BITS) - 1))
    }

    fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    fn next(self) -> Self {
        Key::from_bits(self.0 + INDEX_MASK + 1)
    }
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), fresh: Key(0) }
    }

    pub(crate) fn insert(&mut self, entry: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = self.slots.len() as u64;
            assert!(index <= INDEX_MASK, "there must not be more than a million calls at once");
            self.slots.push(Slot { key: Key(self.fresh.0 | index), entry: None });
            index as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.entry = Some(entry);
        slot.key
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        self.slots.get(key.index()).filter(|slot| slot.key == key)?.entry.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.slots.get_mut(key.index()).filter(|slot| slot.key == key)?.entry.as_mut()
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index()).filter(|slot| slot.key == key)?;
        let entry = slot.entry.take()?;
        slot.key = key.next();
        self.free.push(key.index() as u32);
        Some(entry)
    }

    /// Frees the slots of an empty table. Keys that were in use stay invalid.
    pub(crate) fn shrink_idle(&mut self) {
        if self.len() == 0 && self.slots.len() > IDLE_SLOTS {
            let used = self.slots.iter().map(|slot| slot.key.0).max().unwrap_or(0);
            *self = Self { fresh: Key(used & !INDEX_MASK).next(), ..Self::new() };
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        self.slots.iter_mut().filter_map(|slot| slot.entry.as_mut().map(|entry| (slot.key, entry)))
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.slots.iter().filter(|slot| slot.entry.is_some()).map(|slot| slot.key).collect()
    }
}

/// The number of bits of a key.
pub(crate) const KEY_BITS: u32 = 48;
/// Maximum number of slots that an empty table keeps.
const IDLE_SLOTS: usize = 2;
const INDEX_MASK: u64 = (1 << 20) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_removed_entry_stays_invalid_when_its_slot_is_reused() {
        let mut table = Table::new();
        let first = table.insert("first");
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second");
        assert_eq!(first.index(), second.index());
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(Key::from_bits(second.to_bits())), Some(&"second"));
        assert_eq!((table.len(), table.keys()), (1, vec![second]));
    }

    #[test]
    fn empty_table_frees_slots_and_does_not_reuse_keys() {
        let mut table = Table::new();
        let mut given = Vec::new();
        for round in 0..20 {
            let keys: Vec<Key> = (0..10).map(|entry| table.insert((round, entry))).collect();
            table.shrink_idle();
            assert!(keys.iter().enumerate().all(|(at, key)| table.remove(*key) == Some((round, at))));
            table.shrink_idle();
            assert_eq!(table.slots.capacity(), 0);
            given.extend(keys);
        }
        let again = table.insert((99, 99));
        assert!(!given.contains(&again) && given.iter().all(|key| table.get(*key).is_none()));
    }
}
