//! [`Message`]: an XDR stream plus payloads at XDR positions.

use buf::{Piece, Rope};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::{Decode, DecodeError, Decoder, Encode, Encoder, codec::padding};

/// One RPC message: inline XDR, and the large items that were taken out of it.
///
/// The *unreduced stream* is what XDR would produce without payloads; positions count it.
/// Lengths of payloads are in the stream, their bytes and padding are not.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The XDR stream without the payloads.
    pub stream: Bytes,
    /// The payloads, by ascending position; those without one come in the order of their items.
    pub payloads: SmallVec<[PlacedPayload; 1]>,
}

/// A payload and where it belongs.
#[derive(Clone, Debug)]
pub struct PlacedPayload {
    /// Offset of the payload's first byte in the unreduced stream, a multiple of four. A received
    /// payload can lack one: a write chunk belongs to the next item that may be a payload.
    pub position: Option<u32>,
    /// The bytes, without padding.
    pub data: Rope,
}

/// Where in a message that is still arriving its payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Offset of the first byte in the unreduced stream.
    pub position: usize,
    /// Bytes, without padding.
    pub len: usize,
}

impl Message {
    /// The XDR form of `value`.
    pub fn encode(value: &impl Encode) -> Self {
        let mut encoder = Encoder::with_capacity(256);
        value.encode(&mut encoder);
        encoder.finish()
    }

    /// Reads a whole message as one value.
    ///
    /// # Errors
    /// It is not the XDR form of `T`, or more follows.
    pub fn decode<T: Decode>(&self) -> Result<T, DecodeError> {
        let mut decoder = Decoder::new(self);
        let value = T::decode(&mut decoder)?;
        decoder.finish()?;
        Ok(value)
    }

    /// Bytes of the unreduced stream.
    pub fn len(&self) -> usize {
        let payloads = self.payloads.iter().map(|payload| payload.data.len());
        self.stream.len() + payloads.map(|len| len + padding(len)).sum::<usize>()
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The unreduced stream, gathered: what goes into one TCP record. Nothing is copied.
    ///
    /// # Panics
    /// If a payload has no position.
    pub fn to_rope(&self) -> Rope {
        let mut rope = Rope::new();
        let (mut at, mut reduced) = (0, 0);
        for payload in &self.payloads {
            let position = payload.position.expect("a payload to be sent has a position") as usize;
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

    /// Given the first bytes of a message whose last item ends with a `T`, finds the payload of
    /// that `T` if it reaches beyond those bytes. `skip` reads what precedes the `T`.
    ///
    /// This is how a stream transport puts bulk data where it is wanted before all of it is there.
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

/// A message that is all stream.
impl From<Bytes> for Message {
    fn from(stream: Bytes) -> Self {
        Self { stream, payloads: SmallVec::new() }
    }
}
