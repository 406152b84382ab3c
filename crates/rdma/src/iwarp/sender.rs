//! The sending half of a stream: work requests in, FPDUs out. No I/O.
//!
//! Read RFC 5041 §5 (segmentation) and RFC 5040 §5.5 (ordering). Bytes are formed lazily, as the
//! [`SendQueue`] drains, so little is ever queued, and answers to the peer's reads take turns with
//! our own requests, message by message. A message is never interleaved with another: some peers
//! (Linux siw) take that only between tagged and untagged ones.
//!
//! Payload is never copied: an FPDU is a few bytes of header, pieces of the caller's rope, and a
//! few bytes of trailer, and small pieces share one block of memory with the headers around them.
//!
//! On error everything posted is handed back by [`Sender::flush`].

use std::{collections::VecDeque, io};

use buf::{Arena, Buffer, Piece, Rope, SendQueue};
use bytes::{BufMut, Bytes, BytesMut};

use super::{
    ddp::{self, Header},
    mpa,
    pcap::Tap,
    rdmap::{Opcode, READ_REQUEST_LEN, ReadRequest, Terminate},
    receiver::{Event, PendingRead, Receiver},
};
use crate::{Completion, CompletionKind, Stag, Status, WorkId, WorkRequest};

pub(crate) struct Sender {
    options: SenderOptions,
    /// Posted, not begun.
    posted: VecDeque<WorkRequest>,
    /// Begun, not completed; in the order posted.
    started: VecDeque<Started>,
    /// Requests that were ever completed: the number of the first of `started`.
    completed: u64,
    /// Answers to the peer's reads.
    responses: VecDeque<(ReadRequest, Bytes)>,
    current: Option<Message>,
    /// Whose turn it is when both wait.
    response_next: bool,
    /// Messages sent so far on queues 0, 1 and 2.
    msn: [u32; 3],
    reads_begun: u32,
    reads_outstanding: u16,
    /// Bytes that ever went to the queue.
    formed: u64,
    block: Arena,
}

pub(crate) struct SenderOptions {
    /// Whether CRCs are used.
    pub(crate) crc: bool,
    /// Requests that can be posted at once.
    pub(crate) send_queue: usize,
    /// Reads that can be outstanding.
    pub(crate) outbound_reads: u16,
    /// Most payload of one FPDU.
    pub(crate) payload_max: usize,
    /// Sees every byte that is sent.
    pub(crate) tap: Option<Tap>,
}

struct Started {
    id: WorkId,
    status: Status,
    state: State,
}

enum State {
    /// Done when `sent` bytes of the stream have been handed to the socket; unknown while being formed.
    Sending {
        kind: CompletionKind,
        sent: Option<u64>,
    },
    /// A read that waits for its response; its buffer is with the receiver.
    Reading,
    Done(CompletionKind),
}

/// A message of which some FPDUs may have been formed.
struct Message {
    header: Header,
    front: Option<Piece>,
    rest: <Rope as IntoIterator>::IntoIter,
    left: usize,
    then: Then,
}

/// What follows when the last FPDU of a message has been formed.
enum Then {
    /// The request of this number is complete when that is sent.
    Complete(u64),
    /// The peer's read is answered.
    Answered,
    Nothing,
}

impl Sender {
    pub(crate) fn new(options: SenderOptions) -> Self {
        Self {
            options,
            posted: VecDeque::new(),
            started: VecDeque::new(),
            completed: 0,
            responses: VecDeque::new(),
            current: None,
            response_next: false,
            msn: [0; 3],
            reads_begun: 0,
            reads_outstanding: 0,
            formed: 0,
            block: Arena::new(BLOCK_LEN),
        }
    }

    /// Room in the send queue?
    pub(crate) fn is_full(&self) -> bool {
        self.posted.len() + self.started.len() >= self.options.send_queue
    }

    pub(crate) fn post(&mut self, request: WorkRequest) {
        self.posted.push_back(request);
    }

