//! Calls that we make: from the queue to the wire, and from the reply back to the caller.
//!
//! Read RFC 8166 §3.3 (credits), §4.4 (memory is exposed for one RPC and invalidated before its result is
//! used). A call goes through these stages:
//!
//! `Unsent` (waits for a credit) → `Sent` (what it exposes belongs to the queue pair) → `Finishing`
//! (answered; memory is being invalidated) → an event, unless its caller has gone. In the Read-Read design, `Fetching` may
//! come before `Finishing`, see `fetch.rs`.

use buf::{Buffer, SharedBuffer, Slab};
use bytes::Bytes;
use rdma::{Memory, Stag, WorkRequest};
use rpc::{CallError, Reply, ReplyPlan, TransportError, Xid};
use smallvec::SmallVec;
use std::time::Instant;
use xdr::{Message, PlacedPayload};

use crate::{
    CallId, Connection, Event, Registry,
    chunk::{Chunk, Lists, Segment, WriteList},
    connection::{Deadline, Name},
    fetch::Fetch,
    fit::{Inline, ReplyOffer, fit_call},
    header::{Body, Header, RdmaError},
    recv::{is_reply_to, xid_of},
    table::Key,
};

/// A call that we make.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) xid: Xid,
    pub(crate) stage: Stage,
    /// Whether somebody waits for it.
    wanted: bool,
    /// The visible length of the caller's buffer, if there is one.
    pub(crate) sink_len: Option<usize>,
    /// Longest reply that its plan allows.
    pub(crate) reply_max: usize,
    write: Option<Chunk>,
    reply: Option<Chunk>,
    exposed: SmallVec<[Exposure; 2]>,
}

#[derive(Debug)]
pub(crate) enum Stage {
    Unsent(Message, ReplyPlan),
    Sent,
    /// Its reply is read from the responder's memory.
    Fetching(Fetch),
    Finishing(Outcome),
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Answered {
        stream: Stream,
        /// Bytes in the write chunk.
        placed: usize,
    },
    /// The message has been read, but for a payload that is in the caller's buffer: its position and its bytes.
    Fetched {
        message: Message,
        placed: Option<(u32, usize)>,
    },
    Failed(TransportError),
}

#[derive(Debug)]
pub(crate) enum Stream {
    Inline(Bytes),
    /// In the reply chunk, this many bytes.
    InChunk(usize),
}

/// A registered region, or the memory that has come back from it.
#[derive(Debug)]
struct Exposure {
    stag: Stag,
    purpose: Purpose,
    home: Option<Memory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Arguments,
    Sink,
    ReplyChunk,
}

impl Outgoing {
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.stage, Stage::Sent)
    }

    pub(crate) fn is_fetching(&self) -> bool {
        matches!(self.stage, Stage::Fetching(_))
    }
}

