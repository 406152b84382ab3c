//! [`Connection`]: RPC-over-RDMA on one connection, without I/O.
//!
//! Read RFC 8166 §3 first. In: completions, time, the end of the connection, and commands. Out, until each has
//! no more: work for the queue pair, then events, then the time at which to be called.
//!
//! Both sides can call and answer (RFC 8167); the two directions share only the receives. What a peer can
//! make us hold is bounded: its calls in progress by the credits it was granted, what is read from its
//! memory at once by an option. While it does not take its replies, its messages are left unread.
//!
//! Buffers: see [`crate`]. On error: `fail` asks for the end of the connection; when that has come,
//! [`handle_disconnect`](Connection::handle_disconnect) ends every call and gives its sink back.

use std::{collections::VecDeque, time::Instant};

use buf::{Buffer, PeerBytes, Pool};
use rdma::{
    Completion, CompletionKind, Memory, ReceiveSource, Region, RemoteSegment, Stag, Status, WorkId, WorkRequest,
};
use rpc::{CallError, CallsMade, Reply, ReplyPlan, ReplyToken, TransportError, Xid};
use xdr::Message;

use crate::{
    Settings,
    credits::{Credits, Grants},
    expose::Exposed,
    options::receives,
    recv::Incoming,
    requester::Outgoing,
    table::{KEY_BITS, Key, Map, Table},
};

/// The protocol's state on one connection.
pub struct Connection {
    pub(crate) settings: Settings,
    pub(crate) pool: Pool,
    pub(crate) work: VecDeque<Work>,
    pub(crate) events: VecDeque<Event>,
    deadlines: VecDeque<(Instant, Deadline)>,
    state: State,

    // Calls that we make.
    pub(crate) credits: Credits,
    calls_queued: u64,
    pub(crate) calls: Table<Outgoing>,
    pub(crate) by_xid: Map<Xid, Key>,
    pub(crate) unsent: VecDeque<Key>,

    // Calls that we answer.
    pub(crate) grants: Grants,
    /// Where the receives come from, if not from here.
    pub(crate) receive_source: Option<ReceiveSource>,
    pub(crate) incoming: Table<Incoming>,
    pub(crate) to_pull: VecDeque<Key>,
    pub(crate) pulling_bytes: usize,
    /// When the last completion came.
    pub(crate) now: Option<Instant>,
    /// When an RDMA Read was last begun or completed.
    pub(crate) last_read: Option<Instant>,
    /// Replies whose data the peer reads.
    pub(crate) exposed: Exposed,
    /// Each reply that was posted and has not completed, in order.
    unsent_replies: VecDeque<UnsentReply>,
    unsent_reply_bytes: usize,
    /// Messages that wait for replies to be taken; no more than there can be receives posted.
    unread: VecDeque<Buffer>,
}

/// Something for the queue pair to do.
#[derive(Debug)]
pub enum Work {
    /// Post this to the send queue.
    Post(WorkRequest),
    /// Post this receive.
    Receive(WorkId, Buffer),
    /// End the connection after what was posted.
    Disconnect,
}

/// Something that has happened.
#[derive(Debug)]
pub enum Event {
    /// The peer calls.
    Call {
        /// The call from its XID on.
        message: Message,
        /// What to answer it with.
        token: ReplyToken,
    },
    /// A call of ours has ended; its memory is out of the peer's reach.
    Reply {
        /// The call.
        id: CallId,
        /// How.
        result: Result<Reply, CallError>,
    },
    /// The connection has ended, and so has every call. Nothing comes after this.
    Closed(TransportError),
}

/// Names a call that we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(crate) Key);

/// What registers memory: the queue pair.
pub trait Registry {
    /// See [`rdma::QueuePair::register`].
    ///
    /// # Errors
    /// Too many regions; the memory comes back.
    fn register(&mut self, memory: Memory) -> Result<Region, Memory>;
    /// See [`rdma::QueuePair::reclaim`].
    fn reclaim(&mut self, stag: Stag) -> Option<Memory>;
    /// See [`rdma::QueuePair::view`].
    fn view(&mut self, from: RemoteSegment, len: usize) -> Option<PeerBytes> {
        let _ = (from, len);
        None
    }
}

impl Registry for Box<dyn rdma::QueuePair> {
    fn register(&mut self, memory: Memory) -> Result<Region, Memory> {
        (**self).register(memory)
    }

    fn reclaim(&mut self, stag: Stag) -> Option<Memory> {
        (**self).reclaim(stag)
    }

