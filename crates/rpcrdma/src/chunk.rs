//! Chunk lists: the memory that a requester offers, validated once when the lists are decoded.
//!
//! Read RFC 8166 §3.4 and §4.3. The wire forms (§4.3, XDR in §4.1.2):
//!
//! | list | form |
//! |---|---|
//! | segment | handle, length, offset (64 bits) |
//! | read list | per segment: 1, position, segment; then 0 |
//! | write list | per chunk: 1, count, segments; then 0 |
//! | reply chunk | 0, or 1, count, segments |
//!
//! A decoded list has these properties: there are at most [`SEGMENTS_MAX`] segments in a header and [`CHUNKS_MAX`]
//! chunks in a list. Read chunks have distinct positions in ascending order, which are multiples of four. Each segment
//! ends inside the 64-bit address space. Each chunk is shorter than 4 GiB.
//!
//! Empty segments are kept, because a responder returns the segments that it was given; they are skipped when data
//! moves. Segments can overlap in the requester's memory: this affects only the requester's own data, and its adapter
//! checks every access.

use rdma::{RemoteSegment, Stag};
use smallvec::SmallVec;
use xdr::{Decode, DecodeError, DecodeErrorKind, Decoder, Encode, Encoder};

/// A contiguous part of registered memory (RFC 8166 §3.4.3, `xdr_rdma_segment`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The STag of the memory.
    pub handle: Stag,
    /// The length in bytes.
    pub length: u32,
    /// The tagged offset of the first byte.
    pub offset: u64,
}

/// The segments that together hold one data item, or receive one (RFC 8166 §3.4.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    segments: SmallVec<[Segment; 1]>,
}

/// A chunk that the responder reads, with the position of its data (RFC 8166 §3.4.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadChunk {
    /// The offset in the unreduced XDR stream. At zero, the chunk is the stream itself.
    pub position: u32,
    /// The memory of the chunk.
    pub chunk: Chunk,
}

/// The read chunks of a call, ordered by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadList {
    chunks: SmallVec<[ReadChunk; 1]>,
}

/// The write chunks of a call; in its reply, with the lengths that were used (RFC 8166 §3.4.6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteList {
    chunks: SmallVec<[Chunk; 1]>,
}

/// The three lists of an RDMA_MSG or RDMA_NOMSG header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// The read chunks.
    pub reads: ReadList,
    /// The write chunks.
    pub writes: WriteList,
    /// The reply chunk.
    pub reply: Option<Chunk>,
}

impl Segment {
    /// Returns the part of the peer's memory that starts `skip` bytes into the segment.
    ///
    /// # Panics
    /// If `skip` is greater than the segment's length.
    pub fn remote(&self, skip: u32) -> RemoteSegment {
        assert!(skip <= self.length);
        RemoteSegment { stag: self.handle, offset: self.offset + u64::from(skip) }
    }
}

impl Chunk {
    /// Creates a chunk of segments.
    ///
    /// # Panics
    /// If there are more than [`SEGMENTS_MAX`] segments, or they hold 4 GiB or more.
    pub fn new(segments: impl IntoIterator<Item = Segment>) -> Self {
        let chunk = Self { segments: segments.into_iter().collect() };
        assert!(chunk.segments.len() <= SEGMENTS_MAX && chunk.total() <= u64::from(u32::MAX));
        chunk
    }

    /// Returns the segments in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.total() as usize
    }

    /// Returns `true` if the chunk holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the chunk with lengths that mean that its first `used` bytes were written (RFC 8166 §4.3.2.2: an unused
    /// chunk is returned with lengths of zero).
    ///
    /// # Panics
    /// If the chunk is shorter than `used`.
    pub fn used(&self, used: usize) -> Chunk {
        assert!(used <= self.len(), "cannot use {used} bytes of a chunk of {}", self.len());
        //= rfc8166-3.4.6-2 rfc8166-3.4.6.2-2
        let mut left = used as u32;
        let segments = self.segments.iter().map(|segment| {
            let length = segment.length.min(left);
            left -= length;
            Segment { length, ..*segment }
        });
        Chunk { segments: segments.collect() }
    }

    /// Returns the number of bytes that were written according to `returned`. Returns `None` unless `returned` is this
    /// chunk with shorter lengths, in which each segment is full before the next begins.
    pub fn used_in(&self, returned: &Chunk) -> Option<usize> {
        let used = returned.len();
        (used <= self.len() && *returned == self.used(used)).then_some(used)
    }

    /// Returns the segments that are not empty, each with its offset in the chunk.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Segment)> + '_ {
        let mut at = 0;
        let placed = self.segments.iter().map(move |segment| {
            let start = at;
            at += segment.length as usize;
            (start, *segment)
        });
        placed.filter(|(_, segment)| segment.length > 0)
    }

    fn total(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.length)).sum()
    }
}

