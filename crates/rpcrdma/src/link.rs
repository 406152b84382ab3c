//! [`Link`]: the part that the two directions of a connection share.
//!
//! The requester and the responder of a connection post work to the same queue pair, report events, set deadlines, and
//! can close the connection. Each of them owns the rest of its state.

use std::{collections::VecDeque, time::Instant};

use buf::{Buffer, PeerBytes, Pool};
use rdma::{Memory, Registered, RemoteSegment, Stag, WorkId, WorkRequest};
use rpc::{CallError, Reply, ReplyToken, TransportError};
use xdr::Message;

use crate::{
    Settings,
    table::{KEY_BITS, Key},
};

/// An action for the queue pair.
#[derive(Debug)]
pub enum Work {
    /// Post this request to the send queue.
    Post(WorkRequest),
    /// Post this receive.
    Receive(WorkId, Buffer),
    /// Close the connection after the requests posted so far.
    Disconnect,
}

/// An event for the user of the connection.
#[derive(Debug)]
pub enum Event {
    /// The peer made a call.
    Call {
        /// The call, beginning with its XID.
        message: Message,
        /// The token for the reply.
        token: ReplyToken,
    },
    /// A call of this side has ended. The peer can no longer access its memory.
    Reply {
        /// The ID of the call.
        id: CallId,
        /// The outcome.
        result: Result<Reply, CallError>,
    },
    /// The connection is closed, and all calls have ended. No event follows.
    Closed(TransportError),
}

/// The ID of a call that this side makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(crate) Key);

/// A registry of memory: the queue pair.
pub trait Registry {
    /// See [`rdma::QueuePair::register`].
    ///
    /// # Errors
    /// Too many regions are registered; returns the memory.
    fn register(&mut self, memory: Memory) -> Result<Registered, Memory>;
    /// See [`rdma::QueuePair::reclaim`].
    fn reclaim(&mut self, stag: Stag) -> Option<Memory>;
    /// See [`rdma::QueuePair::view`].
    fn view(&mut self, from: RemoteSegment, len: usize) -> Option<PeerBytes> {
        let _ = (from, len);
        None
    }
}

impl Registry for Box<dyn rdma::QueuePair> {
    fn register(&mut self, memory: Memory) -> Result<Registered, Memory> {
        (**self).register(memory)
    }

    fn reclaim(&mut self, stag: Stag) -> Option<Memory> {
        (**self).reclaim(stag)
    }

    fn view(&mut self, from: RemoteSegment, len: usize) -> Option<PeerBytes> {
        (**self).view(from, len)
    }
}

/// The shared part of a connection.
pub(crate) struct Link {
    pub(crate) settings: Settings,
    pub(crate) pool: Pool,
    work: VecDeque<Work>,
    events: VecDeque<Event>,
    deadlines: VecDeque<(Instant, Deadline)>,
    state: State,
    /// While the connection is closing: the number of calls that are sent before `Work::Disconnect`, which is the last work.
    closes_after: Option<u32>,
    /// The time at which the latest RDMA Read was started or completed.
    last_read: Option<Instant>,
}

#[derive(Debug)]
enum State {
    Open,
    /// `close` was called: no more calls are accepted, and the connection is closed when the work is done.
    Closing,
    /// `Work::Disconnect` is queued or done.
    Ending(TransportError),
    Closed(TransportError),
}

/// A condition that must be met in time; otherwise the connection is closed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// The chunks of a call have been read.
    Pull(Key),
    /// A cancelled call of this side has been answered.
    Abandoned(Key),
    /// The reply to a call of this side has been read.
    Fetch(Key),
    /// The caller has sent RDMA_DONE for an exposed reply.
    Done(Key),
}

/// The purpose of a work request, encoded in its [`WorkId`] as kind, part and key.
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
    /// The invalidation of exposure number `part` of an outgoing call.
    Invalidate(Key, usize),
    /// RDMA Read number `part` of the reply to an outgoing call.
    Fetch(Key, usize),
    /// The invalidation of region number `part` of an exposed reply.
    InvalidateReply(Key, usize),
}

impl Link {
    pub(crate) fn new(settings: Settings, pool: Pool) -> Self {
        Self {
            settings,
            pool,
            work: VecDeque::new(),
            events: VecDeque::new(),
            deadlines: VecDeque::new(),
            state: State::Open,
            closes_after: None,
            last_read: None,
        }
    }

    pub(crate) fn post(&mut self, request: WorkRequest) {
        self.work.push_back(Work::Post(request));
    }

    pub(crate) fn post_receive(&mut self) {
        let buffer = self.pool.private().take(self.settings.options.inline_recv);
        self.work.push_back(Work::Receive(Name::Receive.into(), buffer));
    }

