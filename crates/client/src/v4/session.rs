//! [`Session`]: requests by slots, exactly once each, and what happens when the server has forgotten the session.
//!
//! Read RFC 8881 §2.10.6 (slots), §2.10.13 and §8.4.2 (recovery) first. A request is sent until SEQUENCE answers it, by
//! whichever connection; the answer decides: it has been executed, it is to be sent again, or the session is gone.
//! Then whoever finds out first makes a new one, with the others waiting, and if the server has forgotten the client
//! too, what was open and locked is reclaimed. Requests whose answers were lost with the session are sent anew.
//!
//! A caller who gives up a request leaves a slot in doubt: a task sends something in its place until that is answered.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::SharedBuffer;
use nfs::v4::{compound::*, *};
use parking_lot::Mutex;
use rpc::ReplyPlan;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{
    callback::Backchannel,
    compound::{Compound, Results, failure},
    identity,
    opens::Opens,
    slots::{Place, Slots},
    trunk::{BACKGROUND, Trunk},
};
use crate::{Error, ErrorKind, Result, backoff::Backoff};

/// A session as CREATE_SESSION made it.
#[derive(Debug)]
pub(crate) struct Session {
    pub id: Sessionid4,
    /// The limits of requests.
    pub fore: ChannelAttrs4,
    slots: Mutex<Slots>,
    freed: Notify,
    /// The server does not know it any more.
    gone: AtomicBool,
}

/// This client with its server: what all users of a mount share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub trunk: Trunk,
    pub minor: u32,
    pub owner: ClientOwner4,
    pub runtime: tokio::runtime::Handle,
    pub opens: Opens,
    pub backchannel: Arc<Backchannel>,
    state: Mutex<Known>,
    /// Only one recovers at a time.
    recovering: tokio::sync::Mutex<()>,
    rebinding: AtomicBool,
    /// Seconds.
    lease: AtomicU32,
    /// When SEQUENCE was last answered.
    renewed: Mutex<Instant>,
}

#[derive(Clone, Debug)]
struct Known {
    clientid: Clientid4,
    /// Of the next CREATE_SESSION.
    sequence: Sequenceid4,
    session: Arc<Session>,
}

/// What SEQUENCE's answer means for a request.
enum Verdict {
    /// It has been executed, or the server has its reply.
    Done,
    /// It is to be sent again: in the same place, or in the next.
    Again { used: bool },
    /// The connection must be bound first.
    Bind,
    /// The session is of no more use.
    Gone,
    /// It cannot be.
    Failed,
}

impl Session {
    fn new(ok: &CreateSessionOk) -> Arc<Self> {
        let slots = Mutex::new(Slots::new(ok.fore_chan_attrs.maxrequests));
        let fore = ok.fore_chan_attrs;
        Arc::new(Self { id: ok.sessionid, fore, slots, freed: Notify::new(), gone: AtomicBool::new(false) })
    }

    async fn place(self: &Arc<Self>, shared: &Arc<Shared>) -> Taken {
        loop {
            let freed = self.freed.notified();
            let mut freed = std::pin::pin!(freed);
            // Before looking, so that what is freed from now on is heard of.
            freed.as_mut().enable();
            if let Some(place) = self.slots.lock().take() {
                return Taken { shared: shared.clone(), session: self.clone(), place, sent: false, settled: false };
            }
            freed.await;
        }
    }

    fn release(&self, place: Place, used: bool) {
        self.slots.lock().release(place, used);
        self.freed.notify_waiters();
    }

    fn sequence(&self, place: Place, cache: bool) -> Argop4 {
        let highest_slotid = self.slots.lock().highest();
        Argop4::Sequence(SequenceArgs {
            sessionid: self.id,
            sequenceid: place.sequence,
            slotid: place.slot,
            highest_slotid,
            cachethis: cache,
        })
    }

    /// How many requests can be under way.
    pub fn slots(&self) -> u32 {
        self.slots.lock().len()
    }
}

/// A slot that a request has. Dropped before the request was answered, the slot is in doubt.
struct Taken {
    shared: Arc<Shared>,
    session: Arc<Session>,
    place: Place,
    sent: bool,
    settled: bool,
}

impl Taken {
    fn settle(mut self, used: bool) {
        self.settled = true;
        self.session.release(self.place, used);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if !self.sent || self.session.gone.load(Relaxed) {
            return self.session.release(self.place, false);
        }
        let (shared, session, place) = (self.shared.clone(), self.session.clone(), self.place);
        self.shared.runtime.clone().spawn(async move { shared.resolve_doubt(session, place).await });
    }
}

