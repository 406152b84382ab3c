//! RDMAP: operation codes, the RDMA Read Request, and Terminate (RFC 5040 §4).
//!
//! These codecs do no I/O.

use bytes::BufMut;

use super::ddp;
use crate::{Stag, regions::AccessFault};

/// The operation of a message (RFC 5040 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write; tagged.
    Write = 0,
    /// RDMA Read Request; untagged, queue 1.
    ReadRequest = 1,
    /// RDMA Read Response; tagged.
    ReadResponse = 2,
    /// Send; untagged, queue 0. Its variants use queue 0, too.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate; untagged, queue 2.
    Terminate = 7,
}

impl Opcode {
    /// Parses the RDMAP byte of a DDP header.
    ///
    /// # Errors
    /// Returns the error code for the Terminate message.
    pub fn parse(ulp: u8) -> Result<Self, ErrorCode> {
        if ulp & MASK_VERSION != VERSION {
            return Err(ErrorCode::RDMAP_VERSION);
        }
        //= rfc5040-4.1-9
        Ok(match ulp & 0x0f {
            0 => Opcode::Write,
            1 => Opcode::ReadRequest,
            2 => Opcode::ReadResponse,
            3 => Opcode::Send,
            4 => Opcode::SendInvalidate,
            5 => Opcode::SendSolicited,
            6 => Opcode::SendSolicitedInvalidate,
            7 => Opcode::Terminate,
            _ => return Err(ErrorCode::UNEXPECTED_OPCODE),
        })
    }

    /// Returns the RDMAP byte of a DDP header.
    pub fn ulp(self) -> u8 {
        //= rfc5040-4.1-1 rfc5040-4.1-2 rfc5040-4.1-6 rfc5040-4.1-8
        VERSION | self as u8
    }

    /// Returns the variant of Send with these properties.
    pub fn send(invalidate: bool, solicited: bool) -> Self {
        match (invalidate, solicited) {
            (false, false) => Opcode::Send,
            (true, false) => Opcode::SendInvalidate,
            (false, true) => Opcode::SendSolicited,
            (true, true) => Opcode::SendSolicitedInvalidate,
        }
    }

    /// Returns `true` if the message invalidates a region at its receiver.
    pub fn invalidates(self) -> bool {
        matches!(self, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate)
    }

    /// Returns `true` if the message requests an event.
    pub fn solicits(self) -> bool {
        matches!(self, Opcode::SendSolicited | Opcode::SendSolicitedInvalidate)
    }
}

/// The payload of an RDMA Read Request (RFC 5040 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The STag of the destination.
    pub sink_stag: Stag,
    /// The tagged offset of the destination.
    pub sink_offset: u64,
    /// The number of bytes to read.
    pub size: u32,
    /// The STag of the source.
    pub source_stag: Stag,
    /// The tagged offset of the source.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Parses the payload.
    pub fn parse(bytes: &[u8; READ_REQUEST_LEN]) -> Self {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        Self {
            sink_stag: Stag(word(0)),
            sink_offset: long(4),
            size: word(12),
            source_stag: Stag(word(16)),
            source_offset: long(20),
        }
    }

    /// Encodes the payload.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u32(self.sink_stag.0);
        out.put_u64(self.sink_offset);
        out.put_u32(self.size);
        out.put_u32(self.source_stag.0);
        out.put_u64(self.source_offset);
    }
}

/// The reason for a Terminate: layer, error type and error code (RFC 5040 §4.8, RFC 5041 §7.2, RFC 5044 §8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode {
    /// The layer: 0 is RDMAP, 1 is DDP, 2 is the layer below (MPA).
    pub layer: u8,
    /// The error type of the layer.
    pub kind: u8,
    /// The error code of the type.
    pub code: u8,
}

impl ErrorCode {
    /// The peer cannot invalidate the region, or there is no such region.
    pub const CANNOT_INVALIDATE: Self = Self::new(0, 1, 0x09);
    /// The RDMAP version is wrong.
    pub const RDMAP_VERSION: Self = Self::new(0, 2, 0x05);
    /// The operation is not allowed here.
    pub const UNEXPECTED_OPCODE: Self = Self::new(0, 2, 0x06);
    /// This end of the stream cannot continue.
    pub const CATASTROPHIC_STREAM: Self = Self::new(0, 2, 0x07);
    /// The operation is malformed in a way that has no code of its own.
    pub const UNSPECIFIED: Self = Self::new(0, 2, 0xff);
    /// No region has the STag of a tagged segment.
    //= rfc5041-7.2-1
    pub const TAGGED_STAG: Self = Self::new(1, 1, 0x00);
    /// A tagged segment exceeds its region.
    pub const TAGGED_BOUNDS: Self = Self::new(1, 1, 0x01);
    /// A tagged offset wraps.
    pub const TAGGED_WRAP: Self = Self::new(1, 1, 0x03);
    /// The DDP version of a tagged segment is wrong.
    pub const TAGGED_VERSION: Self = Self::new(1, 1, 0x04);
    /// The queue does not exist.
    pub const UNTAGGED_QUEUE: Self = Self::new(1, 2, 0x01);
    /// There is no buffer for the message.
    pub const UNTAGGED_NO_BUFFER: Self = Self::new(1, 2, 0x02);
    /// The message number is not the next one.
    pub const UNTAGGED_MSN: Self = Self::new(1, 2, 0x03);
    /// The message offset is not the next one.
    pub const UNTAGGED_OFFSET: Self = Self::new(1, 2, 0x04);
    /// The message is longer than its buffer.
    pub const UNTAGGED_TOO_LONG: Self = Self::new(1, 2, 0x05);
    /// The DDP version of an untagged segment is wrong.
    pub const UNTAGGED_VERSION: Self = Self::new(1, 2, 0x06);
    /// The CRC does not match.
    pub const MPA_CRC: Self = Self::new(2, 0, 0x02);
    /// The length of an FPDU is invalid.
    pub const MPA_LENGTH: Self = Self::new(2, 0, 0x03);
    /// The peer accepts fewer reads than this side requires.
    pub const MPA_READS: Self = Self::new(2, 0, 0x06);
    /// The peer chose a ready-to-receive indication that this side did not offer.
    pub const MPA_RTR: Self = Self::new(2, 0, 0x07);

