//! MPA: the format of FPDUs in a TCP stream, and the handshake before the first FPDU (RFC 5044, RFC 6581).
//!
//! These codecs do no I/O. Markers are not supported: a peer that requires them is rejected. RFC 5044 §7.1 permits
//! this, because each side decides about the markers that it *receives*.
//!
//! An FPDU is `length(2) | ULPDU | pad(0..3) | CRC32C(4)`. The length counts only the ULPDU, and the CRC covers
//! everything before it. Without CRCs the field is zero.

use bytes::{BufMut, Bytes, BytesMut};

/// The first frame of the initiator, or the reply of the responder (RFC 5044 §7.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// `true` for the reply.
    pub reply: bool,
    /// M: the sender requires markers in the data that it receives.
    pub markers: bool,
    /// C: the sender requests CRCs.
    pub crc: bool,
    /// R: the connection is rejected. Only in a reply.
    pub rejected: bool,
    /// The protocol revision.
    pub revision: u8,
    /// The reserved bits of the flag byte as received, to be ignored.
    pub reserved: u8,
    /// S: the enhanced setup (RFC 6581 §6).
    pub enhanced: Option<Enhanced>,
    /// The private data of the caller.
    pub private_data: Bytes,
}

/// The fields of the enhanced setup before the private data (RFC 6581 §9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Enhanced {
    /// A: peer-to-peer mode, in which the initiator's first FPDU is a ready-to-receive indication.
    pub peer_to_peer: bool,
    /// B: the indication can be a zero-length Send.
    pub rtr_send: bool,
    /// C: the indication can be a zero-length RDMA Write.
    pub rtr_write: bool,
    /// D: the indication can be a zero-length RDMA Read.
    pub rtr_read: bool,
    /// Maximum number of RDMA Reads that the sender of this frame accepts at once: 14 bits, all ones for "unspecified".
    pub inbound_reads: u16,
    /// Maximum number of outstanding RDMA Reads that the sender of this frame requests: 14 bits, all ones for
    /// "unspecified".
    pub outbound_reads: u16,
}

/// The reason why a handshake frame is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// The key is wrong: the protocol is not MPA, or a request and a reply are mixed up.
    Key,
    /// The revision is not supported.
    Revision(u8),
    /// There are more private data than RFC 5044 §7.1.1 allows.
    PrivateData(usize),
    /// The flag for the enhanced setup is set, but its fields are missing.
    Enhanced,
}

impl Handshake {
    /// Parses a frame at the start of `bytes`. Returns the frame and its length, or `None` if it is incomplete.
    ///
    /// # Errors
    /// The bytes cannot be the start of a valid frame.
    pub fn parse(bytes: &[u8], reply: bool) -> Result<Option<(Self, usize)>, HandshakeError> {
        let key = if reply { KEY_REPLY } else { KEY_REQUEST };
        let seen = bytes.len().min(key.len());
        if bytes[..seen] != key[..seen] {
            //= rfc5044-7.1.1-2 rfc5044-7.1.1-4 rfc5044-7.1.2-9 rfc5044-7.1.2-13
            return Err(HandshakeError::Key);
        }
        let Some(&[flags, revision, high, low]) = bytes.get(16..HEADER_LEN) else { return Ok(None) };
        if !(1..=2).contains(&revision) {
            //= rfc5044-7.1.1-15 rfc5044-7.1.1-16
            return Err(HandshakeError::Revision(revision));
        }
        let data_len = usize::from(u16::from_be_bytes([high, low]));
        if data_len > PRIVATE_DATA_MAX {
            //= rfc5044-7.1.1-18 rfc5044-7.1.1-19 rfc5044-7.1.2-11 rfc5044-7.1.2-12
            return Err(HandshakeError::PrivateData(data_len));
        }
        let Some(mut data) = bytes.get(HEADER_LEN..HEADER_LEN + data_len) else { return Ok(None) };
        // RFC 6581 §6 defines this flag for revision 2. In revision 1 it is reserved and ignored.
        let mut reserved = flags & 0x0f;
        let enhanced = if flags & FLAG_ENHANCED == 0 {
            None
        } else if revision < 2 {
            reserved |= FLAG_ENHANCED;
            None
        } else {
            let (fields, rest) = data.split_first_chunk().ok_or(HandshakeError::Enhanced)?;
            data = rest;
            Some(Enhanced::parse(*fields))
        };
        let frame = Self {
            reply,
            markers: flags & FLAG_MARKERS != 0,
            crc: flags & FLAG_CRC != 0,
            rejected: flags & FLAG_REJECT != 0,
            revision,
            reserved,
            enhanced,
            private_data: Bytes::copy_from_slice(data),
        };
        Ok(Some((frame, HEADER_LEN + data_len)))
    }

