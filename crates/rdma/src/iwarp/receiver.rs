//! The receiving half of a stream: takes bytes, places data and returns events. Does no I/O.
//!
//! Read RFC 5041 §5–§7 (placement, delivery, checks) and RFC 5040 §5. The caller passes staged bytes to
//! [`Receiver::feed`]. While the payload of a segment is due, the caller can also read directly into the destination,
//! which is [`Receiver::place_of`] a [`Forecast`], and report that with [`Receiver::take`].
//!
//! The receiver owns the memory that the peer can fill: posted receives, registered regions and the buffers of
//! outstanding reads. Every segment is validated before its first byte is placed. A region is looked up again whenever
//! more bytes arrive, so an invalidation takes effect within a segment.
//!
//! On error it returns a [`Fault`]. The stream cannot continue then; the buffers stay here until they are flushed.

mod forecast;

use std::collections::VecDeque;

use buf::Buffer;
use bytes::Bytes;

use super::{
    ddp::{self, Header},
    mpa,
    rdmap::{ErrorCode, Opcode, READ_REQUEST_LEN, ReadRequest, TERMINATE_MAX, Terminate},
};
use crate::{Completion, CompletionKind, Memory, Stag, Status, receives::ReceiveQueue, regions::Regions};
pub(crate) use forecast::Forecast;

/// An event for the sender or the application.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message has filled a receive.
    Received(Completion),
    /// The oldest outstanding read is complete.
    ReadDone(Buffer),
    /// The peer reads `data` of this side.
    ReadRequested { request: ReadRequest, data: Bytes },
}

/// The reason why the stream has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The peer violated the protocol. This Terminate must be sent to it.
    Peer(Box<Terminate>),
    /// The peer reported that this side violated the protocol.
    Terminated(Box<Terminate>),
}

/// An outstanding RDMA Read.
#[derive(Debug)]
pub(crate) struct PendingRead {
    pub(crate) sink: Stag,
    pub(crate) into: Buffer,
    /// The number of bytes placed so far.
    pub(crate) placed: usize,
}

pub(crate) struct Receiver {
    crc: bool,
    inbound_reads: u16,
    pub(crate) regions: Regions,
    pub(crate) recvs: ReceiveQueue,
    /// The outstanding reads, oldest first: responses arrive in this order (RFC 5040 §5.5).
    pub(crate) reads: VecDeque<PendingRead>,
    /// The number of received read requests whose responses have not been sent.
    pub(crate) reads_unanswered: u16,
    /// The number of complete messages on queues 0, 1 and 2.
    done: [u32; 3],
    /// The number of bytes of the incomplete message at the front of `recvs`.
    filled: usize,
    control: Control,
    state: State,
    running_crc: u32,
    fpdus: u64,
    /// The number of FPDUs since the last one with bulk data.
    small_run: u32,
    /// The number of FPDUs until forecasts are used again.
    suspended: u32,
    /// Minimum payload in bytes of an FPDU after which more FPDUs of its kind are forecast.
    pub(crate) forecast_min: usize,
}

/// A Read Request or Terminate that is being received.
struct Control {
    bytes: [u8; TERMINATE_MAX],
    len: usize,
}

#[derive(Clone, Copy)]
enum State {
    /// The next bytes are a length and a DDP header.
    Header,
    /// The next bytes are payload of a segment; some of it has not arrived.
    Payload(Segment),
    /// The next bytes are padding and CRC.
    Trailer(Segment),
}

#[derive(Clone, Copy)]
struct Segment {
    header: Header,
    opcode: Opcode,
    /// The length of the ULPDU.
    len: u16,
    payload: usize,
    done: usize,
}

impl Receiver {
    pub(crate) fn new(crc: bool, inbound_reads: u16, regions_max: usize, recvs: ReceiveQueue) -> Self {
        Self {
            crc,
            inbound_reads,
            //= rfc5041-8.2-3 rfc5040-7.2-5 rfc5040-7.2-10
            regions: Regions::new(regions_max),
            recvs,
            reads: VecDeque::new(),
            reads_unanswered: 0,
            done: [0; 3],
            filled: 0,
            control: Control { bytes: [0; TERMINATE_MAX], len: 0 },
            state: State::Header,
            running_crc: 0,
            fpdus: 0,
            small_run: 0,
            suspended: 0,
            forecast_min: SMALL_MAX,
        }
    }

