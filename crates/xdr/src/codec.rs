//! [`Encode`] and [`Decode`], and the XDR of primitive types.
//!
//! Read RFC 4506 §4. An [`Encoder`] cannot fail: what is too long for its type is a bug of the
//! caller and panics. A [`Decoder`] never panics, and says what was wrong and at which offset.

use std::fmt;

use buf::Rope;
use bytes::Bytes;
use smallvec::SmallVec;

use crate::{Message, PlacedPayload};

/// A type with an XDR form that can be written.
pub trait Encode {
    /// Appends the XDR form to `encoder`.
    fn encode(&self, encoder: &mut Encoder);
}

/// A type with an XDR form that can be read.
pub trait Decode: Sized {
    /// Reads one value.
    ///
    /// # Errors
    /// The bytes are not the XDR form of this type.
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError>;
}

/// The peer sent bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// What is wrong.
    pub kind: DecodeErrorKind,
    /// Where: bytes from the start of the unreduced XDR stream.
    pub offset: usize,
}

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeErrorKind {
    /// The stream ends inside the item.
    Truncated,
    /// A length above the bound of its type.
    TooLong {
        /// The length found.
        len: u32,
        /// The most its type allows.
        max: u32,
    },
    /// A discriminant or boolean of no known meaning.
    BadDiscriminant(u32),
    /// Padding that is not zero.
    BadPadding,
    /// A string that is not UTF-8 where the protocol says it is.
    BadUtf8,
    /// More bytes after the last item.
    TrailingBytes,
    /// A payload at a position where the item has no payload, or of another length than its item.
    MisplacedPayload,
    /// More nesting than the protocol has any use for.
    TooDeep,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DecodeErrorKind::Truncated => write!(f, "truncated"),
            DecodeErrorKind::TooLong { len, max } => write!(f, "length {len} above the limit of {max}"),
            DecodeErrorKind::BadDiscriminant(value) => write!(f, "unknown discriminant {value}"),
            DecodeErrorKind::BadPadding => write!(f, "padding is not zero"),
            DecodeErrorKind::BadUtf8 => write!(f, "not UTF-8"),
            DecodeErrorKind::TrailingBytes => write!(f, "bytes after the last item"),
            DecodeErrorKind::MisplacedPayload => write!(f, "payload of the wrong position or length"),
            DecodeErrorKind::TooDeep => write!(f, "nested too deeply"),
        }?;
        write!(f, " at XDR offset {}", self.offset)
    }
}

impl std::error::Error for DecodeError {}

/// Writes XDR, keeping payloads beside the stream.
#[derive(Debug, Default)]
pub struct Encoder {
    stream: Vec<u8>,
    payloads: SmallVec<[PlacedPayload; 1]>,
    /// Bytes of payloads so far, padding included.
    reduced: usize,
}

