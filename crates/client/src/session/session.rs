//! [`Session`]: requests by slots, exactly once each.
//!
//! Read RFC 8881 §2.10.6 (slots) first. A request is sent until SEQUENCE answers it, by whichever connection; the answer
//! decides: it has been executed, it is to be sent again, or the session is gone.
//!
//! Who finds no slot free stands in a line: a slot that is given back goes to whoever has waited longest, also if the one who
//! gives it back has another request at once.
//!
//! A caller who gives up a request leaves a slot in doubt: a task sends something in its place until that is answered.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use buf::{Buffer, SharedBuffer};
use nfs::v4::{compound::*, *};
use parking_lot::Mutex;
use rpc::ReplyPlan;
use tokio::{
    sync::oneshot,
    time::{error::Elapsed, timeout_at},
};

use super::{
    backchannel::Backchannel,
    compound::{Compound, Request, Sent, failure},
    identity,
    link::ServerLink,
    slots::{SlotUse, Slots},
    trunk::BACKGROUND,
};
use crate::{
    call::{Backoff, Deadline, Program},
    model::{ErrorKind, Result},
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

/// The slots, and who waits for one.
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

    /// Gives what is free to those who wait.
    fn serve(&mut self) {
        while !self.waiting.is_empty()
            && let Some(place) = self.slots.take()
        {
            let first = self.waiting.pop_front().expect("somebody waits");
            if first.send(place).is_err() {
                // Not any more.
                self.slots.release(place, false);
            }
        }
    }
}

/// Somebody who waits for a slot. Dropped, it gives back what it was given meanwhile.
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

/// A slot that a request has. Dropped before the request was answered, the slot is in doubt.
struct Taken {
    link: Arc<ServerLink>,
    session: Arc<Session>,
    place: SlotUse,
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

    /// How many requests can be under way.
    pub fn slots(&self) -> u32 {
        self.line.lock().slots.len()
    }

    /// The server would like no slot above this to be used (RFC 8881 §20.8).
    pub fn use_no_more_than(&self, target: Slotid4) {
        let mut line = self.line.lock();
        line.slots.wish(target);
        line.serve();
    }

    /// It is not used any more; who waits for a slot of it hears that.
    pub fn over(&self) {
        self.gone.store(true, Relaxed);
        self.line.lock().waiting.clear();
    }

    /// Executes a compound once. The results are those behind SEQUENCE's.
    pub async fn send(
        self: &Arc<Self>,
        link: &Arc<ServerLink>,
        compound: &Compound,
        mut sink: Option<Buffer>,
        deadline: &Deadline,
    ) -> Sent {
        let wanted = sink.as_ref().map(|sink| sink.len());
        let late = || link.trunk.first().late(compound.name);
        let mut backoff = Backoff::new();
        let mut taken = None;
        loop {
            let mut place = match taken.take() {
                Some(taken) => taken,
                None => match self.place(deadline).await {
                    Ok(Some(place)) => {
                        let (link, session) = (link.clone(), self.clone());
                        Taken { link, session, place, sent: false, settled: false }
                    }
                    Ok(None) => return Sent::Lost(sink),
                    Err(_) => return Sent::Answered(Err(late()), sink.map(SharedBuffer::from)),
                },
            };
            let sequence = self.sequence(place.place, compound.cache);
            let request = Request { minor: link.minor, first: Some(&sequence), ops: &compound.ops };
            let plan = ReplyPlan { sink: sink.take(), ..compound.plan() };
            place.sent = true;
            let (result, back) = link.trunk.call(&request, plan, compound.name, deadline).await;
            let mut res = match result {
                Ok(res) => res,
                Err(error) => return Sent::Answered(Err(error), back),
            };
            let verdict = self.judge(link, &res);
            if matches!(verdict, Verdict::Done) {
                place.settle(true);
                res.resarray.remove(0);
                return Sent::Answered(Ok(res), back);
            }
            sink = match (back.map(SharedBuffer::into_buffer), wanted) {
                (Some(Ok(buffer)), _) => Some(buffer),
                (_, Some(len)) => Some(link.trunk.pool().take(len)),
                (_, None) => None,
            };
            tracing::debug!(status = res.status.name(), "SEQUENCE has failed");
            match verdict {
                Verdict::Again { used: false } | Verdict::Bind => {
                    if matches!(verdict, Verdict::Bind) {
                        // What is rare is not to make every request's future larger.
                        Box::pin(self.bind_all(link, deadline)).await;
                    }
                    let goes_on = match verdict {
                        Verdict::Bind => backoff.waits(deadline).await,
                        _ => backoff.put_off(link.trunk.first(), compound.name, false, deadline).await,
                    };
                    if !goes_on {
                        return Sent::Answered(Err(late()), sink.map(SharedBuffer::from));
                    }
                    taken = Some(place);
                }
                Verdict::Again { used: true } => place.settle(true),
                Verdict::Gone => {
                    self.over();
                    return Sent::Lost(sink);
                }
                Verdict::Failed => {
                    place.settle(false);
                    let error = failure(res.status, "SEQUENCE").on(link.trunk.first().server());
                    return Sent::Answered(Err(error), sink.map(SharedBuffer::from));
                }
                Verdict::Done => unreachable!("it was looked at above"),
            }
        }
    }

