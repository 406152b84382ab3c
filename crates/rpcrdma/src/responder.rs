//! Calls that this side answers: from the wire to the server, and from the reply to the wire.
//!
//! Read RFC 8166 §3.4.5 and §3.4.6 (read and write chunks), §3.5 (long messages), §3.3 (credits) and RFC 8797 §4.1
//! (remote invalidation). A call has these stages:
//!
//! `Pull` (its chunks wait to be read, or are being read) → `InService` (delivered to the server) → a reply, whose RDMA
//! Writes are posted before its Send and so arrive before it. In the Read-Read design the caller reads the reply, see
//! `expose.rs`.
//!
//! Each segment is one RDMA operation; the queue pair starts no more RDMA Reads at once than the peer allows. The bytes
//! being read on one connection are limited, and so is the memory of the calls of all connections (`call_memory.rs`):
//! further calls wait in order.
//!
//! Buffers: a call's buffers are delivered with it; a reply's buffers belong to the queue pair until it has been sent.
//! On error (the caller did not offer enough memory) the caller gets ERR_CHUNK, and the server gets an error. Nothing
//! is retried.

use std::{
    collections::VecDeque,
    task::{Context, Poll},
    time::Instant,
};

use buf::{Buffer, Piece, Rope};
use bytes::Bytes;
use rdma::{ReceiveSource, Stag, WorkRequest};
use rpc::{ReplyToken, TransportError, Xid};
use smallvec::SmallVec;
use xdr::Message;

use crate::{
    Event, Registry, Role, Settings,
    call_memory::MemoryAccount,
    chunk::{Chunk, Lists},
    credits::Grants,
    expose::{Exposed, Next, Waiting},
    fit::{Inline, ReplyFit, encode_header, fit_exposed, fit_reply},
    header::{Body, Header, RdmaError, VERSION},
    link::{Deadline, Link, Name, shrink_idle},
    message::{Direction, assemble, reads_are_valid},
    pull::{Pull, buffer_bytes},
    table::{Key, Table},
};

/// The calls that this side answers on one connection.
pub(crate) struct Responder {
    grants: Grants,
    /// The source of receives. If it is `None`, receives are posted one by one.
    receive_source: Option<ReceiveSource>,
    calls: Table<Incoming>,
    /// The calls that wait for their chunks to be read, or for memory.
    to_pull: VecDeque<Key>,
    /// Bytes of memory for chunks that are being read.
    pulling_bytes: usize,
    /// The account for the memory of calls, if that is limited.
    memory: Option<MemoryAccount>,
    /// The time of the last call or completed RDMA Read.
    now: Option<Instant>,
    /// The replies whose data the peer reads.
    exposed: Exposed,
    /// The replies that were posted and have not completed, in order.
    unsent: VecDeque<UnsentReply>,
    unsent_bytes: usize,
}

/// A call that this side is to answer.
#[derive(Debug)]
struct Incoming {
    xid: Xid,
    /// The number of credits that it requested.
    credits: u32,
    lists: Lists,
    stage: Stage,
    /// The bytes that it holds of `memory`.
    memory_bytes: usize,
}

#[derive(Debug)]
enum Stage {
    /// Its chunks are being read, or wait to be read.
    Pull(Pull),
    /// It has been delivered to the server.
    InService,
}

#[derive(Debug)]
struct UnsentReply {
    /// Bytes that the reply and its RDMA Writes hold until it completes.
    bytes: usize,
    /// The bytes that it holds of `memory`.
    memory_bytes: usize,
    /// Its key among the exposed replies, if it is exposed.
    exposed: Option<Key>,
}

/// A message that is rejected with ERR_CHUNK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) xid: Xid,
    /// The number of credits that it requested.
    pub(crate) credits: u32,
}

