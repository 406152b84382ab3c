//! [`Session`]: sends requests in slots, so that the server executes each exactly once.
//!
//! Read RFC 8881 §2.10.6 (slots) first. Each attempt at a request returns an [`Outcome`]; the loop of
//! [`drive`](super::drive) decides what follows.
//!
//! Requests that find no free slot wait in a queue. A released slot goes to the request that has waited longest, even
//! if the task that releases it has another request at once.
//!
//! If the caller gives up a request before it was answered, its slot is in doubt: a background task waits for the reply.
//! If the connection is lost before, it sends SEQUENCE in this slot until the server answers. If there is no reply for a
//! minute, the task closes the connection: a server may drop a request, for example one whose RPCSEC_GSS sequence number
//! it has seen (RFC 2203 §5.3.3.1), and a request must not be sent again over the same connection (RFC 8881 §2.9.2).
//!
//! Buffers: a request that was sent owns the caller's region until it is answered or its connection is lost. If the caller
//! gives the request up before, the region is dropped then.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use buf::{Region, SharedRegion};
use nfs::v4::{compound::*, *};
use parking_lot::Mutex;
use rpc::{ReplyPlan, SentCall};
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, error::Elapsed, timeout, timeout_at},
};

use super::{
    backchannel::Backchannel,
    compound::{Compound, Outcome, Request, failure},
    identity,
    link::ServerLink,
    slots::{SlotUse, Slots},
    trunk::{BACKGROUND, outcome},
};
use crate::{
    call::{Backoff, Deadline, Program},
    model::Result,
};

/// A session that CREATE_SESSION has created.
#[derive(Debug)]
pub(crate) struct Session {
    pub id: Sessionid4,
    pub clientid: Clientid4,
    /// The sequence ID of the client's next CREATE_SESSION.
    pub next_sequence: Sequenceid4,
    /// The limits of the fore channel.
    pub fore: ChannelAttrs4,
    queue: Mutex<SlotQueue>,
    /// Set when the session has ended, or when the server does not know it any more.
    ended: AtomicBool,
    /// Notified when `ended` is set.
    end: Notify,
    /// Notified when a slot is released while the queue is held.
    released: Notify,
}

/// The slots, and the requests that wait for one.
#[derive(Debug)]
struct SlotQueue {
    slots: Slots,
    /// Set while no request gets a slot, because the session is about to be destroyed.
    is_held: bool,
    /// The requests that wait for a slot, the longest waiting first.
    waiting: VecDeque<oneshot::Sender<SlotUse>>,
    /// The outstanding requests for whose replies callbacks wait. Dropping the sender of a request wakes its callback.
    referred: Vec<(SlotUse, oneshot::Sender<()>)>,
}

impl SlotQueue {
    /// Frees a slot, and wakes the callbacks that wait for its request.
    fn release(&mut self, place: SlotUse, used: bool) {
        self.slots.release(place, used);
        self.referred.retain(|(request, _)| *request != place);
    }

    /// Takes a free slot, unless other requests wait for one.
    fn take(&mut self) -> Option<SlotUse> {
        if self.waiting.is_empty() && !self.is_held { self.slots.take() } else { None }
    }

    /// Gives free slots to the waiting requests.
    fn serve_waiting(&mut self) {
        while !self.is_held
            && !self.waiting.is_empty()
            && let Some(place) = self.slots.take()
        {
            let first = self.waiting.pop_front().expect("the queue must not be empty");
            if first.send(place).is_err() {
                // The request was given up.
                self.slots.release(place, false);
            }
        }
    }
}

/// A request that waits for a slot. If it has been given a slot, dropping it releases that slot.
struct SlotWaiter<'a> {
    session: &'a Session,
    given: oneshot::Receiver<SlotUse>,
}

impl Drop for SlotWaiter<'_> {
    fn drop(&mut self) {
        self.given.close();
        if let Ok(place) = self.given.try_recv() {
            self.session.release(place, false);
        }
    }
}

