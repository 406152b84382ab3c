//! [`Owners`]: the sequence IDs of NFSv4.0's open-owners and lock-owners.
//!
//! Read RFC 7530 §9.1.7–9.1.11. Version 4.0 has no sessions: an operation that changes state names an owner and carries
//! that owner's sequence ID. The result of an owner's last operation is cached, so that a retry gets the same result
//! and executes nothing.
//!
//! `K` is the form in which a result is cached.

use bytes::Bytes;
use entropy::HashMap;
use nfs::v4::{Clientid4, Nfsstat4, Seqid4};
use rpc::Xprtsec;

use super::ids::{Other, Principal};
use crate::{export::sec::Sec, hash::Map};

/// The identity of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerName {
    /// The client.
    pub client: Clientid4,
    /// The kind. Open-owners and lock-owners are different owners, even if their names are equal.
    pub kind: OwnerKind,
    /// The name that the client chose.
    pub name: Bytes,
}

/// The kinds of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnerKind {
    /// An open-owner.
    Open,
    /// A lock-owner.
    Lock,
}

/// The cached result of an operation with a sequence ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<F> {
    /// The status.
    pub status: Nfsstat4,
    /// The encoded result.
    pub result: Bytes,
    /// The current file handle after the operation.
    pub file: Option<F>,
    /// The caller. Only the same caller gets the result again.
    pub caller: Caller,
}

/// The sender of an operation, and the protection of its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The principal.
    pub principal: Principal,
    /// The security flavour.
    pub sec: Option<Sec>,
    /// The protection of the connection by TLS.
    pub tls: Xprtsec,
}

impl Caller {
    /// Returns how strongly the call is protected.
    pub fn strength(&self) -> Strength {
        Strength { is_proved: self.principal.is_proved(), tls: self.tls }
    }
}

/// The protection of a call against callers that claim to be its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strength {
    /// `true` if RPCSEC_GSS proves the principal.
    pub is_proved: bool,
    /// The protection of the connection by TLS.
    pub tls: Xprtsec,
}

impl Strength {
    /// Returns `true` if a call of this strength must not use what one of `other` has made. A proved principal needs no TLS.
    pub fn is_weaker_than(self, other: Self) -> bool {
        !self.is_proved && (other.is_proved || self.tls < other.tls)
    }
}

/// Limits on the number of owners.
#[derive(Clone, Copy, Debug)]
pub struct OwnerLimits {
    /// The maximum for one client.
    pub client_max: usize,
    /// The maximum for all clients. The second half is reserved in equal shares for `clients_max` clients.
    pub max: usize,
    /// The maximum number of clients.
    pub clients_max: usize,
}

/// All owners.
#[derive(Debug)]
pub struct Owners<K> {
    clients: Map<Clientid4, OfClient<K>>,
    count: usize,
    /// The owners whose last operation closed a stateid.
    closed: Map<Other, OwnerName>,
    limits: OwnerLimits,
}

/// The owners of a client that has at least one.
type OfClient<K> = HashMap<(OwnerKind, Bytes), Owner<K>>;

#[derive(Debug)]
struct Owner<K> {
    /// The strength of the call that created the owner.
    strength: Strength,
    seqid: u32,
    confirmed: bool,
    busy: bool,
    kept: Option<K>,
    closed: Option<Other>,
    /// The principal of its last OPEN that succeeded.
    opener: Option<Principal>,
}

impl OwnerName {
    fn key(&self) -> (OwnerKind, Bytes) {
        (self.kind, self.name.clone())
    }
}

/// The decision about an operation with a sequence ID.
#[derive(Debug, PartialEq, Eq)]
pub enum SeqidCheck<K> {
    /// Execute the operation, then call [`Owners::end`].
    Execute,
    /// Close the opens of the owner, which were never confirmed (§9.1.11), then do as for `Execute`.
    CloseUnconfirmed,
    /// The operation is a retry, with this cached result.
    Replay(K),
}

impl<K: Clone> Owners<K> {
    /// Creates an empty table.
    pub fn new(limits: OwnerLimits) -> Self {
        Self { clients: Map::default(), count: 0, closed: Map::default(), limits }
    }

    fn find(&self, name: &OwnerName) -> Option<&Owner<K>> {
        self.clients.get(&name.client)?.get(&name.key())
    }

    fn find_mut(&mut self, name: &OwnerName) -> Option<&mut Owner<K>> {
        self.clients.get_mut(&name.client)?.get_mut(&name.key())
    }

    /// Returns `true` if an owner is confirmed. An unknown owner has nothing to confirm.
    pub fn is_confirmed(&self, owner: &OwnerName) -> bool {
        self.find(owner).is_none_or(|owner| owner.confirmed)
    }

