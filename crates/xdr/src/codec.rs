//! [`Encode`] and [`Decode`], and the XDR of primitive types.
//!
//! Read RFC 4506 §4. An [`Encoder`] cannot fail: it panics if an item is too long for its type, which is a bug of the
//! caller. A [`Decoder`] never panics. Its errors contain the problem and the offset.

use std::fmt;

use buf::Rope;
use bytes::Bytes;

use crate::{Message, PlacedPayload};

/// A type that can be written as XDR.
pub trait Encode {
    /// Appends the XDR form to `encoder`.
    fn encode(&self, encoder: &mut Encoder);
}

/// A type that can be read from XDR.
pub trait Decode: Sized {
    /// Reads one value.
    ///
    /// # Errors
    /// The bytes are not the XDR form of this type.
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError>;
}

/// The error of bytes that are not valid XDR of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The problem.
    pub kind: DecodeErrorKind,
    /// The position of the problem, in bytes from the start of the unreduced XDR stream.
    pub offset: usize,
}

/// The problem of a [`DecodeError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeErrorKind {
    /// The stream ends inside the item.
    Truncated,
    /// A length exceeds the bound of its type.
    TooLong {
        /// The length in the stream.
        len: u32,
        /// The maximum length of the type.
        max: u32,
    },
    /// A discriminant or boolean has an unknown value.
    BadDiscriminant(u32),
    /// Padding is not zero.
    BadPadding,
    /// A string is not UTF-8 although the protocol requires it.
    BadUtf8,
    /// Bytes follow the last item.
    TrailingBytes,
    /// A payload is at a position where the item has no payload, or its length differs from that of the item.
    MisplacedPayload,
    /// Items are nested more deeply than any supported protocol needs.
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

/// Writes XDR and keeps payloads beside the stream.
#[derive(Debug, Default)]
pub struct Encoder {
    stream: Vec<u8>,
    payloads: Vec<PlacedPayload>,
    /// The number of bytes of payloads so far, including padding.
    reduced: usize,
}

