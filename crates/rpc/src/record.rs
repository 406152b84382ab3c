//! Record marking: extracts messages from a byte stream. RFC 5531 §11.
//!
//! [`RecordReader`] is a state machine without I/O. It consumes staged bytes, and returns the buffer for the bulk of a
//! large record, so that a stream transport can receive directly into it.
//!
//! Buffers: a small record is copied from the stage into memory that it shares with its neighbours. A large record has
//! a pool buffer of its own. The payload of a reply goes to the caller's sink, which the reader holds until the record
//! is complete or the connection is closed.
//!
//! The only error is a record that exceeds the maximum length. The connection must then be closed, because the position
//! of the next record is unknown.

use std::fmt;

use buf::{Arena, Buffer, Pool, Region, SharedRegion};
use bytes::{BufMut, Bytes, BytesMut};
use xdr::{Located, Message, PlacedPayload};

use crate::{
    Xid,
    msg::{REPLY, peek},
};

/// A complete record.
#[derive(Debug)]
pub struct Record {
    /// The bytes of the record, with the payload beside them if it was placed.
    pub message: Message,
    /// The region in which the payload was placed.
    pub sink: Option<SharedRegion>,
    /// Bytes of memory that [`Place::room`] granted for this record.
    pub charged: usize,
}

/// The destination of the payload of an arriving reply.
#[derive(Debug)]
pub struct Placement {
    /// The caller's region, in host memory.
    pub sink: Buffer,
    /// The position and length of the payload in the record.
    pub located: Located,
}

/// Decides about the destination of payloads and about memory for records.
pub trait Place {
    /// Returns the destination of the reply's payload, or `None` if it is not placed. `prefix` are the first bytes of
    /// the reply. The result must pass [`Placement::fits`].
    fn place(&mut self, xid: Xid, prefix: &Bytes, record_len: usize) -> Option<Placement>;

    /// Returns `true` and charges `bytes` to the record if there is room for them. If it returns `false`, the reader
    /// stays in its state and requests it again at the next [`RecordReader::advance`].
    fn room(&mut self, bytes: usize) -> bool {
        let _ = bytes;
        true
    }
}

/// The error for a record, or a sum of fragments, that is longer than the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordTooLong {
    /// Length in bytes according to the record marks.
    pub len: usize,
    /// Maximum length in bytes.
    pub max: usize,
}

/// The receiving half of record marking.
#[derive(Debug)]
pub struct RecordReader {
    max: usize,
    pool: Pool,
    arena: Arena,
    state: State,
    /// Bytes that [`Place::room`] granted for the incomplete record.
    charged: usize,
    /// The number of small records since the last large one.
    small_run: u32,
}

#[derive(Debug)]
enum State {
    /// The reader is between records; no byte of the next body has arrived.
    Mark,
    /// A record of one fragment, of which no byte has been consumed.
    Body { len: usize },
    /// A record of one fragment that is received into a buffer of its own.
    Whole { buffer: Buffer, filled: usize },
    /// A reply whose payload goes to the caller's sink. The bytes before the payload are in the arena.
    Placed { xid: Xid, sink: Buffer, located: Located, filled: usize, tail: usize },
    /// A record of several fragments.
    Fragments { assembled: BytesMut, left: usize, last: bool },
}

impl RecordReader {
    /// Creates a reader for records of at most `max` bytes. Large records get buffers from `pool`.
    pub fn new(max: usize, pool: Pool) -> Self {
        Self { max, pool, arena: Arena::new(ARENA_BYTES), state: State::Mark, charged: 0, small_run: SMALL_RUN }
    }

