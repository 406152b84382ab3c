//! Calls that we make: from the queue to the wire, and from the reply back to the caller.
//!
//! Read RFC 8166 §3.3 (credits), §4.4 (memory is exposed for one RPC and invalidated before its result is
//! used). A call goes through these stages:
//!
//! `Unsent` (waits for a credit) → `Sent` (what it exposes belongs to the queue pair) → `Finishing`
//! (answered; memory is being invalidated) → an event, unless its caller has gone. In the Read-Read design, `Fetching` may
//! come before `Finishing`, see `fetch.rs`.
//!
//! Buffers: what a call exposes belongs to the queue pair until it is invalidated. On error the caller gets its sink back.

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

/// The calls that we make on one connection.
pub(crate) struct Requester {
    credits: Credits,
    /// Calls made so far.
    total: u64,
    calls: Table<Outgoing>,
    /// Calls that have not been answered.
    by_xid: Map<Xid, Key>,
    /// Calls that wait for a credit, oldest first; some may have been cancelled.
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
            None if message.stream.len() < 8 => Some(TransportError::Refused("no RPC message".into())),
            None if link.settings.outbound_credits() == 0 => {
                Some(TransportError::Refused("callbacks are not enabled on this connection".into()))
            }
            None if self.by_xid.contains_key(&xid) => {
                Some(TransportError::Refused(format!("a call with XID {:#x} is outstanding", xid.0)))
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

    /// Gives up a call; see [`Connection::cancel`](crate::Connection::cancel).
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

    /// Whether a call with this XID has not been answered.
    pub(crate) fn is_outstanding(&self, xid: Xid) -> bool {
        self.by_xid.contains_key(&xid)
    }

    /// Whether this call has been sent and no reply has come.
    pub(crate) fn is_sent(&self, key: Key) -> bool {
        self.calls.get(key).is_some_and(Outgoing::is_sent)
    }

    /// Whether the reply to this call is being read.
    pub(crate) fn is_fetching(&self, key: Key) -> bool {
        self.calls.get(key).is_some_and(|call| matches!(call.stage, Stage::Fetching(_)))
    }

    /// Sends the next call that waits, if there is a credit for it. Returns whether there may be more.
    pub(crate) fn send_next_call(&mut self, link: &mut Link, registry: &mut dyn Registry) -> bool {
        while self.unsent.front().is_some_and(|&key| self.calls.get(key).is_none()) {
            self.unsent.pop_front(); // cancelled
        }
        let Some(&key) = self.unsent.front() else { return false };
        if !self.credits.take() {
            return false;
        }
        self.unsent.pop_front();
        if let Err(error) = self.send_call(link, key, registry) {
            self.credits.give_back();
            self.finish_when_invalidated(link, key, Outcome::Failed(error));
        }
        true
    }

    fn send_call(&mut self, link: &mut Link, key: Key, registry: &mut dyn Registry) -> Result<(), TransportError> {
        let call = self.calls.get_mut(key).expect("checked by send_next_call");
        let Stage::Unsent(message, plan) = std::mem::replace(&mut call.stage, Stage::Sent) else {
            unreachable!("a call is sent once")
        };
        let offer = ReplyOffer::new(plan.inline_max, plan.payload_max, &link.settings);
        let fit = fit_call(message, offer, &link.settings, &link.pool);
        // The sink is kept in any case, so that it goes back to the caller.
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
                lists.reads.push(position, *segment).expect("fit_call keeps to the bounds of a list");
            }
        }
        let body = if fit.inline.is_some() { Body::Msg(lists) } else { Body::NoMsg(lists) };
        let header = Header { xid: call.xid, credits: self.credits.limit(), body };
        let data = fit.inline.unwrap_or_else(Inline::none).behind(&header);
        // Nothing in RFC 8166 asks for a solicited event. Linux sends calls without, and so wireshark knows them.
        link.post(WorkRequest::Send { id: Name::Call.into(), data, invalidate: None, solicited: false });
        Ok(())
    }

    /// A reply has come; `stream` is what followed its header, if it was RDMA_MSG.
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
        let call = self.calls.get(key).expect("by_xid holds only calls that stand");
        match call.outcome(&lists, stream) {
            Ok(outcome) => self.answered(link, key, granted, outcome),
            //= rfc8166-4.5-3 rfc8166-4.6.1-2
            Err(what) => link.fail_protocol(what),
        }
    }

    /// The peer could not receive a call or send its reply.
    pub(crate) fn handle_error(&mut self, link: &mut Link, xid: Xid, granted: u32, error: RdmaError) {
        //= rfc8166-4.2.4-3
        let Some(key) = self.sent_call(xid) else { return };
        let why = match error {
            RdmaError::Version { low, high } => format!("it speaks RPC-over-RDMA versions {low} to {high}"),
            RdmaError::Chunk => "ERR_CHUNK".to_owned(),
        };
        self.answered(link, key, granted, Outcome::Failed(TransportError::Refused(why)));
    }

    /// A message that begins with `prefix` has arrived, and has invalidated the region `stag`. Returns whether a call had
    /// exposed it.
    pub(crate) fn handle_remote_invalidation(
        &mut self,
        link: &mut Link,
        prefix: &[u8],
        stag: Stag,
        memory: Memory,
    ) -> bool {
        // Usually it belongs to the call that the message answers; but the peer can choose any.
        let answered = xid_of(prefix).and_then(|xid| self.by_xid.get(&xid).copied());
        let holds = |call: &Outgoing| call.exposed.iter().any(|exposure| exposure.is_exposed(stag));
        let key = answered.filter(|&key| self.calls.get(key).is_some_and(holds));
        let key = key.or_else(|| self.calls.iter_mut().find(|(_, call)| holds(call)).map(|(key, _)| key));
        let Some((key, call)) = key.and_then(|key| Some((key, self.calls.get_mut(key)?))) else { return false };
        let exposure = call.exposed.iter_mut().find(|exposure| exposure.is_exposed(stag));
        exposure.expect("its call was found by it").memory = Some(memory);
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

    /// One RDMA Read of a reply is over.
    pub(crate) fn handle_fetched(
        &mut self,
        link: &mut Link,
        key: Key,
        part: usize,
        buffer: Buffer,
        is_ok: bool,
        now: Instant,
    ) {
        let call = self.calls.get_mut(key).expect("a call stands while its reply is read");
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

    /// Takes the caller's buffer out of an RDMA Read that was never posted.
    pub(crate) fn take_back_fetch(&mut self, request: WorkRequest) {
        if let WorkRequest::Read { id, into, .. } = request
            && let Name::Fetch(key, SINK_PART) = id.into()
            && let Some(call) = self.calls.get_mut(key)
        {
            call.return_sink(into);
        }
    }

    /// Ends every call because the connection is over, and takes back all memory.
    pub(crate) fn end(&mut self, link: &mut Link, error: &TransportError, registry: &mut dyn Registry) {
        for key in self.calls.keys() {
            let call = self.calls.get_mut(key).expect("a key just listed");
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
        // A reply to no call is ignored: RFC 5531 leaves late replies to the caller.
        self.by_xid.get(&xid).copied().filter(|&key| self.is_sent(key))
    }

    /// A reply has come of which parts are to be read from the responder.
    fn fetch_reply(
        &mut self,
        link: &mut Link,
        key: Key,
        granted: u32,
        lists: Lists,
        inline: Option<Bytes>,
        now: Instant,
    ) {
        let call = self.calls.get_mut(key).expect("the caller has found it");
        let (reply_max, sink_len) = (call.reply_max, call.sink_len.unwrap_or(0));
        let sink = |len| if len <= sink_len { call.take_host_sink() } else { None };
        match Fetch::start(link, key, reply_max, (granted, lists, inline), sink) {
            Ok(fetch) => call.stage = Stage::Fetching(fetch),
            Err(what) => return link.fail_protocol(what),
        }
        link.read_progressed(now);
        link.add_deadline(Deadline::Fetch(key), now);
        self.finish_fetch_if_complete(link, key); // all of its segments may be empty
    }

    fn finish_fetch_if_complete(&mut self, link: &mut Link, key: Key) {
        let call = self.calls.get_mut(key).expect("a call stands while its reply is read");
        if !matches!(&call.stage, Stage::Fetching(fetch) if fetch.is_complete()) {
            return;
        }
        let Stage::Fetching(fetch) = std::mem::replace(&mut call.stage, Stage::Sent) else { unreachable!("just seen") };
        let (xid, granted) = (call.xid, fetch.granted());
        let (message, placed) = fetch.into_message();
        if !is_reply_to(&message.stream, xid) {
            return link.fail_protocol("a position-zero chunk that holds no reply to its call");
        }
        self.send_done(link, xid);
        self.answered(link, key, granted, Outcome::Fetched { message, placed });
    }

    /// Tells the responder that its memory is not needed any more, before the call's credit is used again.
    fn send_done(&mut self, link: &mut Link, xid: Xid) {
        let header = Header { xid, credits: self.credits.limit(), body: Body::Done };
        let data = encode_header(&header).into();
        link.post(WorkRequest::Send { id: Name::Call.into(), data, invalidate: None, solicited: false });
    }

    fn answered(&mut self, link: &mut Link, key: Key, granted: u32, outcome: Outcome) {
        self.credits.give_back();
        self.credits.grant(granted);
        self.finish_when_invalidated(link, key, outcome);
    }

    /// Invalidates what the call exposes, and then ends it.
    fn finish_when_invalidated(&mut self, link: &mut Link, key: Key, outcome: Outcome) {
        let call = self.calls.get_mut(key).expect("a call ends once");
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
        let call = self.calls.remove(key).expect("a call ends once");
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
        let call = self.calls.remove(key).expect("a call ends once");
        let Stage::Unsent(_, plan) = call.stage else { unreachable!("checked by the caller") };
        let result = Err(CallError { error, sink: plan.sink });
        link.report(Event::Reply { id: CallId(key), result });
    }
}