impl Encoder {
    /// An empty encoder with room for `capacity` bytes of stream.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { stream: Vec::with_capacity(capacity), ..Self::default() }
    }

    /// Position in the unreduced stream: what has been written, payloads and their padding included.
    pub fn position(&self) -> usize {
        self.stream.len() + self.reduced
    }

    /// Appends an unsigned 32-bit integer.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        // Of a length that the compiler knows: no call is made to copy it.
        self.stream.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends an unsigned 64-bit integer (RFC 4506 §4.5).
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.stream.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends bytes and their padding, without a length (RFC 4506 §4.9).
    #[inline]
    pub fn fixed_opaque(&mut self, bytes: &[u8]) {
        self.stream.extend_from_slice(bytes);
        let padding = padding(bytes.len());
        if padding > 0 {
            self.stream.extend_from_slice(&[0; 3][..padding]);
        }
    }

    /// Appends a length, bytes and padding (RFC 4506 §4.10).
    ///
    /// # Panics
    /// If there are 4 GiB or more.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.fixed_opaque(bytes);
    }

    /// Appends the length of a variable-length item.
    ///
    /// # Panics
    /// If it does not fit 32 bits.
    #[inline]
    pub fn length(&mut self, len: usize) {
        self.u32(u32::try_from(len).expect("an XDR length fits 32 bits"));
    }

    /// Appends a length to the stream and `data` as a payload beside it. An empty one is one, too: it takes the chunk that
    /// was offered for it (RFC 8267 §6.4.1: the first READ the first, the next the next), and leaves it without bytes.
    pub fn payload(&mut self, data: Rope) {
        self.length(data.len());
        let position = Some(self.position() as u32);
        self.reduced += data.len() + padding(data.len());
        self.payloads.push(PlacedPayload { position, data });
    }

    /// Appends bytes that are XDR already: whole items, their length a multiple of four.
    ///
    /// # Panics
    /// If the length is not a multiple of four.
    pub fn raw(&mut self, items: &[u8]) {
        assert!(items.len().is_multiple_of(4), "XDR items are multiples of four bytes");
        self.stream.extend_from_slice(items);
    }

    /// Overwrites the unsigned 32-bit integer at `offset` of the (reduced) stream.
    ///
    /// # Panics
    /// If nothing has been written there.
    pub fn patch_u32(&mut self, offset: usize, value: u32) {
        self.stream[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Bytes in the (reduced) stream so far; an offset for [`patch_u32`](Self::patch_u32).
    pub fn stream_len(&self) -> usize {
        self.stream.len()
    }

    /// What has been written to the stream from an offset on.
    ///
    /// # Panics
    /// If not so much has been written.
    pub fn written(&self, offset: usize) -> &[u8] {
        &self.stream[offset..]
    }

    /// Drops everything written after the stream had `stream_len` bytes; no payload may have been added since.
    pub fn truncate(&mut self, stream_len: usize) {
        self.stream.truncate(stream_len);
    }

    /// What has been written.
    pub fn finish(self) -> Message {
        Message { stream: self.stream.into(), payloads: self.payloads }
    }
}

/// Reads XDR from a [`Message`]. A clone reads on its own from where this one stands.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    stream: &'a Bytes,
    /// The part of the stream that has not been read.
    rest: &'a [u8],
    payloads: &'a [PlacedPayload],
    reduced: usize,
    depth: u32,
    located: Option<crate::Located>,
}

impl<'a> Decoder<'a> {
    /// Reads from the start of `message`.
    pub fn new(message: &'a Message) -> Self {
        let Message { stream, payloads } = message;
        Self { stream, rest: stream, payloads, reduced: 0, depth: 0, located: None }
    }

    /// Position in the unreduced stream.
    #[inline]
    pub fn position(&self) -> usize {
        self.at() + self.reduced
    }

    /// Bytes of the stream that are left, payloads not counted.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Bytes of the whole unreduced stream, what has been read included.
    pub fn message_len(&self) -> usize {
        let unread = self.payloads.iter().map(|payload| payload.data.len());
        self.position() + self.remaining() + unread.map(|len| len + padding(len)).sum::<usize>()
    }

    /// An error of `kind` at the current position.
    pub fn error(&self, kind: DecodeErrorKind) -> DecodeError {
        DecodeError { kind, offset: self.position() }
    }

    /// Reads an unsigned 32-bit integer.
    ///
    /// # Errors
    /// The stream has ended.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// The unsigned 32-bit integer that comes next, which stays.
    ///
    /// # Errors
    /// The stream has ended.
    #[inline]
    pub fn peek_u32(&self) -> Result<u32, DecodeError> {
        let bytes = self.rest.first_chunk().copied();
        bytes.map(u32::from_be_bytes).ok_or_else(|| self.truncated())
    }

    /// Reads an unsigned 64-bit integer.
    ///
    /// # Errors
    /// The stream has ended.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Reads bytes of known length and their padding; shares the message's memory.
    ///
    /// # Errors
    /// The stream has ended, or the padding is not zero.
    #[inline]
    pub fn fixed_opaque(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        let start = self.at();
        self.padded(len)?;
        Ok(self.stream.slice(start..start + len))
    }

    /// Reads a length and that many bytes with their padding, which are used where they lie.
    ///
    /// # Errors
    /// The stream has ended, the length is above `max`, or the padding is not zero.
    #[inline]
    pub fn opaque_in_place(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let len = self.length(max)?;
        self.padded(len)
    }