impl Connection {
    pub(crate) fn queue_call(&mut self, message: Message, plan: ReplyPlan) -> CallId {
        let xid = xid_of(&message.stream).unwrap_or(Xid(0));
        let refusal = match self.closed() {
            Some(error) => Some(error),
            None if message.stream.len() < 8 => Some(TransportError::Refused("no RPC message".into())),
            None if self.settings.outbound_credits() == 0 => {
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
            Some(error) => self.end_unsent(key, error),
        }
        CallId(key)
    }

    pub(crate) fn abandon(&mut self, key: Key, now: Instant) {
        let Some(call) = self.calls.get_mut(key) else { return };
        call.wanted = false;
        match call.stage {
            Stage::Unsent(..) => {
                let xid = call.xid;
                self.by_xid.remove(&xid);
                self.calls.remove(key);
            }
            Stage::Sent => self.add_deadline(Deadline::Abandoned(key), now),
            // The responder waits for RDMA_DONE, whoever else waits.
            Stage::Fetching(_) | Stage::Finishing(_) => {}
        }
    }

    /// Sends the next call that waits, if there is a credit for it. Whether there may be more.
    pub(crate) fn send_next_call(&mut self, registry: &mut dyn Registry) -> bool {
        while self.unsent.front().is_some_and(|&key| self.calls.get(key).is_none()) {
            self.unsent.pop_front(); // cancelled
        }
        let Some(&key) = self.unsent.front() else { return false };
        if !self.credits.take() {
            return false;
        }
        self.unsent.pop_front();
        if let Err(error) = self.send_call(key, registry) {
            self.credits.give_back();
            self.finish_when_home(key, Outcome::Failed(error));
        }
        true
    }

    fn send_call(&mut self, key: Key, registry: &mut dyn Registry) -> Result<(), TransportError> {
        let call = self.calls.get_mut(key).expect("checked by send_next_call");
        let Stage::Unsent(message, plan) = std::mem::replace(&mut call.stage, Stage::Sent) else {
            unreachable!("a call is sent once")
        };
        let offer = ReplyOffer::new(plan.inline_max, plan.payload_max, &self.settings);
        let fit = fit_call(message, offer, &self.settings, &self.pool);
        // The sink is kept in any case, so that it goes back to the caller.
        if offer.write > 0 && fit.is_ok() {
            let mut sink = plan.sink.unwrap_or_else(|| self.pool.take(offer.write));
            sink.set_len(offer.write);
            call.write = Some(call.exposed.expose([Memory::Write(sink)], Purpose::Sink, registry)?);
        } else if let Some(sink) = plan.sink {
            call.exposed.keep(Memory::Write(sink), Purpose::Sink);
        }
        let fit = fit?;
        if offer.reply > 0 {
            let memory = Memory::Write(self.pool.take(offer.reply));
            call.reply = Some(call.exposed.expose([memory], Purpose::ReplyChunk, registry)?);
        }
        let mut lists =
            Lists { writes: WriteList::new(call.write.clone()), reply: call.reply.clone(), ..Lists::default() };
        for (position, pieces) in fit.reads {
            let chunk = call.exposed.expose(pieces.into_iter().map(Memory::Read), Purpose::Arguments, registry)?;
            for segment in chunk.segments() {
                lists.reads.push(position, *segment).expect("fit_call keeps to the bounds of a list");
            }
        }
        let body = if fit.inline.is_some() { Body::Msg(lists) } else { Body::NoMsg(lists) };
        let header = Header { xid: call.xid, credits: self.credits.limit(), body };
        let data = fit.inline.unwrap_or_else(Inline::none).behind(&header);
        // Nothing in RFC 8166 asks for a solicited event. Linux sends calls without, and so wireshark knows them.
        self.post(WorkRequest::Send { id: Name::Call.into(), data, invalidate: None, solicited: false });
        Ok(())
    }

    /// A reply has come; `stream` is what followed its header, if it was RDMA_MSG.
    pub(crate) fn handle_reply(&mut self, xid: Xid, granted: u32, lists: Lists, stream: Option<Bytes>, now: Instant) {
        let Some(key) = self.sent_call(xid) else { return };
        if self.settings.fetches_replies() && !lists.reads.is_empty() {
            return self.fetch_reply(key, granted, lists, stream, now);
        }
        let call = self.calls.get(key).expect("by_xid holds only calls that stand");
        match call.outcome(&lists, stream) {
            Ok(outcome) => self.answered(key, granted, outcome),
            Err(what) => self.fail_protocol(what),
        }
    }

    /// The peer could not receive a call or send its reply.
    pub(crate) fn handle_error(&mut self, xid: Xid, granted: u32, error: RdmaError) {
        let Some(key) = self.sent_call(xid) else { return };
        let why = match error {
            RdmaError::Version { low, high } => format!("it speaks RPC-over-RDMA versions {low} to {high}"),
            RdmaError::Chunk => "ERR_CHUNK".to_owned(),
        };
        self.answered(key, granted, Outcome::Failed(TransportError::Refused(why)));
    }

    /// A message that begins with `prefix` has arrived, and invalidated one of our regions on its way.
    pub(crate) fn handle_remote_invalidation(&mut self, prefix: &[u8], stag: Stag, memory: Memory) {
        // Usually it belongs to the call that the message answers; but the peer can choose any.
        let answered = xid_of(prefix).and_then(|xid| self.by_xid.get(&xid).copied());
        let holds = |call: &Outgoing| call.exposed.iter().any(|exposure| exposure.is_out(stag));
        let key = answered.filter(|&key| self.calls.get(key).is_some_and(holds));
        let key = key.or_else(|| self.calls.iter_mut().find(|(_, call)| holds(call)).map(|(key, _)| key));
        let call = key.and_then(|key| self.calls.get_mut(key));
        if let Some(exposure) = call.and_then(|call| call.exposed.iter_mut().find(|exposure| exposure.is_out(stag))) {
            exposure.home = Some(memory);
            self.finish_if_home(key.expect("its call was found"));
        } else {
            self.handle_exposed_invalidation(stag);
        }
    }

    pub(crate) fn handle_invalidation(&mut self, key: Key, part: usize, memory: Option<Memory>) {
        if let Some(exposure) = self.calls.get_mut(key).and_then(|call| call.exposed.get_mut(part))
            && let Some(memory) = memory
        {
            exposure.home = Some(memory);
            self.finish_if_home(key);
        }
    }

    /// The connection is over: every call ends, and all memory comes back.
    pub(crate) fn end_calls(&mut self, error: &TransportError, registry: &mut dyn Registry) {
        for key in self.calls.keys() {
            let call = self.calls.get_mut(key).expect("a key just listed");
            for exposure in call.exposed.iter_mut().filter(|exposure| exposure.home.is_none()) {
                exposure.home = registry.reclaim(exposure.stag);
            }
            match call.stage {
                Stage::Unsent(..) => self.end_unsent(key, error.clone()),
                Stage::Sent | Stage::Fetching(_) => {
                    call.stage = Stage::Finishing(Outcome::Failed(error.clone()));
                    self.finish(key);
                }
                Stage::Finishing(_) => self.finish(key),
            }
        }
        self.by_xid.clear();
        self.unsent.clear();
    }

    fn sent_call(&self, xid: Xid) -> Option<Key> {
        // A reply to no call is ignored: RFC 5531 leaves late replies to the caller.
        self.by_xid.get(&xid).copied().filter(|&key| self.calls.get(key).is_some_and(Outgoing::is_sent))
    }

    pub(crate) fn answered(&mut self, key: Key, granted: u32, outcome: Outcome) {
        self.credits.give_back();
        self.credits.grant(granted);
        self.finish_when_home(key, outcome);
    }

    /// Takes back what the call exposes, and then ends it.
    fn finish_when_home(&mut self, key: Key, outcome: Outcome) {
        let call = self.calls.get_mut(key).expect("a call ends once");
        call.stage = Stage::Finishing(outcome);
        self.by_xid.remove(&call.xid);
        for (part, exposure) in call.exposed.iter().enumerate().filter(|(_, exposure)| exposure.home.is_none()) {
            let request = WorkRequest::Invalidate { id: Name::Invalidate(key, part).into(), stag: exposure.stag };
            self.work.push_back(crate::Work::Post(request));
        }
        self.finish_if_home(key);
    }

    fn finish_if_home(&mut self, key: Key) {
        let Some(call) = self.calls.get(key) else { return };
        let home = call.exposed.iter().all(|exposure| exposure.home.is_some());
        if home && matches!(call.stage, Stage::Finishing(_)) {
            self.finish(key);
        }
    }

    fn finish(&mut self, key: Key) {
        let call = self.calls.remove(key).expect("a call ends once");
        let wanted = call.wanted;
        let result = call.into_result();
        if let Err(CallError { error: TransportError::Protocol(what), .. }) = &result {
            self.fail_protocol(what.clone());
        }
        if wanted {
            self.events.push_back(Event::Reply { id: CallId(key), result });
        }
    }

    fn end_unsent(&mut self, key: Key, error: TransportError) {
        let call = self.calls.remove(key).expect("a call ends once");
        let Stage::Unsent(_, plan) = call.stage else { unreachable!("checked by the caller") };
        let result = Err(CallError { error, sink: plan.sink });
        self.events.push_back(Event::Reply { id: CallId(key), result });
    }
}

impl Outgoing {
    /// What a reply with these lists means; else what is wrong with it.
    fn outcome(&self, lists: &Lists, stream: Option<Bytes>) -> Result<Outcome, String> {
        if !lists.reads.is_empty() {
            return Err("a reply with a read list".into());
        }
        let placed = match (lists.writes.chunks(), &self.write) {
            ([], _) => 0,
            ([returned], Some(offered)) => {
                offered.used_in(returned).ok_or("a reply that returns another write chunk than was offered")?
            }
            _ => return Err("a reply with write chunks that were not offered".into()),
        };
        let in_chunk = match (&lists.reply, &self.reply) {
            (None, _) => 0,
            (Some(returned), Some(offered)) => {
                offered.used_in(returned).ok_or("a reply that returns another reply chunk than was offered")?
            }
            (Some(returned), None) if returned.is_empty() => 0,
            _ => return Err("a reply with a reply chunk that was not offered".into()),
        };
        match stream {
            Some(stream) if in_chunk == 0 => Ok(Outcome::Answered { stream: Stream::Inline(stream), placed }),
            Some(_) => Err("an RDMA_MSG reply that also fills the reply chunk".into()),
            None if in_chunk > 0 => Ok(Outcome::Answered { stream: Stream::InChunk(in_chunk), placed }),
            None => Err("an RDMA_NOMSG reply without a message".into()),
        }
    }

