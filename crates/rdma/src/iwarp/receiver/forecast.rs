//! Receiving several FPDUs of one message with one system call.
//!
//! If an FPDU of bulk data is not the last of its message, the next one most likely has the same length and continues
//! the data. So one `readv` can fill the rest of this payload and the payloads that are expected next, while the
//! trailers and headers between them go to the stage.
//!
//! A forecast never exceeds the memory of its message: the buffer of a read of this side, or the part of the region to
//! which the peer has not written yet. Each header is validated before the bytes behind it count as placed. If the
//! stream continued in another way, the bytes are taken out of their place again, which is filled with zeros if it is
//! in a region, and are processed as an ordinary stream. After that, forecasts are suspended for some FPDUs.

use buf::{Received, RecvStage, Spread};

use super::{Event, Fault, Receiver, State};
use crate::{
    Stag,
    iwarp::{
        ddp::{Header, TAGGED_LEN},
        mpa,
        rdmap::Opcode,
    },
};

/// The plan for receiving the next bytes of the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forecast {
    sink: Sink,
    pub(crate) spread: Spread,
    /// The length of the place in bytes.
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Sink {
    /// The payload that is certainly due.
    Due,
    /// The buffer of the oldest read of this side.
    Read,
    /// A region of this side, from this tagged offset on.
    Region(Stag, u64),
}

impl Receiver {
    /// Returns the plan for receiving into [`place_of`](Self::place_of) with one call. Without `speculative`, it covers
    /// only what is due.
    pub(crate) fn forecast(&mut self, speculative: bool) -> Result<Forecast, Fault> {
        let due = self.place()?.len();
        let State::Payload(segment) = self.state else { return Ok(Forecast::of_due(due)) };
        let Header::Tagged { last: false, stag, offset, .. } = segment.header else {
            return Ok(Forecast::of_due(due));
        };
        if !speculative || self.suspended > 0 || self.recvs.is_scarce() || segment.payload < self.forecast_min {
            return Ok(Forecast::of_due(due));
        }
        let (sink, most) = match segment.opcode {
            Opcode::Write => {
                let end = offset + segment.payload as u64;
                (Sink::Region(stag, end - due as u64), due + self.regions.untouched(stag, end))
            }
            _ => (Sink::Read, self.reads.front().map_or(due, |read| read.into.len() - read.placed)),
        };
        // The gap is the padding and CRC of a segment of this length, and a header of the same kind.
        let gap = mpa::pad_len(segment.len.into()) + mpa::CRC_LEN + mpa::LENGTH_LEN + TAGGED_LEN;
        let len = most.min(due + PIECES_MAX * segment.payload);
        Ok(Forecast { sink, spread: Spread { first: due, piece: segment.payload, gap }, len })
    }

    /// Returns the memory of a forecast.
    ///
    /// # Panics
    /// If the receiver has changed since the forecast.
    pub(crate) fn place_of(&mut self, forecast: &Forecast) -> &mut [u8] {
        match forecast.sink {
            Sink::Due => self.place().expect(UNCHANGED),
            Sink::Read => {
                let read = self.reads.front_mut().expect(UNCHANGED);
                &mut read.into[read.placed..][..forecast.len]
            }
            Sink::Region(stag, start) => self.regions.for_write(stag, start, forecast.len).expect(UNCHANGED),
        }
    }

    /// Processes data that were received according to the forecast.
    pub(crate) fn take(
        &mut self,
        forecast: &Forecast,
        received: Received,
        stage: &mut RecvStage,
        events: &mut Vec<Event>,
    ) -> Result<(), Fault> {
        let Spread { first, piece, gap } = forecast.spread;
        let mut at = received.direct.min(first);
        self.placed(at)?;
        while at < received.direct {
            let taken = self.feed(&stage.bytes()[..gap], events)?;
            stage.consume(taken);
            let expected = piece.min(forecast.len - at);
            if taken < gap || !self.is_due(&forecast.sink, at, expected) {
                return self.revert(forecast, at..received.direct, gap - taken, stage, events);
            }
            let now = expected.min(received.direct - at);
            self.placed(now)?;
            at += now;
        }
        self.take_staged(stage, events)
    }

    /// Processes staged data.
    pub(crate) fn take_staged(&mut self, stage: &mut RecvStage, events: &mut Vec<Event>) -> Result<(), Fault> {
        let taken = self.feed(stage.bytes(), events)?;
        stage.consume(taken);
        Ok(())
    }

