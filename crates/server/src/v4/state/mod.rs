//! The state of NFSv4.1 and 4.2: clients, sessions, slots and leases.
//!
//! Pure: it does no I/O and takes the time, the caller's identity and the connection from whoever calls it. Operations
//! take their arguments and give their results; what has to be done elsewhere as a consequence comes out of
//! [`State::poll_event`]. Read RFC 8881 §2.10 (sessions), §8.3–8.4 (leases and recovery) and §18.33–18.37, §18.46, §18.50,
//! §18.51 (the operations).
//!
//! `R` is what a reply is kept as: the body of a COMPOUND result, so that a retry gets the same bytes again. `F` names a
//! file. What conflicts with what is for [`LockTable`](crate::sharing::locks::LockTable) to say.
//!
//! Three layers, from the bottom up; a file uses only those before it:
//!
//! - The other files of this folder are the data. [`State`] owns [`Clients`], [`Stateids`], [`Owners`] and the recalls in progress. `Clients` owns
//!   each [`Client`], which owns its [`Session`]s, and a [`shard`] with its slots and its lease. What each request of a client uses is in
//!   that shard, which is asked first, without this state. `Stateids` owns the opens, locks and delegations. [`ids`] has the names
//!   by which they refer to each other.
//! - This file is [`State`], with SEQUENCE, leases, and how sessions and clients end.
//! - [`transitions`] has all other changes of the state, one file for each family of operations.
//!
//! On error nothing has changed, except where §18.36.4 says that a failed CREATE_SESSION is remembered too.

pub mod back_slots;
pub mod client;
mod hosts;
pub mod ids;
pub mod load;
pub mod owner;
pub mod recallable;
pub mod record;
pub mod session;
pub mod shard;
pub mod slot;
pub mod stateid;
#[cfg(test)]
mod tests;
pub mod transitions;

use std::{
    collections::VecDeque,
    hash::Hash,
    time::{Duration, Instant},
};

use bytes::Bytes;
use nfs::v4::*;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    hash::Map,
    recovery::{RecordChange, V4Clients},
    sharing::marks::Marks,
};
use client::{Client, Clients};
use ids::{Principal, client_of};
use load::Load;
use owner::{Kept, OwnerLimits, Owners};
use recallable::Recalls;
use record::Stored;
use session::{BoundChange, ChannelLimits, Connection, ConnectionId, Session};
use shard::{Opening, Request, Sequenced, Shards};
use slot::Ticket;
use stateid::Stateids;

/// What a server tells of itself, and its bounds.
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// Its name; one for all its addresses.
    pub server_owner: ServerOwner4,
    /// Those who share client IDs and file handles with it have the same.
    pub server_scope: Bytes,
    /// What software it is.
    pub implementation: Option<NfsImplId4>,
    /// The `EXCHGID4_FLAG_` bits that it always sets: what it is, and what it will do.
    pub flags: u32,
    /// How long a lease is.
    pub lease: Duration,
    /// The limits of calls.
    pub channel: ChannelLimits,
    /// Most clients, unconfirmed ones included.
    pub clients_max: usize,
    /// Most sessions of one client.
    pub client_sessions_max: usize,
    /// Most sessions of all clients. From a half on, the rest is shared out among as many clients as there can be.
    pub sessions_max: usize,
    /// Most bytes of replies that are kept for retries.
    pub replies_max: usize,
    /// Most stateids of one client, those included that it has lost and not freed.
    pub client_stateids_max: usize,
    /// Most stateids of all clients. From a half on, the rest is shared out among as many clients as there can be.
    pub stateids_max: usize,
    /// Most owners of opens and locks of all clients of 4.0. From a half on, the rest is shared out as well.
    pub owners_max: usize,
    /// Most delegations of all clients.
    pub delegations_max: usize,
    /// So many slots of all sessions may be in use before some are asked back.
    pub slots_max: usize,
}

