//! The decision how messages travel. A call travels inline, with read chunks, or as a chunk itself. A reply travels
//! inline, in the write chunks and the reply chunk that its call offered, or in chunks that the caller reads.
//!
//! Read RFC 8166 §3.4.6 and §3.5. This module does no I/O and registers nothing: its result is a plan.

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

/// The plan for a message whose large parts its receiver reads: a call, or a reply in the Read-Read design.
#[derive(Debug)]
pub(crate) struct ReadFit {
    /// The data behind the header; `None` for RDMA_NOMSG.
    pub inline: Option<Inline>,
    /// The parts that the receiver reads: XDR position and contiguous pieces, ordered by position. A part at position
    /// zero is the stream, for RDMA_NOMSG.
    pub reads: Reads,
}

/// The plan for a reply that goes into the memory that the caller offered.
#[derive(Debug)]
pub(crate) struct ReplyFit {
    pub header: Header,
    /// The payloads, each with its write chunk.
    pub writes: SmallVec<[(Chunk, Rope); 1]>,
    pub stream: Inline,
    /// The reply chunk, if the stream goes there.
    pub reply: Option<Chunk>,
}

/// The memory that a call offers for its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyOffer {
    /// Bytes of a write chunk for the payload; zero if there is none.
    pub write: usize,
    /// Bytes of a reply chunk; zero if there is none.
    pub reply: usize,
}

impl ReplyOffer {
    /// Returns the offer for a reply of these maximum sizes.
    pub(crate) fn new(inline_max: usize, payload_max: usize, settings: &Settings) -> Self {
        let recv_max = settings.recv_max;
        let padded = payload_max.next_multiple_of(4);
        if settings.design == Design::ReadRead {
            return Self::default(); // The requester will fetch the reply.
        }
        // RFC 8167 §5.3 leaves chunks of callbacks open. Here the accepting side exposes no memory.
        if PLAIN_LEN + inline_max + padded <= recv_max || settings.role == Role::Accepting {
            return Self::default();
        }
        // RFC 8166 §3.4.6: the header of the reply returns the chunk.
        //= rfc8166-4.3.3-1
        let header = PLAIN_LEN + if payload_max > 0 { WRITE_CHUNK_LEN } else { 0 };
        if header + inline_max <= recv_max {
            return Self { write: payload_max, reply: 0 };
        }
        // A reply chunk is needed anyway, so a small payload gets no chunk of its own.
        match payload_max < settings.options.min_chunk {
            true => Self { write: 0, reply: inline_max + padded },
            false => Self { write: payload_max, reply: inline_max },
        }
    }

    /// Returns the bytes that the offer adds to the header of the call, with one segment for each chunk.
    fn wire_len(self) -> usize {
        let write = if self.write > 0 { WRITE_CHUNK_LEN } else { 0 };
        write + if self.reply > 0 { REPLY_CHUNK_LEN } else { 0 }
    }
}

/// Decides how `message` travels if it offers `offer` for its reply. File ranges and memory of peers must have been
/// read before.
///
/// # Errors
/// The message is too long, or a device cannot be read.
pub(crate) fn fit_call(
    message: Message,
    offer: ReplyOffer,
    settings: &Settings,
    pool: &Pool,
) -> Result<ReadFit, TransportError> {
    // A callback has no chunks (RFC 8167 §5.3), because the accepting side exposes no memory.
    fit_reads(message, PLAIN_LEN + offer.wire_len(), settings.role == Role::Connecting, settings, pool)
}

/// Decides how a reply travels whose large parts the caller reads. File ranges and memory of peers must have been read
/// before.
///
/// # Errors
/// The message is too long, or a device cannot be read.
pub(crate) fn fit_exposed(message: Message, settings: &Settings, pool: &Pool) -> Result<ReadFit, TransportError> {
    fit_reads(message, PLAIN_LEN, true, settings, pool)
}

/// Decides how the reply to the call `xid` travels. The call offered the lists `offered`, and the reply grants
/// `credits`.
///
/// Payloads go to the write chunks in order; a payload without a chunk stays in the stream. A stream that is too long
/// to be sent inline goes to the reply chunk.
///
/// # Errors
/// The call did not offer enough memory.
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
        // RFC 8166 §4.3.2.1: the first item that can be placed takes the first chunk, and so on. This includes an empty
        // item (RFC 8267 §6.4.1). §4.3.2.3: an empty chunk requests its item inline.
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

/// Decides how a message travels that its receiver can read. `header` is the length of the header without read chunks;
/// `chunks` permits read chunks.
fn fit_reads(
    mut message: Message,
    header: usize,
    chunks: bool,
    settings: &Settings,
    pool: &Pool,
) -> Result<ReadFit, TransportError> {
    let len = message.len();
    let min_chunk = settings.options.min_chunk;
    // Data that are sent inline are copied from devices here, so that a device that fails ends only this call.
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
    // A long call (RFC 8166 §3.5.3): the stream is a chunk, too. Small payloads are returned to the stream.
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
    /// The offset of each payload in the (reduced) stream, ordered by position.
    payloads: SmallVec<[(usize, Rope); 1]>,
    len: usize,
}

