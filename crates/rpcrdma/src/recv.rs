//! What arrives: a header and perhaps a message, to be turned into a call, a reply, or an error.
//!
//! Read RFC 8166 §3.4.4–§3.4.5 (how a call is put together from its parts) and §4.5 (errors).
//!
//! A receive's buffer becomes the message's memory: no byte is copied, and a fresh buffer takes its place in the
//! receive queue, unless that is shared and needs none. On error the caller hears ERR_VERS or ERR_CHUNK; a message too short to answer, or calls
//! beyond the credits, end the connection.

use std::time::Instant;

use buf::{Buffer, Piece, Rope};
use bytes::{Bytes, BytesMut};
use rpc::{ReplyToken, Xid};
use smallvec::SmallVec;
use xdr::{Decoder, Message, PlacedPayload};

use crate::{
    Connection, Event, Role,
    chunk::{Chunk, Lists, ReadChunk, ReadList},
    header::{Body, Header, HeaderError},
    rw::Pull,
    table::Key,
};

/// A call that we are to answer.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub xid: Xid,
    /// Credits that it asked for.
    pub credits: u32,
    pub lists: Lists,
    pub stage: Stage,
}

#[derive(Debug)]
pub(crate) enum Stage {
    /// Its chunks are being read, or wait to be.
    Pull(Pull),
    /// It has been handed up.
    InService,
}

impl Incoming {
    pub(crate) fn is_pulling(&self) -> bool {
        matches!(self.stage, Stage::Pull(_))
    }
}

impl Connection {
    /// A message has arrived.
    pub(crate) fn handle_receive(&mut self, buffer: Buffer, now: Instant) {
        if self.receive_source.is_none() {
            self.post_receive();
        }
        let message = Message::from(buffer.freeze());
        let mut decoder = Decoder::new(&message);
        let header = match Header::decode(&mut decoder) {
            Ok(header) => header,
            Err(HeaderError::Short) => return self.fail_protocol(HeaderError::Short.to_string()),
            Err(error) => return self.refuse_header(&error),
        };
        let Header { xid, credits, body } = header;
        match body {
            Body::Msg(lists) => {
                let stream = decoder.take_rest();
                match Direction::of(&stream, xid) {
                    Some(Direction::Call) => self.handle_call(xid, credits, lists, Some(stream)),
                    Some(Direction::Reply) => self.handle_reply(xid, credits, lists, Some(stream), now),
                    // RFC 8166 §4.5.2: an XID in the header that is not the message's is such an error.
                    None => self.refuse_new(xid, credits),
                }
            }
            Body::NoMsg(lists) if self.by_xid.contains_key(&xid) && self.may_be_long_reply(&lists) => {
                self.handle_reply(xid, credits, lists, None, now);
            }
            Body::NoMsg(lists) if decoder.remaining() == 0 => self.handle_call(xid, credits, lists, None),
            Body::NoMsg(_) => self.refuse_new(xid, credits),
            Body::Done => self.handle_done(xid),
            Body::Error(error) => self.handle_error(xid, credits, error),
        }
    }

    /// A call whose chunks have all been read.
    pub(crate) fn handle_pulled(&mut self, key: Key) {
        let incoming = self.incoming.get_mut(key).expect("a pull is of a call that stands");
        let Stage::Pull(pull) = std::mem::replace(&mut incoming.stage, Stage::InService) else {
            unreachable!("a call is pulled once")
        };
        let (xid, credits) = (incoming.xid, incoming.credits);
        let message = assemble(pull, &incoming.lists.reads);
        match Direction::of(&message.stream, xid) {
            Some(Direction::Call) => self.hand_up(key, xid, message),
            _ => {
                self.incoming.remove(key);
                self.refuse(xid, credits);
            }
        }
    }

    fn handle_call(&mut self, xid: Xid, credits: u32, lists: Lists, stream: Option<Bytes>) {
        // RFC 8166 §3.3.1: whoever sends more than it was granted may lose the connection.
        if !self.grants.receive() {
            return self.fail_protocol("more calls than it has credits for");
        }
        // RFC 8167 §5.3: whoever takes no chunks answers them with ERR_CHUNK; only the connecting side offers any.
        let chunks_allowed = self.settings.role == Role::Accepting || lists.is_empty();
        if !chunks_allowed || !reads_make_sense(&lists.reads, stream.as_ref(), self.settings.options.message_max) {
            return self.refuse(xid, credits);
        }
        if lists.reads.is_empty() {
            let message = Message::from(stream.expect("a message without read chunks is inline"));
            let key = self.incoming.insert(Incoming { xid, credits, lists, stage: Stage::InService });
            return self.hand_up(key, xid, message);
        }
        let stage = Stage::Pull(Pull::new(stream, &lists.reads));
        let key = self.incoming.insert(Incoming { xid, credits, lists, stage });
        self.to_pull.push_back(key);
    }

    /// A call's message is in a read chunk, a reply's in the reply chunk, or in a read chunk where we read replies.
    fn may_be_long_reply(&self, lists: &Lists) -> bool {
        lists.reads.is_empty() || self.settings.fetches_replies()
    }

