//! [`Owners`]: the sequences of NFSv4.0's open-owners and lock-owners.
//!
//! Read RFC 7530 §9.1.7–9.1.11. Version 4.0 has no sessions: what an operation changes, it changes on behalf of an owner,
//! and each owner's operations are counted. The last one's result is kept, so that it is told again if it is asked
//! again, and nothing happens twice.
//!
//! `K` is what a result is kept as.

use bytes::Bytes;
use entropy::HashMap;
use nfs::v4::{Clientid4, Nfsstat4, Seqid4};

use super::ids::Other;
use crate::hash::Map;

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

/// The result of an operation that an owner's sequence has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<F> {
    /// How it went.
    pub status: Nfsstat4,
    /// As it was sent.
    pub result: Bytes,
    /// What has become the current file handle by it.
    pub file: Option<F>,
}

/// How many owners there can be.
#[derive(Clone, Copy, Debug)]
pub struct OwnerLimits {
    /// Of one client.
    pub client_max: usize,
    /// Of all. From a half on the rest is shared out among as many clients as there can be.
    pub max: usize,
    /// Most clients.
    pub clients_max: usize,
}

/// All owners.
#[derive(Debug)]
pub struct Owners<K> {
    clients: Map<Clientid4, OfClient<K>>,
    count: usize,
    /// Whose last operation has closed what.
    closed: Map<Other, OwnerName>,
    limits: OwnerLimits,
}

/// Those of one client, which has at least one.
type OfClient<K> = HashMap<(OwnerKind, Bytes), Owner<K>>;

#[derive(Debug)]
struct Owner<K> {
    seqid: u32,
    confirmed: bool,
    busy: bool,
    kept: Option<K>,
    closed: Option<Other>,
}

impl OwnerName {
    fn key(&self) -> (OwnerKind, Bytes) {
        (self.kind, self.name.clone())
    }
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
    /// None.
    pub fn new(limits: OwnerLimits) -> Self {
        Self { clients: Map::default(), count: 0, closed: Map::default(), limits }
    }

    fn find(&self, name: &OwnerName) -> Option<&Owner<K>> {
        self.clients.get(&name.client)?.get(&name.key())
    }

    fn find_mut(&mut self, name: &OwnerName) -> Option<&mut Owner<K>> {
        self.clients.get_mut(&name.client)?.get_mut(&name.key())
    }

    /// Whether an owner has been confirmed. One that nothing is known of has nothing to be confirmed.
    pub fn is_confirmed(&self, owner: &OwnerName) -> bool {
        self.find(owner).is_none_or(|owner| owner.confirmed)
    }

    /// Says that an owner is confirmed.
    pub fn confirm(&mut self, owner: &OwnerName) {
        if let Some(owner) = self.find_mut(owner) {
            owner.confirmed = true;
        }
    }

    /// Whether an operation of a client is being executed.
    pub fn is_busy(&self, client: Clientid4) -> bool {
        self.clients.get(&client).is_some_and(|owners| owners.values().any(|owner| owner.busy))
    }

    /// An operation of an owner begins. `opens` says that it is OPEN, by which an owner is introduced; a lock-owner is
    /// introduced by LOCK, and needs no confirmation.
    ///
    /// # Errors
    /// BAD_SEQID if it is not this operation's turn; DELAY while another is being executed; RESOURCE if the client has
    /// too many owners.
    pub fn begin(&mut self, name: &OwnerName, Seqid4(seqid): Seqid4, opens: bool) -> Result<Turn<K>, Nfsstat4> {
        let Some(owner) = self.find_mut(name) else {
            if !self.has_room(name.client) {
                return Err(Nfsstat4::Resource);
            }
            let confirmed = name.kind == OwnerKind::Lock;
            let seqid = seqid.wrapping_sub(1);
            let owner = Owner { seqid, confirmed, busy: true, kept: None, closed: None };
            self.clients.entry(name.client).or_default().insert(name.key(), owner);
            self.count += 1;
            return Ok(Turn::Execute);
        };
        if owner.busy {
            return Err(Nfsstat4::Delay);
        }
        if let Some(kept) = owner.kept.as_ref().filter(|_| seqid == owner.seqid) {
            return Ok(Turn::Replay(kept.clone()));
        }
        let turn = match opens && !owner.confirmed {
            true => Turn::StartAnew,
            false if seqid != owner.seqid.wrapping_add(1) => return Err(Nfsstat4::BadSeqid),
            false => Turn::Execute,
        };
        (owner.seqid, owner.busy) = (seqid.wrapping_sub(1), true);
        if let Some(other) = owner.closed.take() {
            self.closed.remove(&other);
        }
        Ok(turn)
    }

