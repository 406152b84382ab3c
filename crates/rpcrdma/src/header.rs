//! The RPC-over-RDMA version 1 header.
//!
//! Read RFC 8166 §4. On the wire:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..4 | `rdma_xid` | the XID of the RPC message |
//! | 4..8 | `rdma_vers` | 1 |
//! | 8..12 | `rdma_credit` | requested in a call, granted in a reply |
//! | 12..16 | `rdma_proc` | 0 MSG, 1 NOMSG, 2 MSGP, 3 DONE, 4 ERROR |
//! | 16.. | MSG, NOMSG | the [`Lists`], then for MSG the RPC message |
//! | 16.. | ERROR | 1 and the supported versions, or 2 |
//!
//! On error, a [`HeaderError`] determines the reply to the sender.

use rpc::Xid;
use xdr::{Decode, DecodeError, DecodeErrorKind, Decoder, Encode, Encoder};

use crate::chunk::Lists;

/// A transport header. After [`Body::Msg`], the RPC message follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The XID of the RPC message.
    pub xid: Xid,
    /// The number of outstanding calls that the sender requests (call), or grants to the receiver (reply).
    pub credits: u32,
    /// The procedure and its data.
    pub body: Body,
}

/// The content of a message (RFC 8166 §4.2.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// RDMA_MSG: the RPC message without its chunks follows.
    Msg(Lists),
    /// RDMA_NOMSG: the RPC message is in a chunk.
    NoMsg(Lists),
    /// RDMA_DONE: the requester has read the reply from the responder's memory. It is obsolete and ignored (RFC 8166
    /// §4.6.2), except in the Read-Read design, to which it belonged.
    Done,
    /// RDMA_ERROR: the responder could not receive the call, or could not send its reply.
    Error(RdmaError),
}

/// The reason of an RDMA_ERROR (RFC 8166 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaError {
    /// ERR_VERS, with the versions that the sender supports.
    Version {
        /// The lowest version.
        low: u32,
        /// The highest version.
        high: u32,
    },
    /// ERR_CHUNK: the header is invalid, or its chunks are too short or too long.
    Chunk,
}

/// The reason why a header is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The header is too short to have an XID for the reply.
    Short,
    /// The version is not supported; the reply is ERR_VERS (RFC 8166 §4.5.1).
    Version {
        /// The XID of the header.
        xid: Xid,
        /// The version of the header.
        version: u32,
    },
    /// The message is an RDMA_ERROR of an unknown kind, or a truncated one. The receiver discards it (RFC 8166 §4.5).
    UnknownError(DecodeError),
    /// The header is malformed; the reply to a call is ERR_CHUNK (RFC 8166 §4.5.2).
    Malformed {
        /// The XID of the header.
        xid: Xid,
        /// The decoding error.
        error: DecodeError,
    },
}

impl Header {
    /// Decodes a header, and leaves `decoder` at the RPC message.
    ///
    /// # Errors
    /// The header is too short, malformed, or of another version.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self, HeaderError> {
        let mut word = || decoder.u32().map_err(|_| HeaderError::Short);
        let (xid, version, credits, procedure) = (Xid(word()?), word()?, word()?, word()?);
        if version != VERSION {
            return Err(HeaderError::Version { xid, version });
        }
        let body = Body::decode(procedure, decoder).map_err(|error| match procedure {
            RDMA_ERROR => HeaderError::UnknownError(error),
            _ => HeaderError::Malformed { xid, error },
        })?;
        Ok(Self { xid, credits, body })
    }

    /// Returns the length in bytes of the wire form.
    pub fn wire_len(&self) -> usize {
        FIXED_LEN
            + match &self.body {
                Body::Msg(lists) | Body::NoMsg(lists) => lists.wire_len(),
                Body::Done => 0,
                Body::Error(RdmaError::Version { .. }) => 12,
                Body::Error(RdmaError::Chunk) => 4,
            }
    }
}

