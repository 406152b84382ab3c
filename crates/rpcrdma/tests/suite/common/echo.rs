//! A program for tests of the transport. A call contains the wanted length of its reply, and a payload. Each payload
//! byte of the reply is the sum of the call's payload.

use std::{future::poll_fn, sync::Arc};

use buf::Buffer;
use bytes::Bytes;
use rpc::{Reply, ReplyPlan, Transport, TransportError};
use xdr::{Decoder, Encoder, Message};

use super::{CALL, REPLY};

/// Creates a call with `payload` that requests a reply with `want` bytes of payload and `words` words.
pub fn call(xid: u32, want: usize, words: usize, payload: Bytes) -> Message {
    let mut encoder = Encoder::default();
    [xid, CALL, want as u32, words as u32].into_iter().for_each(|word| encoder.u32(word));
    encoder.payload(payload.into());
    (0..words).for_each(|_| encoder.u32(9)); // The call is as long as its reply.
    encoder.finish()
}

pub fn plan(want: usize, words: usize) -> ReplyPlan {
    let sink = (want > 0).then(|| Buffer::zeroed(want).into());
    ReplyPlan { inline_max: 16 + 4 * words, payload_max: want, sink, locate: None }
}

/// Returns the reply to [`call`], with as many bytes as wanted. Each is the sum of the call's payload.
pub fn answer(call: &Message) -> Message {
    let mut decoder = Decoder::new(call);
    let [xid, direction, want, words] = [(); 4].map(|()| decoder.u32().unwrap());
    assert_eq!(direction, CALL);
    let payload = decoder.payload(1 << 24).unwrap().to_bytes().unwrap();
    let sum = payload.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    let mut encoder = Encoder::default();
    [xid, REPLY].into_iter().for_each(|word| encoder.u32(word));
    encoder.payload(Bytes::from(vec![sum; want as usize]).into());
    (0..words).for_each(|word| encoder.u32(word));
    encoder.finish()
}

pub fn check(reply: &Reply, xid: u32, want: usize, words: usize, sum: u8) {
    let mut decoder = Decoder::new(&reply.message);
    assert_eq!((decoder.u32(), decoder.u32()), (Ok(xid), Ok(REPLY)));
    let payload = decoder.payload(1 << 24).unwrap().to_bytes().unwrap();
    assert_eq!(payload, vec![sum; want]);
    assert!((0..words as u32).all(|word| decoder.u32() == Ok(word)));
    decoder.finish().unwrap();
}

/// Answers every call until the connection is closed.
pub async fn drive(transport: Arc<dyn Transport>) -> TransportError {
    loop {
        match poll_fn(|cx| transport.poll_recv(cx)).await {
            Ok(call) => transport.reply(call.token, answer(&call.message)).unwrap_or_default(),
            Err(error) => return error,
        }
    }
}

/// The wanted payload, the wanted words, and the payload of the call.
pub const SIZES: [(usize, usize, usize); 8] = [
    (0, 0, 0),
    (10, 0, 10),
    (5000, 0, 10),
    (0, 3000, 10),
    (0, 0, 70_000),
    (100_000, 2000, 5001),
    (1 << 20, 0, 0),
    (3, 1100, 1 << 20),
];
