//! [`Session`]: requests by slots, exactly once each.
//!
//! Read RFC 8881 §2.10.6 (slots) first. Each attempt at a request returns an [`Outcome`]; the loop of [`drive`](super::drive) decides
//! what follows.
//!
//! Requests that find no free slot wait in a queue. A slot that is released goes to the request that has waited longest, also if the
//! task that releases it has another request at once.
//!
//! A request that is given up before it was answered leaves its slot in doubt: a background task sends SEQUENCE in its place until the
//! server answers.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use buf::{Region, SharedRegion};
use nfs::v4::{compound::*, *};
use parking_lot::Mutex;
use rpc::ReplyPlan;
use tokio::{
    sync::oneshot,
    time::{error::Elapsed, timeout_at},
};

use super::{
    backchannel::Backchannel,
    compound::{Compound, Outcome, Request, failure},
    identity,
    link::ServerLink,
    slots::{SlotUse, Slots},
    trunk::BACKGROUND,
};
use crate::{
    call::{Backoff, Deadline, Program},
    model::Result,
};

/// A session as CREATE_SESSION made it.
#[derive(Debug)]
pub(crate) struct Session {
    pub id: Sessionid4,
    pub clientid: Clientid4,
    /// Of the client's next CREATE_SESSION.
    pub next: Sequenceid4,
    /// The limits of requests.
    pub fore: ChannelAttrs4,
    line: Mutex<Line>,
    /// The server does not know it any more.
    gone: AtomicBool,
}

/// The slots, and the requests that wait for one.
#[derive(Debug)]
struct Line {
    slots: Slots,
    /// The first has waited longest.
    waiting: VecDeque<oneshot::Sender<SlotUse>>,
}

impl Line {
    /// A slot, unless others wait for one.
    fn take(&mut self) -> Option<SlotUse> {
        if self.waiting.is_empty() { self.slots.take() } else { None }
    }

    /// Gives free slots to the requests that wait.
    fn serve(&mut self) {
        while !self.waiting.is_empty()
            && let Some(place) = self.slots.take()
        {
            let first = self.waiting.pop_front().expect("a request waits");
            if first.send(place).is_err() {
                // Not any more.
                self.slots.release(place, false);
            }
        }
    }
}

/// A request that waits for a slot. When it is dropped, it releases a slot that it was given meanwhile.
struct Turn<'a> {
    session: &'a Session,
    given: oneshot::Receiver<SlotUse>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.given.close();
        if let Ok(place) = self.given.try_recv() {
            self.session.release(place, false);
        }
    }
}

/// A slot that a request holds. If it is dropped before the request was answered, the slot is in doubt.
pub(crate) struct TakenSlot {
    link: Arc<ServerLink>,
    session: Arc<Session>,
    place: SlotUse,
    /// SEQUENCE, the same in each transmission: a server takes a request that differs in any byte for another one (§2.10.6.1.3.1).
    sequence: SequenceArgs,
    sent: bool,
    settled: bool,
}

impl TakenSlot {
    fn settle(mut self, used: bool) {
        self.settled = true;
        self.session.release(self.place, used);
    }
}

impl Drop for TakenSlot {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if !self.sent || self.session.gone.load(Relaxed) {
            return self.session.release(self.place, false);
        }
        let (link, session, place) = (self.link.clone(), self.session.clone(), self.place);
        self.link.runtime.spawn(async move { session.resolve_doubt(&link, place).await });
    }
}

impl Session {
    /// Makes a session of a client, by its next CREATE_SESSION.
    ///
    /// # Errors
    /// `STALE_CLIENTID` if the server does not know the client.
    pub async fn create(
        program: &Program,
        minor: u32,
        (clientid, sequence): (Clientid4, Sequenceid4),
        backchannel: &Backchannel,
        deadline: &Deadline,
    ) -> Result<Arc<Self>> {
        let ok = identity::create_session(program, minor, clientid, sequence, deadline).await?;
        backchannel.session(ok.sessionid, ok.back_chan_attrs.maxrequests);
        Ok(Arc::new(Self {
            id: ok.sessionid,
            clientid,
            next: Sequenceid4(sequence.0.wrapping_add(1)),
            fore: ok.fore_chan_attrs,
            line: Mutex::new(Line { slots: Slots::new(ok.fore_chan_attrs.maxrequests), waiting: VecDeque::new() }),
            gone: AtomicBool::new(false),
        }))
    }

