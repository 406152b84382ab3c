//! Types with a maximum length: [`Opaque`], [`Text`], [`Payload`] and [`Array`]; and [`List`].

use std::{fmt, ops::Deref};

use buf::Rope;
use bytes::Bytes;

use crate::{Decode, DecodeError, DecodeErrorKind, Decoder, Encode, Encoder};

/// Variable-length opaque data of at most `MAX` bytes (RFC 4506 §4.10), in the stream.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opaque<const MAX: usize>(pub Bytes);

impl<const MAX: usize> Opaque<MAX> {
    /// Returns a copy in memory of its own, for a caller that stores it. Decoded data share the memory of their
    /// message, which is not available for receiving while they exist.
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl<const MAX: usize> Encode for Opaque<MAX> {
    fn encode(&self, encoder: &mut Encoder) {
        assert!(self.len() <= MAX, "{} bytes in an opaque of at most {MAX}", self.len());
        encoder.opaque(self);
    }
}

impl<const MAX: usize> Decode for Opaque<MAX> {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.opaque(MAX).map(Self)
    }
}

impl<const MAX: usize> Deref for Opaque<MAX> {
    type Target = Bytes;
    fn deref(&self) -> &Bytes {
        &self.0
    }
}

impl<const MAX: usize> From<Bytes> for Opaque<MAX> {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl<const MAX: usize> From<&str> for Opaque<MAX> {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl<const MAX: usize> fmt::Debug for Opaque<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// A string of at most `MAX` bytes (RFC 4506 §4.11) that must be UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text<const MAX: usize>(pub String);

impl<const MAX: usize> Encode for Text<MAX> {
    fn encode(&self, encoder: &mut Encoder) {
        assert!(self.0.len() <= MAX, "{} bytes in a string of at most {MAX}", self.0.len());
        encoder.opaque(self.0.as_bytes());
    }
}

impl<const MAX: usize> Decode for Text<MAX> {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let error = decoder.error(DecodeErrorKind::BadUtf8);
        let bytes = decoder.opaque(MAX)?;
        String::from_utf8(bytes.into()).map(Self).map_err(|_| error)
    }
}

impl<const MAX: usize> From<&str> for Text<MAX> {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// Variable-length opaque data of at most `MAX` bytes, which is held beside the stream.
///
/// It is only for items that the RDMA binding of a protocol allows to be placed directly (RFC 8166 §3.4.1; for NFS, RFC
/// 8267).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload<const MAX: usize>(pub Rope);

impl<const MAX: usize> Encode for Payload<MAX> {
    fn encode(&self, encoder: &mut Encoder) {
        assert!(self.0.len() <= MAX, "{} bytes in a payload of at most {MAX}", self.0.len());
        encoder.payload(self.0.clone());
    }
}

impl<const MAX: usize> Decode for Payload<MAX> {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        decoder.payload(MAX).map(Self)
    }
}

impl<const MAX: usize> From<Rope> for Payload<MAX> {
    fn from(rope: Rope) -> Self {
        Self(rope)
    }
}

impl<const MAX: usize> From<Bytes> for Payload<MAX> {
    fn from(bytes: Bytes) -> Self {
        Self(bytes.into())
    }
}

/// A variable-length array of at most `MAX` items (RFC 4506 §4.13).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Array<T, const MAX: usize>(pub Vec<T>);

impl<T, const MAX: usize> Default for Array<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> Deref for Array<T, MAX> {
    type Target = Vec<T>;
    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Encode, const MAX: usize> Encode for Array<T, MAX> {
    fn encode(&self, encoder: &mut Encoder) {
        assert!(self.0.len() <= MAX, "{} items in an array of at most {MAX}", self.0.len());
        self.0.encode(encoder);
    }
}

impl<T: Decode, const MAX: usize> Decode for Array<T, MAX> {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let len = decoder.length(MAX.min(decoder.remaining() / 4))?;
        let mut items = Vec::with_capacity(len);
        for _ in 0..len {
            items.push(decoder.nested(T::decode)?);
        }
        Ok(Self(items))
    }
}

/// A linked list (RFC 4506 §4.19): a TRUE precedes each item, and a FALSE ends the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for List<T> {
    type Target = Vec<T>;
    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T> IntoIterator for List<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a List<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: Encode> Encode for List<T> {
    fn encode(&self, encoder: &mut Encoder) {
        for item in &self.0 {
            true.encode(encoder);
            item.encode(encoder);
        }
        false.encode(encoder);
    }
}

impl<T: Decode> Decode for List<T> {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut items = Vec::new();
        // Each item needs a word of the stream for its TRUE, so the number of items is bounded by the size of the
        // message.
        while bool::decode(decoder)? {
            items.push(T::decode(decoder)?);
        }
        Ok(Self(items))
    }
}