    fn hand_up(&mut self, key: Key, xid: Xid, message: Message) {
        self.events.push_back(Event::Call { message, token: ReplyToken { xid, call: key.to_bits() } });
    }

    /// Answers a header that cannot be used.
    fn refuse_header(&mut self, error: &HeaderError) {
        tracing::debug!(%error, "refusing a message");
        match *error {
            HeaderError::Short => unreachable!("there is nobody to answer"),
            HeaderError::Version { xid, version } => {
                // It is answered at once, which gives its credit back.
                let _ = self.grants.receive();
                self.send_version_error(xid, version);
            }
            HeaderError::Malformed { xid, .. } => self.refuse_new(xid, 0),
        }
    }

    /// Refuses what was not yet counted as a call.
    fn refuse_new(&mut self, xid: Xid, credits: u32) {
        let _ = self.grants.receive();
        self.refuse(xid, credits);
    }

    /// Says ERR_CHUNK to whoever called. Only a responder does (RFC 8166 §4.5): what makes no sense as the answer to
    /// a call of ours means that the peer is not to be trusted with it.
    fn refuse(&mut self, xid: Xid, credits: u32) {
        match self.by_xid.contains_key(&xid) {
            true => self.fail_protocol("a reply that makes no sense"),
            false => self.send_chunk_error(xid, credits),
        }
    }
}

/// The XID of an RPC message.
pub(crate) fn xid_of(stream: &[u8]) -> Option<Xid> {
    stream.first_chunk().map(|&xid| Xid(u32::from_be_bytes(xid)))
}

/// Whether `stream` begins as the reply to this call.
pub(crate) fn is_reply_to(stream: &[u8], xid: Xid) -> bool {
    matches!(Direction::of(stream, xid), Some(Direction::Reply))
}

enum Direction {
    Call,
    Reply,
}

impl Direction {
    /// Which way a message goes (RFC 5531 §9), if it is one and has this XID.
    fn of(stream: &[u8], xid: Xid) -> Option<Self> {
        let direction = u32::from_be_bytes(*stream.get(4..)?.first_chunk()?);
        match direction {
            _ if xid_of(stream) != Some(xid) => None,
            0 => Some(Direction::Call),
            1 => Some(Direction::Reply),
            _ => None,
        }
    }
}

/// Whether the chunks, put where they say, make up a message: none inside another, none beyond the end, the stream
/// in exactly one place, and nothing longer than we take.
pub(crate) fn reads_make_sense(reads: &ReadList, inline: Option<&Bytes>, message_max: usize) -> bool {
    let (stream, items) = reads.split_stream();
    let stream_len = match (inline, stream) {
        (Some(inline), None) => inline.len(),
        (None, Some(chunk)) => chunk.len(),
        _ => return false,
    };
    if inline.map_or(0, Bytes::len) + reads.total() > message_max {
        return false;
    }
    let (mut end, mut reduced) = (0, 0);
    items.iter().all(|ReadChunk { position, chunk }| {
        let position = *position as usize;
        // RFC 8166 §3.4.5: positions count the unreduced stream.
        let fits = position >= end && position - reduced <= stream_len;
        reduced += chunk.len().next_multiple_of(4);
        end = position + chunk.len().next_multiple_of(4);
        fits
    })
}

/// Puts the parts of a message together.
pub(crate) fn assemble(pull: Pull, reads: &ReadList) -> Message {
    let (stream_chunk, items) = reads.split_stream();
    let (inline, mut parts) = pull.into_parts();
    let mut take = |chunk: &Chunk| -> SmallVec<[Piece; 1]> { parts.by_ref().take(chunk.parts().count()).collect() };
    let stream = match stream_chunk {
        None => inline.expect("checked by reads_make_sense"),
        Some(chunk) => join(take(chunk)),
    };
    let mut message = Message::from(stream);
    let mut reduced = 0;
    for ReadChunk { position, chunk } in items.iter().filter(|item| !item.chunk.is_empty()) {
        let mut data = Rope::new();
        take(chunk).into_iter().for_each(|piece| data.push(piece));
        let len = without_padding(&message.stream, *position as usize - reduced, data.len());
        reduced += data.len().next_multiple_of(4);
        message.payloads.push(PlacedPayload { position: Some(*position), data: data.slice(0, len) });
    }
    message
}

/// RFC 8166 §3.4.5.2: a requester may include an item's XDR padding in its chunk. The item's length, in the stream
/// before it, tells.
pub(crate) fn without_padding(stream: &Bytes, at: usize, len: usize) -> usize {
    let word = at.checked_sub(4).and_then(|start| stream.get(start..)?.first_chunk());
    match word.map(|&word| u32::from_be_bytes(word) as usize) {
        Some(item) if item < len && item.next_multiple_of(4) == len => item,
        _ => len,
    }
}

/// A stream, which has been read and so is memory.
fn join(parts: SmallVec<[Piece; 1]>) -> Bytes {
    let parts: SmallVec<[Bytes; 1]> =
        parts.into_iter().map(|part| part.into_memory().expect("it is memory already")).collect();
    if let [part] = &parts[..] {
        return part.clone();
    }
    let mut joined = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| joined.extend_from_slice(part));
    joined.freeze()
}