    /// The number of requests that can be outstanding.
    pub fn slots(&self) -> u32 {
        self.line.lock().slots.len()
    }

    /// The server would like no slot above this to be used (RFC 8881 §20.8).
    pub fn use_no_more_than(&self, target: Slotid4) {
        let mut line = self.line.lock();
        line.slots.wish(target);
        line.serve();
    }

    /// Ends the use of the session. Requests that wait for a slot fail.
    pub fn over(&self) {
        self.gone.store(true, Relaxed);
        self.line.lock().waiting.clear();
    }

    /// Attempts a request: in the slot that an earlier attempt has left, or else in a free one. If the request is to be sent again
    /// unchanged, it leaves its slot. The first result is SEQUENCE's.
    pub async fn attempt(
        self: &Arc<Self>,
        link: &Arc<ServerLink>,
        compound: &Compound,
        slot: &mut Option<TakenSlot>,
        sink: Option<Region>,
        deadline: &Deadline,
    ) -> (Outcome, Option<SharedRegion>) {
        let mut taken = match slot.take() {
            Some(taken) => taken,
            None => match self.place(deadline).await {
                Ok(Some((place, highest))) => {
                    let sequence = self.sequence(place, highest, compound.cache);
                    let (link, session) = (link.clone(), self.clone());
                    TakenSlot { link, session, place, sequence, sent: false, settled: false }
                }
                Ok(None) => return (Outcome::Lost, sink.map(SharedRegion::from)),
                Err(_) => return (Outcome::NoSlot, sink.map(SharedRegion::from)),
            },
        };
        let plan = ReplyPlan { sink, ..compound.plan() };
        // Even if it is dropped while it is sent.
        taken.sent = true;
        let request = Request { minor: link.minor, first: Some(&taken.sequence), ops: &compound.ops };
        let (outcome, back) = link.trunk.call_once(&request, plan, compound.name, deadline).await;
        let outcome = match outcome {
            Outcome::Answered(res) => self.classify(link, res, deadline),
            outcome => outcome,
        };
        match &outcome {
            Outcome::Answered(_) | Outcome::Uncached => taken.settle(true),
            Outcome::Disconnected(_) | Outcome::SlotBusy | Outcome::Unbound => *slot = Some(taken),
            Outcome::Lost => self.over(),
            // SEQUENCE was refused.
            Outcome::Failed(error) if error.status4().is_some() => taken.settle(false),
            // Dropped, it is in doubt.
            _ => {}
        }
        (outcome, back)
    }

    /// A slot, when it is this caller's turn, and the highest slot in use; none if the session is over.
    ///
    /// # Errors
    /// It was nobody's turn until the deadline.
    async fn place(&self, deadline: &Deadline) -> std::result::Result<Option<(SlotUse, Slotid4)>, Elapsed> {
        let free = {
            let mut line = self.line.lock();
            line.take().map(|place| (place, line.slots.highest()))
        };
        match free {
            Some(place) => Ok(Some(place)),
            None => {
                let given = timeout_at(deadline.at(), self.wait_in_line()).await?;
                Ok(given.map(|place| (place, self.highest())))
            }
        }
    }

    async fn wait_in_line(&self) -> Option<SlotUse> {
        let (give, given) = oneshot::channel();
        let mut turn = Turn { session: self, given };
        {
            let mut line = self.line.lock();
            if self.gone.load(Relaxed) {
                return None;
            }
            line.waiting.push_back(give);
            // What has become free since it was looked at.
            line.serve();
        }
        (&mut turn.given).await.ok()
    }

    fn release(&self, place: SlotUse, used: bool) {
        let mut line = self.line.lock();
        line.slots.release(place, used);
        line.serve();
    }

    fn highest(&self) -> Slotid4 {
        self.line.lock().slots.highest()
    }

    fn sequence(&self, place: SlotUse, highest_slotid: Slotid4, cache: bool) -> SequenceArgs {
        SequenceArgs {
            sessionid: self.id,
            sequenceid: place.sequence,
            slotid: place.slot,
            highest_slotid,
            cachethis: cache,
        }
    }

    /// Binds all connections to the session, for callbacks too.
    pub async fn bind_all(&self, link: &ServerLink, deadline: &Deadline) {
        for program in link.trunk.all().into_iter().filter(|program| program.is_connected()) {
            if let Err(error) = identity::bind(&program, link.minor, self.id, deadline).await {
                tracing::debug!(%error, "a connection cannot be bound to the session");
            }
        }
    }

