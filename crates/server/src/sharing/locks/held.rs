//! Lists the locks and shares of a client for administrators, page by page, so that the table is never locked for long.

use std::{hash::Hash, sync::Arc};

use super::{FileId, LockClient, LockKind, LockTable, Owner, OwnerId, Range, Share};

/// The share, locks and waiting requests of one owner in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<F> {
    /// The file.
    pub file: F,
    /// The owner.
    pub owner: Arc<Owner>,
    /// The access and deny modes with which the owner has opened the file.
    pub share: Option<Share>,
    /// The locked ranges.
    pub ranges: Vec<(Range, LockKind)>,
    /// The ranges for which the owner waits.
    pub waiting: Vec<(Range, LockKind)>,
}

/// The position after a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEnd(OwnerId, FileId);

impl<F: Clone + Eq + Hash> LockTable<F> {
    /// Returns the next page of a client's locks and shares, and the position to continue from if there may be more.
    /// The page begins after the position `after`. It has at least `max` shares, locks and waiting requests, if there
    /// are that many.
    pub fn held_by(&self, client: LockClient, after: Option<PageEnd>, max: usize) -> (Vec<Held<F>>, Option<PageEnd>) {
        let (mut page, mut count) = (Vec::new(), 0);
        for owner in self.owners.of_client_from(client, after.map(|PageEnd(owner, _)| owner)) {
            let last = after.filter(|PageEnd(last, _)| *last == owner).map(|PageEnd(_, file)| file);
            for &file in self.owners.files_after(owner, last) {
                let held = self.held(file, owner);
                count += 1 + held.ranges.len() + held.waiting.len();
                page.push(held);
                if count >= max {
                    return (page, Some(PageEnd(owner, file)));
                }
            }
        }
        (page, None)
    }

    fn held(&self, file: FileId, id: OwnerId) -> Held<F> {
        let (file, owner) = (&self.files[&file], &self.owners.state(id).owner);
        let waiting = file.waiting.iter().filter(|waiter| waiter.owner == id);
        Held {
            file: file.key.clone(),
            owner: owner.clone(),
            share: file.shares.iter().find(|(other, _)| *other == id).map(|(_, share)| *share),
            ranges: file.ranges(id).map(|ranges| ranges.iter().collect()).unwrap_or_default(),
            waiting: waiting.map(|waiter| (waiter.range, waiter.kind)).collect(),
        }
    }
}
