//! The file handles that a thread has verified most recently.
//!
//! A client uses one handle in many calls. To compare it with one that was verified before takes less time than to compute its MAC.
//! An entry never becomes wrong: a handle is authentic as long as its key is used, and the entry has the key.

use std::cell::RefCell;

use super::{KEY_LEN, SEALED_MAX};

thread_local! {
    static VERIFIED: RefCell<[Entry; ENTRIES]> = const { RefCell::new([Entry::EMPTY; ENTRIES]) };
}

#[derive(Clone, Copy)]
struct Entry {
    key: [u8; KEY_LEN],
    mac: u128,
    len: usize,
    handle: [u8; SEALED_MAX],
}

impl Entry {
    const EMPTY: Self = Self { key: [0; KEY_LEN], mac: 0, len: 0, handle: [0; SEALED_MAX] };

    fn new(key: [u8; KEY_LEN], mac: u128, handle: &[u8]) -> Self {
        let mut entry = Self { key, mac, len: handle.len(), ..Self::EMPTY };
        entry.handle[..handle.len()].copy_from_slice(handle);
        entry
    }
}

/// Returns `true` if this thread has verified a handle before with this key, or if `verify` does it now. `mac` is the MAC in the
/// handle, which has at most [`SEALED_MAX`] bytes.
pub(super) fn or_verify(key: [u8; KEY_LEN], mac: u128, handle: &[u8], verify: impl FnOnce() -> bool) -> bool {
    VERIFIED.with_borrow_mut(|entries| {
        let entry = &mut entries[mac as usize % ENTRIES];
        // The MAC is compared as one number, which takes the same time wherever the first difference is. So the time tells
        // nothing about it to those who do not know all of it.
        let is_known = entry.mac ^ mac == 0 && entry.key == key && entry.handle[..entry.len] == *handle;
        if is_known || !verify() {
            return is_known;
        }
        *entry = Entry::new(key, mac, handle);
        true
    })
}

const ENTRIES: usize = 64;
