//! Receiving several FPDUs of one message at once.
//!
//! An FPDU of bulk data that is not its message's last is most likely followed by one of the same length for the
//! bytes behind. So one `readv` may fill the rest of this payload and the payloads that are expected next, with
//! the trailers and headers between them going to the stage.
//!
//! A forecast never leaves the memory that the message is for: the buffer of our own read, or the part of the
//! region in which the peer has not written yet. Each header is checked when its turn comes, before the bytes behind
//! it count as placed. Where the stream went on in another way, the bytes are taken out of the place again, which in
//! a region is then filled with zeros, and read as any stream, and for a while nothing more is forecast.

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

/// How the next bytes of the stream are to be received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forecast {
    sink: Sink,
    pub(crate) spread: Spread,
    /// Bytes of the place.
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Sink {
    /// Only what is due for certain.
    Due,
    /// The buffer of our oldest read.
    Read,
    /// A region of ours, from this tagged offset on.
    Region(Stag, u64),
}

impl Receiver {
    /// What can be received at once into [`place_of`](Self::place_of); no more than is due unless `bold`.
    pub(crate) fn forecast(&mut self, bold: bool) -> Result<Forecast, Fault> {
        let due = self.place()?.len();
        let State::Payload(segment) = self.state else { return Ok(Forecast::of_due(due)) };
        let Header::Tagged { last: false, stag, offset, .. } = segment.header else {
            return Ok(Forecast::of_due(due));
        };
        if !bold || self.distrust > 0 || self.recvs.is_scarce() || segment.payload < self.forecast_min {
            return Ok(Forecast::of_due(due));
        }
        let (sink, most) = match segment.opcode {
            Opcode::Write => {
                let end = offset + segment.payload as u64;
                (Sink::Region(stag, end - due as u64), due + self.regions.untouched(stag, end))
            }
            _ => (Sink::Read, self.reads.front().map_or(due, |read| read.into.len() - read.placed)),
        };
        // A header of the same kind, and before it the padding and CRC of a segment as long as this one.
        let gap = mpa::pad_len(segment.len.into()) + mpa::CRC_LEN + mpa::LENGTH_LEN + TAGGED_LEN;
        let len = most.min(due + PIECES_MAX * segment.payload);
        Ok(Forecast { sink, spread: Spread { first: due, piece: segment.payload, gap }, len })
    }

    /// The memory that a forecast is about.
    ///
    /// # Panics
    /// If anything has changed since the forecast.
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

    /// Takes in what was received as the forecast said.
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
                return self.take_back(forecast, at..received.direct, gap - taken, stage, events);
            }
            let now = expected.min(received.direct - at);
            self.placed(now)?;
            at += now;
        }
        self.take_staged(stage, events)
    }

    /// Takes in what is staged.
    pub(crate) fn take_staged(&mut self, stage: &mut RecvStage, events: &mut Vec<Event>) -> Result<(), Fault> {
        let taken = self.feed(stage.bytes(), events)?;
        stage.consume(taken);
        Ok(())
    }

    /// Whether a segment with so much payload has begun, and its place is `at` bytes into the forecast's.
    fn is_due(&self, sink: &Sink, at: usize, payload: usize) -> bool {
        let State::Payload(segment) = self.state else { return false };
        if segment.payload != payload || segment.done > 0 {
            return false;
        }
        match (sink, segment.opcode, segment.header) {
            // A response is in order, and its place that of the oldest read, or it would have been refused.
            (Sink::Read, Opcode::ReadResponse, _) => true,
            (Sink::Region(stag, start), Opcode::Write, Header::Tagged { stag: to, offset, .. }) => {
                to == *stag && offset == start + at as u64
            }
            _ => false,
        }
    }

    /// The forecast was wrong: what lies in this range of its place, and in the stage behind the next `gap` bytes, is
    /// some other part of the stream.
    fn take_back(
        &mut self,
        forecast: &Forecast,
        range: std::ops::Range<usize>,
        gap: usize,
        stage: &mut RecvStage,
        events: &mut Vec<Event>,
    ) -> Result<(), Fault> {
        self.distrust = DISTRUST;
        let mut stream = Vec::with_capacity(range.len() + stage.bytes().len());
        let mut left = self.strayed(forecast, range);
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
        // Much only if a Send has to wait for a receive.
        stage.put(&stream[taken..]);
        Ok(())
    }

    /// Takes bytes that were not meant for it out of a forecast's place.
    fn strayed(&mut self, forecast: &Forecast, range: std::ops::Range<usize>) -> Vec<u8> {
        match forecast.sink {
            Sink::Due => Vec::new(),
            // A read completes only when all of its buffer has been filled.
            Sink::Read => {
                let read = self.reads.front_mut().expect("its response has begun and is incomplete");
                read.into[read.placed..][..range.len()].to_vec()
            }
            // Nobody else's bytes stay in the region.
            Sink::Region(stag, start) => match self.regions.for_write(stag, start + range.start as u64, range.len()) {
                Ok(place) => {
                    let strayed = place.to_vec();
                    place.fill(0);
                    strayed
                }
                Err(_) => unreachable!("a region goes with the end of a message, and this one has not ended"),
            },
        }
    }
}

