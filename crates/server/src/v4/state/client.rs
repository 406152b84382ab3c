//! [`Clients`]: the client records that EXCHANGE_ID creates and CREATE_SESSION confirms.
//!
//! Read RFC 8881 §2.4 (client identifiers), §8.3 (leases), §18.35.4 (the nine cases of EXCHANGE_ID, which are numbered
//! in the code) and §18.36.4 (confirmation). A client owner has at most two records: a confirmed one, and an
//! unconfirmed one that will replace it or will be removed.
//!
//! An EXCHANGE_ID is planned first. Planning changes nothing and can fail. [`State`](super::State) then executes the
//! [`Plan`], which cannot fail. A client owns its sessions.

mod v40;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use entropy::HashMap;
use nfs::v4::*;
use rpc::Xprtsec;
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

/// A client with its sessions, which end with it.
#[derive(Debug)]
pub struct Client<R, F> {
    /// The client owner and the verifier of this incarnation.
    pub owner: ClientOwner4,
    /// The principal that introduced the client.
    pub principal: Principal,
    /// The protection by TLS of the connection that introduced it.
    tls: Xprtsec,
    /// The strongest protection of its sessions that have ended.
    ended_tls: Xprtsec,
    /// The group whose share of clients and memory it uses.
    pub(super) group: Group,
    /// A serial number: younger clients have higher numbers.
    serial: u64,
    /// `true` after the client has created a session or confirmed its ID.
    pub confirmed: bool,
    /// `true` after the client has sent a request by its ID.
    used: bool,
    /// The state protection.
    pub protect: StateProtect4R,
    /// The name and version of the client software, for listings.
    pub implementation: Option<NfsImplId4>,
    /// The sessions, in the order of their creation.
    pub(super) sessions: Vec<Session>,
    /// `true` after RECLAIM_COMPLETE.
    pub reclaim_complete: bool,
    /// The minor version of its EXCHANGE_ID, which callbacks use too.
    pub minorversion: u32,
    /// The state of its recovery record.
    pub(super) record: Record,
    /// The state of that record in storage.
    pub(super) stored: Stored,
    /// The time of the last OPEN.
    pub(super) last_open_at: Instant,
    /// `true` while the client is being evicted: no new request begins.
    pub(super) evicted: bool,
    /// `true` if the last callback failed.
    pub(super) callbacks_fail: bool,
    /// The state that only clients of 4.0 have.
    pub legacy: Option<Legacy>,
    /// The same state after an update that is not yet confirmed.
    update: Option<Legacy>,
    /// The last CREATE_SESSION: a reply cache of one slot (§18.36.4).
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
    /// The protection of the connection that carried it.
    pub(super) tls: Xprtsec,
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
    /// The serial number of the next client.
    next_serial: u64,
}

/// The records of a client owner.
#[derive(Clone, Copy, Debug, Default)]
struct Records {
    confirmed: Option<Clientid4>,
    unconfirmed: Option<Clientid4>,
}

/// Copies the client software's description, so that it does not keep the message that it was decoded from.
fn detached(implementation: &NfsImplId4) -> NfsImplId4 {
    let NfsImplId4 { domain, name, date } = implementation;
    NfsImplId4 { domain: domain.detached(), name: name.detached(), date: *date }
}

/// The planned effect of an introduction. Nothing has changed yet.
#[derive(Debug)]
pub(super) struct Plan<R, F> {
    /// The clients to be removed.
    pub(super) ended: SmallVec<[Clientid4; 3]>,
    /// The change of the client that introduces itself.
    pub(super) action: PlanAction<R, F>,
}

/// The change of a client that introduces itself.
#[derive(Debug)]
pub(super) enum PlanAction<R, F> {
    /// Add an unconfirmed record.
    Add(Box<Client<R, F>>),
    /// Keep a record unchanged.
    Keep(Clientid4),
    /// Update the software description of a record.
    Implementation(Clientid4, Option<NfsImplId4>),
    /// Change the callback address of a record after confirmation.
    Callback(Clientid4, Box<Legacy>),
}

/// The caller that introduces a client.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The principal.
    pub principal: &'a Principal,
    /// `true` if the call had integrity or privacy.
    pub has_integrity: bool,
    /// The pseudo flavour with which the server can call a principal of RPCSEC_GSS, if it can.
    pub callback_flavor: Option<u32>,
    /// The network address.
    pub peer: IpAddr,
    /// `true` if an export or a referral admits this host.
    pub admitted: bool,
    /// The protection of the connection by TLS.
    pub tls: Xprtsec,
}

