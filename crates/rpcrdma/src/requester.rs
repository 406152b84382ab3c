//! Calls that this side makes: from the queue to the wire, and from the reply to the caller.
//!
//! Read RFC 8166 §3.3 (credits) and §4.4 (memory is exposed for one RPC and invalidated before its result is used). A
//! call has these stages:
//!
//! `Unsent` (waits for a credit) → `Sent` (exposed memory belongs to the queue pair) → `Finishing` (answered; memory is
//! being invalidated) → an event, unless the call was cancelled. In the Read-Read design, `Fetching` can precede
//! `Finishing`, see `fetch.rs`.
//!
//! Buffers: memory that a call exposes belongs to the queue pair until it is invalidated. On error the caller gets its
//! sink back.

use std::{collections::VecDeque, time::Instant};

use buf::{Buffer, Piece};
use bytes::Bytes;
use rdma::{Memory, Stag, WorkRequest};
use rpc::{CallError, CallsMade, ReplyPlan, TransportError, Xid};
use smallvec::SmallVec;
use xdr::Message;

use crate::{
    CallId, Event, Registry, Settings,
    chunk::{Lists, WriteList},
    credits::Credits,
    fetch::{Fetch, SINK_PART},
    fit::{Inline, ReplyOffer, encode_header, fit_call},
    header::{Body, Header, RdmaError},
    link::{Deadline, IDLE_ENTRIES, Link, Name, shrink_idle},
    message::{is_reply_to, xid_of},
    outgoing::{Exposures, Outcome, Outgoing, Purpose, Stage},
    table::{Key, Map, Table},
};

/// The calls that this side makes on one connection.
pub(crate) struct Requester {
    credits: Credits,
    /// The number of calls so far.
    total: u64,
    calls: Table<Outgoing>,
    /// The calls that have not been answered.
    by_xid: Map<Xid, Key>,
    /// The calls that wait for a credit, oldest first; some can have been cancelled.
    unsent: VecDeque<Key>,
}

