//! The receiving half: takes records, places data and returns events. Does no I/O.
//!
//! The receiver owns the memory that the peer can fill through the ring: posted receives, registered regions, and the
//! buffers of reads requested from the peer. Every record is validated before its first byte is placed.
//!
//! On error it returns a [`Fault`]. The connection cannot continue then; the buffers stay here until they are flushed.

use std::collections::VecDeque;

use buf::Buffer;
use bytes::Bytes;

use super::{
    record::{Arrived, Record},
    ring::{Consumer, Corrupt, Words},
};
use crate::{Completion, CompletionKind, Stag, Status, receives::ReceiveQueue, regions::Regions};

/// An event for the queue pair.
#[derive(Debug)]
pub(super) enum Event {
    /// A message has filled a receive.
    Received(Completion),
    /// The oldest read requested from the peer is complete.
    ReadDone(Buffer),
    /// The peer reads this data.
    ReadRequested(Bytes),
    /// The peer sends nothing more.
    Closed,
    /// No further action is necessary.
    Nothing,
}

/// The reason why the connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The peer violated the protocol. It gets this description, and the number of its read if that was the reason.
    Peer { what: String, refused: u64 },
    /// The peer reported that this side violated the protocol, with the number of the read if that was the reason.
    Terminated { what: String, refused: u64 },
}

/// A read requested from the peer.
#[derive(Debug)]
pub(super) struct PendingRead {
    /// The number of the read, counted from 1.
    pub(super) number: u64,
    pub(super) into: Buffer,
    placed: usize,
}

pub(super) struct Receiver {
    pub(super) regions: Regions,
    pub(super) recvs: ReceiveQueue,
    /// The outstanding reads, oldest first: responses arrive in this order.
    pub(super) reads: VecDeque<PendingRead>,
    /// The number of the peer's requests whose responses have not been sent.
    pub(super) reads_unanswered: u16,
    inbound_reads: u16,
    /// The number of the peer's requests so far.
    requests: u64,
    /// The number of bytes of the incomplete message at the front of `recvs`.
    filled: usize,
}

impl PendingRead {
    pub(super) fn new(number: u64, into: Buffer) -> Self {
        Self { number, into, placed: 0 }
    }
}

impl Receiver {
    pub(super) fn new(inbound_reads: u16, regions_max: usize, recvs: ReceiveQueue) -> Self {
        Self {
            regions: Regions::new(regions_max),
            recvs,
            reads: VecDeque::new(),
            reads_unanswered: 0,
            inbound_reads,
            requests: 0,
            filled: 0,
        }
    }

    /// Processes the next record, and returns its event. Returns `None` if there is no record, or if it belongs to a
    /// Send for which there is no receive now (see [`ReceiveQueue::is_starved`]).
    pub(super) fn take<W: Words>(&mut self, ring: &mut Consumer<W>) -> Result<Option<Event>, Fault> {
        let garbage = |Corrupt| peer("the ring contains an invalid record");
        let Some(arrived) = Record::take(ring).map_err(garbage)? else { return Ok(None) };
        let event = match arrived.record {
            Record::Send { last, solicited, invalidate } => {
                if !self.recvs.prepare(!self.reads.is_empty()) {
                    return Ok(None);
                }
                self.take_send(&arrived, ring, last)?;
                if last { self.end_send(invalidate, solicited)? } else { Event::Nothing }
            }
            Record::Write { stag, offset } => {
                if arrived.len > 0 {
                    let place = self.regions.for_write(stag, offset, arrived.len);
                    ring.copy_to(arrived.ahead, place.map_err(|fault| peer(fault.text()))?);
                }
                Event::Nothing
            }
            Record::ReadRequest { stag, offset, len } => self.take_request(stag, offset, len as usize)?,
            Record::ReadResponse { last } => self.take_response(&arrived, ring, last)?,
            Record::Terminate { refused } => {
                let mut text = vec![0; arrived.len.min(TEXT_MAX)];
                ring.copy_to(arrived.ahead, &mut text);
                return Err(Fault::Terminated { what: String::from_utf8_lossy(&text).into_owned(), refused });
            }
            Record::Close => Event::Closed,
        };
        ring.advance(arrived.words());
        Ok(Some(event))
    }

    fn take_send<W: Words>(&mut self, arrived: &Arrived, ring: &Consumer<W>, last: bool) -> Result<(), Fault> {
        let Some(buffer) = self.recvs.front() else { return Err(peer("there is no receive for a Send")) };
        let Some(place) = buffer.get_mut(self.filled..).and_then(|rest| rest.get_mut(..arrived.len)) else {
            return Err(peer("a Send is longer than its receive"));
        };
        if !last && arrived.len == 0 {
            return Err(peer("a part of a Send has no bytes"));
        }
        ring.copy_to(arrived.ahead, place);
        self.filled += arrived.len;
        Ok(())
    }

    fn end_send(&mut self, invalidate: Option<Stag>, solicited: bool) -> Result<Event, Fault> {
        let invalidated = match invalidate {
            None => None,
            Some(stag) => {
                let memory = self.regions.remove(stag);
                Some((stag, memory.ok_or_else(|| peer("a Send invalidates a region that does not exist"))?))
            }
        };
        let (id, mut buffer) = self.recvs.pop().expect("the receive of a complete Send must exist");
        buffer.set_len(std::mem::take(&mut self.filled));
        let kind = CompletionKind::Receive { buffer, invalidated, solicited };
        Ok(Event::Received(Completion { id, status: Status::Ok, kind }))
    }

    fn take_request(&mut self, stag: Stag, offset: u64, len: usize) -> Result<Event, Fault> {
        self.requests += 1;
        let refuse = |what: &str| Fault::Peer { what: what.to_owned(), refused: self.requests };
        if self.reads_unanswered >= self.inbound_reads {
            return Err(refuse("more RDMA Reads than negotiated"));
        }
        let data = match len {
            0 => Bytes::new(),
            len => self.regions.for_read(stag, offset, len).map_err(|fault| refuse(fault.text()))?,
        };
        self.reads_unanswered += 1;
        Ok(Event::ReadRequested(data))
    }

    fn take_response<W: Words>(&mut self, arrived: &Arrived, ring: &Consumer<W>, last: bool) -> Result<Event, Fault> {
        let Some(read) = self.reads.front_mut() else { return Err(peer("a response without an RDMA Read")) };
        let Some(place) = read.into.get_mut(read.placed..).and_then(|rest| rest.get_mut(..arrived.len)) else {
            return Err(peer("a response is longer than its RDMA Read"));
        };
        if !last && arrived.len == 0 {
            return Err(peer("a part of a response has no bytes"));
        }
        ring.copy_to(arrived.ahead, place);
        read.placed += arrived.len;
        match (last, read.placed == read.into.len()) {
            (false, _) => Ok(Event::Nothing),
            (true, false) => Err(peer("a response is shorter than its RDMA Read")),
            (true, true) => Ok(Event::ReadDone(self.reads.pop_front().expect("the read was just checked").into)),
        }
    }

    /// Flushes all posted receives.
    pub(super) fn flush(&mut self, completions: &mut Vec<Completion>) {
        self.recvs.flush(completions);
    }
}

fn peer(what: &str) -> Fault {
    Fault::Peer { what: what.to_owned(), refused: 0 }
}

/// Maximum bytes of the text of a Terminate.
const TEXT_MAX: usize = 256;