    /// Encodes the frame.
    ///
    /// # Panics
    /// If the private data are longer than [`PRIVATE_DATA_MAX`] permits.
    pub fn encode(&self) -> Bytes {
        let data_len = self.private_data.len() + if self.enhanced.is_some() { ENHANCED_LEN } else { 0 };
        assert!(data_len <= PRIVATE_DATA_MAX, "private data must not exceed PRIVATE_DATA_MAX");
        let mut out = BytesMut::with_capacity(HEADER_LEN + data_len);
        //= rfc5044-7.1.1-1 rfc5044-7.1.1-3 rfc5044-7.1.1-17 rfc5044-7.1.2-10
        out.put_slice(if self.reply { KEY_REPLY } else { KEY_REQUEST });
        let mut flags = self.reserved;
        for (set, flag) in [
            (self.markers, FLAG_MARKERS),
            (self.crc, FLAG_CRC),
            (self.rejected, FLAG_REJECT),
            (self.enhanced.is_some(), FLAG_ENHANCED),
        ] {
            flags |= if set { flag } else { 0 };
        }
        out.put_u8(flags);
        out.put_u8(self.revision);
        out.put_u16(data_len as u16);
        if let Some(enhanced) = &self.enhanced {
            out.put_slice(&enhanced.encode());
        }
        out.put_slice(&self.private_data);
        out.freeze()
    }
}

impl Enhanced {
    fn parse(fields: [u8; ENHANCED_LEN]) -> Self {
        let [a, b, c, d] = fields;
        let (inbound, outbound) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self {
            peer_to_peer: inbound & 0x8000 != 0,
            rtr_send: inbound & 0x4000 != 0,
            rtr_write: outbound & 0x8000 != 0,
            rtr_read: outbound & 0x4000 != 0,
            inbound_reads: inbound & READS_UNSPECIFIED,
            outbound_reads: outbound & READS_UNSPECIFIED,
        }
    }

    fn encode(&self) -> [u8; ENHANCED_LEN] {
        let bits = |high: bool, low: bool| u16::from(high) << 15 | u16::from(low) << 14;
        let inbound = self.inbound_reads.min(READS_UNSPECIFIED) | bits(self.peer_to_peer, self.rtr_send);
        let outbound = self.outbound_reads.min(READS_UNSPECIFIED) | bits(self.rtr_write, self.rtr_read);
        let ([a, b], [c, d]) = (inbound.to_be_bytes(), outbound.to_be_bytes());
        [a, b, c, d]
    }
}

impl std::fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HandshakeError::Key => write!(f, "the peer does not use MPA"),
            HandshakeError::Revision(revision) => write!(f, "MPA revision {revision} is not supported"),
            HandshakeError::PrivateData(len) => write!(f, "{len} bytes of MPA private data exceed the maximum of 512"),
            HandshakeError::Enhanced => write!(f, "an enhanced MPA frame lacks its fields"),
        }
    }
}

impl std::error::Error for HandshakeError {}

/// Returns the number of padding bytes behind a ULPDU of `len` bytes: the length of an FPDU is a multiple of four (RFC
/// 5044 §4.1).
pub fn pad_len(len: usize) -> usize {
    (LENGTH_LEN + len).wrapping_neg() % 4
}

/// Returns the length of the FPDU around a ULPDU of `len` bytes.
pub fn fpdu_len(len: usize) -> usize {
    LENGTH_LEN + len + pad_len(len) + CRC_LEN
}

/// Encodes the CRC field (RFC 5044 §4.4: like iSCSI, least significant byte first).
pub fn crc_field(crc: u32) -> [u8; CRC_LEN] {
    //= rfc5044-4.4-7
    crc.to_le_bytes()
}

/// Maximum bytes of private data, including the fields of the enhanced setup (RFC 5044 §7.1.1).
pub const PRIVATE_DATA_MAX: usize = 512;
/// The length in bytes of the fields of the enhanced setup.
pub const ENHANCED_LEN: usize = 4;
/// The value of an unspecified number of reads (RFC 6581 §9.1).
pub const READS_UNSPECIFIED: u16 = 0x3fff;
/// The length in bytes of the length field of an FPDU.
pub const LENGTH_LEN: usize = 2;
/// The length in bytes of the CRC field of an FPDU.
pub const CRC_LEN: usize = 4;
/// The length in bytes of a handshake frame without private data.
pub const HEADER_LEN: usize = 20;

const KEY_REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const KEY_REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECT: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;

#[cfg(test)]
mod tests {
    use super::*;