impl Body {
    fn decode(procedure: u32, decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let unknown = |value| decoder.error(DecodeErrorKind::BadDiscriminant(value));
        match procedure {
            RDMA_MSG => Lists::decode(decoder).map(Body::Msg),
            RDMA_NOMSG => Lists::decode(decoder).map(Body::NoMsg),
            RDMA_DONE => Ok(Body::Done),
            RDMA_ERROR => match decoder.u32()? {
                ERR_VERS => Ok(Body::Error(RdmaError::Version { low: decoder.u32()?, high: decoder.u32()? })),
                ERR_CHUNK => Ok(Body::Error(RdmaError::Chunk)),
                other => Err(decoder.error(DecodeErrorKind::BadDiscriminant(other))),
            },
            // This includes RDMA_MSGP: no implementation that sends it is known, and RFC 8166 §4.6.1 withdraws it.
            other => Err(unknown(other)),
        }
    }
}

impl Encode for Header {
    fn encode(&self, encoder: &mut Encoder) {
        if let Body::Msg(lists) = &self.body
            && lists.is_empty()
        {
            // Most headers have no chunks; they are encoded as one piece.
            let words = [self.xid.0, VERSION, self.credits, RDMA_MSG, 0, 0, 0].map(u32::to_be_bytes);
            return encoder.raw(words.as_flattened());
        }
        let procedure = match &self.body {
            Body::Msg(_) => RDMA_MSG,
            Body::NoMsg(_) => RDMA_NOMSG,
            Body::Done => RDMA_DONE,
            Body::Error(_) => RDMA_ERROR,
        };
        //= rfc8166-4-1 rfc8166-4.2.2-1
        [self.xid.0, VERSION, self.credits, procedure].into_iter().for_each(|word| encoder.u32(word));
        match &self.body {
            Body::Msg(lists) | Body::NoMsg(lists) => lists.encode(encoder),
            Body::Done => {}
            Body::Error(RdmaError::Version { low, high }) => {
                [ERR_VERS, *low, *high].into_iter().for_each(|word| encoder.u32(word));
            }
            Body::Error(RdmaError::Chunk) => encoder.u32(ERR_CHUNK),
        }
    }
}

impl std::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HeaderError::Short => write!(f, "the message is shorter than any header"),
            HeaderError::Version { version, .. } => write!(f, "unsupported RPC-over-RDMA version {version}"),
            HeaderError::UnknownError(error) => write!(f, "malformed RDMA_ERROR: {error}"),
            HeaderError::Malformed { error, .. } => write!(f, "malformed header: {error}"),
        }
    }
}

/// The version of the protocol.
pub const VERSION: u32 = 1;
/// Length in bytes of a header before its body.
pub const FIXED_LEN: usize = 16;
/// Length in bytes of the header of a message without chunks.
pub const PLAIN_LEN: usize = FIXED_LEN + 12;

