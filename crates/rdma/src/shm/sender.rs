//! The sending half: executes work requests by records in the ring, or by direct access to the peer's memory. Does no
//! I/O of its own.
//!
//! Requests are executed in the order in which they were posted. If the ring has no room for a message, the sender
//! stops within it and continues when there is room. Responses to the peer's reads alternate with this side's requests.
//!
//! On error, [`Sender::flush`] returns all posted requests.

use std::{collections::VecDeque, io};

use buf::{Piece, Rope};
use bytes::Bytes;

use super::{
    memory::SharedWords,
    receiver::{Event, PendingRead, Receiver},
    record::{FRAGMENT_MAX, Record},
    ring::{Corrupt, Producer},
    slabs::{Direct, Side},
    socket::Socket,
};
use crate::{Completion, CompletionKind, Memory, RemoteSegment, Stag, Status, WorkId, WorkRequest};

pub(super) struct Sender {
    ring: Producer<SharedWords>,
    send_queue: usize,
    outbound_reads: u16,
    /// Requests that were posted and not started.
    posted: VecDeque<WorkRequest>,
    /// Requests that were started and not completed, in the order in which they were posted.
    started: VecDeque<Started>,
    /// The responses to the peer's reads.
    responses: VecDeque<Bytes>,
    current: Option<Message>,
    /// `true` if the next message is a response, when both a response and a request wait.
    response_next: bool,
    /// The number of reads requested from the peer.
    reads_requested: u64,
    reads_outstanding: u16,
    scratch: Box<[u8]>,
}

struct Started {
    id: WorkId,
    status: Status,
    state: State,
}

enum State {
    /// Its message is `current`.
    Sending(CompletionKind),
    /// A read that waits for its response. Its buffer is with the receiver.
    Reading,
    /// An invalidation that waits until the peer releases the region.
    Revoking(Stag),
    Done(CompletionKind),
}

/// A message, some of whose records can be in the ring already.
struct Message {
    kind: Kind,
    data: Rope,
    at: usize,
}

#[derive(Clone, Copy)]
enum Kind {
    Send { invalidate: Option<Stag>, solicited: bool },
    Write(RemoteSegment),
    Request { from: RemoteSegment, len: u32 },
    Response,
}

/// The progress of one round of sending.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is nothing to send, or no room for it.
    Blocked,
    /// There is more to do.
    More,
}

/// The reason why a round of sending failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The peer violated the protocol.
    Peer(String),
    /// A file range cannot be read.
    Io(io::Error),
}

/// The parts of the queue pair that sending needs.
pub(super) struct Parts<'a> {
    pub(super) receiver: &'a mut Receiver,
    pub(super) side: &'a mut Side,
    pub(super) socket: &'a Socket,
}

impl From<Corrupt> for Failure {
    fn from(Corrupt: Corrupt) -> Self {
        Failure::Peer("the indices of the ring are invalid".to_owned())
    }
}

impl Sender {
    pub(super) fn new(ring: Producer<SharedWords>, send_queue: usize, outbound_reads: u16) -> Self {
        Self {
            ring,
            send_queue,
            outbound_reads,
            posted: VecDeque::new(),
            started: VecDeque::new(),
            responses: VecDeque::new(),
            current: None,
            response_next: false,
            reads_requested: 0,
            reads_outstanding: 0,
            scratch: Box::default(),
        }
    }

    /// Returns `true` if the send queue is full.
    pub(super) fn is_full(&self) -> bool {
        self.posted.len() + self.started.len() >= self.send_queue
    }

    pub(super) fn post(&mut self, request: WorkRequest) {
        self.posted.push_back(request);
    }

    /// Handles an event of the receiver. Returns its completion, if the event is one.
    pub(super) fn take(&mut self, event: Event) -> Option<Completion> {
        match event {
            Event::Received(completion) => return Some(completion),
            Event::ReadRequested(data) => self.responses.push_back(data),
            Event::ReadDone(into) => {
                self.reads_outstanding -= 1;
                let read = self.started.iter_mut().find(|started| matches!(started.state, State::Reading));
                let read = read.expect("a response must belong to a started read");
                read.state = State::Done(CompletionKind::Read(into));
            }
            Event::Closed | Event::Nothing => {}
        }
        None
    }

    /// Records that the peer rejected a read. `index` counts from the oldest outstanding read.
    pub(super) fn read_refused(&mut self, index: usize) {
        let mut reads = self.started.iter_mut().filter(|started| matches!(started.state, State::Reading));
        if let Some(read) = reads.nth(index) {
            read.status = Status::RemoteAccess;
        }
    }