    /// The request of a Linux 6.1 NFS client on siw.
    const SIW_REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x0c\x00\x80\x00\x00\xf6\xab\x0e\x18\x01\x00\x00\x00";

    #[test]
    fn request_of_linux_siw_round_trips() {
        let (frame, len) = Handshake::parse(SIW_REQUEST, false).unwrap().unwrap();
        assert_eq!(len, SIW_REQUEST.len());
        let enhanced = Enhanced { inbound_reads: 128, ..Enhanced::default() };
        assert_eq!(frame.enhanced, Some(enhanced));
        assert_eq!((frame.crc, frame.markers, frame.revision), (false, false, 2));
        assert_eq!(&frame.private_data[..], [0xf6, 0xab, 0x0e, 0x18, 1, 0, 0, 0]);
        //= rfc5044-7.1.1-1 rfc5044-7.1.1-17
        assert_eq!(frame.encode(), SIW_REQUEST);
        for cut in 0..SIW_REQUEST.len() {
            assert_eq!(Handshake::parse(&SIW_REQUEST[..cut], false), Ok(None));
        }
    }

    #[test]
    fn every_flag_round_trips() {
        for bits in 0u16..256 {
            let flag = |bit: u16| bits >> bit & 1 == 1;
            let enhanced = Enhanced {
                peer_to_peer: flag(0),
                rtr_send: flag(1),
                rtr_write: flag(2),
                rtr_read: flag(3),
                inbound_reads: 0x2aaa,
                outbound_reads: 0x1555,
            };
            let frame = Handshake {
                reply: flag(4),
                markers: flag(5),
                crc: flag(6),
                rejected: flag(7),
                revision: 2,
                reserved: 0,
                enhanced: Some(enhanced),
                private_data: Bytes::from_static(b"abc"),
            };
            let bytes = frame.encode();
            //= rfc5044-7.1.1-3
            assert_eq!(&bytes[..16], if flag(4) { b"MPA ID Rep Frame" } else { b"MPA ID Req Frame" });
            assert_eq!(Handshake::parse(&bytes, flag(4)), Ok(Some((frame, bytes.len()))));
        }
    }

    #[test]
    fn frame_without_enhanced_setup_has_only_private_data() {
        // (revision, flags, the flags that are ignored)
        for (revision, flags, reserved) in [(2, 0x4a, 0x0a), (1, 0x4a, 0x0a), (1, 0x5a, 0x1a)] {
            let bytes = [b"MPA ID Req Frame", &[flags, revision, 0, 6][..], b"abcdef"].concat();
            let frame = Handshake {
                reply: false,
                markers: false,
                crc: true,
                rejected: false,
                revision,
                reserved,
                enhanced: None,
                private_data: Bytes::from_static(b"abcdef"),
            };
            assert_eq!(Handshake::parse(&bytes, false), Ok(Some((frame, bytes.len()))), "{revision} {flags:#x}");
        }
    }

    #[test]
    fn crc_field_begins_with_the_least_significant_byte() {
        //= rfc5044-4.4-7
        assert_eq!(crc_field(0x0102_0304), [4, 3, 2, 1]);
    }

    #[test]
    fn longest_private_data_round_trip() {
        let (mut frame, _) = Handshake::parse(SIW_REQUEST, false).unwrap().unwrap();
        frame.private_data = vec![1; PRIVATE_DATA_MAX - ENHANCED_LEN].into();
        let bytes = frame.encode();
        assert_eq!(Handshake::parse(&bytes, false), Ok(Some((frame, bytes.len()))));
    }

    #[test]
    fn invalid_handshakes_are_rejected_early() {
        assert_eq!(Handshake::parse(b"GET / HTTP", false), Err(HandshakeError::Key));
        //= rfc5044-7.1.1-4 rfc5044-7.1.2-10
        assert_eq!(Handshake::parse(SIW_REQUEST, true), Err(HandshakeError::Key));
        let altered = |at: usize, value: u8| {
            let mut bytes = SIW_REQUEST.to_vec();
            bytes[at] = value;
            Handshake::parse(&bytes, false)
        };
        //= rfc5044-7.1.1-15
        assert_eq!(altered(17, 3), Err(HandshakeError::Revision(3)));
        assert_eq!(altered(18, 0xff), Err(HandshakeError::PrivateData(0xff0c)));
        assert_eq!(altered(19, 3), Err(HandshakeError::Enhanced));
    }

    #[test]
    fn an_fpdu_is_a_multiple_of_four() {
        for len in 0..100 {
            assert!(fpdu_len(len).is_multiple_of(4) && pad_len(len) < 4);
        }
    }
}
