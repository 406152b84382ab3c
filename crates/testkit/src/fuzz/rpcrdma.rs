//! RPC-over-RDMA: headers, and a connection whose peer and queue pair follow the input.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use buf::{Buffer, Pool, PoolOptions};
use bytes::Bytes;
use rdma::{Completion, CompletionKind, Memory, Registered, Stag, Status, WorkId, WorkRequest};
use rpc::{ReplyPlan, ReplyToken, TransportError};
use rpcrdma::{
    CallId, Connection, Design, Event, Options, Registry, Role, Settings, Work,
    header::{Body, Header},
    private_data::PrivateData,
};
use xdr::{Decoder, Encoder, Message};

/// A header. A valid header must have the same meaning after encoding and decoding.
pub fn rpcrdma_header(data: &[u8]) {
    let _ = PrivateData::decode(data);
    let decode = |bytes: Bytes| {
        let message = Message::from(bytes);
        let mut decoder = Decoder::new(&message);
        Header::decode(&mut decoder)
    };
    let Ok(header) = decode(Bytes::copy_from_slice(data)) else { return };
    let encoded = Message::encode(&header).stream;
    assert_eq!(encoded.len(), header.wire_len());
    if let Body::Msg(lists) | Body::NoMsg(lists) = &header.body {
        for chunk in lists.writes.chunks().iter().chain(&lists.reply) {
            let half = chunk.used(chunk.len() / 2);
            assert_eq!(chunk.used_in(&half), Some(chunk.len() / 2));
        }
    }
    assert_eq!(decode(encoded), Ok(header));
}

