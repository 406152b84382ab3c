//! [`Message`]: an XDR stream plus payloads at XDR positions.

use buf::{Piece, Rope};
use bytes::Bytes;

use crate::{Decode, DecodeError, Decoder, Encode, Encoder, codec::padding};

/// An RPC message: inline XDR, and the large items that are held beside it.
///
/// The *unreduced stream* is the XDR without payloads taken out. Positions count its bytes. The stream contains the
/// lengths of payloads, but not their bytes and padding.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The XDR stream without the payloads.
    pub stream: Bytes,
    /// The payloads by ascending position. Payloads without a position are in the order of their items.
    ///
    /// Most messages have none. An empty list needs no memory, and a message is short enough to be moved without a call of
    /// `memcpy`.
    pub payloads: Vec<PlacedPayload>,
}

/// A payload and its position.
#[derive(Clone, Debug)]
pub struct PlacedPayload {
    /// The offset of the payload's first byte in the unreduced stream, a multiple of four. A received payload can have
    /// none: a write chunk belongs to the next item that can be a payload.
    pub position: Option<u32>,
    /// The bytes, without padding.
    pub data: Rope,
}

/// The position of a payload in a message of which only the first bytes have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The offset of the first byte in the unreduced stream.
    pub position: usize,
    /// The number of bytes without padding.
    pub len: usize,
}

impl Message {
    /// Encodes `value` as a message.
    pub fn encode(value: &impl Encode) -> Self {
        let mut encoder = Encoder::with_capacity(256);
        value.encode(&mut encoder);
        encoder.finish()
    }

    /// Decodes the whole message as one value.
    ///
    /// # Errors
    /// The message is not the XDR of `T`, or bytes or payloads follow.
    pub fn decode<T: Decode>(&self) -> Result<T, DecodeError> {
        let mut decoder = Decoder::new(self);
        let value = T::decode(&mut decoder)?;
        decoder.finish()?;
        Ok(value)
    }

    /// Returns the length of the unreduced stream in bytes.
    pub fn len(&self) -> usize {
        let payloads = self.payloads.iter().map(|payload| payload.data.len());
        self.stream.len() + payloads.map(|len| len + padding(len)).sum::<usize>()
    }

    /// Returns `true` if the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the unreduced stream as a gather list, without a copy: the content of one TCP record.
    ///
    /// # Panics
    /// If a payload has no position.
    pub fn to_rope(&self) -> Rope {
        let mut rope = Rope::new();
        let (mut at, mut reduced) = (0, 0);
        for payload in &self.payloads {
            let position = payload.position.expect("a payload to send must have a position") as usize;
            let len = payload.data.len();
            let end = position - reduced;
            rope.push(Piece::Memory(self.stream.slice(at..end)));
            rope.append(payload.data.clone());
            rope.push(Piece::Memory(Bytes::from_static(&[0; 3]).slice(..padding(len))));
            at = end;
            reduced += len + padding(len);
        }
        rope.push(Piece::Memory(self.stream.slice(at..)));
        rope
    }

    /// Finds the payload of the `T` at the end of a message from the first bytes of the message. Returns `None` if the
    /// payload does not extend beyond these bytes. `skip` reads the items before the `T`.
    ///
    /// Stream transports use this to receive bulk data directly into their final memory.
    pub fn locate<T: Decode>(
        prefix: &Bytes,
        skip: impl FnOnce(&mut Decoder<'_>) -> Result<(), DecodeError>,
    ) -> Option<Located> {
        let message = Message::from(prefix.clone());
        let mut decoder = Decoder::new(&message);
        skip(&mut decoder).ok()?;
        T::decode(&mut decoder).err()?;
        decoder.located()
    }
}

/// Makes a message without payloads.
impl From<Bytes> for Message {
    fn from(stream: Bytes) -> Self {
        Self { stream, payloads: Vec::new() }
    }
}