    /// Marks an owner as confirmed.
    pub fn confirm(&mut self, owner: &OwnerName) {
        if let Some(owner) = self.find_mut(owner) {
            owner.confirmed = true;
        }
    }

    /// Returns `true` if an operation of a client is in progress.
    pub fn is_busy(&self, client: Clientid4) -> bool {
        self.clients.get(&client).is_some_and(|owners| owners.values().any(|owner| owner.busy))
    }

    /// Returns `true` if a call of this strength must not use an owner, or what it has opened or locked.
    pub fn refuses(&self, owner: &OwnerName, by: Strength) -> bool {
        self.find(owner).is_some_and(|owner| by.is_weaker_than(owner.strength))
    }

    /// Begins an operation of an owner. `opens` is `true` for OPEN, which creates an open-owner. LOCK creates a
    /// lock-owner, which needs no confirmation.
    ///
    /// # Errors
    /// BAD_SEQID if the sequence ID is not the next one, or the call is weaker than the one that created the owner; DELAY
    /// while another operation is in progress; RESOURCE if the client has too many owners.
    pub fn begin(
        &mut self,
        name: &OwnerName,
        Seqid4(seqid): Seqid4,
        opens: bool,
        by: Strength,
    ) -> Result<SeqidCheck<K>, Nfsstat4> {
        let Some(owner) = self.find_mut(name) else {
            if !self.has_room(name.client) {
                return Err(Nfsstat4::Resource);
            }
            let confirmed = name.kind == OwnerKind::Lock;
            let seqid = seqid.wrapping_sub(1);
            let owner = Owner { strength: by, seqid, confirmed, busy: true, kept: None, closed: None, opener: None };
            self.clients.entry(name.client).or_default().insert(name.key(), owner);
            self.count += 1;
            return Ok(SeqidCheck::Execute);
        };
        if by.is_weaker_than(owner.strength) {
            return Err(Nfsstat4::BadSeqid);
        }
        if owner.busy {
            return Err(Nfsstat4::Delay);
        }
        if let Some(kept) = owner.kept.as_ref().filter(|_| seqid == owner.seqid) {
            return Ok(SeqidCheck::Replay(kept.clone()));
        }
        let turn = match opens && !owner.confirmed {
            true => SeqidCheck::CloseUnconfirmed,
            false if seqid != owner.seqid.wrapping_add(1) => return Err(Nfsstat4::BadSeqid),
            false => SeqidCheck::Execute,
        };
        if matches!(turn, SeqidCheck::CloseUnconfirmed) {
            // The owner begins anew with this call.
            owner.strength = by;
        }
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
            // This operation created the owner and failed.
            self.remove(name);
        }
    }

    /// Notes the principal of an OPEN of an owner that has succeeded.
    pub fn note_opener(&mut self, name: &OwnerName, principal: &Principal) {
        if let Some(owner) = self.find_mut(name) {
            owner.opener = Some(principal.clone());
        }
    }

    /// Returns `true` if the last OPEN of an owner was by this principal.
    pub fn was_opened_by(&self, name: &OwnerName, principal: &Principal) -> bool {
        self.find(name).and_then(|owner| owner.opener.as_ref()).is_some_and(|opener| opener.is_same_user(principal))
    }

    /// Notes that the last operation of an owner closed a stateid. A retry of CLOSE finds the owner by that stateid.
    pub fn note_closed(&mut self, name: &OwnerName, other: Other) {
        if let Some(owner) = self.find_mut(name) {
            owner.closed = Some(other);
            self.closed.insert(other, name.clone());
        }
    }

    /// Returns the owner whose last operation closed a stateid.
    pub fn closer_of(&self, other: &Other) -> Option<&OwnerName> {
        self.closed.get(other)
    }

    /// Removes an owner.
    pub fn remove(&mut self, name: &OwnerName) {
        let Some(owners) = self.clients.get_mut(&name.client) else { return };
        let Some(owner) = owners.remove(&name.key()) else { return };
        if owners.is_empty() {
            self.clients.remove(&name.client);
        }
        self.note_removed([owner]);
    }

    /// Removes the owners of a client.
    pub fn remove_client(&mut self, client: Clientid4) {
        let owners = self.clients.remove(&client).unwrap_or_default();
        self.note_removed(owners.into_values());
    }

    /// Removes the owners of a client for which `keep` returns `false`, except those with an operation in progress.
    pub fn retain(&mut self, client: Clientid4, keep: impl Fn(&OwnerName) -> bool) {
        let Some(owners) = self.clients.get_mut(&client) else { return };
        let stays = |(kind, name): &(OwnerKind, Bytes)| keep(&OwnerName { client, kind: *kind, name: name.clone() });
        let idle: Vec<_> = owners.extract_if(|key, owner| !owner.busy && !stays(key)).map(|(_, owner)| owner).collect();
        if owners.is_empty() {
            self.clients.remove(&client);
        }
        self.note_removed(idle);
    }

    fn note_removed(&mut self, owners: impl IntoIterator<Item = Owner<K>>) {
        for owner in owners {
            self.count -= 1;
            owner.closed.into_iter().for_each(|other| drop(self.closed.remove(&other)));
        }
    }

    /// Returns `true` if a client may have one more owner.
    pub fn has_room(&self, client: Clientid4) -> bool {
        let OwnerLimits { client_max, max, clients_max } = self.limits;
        let most = if self.count < max / 2 { client_max } else { max / 2 / clients_max };
        self.clients.get(&client).map_or(0, HashMap::len) < most
    }

    /// Checks that all tables agree, and that all clients exist according to `is_client`.
    #[cfg(test)]
    pub(super) fn check(&self, is_client: impl Fn(Clientid4) -> bool) {
        assert!(self.clients.iter().all(|(client, owners)| is_client(*client) && !owners.is_empty()));
        assert_eq!(self.count, self.clients.values().map(HashMap::len).sum::<usize>());
        let closed = self.clients.values().flat_map(HashMap::values).filter(|owner| owner.closed.is_some()).count();
        assert_eq!(self.closed.len(), closed);
        assert!(self.closed.iter().all(|(other, name)| self.find(name).is_some_and(|it| it.closed == Some(*other))));
    }
}