    /// Consumes bytes of `staged`, up to the end of one record. Returns the number of consumed bytes, and the record if
    /// it is complete. Without a record the reader needs more bytes: first those that fill [`direct`](Self::direct),
    /// then up to [`ahead`](Self::ahead) bytes in the stage.
    ///
    /// # Errors
    /// The record is too long. The reader must not be used any more.
    pub fn advance(&mut self, staged: &[u8], place: &mut impl Place) -> Result<(usize, Option<Record>), RecordTooLong> {
        let mut at = 0;
        loop {
            let rest = &staged[at..];
            let (taken, step) = match &mut self.state {
                State::Mark => self.mark(rest)?,
                State::Fragments { .. } => self.fragment(rest, place)?,
                State::Body { len } => {
                    let len = *len;
                    self.body(len, rest, place)
                }
                State::Whole { .. } => self.whole(rest),
                State::Placed { .. } => self.placed(rest),
            };
            at += taken;
            match step {
                Step::Next => {}
                Step::More => return Ok((at, None)),
                Step::Done(mut record) => {
                    self.state = State::Mark;
                    record.charged = std::mem::take(&mut self.charged);
                    return Ok((at, Some(record)));
                }
            }
        }
    }

    /// Returns the buffer for the next bytes. It is empty when the next bytes belong in the stage.
    pub fn direct(&mut self) -> &mut [u8] {
        match &mut self.state {
            State::Whole { buffer, filled } => &mut buffer[*filled..],
            State::Placed { sink, located, filled, .. } => &mut sink[*filled..located.len],
            _ => &mut [],
        }
    }

    /// Records that the first `len` bytes of [`direct`](Self::direct) have been filled.
    pub fn direct_filled(&mut self, len: usize) {
        assert!(len <= self.direct().len());
        if let State::Whole { filled, .. } | State::Placed { filled, .. } = &mut self.state {
            *filled += len;
        }
    }

    /// Returns the number of bytes to stage behind the direct ones, in a stage of [`STAGE_BYTES`].
    ///
    /// The number is small when records are large, because staged bytes must be copied. It is large when records are
    /// small, so that one system call receives many of them.
    pub fn ahead(&self, staged: usize) -> usize {
        let ahead = if self.small_run >= SMALL_RUN { STAGE_BYTES } else { AHEAD_MIN };
        let wanted = match &self.state {
            State::Body { len } if *len <= SMALL_MAX => *len,
            State::Body { .. } => PREFIX_MAX,
            _ => 0,
        };
        ahead.max(wanted.saturating_sub(staged))
    }

    /// Returns the bytes of memory that [`Place::room`] granted for the incomplete record.
    pub fn charged(&self) -> usize {
        self.charged
    }

    /// Frees memory that is not needed between records.
    pub fn release_idle_memory(&mut self) {
        self.arena.shrink_idle();
    }

    /// Returns the sink that is being filled, if the connection is closed within a reply.
    pub fn abandon(&mut self) -> Option<(Xid, Buffer)> {
        match std::mem::replace(&mut self.state, State::Mark) {
            State::Placed { xid, sink, .. } => Some((xid, sink)),
            _ => None,
        }
    }

    /// Drops an incomplete record. The reader must not be used any more.
    pub fn forget(&mut self) {
        self.state = State::Mark;
        self.arena.shrink_idle();
    }

    fn mark(&mut self, staged: &[u8]) -> Result<(usize, Step), RecordTooLong> {
        let Some((len, last)) = read_mark(staged) else { return Ok((0, Step::More)) };
        self.check(len)?;
        self.state = match last {
            true => State::Body { len },
            false => State::Fragments { assembled: BytesMut::new(), left: len, last },
        };
        Ok((MARK_BYTES, Step::Next))
    }

    fn fragment(&mut self, staged: &[u8], place: &mut impl Place) -> Result<(usize, Step), RecordTooLong> {
        let State::Fragments { assembled, left, last } = &mut self.state else { unreachable!() };
        if *left > 0 {
            let take = staged.len().min(*left);
            // The allocation grows with the bytes that have arrived, not with the announced length.
            let needed = assembled.len() + take;
            if needed > self.charged {
                let capacity = needed.max(FRAGMENTS_MIN).next_power_of_two();
                if !place.room(capacity - self.charged) {
                    return Ok((0, Step::More));
                }
                self.charged = capacity;
                assembled.reserve(capacity - assembled.len());
            }
            assembled.put_slice(&staged[..take]);
            *left -= take;
            return Ok((take, if take == 0 { Step::More } else { Step::Next }));
        }
        if *last {
            let message = std::mem::take(assembled).freeze().into();
            return Ok((0, Step::Done(Record { message, sink: None, charged: 0 })));
        }
        let Some((len, is_last)) = read_mark(staged) else { return Ok((0, Step::More)) };
        (*left, *last) = (len, is_last);
        let sum = assembled.len() + len;
        self.check(sum)?;
        Ok((MARK_BYTES, Step::Next))
    }

