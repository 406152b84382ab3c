//! [`Clients`]: the records that EXCHANGE_ID makes and CREATE_SESSION confirms.
//!
//! Read RFC 8881 §2.4 (client identifiers), §8.3 (leases), §18.35.4 (the nine cases of EXCHANGE_ID, which are numbered in
//! the code) and §18.36.4 (confirmation). A client owner has at most two records: the confirmed one, and an unconfirmed
//! one that will replace it or be forgotten. An error leaves all records as they were.

mod v40;

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use nfs::v4::*;
use rpc::Host;

pub use self::v40::Legacy;
pub(super) use self::v40::Reach;
use super::{Principal, recover::Record};
use crate::hash::Map;

/// What is known of a client.
#[derive(Debug)]
pub struct Client {
    /// Its own name, and its incarnation.
    pub owner: ClientOwner4,
    /// Who introduced it.
    pub principal: Principal,
    /// From where.
    host: Host,
    /// Whether it has made a session.
    pub confirmed: bool,
    /// Whether it has ever called by it.
    pub(super) used: bool,
    /// How its state is protected.
    pub protect: StateProtect4R,
    /// What software it is, for people to read.
    pub implementation: Option<NfsImplId4>,
    /// Its sessions.
    pub sessions: Vec<Sessionid4>,
    /// Whether it has said that all is reclaimed.
    pub reclaim_complete: bool,
    /// The minor version that it spoke when it introduced itself, and is called in.
    pub minorversion: u32,
    /// Whether it is remembered over a restart.
    pub(super) record: Record,
    /// Whether it is being evicted: nothing of its is begun any more.
    pub(super) evicted: bool,
    /// Whether the last attempt to call it has failed.
    pub(super) callbacks_fail: bool,
    /// What only a client of 4.0 has.
    pub legacy: Option<Legacy>,
    /// The same as it will be, once that is confirmed.
    update: Option<Legacy>,
    /// The last CREATE_SESSION: a reply cache of one slot.
    pub(super) created: (Sequenceid4, Result<CreateSessionOk, Nfsstat4>),
    renewed_at: Instant,
}

/// All clients.
#[derive(Debug)]
pub struct Clients {
    by_id: Map<Clientid4, Client>,
    by_owner: HashMap<Bytes, Records>,
    /// Who may have to give way to others.
    lesser: Lesser,
    /// The same of each host, and how many clients it has.
    hosts: HashMap<Host, (usize, Lesser)>,
    lease: Duration,
    clients_max: usize,
    /// The server's incarnation, in client IDs: those of an earlier one are stale.
    instance: u32,
    last: u32,
}

/// Clients that have done little yet.
#[derive(Debug, Default)]
struct Lesser {
    /// Unconfirmed records in the order in which they were made; some are confirmed or gone by now.
    unconfirmed: VecDeque<Clientid4>,
    /// Confirmed ones, in order, that had done nothing else then.
    idle: VecDeque<Clientid4>,
}

impl Lesser {
    /// Without those of which there is something else to say by now, where they have become many.
    fn tidy(&mut self, clients: &Map<Clientid4, Client>, max: usize) {
        if self.unconfirmed.len() > 2 * max {
            self.unconfirmed.retain(|id| clients.get(id).is_some_and(|client| !client.confirmed));
        }
        if self.idle.len() > 2 * max {
            self.idle.retain(|id| clients.get(id).is_some_and(Client::is_idle));
        }
    }

    /// The first that is unconfirmed, else the first that has done nothing but make sessions.
    fn first(&mut self, clients: &Map<Clientid4, Client>) -> Option<Clientid4> {
        let is = |id: &Clientid4, what: fn(&Client) -> bool| clients.get(id).is_some_and(what);
        let unconfirmed = self.unconfirmed.iter().position(|id| is(id, |client| !client.confirmed));
        self.unconfirmed.drain(..unconfirmed.unwrap_or(self.unconfirmed.len()));
        if unconfirmed.is_some() {
            return self.unconfirmed.pop_front();
        }
        let idle = self.idle.iter().position(|id| is(id, Client::is_idle));
        self.idle.drain(..idle.unwrap_or(self.idle.len()));
        self.idle.pop_front()
    }
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

/// What EXCHANGE_ID found or made.
#[derive(Debug)]
pub struct Exchanged {
    /// The record.
    pub clientid: Clientid4,
    /// The client that lost its name to this one, or its place.
    pub replaced: Option<Removed>,
}

/// A client that is no more, whose sessions and state are to be dropped.
#[derive(Debug)]
#[must_use = "its sessions are still there"]
pub struct Removed {
    /// Its name.
    pub clientid: Clientid4,
    /// What it was.
    pub client: Client,
}

impl Client {
    /// One that is not confirmed.
    fn new(owner: &ClientOwner4, (principal, peer): (&Principal, IpAddr), now: Instant) -> Self {
        Self {
            owner: ClientOwner4 { verifier: owner.verifier, ownerid: owner.ownerid.detached() },
            principal: principal.clone(),
            host: Host::of(peer),
            confirmed: false,
            used: false,
            protect: StateProtect4R::None,
            implementation: None,
            sessions: Vec::new(),
            reclaim_complete: false,
            minorversion: 1,
            record: Record::None,
            evicted: false,
            callbacks_fail: false,
            legacy: None,
            update: None,
            // RFC 8881 §18.36.4: the slot begins one before what is told, with a contrived result.
            created: (Sequenceid4(0), Err(Nfsstat4::SeqMisordered)),
            renewed_at: now,
        }
    }