/// What is to be done as a consequence of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client is confirmed: its name is to be remembered over a restart before the reply goes out (§8.4.2.1).
    Confirmed(Clientid4),
    /// A client is gone: its locks are to be released in the lock table, and it cannot reclaim.
    Gone(Clientid4),
    /// A client has lost all that it held: it cannot reclaim any of it after a restart.
    Revoked(Clientid4),
    /// A client has reclaimed all that it will.
    ReclaimComplete(Clientid4),
    /// A client of 4.0 says where it can be called, which is to be tried.
    Listens(Clientid4),
}

/// Clients, sessions, leases, opens and locks.
#[derive(Debug)]
pub struct State<R, F> {
    options: StateOptions,
    clients: Clients<R, F>,
    /// The sessions of each connection that carries a channel of any.
    by_connection: Map<ConnectionId, Vec<Sessionid4>>,
    stateids: Stateids<F>,
    recalls: Recalls<F>,
    load: Load,
    /// Of 4.0.
    owners: Owners<Kept<F>>,
    events: VecDeque<Event>,
    /// During grace: who had state before the restart, by the owner's name, and has not said that all is reclaimed.
    before: Option<V4Clients>,
    /// What is to be stored of who may reclaim.
    records: VecDeque<RecordChange>,
    /// Whether they can be stored.
    storage_works: bool,
    /// When all clients are looked at next, for those that have expired.
    next_look: Option<Instant>,
    /// The same for those that need not be remembered.
    next_forget: Option<Instant>,
    rng: StdRng,
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// No state. `instance` differs from restart to restart; the names of clients, sessions and state come from `seed`, which nobody
    /// else may know.
    pub fn new(options: StateOptions, instance: u32, seed: [u8; 32]) -> Self {
        let clients = Clients::new(options.lease, options.clients_max);
        let mut rng = StdRng::from_seed(seed);
        let owners = Owners::new(OwnerLimits {
            client_max: options.client_stateids_max,
            max: options.owners_max,
            clients_max: options.clients_max,
        });
        let stateids = Stateids::new(instance, rng.random());
        Self {
            options,
            clients,
            by_connection: Map::default(),
            stateids,
            recalls: Recalls::default(),
            load: Load::default(),
            owners,
            events: VecDeque::new(),
            before: None,
            storage_works: true,
            records: VecDeque::new(),
            next_look: None,
            next_forget: None,
            rng,
        }
    }

    /// The clients.
    pub fn clients(&self) -> &Clients<R, F> {
        &self.clients
    }

    /// The files that may be delegated, for asking without this state.
    pub fn marks(&self) -> &Marks {
        self.stateids.marks()
    }

    /// The shards of all clients, to be used without this state.
    pub fn shards(&self) -> &Shards<R, F> {
        self.clients.shards()
    }

    /// A session.
    pub fn session(&self, id: Sessionid4) -> Option<&Session> {
        self.clients.find(client_of(&id))?.session(&id)
    }

    /// A session, to be changed.
    fn session_mut(&mut self, id: Sessionid4) -> Option<&mut Session> {
        let client = self.clients.find_mut(client_of(&id))?;
        client.sessions.iter_mut().find(|session| session.id == id)
    }

    /// Whether nothing has to be done as a consequence: no event, recall, or record is to be had, and nobody is to be asked.
    pub fn is_settled(&self) -> bool {
        self.events.is_empty() && self.records.is_empty() && self.recalls.is_settled() && self.load.is_settled()
    }

    /// The next consequence.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// BIND_CONN_TO_SESSION (§18.34). Connections do not step up to RDMA.
    ///
    /// # Errors
    /// BADSESSION, INVAL; WRONG_CRED for another principal than the client's.
    pub fn bind_conn_to_session(
        &mut self,
        args: &BindConnToSessionArgs,
        principal: &Principal,
        connection: Connection,
    ) -> Result<BindConnToSessionOk, Nfsstat4> {
        let client = self.clients.find_mut(client_of(&args.sessid)).filter(|client| !client.evicted);
        let client = client.ok_or(Nfsstat4::BadSession)?;
        let session = client.sessions.iter_mut().find(|session| session.id == args.sessid);
        let session = session.ok_or(Nfsstat4::BadSession)?;
        if client.principal != *principal {
            return Err(Nfsstat4::WrongCred);
        }
        let bound = session.bind(connection, args.dir)?;
        client.callbacks_fail = false;
        self.note_bound(connection.id, args.sessid, bound.change);
        Ok(BindConnToSessionOk { sessid: args.sessid, dir: bound.dir, use_conn_in_rdma_mode: false })
    }

