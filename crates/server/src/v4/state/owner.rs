//! [`Owners`]: the sequences of NFSv4.0's open-owners and lock-owners.
//!
//! Read RFC 7530 §9.1.7–9.1.11. Version 4.0 has no sessions: what an operation changes, it changes on behalf of an owner,
//! and each owner's operations are counted. The last one's result is kept, so that it is told again if it is asked
//! again, and nothing happens twice.
//!
//! `K` is what a result is kept as.

use std::collections::HashMap;

use bytes::Bytes;
use nfs::v4::{Clientid4, Nfsstat4, Seqid4};

use super::stateid::Other;

/// Names an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerName {
    /// Whose.
    pub client: Clientid4,
    /// Open-owners and lock-owners are apart, also when they are called the same.
    pub kind: OwnerKind,
    /// Its name.
    pub name: Bytes,
}

/// The kinds of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnerKind {
    /// Of opens.
    Open,
    /// Of locks.
    Lock,
}

/// All owners.
#[derive(Debug)]
pub struct Owners<K> {
    owners: HashMap<OwnerName, Owner<K>>,
    by_client: HashMap<Clientid4, usize>,
    /// Whose last operation has closed what.
    closed: HashMap<Other, OwnerName>,
    client_owners_max: usize,
}

#[derive(Debug)]
struct Owner<K> {
    seqid: u32,
    confirmed: bool,
    busy: bool,
    kept: Option<K>,
    closed: Option<Other>,
}

/// What is to be done with an operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn<K> {
    /// It is to be executed, and then ended by [`Owners::end`].
    Execute,
    /// As that, after what the owner has open, which it has never confirmed, is closed (§9.1.11).
    StartAnew,
    /// It was executed, with this result.
    Replay(K),
}

impl<K: Clone> Owners<K> {
    /// None; a client may have so many.
    pub fn new(client_owners_max: usize) -> Self {
        Self { owners: HashMap::new(), by_client: HashMap::new(), closed: HashMap::new(), client_owners_max }
    }

    /// Whether an owner has been confirmed. One that nothing is known of has nothing to be confirmed.
    pub fn is_confirmed(&self, owner: &OwnerName) -> bool {
        self.owners.get(owner).is_none_or(|owner| owner.confirmed)
    }

    /// Says that an owner is confirmed.
    pub fn confirm(&mut self, owner: &OwnerName) {
        if let Some(owner) = self.owners.get_mut(owner) {
            owner.confirmed = true;
        }
    }

    /// An operation of an owner begins. `opens` says that it is OPEN, by which an owner is introduced; a lock-owner is
    /// introduced by LOCK, and needs no confirmation.
    ///
    /// # Errors
    /// BAD_SEQID if it is not this operation's turn; DELAY while another is being executed; RESOURCE if the client has
    /// too many owners.
    pub fn begin(&mut self, name: &OwnerName, Seqid4(seqid): Seqid4, opens: bool) -> Result<Turn<K>, Nfsstat4> {
        let Some(owner) = self.owners.get_mut(name) else {
            let count = self.by_client.entry(name.client).or_default();
            if *count >= self.client_owners_max {
                return Err(Nfsstat4::Resource);
            }
            *count += 1;
            let confirmed = name.kind == OwnerKind::Lock;
            let before = seqid.wrapping_sub(1);
            self.owners.insert(name.clone(), Owner { seqid: before, confirmed, busy: true, kept: None, closed: None });
            return Ok(Turn::Execute);
        };
        if owner.busy {
            return Err(Nfsstat4::Delay);
        }
        if let Some(kept) = owner.kept.as_ref().filter(|_| seqid == owner.seqid) {
            return Ok(Turn::Replay(kept.clone()));
        }
        if let Some(other) = owner.closed.take() {
            self.closed.remove(&other);
        }
        if opens && !owner.confirmed {
            (owner.seqid, owner.busy) = (seqid.wrapping_sub(1), true);
            return Ok(Turn::StartAnew);
        }
        if seqid != owner.seqid.wrapping_add(1) {
            return Err(Nfsstat4::BadSeqid);
        }
        owner.busy = true;
        Ok(Turn::Execute)
    }

    /// Ends an operation that was executed.
    pub fn end(&mut self, name: &OwnerName, status: Nfsstat4, kept: K) {
        let Some(owner) = self.owners.get_mut(name) else { return };
        owner.busy = false;
        if counts(status) {
            owner.seqid = owner.seqid.wrapping_add(1);
            owner.kept = Some(kept);
        } else if owner.kept.is_none() {
            // It was introduced by this, in vain.
            self.remove(name);
        }
    }

    /// The last operation of an owner has closed this, which names the owner until its next.
    pub fn has_closed(&mut self, name: &OwnerName, other: Other) {
        if let Some(owner) = self.owners.get_mut(name) {
            owner.closed = Some(other);
            self.closed.insert(other, name.clone());
        }
    }

    /// Whose last operation has closed this.
    pub fn who_closed(&self, other: &Other) -> Option<&OwnerName> {
        self.closed.get(other)
    }

