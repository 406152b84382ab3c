//! Parses the iWARP messages of a captured conversation.
//!
//! Tests compare the upper layers with the messages of real peers: the payload of every Send, RDMA Write, RDMA Read
//! Request and Response, in order.

use bytes::Bytes;
use rdma::iwarp::{
    ddp,
    mpa::{self, Handshake},
    rdmap::Opcode,
};

use crate::pcap::Conversation;

/// One frame of the stream.
#[derive(Debug)]
pub struct Frame {
    /// `true` if the client sent it.
    pub from_client: bool,
    /// The type, with the parsed content.
    pub kind: FrameKind,
    /// Its bytes.
    pub bytes: Bytes,
}

/// The type of a frame.
#[derive(Debug)]
pub enum FrameKind {
    /// One of the first two frames.
    Handshake(Handshake),
    /// One of the other frames.
    Segment {
        /// The operation.
        opcode: Opcode,
        /// The DDP header.
        header: ddp::Header,
        /// The payload.
        payload: Bytes,
    },
}

/// A complete message, with its segments joined.
#[derive(Debug)]
pub struct Message {
    /// `true` if the client sent it.
    pub from_client: bool,
    /// The operation.
    pub opcode: Opcode,
    /// The header of its first segment.
    pub header: ddp::Header,
    /// The payload.
    pub payload: Bytes,
}

/// Returns every frame of `conversation`, in the order in which their last bytes arrived.
///
/// # Panics
/// The bytes are not iWARP: the test fails.
pub fn frames(conversation: &Conversation) -> Vec<Frame> {
    let mut waiting = [Vec::new(), Vec::new()];
    let mut greeted = [false; 2];
    let mut out = Vec::new();
    for part in &conversation.parts {
        let side = usize::from(part.from_client);
        waiting[side].extend(&part.bytes);
        loop {
            let bytes = Bytes::copy_from_slice(&waiting[side]);
            let parsed = if greeted[side] { segment(&bytes) } else { handshake(&bytes, !part.from_client) };
            let Some((kind, len)) = parsed else { break };
            greeted[side] = true;
            waiting[side].drain(..len);
            out.push(Frame { from_client: part.from_client, kind, bytes: bytes.slice(..len) });
        }
    }
    assert!(waiting.iter().all(Vec::is_empty), "the capture must not end inside a frame");
    out
}

/// Returns the messages of `frames`, in the order in which they ended.
///
/// # Panics
/// The segments are not consecutive: the test fails.
pub fn messages(frames: &[Frame]) -> Vec<Message> {
    // Each side can have one tagged and one untagged message in progress.
    let mut open: [Option<Message>; 4] = [const { None }; 4];
    let mut out = Vec::new();
    for frame in frames {
        let FrameKind::Segment { opcode, header, payload } = &frame.kind else { continue };
        let tagged = matches!(header, ddp::Header::Tagged { .. });
        let slot = &mut open[usize::from(frame.from_client) * 2 + usize::from(tagged)];
        let message = match slot.take() {
            None => {
                Message { from_client: frame.from_client, opcode: *opcode, header: *header, payload: payload.clone() }
            }
            Some(mut message) => {
                assert_eq!(message.opcode, *opcode, "a message must not begin inside another");
                message.payload = [message.payload, payload.clone()].concat().into();
                message
            }
        };
        if header.last() {
            out.push(message);
        } else {
            *slot = Some(message);
        }
    }
    assert!(open.iter().all(Option::is_none), "the capture must not end inside a message");
    out
}

fn handshake(bytes: &[u8], reply: bool) -> Option<(FrameKind, usize)> {
    let (frame, len) = Handshake::parse(bytes, reply).expect("frame must be a handshake")?;
    Some((FrameKind::Handshake(frame), len))
}

fn segment(bytes: &Bytes) -> Option<(FrameKind, usize)> {
    let len = usize::from(u16::from_be_bytes(*bytes.first_chunk()?));
    let whole = bytes.get(..mpa::fpdu_len(len))?.len();
    let ulpdu = bytes.slice(mpa::LENGTH_LEN..mpa::LENGTH_LEN + len);
    let header = ddp::Header::parse(&ulpdu).expect("DDP version must be 1").expect("header must be complete");
    let opcode = Opcode::parse(header.ulp()).expect("operation must be known");
    Some((FrameKind::Segment { opcode, header, payload: ulpdu.slice(header.encoded_len()..) }, whole))
}
