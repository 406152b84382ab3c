//! MPA: how FPDUs lie in a TCP stream, and the handshake before the first (RFC 5044, RFC 6581).
//!
//! Pure codecs. Markers are never used: a peer that insists on them is refused (RFC 5044 §7.1 lets
//! either side want none for its own receiving; a sender's markers are what the *receiver* asks for).
//!
//! An FPDU is `length(2) | ULPDU | pad(0..3) | CRC32C(4)`; the length counts the ULPDU alone, and
//! the CRC covers everything before it. Where CRCs were not agreed on the field is there, as zero.

use bytes::{BufMut, Bytes, BytesMut};

/// The first frame from the initiator, or the responder's answer (RFC 5044 §7.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// Whether it is the reply.
    pub reply: bool,
    /// M: the sender wants markers in what it receives.
    pub markers: bool,
    /// C: the sender wants CRCs.
    pub crc: bool,
    /// R: the connection is rejected; only in a reply.
    pub rejected: bool,
    /// The revision of the protocol.
    pub revision: u8,
    /// The further bits of the flag byte, as they came: reserved, to be ignored.
    pub reserved: u8,
    /// S: enhanced set-up (RFC 6581 §6).
    pub enhanced: Option<Enhanced>,
    /// The caller's own data.
    pub private_data: Bytes,
}

/// What enhanced set-up adds in front of the private data (RFC 6581 §9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Enhanced {
    /// A: peer-to-peer mode, in which the initiator's first FPDU is a ready-to-receive indication.
    pub peer_to_peer: bool,
    /// B: that may be a zero-length Send.
    pub rtr_send: bool,
    /// C: that may be a zero-length RDMA Write.
    pub rtr_write: bool,
    /// D: that may be a zero-length RDMA Read.
    pub rtr_read: bool,
    /// RDMA Reads that the sender of this frame takes at once; 14 bits, all ones for "not said".
    pub inbound_reads: u16,
    /// RDMA Reads that the sender of this frame wants to have outstanding; likewise.
    pub outbound_reads: u16,
}

/// Why bytes are no handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// The key is another: this is not MPA, or the wrong side of it.
    Key,
    /// A revision that we do not speak.
    Revision(u8),
    /// More private data than RFC 5044 §7.1.1 allows.
    PrivateData(usize),
    /// The flag for enhanced set-up without its fields.
    Enhanced,
}

impl Handshake {
    /// Parses a frame from the front of `bytes`; the frame and its length, or `None` while it is incomplete.
    ///
    /// # Errors
    /// As soon as the bytes can no longer be a frame.
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
        // RFC 6581 §6: the flag is of revision 2; in revision 1 it is reserved and ignored.
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

    /// The frame as bytes.
    ///
    /// # Panics
    /// If the private data is longer than [`PRIVATE_DATA_MAX`] leaves room for.
    pub fn encode(&self) -> Bytes {
        let data_len = self.private_data.len() + if self.enhanced.is_some() { ENHANCED_LEN } else { 0 };
        assert!(data_len <= PRIVATE_DATA_MAX, "private data is checked before");
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
            inbound_reads: inbound & READS_UNSAID,
            outbound_reads: outbound & READS_UNSAID,
        }
    }

    fn encode(&self) -> [u8; ENHANCED_LEN] {
        let bits = |high: bool, low: bool| u16::from(high) << 15 | u16::from(low) << 14;
        let inbound = self.inbound_reads.min(READS_UNSAID) | bits(self.peer_to_peer, self.rtr_send);
        let outbound = self.outbound_reads.min(READS_UNSAID) | bits(self.rtr_write, self.rtr_read);
        let ([a, b], [c, d]) = (inbound.to_be_bytes(), outbound.to_be_bytes());
        [a, b, c, d]
    }
}

impl std::fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HandshakeError::Key => write!(f, "the peer does not speak MPA"),
            HandshakeError::Revision(revision) => write!(f, "MPA revision {revision} is not supported"),
            HandshakeError::PrivateData(len) => write!(f, "{len} bytes of MPA private data are too many"),
            HandshakeError::Enhanced => write!(f, "an enhanced MPA frame without its fields"),
        }
    }
}

impl std::error::Error for HandshakeError {}

/// Bytes of padding after a ULPDU of `len` bytes: an FPDU is a multiple of four (RFC 5044 §4.1).
pub fn pad_len(len: usize) -> usize {
    (LENGTH_LEN + len).wrapping_neg() % 4
}

/// Bytes of the whole FPDU around a ULPDU of `len` bytes.
pub fn fpdu_len(len: usize) -> usize {
    LENGTH_LEN + len + pad_len(len) + CRC_LEN
}

/// The CRC field as it stands in the stream (RFC 5044 §4.4: as iSCSI has it, least significant byte first).
pub fn crc_field(crc: u32) -> [u8; CRC_LEN] {
    //= rfc5044-4.4-7
    crc.to_le_bytes()
}

/// Most bytes of private data, the fields of enhanced set-up included (RFC 5044 §7.1.1).
pub const PRIVATE_DATA_MAX: usize = 512;
/// Bytes of the fields of enhanced set-up.
pub const ENHANCED_LEN: usize = 4;
/// The value of a number of reads that says nothing (RFC 6581 §9.1).
pub const READS_UNSAID: u16 = 0x3fff;
/// Bytes of the length field in front of an FPDU.
pub const LENGTH_LEN: usize = 2;
/// Bytes of the CRC field behind it.
pub const CRC_LEN: usize = 4;
/// Bytes of a handshake frame without private data.
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

    /// What a Linux 6.1 NFS client on siw sends.
    const SIW_REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x0c\x00\x80\x00\x00\xf6\xab\x0e\x18\x01\x00\x00\x00";

    #[test]
    fn the_request_of_linux_siw_is_understood_and_written_back() {
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
    fn every_flag_survives_a_round_trip() {
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
    fn what_is_no_handshake_is_refused_as_early_as_can_be() {
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