/// Returns `true` if an operation with this status advances the sequence ID (§9.1.7).
fn counts(status: Nfsstat4) -> bool {
    use Nfsstat4::*;
    !matches!(status, StaleClientid | StaleStateid | BadStateid | BadSeqid | BadXdr | Resource | NoFileHandle | Moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAR: Strength = Strength { is_proved: false, tls: Xprtsec::None };
    const TLS: Strength = Strength { is_proved: false, tls: Xprtsec::Tls };
    const PROVED: Strength = Strength { is_proved: true, tls: Xprtsec::None };

    fn limits(client_max: usize) -> OwnerLimits {
        OwnerLimits { client_max, max: 8, clients_max: 4 }
    }

    fn owner(kind: OwnerKind) -> OwnerName {
        OwnerName { client: Clientid4(1), kind, name: Bytes::from_static(b"o") }
    }

    #[test]
    fn operations_of_an_owner_are_executed_once_and_in_order() {
        let (mut owners, name) = (Owners::new(limits(2)), owner(OwnerKind::Open));
        assert_eq!(
            owners.begin(&name, Seqid4(7), true, CLEAR),
            Ok(SeqidCheck::Execute),
            "the first sequence ID is arbitrary"
        );
        assert_eq!(owners.begin(&name, Seqid4(7), true, CLEAR), Err(Nfsstat4::Delay), "the operation is in progress");
        owners.end(&name, Nfsstat4::Ok, "open");
        assert_eq!(owners.begin(&name, Seqid4(7), true, CLEAR), Ok(SeqidCheck::Replay("open")));
        assert!(!owners.is_confirmed(&name));
        assert_eq!(owners.begin(&name, Seqid4(8), false, CLEAR), Ok(SeqidCheck::Execute));
        owners.confirm(&name);
        owners.end(&name, Nfsstat4::Ok, "confirm");
        for wrong in [6, 7, 10] {
            assert_eq!(owners.begin(&name, Seqid4(wrong), true, CLEAR), Err(Nfsstat4::BadSeqid));
        }
        assert_eq!(owners.begin(&name, Seqid4(9), true, CLEAR), Ok(SeqidCheck::Execute));
        owners.end(&name, Nfsstat4::Access, "refused");
        assert_eq!(
            owners.begin(&name, Seqid4(9), true, CLEAR),
            Ok(SeqidCheck::Replay("refused")),
            "an error advances the sequence ID"
        );
        assert_eq!(owners.begin(&name, Seqid4(10), false, CLEAR), Ok(SeqidCheck::Execute));
        owners.end(&name, Nfsstat4::BadStateid, "nonsense");
        assert_eq!(
            owners.begin(&name, Seqid4(10), false, CLEAR),
            Ok(SeqidCheck::Execute),
            "these errors do not advance the sequence ID"
        );
    }

    #[test]
    fn weaker_caller_does_not_use_an_owner() {
        for (first, weaker, others) in [(TLS, vec![CLEAR], vec![PROVED]), (PROVED, vec![CLEAR, TLS], vec![])] {
            let (mut owners, name) = (Owners::new(limits(3)), owner(OwnerKind::Open));
            assert_eq!(owners.begin(&name, Seqid4(1), true, first), Ok(SeqidCheck::Execute));
            let refused = |owners: &mut Owners<()>, by| {
                assert!(owners.refuses(&name, by), "{by:?}");
                for seqid in [1, 2, 3] {
                    assert_eq!(owners.begin(&name, Seqid4(seqid), true, by), Err(Nfsstat4::BadSeqid), "{by:?}");
                }
            };
            weaker.iter().for_each(|by| refused(&mut owners, *by));
            owners.end(&name, Nfsstat4::Ok, ());
            weaker.iter().for_each(|by| refused(&mut owners, *by));
            owners.confirm(&name);
            weaker.iter().for_each(|by| refused(&mut owners, *by));
            for (by, seqid) in [first].into_iter().chain(others).zip(2..) {
                assert!(!owners.refuses(&name, by));
                assert_eq!(owners.begin(&name, Seqid4(seqid), false, by), Ok(SeqidCheck::Execute));
                owners.end(&name, Nfsstat4::Ok, ());
            }
        }
    }

    #[test]
    fn unconfirmed_owner_may_open_with_any_sequence_id() {
        let (mut owners, name) = (Owners::new(limits(2)), owner(OwnerKind::Open));
        assert_eq!(owners.begin(&name, Seqid4(1), true, CLEAR), Ok(SeqidCheck::Execute));
        owners.end(&name, Nfsstat4::Ok, "open");
        assert_eq!(
            owners.begin(&name, Seqid4(5), false, CLEAR),
            Err(Nfsstat4::BadSeqid),
            "only OPEN may restart the sequence"
        );
        assert_eq!(owners.begin(&name, Seqid4(5), true, CLEAR), Ok(SeqidCheck::CloseUnconfirmed));
        owners.end(&name, Nfsstat4::Ok, "open again");
        assert_eq!(owners.begin(&name, Seqid4(5), true, CLEAR), Ok(SeqidCheck::Replay("open again")));
    }

    #[test]
    fn sequence_ids_wrap_around_and_owners_are_bounded() {
        let (mut owners, name) = (Owners::new(limits(1)), owner(OwnerKind::Lock));
        assert_eq!(owners.begin(&name, Seqid4(u32::MAX), false, CLEAR), Ok(SeqidCheck::Execute));
        owners.end(&name, Nfsstat4::Ok, ());
        assert_eq!(owners.begin(&name, Seqid4(0), false, CLEAR), Ok(SeqidCheck::Execute));
        owners.end(&name, Nfsstat4::Ok, ());
        assert!(owners.is_confirmed(&name) && !owners.has_room(Clientid4(1)));
        assert_eq!(owners.begin(&owner(OwnerKind::Open), Seqid4(1), true, CLEAR), Err(Nfsstat4::Resource));
        owners.retain(Clientid4(1), |_| false);
        assert!(owners.has_room(Clientid4(1)) && owners.count == 0);
        assert_eq!(owners.begin(&owner(OwnerKind::Open), Seqid4(1), true, CLEAR), Ok(SeqidCheck::Execute));
        owners.end(&owner(OwnerKind::Open), Nfsstat4::NoFileHandle, ());
        assert!(owners.clients.is_empty(), "a failed operation must not leave an owner");
    }

    fn begin(owners: &mut Owners<()>, client: u64, name: &'static str) -> OwnerName {
        let name =
            OwnerName { client: Clientid4(client), kind: OwnerKind::Lock, name: Bytes::from_static(name.as_bytes()) };
        assert_eq!(owners.begin(&name, Seqid4(1), false, CLEAR), Ok(SeqidCheck::Execute));
        name
    }

    #[test]
    fn second_half_of_the_owners_is_shared_equally() {
        let mut owners = Owners::new(OwnerLimits { client_max: 3, max: 8, clients_max: 2 });
        for (client, name) in [(1, "a"), (1, "b"), (2, "a")] {
            begin(&mut owners, client, name);
        }
        assert!(owners.has_room(Clientid4(1)), "less than half are in use");
        begin(&mut owners, 2, "b");
        assert!(!owners.has_room(Clientid4(1)) && !owners.has_room(Clientid4(2)), "each share is two");
        assert!(owners.has_room(Clientid4(3)));
    }

    #[test]
    fn owner_with_an_operation_in_progress_is_busy_and_stays() {
        let mut owners = Owners::new(limits(3));
        let (busy, idle) = (begin(&mut owners, 1, "busy"), begin(&mut owners, 1, "idle"));
        owners.end(&idle, Nfsstat4::Ok, ());
        assert!(owners.is_busy(Clientid4(1)) && !owners.is_busy(Clientid4(2)));
        owners.retain(Clientid4(1), |_| false);
        assert!(owners.find(&busy).is_some() && owners.find(&idle).is_none());
        owners.end(&busy, Nfsstat4::Ok, ());
        owners.retain(Clientid4(1), |name| name.name == "busy");
        assert!(owners.find(&busy).is_some() && !owners.is_busy(Clientid4(1)));
        owners.remove_client(Clientid4(1));
        assert_eq!((owners.count, owners.clients.len()), (0, 0));
    }
}
