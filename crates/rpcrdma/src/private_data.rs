//! The private data that each side sends while a connection is set up.
//!
//! Read RFC 8797 §4 and §5. On the wire, eight bytes at the start of the private data:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..4 | format identifier | `f6ab0e18` |
//! | 4 | version | 1 |
//! | 5 | flags | lowest bit: R, the peer can invalidate the sender's memory by Send with Invalidate |
//! | 6 | send size | maximum length of a Send by the sender: (n + 1) KiB |
//! | 7 | receive size | maximum length of a Send that the sender can receive: (n + 1) KiB |
//!
//! A receiver ignores unknown data behind these bytes. This implementation requests, or agrees to, the Read-Read design
//! there by four bytes of its own, `SlRR`; no other implementation does.

/// The private data of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// Flag R: as a requester this side accepts Send with Invalidate.
    pub remote_invalidation: bool,
    /// Maximum bytes of a Send that this side makes: a multiple of 1024, at most 256 KiB.
    pub send_size: usize,
    /// Maximum bytes of a Send that this side receives: a multiple of 1024, at most 256 KiB.
    pub recv_size: usize,
    /// `true` if this side requests the Read-Read design ([`Design::ReadRead`](crate::Design::ReadRead)).
    pub read_read: bool,
}

impl PrivateData {
    /// Encodes the wire form.
    pub fn encode(&self) -> Vec<u8> {
        let flags = u8::from(self.remote_invalidation);
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, flags, encode_size(self.send_size), encode_size(self.recv_size)]);
        if self.read_read {
            bytes.extend(READ_READ);
        }
        bytes
    }

    /// Decodes the wire form. Returns `None` if the peer sent other data, or none. Bytes before and after it are
    /// ignored, because lower layers can have their own data there, and some connection managers pad.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        // RFC 8797 §5.2: the receiver searches for the format identifier at any offset.
        //= rfc8797-5.2-1
        let at = bytes.windows(MAGIC.len()).position(|word| word == MAGIC)?;
        let (&[version, flags, send, recv], rest) = bytes[at + MAGIC.len()..].split_first_chunk()?;
        // RFC 8797 §5.1, §5.2: an unknown version is treated as no private data.
        (version == VERSION).then_some(Self {
            //= rfc8797-4-2
            remote_invalidation: flags & 1 != 0,
            send_size: decode_size(send),
            recv_size: decode_size(recv),
            read_read: rest.starts_with(&READ_READ),
        })
    }
}

/// The assumed private data of a peer that sent none (RFC 8166 §3.3.3).
impl Default for PrivateData {
    fn default() -> Self {
        //= rfc8166-3.3.3-2 rfc8166-3.3.3-3
        Self { remote_invalidation: false, send_size: INLINE_DEFAULT, recv_size: INLINE_DEFAULT, read_read: false }
    }
}

fn encode_size(size: usize) -> u8 {
    debug_assert!(size.is_multiple_of(1024) && (1024..=INLINE_MAX).contains(&size));
    (size / 1024 - 1) as u8
}

fn decode_size(byte: u8) -> usize {
    (usize::from(byte) + 1) * 1024
}

/// The default inline threshold in bytes, if nothing else is agreed (RFC 8166 §3.3.3).
pub const INLINE_DEFAULT: usize = 1024;
/// Maximum inline threshold in bytes that private data can express.
pub const INLINE_MAX: usize = 256 * 1024;
const MAGIC: [u8; 4] = [0xf6, 0xab, 0x0e, 0x18];
const VERSION: u8 = 1;
const READ_READ: [u8; 4] = *b"SlRR";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_of_linux_client_round_trips() {
        let bytes = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
        let data = PrivateData::decode(&bytes).unwrap();
        assert_eq!(data, PrivateData { remote_invalidation: true, send_size: 4096, recv_size: 4096, read_read: false });
        assert_eq!(data.encode(), bytes);
    }

    #[test]
    fn padding_is_ignored_and_other_data_is_rejected() {
        let mut bytes = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 0, 255, 0, 0, 0];
        let padded = PrivateData::decode(&bytes).unwrap();
        assert_eq!((padded.recv_size, padded.read_read), (INLINE_MAX, false));
        for len in 0..8 {
            //= rfc8797-5.2-1
            assert_eq!(PrivateData::decode(&bytes[..len]), None);
        }
        bytes[4] = 2;
        assert_eq!(PrivateData::decode(&bytes), None);
        let reserved = PrivateData::decode(&[0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 0, 0]).unwrap();
        //= rfc8797-4-2
        assert_eq!((reserved.remote_invalidation, reserved.encode()[5]), (false, 0), "reserved flags are ignored");
        // The private data follow data of another layer, at an odd offset.
        let behind = [&[0xf6, 0xab, 0x0e, 7, 7][..], &[0xf6, 0xab, 0x0e, 0x18, 1, 1, 0, 0]].concat();
        assert!(PrivateData::decode(&behind).unwrap().remote_invalidation);
    }

    #[test]
    fn read_read_flag_follows_the_standard_private_data() {
        let data = PrivateData { read_read: true, ..PrivateData::default() };
        let mut bytes = data.encode();
        assert_eq!(PrivateData::decode(&bytes[..8]), Some(PrivateData::default()));
        bytes.extend([0; 20]);
        assert_eq!(PrivateData::decode(&bytes), Some(data));
    }
}
