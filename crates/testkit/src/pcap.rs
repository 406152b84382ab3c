//! Reads the TCP conversations of a capture file.
//!
//! Classic pcap files of Ethernet frames with IPv4, compressed by gzip or not, which is the format of the captures
//! under `data/`. Segments are put in order, and retransmitted bytes are dropped.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

/// The bytes of one TCP connection.
#[derive(Debug)]
pub struct Conversation {
    /// The client, which opened the connection.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
    /// The bytes of both directions, in the order in which they arrived.
    pub parts: Vec<Part>,
}

/// Bytes of one direction.
#[derive(Debug)]
pub struct Part {
    /// `true` if the client sent them.
    pub from_client: bool,
    /// The bytes.
    pub bytes: Vec<u8>,
}

struct Segment<'a> {
    source: SocketAddr,
    target: SocketAddr,
    seq: u32,
    syn: bool,
    ack: bool,
    data: &'a [u8],
}

/// The reassembly of one direction.
#[derive(Default)]
struct Half {
    next: Option<u32>,
    early: BTreeMap<u32, Vec<u8>>,
}

impl Conversation {
    /// Returns all bytes of one direction.
    pub fn bytes(&self, from_client: bool) -> Vec<u8> {
        self.parts.iter().filter(|part| part.from_client == from_client).flat_map(|part| part.bytes.clone()).collect()
    }
}

/// Reads the file at `path`.
///
/// # Errors
/// The file cannot be read, or is not such a capture.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<Conversation>> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut plain)?;
        bytes = plain;
    }
    parse(&bytes)
}

/// Parses the content of a file.
///
/// # Errors
/// The bytes are not such a capture.
pub fn parse(mut bytes: &[u8]) -> io::Result<Vec<Conversation>> {
    let header = take(&mut bytes, 24)?;
    if header[..4] != [0xd4, 0xc3, 0xb2, 0xa1] || header[20..24] != [1, 0, 0, 0] {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a little-endian pcap file of Ethernet frames"));
    }
    let mut conversations: Vec<(Conversation, [Half; 2])> = Vec::new();
    while !bytes.is_empty() {
        let record = take(&mut bytes, 16)?;
        let len = u32::from_le_bytes([record[8], record[9], record[10], record[11]]) as usize;
        let Some(segment) = segment(take(&mut bytes, len)?) else { continue };
        if segment.syn && !segment.ack {
            let (client, server) = (segment.source, segment.target);
            conversations.push((Conversation { client, server, parts: Vec::new() }, Default::default()));
        }
        let ends = |conversation: &Conversation| {
            if (conversation.client, conversation.server) == (segment.source, segment.target) {
                Some(true)
            } else {
                ((conversation.server, conversation.client) == (segment.source, segment.target)).then_some(false)
            }
        };
        // The latest connection, because a port can be used again.
        let found = conversations.iter_mut().rev().find_map(|entry| Some((ends(&entry.0)?, entry)));
        if let Some((from_client, (conversation, halves))) = found {
            let new = halves[usize::from(from_client)].add(&segment);
            if !new.is_empty() {
                conversation.parts.push(Part { from_client, bytes: new });
            }
        }
    }
    Ok(conversations.into_iter().map(|(conversation, _)| conversation).collect())
}

impl Half {
    /// Adds a segment. Returns the bytes that are now complete and in order.
    fn add(&mut self, segment: &Segment<'_>) -> Vec<u8> {
        if segment.syn {
            self.next = Some(segment.seq.wrapping_add(1));
            return Vec::new();
        }
        let mut out = Vec::new();
        let Some(next) = self.next else { return out };
        // Relative to the expected number, so that sequence numbers can wrap around.
        let ahead = segment.seq.wrapping_sub(next) as i32;
        if ahead > 0 {
            self.early.insert(segment.seq, segment.data.to_vec());
            return out;
        }
        let seen = ahead.unsigned_abs() as usize;
        out.extend(segment.data.get(seen..).unwrap_or_default());
        self.next = Some(next.wrapping_add(out.len() as u32));
        while let Some(data) = self.next.and_then(|next| self.early.remove(&next)) {
            self.next = self.next.map(|next| next.wrapping_add(data.len() as u32));
            out.extend(data);
        }
        out
    }
}

/// Returns the TCP segment in an Ethernet frame, if there is one.
fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    let ip = frame.get(14..).filter(|_| frame[12..14] == [0x08, 0x00])?;
    let header_len = usize::from(*ip.first()? & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    if *ip.get(9)? != 6 {
        return None;
    }
    let tcp = ip.get(header_len..total)?;
    let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(ip.get(at..at + 4)?).ok()?));
    let port = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
    let flags = *tcp.get(13)?;
    Some(Segment {
        source: (address(12)?, port(0)?).into(),
        target: (address(16)?, port(2)?).into(),
        seq: u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?),
        syn: flags & 0x02 != 0,
        ack: flags & 0x10 != 0,
        data: tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?,
    })
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> io::Result<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len).ok_or(io::ErrorKind::UnexpectedEof)?;
    *bytes = rest;
    Ok(head)
}