/// A connection. The first byte of the input selects the side and the options. Commands follow, each a byte and its
/// arguments:
///
/// | command | |
/// |---|---|
/// | 0 | the peer sends: length (2 bytes), bytes |
/// | 1 | the same, and it invalidates the region that was registered last |
/// | 2 | the oldest posted work request completes |
/// | 3 | the oldest incoming call is answered: words, bytes of payload in units of 40 |
/// | 4 | a call is made: XID, words, payload in units of 40, plan in units of 300 and 3000 |
/// | 5 | the caller of our oldest call gives up |
/// | 6 | the oldest incoming call is rejected |
/// | 7 | 31 seconds pass |
/// | 8 | the connection is closed |
///
/// At the end the connection is cut. Then every call must have ended once, and all memory must be released.
pub fn rpcrdma_connection(data: &[u8]) {
    let mut input = Input(data);
    let Some(how) = input.byte() else { return };
    let mut world = World::new(how);
    while let Some(command) = input.byte() {
        match command % 9 {
            op @ (0 | 1) => {
                let len = usize::from(input.byte().unwrap_or(0)) << 8 | usize::from(input.byte().unwrap_or(0));
                world.deliver(input.take(len), op == 1);
            }
            2 => world.complete(Status::Ok),
            3 => world.answer(input.number(), 40 * input.number()),
            4 => world.call(&mut input),
            5 => world.cancel(),
            6 => world.refuse(),
            7 => world.later(),
            _ => world.connection.close(),
        }
        world.pump();
        if world.disconnecting {
            break;
        }
    }
    world.cut();
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self) -> usize {
        usize::from(self.byte().unwrap_or(0))
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

struct World {
    connection: Connection,
    pool: Pool,
    regions: Regions,
    receives: VecDeque<(WorkId, Buffer)>,
    posted: VecDeque<WorkRequest>,
    incoming: VecDeque<ReplyToken>,
    ours: VecDeque<CallId>,
    /// Our calls that have not ended, by their debug form.
    awaited: BTreeSet<String>,
    disconnecting: bool,
    now: Instant,
}

#[derive(Default)]
struct Regions {
    entries: BTreeMap<Stag, Memory>,
    last: u32,
}

impl Registry for Regions {
    fn register(&mut self, memory: Memory) -> Result<Registered, Memory> {
        if self.entries.len() == 20 {
            return Err(memory);
        }
        self.last += 1;
        let region = Registered { stag: Stag(self.last), offset: 0, len: memory.len() as u32 };
        self.entries.insert(region.stag, memory);
        Ok(region)
    }

    fn reclaim(&mut self, stag: Stag) -> Option<Memory> {
        self.entries.remove(&stag)
    }
}

impl World {
    fn new(how: u8) -> Self {
        let options = Options {
            credits: 1 + u32::from(how >> 1 & 3) * 3,
            callback_credits: u32::from(how >> 3 & 1) * 2,
            min_chunk: if how & 0x10 != 0 { 64 } else { 4096 },
            pull_max: 1 << 20,
            design: if how & 0x40 != 0 { Design::ReadRead } else { Design::ReadWrite },
            ..Options::default()
        };
        let role = if how & 1 != 0 { Role::Connecting } else { Role::Accepting };
        let peer = (how & 0x20 != 0).then(|| options.private_data());
        let pool = Pool::new(PoolOptions { slab_bytes: 64 << 10, ..PoolOptions::default() });
        let receives = Connection::initial_receives(&options, &pool).into();
        Self {
            connection: Connection::new(Settings::negotiate(role, options, peer), pool.clone()),
            pool,
            regions: Regions::default(),
            receives,
            posted: VecDeque::new(),
            incoming: VecDeque::new(),
            ours: VecDeque::new(),
            awaited: BTreeSet::new(),
            disconnecting: false,
            now: Instant::now(),
        }
    }

    fn pump(&mut self) {
        while let Some(work) = self.connection.poll_work(&mut self.regions) {
            match work {
                Work::Post(request) => {
                    if let WorkRequest::Send { data, .. } = &request {
                        assert!(data.len() <= self.connection.settings().send_max);
                    }
                    self.posted.push_back(request);
                }
                Work::Receive(id, buffer) => self.receives.push_back((id, buffer)),
                Work::Disconnect => self.disconnecting = true,
            }
        }
        let credits = self.connection.settings().inbound_credits() as usize;
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Call { token, .. } => self.incoming.push_back(token),
                Event::Reply { id, result } => {
                    assert!(self.awaited.remove(&format!("{id:?}")), "a call must end once");
                    if let Err(error) = result {
                        assert!(!matches!(error.error, TransportError::Connect(_)));
                    }
                }
                Event::Closed(_) => self.incoming.clear(),
            }
        }
        assert!(self.incoming.len() <= credits, "there must not be more calls than credits");
    }

    fn handle(&mut self, id: WorkId, status: Status, kind: CompletionKind) {
        self.connection.handle_completion(Completion { id, status, kind }, self.now);
        self.pump();
    }

    fn deliver(&mut self, bytes: &[u8], invalidate: bool) {
        let Some((id, mut buffer)) = self.receives.pop_front() else { return self.disconnecting = true };
        if bytes.len() > buffer.len() {
            self.receives.push_front((id, buffer));
            return self.disconnecting = true;
        }
        buffer.set_len(bytes.len());
        buffer.copy_from_slice(bytes);
        let invalidated = if invalidate { self.regions.entries.pop_last() } else { None };
        self.handle(id, Status::Ok, CompletionKind::Receive { buffer, invalidated, solicited: false });
    }

    fn complete(&mut self, status: Status) {
        let Some(request) = self.posted.pop_front() else { return };
        let id = request.id();
        let kind = match request {
            WorkRequest::Send { .. } => CompletionKind::Send,
            WorkRequest::Write { .. } => CompletionKind::Write,
            WorkRequest::Read { mut into, .. } => {
                // It may be the stream of a call, with XID 1.
                into.fill(0);
                if let Some(xid) = into.get_mut(..4) {
                    xid[3] = 1;
                }
                CompletionKind::Read(into)
            }
            WorkRequest::Invalidate { stag, .. } => CompletionKind::Invalidate(self.regions.entries.remove(&stag)),
        };
        self.handle(id, status, kind);
    }

    fn message(xid: u32, direction: u32, words: usize, payload: usize) -> Message {
        let mut encoder = Encoder::default();
        [xid, direction].into_iter().for_each(|word| encoder.u32(word));
        (0..words).for_each(|_| encoder.u32(7));
        encoder.payload(Bytes::from(vec![7; payload]).into());
        encoder.finish()
    }

    fn answer(&mut self, words: usize, payload: usize) {
        let Some(token) = self.incoming.pop_front() else { return };
        let reply = Self::message(token.xid.0, 1, words, payload);
        let _ = self.connection.reply(token, reply);
    }

    fn refuse(&mut self) {
        if let Some(token) = self.incoming.pop_front() {
            let _ = self.connection.refuse_call(token);
        }
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let xid = input.number() as u32;
        let message = Self::message(xid, 0, 10 * input.number(), 40 * input.number());
        let (inline_max, payload_max) = (300 * input.number(), 3000 * input.number());
        let sink = (payload_max % 2 == 0 && payload_max > 0).then(|| Buffer::zeroed(payload_max).into());
        let id = self.connection.call(message, ReplyPlan { inline_max, payload_max, sink, locate: None });
        self.ours.push_back(id);
        assert!(self.awaited.insert(format!("{id:?}")));
    }

    fn cancel(&mut self) {
        if let Some(id) = self.ours.pop_front() {
            self.pump(); // Its end may already be queued.
            self.connection.cancel(id, self.now);
            self.awaited.remove(&format!("{id:?}"));
        }
    }

    fn later(&mut self) {
        self.now += Duration::from_secs(31);
        self.connection.handle_timeout(self.now);
    }

    fn cut(mut self) {
        while !self.posted.is_empty() {
            self.complete(Status::Flushed);
        }
        while let Some((id, buffer)) = self.receives.pop_front() {
            let kind = CompletionKind::Receive { buffer, invalidated: None, solicited: false };
            self.handle(id, Status::Flushed, kind);
        }
        self.connection.handle_disconnect(TransportError::Lost("cut".into()), &mut self.regions);
        self.pump();
        assert!(self.awaited.is_empty(), "calls that have not ended: {:?}", self.awaited);
        assert!(self.regions.entries.is_empty(), "regions that are still exposed");
        self.receives.clear();
        let stats = self.pool.stats();
        assert_eq!(stats.mapped, stats.free, "buffers that have not returned");
    }
}
