//! The state of NFSv4 clients: client records, sessions, slots, leases, opens, locks and delegations.
//!
//! This is a state machine without I/O. Callers pass in the time, the caller's identity and the connection. An
//! operation takes its arguments and returns its results; consequences outside of this state come from
//! [`State::poll_event`] and the other `poll_` functions. Read RFC 8881 §2.10 (sessions), §8.3–8.4 (leases and
//! recovery) and §18.33–18.37, §18.46, §18.50, §18.51 (the operations).
//!
//! `R` is the form in which a reply is cached: the body of a COMPOUND result, so that a retry gets the same bytes
//! again. `F` names a file. [`LockTable`] decides which locks conflict.
//!
//! There are three layers, from the bottom up. A file uses only those listed before it:
//!
//! - The other files of this folder are the data. [`State`] owns [`Clients`], [`Stateids`], [`Owners`] and the recalls
//!   in progress. `Clients` owns each [`Client`], which owns its [`Session`]s and a [`shard`] with its slots and its
//!   lease. The shard has the data that each request of a client uses. Requests try the shard first, without this
//!   state. `Stateids` owns the opens, locks and delegations. [`ids`] has the identifiers by which they refer to each
//!   other.
//! - This file has [`State`], SEQUENCE, leases, and the removal of sessions and clients.
//! - [`transitions`] has all other changes of the state, one file for each family of operations.
//!
//! An error leaves the state unchanged, with one exception: a failed CREATE_SESSION is cached too (§18.36.4).

pub mod back_slots;
pub mod client;
mod holds;
mod hosts;
pub mod ids;
pub mod layout;
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
    sharing::{locks::LockTable, marks::Marks},
};
use client::{Client, Clients};
use ids::{Principal, client_of};
use layout::LayoutQueue;
use load::Load;
use owner::{Kept, OwnerLimits, Owners};
use recallable::Recalls;
use record::Stored;
use session::{BoundChange, ChannelLimits, Connection, ConnectionId, Session};
use shard::{Request, Sequenced, SessionSnapshot, Shards};
use slot::Ticket;
use stateid::Stateids;
use vfs::{Held, layout::LayoutModes};

/// The identity of a server, and its limits.
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// The server owner, which is the same for all addresses of the server.
    pub server_owner: ServerOwner4,
    /// The server scope, which servers share if they share client IDs and file handles.
    pub server_scope: Bytes,
    /// The name and version of the server software.
    pub implementation: Option<NfsImplId4>,
    /// The `EXCHGID4_FLAG_` bits of every EXCHANGE_ID result.
    pub flags: u32,
    /// The lease time.
    pub lease: Duration,
    /// The limits of the fore channel.
    pub channel: ChannelLimits,
    /// The maximum number of clients, unconfirmed ones included.
    pub clients_max: usize,
    /// The maximum number of sessions of one client.
    pub client_sessions_max: usize,
    /// The maximum number of sessions of all clients. The first half is granted on demand. The second half is reserved
    /// in equal shares for `clients_max` clients.
    pub sessions_max: usize,
    /// The maximum bytes of cached replies.
    pub replies_max: usize,
    /// The maximum number of stateids of one client, including revoked ones that the client has not freed.
    pub client_stateids_max: usize,
    /// The maximum number of stateids of all clients. The second half is reserved in equal shares.
    pub stateids_max: usize,
    /// The maximum number of open-owners and lock-owners of all clients of 4.0. The second half is reserved in equal
    /// shares.
    pub owners_max: usize,
    /// The maximum number of delegations of all clients.
    pub delegations_max: usize,
    /// The maximum number of files with layouts, counted for each client and kind of layout.
    pub layouts_max: usize,
    /// The number of slots of all sessions. Slots are recalled when three quarters of them are in use.
    pub slots_max: usize,
}

/// A consequence of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client was confirmed.
    Confirmed(Clientid4),
    /// A client was removed. Its locks must be released in the lock table, and it cannot reclaim.
    Removed(Clientid4),
    /// All state of a client was revoked. It cannot reclaim any of that state after a restart.
    Revoked(Clientid4),
    /// A client sent RECLAIM_COMPLETE.
    ReclaimComplete(Clientid4),
    /// A client of 4.0 confirmed a callback address, which must be probed.
    NewListener(Clientid4),
}