    /// SEQUENCE (§18.46), the first operation of a compound. What is to be executed is to be finished by
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// BADSESSION, CONN_NOT_BOUND_TO_SESSION, REQ_TOO_BIG, TOO_MANY_OPS, REP_TOO_BIG_TO_CACHE, what [`slot::SlotTable::begin`] says;
    /// DELAY while it is being stored again what the client may reclaim.
    pub fn sequence(
        &mut self,
        now: Instant,
        request: Request<'_>,
        connection: ConnectionId,
    ) -> Result<Sequenced<R>, Nfsstat4> {
        let args = request.args;
        let clientid = client_of(&args.sessionid);
        let client = self.clients.find_mut(clientid).filter(|client| !client.evicted).ok_or(Nfsstat4::BadSession)?;
        let session = client.sessions.iter_mut().find(|session| session.id == args.sessionid);
        let session = session.ok_or(Nfsstat4::BadSession)?;
        if client.protect != StateProtect4R::None && !session.is_bound(connection) {
            return Err(Nfsstat4::ConnNotBoundToSession);
        }
        shard::check_request(&request, &session.fore)?;
        if client.stored != Stored::AsIs {
            self.check_stored(clientid)?;
            return Err(Nfsstat4::Delay);
        }
        let shard = client.shard.clone();
        let begun =
            shard.close().slots(args.sessionid).expect("each session has slots").begin(args, request.fingerprint)?;
        let change = session.imply(connection);
        let channel = session.fore;
        self.note_bound(connection, args.sessionid, change);
        self.clients.note_use(clientid);
        let status_flags = self.status_flags(clientid, args.sessionid);
        let result =
            shard::result(args, shard.close().slots(args.sessionid).expect("each session has slots"), status_flags);
        self.renew(now, clientid);
        self.open_shard(clientid);
        Ok(Sequenced { clientid, result, begun, channel })
    }

    /// Lets a client that has just executed SEQUENCE go on without the state, if nothing has to be said or stored first.
    fn open_shard(&self, id: Clientid4) {
        let Some(client) = self.clients.find(id) else { return };
        let is_quiet = !client.evicted
            && client.stored == Stored::AsIs
            && client.protect == StateProtect4R::None
            && !self.stateids.has_revoked(id)
            && !self.may_reclaim(id);
        if is_quiet {
            client.shard.open(client.sessions().map(|session| Opening {
                session: session.id,
                connections: session.connections(),
                status_flags: self.status_flags(id, session.id),
            }));
        }
    }

    /// Ends a request that [`sequence`](Self::sequence) has begun; as [`slot::SlotTable::finish`]. Its session may be gone.
    pub fn finish(&mut self, now: Instant, session: Sessionid4, ticket: Ticket, reply: R, cheap: bool) {
        let id = client_of(&session);
        let Some(client) = self.clients.find(id) else { return };
        let mut shard = client.shard.close();
        if let Some(slots) = shard.slots(session) {
            slots.finish(ticket, reply, cheap);
            drop(shard);
            // §8.3: the lease lasts from the end of the compound.
            self.renew(now, id);
        }
    }

    /// Renews a lease, unless the client has lost everything and not acknowledged it (§18.46.3).
    fn renew(&mut self, now: Instant, id: Clientid4) {
        let Some(client) = self.clients.find(id) else { return };
        match self.has_lost_all(id) {
            true => client.shard.close().hear(now),
            false => client.shard.close().renew(now),
        }
    }

