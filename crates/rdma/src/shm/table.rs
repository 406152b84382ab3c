//! The table of exposures: the memory of the connecting side that the accepting side can access at the moment.
//!
//! The connecting side maintains it in the control memory. Each region that lies in a slab that the accepting side has
//! mapped has an entry of four words:
//! mapped there is an entry of four words:
//!
//! | word | |
//! |---|---|
//! | 0 | STag (upper 32 bits); write access (bit 0); revoked (bit 1); number of pins (bits 8–31) |
//! | 1 | number of the slab (upper 32 bits), length of the region |
//! | 2 | offset of the region in the slab |
//! | 3 | unused |
//!
//! The accepting side *pins* an entry during an access, and reads words 1 and 2 only then. The connecting side
//! *revokes* an entry before its memory returns to the caller; while there are pins it has to wait. So no access is
//! ever in progress to memory that was returned to its owner. A side that violates these rules damages only memory of
//! the connecting side, because everything that is read here is checked against the slab's actual size.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::ring::Words;
use crate::{Access, Stag};

/// The location of a region according to its entry. The values are not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The number of the slab.
    pub(crate) slab: u32,
    /// The offset of the region in the slab.
    pub(crate) offset: u64,
    /// The length of the region in bytes.
    pub(crate) len: u32,
}

/// The entries, which both sides access.
#[derive(Clone)]
pub(crate) struct Table<W>(pub(crate) W);

impl<W: Words> Table<W> {
    /// Returns the number of entries.
    pub(crate) fn capacity(&self) -> usize {
        self.0.count() / ENTRY_WORDS
    }

    /// Exposes a region. Returns `false` if there is no such entry, or if it is still pinned.
    pub(crate) fn expose(&self, stag: Stag, access: Access, place: Place) -> bool {
        let Some(at) = self.at(stag) else { return false };
        // An entry that was revoked while it was pinned is free when its last pin has been removed.
        let state = self.0.load(at, Acquire);
        if state != 0 && (state & PINS != 0 || state & REVOKED == 0) {
            return false;
        }
        self.0.store(at + 1, u64::from(place.slab) << 32 | u64::from(place.len), Relaxed);
        self.0.store(at + 2, place.offset, Relaxed);
        let right = if access == Access::RemoteWrite { WRITE } else { 0 };
        self.0.store(at, u64::from(stag.0) << 32 | right, Release);
        true
    }