    /// A slot, when it is this caller's turn; none if the session is over.
    ///
    /// # Errors
    /// It was nobody's turn until the deadline.
    async fn place(&self, deadline: &Deadline) -> std::result::Result<Option<SlotUse>, Elapsed> {
        let free = self.line.lock().take();
        match free {
            Some(place) => Ok(Some(place)),
            None => timeout_at(deadline.at(), self.wait_in_line()).await,
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

    fn sequence(&self, place: SlotUse, cache: bool) -> Argop4 {
        let highest_slotid = self.line.lock().slots.highest();
        Argop4::Sequence(SequenceArgs {
            sessionid: self.id,
            sequenceid: place.sequence,
            slotid: place.slot,
            highest_slotid,
            cachethis: cache,
        })
    }

    /// Binds all connections to the session, for callbacks too.
    pub async fn bind_all(&self, link: &ServerLink, deadline: &Deadline) {
        for program in link.trunk.all().into_iter().filter(|program| program.is_connected()) {
            if let Err(error) = identity::bind(&program, link.minor, self.id, deadline).await {
                tracing::debug!(%error, "a connection cannot be bound to the session");
            }
        }
    }

    /// What the answer of SEQUENCE says: of the request, and of everything else.
    fn judge(self: &Arc<Self>, link: &Arc<ServerLink>, res: &CompoundRes) -> Verdict {
        if let Some(Resop4::Sequence(Res4::Ok(ok))) = res.resarray.first() {
            {
                let mut line = self.line.lock();
                line.slots.adjust(ok.highest_slotid, ok.target_highest_slotid);
                line.serve();
            }
            link.renewed();
            link.set_status_flags(ok.status_flags);
            if ok.status_flags & HANDLED_FLAGS != 0
                && let Some(holder) = link.holder()
            {
                holder.handle_status_flags(ok.status_flags);
            }
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
    async fn resolve_doubt(self: &Arc<Self>, link: &Arc<ServerLink>, place: SlotUse) {
        let mut backoff = Backoff::new();
        loop {
            let deadline = &Deadline::after(BACKGROUND);
            let sequence = self.sequence(place, false);
            let request = Request { minor: link.minor, first: Some(&sequence), ops: &[] };
            let plan = ReplyPlan { inline_max: DOUBT_REPLY_MAX, ..ReplyPlan::default() };
            let (result, _) = link.trunk.call(&request, plan, "SEQUENCE", deadline).await;
            let gone = self.gone.load(Relaxed);
            match result {
                // An answer that cannot be read is one: that of the request itself.
                Err(error) if matches!(error.kind(), ErrorKind::Protocol(_)) => return self.release(place, true),
                Err(_) if gone => return self.release(place, false),
                Err(_) => {}
                Ok(res) => match self.judge(link, &res) {
                    Verdict::Done | Verdict::Again { used: true } => return self.release(place, true),
                    Verdict::Again { used: false } | Verdict::Bind => {}
                    Verdict::Gone | Verdict::Failed => {
                        // The session is found to be gone by the next request.
                        return self.release(place, false);
                    }
                },
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