/// The inputs of the choice of a client to evict, besides the clients themselves.
#[derive(Clone, Copy)]
pub(super) struct EvictionContext<'a> {
    pub(super) now: Instant,
    /// Returns `true` if a client has opens, locks or delegations.
    pub(super) holds: &'a dyn Fn(Clientid4) -> bool,
    /// Selects the first candidate if there are very many.
    pub(super) random: u64,
}

impl<R, F> Client<R, F> {
    /// Creates an unconfirmed client.
    fn new(minorversion: u32, owner: &ClientOwner4, origin: Origin<'_>, now: Instant) -> Self {
        Self {
            owner: ClientOwner4 { verifier: owner.verifier, ownerid: owner.ownerid.detached() },
            principal: origin.principal.clone(),
            tls: origin.tls,
            ended_tls: Xprtsec::None,
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
            stored: Stored::Current,
            last_open_at: now,
            evicted: false,
            callbacks_fail: false,
            legacy: None,
            update: None,
            // RFC 8881 §18.36.4: the slot begins one below the returned sequence ID, with an artificial result.
            created: Created {
                sequence: Sequenceid4(0),
                by: origin.principal.clone(),
                tls: Xprtsec::None,
                result: Err(Nfsstat4::SeqMisordered),
            },
            shard: Arc::new(Shard::new(now)),
        }
    }

    /// Returns `true` if a call without integrity must not change this client (§2.10.8.3). Kerberos without integrity
    /// authenticates no arguments, so an attacker on the path can replace them.
    pub fn refuses(&self, has_integrity: bool) -> bool {
        self.protect != StateProtect4R::None && !has_integrity
    }

    /// Returns `true` if a caller's connection is too weak to replace this client.
    fn is_guarded_from(&self, origin: Origin<'_>) -> bool {
        self.is_stronger_than(origin.principal, origin.tls)
    }

    /// Returns `true` if this client has introduced itself with more protection than a caller has. A principal of RPCSEC_GSS
    /// is proved without TLS.
    pub(super) fn is_stronger_than(&self, principal: &Principal, tls: Xprtsec) -> bool {
        let is_proved = matches!(self.principal, Principal::Gss(_)) && self.principal == *principal;
        tls < self.tls && !is_proved
    }

    /// Returns `true` if a caller is the client itself, as far as the server can tell.
    pub(super) fn is_owner(&self, principal: &Principal, tls: Xprtsec) -> bool {
        self.principal == *principal && !self.is_stronger_than(principal, tls)
    }

    /// Returns `true` if callbacks about all of the client may use a session. One with a weaker protection than another one of
    /// the client has had would reveal what was granted over that.
    pub(super) fn may_call_over(&self, session: &Session) -> bool {
        let own = self.sessions.iter().filter(|session| !session.is_foreign).map(Session::tls);
        session.tls() >= own.fold(self.ended_tls, Xprtsec::max)
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

    /// Returns its sessions.
    pub fn sessions(&self) -> impl ExactSizeIterator<Item = &Session> {
        self.sessions.iter()
    }

    /// Returns one of its sessions.
    pub(super) fn session(&self, id: &Sessionid4) -> Option<&Session> {
        self.sessions.iter().find(|session| session.id == *id)
    }

    /// Returns the sequence ID of its next CREATE_SESSION.
    pub fn next_sequence(&self) -> Sequenceid4 {
        Sequenceid4(self.created.sequence.0.wrapping_add(1))
    }

    /// Returns `true` if the client is stored in the recovery database.
    pub fn is_stored(&self) -> bool {
        self.record == Record::Written && self.stored == Stored::Current
    }

    /// Returns the time since the last renewal of the lease. Closes the shard, so the client cannot renew it before the
    /// state opens the shard again.
    pub fn silent(&self, now: Instant) -> Duration {
        self.shard.close().silent(now)
    }

    /// Returns the time since the last request, whether or not it renewed the lease.
    pub(super) fn time_since_request(&self, now: Instant) -> Duration {
        self.shard.close().time_since_request(now)
    }
}

impl<R: Clone, F> Client<R, F> {
    /// Returns `true` if a request of its sessions is in progress. Closes the shard, so no request begins before the
    /// state opens it.
    pub(super) fn is_busy(&self) -> bool {
        self.shard.close().is_busy()
    }
}

impl<R: Clone, F> Clients<R, F> {
    /// Creates an empty table of clients with the lease time `lease`.
    pub fn new(lease: Duration, clients_max: usize) -> Self {
        Self {
            by_id: Map::default(),
            shards: Shards::default(),
            by_owner: HashMap::default(),
            hosts: Hosts::default(),
            sessions: 0,
            lease,
            clients_max,
            next_serial: 0,
        }
    }