/// The clients, sessions, leases, opens, locks and delegations.
#[derive(Debug)]
pub struct State<R, F> {
    options: StateOptions,
    clients: Clients<R, F>,
    /// The sessions of each connection that is bound to a channel.
    by_connection: Map<ConnectionId, Vec<Sessionid4>>,
    stateids: Stateids<F>,
    recalls: Recalls<F>,
    layouts: LayoutQueue<F>,
    load: Load,
    /// The owners of NFSv4.0.
    owners: Owners<Kept<F>>,
    events: VecDeque<Event>,
    /// During the grace period: the owners of clients that held state before the restart and have not completed their
    /// reclaims.
    grace: Option<V4Clients>,
    /// `true` if the records of the clients that held state before the restart are lost.
    records_lost: bool,
    /// The queued changes of the recovery database.
    records: VecDeque<RecordChange>,
    /// `true` if the recovery database can be written.
    storage_works: bool,
    /// The time of the next check for expired clients.
    next_expiry_check: Option<Instant>,
    /// The time of the next check for expired clients that keep removed files.
    next_removed_check: Option<Instant>,
    /// The time of the next check for recovery records that are no longer needed.
    next_record_check: Option<Instant>,
    rng: StdRng,
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Creates an empty state. `instance` must differ after each restart. Client IDs, session IDs and stateids are
    /// generated from `seed`, which must be secret.
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
            layouts: LayoutQueue::default(),
            load: Load::default(),
            owners,
            events: VecDeque::new(),
            grace: None,
            records_lost: false,
            storage_works: true,
            records: VecDeque::new(),
            next_expiry_check: None,
            next_removed_check: None,
            next_record_check: None,
            rng,
        }
    }

    /// Returns the clients.
    pub fn clients(&self) -> &Clients<R, F> {
        &self.clients
    }

    /// Returns the files that may be delegated. They can be read without a lock on this state.
    pub fn marks(&self) -> &Marks {
        self.stateids.marks()
    }

    /// Returns the shards of all clients. They can be used without a lock on this state.
    pub fn shards(&self) -> &Shards<R, F> {
        self.clients.shards()
    }

    /// Returns a session.
    pub fn session(&self, id: Sessionid4) -> Option<&Session> {
        self.clients.find(client_of(&id))?.session(&id)
    }

    /// Returns a session for changes.
    fn session_mut(&mut self, id: Sessionid4) -> Option<&mut Session> {
        let client = self.clients.find_mut(client_of(&id))?;
        client.sessions.iter_mut().find(|session| session.id == id)
    }

    /// Returns `true` if no event, recovery record, recall or reduction is queued.
    pub fn is_settled(&self) -> bool {
        let pushes = self.recalls.is_settled() && self.load.is_settled() && self.layouts.is_settled();
        self.events.is_empty() && self.records.is_empty() && pushes
    }

    /// Keeps a file until its last open or delegation ends. Returns the hold if it is not needed.
    pub fn hold(&mut self, file: &F, held: Held) -> Option<Held> {
        self.stateids.holds_mut().keep(file, held)
    }

    /// Returns the holds that have ended. Dropping them can take long: the caller does so without a lock on this state.
    pub fn ended_holds(&mut self) -> Vec<Held> {
        self.stateids.holds_mut().take_ended()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Checks that a call may create or destroy a session of a client, or the client itself, as far as the call's
    /// integrity is concerned (§2.10.8.3, §18.34.3, §18.37.3). The operations compare the principal themselves.
    ///
    /// # Errors
    /// WRONG_CRED if the client has state protection and the call has no integrity.
    pub fn check_integrity(&self, id: Clientid4, has_integrity: bool) -> Result<(), Nfsstat4> {
        match self.clients.find(id) {
            Some(client) if client.refuses(has_integrity) => Err(Nfsstat4::WrongCred),
            _ => Ok(()),
        }
    }

    /// Returns the operations that the machine credential of a client may execute in place of the credential of a user
    /// (`spo_must_allow`, §2.10.8.3). There are none unless `principal` is that of the client.
    pub fn allowed_by_machine(&self, id: Clientid4, principal: &Principal) -> Option<&Bitmap4> {
        let client = self.clients.find(id).filter(|client| client.principal == *principal)?;
        match &client.protect {
            StateProtect4R::MachCred(granted) => Some(&granted.must_allow),
            _ => None,
        }
    }

    /// Executes BIND_CONN_TO_SESSION (§18.34). Connections do not change to RDMA mode.
    ///
    /// # Errors
    /// BADSESSION, INVAL; WRONG_CRED if the principal is not the client's.
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

    /// Executes SEQUENCE (§18.46), the first operation of a compound. If the request must be executed, it must also be
    /// ended by [`finish`](Self::finish).
    ///
    /// # Errors
    /// BADSESSION, CONN_NOT_BOUND_TO_SESSION, REQ_TOO_BIG, TOO_MANY_OPS, REP_TOO_BIG_TO_CACHE, those of
    /// [`slot::SlotTable::begin`]; DELAY while the client's recovery record is being restored.
    pub fn sequence(
        &mut self,
        now: Instant,
        request: Request<'_>,
        connection: Connection,
    ) -> Result<Sequenced<R>, Nfsstat4> {
        let args = request.args;
        let clientid = client_of(&args.sessionid);
        let client = self.clients.find_mut(clientid).filter(|client| !client.evicted).ok_or(Nfsstat4::BadSession)?;
        let session = client.sessions.iter_mut().find(|session| session.id == args.sessionid);
        let session = session.ok_or(Nfsstat4::BadSession)?;
        if client.protect != StateProtect4R::None && !session.is_bound(connection.id) {
            return Err(Nfsstat4::ConnNotBoundToSession);
        }
        shard::check_request(&request, &session.fore)?;
        if client.stored != Stored::Current {
            self.check_stored(clientid)?;
            return Err(Nfsstat4::Delay);
        }
        let shard = client.shard.clone();
        let begun =
            shard.close().slots(args.sessionid).expect("a session must have slots").begin(args, request.fingerprint)?;
        let change = session.bind_implicitly(connection);
        let channel = session.fore;
        self.note_bound(connection.id, args.sessionid, change);
        self.clients.note_use(clientid);
        let status_flags = self.status_flags(clientid, args.sessionid);
        let result =
            shard::result(args, shard.close().slots(args.sessionid).expect("a session must have slots"), status_flags);
        self.renew(now, clientid);
        self.open_shard(clientid);
        Ok(Sequenced { clientid, result, begun, channel })
    }

    /// Opens the shard of a client that has just executed SEQUENCE, if the next SEQUENCE needs neither this state nor
    /// storage.
    fn open_shard(&self, id: Clientid4) {
        let Some(client) = self.clients.find(id) else { return };
        let is_quiet = !client.evicted
            && client.stored == Stored::Current
            && client.protect == StateProtect4R::None
            && !self.stateids.has_revoked(id)
            && !self.may_reclaim(id);
        if is_quiet {
            client.shard.open(client.sessions().map(|session| SessionSnapshot {
                session: session.id,
                connections: session.connections(),
                status_flags: self.status_flags(id, session.id),
            }));
        }
    }

    /// Ends a request that [`sequence`](Self::sequence) has begun, like [`slot::SlotTable::finish`]. The session may
    /// have been destroyed in the meantime.
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

    /// Renews a lease, unless all state of the client was revoked and the client has not acknowledged that (§18.46.3).
    fn renew(&mut self, now: Instant, id: Clientid4) {
        let Some(client) = self.clients.find(id) else { return };
        match self.has_lost_all(id) {
            true => client.shard.close().note_request(now),
            false => client.shard.close().renew(now),
        }
    }

    /// Returns `true` if the lease of a client has expired and all its state was revoked.
    fn has_lost_all(&self, id: Clientid4) -> bool {
        let lost = self.stateids.revoked(id, Nfsstat4::Expired);
        lost > 0 && lost == self.stateids.count(id)
    }

    /// Returns `true` if a request of a client is known to be in progress. Of 4.0, which has no slots, only operations
    /// with a sequence ID are known.
    fn is_busy(&self, id: Clientid4) -> bool {
        self.clients.find(id).is_some_and(Client::is_busy) || self.owners.is_busy(id)
    }

    /// Executes DESTROY_SESSION (§18.37). `own` is `true` if the compound's SEQUENCE used the same session.
    ///
    /// # Errors
    /// BADSESSION; CONN_NOT_BOUND_TO_SESSION; WRONG_CRED if the principal is not the client's; DELAY while other
    /// requests of the session are in progress, whose replies would be lost.
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

    /// Executes DESTROY_CLIENTID (§18.50). `own` is the client of the compound's SEQUENCE, if it has one.
    ///
    /// # Errors
    /// STALE_CLIENTID; WRONG_CRED if the principal is not the client's; CLIENTID_BUSY while the client has state and a
    /// valid lease, or if it is `own`.
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

    /// Executes RECLAIM_COMPLETE (§18.51). For a single file system this has no effect, because no file system is
    /// migrated to this server.
    ///
    /// # Errors
    /// STALE_CLIENTID, COMPLETE_ALREADY.
    pub fn reclaim_complete(&mut self, id: Clientid4, args: &ReclaimCompleteArgs) -> Result<(), Nfsstat4> {
        let client = self.clients.find_mut(id).ok_or(Nfsstat4::StaleClientid)?;
        if args.one_fs {
            return Ok(());
        }
        if std::mem::replace(&mut client.reclaim_complete, true) {
            return Err(Nfsstat4::CompleteAlready);
        }
        self.note_reclaimed(id);
        self.events.push_back(Event::ReclaimComplete(id));
        Ok(())
    }

    /// Removes a connection that was closed.
    pub fn disconnect(&mut self, connection: ConnectionId) {
        for id in self.by_connection.remove(&connection).unwrap_or_default() {
            if let Some(session) = self.session_mut(id) {
                session.unbind(connection);
            }
        }
    }

    /// Updates the index of connections after a session was bound to a connection.
    fn note_bound(&mut self, connection: ConnectionId, session: Sessionid4, change: BoundChange) {
        if change.is_new {
            self.by_connection.entry(connection).or_default().push(session);
        }
        if let Some(displaced) = change.displaced {
            self.unlink_from(displaced, session);
        }
    }

    /// Removes a session from the index of connections.
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

    /// Removes expired clients: those that were never confirmed (§18.35.4), and those that hold no state. A client that
    /// holds state keeps it after expiry until another client wants it (§8.4.3), or
    /// [`expire_removed`](Self::expire_removed) revokes it. A client does not expire while one of
    /// its requests is being executed (§8.3). Ends layouts to write of expired clients, and revokes state that was recalled and not
    /// returned in time. Must be called at least once in a lease time. More frequent calls are cheap: the clients are checked
    /// `EXPIRY_CHECKS` times in a lease time.
    pub fn expire(&mut self, now: Instant) {
        self.revoke_overdue(now);
        if self.next_expiry_check.is_some_and(|next| now < next) {
            return;
        }
        self.next_expiry_check = Some(now + self.options.lease / EXPIRY_CHECKS);
        let expired = self.clients.expired(now);
        let lapsed = expired.filter(|(id, _)| self.stateids.count(*id) == 0 && !self.is_busy(*id));
        let lapsed: Vec<_> = lapsed.map(|(id, _)| id).collect();
        lapsed.into_iter().for_each(|id| self.end_client(id));
        self.expire_layouts(now);
    }

    /// Revokes all state of expired clients that keep files without a name. Nobody else can ever want such a file, so the client
    /// would keep its space for ever. Must be called periodically. More frequent calls are cheap: the clients are checked
    /// `REMOVED_CHECKS` times in a lease time.
    pub fn expire_removed(&mut self, locks: &mut LockTable<F>, now: Instant) {
        if self.next_removed_check.is_some_and(|next| now < next) {
            return;
        }
        self.next_removed_check = Some(now + self.options.lease / REMOVED_CHECKS);
        let keeping = self.clients.expired(now).map(|(id, _)| id).filter(|id| self.stateids.keeps_removed(*id));
        let keeping: Vec<_> = keeping.filter(|id| !self.is_busy(*id)).collect();
        keeping.into_iter().for_each(|id| self.revoke_all(locks, id, Nfsstat4::Expired));
    }

    /// Removes a client with all its state. This is the only way to remove a client. Whoever gets the event must
    /// release its locks.
    fn end_client(&mut self, id: Clientid4) {
        let Some(client) = self.clients.take(id) else { return };
        for session in client.sessions() {
            self.unlink(session);
        }
        let held = self.stateids.count(id) > 0;
        for stateid in self.stateids.of_client(id) {
            self.fence_layouts(&stateid, LayoutModes::ALL);
            self.stateids.remove(&stateid);
        }
        self.owners.remove_client(id);
        if client.confirmed {
            self.drop_record(&client, held);
            self.events.push_back(Event::Removed(id));
        }
    }

    /// Returns the `SEQ4_STATUS_` bits. A client that never asked for callbacks does not get the bits about missing
    /// callback paths.
    fn status_flags(&self, clientid: Clientid4, id: Sessionid4) -> u32 {
        let Some(client) = self.clients.find(clientid) else { return 0 };
        let Some(session) = client.session(&id) else { return 0 };
        let mut flags = 0;
        if self.stateids.revoked(clientid, Nfsstat4::Expired) > 0 {
            // Do not set EXPIRED_ALL_STATE_REVOKED even if all state was revoked: the client ID stays valid, and the
            // client finds out with TEST_STATEID what it has lost (§18.46.3). After that bit, Linux's client takes
            // another client ID, opens files without RECLAIM_COMPLETE, and waits for a grace period.
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
        //= rfc8881-2.10.13.2.4-2
        if session.lacks_backchannel() {
            flags |= SEQ4_STATUS_CB_PATH_DOWN_SESSION;
            let carries = |session: &Session| client.may_call_over(session) && session.backchannel().next().is_some();
            if !client.sessions().any(carries) {
                flags |= SEQ4_STATUS_CB_PATH_DOWN;
            }
        }
        if self.may_reclaim(clientid) {
            flags |= SEQ4_STATUS_RESTART_RECLAIM_NEEDED;
        }
        flags
    }
}

/// The number of checks for expired clients in a lease time.
const EXPIRY_CHECKS: u32 = 64;
/// The number of checks for expired clients that keep removed files, in a lease time.
const REMOVED_CHECKS: u32 = 4;
