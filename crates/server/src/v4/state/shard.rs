//! [`Shard`]: the part of a client's state that each of its requests uses: slots, lease, and the stateids in use by
//! READ and WRITE.
//!
//! A request of NFSv4.1 begins with SEQUENCE and ends with the release of its slot. If it needs nothing else, as
//! GETATTR or a READ with an open stateid, it locks its client's shard and no lock that other clients use.
//!
//! **A shard is open or closed.** While it is open, the shard alone answers SEQUENCE. [`State`](super::State) closes it
//! whenever it reads the client's slots or lease, or changes the client. Until the shard is opened again, no request
//! begins and the lease is not renewed, so decisions that are based on the read values stay valid. The shard is opened
//! when the state itself has executed a SEQUENCE of the client, if nothing must be reported or stored first. It then
//! gets the current status flags and connections.
//!
//! **Lock order**: the state, the lock table, a shard. No other lock is taken while a shard is locked. [`Shards`] finds
//! a shard without the state. Its locks are held only for the lookup.
//!
//! If a shard cannot answer, it changes nothing, and the state answers instead.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use nfs::v4::*;
use parking_lot::{Mutex, MutexGuard, RwLock};
use smallvec::SmallVec;

use super::{
    ids::{Other, ReferringCall, client_of},
    session::{self, ConnectionId},
    slot::{Begun, Fingerprint, SlotTable, Ticket},
};
use crate::hash::Map;

/// The outcome of a request with SEQUENCE.
#[derive(Debug)]
pub struct Sequenced<R> {
    /// The client.
    pub clientid: Clientid4,
    /// The result of SEQUENCE.
    pub result: SequenceOk,
    /// The decision about the rest of the request.
    pub begun: Begun<R>,
    /// The limits of the reply.
    pub channel: ChannelAttrs4,
}

/// A request with SEQUENCE, as it was received.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The arguments of SEQUENCE.
    pub args: &'a SequenceArgs,
    /// Distinguishes the request from others.
    pub fingerprint: Fingerprint,
    /// The length of the RPC message in bytes.
    pub len: usize,
    /// The number of operations, SEQUENCE included.
    pub operations: u32,
}

/// The data of a client that each of its requests uses. `R` is the form in which a reply is cached, `F` names a file.
pub struct Shard<R, F> {
    inner: Mutex<Inner<R>>,
    uses: Arc<Uses<F>>,
}

/// The slots and the lease of a client.
pub(super) struct Inner<R> {
    renewed_at: Instant,
    /// The time of the last request, including those that did not renew the lease.
    last_request_at: Instant,
    channels: SmallVec<[Channel<R>; 1]>,
    is_open: bool,
}

/// The slots of a session.
struct Channel<R> {
    session: Sessionid4,
    slots: SlotTable<R>,
    fore: ChannelAttrs4,
    /// The connections when the shard was opened.
    connections: SmallVec<[ConnectionId; 2]>,
    status_flags: u32,
}

/// The stateids by which a client has read or written. An entry is removed when anything about its stateid changes.
#[derive(Debug)]
pub struct Uses<F>(Mutex<Map<Other, Use<F>>>);

/// The properties of a stateid that READ and WRITE check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Use<F> {
    pub(super) file: F,
    pub(super) seqid: u32,
    /// `true` if no other open can deny reading.
    pub(super) may_read: bool,
    pub(super) may_write: bool,
}

/// A session at the time when a shard is opened.
pub(super) struct SessionSnapshot<C> {
    pub(super) session: Sessionid4,
    pub(super) connections: C,
    pub(super) status_flags: u32,
}

/// The shards of all clients, by client ID. Clones share the same table.
pub struct Shards<R, F>(Arc<[Part<R, F>; PARTS]>);

type Part<R, F> = RwLock<Map<Clientid4, Arc<Shard<R, F>>>>;

impl<R: Clone, F: Eq> Shard<R, F> {
    /// Executes SEQUENCE (§18.46). Returns `None` if the state must execute it.
    pub fn sequence(&self, now: Instant, request: &Request<'_>, connection: ConnectionId) -> Option<Sequenced<R>> {
        let args = request.args;
        let inner = &mut *self.inner.lock();
        if !inner.is_open {
            return None;
        }
        let channel = inner.channels.iter_mut().find(|channel| channel.session == args.sessionid)?;
        if !channel.connections.contains(&connection) || check_request(request, &channel.fore).is_err() {
            return None;
        }
        let begun = channel.slots.begin(args, request.fingerprint.clone()).ok()?;
        let sequenced = Sequenced {
            clientid: client_of(&args.sessionid),
            result: result(args, &channel.slots, channel.status_flags),
            begun,
            channel: channel.fore,
        };
        inner.renew(now);
        Some(sequenced)
    }