    /// Revokes an exposure. Returns `false` while the other side accesses it; no new access can begin then, and the
    /// caller must call this again.
    pub(crate) fn revoke(&self, stag: Stag) -> bool {
        let Some(at) = self.at(stag) else { return true };
        let mut state = self.0.load(at, Acquire);
        // The other side can change the word repeatedly only by violating the rules. The entry then counts as pinned.
        for _ in 0..ATTEMPTS {
            if state >> 32 != u64::from(stag.0) {
                return true;
            }
            let pinned = state & PINS != 0;
            match self.0.compare_exchange(at, state, if pinned { state | REVOKED } else { 0 }) {
                Ok(_) => return !pinned,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Begins an access to a region. Returns `None` if there is none with this STag and right.
    pub(crate) fn pin(&self, stag: Stag, access: Access) -> Option<Place> {
        let at = self.at(stag)?;
        let mut state = self.0.load(at, Relaxed);
        for _ in 0..ATTEMPTS {
            let may_write = state & WRITE != 0;
            let usable = state >> 32 == u64::from(stag.0) && state & REVOKED == 0 && state & PINS != PINS;
            if !usable || stag.0 == 0 || may_write != (access == Access::RemoteWrite) {
                return None;
            }
            match self.0.compare_exchange(at, state, state + PIN) {
                Ok(_) => {
                    let (size, offset) = (self.0.load(at + 1, Relaxed), self.0.load(at + 2, Relaxed));
                    return Some(Place { slab: (size >> 32) as u32, offset, len: size as u32 });
                }
                Err(now) => state = now,
            }
        }
        None
    }

    /// Ends an access. Returns `true` if the other side waits for that.
    pub(crate) fn unpin(&self, stag: Stag) -> bool {
        let Some(at) = self.at(stag) else { return false };
        let mut state = self.0.load(at, Relaxed);
        for _ in 0..ATTEMPTS {
            if state >> 32 != u64::from(stag.0) || state & PINS == 0 {
                return false; // The other side has replaced the entry, so it does not wait.
            }
            match self.0.compare_exchange(at, state, state - PIN) {
                Ok(_) => return state & REVOKED != 0 && state & PINS == PIN,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Returns the position of an STag's entry: the upper 24 bits are its index plus one.
    fn at(&self, stag: Stag) -> Option<usize> {
        let index = (stag.0 >> 8).checked_sub(1)? as usize;
        (index < self.capacity()).then_some(index * ENTRY_WORDS)
    }
}

/// The number of words of an entry.
pub(crate) const ENTRY_WORDS: usize = 4;
const WRITE: u64 = 1;
const REVOKED: u64 = 2;
const PIN: u64 = 1 << 8;
const PINS: u64 = 0xff_ffff << 8;
/// Maximum number of concurrent changes of a word by the other side before it counts as a violation.
const ATTEMPTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::memory::Control;

    const STAG: Stag = Stag(3 << 8 | 9);
    const PLACE: Place = Place { slab: 5, offset: 1 << 33, len: u32::MAX };

    #[test]
    fn exposure_is_found_by_stag_and_right_until_revoked() {
        let table = Control::create().unwrap().table();
        assert!(table.expose(STAG, Access::RemoteWrite, PLACE));
        for wrong in [Stag(0), Stag(9), Stag(STAG.0 ^ 1), Stag(STAG.0 + 256), Stag(u32::MAX)] {
            assert_eq!(table.pin(wrong, Access::RemoteWrite), None);
        }
        assert_eq!(table.pin(STAG, Access::RemoteRead), None);
        assert_eq!(table.pin(STAG, Access::RemoteWrite), Some(PLACE));
        assert!(!table.unpin(STAG));
        assert!(table.revoke(STAG));
        assert_eq!(table.pin(STAG, Access::RemoteWrite), None);
        assert!(!table.expose(Stag(u32::MAX), Access::RemoteRead, PLACE), "an entry beyond the table must be rejected");
    }

    #[test]
    fn pinned_region_is_revoked_when_its_last_pin_is_removed() {
        let table = Control::create().unwrap().table();
        assert!(table.expose(STAG, Access::RemoteRead, PLACE));
        table.pin(STAG, Access::RemoteRead).unwrap();
        table.pin(STAG, Access::RemoteRead).unwrap();
        assert!(!table.revoke(STAG));
        assert_eq!(table.pin(STAG, Access::RemoteRead), None, "no new access must begin");
        assert!(!table.expose(STAG, Access::RemoteRead, PLACE), "the entry must not be reused");
        assert!(!table.unpin(STAG), "another pin must remain");
        assert!(table.unpin(STAG), "the waiting owner must be woken");
        assert_eq!(table.pin(STAG, Access::RemoteRead), None);
        assert!(table.expose(Stag(STAG.0 + 1), Access::RemoteRead, PLACE), "the entry must be free again");
    }
}

/// Explores all interleavings: see [`super::ring`].
#[cfg(test)]
mod model {
    use std::sync::atomic::Ordering;

    use loom::{
        cell::UnsafeCell,
        sync::{Arc, atomic::AtomicU64},
        thread,
    };

    use super::*;

    #[derive(Clone)]
    struct Modelled(Arc<Vec<AtomicU64>>);

    impl Words for Modelled {
        fn fence(&self) {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
        fn count(&self) -> usize {
            self.0.len()
        }
        fn load(&self, at: usize, order: Ordering) -> u64 {
            self.0[at].load(order)
        }
        fn store(&self, at: usize, value: u64, order: Ordering) {
            self.0[at].store(value, order);
        }
        fn swap(&self, at: usize, value: u64, order: Ordering) -> u64 {
            self.0[at].swap(value, order)
        }
        fn compare_exchange(&self, at: usize, old: u64, new: u64) -> Result<u64, u64> {
            self.0[at].compare_exchange(old, new, Ordering::AcqRel, Acquire)
        }
    }

    #[test]
    fn memory_that_was_revoked_is_not_accessed() {
        loom::model(|| {
            let table = Table(Modelled(Arc::new((0..ENTRY_WORDS).map(|_| AtomicU64::new(0)).collect())));
            let memory = Arc::new(UnsafeCell::new(0u64));
            let stag = Stag(1 << 8 | 1);
            assert!(table.expose(stag, Access::RemoteWrite, Place { slab: 0, offset: 7, len: 8 }));
            let (theirs, target) = (table.clone(), memory.clone());
            let accessor = thread::spawn(move || {
                if let Some(place) = theirs.pin(stag, Access::RemoteWrite) {
                    assert_eq!(place.offset, 7);
                    // SAFETY: none is needed, because loom checks that there is no concurrent access.
                    #[expect(unsafe_code)]
                    target.with_mut(|memory| unsafe { *memory = 1 });
                    theirs.unpin(stag);
                }
            });
            if table.revoke(stag) {
                // SAFETY: as above.
                #[expect(unsafe_code)]
                memory.with_mut(|memory| unsafe { *memory = 2 });
            }
            accessor.join().unwrap();
            assert!(table.revoke(stag), "no entry must stay pinned forever");
        });
    }
}