    /// Returns a client, confirmed or not.
    pub fn find(&self, id: Clientid4) -> Option<&Client<R, F>> {
        self.by_id.get(&id)
    }

    /// Returns a client for changes, confirmed or not. Closes its shard, so that its requests use the state.
    pub(super) fn find_mut(&mut self, id: Clientid4) -> Option<&mut Client<R, F>> {
        let client = self.by_id.get_mut(&id)?;
        drop(client.shard.close());
        Some(client)
    }

    /// Returns a client for changes of its recovery record, on which its shard does not depend.
    pub(super) fn record_mut(&mut self, id: Clientid4) -> Option<&mut Client<R, F>> {
        self.by_id.get_mut(&id)
    }

    /// Returns the shards.
    pub(super) fn shards(&self) -> &Shards<R, F> {
        &self.shards
    }

    /// Returns the number of clients, unconfirmed ones included.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns `true` if there are no clients.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns `true` if the lease of a client has expired, or the client does not exist.
    pub fn is_expired(&self, id: Clientid4, now: Instant) -> bool {
        self.find(id).is_none_or(|client| client.silent(now) > self.lease)
    }

    /// Returns the confirmed client of an owner.
    pub fn confirmed(&self, owner: &Bytes) -> Option<Clientid4> {
        self.by_owner.get(owner)?.confirmed
    }

    /// Returns all clients.
    pub fn iter(&self) -> impl Iterator<Item = (Clientid4, &Client<R, F>)> {
        self.by_id.iter().map(|(id, client)| (*id, client))
    }

    /// Returns all clients for changes, like [`find_mut`](Self::find_mut).
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Clientid4, &mut Client<R, F>)> {
        self.by_id.iter_mut().map(|(id, client)| {
            drop(client.shard.close());
            (*id, client)
        })
    }

    /// Returns the clients whose leases have expired.
    pub fn expired(&self, now: Instant) -> impl Iterator<Item = (Clientid4, &Client<R, F>)> {
        self.iter().filter(move |(_, client)| client.silent(now) > self.lease)
    }

    /// Returns the number of sessions of all clients.
    pub(super) fn sessions_count(&self) -> usize {
        self.sessions
    }

    /// Returns the resources in use by each group.
    pub(super) fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Plans an EXCHANGE_ID. `protect` is the state protection of a new record.
    ///
    /// # Errors
    /// Those of the cases of §18.35.4; CLID_INUSE if the caller's connection is too weak to replace a record; DELAY if there
    /// are too many clients.
    pub(super) fn plan_exchange(
        &self,
        minorversion: u32,
        args: &ExchangeIdArgs,
        protect: StateProtect4R,
        origin: Origin<'_>,
        context: &EvictionContext<'_>,
    ) -> Result<Plan<R, F>, Nfsstat4> {
        let records = self.by_owner.get(&args.clientowner.ownerid.0).copied().unwrap_or_default();
        if args.flags & EXCHGID4_FLAG_UPD_CONFIRMED_REC_A != 0 {
            //= rfc8881-18.35.3-8
            return self.plan_update(args, origin, records);
        }
        let kept = records.confirmed.and_then(|id| Some((id, self.find(id)?)));
        let is_same = |client: &Client<R, F>| {
            client.principal == *origin.principal
                && client.legacy.is_none()
                && client.owner.verifier == args.clientowner.verifier
        };
        if !kept.is_some_and(|(_, client)| is_same(client)) {
            self.check_protection(records, origin, context.now)?;
        }
        let new = || {
            //= rfc8881-18.35.3-35
            let implementation = args.client_impl_id.as_ref().map(detached);
            let new = Client::new(minorversion, &args.clientowner, origin, context.now);
            Client { protect, implementation, ..new }
        };
        let Some((id, client)) = kept else {
            // Cases 1 and 4: a new owner, or an unconfirmed record that is replaced.
            return self.plan_new(new(), None, context);
        };
        if client.principal != *origin.principal {
            // Case 3: a collision.
            //= rfc8881-2.4.3-1 rfc8881-2.4.3-4
            let has_state = (context.holds)(id) || !client.sessions.is_empty();
            if has_state && !self.is_expired(id, context.now) || client.is_busy() {
                return Err(Nfsstat4::ClidInuse);
            }
            return self.plan_new(new(), Some(id), context);
        }
        if client.refuses(origin.has_integrity) {
            return Err(Nfsstat4::ClidInuse);
        }
        if is_same(client) {
            // Case 2: a retry, or an attempt at trunking. An unconfirmed record may also exist; case 5 permits to
            // remove it.
            //= rfc8881-2.4.3-5
            return Ok(Plan { ended: records.unconfirmed.into_iter().collect(), action: PlanAction::Keep(id) });
        }
        // Case 5: the client has restarted. The old record stays until the new one is confirmed.
        self.plan_new(new(), None, context)
    }

