//! [`Clients`]: the records that EXCHANGE_ID makes and CREATE_SESSION confirms.
//!
//! Read RFC 8881 §2.4 (client identifiers), §8.3 (leases), §18.35.4 (the nine cases of EXCHANGE_ID, which are numbered in
//! the code) and §18.36.4 (confirmation). A client owner has at most two records: the confirmed one, and an unconfirmed
//! one that will replace it or be forgotten.
//!
//! What an introduction comes to is planned first, which changes nothing and can fail; a [`Plan`] is then carried out by
//! [`State`](super::State), which cannot. A client owns its sessions.

mod v40;

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use nfs::v4::*;
use smallvec::SmallVec;

pub use self::v40::Legacy;
pub(super) use self::v40::Reach;
use super::{
    hosts::{Group, Hosts, Position, Rank},
    ids::{Principal, client_of},
    record::{Record, Stored},
    session::Session,
    shard::{Shard, Shards},
};
use crate::hash::Map;

/// A client, and its sessions, which are nobody else's and end with it.
#[derive(Debug)]
pub struct Client<R, F> {
    /// Its own name, and its incarnation.
    pub owner: ClientOwner4,
    /// Who introduced it.
    pub principal: Principal,
    /// Whose places and memory it uses.
    pub(super) group: Group,
    /// Its age, as a number: the higher, the younger.
    serial: u64,
    /// Whether it has made a session.
    pub confirmed: bool,
    /// Whether it has ever called by it.
    used: bool,
    /// How its state is protected.
    pub protect: StateProtect4R,
    /// What software it is, for people to read.
    pub implementation: Option<NfsImplId4>,
    /// Its sessions, in the order in which they were made.
    pub(super) sessions: Vec<Session>,
    /// Whether it has said that all is reclaimed.
    pub reclaim_complete: bool,
    /// The minor version that it spoke when it introduced itself, and is called in.
    pub minorversion: u32,
    /// Whether it is remembered over a restart.
    pub(super) record: Record,
    /// How far that is stored.
    pub(super) stored: Stored,
    /// When it was last about to get something.
    pub(super) wanted_at: Instant,
    /// Whether it is being evicted: nothing of its is begun any more.
    pub(super) evicted: bool,
    /// Whether the last attempt to call it has failed.
    pub(super) callbacks_fail: bool,
    /// What only a client of 4.0 has.
    pub legacy: Option<Legacy>,
    /// The same as it will be, once that is confirmed.
    update: Option<Legacy>,
    /// The last CREATE_SESSION: a reply cache of one slot.
    pub(super) created: Created,
    /// Its slots and its lease.
    pub(super) shard: Arc<Shard<R, F>>,
}

/// A CREATE_SESSION that was executed.
#[derive(Clone, Debug)]
pub(super) struct Created {
    pub(super) sequence: Sequenceid4,
    /// The principal that sent it.
    pub(super) by: Principal,
    pub(super) result: Result<CreateSessionOk, Nfsstat4>,
}

/// All clients.
#[derive(Debug)]
pub struct Clients<R, F> {
    by_id: Map<Clientid4, Client<R, F>>,
    shards: Shards<R, F>,
    by_owner: HashMap<Bytes, Records>,
    hosts: Hosts,
    sessions: usize,
    lease: Duration,
    clients_max: usize,
    /// The age of the next one.
    next_serial: u64,
}

/// The records of an owner.
#[derive(Clone, Copy, Debug, Default)]
struct Records {
    confirmed: Option<Clientid4>,
    unconfirmed: Option<Clientid4>,
}

/// What software a client is, without the message that said it.
fn kept(implementation: &NfsImplId4) -> NfsImplId4 {
    let NfsImplId4 { domain, name, date } = implementation;
    NfsImplId4 { domain: domain.detached(), name: name.detached(), date: *date }
}

/// What an introduction comes to, decided before anything is changed.
#[derive(Debug)]
pub(super) struct Plan<R, F> {
    /// Clients that end.
    pub(super) ended: SmallVec<[Clientid4; 3]>,
    /// What becomes of the one that introduces itself.
    pub(super) then: Then<R, F>,
}

/// What becomes of a client that introduces itself.
#[derive(Debug)]
pub(super) enum Then<R, F> {
    /// An unconfirmed record is added.
    Add(Box<Client<R, F>>),
    /// A record stays as it is.
    Keep(Clientid4),
    /// One is of this software.
    Implementation(Clientid4, Option<NfsImplId4>),
    /// One will be called elsewhere, once that is confirmed.
    Callback(Clientid4, Box<Legacy>),
}