    /// Ends a request, like [`SlotTable::finish`].
    ///
    /// # Errors
    /// Returns the arguments if the shard is closed. The state must end the request then.
    pub fn finish(
        &self,
        now: Instant,
        session: Sessionid4,
        (ticket, reply, cheap): (Ticket, R, bool),
    ) -> Result<(), (Ticket, R)> {
        let inner = &mut *self.inner.lock();
        let channel = inner.channels.iter_mut().find(|channel| channel.session == session);
        let Some(channel) = channel.filter(|_| inner.is_open) else { return Err((ticket, reply)) };
        channel.slots.finish(ticket, reply, cheap);
        // §8.3: the lease lasts from the end of the compound.
        //= rfc8881-8.3-3 rfc8881-8.3-4
        inner.renew(now);
        Ok(())
    }

    /// Returns `true` unless the client has shown that it has received the reply to a request, or its session was
    /// destroyed. The shard stays open: the client may show it at any time.
    pub(super) fn may_be_outstanding(&self, call: &ReferringCall) -> bool {
        let inner = self.inner.lock();
        let channel = inner.channels.iter().find(|channel| channel.session == call.session);
        channel.is_some_and(|channel| channel.slots.may_be_outstanding(call.slot, call.sequence))
    }

    /// Returns `true` if a stateid permits the client to read or write a file. If `false`, ask the state, which also
    /// returns the error.
    pub fn permits_io(&self, file: &F, stateid: &Stateid4, write: bool) -> bool {
        let uses = self.uses.0.lock();
        uses.get(&stateid.other).is_some_and(|found| {
            let is_allowed = if write { found.may_write } else { found.may_read };
            (stateid.seqid == 0 || stateid.seqid == found.seqid) && is_allowed && found.file == *file
        })
    }
}

impl<R, F> Shard<R, F> {
    pub(super) fn new(now: Instant) -> Self {
        let channels = SmallVec::new();
        let inner = Inner { renewed_at: now, last_request_at: now, channels, is_open: false };
        Self { inner: Mutex::new(inner), uses: Arc::new(Uses(Mutex::default())) }
    }

    /// Closes the shard, so that the state can read or change it.
    pub(super) fn close(&self) -> MutexGuard<'_, Inner<R>> {
        let mut inner = self.inner.lock();
        inner.is_open = false;
        inner
    }

    /// Opens the shard with its current sessions.
    pub(super) fn open<C: Iterator<Item = ConnectionId>>(&self, sessions: impl Iterator<Item = SessionSnapshot<C>>) {
        let mut inner = self.inner.lock();
        for SessionSnapshot { session, connections, status_flags } in sessions {
            let Some(channel) = inner.channels.iter_mut().find(|channel| channel.session == session) else { return };
            channel.connections.clear();
            channel.connections.extend(connections);
            //= rfc8881-2.10.6.2-2
            channel.status_flags = status_flags;
        }
        inner.is_open = true;
    }

    /// Returns the sessions, connections and status flags with which the shard answers SEQUENCE, or `None` if it is
    /// closed.
    #[cfg(test)]
    pub(super) fn opened(&self) -> Option<Vec<(Sessionid4, Vec<ConnectionId>, u32)>> {
        let inner = self.inner.lock();
        let channel = |it: &Channel<R>| (it.session, it.connections.to_vec(), it.status_flags);
        inner.is_open.then(|| inner.channels.iter().map(channel).collect())
    }

    /// Returns the stateids in use.
    pub(super) fn uses(&self) -> &Arc<Uses<F>> {
        &self.uses
    }
}

impl<R> Inner<R> {
    pub(super) fn silent(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.renewed_at)
    }

    pub(super) fn time_since_request(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_request_at)
    }

    /// Renews the lease.
    pub(super) fn renew(&mut self, now: Instant) {
        //= rfc8881-18.46.3-13 rfc8881-8.3-1
        self.renewed_at = self.renewed_at.max(now);
        self.note_request(now);
    }

    /// Notes a request of the client, which does not renew the lease.
    pub(super) fn note_request(&mut self, now: Instant) {
        self.last_request_at = self.last_request_at.max(now);
    }
}

impl<R: Clone> Inner<R> {
    /// Returns `true` while requests of the client are being executed.
    pub(super) fn is_busy(&self) -> bool {
        self.channels.iter().any(|channel| channel.slots.is_busy())
    }

    /// Returns the slots of a session.
    pub(super) fn slots(&mut self, session: Sessionid4) -> Option<&mut SlotTable<R>> {
        self.channels.iter_mut().find(|channel| channel.session == session).map(|channel| &mut channel.slots)
    }

