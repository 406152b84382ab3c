//! How messages travel. A call: inline, with read chunks, or as a chunk itself. A reply: inline, in the write chunks and the
//! reply chunk that its call offered, or in chunks that the caller reads.
//!
//! Read RFC 8166 §3.4.6 and §3.5. Nothing here does I/O or registers anything: the outcome is a plan.

use buf::{Piece, Pool, Rope};
use bytes::Bytes;
use rpc::{TransportError, Xid};
use smallvec::SmallVec;
use xdr::{Encode, Encoder, Message, PlacedPayload};

use crate::{
    Design, Role, Settings,
    chunk::{Chunk, Lists, WriteList},
    header::{Body, Header, PLAIN_LEN},
};

/// How a message travels when its receiver is to read what is large: a call, or a reply in the Read-Read design.
#[derive(Debug)]
pub(crate) struct ReadFit {
    /// What follows the header, for RDMA_MSG.
    pub inline: Option<Inline>,
    /// What the receiver is to read: XDR position and contiguous pieces, by ascending position. One at zero is the
    /// stream, for RDMA_NOMSG.
    pub reads: Reads,
}

/// The way of a reply into what the caller offered.
#[derive(Debug)]
pub(crate) struct ReplyFit {
    pub header: Header,
    /// Payloads, each with the write chunk that it goes to.
    pub writes: SmallVec<[(Chunk, Rope); 1]>,
    pub stream: Inline,
    /// The reply chunk, if the stream goes there.
    pub reply: Option<Chunk>,
}

/// What a reply is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyOffer {
    /// Bytes of a write chunk for the payload; zero for none.
    pub write: usize,
    /// Bytes of a reply chunk; zero for none.
    pub reply: usize,
}

impl ReplyOffer {
    /// What a reply of these sizes needs.
    pub(crate) fn new(inline_max: usize, payload_max: usize, settings: &Settings) -> Self {
        let recv_max = settings.recv_max;
        let padded = payload_max.next_multiple_of(4);
        if settings.design == Design::ReadRead {
            return Self::default(); // the reply will be fetched
        }
        // RFC 8167 §5.3 leaves chunks of callbacks open: here the accepting side exposes no memory.
        if PLAIN_LEN + inline_max + padded <= recv_max || settings.role == Role::Accepting {
            return Self::default();
        }
        // RFC 8166 §3.4.6: the reply's header returns the chunk.
        //= rfc8166-4.3.3-1
        let header = PLAIN_LEN + if payload_max > 0 { WRITE_CHUNK_LEN } else { 0 };
        if header + inline_max <= recv_max {
            return Self { write: payload_max, reply: 0 };
        }
        // A reply chunk is needed anyway; a small payload takes no further one.
        match payload_max < settings.options.min_chunk {
            true => Self { write: 0, reply: inline_max + padded },
            false => Self { write: payload_max, reply: inline_max },
        }
    }

    /// Bytes that it adds to the header of the call, one segment for each.
    fn wire_len(self) -> usize {
        let write = if self.write > 0 { WRITE_CHUNK_LEN } else { 0 };
        write + if self.reply > 0 { REPLY_CHUNK_LEN } else { 0 }
    }
}

/// Decides how `message` travels when its reply is offered `offer`. Files and memory of peers must have been read.
///
/// # Errors
/// It cannot.
pub(crate) fn fit_call(
    message: Message,
    offer: ReplyOffer,
    settings: &Settings,
    pool: &Pool,
) -> Result<ReadFit, TransportError> {
    // A callback has no chunks (RFC 8167 §5.3), for the accepting side exposes no memory.
    fit_reads(message, PLAIN_LEN + offer.wire_len(), settings.role == Role::Connecting, settings, pool)
}

/// Decides how a reply travels of which the caller is to read what is large. Files and memory of peers must have been read.
///
/// # Errors
/// It cannot.
pub(crate) fn fit_exposed(message: Message, settings: &Settings, pool: &Pool) -> Result<ReadFit, TransportError> {
    fit_reads(message, PLAIN_LEN, true, settings, pool)
}