    /// Ends an operation that was executed.
    pub fn end(&mut self, name: &OwnerName, status: Nfsstat4, kept: K) {
        let Some(owner) = self.find_mut(name) else { return };
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
        if let Some(owner) = self.find_mut(name) {
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
        let Some(owners) = self.clients.get_mut(&name.client) else { return };
        let Some(owner) = owners.remove(&name.key()) else { return };
        if owners.is_empty() {
            self.clients.remove(&name.client);
        }
        self.forgotten([owner]);
    }

    /// Forgets those of a client.
    pub fn remove_client(&mut self, client: Clientid4) {
        let owners = self.clients.remove(&client).unwrap_or_default();
        self.forgotten(owners.into_values());
    }

    /// Forgets those of a client for which `keep` says no, to have room for others. Those that are at work stay.
    pub fn retain(&mut self, client: Clientid4, keep: impl Fn(&OwnerName) -> bool) {
        let Some(owners) = self.clients.get_mut(&client) else { return };
        let stays = |(kind, name): &(OwnerKind, Bytes)| keep(&OwnerName { client, kind: *kind, name: name.clone() });
        let idle: Vec<_> = owners.extract_if(|key, owner| !owner.busy && !stays(key)).map(|(_, owner)| owner).collect();
        if owners.is_empty() {
            self.clients.remove(&client);
        }
        self.forgotten(idle);
    }

    fn forgotten(&mut self, owners: impl IntoIterator<Item = Owner<K>>) {
        for owner in owners {
            self.count -= 1;
            owner.closed.into_iter().for_each(|other| drop(self.closed.remove(&other)));
        }
    }

    /// Whether a client may have one more.
    pub fn has_room(&self, client: Clientid4) -> bool {
        let OwnerLimits { client_max, max, clients_max } = self.limits;
        let most = if self.count < max / 2 { client_max } else { max / 2 / clients_max };
        self.clients.get(&client).map_or(0, HashMap::len) < most
    }

    /// Checks that all tables agree, and that all owners are of such clients.
    #[cfg(test)]
    pub(super) fn check(&self, is_client: impl Fn(Clientid4) -> bool) {
        assert!(self.clients.iter().all(|(client, owners)| is_client(*client) && !owners.is_empty()));
        assert_eq!(self.count, self.clients.values().map(HashMap::len).sum::<usize>());
        let closed = self.clients.values().flat_map(HashMap::values).filter(|owner| owner.closed.is_some()).count();
        assert_eq!(self.closed.len(), closed);
        assert!(self.closed.iter().all(|(other, name)| self.find(name).is_some_and(|it| it.closed == Some(*other))));
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

    fn limits(client_max: usize) -> OwnerLimits {
        OwnerLimits { client_max, max: 8, clients_max: 4 }
    }

    fn owner(kind: OwnerKind) -> OwnerName {
        OwnerName { client: Clientid4(1), kind, name: Bytes::from_static(b"o") }
    }

    #[test]
    fn operations_of_an_owner_are_executed_once_and_in_order() {
        let (mut owners, name) = (Owners::new(limits(2)), owner(OwnerKind::Open));
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
        let (mut owners, name) = (Owners::new(limits(2)), owner(OwnerKind::Open));
        assert_eq!(owners.begin(&name, Seqid4(1), true), Ok(Turn::Execute));
        owners.end(&name, Nfsstat4::Ok, "open");
        assert_eq!(owners.begin(&name, Seqid4(5), false), Err(Nfsstat4::BadSeqid), "only by OPEN");
        assert_eq!(owners.begin(&name, Seqid4(5), true), Ok(Turn::StartAnew));
        owners.end(&name, Nfsstat4::Ok, "open again");
        assert_eq!(owners.begin(&name, Seqid4(5), true), Ok(Turn::Replay("open again")));
    }

    #[test]
    fn sequences_wrap_around_and_owners_are_bounded() {
        let (mut owners, name) = (Owners::new(limits(1)), owner(OwnerKind::Lock));
        assert_eq!(owners.begin(&name, Seqid4(u32::MAX), false), Ok(Turn::Execute));
        owners.end(&name, Nfsstat4::Ok, ());
        assert_eq!(owners.begin(&name, Seqid4(0), false), Ok(Turn::Execute));
        owners.end(&name, Nfsstat4::Ok, ());
        assert!(owners.is_confirmed(&name) && !owners.has_room(Clientid4(1)));
        assert_eq!(owners.begin(&owner(OwnerKind::Open), Seqid4(1), true), Err(Nfsstat4::Resource));
        owners.retain(Clientid4(1), |_| false);
        assert!(owners.has_room(Clientid4(1)) && owners.count == 0);
        assert_eq!(owners.begin(&owner(OwnerKind::Open), Seqid4(1), true), Ok(Turn::Execute));
        owners.end(&owner(OwnerKind::Open), Nfsstat4::NoFileHandle, ());
        assert!(owners.clients.is_empty(), "introduced in vain");
    }
}