/// Who introduces a client, and from where.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Who.
    pub principal: &'a Principal,
    /// From where.
    pub peer: IpAddr,
    /// Whether any export admits that host.
    pub admitted: bool,
}

/// What decides who makes room, beside the clients themselves.
#[derive(Clone, Copy)]
pub(super) struct Outlook<'a> {
    pub(super) now: Instant,
    /// Whether a client has opens, locks or delegations.
    pub(super) holds: &'a dyn Fn(Clientid4) -> bool,
    /// Where to begin to look among very many.
    pub(super) random: u64,
}

impl<R, F> Client<R, F> {
    /// One that is not confirmed.
    fn new(minorversion: u32, owner: &ClientOwner4, origin: Origin<'_>, now: Instant) -> Self {
        Self {
            owner: ClientOwner4 { verifier: owner.verifier, ownerid: owner.ownerid.detached() },
            principal: origin.principal.clone(),
            group: Group::of(origin.peer, origin.admitted),
            serial: 0,
            confirmed: false,
            used: false,
            protect: StateProtect4R::None,
            implementation: None,
            sessions: Vec::new(),
            reclaim_complete: false,
            minorversion,
            record: Record::None,
            stored: Stored::AsIs,
            wanted_at: now,
            evicted: false,
            callbacks_fail: false,
            legacy: None,
            update: None,
            // RFC 8881 §18.36.4: the slot begins one before what is told, with a contrived result.
            created: Created {
                sequence: Sequenceid4(0),
                by: origin.principal.clone(),
                result: Err(Nfsstat4::SeqMisordered),
            },
            shard: Arc::new(Shard::new(now)),
        }
    }

    fn rank(&self) -> Rank {
        match (self.confirmed, self.used) {
            (false, _) => Rank::Unconfirmed,
            (true, false) => Rank::Idle,
            (true, true) => Rank::InUse,
        }
    }

    fn position(&self, id: Clientid4) -> Position {
        (self.rank(), self.serial, id)
    }

    /// Its sessions.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = &Session> {
        self.sessions.iter()
    }

    /// One of its sessions.
    pub(super) fn session(&self, id: &Sessionid4) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == *id)
    }

    /// For its next CREATE_SESSION.
    pub fn next_sequence(&self) -> Sequenceid4 {
        Sequenceid4(self.created.sequence.0.wrapping_add(1))
    }

    /// Whether it is remembered over a restart.
    pub fn is_remembered(&self) -> bool {
        self.record == Record::Written && self.stored == Stored::AsIs
    }

    /// How long ago it has renewed its lease. It cannot renew it before the state lets it.
    pub fn silent(&self, now: Instant) -> Duration {
        self.shard.close().silent(now)
    }

    /// How long nothing was heard of it at all.
    pub(super) fn unheard(&self, now: Instant) -> Duration {
        self.shard.close().unheard(now)
    }
}

impl<R: Clone, F> Client<R, F> {
    /// Whether a request of its sessions is being executed. If not, none begins before the state lets it.
    pub(super) fn is_busy(&self) -> bool {
        self.shard.close().is_busy()
    }
}

impl<R: Clone, F> Clients<R, F> {
    /// No clients, whose leases will last for `lease`.
    pub fn new(lease: Duration, clients_max: usize) -> Self {
        Self {
            by_id: Map::default(),
            shards: Shards::default(),
            by_owner: HashMap::new(),
            hosts: Hosts::default(),
            sessions: 0,
            lease,
            clients_max,
            next_serial: 0,
        }
    }

    /// A client, confirmed or not.
    pub fn find(&self, id: Clientid4) -> Option<&Client<R, F>> {
        self.by_id.get(&id)
    }

    /// A client, confirmed or not, to be changed: it uses nothing without the state before the state lets it.
    pub(super) fn find_mut(&mut self, id: Clientid4) -> Option<&mut Client<R, F>> {
        let client = self.by_id.get_mut(&id)?;
        drop(client.shard.close());
        Some(client)
    }

    /// A client, to change its record: nothing that its shard depends on.
    pub(super) fn record_mut(&mut self, id: Clientid4) -> Option<&mut Client<R, F>> {
        self.by_id.get_mut(&id)
    }