    /// Takes in what the receiver has seen; what of it is complete at once is given back.
    pub(crate) fn take(&mut self, event: Event) -> Option<Completion> {
        match event {
            Event::Received(completion) => return Some(completion),
            Event::ReadRequested { request, data } => self.responses.push_back((request, data)),
            Event::ReadDone(into) => {
                self.reads_outstanding -= 1;
                let read = self.started.iter_mut().find(|started| matches!(started.state, State::Reading));
                let read = read.expect("the receiver completes only reads that were begun");
                read.state = State::Done(CompletionKind::Read(into));
            }
        }
        None
    }

    /// The peer refused a read; `index` counts from the oldest outstanding.
    pub(crate) fn read_refused(&mut self, index: usize) {
        let mut reads = self.started.iter_mut().filter(|started| matches!(started.state, State::Reading));
        if let Some(read) = reads.nth(index) {
            read.status = Status::RemoteAccess;
        }
    }

    /// Whether there is nothing left that could be formed now.
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none() && self.responses.is_empty() && !self.can_start()
    }

    /// Forms FPDUs while there is something to send and less than [`QUEUED_MAX`] waits.
    ///
    /// # Errors
    /// A file that cannot be read; the stream cannot go on.
    pub(crate) fn form(&mut self, queue: &mut SendQueue, receiver: &mut Receiver) -> io::Result<()> {
        while queue.len() + self.block.piece().len() < QUEUED_MAX {
            if self.current.is_none() && !self.begin(receiver) {
                break;
            }
            if let Some(mut message) = self.current.take() {
                if let Err(error) = self.form_fpdu(&mut message, queue) {
                    self.current = Some(message);
                    return Err(error);
                }
                if message.left == 0 {
                    self.end_message(message.then, receiver);
                } else {
                    self.current = Some(message);
                }
            }
        }
        self.emit_block(queue);
        Ok(())
    }

    /// Queues a Terminate behind what has been formed; nothing else follows it.
    pub(crate) fn form_terminate(&mut self, terminate: &Terminate, queue: &mut SendQueue) {
        let mut payload = BytesMut::new();
        terminate.encode(&mut payload);
        //= rfc5040-5.4-1 rfc5040-5.4-2 rfc5040-5.4-3 rfc5040-7.1-2
        let header = self.untagged(Opcode::Terminate, 0, 2);
        let mut message = Message::new(header, payload.freeze().into(), Then::Nothing);
        self.form_fpdu(&mut message, queue).expect("no file is read");
        self.emit_block(queue);
    }

    /// Queues the zero-length RDMA Write that tells the responder to begin (RFC 6581 §9.2).
    pub(crate) fn form_ready(&mut self, queue: &mut SendQueue) {
        let header = Header::Tagged { last: true, ulp: Opcode::Write.ulp(), stag: Stag(0), offset: 0 };
        let mut message = Message::new(header, Rope::new(), Then::Nothing);
        self.form_fpdu(&mut message, queue).expect("no file is read");
        self.emit_block(queue);
    }

    /// Gives out what has completed, in the order posted, when `queued` bytes have not yet been handed to the socket.
    pub(crate) fn complete(&mut self, queued: usize, completions: &mut Vec<Completion>) {
        let handed_over = self.formed - queued as u64;
        while let Some(front) = self.started.front() {
            match &front.state {
                //= rfc5040-5.5-5 rfc5040-5.5-6
                State::Sending { sent: Some(sent), .. } if *sent <= handed_over => {}
                State::Done(_) => {}
                State::Sending { .. } | State::Reading => return,
            }
            let Some(Started { id, status, state: State::Sending { kind, .. } | State::Done(kind) }) =
                self.started.pop_front()
            else {
                unreachable!("just seen")
            };
            self.completed += 1;
            completions.push(Completion { id, status, kind });
        }
    }

    /// Holds no memory while there is nothing to do.
    pub(crate) fn rest(&mut self) {
        self.block.rest();
        let idle = self.posted.is_empty() && self.started.is_empty() && self.responses.is_empty();
        if idle && self.started.capacity().max(self.posted.capacity()) > REST_REQUESTS {
            (self.posted, self.started, self.responses) = Default::default();
        }
    }

    /// Takes back everything posted, as flushed.
    pub(crate) fn flush(&mut self, receiver: &mut Receiver, completions: &mut Vec<Completion>) {
        self.current = None;
        self.responses.clear();
        for Started { id, status, state } in std::mem::take(&mut self.started) {
            self.completed += 1;
            let status = match (&state, status) {
                (State::Done(_), status) => status,
                (_, Status::Ok) => Status::Flushed,
                (_, status) => status,
            };
            let kind = match state {
                State::Done(kind) | State::Sending { kind, .. } => kind,
                State::Reading => {
                    let read = receiver.reads.pop_front().expect("one for each that is awaited");
                    CompletionKind::Read(read.into)
                }
            };
            completions.push(Completion { id, status, kind });
        }
        for request in std::mem::take(&mut self.posted) {
            completions.push(request.flushed(|stag| receiver.remove(stag)));
        }
    }

    fn can_start(&self) -> bool {
        match self.posted.front() {
            None => false,
            // With no reads at all agreed on, the read is begun only to fail.
            Some(WorkRequest::Read { .. }) => {
                //= rfc5040-6.1-3 rfc5040-6.1-4
                self.reads_outstanding < self.options.outbound_reads || self.options.outbound_reads == 0
            }
            Some(_) => true,
        }
    }

    /// Begins the next message or request; whether there was one.
    fn begin(&mut self, receiver: &mut Receiver) -> bool {
        let can_start = self.can_start();
        if !self.responses.is_empty() && (self.response_next || !can_start) {
            self.response_next = false;
            //= rfc5040-5.2.2-5 rfc5040-5.2.1-9 rfc5040-5.5-10
            let (request, data) = self.responses.pop_front().expect("just seen");
            let header = Header::Tagged {
                last: true,
                //= rfc5040-4.4-2 rfc5040-5.2.2-1 rfc5040-5.2.2-2 rfc5040-5.2.1-12
                ulp: Opcode::ReadResponse.ulp(),
                stag: request.sink_stag,
                offset: request.sink_offset,
            };
            self.current = Some(Message::new(header, data.into(), Then::Answered));
            return true;
        }
        self.response_next = true;
        if can_start {
            //= rfc5041-5.3-1 rfc5041-5.3-2
            let request = self.posted.pop_front().expect("just seen");
            self.begin_request(request, receiver);
        }
        can_start
    }

    fn begin_request(&mut self, request: WorkRequest, receiver: &mut Receiver) {
        let id = request.id();
        let number = self.completed + self.started.len() as u64;
        let (status, state) = match request {
            WorkRequest::Send { data, invalidate, solicited, .. } => {
                //= rfc5040-5.3-1 rfc5040-5.3-2 rfc5040-5.3-5 rfc5040-5.3-6 rfc5040-5.5-4
                let opcode = Opcode::send(invalidate.is_some(), solicited);
                //= rfc5040-4.1-3 rfc5040-4.1-10 rfc5040-5.3-8 rfc5040-5.3-9
                let header = self.untagged(opcode, invalidate.map_or(0, |stag| stag.0), 0);
                self.current = Some(Message::new(header, data, Then::Complete(number)));
                (Status::Ok, State::Sending { kind: CompletionKind::Send, sent: None })
            }
            WorkRequest::Write { data, to, .. } => {
                //= rfc5041-5.2-6 rfc5040-4.1-4 rfc5040-4.1-5 rfc5040-4.1-7 rfc5040-5.1-1 rfc5040-5.1-2 rfc5040-5.1-4
                let header = Header::Tagged { last: true, ulp: Opcode::Write.ulp(), stag: to.stag, offset: to.offset };
                self.current = Some(Message::new(header, data, Then::Complete(number)));
                (Status::Ok, State::Sending { kind: CompletionKind::Write, sent: None })
            }
            WorkRequest::Read { into, from, .. } => match u32::try_from(into.len()) {
                Ok(size) if self.options.outbound_reads > 0 => {
                    let sink = self.sink_stag();
                    let (source_stag, source_offset) = (from.stag, from.offset);
                    let request = ReadRequest { sink_stag: sink, sink_offset: 0, size, source_stag, source_offset };
                    let mut payload = BytesMut::with_capacity(READ_REQUEST_LEN);
                    request.encode(&mut payload);
                    //= rfc5040-4.4-1 rfc5040-5.2.1-1 rfc5040-5.2.1-2 rfc5040-5.2.1-6 rfc5040-5.2.1-7 rfc5040-5.2.1-8
                    let header = self.untagged(Opcode::ReadRequest, 0, 1);
                    self.current = Some(Message::new(header, payload.freeze().into(), Then::Nothing));
                    self.reads_outstanding += 1;
                    receiver.reads.push_back(PendingRead { sink, into, placed: 0 });
                    (Status::Ok, State::Reading)
                }
                _ => (Status::LocalAccess, State::Done(CompletionKind::Read(into))),
            },
            WorkRequest::Invalidate { stag, .. } => {
                let memory = receiver.remove(stag);
                let status = if memory.is_some() { Status::Ok } else { Status::LocalAccess };
                (status, State::Done(CompletionKind::Invalidate(memory)))
            }
        };
        self.started.push_back(Started { id, status, state });
    }

    /// Tags for our own read buffers; only responses are matched with them, never a Write.
    fn sink_stag(&mut self) -> Stag {
        self.reads_begun = self.reads_begun.wrapping_add(1);
        Stag(SINK_BIT | self.reads_begun)
    }

    fn untagged(&mut self, opcode: Opcode, ulp_word: u32, queue: u32) -> Header {
        let msn = &mut self.msn[queue as usize];
        //= rfc5041-4.3-7 rfc5041-4.3-8 rfc5041-4.3-9
        *msn = msn.wrapping_add(1);
        //= rfc5041-4.3-12
        Header::Untagged { last: true, ulp: opcode.ulp(), ulp_word, queue, msn: *msn, offset: 0 }
    }

    fn end_message(&mut self, then: Then, receiver: &mut Receiver) {
        match then {
            Then::Complete(number) => {
                let started = &mut self.started[(number - self.completed) as usize];
                let State::Sending { sent, .. } = &mut started.state else {
                    unreachable!("only Sends and Writes complete when sent")
                };
                *sent = Some(self.formed + self.block.piece().len() as u64);
            }
            Then::Answered => receiver.reads_owed -= 1,
            Then::Nothing => {}
        }
    }

    /// Forms the next FPDU of `message`.
    fn form_fpdu(&mut self, message: &mut Message, queue: &mut SendQueue) -> io::Result<()> {
        let header_len = message.header.encoded_len();
        //= rfc5041-5.2-1 rfc5041-5.2-3
        let payload = message.left.min(self.options.payload_max);
        let ulpdu = header_len + payload;
        // If there is none behind what has begun, that grows.
        let _ = self.block.make_room(AROUND_MAX);
        let start = self.block.piece().len();
        //= rfc5044-3-1 rfc5044-4.1-1
        self.block.piece().put_u16(ulpdu as u16);
        message.next_header(payload).encode(self.block.piece());
        let mut crc = if self.options.crc { crc32c::crc32c(&self.block.piece()[start..]) } else { 0 };
        let mut left = payload;
        while left > 0 {
            let piece = message.take(left);
            left -= piece.len();
            let piece = match self.in_memory_if_needed(piece)? {
                piece @ (Piece::Peer(_) | Piece::Device(_)) => Piece::Memory(piece.into_memory()?),
                piece => piece,
            };
            match &piece {
                Piece::Memory(bytes) => {
                    if self.options.crc {
                        crc = crc32c::crc32c_append(crc, bytes);
                    }
                    if bytes.len() <= COPY_MAX {
                        self.block.put(bytes);
                        continue;
                    }
                }
                Piece::File(_) | Piece::Peer(_) | Piece::Device(_) => {}
            }
            self.emit_block(queue);
            self.emit(piece, queue);
        }
        //= rfc5044-7.1.1-8
        let pad = &[0; 4][..mpa::pad_len(ulpdu)];
        self.block.put(pad);
        //= rfc5044-4.1-2 rfc5044-4.4-8
        let crc = if self.options.crc { crc32c::crc32c_append(crc, pad) } else { 0 };
        //= rfc5044-4.4-6
        self.block.put(&mpa::crc_field(crc));
        Ok(())
    }

    /// A file piece stays one unless somebody must look at its bytes.
    fn in_memory_if_needed(&self, piece: Piece) -> io::Result<Piece> {
        match piece {
            Piece::File(range) if self.options.crc || self.options.tap.is_some() => {
                let mut buffer = Buffer::zeroed(range.len);
                range.read(&mut buffer)?;
                Ok(Piece::Memory(buffer.freeze()))
            }
            piece => Ok(piece),
        }
    }

    fn emit_block(&mut self, queue: &mut SendQueue) {
        let block = self.block.take();
        if !block.is_empty() {
            self.emit(Piece::Memory(block), queue);
        }
    }

    fn emit(&mut self, piece: Piece, queue: &mut SendQueue) {
        if let (Some(tap), Piece::Memory(bytes)) = (&self.options.tap, &piece) {
            tap.sent(bytes);
        }
        self.formed += piece.len() as u64;
        queue.push(piece);
    }
}