    /// Whether its lease has expired and all that it held was taken.
    fn has_lost_all(&self, id: Clientid4) -> bool {
        let lost = self.stateids.revoked(id, Nfsstat4::Expired);
        lost > 0 && lost == self.stateids.count(id)
    }

    /// Whether a request of a client is being executed, as far as that is known: of 4.0, which has no slots, only if it is one
    /// that counts.
    fn is_busy(&self, id: Clientid4) -> bool {
        self.clients.find(id).is_some_and(Client::is_busy) || self.owners.is_busy(id)
    }

    /// DESTROY_SESSION (§18.37). `own` says that the compound's SEQUENCE is of the same session.
    ///
    /// # Errors
    /// BADSESSION; CONN_NOT_BOUND_TO_SESSION; WRONG_CRED for another principal than the client's; DELAY while other requests of it
    /// are being executed, whose replies would be lost.
    pub fn destroy_session(
        &mut self,
        id: Sessionid4,
        own: bool,
        principal: &Principal,
        connection: ConnectionId,
    ) -> Result<(), Nfsstat4> {
        let client = self.clients.find(client_of(&id)).ok_or(Nfsstat4::BadSession)?;
        let session = client.session(&id).ok_or(Nfsstat4::BadSession)?;
        if !session.is_bound(connection) {
            return Err(Nfsstat4::ConnNotBoundToSession);
        }
        if client.principal != *principal {
            return Err(Nfsstat4::WrongCred);
        }
        if !own && client.shard.close().slots(id).is_some_and(|slots| slots.is_busy()) {
            return Err(Nfsstat4::Delay);
        }
        self.clients.take_session(&id).into_iter().for_each(|session| self.unlink(&session));
        Ok(())
    }

    /// DESTROY_CLIENTID (§18.50). `own` is the client of the compound's SEQUENCE, if it has one.
    ///
    /// # Errors
    /// STALE_CLIENTID; WRONG_CRED for another principal than the client's; CLIENTID_BUSY while it has state and its lease, or if it
    /// is `own`.
    pub fn destroy_clientid(
        &mut self,
        now: Instant,
        id: Clientid4,
        own: Option<Clientid4>,
        principal: &Principal,
    ) -> Result<(), Nfsstat4> {
        let client = self.clients.find(id).filter(|client| client.legacy.is_none());
        let client = client.ok_or(Nfsstat4::StaleClientid)?;
        if client.principal != *principal {
            return Err(Nfsstat4::WrongCred);
        }
        let has_state = !client.sessions.is_empty() || self.stateids.count(id) > 0;
        if own == Some(id) || has_state && !self.clients.is_expired(id, now) || client.is_busy() {
            return Err(Nfsstat4::ClientidBusy);
        }
        self.end_client(id);
        Ok(())
    }

    /// RECLAIM_COMPLETE (§18.51). No file system comes from another server, so that of one is always complete.
    ///
    /// # Errors
    /// COMPLETE_ALREADY.
    pub fn reclaim_complete(&mut self, id: Clientid4, args: &ReclaimCompleteArgs) -> Result<(), Nfsstat4> {
        let client = self.clients.find_mut(id).ok_or(Nfsstat4::StaleClientid)?;
        if args.one_fs {
            return Ok(());
        }
        if std::mem::replace(&mut client.reclaim_complete, true) {
            return Err(Nfsstat4::CompleteAlready);
        }
        self.has_reclaimed(id);
        self.events.push_back(Event::ReclaimComplete(id));
        Ok(())
    }

    /// A connection is no more.
    pub fn disconnect(&mut self, connection: ConnectionId) {
        for id in self.by_connection.remove(&connection).unwrap_or_default() {
            if let Some(session) = self.session_mut(id) {
                session.unbind(connection);
            }
        }
    }

    /// A session has other connections by now.
    fn note_bound(&mut self, connection: ConnectionId, session: Sessionid4, change: BoundChange) {
        if change.is_new {
            self.by_connection.entry(connection).or_default().push(session);
        }
        if let Some(displaced) = change.displaced {
            self.unlink_from(displaced, session);
        }
    }