    /// Reads bytes of known length, and passes over their padding.
    #[inline]
    fn padded(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, padding) = self.peek_padded(len)?;
        if padding.iter().any(|&byte| byte != 0) {
            return Err(self.error(DecodeErrorKind::BadPadding));
        }
        self.rest = &self.rest[bytes.len() + padding.len()..];
        Ok(bytes)
    }

    /// The bytes of known length that come next, and their padding.
    #[inline]
    fn peek_padded(&self, len: usize) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.truncated())?;
        let padding = rest.get(..padding(len)).ok_or_else(|| self.truncated())?;
        Ok((bytes, padding))
    }

    /// Reads a length, which must not exceed `max`.
    ///
    /// # Errors
    /// The stream has ended, or the length is above `max`.
    #[inline]
    pub fn length(&mut self, max: usize) -> Result<usize, DecodeError> {
        let len = self.peek_u32()?;
        if len as usize > max {
            // Below a length of 32 bits.
            let max = max as u32;
            return Err(self.error(DecodeErrorKind::TooLong { len, max }));
        }
        self.rest = &self.rest[4..];
        Ok(len as usize)
    }

    /// Reads a length and that many bytes with their padding; shares the message's memory.
    ///
    /// # Errors
    /// The stream has ended, the length is above `max`, or the padding is not zero.
    pub fn opaque(&mut self, max: usize) -> Result<Bytes, DecodeError> {
        let len = self.length(max)?;
        self.fixed_opaque(len)
    }

    /// The same, but what the padding is does not matter, for items that peers are known to pad with whatever there was.
    ///
    /// # Errors
    /// The stream has ended, or the length is above `max`.
    pub fn opaque_any_padding(&mut self, max: usize) -> Result<Bytes, DecodeError> {
        let len = self.length(max)?;
        let start = self.at();
        let (bytes, padding) = self.peek_padded(len)?;
        self.rest = &self.rest[bytes.len() + padding.len()..];
        Ok(self.stream.slice(start..start + len))
    }

    /// Reads a length and the payload that belongs to it: the one held at this position, else the
    /// next one of no position (RFC 8166 §4.3.2.1: write chunks carry none), else bytes of the stream.
    ///
    /// # Errors
    /// The length is above `max` or differs from its payload's, or there are neither payload nor bytes.
    pub fn payload(&mut self, max: usize) -> Result<Rope, DecodeError> {
        let len = self.length(max)?;
        let position = self.position();
        let Some((first, rest)) = self.payloads.split_first() else {
            return self.fixed_opaque(len).map(Rope::from).inspect_err(|_| {
                self.located.get_or_insert(crate::Located { position, len });
            });
        };
        match first.position {
            Some(at) if at as usize > position => return self.fixed_opaque(len).map(Rope::from),
            Some(at) if (at as usize) < position => return Err(self.error(DecodeErrorKind::MisplacedPayload)),
            // RFC 8166 §4.3.2.2: a write chunk that comes back empty was not used; the item is inline.
            None if first.data.is_empty() => {
                self.payloads = rest;
                return self.fixed_opaque(len).map(Rope::from);
            }
            _ => {}
        }
        if first.data.len() != len {
            return Err(self.error(DecodeErrorKind::MisplacedPayload));
        }
        self.payloads = rest;
        self.reduced += len + padding(len);
        Ok(first.data.clone())
    }

    /// Reads the rest of the stream as it is. Payloads stay.
    pub fn take_rest(&mut self) -> Bytes {
        let start = self.at();
        self.rest = &[];
        self.stream.slice(start..)
    }

    /// Checks that everything has been read.
    ///
    /// # Errors
    /// Bytes or payloads are left.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.remaining() > 0 {
            return Err(self.error(DecodeErrorKind::TrailingBytes));
        }
        if self.payloads.iter().any(|payload| payload.position.is_some() || !payload.data.is_empty()) {
            return Err(self.error(DecodeErrorKind::MisplacedPayload));
        }
        Ok(())
    }

    /// Runs `read` one level deeper; recursive types (linked lists) call this to stay bounded.
    ///
    /// # Errors
    /// What `read` says, or too much nesting.
    #[inline]
    pub fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, DecodeError>) -> Result<T, DecodeError> {
        if self.depth == DEPTH_MAX {
            return Err(self.error(DecodeErrorKind::TooDeep));
        }
        self.depth += 1;
        let out = read(self);
        self.depth -= 1;
        out
    }

    /// Where the first payload lies whose bytes are not in the stream.
    pub(crate) fn located(&self) -> Option<crate::Located> {
        self.located
    }

    /// Position in the stream, payloads not counted.
    #[inline]
    fn at(&self) -> usize {
        self.stream.len() - self.rest.len()
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((&bytes, rest)) = self.rest.split_first_chunk() else { return Err(self.truncated()) };
        self.rest = rest;
        Ok(bytes)
    }

    #[cold]
    fn truncated(&self) -> DecodeError {
        self.error(DecodeErrorKind::Truncated)
    }
}