impl Message {
    fn new(header: Header, data: Rope, then: Then) -> Self {
        Self { header, left: data.len(), front: None, rest: data.into_iter(), then }
    }

    /// The header of the next segment, of `payload` bytes; `self.header` goes on behind it.
    fn next_header(&mut self, payload: usize) -> Header {
        self.left -= payload;
        //= rfc5041-4.1-3 rfc5041-4.1-4 rfc5041-4.1-5 rfc5041-4.1-6 rfc5041-5.2-5 rfc5041-5.2-7
        let is_last = self.left == 0;
        //= rfc5041-4.2-4 rfc5041-4.2-5 rfc5041-4.2-7 rfc5041-4.2-9 rfc5041-4.2-10 rfc5041-4.3-4 rfc5041-4.3-5
        //= rfc5041-4.3-6 rfc5041-4.3-10 rfc5041-4.3-11
        let mut header = self.header;
        match (&mut header, &mut self.header) {
            (Header::Tagged { last, .. }, Header::Tagged { offset, .. }) => {
                *last = is_last;
                *offset = offset.wrapping_add(payload as u64);
            }
            (Header::Untagged { last, .. }, Header::Untagged { offset, .. }) => {
                *last = is_last;
                *offset = offset.wrapping_add(payload as u32);
            }
            _ => unreachable!("a copy is of the same kind"),
        }
        header
    }