    /// Decides how to receive a record of one fragment.
    fn body(&mut self, len: usize, staged: &[u8], place: &mut impl Place) -> (usize, Step) {
        let is_reply = match peek(staged) {
            Some((xid, REPLY)) if len > PREFIX_MAX => Some(xid),
            Some(_) => None,
            None if len > PREFIX_MAX => return (0, Step::More),
            None => None,
        };
        if let Some(xid) = is_reply {
            let Some(prefix) = staged.get(..PREFIX_MAX) else { return (0, Step::More) };
            let prefix = self.copy(prefix);
            if let Some(placement) = place.place(xid, &prefix, len) {
                assert!(placement.fits(prefix.len(), len), "a placement must lie within its record");
                return self.start_placed(xid, &prefix, len, placement);
            }
        }
        if len > SMALL_MAX {
            let memory = whole_memory(len);
            if !place.room(memory) {
                return (0, Step::More);
            }
            self.charged = memory;
            self.small_run = 0;
            self.state = State::Whole { buffer: self.pool.take(len), filled: 0 };
            return (0, Step::Next);
        }
        let Some(bytes) = staged.get(..len) else { return (0, Step::More) };
        self.small_run = self.small_run.saturating_add(1);
        (len, Step::Done(Record { message: self.copy(bytes).into(), sink: None, charged: 0 }))
    }

    fn start_placed(&mut self, xid: Xid, prefix: &Bytes, len: usize, placement: Placement) -> (usize, Step) {
        let Placement { sink, located } = placement;
        let tail = len - located.position - located.len;
        self.room(located.position + tail);
        self.arena.put(&prefix[..located.position]);
        self.small_run = if len > SMALL_MAX { 0 } else { self.small_run.saturating_add(1) };
        self.state = State::Placed { xid, sink, located, filled: 0, tail };
        (located.position, Step::Next)
    }

    fn whole(&mut self, staged: &[u8]) -> (usize, Step) {
        let State::Whole { buffer, filled } = &mut self.state else { unreachable!() };
        let take = staged.len().min(buffer.len() - *filled);
        buffer[*filled..*filled + take].copy_from_slice(&staged[..take]);
        *filled += take;
        if *filled < buffer.len() {
            return (take, Step::More);
        }
        let message = std::mem::replace(buffer, Buffer::zeroed(0)).freeze().into();
        (take, Step::Done(Record { message, sink: None, charged: 0 }))
    }

    fn placed(&mut self, staged: &[u8]) -> (usize, Step) {
        let State::Placed { sink, located, filled, tail, .. } = &mut self.state else { unreachable!() };
        let take = staged.len().min(located.len - *filled);
        sink[*filled..*filled + take].copy_from_slice(&staged[..take]);
        *filled += take;
        if *filled < located.len {
            return (take, Step::More);
        }
        let more = (staged.len() - take).min(*tail);
        self.arena.put(&staged[take..take + more]);
        *tail -= more;
        if *tail > 0 {
            return (take + more, Step::More);
        }
        (take + more, Step::Done(self.finish_placed()))
    }

