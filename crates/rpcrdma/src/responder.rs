//! Calls that we answer: from the wire to the server, and from the reply back to the wire.
//!
//! Read RFC 8166 §3.4.5 and §3.4.6 (read and write chunks), §3.5 (long messages), §3.3 (credits) and RFC 8797 §4.1 (remote
//! invalidation). A call goes through these stages:
//!
//! `Pull` (its chunks wait to be read, or are being read) → `InService` (handed to the server) → a reply, whose RDMA Writes
//! are posted before its Send and so arrive before it. In the Read-Read design the caller reads the reply, see `expose.rs`.
//!
//! Each segment is one RDMA operation; the queue pair starts no more RDMA Reads at once than the peer takes. Bytes being read
//! on one connection are bounded, and so is what the calls of all connections hold (`call_memory.rs`): further calls wait in order.
//!
//! Buffers: a call's are handed up with it; a reply's belong to the queue pair until it has been sent. On error (the caller
//! did not offer enough) the caller hears ERR_CHUNK, and the server gets an error; nothing is retried.

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
    message::{Direction, assemble, reads_make_sense},
    pull::{Pull, buffer_bytes},
    table::{Key, Table},
};

/// The calls that we answer on one connection.
pub(crate) struct Responder {
    grants: Grants,
    /// The source of receives; they are posted one by one if there is none.
    receive_source: Option<ReceiveSource>,
    calls: Table<Incoming>,
    /// Calls that wait for their chunks to be read, or for memory.
    to_pull: VecDeque<Key>,
    /// Bytes that are being read.
    pulling_bytes: usize,
    /// Our part of the memory of calls, if there is a bound on it.
    memory: Option<MemoryAccount>,
    /// Time of the last call or completed RDMA Read.
    now: Option<Instant>,
    /// Replies whose data the peer reads.
    exposed: Exposed,
    /// Each reply that was posted and has not completed, in order.
    unsent: VecDeque<UnsentReply>,
    unsent_bytes: usize,
}

/// A call that we are to answer.
#[derive(Debug)]
struct Incoming {
    xid: Xid,
    /// Credits that it asked for.
    credits: u32,
    lists: Lists,
    stage: Stage,
    /// Bytes that it has of `memory`.
    memory_bytes: usize,
}

#[derive(Debug)]
enum Stage {
    /// Its chunks are being read, or wait to be.
    Pull(Pull),
    /// It has been handed up.
    InService,
}

#[derive(Debug)]
struct UnsentReply {
    /// What it and its RDMA Writes hold until it completes.
    bytes: usize,
    /// Bytes that it has of `memory`.
    memory_bytes: usize,
    /// Its name among the exposed ones, if it is one of them.
    exposed: Option<Key>,
}

