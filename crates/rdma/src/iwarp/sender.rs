//! The sending half of a stream: takes work requests, and forms FPDUs. Does no I/O.
//!
//! Read RFC 5041 §5 (segmentation) and RFC 5040 §5.5 (ordering). Bytes are formed lazily as the [`SendQueue`] drains,
//! so few bytes are queued. Responses to the peer's reads alternate with this side's requests, message by message.
//! Messages are never interleaved, because some peers (Linux siw) accept that only between tagged and untagged
//! messages.
//!
//! Payload is never copied, except for small pieces. An FPDU consists of a few bytes of header, pieces of the caller's
//! rope, and a few bytes of trailer. Small pieces share one block of memory with the headers around them.
//!
//! On error, [`Sender::flush`] returns all posted requests.

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
    /// Requests that were posted and not started.
    posted: VecDeque<WorkRequest>,
    /// Requests that were started and not completed, in the order in which they were posted.
    started: VecDeque<Started>,
    /// The number of completed requests, which is the number of the first request in `started`.
    completed: u64,
    /// The responses to the peer's reads.
    responses: VecDeque<(ReadRequest, Bytes)>,
    current: Option<Message>,
    /// `true` if the next message is a response, when both a response and a request wait.
    response_next: bool,
    /// The number of messages sent on queues 0, 1 and 2.
    msn: [u32; 3],
    reads_begun: u32,
    reads_outstanding: u16,
    /// Total bytes moved to the queue.
    formed: u64,
    block: Arena,
}

pub(crate) struct SenderOptions {
    /// `true` if CRCs are used.
    pub(crate) crc: bool,
    /// Maximum number of posted requests.
    pub(crate) send_queue: usize,
    /// Maximum number of outstanding reads.
    pub(crate) outbound_reads: u16,
    /// Maximum payload of one FPDU in bytes.
    pub(crate) payload_max: usize,
    /// The capture of all sent bytes.
    pub(crate) tap: Option<Tap>,
}

struct Started {
    id: WorkId,
    status: Status,
    state: State,
}

enum State {
    /// Completes when `sent` bytes of the stream have been handed to the socket; `None` while its FPDUs are being
    /// formed.
    Sending {
        kind: CompletionKind,
        sent: Option<u64>,
    },
    /// A read that waits for its response. Its buffer is with the receiver.
    Reading,
    Done(CompletionKind),
}

/// A message, some of whose FPDUs can have been formed.
struct Message {
    header: Header,
    front: Option<Piece>,
    rest: <Rope as IntoIterator>::IntoIter,
    left: usize,
    then: AfterMessage,
}

/// The action after the last FPDU of a message has been formed.
enum AfterMessage {
    /// The request of this number completes when the FPDU has been sent.
    Complete(u64),
    /// The response to the peer's read is complete.
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

    /// Returns `true` if the send queue is full.
    pub(crate) fn is_full(&self) -> bool {
        self.posted.len() + self.started.len() >= self.options.send_queue
    }

    pub(crate) fn post(&mut self, request: WorkRequest) {
        self.posted.push_back(request);
    }

    /// Handles an event of the receiver. Returns its completion, if the event is one.
    pub(crate) fn take(&mut self, event: Event) -> Option<Completion> {
        match event {
            Event::Received(completion) => return Some(completion),
            Event::ReadRequested { request, data } => self.responses.push_back((request, data)),
            Event::ReadDone(into) => {
                self.reads_outstanding -= 1;
                let read = self.started.iter_mut().find(|started| matches!(started.state, State::Reading));
                let read = read.expect("the receiver must complete only started reads");
                read.state = State::Done(CompletionKind::Read(into));
            }
        }
        None
    }

    /// Records that the peer rejected a read. `index` counts from the oldest outstanding read.
    pub(crate) fn read_refused(&mut self, index: usize) {
        let mut reads = self.started.iter_mut().filter(|started| matches!(started.state, State::Reading));
        if let Some(read) = reads.nth(index) {
            read.status = Status::RemoteAccess;
        }
    }