    fn finish_placed(&mut self) -> Record {
        let State::Placed { sink, located, .. } = std::mem::replace(&mut self.state, State::Mark) else {
            unreachable!()
        };
        // RFC 4506 §4.10: padding follows the item. It is not part of the reduced stream.
        let mut stream = self.arena.piece().split();
        let padding = padding(located.len).min(stream.len() - located.position);
        stream.copy_within(located.position + padding.., located.position);
        stream.truncate(stream.len() - padding);
        let sink = SharedRegion::from(Region::from(sink));
        let data = sink.piece(located.len).into();
        let payloads = vec![PlacedPayload { position: Some(located.position as u32), data }];
        Record { message: Message { stream: stream.freeze(), payloads }, sink: Some(sink), charged: 0 }
    }

    fn check(&self, len: usize) -> Result<(), RecordTooLong> {
        if len > self.max { Err(RecordTooLong { len, max: self.max }) } else { Ok(()) }
    }

    fn copy(&mut self, bytes: &[u8]) -> Bytes {
        self.room(bytes.len());
        self.arena.put(bytes);
        self.arena.take()
    }

    fn room(&mut self, len: usize) {
        assert!(self.arena.make_room(len), "the arena must have room for one piece");
    }
}

enum Step {
    /// Continue with the new state.
    Next,
    /// Wait for more bytes.
    More,
    Done(Record),
}

impl Placement {
    /// Returns `true` if the payload can be placed. It was located in the first `prefix_len` bytes of a record of
    /// `record_len` bytes.
    pub fn fits(&self, prefix_len: usize, record_len: usize) -> bool {
        let Located { position, len } = self.located;
        let end = len.checked_add(padding(len)).and_then(|len| position.checked_add(len));
        (8..=prefix_len).contains(&position)
            && position.is_multiple_of(4)
            && len <= self.sink.len()
            && end.is_some_and(|end| end <= record_len)
    }
}

impl fmt::Display for RecordTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a record of {} bytes exceeds the maximum of {}", self.len, self.max)
    }
}

impl std::error::Error for RecordTooLong {}

fn read_mark(staged: &[u8]) -> Option<(usize, bool)> {
    let mark = u32::from_be_bytes(*staged.first_chunk()?);
    Some(((mark & !LAST_FRAGMENT) as usize, mark & LAST_FRAGMENT != 0))
}

/// Returns the bytes of the buffer for a large record. A pool rounds up to a power of two, up to its largest buffer.
fn whole_memory(len: usize) -> usize {
    if len <= POOLED_MAX { len.next_power_of_two() } else { len }
}