/// A slot that a request holds. If it is dropped after the request was sent and before it was answered, the slot is in
/// doubt.
pub(crate) struct TakenSlot {
    link: Arc<ServerLink>,
    session: Arc<Session>,
    place: SlotUse,
    /// SEQUENCE, which must be the same in each transmission: a server takes a request that differs in any byte for
    /// another request (§2.10.6.1.3.1).
    sequence: SequenceArgs,
    /// The last transmission, until it is answered or its connection is lost.
    call: Option<OutstandingCall>,
    sent: bool,
    released: bool,
}

/// A request on its connection.
struct OutstandingCall {
    program: Arc<Program>,
    /// A time before the request was sent.
    begun: Instant,
    /// Set if a request was sent in the slot with the same sequence ID before.
    is_retry: bool,
    reply: SentCall<CompoundRes>,
}

impl OutstandingCall {
    /// Encodes a call. It is sent when `reply` is first polled.
    fn new(program: Arc<Program>, request: &Request<'_>, plan: ReplyPlan, (begun, is_retry): (Instant, bool)) -> Self {
        let call = program.encode(PROC_COMPOUND, request);
        let reply = program.send_while_connected(call, plan);
        Self { program, begun, is_retry, reply }
    }
}

impl TakenSlot {
    fn release(mut self, used: bool) {
        self.released = true;
        self.session.release(self.place, used);
    }
}

impl Drop for TakenSlot {
    fn drop(&mut self) {
        if self.released {
            return;
        }
        if !self.sent || self.session.ended.load(Relaxed) {
            return self.session.release(self.place, false);
        }
        // A call that waits for credits of its transport, or for a security context, is sent after its caller has given it up, as if
        // the network had delayed it. It is not withdrawn, because only the transport knows whether it was sent. It is not sent over
        // another connection.
        let (call, link, session, place) = (self.call.take(), self.link.clone(), self.session.clone(), self.place);
        self.link.runtime.spawn(async move { session.resolve_doubt(&link, place, call).await });
    }
}

