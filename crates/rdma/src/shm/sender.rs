//! The sending half: work requests in, records out, or memory of the peer's read and written directly. No I/O of its own.
//!
//! Requests are carried out in the order posted. A message that the ring has no room for is left in the middle, and gone on
//! with when there is room; answers to the peer's reads take turns with our own requests.
//!
//! On error everything posted is handed back by [`Sender::flush`].

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
    /// Posted, not begun.
    posted: VecDeque<WorkRequest>,
    /// Begun, not completed; in the order posted.
    started: VecDeque<Started>,
    /// Answers to the peer's reads.
    responses: VecDeque<Bytes>,
    current: Option<Message>,
    /// Whose turn it is when both wait.
    response_next: bool,
    /// Reads that the peer was ever asked for.
    reads_asked: u64,
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
    /// A read that waits for its answer; its buffer is with the receiver.
    Reading,
    /// An invalidation that waits for the peer to let go.
    Revoking(Stag),
    Done(CompletionKind),
}

/// A message of which some records may have been put into the ring.
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

/// How far one round of sending came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is nothing to send, or no room to send it.
    Blocked,
    /// There is more to do.
    More,
}

/// Why a round of sending failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The peer breaks the rules.
    Peer(String),
    /// A file cannot be read.
    Io(io::Error),
}

/// What sending needs beside the sender.
pub(super) struct Around<'a> {
    pub(super) receiver: &'a mut Receiver,
    pub(super) side: &'a mut Side,
    pub(super) socket: &'a Socket,
}

