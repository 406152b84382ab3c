//! [`Outgoing`]: a call that we make, its memory and its outcome.
//!
//! Buffers: memory that a call exposes belongs to the queue pair until it is invalidated; then it is the call's again, and the
//! sink goes back to the caller with the result.

use buf::{Buffer, SharedBuffer, Slab};
use bytes::Bytes;
use rdma::{Memory, Stag};
use rpc::{CallError, Reply, ReplyPlan, TransportError, Xid};
use smallvec::SmallVec;
use xdr::{Message, PlacedPayload};

use crate::{
    Registry,
    chunk::{Chunk, Lists, Segment},
    fetch::Fetch,
    message::is_reply_to,
};

/// A call that we make.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) xid: Xid,
    pub(crate) stage: Stage,
    /// Whether somebody waits for it.
    pub(crate) wanted: bool,
    /// The visible length of the caller's buffer, if there is one.
    pub(crate) sink_len: Option<usize>,
    /// Longest reply that its plan allows.
    pub(crate) reply_max: usize,
    pub(crate) write: Option<Chunk>,
    pub(crate) reply: Option<Chunk>,
    pub(crate) exposed: SmallVec<[Exposure; 2]>,
}

#[derive(Debug)]
pub(crate) enum Stage {
    Unsent(Message, ReplyPlan),
    Sent,
    /// Its reply is read from the responder's memory.
    Fetching(Fetch),
    Finishing(Outcome),
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Answered {
        stream: Stream,
        /// Bytes in the write chunk.
        placed: usize,
    },
    /// The message has been read, but for a payload that is in the caller's buffer: its position and its bytes.
    Fetched {
        message: Message,
        placed: Option<(u32, usize)>,
    },
    Failed(TransportError),
}

#[derive(Debug)]
pub(crate) enum Stream {
    Inline(Bytes),
    /// In the reply chunk, this many bytes.
    InChunk(usize),
}

/// A registered region, or the memory that was in it.
#[derive(Debug)]
pub(crate) struct Exposure {
    pub(crate) stag: Stag,
    pub(crate) purpose: Purpose,
    /// The memory, while it is not exposed.
    pub(crate) memory: Option<Memory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Arguments,
    Sink,
    ReplyChunk,
}

impl Outgoing {
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.stage, Stage::Sent)
    }

    /// Interprets a reply with these lists.
    ///
    /// # Errors
    /// The lists are not those that the call offered; says what is wrong.
    pub(crate) fn outcome(&self, lists: &Lists, stream: Option<Bytes>) -> Result<Outcome, String> {
        if !lists.reads.is_empty() {
            return Err("a reply with a read list".into());
        }
        let placed = match (lists.writes.chunks(), &self.write) {
            ([], _) => 0,
            ([returned], Some(offered)) => {
                offered.used_in(returned).ok_or("a reply that returns another write chunk than was offered")?
            }
            _ => return Err("a reply with write chunks that were not offered".into()),
        };
        let in_chunk = match (&lists.reply, &self.reply) {
            (None, _) => 0,
            (Some(returned), Some(offered)) => {
                offered.used_in(returned).ok_or("a reply that returns another reply chunk than was offered")?
            }
            (Some(returned), None) if returned.is_empty() => 0,
            _ => return Err("a reply with a reply chunk that was not offered".into()),
        };
        match stream {
            Some(stream) if in_chunk == 0 => Ok(Outcome::Answered { stream: Stream::Inline(stream), placed }),
            Some(_) => Err("an RDMA_MSG reply that also fills the reply chunk".into()),
            None if in_chunk > 0 => Ok(Outcome::Answered { stream: Stream::InChunk(in_chunk), placed }),
            None => Err("an RDMA_NOMSG reply without a message".into()),
        }
    }

    pub(crate) fn into_result(mut self) -> Result<Reply, CallError> {
        let reply_chunk = self.take_memory(Purpose::ReplyChunk);
        let mut sink = self.take_memory(Purpose::Sink);
        let Stage::Finishing(outcome) = self.stage else { unreachable!("only finished calls have a result") };
        let (mut message, position, placed) = match outcome.into_message(reply_chunk, self.xid) {
            Ok(answer) => answer,
            Err(error) => {
                let sink = sink.take().zip(self.sink_len).map(|(mut sink, len)| {
                    sink.set_len(len);
                    sink
                });
                return Err(CallError { error, sink });
            }
        };
        let (data, sink) = match (sink, self.sink_len) {
            (Some(mut sink), Some(len)) => {
                sink.set_len(len);
                let shared = SharedBuffer::from(sink);
                (shared.bytes().slice(..placed), Some(shared))
            }
            (Some(mut sink), None) => {
                sink.set_len(placed);
                (sink.freeze(), None)
            }
            (None, _) => (Bytes::new(), None),
        };
        if placed > 0 {
            message.payloads.push(PlacedPayload { position, data: data.into() });
        }
        Ok(Reply { message, sink })
    }

    pub(crate) fn take_memory(&mut self, purpose: Purpose) -> Option<Buffer> {
        let exposure = self.exposed.iter_mut().find(|exposure| exposure.purpose == purpose)?;
        match exposure.memory.take() {
            Some(Memory::Write(buffer)) => Some(buffer),
            _ => None,
        }
    }

    /// Undoes [`take_memory`](Self::take_memory).
    pub(crate) fn return_memory(&mut self, purpose: Purpose, buffer: Buffer) {
        let exposure = self.exposed.iter_mut().find(|exposure| exposure.purpose == purpose);
        exposure.expect("memory of this purpose was taken").memory = Some(Memory::Write(buffer));
    }
}