impl Encoder {
    /// Makes an empty encoder with room for `capacity` bytes of stream.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { stream: Vec::with_capacity(capacity), ..Self::default() }
    }

    /// Returns the position in the unreduced stream: the bytes written, including payloads and their padding.
    pub fn position(&self) -> usize {
        self.stream.len() + self.reduced
    }

    /// Appends an unsigned 32-bit integer.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        // The compiler knows the length of this slice, so it does not call a function to copy it.
        self.stream.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends several unsigned 32-bit integers.
    #[inline]
    pub fn words<const N: usize>(&mut self, words: [u32; N]) {
        // The memory is reserved once for all of them.
        self.stream.extend_from_slice(words.map(u32::to_be_bytes).as_flattened());
    }

    /// Appends an unsigned 64-bit integer (RFC 4506 §4.5).
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.stream.extend_from_slice(&value.to_be_bytes());
    }

    /// Appends bytes and their padding without a length (RFC 4506 §4.9).
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
    /// If the length does not fit in 32 bits.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.fixed_opaque(bytes);
    }

    /// Appends a variable-length item whose bytes `append` adds to the end of the stream.
    ///
    /// # Errors
    /// The error of `append`. The stream is then not usable.
    ///
    /// # Panics
    /// If `append` shortens the stream, or the length does not fit in 32 bits.
    pub fn opaque_by<E>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.u32(0);
        let start = self.stream.len();
        append(&mut self.stream)?;
        let len = self.stream.len().checked_sub(start).expect("append must not shorten the stream");
        let word = u32::try_from(len).expect("an XDR length must fit in 32 bits");
        self.stream[start - 4..start].copy_from_slice(&word.to_be_bytes());
        self.stream.resize(start + len + padding(len), 0);
        Ok(())
    }

    /// Appends the length of a variable-length item.
    ///
    /// # Panics
    /// If the length does not fit in 32 bits.
    #[inline]
    pub fn length(&mut self, len: usize) {
        self.u32(u32::try_from(len).expect("an XDR length must fit in 32 bits"));
    }

    /// Appends a length to the stream, and `data` as a payload beside it. An empty payload is a payload too: it uses
    /// the chunk that was offered for it and leaves that chunk empty (RFC 8267 §6.4.1: chunks are assigned to READs in
    /// order).
    pub fn payload(&mut self, data: Rope) {
        self.length(data.len());
        //= rfc8166-3.4.4.1-1 rfc8166-3.4.2-1 rfc8166-6.1-1
        let position = Some(self.position() as u32);
        self.reduced += data.len() + padding(data.len());
        self.payloads.push(PlacedPayload { position, data });
    }

    /// Appends whole items that are already XDR.
    ///
    /// # Panics
    /// If the length is not a multiple of four.
    #[inline]
    pub fn raw(&mut self, items: &[u8]) {
        assert!(items.len().is_multiple_of(4), "the length of XDR items must be a multiple of four");
        self.stream.extend_from_slice(items);
    }

    /// Overwrites the unsigned 32-bit integer at `offset` of the (reduced) stream.
    ///
    /// # Panics
    /// If these bytes have not been written.
    pub fn patch_u32(&mut self, offset: usize, value: u32) {
        self.stream[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// Returns the number of bytes in the (reduced) stream so far, which is an offset for
    /// [`patch_u32`](Self::patch_u32).
    pub fn stream_len(&self) -> usize {
        self.stream.len()
    }

    /// Returns the bytes that have been written to the stream from an offset on.
    ///
    /// # Panics
    /// If fewer bytes have been written.
    pub fn written(&self, offset: usize) -> &[u8] {
        &self.stream[offset..]
    }

    /// Removes everything written after the stream had `stream_len` bytes. No payload may have been added after that.
    pub fn truncate(&mut self, stream_len: usize) {
        self.stream.truncate(stream_len);
    }

    /// Returns the encoded message.
    pub fn finish(self) -> Message {
        Message { stream: self.stream.into(), payloads: self.payloads }
    }
}

/// Reads XDR from a [`Message`]. A clone continues independently from the same position.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    stream: &'a Bytes,
    /// The unread part of the stream.
    rest: &'a [u8],
    payloads: &'a [PlacedPayload],
    reduced: usize,
    depth: u32,
    located: Option<crate::Located>,
}

impl<'a> Decoder<'a> {
    /// Makes a decoder that starts at the beginning of `message`.
    pub fn new(message: &'a Message) -> Self {
        let Message { stream, payloads } = message;
        Self { stream, rest: stream, payloads, reduced: 0, depth: 0, located: None }
    }

    /// Returns the position in the unreduced stream.
    #[inline]
    pub fn position(&self) -> usize {
        self.at() + self.reduced
    }

    /// Returns the number of unread bytes of the stream, without payloads.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns the length of the whole unreduced stream in bytes, including the part that has been read.
    pub fn message_len(&self) -> usize {
        let unread = self.payloads.iter().map(|payload| payload.data.len());
        self.position() + self.remaining() + unread.map(|len| len + padding(len)).sum::<usize>()
    }

    /// Returns an error of `kind` at the current position.
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

    /// Reads several unsigned 32-bit integers.
    ///
    /// # Errors
    /// The stream has ended.
    #[inline]
    pub fn words<const N: usize>(&mut self) -> Result<[u32; N], DecodeError> {
        let (bytes, rest) = self.rest.split_at_checked(4 * N).ok_or_else(|| self.truncated())?;
        self.rest = rest;
        let (words, _) = bytes.as_chunks();
        Ok(std::array::from_fn(|at| u32::from_be_bytes(words[at])))
    }

    /// Returns the next unsigned 32-bit integer without consuming it.
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

    /// Reads `len` bytes and their padding. The result shares the memory of the message.
    ///
    /// # Errors
    /// The stream has ended, or the padding is not zero.
    #[inline]
    pub fn fixed_opaque(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let start = self.at();
        self.padded(len)?;
        Ok(self.stream.slice(start..start + len))
    }

