//! ONC RPC: messages to a server, and record marking.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use buf::{Buffer, Pool};
use bytes::Bytes;
use parking_lot::Mutex;
use rpc::{
    Answering, BoxFuture, Call, CallError, CallHeader, CallsMade, Drain, Identity, IncomingCall, Procedure, Reply,
    ReplyHeader, ReplyPlan, ReplyToken, Server, Service, Transport, TransportCaps, TransportError, Xid,
    record::{Place, Placement, RecordReader, STAGE_BYTES},
    rpcbind::{Registry, Rpcbind},
};
use xdr::{Decode, Decoder, Encode, Encoder, Located, Message};

/// A message to a server that has rpcbind and a program with one non-idempotent procedure. The message arrives twice. A
/// valid header must encode to the same bytes. Each call that can be answered is answered, with its own XID.
pub fn rpc_message(data: &[u8]) {
    let message = Message::from(Bytes::copy_from_slice(data));
    let mut decoder = Decoder::new(&message);
    let header = CallHeader::decode(&mut decoder);
    if let Ok(header) = &header {
        let len = data.len() - decoder.remaining();
        assert_eq!(Message::encode(header).stream, data[..len], "the encoding must be canonical");
        assert_eq!(data[..header.signed_len()], Message::encode(header).stream[..header.signed_len()]);
        if let Ok(Identity::Sys(sys)) = Identity::plain(&header.credential, &header.verifier) {
            assert_eq!(sys.to_opaque(), header.credential);
        }
    }
    let mut decoder = Decoder::new(&message);
    if let Ok(reply) = ReplyHeader::decode(&mut decoder) {
        let len = data.len() - decoder.remaining();
        assert_eq!(Message::encode(&reply).stream, data[..len], "the encoding must be canonical");
    }

    let count = Arc::new(Mutex::new(0));
    let server = Server::builder().service(Rpcbind::new(Registry::default())).service(Count(count.clone())).build();
    let script = Arc::new(Script::new([message.clone(), message]));
    let mut serving = pin!(server.serve(script.clone(), Drain::never()));
    let ended = serving.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(ended.is_ready(), "the server must not wait");
    let replies = std::mem::take(&mut *script.replies.lock());
    let answered = if header.as_ref().is_err_and(|error| error.reply().is_none()) { 0 } else { 2 };
    assert_eq!(replies.len(), answered);
    for reply in &replies {
        let mut decoder = Decoder::new(reply);
        let read = ReplyHeader::decode(&mut decoder).expect("our own replies must decode");
        assert_eq!(read.xid.0.to_be_bytes(), data[..4]);
    }
    assert!(*count.lock() <= 1, "the second call must be a duplicate");
}

/// The bytes of a peer's stream. The first byte of the input says in which pieces they arrive, the second whether
/// payloads are placed. At the end, the stream is cut. Every complete record must be returned unchanged, up to the
/// first one that is too long.
pub fn record_marking(data: &[u8]) {
    let [how, placed, wire @ ..] = data else { return };
    let step = [1, 3, 64, 1460, 4096, 10_000, usize::MAX, 517][usize::from(how & 7)];
    let mut place = PlacedReply { enabled: placed & 1 != 0 };
    let mut reader = RecordReader::new(RECORD_MAX, Pool::default());
    let (mut stage, mut got, mut rest) = (Vec::new(), Vec::new(), wire);
    let refused = 'stream: loop {
        loop {
            match reader.advance(&stage, &mut place) {
                Err(_) => break 'stream true,
                Ok((taken, record)) => {
                    stage.drain(..taken);
                    let Some(record) = record else { break };
                    got.push(record.message.to_rope().to_bytes().expect("record must be in memory"));
                }
            }
        }
        if rest.is_empty() {
            break false;
        }
        let ahead = reader.ahead(stage.len());
        let direct = reader.direct();
        assert!(direct.is_empty() || stage.is_empty(), "bytes must be read in order");
        assert!(direct.len() + ahead > 0 && stage.len() < STAGE_BYTES);
        let (now, later) = rest.split_at(rest.len().min(step).min(direct.len() + ahead));
        let (first, second) = now.split_at(now.len().min(direct.len()));
        direct[..first.len()].copy_from_slice(first);
        reader.direct_filled(first.len());
        stage.extend_from_slice(second);
        rest = later;
    };
    let _ = reader.abandon();
    let (expected, too_long) = split(wire);
    assert_eq!(refused, too_long);
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(&expected) {
        assert!(same(got, expected), "a record must be returned unchanged");
    }
}