/// Decides how the reply to the call `xid` travels, which offered these lists and is granted `credits`.
///
/// Payloads go to the write chunks in order; a payload without a chunk stays in the stream. A stream too long to be sent
/// inline goes to the reply chunk.
///
/// # Errors
/// The call has not offered enough.
pub(crate) fn fit_reply(
    xid: Xid,
    offered: &Lists,
    message: Message,
    credits: u32,
    send_max: usize,
) -> Result<ReplyFit, TransportError> {
    let mut writes = SmallVec::<[(Chunk, Rope); 1]>::new();
    let mut used: SmallVec<[Option<usize>; 4]> = SmallVec::from_elem(None, offered.writes.chunks().len());
    //= rfc8166-4.3.2.2-1
    for (payload, (chunk, used)) in message.payloads.iter().zip(offered.writes.chunks().iter().zip(&mut used)) {
        // RFC 8166 §4.3.2.1: the first item that may be placed takes the first chunk, and so on, an empty item too
        // (RFC 8267 §6.4.1). §4.3.2.3: an empty chunk asks for its item inline.
        match payload.data.len() {
            //= rfc8166-4.3.2.3-1
            _ if chunk.is_empty() => {}
            len if len > chunk.len() => return Err(TransportError::TooLong { len, max: chunk.len() }),
            len => {
                *used = Some(len);
                //= rfc8166-4.3.2-1
                writes.push((chunk.clone(), payload.data.clone()));
            }
        }
    }
    let stream = Inline::new(message, |index| used.get(index).is_none_or(Option::is_none));
    //= rfc8166-4.3.2.2-3
    let returned = offered.writes.chunks().iter().zip(&used).map(|(chunk, used)| chunk.used(used.unwrap_or(0)));
    //= rfc8166-4.3.1-1
    let mut lists = Lists { writes: WriteList::new(returned), ..Lists::default() };
    let header = |body| Header { xid, credits, body };
    //= rfc8166-4.3.3-2
    let inline_len = header(Body::Done).wire_len() + lists.wire_len() + stream.len();
    if inline_len <= send_max {
        return Ok(ReplyFit { header: header(Body::Msg(lists)), writes, stream, reply: None });
    }
    let room = offered.reply.as_ref().map_or(0, Chunk::len);
    if stream.len() > room {
        return Err(TransportError::TooLong { len: stream.len(), max: room.max(send_max) });
    }
    //= rfc8166-3.5.3-3
    lists.reply = offered.reply.as_ref().map(|chunk| chunk.used(stream.len()));
    let header = header(Body::NoMsg(lists));
    if header.wire_len() > send_max {
        return Err(TransportError::TooLong { len: header.wire_len(), max: send_max });
    }
    Ok(ReplyFit { header, writes, stream, reply: offered.reply.clone() })
}

/// `header` is the length of the header without read chunks; `chunks`, whether there may be any.
fn fit_reads(
    mut message: Message,
    header: usize,
    chunks: bool,
    settings: &Settings,
    pool: &Pool,
) -> Result<ReadFit, TransportError> {
    let len = message.len();
    let min_chunk = settings.options.min_chunk;
    // What is sent inline is copied here, so that a device that fails ends this call alone.
    for payload in message.payloads.iter_mut().filter(|payload| !chunks || payload.data.len() < min_chunk) {
        payload.data.bounce().map_err(|error| unreadable(&error))?;
    }
    let fits = header + len <= settings.send_max;
    if fits && (!chunks || message.payloads.iter().all(|payload| payload.data.len() < min_chunk)) {
        return Ok(ReadFit { inline: Some(Inline::new(message, |_| true)), reads: SmallVec::new() });
    }
    let max = if chunks { settings.options.message_max } else { settings.send_max - header };
    if !chunks || len > max || message.payloads.len() > PAYLOADS_MAX {
        return Err(TransportError::TooLong { len, max });
    }
    let mut fit = ReadFit { inline: None, reads: SmallVec::new() };
    let all = reads_of(&message.payloads, pool)?;
    let segments: usize = all.iter().map(|(_, pieces)| pieces.len()).sum();
    if header + READ_SEGMENT_LEN * segments + message.stream.len() <= settings.send_max {
        fit.reads = all;
        fit.inline = Some(message.stream.into());
        return Ok(fit);
    }
    // A long call (RFC 8166 §3.5.3): the stream is a chunk, too. Small payloads go back into it.
    let is_small = |payload: &PlacedPayload| payload.data.len() < min_chunk;
    let large: SmallVec<[_; 1]> = message.payloads.iter().filter(|&payload| !is_small(payload)).cloned().collect();
    let small: SmallVec<[bool; 4]> = message.payloads.iter().map(is_small).collect();
    let stream = Inline::new(message, |index| small[index]).into_rope();
    //= rfc8166-3.5.3-1 rfc8166-3.5.3-2
    fit.reads.push((0, contiguous(&stream, pool)?));
    fit.reads.extend(reads_of(&large, pool)?);
    let segments: usize = fit.reads.iter().map(|(_, pieces)| pieces.len()).sum();
    match header + READ_SEGMENT_LEN * segments {
        header if header <= settings.send_max => Ok(fit),
        header => Err(TransportError::TooLong { len: header, max: settings.send_max }),
    }
}

/// A stream and those of its payloads that travel in it.
#[derive(Debug)]
pub(crate) struct Inline {
    stream: Bytes,
    /// Where in the (reduced) stream each payload goes, by position.
    payloads: SmallVec<[(usize, Rope); 1]>,
    len: usize,
}

impl Inline {
    /// Nothing.
    pub(crate) fn none() -> Self {
        Bytes::new().into()
    }

