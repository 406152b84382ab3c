//! The packets on the socket: the handshake, slabs with their descriptors, and doorbells.
//!
//! The socket preserves packet boundaries (`SOCK_SEQPACKET`). Numbers are little-endian, because both ends are on one
//! machine.
//!
//! | packet | bytes | descriptor |
//! |---|---|---|
//! | Hello | `SLIPSHM1`, 1, outbound and inbound reads (16 bits each), private data | |
//! | Accept | `SLIPSHM1`, 2, the negotiated outbound and inbound reads of the connecting side; private data | control memory |
//! | Reject | `SLIPSHM1`, 3 | |
//! | Slab | 4, its number (32 bits), its bytes (64 bits) | the slab |
//! | Bell | 5 | |
//! | Forget | 6, a slab's number (32 bits) | |
//! | File | 7, its number (64 bits) | the file |

use bytes::{BufMut, Bytes};

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// The connecting side requests a connection.
    Hello(Terms),
    /// The accepting side accepts.
    Accept(Terms),
    /// The accepting side rejects.
    Reject,
    /// A slab of the connecting side, whose regions the accepting side can access directly.
    Slab { number: u32, bytes: u64 },
    /// Check the ring.
    Bell,
    /// The connecting side takes a slab back.
    Forget { number: u32 },
    /// A file that the accepting side passes to the connecting side.
    File { number: u64 },
}

/// The first packet of each side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) outbound_reads: u16,
    pub(crate) inbound_reads: u16,
    pub(crate) private_data: Bytes,
}

impl Packet {
    /// Encodes the packet.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        match self {
            Packet::Hello(terms) => terms.encode(HELLO, &mut out),
            Packet::Accept(terms) => terms.encode(ACCEPT, &mut out),
            Packet::Reject => {
                out.put_slice(MAGIC);
                out.put_u8(REJECT);
            }
            Packet::Slab { number, bytes } => {
                out.put_u8(SLAB);
                out.put_u32_le(*number);
                out.put_u64_le(*bytes);
            }
            Packet::Bell => out.put_u8(BELL),
            Packet::Forget { number } => {
                out.put_u8(FORGET);
                out.put_u32_le(*number);
            }
            Packet::File { number } => {
                out.put_u8(FILE);
                out.put_u64_le(*number);
            }
        }
        out
    }

    /// Parses a packet. Returns `None` if it is invalid.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if let Some((&[kind], rest)) = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk) {
            return match kind {
                HELLO => Terms::parse(rest).map(Packet::Hello),
                ACCEPT => Terms::parse(rest).map(Packet::Accept),
                REJECT if rest.is_empty() => Some(Packet::Reject),
                _ => None,
            };
        }
        match *bytes {
            [BELL] => Some(Packet::Bell),
            [FORGET, a, b, c, d] => Some(Packet::Forget { number: u32::from_le_bytes([a, b, c, d]) }),
            [FILE, ref number @ ..] => Some(Packet::File { number: u64::from_le_bytes(number.try_into().ok()?) }),
            [SLAB, ref rest @ ..] => {
                let (&number, rest) = rest.split_first_chunk()?;
                let bytes = u64::from_le_bytes(rest.try_into().ok()?);
                Some(Packet::Slab { number: u32::from_le_bytes(number), bytes })
            }
            _ => None,
        }
    }
}

impl Terms {
    fn encode(&self, kind: u8, out: &mut Vec<u8>) {
        out.put_slice(MAGIC);
        out.put_u8(kind);
        out.put_u16_le(self.outbound_reads);
        out.put_u16_le(self.inbound_reads);
        out.put_slice(&self.private_data);
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (&outbound, rest) = bytes.split_first_chunk()?;
        let (&inbound, private_data) = rest.split_first_chunk()?;
        (private_data.len() <= PRIVATE_DATA_MAX).then(|| Self {
            outbound_reads: u16::from_le_bytes(outbound),
            inbound_reads: u16::from_le_bytes(inbound),
            private_data: Bytes::copy_from_slice(private_data),
        })
    }
}

/// Maximum bytes of private data.
pub(crate) const PRIVATE_DATA_MAX: usize = 512;
/// Maximum bytes of a packet, plus one byte to detect longer ones.
pub(crate) const PACKET_MAX: usize = MAGIC.len() + 5 + PRIVATE_DATA_MAX + 1;
const MAGIC: &[u8; 8] = b"SLIPSHM1";
const HELLO: u8 = 1;
const ACCEPT: u8 = 2;
const REJECT: u8 = 3;
const SLAB: u8 = 4;
const BELL: u8 = 5;
const FORGET: u8 = 6;
const FILE: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_round_trip_and_truncated_ones_are_rejected() {
        let terms = |data: &'static [u8]| Terms {
            outbound_reads: 3,
            inbound_reads: 0xfffe,
            private_data: Bytes::from_static(data),
        };
        let packets = [
            Packet::Hello(terms(b"")),
            Packet::Accept(terms(&[7; PRIVATE_DATA_MAX])),
            Packet::Reject,
            Packet::Slab { number: 9, bytes: 1 << 40 },
            Packet::Bell,
            Packet::Forget { number: 1 << 30 },
            Packet::File { number: 1 << 60 },
        ];
        for packet in packets {
            let bytes = packet.encode();
            assert!(bytes.len() < PACKET_MAX);
            assert_eq!(Packet::parse(&bytes), Some(packet.clone()));
            for len in 0..bytes.len() {
                assert_ne!(Packet::parse(&bytes[..len]), Some(packet.clone()));
            }
            if !matches!(packet, Packet::Hello(_)) {
                assert_eq!(Packet::parse(&[&bytes[..], b"x"].concat()), None);
            }
        }
        assert_eq!(Packet::parse(b"SLIPSHM2\x03"), None);
    }
}