    /// Reads a length and that many bytes with their padding. Returns a reference to the bytes in the stream.
    ///
    /// # Errors
    /// The stream has ended, the length is above `max`, or the padding is not zero.
    #[inline]
    pub fn opaque_in_place(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let len = self.length(max)?;
        self.padded(len)
    }

    /// Reads `len` bytes, and skips their padding.
    #[inline]
    fn padded(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, padding) = self.peek_padded(len)?;
        if padding.iter().any(|&byte| byte != 0) {
            return Err(self.error(DecodeErrorKind::BadPadding));
        }
        self.rest = &self.rest[bytes.len() + padding.len()..];
        Ok(bytes)
    }

    /// Returns the next `len` bytes and their padding without consuming them.
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
            // `max` is less than `len`, so it fits in 32 bits.
            let max = max as u32;
            return Err(self.error(DecodeErrorKind::TooLong { len, max }));
        }
        self.rest = &self.rest[4..];
        Ok(len as usize)
    }

    /// Reads a length, and that many bytes with their padding. The result shares the memory of the message.
    ///
    /// # Errors
    /// The stream has ended, the length is above `max`, or the padding is not zero.
    pub fn opaque(&mut self, max: usize) -> Result<Bytes, DecodeError> {
        let len = self.length(max)?;
        self.fixed_opaque(len)
    }

    /// Reads bytes like [`opaque`](Self::opaque), but ignores the content of the padding, for items that some peers do
    /// not pad with zeros.
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

    /// Reads a length and the payload that belongs to it: the payload at this position; otherwise the next payload
    /// without a position (RFC 8166 §4.3.2.1: write chunks have none); otherwise bytes of the stream.
    ///
    /// # Errors
    /// The length exceeds `max` or differs from that of the payload, or the stream has ended.
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
            //= rfc8166-4.3.2.2-4
            None if first.data.is_empty() => {
                self.payloads = rest;
                return self.fixed_opaque(len).map(Rope::from);
            }
            _ => {}
        }
        //= rfc8166-6.1-2
        if first.data.len() != len {
            return Err(self.error(DecodeErrorKind::MisplacedPayload));
        }
        self.payloads = rest;
        self.reduced += len + padding(len);
        Ok(first.data.clone())
    }

    /// Returns the unread rest of the stream without consuming it.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the unread rest of the stream. Does not consume payloads.
    pub fn take_rest(&mut self) -> Bytes {
        let start = self.at();
        self.rest = &[];
        self.stream.slice(start..)
    }

    /// Checks that everything has been read.
    ///
    /// # Errors
    /// Bytes or payloads have not been read.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.remaining() > 0 {
            return Err(self.error(DecodeErrorKind::TrailingBytes));
        }
        //= rfc8166-6.1-3 rfc8166-6.1-4
        if self.payloads.iter().any(|payload| payload.position.is_some() || !payload.data.is_empty()) {
            return Err(self.error(DecodeErrorKind::MisplacedPayload));
        }
        Ok(())
    }

    /// Calls `read` one level deeper. Recursive types such as linked lists must use this, so that the depth is bounded.
    ///
    /// # Errors
    /// The errors of `read`, or the nesting is too deep.
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

    /// Returns the position of the first payload whose bytes are not in the stream.
    pub(crate) fn located(&self) -> Option<crate::Located> {
        self.located
    }

    /// Returns the position in the stream, without payloads.
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

/// Makes a decoder that starts at the beginning of a stream without payloads.
impl<'a> From<&'a Bytes> for Decoder<'a> {
    fn from(stream: &'a Bytes) -> Self {
        Self { stream, rest: stream, payloads: &[], reduced: 0, depth: 0, located: None }
    }
}

/// Returns the number of padding bytes after an item of `len` bytes.
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
        // The bytes are copied from the stream, because sharing the memory of the message costs more.
        let bytes = decoder.padded(N)?;
        Ok(*bytes.as_array().expect("the slice must have N bytes"))
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

/// Variable-length array (RFC 4506 §4.13). The size of the message bounds its length.
impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.length(self.len());
        self.iter().for_each(|item| item.encode(encoder));
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        // In the supported protocols, every item of a variable-length array has at least four bytes.
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