    /// Returns `true` if a segment with this payload has begun whose place is `at` bytes into the forecast's.
    fn is_due(&self, sink: &Sink, at: usize, payload: usize) -> bool {
        let State::Payload(segment) = self.state else { return false };
        if segment.payload != payload {
            return false;
        }
        debug_assert_eq!(segment.done, 0, "only the header was received");
        match (sink, segment.opcode, segment.header) {
            // A response arrives in order and belongs to the oldest read; otherwise it would have been rejected.
            (Sink::Read, Opcode::ReadResponse, _) => true,
            (Sink::Region(stag, start), Opcode::Write, Header::Tagged { stag: to, offset, .. }) => {
                to == *stag && offset == start + at as u64
            }
            _ => false,
        }
    }

    /// Reverts a wrong forecast: the bytes in this range of its place, and those in the stage behind the next `gap`
    /// bytes, are another part of the stream.
    fn revert(
        &mut self,
        forecast: &Forecast,
        range: std::ops::Range<usize>,
        gap: usize,
        stage: &mut RecvStage,
        events: &mut Vec<Event>,
    ) -> Result<(), Fault> {
        self.suspended = SUSPENDED_FPDUS;
        let mut stream = Vec::with_capacity(range.len() + stage.bytes().len());
        let mut left = self.misplaced(forecast, range);
        let mut between = gap;
        while !left.is_empty() {
            stream.extend_from_slice(&stage.bytes()[..between]);
            stage.consume(between);
            between = forecast.spread.gap;
            let piece = left.len().min(forecast.spread.piece);
            stream.extend_from_slice(&left[..piece]);
            left.drain(..piece);
        }
        stream.extend_from_slice(stage.bytes());
        stage.consume(stage.bytes().len());
        let taken = self.feed(&stream, events)?;
        // Many bytes remain only if a Send must wait for a receive.
        stage.put(&stream[taken..]);
        Ok(())
    }

    /// Removes bytes from the place of a forecast to which they do not belong.
    fn misplaced(&mut self, forecast: &Forecast, range: std::ops::Range<usize>) -> Vec<u8> {
        match forecast.sink {
            Sink::Due => Vec::new(),
            // A read completes only when its whole buffer has been filled, so its bytes need not be zeroed.
            Sink::Read => {
                let read = self.reads.front_mut().expect("the incomplete response must have a read");
                read.into[read.placed..][..range.len()].to_vec()
            }
            // No other message's bytes must stay in the region.
            Sink::Region(stag, start) => match self.regions.for_write(stag, start + range.start as u64, range.len()) {
                Ok(place) => {
                    let misplaced = place.to_vec();
                    place.fill(0);
                    misplaced
                }
                Err(_) => {
                    unreachable!("a region is removed only at the end of a message, and this message has not ended")
                }
            },
        }
    }
}

impl Forecast {
    fn of_due(len: usize) -> Self {
        Self { sink: Sink::Due, spread: Spread::WHOLE, len }
    }
}