impl ReadList {
    /// Appends one segment to the chunk at `position`.
    ///
    /// # Errors
    /// The list would violate a property of decoded lists.
    pub fn push(&mut self, position: u32, segment: Segment) -> Result<(), DecodeErrorKind> {
        //= rfc8166-3.4.5-2
        if !position.is_multiple_of(4) {
            // RFC 8166 §3.4.5: a chunk holds a whole item, and XDR items start at multiples of four.
            return Err(DecodeErrorKind::MisplacedPayload);
        }
        // RFC 8166 §3.4.5: segments of one position are one chunk, in the order of the list.
        match self.chunks.binary_search_by_key(&position, |chunk| chunk.position) {
            Ok(index) => self.chunks[index].chunk.push(segment),
            Err(_) if self.chunks.len() == CHUNKS_MAX => Err(too_many(self.chunks.len() + 1, CHUNKS_MAX)),
            Err(index) => {
                self.chunks.insert(index, ReadChunk { position, chunk: Chunk::new([segment]) });
                Ok(())
            }
        }
    }

    /// Returns the chunks ordered by position.
    pub fn chunks(&self) -> &[ReadChunk] {
        &self.chunks
    }

    /// Returns `true` if there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the position-zero chunk, which holds the (reduced) stream itself (RFC 8166 §3.5.3), and the other
    /// chunks.
    pub fn split_stream(&self) -> (Option<&Chunk>, &[ReadChunk]) {
        match self.chunks.split_first() {
            Some((first, rest)) if first.position == 0 => (Some(&first.chunk), rest),
            _ => (None, &self.chunks),
        }
    }

    /// Returns a list with only the position-zero chunk.
    pub(crate) fn only_stream(&self) -> Self {
        Self { chunks: self.chunks.iter().filter(|read| read.position == 0).cloned().collect() }
    }

    /// Returns the total bytes of the chunks.
    pub fn total(&self) -> usize {
        self.chunks.iter().map(|read| read.chunk.len()).sum()
    }
}

impl WriteList {
    /// Creates a list of chunks.
    pub fn new(chunks: impl IntoIterator<Item = Chunk>) -> Self {
        Self { chunks: chunks.into_iter().collect() }
    }

    /// Returns the chunks in order.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Returns `true` if there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

impl Lists {
    /// Returns the length in bytes of the wire form.
    pub fn wire_len(&self) -> usize {
        let chunk = |chunk: &Chunk| 8 + 16 * chunk.segments.len();
        let reads: usize = self.reads.chunks.iter().map(|read| 24 * read.chunk.segments.len()).sum();
        let writes: usize = self.writes.chunks.iter().map(chunk).sum();
        reads + 4 + writes + 4 + self.reply.as_ref().map_or(4, chunk)
    }

    /// Returns a handle of this call that a responder can invalidate: if there is a choice, that of memory that it
    /// wrote.
    pub fn handle(&self) -> Option<Stag> {
        let writes = self.writes.chunks.iter().chain(&self.reply);
        let mut chunks = writes.chain(self.reads.chunks.iter().map(|read| &read.chunk));
        chunks.find_map(|chunk| chunk.segments.first().map(|segment| segment.handle))
    }

    /// Returns `true` if the call offers no memory.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.reply.is_none()
    }

    fn segments(&self) -> usize {
        let chunks = self.reads.chunks.iter().map(|read| &read.chunk).chain(&self.writes.chunks).chain(&self.reply);
        chunks.map(|chunk| chunk.segments.len()).sum()
    }
}

impl Chunk {
    fn push(&mut self, segment: Segment) -> Result<(), DecodeErrorKind> {
        if self.segments.len() == SEGMENTS_MAX {
            return Err(too_many(SEGMENTS_MAX + 1, SEGMENTS_MAX));
        }
        if self.total() + u64::from(segment.length) > u64::from(u32::MAX) {
            return Err(DecodeErrorKind::TooLong { len: u32::MAX, max: u32::MAX });
        }
        self.segments.push(segment);
        Ok(())
    }
}

impl Encode for Segment {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(self.handle.0);
        encoder.u32(self.length);
        encoder.u64(self.offset);
    }
}

impl Decode for Segment {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let error = decoder.error(DecodeErrorKind::TooLong { len: u32::MAX, max: u32::MAX });
        //= rfc8166-2.3.2-1
        let segment = Segment { handle: Stag(decoder.u32()?), length: decoder.u32()?, offset: decoder.u64()? };
        segment.offset.checked_add(u64::from(segment.length)).ok_or(error)?;
        Ok(segment)
    }
}

impl Encode for Chunk {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.length(self.segments.len());
        self.segments.iter().for_each(|segment| segment.encode(encoder));
    }
}

impl Decode for Chunk {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let count = decoder.length(SEGMENTS_MAX)?;
        let mut chunk = Chunk::default();
        for _ in 0..count {
            let segment = Segment::decode(decoder)?;
            chunk.push(segment).map_err(|kind| decoder.error(kind))?;
        }
        Ok(chunk)
    }
}