impl From<Corrupt> for Failure {
    fn from(Corrupt: Corrupt) -> Self {
        Failure::Peer("the ring's indices make no sense".to_owned())
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
            reads_asked: 0,
            reads_outstanding: 0,
            scratch: Box::default(),
        }
    }

    /// Whether there is no room in the send queue.
    pub(super) fn is_full(&self) -> bool {
        self.posted.len() + self.started.len() >= self.send_queue
    }

    pub(super) fn post(&mut self, request: WorkRequest) {
        self.posted.push_back(request);
    }

    /// Takes in what the receiver has seen; a receive that is complete is given back.
    pub(super) fn take(&mut self, event: Event) -> Option<Completion> {
        match event {
            Event::Received(completion) => return Some(completion),
            Event::ReadRequested(data) => self.responses.push_back(data),
            Event::ReadDone(into) => {
                self.reads_outstanding -= 1;
                let read = self.started.iter_mut().find(|started| matches!(started.state, State::Reading));
                let read = read.expect("an answer is to a read that was begun");
                read.state = State::Done(CompletionKind::Read(into));
            }
            Event::Closed | Event::Nothing => {}
        }
        None
    }

    /// The peer refused a read; `index` counts from the oldest outstanding.
    pub(super) fn read_refused(&mut self, index: usize) {
        let mut reads = self.started.iter_mut().filter(|started| matches!(started.state, State::Reading));
        if let Some(read) = reads.nth(index) {
            read.status = Status::RemoteAccess;
        }
    }

    /// Whether there is nothing left that could be sent now.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && self.responses.is_empty() && !self.can_start()
    }

    /// Sends what there is, up to a fair share.
    pub(super) fn round(
        &mut self,
        around: &mut Around<'_>,
        completions: &mut Vec<Completion>,
    ) -> Result<Progress, Failure> {
        let mut left = ROUND_BYTES;
        loop {
            self.complete(around, completions);
            if let Some(mut message) = self.current.take() {
                let before = message.at;
                let done = self.put(&mut message)?;
                left = left.saturating_sub(message.at - before + 1);
                if done {
                    self.end_message(message.kind, around.receiver);
                } else {
                    self.current = Some(message);
                    return Ok(Progress::Blocked);
                }
            } else {
                match self.begin(around)? {
                    None => return Ok(Progress::Blocked),
                    Some(moved) => left = left.saturating_sub(moved + 1),
                }
            }
            if left == 0 {
                self.complete(around, completions);
                return Ok(Progress::More);
            }
        }
    }

    /// Shows the peer what was put into the ring.
    pub(super) fn publish(&mut self, socket: &Socket) {
        if self.ring.publish() {
            socket.bell().ring();
        }
    }

    /// Puts a last record into the ring. False if there is no room.
    pub(super) fn put_last(&mut self, record: Record, text: &str) -> Result<bool, Corrupt> {
        let text = &text.as_bytes()[..text.len().min(FRAGMENT_MAX)];
        let room = self.ring.has_room(record.words(text.len()))? || !self.ring.block(record.words(text.len()))?;
        if room {
            record.put(text.len(), &mut self.ring);
            self.ring.push_bytes(text);
        }
        Ok(room)
    }

    /// Takes back everything posted, as flushed; `take_back` takes a region's memory out.
    pub(super) fn flush(
        &mut self,
        receiver: &mut Receiver,
        completions: &mut Vec<Completion>,
        mut take_back: impl FnMut(&mut Receiver, Stag) -> Option<Memory>,
    ) {
        self.current = None;
        self.responses.clear();
        // What is done behind something that is not counts as flushed, too: its poster has heard of neither.
        let mut cut = false;
        for Started { id, status, state } in std::mem::take(&mut self.started) {
            cut |= !matches!(state, State::Done(_));
            let status = if cut && status == Status::Ok { Status::Flushed } else { status };
            let kind = match state {
                State::Done(kind) | State::Sending(kind) => kind,
                State::Revoking(stag) => CompletionKind::Invalidate(take_back(receiver, stag)),
                State::Reading => {
                    let read = receiver.reads.pop_front().expect("one for each that is awaited");
                    CompletionKind::Read(read.into)
                }
            };
            completions.push(Completion { id, status, kind });
        }
        for request in std::mem::take(&mut self.posted) {
            completions.push(request.flushed(|stag| take_back(receiver, stag)));
        }
    }

    fn can_start(&self) -> bool {
        match self.posted.front() {
            None => false,
            // With no reads at all agreed on, the read is begun only to fail.
            Some(WorkRequest::Read { .. }) => self.reads_outstanding < self.outbound_reads || self.outbound_reads == 0,
            Some(_) => true,
        }
    }

    /// Gives out what has completed, in the order posted.
    fn complete(&mut self, around: &mut Around<'_>, completions: &mut Vec<Completion>) {
        while let Some(front) = self.started.front_mut() {
            if let State::Revoking(stag) = front.state
                && let Some(memory) = revoked(stag, around)
            {
                front.state = State::Done(CompletionKind::Invalidate(Some(memory)));
            }
            if !matches!(front.state, State::Done(_)) {
                return;
            }
            let Some(Started { id, status, state: State::Done(kind) }) = self.started.pop_front() else {
                unreachable!("just seen")
            };
            completions.push(Completion { id, status, kind });
        }
    }

    /// Begins the next message or request, and says how many bytes it moved at once; `None` if there is none.
    fn begin(&mut self, around: &mut Around<'_>) -> Result<Option<usize>, Failure> {
        let can_start = self.can_start();
        if !self.responses.is_empty() && (self.response_next || !can_start) {
            self.response_next = false;
            let data = self.responses.pop_front().expect("just seen");
            self.current = Some(Message { kind: Kind::Response, data: data.into(), at: 0 });
            return Ok(Some(0));
        }
        self.response_next = true;
        if !can_start {
            return Ok(None);
        }
        let request = self.posted.pop_front().expect("just seen");
        self.begin_request(request, around).map(Some)
    }

    fn begin_request(&mut self, request: WorkRequest, around: &mut Around<'_>) -> Result<usize, Failure> {
        let id = request.id();
        let mut moved = 0;
        let (status, state) = match request {
            WorkRequest::Send { data, invalidate, solicited, .. } => {
                self.current = Some(Message { kind: Kind::Send { invalidate, solicited }, data, at: 0 });
                (Status::Ok, State::Sending(CompletionKind::Send))
            }
            WorkRequest::Write { data, to, .. } => {
                moved = data.len();
                let direct = match around.side {
                    _ if data.is_empty() => Direct::Done,
                    Side::Accepting(mapped) => mapped.write(&data, to, around.socket),
                    Side::Connecting(_) => Direct::Ask,
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
                        return other.or_ask().map(|()| 0);
                    }
                }
            }
            WorkRequest::Read { mut into, from, .. } => {
                let direct = match around.side {
                    _ if self.outbound_reads == 0 => Direct::Ask,
                    _ if into.is_empty() => Direct::Done,
                    Side::Accepting(mapped) => mapped.read(&mut into, from, around.socket),
                    Side::Connecting(_) => Direct::Ask,
                };
                moved = into.len();
                match (direct, u32::try_from(into.len())) {
                    (Direct::Done, _) => (Status::Ok, State::Done(CompletionKind::Read(into))),
                    (other, Ok(len)) if self.outbound_reads > 0 => {
                        self.reads_asked += 1;
                        self.reads_outstanding += 1;
                        around.receiver.reads.push_back(PendingRead::new(self.reads_asked, into));
                        self.current = Some(Message { kind: Kind::Request { from, len }, data: Rope::new(), at: 0 });
                        self.started.push_back(Started { id, status: Status::Ok, state: State::Reading });
                        return other.or_ask().map(|()| 0);
                    }
                    _ => (Status::LocalAccess, State::Done(CompletionKind::Read(into))),
                }
            }
            WorkRequest::Invalidate { stag, .. } => {
                let is_out = match around.side {
                    Side::Connecting(shared) => shared.revoke(stag),
                    Side::Accepting(_) => true,
                };
                if is_out {
                    let memory = around.receiver.regions.remove(stag);
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

    /// Puts as much of a message into the ring as there is room for; whether that was all.
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
            Kind::Response => receiver.reads_owed -= 1,
            Kind::Request { .. } => {}
            Kind::Send { .. } | Kind::Write(_) => {
                let started = self.started.back_mut().expect("nothing is begun while a message is being sent");
                let State::Sending(_) = started.state else { unreachable!("it is the message's") };
                let State::Sending(kind) = std::mem::replace(&mut started.state, State::Reading) else {
                    unreachable!("just seen")
                };
                started.state = State::Done(kind);
            }
        }
    }
}