    const fn new(layer: u8, kind: u8, code: u8) -> Self {
        Self { layer, kind, code }
    }

    /// Returns the error code for a rejected RDMA Write.
    pub(crate) fn of_write(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Stag => Self::TAGGED_STAG,
            AccessFault::Bounds => Self::TAGGED_BOUNDS,
            AccessFault::Wrap => Self::TAGGED_WRAP,
            // RFC 5040 §4.8: this is an RDMAP error, because DDP has no access rights.
            AccessFault::Rights => Self::new(0, 1, 0x02),
        }
    }

    /// Returns the error code for a rejected RDMA Read.
    pub(crate) fn of_read(fault: AccessFault) -> Self {
        let code = match fault {
            AccessFault::Stag => 0x00,
            AccessFault::Bounds => 0x01,
            AccessFault::Rights => 0x02,
            AccessFault::Wrap => 0x04,
        };
        Self::new(0, 1, code)
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match (self.layer, self.kind, self.code) {
            (0, 0, _) => "RDMAP: local catastrophic error",
            (0, 1, 0x00) => "RDMAP: invalid steering tag",
            (0, 1, 0x01) => "RDMAP: base or bounds violation",
            (0, 1, 0x02) => "RDMAP: access rights violation",
            (0, 1, 0x03) => "RDMAP: steering tag of another stream",
            (0, 1, 0x04) => "RDMAP: tagged offset wraps",
            (0, 1 | 2, 0x09) => "RDMAP: steering tag cannot be invalidated",
            (0, 2, 0x05) => "RDMAP: invalid version",
            (0, 2, 0x06) => "RDMAP: unexpected operation",
            (0, 2, 0x07) => "RDMAP: catastrophic error of this stream",
            (0, 2, 0x08) => "RDMAP: catastrophic error, global",
            (0, 1 | 2, 0xff) => "RDMAP: unspecified error",
            (1, 0, _) => "DDP: local catastrophic error",
            (1, 1, 0x00) => "DDP: invalid steering tag",
            (1, 1, 0x01) => "DDP: base or bounds violation",
            (1, 1, 0x02) => "DDP: steering tag of another stream",
            (1, 1, 0x03) => "DDP: tagged offset wraps",
            (1, 1, 0x04) | (1, 2, 0x06) => "DDP: invalid version",
            (1, 2, 0x01) => "DDP: invalid queue number",
            (1, 2, 0x02) => "DDP: no buffer for the message",
            (1, 2, 0x03) => "DDP: message number out of range",
            (1, 2, 0x04) => "DDP: invalid message offset",
            (1, 2, 0x05) => "DDP: message too long for its buffer",
            (2, 0, 0x01) => "MPA: connection lost",
            (2, 0, 0x02) => "MPA: CRC error",
            (2, 0, 0x03) => "MPA: length or marker mismatch",
            (2, 0, 0x04) => "MPA: invalid handshake frame",
            (2, 0, 0x05) => "MPA: local catastrophic error",
            (2, 0, 0x06) => "MPA: insufficient inbound reads",
            (2, 0, 0x07) => "MPA: no matching ready-to-receive indication",
            _ => "unknown error",
        };
        write!(f, "{text} ({}/{}/{:#04x})", self.layer, self.kind, self.code)
    }
}

/// The payload of a Terminate message (RFC 5040 §4.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// The reason.
    pub error: ErrorCode,
    /// M and D: the length (of the DDP segment) and the DDP header of the faulty message.
    pub segment: Option<(u16, ddp::Header)>,
    /// R: the Read Request, if the faulty message was one.
    pub read_request: Option<ReadRequest>,
}

