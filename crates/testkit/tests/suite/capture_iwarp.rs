//! Tests that the iWARP layers decode the traffic of Linux siw and encode it to the same bytes.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use rdma::{
    Memory,
    iwarp::{
        ddp::Header,
        harness::StreamHarness,
        mpa,
        rdmap::{Opcode, READ_REQUEST_LEN, ReadRequest},
    },
};
use testkit::{
    capture::{self, Frame, FrameKind},
    pcap,
};

const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/data/siw-v3.pcap.gz");

fn conversations() -> Vec<Vec<Frame>> {
    let conversations = pcap::read(CAPTURE).unwrap();
    conversations.iter().filter(|talk| talk.server.port() == 20049).map(capture::frames).collect()
}

#[test]
fn every_frame_of_linux_siw_encodes_to_the_same_bytes() {
    let mut seen = BTreeMap::new();
    for frame in conversations().iter().flatten() {
        let encoded = match &frame.kind {
            FrameKind::Handshake(handshake) => handshake.encode(),
            FrameKind::Segment { opcode, header, payload } => {
                *seen.entry(*opcode as u8).or_insert(0) += 1;
                assert_eq!(opcode.ulp(), header.ulp());
                let mut out = BytesMut::new();
                let len = header.encoded_len() + payload.len();
                out.put_u16(len as u16);
                header.encode(&mut out);
                match opcode {
                    Opcode::ReadRequest => {
                        let request: &[u8; READ_REQUEST_LEN] = payload[..].try_into().unwrap();
                        ReadRequest::parse(request).encode(&mut out);
                    }
                    _ => out.put_slice(payload),
                }
                out.put_bytes(0, mpa::pad_len(len));
                // CRCs were not negotiated.
                out.put_slice(&mpa::crc_field(0));
                out.freeze()
            }
        };
        assert_eq!(encoded, frame.bytes);
    }
    for opcode in [Opcode::Write, Opcode::ReadRequest, Opcode::ReadResponse, Opcode::Send, Opcode::SendInvalidate] {
        assert!(seen.contains_key(&(opcode as u8)), "no {opcode:?} in the capture");
    }
}

#[test]
fn messages_of_a_conversation_are_complete() {
    for frames in conversations() {
        let messages = capture::messages(&frames);
        assert!(messages.len() > 100);
        // Every read must be answered with the requested number of bytes.
        let mut asked = Vec::new();
        for message in &messages {
            match message.opcode {
                Opcode::ReadRequest => asked.push(ReadRequest::parse(message.payload[..].try_into().unwrap()).size),
                Opcode::ReadResponse => assert_eq!(asked.remove(0) as usize, message.payload.len()),
                _ => {}
            }
        }
        assert!(asked.is_empty());
    }
}

/// Feeds the Sends of the server to the client's receiver. All other messages are omitted, because they name regions
/// that the test does not have.
#[test]
fn the_receiver_accepts_the_sends_of_linux() {
    for frames in conversations() {
        for from_client in [false, true] {
            let mut stream = BytesMut::new();
            let mut sends = 0;
            for frame in frames.iter().filter(|frame| frame.from_client == from_client) {
                let FrameKind::Segment { opcode, header, payload } = &frame.kind else { continue };
                if !matches!(header, Header::Untagged { queue: 0, .. }) {
                    continue;
                }
                sends += usize::from(header.last());
                // This test does not have the region to invalidate, so the message becomes a plain Send.
                let mut header = *header;
                if opcode.invalidates()
                    && let Header::Untagged { ulp, .. } = &mut header
                {
                    *ulp = Opcode::Send.ulp();
                }
                let len = header.encoded_len() + payload.len();
                stream.put_u16(len as u16);
                header.encode(&mut stream);
                stream.put_slice(payload);
                stream.put_bytes(0, mpa::pad_len(len) + mpa::CRC_LEN);
            }
            for (step, direct) in [(1, false), (7, true), (1460, true), (1 << 20, false)] {
                let mut receiver = StreamHarness::new(false, 16, sends);
                receiver.register(Memory::Read(Bytes::from_static(b"unused").into())).unwrap();
                assert_eq!(receiver.feed(&stream, step, direct), Ok(()));
                assert_eq!(receiver.received(), sends);
            }
        }
    }
}
