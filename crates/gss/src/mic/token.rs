//! The format of MIC tokens (RFC 4121 §4.2.6.1).
//!
//! | bytes | |
//! |---|---|
//! | 0..2 | `04 04` |
//! | 2 | flags (§4.2.2) |
//! | 3..8 | `ff` |
//! | 8..16 | the sequence number |
//! | 16.. | the checksum of the message and of the bytes before |

/// The flag of tokens that the acceptor of the context makes.
pub const SENT_BY_ACCEPTOR: u8 = 1;
/// The flag of tokens that are made with the subkey of the acceptor.
pub const ACCEPTOR_SUBKEY: u8 = 4;
/// The length of all fields but the checksum.
pub const HEADER_LEN: usize = 16;

/// A MIC token. Its fields are not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicToken<'a> {
    /// The flags, of which some may have no meaning.
    pub flags: u8,
    /// The sequence number.
    pub sequence: u64,
    /// The bytes before the checksum, which the checksum covers.
    pub header: &'a [u8; HEADER_LEN],
    /// The checksum, of any length.
    pub checksum: &'a [u8],
}

impl<'a> MicToken<'a> {
    /// Decodes a token. Returns `None` if it has another format.
    pub fn parse(token: &'a [u8]) -> Option<Self> {
        let (header, checksum) = token.split_first_chunk::<HEADER_LEN>()?;
        let [id @ .., _, _, _, _, _, _, _, _] = header;
        let &[0x04, 0x04, flags, 0xff, 0xff, 0xff, 0xff, 0xff] = id else { return None };
        let (_, sequence) = header.split_last_chunk::<8>()?;
        Some(Self { flags, sequence: u64::from_be_bytes(*sequence), header, checksum })
    }
}

/// Returns the bytes of a token before its checksum.
pub(super) fn header(flags: u8, sequence: u64) -> [u8; HEADER_LEN] {
    let mut header = [0xff; HEADER_LEN];
    header[..3].copy_from_slice(&[0x04, 0x04, flags]);
    header[8..].copy_from_slice(&sequence.to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_has_the_layout_of_the_rfc() {
        let token = b"\x04\x04\x05\xff\xff\xff\xff\xff\0\0\0\0\x12\x34\x56\x78checksum";
        let parsed = MicToken::parse(token).expect("the token must be valid");
        assert_eq!((parsed.flags, parsed.sequence, parsed.checksum), (5, 0x1234_5678, &b"checksum"[..]));
        assert_eq!(*parsed.header, header(5, 0x1234_5678));
        let without = MicToken::parse(&token[..HEADER_LEN]).expect("the checksum can be empty here");
        assert!(without.checksum.is_empty());
    }

    #[test]
    fn short_tokens_and_other_formats_are_refused() {
        let token = [&header(0, 7)[..], b"checksum"].concat();
        for len in 0..HEADER_LEN {
            assert_eq!(MicToken::parse(&token[..len]), None, "{len} bytes");
        }
        for at in [0, 1, 3, 4, 5, 6, 7] {
            let mut other = token.clone();
            other[at] ^= 0x10;
            assert_eq!(MicToken::parse(&other), None, "byte {at}");
        }
    }
}