    fn view(&mut self, from: RemoteSegment, len: usize) -> Option<PeerBytes> {
        (**self).view(from, len)
    }
}

#[derive(Debug)]
enum State {
    Open,
    /// `close` was called: no more calls; disconnects when the work is done.
    Closing,
    /// Work::Disconnect is queued or done.
    Ending(TransportError),
    Closed(TransportError),
}

#[derive(Debug)]
struct UnsentReply {
    bytes: usize,
    /// Its name among the exposed ones, if it is one of them.
    exposed: Option<Key>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// A call whose chunks are being read.
    Pull(Key),
    /// A call of ours that nobody waits for.
    Abandoned(Key),
    /// A call of ours whose reply is being read.
    Fetch(Key),
    /// A reply that was exposed and is not done.
    Done(Key),
}

/// What a work request is for, as it is written into its [`WorkId`]: kind, part and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Receive,
    /// The Send of a call, or of RDMA_DONE.
    Call,
    /// The Send of a reply or an error.
    Reply,
    Write,
    /// RDMA Read number `part` of an incoming call.
    Read(Key, usize),
    /// Invalidation of exposure number `part` of an outgoing call.
    Invalidate(Key, usize),
    /// RDMA Read number `part` of the reply to an outgoing call.
    Fetch(Key, usize),
    /// Invalidation of region number `part` of an exposed reply.
    Withdraw(Key, usize),
}

impl Connection {
    /// A connection just made, and the receives to post before the peer can send (the peer may already do so).
    pub fn new(settings: Settings, pool: Pool) -> Self {
        Self {
            credits: Credits::new(settings.outbound_credits().max(1)),
            grants: Grants::new(settings.inbound_credits()),
            receive_source: None,
            settings,
            pool,
            work: VecDeque::new(),
            events: VecDeque::new(),
            deadlines: VecDeque::new(),
            state: State::Open,
            calls_queued: 0,
            calls: Table::new(),
            by_xid: Map::default(),
            unsent: VecDeque::new(),
            incoming: Table::new(),
            to_pull: VecDeque::new(),
            pulling_bytes: 0,
            now: None,
            last_read: None,
            exposed: Exposed::new(),
            unsent_replies: VecDeque::new(),
            unsent_reply_bytes: 0,
            unread: VecDeque::new(),
        }
    }

    /// The same with receives that the queue pair takes from `source` under the name of [`receive_id`](Self::receive_id):
    /// none are posted, and credits are granted as far as the source has buffers.
    pub fn with_receive_source(self, source: ReceiveSource) -> Self {
        let initial = u32::try_from(source.options().guaranteed).unwrap_or(u32::MAX);
        let grants = Grants::new(self.settings.inbound_credits().min(initial));
        Self { grants, receive_source: Some(source), ..self }
    }

    /// The id that completed receives have.
    pub fn receive_id() -> WorkId {
        Name::Receive.into()
    }

    /// The receives that a connection with these options, and no source of them, starts with.
    pub fn initial_receives(options: &crate::Options, pool: &Pool) -> Vec<(WorkId, Buffer)> {
        (0..receives(options)).map(|_| (Name::Receive.into(), pool.private().take(options.inline_recv))).collect()
    }