    /// Returns `true` if nothing can be sent now.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && self.responses.is_empty() && !self.can_start()
    }

    /// Sends until nothing is left or the budget of a round is used up.
    pub(super) fn round(
        &mut self,
        parts: &mut Parts<'_>,
        completions: &mut Vec<Completion>,
    ) -> Result<Progress, Failure> {
        let mut left = ROUND_BYTES;
        loop {
            self.complete(parts, completions);
            if let Some(mut message) = self.current.take() {
                let before = message.at;
                let done = self.put(&mut message)?;
                left = left.saturating_sub(message.at - before + 1);
                if done {
                    self.end_message(message.kind, parts.receiver);
                } else {
                    self.current = Some(message);
                    return Ok(Progress::Blocked);
                }
            } else {
                match self.begin(parts)? {
                    None => return Ok(Progress::Blocked),
                    Some(moved) => left = left.saturating_sub(moved + 1),
                }
            }
            if left == 0 {
                self.complete(parts, completions);
                return Ok(Progress::More);
            }
        }
    }

    /// Publishes the records in the ring.
    pub(super) fn publish(&mut self, socket: &Socket) {
        if self.ring.publish() {
            socket.bell().ring();
        }
    }

    /// Appends a last record. Returns `false` if there is no room.
    pub(super) fn put_last(&mut self, record: Record, text: &str) -> Result<bool, Corrupt> {
        let text = &text.as_bytes()[..text.len().min(FRAGMENT_MAX)];
        let room = self.ring.has_room(record.words(text.len()))? || !self.ring.block(record.words(text.len()))?;
        if room {
            record.put(text.len(), &mut self.ring);
            self.ring.push_bytes(text);
        }
        Ok(room)
    }

    /// Flushes all posted requests. `reclaim` removes a region and returns its memory.
    pub(super) fn flush(
        &mut self,
        receiver: &mut Receiver,
        completions: &mut Vec<Completion>,
        mut reclaim: impl FnMut(&mut Receiver, Stag) -> Option<Memory>,
    ) {
        self.current = None;
        self.responses.clear();
        // A completed request behind an incomplete one counts as flushed, too, because its completion has not been
        // returned.
        let mut cut = false;
        for Started { id, status, state } in std::mem::take(&mut self.started) {
            cut |= !matches!(state, State::Done(_));
            let status = if cut && status == Status::Ok { Status::Flushed } else { status };
            let kind = match state {
                State::Done(kind) | State::Sending(kind) => kind,
                State::Revoking(stag) => CompletionKind::Invalidate(reclaim(receiver, stag)),
                State::Reading => {
                    let read = receiver.reads.pop_front().expect("each outstanding read must have a buffer");
                    CompletionKind::Read(read.into)
                }
            };
            completions.push(Completion { id, status, kind });
        }
        for request in std::mem::take(&mut self.posted) {
            completions.push(request.flushed(|stag| reclaim(receiver, stag)));
        }
    }

    fn can_start(&self) -> bool {
        match self.posted.front() {
            None => false,
            // If no reads were negotiated, the read is started only to fail.
            Some(WorkRequest::Read { .. }) => self.reads_outstanding < self.outbound_reads || self.outbound_reads == 0,
            Some(_) => true,
        }
    }

    /// Returns completions in the order of posting.
    fn complete(&mut self, parts: &mut Parts<'_>, completions: &mut Vec<Completion>) {
        while let Some(front) = self.started.front_mut() {
            if let State::Revoking(stag) = front.state
                && let Some(memory) = revoked(stag, parts)
            {
                front.state = State::Done(CompletionKind::Invalidate(Some(memory)));
            }
            if !matches!(front.state, State::Done(_)) {
                return;
            }
            let Some(Started { id, status, state: State::Done(kind) }) = self.started.pop_front() else {
                unreachable!("the front was just checked")
            };
            completions.push(Completion { id, status, kind });
        }
    }

    /// Starts the next response or request. Returns the number of bytes that were moved directly, or `None` if there is
    /// nothing to start.
    fn begin(&mut self, parts: &mut Parts<'_>) -> Result<Option<usize>, Failure> {
        let can_start = self.can_start();
        if !self.responses.is_empty() && (self.response_next || !can_start) {
            self.response_next = false;
            let data = self.responses.pop_front().expect("the queue was just checked");
            self.current = Some(Message { kind: Kind::Response, data: data.into(), at: 0 });
            return Ok(Some(0));
        }
        self.response_next = true;
        if !can_start {
            return Ok(None);
        }
        let request = self.posted.pop_front().expect("the queue was just checked");
        self.begin_request(request, parts).map(Some)
    }

    fn begin_request(&mut self, request: WorkRequest, parts: &mut Parts<'_>) -> Result<usize, Failure> {
        let id = request.id();
        let mut moved = 0;
        let (status, state) = match request {
            WorkRequest::Send { data, invalidate, solicited, .. } => {
                self.current = Some(Message { kind: Kind::Send { invalidate, solicited }, data, at: 0 });
                (Status::Ok, State::Sending(CompletionKind::Send))
            }
            WorkRequest::Write { data, to, .. } => {
                moved = data.len();
                let direct = match parts.side {
                    _ if data.is_empty() => Direct::Done,
                    Side::Accepting(mapped) => mapped.write(&data, to, parts.socket),
                    Side::Connecting(_) => Direct::UseRing,
                };
                match direct {
                    Direct::Done => (Status::Ok, State::Done(CompletionKind::Write)),
                    other => {
                        self.current = Some(Message { kind: Kind::Write(to), data, at: 0 });
                        self.started.push_back(Started {
                            id,
                            status: Status::Ok,
                            state: State::Sending(CompletionKind::Write),
                        });
                        return other.or_use_ring().map(|()| 0);
                    }
                }
            }
            WorkRequest::Read { mut into, from, .. } => {
                let direct = match parts.side {
                    _ if self.outbound_reads == 0 => Direct::UseRing,
                    _ if into.is_empty() => Direct::Done,
                    Side::Accepting(mapped) => mapped.read(&mut into, from, parts.socket),
                    Side::Connecting(_) => Direct::UseRing,
                };
                moved = into.len();
                match (direct, u32::try_from(into.len())) {
                    (Direct::Done, _) => (Status::Ok, State::Done(CompletionKind::Read(into))),
                    (other, Ok(len)) if self.outbound_reads > 0 => {
                        self.reads_requested += 1;
                        self.reads_outstanding += 1;
                        parts.receiver.reads.push_back(PendingRead::new(self.reads_requested, into));
                        self.current = Some(Message { kind: Kind::Request { from, len }, data: Rope::new(), at: 0 });
                        self.started.push_back(Started { id, status: Status::Ok, state: State::Reading });
                        return other.or_use_ring().map(|()| 0);
                    }
                    _ => (Status::LocalAccess, State::Done(CompletionKind::Read(into))),
                }
            }
            WorkRequest::Invalidate { stag, .. } => {
                let is_out = match parts.side {
                    Side::Connecting(shared) => shared.revoke(stag),
                    Side::Accepting(_) => true,
                };
                if is_out {
                    let memory = parts.receiver.regions.remove(stag);
                    let status = if memory.is_some() { Status::Ok } else { Status::LocalAccess };
                    (status, State::Done(CompletionKind::Invalidate(memory)))
                } else {
                    (Status::Ok, State::Revoking(stag))
                }
            }
        };
        self.started.push_back(Started { id, status, state });
        Ok(moved)
    }

    /// Puts as much of a message into the ring as there is room for. Returns `true` if that was all of it.
    fn put(&mut self, message: &mut Message) -> Result<bool, Failure> {
        loop {
            let len = (message.data.len() - message.at).min(FRAGMENT_MAX);
            let last = message.at + len == message.data.len();
            let record = message.record(last);
            let words = record.words(len);
            if !self.ring.has_room(words)? && self.ring.block(words)? {
                return Ok(false);
            }
            record.put(len, &mut self.ring);
            self.push_data(&message.data, message.at, len).map_err(Failure::Io)?;
            message.at += len;
            if last {
                return Ok(true);
            }
        }
    }

    fn push_data(&mut self, data: &Rope, at: usize, len: usize) -> io::Result<()> {
        if let [Piece::Memory(bytes)] = data.pieces() {
            self.ring.push_bytes(&bytes[at..at + len]);
            return Ok(());
        }
        if self.scratch.is_empty() {
            self.scratch = vec![0; FRAGMENT_MAX].into();
        }
        data.slice(at, len).copy_to(&mut self.scratch[..len])?;
        self.ring.push_bytes(&self.scratch[..len]);
        Ok(())
    }

    fn end_message(&mut self, kind: Kind, receiver: &mut Receiver) {
        match kind {
            Kind::Response => receiver.reads_unanswered -= 1,
            Kind::Request { .. } => {}
            Kind::Send { .. } | Kind::Write(_) => {
                let started = self.started.back_mut().expect("no request must start while a message is being sent");
                let State::Sending(_) = started.state else { unreachable!("the last request must own the message") };
                let State::Sending(kind) = std::mem::replace(&mut started.state, State::Reading) else {
                    unreachable!("the state was just checked")
                };
                started.state = State::Done(kind);
            }
        }
    }
}