    /// Classifies an answer by the result of SEQUENCE, and keeps what that says of the session.
    fn classify(&self, link: &ServerLink, res: CompoundRes, deadline: &Deadline) -> Outcome {
        if let Some(Resop4::Sequence(Res4::Ok(ok))) = res.resarray.first() {
            {
                let mut line = self.line.lock();
                line.slots.adjust(ok.highest_slotid, ok.target_highest_slotid);
                line.serve();
            }
            link.renewed(deadline.start());
            link.set_status_flags(ok.status_flags);
            if ok.status_flags & HANDLED_FLAGS != 0
                && let Some(holder) = link.holder()
            {
                holder.handle_status_flags(ok.status_flags);
            }
            // RFC 8881 §2.10.6.1.3: a retry whose reply was not kept says so in the operation behind SEQUENCE.
            return match res.status {
                Nfsstat4::RetryUncachedRep => Outcome::Uncached,
                _ => Outcome::Answered(res),
            };
        }
        tracing::debug!(status = res.status.name(), "SEQUENCE has failed");
        match res.status {
            // §18.46.3: the request is in progress, or the server is busy.
            Nfsstat4::Delay => Outcome::SlotBusy,
            Nfsstat4::RetryUncachedRep | Nfsstat4::SeqFalseRetry => Outcome::Uncached,
            Nfsstat4::ConnNotBoundToSession => Outcome::Unbound,
            Nfsstat4::BadSession
            | Nfsstat4::DeadSession
            | Nfsstat4::BadSlot
            | Nfsstat4::BadHighSlot
            | Nfsstat4::SeqMisordered
            | Nfsstat4::StaleClientid
            | Nfsstat4::Expired => Outcome::Lost,
            status => Outcome::Failed(failure(status, "SEQUENCE").on(link.trunk.first().server())),
        }
    }

    /// Sends SEQUENCE alone in a place whose request nobody waits for, until something is answered there.
    async fn resolve_doubt(self: &Arc<Self>, link: &Arc<ServerLink>, place: SlotUse) {
        let mut backoff = Backoff::new();
        loop {
            let deadline = &Deadline::after(BACKGROUND);
            let sequence = self.sequence(place, self.highest(), false);
            let request = Request { minor: link.minor, first: Some(&sequence), ops: &[] };
            let plan = ReplyPlan { inline_max: DOUBT_REPLY_MAX, ..ReplyPlan::default() };
            let (outcome, _) = link.trunk.call_once(&request, plan, "SEQUENCE", deadline).await;
            let gone = self.gone.load(Relaxed);
            let outcome = match outcome {
                Outcome::Answered(res) => self.classify(link, res, deadline),
                // An answer that cannot be decoded is one: that of the request itself.
                Outcome::Failed(error) if error.is_unreadable() => return self.release(place, true),
                // The next request finds that the session is gone.
                _ if gone => return self.release(place, false),
                outcome => outcome,
            };
            match outcome {
                Outcome::Answered(_) | Outcome::Uncached => return self.release(place, true),
                Outcome::Lost => return self.release(place, false),
                Outcome::Failed(error) if error.status4().is_some() => return self.release(place, false),
                _ => {}
            }
            backoff.waits(deadline).await;
        }
    }
}

/// The flags of SEQUENCE that need handling: callbacks do not reach the client, state was revoked, state must be reclaimed, or a
/// file system has moved.
pub(crate) const HANDLED_FLAGS: u32 =
    CALLBACK_FLAGS | REVOKED_FLAGS | SEQ4_STATUS_RESTART_RECLAIM_NEEDED | SEQ4_STATUS_LEASE_MOVED;
/// The flags of a backchannel that does not work.
pub(crate) const CALLBACK_FLAGS: u32 =
    SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION | SEQ4_STATUS_BACKCHANNEL_FAULT;
/// The flags of revoked state.
pub(crate) const REVOKED_FLAGS: u32 = SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED
    | SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED
    | SEQ4_STATUS_ADMIN_STATE_REVOKED
    | SEQ4_STATUS_RECALLABLE_STATE_REVOKED;
/// Bytes of an answer in the place of a request that was given up: one that the server has kept.
const DOUBT_REPLY_MAX: usize = 8 << 10;
