//! What a client has, for people to see: page by page, so that nobody waits for all of it.

use std::{hash::Hash, sync::Arc};

use super::{FileId, LockClient, LockKind, LockTable, Owner, OwnerId, Range, Share};

/// What one owner has in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<F> {
    /// The file.
    pub file: F,
    /// Whose it is.
    pub owner: Arc<Owner>,
    /// What the file is open for.
    pub share: Option<Share>,
    /// What is locked.
    pub ranges: Vec<(Range, LockKind)>,
    /// What is waited for.
    pub waiting: Vec<(Range, LockKind)>,
}

/// Where a page ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEnd(OwnerId, FileId);

impl<F: Clone + Eq + Hash> LockTable<F> {
    /// What a client has behind the page that ended there, in at least `max` shares and ranges if there are as many; and where
    /// to go on, if there may be more.
    pub fn held_by(&self, client: LockClient, after: Option<PageEnd>, max: usize) -> (Vec<Held<F>>, Option<PageEnd>) {
        let (mut page, mut count) = (Vec::new(), 0);
        for owner in self.owners.of_client_from(client, after.map(|PageEnd(owner, _)| owner)) {
            let last = after.filter(|PageEnd(last, _)| *last == owner).map(|PageEnd(_, file)| file);
            for &file in self.owners.files_behind(owner, last) {
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