impl Session {
    /// Creates a session of a client; `sequence` is the sequence ID of its next CREATE_SESSION.
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
        let session = Arc::new(Self {
            id: ok.sessionid,
            clientid,
            next_sequence: Sequenceid4(sequence.0.wrapping_add(1)),
            fore: ok.fore_chan_attrs,
            queue: Mutex::new(SlotQueue {
                slots: Slots::new(ok.fore_chan_attrs.maxrequests),
                is_held: false,
                waiting: VecDeque::new(),
                referred: Vec::new(),
            }),
            ended: AtomicBool::new(false),
            end: Notify::new(),
            released: Notify::new(),
        });
        backchannel.session(ok.sessionid, ok.back_chan_attrs.maxrequests, Arc::downgrade(&session));
        Ok(session)
    }

    /// Returns the maximum number of outstanding requests.
    pub fn slots(&self) -> u32 {
        self.queue.lock().slots.len()
    }

    /// Limits the slots in use to those up to `target`, which the server has asked for (RFC 8881 §20.8).
    pub fn set_target_slot(&self, target: Slotid4) {
        let mut queue = self.queue.lock();
        queue.slots.set_target(target);
        queue.serve_waiting();
    }

    /// Ends the use of the session. Requests that wait for a slot fail.
    pub fn close(&self) {
        self.ended.store(true, Relaxed);
        {
            let mut queue = self.queue.lock();
            queue.waiting.clear();
            queue.referred.clear();
        }
        self.end.notify_waiters();
    }

    /// Waits until the reply to a request has arrived, or the session has ended. Returns at once if the request is not
    /// outstanding.
    pub async fn wait_for_reply(&self, request: SlotUse) {
        let replied = {
            let mut queue = self.queue.lock();
            if self.ended.load(Relaxed) || !queue.slots.is_outstanding(request) {
                return;
            }
            let (replied, wait) = oneshot::channel();
            // Callbacks that have been answered do not wait any more.
            queue.referred.retain(|(_, callback)| !callback.is_closed());
            queue.referred.push((request, replied));
            wait
        };
        let _ = replied.await;
    }

    /// Stops sending requests, and waits until all outstanding ones are answered. Further requests wait for the end of the
    /// session. Returns `false`, and sends requests again, if some are still outstanding at the deadline.
    pub async fn drain(&self, deadline: &Deadline) -> bool {
        let drained = async {
            loop {
                let mut released = std::pin::pin!(self.released.notified());
                released.as_mut().enable();
                {
                    let mut queue = self.queue.lock();
                    queue.is_held = true;
                    if !queue.slots.any_taken() {
                        return;
                    }
                }
                released.await;
            }
        };
        let is_drained = timeout_at(deadline.at(), drained).await.is_ok();
        if !is_drained {
            let mut queue = self.queue.lock();
            queue.is_held = false;
            queue.serve_waiting();
        }
        is_drained
    }

    /// Waits until the session has ended.
    async fn has_ended(&self) {
        let mut end = std::pin::pin!(self.end.notified());
        end.as_mut().enable();
        if !self.ended.load(Relaxed) {
            end.await;
        }
    }

    /// Attempts a request, in `slot` if an earlier attempt has left one there, otherwise in a free slot. If the request
    /// is to be sent again unchanged, its slot is put into `slot`. The first result of the reply is that of SEQUENCE.
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
            None => match self.take_slot(deadline).await {
                Ok(Some((place, highest))) => {
                    let sequence = self.sequence(place, highest, compound.cache);
                    let (link, session) = (link.clone(), self.clone());
                    TakenSlot { link, session, place, sequence, call: None, sent: false, released: false }
                }
                Ok(None) => return (Outcome::Lost, sink.map(SharedRegion::from)),
                Err(_) => return (Outcome::NoSlot, sink.map(SharedRegion::from)),
            },
        };
        let Some(program) = link.trunk.pick(deadline).await else {
            return (Outcome::NoConnection, sink.map(SharedRegion::from));
        };
        let program = match &compound.caller {
            Some(caller) => Arc::new(program.with_caller(Some(caller))),
            None => program,
        };
        let is_retry = std::mem::replace(&mut taken.sent, true);
        let request = Request { minor: link.minor, first: Some(&taken.sequence), ops: &compound.ops };
        let plan = ReplyPlan { sink, ..compound.plan() };
        let call = OutstandingCall::new(program, &request, plan, (deadline.start(), is_retry));
        let OutstandingCall { program, reply, .. } = taken.call.insert(call);
        let Some(result) = program.within(deadline, Pin::new(reply)).await else {
            return (Outcome::Failed(program.timeout_error(compound.name)), None);
        };
        let (outcome, back) = outcome(program, result, compound.name);
        taken.call = None;
        let outcome = match outcome {
            Outcome::Answered(res) => self.classify(link, res, (deadline.start(), is_retry)),
            outcome => outcome,
        };
        match &outcome {
            Outcome::Answered(_) | Outcome::Uncached => taken.release(true),
            //= rfc8881-2.10.6.2-1 rfc8881-2.10.13.1.2-2 rfc8881-2.9.2-1
            Outcome::Disconnected(_) | Outcome::SlotBusy | Outcome::Unbound => *slot = Some(taken),
            Outcome::Lost => self.close(),
            // The server has refused SEQUENCE, so the slot's sequence has not advanced.
            Outcome::Failed(error) if error.status4().is_some() => taken.release(false),
            // Dropping `taken` puts the slot in doubt.
            _ => {}
        }
        (outcome, back)
    }

    /// Takes a slot, and returns it with the highest slot in use; `None` if the session has ended.
    ///
    /// # Errors
    /// No slot became free before the deadline.
    async fn take_slot(&self, deadline: &Deadline) -> std::result::Result<Option<(SlotUse, Slotid4)>, Elapsed> {
        let free = {
            let mut queue = self.queue.lock();
            queue.take().map(|place| (place, queue.slots.highest()))
        };
        match free {
            Some(place) => Ok(Some(place)),
            None => {
                let given = timeout_at(deadline.at(), self.wait_for_slot()).await?;
                Ok(given.map(|place| (place, self.highest())))
            }
        }
    }

    async fn wait_for_slot(&self) -> Option<SlotUse> {
        let (give, given) = oneshot::channel();
        let mut waiter = SlotWaiter { session: self, given };
        {
            let mut queue = self.queue.lock();
            if self.ended.load(Relaxed) {
                return None;
            }
            queue.waiting.push_back(give);
            // A slot can have become free after the caller looked for one.
            queue.serve_waiting();
        }
        (&mut waiter.given).await.ok()
    }

    fn release(&self, place: SlotUse, used: bool) {
        let mut queue = self.queue.lock();
        queue.release(place, used);
        queue.serve_waiting();
        if queue.is_held {
            self.released.notify_waiters();
        }
    }

    fn highest(&self) -> Slotid4 {
        self.queue.lock().slots.highest()
    }

    fn sequence(&self, place: SlotUse, highest_slotid: Slotid4, cache: bool) -> SequenceArgs {
        SequenceArgs {
            sessionid: self.id,
            sequenceid: place.sequence,
            slotid: place.slot,
            //= rfc8881-2.10.6.1-9
            highest_slotid,
            cachethis: cache,
        }
    }

    /// Binds all connections to the session, for callbacks too.
    pub async fn bind_all(&self, link: &ServerLink, deadline: &Deadline) {
        for program in link.trunk.all().into_iter().filter(|program| program.is_connected()) {
            if let Err(error) = identity::bind(&program, link.minor, self.id, deadline).await {
                tracing::debug!(%error, "binding a connection to the session failed");
            }
        }
    }

    /// Classifies a reply by the result of SEQUENCE, and stores the slot limits, the lease renewal and the status flags
    /// from it. The request was sent after `begun`.
    fn classify(&self, link: &ServerLink, res: CompoundRes, (begun, is_retry): (Instant, bool)) -> Outcome {
        if let Some(Resop4::Sequence(Res4::Ok(ok))) = res.resarray.first() {
            link.renewed(begun);
            // §2.10.6.1.1: after a retry, limits and flags can be those at the time of the first transmission. The next
            // reply has the present ones.
            //= rfc8881-2.10.6.1.1-3
            if !is_retry {
                self.follow(link, ok);
            }
            // RFC 8881 §2.10.6.1.3: if the reply to a retry was not cached, the operation after SEQUENCE has this
            // status.
            return match res.status {
                Nfsstat4::RetryUncachedRep => Outcome::Uncached,
                _ => Outcome::Answered(res),
            };
        }
        tracing::debug!(status = res.status.name(), "SEQUENCE failed");
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

    /// Follows the slot limits and the status flags of a reply.
    fn follow(&self, link: &ServerLink, ok: &SequenceOk) {
        {
            let mut queue = self.queue.lock();
            queue.slots.adjust(ok.highest_slotid, ok.target_highest_slotid);
            queue.serve_waiting();
        }
        if ok.status_flags & HANDLED_FLAGS != 0
            && let Some(holder) = link.holder()
        {
            holder.handle_status_flags(ok.status_flags);
        }
    }

    /// Resolves a slot in doubt: waits for the reply to `call`. If there is none because the connection was lost, or was
    /// closed after [`BACKGROUND`], sends SEQUENCE alone in the slot until the server answers.
    async fn resolve_doubt(self: &Arc<Self>, link: &Arc<ServerLink>, place: SlotUse, call: Option<OutstandingCall>) {
        let used = tokio::select! {
            biased;
            used = self.answered(link, place, call) => used,
            // The next request will find that the session has ended.
            () = self.has_ended() => false,
        };
        self.release(place, used);
    }

    /// Waits until the server has answered in a slot in doubt. Returns `true` if it has advanced the slot's sequence ID.
    async fn answered(&self, link: &Arc<ServerLink>, place: SlotUse, mut call: Option<OutstandingCall>) -> bool {
        let mut backoff = Backoff::new();
        loop {
            //= rfc8881-2.10.6.2-4 rfc8881-2.9.2-6
            if let Some(OutstandingCall { program, begun, is_retry, reply }) = call.take() {
                let result = timeout(BACKGROUND, reply).await;
                let outcome = match result.map(|result| outcome(&program, result, "SEQUENCE").0) {
                    Ok(Outcome::Answered(res)) => self.classify(link, res, (begun, is_retry)),
                    Ok(outcome) => outcome,
                    Err(_) => {
                        tracing::debug!(
                            ?program,
                            slot = place.slot.0,
                            "no reply to a cancelled request, closing the connection"
                        );
                        program.reset();
                        Outcome::Disconnected(program.timeout_error("SEQUENCE"))
                    }
                };
                match outcome {
                    Outcome::Answered(_) | Outcome::Uncached => return true,
                    // A reply that cannot be decoded is a reply: that to the original request.
                    Outcome::Failed(error) if error.is_unreadable() => return true,
                    Outcome::Failed(error) if error.status4().is_some() => return false,
                    Outcome::Lost => return false,
                    _ => backoff.pause().await,
                }
            }
            let Some(program) = link.trunk.pick(&Deadline::after(BACKGROUND)).await else { continue };
            let sequence = self.sequence(place, self.highest(), false);
            let request = Request { minor: link.minor, first: Some(&sequence), ops: &[] };
            let plan = ReplyPlan { inline_max: DOUBT_REPLY_MAX, ..ReplyPlan::default() };
            call = Some(OutstandingCall::new(program, &request, plan, (Instant::now(), true)));
        }
    }
}