impl Outcome {
    /// The message, from where it is, and the position and length of a payload in the caller's buffer.
    fn into_message(
        self,
        reply_chunk: Option<Buffer>,
        xid: Xid,
    ) -> Result<(Message, Option<u32>, usize), TransportError> {
        match self {
            Outcome::Failed(error) => Err(error),
            Outcome::Fetched { message, placed: None } => Ok((message, None, 0)),
            Outcome::Fetched { message, placed: Some((position, placed)) } => Ok((message, Some(position), placed)),
            // RFC 8166 §4.3.2.1: a write chunk tells no position; it belongs to the next item that may have one.
            Outcome::Answered { stream: Stream::Inline(stream), placed } => Ok((stream.into(), None, placed)),
            Outcome::Answered { stream: Stream::InChunk(len), placed } => {
                let mut buffer = reply_chunk.ok_or(TransportError::Lost("the reply chunk is gone".into()))?;
                buffer.set_len(len);
                let stream = private(buffer);
                match is_reply_to(&stream, xid) {
                    true => Ok((stream.into(), None, placed)),
                    false => Err(TransportError::Protocol("a reply chunk that holds no reply to its call".into())),
                }
            }
        }
    }
}

/// The bytes of a reply chunk, where a peer that maps our memory cannot change them while they are parsed.
fn private(buffer: Buffer) -> Bytes {
    let shared = Slab::of(&buffer).is_some_and(|(slab, _)| slab.fd().is_some());
    if shared { Bytes::copy_from_slice(&buffer) } else { buffer.freeze() }
}

/// What a call exposes.
pub(crate) trait Exposures {
    fn expose(
        &mut self,
        memory: impl IntoIterator<Item = Memory>,
        purpose: Purpose,
        registry: &mut dyn Registry,
    ) -> Result<Chunk, TransportError>;
    fn keep(&mut self, memory: Memory, purpose: Purpose);
}

impl Exposures for SmallVec<[Exposure; 2]> {
    /// Registers each piece as one segment of a chunk.
    fn expose(
        &mut self,
        memory: impl IntoIterator<Item = Memory>,
        purpose: Purpose,
        registry: &mut dyn Registry,
    ) -> Result<Chunk, TransportError> {
        let mut segments = SmallVec::<[Segment; 1]>::new();
        for piece in memory {
            match registry.register(piece) {
                Ok(region) => {
                    self.push(Exposure { stag: region.stag, purpose, memory: None });
                    segments.push(Segment { handle: region.stag, length: region.len, offset: region.offset });
                }
                Err(memory) => {
                    self.keep(memory, purpose);
                    return Err(TransportError::Refused("no more memory can be registered".into()));
                }
            }
        }
        Ok(Chunk::new(segments))
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