impl Inline {
    /// Creates an empty stream.
    pub(crate) fn none() -> Self {
        Bytes::new().into()
    }

    /// Creates a stream with those payloads of `message` for whose index `inline` returns `true`. The others travel in
    /// chunks.
    ///
    /// # Panics
    /// If a payload has no position.
    pub(crate) fn new(message: Message, mut inline: impl FnMut(usize) -> bool) -> Self {
        let mut out = Self::from(message.stream);
        let mut reduced = 0;
        for (index, payload) in message.payloads.into_iter().enumerate() {
            let position = payload.position.expect("a payload to be sent must have a position") as usize;
            //= rfc8166-3.4.4.4-2
            let padded = payload.data.len().next_multiple_of(4);
            if inline(index) {
                out.len += padded;
                out.payloads.push((position - reduced, payload.data));
            }
            // RFC 8166 §3.4.5: positions count all payloads, whether inline or in chunks.
            reduced += padded;
        }
        out
    }

    /// Returns the length in bytes, with padding.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Converts the stream to a rope without copying.
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

    /// Puts the stream behind `header`, as it is sent. A short stream is copied, so that it is one piece.
    pub(crate) fn after_header(self, header: &Header) -> Rope {
        let header_len = header.wire_len();
        let in_memory = || {
            let pieces = self.payloads.iter().flat_map(|(_, data)| data.pieces());
            pieces.into_iter().all(|piece| matches!(piece, Piece::Memory(_)))
        };
        // If the stream's length is not a multiple of four, it is not XDR. It is sent as it is.
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
            encoder.fixed_opaque(&data.to_bytes().expect("payload must be in memory"));
            at = end;
        }
        encoder.raw(&self.stream[at..]);
        encoder.finish().stream.into()
    }
}

/// Creates a stream without payloads.
impl From<Bytes> for Inline {
    fn from(stream: Bytes) -> Self {
        Self { len: stream.len(), stream, payloads: SmallVec::new() }
    }
}

/// Encodes a header that is sent alone.
pub(crate) fn encode_header(header: &Header) -> Bytes {
    let mut encoder = Encoder::with_capacity(header.wire_len());
    header.encode(&mut encoder);
    encoder.finish().stream
}

type Reads = SmallVec<[(u32, SmallVec<[Piece; 1]>); 1]>;

fn reads_of(payloads: &[PlacedPayload], pool: &Pool) -> Result<Reads, TransportError> {
    let position = |payload: &PlacedPayload| payload.position.expect("a payload to be sent must have a position");
    //= rfc8166-3.4.4.4-1 rfc8166-3.4.5.2-2
    payloads.iter().map(|payload| Ok((position(payload), contiguous(&payload.data, pool)?))).collect()
}

/// Returns the pieces of `rope` for registration. If there are many, they are copied into one, because each piece needs
/// a registration.
fn contiguous(rope: &Rope, pool: &Pool) -> Result<SmallVec<[Piece; 1]>, TransportError> {
    if rope.pieces().len() <= PIECES_MAX && rope.pieces().iter().all(is_registrable) {
        return Ok(rope.pieces().into());
    }
    let mut copy = pool.take(rope.len());
    rope.copy_to(&mut copy).map_err(|error| unreadable(&error))?;
    Ok(SmallVec::from_iter([copy.freeze().into()]))
}

/// Returns `true` if a queue pair can register the piece.
pub(crate) fn is_registrable(piece: &Piece) -> bool {
    matches!(piece, Piece::Memory(_) | Piece::Device(_))
}

/// Creates the error for a file range or device memory that cannot be read.
pub(crate) fn unreadable(error: &std::io::Error) -> TransportError {
    TransportError::Refused(format!("cannot read the payload: {error}"))
}

