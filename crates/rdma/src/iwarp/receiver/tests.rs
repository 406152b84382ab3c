//! Single segments: what is rejected before any of it is placed, and how many bytes the next system call may receive.

use buf::{Buffer, Pool};
use bytes::BufMut;

use super::*;
use crate::{ReceiveSource, ReceiveSourceOptions, WorkId};

const REGION: usize = 20_000;
const READ: usize = 2000;
const RECV: usize = 500;
const STAG: Stag = Stag(0x101);
const SINK: Stag = Stag(1);

fn with_receives(recvs: ReceiveQueue) -> Receiver {
    let mut receiver = Receiver::new(false, 1, 1, recvs);
    let region = receiver.regions.register(Memory::Write(Buffer::zeroed(REGION).into()), 0).unwrap();
    assert_eq!(region.stag, STAG);
    receiver.reads.push_back(PendingRead { sink: SINK, into: Buffer::zeroed(READ), placed: 0 });
    receiver
}

fn receiver() -> Receiver {
    with_receives(ReceiveQueue::new(None, (0..40).map(|id| (WorkId(id), Buffer::zeroed(RECV))).collect()))
}

/// Returns a receiver whose receives are scarce.
fn scarce() -> Receiver {
    let options = ReceiveSourceOptions { buffer_bytes: RECV, budget: 0, guaranteed: 1 };
    with_receives(ReceiveQueue::new(Some(&(ReceiveSource::new(options, Pool::default()), WorkId(0))), Vec::new()))
}

fn head(header: Header, payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u16((header.encoded_len() + payload) as u16);
    header.encode(&mut bytes);
    bytes
}

/// Returns an FPDU with a payload of zeros.
fn fpdu(header: Header, payload: usize) -> Vec<u8> {
    let mut bytes = head(header, payload);
    bytes.put_bytes(0, payload + mpa::pad_len(header.encoded_len() + payload) + mpa::CRC_LEN);
    bytes
}

fn tagged(opcode: Opcode, stag: Stag, offset: u64, last: bool) -> Header {
    Header::Tagged { last, ulp: opcode.ulp(), stag, offset }
}

fn write(last: bool) -> Header {
    tagged(Opcode::Write, STAG, 0, last)
}

fn send(offset: u32, last: bool) -> Header {
    let ulp = Opcode::send(false, false).ulp();
    Header::Untagged { last, ulp, ulp_word: 0, queue: 0, msn: 1, offset }
}

fn feed(receiver: &mut Receiver, bytes: &[u8]) -> Result<(), ErrorCode> {
    match receiver.feed(bytes, &mut Vec::new()) {
        Ok(taken) => {
            assert_eq!(taken, bytes.len());
            Ok(())
        }
        Err(Fault::Peer(terminate)) => Err(terminate.error),
        Err(fault) => panic!("{fault:?}"),
    }
}

#[test]
fn response_must_continue_and_end_with_its_read() {
    let segments = [
        ((0, READ, true), Ok(())),
        ((0, READ - 1, false), Ok(())),
        ((0, READ, false), Ok(())),
        ((1, READ - 1, true), Err(ErrorCode::TAGGED_BOUNDS)),
        ((1, READ, true), Err(ErrorCode::TAGGED_BOUNDS)),
        ((0, READ + 1, false), Err(ErrorCode::TAGGED_BOUNDS)),
        ((0, READ + 1, true), Err(ErrorCode::TAGGED_BOUNDS)),
        ((0, READ - 1, true), Err(ErrorCode::TAGGED_BOUNDS)),
    ];
    for ((offset, len, last), expected) in segments {
        let header = tagged(Opcode::ReadResponse, SINK, offset, last);
        assert_eq!(feed(&mut receiver(), &fpdu(header, len)), expected, "{offset} {len} {last}");
    }
}

#[test]
fn send_must_fit_in_its_receive() {
    for (len, expected) in [(100, Ok(())), (101, Err(ErrorCode::UNTAGGED_TOO_LONG))] {
        let mut receiver = receiver();
        feed(&mut receiver, &fpdu(send(0, false), 400)).unwrap();
        assert_eq!(feed(&mut receiver, &fpdu(send(400, true), len)), expected);
    }
}