impl Encode for Lists {
    fn encode(&self, encoder: &mut Encoder) {
        for read in &self.reads.chunks {
            for segment in &read.chunk.segments {
                encoder.u32(1);
                encoder.u32(read.position);
                segment.encode(encoder);
            }
        }
        encoder.u32(0);
        for chunk in &self.writes.chunks {
            encoder.u32(1);
            chunk.encode(encoder);
        }
        encoder.u32(0);
        self.reply.encode(encoder);
    }
}

impl Decode for Lists {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut lists = Lists::default();
        while bool::decode(decoder)? {
            let position = decoder.u32()?;
            let segment = Segment::decode(decoder)?;
            lists.reads.push(position, segment).map_err(|kind| decoder.error(kind))?;
        }
        while bool::decode(decoder)? {
            if lists.writes.chunks.len() == CHUNKS_MAX {
                return Err(decoder.error(too_many(CHUNKS_MAX + 1, CHUNKS_MAX)));
            }
            lists.writes.chunks.push(Chunk::decode(decoder)?);
        }
        lists.reply = Option::<Chunk>::decode(decoder)?;
        match lists.segments() {
            count if count > SEGMENTS_MAX => Err(decoder.error(too_many(count, SEGMENTS_MAX))),
            _ => Ok(lists),
        }
    }
}

fn too_many(len: usize, max: usize) -> DecodeErrorKind {
    DecodeErrorKind::TooLong { len: len as u32, max: max as u32 }
}

/// Maximum number of segments in one header: a 1 MiB payload in pages of 4 KiB, and some more.
pub const SEGMENTS_MAX: usize = 272;
/// Maximum number of read chunks, and of write chunks, in one header.
pub const CHUNKS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use xdr::Message;

    use super::*;

    fn segment(length: u32) -> Segment {
        Segment { handle: Stag(7), length, offset: 0x1000 }
    }

    fn lists(reads: usize, writes: usize, reply: usize) -> Lists {
        let chunk = |count| Chunk::new((0..count).map(|_| segment(4)));
        let mut lists = Lists { reply: Some(chunk(reply)), ..Lists::default() };
        lists.writes = WriteList::new([chunk(writes)]);
        (0..reads).for_each(|_| lists.reads.push(0, segment(4)).unwrap());
        lists
    }

    fn decode(lists: &Lists) -> Result<Lists, DecodeErrorKind> {
        Message::encode(lists).decode::<Lists>().map_err(|error| error.kind)
    }

    #[test]
    fn part_of_a_segment_begins_behind_its_start() {
        let (whole, part) = (segment(100).remote(0), segment(100).remote(40));
        assert_eq!((whole.offset, part.offset), (0x1000, 0x1000 + 40));
    }

    #[test]
    fn segments_of_a_header_are_bounded_together() {
        let fits = lists(SEGMENTS_MAX - 3, 2, 1);
        assert_eq!(decode(&fits), Ok(fits));
        let max = SEGMENTS_MAX as u32;
        let exceeds = lists(SEGMENTS_MAX - 3, 2, 2);
        assert_eq!(decode(&exceeds), Err(DecodeErrorKind::TooLong { len: max + 1, max }));
        let far = lists(SEGMENTS_MAX - 3, 20, 0);
        assert_eq!(decode(&far), Err(DecodeErrorKind::TooLong { len: max + 17, max }));
    }

    #[test]
    fn chunks_and_segments_are_bounded() {
        let mut reads = ReadList::default();
        (0..CHUNKS_MAX as u32).for_each(|at| reads.push(4 * at, segment(4)).unwrap());
        let max = CHUNKS_MAX as u32;
        let error = DecodeErrorKind::TooLong { len: max + 1, max };
        assert_eq!(reads.push(4 * max, segment(4)), Err(error));
        let many =
            Lists { writes: WriteList::new((0..=CHUNKS_MAX).map(|_| Chunk::new([segment(4)]))), ..Lists::default() };
        assert_eq!(decode(&many), Err(error));
        let mut reads = ReadList::default();
        (0..SEGMENTS_MAX).for_each(|_| reads.push(0, segment(4)).unwrap());
        let max = SEGMENTS_MAX as u32;
        assert_eq!(reads.push(0, segment(4)), Err(DecodeErrorKind::TooLong { len: max + 1, max }));
    }

    #[test]
    fn chunk_is_shorter_than_4_gib() {
        let mut reads = ReadList::default();
        reads.push(0, segment(u32::MAX - 4)).unwrap();
        assert!(reads.push(0, segment(5)).is_err());
        reads.push(0, segment(4)).unwrap();
        assert!(reads.push(0, segment(1)).is_err());
    }

    #[test]
    fn wire_length_is_that_of_the_encoded_lists() {
        for lists in [Lists::default(), lists(0, 0, 0), lists(1, 0, 0), lists(3, 5, 7)] {
            assert_eq!(lists.wire_len(), Message::encode(&lists).len());
        }
    }
}