impl Requester {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            credits: Credits::new(settings.outbound_credits().max(1)),
            total: 0,
            calls: Table::new(),
            by_xid: Map::default(),
            unsent: VecDeque::new(),
        }
    }

    /// Queues a call.
    pub(crate) fn call(&mut self, link: &mut Link, message: Message, plan: ReplyPlan) -> CallId {
        self.total += 1;
        let xid = xid_of(&message.stream).unwrap_or(Xid(0));
        let refusal = match link.closed() {
            Some(error) => Some(error),
            None if message.stream.len() < 8 => {
                Some(TransportError::Refused("the message is shorter than an RPC header".into()))
            }
            None if link.settings.outbound_credits() == 0 => {
                Some(TransportError::Refused("callbacks are not enabled on this connection".into()))
            }
            None if self.by_xid.contains_key(&xid) => {
                Some(TransportError::Refused(format!("a call with XID {:#x} is already outstanding", xid.0)))
            }
            None => None,
        };
        let sink_len = plan.sink.as_ref().map(|sink| sink.len());
        let reply_max = plan.inline_max + plan.payload_max.next_multiple_of(4);
        let stage = Stage::Unsent(message, plan);
        let exposed = SmallVec::new();
        let call = Outgoing { xid, stage, wanted: true, sink_len, reply_max, write: None, reply: None, exposed };
        let key = self.calls.insert(call);
        match refusal {
            None => {
                self.by_xid.insert(xid, key);
                self.unsent.push_back(key);
            }
            Some(error) => self.end_unsent(link, key, error),
        }
        CallId(key)
    }

    /// Cancels a call; see [`Connection::cancel`](crate::Connection::cancel).
    pub(crate) fn cancel(&mut self, link: &mut Link, CallId(key): CallId, now: Instant) {
        let Some(call) = self.calls.get_mut(key) else { return };
        call.wanted = false;
        match call.stage {
            Stage::Unsent(..) => {
                let xid = call.xid;
                self.by_xid.remove(&xid);
                self.calls.remove(key);
            }
            Stage::Sent => link.add_deadline(Deadline::Abandoned(key), now),
            // The responder waits for RDMA_DONE in any case.
            Stage::Fetching(_) | Stage::Finishing(_) => {}
        }
    }

    pub(crate) fn calls_made(&self) -> CallsMade {
        CallsMade { total: self.total, pending: self.calls.len() }
    }

    /// Returns `true` if a call with this XID has not been answered.
    pub(crate) fn is_outstanding(&self, xid: Xid) -> bool {
        self.by_xid.contains_key(&xid)
    }

    /// Returns `true` if this call has been sent and its reply has not arrived.
    pub(crate) fn is_sent(&self, key: Key) -> bool {
        self.calls.get(key).is_some_and(Outgoing::is_sent)
    }

    /// Returns `true` if the reply to this call is being read.
    pub(crate) fn is_fetching(&self, key: Key) -> bool {
        self.calls.get(key).is_some_and(|call| matches!(call.stage, Stage::Fetching(_)))
    }

    /// Returns the number of queued calls that can be sent now.
    pub(crate) fn sendable(&self) -> u32 {
        self.credits.free().min(self.unsent.len().try_into().unwrap_or(u32::MAX))
    }

    /// Sends the next waiting call if there is a credit for it. Returns `true` if there can be more.
    pub(crate) fn send_next_call(&mut self, link: &mut Link, registry: &mut dyn Registry) -> bool {
        while self.unsent.front().is_some_and(|&key| self.calls.get(key).is_none()) {
            self.unsent.pop_front(); // cancelled
        }
        let Some(&key) = self.unsent.front() else { return false };
        if self.credits.free() == 0 || !link.sends_call() {
            return false;
        }
        assert!(self.credits.take(), "a free credit can be taken");
        self.unsent.pop_front();
        if let Err(error) = self.send_call(link, key, registry) {
            self.credits.release();
            self.finish_when_invalidated(link, key, Outcome::Failed(error));
        }
        true
    }

    fn send_call(&mut self, link: &mut Link, key: Key, registry: &mut dyn Registry) -> Result<(), TransportError> {
        let call = self.calls.get_mut(key).expect("send_next_call must have found the call");
        let Stage::Unsent(message, plan) = std::mem::replace(&mut call.stage, Stage::Sent) else {
            unreachable!("a call must be sent once")
        };
        let offer = ReplyOffer::new(plan.inline_max, plan.payload_max, &link.settings);
        let fit = fit_call(message, offer, &link.settings, &link.pool);
        // The sink is kept even on error, so that it is returned to the caller.
        if offer.write > 0 && fit.is_ok() {
            let purpose = if plan.sink.is_some() { Purpose::Sink } else { Purpose::WriteChunk };
            let mut region = plan.sink.unwrap_or_else(|| link.pool.take(offer.write).into());
            //= rfc8166-3.4.6-1 rfc8166-4.3.2.2-2
            region.set_len(offer.write);
            call.write = Some(call.exposed.expose([Memory::Write(region)], purpose, registry, &link.pool)?);
        } else if let Some(sink) = plan.sink {
            call.exposed.keep(Memory::Write(sink), Purpose::Sink);
        }
        let fit = fit?;
        if offer.reply > 0 {
            let memory = Memory::Write(link.pool.take(offer.reply).into());
            call.reply = Some(call.exposed.expose([memory], Purpose::ReplyChunk, registry, &link.pool)?);
        }
        let mut lists =
            Lists { writes: WriteList::new(call.write.clone()), reply: call.reply.clone(), ..Lists::default() };
        for (position, pieces) in fit.reads {
            let memory = pieces.into_iter().map(Memory::Read);
            let chunk = call.exposed.expose(memory, Purpose::Arguments, registry, &link.pool)?;
            for segment in chunk.segments() {
                lists.reads.push(position, *segment).expect("fit_call must respect the limits of a list");
            }
        }
        let body = if fit.inline.is_some() { Body::Msg(lists) } else { Body::NoMsg(lists) };
        let header = Header { xid: call.xid, credits: self.credits.limit(), body };
        let data = fit.inline.unwrap_or_else(Inline::none).after_header(&header);
        // RFC 8166 does not require a solicited event. Linux sends calls without it, so wireshark recognises them
        // without it.
        link.post(WorkRequest::Send { id: Name::Call.into(), data, invalidate: None, solicited: false });
        Ok(())
    }

    /// Handles an arriving reply. `stream` is the data behind its header, if it was RDMA_MSG.
    pub(crate) fn handle_reply(
        &mut self,
        link: &mut Link,
        xid: Xid,
        granted: u32,
        lists: Lists,
        stream: Option<Bytes>,
        now: Instant,
    ) {
        let Some(key) = self.sent_call(xid) else { return };
        if link.settings.fetches_replies() && !lists.reads.is_empty() {
            return self.fetch_reply(link, key, granted, lists, stream, now);
        }
        let call = self.calls.get(key).expect("by_xid must hold only calls in the table");
        match call.outcome(&lists, stream) {
            Ok(outcome) => self.answered(link, key, granted, outcome),
            //= rfc8166-4.5-3 rfc8166-4.6.1-2
            Err(what) => link.fail_protocol(what),
        }
    }

    /// Handles the error that the peer could not receive a call or send its reply.
    pub(crate) fn handle_error(&mut self, link: &mut Link, xid: Xid, granted: u32, error: RdmaError) {
        //= rfc8166-4.2.4-3
        let Some(key) = self.sent_call(xid) else { return };
        let why = match error {
            RdmaError::Version { low, high } => format!("the peer supports RPC-over-RDMA versions {low} to {high}"),
            RdmaError::Chunk => "ERR_CHUNK".to_owned(),
        };
        self.answered(link, key, granted, Outcome::Failed(TransportError::Refused(why)));
    }

    /// Handles an arriving message that begins with `prefix` and has invalidated the region `stag`. Returns `true` if a
    /// call had exposed that region.
    pub(crate) fn handle_remote_invalidation(
        &mut self,
        link: &mut Link,
        prefix: &[u8],
        stag: Stag,
        memory: Memory,
    ) -> bool {
        // Usually the region belongs to the call that the message answers, but the peer can choose any.
        let answered = xid_of(prefix).and_then(|xid| self.by_xid.get(&xid).copied());
        let holds = |call: &Outgoing| call.exposed.iter().any(|exposure| exposure.is_exposed(stag));
        let key = answered.filter(|&key| self.calls.get(key).is_some_and(holds));
        let key = key.or_else(|| self.calls.iter_mut().find(|(_, call)| holds(call)).map(|(key, _)| key));
        let Some((key, call)) = key.and_then(|key| Some((key, self.calls.get_mut(key)?))) else { return false };
        let exposure = call.exposed.iter_mut().find(|exposure| exposure.is_exposed(stag));
        exposure.expect("the call was found by this exposure").memory = Some(memory);
        self.finish_if_invalidated(link, key);
        true
    }

    pub(crate) fn handle_invalidation(&mut self, link: &mut Link, key: Key, part: usize, memory: Option<Memory>) {
        if let Some(exposure) = self.calls.get_mut(key).and_then(|call| call.exposed.get_mut(part))
            && let Some(memory) = memory
        {
            exposure.memory = Some(memory);
            self.finish_if_invalidated(link, key);
        }
    }

    /// Handles the completion of one RDMA Read of a reply.
    pub(crate) fn handle_fetched(
        &mut self,
        link: &mut Link,
        key: Key,
        part: usize,
        buffer: Buffer,
        is_ok: bool,
        now: Instant,
    ) {
        let call = self.calls.get_mut(key).expect("a call must stay in the table while its reply is read");
        if part == SINK_PART {
            call.return_sink(buffer);
            if let Stage::Fetching(fetch) = &mut call.stage
                && is_ok
            {
                fetch.sink_filled();
            }
        } else if let Stage::Fetching(fetch) = &mut call.stage
            && is_ok
        {
            fetch.arrived(part, Piece::Memory(buffer.freeze()));
        }
        if is_ok {
            link.read_progressed(now);
            self.finish_fetch_if_complete(link, key);
        }
    }

    /// Takes the caller's buffer out of an RDMA Read that was not posted.
    pub(crate) fn take_back_fetch(&mut self, request: WorkRequest) {
        if let WorkRequest::Read { id, into, .. } = request
            && let Name::Fetch(key, SINK_PART) = id.into()
            && let Some(call) = self.calls.get_mut(key)
        {
            call.return_sink(into);
        }
    }

    /// Fails all calls after the connection was closed, and reclaims all memory.
    pub(crate) fn end(&mut self, link: &mut Link, error: &TransportError, registry: &mut dyn Registry) {
        for key in self.calls.keys() {
            let call = self.calls.get_mut(key).expect("a listed key must be valid");
            for exposure in call.exposed.iter_mut().filter(|exposure| exposure.memory.is_none()) {
                exposure.memory = registry.reclaim(exposure.stag);
            }
            match call.stage {
                Stage::Unsent(..) => self.end_unsent(link, key, error.clone()),
                Stage::Sent | Stage::Fetching(_) => {
                    call.stage = Stage::Finishing(Outcome::Failed(error.clone()));
                    self.finish(link, key);
                }
                Stage::Finishing(_) => self.finish(link, key),
            }
        }
        self.by_xid.clear();
        self.unsent.clear();
    }

    /// Frees memory that an idle connection does not need.
    pub(crate) fn shrink_idle(&mut self) {
        shrink_idle(&mut self.unsent);
        self.calls.shrink_idle();
        if self.by_xid.is_empty() && self.by_xid.capacity() > IDLE_ENTRIES {
            self.by_xid = Map::default();
        }
    }

    fn sent_call(&self, xid: Xid) -> Option<Key> {
        // A reply without a call is ignored: RFC 5531 leaves late replies to the caller.
        self.by_xid.get(&xid).copied().filter(|&key| self.is_sent(key))
    }

    /// Handles an arriving reply of which parts must be read from the responder.
    fn fetch_reply(
        &mut self,
        link: &mut Link,
        key: Key,
        granted: u32,
        lists: Lists,
        inline: Option<Bytes>,
        now: Instant,
    ) {
        let call = self.calls.get_mut(key).expect("the caller must have found the call");
        let (reply_max, sink_len) = (call.reply_max, call.sink_len.unwrap_or(0));
        let sink = |len| if len <= sink_len { call.take_host_sink() } else { None };
        match Fetch::start(link, key, reply_max, (granted, lists, inline), sink) {
            Ok(fetch) => call.stage = Stage::Fetching(fetch),
            Err(what) => return link.fail_protocol(what),
        }
        link.read_progressed(now);
        link.add_deadline(Deadline::Fetch(key), now);
        self.finish_fetch_if_complete(link, key); // All of its segments can be empty.
    }

    fn finish_fetch_if_complete(&mut self, link: &mut Link, key: Key) {
        let call = self.calls.get_mut(key).expect("a call must stay in the table while its reply is read");
        if !matches!(&call.stage, Stage::Fetching(fetch) if fetch.is_complete()) {
            return;
        }
        let Stage::Fetching(fetch) = std::mem::replace(&mut call.stage, Stage::Sent) else {
            unreachable!("the stage was just checked")
        };
        let (xid, granted) = (call.xid, fetch.granted());
        let (message, placed) = fetch.into_message();
        if !is_reply_to(&message.stream, xid) {
            return link.fail_protocol("the position-zero chunk does not hold a reply to its call");
        }
        self.send_done(link, xid);
        self.answered(link, key, granted, Outcome::Fetched { message, placed });
    }

    /// Tells the responder that its memory is no longer needed, before the call's credit is used again.
    fn send_done(&mut self, link: &mut Link, xid: Xid) {
        let header = Header { xid, credits: self.credits.limit(), body: Body::Done };
        let data = encode_header(&header).into();
        link.post(WorkRequest::Send { id: Name::Call.into(), data, invalidate: None, solicited: false });
    }

    fn answered(&mut self, link: &mut Link, key: Key, granted: u32, outcome: Outcome) {
        self.credits.release();
        self.credits.grant(granted);
        self.finish_when_invalidated(link, key, outcome);
    }

    /// Invalidates the memory that the call exposes, and then ends the call.
    fn finish_when_invalidated(&mut self, link: &mut Link, key: Key, outcome: Outcome) {
        let call = self.calls.get_mut(key).expect("a call must end once");
        call.stage = Stage::Finishing(outcome);
        self.by_xid.remove(&call.xid);
        for (part, exposure) in call.exposed.iter().enumerate().filter(|(_, exposure)| exposure.memory.is_none()) {
            link.post(WorkRequest::Invalidate { id: Name::Invalidate(key, part).into(), stag: exposure.stag });
        }
        self.finish_if_invalidated(link, key);
    }

    fn finish_if_invalidated(&mut self, link: &mut Link, key: Key) {
        let Some(call) = self.calls.get(key) else { return };
        let is_invalidated = call.exposed.iter().all(|exposure| exposure.memory.is_some());
        if is_invalidated && matches!(call.stage, Stage::Finishing(_)) {
            self.finish(link, key);
        }
    }

    fn finish(&mut self, link: &mut Link, key: Key) {
        let call = self.calls.remove(key).expect("a call must end once");
        let wanted = call.wanted;
        let result = call.into_result();
        if let Err(CallError { error: TransportError::Protocol(what), .. }) = &result {
            link.fail_protocol(what.clone());
        }
        if wanted {
            link.report(Event::Reply { id: CallId(key), result });
        }
    }

    fn end_unsent(&mut self, link: &mut Link, key: Key, error: TransportError) {
        let call = self.calls.remove(key).expect("a call must end once");
        let Stage::Unsent(_, plan) = call.stage else { unreachable!("the caller must have checked the stage") };
        let result = Err(CallError { error, sink: plan.sink });
        link.report(Event::Reply { id: CallId(key), result });
    }
}