    /// Whether it has done nothing but introduce itself, and has nothing from before a restart.
    fn is_idle(&self) -> bool {
        !self.used && !self.record.is_kept()
    }

    /// For its next CREATE_SESSION.
    pub fn next_sequence(&self) -> Sequenceid4 {
        Sequenceid4(self.created.0.0.wrapping_add(1))
    }

    /// Whether it is remembered over a restart.
    pub fn is_remembered(&self) -> bool {
        self.record == Record::Written
    }

    /// How long it has been silent.
    pub fn silent(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.renewed_at)
    }

    /// Renews its lease.
    pub fn renew(&mut self, now: Instant) {
        self.renewed_at = self.renewed_at.max(now);
    }
}

impl Clients {
    /// No clients, whose leases will last for `lease`. `instance` differs from restart to restart.
    pub fn new(instance: u32, lease: Duration, clients_max: usize) -> Self {
        Self {
            by_id: Map::default(),
            by_owner: HashMap::new(),
            lesser: Lesser::default(),
            hosts: HashMap::new(),
            lease,
            clients_max,
            instance,
            last: 0,
        }
    }

    /// A client, confirmed or not.
    pub fn find(&self, id: Clientid4) -> Option<&Client> {
        self.by_id.get(&id)
    }

    /// A client, confirmed or not.
    pub fn find_mut(&mut self, id: Clientid4) -> Option<&mut Client> {
        self.by_id.get_mut(&id)
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

    /// Finds or makes the record that EXCHANGE_ID asks for; `protect` is how its state would be protected. `has_state`
    /// says whether a client has sessions, opens, locks or the like.
    ///
    /// # Errors
    /// What the cases of §18.35.4 say, or DELAY if there are too many clients.
    pub fn exchange(
        &mut self,
        args: &ExchangeIdArgs,
        protect: StateProtect4R,
        (principal, peer): (&Principal, IpAddr),
        now: Instant,
        has_state: impl Fn(&Self, Clientid4) -> bool,
    ) -> Result<Exchanged, Nfsstat4> {
        let records = self.by_owner.get(&args.clientowner.ownerid.0).copied().unwrap_or_default();
        if args.flags & EXCHGID4_FLAG_UPD_CONFIRMED_REC_A != 0 {
            return self.update(args, principal, records);
        }
        let Some(id) = records.confirmed else {
            // Cases 1 and 4: a new owner, or an unconfirmed record that is replaced.
            return self.introduce(args, protect, (principal, peer), now, None);
        };
        let client = &self.by_id[&id];
        if client.principal != *principal {
            // Case 3: a collision.
            if has_state(self, id) && !self.is_expired(id, now) {
                return Err(Nfsstat4::ClidInuse);
            }
            return self.introduce(args, protect, (principal, peer), now, Some(id));
        }
        if client.legacy.is_none() && client.owner.verifier == args.clientowner.verifier {
            // Case 2: a retry, or an attempt at trunking. Of the two ways that case 5 leaves open for an unconfirmed
            // record that is there too, it is forgotten.
            if let Some(unconfirmed) = records.unconfirmed {
                // It never had a session.
                let _ = self.remove(unconfirmed);
            }
            return Ok(Exchanged { clientid: id, replaced: None });
        }
        // Case 5: it has restarted. Its old record stays until the new one is confirmed.
        self.introduce(args, protect, (principal, peer), now, None)
    }

    /// Cases 6 to 9: an update of a confirmed record.
    fn update(
        &mut self,
        args: &ExchangeIdArgs,
        principal: &Principal,
        records: Records,
    ) -> Result<Exchanged, Nfsstat4> {
        let id = records.confirmed.ok_or(Nfsstat4::NoEnt)?;
        let client = self.by_id.get_mut(&id).expect("a record for each confirmed owner");
        if client.owner.verifier != args.clientowner.verifier {
            return Err(Nfsstat4::NotSame);
        }
        if client.principal != *principal {
            return Err(Nfsstat4::Perm);
        }
        client.implementation = args.client_impl_id.as_ref().map(kept);
        Ok(Exchanged { clientid: id, replaced: None })
    }

    /// Adds an unconfirmed record, instead of the owner's unconfirmed one and of `replaced`.
    fn introduce(
        &mut self,
        args: &ExchangeIdArgs,
        protect: StateProtect4R,
        from: (&Principal, IpAddr),
        now: Instant,
        replaced: Option<Clientid4>,
    ) -> Result<Exchanged, Nfsstat4> {
        let record = Client {
            protect,
            implementation: args.client_impl_id.as_ref().map(kept),
            ..Client::new(&args.clientowner, from, now)
        };
        let replaced = replaced.and_then(|id| self.remove(id));
        let (clientid, displaced) = self.add(record)?;
        Ok(Exchanged { clientid, replaced: replaced.or(displaced) })
    }

    /// Adds an unconfirmed record, instead of the owner's unconfirmed one. Where there are too many it takes the place of the first
    /// that is unconfirmed, else of the first that has done nothing but make sessions: who introduces itself again and again
    /// keeps nobody out. A half of all is too many of one host, which then gives way to itself alone.
    ///
    /// # Errors
    /// DELAY if there are too many that have done more.
    fn add(&mut self, client: Client) -> Result<(Clientid4, Option<Removed>), Nfsstat4> {
        let (name, host) = (client.owner.ownerid.0.clone(), client.host);
        let unconfirmed = self.by_owner.get(&name).and_then(|records| records.unconfirmed);
        let crowd = match self.hosts.get_mut(&host) {
            Some((clients, lesser)) if *clients >= self.clients_max / 2 => Some(lesser),
            _ if self.by_id.len() >= self.clients_max => Some(&mut self.lesser),
            _ => None,
        };
        let victim = match (unconfirmed, crowd) {
            (None, Some(crowd)) => Some(crowd.first(&self.by_id).ok_or(Nfsstat4::Delay)?),
            (unconfirmed, _) => unconfirmed,
        };
        let displaced = victim.and_then(|victim| self.remove(victim));
        let clientid = self.next_id();
        self.by_id.insert(clientid, client);
        self.by_owner.entry(name).or_default().unconfirmed = Some(clientid);
        let (clients, of_host) = self.hosts.entry(host).or_default();
        *clients += 1;
        for lesser in [of_host, &mut self.lesser] {
            lesser.unconfirmed.push_back(clientid);
            lesser.tidy(&self.by_id, self.clients_max);
        }
        Ok((clientid, displaced))
    }

    /// Confirms a record, which has made its first session, and says which one of the same owner it replaces. That one
    /// is gone.
    ///
    /// # Panics
    /// If there is no such record.
    pub fn confirm(&mut self, id: Clientid4) -> Option<Removed> {
        let client = self.by_id.get_mut(&id).expect("a record to be confirmed");
        if client.confirmed {
            return None;
        }
        client.confirmed = true;
        let client = &self.by_id[&id];
        let (_, of_host) = self.hosts.get_mut(&client.host).expect("a host for each client");
        for lesser in [of_host, &mut self.lesser] {
            lesser.idle.push_back(id);
            lesser.tidy(&self.by_id, self.clients_max);
        }
        let records = self.by_owner.get_mut(&client.owner.ownerid.0).expect("records for each owner");
        records.unconfirmed = None;
        let clientid = records.confirmed.replace(id)?;
        Some(self.take(clientid).expect("a record for each confirmed owner"))
    }

    fn take(&mut self, clientid: Clientid4) -> Option<Removed> {
        let client = self.by_id.remove(&clientid)?;
        let (clients, _) = self.hosts.get_mut(&client.host).expect("a host for each client");
        *clients -= 1;
        if *clients == 0 {
            self.hosts.remove(&client.host);
        }
        Some(Removed { clientid, client })
    }

    /// Forgets a client.
    pub fn remove(&mut self, clientid: Clientid4) -> Option<Removed> {
        let Removed { client, .. } = self.take(clientid)?;
        let ownerid = &client.owner.ownerid.0;
        let records = self.by_owner.get_mut(ownerid).expect("records for each owner");
        for record in [&mut records.confirmed, &mut records.unconfirmed] {
            record.take_if(|record| *record == clientid);
        }
        if records.confirmed.is_none() && records.unconfirmed.is_none() {
            self.by_owner.remove(ownerid);
        }
        Some(Removed { clientid, client })
    }

    /// The confirmed client of an owner.
    pub fn confirmed(&self, owner: &Bytes) -> Option<Clientid4> {
        self.by_owner.get(owner)?.confirmed
    }

    /// All clients.
    pub fn iter(&self) -> impl Iterator<Item = (Clientid4, &Client)> {
        self.by_id.iter().map(|(id, client)| (*id, client))
    }

    /// Those that have not renewed their lease in time.
    pub fn expired(&self, now: Instant) -> impl Iterator<Item = Clientid4> {
        self.by_id.keys().copied().filter(move |id| self.is_expired(*id, now))
    }

    fn next_id(&mut self) -> Clientid4 {
        loop {
            self.last = self.last.wrapping_add(1);
            let id = Clientid4(u64::from(self.instance) << 32 | u64::from(self.last));
            if !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }
}
