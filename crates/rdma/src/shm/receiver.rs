//! The receiving half: records in, placed data and events out. No I/O.
//!
//! It owns what the peer can fill through the ring: posted receives, registered regions, and the buffers of reads that
//! the peer has been asked for. Every record is checked before its first byte is placed.
//!
//! On error: a [`Fault`], after which the connection is over; the buffers stay here until flushed.

use std::collections::VecDeque;

use buf::Buffer;
use bytes::Bytes;

use super::{
    record::{Arrived, Record},
    ring::{Consumer, Corrupt, Words},
};
use crate::{Completion, CompletionKind, Stag, Status, receives::ReceiveQueue, regions::Regions};

/// What has happened.
#[derive(Debug)]
pub(super) enum Event {
    /// A message has filled a receive.
    Received(Completion),
    /// The oldest read that the peer was asked for is complete.
    ReadDone(Buffer),
    /// The peer reads this of ours.
    ReadRequested(Bytes),
    /// The peer sends nothing more.
    Closed,
    /// Nothing that concerns anybody.
    Nothing,
}

/// Why the connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The peer broke the rules; it is told so, and which of its reads that was, if it was one.
    Peer { what: String, refused: u64 },
    /// The peer says that we did, and with which read, if it was one.
    Terminated { what: String, refused: u64 },
}

/// A read that the peer was asked for.
#[derive(Debug)]
pub(super) struct PendingRead {
    /// Counts from 1.
    pub(super) number: u64,
    pub(super) into: Buffer,
    placed: usize,
}

pub(super) struct Receiver {
    pub(super) regions: Regions,
    pub(super) recvs: ReceiveQueue,
    /// Oldest first: answers come in this order.
    pub(super) reads: VecDeque<PendingRead>,
    /// Requests of the peer's whose answers have not left.
    pub(super) reads_owed: u16,
    inbound_reads: u16,
    /// Requests of the peer's so far.
    requests: u64,
    /// Bytes that the incomplete message at the front of `recvs` has.
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
            reads_owed: 0,
            inbound_reads,
            requests: 0,
            filled: 0,
        }
    }

    /// Takes the next record, and what of it concerns others; `None` if there is no record, or if it is of a Send for
    /// which there is no receive now (see [`ReceiveQueue::is_starved`]).
    pub(super) fn take<W: Words>(&mut self, ring: &mut Consumer<W>) -> Result<Option<Event>, Fault> {
        let garbage = |Corrupt| peer("the ring holds what is no record");
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
        let Some(buffer) = self.recvs.front() else { return Err(peer("a Send without a receive")) };
        let Some(place) = buffer.get_mut(self.filled..).and_then(|rest| rest.get_mut(..arrived.len)) else {
            return Err(peer("a Send longer than the receive"));
        };
        if !last && arrived.len == 0 {
            return Err(peer("a part of a Send without bytes"));
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
                Some((stag, memory.ok_or_else(|| peer("a Send that invalidates no region"))?))
            }
        };
        let (id, mut buffer) = self.recvs.pop().expect("its last part was put there");
        buffer.set_len(std::mem::take(&mut self.filled));
        let kind = CompletionKind::Receive { buffer, invalidated, solicited };
        Ok(Event::Received(Completion { id, status: Status::Ok, kind }))
    }

    fn take_request(&mut self, stag: Stag, offset: u64, len: usize) -> Result<Event, Fault> {
        self.requests += 1;
        let refuse = |what: &str| Fault::Peer { what: what.to_owned(), refused: self.requests };
        if self.reads_owed >= self.inbound_reads {
            return Err(refuse("more RDMA Reads than were agreed on"));
        }
        let data = match len {
            0 => Bytes::new(),
            len => self.regions.for_read(stag, offset, len).map_err(|fault| refuse(fault.text()))?,
        };
        self.reads_owed += 1;
        Ok(Event::ReadRequested(data))
    }

    fn take_response<W: Words>(&mut self, arrived: &Arrived, ring: &Consumer<W>, last: bool) -> Result<Event, Fault> {
        let Some(read) = self.reads.front_mut() else { return Err(peer("an answer to no RDMA Read")) };
        let Some(place) = read.into.get_mut(read.placed..).and_then(|rest| rest.get_mut(..arrived.len)) else {
            return Err(peer("an answer longer than was asked for"));
        };
        if !last && arrived.len == 0 {
            return Err(peer("a part of an answer without bytes"));
        }
        ring.copy_to(arrived.ahead, place);
        read.placed += arrived.len;
        match (last, read.placed == read.into.len()) {
            (false, _) => Ok(Event::Nothing),
            (true, false) => Err(peer("an answer shorter than was asked for")),
            (true, true) => Ok(Event::ReadDone(self.reads.pop_front().expect("just seen").into)),
        }
    }

    /// Takes back the receives, as flushed.
    pub(super) fn flush(&mut self, completions: &mut Vec<Completion>) {
        self.recvs.flush(completions);
    }
}

fn peer(what: &str) -> Fault {
    Fault::Peer { what: what.to_owned(), refused: 0 }
}

/// Longest text of a Terminate that is taken in.
const TEXT_MAX: usize = 256;
