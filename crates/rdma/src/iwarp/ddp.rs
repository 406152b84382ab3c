//! DDP: the header of a segment, tagged or untagged (RFC 5041 §4).
//!
//! This codec does no I/O. The bits that DDP reserves for the protocol above it (`RsvdULP`) are passed on unchanged.

use bytes::BufMut;

use crate::Stag;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The segment contains the address of its payload (RFC 5041 §4.2).
    Tagged {
        /// L: this is the last segment of its message.
        last: bool,
        /// The bits for RDMAP.
        ulp: u8,
        /// The STag of the region.
        stag: Stag,
        /// The tagged offset of the first byte.
        offset: u64,
    },
    /// The payload goes to the next buffer of a queue (RFC 5041 §4.3).
    Untagged {
        /// L: this is the last segment of its message.
        last: bool,
        /// The bits for RDMAP.
        ulp: u8,
        /// The word for RDMAP: the STag to invalidate.
        ulp_word: u32,
        /// QN: the queue number.
        queue: u32,
        /// MSN: the number of the message in its queue, counted from 1, wrapping.
        msn: u32,
        /// MO: the offset of the first byte in the message.
        offset: u32,
    },
}

/// The error of a header with another DDP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionError {
    /// `true` if the segment is tagged.
    pub tagged: bool,
}

impl Header {
    /// Returns the length of a header whose first byte is `control`.
    pub fn len_of(control: u8) -> usize {
        if control & FLAG_TAGGED != 0 { TAGGED_LEN } else { UNTAGGED_LEN }
    }

    /// Parses the header at the start of `bytes`. Returns `None` if it is incomplete.
    ///
    /// # Errors
    /// The DDP version is not 1.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, VersionError> {
        let Some(&control) = bytes.first() else { return Ok(None) };
        let tagged = control & FLAG_TAGGED != 0;
        if control & MASK_VERSION != VERSION {
            return Err(VersionError { tagged });
        }
        if bytes.len() < Self::len_of(control) {
            return Ok(None);
        }
        let last = control & FLAG_LAST != 0;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let ulp = bytes[1];
        Ok(Some(if tagged {
            let offset = u64::from(word(6)) << 32 | u64::from(word(10));
            Header::Tagged { last, ulp, stag: Stag(word(2)), offset }
        } else {
            Header::Untagged { last, ulp, ulp_word: word(2), queue: word(6), msn: word(10), offset: word(14) }
        }))
    }

    /// Encodes the header.
    pub fn encode(&self, out: &mut impl BufMut) {
        let control = |flags: u8, last: bool| flags | VERSION | if last { FLAG_LAST } else { 0 };
        match *self {
            //= rfc5041-4.1-1 rfc5041-4.1-2 rfc5041-4.2-1 rfc5041-4.3-1 rfc5041-4.4-1 rfc5041-4.1-9 rfc5041-4.1-8
            Header::Tagged { last, ulp, stag, offset } => {
                out.put_u8(control(FLAG_TAGGED, last));
                out.put_u8(ulp);
                out.put_u32(stag.0);
                out.put_u64(offset);
            }
            Header::Untagged { last, ulp, ulp_word, queue, msn, offset } => {
                out.put_u8(control(0, last));
                out.put_u8(ulp);
                out.put_u32(ulp_word);
                out.put_u32(queue);
                out.put_u32(msn);
                out.put_u32(offset);
            }
        }
    }

    /// Returns the length of the encoded header.
    pub fn encoded_len(&self) -> usize {
        match self {
            Header::Tagged { .. } => TAGGED_LEN,
            Header::Untagged { .. } => UNTAGGED_LEN,
        }
    }

    /// Returns L: `true` for the last segment of a message.
    pub fn last(&self) -> bool {
        match *self {
            Header::Tagged { last, .. } | Header::Untagged { last, .. } => last,
        }
    }

    /// Returns the byte for RDMAP.
    pub fn ulp(&self) -> u8 {
        match *self {
            Header::Tagged { ulp, .. } | Header::Untagged { ulp, .. } => ulp,
        }
    }
}

/// The length in bytes of a tagged header.
pub const TAGGED_LEN: usize = 14;
/// The length in bytes of an untagged header.
pub const UNTAGGED_LEN: usize = 18;

const FLAG_TAGGED: u8 = 0x80;
const FLAG_LAST: u8 = 0x40;
const MASK_VERSION: u8 = 0x03;
const VERSION: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_format_of_rfc_5041() {
        let tagged = Header::Tagged { last: true, ulp: 0x40, stag: Stag(0x01020304), offset: 0x05060708_090a0b0c };
        let mut bytes = Vec::new();
        tagged.encode(&mut bytes);
        //= rfc5041-4.1-8 rfc5041-4.1-9 rfc5041-4.2-1
        assert_eq!(bytes, [0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let untagged =
            Header::Untagged { last: false, ulp: 0x43, ulp_word: 0x01020304, queue: 1, msn: 2, offset: 0x0a0b0c0d };
        let mut bytes = Vec::new();
        untagged.encode(&mut bytes);
        //= rfc5041-4.3-1 rfc5041-4.4-1
        assert_eq!(bytes, [0x01, 0x43, 1, 2, 3, 4, 0, 0, 0, 1, 0, 0, 0, 2, 10, 11, 12, 13]);
        for header in [tagged, untagged] {
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            assert_eq!(bytes.len(), header.encoded_len());
            assert_eq!(Header::len_of(bytes[0]), bytes.len());
            assert_eq!(Header::parse(&bytes), Ok(Some(header)));
            for cut in 0..bytes.len() {
                assert_eq!(Header::parse(&bytes[..cut]), Ok(None));
            }
        }
    }

    #[test]
    fn other_versions_are_rejected() {
        assert_eq!(Header::parse(&[0x82]), Err(VersionError { tagged: true }));
        assert_eq!(Header::parse(&[0x00]), Err(VersionError { tagged: false }));
    }
}