    /// `message` with those payloads in it that `inline` says, by index; the others travel apart.
    ///
    /// # Panics
    /// If a payload has no position.
    pub(crate) fn new(message: Message, mut inline: impl FnMut(usize) -> bool) -> Self {
        let mut out = Self::from(message.stream);
        let mut reduced = 0;
        for (index, payload) in message.payloads.into_iter().enumerate() {
            let position = payload.position.expect("a payload to be sent has a position") as usize;
            //= rfc8166-3.4.4.4-2
            let padded = payload.data.len().next_multiple_of(4);
            if inline(index) {
                out.len += padded;
                out.payloads.push((position - reduced, payload.data));
            }
            // RFC 8166 §3.4.5: positions count all payloads, wherever they travel.
            reduced += padded;
        }
        out
    }

    /// Bytes, with padding.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The same as a rope; no byte is copied.
    pub(crate) fn into_rope(self) -> Rope {
        let (mut rope, mut at) = (Rope::new(), 0);
        for (end, data) in self.payloads {
            let padding = data.len().next_multiple_of(4) - data.len();
            rope.push(Piece::Memory(self.stream.slice(at..end)));
            rope.append(data);
            //= rfc8166-3.5.3-4
            rope.push(Piece::Memory(Bytes::from_static(&[0; 3]).slice(..padding)));
            at = end;
        }
        rope.push(Piece::Memory(self.stream.slice(at..)));
        rope
    }

    /// The same behind `header`, as it is sent. A short one is copied, so that it is one piece.
    pub(crate) fn behind(self, header: &Header) -> Rope {
        let header_len = header.wire_len();
        let in_memory = || {
            let pieces = self.payloads.iter().flat_map(|(_, data)| data.pieces());
            pieces.into_iter().all(|piece| matches!(piece, Piece::Memory(_)))
        };
        // A stream that is not of whole items would not be XDR, but is not ours to judge.
        if self.len > COPY_MAX || !self.stream.len().is_multiple_of(4) || !in_memory() {
            let mut rope = Rope::from(encode_header(header));
            rope.append(self.into_rope());
            return rope;
        }
        let mut encoder = Encoder::with_capacity(header_len + self.len);
        header.encode(&mut encoder);
        let mut at = 0;
        for (end, data) in self.payloads {
            encoder.raw(&self.stream[at..end]);
            encoder.fixed_opaque(&data.to_bytes().expect("in memory"));
            at = end;
        }
        encoder.raw(&self.stream[at..]);
        encoder.finish().stream.into()
    }
}

/// A stream without payloads.
impl From<Bytes> for Inline {
    fn from(stream: Bytes) -> Self {
        Self { len: stream.len(), stream, payloads: SmallVec::new() }
    }
}

/// The bytes of a header that stands alone.
pub(crate) fn encode_header(header: &Header) -> Bytes {
    let mut encoder = Encoder::with_capacity(header.wire_len());
    header.encode(&mut encoder);
    encoder.finish().stream
}

type Reads = SmallVec<[(u32, SmallVec<[Piece; 1]>); 1]>;

fn reads_of(payloads: &[PlacedPayload], pool: &Pool) -> Result<Reads, TransportError> {
    let position = |payload: &PlacedPayload| payload.position.expect("a payload to be sent has a position");
    //= rfc8166-3.4.4.4-1 rfc8166-3.4.5.2-2
    payloads.iter().map(|payload| Ok((position(payload), contiguous(&payload.data, pool)?))).collect()
}

/// The pieces of `rope` as they can be registered; copied together if they are many, for each takes a registration.
fn contiguous(rope: &Rope, pool: &Pool) -> Result<SmallVec<[Piece; 1]>, TransportError> {
    if rope.pieces().len() <= PIECES_MAX && rope.pieces().iter().all(is_registrable) {
        return Ok(rope.pieces().into());
    }
    let mut copy = pool.take(rope.len());
    rope.copy_to(&mut copy).map_err(|error| unreadable(&error))?;
    Ok(SmallVec::from_iter([copy.freeze().into()]))
}

/// Whether a queue pair may be asked to register it.
pub(crate) fn is_registrable(piece: &Piece) -> bool {
    matches!(piece, Piece::Memory(_) | Piece::Device(_))
}

/// The error of a file or of device memory that cannot be read.
pub(crate) fn unreadable(error: &std::io::Error) -> TransportError {
    TransportError::Refused(format!("reading what is to be sent: {error}"))
}

/// A read segment in a header.
const READ_SEGMENT_LEN: usize = 24;
/// A write chunk of one segment: 1, count, segment.
const WRITE_CHUNK_LEN: usize = 24;
/// A reply chunk of one segment, less the zero that stands for none.
const REPLY_CHUNK_LEN: usize = 20;
/// Pieces of one payload that are registered each for itself.
const PIECES_MAX: usize = 8;
/// Payloads in one call.
const PAYLOADS_MAX: usize = crate::chunk::CHUNKS_MAX - 1;
/// Copying this much costs less than more pieces in every layer below.
const COPY_MAX: usize = 1024;