/// The padding of a placed payload is not kept, and is sent as zeros.
fn same(got: &[u8], expected: &[u8]) -> bool {
    got.len() == expected.len()
        && (got == expected
            || locate(expected).is_some_and(|Located { position, len }| {
                let end = position + len;
                let padded = end.next_multiple_of(4).min(expected.len());
                got[..end] == expected[..end] && got[padded..] == expected[padded..]
            }))
}

/// Splits a stream into records in the simplest way, and says whether one was too long.
fn split(mut wire: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let (mut records, mut record) = (Vec::new(), Vec::new());
    while let Some((mark, rest)) = wire.split_first_chunk() {
        let mark = u32::from_be_bytes(*mark);
        let len = (mark & 0x7fff_ffff) as usize;
        if record.len() + len > RECORD_MAX {
            return (records, true);
        }
        let Some((fragment, rest)) = rest.split_at_checked(len) else { break };
        record.extend_from_slice(fragment);
        if mark >> 31 == 1 {
            records.push(std::mem::take(&mut record));
        }
        wire = rest;
    }
    (records, false)
}

/// A reader that places the payload whose position and length are in the third and fourth word of a reply.
struct PlacedReply {
    enabled: bool,
}

impl Place for PlacedReply {
    fn place(&mut self, _: Xid, prefix: &Bytes, record_len: usize) -> Option<Placement> {
        let located = locate(prefix).filter(|_| self.enabled)?;
        let placement = Placement { sink: Buffer::zeroed(located.len.min(RECORD_MAX)), located };
        placement.fits(prefix.len(), record_len).then_some(placement)
    }
}

fn locate(record: &[u8]) -> Option<Located> {
    let word = |at| Some(u32::from_be_bytes(*record.get(at..)?.first_chunk()?) as usize);
    Some(Located { position: word(8)?, len: word(12)? })
}

/// A service that counts its calls.
pub(super) struct Count(pub Arc<Mutex<u32>>);

impl Service for Count {
    fn program(&self) -> u32 {
        0x2000_0000
    }

    fn versions(&self) -> std::ops::RangeInclusive<u32> {
        1..=3
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<Procedure> {
        (procedure == 1).then_some(Procedure { name: "COUNT", idempotent: false })
    }

    fn call<'a>(&'a self, mut call: Call<'a>) -> Answering<'a> {
        Answering::Pending(Box::pin(async move {
            let text = xdr::Opaque::<64>::decode(&mut call.arguments)?;
            call.arguments.finish()?;
            *self.0.lock() += 1;
            let mut encoder: Encoder = call.encoder();
            text.encode(&mut encoder);
            Ok(encoder.finish())
        }))
    }
}

/// A transport that receives these calls and then loses its connection.
pub(super) struct Script {
    caps: TransportCaps,
    pool: Pool,
    calls: Mutex<VecDeque<Message>>,
    pub replies: Mutex<Vec<Message>>,
}

impl Script {
    pub fn new(calls: impl Into<VecDeque<Message>>) -> Self {
        let caps = TransportCaps { name: "script", message_max: 1 << 20, lossy: false, file_ranges: false, idle: None };
        let calls = Mutex::new(calls.into());
        Self { caps, pool: Pool::default(), calls, replies: Mutex::default() }
    }
}

impl Transport for Script {
    fn caps(&self) -> &TransportCaps {
        &self.caps
    }

    fn peer(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 700).into()
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn call(self: Arc<Self>, _: Message, plan: ReplyPlan) -> BoxFuture<'static, Result<Reply, CallError>> {
        Box::pin(async { Err(CallError { error: TransportError::Lost("script".into()), sink: plan.sink }) })
    }

    fn poll_recv(&self, _: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        Poll::Ready(match self.calls.lock().pop_front() {
            None => Err(TransportError::Lost("the script has ended".into())),
            Some(message) => {
                let token = ReplyToken { xid: Xid(0), call: 0 };
                Ok(IncomingCall { message, token, peer: self.peer() })
            }
        })
    }

    fn reply(&self, _: ReplyToken, message: Message) -> Result<(), TransportError> {
        self.replies.lock().push(message);
        Ok(())
    }

    fn calls_made(&self) -> CallsMade {
        CallsMade::default()
    }

    fn close(&self) {}
}

const RECORD_MAX: usize = 100_000;
