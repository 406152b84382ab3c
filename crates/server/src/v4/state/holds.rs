//! [`Holds`]: keeps files that are open, so that their data survive the removal of their last name.
//!
//! There is one [`Held`] for each file with opens or delegations. Locks need none of their own, because they are under opens.
//! Layouts have none: a client uses them only for files that it has open.

use std::{collections::hash_map::Entry, hash::Hash};

use vfs::Held;

use crate::hash::Map;

/// The holds of files. `F` names a file.
#[derive(Debug)]
pub struct Holds<F> {
    files: Map<F, Holding>,
    /// The holds that have ended. Whoever drops them must not hold a lock, because dropping one can free much memory.
    ended: Vec<Held>,
}

#[derive(Debug, Default)]
struct Holding {
    /// The number of opens and delegations.
    states: usize,
    held: Option<Held>,
}

impl<F> Default for Holds<F> {
    fn default() -> Self {
        Self { files: Map::default(), ended: Vec::new() }
    }
}

impl<F: Clone + Eq + Hash> Holds<F> {
    /// Counts an open or a delegation of a file.
    pub(super) fn add(&mut self, file: &F) {
        self.files.entry(file.clone()).or_default().states += 1;
    }

    /// Ends an open or a delegation of a file, and with the last one the hold.
    pub(super) fn remove(&mut self, file: &F) {
        let Entry::Occupied(mut of_file) = self.files.entry(file.clone()) else {
            panic!("opens and delegations must be counted")
        };
        of_file.get_mut().states -= 1;
        if of_file.get().states == 0 {
            self.ended.extend(of_file.remove().held);
        }
    }

    /// Keeps a file until its last open or delegation ends. Returns the hold if it is not needed.
    pub(super) fn keep(&mut self, file: &F, held: Held) -> Option<Held> {
        match self.files.get_mut(file) {
            Some(of_file) if of_file.held.is_none() => of_file.held.replace(held),
            _ => Some(held),
        }
    }

    /// Reports whether a file has lost its last name, and exists only because of its opens and delegations.
    pub(super) fn is_removed(&self, file: &F) -> bool {
        self.files.get(file).and_then(|of_file| of_file.held.as_ref()).is_some_and(Held::is_removed)
    }

    /// Returns the holds that have ended.
    pub(super) fn take_ended(&mut self) -> Vec<Held> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the number of opens and delegations of each file.
    #[cfg(test)]
    pub(super) fn counts(&self) -> impl Iterator<Item = (&F, usize)> {
        self.files.iter().map(|(file, of_file)| (file, of_file.states))
    }
}