/// A message that cannot be used, and is to be answered with ERR_CHUNK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) xid: Xid,
    /// Credits that it asked for.
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

    /// Bounds what calls hold by an account of memory that connections share.
    pub(crate) fn set_memory(&mut self, memory: MemoryAccount) {
        self.memory = Some(memory);
    }

    /// Whether a call that waits for memory can go on; otherwise the task is woken for that.
    pub(crate) fn poll_memory(&mut self, cx: &Context<'_>) -> bool {
        self.memory.as_mut().and_then(|memory| memory.poll_wanted(cx)) == Some(Poll::Ready(()))
    }

    /// Whether a receive is posted in the place of each that completes.
    pub(crate) fn posts_receives(&self) -> bool {
        self.receive_source.is_none()
    }

    /// Whether the peer takes its replies, so that another message of it can be handled.
    pub(crate) fn may_receive(&self, link: &Link) -> bool {
        let replies_max = 2 * link.settings.inbound_credits().max(CREDITS_MIN) as usize;
        self.unsent.len() < replies_max && self.unsent_bytes < REPLY_BYTES_MAX
    }

    /// Whether chunks of this call are being read.
    pub(crate) fn is_pulling(&self, key: Key) -> bool {
        self.calls.get(key).is_some_and(|call| matches!(call.stage, Stage::Pull(_)))
    }

    /// Whether this exposed reply waits for its RDMA_DONE.
    pub(crate) fn is_undone(&self, key: Key) -> bool {
        self.exposed.is_undone(key)
    }

    /// A call has come; `stream` is what followed its header, if it was RDMA_MSG.
    ///
    /// # Errors
    /// Its lists make no call.
    pub(crate) fn handle_call(
        &mut self,
        link: &mut Link,
        xid: Xid,
        credits: u32,
        lists: Lists,
        stream: Option<Bytes>,
        now: Instant,
    ) -> Result<(), Refusal> {
        // RFC 8166 §3.3.1: whoever sends more than it was granted may lose the connection.
        if !self.grants.receive() {
            link.fail_protocol("more calls than it has credits for");
            return Ok(());
        }
        // RFC 8167 §5.3: whoever takes no chunks answers them with ERR_CHUNK; only the connecting side offers any.
        let chunks_allowed = link.settings.role == Role::Accepting || lists.is_empty();
        if !chunks_allowed || !reads_make_sense(&lists.reads, stream.as_ref(), link.settings.options.message_max) {
            return Err(Refusal { xid, credits });
        }
        if lists.reads.is_empty()
            && let Some(memory_bytes) = self.take_memory(room_for_reply(&lists, &link.settings))
        {
            let message = Message::from(stream.expect("a message without read chunks is inline"));
            let key = self.calls.insert(Incoming { xid, credits, lists, stage: Stage::InService, memory_bytes });
            hand_up(link, key, xid, message);
            return Ok(());
        }
        let stage = Stage::Pull(Pull::new(stream, &lists.reads));
        let key = self.calls.insert(Incoming { xid, credits, lists, stage, memory_bytes: 0 });
        self.to_pull.push_back(key);
        self.now = Some(now);
        Ok(())
    }

    /// Takes `bytes` of the memory of calls: `bytes` if there is a bound on it, none if not; `None` if the call has to wait.
    fn take_memory(&mut self, bytes: usize) -> Option<usize> {
        match &mut self.memory {
            Some(memory) if bytes > 0 => memory.take(bytes).then_some(bytes),
            _ => Some(0),
        }
    }

    fn give_back_memory(&mut self, bytes: usize) {
        if bytes > 0
            && let Some(memory) = &mut self.memory
        {
            memory.give_back(bytes);
        }
    }

    /// Posts the RDMA Reads of the next call that waits for its chunks, if the bounds on bytes allow. Data that can be used
    /// where they are need none; a stream is read in any case, because the peer must not change what is being decoded.
    ///
    /// # Errors
    /// The call is complete, and is none.
    pub(crate) fn start_pull(&mut self, link: &mut Link, registry: &mut dyn Registry) -> Option<Result<(), Refusal>> {
        let key = *self.to_pull.front()?;
        let now = self.now.expect("a call has arrived");
        let Some(Incoming { stage: Stage::Pull(pull), lists, memory_bytes, .. }) = self.calls.get_mut(key) else {
            unreachable!("a call that waits to be pulled stands")
        };
        if self.pulling_bytes > 0 && self.pulling_bytes + pull.bytes() > link.settings.options.pull_max {
            return None;
        }
        let chunks = lists.reads.chunks().iter();
        let segments = chunks.flat_map(|read| read.chunk.parts().map(|(_, segment)| (read.position, segment)));
        // What is left to be read. Some may have been viewed before the call had to wait.
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
            return Some(self.pulled(link, key)); // its segments are empty, or can be used where they are
        }
        link.read_progressed(now);
        link.add_deadline(Deadline::Pull(key), now);
        Some(Ok(()))
    }

    /// One RDMA Read of a call's chunks is done.
    ///
    /// # Errors
    /// The call is complete, and is none.
    pub(crate) fn handle_read(
        &mut self,
        link: &mut Link,
        key: Key,
        part: usize,
        buffer: Buffer,
        now: Instant,
    ) -> Result<(), Refusal> {
        let Some(Incoming { stage: Stage::Pull(pull), .. }) = self.calls.get_mut(key) else {
            unreachable!("a call stands while it is being read")
        };
        pull.arrived(part, Piece::Memory(buffer.freeze()));
        self.now = Some(now);
        link.read_progressed(now);
        if pull.is_complete() { self.pulled(link, key) } else { Ok(()) }
    }

    /// All chunks of a call have been read.
    fn pulled(&mut self, link: &mut Link, key: Key) -> Result<(), Refusal> {
        let call = self.calls.get_mut(key).expect("a pull is of a call that stands");
        let Stage::Pull(pull) = std::mem::replace(&mut call.stage, Stage::InService) else {
            unreachable!("a call is pulled once")
        };
        self.pulling_bytes -= pull.bytes();
        let (xid, credits) = (call.xid, call.credits);
        let message = assemble(pull, &call.lists.reads);
        if !matches!(Direction::of(&message.stream, xid), Some(Direction::Call)) {
            let memory_bytes = call.memory_bytes;
            self.calls.remove(key);
            self.give_back_memory(memory_bytes);
            return Err(Refusal { xid, credits });
        }
        hand_up(link, key, xid, message);
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
        self.give_back_memory(memory_bytes - kept);
        queued.inspect_err(|_| self.refuse(link, Refusal { xid, credits }))
    }

    /// Answers a call with ERR_CHUNK; see [`Connection::refuse_call`](crate::Connection::refuse_call).
    pub(crate) fn refuse_call(&mut self, link: &mut Link, token: ReplyToken) -> Result<(), TransportError> {
        let Incoming { xid, credits, memory_bytes, .. } = self.take_call(&token)?;
        self.give_back_memory(memory_bytes);
        self.refuse(link, Refusal { xid, credits });
        Ok(())
    }

    /// Ends a call without a reply; see [`Connection::forget`](crate::Connection::forget).
    pub(crate) fn forget(&mut self, token: &ReplyToken) {
        if let Ok(Incoming { memory_bytes, .. }) = self.take_call(token) {
            self.give_back_memory(memory_bytes);
            self.grants.forget();
        }
    }

    /// Counts a message that is no call as one, because its answer gives a credit back.
    pub(crate) fn count_refused(&mut self) {
        let _ = self.grants.receive();
    }

    /// Answers ERR_CHUNK (RFC 8166 §4.5.2, §4.5.3).
    pub(crate) fn refuse(&mut self, link: &mut Link, Refusal { xid, credits }: Refusal) {
        let credits = self.grant(&link.settings, credits);
        self.grants.reply(credits);
        //= rfc8166-4.5-2 rfc8166-4.5.2-1 rfc8166-4.5-4 rfc8166-4.5-6
        let header = Header { xid, credits, body: Body::Error(RdmaError::Chunk) };
        self.send_error(link, encode_header(&header).into());
    }

    /// Answers ERR_VERS (RFC 8166 §4.5.1), in a header of the version that was asked for.
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

    /// The Send of the oldest reply has completed.
    pub(crate) fn handle_reply_sent(&mut self, link: &mut Link, now: Instant) {
        // Completions come in the order posted.
        let UnsentReply { bytes, memory_bytes, exposed } = self.unsent.pop_front().expect("a reply completes once");
        self.unsent_bytes -= bytes;
        self.give_back_memory(memory_bytes);
        if let Some(key) = exposed {
            link.add_deadline(Deadline::Done(key), now);
        }
    }

    /// Exposes and sends the next reply that the caller is to read, if there is room for it. Returns whether there may be more.
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

    /// The caller says that it has read the reply with this XID.
    pub(crate) fn handle_done(&mut self, link: &mut Link, xid: Xid) {
        //= rfc8166-4.6.2-2
        if !link.settings.exposes_replies() {
            return; // RFC 8166 §4.6.2: ignored.
        }
        match self.exposed.done(link, xid) {
            // Only now may another call come in the place of this one.
            Some(granted) => self.grants.reply(granted),
            None => link.fail_protocol("RDMA_DONE for a reply that is not exposed"),
        }
    }

    /// Region number `part` of an exposed reply has been invalidated.
    pub(crate) fn handle_withdrawn(&mut self, key: Key, part: usize) {
        self.exposed.withdrawn(key, part);
    }

    /// The caller has invalidated one of our regions by a Send.
    pub(crate) fn handle_remote_invalidation(&mut self, stag: Stag) {
        self.exposed.invalidated_by_peer(stag);
    }

    /// The connection is over: every call ends, and all memory is taken back.
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

    /// Credits to grant to a caller that asked for `requested` and is being answered.
    fn grant(&self, settings: &Settings, requested: u32) -> u32 {
        let most = settings.inbound_credits();
        let room = match &self.receive_source {
            None => most,
            // RFC 8166 §3.3.1: as the resources of a shared receive queue allow.
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
        Ok(self.calls.remove(key).expect("just seen"))
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
        self.post_reply(link, inline.behind(&fit.header), invalidate, reply);
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

/// The longest reply that a call offers chunks for. One without chunks is short.
fn room_for_reply(lists: &Lists, settings: &Settings) -> usize {
    let chunks = lists.writes.chunks().iter().chain(&lists.reply);
    chunks.map(Chunk::len).fold(0, usize::saturating_add).min(settings.options.message_max)
}

fn hand_up(link: &mut Link, key: Key, xid: Xid, message: Message) {
    link.report(Event::Call { message, token: ReplyToken { xid, call: key.to_bits() } });
}

/// Posts the RDMA Writes that put `data` at the start of `chunk`.
///
/// # Panics
/// If the chunk is shorter.
fn write_chunk(link: &mut Link, chunk: &Chunk, data: Rope) {
    //= rfc8166-3.4.6.2-1
    assert!(data.len() <= chunk.len());
    for (at, segment) in chunk.parts().take_while(|(at, _)| *at < data.len()) {
        let len = (segment.length as usize).min(data.len() - at);
        let part = if len == data.len() { data.clone() } else { data.slice(at, len) };
        link.post(WorkRequest::Write { id: Name::Write.into(), data: part, to: segment.remote(0) });
    }
}

/// While so many bytes of replies have not been taken, no more messages are read.
const REPLY_BYTES_MAX: usize = 32 << 20;
/// Credits that a peer without any is taken to have, so that it can be told errors.
const CREDITS_MIN: u32 = 4;