impl Terminate {
    /// Parses the payload. Truncated optional parts count as absent, because the stream ends anyway.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[first, code, flags, _], mut rest) = bytes.split_first_chunk()?;
        let error = ErrorCode { layer: first >> 4, kind: first & 0x0f, code };
        let mut terminate = Self { error, segment: None, read_request: None };
        let mut len = 0;
        if flags & FLAG_M != 0 {
            let Some((&length, after)) = rest.split_first_chunk() else { return Some(terminate) };
            (len, rest) = (u16::from_be_bytes(length), after);
        }
        if flags & FLAG_D != 0 {
            let Ok(Some(header)) = ddp::Header::parse(rest) else { return Some(terminate) };
            rest = &rest[header.encoded_len()..];
            terminate.segment = Some((len, header));
        }
        if flags & FLAG_R != 0 {
            terminate.read_request = rest.first_chunk().map(ReadRequest::parse);
        }
        Some(terminate)
    }

    /// Encodes the payload.
    pub fn encode(&self, out: &mut impl BufMut) {
        //= rfc5040-4.8-1 rfc5040-4.8-2 rfc5040-4.8-3 rfc5040-4.8-4
        //= rfc5040-4.8-5 rfc5040-4.8-6 rfc5040-4.8-7 rfc5040-4.8-8
        out.put_u8(self.error.layer << 4 | self.error.kind & 0x0f);
        out.put_u8(self.error.code);
        let headers = if self.segment.is_some() { FLAG_M | FLAG_D } else { 0 };
        out.put_u8(headers | if self.read_request.is_some() { FLAG_R } else { 0 });
        out.put_u8(0);
        if let Some((len, header)) = &self.segment {
            out.put_u16(*len);
            header.encode(out);
        }
        if let Some(request) = &self.read_request {
            request.encode(out);
        }
    }
}

/// The length in bytes of the payload of an RDMA Read Request.
pub const READ_REQUEST_LEN: usize = 28;
/// Maximum bytes of the payload of a Terminate.
pub const TERMINATE_MAX: usize = 4 + 2 + ddp::UNTAGGED_LEN + READ_REQUEST_LEN;

const MASK_VERSION: u8 = 0xc0;
const VERSION: u8 = 0x40;
const FLAG_M: u8 = 0x80;
const FLAG_D: u8 = 0x40;
const FLAG_R: u8 = 0x20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_round_trip_and_others_are_rejected() {
        for code in 0..8 {
            //= rfc5040-4.1-2 rfc5040-4.1-6
            assert_eq!(Opcode::parse(0x40 | code).unwrap().ulp(), 0x40 | code);
            //= rfc5040-4.1-9
            assert_eq!(Opcode::parse(0x70 | code).unwrap().ulp(), 0x40 | code, "reserved bits are ignored");
        }
        for (invalidate, solicited) in [(false, false), (false, true), (true, false), (true, true)] {
            let opcode = Opcode::send(invalidate, solicited);
            assert_eq!((opcode.invalidates(), opcode.solicits()), (invalidate, solicited));
        }
        assert_eq!(Opcode::parse(0x48), Err(ErrorCode::UNEXPECTED_OPCODE));
        assert_eq!(Opcode::parse(0x03), Err(ErrorCode::RDMAP_VERSION));
    }

    #[test]
    fn terminate_contains_the_faulty_message_and_can_be_truncated() {
        let request =
            ReadRequest { sink_stag: Stag(1), sink_offset: 2, size: 3, source_stag: Stag(4), source_offset: u64::MAX };
        let header = ddp::Header::Untagged { last: true, ulp: 0x41, ulp_word: 0, queue: 1, msn: 9, offset: 0 };
        let error = ErrorCode::of_read(AccessFault::Rights);
        let full = Terminate { error, segment: Some((46, header)), read_request: Some(request) };
        let mut bytes = Vec::new();
        full.encode(&mut bytes);
        assert_eq!(bytes.len(), TERMINATE_MAX);
        //= rfc5040-4.8-1 rfc5040-4.8-2 rfc5040-4.8-4 rfc5040-4.8-5 rfc5040-4.8-6 rfc5040-4.8-7 rfc5040-4.8-8
        assert_eq!(&bytes[..6], [0x01, 0x02, 0xe0, 0x00, 0x00, 46]);
        assert_eq!(Terminate::parse(&bytes), Some(full.clone()));
        for (segment, read_request) in [(None, None), (None, full.read_request), (full.segment, None)] {
            let part = Terminate { error, segment, read_request };
            let mut bytes = Vec::new();
            part.encode(&mut bytes);
            assert_eq!(Terminate::parse(&bytes), Some(part));
        }
        let part = Terminate { error, segment: full.segment, read_request: None };
        let mut longer = Vec::new();
        part.encode(&mut longer);
        longer.extend([1; READ_REQUEST_LEN]);
        assert_eq!(Terminate::parse(&longer), Some(part), "bytes behind the parts that the flags announce");
        for cut in 0..bytes.len() {
            let parsed = Terminate::parse(&bytes[..cut]);
            assert_eq!(parsed.map(|terminate| terminate.error), (cut >= 4).then_some(error));
        }
    }
}
