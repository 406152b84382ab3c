//! Replies: fitting them to what the caller offered, and errors.
//!
//! Read RFC 8166 §3.4.6 (write chunks), §3.5 (long replies) and §4.5 (errors), RFC 8797 §4.1 (remote invalidation).
//!
//! Payloads go to the write chunks in order; what has no chunk stays in the stream. A stream too long to be sent
//! inline goes to the reply chunk. The RDMA Writes are posted before the Send, and so arrive before it.
//!
//! On error (the caller did not offer enough) the caller hears ERR_CHUNK, and so does ours.

use buf::Rope;
use rpc::{ReplyToken, TransportError, Xid};
use smallvec::SmallVec;
use xdr::Message;

use crate::{
    Connection,
    chunk::{Chunk, Lists, WriteList},
    credits::Grants,
    fit::{Inline, encode_header},
    header::{Body, Header, RdmaError, VERSION},
    recv::{Incoming, Stage},
    table::Key,
};

/// How a reply travels.
struct ReplyFit {
    header: Header,
    /// What goes to which write chunk.
    writes: SmallVec<[(Chunk, Rope); 1]>,
    /// The stream, and the reply chunk if it goes there.
    stream: Inline,
    reply: Option<Chunk>,
}

impl Connection {
    /// Queues the reply to a call.
    ///
    /// # Errors
    /// There is no such call, or the reply does not fit what the caller offered; the caller has been told.
    pub fn reply(&mut self, token: ReplyToken, message: Message) -> Result<(), TransportError> {
        if let Some(error) = self.closed() {
            return Err(error);
        }
        let incoming = self.take_call(&token)?;
        let granted = self.grant(incoming.credits);
        if self.settings.exposes_replies() {
            return self.queue_exposed_reply(&incoming, granted, message);
        }
        match fit_reply(&incoming, message, granted, self.settings.send_max) {
            Ok(fit) => {
                self.grants.reply(granted);
                self.send_reply(&incoming, fit);
                Ok(())
            }
            Err(error) => {
                self.send_chunk_error(incoming.xid, incoming.credits);
                Err(error)
            }
        }
    }

    /// Answers a call with ERR_CHUNK, because its reply cannot be made.
    ///
    /// # Errors
    /// There is no such call.
    pub fn refuse_call(&mut self, token: ReplyToken) -> Result<(), TransportError> {
        let incoming = self.take_call(&token)?;
        self.send_chunk_error(incoming.xid, incoming.credits);
        Ok(())
    }

    /// Ends a call that is not answered: its caller may call again, or have given up.
    pub fn forget(&mut self, token: &ReplyToken) {
        if self.take_call(token).is_ok() {
            self.grants.forget();
        }
    }

    /// What to grant to the caller that is being answered and asked for `requested`.
    fn grant(&self, requested: u32) -> u32 {
        let most = self.settings.inbound_credits();
        let room = match &self.receive_source {
            None => most,
            // RFC 8166 §3.3.1: as the resources of a shared receive queue allow.
            Some(source) => u32::try_from(source.allowance(self.incoming.len())).unwrap_or(u32::MAX).min(most),
        };
        Grants::clamp(requested, room)
    }

    /// Says ERR_CHUNK (RFC 8166 §4.5.2, §4.5.3).
    pub(crate) fn send_chunk_error(&mut self, xid: Xid, requested: u32) {
        let credits = self.grant(requested);
        self.grants.reply(credits);
        let header = Header { xid, credits, body: Body::Error(RdmaError::Chunk) };
        self.send_error(encode_header(&header).into());
    }

    /// Says ERR_VERS (RFC 8166 §4.5.1), in a header of the version that was asked for.
    pub(crate) fn send_version_error(&mut self, xid: Xid, version: u32) {
        let credits = self.grant(0);
        self.grants.reply(credits);
        let error = RdmaError::Version { low: VERSION, high: VERSION };
        let mut bytes = encode_header(&Header { xid, credits, body: Body::Error(error) }).to_vec();
        bytes[4..8].copy_from_slice(&version.to_be_bytes());
        self.send_error(bytes::Bytes::from(bytes).into());
    }

    fn send_error(&mut self, data: Rope) {
        let bytes = data.len();
        self.post_reply(data, None, bytes, None);
    }

    fn take_call(&mut self, token: &ReplyToken) -> Result<Incoming, TransportError> {
        let key = Key::from_bits(token.call);
        match self.incoming.get(key) {
            Some(Incoming { xid, stage: Stage::InService, .. }) if *xid == token.xid => {}
            _ => return Err(TransportError::Lost("no such call on this connection".into())),
        }
        Ok(self.incoming.remove(key).expect("just seen"))
    }

    fn send_reply(&mut self, incoming: &Incoming, fit: ReplyFit) {
        let mut bytes = fit.stream.len() + fit.header.wire_len();
        for (chunk, data) in fit.writes {
            bytes += data.len();
            self.write_chunk(&chunk, data);
        }
        let inline = match fit.reply {
            None => fit.stream,
            Some(chunk) => {
                self.write_chunk(&chunk, fit.stream.into_rope());
                Inline::none()
            }
        };
        let invalidate = incoming.lists.handle().filter(|_| self.settings.invalidate_peer);
        let data = inline.behind(&fit.header);
        self.post_reply(data, invalidate, bytes, None);
    }
}

fn fit_reply(incoming: &Incoming, message: Message, credits: u32, send_max: usize) -> Result<ReplyFit, TransportError> {
    let offered = &incoming.lists;
    let mut writes = SmallVec::<[(Chunk, Rope); 1]>::new();
    let mut used: SmallVec<[Option<usize>; 4]> = SmallVec::from_elem(None, offered.writes.chunks().len());
    for (payload, (chunk, used)) in message.payloads.iter().zip(offered.writes.chunks().iter().zip(&mut used)) {
        // RFC 8166 §4.3.2.1: the first item that may be placed takes the first chunk, and so on, an empty item too
        // (RFC 8267 §6.4.1). §4.3.2.3: an empty chunk asks for its item inline.
        match payload.data.len() {
            _ if chunk.is_empty() => {}
            len if len > chunk.len() => return Err(TransportError::TooLong { len, max: chunk.len() }),
            len => {
                *used = Some(len);
                writes.push((chunk.clone(), payload.data.clone()));
            }
        }
    }
    let stream = Inline::new(message, |index| used.get(index).is_none_or(Option::is_none));
    let returned = offered.writes.chunks().iter().zip(&used).map(|(chunk, used)| chunk.used(used.unwrap_or(0)));
    let mut lists = Lists { writes: WriteList::new(returned), ..Lists::default() };
    let header = |body| Header { xid: incoming.xid, credits, body };
    let inline_len = header(Body::Done).wire_len() + lists.wire_len() + stream.len();
    if inline_len <= send_max {
        return Ok(ReplyFit { header: header(Body::Msg(lists)), writes, stream, reply: None });
    }
    let room = offered.reply.as_ref().map_or(0, Chunk::len);
    if stream.len() > room {
        return Err(TransportError::TooLong { len: stream.len(), max: room.max(send_max) });
    }
    lists.reply = offered.reply.as_ref().map(|chunk| chunk.used(stream.len()));
    let header = header(Body::NoMsg(lists));
    if header.wire_len() > send_max {
        return Err(TransportError::TooLong { len: header.wire_len(), max: send_max });
    }
    Ok(ReplyFit { header, writes, stream, reply: offered.reply.clone() })
}
