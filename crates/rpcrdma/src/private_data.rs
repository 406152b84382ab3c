//! What each end says of itself while the connection is made.
//!
//! Read RFC 8797 §4 and §5. On the wire, eight bytes at the start of the private data:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..4 | format identifier | `f6ab0e18` |
//! | 4 | version | 1 |
//! | 5 | flags | lowest bit: R, the sender's memory may be invalidated by Send with Invalidate |
//! | 6 | send size | longest Send that it makes: (n + 1) KiB |
//! | 7 | receive size | longest that it receives: (n + 1) KiB |
//!
//! Behind these, a receiver ignores what it does not know. There we ask for, or agree to, the Read-Read design by
//! four bytes of our own, `SlRR`; nobody else's.

/// The private data of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateData {
    /// Flag R: as a requester it takes Send with Invalidate.
    pub remote_invalidation: bool,
    /// Bytes of the longest Send that it makes; a multiple of 1024, at most 256 KiB.
    pub send_size: usize,
    /// Bytes of the longest Send that it receives; as above.
    pub recv_size: usize,
    /// It wants the Read-Read design ([`Design::ReadRead`](crate::Design::ReadRead)).
    pub read_read: bool,
}

impl PrivateData {
    /// The wire form.
    pub fn encode(&self) -> Vec<u8> {
        let flags = u8::from(self.remote_invalidation);
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, flags, encode_size(self.send_size), encode_size(self.recv_size)]);
        if self.read_read {
            bytes.extend(READ_READ);
        }
        bytes
    }

    /// Reads the wire form; `None` if the peer sent something else, or nothing. What precedes and follows is ignored:
    /// layers below may have data of their own there, and some connection managers pad.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        // RFC 8797 §5.2: the format identifier is searched for, at any offset.
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

/// What a peer that sent no private data is taken to be (RFC 8166 §3.3.3).
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

/// The inline threshold where nothing else is agreed (RFC 8166 §3.3.3), in bytes.
pub const INLINE_DEFAULT: usize = 1024;
/// The largest inline threshold that private data can say.
pub const INLINE_MAX: usize = 256 * 1024;
const MAGIC: [u8; 4] = [0xf6, 0xab, 0x0e, 0x18];
const VERSION: u8 = 1;
const READ_READ: [u8; 4] = *b"SlRR";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_private_data_of_a_linux_client_reads_and_writes_back() {
        let bytes = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
        let data = PrivateData::decode(&bytes).unwrap();
        assert_eq!(data, PrivateData { remote_invalidation: true, send_size: 4096, recv_size: 4096, read_read: false });
        assert_eq!(data.encode(), bytes);
    }

    #[test]
    fn padding_after_it_is_ignored_and_anything_else_is_none() {
        let mut bytes = [0xf6, 0xab, 0x0e, 0x18, 1, 0, 0, 255, 0, 0, 0];
        let padded = PrivateData::decode(&bytes).unwrap();
        assert_eq!((padded.recv_size, padded.read_read), (INLINE_MAX, false));
        for len in 0..8 {
            //= rfc8797-5.2-1
            assert_eq!(PrivateData::decode(&bytes[..len]), None);
        }
        bytes[4] = 2;
        assert_eq!(PrivateData::decode(&bytes), None);
        // Behind another layer's data, at an odd offset.
        let reserved = PrivateData::decode(&[0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 0, 0]).unwrap();
        //= rfc8797-4-2
        assert_eq!((reserved.remote_invalidation, reserved.encode()[5]), (false, 0), "other flags are ignored");
        let behind = [&[0xf6, 0xab, 0x0e, 7, 7][..], &[0xf6, 0xab, 0x0e, 0x18, 1, 1, 0, 0]].concat();
        assert!(PrivateData::decode(&behind).unwrap().remote_invalidation);
    }

    #[test]
    fn the_wish_for_read_read_is_told_behind_what_others_read() {
        let data = PrivateData { read_read: true, ..PrivateData::default() };
        let mut bytes = data.encode();
        assert_eq!(PrivateData::decode(&bytes[..8]), Some(PrivateData::default()));
        bytes.extend([0; 20]);
        assert_eq!(PrivateData::decode(&bytes), Some(data));
    }
}