    /// The next piece of the payload, of at most `max` bytes.
    fn take(&mut self, max: usize) -> Piece {
        let mut piece = self.front.take().or_else(|| self.rest.next()).expect("a rope has its length");
        if piece.len() <= max {
            return piece;
        }
        let head = piece.split_to(max);
        self.front = Some(piece);
        head
    }
}

/// Most payload of an FPDU of at most `fpdu_max` bytes; in whole pages, so that file pieces stay aligned.
pub(crate) fn payload_max(fpdu_max: usize) -> usize {
    let around = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN + 3 + mpa::CRC_LEN;
    let payload = fpdu_max.clamp(FPDU_MIN, FPDU_MAX) - around;
    if payload < PAGE { payload } else { payload / PAGE * PAGE }
}

/// Bytes queued beyond which no more are formed.
pub(crate) const QUEUED_MAX: usize = 256 << 10;
/// The longest FPDU that there is.
pub(crate) const FPDU_MAX: usize = 0xffff + mpa::LENGTH_LEN + mpa::CRC_LEN;
/// The shortest limit that can be set.
pub(crate) const FPDU_MIN: usize = 128;
const PAGE: usize = 4096;
/// Pieces up to this length are cheaper to copy than to gather.
const COPY_MAX: usize = 256;
const BLOCK_LEN: usize = 8192;
/// What surrounds the payload of an FPDU.
const AROUND_MAX: usize = 32;
/// Room for requests that is not worth giving back.
const REST_REQUESTS: usize = 4;
const SINK_BIT: u32 = 0x8000_0000;