impl Direct {
    /// Returns an error if a direct access failed for another reason than that it is impossible.
    fn or_use_ring(self) -> Result<(), Failure> {
        match self {
            Direct::Done | Direct::UseRing => Ok(()),
            Direct::Failed(error) => Err(Failure::Io(error)),
            Direct::Violation(what) => Err(Failure::Peer(what)),
        }
    }
}

impl Message {
    fn record(&self, last: bool) -> Record {
        match self.kind {
            Kind::Send { invalidate, solicited } => Record::Send { last, solicited, invalidate },
            // A sum that overflows is out of bounds anyway, at the peer as well as here.
            Kind::Write(to) => Record::Write { stag: to.stag, offset: to.offset.saturating_add(self.at as u64) },
            Kind::Request { from, len } => Record::ReadRequest { stag: from.stag, offset: from.offset, len },
            Kind::Response => Record::ReadResponse { last },
        }
    }
}

/// Returns the memory of a region whose invalidation waits, if the peer has released it.
fn revoked(stag: Stag, parts: &mut Parts<'_>) -> Option<Memory> {
    let Side::Connecting(shared) = parts.side else { unreachable!("only the connecting side waits") };
    if !shared.revoke(stag) {
        return None;
    }
    parts.receiver.regions.remove(stag)
}

/// Maximum bytes moved before other tasks run.
const ROUND_BYTES: usize = 4 << 20;