impl Direct {
    /// The peer is to be asked, unless this has failed otherwise.
    fn or_ask(self) -> Result<(), Failure> {
        match self {
            Direct::Done | Direct::Ask => Ok(()),
            Direct::Failed(error) => Err(Failure::Io(error)),
            Direct::Broken(what) => Err(Failure::Peer(what)),
        }
    }
}

impl Message {
    fn record(&self, last: bool) -> Record {
        match self.kind {
            Kind::Send { invalidate, solicited } => Record::Send { last, solicited, invalidate },
            // A sum that overflows is out of bounds in any case, at the peer as here.
            Kind::Write(to) => Record::Write { stag: to.stag, offset: to.offset.saturating_add(self.at as u64) },
            Kind::Request { from, len } => Record::ReadRequest { stag: from.stag, offset: from.offset, len },
            Kind::Response => Record::ReadResponse { last },
        }
    }
}

/// The memory of a region whose invalidation was waited for, if the peer has let go.
fn revoked(stag: Stag, around: &mut Around<'_>) -> Option<Memory> {
    let Side::Connecting(shared) = around.side else { unreachable!("only this side waits") };
    if !shared.revoke(stag) {
        return None;
    }
    around.receiver.regions.remove(stag)
}

/// Bytes moved before others get their turn.
const ROUND_BYTES: usize = 4 << 20;