pub(crate) fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// The capacity of the stage in front of a [`RecordReader`].
pub const STAGE_BYTES: usize = 64 << 10;
const AHEAD_MIN: usize = 4 << 10;
/// The number of consecutive small records after which the next record is probably small, too.
const SMALL_RUN: u32 = 4;
/// Maximum length in bytes of a record that is copied from the stage.
const SMALL_MAX: usize = 16 << 10;
/// Size in bytes of the largest buffer of a pool.
const POOLED_MAX: usize = 2 << 20;
const FRAGMENTS_MIN: usize = 512;
/// The number of bytes in which a reply's payload is located. Shorter replies are copied.
const PREFIX_MAX: usize = 512;
pub(crate) const ARENA_BYTES: usize = 64 << 10;
pub(crate) const LAST_FRAGMENT: u32 = 1 << 31;
const MARK_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use buf::Piece;
    use proptest::prelude::*;

    use super::*;
    use crate::outbox::Outbox;

    /// The bytes of a stream, returned in pieces of these sizes, repeatedly.
    struct Source<'a> {
        bytes: &'a [u8],
        sizes: std::iter::Cycle<std::slice::Iter<'a, usize>>,
    }

    /// Simulates a socket and a stage: fills the direct buffer first, then the stage.
    fn read_all(
        bytes: &[u8],
        sizes: &[usize],
        max: usize,
        place: &mut impl Place,
    ) -> Result<Vec<Record>, RecordTooLong> {
        let mut source = Source { bytes, sizes: sizes.iter().cycle() };
        let mut reader = RecordReader::new(max, Pool::default());
        let (mut stage, mut records) = (Vec::new(), Vec::new());
        loop {
            loop {
                let (taken, record) = reader.advance(&stage, place)?;
                stage.drain(..taken);
                match record {
                    Some(record) => records.push(record),
                    None => break,
                }
            }
            if source.bytes.is_empty() {
                assert!(stage.is_empty(), "all complete records must have been read");
                return Ok(records);
            }
            let ahead = reader.ahead(stage.len());
            let direct = reader.direct();
            assert!(direct.is_empty() || stage.is_empty());
            assert!(direct.len() + ahead > 0 && stage.len() + ahead <= 2 * STAGE_BYTES);
            let take = source.bytes.len().min(*source.sizes.next().unwrap()).min(direct.len() + ahead);
            let (now, later) = source.bytes.split_at(take);
            source.bytes = later;
            let (first, second) = now.split_at(take.min(direct.len()));
            direct[..first.len()].copy_from_slice(first);
            reader.direct_filled(first.len());
            stage.extend(second);
        }
    }

    struct NoPlacement;

    impl Place for NoPlacement {
        fn place(&mut self, _: Xid, _: &Bytes, _: usize) -> Option<Placement> {
            None
        }
    }

    /// Places a payload whose position and length are the third and fourth word of the message.
    struct PlacementFromHeader;

    impl Place for PlacementFromHeader {
        fn place(&mut self, _: Xid, prefix: &Bytes, record_len: usize) -> Option<Placement> {
            let word = |at: usize| u32::from_be_bytes(prefix[at..at + 4].try_into().unwrap()) as usize;
            let placement =
                Placement { sink: Buffer::zeroed(word(12) + 7), located: Located { position: word(8), len: word(12) } };
            placement.fits(prefix.len(), record_len).then_some(placement)
        }
    }

    /// Creates a reply with a payload at `position` and `tail` bytes behind it.
    fn reply(position: usize, len: usize, tail: usize) -> Message {
        let mut stream = vec![1; position];
        for (at, word) in [7, REPLY, position as u32, len as u32].into_iter().enumerate() {
            stream[at * 4..at * 4 + 4].copy_from_slice(&word.to_be_bytes());
        }
        stream.extend(vec![2; tail]);
        let data = Bytes::from((0..len).map(|i| (i % 253) as u8).collect::<Vec<_>>()).into();
        Message { stream: stream.into(), payloads: vec![PlacedPayload { position: Some(position as u32), data }] }
    }

    fn to_wire(messages: &[Message]) -> Vec<u8> {
        let mut outbox = Outbox::default();
        messages.iter().for_each(|message| outbox.push(message.clone(), message.len()));
        let wire: Vec<u8> = outbox
            .into_pieces()
            .into_iter()
            .flat_map(|piece| match piece {
                Piece::Memory(bytes) => bytes.to_vec(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(wire.len(), messages.iter().map(|message| MARK_BYTES + message.len()).sum::<usize>());
        wire
    }

    fn fragmented(message: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut wire = Vec::new();
        let mut rest = message;
        for &cut in cuts {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            wire.extend((now.len() as u32).to_be_bytes());
            wire.extend(now);
            rest = later;
        }
        wire.extend((LAST_FRAGMENT | rest.len() as u32).to_be_bytes());
        wire.extend(rest);
        wire
    }

    fn call(len: usize) -> Message {
        let mut stream = vec![0; len];
        stream.iter_mut().enumerate().skip(8).for_each(|(at, byte)| *byte = at as u8);
        Bytes::from(stream).into()
    }

    fn flat(message: &Message) -> Bytes {
        message.to_rope().to_bytes().unwrap()
    }

    #[test]
    fn records_are_read_at_every_split() {
        let messages = [call(40), reply(24, 600, 4), call(8)];
        let wire = to_wire(&messages);
        for split in 1..wire.len() {
            let records = read_all(&wire, &[split, wire.len()], 1 << 20, &mut PlacementFromHeader).unwrap();
            assert_eq!(records.len(), 3);
            for (record, message) in records.iter().zip(&messages) {
                assert_eq!(flat(&record.message), flat(message));
            }
            assert!(records[1].sink.is_some() && records[0].sink.is_none());
        }
    }

    proptest! {
        #[test]
        fn records_of_all_sizes_are_read_at_all_splits(
            lens in prop::collection::vec(prop_oneof![8usize..200, 8usize..40_000, 100_000usize..300_000], 1..6),
            sizes in prop::collection::vec(prop_oneof![1usize..9, 1usize..70_000], 1..5),
            placed in prop::collection::vec((4usize..120, 1usize..70_000, 0usize..9), 0..4),
        ) {
            let mut messages: Vec<_> = lens.into_iter().map(|len| call(len & !3)).collect();
            messages.extend(placed.into_iter().map(|(words, len, tail)| reply(words * 4, len, tail * 4)));
            let wire = to_wire(&messages);
            let records = read_all(&wire, &sizes, 1 << 20, &mut PlacementFromHeader).unwrap();
            prop_assert_eq!(records.len(), messages.len());
            for (record, message) in records.iter().zip(&messages) {
                prop_assert_eq!(flat(&record.message), flat(message));
                if let (Some(sink), Some(payload)) = (&record.sink, message.payloads.first()) {
                    prop_assert!(sink.holds(&record.message.payloads[0].data));
                    prop_assert_eq!(record.message.payloads[0].position, payload.position);
                }
            }
            let unplaced = read_all(&wire, &sizes, 1 << 20, &mut NoPlacement).unwrap();
            for (record, message) in unplaced.iter().zip(&messages) {
                prop_assert_eq!(flat(&record.message), flat(message));
            }
        }

        #[test]
        fn fragments_are_joined(
            len in 8usize..3000,
            cuts in prop::collection::vec(0usize..500, 0..12),
            sizes in prop::collection::vec(1usize..600, 1..5),
        ) {
            let message = flat(&call(len & !3));
            let mut wire = fragmented(&message, &cuts);
            wire.extend(to_wire(&[call(12)]));
            let records = read_all(&wire, &sizes, 4096, &mut NoPlacement).unwrap();
            prop_assert_eq!(records.len(), 2);
            prop_assert_eq!(flat(&records[0].message), message);
        }

        #[test]
        fn arbitrary_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..2000), size in 1usize..50) {
            let mut reader = RecordReader::new(1000, Pool::default());
            let mut stage = Vec::new();
            for chunk in bytes.chunks(size) {
                let direct = reader.direct();
                let first = direct.len().min(chunk.len());
                direct[..first].copy_from_slice(&chunk[..first]);
                reader.direct_filled(first);
                stage.extend(&chunk[first..]);
                while let Ok((taken, record)) = reader.advance(&stage, &mut PlacementFromHeader) {
                    stage.drain(..taken);
                    if record.is_none() { break }
                }
            }
        }
    }

    #[test]
    fn too_long_record_is_rejected_before_it_arrives() {
        let announced = (LAST_FRAGMENT | 1001).to_be_bytes();
        assert_eq!(
            read_all(&announced, &[4], 1000, &mut NoPlacement).unwrap_err(),
            RecordTooLong { len: 1001, max: 1000 }
        );
        let sum = fragmented(&[0; 1001], &[600]);
        assert_eq!(read_all(&sum, &[9], 1000, &mut NoPlacement).unwrap_err().len, 1001);
        assert_eq!(read_all(&fragmented(&[0; 1000], &[600]), &[9], 1000, &mut NoPlacement).unwrap().len(), 1);
    }

    #[test]
    fn sink_is_returned_when_connection_closes_within_a_reply() {
        let wire = to_wire(&[reply(24, 5000, 0)]);
        let mut reader = RecordReader::new(1 << 20, Pool::default());
        let (taken, record) = reader.advance(&wire[..1000], &mut PlacementFromHeader).unwrap();
        assert!(taken == 1000 && record.is_none());
        assert_eq!(reader.direct().len(), 5000 - (1000 - 4 - 24));
        let (xid, sink) = reader.abandon().unwrap();
        assert_eq!((xid, sink.len()), (Xid(7), 5007));
    }
}