    /// Forgets an owner.
    pub fn remove(&mut self, name: &OwnerName) {
        if let Some(owner) = self.owners.remove(name) {
            if let Some(other) = owner.closed {
                self.closed.remove(&other);
            }
            let count = self.by_client.get_mut(&name.client).expect("it was counted");
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&name.client);
            }
        }
    }

    /// Forgets those of a client.
    pub fn remove_client(&mut self, client: Clientid4) {
        if self.by_client.remove(&client).is_some() {
            self.owners.retain(|name, _| name.client != client);
            self.closed.retain(|_, name| name.client != client);
        }
    }

    /// Forgets those of a client for which `keep` says no, to have room for others. Those that are at work stay.
    pub fn retain(&mut self, client: Clientid4, keep: impl Fn(&OwnerName) -> bool) {
        let idle: Vec<_> =
            self.owners.iter().filter(|(name, owner)| name.client == client && !owner.busy && !keep(name)).collect();
        let idle: Vec<_> = idle.into_iter().map(|(name, _)| name.clone()).collect();
        idle.iter().for_each(|name| self.remove(name));
    }

    /// Whether a client may have one more.
    pub fn has_room(&self, client: Clientid4) -> bool {
        self.by_client.get(&client).is_none_or(|count| *count < self.client_owners_max)
    }
}

/// Whether an operation that ended so was one of the sequence (§9.1.7).
fn counts(status: Nfsstat4) -> bool {
    use Nfsstat4::*;
    !matches!(status, StaleClientid | StaleStateid | BadStateid | BadSeqid | BadXdr | Resource | NoFileHandle | Moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(kind: OwnerKind) -> OwnerName {
        OwnerName { client: Clientid4(1), kind, name: Bytes::from_static(b"o") }
    }

    #[test]
    fn operations_of_an_owner_are_executed_once_and_in_order() {
        let (mut owners, name) = (Owners::new(2), owner(OwnerKind::Open));
        assert_eq!(owners.begin(&name, Seqid4(7), true), Ok(Turn::Execute), "the first may have any number");
        assert_eq!(owners.begin(&name, Seqid4(7), true), Err(Nfsstat4::Delay), "and is being executed");
        owners.end(&name, Nfsstat4::Ok, "open");
        assert_eq!(owners.begin(&name, Seqid4(7), true), Ok(Turn::Replay("open")));
        assert!(!owners.is_confirmed(&name));
        assert_eq!(owners.begin(&name, Seqid4(8), false), Ok(Turn::Execute));
        owners.confirm(&name);
        owners.end(&name, Nfsstat4::Ok, "confirm");
        for wrong in [6, 7, 10] {
            assert_eq!(owners.begin(&name, Seqid4(wrong), true), Err(Nfsstat4::BadSeqid));
        }
        assert_eq!(owners.begin(&name, Seqid4(9), true), Ok(Turn::Execute));
        owners.end(&name, Nfsstat4::Access, "refused");
        assert_eq!(owners.begin(&name, Seqid4(9), true), Ok(Turn::Replay("refused")), "an error counts as well");
        assert_eq!(owners.begin(&name, Seqid4(10), false), Ok(Turn::Execute));
        owners.end(&name, Nfsstat4::BadStateid, "nonsense");
        assert_eq!(owners.begin(&name, Seqid4(10), false), Ok(Turn::Execute), "unless it is of this kind");
    }

    #[test]
    fn an_owner_that_was_never_confirmed_may_start_anew() {
        let (mut owners, name) = (Owners::new(2), owner(OwnerKind::Open));
        assert_eq!(owners.begin(&name, Seqid4(1), true), Ok(Turn::Execute));
        owners.end(&name, Nfsstat4::Ok, "open");
        assert_eq!(owners.begin(&name, Seqid4(5), false), Err(Nfsstat4::BadSeqid), "only by OPEN");
        assert_eq!(owners.begin(&name, Seqid4(5), true), Ok(Turn::StartAnew));
        owners.end(&name, Nfsstat4::Ok, "open again");
        assert_eq!(owners.begin(&name, Seqid4(5), true), Ok(Turn::Replay("open again")));
    }

    #[test]
    fn sequences_wrap_around_and_owners_are_bounded() {
        let (mut owners, name) = (Owners::new(1), owner(OwnerKind::Lock));
        assert_eq!(owners.begin(&name, Seqid4(u32::MAX), false), Ok(Turn::Execute));
        owners.end(&name, Nfsstat4::Ok, ());
        assert_eq!(owners.begin(&name, Seqid4(0), false), Ok(Turn::Execute));
        owners.end(&name, Nfsstat4::Ok, ());
        assert!(owners.is_confirmed(&name) && !owners.has_room(Clientid4(1)));
        assert_eq!(owners.begin(&owner(OwnerKind::Open), Seqid4(1), true), Err(Nfsstat4::Resource));
        owners.retain(Clientid4(1), |_| false);
        assert!(owners.has_room(Clientid4(1)) && owners.owners.is_empty());
        assert_eq!(owners.begin(&owner(OwnerKind::Open), Seqid4(1), true), Ok(Turn::Execute));
        owners.end(&owner(OwnerKind::Open), Nfsstat4::NoFileHandle, ());
        assert!(owners.by_client.is_empty(), "introduced in vain");
    }
}