    fn into_result(mut self) -> Result<Reply, CallError> {
        let reply_chunk = self.take_home(Purpose::ReplyChunk);
        let mut sink = self.take_home(Purpose::Sink);
        let Stage::Finishing(outcome) = self.stage else { unreachable!("only finished calls have a result") };
        let (mut message, position, placed) = match outcome.into_message(reply_chunk, self.xid) {
            Ok(answer) => answer,
            Err(error) => {
                let sink = sink.take().zip(self.sink_len).map(|(mut sink, len)| {
                    sink.set_len(len);
                    sink
                });
                return Err(CallError { error, sink });
            }
        };
        let (data, sink) = match (sink, self.sink_len) {
            (Some(mut sink), Some(len)) => {
                sink.set_len(len);
                let shared = SharedBuffer::from(sink);
                (shared.bytes().slice(..placed), Some(shared))
            }
            (Some(mut sink), None) => {
                sink.set_len(placed);
                (sink.freeze(), None)
            }
            (None, _) => (Bytes::new(), None),
        };
        if placed > 0 {
            message.payloads.push(PlacedPayload { position, data: data.into() });
        }
        Ok(Reply { message, sink })
    }

    pub(crate) fn take_home(&mut self, purpose: Purpose) -> Option<Buffer> {
        let exposure = self.exposed.iter_mut().find(|exposure| exposure.purpose == purpose)?;
        match exposure.home.take() {
            Some(Memory::Write(buffer)) => Some(buffer),
            _ => None,
        }
    }