/// The status flags of SEQUENCE that must be handled: the backchannel does not work, state was revoked, state must be
/// reclaimed, or a file system has moved.
pub(crate) const HANDLED_FLAGS: u32 =
    CALLBACK_FLAGS | REVOKED_FLAGS | SEQ4_STATUS_RESTART_RECLAIM_NEEDED | SEQ4_STATUS_LEASE_MOVED;
/// The status flags of a backchannel that does not work.
pub(crate) const CALLBACK_FLAGS: u32 =
    SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION | SEQ4_STATUS_BACKCHANNEL_FAULT;
/// The status flags of revoked state.
pub(crate) const REVOKED_FLAGS: u32 = SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED
    | SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED
    | SEQ4_STATUS_ADMIN_STATE_REVOKED
    | SEQ4_STATUS_RECALLABLE_STATE_REVOKED;
/// Maximum bytes of the reply in a slot in doubt, which can be the cached reply to the request that was given up.
const DOUBT_REPLY_MAX: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn session(slots: u32) -> Arc<Session> {
        let queue =
            SlotQueue { slots: Slots::new(slots), is_held: false, waiting: VecDeque::new(), referred: Vec::new() };
        Arc::new(Session {
            id: Sessionid4([1; 16]),
            clientid: Clientid4(1),
            next_sequence: Sequenceid4(1),
            fore: ChannelAttrs4 {
                headerpadsize: 0,
                maxrequestsize: 4096,
                maxresponsesize: 4096,
                maxresponsesize_cached: 4096,
                maxoperations: 8,
                maxrequests: slots,
                rdma_ird: None,
            },
            queue: Mutex::new(queue),
            ended: AtomicBool::new(false),
            end: Notify::new(),
            released: Notify::new(),
        })
    }

    #[tokio::test]
    async fn each_callback_waits_for_its_own_reply() {
        let session = session(2);
        let places = [(); 2].map(|()| session.queue.lock().slots.take().unwrap());
        let mut waiting = places.map(|place| {
            let session = session.clone();
            tokio::spawn(async move { session.wait_for_reply(place).await })
        });
        // The tasks run in the order in which they were spawned.
        tokio::task::yield_now().await;
        assert_eq!(session.queue.lock().referred.len(), 2);
        session.release(places[1], true);
        (&mut waiting[1]).await.unwrap();
        assert!(!waiting[0].is_finished());
        // The callback gives up. Its place in the list is freed when the next one waits.
        waiting[0].abort();
        assert!((&mut waiting[0]).await.unwrap_err().is_cancelled());
        let place = session.queue.lock().slots.take().unwrap();
        let last = session.clone();
        let last = tokio::spawn(async move { last.wait_for_reply(place).await });
        tokio::task::yield_now().await;
        assert_eq!(session.queue.lock().referred.len(), 1);
        session.close();
        last.await.unwrap();
    }
}