    /// Returns the number of complete FPDUs received.
    pub(crate) fn fpdus(&self) -> u64 {
        self.fpdus
    }

    /// Returns `true` if the stream can end here: it is not inside an FPDU.
    pub(crate) fn between_fpdus(&self) -> bool {
        matches!(self.state, State::Header)
    }

    /// Processes bytes and returns their number. The remaining bytes are too few to proceed, or belong to a Send for
    /// which there is no receive now (see [`ReceiveQueue::is_starved`]).
    pub(crate) fn feed(&mut self, bytes: &[u8], events: &mut Vec<Event>) -> Result<usize, Fault> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            at += match self.state {
                State::Header => match self.start_segment(rest)? {
                    0 => return Ok(at),
                    taken => taken,
                },
                State::Payload(_) if rest.is_empty() => return Ok(at),
                State::Payload(_) => {
                    let place = self.place()?;
                    let len = place.len().min(rest.len());
                    place[..len].copy_from_slice(&rest[..len]);
                    self.placed(len)?;
                    len
                }
                State::Trailer(segment) => {
                    let pad = mpa::pad_len(segment.len.into());
                    //= rfc5044-6-4 rfc5044-5.1-1
                    let Some(trailer) = rest.get(..pad + mpa::CRC_LEN) else { return Ok(at) };
                    self.end_segment(segment, &trailer[..pad], &trailer[pad..], events)?;
                    trailer.len()
                }
            };
        }
    }

    /// Returns the destination of the rest of the current payload, which is empty if no payload is due.
    fn place(&mut self) -> Result<&mut [u8], Fault> {
        let State::Payload(segment) = self.state else { return Ok(&mut []) };
        //= rfc5041-4.1-1 rfc5041-4.1-2
        let left = segment.payload - segment.done;
        match segment.header {
            Header::Tagged { stag, offset, .. } if segment.opcode == Opcode::Write => {
                // This cannot overflow, because the whole segment was validated when it began.
                let place = self.regions.for_write(stag, offset + segment.done as u64, left);
                place.map_err(|fault| peer(ErrorCode::of_write(fault), &segment))
            }
            Header::Tagged { .. } => {
                let read = self.reads.front_mut().expect("the segment was validated when it began");
                Ok(&mut read.into[read.placed..][..left])
            }
            Header::Untagged { queue: 0, .. } => {
                let buffer = self.recvs.front().expect("the segment was validated when it began");
                Ok(&mut buffer[self.filled..][..left])
            }
            Header::Untagged { .. } => Ok(&mut self.control.bytes[self.control.len..][..left]),
        }
    }

    /// Records that the first `len` bytes of [`place`](Self::place) have been filled.
    fn placed(&mut self, len: usize) -> Result<(), Fault> {
        if self.crc {
            let crc = self.running_crc;
            self.running_crc = crc32c::crc32c_append(crc, &self.place()?[..len]);
        }
        let State::Payload(segment) = &mut self.state else {
            assert_eq!(len, 0, "no bytes must be placed if none are due");
            return Ok(());
        };
        segment.done += len;
        let segment = *segment;
        match segment.header {
            Header::Tagged { .. } if segment.opcode == Opcode::Write => {}
            Header::Tagged { .. } => self.reads[0].placed += len,
            Header::Untagged { queue: 0, .. } => self.filled += len,
            Header::Untagged { .. } => self.control.len += len,
        }
        if segment.done == segment.payload {
            self.state = State::Trailer(segment);
        }
        Ok(())
    }

    /// Returns the number of bytes to read behind the place of a forecast.
    ///
    /// The number is large while FPDUs are small, so that one system call receives many. It is small among bulk data,
    /// because staged bytes must be copied.
    pub(crate) fn look_ahead(&self) -> usize {
        match self.state {
            // If receives are scarce, data should wait in the socket rather than in the stage.
            _ if self.small_run >= SMALL_RUN && !self.recvs.is_scarce() => AHEAD_MAX,
            // Behind bulk data, only the next header is needed, and little of the next bulk data.
            State::Payload(segment) if segment.payload - segment.done > AHEAD => AHEAD_MIN,
            _ => AHEAD,
        }
    }

    fn start_segment(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let Some((&length, rest)) = bytes.split_first_chunk() else { return Ok(0) };
        let len = u16::from_be_bytes(length);
        if usize::from(len) < ddp::TAGGED_LEN {
            return Err(stream_fault(ErrorCode::MPA_LENGTH));
        }
        let header = Header::parse(rest).map_err(|version| {
            stream_fault(if version.tagged { ErrorCode::TAGGED_VERSION } else { ErrorCode::UNTAGGED_VERSION })
        })?;
        let Some(header) = header else { return Ok(0) };
        //= rfc5044-4.3-10 rfc5044-4.3-11 rfc5044-5.2-1
        let header_len = header.encoded_len();
        let Some(payload) = usize::from(len).checked_sub(header_len) else {
            return Err(stream_fault(ErrorCode::MPA_LENGTH));
        };
        if matches!(header, Header::Untagged { queue: 0, .. }) && !self.recvs.prepare(!self.reads.is_empty()) {
            return Ok(0);
        }
        let mut segment = Segment { header, opcode: Opcode::Terminate, len, payload, done: 0 };
        //= rfc5040-7.2-1 rfc5040-7.2-6 rfc5040-7.2-2 rfc5040-7.2-3 rfc5040-7.2-7 rfc5040-7.2-8
        segment.opcode = Opcode::parse(header.ulp()).map_err(|error| peer(error, &segment))?;
        self.check(&segment)?;
        let taken = mpa::LENGTH_LEN + header_len;
        if self.crc {
            self.running_crc = crc32c::crc32c(&bytes[..taken]);
        }
        self.state = if payload > 0 { State::Payload(segment) } else { State::Trailer(segment) };
        Ok(taken)
    }

    /// Validates a segment before any of it is placed (RFC 5041 §7.1, RFC 5040 §7.2).
    fn check(&mut self, segment: &Segment) -> Result<(), Fault> {
        let fault = |error| Err(peer(error, segment));
        match (segment.opcode, segment.header) {
            (Opcode::Write, Header::Tagged { stag, offset, .. }) => {
                // A zero-length Write accesses no region; some peers begin with one (RFC 6581 §9.2).
                //= rfc5041-5.2-8 rfc5041-5.2-9 rfc5041-5.2-10
                if segment.payload > 0 {
                    let place = self.regions.for_write(stag, offset, segment.payload);
                    //= rfc5041-4.2-6 rfc5041-7.1-2 rfc5041-8.3-4
                    place.map_err(|error| peer(ErrorCode::of_write(error), segment))?;
                    self.regions.touch(stag, offset + segment.payload as u64);
                }
                Ok(())
            }
            (Opcode::ReadResponse, Header::Tagged { stag, offset, last, .. }) => {
                let Some(read) = self.reads.front().filter(|read| read.sink == stag) else {
                    return fault(ErrorCode::TAGGED_STAG);
                };
                let left = read.into.len() - read.placed;
                if offset != read.placed as u64 || segment.payload > left || (last && segment.payload < left) {
                    return fault(ErrorCode::TAGGED_BOUNDS);
                }
                Ok(())
            }
            (opcode, Header::Untagged { queue, msn, offset, .. }) => {
                let Some(done) = self.done.get(queue as usize) else { return fault(ErrorCode::UNTAGGED_QUEUE) };
                //= rfc5040-4.2-1 rfc5040-5.2.1-4 rfc5040-5.2.1-6 rfc5040-5.1-3
                let expected_queue = match opcode {
                    Opcode::Write | Opcode::ReadResponse => return fault(ErrorCode::UNEXPECTED_OPCODE),
                    Opcode::ReadRequest => 1,
                    Opcode::Terminate => 2,
                    _ => 0,
                };
                if queue != expected_queue {
                    return fault(ErrorCode::UNEXPECTED_OPCODE);
                }
                //= rfc5041-4.3-7 rfc5041-4.3-9 rfc5041-5.3-4
                if msn != done.wrapping_add(1) {
                    return fault(ErrorCode::UNTAGGED_MSN);
                }
                self.check_untagged(segment, queue, offset)
            }
            _ => fault(ErrorCode::UNEXPECTED_OPCODE),
        }
    }

    fn check_untagged(&mut self, segment: &Segment, queue: u32, offset: u32) -> Result<(), Fault> {
        let (filled, room) = match queue {
            0 => match self.recvs.front() {
                Some(buffer) => (self.filled, buffer.len()),
                None => return Err(peer(ErrorCode::UNTAGGED_NO_BUFFER, segment)),
            },
            // RFC 5040 §6.1: the queue of read requests has as many buffers as reads were negotiated.
            //= rfc5040-6.1-2 rfc5040-6.1-5 rfc5040-5.2.2-3
            1 if self.reads_unanswered >= self.inbound_reads => {
                return Err(peer(ErrorCode::UNTAGGED_NO_BUFFER, segment));
            }
            1 => (self.control.len, READ_REQUEST_LEN),
            //= rfc5040-5.4-4 rfc5040-5.4-5 rfc5040-5.4-6 rfc5040-5.4-7
            _ => (self.control.len, TERMINATE_MAX),
        };
        //= rfc5041-7.1-1
        if offset as usize != filled {
            return Err(peer(ErrorCode::UNTAGGED_OFFSET, segment));
        }
        if segment.payload > room - filled {
            return Err(peer(ErrorCode::UNTAGGED_TOO_LONG, segment));
        }
        // Messages of queues 1 and 2 fit in one segment. Requiring that avoids a buffer for each incomplete message.
        if queue > 0 && !segment.header.last() {
            return Err(peer(ErrorCode::UNSPECIFIED, segment));
        }
        Ok(())
    }

    fn end_segment(&mut self, segment: Segment, pad: &[u8], crc: &[u8], events: &mut Vec<Event>) -> Result<(), Fault> {
        //= rfc5044-4.1-3 rfc5044-4.4-5 rfc5044-7.1.1-10 rfc5044-7.1.1-12 rfc5044-4.4-9 rfc5044-4.4-10 rfc5044-6-2
        if self.crc && mpa::crc_field(crc32c::crc32c_append(self.running_crc, pad)) != crc {
            //= rfc5044-3-5 rfc5044-6-1 rfc5044-8-1 rfc5044-8-4
            return Err(stream_fault(ErrorCode::MPA_CRC));
        }
        self.state = State::Header;
        self.fpdus += 1;
        self.suspended = self.suspended.saturating_sub(1);
        self.small_run = if segment.payload > SMALL_MAX { 0 } else { self.small_run.saturating_add(1) };
        //= rfc5041-5.3-3 rfc5041-5.3-4 rfc5041-5.4-1 rfc5041-4.1-7 rfc5041-5.2-4
        if !segment.header.last() {
            return Ok(());
        }
        match segment.header {
            Header::Tagged { .. } if segment.opcode == Opcode::Write => {}
            Header::Tagged { .. } => {
                let read = self.reads.pop_front().expect("the segment was validated when it began");
                //= rfc5040-5.2-1 rfc5040-5.5-9 rfc5040-5.5-11 rfc5040-5.2.2-4 rfc5040-5.5-2
                events.push(Event::ReadDone(read.into));
            }
            Header::Untagged { queue, ulp_word, .. } => {
                self.done[queue as usize] = self.done[queue as usize].wrapping_add(1);
                match queue {
                    0 => events.push(self.end_send(&segment, Stag(ulp_word))?),
                    //= rfc5040-5.2.1-3 rfc5040-5.5-3 rfc5040-5.5-8
                    1 => events.push(self.end_read_request(&segment)?),
                    _ => return Err(self.end_terminate(&segment)),
                }
            }
        }
        Ok(())
    }

    fn end_send(&mut self, segment: &Segment, stag: Stag) -> Result<Event, Fault> {
        let invalidated = if segment.opcode.invalidates() {
            //= rfc5040-7.2-4 rfc5040-5.3-10
            let memory = self.regions.remove(stag);
            Some((stag, memory.ok_or_else(|| peer(ErrorCode::CANNOT_INVALIDATE, segment))?))
        } else {
            None
        };
        //= rfc5040-5.3-3 rfc5040-5.3-4 rfc5040-5.3-7 rfc5040-5.5-1 rfc5040-5.5-7
        let (id, mut buffer) = self.recvs.pop().expect("the segment was validated when it began");
        buffer.set_len(std::mem::take(&mut self.filled));
        let kind = CompletionKind::Receive { buffer, invalidated, solicited: segment.opcode.solicits() };
        Ok(Event::Received(Completion { id, status: Status::Ok, kind }))
    }

    fn end_read_request(&mut self, segment: &Segment) -> Result<Event, Fault> {
        let len = std::mem::take(&mut self.control.len);
        let Some(bytes) = self.control.bytes[..len].first_chunk() else {
            return Err(peer(ErrorCode::UNSPECIFIED, segment));
        };
        let request = ReadRequest::parse(bytes);
        let data = match request.size {
            //= rfc5040-5.2.1-13 rfc5040-7.2-9 rfc5040-7.2-10 rfc5040-7.2-11 rfc5040-7.2-12 rfc5040-7.2-13
            //= rfc5040-5.2.1-14 rfc5040-5.2.1-15 rfc5040-5.2.1-5
            0 => Ok(Bytes::new()),
            size => self.regions.for_read(request.source_stag, request.source_offset, size as usize),
        };
        match data {
            Ok(data) => {
                self.reads_unanswered += 1;
                Ok(Event::ReadRequested { request, data })
            }
            Err(fault) => Err(Fault::Peer(Box::new(Terminate {
                error: ErrorCode::of_read(fault),
                segment: Some((segment.len, segment.header)),
                read_request: Some(request),
            }))),
        }
    }

    fn end_terminate(&mut self, segment: &Segment) -> Fault {
        match Terminate::parse(&self.control.bytes[..self.control.len]) {
            Some(terminate) => Fault::Terminated(Box::new(terminate)),
            None => peer(ErrorCode::UNSPECIFIED, segment),
        }
    }

    /// Flushes all posted receives.
    pub(crate) fn flush(&mut self, completions: &mut Vec<Completion>) {
        self.recvs.flush(completions);
    }

    /// Removes a region and returns its memory.
    pub(crate) fn remove(&mut self, stag: Stag) -> Option<Memory> {
        self.regions.remove(stag)
    }
}

fn peer(error: ErrorCode, segment: &Segment) -> Fault {
    let segment = Some((segment.len, segment.header));
    Fault::Peer(Box::new(Terminate { error, segment, read_request: None }))
}

/// Returns a fault in bytes that are not a valid segment.
fn stream_fault(error: ErrorCode) -> Fault {
    Fault::Peer(Box::new(Terminate { error, segment: None, read_request: None }))
}

const AHEAD_MAX: usize = 64 << 10;
const AHEAD: usize = 4096;
const AHEAD_MIN: usize = 256;
/// The number of consecutive FPDUs without bulk data after which the next one probably has none, too.
const SMALL_RUN: u32 = 16;
/// Maximum payload in bytes of an FPDU that is not bulk data.
const SMALL_MAX: usize = 16 << 10;
/// Capacity of the stage: what [`Receiver::look_ahead`] requests, behind an incomplete header.
pub(crate) const STAGE_LEN: usize = AHEAD_MAX + 64;

#[cfg(test)]
mod tests;
