//! [`Outgoing`]: a call that this side makes, its memory and its outcome.
//!
//! Buffers: memory that a call exposes belongs to the queue pair until it is invalidated. Then it belongs to the call
//! again, and the sink is returned to the caller with the result. If the queue pair cannot access a sink or an argument
//! in device memory, host memory of this side is exposed in its place.

use buf::{Buffer, Piece, Pool, Region, Rope, SharedRegion, Slab};
use bytes::Bytes;
use rdma::{Memory, Stag};
use rpc::{CallError, Reply, ReplyPlan, TransportError, Xid};
use smallvec::SmallVec;
use xdr::{Message, PlacedPayload};

use crate::{
    Registry,
    chunk::{Chunk, Lists, Segment},
    fetch::Fetch,
    fit::unreadable,
    message::is_reply_to,
};

/// A call that this side makes.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) xid: Xid,
    pub(crate) stage: Stage,
    /// `true` until the caller cancels the call.
    pub(crate) wanted: bool,
    /// The visible length of the caller's region, if there is one.
    pub(crate) sink_len: Option<usize>,
    /// Maximum bytes of a reply that its plan allows.
    pub(crate) reply_max: usize,
    pub(crate) write: Option<Chunk>,
    pub(crate) reply: Option<Chunk>,
    pub(crate) exposed: SmallVec<[Exposure; 2]>,
}

#[derive(Debug)]
pub(crate) enum Stage {
    Unsent(Message, ReplyPlan),
    Sent,
    /// The reply is being read from the responder's memory.
    Fetching(Fetch),
    Finishing(Outcome),
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Answered {
        stream: Stream,
        /// The number of bytes in the write chunk.
        placed: usize,
    },
    /// The message was read, except for a payload in the caller's region, at `placed`: its position and length.
    Fetched {
        message: Message,
        placed: Option<(u32, usize)>,
    },
    Failed(TransportError),
}

#[derive(Debug)]
pub(crate) enum Stream {
    Inline(Bytes),
    /// The message is in the reply chunk, with this length in bytes.
    InChunk(usize),
}

/// A registered region, or the memory that was in it.
#[derive(Debug)]
pub(crate) struct Exposure {
    pub(crate) stag: Stag,
    pub(crate) purpose: Purpose,
    /// The memory while it is not exposed.
    pub(crate) memory: Option<Memory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Arguments,
    /// The caller's region for the payload.
    Sink,
    /// Memory of this side for the payload, if the caller has no region or the queue pair cannot access it.
    WriteChunk,
    ReplyChunk,
}

impl Outgoing {
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.stage, Stage::Sent)
    }

    /// Interprets a reply with these lists.
    ///
    /// # Errors
    /// Returns a description of the problem if the lists are not those that the call offered.
    pub(crate) fn outcome(&self, lists: &Lists, stream: Option<Bytes>) -> Result<Outcome, String> {
        if !lists.reads.is_empty() {
            return Err("the reply has a read list".into());
        }
        let placed = match (lists.writes.chunks(), &self.write) {
            ([], _) => 0,
            ([returned], Some(offered)) => {
                offered.used_in(returned).ok_or("the reply returns another write chunk than was offered")?
            }
            _ => return Err("the reply has write chunks that were not offered".into()),
        };
        let in_chunk = match (&lists.reply, &self.reply) {
            (None, _) => 0,
            (Some(returned), Some(offered)) => {
                offered.used_in(returned).ok_or("the reply returns another reply chunk than was offered")?
            }
            (Some(returned), None) if returned.is_empty() => 0,
            _ => return Err("the reply has a reply chunk that was not offered".into()),
        };
        match stream {
            Some(stream) if in_chunk == 0 => Ok(Outcome::Answered { stream: Stream::Inline(stream), placed }),
            Some(_) => Err("an RDMA_MSG reply also uses the reply chunk".into()),
            None if in_chunk > 0 => Ok(Outcome::Answered { stream: Stream::InChunk(in_chunk), placed }),
            None => Err("an RDMA_NOMSG reply has no message".into()),
        }
    }

    pub(crate) fn into_result(mut self) -> Result<Reply, CallError> {
        let reply_chunk = self.take_memory(Purpose::ReplyChunk);
        let write_chunk = self.take_memory(Purpose::WriteChunk);
        let sink = self.take_memory(Purpose::Sink).zip(self.sink_len).map(|(mut sink, len)| {
            sink.set_len(len);
            sink
        });
        let Stage::Finishing(outcome) = self.stage else { unreachable!("only a finished call has a result") };
        let (mut message, position, placed) = match outcome.into_message(reply_chunk, self.xid) {
            Ok(answer) => answer,
            Err(error) => return Err(CallError { error, sink }),
        };
        let sink = sink.map(SharedRegion::from);
        let data = match (write_chunk, &sink) {
            (Some(mut chunk), _) => {
                chunk.set_len(placed);
                Rope::from(chunk)
            }
            (None, Some(sink)) => sink.piece(placed).into(),
            (None, None) => Rope::new(),
        };
        if placed > 0 {
            message.payloads.push(PlacedPayload { position, data });
        }
        Ok(Reply { message, sink })
    }

    /// Takes the caller's region for an RDMA Read into it. Returns `None` if it is not host memory.
    pub(crate) fn take_host_sink(&mut self) -> Option<Buffer> {
        let sink = self.take_memory(Purpose::Sink)?;
        Buffer::try_from(sink).map_err(|sink| self.return_sink(sink)).ok()
    }

    /// Reverses [`take_host_sink`](Self::take_host_sink).
    pub(crate) fn return_sink(&mut self, sink: impl Into<Region>) {
        let exposure = self.exposed.iter_mut().find(|exposure| exposure.purpose == Purpose::Sink);
        exposure.expect("the sink must have been taken").memory = Some(Memory::Write(sink.into()));
    }

    fn take_memory(&mut self, purpose: Purpose) -> Option<Region> {
        let exposure = self.exposed.iter_mut().find(|exposure| exposure.purpose == purpose)?;
        match exposure.memory.take() {
            Some(Memory::Write(region)) => Some(region),
            _ => None,
        }
    }
}