const UNCHANGED: &str = "a forecast must be used before the receiver changes";
/// Maximum number of pieces of a forecast.
const PIECES_MAX: usize = 8;
/// The number of FPDUs after a wrong forecast during which nothing is forecast.
const SUSPENDED_FPDUS: u32 = 64;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use buf::{Buffer, Rope};
    use bytes::{BufMut, Bytes};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Completion, CompletionKind, Memory, WorkId,
        iwarp::receiver::{PendingRead, STAGE_LEN},
        receives::ReceiveQueue,
    };

    const REGION: usize = 3000;
    const READS: [usize; 2] = [2000, 700];

    /// A message of the peer. The lengths of its segments are repeated.
    #[derive(Clone, Debug)]
    enum Script {
        Write { offset: usize, len: usize },
        Response,
        Send { len: usize },
    }

    struct Peer {
        stream: Vec<u8>,
        crc: bool,
        sends: u32,
        responses: u32,
        next: u8,
    }

    impl Peer {
        fn message(&mut self, script: &Script, cuts: &[usize]) {
            let (mut left, mut at) = match *script {
                Script::Write { offset, len } => (len.min(REGION - offset), offset),
                Script::Response => match READS.get(self.responses as usize) {
                    Some(&len) => (len, 0),
                    None => return,
                },
                Script::Send { len } => (len, 0),
            };
            match script {
                Script::Response => self.responses += 1,
                Script::Send { .. } => self.sends += 1,
                Script::Write { .. } => {}
            }
            for cut in cuts.iter().cycle() {
                let now = left.min(*cut);
                left -= now;
                self.segment(script, at, now, left == 0);
                at += now;
                if left == 0 {
                    return;
                }
            }
        }

        fn segment(&mut self, script: &Script, at: usize, len: usize, last: bool) {
            let offset = at as u64;
            let header = match script {
                Script::Write { .. } => Header::Tagged { last, ulp: Opcode::Write.ulp(), stag: Stag(0x101), offset },
                Script::Response => {
                    Header::Tagged { last, ulp: Opcode::ReadResponse.ulp(), stag: Stag(self.responses), offset }
                }
                Script::Send { .. } => {
                    let ulp = Opcode::send(false, false).ulp();
                    Header::Untagged { last, ulp, ulp_word: 0, queue: 0, msn: self.sends, offset: at as u32 }
                }
            };
            let start = self.stream.len();
            let ulpdu = header.encoded_len() + len;
            self.stream.put_u16(ulpdu as u16);
            header.encode(&mut self.stream);
            for _ in 0..len {
                self.next = self.next % 251 + 1;
                self.stream.push(self.next);
            }
            self.stream.put_bytes(0, mpa::pad_len(ulpdu));
            let crc = if self.crc { crc32c::crc32c(&self.stream[start..]) } else { 0 };
            self.stream.put_slice(&mpa::crc_field(crc));
        }
    }

    /// The content of the region, and the received and read data in order.
    type Outcome = (Bytes, Vec<(Option<WorkId>, Vec<u8>)>);

    fn receiver(crc: bool) -> Receiver {
        let recvs = ReceiveQueue::new(None, (0..40).map(|id| (WorkId(id), Buffer::zeroed(500))).collect());
        let mut receiver = Receiver::new(crc, 1, 1, recvs);
        receiver.forecast_min = 8;
        assert_eq!(
            receiver.regions.register(Memory::Write(Buffer::zeroed(REGION).into()), 0).unwrap().stag,
            Stag(0x101)
        );
        for (index, len) in READS.into_iter().enumerate() {
            let sink = Stag(index as u32 + 1);
            receiver.reads.push_back(PendingRead { sink, into: Buffer::zeroed(len), placed: 0 });
        }
        receiver
    }

    fn outcome(mut receiver: Receiver, events: Vec<Event>) -> Outcome {
        let ends = events.into_iter().map(|event| match event {
            Event::Received(Completion { id, kind: CompletionKind::Receive { buffer, .. }, .. }) => {
                (Some(id), buffer.to_vec())
            }
            Event::ReadDone(buffer) => (None, buffer.to_vec()),
            other => panic!("{other:?}"),
        });
        let ends = ends.collect();
        let Some(Memory::Write(region)) = receiver.remove(Stag(0x101)) else { panic!("the region must exist") };
        (Rope::from(region).to_bytes().unwrap(), ends)
    }

    fn plainly(stream: &[u8], crc: bool) -> Outcome {
        let (mut receiver, mut events) = (receiver(crc), Vec::new());
        assert_eq!(receiver.feed(stream, &mut events), Ok(stream.len()));
        outcome(receiver, events)
    }

    /// Receives as from a socket that has these numbers of bytes available, in turn. Also returns the number of calls, and of the FPDUs
    /// until forecasts are used again.
    fn by_forecast(mut stream: &[u8], sizes: &[usize], crc: bool) -> (Outcome, usize, u32) {
        let (mut receiver, mut events) = (receiver(crc), Vec::new());
        let (mut stage, mut calls) = (RecvStage::new(STAGE_LEN), 0);
        for size in sizes.iter().cycle() {
            let mut there = &stream[..stream.len().min(*size)];
            let (before, ahead) = (there.len(), 16);
            let forecast = receiver.forecast(stage.bytes().is_empty()).unwrap();
            let place = receiver.place_of(&forecast);
            let got =
                stage.receive_spread(place, forecast.spread, ahead, |slices| there.read_vectored(slices)).unwrap();
            calls += 1;
            receiver.take(&forecast, got, &mut stage, &mut events).unwrap();
            stream = &stream[before - there.len()..];
            if stream.is_empty() {
                assert!(receiver.between_fpdus() && stage.bytes().is_empty());
                let suspended = receiver.suspended;
                return (outcome(receiver, events), calls, suspended);
            }
        }
        unreachable!("some size must be greater than zero")
    }

    fn script() -> impl Strategy<Value = (Script, Vec<usize>)> {
        let script = prop_oneof![
            (0..REGION, 0..REGION).prop_map(|(offset, len)| Script::Write { offset, len }),
            Just(Script::Write { offset: 0, len: REGION }),
            Just(Script::Response),
            (0..500usize).prop_map(|len| Script::Send { len }),
        ];
        let cuts = prop_oneof![
            (8..400usize).prop_map(|len| vec![len]),
            (8..300usize).prop_map(|len| vec![len * 4]),
            prop::collection::vec(1..300usize, 1..5),
        ];
        (script, cuts)
    }

    proptest! {
        #[test]
        fn forecasts_change_only_the_number_of_calls(
            scripts in prop::collection::vec(script(), 1..12),
            sizes in prop::collection::vec(prop_oneof![1..40usize, 1..5000usize], 1..6),
            crc in any::<bool>(),
        ) {
            let mut peer = Peer { stream: Vec::new(), crc, sends: 0, responses: 0, next: 0 };
            scripts.iter().for_each(|(script, cuts)| peer.message(script, cuts));
            prop_assert_eq!(by_forecast(&peer.stream, &sizes, crc).0, plainly(&peer.stream, crc));
        }
    }

    fn stream_of(scripts: &[(Script, &[usize])]) -> Vec<u8> {
        let mut peer = Peer { stream: Vec::new(), crc: true, sends: 0, responses: 0, next: 0 };
        scripts.iter().for_each(|(script, cuts)| peer.message(script, cuts));
        peer.stream
    }

    #[test]
    fn message_of_equal_segments_needs_two_calls() {
        // Writes up to the end of the region: what follows another could belong to it.
        let write = |offset| Script::Write { offset, len: REGION - offset };
        for script in [write(0), write(1000), Script::Response] {
            let stream = stream_of(&[(script, &[600])]);
            let (outcome, calls, suspended) = by_forecast(&stream, &[usize::MAX], true);
            assert!(outcome == plainly(&stream, true));
            assert_eq!((calls, suspended), (2, 0));
        }
    }

    #[test]
    fn bytes_of_another_message_are_removed_from_the_region() {
        // The Write appears to continue, but its next segment is its last, and a Send follows.
        let stream =
            stream_of(&[(Script::Write { offset: 100, len: 900 }, &[600]), (Script::Send { len: 400 }, &[500])]);
        let ((region, received), ..) = by_forecast(&stream, &[usize::MAX], true);
        assert!(region[..100].iter().all(|&byte| byte == 0) && region[100..1000].iter().all(|&byte| byte != 0));
        assert!(region[1000..].iter().all(|&byte| byte == 0));
        assert_eq!(received[0].1.len(), 400);
    }

    /// RFC 5041 §4.1: the segments of a tagged message need not be contiguous.
    #[test]
    fn segment_of_a_write_can_have_any_place_in_the_region() {
        let mut peer = Peer { stream: Vec::new(), crc: true, sends: 0, responses: 0, next: 0 };
        let write = Script::Write { offset: 0, len: REGION };
        peer.segment(&write, 0, 600, false);
        peer.segment(&write, 2000, 600, false);
        peer.segment(&write, 1300, 600, true);
        let (outcome, _, suspended) = by_forecast(&peer.stream, &[usize::MAX], true);
        assert!(outcome == plainly(&peer.stream, true));
        assert_ne!(suspended, 0, "the forecast must have been wrong");
    }

    #[test]
    fn forecast_does_not_cover_bytes_written_before() {
        let later = (Script::Write { offset: 1000, len: 500 }, &[500][..]);
        let earlier = (Script::Write { offset: 0, len: 700 }, &[600][..]);
        let stream = stream_of(&[later, earlier, (Script::Send { len: 450 }, &[500])]);
        let ((region, _), ..) = by_forecast(&stream, &[usize::MAX], true);
        assert!(region[..700].iter().chain(&region[1000..1500]).all(|&byte| byte != 0));
        assert!(region[700..1000].iter().chain(&region[1500..]).all(|&byte| byte == 0));
    }
}