impl Shared {
    /// Introduces the client by the first connection, and makes a session.
    ///
    /// # Errors
    /// The server does not speak this minor version, or refuses.
    pub async fn establish(
        trunk: Trunk,
        minor: u32,
        backchannel: Arc<Backchannel>,
        deadline: Instant,
    ) -> Result<(Arc<Self>, ExchangeIdOk)> {
        let owner = identity::client_owner();
        let first = trunk.first().clone();
        let exchanged = identity::exchange_id(&first, minor, &owner, deadline).await?;
        let (clientid, sequence) = (exchanged.clientid, exchanged.sequenceid);
        let made = identity::create_session(&first, minor, clientid, sequence, deadline).await?;
        let session = Session::new(&made);
        backchannel.session(made.sessionid, made.back_chan_attrs.maxrequests);
        let sequence = Sequenceid4(sequence.0.wrapping_add(1));
        let shared = Arc::new(Self {
            trunk,
            minor,
            owner,
            runtime: tokio::runtime::Handle::current(),
            opens: Opens::default(),
            backchannel,
            state: Mutex::new(Known { clientid, sequence, session }),
            recovering: tokio::sync::Mutex::default(),
            rebinding: AtomicBool::new(false),
            lease: AtomicU32::new(LEASE_UNKNOWN),
            renewed: Mutex::new(Instant::now()),
        });
        shared.backchannel.serve(&shared);
        // RFC 8881 §18.51.3: before the first open, also of a client that has nothing to reclaim.
        shared.reclaim_complete(deadline).await?;
        Ok((shared, exchanged))
    }

    /// The session.
    pub fn session(&self) -> Arc<Session> {
        self.state.lock().session.clone()
    }

    /// The client's name at the server.
    pub fn clientid(&self) -> Clientid4 {
        self.state.lock().clientid
    }