    /// Returns the slots of all sessions.
    pub(super) fn all_slots(&mut self) -> impl Iterator<Item = (Sessionid4, &mut SlotTable<R>)> {
        self.channels.iter_mut().map(|channel| (channel.session, &mut channel.slots))
    }

    /// Adds a new session.
    pub(super) fn add_session(&mut self, session: Sessionid4, fore: ChannelAttrs4) {
        let slots = SlotTable::new(fore.maxrequests);
        self.channels.push(Channel { session, slots, fore, connections: SmallVec::new(), status_flags: 0 });
    }

    /// Removes a session.
    pub(super) fn remove_session(&mut self, session: Sessionid4) {
        self.channels.retain(|channel| channel.session != session);
    }
}

// Shows only the state that clients can observe, and not whether the shard is open.
impl<R: fmt::Debug, F> fmt::Debug for Shard<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock();
        let slots: Vec<_> = inner.channels.iter().map(|channel| (channel.session, &channel.slots)).collect();
        f.debug_struct("Shard")
            .field("renewed_at", &inner.renewed_at)
            .field("last_request_at", &inner.last_request_at)
            .field("slots", &slots)
            .finish_non_exhaustive()
    }
}

impl<F> Uses<F> {
    /// Adds a stateid that the state has found to be valid.
    pub(super) fn insert(&self, other: Other, found: Use<F>) {
        let mut uses = self.0.lock();
        if uses.len() >= USES_MAX {
            uses.clear();
        }
        uses.insert(other, found);
    }

    /// Removes a stateid, because something about it changes.
    pub(super) fn remove(&self, other: &Other) {
        self.0.lock().remove(other);
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<(Other, Use<F>)>
    where
        F: Clone,
    {
        self.0.lock().iter().map(|(other, found)| (*other, found.clone())).collect()
    }
}

impl<R, F> Shards<R, F> {
    /// Returns the shard of the client to which a session belongs.
    pub fn of_session(&self, session: &Sessionid4) -> Option<Arc<Shard<R, F>>> {
        self.of_client(client_of(session))
    }

    /// Returns the shard of a client.
    pub fn of_client(&self, client: Clientid4) -> Option<Arc<Shard<R, F>>> {
        self.part(client).read().get(&client).cloned()
    }

    pub(super) fn insert(&self, client: Clientid4, shard: Arc<Shard<R, F>>) {
        self.part(client).write().insert(client, shard);
    }

    pub(super) fn remove(&self, client: Clientid4) {
        self.part(client).write().remove(&client);
    }

    /// Returns the part of the table for a client. Client IDs are random, so they spread evenly.
    fn part(&self, Clientid4(client): Clientid4) -> &Part<R, F> {
        &self.0[client as usize % PARTS]
    }
}

impl<R, F> Default for Shards<R, F> {
    fn default() -> Self {
        Self(Arc::new(std::array::from_fn(|_| RwLock::default())))
    }
}

impl<R, F> Clone for Shards<R, F> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R, F> fmt::Debug for Shards<R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shards")
    }
}

/// Checks a request against the limits of its session.
///
/// # Errors
/// REQ_TOO_BIG, TOO_MANY_OPS, REP_TOO_BIG_TO_CACHE.
pub(super) fn check_request(request: &Request<'_>, fore: &ChannelAttrs4) -> Result<(), Nfsstat4> {
    if request.len > fore.maxrequestsize as usize {
        //= rfc8881-18.46.3-12
        return Err(Nfsstat4::ReqTooBig);
    }
    if request.operations > fore.maxoperations {
        //= rfc8881-18.36.3-14
        return Err(Nfsstat4::TooManyOps);
    }
    if request.args.cachethis && fore.maxresponsesize_cached < session::RESPONSE_LEN_MIN {
        return Err(Nfsstat4::RepTooBigToCache);
    }
    Ok(())
}

/// Returns the result of SEQUENCE after the request has begun.
pub(super) fn result<R: Clone>(args: &SequenceArgs, slots: &SlotTable<R>, status_flags: u32) -> SequenceOk {
    SequenceOk {
        //= rfc8881-18.46.3-4 rfc8881-18.46.3-5 rfc8881-18.46.3-6
        sessionid: args.sessionid,
        sequenceid: args.sequenceid,
        slotid: args.slotid,
        highest_slotid: slots.enforced_highest(),
        target_highest_slotid: slots.target_highest(),
        status_flags,
    }
}

/// The number of locks of the table. Two clients rarely share one.
const PARTS: usize = 64;
/// The maximum number of stateids in use. A further one clears the table, which fills again as stateids are used.
pub(super) const USES_MAX: usize = 1024;