    /// Returns work for which the queue pair had no room. It is the next work again.
    pub(crate) fn put_back(&mut self, request: WorkRequest) {
        self.work.push_front(Work::Post(request));
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    pub(crate) fn take_work(&mut self) -> Option<Work> {
        self.work.pop_front()
    }

    pub(crate) fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(crate) fn add_deadline(&mut self, deadline: Deadline, now: Instant) {
        // All deadlines have the same timeout, so the queue is in order.
        self.deadlines.push_back((now + self.settings.options.peer_timeout, deadline));
    }

    /// Returns the earliest deadline for which `is_pending` is `true`, and removes those before it.
    pub(crate) fn next_deadline(&mut self, is_pending: impl Fn(Deadline) -> bool) -> Option<Instant> {
        while let Some(&(due, deadline)) = self.deadlines.front() {
            if is_pending(deadline) {
                return Some(due);
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// Closes the connection because its earliest deadline passed, unless the deadline is for RDMA Reads that still
    /// progress.
    pub(crate) fn deadline_passed(&mut self, now: Instant) {
        let what = match self.deadlines.pop_front() {
            Some((_, deadline @ (Deadline::Pull(_) | Deadline::Fetch(_)))) => {
                if self.last_read.is_some_and(|last| now < last + self.settings.options.peer_timeout) {
                    return self.add_deadline(deadline, now);
                }
                "did not answer an RDMA Read"
            }
            Some((_, Deadline::Done(_))) => "did not send RDMA_DONE for a reply",
            _ => "did not answer a call",
        };
        self.fail(TransportError::Lost(format!("the peer {what}")));
    }

    /// Records that an RDMA Read was started or completed.
    pub(crate) fn read_progressed(&mut self, now: Instant) {
        self.last_read = Some(now);
    }

    /// Returns `true` if calls can be sent.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Returns `true` if the peer's messages are still processed.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Open | State::Closing)
    }

    /// Returns the reason why no more calls are accepted, if there is one.
    pub(crate) fn closed(&self) -> Option<TransportError> {
        match &self.state {
            State::Open => None,
            State::Closing => Some(TransportError::Lost("closed".into())),
            State::Ending(error) | State::Closed(error) => Some(error.clone()),
        }
    }

    /// Returns `true` if one more call may be sent. Of a connection that is being closed, it counts the call.
    pub(crate) fn sends_call(&mut self) -> bool {
        match &mut self.closes_after {
            Some(calls) => calls.checked_sub(1).inspect(|left| *calls = *left).is_some(),
            None => self.is_open(),
        }
    }

    /// Closes the connection after the work that is queued now and at most this number of calls.
    pub(crate) fn close(&mut self, calls: u32) {
        if self.is_open() {
            self.state = State::Closing;
            self.closes_after = Some(calls);
        }
    }

    /// Returns the next work. The last work of a connection that is being closed is to disconnect it.
    pub(crate) fn take_last_work(&mut self) -> Option<Work> {
        let disconnect = self.work.is_empty() && self.closes_after.take().is_some();
        if disconnect { Some(Work::Disconnect) } else { self.take_work() }
    }

    /// Closes the connection because of an error.
    pub(crate) fn fail(&mut self, error: TransportError) {
        if self.is_up() {
            tracing::debug!(%error, "closing the connection");
            self.state = State::Ending(error);
            self.closes_after = None;
            self.work.push_back(Work::Disconnect);
        }
    }

    /// Closes the connection because the peer violated the protocol.
    pub(crate) fn fail_protocol(&mut self, what: impl Into<String>) {
        self.fail(TransportError::Protocol(what.into()));
    }

    /// Handles the end of the queue pair. Returns the error with which all calls fail, or `None` if it was handled
    /// before.
    pub(crate) fn disconnected(&mut self, reason: TransportError) -> Option<TransportError> {
        let error = match &self.state {
            State::Closed(_) => return None,
            State::Ending(error) => error.clone(),
            State::Closing => TransportError::Lost("closed".into()),
            State::Open => reason,
        };
        self.state = State::Closed(error.clone());
        self.closes_after = None;
        self.deadlines.clear();
        Some(error)
    }

    /// Frees the memory of empty queues.
    pub(crate) fn shrink_idle(&mut self) {
        shrink_idle(&mut self.work);
        shrink_idle(&mut self.events);
        shrink_idle(&mut self.deadlines);
    }
}

/// Frees the memory of a queue that is empty, unless it is small.
pub(crate) fn shrink_idle<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() && queue.capacity() > IDLE_ENTRIES {
        *queue = VecDeque::new();
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
            Name::InvalidateReply(key, part) => (7, part, key.to_bits()),
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
            7 => Name::InvalidateReply(key, part),
            _ => unreachable!("work of kind {kind} is never posted"),
        }
    }
}

const KIND_BITS: u32 = 4;
/// Maximum number of entries for which an empty queue keeps its memory.
pub(crate) const IDLE_ENTRIES: usize = 4;