    /// What was agreed with the peer.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A work request has ended.
    pub fn handle_completion(&mut self, completion: Completion, now: Instant) {
        self.now = Some(now);
        let name = Name::from(completion.id);
        match (name, completion.kind) {
            (Name::Receive, CompletionKind::Receive { buffer, invalidated, .. }) => {
                if let Some((stag, memory)) = invalidated {
                    self.handle_remote_invalidation(&buffer, stag, memory);
                }
                if completion.status == Status::Ok {
                    self.unread.push_back(buffer);
                    self.read_messages(now);
                    // Where receives are posted there are no more of them.
                    if self.unread.len() > receives(&self.settings.options) {
                        self.fail_protocol("more messages than it has credits for, and its replies not taken");
                    }
                }
            }
            (Name::Call | Name::Write, CompletionKind::Send | CompletionKind::Write) => {}
            (Name::Reply, CompletionKind::Send) => {
                // Completions come in the order posted.
                let UnsentReply { bytes, exposed } = self.unsent_replies.pop_front().expect("a reply completes once");
                self.unsent_reply_bytes -= bytes;
                if let Some(key) = exposed {
                    self.add_deadline(Deadline::Done(key), now);
                }
                self.read_messages(now);
            }
            (Name::Read(key, part), CompletionKind::Read(buffer)) => {
                if completion.status == Status::Ok && self.is_up() {
                    self.handle_read(key, part, buffer, now);
                }
            }
            (Name::Invalidate(key, part), CompletionKind::Invalidate(memory)) => {
                self.handle_invalidation(key, part, memory);
            }
            (Name::Fetch(key, part), CompletionKind::Read(buffer)) => {
                let is_ok = completion.status == Status::Ok && self.is_up();
                self.handle_fetched(key, part, buffer, is_ok, now);
            }
            (Name::Withdraw(key, part), CompletionKind::Invalidate(_)) => self.handle_withdrawn(key, part),
            (name, kind) => unreachable!("completion of {name:?} as {kind:?}"),
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(due) = self.poll_timeout() {
            if due > now || !self.is_up() {
                return;
            }
            let what = match self.deadlines.pop_front() {
                Some((_, deadline @ (Deadline::Pull(_) | Deadline::Fetch(_)))) => {
                    if self.last_read.is_some_and(|last| now < last + self.settings.options.peer_timeout) {
                        self.add_deadline(deadline, now); // slow, but not dead
                        continue;
                    }
                    "does not answer an RDMA Read"
                }
                Some((_, Deadline::Done(_))) => "does not say that it has read a reply (RDMA_DONE)",
                _ => "does not answer a call",
            };
            self.fail(TransportError::Lost(format!("the peer {what}")));
        }
    }

    /// The queue pair has ended, for this reason, and every work request has come home.
    pub fn handle_disconnect(&mut self, reason: TransportError, registry: &mut dyn Registry) {
        let error = match std::mem::replace(&mut self.state, State::Closed(reason.clone())) {
            State::Closed(_) => return,
            State::Ending(error) => error,
            State::Closing => TransportError::Lost("closed".into()),
            State::Open => reason,
        };
        self.state = State::Closed(error.clone());
        while let Some(work) = self.work.pop_front() {
            if let Work::Post(request) = work {
                self.take_back_fetch(request);
            }
        }
        self.deadlines.clear();
        self.to_pull.clear();
        self.unread.clear();
        for key in self.incoming.keys() {
            self.incoming.remove(key);
        }
        self.end_exposed(registry);
        self.end_calls(&error, registry);
        self.events.push_back(Event::Closed(error));
    }

    /// Queues a call. Its end is told by [`Event::Reply`] of the same id.
    pub fn call(&mut self, message: Message, plan: ReplyPlan) -> CallId {
        self.calls_queued += 1;
        self.queue_call(message, plan)
    }

    /// Nobody waits for this call any more: there will be no event. If it was sent, its memory and its credit stay
    /// out until the reply comes, because taking the memory from under an RDMA Write would end the connection
    /// for all other calls.
    pub fn cancel(&mut self, id: CallId, now: Instant) {
        self.abandon(id.0, now);
    }

    /// The calls that were made here.
    pub fn calls_made(&self) -> CallsMade {
        CallsMade { total: self.calls_queued, pending: self.calls.len() }
    }

    /// Ends the connection when the work queued so far is done.
    pub fn close(&mut self) {
        if matches!(self.state, State::Open) {
            self.state = State::Closing;
            self.work.push_back(Work::Disconnect);
        }
    }

    /// The next thing for the queue pair. `registry` registers what a call exposes.
    pub fn poll_work(&mut self, registry: &mut dyn Registry) -> Option<Work> {
        if !self.to_pull.is_empty() {
            self.start_pulls(registry);
        }
        while self.work.is_empty()
            && matches!(self.state, State::Open)
            && (self.send_exposed_reply(registry) || self.send_next_call(registry))
        {}
        self.work.pop_front()
    }

    /// Puts work back that the queue pair had no room for. It comes first the next time.
    pub fn put_back(&mut self, request: WorkRequest) {
        self.work.push_front(Work::Post(request));
    }

    /// The next thing that has happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Holds little memory while nothing goes on.
    pub fn rest(&mut self) {
        fn empty<T>(queue: &mut VecDeque<T>) {
            if queue.is_empty() && queue.capacity() > REST_ENTRIES {
                *queue = VecDeque::new();
            }
        }
        empty(&mut self.work);
        empty(&mut self.events);
        empty(&mut self.deadlines);
        empty(&mut self.unsent);
        empty(&mut self.to_pull);
        empty(&mut self.unsent_replies);
        empty(&mut self.unread);
        self.calls.rest();
        self.incoming.rest();
        if self.by_xid.is_empty() && self.by_xid.capacity() > REST_ENTRIES {
            self.by_xid = Map::default();
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        while let Some(&(due, deadline)) = self.deadlines.front() {
            let stands = match deadline {
                Deadline::Pull(key) => self.incoming.get(key).is_some_and(Incoming::is_pulling),
                Deadline::Abandoned(key) => self.calls.get(key).is_some_and(|call| call.is_sent()),
                Deadline::Fetch(key) => self.calls.get(key).is_some_and(|call| call.is_fetching()),
                Deadline::Done(key) => self.exposed.is_undone(key),
            };
            if stands {
                return Some(due);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// Why there can be no more calls, if so.
    pub(crate) fn closed(&self) -> Option<TransportError> {
        match &self.state {
            State::Open => None,
            State::Closing => Some(TransportError::Lost("closed".into())),
            State::Ending(error) | State::Closed(error) => Some(error.clone()),
        }
    }

    /// Ends the connection for cause.
    pub(crate) fn fail(&mut self, error: TransportError) {
        if self.is_up() {
            tracing::debug!(%error, "ending the connection");
            self.state = State::Ending(error);
            self.work.push_back(Work::Disconnect);
        }
    }

    /// The peer does not speak the protocol.
    pub(crate) fn fail_protocol(&mut self, what: impl Into<String>) {
        self.fail(TransportError::Protocol(what.into()));
    }

    pub(crate) fn post(&mut self, request: WorkRequest) {
        self.work.push_back(Work::Post(request));
    }

    pub(crate) fn post_receive(&mut self) {
        let buffer = self.pool.private().take(self.settings.options.inline_recv);
        self.work.push_back(Work::Receive(Name::Receive.into(), buffer));
    }

    pub(crate) fn add_deadline(&mut self, deadline: Deadline, now: Instant) {
        // All kinds allow the same time, so the queue is in order.
        self.deadlines.push_back((now + self.settings.options.peer_timeout, deadline));
    }

    /// Posts the Send of a reply or an error; `bytes` is what it and its RDMA Writes hold.
    pub(crate) fn post_reply(&mut self, data: buf::Rope, invalidate: Option<Stag>, bytes: usize, exposed: Option<Key>) {
        self.unsent_replies.push_back(UnsentReply { bytes, exposed });
        self.unsent_reply_bytes += bytes;
        self.post(WorkRequest::Send { id: Name::Reply.into(), data, invalidate, solicited: false });
    }

    fn read_messages(&mut self, now: Instant) {
        let replies_max = 2 * self.settings.inbound_credits().max(CREDITS_MIN) as usize;
        while self.is_up() && self.unsent_replies.len() < replies_max && self.unsent_reply_bytes < REPLY_BYTES_MAX {
            let Some(buffer) = self.unread.pop_front() else { return };
            self.handle_receive(buffer, now);
        }
    }

    fn is_up(&self) -> bool {
        matches!(self.state, State::Open | State::Closing)
    }
}

impl From<Name> for WorkId {
    fn from(name: Name) -> Self {
        let (kind, part, key) = match name {
            Name::Receive => (0, 0, 0),
            Name::Call => (1, 0, 0),
            Name::Reply => (2, 0, 0),
            Name::Write => (3, 0, 0),
            Name::Read(key, part) => (4, part, key.to_bits()),
            Name::Invalidate(key, part) => (5, part, key.to_bits()),
            Name::Fetch(key, part) => (6, part, key.to_bits()),
            Name::Withdraw(key, part) => (7, part, key.to_bits()),
        };
        assert!(part < 1 << (64 - KIND_BITS - KEY_BITS));
        WorkId((((part as u64) << KIND_BITS | kind) << KEY_BITS) | key)
    }
}

impl From<WorkId> for Name {
    fn from(WorkId(bits): WorkId) -> Self {
        let key = Key::from_bits(bits);
        let (kind, part) = ((bits >> KEY_BITS) & ((1 << KIND_BITS) - 1), (bits >> (KEY_BITS + KIND_BITS)) as usize);
        match kind {
            0 => Name::Receive,
            1 => Name::Call,
            2 => Name::Reply,
            3 => Name::Write,
            4 => Name::Read(key, part),
            5 => Name::Invalidate(key, part),
            6 => Name::Fetch(key, part),
            7 => Name::Withdraw(key, part),
            _ => unreachable!("no work of kind {kind} is ever posted"),
        }
    }
}

const KIND_BITS: u32 = 4;
/// Room that is not worth giving back.
const REST_ENTRIES: usize = 4;
/// While so many bytes of replies have not been taken, no more messages are read.
const REPLY_BYTES_MAX: usize = 32 << 20;
/// What a peer without credits is taken to have, so that it can be told errors.
const CREDITS_MIN: u32 = 4;