impl Outcome {
    /// Returns the message, and the position and length of a payload that was placed.
    fn into_message(
        self,
        reply_chunk: Option<Region>,
        xid: Xid,
    ) -> Result<(Message, Option<u32>, usize), TransportError> {
        match self {
            Outcome::Failed(error) => Err(error),
            Outcome::Fetched { message, placed: None } => Ok((message, None, 0)),
            Outcome::Fetched { message, placed: Some((position, placed)) } => Ok((message, Some(position), placed)),
            // RFC 8166 §4.3.2.1: a write chunk has no position; it belongs to the next item that can be placed.
            Outcome::Answered { stream: Stream::Inline(stream), placed } => Ok((stream.into(), None, placed)),
            Outcome::Answered { stream: Stream::InChunk(len), placed } => {
                let buffer = reply_chunk.and_then(|chunk| Buffer::try_from(chunk).ok());
                let mut buffer =
                    buffer.ok_or(TransportError::Lost("the memory of the reply chunk was not returned".into()))?;
                buffer.set_len(len);
                let stream = private(buffer);
                match is_reply_to(&stream, xid) {
                    true => Ok((stream.into(), None, placed)),
                    false => Err(TransportError::Protocol("the reply chunk does not hold a reply to its call".into())),
                }
            }
        }
    }
}

/// Returns the bytes of a reply chunk in memory that a peer cannot change while they are parsed. Memory that a peer can
/// map is copied.
fn private(buffer: Buffer) -> Bytes {
    let shared = Slab::of(&buffer).is_some_and(|(slab, _)| slab.fd().is_some());
    if shared { Bytes::copy_from_slice(&buffer) } else { buffer.freeze() }
}

/// The memory that a call exposes.
pub(crate) trait Exposures {
    fn expose(
        &mut self,
        memory: impl IntoIterator<Item = Memory>,
        purpose: Purpose,
        registry: &mut dyn Registry,
        pool: &Pool,
    ) -> Result<Chunk, TransportError>;
    fn expose_one(&mut self, memory: Memory, purpose: Purpose, registry: &mut dyn Registry) -> Result<Segment, Memory>;
    fn keep(&mut self, memory: Memory, purpose: Purpose);
}

impl Exposures for SmallVec<[Exposure; 2]> {
    /// Registers each piece as one segment of a chunk. For device memory that the queue pair cannot access, registers a
    /// copy, or a buffer whose content is later copied to the device.
    fn expose(
        &mut self,
        memory: impl IntoIterator<Item = Memory>,
        purpose: Purpose,
        registry: &mut dyn Registry,
        pool: &Pool,
    ) -> Result<Chunk, TransportError> {
        let mut segments = SmallVec::<[Segment; 1]>::new();
        for memory in memory {
            let exposed = match self.expose_one(memory, purpose, registry) {
                Err(Memory::Write(sink)) if sink.as_host().is_none() => {
                    let room = pool.take(sink.len());
                    self.keep(Memory::Write(sink), purpose);
                    self.expose_one(Memory::Write(room.into()), Purpose::WriteChunk, registry)
                }
                Err(Memory::Read(Piece::Device(range))) => {
                    let mut copy = pool.take(range.len());
                    range.copy_out(0, &mut copy).map_err(|error| unreadable(&error))?;
                    self.expose_one(Memory::Read(copy.freeze().into()), purpose, registry)
                }
                exposed => exposed,
            };
            match exposed {
                Ok(segment) => segments.push(segment),
                Err(memory) => {
                    self.keep(memory, purpose);
                    return Err(TransportError::Refused("no more memory can be registered".into()));
                }
            }
        }
        Ok(Chunk::new(segments))
    }

    fn expose_one(&mut self, memory: Memory, purpose: Purpose, registry: &mut dyn Registry) -> Result<Segment, Memory> {
        let region = registry.register(memory)?;
        self.push(Exposure { stag: region.stag, purpose, memory: None });
        Ok(Segment { handle: region.stag, length: region.len, offset: region.offset })
    }

    /// Keeps memory with the call without exposing it.
    fn keep(&mut self, memory: Memory, purpose: Purpose) {
        self.push(Exposure { stag: Stag(0), purpose, memory: Some(memory) });
    }
}

impl Exposure {
    pub(crate) fn is_exposed(&self, stag: Stag) -> bool {
        self.stag == stag && self.memory.is_none()
    }
}