/// Length in bytes of a read segment in a header.
const READ_SEGMENT_LEN: usize = 24;
/// Length in bytes of a write chunk with one segment: 1, count, segment.
const WRITE_CHUNK_LEN: usize = 24;
/// Length in bytes of a reply chunk with one segment, without the word that is zero if there is no reply chunk.
const REPLY_CHUNK_LEN: usize = 20;
/// Maximum number of pieces of one payload that are registered separately.
const PIECES_MAX: usize = 8;
/// Maximum number of payloads in one call.
const PAYLOADS_MAX: usize = crate::chunk::CHUNKS_MAX - 1;
/// Maximum length in bytes for which a copy costs less than more pieces in every lower layer.
const COPY_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use std::{fs::File, sync::Arc};

    use buf::FileRange;
    use rdma::Stag;

    use super::*;
    use crate::{Options, chunk::Segment};

    fn chunk(len: usize) -> Chunk {
        Chunk::new([Segment { handle: Stag(1), length: len as u32, offset: 0 }])
    }

    /// Settings under which messages up to 1024 bytes are sent inline.
    fn settings(role: Role, min_chunk: usize, message_max: usize) -> Settings {
        let options = Options { inline_send: 1024, min_chunk, message_max, ..Options::default() };
        let peer = Options::default().private_data();
        Settings { send_max: 1024, ..Settings::negotiate(role, options, Some(peer)) }
    }

    /// Creates a message with a stream of `words` words and payloads of these lengths.
    fn message(words: usize, payloads: &[usize]) -> Message {
        let mut encoder = Encoder::default();
        payloads.iter().for_each(|&len| encoder.payload(Bytes::from(vec![7; len]).into()));
        (payloads.len()..words).for_each(|_| encoder.u32(7));
        encoder.finish()
    }

    /// Fits a call that needs no chunk for its reply. Returns the inline length, and the positions that the receiver reads.
    fn fit(message: Message, settings: &Settings) -> Result<(Option<usize>, Vec<u32>), TransportError> {
        let fit = fit_call(message, ReplyOffer::default(), settings, &Pool::default())?;
        Ok((fit.inline.map(|inline| inline.len()), fit.reads.iter().map(|(position, _)| *position).collect()))
    }

    #[track_caller]
    fn assert_too_long(result: Result<(Option<usize>, Vec<u32>), TransportError>, expected: (usize, usize)) {
        assert!(matches!(&result, Err(TransportError::TooLong { len, max }) if (*len, *max) == expected), "{result:?}");
    }

    #[test]
    fn offer_has_the_length_of_its_chunks_in_a_header() {
        for (write, reply) in [(0, 0), (1, 0), (0, 1), (4096, 65_536)] {
            let chunk = |len: usize| (len > 0).then(|| chunk(len));
            let lists = Lists { writes: WriteList::new(chunk(write)), reply: chunk(reply), ..Lists::default() };
            let header = Header { xid: Xid(1), credits: 1, body: Body::Msg(lists) };
            let offer = ReplyOffer { write, reply };
            assert_eq!(PLAIN_LEN + offer.wire_len(), header.wire_len(), "{offer:?}");
        }
    }

    #[test]
    fn call_that_just_fits_is_sent_inline_and_a_longer_one_is_read() {
        let settings = settings(Role::Connecting, 512, 1 << 20);
        let words = (1024 - PLAIN_LEN) / 4;
        assert_eq!(fit(message(words, &[]), &settings).unwrap(), (Some(4 * words), vec![]));
        assert_eq!(fit(message(words + 1, &[]), &settings).unwrap(), (None, vec![0]));
    }

    #[test]
    fn callback_has_no_chunks_and_its_error_states_the_room_for_it() {
        let settings = settings(Role::Accepting, 4, 1 << 20);
        let room = 1024 - PLAIN_LEN;
        assert_eq!(fit(message(2, &[8]), &settings).unwrap(), (Some(16), vec![]));
        assert_too_long(fit(message(room / 4 + 1, &[]), &settings), (room + 4, room));
    }

    #[test]
    fn longest_message_and_the_most_payloads_are_accepted() {
        let limited = settings(Role::Connecting, 4, 4000);
        assert_eq!(fit(message(1000, &[]), &limited).unwrap().1, [0]);
        assert_too_long(fit(message(1001, &[]), &limited), (4004, 4000));
        assert_eq!(fit(message(15, &[4; PAYLOADS_MAX]), &limited).unwrap().1.len(), PAYLOADS_MAX);
        assert_too_long(fit(message(16, &[4; PAYLOADS_MAX + 1]), &limited), (16 * 8, 4000));
    }

    #[test]
    fn stream_is_sent_inline_if_it_fits_beside_the_segments_of_its_payloads() {
        let settings = settings(Role::Connecting, 4, 1 << 20);
        let words = (1024 - PLAIN_LEN - 10 * READ_SEGMENT_LEN) / 4;
        let payloads = [4; 10];
        assert_eq!(fit(message(words, &payloads), &settings).unwrap().0, Some(4 * words));
        let (inline, reads) = fit(message(words + 1, &payloads), &settings).unwrap();
        assert_eq!((inline, reads.len()), (None, 11), "the stream and each payload must be read");
    }

    #[test]
    fn long_stream_contains_only_payloads_below_the_minimum_of_chunks() {
        let settings = settings(Role::Connecting, 100, 1 << 20);
        let (inline, reads) = fit(message(1000, &[96, 100, 104]), &settings).unwrap();
        // The second payload is behind two lengths and the first payload.
        assert_eq!((inline, reads), (None, vec![0, 4 + 96 + 4, 4 + 96 + 4 + 100 + 4]));
    }

    #[test]
    fn call_with_too_many_segments_for_its_header_is_rejected() {
        let settings = settings(Role::Connecting, 4, 1 << 20);
        let with_pieces = |pieces: usize| {
            let mut message = message(1000, &[12; PAYLOADS_MAX]);
            for payload in message.payloads.iter_mut().take(pieces) {
                let piece = payload.data.slice(0, 4);
                payload.data = Rope::new();
                (0..3)
                    .for_each(|_| payload.data.append(Rope::from(Bytes::copy_from_slice(&piece.to_bytes().unwrap()))));
            }
            message
        };
        // One segment for the stream, one for each payload, and two more for each payload in three pieces.
        let segments = (1024 - PLAIN_LEN) / READ_SEGMENT_LEN;
        let most = (segments - 1 - PAYLOADS_MAX) / 2;
        assert!(fit(with_pieces(most), &settings).is_ok());
        let len = PLAIN_LEN + READ_SEGMENT_LEN * (1 + PAYLOADS_MAX + 2 * (most + 1));
        assert_too_long(fit(with_pieces(most + 1), &settings), (len, 1024));
    }

    #[test]
    fn reply_uses_all_of_the_room_that_was_offered_and_no_more() {
        let reply = |words: usize, payload: &[usize], lists: &Lists, send_max: usize| {
            fit_reply(Xid(1), lists, message(words, payload), 1, send_max)
        };
        let too_long = |result: Result<ReplyFit, TransportError>| match result {
            Err(TransportError::TooLong { len, max }) => (len, max),
            other => panic!("{other:?}"),
        };
        let none = Lists::default();
        assert!(reply(10, &[], &none, PLAIN_LEN + 40).unwrap().reply.is_none());
        assert_eq!(too_long(reply(10, &[], &none, PLAIN_LEN + 39)), (40, PLAIN_LEN + 39));
        let write = Lists { writes: WriteList::new([chunk(8)]), ..Lists::default() };
        assert_eq!(reply(10, &[8], &write, 1024).unwrap().writes.len(), 1);
        assert_eq!(too_long(reply(10, &[9], &write, 1024)), (9, 8));
        let chunks = Lists { reply: Some(chunk(40)), ..Lists::default() };
        let header_len = reply(10, &[], &chunks, 60).unwrap().header.wire_len();
        assert_eq!(reply(10, &[], &chunks, header_len).unwrap().reply, chunks.reply);
        assert_eq!(too_long(reply(10, &[], &chunks, header_len - 1)), (header_len, header_len - 1));
        assert_eq!(too_long(reply(11, &[], &chunks, 60)), (44, 60));
    }

    #[test]
    fn short_stream_in_memory_is_one_piece_with_its_header() {
        let header = Header { xid: Xid(1), credits: 1, body: Body::Msg(Lists::default()) };
        let pieces = |stream: Inline| {
            let whole = [&encode_header(&header)[..], &clone_of(&stream)].concat();
            let rope = stream.after_header(&header);
            assert_eq!(rope.to_bytes().unwrap(), whole);
            rope.pieces().len()
        };
        assert_eq!(pieces(Inline::new(message(3, &[5]), |_| true)), 1);
        assert_eq!(pieces(Bytes::from(vec![1; COPY_MAX]).into()), 1);
        assert_eq!(pieces(Bytes::from(vec![1; COPY_MAX + 4]).into()), 2, "a long stream must not be copied");
        assert_eq!(pieces(Bytes::from(vec![1; 7]).into()), 2, "the stream is not XDR");
        let mut with_file = message(1, &[8]);
        with_file.payloads[0].data = of_file(8);
        assert_eq!(pieces(Inline::new(with_file, |_| true)), 3, "the bytes of a file must not be copied");
    }

    #[test]
    fn bytes_of_files_are_copied_for_registration() {
        let pieces = contiguous(&of_file(8), &Pool::default()).unwrap();
        assert!(matches!(&pieces[..], [Piece::Memory(_)]), "{pieces:?}");
        assert_eq!(pieces[0].clone().into_memory().unwrap(), of_file(8).to_bytes().unwrap());
    }

    fn clone_of(stream: &Inline) -> Bytes {
        let copy = Inline { stream: stream.stream.clone(), payloads: stream.payloads.clone(), len: stream.len };
        copy.into_rope().to_bytes().unwrap()
    }

    /// Returns the first bytes of a file.
    fn of_file(len: usize) -> Rope {
        let file = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
        let mut rope = Rope::new();
        rope.push(Piece::File(FileRange { file: Arc::new(file), offset: 0, len }));
        rope
    }
}