    /// The shards, to be used without the state.
    pub(super) fn shards(&self) -> &Shards<R, F> {
        &self.shards
    }

    /// How many there are, unconfirmed ones included.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Whether a client has not renewed its lease in time.
    pub fn is_expired(&self, id: Clientid4, now: Instant) -> bool {
        self.find(id).is_none_or(|client| client.silent(now) > self.lease)
    }

    /// The confirmed client of an owner.
    pub fn confirmed(&self, owner: &Bytes) -> Option<Clientid4> {
        self.by_owner.get(owner)?.confirmed
    }

    /// All clients.
    pub fn iter(&self) -> impl Iterator<Item = (Clientid4, &Client<R, F>)> {
        self.by_id.iter().map(|(id, client)| (*id, client))
    }

    /// All clients, as [`find_mut`](Self::find_mut).
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Clientid4, &mut Client<R, F>)> {
        self.by_id.iter_mut().map(|(id, client)| {
            drop(client.shard.close());
            (*id, client)
        })
    }

    /// Those that have not renewed their lease in time.
    pub fn expired(&self, now: Instant) -> impl Iterator<Item = (Clientid4, &Client<R, F>)> {
        self.iter().filter(move |(_, client)| client.silent(now) > self.lease)
    }

    /// How many sessions all have.
    pub(super) fn sessions_count(&self) -> usize {
        self.sessions
    }

    /// What the groups have.
    pub(super) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// What EXCHANGE_ID comes to; `protect` is how the state of a new record would be protected.
    ///
    /// # Errors
    /// What the cases of §18.35.4 say, or DELAY if there are too many clients.
    pub(super) fn plan_exchange(
        &self,
        minorversion: u32,
        args: &ExchangeIdArgs,
        protect: StateProtect4R,
        origin: Origin<'_>,
        outlook: &Outlook<'_>,
    ) -> Result<Plan<R, F>, Nfsstat4> {
        let records = self.by_owner.get(&args.clientowner.ownerid.0).copied().unwrap_or_default();
        if args.flags & EXCHGID4_FLAG_UPD_CONFIRMED_REC_A != 0 {
            //= rfc8881-18.35.3-8
            return self.plan_update(args, origin.principal, records);
        }
        let new = || {
            //= rfc8881-18.35.3-35
            let implementation = args.client_impl_id.as_ref().map(kept);
            let new = Client::new(minorversion, &args.clientowner, origin, outlook.now);
            Client { protect, implementation, ..new }
        };
        let Some((id, client)) = records.confirmed.and_then(|id| Some((id, self.find(id)?))) else {
            // Cases 1 and 4: a new owner, or an unconfirmed record that is replaced.
            return self.plan_new(new(), None, outlook);
        };
        if client.principal != *origin.principal {
            // Case 3: a collision.
            let has_state = (outlook.holds)(id) || !client.sessions.is_empty();
            if has_state && !self.is_expired(id, outlook.now) || client.is_busy() {
                return Err(Nfsstat4::ClidInuse);
            }
            return self.plan_new(new(), Some(id), outlook);
        }
        if client.legacy.is_none() && client.owner.verifier == args.clientowner.verifier {
            // Case 2: a retry, or an attempt at trunking. Of the two ways that case 5 leaves open for an unconfirmed
            // record that is there too, it is forgotten.
            return Ok(Plan { ended: records.unconfirmed.into_iter().collect(), then: Then::Keep(id) });
        }
        // Case 5: it has restarted. Its old record stays until the new one is confirmed.
        self.plan_new(new(), None, outlook)
    }

    /// Cases 6 to 9: an update of a confirmed record.
    fn plan_update(
        &self,
        args: &ExchangeIdArgs,
        principal: &Principal,
        records: Records,
    ) -> Result<Plan<R, F>, Nfsstat4> {
        let found = records.confirmed.and_then(|id| Some((id, self.find(id)?)));
        let (id, client) = found.ok_or(Nfsstat4::NoEnt)?;
        if client.owner.verifier != args.clientowner.verifier {
            return Err(Nfsstat4::NotSame);
        }
        if client.principal != *principal {
            return Err(Nfsstat4::Perm);
        }
        let then = Then::Implementation(id, args.client_impl_id.as_ref().map(kept));
        Ok(Plan { ended: SmallVec::new(), then })
    }

    /// An unconfirmed record instead of the owner's unconfirmed one, and of `replaced`.
    ///
    /// # Errors
    /// DELAY if there is no room, and nobody who can make some.
    fn plan_new(
        &self,
        client: Client<R, F>,
        replaced: Option<Clientid4>,
        outlook: &Outlook<'_>,
    ) -> Result<Plan<R, F>, Nfsstat4> {
        let records = self.by_owner.get(&client.owner.ownerid.0).copied().unwrap_or_default();
        let mut ended: SmallVec<[Clientid4; 3]> = records.unconfirmed.into_iter().chain(replaced).collect();
        let room = self.room(client.group, &ended, records.confirmed, outlook)?;
        ended.extend(room);
        Ok(Plan { ended, then: Then::Add(Box::new(client)) })
    }

    /// The client that ends so that one of `group` has a place, where all are taken. `freed` end anyway, and `kept` must not.
    ///
    /// A host has no more than a half of all places, and then makes room by itself alone. Where all places are taken, the host that
    /// has the most makes room, so that one with fewer always gets in; and only to such a one it gives a place whose client holds
    /// something.
    ///
    /// # Errors
    /// DELAY if nobody can make room.
    fn room(
        &self,
        group: Group,
        freed: &[Clientid4],
        kept: Option<Clientid4>,
        outlook: &Outlook<'_>,
    ) -> Result<Option<Clientid4>, Nfsstat4> {
        // One that restarts is counted once: what is kept ends when this is confirmed.
        let leaving =
            freed.iter().copied().chain(kept).filter(|id| self.find(*id).is_some_and(|client| client.group == group));
        let own = self.hosts.count(group) - leaving.collect::<BTreeSet<_>>().len();
        let max = match group {
            Group::Host(_) => self.clients_max / 2,
            Group::Strangers => (self.clients_max / STRANGERS).max(1),
        };
        let spared = |id: Clientid4| freed.contains(&id) || kept == Some(id);
        let victim = |group, may_hold| self.victim(group, &spared, may_hold, outlook);
        if own >= max {
            return victim(group, false).map(Some).ok_or(Nfsstat4::Delay);
        }
        if self.len() - freed.len() < self.clients_max {
            return Ok(None);
        }
        let heavier = self.hosts.heaviest(group).filter(|(count, _)| *count > own);
        let of_heavier = heavier.and_then(|(count, heavy)| victim(heavy, count > own + 1));
        of_heavier.or_else(|| victim(group, false)).map(Some).ok_or(Nfsstat4::Delay)
    }

    /// The client of a group that is missed least: the oldest unconfirmed one, else the oldest that has done nothing but make
    /// sessions, else of some of the others the one that was silent for the longest time of those that hold nothing; or, if it
    /// may be one that holds something, of all.
    fn victim(
        &self,
        group: Group,
        spared: &dyn Fn(Clientid4) -> bool,
        may_hold: bool,
        outlook: &Outlook<'_>,
    ) -> Option<Clientid4> {
        let found = |id: Clientid4| self.find(id).map(|client| (id, client)).filter(|(id, _)| !spared(*id));
        let is_free = |(id, client): &(Clientid4, &Client<R, F>)| {
            !client.record.is_kept() && !(outlook.holds)(*id) && !client.is_busy()
        };
        let unconfirmed = self.hosts.ranked(group, Rank::Unconfirmed).find(|id| !spared(*id));
        let idle =
            || self.hosts.ranked(group, Rank::Idle).filter_map(found).take(LOOKS).find(is_free).map(|(id, _)| id);
        let in_use = || {
            let some: SmallVec<[_; LOOKS]> =
                self.hosts.in_use(group, outlook.random).filter_map(found).take(LOOKS).collect();
            let silent = |(_, client): &&(Clientid4, &Client<R, F>)| client.silent(outlook.now);
            let free = some.iter().filter(|client| is_free(client)).max_by_key(silent);
            let any = || some.iter().filter(|(_, client)| may_hold && !client.is_busy()).max_by_key(silent);
            free.or_else(any).map(|(id, _)| *id)
        };
        unconfirmed.or_else(idle).or_else(in_use)
    }

    /// Adds an unconfirmed record. Its owner's unconfirmed one has ended.
    pub(super) fn add(&mut self, id: Clientid4, client: Client<R, F>) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let client = Client { serial, ..client };
        self.by_owner.entry(client.owner.ownerid.0.clone()).or_default().unconfirmed = Some(id);
        self.hosts.insert(client.group, client.position(id));
        self.shards.insert(id, client.shard.clone());
        self.by_id.insert(id, client);
    }

    /// Confirms a record, if there is such a one that is not confirmed, and says which one of the same owner it replaces.
    pub(super) fn confirm(&mut self, id: Clientid4) -> Option<Clientid4> {
        self.rank(id, |client| client.confirmed = true);
        let owner = &self.by_id.get(&id)?.owner.ownerid.0;
        let records = self.by_owner.get_mut(owner)?;
        records.unconfirmed.take_if(|unconfirmed| *unconfirmed == id);
        records.confirmed.replace(id).filter(|replaced| *replaced != id)
    }

    /// A client has called.
    pub(super) fn note_use(&mut self, id: Clientid4) {
        if self.find(id).is_some_and(|client| !client.used) {
            self.rank(id, |client| client.used = true);
        }
    }

    /// Changes what the rank of a client depends on.
    fn rank(&mut self, id: Clientid4, change: impl FnOnce(&mut Client<R, F>)) {
        let Some(client) = self.by_id.get_mut(&id) else { return };
        self.hosts.remove(client.group, client.position(id));
        change(client);
        self.hosts.insert(client.group, client.position(id));
    }

    /// Adds a session to a client.
    pub(super) fn add_session(&mut self, id: Clientid4, session: Session) {
        let Some(client) = self.by_id.get_mut(&id) else { return };
        self.hosts.grant(client.group, session.granted);
        self.sessions += 1;
        client.shard.close().add_session(session.id, session.fore);
        client.sessions.push(session);
    }

    /// Takes a session from its client.
    pub(super) fn take_session(&mut self, id: &Sessionid4) -> Option<Session> {
        let client = self.by_id.get_mut(&client_of(id))?;
        let at = client.sessions.iter().position(|session| session.id == *id)?;
        let session = client.sessions.remove(at);
        client.shard.close().remove_session(*id);
        self.hosts.revoke(client.group, session.granted);
        self.sessions -= 1;
        Some(session)
    }

    /// Takes a client out, with its sessions. For [`State::end_client`](super::State::end_client) alone, which sees to all else that it
    /// has.
    pub(super) fn take(&mut self, id: Clientid4) -> Option<Client<R, F>> {
        let client = self.by_id.remove(&id)?;
        // A request that has found the shard before finds it closed for ever.
        drop(client.shard.close());
        self.shards.remove(id);
        self.sessions -= client.sessions.len();
        self.hosts.revoke(client.group, client.sessions.iter().map(|session| session.granted).sum());
        self.hosts.remove(client.group, client.position(id));
        let ownerid = &client.owner.ownerid.0;
        if let Some(records) = self.by_owner.get_mut(ownerid) {
            for record in [&mut records.confirmed, &mut records.unconfirmed] {
                record.take_if(|record| *record == id);
            }
            if records.confirmed.is_none() && records.unconfirmed.is_none() {
                self.by_owner.remove(ownerid);
            }
        }
        Some(client)
    }

    /// Checks that all tables agree.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert!(self.len() <= self.clients_max);
        let granted = |client: &Client<R, F>| client.sessions.iter().map(|session| session.granted).sum();
        self.hosts.check(self.iter().map(|(id, client)| (client.group, client.position(id), granted(client))));
        assert_eq!(self.sessions, self.iter().map(|(_, client)| client.sessions.len()).sum::<usize>());
        let mut named = 0;
        for (owner, records) in &self.by_owner {
            assert!(records.confirmed.is_some() || records.unconfirmed.is_some());
            for (record, confirmed) in [(records.confirmed, true), (records.unconfirmed, false)] {
                let Some(id) = record else { continue };
                let client = self.find(id).expect("an owner's record is there");
                assert_eq!((&client.owner.ownerid.0, client.confirmed), (owner, confirmed));
                named += 1;
            }
        }
        assert_eq!(named, self.len(), "each record is its owner's");
        for (id, client) in self.iter() {
            assert!(client.sessions.iter().all(|session| client_of(&session.id) == id));
            assert!(client.confirmed || client.sessions.is_empty());
        }
    }
}

/// Hosts that no export admits have this part of all places together.
const STRANGERS: usize = 64;
/// So many clients are looked at for one that makes room.
const LOOKS: usize = 64;