    /// For how long the server keeps the state of a client that is silent.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease.load(Relaxed).max(1).into())
    }

    pub fn set_lease(&self, seconds: u32) {
        self.lease.store(seconds, Relaxed);
    }

    /// Executes a compound; asks again while the server says "later". Results are those of success.
    ///
    /// # Errors
    /// That of the operation that failed, or what can fail with any call.
    pub async fn run(self: &Arc<Self>, compound: &Compound, deadline: Instant) -> Result<Results> {
        let mut backoff = Backoff::new();
        loop {
            match self.run_once(compound, None, deadline).await.0 {
                Err(error) if error.is_later() && backoff.waits(deadline).await => {}
                result => return result,
            }
        }
    }

    /// Executes a compound with the caller's buffer for its data. The buffer comes back with the results, or beside the
    /// error unless a transport still had it at the deadline.
    pub async fn run_once(
        self: &Arc<Self>,
        compound: &Compound,
        sink: Option<buf::Buffer>,
        deadline: Instant,
    ) -> (Result<Results>, Option<SharedBuffer>) {
        let (result, sink) = self.execute(compound, sink, deadline).await;
        let res = match result {
            Ok(res) => res,
            Err(error) => return (Err(error), sink),
        };
        let mut results = res.resarray.into_iter();
        if res.status != Nfsstat4::Ok {
            let operation = results.next_back().map_or(compound.name, |last| last.opnum().name());
            return (Err(failure(res.status, operation).on(self.trunk.first().server())), sink);
        }
        results.next();
        (Ok(Results::new(results, compound.name, sink)), None)
    }

    /// Executes a compound: its results with that of SEQUENCE, which is OK.
    ///
    /// # Errors
    /// It was not answered, or not in a way that makes sense.
    pub async fn execute(
        self: &Arc<Self>,
        compound: &Compound,
        mut sink: Option<buf::Buffer>,
        deadline: Instant,
    ) -> (Result<CompoundRes>, Option<SharedBuffer>) {
        let wanted = sink.as_ref().map(|sink| sink.len());
        let late = || self.trunk.first().late(compound.name);
        let mut args = CompoundArgs { tag: Tag::default(), minorversion: self.minor, argarray: Vec::new() };
        args.argarray.push(Argop4::PutRootFh);
        args.argarray.extend(compound.ops.iter().cloned());
        let mut backoff = Backoff::new();
        loop {
            let session = self.session();
            let Ok(mut taken) = timeout_at(deadline, session.place(self)).await else {
                return (Err(late()), sink.map(SharedBuffer::from));
            };
            loop {
                args.argarray[0] = session.sequence(taken.place, compound.cache);
                let plan = ReplyPlan {
                    inline_max: compound.reply_max,
                    payload_max: compound.payload_max,
                    sink: sink.take(),
                    locate: compound.locate(),
                };
                taken.sent = true;
                let (result, back) = self.trunk.call(&args, plan, compound.name, deadline).await;
                let res = match result {
                    Ok(res) => res,
                    Err(error) => return (Err(error), back),
                };
                let verdict = self.judge(&session, &res);
                if matches!(verdict, Verdict::Done) {
                    taken.settle(true);
                    return (Ok(res), back);
                }
                sink = match (back.map(SharedBuffer::into_buffer), wanted) {
                    (Some(Ok(buffer)), _) => Some(buffer),
                    (_, Some(len)) => Some(self.trunk.pool().take(len)),
                    (_, None) => None,
                };
                tracing::debug!(status = res.status.name(), "SEQUENCE has failed");
                match verdict {
                    Verdict::Again { used: false } | Verdict::Bind => {
                        if matches!(verdict, Verdict::Bind) {
                            self.bind_all(deadline).await;
                        }
                        if !backoff.waits(deadline).await {
                            return (Err(late()), sink.map(SharedBuffer::from));
                        }
                    }
                    Verdict::Again { used: true } => {
                        taken.settle(true);
                        break;
                    }
                    Verdict::Gone => {
                        session.gone.store(true, Relaxed);
                        drop(taken);
                        if let Err(error) = self.recover(&session, deadline).await {
                            return (Err(error), sink.map(SharedBuffer::from));
                        }
                        break;
                    }
                    Verdict::Failed => {
                        taken.settle(false);
                        let error = failure(res.status, "SEQUENCE").on(self.trunk.first().server());
                        return (Err(error), sink.map(SharedBuffer::from));
                    }
                    Verdict::Done => unreachable!("it was looked at above"),
                }
            }
        }
    }

    /// What the answer of SEQUENCE says: of the request, and of everything else.
    fn judge(self: &Arc<Self>, session: &Arc<Session>, res: &CompoundRes) -> Verdict {
        if let Some(Resop4::Sequence(Res4::Ok(ok))) = res.resarray.first() {
            session.slots.lock().adjust(ok.highest_slotid, ok.target_highest_slotid);
            session.freed.notify_waiters();
            *self.renewed.lock() = Instant::now();
            self.heed(ok.status_flags);
            // RFC 8881 §2.10.6.1.3: a retry whose reply was not kept says so in the operation behind SEQUENCE.
            return match res.status {
                Nfsstat4::RetryUncachedRep => Verdict::Again { used: true },
                _ => Verdict::Done,
            };
        }
        match res.status {
            // §18.46.3: the request is in progress, or the server is busy.
            Nfsstat4::Delay => Verdict::Again { used: false },
            Nfsstat4::RetryUncachedRep | Nfsstat4::SeqFalseRetry => Verdict::Again { used: true },
            Nfsstat4::ConnNotBoundToSession => Verdict::Bind,
            Nfsstat4::BadSession
            | Nfsstat4::DeadSession
            | Nfsstat4::BadSlot
            | Nfsstat4::BadHighSlot
            | Nfsstat4::SeqMisordered
            | Nfsstat4::StaleClientid
            | Nfsstat4::Expired => Verdict::Gone,
            _ => Verdict::Failed,
        }
    }

    /// Sends SEQUENCE alone in a place whose request nobody waits for, until something is answered there.
    async fn resolve_doubt(self: Arc<Self>, session: Arc<Session>, place: Place) {
        let mut backoff = Backoff::new();
        loop {
            let deadline = Instant::now() + BACKGROUND;
            let argarray = vec![session.sequence(place, false)];
            let args = CompoundArgs { tag: Tag::default(), minorversion: self.minor, argarray };
            let plan = ReplyPlan { inline_max: DOUBT_REPLY_MAX, ..ReplyPlan::default() };
            let (result, _) = self.trunk.call(&args, plan, "SEQUENCE", deadline).await;
            let gone = session.gone.load(Relaxed);
            match result {
                // An answer that cannot be read is one: that of the request itself.
                Err(error) if matches!(error.kind(), ErrorKind::Protocol(_)) => return session.release(place, true),
                Err(_) if gone => return session.release(place, false),
                Err(_) => {}
                Ok(res) => match self.judge(&session, &res) {
                    Verdict::Done | Verdict::Again { used: true } => return session.release(place, true),
                    Verdict::Again { used: false } | Verdict::Bind => {}
                    Verdict::Gone | Verdict::Failed => {
                        // The session is found to be gone by the next request.
                        return session.release(place, false);
                    }
                },
            }
            backoff.waits(deadline).await;
        }
    }

    /// What the server wants this client to know (RFC 8881 §18.46.3).
    fn heed(self: &Arc<Self>, flags: u32) {
        const CALLBACKS: u32 =
            SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION | SEQ4_STATUS_BACKCHANNEL_FAULT;
        const REVOKED: u32 = SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED
            | SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED
            | SEQ4_STATUS_ADMIN_STATE_REVOKED
            | SEQ4_STATUS_RECALLABLE_STATE_REVOKED;
        if flags & (CALLBACKS | REVOKED | SEQ4_STATUS_RESTART_RECLAIM_NEEDED) == 0 || self.rebinding.swap(true, Relaxed)
        {
            return;
        }
        let shared = self.clone();
        self.runtime.spawn(async move {
            let deadline = Instant::now() + BACKGROUND;
            if flags & CALLBACKS != 0 {
                shared.bind_all(deadline).await;
            }
            if flags & SEQ4_STATUS_RESTART_RECLAIM_NEEDED != 0 {
                let _one = shared.recovering.lock().await;
                shared.reclaim(deadline).await;
            } else if flags & REVOKED != 0 {
                shared.free_revoked(deadline).await;
            }
            // Callbacks may stay impossible: not again with each request.
            tokio::time::sleep(HEED_PAUSE).await;
            shared.rebinding.store(false, Relaxed);
        });
    }

    /// Binds all connections to the session, for callbacks too.
    pub async fn bind_all(&self, deadline: Instant) {
        let id = self.session().id;
        for program in self.trunk.all().into_iter().filter(|program| program.is_connected()) {
            if let Err(error) = identity::bind(&program, self.minor, id, deadline).await {
                tracing::debug!(%error, "a connection cannot be bound to the session");
            }
        }
    }

    /// Makes another session in the place of `dead`, unless somebody has.
    ///
    /// # Errors
    /// The server does not want this client any more.
    async fn recover(self: &Arc<Self>, dead: &Arc<Session>, deadline: Instant) -> Result<()> {
        let _one = self.recovering.lock().await;
        if !Arc::ptr_eq(&self.session(), dead) {
            return Ok(());
        }
        tracing::info!(server = %self.trunk.first().server(), "the session is gone; making another");
        let mut backoff = Backoff::new();
        let mut renamed = false;
        loop {
            let Known { clientid, sequence, .. } = self.state.lock().clone();
            let program = self.trunk.first();
            let error = match identity::create_session(program, self.minor, clientid, sequence, deadline).await {
                Ok(made) => {
                    let session = Session::new(&made);
                    self.backchannel.session(made.sessionid, made.back_chan_attrs.maxrequests);
                    let mut state = self.state.lock();
                    state.sequence = Sequenceid4(sequence.0.wrapping_add(1));
                    state.session = session;
                    break;
                }
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Nfs4(Nfsstat4::StaleClientid | Nfsstat4::SeqMisordered | Nfsstat4::Expired) => {
                    let ok = identity::exchange_id(program, self.minor, &self.owner, deadline).await?;
                    let mut state = self.state.lock();
                    // A confirmed record of the same name is this client's: its state is there still.
                    renamed |= state.clientid != ok.clientid;
                    (state.clientid, state.sequence) = (ok.clientid, ok.sequenceid);
                }
                _ if error.is_later() && backoff.waits(deadline).await => {}
                _ => return Err(error),
            }
        }
        dead.freed.notify_waiters();
        // RFC 8881 §2.10.3.1: by SEQUENCE a connection is bound to the fore channel only.
        self.bind_all(deadline).await;
        if renamed {
            // Not by this request's deadline: others need what is reclaimed too. It goes by the new session, whose own
            // loss in the meantime the next request finds.
            Box::pin(self.reclaim(Instant::now() + BACKGROUND)).await;
        }
        Ok(())
    }

    /// Reclaims what was open and locked, and says that this is all.
    async fn reclaim(self: &Arc<Self>, deadline: Instant) {
        self.opens.reclaim(self, deadline).await;
        if let Err(error) = self.reclaim_complete(deadline).await {
            tracing::warn!(%error, "the server does not take the end of reclaiming");
        }
    }

    async fn reclaim_complete(self: &Arc<Self>, deadline: Instant) -> Result<()> {
        let args = ReclaimCompleteArgs { one_fs: false };
        let compound = Compound::new("RECLAIM_COMPLETE").op(Argop4::ReclaimComplete(args), 0).once();
        match self.plain(&compound, deadline).await {
            Err(error) if error.status4() == Some(Nfsstat4::CompleteAlready) => Ok(()),
            result => result,
        }
    }

    /// Executes a compound without recovery, for recovery's own.
    pub async fn plain(self: &Arc<Self>, compound: &Compound, deadline: Instant) -> Result<()> {
        self.plain_results(compound, deadline).await.map(drop)
    }

    /// The same, with its results.
    pub async fn plain_results(self: &Arc<Self>, compound: &Compound, deadline: Instant) -> Result<Results> {
        let session = self.session();
        let mut backoff = Backoff::new();
        loop {
            let late = || self.trunk.first().late(compound.name);
            let mut taken = timeout_at(deadline, session.place(self)).await.map_err(|_| late())?;
            let mut argarray = vec![session.sequence(taken.place, compound.cache)];
            argarray.extend(compound.ops.iter().cloned());
            let args = CompoundArgs { tag: Tag::default(), minorversion: self.minor, argarray };
            let plan = ReplyPlan { inline_max: compound.reply_max, ..ReplyPlan::default() };
            taken.sent = true;
            let (result, _) = self.trunk.call(&args, plan, compound.name, deadline).await;
            let res = result?;
            match self.judge(&session, &res) {
                Verdict::Done => taken.settle(true),
                Verdict::Again { used } => taken.settle(used),
                _ => taken.settle(false),
            }
            let mut results = res.resarray.into_iter();
            if res.status == Nfsstat4::Ok {
                results.next();
                return Ok(Results::new(results, compound.name, None));
            }
            let operation = results.next_back().map_or(compound.name, |last| last.opnum().name());
            let error = failure(res.status, operation).on(self.trunk.first().server());
            if !(error.is_later() && backoff.waits(deadline).await) {
                return Err(error);
            }
        }
    }

    /// Forgets state that the server has revoked, so that it stops saying so (RFC 8881 §8.4.2.1, §18.38).
    async fn free_revoked(self: &Arc<Self>, deadline: Instant) {
        let mut stateids: VecDeque<Stateid4> = self.opens.stateids().into();
        while !stateids.is_empty() {
            let some: Vec<_> = stateids.drain(..stateids.len().min(TEST_MAX)).collect();
            let args = TestStateidArgs { stateids: some.clone() };
            let test = Compound::new("TEST_STATEID").op(Argop4::TestStateid(args), 8 + 4 * some.len());
            let Ok(mut results) = self.run(&test, deadline).await else { return };
            let Ok(statuses) = super::compound::value!(results, TestStateid) else { return };
            for (stateid, _) in some.iter().zip(statuses).filter(|(_, status)| *status != Nfsstat4::Ok) {
                self.opens.lost(stateid);
                let free = Argop4::FreeStateid(FreeStateidArgs { stateid: *stateid });
                let _ = self.run(&Compound::new("FREE_STATEID").op(free, 0), deadline).await;
            }
        }
    }

    /// Keeps the lease while nothing else does, and closes what nobody uses. Ends with the last user.
    pub fn keep(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(HOUSEKEEPING).await;
                let Some(shared) = weak.upgrade() else { return };
                let deadline = Instant::now() + shared.lease();
                shared.opens.close_idle(&shared, deadline).await;
                if shared.renewed.lock().elapsed() >= shared.lease() / 3 {
                    // RFC 8881 §8.3: SEQUENCE alone renews.
                    if let Err(error) = shared.run(&Compound::new("SEQUENCE"), deadline).await {
                        tracing::debug!(%error, "the lease is not renewed");
                    }
                }
            }
        });
    }

    /// Takes leave of the server: closes, returns and forgets everything.
    ///
    /// # Errors
    /// The server cannot be told; it forgets by itself when the lease has expired.
    pub async fn leave(self: &Arc<Self>, deadline: Instant) -> Result<()> {
        self.opens.close_all(self, deadline).await;
        let session = self.session();
        session.gone.store(true, Relaxed);
        let program = self.trunk.first();
        identity::destroy_session(program, self.minor, session.id, deadline).await?;
        identity::destroy_clientid(program, self.minor, self.clientid(), deadline).await
    }
}

impl Error {
    /// Whether the server wants to be asked again later.
    pub(crate) fn is_later(&self) -> bool {
        self.status() == Some(nfs::v3::Nfsstat3::Jukebox) || self.status4() == Some(Nfsstat4::Grace)
    }
}

/// Seconds, until the server has said.
const LEASE_UNKNOWN: u32 = 30;
const HOUSEKEEPING: Duration = Duration::from_secs(1);
const HEED_PAUSE: Duration = Duration::from_secs(2);
/// Bytes of an answer in the place of a request that was given up: one that the server has kept.
const DOUBT_REPLY_MAX: usize = 8 << 10;
/// Stateids that are tested at a time.
const TEST_MAX: usize = 64;