impl Responder {
    pub(crate) fn new(settings: &Settings, receive_source: Option<ReceiveSource>) -> Self {
        let guaranteed = |source: &ReceiveSource| u32::try_from(source.options().guaranteed).unwrap_or(u32::MAX);
        let initial = receive_source.as_ref().map_or(u32::MAX, guaranteed);
        Self {
            grants: Grants::new(settings.inbound_credits().min(initial)),
            receive_source,
            calls: Table::new(),
            to_pull: VecDeque::new(),
            pulling_bytes: 0,
            memory: None,
            now: None,
            exposed: Exposed::new(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
        }
    }

    /// Charges the memory of calls to an account of memory that connections share.
    pub(crate) fn set_memory(&mut self, memory: MemoryAccount) {
        self.memory = Some(memory);
    }

    /// Returns `true` if a call that waits for memory can proceed. Otherwise wakes the task when it can.
    pub(crate) fn poll_memory(&mut self, cx: &Context<'_>) -> bool {
        self.memory.as_mut().and_then(|memory| memory.poll_wanted(cx)) == Some(Poll::Ready(()))
    }

    /// Returns `true` if a new receive must be posted for each one that completes.
    pub(crate) fn posts_receives(&self) -> bool {
        self.receive_source.is_none()
    }

    /// Returns `true` if the peer receives its replies, so that its next message can be handled.
    pub(crate) fn can_receive(&self, link: &Link) -> bool {
        let replies_max = 2 * link.settings.inbound_credits().max(CREDITS_MIN) as usize;
        self.unsent.len() < replies_max && self.unsent_bytes < REPLY_BYTES_MAX
    }

    /// Returns `true` if chunks of this call are being read.
    pub(crate) fn is_pulling(&self, key: Key) -> bool {
        self.calls.get(key).is_some_and(|call| matches!(call.stage, Stage::Pull(_)))
    }

    /// Returns `true` if this exposed reply waits for its RDMA_DONE.
    pub(crate) fn awaits_done(&self, key: Key) -> bool {
        self.exposed.awaits_done(key)
    }

    /// Handles an arriving call. `stream` is the data behind its header, if it was RDMA_MSG.
    ///
    /// # Errors
    /// Its lists do not form a valid call.
    pub(crate) fn handle_call(
        &mut self,
        link: &mut Link,
        xid: Xid,
        credits: u32,
        lists: Lists,
        stream: Option<Bytes>,
        now: Instant,
    ) -> Result<(), Refusal> {
        // RFC 8166 §3.3.1: a peer that sends more than it was granted can lose the connection.
        if !self.grants.receive() {
            link.fail_protocol("the peer sent more calls than its credits allow");
            return Ok(());
        }
        // RFC 8167 §5.3: a side that does not accept chunks answers them with ERR_CHUNK. Only the connecting side
        // offers chunks.
        let chunks_allowed = link.settings.role == Role::Accepting || lists.is_empty();
        if !chunks_allowed || !reads_are_valid(&lists.reads, stream.as_ref(), link.settings.options.message_max) {
            return Err(Refusal { xid, credits });
        }
        if lists.reads.is_empty()
            && let Some(memory_bytes) = self.take_memory(room_for_reply(&lists, &link.settings))
        {
            let message = Message::from(stream.expect("a message without read chunks must be inline"));
            let key = self.calls.insert(Incoming { xid, credits, lists, stage: Stage::InService, memory_bytes });
            deliver(link, key, xid, message);
            return Ok(());
        }
        let stage = Stage::Pull(Pull::new(stream, &lists.reads));
        let key = self.calls.insert(Incoming { xid, credits, lists, stage, memory_bytes: 0 });
        self.to_pull.push_back(key);
        self.now = Some(now);
        Ok(())
    }

    /// Takes `bytes` from the memory of calls. Returns the bytes taken, which are zero if there is no limit, or `None`
    /// if the call must wait.
    fn take_memory(&mut self, bytes: usize) -> Option<usize> {
        match &mut self.memory {
            Some(memory) if bytes > 0 => memory.take(bytes).then_some(bytes),
            _ => Some(0),
        }
    }

    fn release_memory(&mut self, bytes: usize) {
        if bytes > 0
            && let Some(memory) = &mut self.memory
        {
            memory.release(bytes);
        }
    }

    /// Posts the RDMA Reads of the next call that waits for its chunks, if the limits allow it. Payloads that can be
    /// viewed in the peer's memory need no read. A stream is always read, because the peer must not change it while it
    /// is decoded.
    ///
    /// # Errors
    /// The call is complete but invalid.
    pub(crate) fn start_pull(&mut self, link: &mut Link, registry: &mut dyn Registry) -> Option<Result<(), Refusal>> {
        let key = *self.to_pull.front()?;
        let now = self.now.expect("a call must have arrived");
        let Some(Incoming { stage: Stage::Pull(pull), lists, memory_bytes, .. }) = self.calls.get_mut(key) else {
            unreachable!("a call that waits for its chunks must be in the table")
        };
        if self.pulling_bytes > 0 && self.pulling_bytes + pull.bytes() > link.settings.options.pull_max {
            return None;
        }
        let chunks = lists.reads.chunks().iter();
        let segments = chunks.flat_map(|read| read.chunk.parts().map(|(_, segment)| (read.position, segment)));
        // The segments that must be read. Other segments can have been viewed before the call had to wait.
        let mut rest = SmallVec::<[_; 4]>::new();
        for (part, (position, segment)) in segments.enumerate() {
            if !pull.lacks(part) {
                continue;
            }
            let (from, len) = (segment.remote(0), segment.length as usize);
            match if position == 0 { None } else { registry.view(from, len) } {
                Some(view) => pull.arrived(part, Piece::Peer(view)),
                None => rest.push((part, segment)),
            }
        }
        let bytes = rest.iter().map(|(_, segment)| buffer_bytes(segment.length)).sum::<usize>();
        let bytes = bytes + room_for_reply(lists, &link.settings);
        if bytes > 0
            && let Some(memory) = &mut self.memory
        {
            if !memory.take(bytes) {
                return None;
            }
            *memory_bytes = bytes;
        }
        self.to_pull.pop_front();
        self.pulling_bytes += pull.bytes();
        for (part, segment) in rest {
            let (id, into) = (Name::Read(key, part).into(), link.pool.take(segment.length as usize));
            link.post(WorkRequest::Read { id, into, from: segment.remote(0) });
        }
        if pull.is_complete() {
            return Some(self.pulled(link, key)); // Its segments are empty or viewed.
        }
        link.read_progressed(now);
        link.add_deadline(Deadline::Pull(key), now);
        Some(Ok(()))
    }

    /// Handles a completed RDMA Read of a call's chunks.
    ///
    /// # Errors
    /// The call is complete but invalid.
    pub(crate) fn handle_read(
        &mut self,
        link: &mut Link,
        key: Key,
        part: usize,
        buffer: Buffer,
        now: Instant,
    ) -> Result<(), Refusal> {
        let Some(Incoming { stage: Stage::Pull(pull), .. }) = self.calls.get_mut(key) else {
            unreachable!("a call must stay in the table while it is being read")
        };
        pull.arrived(part, Piece::Memory(buffer.freeze()));
        self.now = Some(now);
        link.read_progressed(now);
        if pull.is_complete() { self.pulled(link, key) } else { Ok(()) }
    }

    /// Delivers a call whose chunks have all been read.
    fn pulled(&mut self, link: &mut Link, key: Key) -> Result<(), Refusal> {
        let call = self.calls.get_mut(key).expect("a call must stay in the table while it is being read");
        let Stage::Pull(pull) = std::mem::replace(&mut call.stage, Stage::InService) else {
            unreachable!("the chunks of a call must be read once")
        };
        self.pulling_bytes -= pull.bytes();
        let (xid, credits) = (call.xid, call.credits);
        let message = assemble(pull, &call.lists.reads);
        if !matches!(Direction::of(&message.stream, xid), Some(Direction::Call)) {
            let memory_bytes = call.memory_bytes;
            self.calls.remove(key);
            self.release_memory(memory_bytes);
            return Err(Refusal { xid, credits });
        }
        deliver(link, key, xid, message);
        Ok(())
    }

    /// Queues the reply to a call; see [`Connection::reply`](crate::Connection::reply).
    pub(crate) fn reply(&mut self, link: &mut Link, token: ReplyToken, message: Message) -> Result<(), TransportError> {
        if let Some(error) = link.closed() {
            return Err(error);
        }
        let Incoming { xid, credits, lists, memory_bytes, .. } = self.take_call(&token)?;
        let room = memory_bytes.min(room_for_reply(&lists, &link.settings));
        let mut kept = 0;
        let granted = self.grant(&link.settings, credits);
        //= rfc8797-4.1-1
        let invalidate = lists.handle().filter(|_| link.settings.invalidate_peer);
        let queued = if link.settings.exposes_replies() {
            fit_exposed(message, &link.settings, &link.pool).map(|fit| {
                self.exposed.queue(Waiting { xid, requested: credits, granted, invalidate, fit });
            })
        } else {
            fit_reply(xid, &lists, message, granted, link.settings.send_max).map(|fit| {
                self.grants.reply(granted);
                kept = room;
                self.send_reply(link, fit, invalidate, kept);
            })
        };
        self.release_memory(memory_bytes - kept);
        queued.inspect_err(|_| self.refuse(link, Refusal { xid, credits }))
    }

    /// Answers a call with ERR_CHUNK; see [`Connection::refuse_call`](crate::Connection::refuse_call).
    pub(crate) fn refuse_call(&mut self, link: &mut Link, token: ReplyToken) -> Result<(), TransportError> {
        let Incoming { xid, credits, memory_bytes, .. } = self.take_call(&token)?;
        self.release_memory(memory_bytes);
        self.refuse(link, Refusal { xid, credits });
        Ok(())
    }

    /// Ends a call without a reply; see [`Connection::forget`](crate::Connection::forget).
    pub(crate) fn forget(&mut self, token: &ReplyToken) {
        if let Ok(Incoming { memory_bytes, .. }) = self.take_call(token) {
            self.release_memory(memory_bytes);
            self.grants.forget();
        }
    }

    /// Counts a message that is not a call as a call, because its reply returns a credit.
    pub(crate) fn count_refused(&mut self) {
        let _ = self.grants.receive();
    }

    /// Answers with ERR_CHUNK (RFC 8166 §4.5.2, §4.5.3).
    pub(crate) fn refuse(&mut self, link: &mut Link, Refusal { xid, credits }: Refusal) {
        let credits = self.grant(&link.settings, credits);
        self.grants.reply(credits);
        //= rfc8166-4.5-2 rfc8166-4.5.2-1 rfc8166-4.5-4 rfc8166-4.5-6
        let header = Header { xid, credits, body: Body::Error(RdmaError::Chunk) };
        self.send_error(link, encode_header(&header).into());
    }

    /// Answers with ERR_VERS (RFC 8166 §4.5.1), in a header of the version of the call.
    pub(crate) fn refuse_version(&mut self, link: &mut Link, xid: Xid, version: u32) {
        self.count_refused();
        let credits = self.grant(&link.settings, 0);
        self.grants.reply(credits);
        let error = RdmaError::Version { low: VERSION, high: VERSION };
        let mut bytes = encode_header(&Header { xid, credits, body: Body::Error(error) }).to_vec();
        //= rfc8166-4.5-5 rfc8166-4.5.1-1
        bytes[4..8].copy_from_slice(&version.to_be_bytes());
        self.send_error(link, Bytes::from(bytes).into());
    }

    /// Handles the completed Send of the oldest reply.
    pub(crate) fn handle_reply_sent(&mut self, link: &mut Link, now: Instant) {
        // Sends complete in the order in which they were posted.
        let UnsentReply { bytes, memory_bytes, exposed } = self.unsent.pop_front().expect("a reply must complete once");
        self.unsent_bytes -= bytes;
        self.release_memory(memory_bytes);
        if let Some(key) = exposed {
            link.add_deadline(Deadline::Done(key), now);
        }
    }

    /// Exposes and sends the next reply that the caller will read, if there is room for it. Returns `true` if there can
    /// be more.
    pub(crate) fn send_exposed_reply(&mut self, link: &mut Link, registry: &mut dyn Registry) -> bool {
        match self.exposed.next(link, registry) {
            None => false,
            Some(Next::Refused { xid, requested }) => {
                self.refuse(link, Refusal { xid, credits: requested });
                true
            }
            Some(Next::Send { data, invalidate, bytes, granted, exposed }) => {
                if exposed.is_none() {
                    self.grants.reply(granted);
                }
                self.post_reply(link, data, invalidate, UnsentReply { bytes, memory_bytes: 0, exposed });
                true
            }
        }
    }

    /// Handles RDMA_DONE for the reply with this XID.
    pub(crate) fn handle_done(&mut self, link: &mut Link, xid: Xid) {
        //= rfc8166-4.6.2-2
        if !link.settings.exposes_replies() {
            return; // RFC 8166 §4.6.2: RDMA_DONE is ignored.
        }
        match self.exposed.done(link, xid) {
            // The caller can use the credit of this call only from now on.
            Some(granted) => self.grants.reply(granted),
            None => link.fail_protocol("the peer sent RDMA_DONE for a reply that is not exposed"),
        }
    }

    /// Handles the completed invalidation of region number `part` of an exposed reply.
    pub(crate) fn handle_reply_invalidated(&mut self, key: Key, part: usize) {
        self.exposed.invalidated(key, part);
    }

    /// Handles a region that the caller invalidated by a Send.
    pub(crate) fn handle_remote_invalidation(&mut self, stag: Stag) {
        self.exposed.invalidated_by_peer(stag);
    }

    /// Ends every call and reclaims all memory after the connection was closed.
    pub(crate) fn end(&mut self, registry: &mut dyn Registry) {
        self.to_pull.clear();
        for key in self.calls.keys() {
            self.calls.remove(key);
        }
        self.memory = None;
        self.exposed.end(registry);
    }

    /// Frees memory that an idle connection does not need.
    pub(crate) fn shrink_idle(&mut self) {
        shrink_idle(&mut self.to_pull);
        shrink_idle(&mut self.unsent);
        self.calls.shrink_idle();
    }

    /// Returns the number of credits to grant to a caller that requested `requested` and is being answered.
    fn grant(&self, settings: &Settings, requested: u32) -> u32 {
        let most = settings.inbound_credits();
        let room = match &self.receive_source {
            None => most,
            // RFC 8166 §3.3.1: the grant depends on the resources of a shared receive queue.
            //= rfc5040-8.1.2-7
            Some(source) => u32::try_from(source.allowance(self.calls.len())).unwrap_or(u32::MAX).min(most),
        };
        Grants::clamp(requested, room)
    }

    fn take_call(&mut self, token: &ReplyToken) -> Result<Incoming, TransportError> {
        let key = Key::from_bits(token.call);
        match self.calls.get(key) {
            Some(Incoming { xid, stage: Stage::InService, .. }) if *xid == token.xid => {}
            _ => return Err(TransportError::Lost("no such call on this connection".into())),
        }
        Ok(self.calls.remove(key).expect("the call was just found"))
    }

    fn send_reply(&mut self, link: &mut Link, fit: ReplyFit, invalidate: Option<Stag>, memory_bytes: usize) {
        let mut bytes = fit.stream.len() + fit.header.wire_len();
        for (chunk, data) in fit.writes {
            bytes += data.len();
            write_chunk(link, &chunk, data);
        }
        let inline = match fit.reply {
            None => fit.stream,
            Some(chunk) => {
                write_chunk(link, &chunk, fit.stream.into_rope());
                Inline::none()
            }
        };
        let reply = UnsentReply { bytes, memory_bytes, exposed: None };
        self.post_reply(link, inline.after_header(&fit.header), invalidate, reply);
    }

    fn send_error(&mut self, link: &mut Link, data: Rope) {
        let reply = UnsentReply { bytes: data.len(), memory_bytes: 0, exposed: None };
        self.post_reply(link, data, None, reply);
    }

    /// Posts the Send of a reply or an error.
    fn post_reply(&mut self, link: &mut Link, data: Rope, invalidate: Option<Stag>, reply: UnsentReply) {
        self.unsent_bytes += reply.bytes;
        self.unsent.push_back(reply);
        link.post(WorkRequest::Send { id: Name::Reply.into(), data, invalidate, solicited: false });
    }
}

/// Returns the maximum bytes of a reply for which the call offers chunks; zero if it offers none.
fn room_for_reply(lists: &Lists, settings: &Settings) -> usize {
    let chunks = lists.writes.chunks().iter().chain(&lists.reply);
    chunks.map(Chunk::len).fold(0, usize::saturating_add).min(settings.options.message_max)
}

fn deliver(link: &mut Link, key: Key, xid: Xid, message: Message) {
    link.report(Event::Call { message, token: ReplyToken { xid, call: key.to_bits() } });
}

/// Posts the RDMA Writes that put `data` at the start of `chunk`.
///
/// # Panics
/// If the chunk is shorter than `data`.
fn write_chunk(link: &mut Link, chunk: &Chunk, data: Rope) {
    //= rfc8166-3.4.6.2-1
    assert!(data.len() <= chunk.len());
    for (at, segment) in chunk.parts().take_while(|(at, _)| *at < data.len()) {
        let len = (segment.length as usize).min(data.len() - at);
        let part = if len == data.len() { data.clone() } else { data.slice(at, len) };
        link.post(WorkRequest::Write { id: Name::Write.into(), data: part, to: segment.remote(0) });
    }
}

/// The number of bytes of unsent replies at which no more messages are processed.
const REPLY_BYTES_MAX: usize = 32 << 20;
/// The number of credits assumed for a peer that has none, so that it can get errors.
const CREDITS_MIN: u32 = 4;

#[cfg(test)]
mod tests;