impl Forecast {
    fn of_due(len: usize) -> Self {
        Self { sink: Sink::Due, spread: Spread::WHOLE, len }
    }
}

const UNCHANGED: &str = "a forecast is used before anything changes";
/// Most pieces forecast at once.
const PIECES_MAX: usize = 8;
/// So many FPDUs after a wrong forecast nothing is forecast.
const DISTRUST: u32 = 64;

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

    /// A message of the peer, and the lengths of its segments, over and over.
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

    /// What is left of it all: the region, and what was received and read, in order.
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
        let Some(Memory::Write(region)) = receiver.remove(Stag(0x101)) else { panic!("the region is there") };
        (Rope::from(region).to_bytes().unwrap(), ends)
    }

    fn plainly(stream: &[u8], crc: bool) -> Outcome {
        let (mut receiver, mut events) = (receiver(crc), Vec::new());
        assert_eq!(receiver.feed(stream, &mut events), Ok(stream.len()));
        outcome(receiver, events)
    }

    /// As from a socket in which so many bytes are there each time. Says how many calls it took, too.
    fn by_forecast(mut stream: &[u8], sizes: &[usize], crc: bool) -> (Outcome, usize) {
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
                return (outcome(receiver, events), calls);
            }
        }
        unreachable!("some size is more than 0")
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
        fn a_forecast_changes_nothing_but_the_number_of_calls(
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
    fn a_message_of_equal_segments_takes_two_calls() {
        for script in [Script::Write { offset: 0, len: 2000 }, Script::Response] {
            let stream = stream_of(&[(script, &[600])]);
            let (outcome, calls) = by_forecast(&stream, &[usize::MAX], true);
            assert_eq!((outcome, calls), (plainly(&stream, true), 2));
        }
    }

    #[test]
    fn what_another_message_has_left_in_a_region_is_taken_out() {
        // The Write seems to go on, but its next segment is its last, and a Send follows.
        let stream =
            stream_of(&[(Script::Write { offset: 100, len: 900 }, &[600]), (Script::Send { len: 400 }, &[500])]);
        let ((region, received), _) = by_forecast(&stream, &[usize::MAX], true);
        assert!(region[..100].iter().all(|&byte| byte == 0) && region[100..1000].iter().all(|&byte| byte != 0));
        assert!(region[1000..].iter().all(|&byte| byte == 0));
        assert_eq!(received[0].1.len(), 400);
    }

    #[test]
    fn what_the_peer_has_written_before_is_never_forecast_over() {
        let later = (Script::Write { offset: 1000, len: 500 }, &[500][..]);
        let earlier = (Script::Write { offset: 0, len: 700 }, &[600][..]);
        let stream = stream_of(&[later, earlier, (Script::Send { len: 450 }, &[500])]);
        let ((region, _), _) = by_forecast(&stream, &[usize::MAX], true);
        assert!(region[..700].iter().chain(&region[1000..1500]).all(|&byte| byte != 0));
        assert!(region[700..1000].iter().chain(&region[1500..]).all(|&byte| byte == 0));
    }
}