const RDMA_MSG: u32 = 0;
const RDMA_NOMSG: u32 = 1;
const RDMA_DONE: u32 = 3;
const RDMA_ERROR: u32 = 4;
const ERR_VERS: u32 = 1;
const ERR_CHUNK: u32 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rdma::Stag;
    use xdr::Message;

    use super::*;
    use crate::chunk::{Chunk, SEGMENTS_MAX, Segment, WriteList};

    fn decode(bytes: &[u8]) -> Result<(Header, usize), HeaderError> {
        let message = Message::from(bytes::Bytes::copy_from_slice(bytes));
        let mut decoder = Decoder::new(&message);
        Header::decode(&mut decoder).map(|header| (header, decoder.remaining()))
    }

    fn encode(header: &Header) -> Vec<u8> {
        let bytes = Message::encode(header).stream;
        assert_eq!(bytes.len(), header.wire_len());
        bytes.to_vec()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn segment(handle: u32, length: u32, offset: u64) -> Segment {
        Segment { handle: Stag(handle), length, offset }
    }

    /// Decodes a header, and checks that it encodes to the same bytes and that no prefix of it decodes.
    fn canonical(bytes: &[u8]) -> Header {
        let (header, rest) = decode(bytes).unwrap();
        assert_eq!((rest, encode(&header)), (0, bytes.to_vec()));
        //= rfc8166-4-1
        for len in 0..bytes.len() {
            let error = decode(&bytes[..len]).unwrap_err();
            assert_eq!(error == HeaderError::Short, len < FIXED_LEN, "{len}: {error:?}");
        }
        header
    }

    // These headers were exchanged by a Linux 6.1 client and server over siw.

    #[test]
    fn linux_call_without_chunks_is_decoded() {
        let header = canonical(&words(&[0xd444_2701, 1, 128, 0, 0, 0, 0]));
        //= rfc8166-4.2.2-1
        assert_eq!(header, Header { xid: Xid(0xd444_2701), credits: 128, body: Body::Msg(Lists::default()) });
    }

    #[test]
    fn linux_write_call_with_read_chunk_is_decoded() {
        let bytes = words(&[0x6245_2701, 1, 128, 0, 1, 112, 0x252c_6303, 65536, 0x6245_2701, 0x85ce_b000, 0, 0, 0]);
        let Body::Msg(lists) = canonical(&bytes).body else { panic!() };
        let [read] = lists.reads.chunks() else { panic!() };
        //= rfc8166-2.3.2-1
        assert_eq!(read.position, 112);
        assert_eq!(read.chunk.segments(), [segment(0x252c_6303, 65536, 0x6245_2701_85ce_b000)]);
    }

    #[test]
    fn linux_read_reply_with_write_chunk_is_decoded() {
        let bytes = words(&[0x5e45_2701, 1, 64, 0, 0, 1, 1, 0x252c_6302, 8192, 0x5e45_2701, 0x85c2_4000, 0, 0]);
        let Body::Msg(lists) = canonical(&bytes).body else { panic!() };
        assert_eq!(lists.writes.chunks(), [Chunk::new([segment(0x252c_6302, 8192, 0x5e45_2701_85c2_4000)])]);
    }

    #[test]
    fn linux_reply_in_partly_used_reply_chunk_is_decoded() {
        let offered = [
            [0xd, 256, 0xdd44_2701, 0x860d_e000],
            [0xe, 28672, 0xdd44_2701, 0x8510_a000],
            [0xf, 4, 0xdd44_2701, 0x860d_e100],
        ];
        let call = [&[0xdd44_2701, 1, 128, 0, 0, 0, 1, 3][..], offered.as_flattened()].concat();
        let mut used = offered;
        (used[0][1], used[1][1], used[2][1]) = (184, 0, 0);
        let reply = [&[0xdd44_2701, 1, 64, 1, 0, 0, 1, 3][..], used.as_flattened()].concat();
        let Body::Msg(offered) = canonical(&words(&call)).body else { panic!() };
        let Body::NoMsg(returned) = canonical(&words(&reply)).body else { panic!() };
        let (offered, returned) = (offered.reply.unwrap(), returned.reply.unwrap());
        assert_eq!(offered.used(184), returned);
        assert_eq!(offered.used_in(&returned), Some(184));
    }

    #[test]
    fn errors_and_done_are_decoded_and_msgp_is_rejected() {
        let body = |rest: &[u32]| canonical(&words(&[&[1, 1, 8][..], rest].concat())).body;
        assert_eq!(body(&[4, 1, 1, 2]), Body::Error(RdmaError::Version { low: 1, high: 2 }));
        assert_eq!(body(&[4, 2]), Body::Error(RdmaError::Chunk));
        assert_eq!(decode(&words(&[1, 1, 8, 3])).unwrap().0.body, Body::Done);
        let error = decode(&words(&[7, 1, 8, 4, 3])).unwrap_err();
        assert!(matches!(error, HeaderError::UnknownError(_)), "{error:?}");
        for rest in [&[2, 0, 0, 0, 0, 0][..], &[5]] {
            let error = decode(&words(&[&[7, 1, 8][..], rest].concat())).unwrap_err();
            assert!(matches!(error, HeaderError::Malformed { xid: Xid(7), .. }));
        }
        let error = decode(&words(&[7, 2, 8, 0, 0, 0, 0])).unwrap_err();
        assert_eq!(error, HeaderError::Version { xid: Xid(7), version: 2 });
    }

    #[test]
    fn read_segments_with_the_same_position_form_one_chunk() {
        let entry = |position: u32, handle: u32| [1, position, handle, 16, 0, 64];
        let list = [entry(40, 1), entry(8, 2), entry(40, 3)];
        let bytes = words(&[&[1, 1, 1, 0][..], list.as_flattened(), &[0, 0, 0]].concat());
        let Body::Msg(lists) = decode(&bytes).unwrap().0.body else { panic!() };
        let found: Vec<_> = lists.reads.chunks().iter().map(|read| (read.position, read.chunk.len())).collect();
        assert_eq!(found, [(8, 16), (40, 32)]);
        let handles: Vec<_> = lists.reads.chunks()[1].chunk.segments().iter().map(|s| s.handle.0).collect();
        assert_eq!(handles, [1, 3]);
    }

    #[test]
    fn lists_out_of_bounds_are_rejected_before_allocation() {
        let malformed = |rest: &[u32]| {
            let error = decode(&words(&[&[9, 1, 1, 0][..], rest].concat())).unwrap_err();
            assert!(matches!(error, HeaderError::Malformed { xid: Xid(9), .. }), "{error:?}");
        };
        malformed(&[0, 1, u32::MAX]); // a write chunk of four billion segments
        malformed(&[0, 0, 1, SEGMENTS_MAX as u32 + 1]);
        malformed(&[2, 0, 0]); // a boolean of two
        malformed(&[1, 8, 1, 16, u32::MAX, u32::MAX - 3, 0, 0, 0]); // beyond the address space
        malformed(&[0, 1, 2, 1, u32::MAX, 0, 0, 2, 1, 0, 0, 0, 0]); // 4 GiB in one chunk
        let read = |position: u32| [1, position, 1, 4, 0, 0];
        //= rfc8166-3.4.5-2
        malformed(&[read(6).as_slice(), &[0, 0, 0]].concat());
        let many: Vec<_> = (0..17).map(|i| read(8 * i)).collect();
        malformed(&[many.as_flattened(), &[0, 0, 0]].concat());
        let many = vec![read(8); SEGMENTS_MAX + 1];
        malformed(&[many.as_flattened(), &[0, 0, 0]].concat());
        malformed(&[&[0][..], [[1, 0]; 17].as_flattened(), &[0, 0]].concat());
    }

    #[test]
    fn empty_segments_are_kept_and_hold_no_bytes() {
        let chunk = Chunk::new([segment(1, 0, 5), segment(2, 8, 0), segment(3, 0, 0), segment(4, 8, 0)]);
        let parts: Vec<_> = chunk.parts().map(|(at, segment)| (at, segment.handle.0)).collect();
        assert_eq!((chunk.len(), parts), (16, vec![(0, 2), (8, 4)]));
        let used: Vec<_> = chunk.used(9).segments().iter().map(|segment| segment.length).collect();
        assert_eq!(used, [0, 8, 0, 1]);
        assert_eq!(chunk.used_in(&chunk.used(9)), Some(9));
        let other = Chunk::new([segment(1, 0, 5), segment(2, 7, 0), segment(3, 0, 0), segment(4, 2, 0)]);
        assert_eq!(chunk.used_in(&other), None, "a chunk with a gap must be rejected");
    }

    fn any_segment() -> impl Strategy<Value = Segment> {
        (any::<u32>(), 0..1u32 << 20, 0..u64::MAX / 2)
            .prop_map(|(handle, length, offset)| segment(handle, length, offset))
    }

    fn any_chunk() -> impl Strategy<Value = Chunk> {
        prop::collection::vec(any_segment(), 0..5).prop_map(Chunk::new)
    }

    fn any_lists() -> impl Strategy<Value = Lists> {
        let reads = prop::collection::vec((0..1000u32, any_segment()), 0..6);
        let writes = prop::collection::vec(any_chunk(), 0..4);
        (reads, writes, prop::option::of(any_chunk())).prop_map(|(segments, writes, reply)| {
            let mut lists = Lists { writes: WriteList::new(writes), reply, ..Lists::default() };
            for (position, segment) in segments {
                lists.reads.push(position * 4, segment).unwrap();
            }
            lists
        })
    }

    proptest! {
        #[test]
        fn headers_round_trip_and_prefixes_are_rejected(
            xid: u32, credits: u32, lists in any_lists(), inline: bool
        ) {
            let body = if inline { Body::Msg(lists) } else { Body::NoMsg(lists) };
            let header = Header { xid: Xid(xid), credits, body };
            prop_assert_eq!(canonical(&encode(&header)), header);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode(&[&words(&[1, 1, 1, u32::from(bytes.first().is_some_and(|b| b & 1 > 0))]), &bytes[..]].concat());
        }
    }
}