    /// Checks that a caller may replace the records of an owner. Owners can be guessed, so a caller in clear must not end
    /// the state of a client that introduced itself over TLS, unless the lease of that client has expired. A principal of
    /// RPCSEC_GSS is proved without TLS.
    ///
    /// # Errors
    /// CLID_INUSE if the caller's connection is less protected than that of a present record.
    fn check_protection(&self, records: Records, origin: Origin<'_>, now: Instant) -> Result<(), Nfsstat4> {
        let is_guarded = |id: Clientid4| {
            self.find(id).is_some_and(|client| client.is_guarded_from(origin)) && !self.is_expired(id, now)
        };
        match records.confirmed.into_iter().chain(records.unconfirmed).any(is_guarded) {
            true => Err(Nfsstat4::ClidInuse),
            false => Ok(()),
        }
    }

    /// Plans cases 6 to 9: an update of a confirmed record.
    fn plan_update(&self, args: &ExchangeIdArgs, origin: Origin<'_>, records: Records) -> Result<Plan<R, F>, Nfsstat4> {
        let found = records.confirmed.and_then(|id| Some((id, self.find(id)?)));
        let (id, client) = found.ok_or(Nfsstat4::NoEnt)?;
        if client.owner.verifier != args.clientowner.verifier {
            return Err(Nfsstat4::NotSame);
        }
        if client.principal != *origin.principal || client.refuses(origin.has_integrity) {
            return Err(Nfsstat4::Perm);
        }
        let action = PlanAction::Implementation(id, args.client_impl_id.as_ref().map(detached));
        Ok(Plan { ended: SmallVec::new(), action })
    }

    /// Plans an unconfirmed record that replaces the owner's unconfirmed one and `replaced`.
    ///
    /// # Errors
    /// DELAY if the table is full and no client can be evicted.
    fn plan_new(
        &self,
        client: Client<R, F>,
        replaced: Option<Clientid4>,
        context: &EvictionContext<'_>,
    ) -> Result<Plan<R, F>, Nfsstat4> {
        let records = self.by_owner.get(&client.owner.ownerid.0).copied().unwrap_or_default();
        let mut ended: SmallVec<[Clientid4; 3]> = records.unconfirmed.into_iter().chain(replaced).collect();
        let room = self.find_victim(client.group, &ended, records.confirmed, context)?;
        ended.extend(room);
        Ok(Plan { ended, action: PlanAction::Add(Box::new(client)) })
    }

    /// Returns the client to evict so that the table has room for one of `group`, or `None` if it has room. The clients
    /// `freed` end anyway. The client `kept` must not be evicted.
    ///
    /// A host has at most half of all clients. At that limit, only its own clients are evicted. If the table is full, a
    /// client of the host with the most clients is evicted, so a host with fewer clients always gets in. A client that
    /// holds state is evicted only if its host has at least two clients more.
    ///
    /// # Errors
    /// DELAY if no client can be evicted.
    fn find_victim(
        &self,
        group: Group,
        freed: &[Clientid4],
        kept: Option<Clientid4>,
        context: &EvictionContext<'_>,
    ) -> Result<Option<Clientid4>, Nfsstat4> {
        // A client that restarts counts once: `kept` ends when the new record is confirmed.
        let leaving =
            freed.iter().copied().chain(kept).filter(|id| self.find(*id).is_some_and(|client| client.group == group));
        let own = self.hosts.count(group) - leaving.collect::<BTreeSet<_>>().len();
        let max = match group {
            Group::Host(_) => self.clients_max / 2,
            Group::NotAdmitted => (self.clients_max / NOT_ADMITTED_PART).max(1),
        };
        let spared = |id: Clientid4| freed.contains(&id) || kept == Some(id);
        let victim = |group, may_hold| self.victim_of(group, &spared, may_hold, context);
        if own >= max {
            return victim(group, false).map(Some).ok_or(Nfsstat4::Delay);
        }
        if self.len() - freed.len() < self.clients_max {
            return Ok(None);
        }
        let heavier = self.hosts.largest_except(group).filter(|(count, _)| *count > own);
        let of_heavier = heavier.and_then(|(count, heavy)| victim(heavy, count > own + 1));
        of_heavier.or_else(|| victim(group, false)).map(Some).ok_or(Nfsstat4::Delay)
    }