/// A Send that must wait for a buffer while a read is outstanding could keep the response behind it from arriving.
#[test]
fn send_takes_a_buffer_beyond_the_budget_while_a_read_is_outstanding() {
    let options = ReceiveSourceOptions { buffer_bytes: RECV, budget: 0, guaranteed: 1 };
    let source = ReceiveSource::new(options, Pool::default());
    for (reads, taken) in [(1, true), (0, false)] {
        let mut receiver = with_receives(ReceiveQueue::new(Some(&(source.clone(), WorkId(0))), Vec::new()));
        receiver.reads.truncate(reads);
        // The guarantee of the connection is used up by another message.
        let ReceiveQueue::Shared { account, .. } = &mut receiver.recvs else { panic!() };
        let _held = account.take(false).expect("one buffer is guaranteed");
        let bytes = fpdu(send(0, true), 10);
        let expected = if taken { bytes.len() } else { 0 };
        assert_eq!(receiver.feed(&bytes, &mut Vec::new()), Ok(expected));
    }
}

fn small_run(receiver: &mut Receiver, count: u32, payload: usize) {
    for _ in 0..count {
        feed(receiver, &fpdu(write(true), payload)).unwrap();
    }
}

#[test]
fn much_is_read_ahead_only_after_small_fpdus() {
    let mut receiver = receiver();
    assert_eq!(receiver.look_ahead(), AHEAD);
    small_run(&mut receiver, SMALL_RUN - 1, SMALL_MAX);
    assert_eq!(receiver.look_ahead(), AHEAD);
    small_run(&mut receiver, 1, 1);
    assert_eq!(receiver.look_ahead(), AHEAD_MAX);
    small_run(&mut receiver, 1, SMALL_MAX + 1);
    assert_eq!(receiver.look_ahead(), AHEAD);
    small_run(&mut receiver, SMALL_RUN, 1);
    assert_eq!(receiver.look_ahead(), AHEAD_MAX);
    let mut scarce = scarce();
    small_run(&mut scarce, SMALL_RUN, 1);
    assert_eq!(scarce.look_ahead(), AHEAD, "the data must wait in the socket");
}

#[test]
fn little_is_read_ahead_of_bulk_data() {
    let mut receiver = receiver();
    feed(&mut receiver, &head(write(true), AHEAD + 2)).unwrap();
    for left in [AHEAD + 2, AHEAD + 1] {
        assert_eq!(receiver.look_ahead(), AHEAD_MIN, "{left}");
        feed(&mut receiver, &[0]).unwrap();
    }
    assert_eq!(receiver.look_ahead(), AHEAD);
    feed(&mut receiver, &[0]).unwrap();
    assert_eq!(receiver.look_ahead(), AHEAD);
}

#[test]
fn forecast_covers_what_is_due_unless_more_of_a_message_can_be_expected() {
    const LEN: usize = 600;
    let begun = |mut receiver: Receiver, last| {
        receiver.forecast_min = LEN;
        feed(&mut receiver, &head(write(last), LEN)).unwrap();
        receiver
    };
    let len = |receiver: &mut Receiver, speculative| {
        let forecast = receiver.forecast(speculative).unwrap();
        receiver.place_of(&forecast).len()
    };
    assert_eq!(len(&mut begun(receiver(), false), true), 9 * LEN);
    assert_eq!(len(&mut begun(receiver(), false), false), LEN);
    assert_eq!(len(&mut begun(receiver(), true), true), LEN);
    assert_eq!(len(&mut begun(scarce(), false), true), LEN);
    let mut suspended = begun(receiver(), false);
    suspended.suspended = 1;
    assert_eq!(len(&mut suspended, true), LEN);
    let mut small = begun(receiver(), false);
    small.forecast_min = LEN + 1;
    assert_eq!(len(&mut small, true), LEN);
}