/// Reads from the start of a stream without payloads.
impl<'a> From<&'a Bytes> for Decoder<'a> {
    fn from(stream: &'a Bytes) -> Self {
        Self { stream, rest: stream, payloads: &[], reduced: 0, depth: 0, located: None }
    }
}

/// Zero bytes that follow an item of `len` bytes.
#[inline]
pub(crate) fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

macro_rules! integer {
    ($($type:ty => $method:ident as $wire:ty),*) => {$(
        impl Encode for $type {
            #[inline]
            fn encode(&self, encoder: &mut Encoder) {
                encoder.$method(*self as $wire);
            }
        }
        impl Decode for $type {
            #[inline]
            fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                Ok(decoder.$method()? as $type)
            }
        }
    )*};
}

integer!(u32 => u32 as u32, i32 => u32 as u32, u64 => u64 as u64, i64 => u64 as u64);

impl Encode for bool {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(u32::from(*self));
    }
}

impl Decode for bool {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let error = decoder.position();
        match decoder.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError { kind: DecodeErrorKind::BadDiscriminant(other), offset: error }),
        }
    }
}

impl Encode for () {
    fn encode(&self, _: &mut Encoder) {}
}

impl Decode for () {
    fn decode(_: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

/// Fixed-length opaque data (RFC 4506 §4.9).
impl<const N: usize> Encode for [u8; N] {
    #[inline]
    fn encode(&self, encoder: &mut Encoder) {
        encoder.fixed_opaque(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    #[inline]
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        // Copied from where they lie: to share the message's memory costs more.
        let bytes = decoder.padded(N)?;
        Ok(*bytes.as_array().expect("of N bytes"))
    }
}

/// Optional-data (RFC 4506 §4.19).
impl<T: Encode> Encode for Option<T> {
    fn encode(&self, encoder: &mut Encoder) {
        self.is_some().encode(encoder);
        if let Some(value) = self {
            value.encode(encoder);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        bool::decode(decoder)?.then(|| decoder.nested(T::decode)).transpose()
    }
}

/// Variable-length array (RFC 4506 §4.13), bounded by what the message holds.
impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.length(self.len());
        self.iter().for_each(|item| item.encode(encoder));
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        // Every item of a variable array takes at least four bytes in the protocols we speak.
        let len = decoder.length(decoder.remaining().saturating_sub(4) / 4)?;
        let mut items = Vec::with_capacity(len.min(PREALLOCATE_MAX));
        for _ in 0..len {
            items.push(decoder.nested(T::decode)?);
        }
        Ok(items)
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self, encoder: &mut Encoder) {
        (**self).encode(encoder);
    }
}

impl<T: Encode> Encode for Box<T> {
    fn encode(&self, encoder: &mut Encoder) {
        (**self).encode(encoder);
    }
}

impl<T: Decode> Decode for Box<T> {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        T::decode(decoder).map(Box::new)
    }
}

const DEPTH_MAX: u32 = 64;
const PREALLOCATE_MAX: usize = 256;