    /// Returns the client of a group that is evicted first: the oldest unconfirmed client, else the oldest that has
    /// only created sessions, else the one with the oldest lease renewal among some clients that hold no state. If
    /// `may_hold`, clients that hold state are considered last.
    fn victim_of(
        &self,
        group: Group,
        spared: &dyn Fn(Clientid4) -> bool,
        may_hold: bool,
        context: &EvictionContext<'_>,
    ) -> Option<Clientid4> {
        let found = |id: Clientid4| self.find(id).map(|client| (id, client)).filter(|(id, _)| !spared(*id));
        let is_free = |(id, client): &(Clientid4, &Client<R, F>)| {
            !client.record.is_kept() && !(context.holds)(*id) && !client.is_busy()
        };
        let unconfirmed = self.hosts.ranked(group, Rank::Unconfirmed).find(|id| !spared(*id));
        let idle = || {
            self.hosts.ranked(group, Rank::Idle).filter_map(found).take(CANDIDATES_MAX).find(is_free).map(|(id, _)| id)
        };
        let in_use = || {
            let some: SmallVec<[_; CANDIDATES_MAX]> =
                self.hosts.in_use(group, context.random).filter_map(found).take(CANDIDATES_MAX).collect();
            let silent = |(_, client): &&(Clientid4, &Client<R, F>)| client.silent(context.now);
            let free = some.iter().filter(|client| is_free(client)).max_by_key(silent);
            let any = || some.iter().filter(|(_, client)| may_hold && !client.is_busy()).max_by_key(silent);
            free.or_else(any).map(|(id, _)| *id)
        };
        unconfirmed.or_else(idle).or_else(in_use)
    }

    /// Adds an unconfirmed record. The owner's previous unconfirmed record must have ended.
    pub(super) fn add(&mut self, id: Clientid4, client: Client<R, F>) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let client = Client { serial, ..client };
        self.by_owner.entry(client.owner.ownerid.0.clone()).or_default().unconfirmed = Some(id);
        self.hosts.insert(client.group, client.position(id));
        self.shards.insert(id, client.shard.clone());
        self.by_id.insert(id, client);
    }

    /// Confirms an unconfirmed record. Returns the client of the same owner that it replaces.
    pub(super) fn confirm(&mut self, id: Clientid4) -> Option<Clientid4> {
        self.rank(id, |client| client.confirmed = true);
        let owner = &self.by_id.get(&id)?.owner.ownerid.0;
        let records = self.by_owner.get_mut(owner)?;
        records.unconfirmed.take_if(|unconfirmed| *unconfirmed == id);
        records.confirmed.replace(id).filter(|replaced| *replaced != id)
    }

    /// Notes that a client has sent a request.
    pub(super) fn note_use(&mut self, id: Clientid4) {
        if self.find(id).is_some_and(|client| !client.used) {
            self.rank(id, |client| client.used = true);
        }
    }

    /// Changes a client in a way that affects its rank.
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

    /// Removes a session from its client and returns it.
    pub(super) fn take_session(&mut self, id: &Sessionid4) -> Option<Session> {
        let client = self.by_id.get_mut(&client_of(id))?;
        let at = client.sessions.iter().position(|session| session.id == *id)?;
        let session = client.sessions.remove(at);
        if !session.is_foreign {
            client.ended_tls = client.ended_tls.max(session.tls());
        }
        client.shard.close().remove_session(*id);
        self.hosts.revoke(client.group, session.granted);
        self.sessions -= 1;
        Some(session)
    }

    /// Removes a client with its sessions. Only [`State::end_client`](super::State::end_client) may call this: it
    /// removes everything else that the client has.
    pub(super) fn take(&mut self, id: Clientid4) -> Option<Client<R, F>> {
        let client = self.by_id.remove(&id)?;
        // A request that found the shard before must find it closed for ever.
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
                let client = self.find(id).expect("the record of an owner must exist");
                assert_eq!((&client.owner.ownerid.0, client.confirmed), (owner, confirmed));
                named += 1;
            }
        }
        assert_eq!(named, self.len(), "each record must be listed under its owner");
        for (id, client) in self.iter() {
            assert!(client.sessions.iter().all(|session| client_of(&session.id) == id));
            assert!(client.confirmed || client.sessions.is_empty());
        }
    }
}

/// The part of all clients that hosts may have together that no export admits.
const NOT_ADMITTED_PART: usize = 64;
/// The maximum number of candidates for an eviction.
const CANDIDATES_MAX: usize = 64;