    /// A session is no more.
    fn unlink(&mut self, session: &Session) {
        session.connections().for_each(|connection| self.unlink_from(connection, session.id));
    }

    fn unlink_from(&mut self, connection: ConnectionId, id: Sessionid4) {
        let Some(sessions) = self.by_connection.get_mut(&connection) else { return };
        sessions.retain(|session| *session != id);
        if sessions.is_empty() {
            self.by_connection.remove(&connection);
        }
    }

    /// Forgets who has not renewed its lease in time: those that were never confirmed (§18.35.4), and those that have
    /// nothing but sessions. Who holds something keeps it until somebody else wants it (§8.4.3), and nobody expires while a
    /// request of his is being executed (§8.3). Delegations that were to be given back in time are revoked. To be called
    /// now and then, at least once in a lease; however often it is, the clients are looked at `LOOKS` times in one.
    pub fn expire(&mut self, now: Instant) {
        self.revoke_overdue(now);
        if self.next_look.is_some_and(|next| now < next) {
            return;
        }
        self.next_look = Some(now + self.options.lease / LOOKS);
        let expired = self.clients.expired(now);
        let lapsed = expired.filter(|(id, _)| self.stateids.count(*id) == 0 && !self.is_busy(*id));
        let lapsed: Vec<_> = lapsed.map(|(id, _)| id).collect();
        lapsed.into_iter().for_each(|id| self.end_client(id));
    }

    /// Ends a client with all that it has; the only way in which one ends. Its locks are for whoever gets the event.
    fn end_client(&mut self, id: Clientid4) {
        let Some(client) = self.clients.take(id) else { return };
        for session in client.sessions() {
            self.unlink(session);
        }
        let held = self.stateids.count(id) > 0;
        for stateid in self.stateids.of_client(id) {
            self.stateids.remove(&stateid);
        }
        self.owners.remove_client(id);
        if client.confirmed {
            self.drop_record(&client, held);
            self.events.push_back(Event::Gone(id));
        }
    }

    /// The `SEQ4_STATUS_` bits. Clients that never wanted callbacks are not told that there is no way for them.
    fn status_flags(&self, clientid: Clientid4, id: Sessionid4) -> u32 {
        let Some(client) = self.clients.find(clientid) else { return 0 };
        let Some(session) = client.session(&id) else { return 0 };
        let mut flags = 0;
        if self.stateids.revoked(clientid, Nfsstat4::Expired) > 0 {
            // Even if it is all: the client ID goes on, and the client finds out with TEST_STATEID what it has lost (§18.46.3). If Linux's
            // hears that it is all, it takes another client ID, opens by that without RECLAIM_COMPLETE, and waits for a grace period.
            flags |= SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED;
        }
        if self.stateids.revoked(clientid, Nfsstat4::AdminRevoked) > 0 {
            flags |= SEQ4_STATUS_ADMIN_STATE_REVOKED;
        }
        if self.stateids.revoked(clientid, Nfsstat4::DelegRevoked) > 0 {
            flags |= SEQ4_STATUS_RECALLABLE_STATE_REVOKED;
        }
        if session.back_slots.is_lost() {
            flags |= SEQ4_STATUS_BACKCHANNEL_FAULT;
        }
        if client.callbacks_fail {
            flags |= SEQ4_STATUS_CB_PATH_DOWN;
        }
        if session.lacks_back() {
            flags |= SEQ4_STATUS_CB_PATH_DOWN_SESSION;
            if client.sessions().all(|session| session.backchannel().next().is_none()) {
                flags |= SEQ4_STATUS_CB_PATH_DOWN;
            }
        }
        if self.may_reclaim(clientid) {
            flags |= SEQ4_STATUS_RESTART_RECLAIM_NEEDED;
        }
        flags
    }
}

/// How often in a lease's time all clients are looked at for those that have expired.
const LOOKS: u32 = 64;