    /// Undoes [`take_home`](Self::take_home).
    pub(crate) fn put_home(&mut self, purpose: Purpose, buffer: Buffer) {
        let exposure = self.exposed.iter_mut().find(|exposure| exposure.purpose == purpose);
        exposure.expect("memory of this purpose was taken").home = Some(Memory::Write(buffer));
    }
}

impl Outcome {
    /// The message, from where it is, and the position and length of a payload in the caller's buffer.
    fn into_message(
        self,
        reply_chunk: Option<Buffer>,
        xid: Xid,
    ) -> Result<(Message, Option<u32>, usize), TransportError> {
        match self {
            Outcome::Failed(error) => Err(error),
            Outcome::Fetched { message, placed: None } => Ok((message, None, 0)),
            Outcome::Fetched { message, placed: Some((position, placed)) } => Ok((message, Some(position), placed)),
            // RFC 8166 §4.3.2.1: a write chunk tells no position; it belongs to the next item that may have one.
            Outcome::Answered { stream: Stream::Inline(stream), placed } => Ok((stream.into(), None, placed)),
            Outcome::Answered { stream: Stream::InChunk(len), placed } => {
                let mut buffer = reply_chunk.ok_or(TransportError::Lost("the reply chunk is gone".into()))?;
                buffer.set_len(len);
                let stream = private(buffer);
                match is_reply_to(&stream, xid) {
                    true => Ok((stream.into(), None, placed)),
                    false => Err(TransportError::Protocol("a reply chunk that holds no reply to its call".into())),
                }
            }
        }
    }
}

/// The bytes of a reply chunk, where a peer that maps our memory cannot change them while they are parsed.
fn private(buffer: Buffer) -> Bytes {
    let shared = Slab::of(&buffer).is_some_and(|(slab, _)| slab.fd().is_some());
    if shared { Bytes::copy_from_slice(&buffer) } else { buffer.freeze() }
}

/// What a call exposes.
trait Exposures {
    fn expose(
        &mut self,
        memory: impl IntoIterator<Item = Memory>,
        purpose: Purpose,
        registry: &mut dyn Registry,
    ) -> Result<Chunk, TransportError>;
    fn keep(&mut self, memory: Memory, purpose: Purpose);
}

impl Exposures for SmallVec<[Exposure; 2]> {
    /// Registers each piece as one segment of a chunk.
    fn expose(
        &mut self,
        memory: impl IntoIterator<Item = Memory>,
        purpose: Purpose,
        registry: &mut dyn Registry,
    ) -> Result<Chunk, TransportError> {
        let mut segments = SmallVec::<[Segment; 1]>::new();
        for piece in memory {
            match registry.register(piece) {
                Ok(region) => {
                    self.push(Exposure { stag: region.stag, purpose, home: None });
                    segments.push(Segment { handle: region.stag, length: region.len, offset: region.offset });
                }
                Err(memory) => {
                    self.keep(memory, purpose);
                    return Err(TransportError::Refused("no more memory can be registered".into()));
                }
            }
        }
        Ok(Chunk::new(segments))
    }

    /// Keeps memory with the call without exposing it.
    fn keep(&mut self, memory: Memory, purpose: Purpose) {
        self.push(Exposure { stag: Stag(0), purpose, home: Some(memory) });
    }
}

impl Exposure {
    fn is_out(&self, stag: Stag) -> bool {
        self.stag == stag && self.home.is_none()
    }
}