    /// Returns `true` if nothing can be formed now.
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none() && self.responses.is_empty() && !self.can_start()
    }

    /// Forms FPDUs while there is data to send and less than [`QUEUED_MAX`] bytes are queued.
    ///
    /// # Errors
    /// A file range cannot be read. The stream cannot continue.
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

    /// Queues a Terminate behind the formed data. Nothing follows it.
    pub(crate) fn form_terminate(&mut self, terminate: &Terminate, queue: &mut SendQueue) {
        let mut payload = BytesMut::new();
        terminate.encode(&mut payload);
        //= rfc5040-5.4-1 rfc5040-5.4-2 rfc5040-5.4-3 rfc5040-7.1-2
        let header = self.untagged(Opcode::Terminate, 0, 2);
        let mut message = Message::new(header, payload.freeze().into(), AfterMessage::Nothing);
        self.form_fpdu(&mut message, queue).expect("no file range is sent");
        self.emit_block(queue);
    }

    /// Queues the zero-length RDMA Write that permits the responder to send (RFC 6581 §9.2).
    pub(crate) fn form_ready(&mut self, queue: &mut SendQueue) {
        let header = Header::Tagged { last: true, ulp: Opcode::Write.ulp(), stag: Stag(0), offset: 0 };
        let mut message = Message::new(header, Rope::new(), AfterMessage::Nothing);
        self.form_fpdu(&mut message, queue).expect("no file range is sent");
        self.emit_block(queue);
    }

    /// Returns completions in the order of posting. `queued` bytes have not been handed to the socket.
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
                unreachable!("the front was just checked")
            };
            self.completed += 1;
            completions.push(Completion { id, status, kind });
        }
    }

    /// Frees memory while there is nothing to do.
    pub(crate) fn shrink_idle(&mut self) {
        self.block.shrink_idle();
        let idle = self.posted.is_empty() && self.started.is_empty() && self.responses.is_empty();
        if idle && self.started.capacity().max(self.posted.capacity()) > IDLE_REQUESTS {
            (self.posted, self.started, self.responses) = Default::default();
        }
    }

    /// Flushes all posted requests.
    pub(crate) fn flush(&mut self, receiver: &mut Receiver, completions: &mut Vec<Completion>) {
        self.current = None;
        self.responses.clear();
        for Started { id, status, state } in std::mem::take(&mut self.started) {
            let status = match (&state, status) {
                (State::Done(_), status) => status,
                (_, Status::Ok) => Status::Flushed,
                (_, status) => status,
            };
            let kind = match state {
                State::Done(kind) | State::Sending { kind, .. } => kind,
                State::Reading => {
                    let read = receiver.reads.pop_front().expect("each outstanding read must have a buffer");
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
            // If no reads were negotiated, the read is started only to fail.
            Some(WorkRequest::Read { .. }) => {
                //= rfc5040-6.1-3 rfc5040-6.1-4
                self.reads_outstanding < self.options.outbound_reads || self.options.outbound_reads == 0
            }
            Some(_) => true,
        }
    }

    /// Starts the next response or request. Returns `true` if there was one.
    fn begin(&mut self, receiver: &mut Receiver) -> bool {
        let can_start = self.can_start();
        if !self.responses.is_empty() && (self.response_next || !can_start) {
            self.response_next = false;
            //= rfc5040-5.2.2-5 rfc5040-5.2.1-9 rfc5040-5.5-10
            let (request, data) = self.responses.pop_front().expect("the queue was just checked");
            let header = Header::Tagged {
                last: true,
                //= rfc5040-4.4-2 rfc5040-5.2.2-1 rfc5040-5.2.2-2 rfc5040-5.2.1-12
                ulp: Opcode::ReadResponse.ulp(),
                stag: request.sink_stag,
                offset: request.sink_offset,
            };
            self.current = Some(Message::new(header, data.into(), AfterMessage::Answered));
            return true;
        }
        self.response_next = true;
        if can_start {
            //= rfc5041-5.3-1 rfc5041-5.3-2
            let request = self.posted.pop_front().expect("the queue was just checked");
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
                self.current = Some(Message::new(header, data, AfterMessage::Complete(number)));
                (Status::Ok, State::Sending { kind: CompletionKind::Send, sent: None })
            }
            WorkRequest::Write { data, to, .. } => {
                //= rfc5041-5.2-6 rfc5040-4.1-4 rfc5040-4.1-5 rfc5040-4.1-7 rfc5040-5.1-1 rfc5040-5.1-2 rfc5040-5.1-4
                let header = Header::Tagged { last: true, ulp: Opcode::Write.ulp(), stag: to.stag, offset: to.offset };
                self.current = Some(Message::new(header, data, AfterMessage::Complete(number)));
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
                    self.current = Some(Message::new(header, payload.freeze().into(), AfterMessage::Nothing));
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

    /// Returns an STag for a read buffer of this side. Only responses are matched with it, never a Write.
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

    fn end_message(&mut self, then: AfterMessage, receiver: &mut Receiver) {
        match then {
            AfterMessage::Complete(number) => {
                let started = &mut self.started[(number - self.completed) as usize];
                let State::Sending { sent, .. } = &mut started.state else {
                    unreachable!("only Sends and Writes complete when they are sent")
                };
                *sent = Some(self.formed + self.block.piece().len() as u64);
            }
            AfterMessage::Answered => receiver.reads_unanswered -= 1,
            AfterMessage::Nothing => {}
        }
    }

    /// Forms the next FPDU of `message`.
    fn form_fpdu(&mut self, message: &mut Message, queue: &mut SendQueue) -> io::Result<()> {
        let header_len = message.header.encoded_len();
        //= rfc5041-5.2-1 rfc5041-5.2-3
        let payload = message.left.min(self.options.payload_max);
        let ulpdu = header_len + payload;
        // If there is no room behind the current block, the block grows.
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

    /// Reads a file range into memory if its bytes are needed for the CRC or for a capture.
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
    fn new(header: Header, data: Rope, then: AfterMessage) -> Self {
        Self { header, left: data.len(), front: None, rest: data.into_iter(), then }
    }

    /// Returns the header of the next segment, of `payload` bytes, and advances `self.header` behind it.
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
            _ => unreachable!("both headers have the same kind"),
        }
        header
    }

    /// Returns the next piece of the payload, of at most `max` bytes.
    fn take(&mut self, max: usize) -> Piece {
        let mut piece =
            self.front.take().or_else(|| self.rest.next()).expect("the rope must not be shorter than its length");
        if piece.len() <= max {
            return piece;
        }
        let head = piece.split_to(max);
        self.front = Some(piece);
        head
    }
}

/// Returns the maximum payload of an FPDU of at most `fpdu_max` bytes, in whole pages, so that file ranges stay
/// aligned.
pub(crate) fn payload_max(fpdu_max: usize) -> usize {
    let around = mpa::LENGTH_LEN + ddp::UNTAGGED_LEN + 3 + mpa::CRC_LEN;
    let payload = fpdu_max.clamp(FPDU_MIN, FPDU_MAX) - around;
    if payload < PAGE { payload } else { payload / PAGE * PAGE }
}

/// The number of queued bytes at which no more FPDUs are formed.
pub(crate) const QUEUED_MAX: usize = 256 << 10;
/// Maximum bytes of an FPDU.
pub(crate) const FPDU_MAX: usize = 0xffff + mpa::LENGTH_LEN + mpa::CRC_LEN;
/// Minimum value of the limit for FPDUs, in bytes.
pub(crate) const FPDU_MIN: usize = 128;
const PAGE: usize = 4096;
/// Maximum length in bytes of pieces for which a copy costs less than gathering.
const COPY_MAX: usize = 256;
const BLOCK_LEN: usize = 8192;
/// Maximum bytes of an FPDU around its payload.
const AROUND_MAX: usize = 32;
/// Maximum number of requests for which memory is kept.
const IDLE_REQUESTS: usize = 4;
const SINK_BIT: u32 = 0x8000_0000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RemoteSegment, receives::ReceiveQueue};

    const SEND_QUEUE: usize = 3;

    fn sender() -> Sender {
        let options =
            SenderOptions { crc: false, send_queue: SEND_QUEUE, outbound_reads: 1, payload_max: 4096, tap: None };
        Sender::new(options)
    }

    fn receiver() -> Receiver {
        Receiver::new(false, 1, 1, ReceiveQueue::new(None, Vec::new()))
    }

    fn send(id: u64, len: usize) -> WorkRequest {
        WorkRequest::Send { id: WorkId(id), data: Bytes::from(vec![0; len]).into(), invalidate: None, solicited: false }
    }

    fn read(id: u64) -> WorkRequest {
        let from = RemoteSegment { stag: Stag(1), offset: 0 };
        WorkRequest::Read { id: WorkId(id), into: Buffer::zeroed(8), from }
    }

    fn completed(sender: &mut Sender, queued: usize) -> Vec<WorkId> {
        let mut completions = Vec::new();
        sender.complete(queued, &mut completions);
        completions.into_iter().map(|completion| completion.id).collect()
    }

    #[test]
    fn request_occupies_the_send_queue_until_it_completes() {
        let (mut sender, mut receiver, mut queue) = (sender(), receiver(), SendQueue::new());
        sender.post(send(0, 10));
        sender.post(send(1, 10));
        sender.form(&mut queue, &mut receiver).unwrap();
        assert!(!sender.is_full());
        sender.post(send(2, 10));
        assert!(sender.is_full(), "two requests are formed and one is posted");
        // The second request has not been handed to the socket.
        let first = queue.len() / 2;
        assert_eq!(completed(&mut sender, queue.len()), []);
        assert_eq!(completed(&mut sender, first + 1), []);
        assert_eq!(completed(&mut sender, first), [WorkId(0)]);
        assert!(!sender.is_full());
        assert_eq!(completed(&mut sender, 0), [WorkId(1)]);
    }

    #[test]
    fn sender_is_idle_while_nothing_can_be_formed() {
        let (mut sender, mut receiver, mut queue) = (sender(), receiver(), SendQueue::new());
        assert!(sender.is_idle());
        sender.post(read(0));
        assert!(!sender.is_idle());
        sender.form(&mut queue, &mut receiver).unwrap();
        sender.post(read(1));
        assert!(sender.is_idle(), "one read may be outstanding");
        let request =
            ReadRequest { sink_stag: Stag(1), sink_offset: 0, size: 8, source_stag: Stag(2), source_offset: 0 };
        sender.take(Event::ReadRequested { request, data: Bytes::from_static(&[0; 8]) });
        receiver.reads_unanswered = 1;
        assert!(!sender.is_idle(), "the response can be formed");
        sender.form(&mut queue, &mut receiver).unwrap();
        assert!(sender.is_idle());
    }

    #[test]
    fn long_message_is_formed_as_the_queue_empties() {
        let (mut sender, mut receiver, mut queue) = (sender(), receiver(), SendQueue::new());
        sender.post(send(0, 2 * QUEUED_MAX + QUEUED_MAX / 2));
        sender.form(&mut queue, &mut receiver).unwrap();
        let full = QUEUED_MAX..QUEUED_MAX + mpa::fpdu_len(4096 + ddp::UNTAGGED_LEN);
        assert!(full.contains(&queue.len()), "{}", queue.len());
        assert!(!sender.is_idle(), "the rest of the message can be formed");
        queue.consume(queue.len());
        sender.form(&mut queue, &mut receiver).unwrap();
        assert!(queue.len() >= QUEUED_MAX);
        queue.consume(queue.len());
        sender.form(&mut queue, &mut receiver).unwrap();
        assert!(sender.is_idle() && !queue.is_empty());
    }

    #[test]
    fn payload_of_an_fpdu_is_whole_pages_unless_it_is_less_than_one() {
        let around = 2 + 18 + 3 + 4;
        let of = |payload: usize| payload_max(payload + around);
        assert_eq!([of(101), of(4095), of(4096), of(8191), of(8192)], [101, 4095, 4096, 4096, 8192]);
        assert_eq!((payload_max(0), payload_max(usize::MAX)), (101, 15 * 4096));
    }
}
