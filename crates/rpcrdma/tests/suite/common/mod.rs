//! A [`Connection`] at each end of a wire that consists of function calls, with a simulated clock.
//!
//! All requests that one end posts are executed on a [`Peer`]: another [`Node`], or a [`Puppet`], by which a test plays
//! the peer.

#![allow(dead_code, reason = "each test file uses a part of this module")]

#[path = "../../../../testkit/src/device.rs"]
pub mod device;
pub mod echo;

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use buf::{Buffer, Pool};
use bytes::Bytes;
use rdma::{Completion, CompletionKind, Memory, Registered, RemoteSegment, Stag, Status, WorkId, WorkRequest};
use rpc::{CallError, Reply, ReplyPlan, ReplyToken, TransportError};
use rpcrdma::{
    CallId, Connection, Event, Options, Registry, Role, Settings, Work,
    chunk::Lists,
    header::{Body, Header},
    private_data::PrivateData,
};
use xdr::{Decoder, Encoder, Message};

/// The operations that one end can execute on its peer.
pub trait Peer {
    fn send(&mut self, data: Bytes, invalidate: Option<Stag>) -> Result<(), &'static str>;
    fn write(&mut self, data: Bytes, to: RemoteSegment) -> Result<(), &'static str>;
    fn read(&mut self, into: &mut [u8], from: RemoteSegment) -> Result<(), &'static str>;
}

/// One end of a connection.
pub struct Node {
    pub connection: Connection,
    pub pool: Pool,
    pub regions: Regions,
    receives: VecDeque<(WorkId, Buffer)>,
    pub posted: VecDeque<WorkRequest>,
    /// `true` if the connection has requested a disconnect.
    pub disconnecting: bool,
    pub events: VecDeque<Event>,
    pub now: Instant,
    /// Length in bytes of the longest Send so far.
    pub longest_send: usize,
}

#[derive(Default)]
pub struct Regions {
    next: u32,
    pub entries: BTreeMap<Stag, Memory>,
    /// The number of regions that can still be registered; unlimited if `None`.
    pub room: Option<usize>,
    /// Rejects memory that is not host memory.
    pub refuses_devices: bool,
}

pub const BASE: u64 = 0xffff_ffff_0000;

impl Regions {
    /// Returns the number of regions that have ever been registered.
    pub fn registered(&self) -> u32 {
        self.next
    }
}

impl Registry for Regions {
    fn register(&mut self, memory: Memory) -> Result<Registered, Memory> {
        match &mut self.room {
            _ if self.refuses_devices && memory.as_host().is_none() => return Err(memory),
            Some(0) => return Err(memory),
            Some(room) => *room -= 1,
            None => {}
        }
        self.next += 1;
        let region = Registered { stag: Stag(self.next), offset: BASE, len: memory.len() as u32 };
        self.entries.insert(region.stag, memory);
        Ok(region)
    }

    fn reclaim(&mut self, stag: Stag) -> Option<Memory> {
        self.entries.remove(&stag)
    }
}

impl Node {
    pub fn new(role: Role, options: Options, peer: Option<PrivateData>) -> Self {
        let pool = Pool::default();
        let receives = Connection::initial_receives(&options, &pool).into();
        Self {
            connection: Connection::new(Settings::negotiate(role, options, peer), pool.clone()),
            pool,
            regions: Regions::default(),
            receives,
            posted: VecDeque::new(),
            disconnecting: false,
            events: VecDeque::new(),
            now: Instant::now(),
            longest_send: 0,
        }
    }

    pub fn server(options: Options) -> Self {
        let peer = Options::default().private_data();
        Self::new(Role::Accepting, options, Some(peer))
    }

    pub fn client(options: Options) -> Self {
        let peer = Options::default().private_data();
        Self::new(Role::Connecting, options, Some(peer))
    }

    /// Takes all work and events from the connection.
    pub fn pump(&mut self) {
        while let Some(work) = self.connection.poll_work(&mut self.regions) {
            match work {
                Work::Post(request) => self.posted.push_back(request),
                Work::Receive(id, buffer) => self.receives.push_back((id, buffer)),
                Work::Disconnect => self.disconnecting = true,
            }
        }
        while let Some(event) = self.connection.poll_event() {
            self.events.push_back(event);
        }
    }

    fn complete(&mut self, id: WorkId, status: Status, kind: CompletionKind) {
        self.connection.handle_completion(Completion { id, status, kind }, self.now);
        self.pump();
    }

    /// Executes the oldest posted request. Returns `false` if there is none.
    ///
    /// # Errors
    /// The peer rejected the request; the connection must be cut.
    pub fn step(&mut self, peer: &mut dyn Peer) -> Result<bool, &'static str> {
        let Some(request) = self.posted.pop_front() else { return Ok(false) };
        let (kind, outcome) = match request {
            WorkRequest::Send { id, data, invalidate, .. } => {
                self.longest_send = self.longest_send.max(data.len());
                assert!(data.len() <= self.connection.settings().send_max);
                ((id, CompletionKind::Send), peer.send(data.to_bytes().unwrap(), invalidate))
            }
            WorkRequest::Write { id, data, to } => {
                ((id, CompletionKind::Write), peer.write(data.to_bytes().unwrap(), to))
            }
            WorkRequest::Read { id, mut into, from } => {
                let outcome = peer.read(&mut into, from);
                ((id, CompletionKind::Read(into)), outcome)
            }
            WorkRequest::Invalidate { id, stag } => {
                ((id, CompletionKind::Invalidate(self.regions.entries.remove(&stag))), Ok(()))
            }
        };
        let status = if outcome.is_ok() { Status::Ok } else { Status::RemoteAccess };
        self.complete(kind.0, status, kind.1);
        outcome.map(|()| true)
    }

    /// Closes the connection: all requests and receives are flushed.
    pub fn cut(&mut self) {
        self.pump();
        while let Some(request) = self.posted.pop_front() {
            let id = request.id();
            let kind = match request {
                WorkRequest::Send { .. } => CompletionKind::Send,
                WorkRequest::Write { .. } => CompletionKind::Write,
                WorkRequest::Read { into, .. } => CompletionKind::Read(into),
                WorkRequest::Invalidate { stag, .. } => CompletionKind::Invalidate(self.regions.entries.remove(&stag)),
            };
            self.complete(id, Status::Flushed, kind);
        }
        while let Some((id, buffer)) = self.receives.pop_front() {
            let kind = CompletionKind::Receive { buffer, invalidated: None, solicited: false };
            self.complete(id, Status::Flushed, kind);
        }
        let lost = TransportError::Lost("cut".into());
        self.connection.handle_disconnect(lost, &mut self.regions);
        self.pump();
        self.receives.clear();
    }

    pub fn advance_clock(&mut self, time: Duration) {
        self.now += time;
        self.connection.handle_timeout(self.now);
        self.pump();
    }

    pub fn call(&mut self, message: Message, plan: ReplyPlan) -> CallId {
        let id = self.connection.call(message, plan);
        self.pump();
        id
    }

    pub fn cancel(&mut self, id: CallId) {
        self.connection.cancel(id, self.now);
        self.pump();
    }

    pub fn reply(&mut self, token: ReplyToken, message: Message) -> Result<(), TransportError> {
        let replied = self.connection.reply(token, message);
        self.pump();
        replied
    }

    /// Returns the next event, which must be a call.
    pub fn next_call(&mut self) -> (Message, ReplyToken) {
        match self.events.pop_front() {
            Some(Event::Call { message, token }) => (message, token),
            other => panic!("not a call: {other:?}"),
        }
    }

    /// Returns the next event, which must be the end of a call.
    pub fn next_reply(&mut self) -> Result<Reply, CallError> {
        match self.events.pop_front() {
            Some(Event::Reply { result, .. }) => result,
            other => panic!("not a reply: {other:?}"),
        }
    }

    /// Asserts that nothing is registered, and that all buffers except those of posted receives have returned to the
    /// pool.
    pub fn assert_no_leak(&mut self) {
        assert!(self.regions.entries.is_empty(), "regions left: {:?}", self.regions.entries);
        self.events.clear();
        let out: usize = self.receives.iter().map(|(_, buffer)| buffer.capacity()).sum();
        let stats = self.pool.stats();
        assert_eq!(stats.mapped - stats.free, out, "buffers are missing");
    }

    /// Posts a receive, like a queue pair that takes its receives from a source.
    pub fn post_receive(&mut self) {
        self.receives.push_back((Connection::receive_id(), self.pool.take(4096)));
    }

    pub fn receives_posted(&self) -> usize {
        self.receives.len()
    }
}

impl Peer for Node {
    fn send(&mut self, data: Bytes, invalidate: Option<Stag>) -> Result<(), &'static str> {
        let (id, mut buffer) = self.receives.pop_front().ok_or("no receive posted")?;
        if data.len() > buffer.len() {
            self.receives.push_front((id, buffer));
            return Err("a Send longer than the receive");
        }
        let invalidated = match invalidate {
            None => None,
            Some(stag) => Some((stag, self.regions.entries.remove(&stag).ok_or("no such region to invalidate")?)),
        };
        buffer.set_len(data.len());
        buffer.copy_from_slice(&data);
        self.complete(id, Status::Ok, CompletionKind::Receive { buffer, invalidated, solicited: false });
        Ok(())
    }

    fn write(&mut self, data: Bytes, to: RemoteSegment) -> Result<(), &'static str> {
        let Some(Memory::Write(region)) = self.regions.entries.get_mut(&to.stag) else { return Err("bad stag") };
        let start = (to.offset - BASE) as usize;
        if start + data.len() > region.len() {
            return Err("out of bounds");
        }
        region.copy_in(start, &data).map_err(|_| "broken memory")
    }

    fn read(&mut self, into: &mut [u8], from: RemoteSegment) -> Result<(), &'static str> {
        let Some(Memory::Read(piece)) = self.regions.entries.get(&from.stag) else { return Err("bad stag") };
        let start = (from.offset - BASE) as usize;
        if start + into.len() > piece.len() {
            return Err("out of bounds");
        }
        let mut piece = piece.clone();
        piece.split_to(start);
        piece.split_to(into.len()).copy_to(into).map_err(|_| "broken memory")
    }
}

/// A peer that records what it gets.
#[derive(Default)]
pub struct Puppet {
    pub sent: VecDeque<(Bytes, Option<Stag>)>,
    /// The memory by STag; its tagged offsets start at zero.
    pub memory: BTreeMap<Stag, Vec<u8>>,
    /// The number of bytes written.
    pub written: usize,
}

impl Peer for Puppet {
    fn send(&mut self, data: Bytes, invalidate: Option<Stag>) -> Result<(), &'static str> {
        self.sent.push_back((data, invalidate));
        Ok(())
    }

    fn write(&mut self, data: Bytes, to: RemoteSegment) -> Result<(), &'static str> {
        let memory = self.memory.get_mut(&to.stag).ok_or("bad stag")?;
        let start = to.offset as usize;
        memory.get_mut(start..start + data.len()).ok_or("out of bounds")?.copy_from_slice(&data);
        self.written += data.len();
        Ok(())
    }

    fn read(&mut self, into: &mut [u8], from: RemoteSegment) -> Result<(), &'static str> {
        let memory = self.memory.get(&from.stag).ok_or("bad stag")?;
        let start = from.offset as usize;
        into.copy_from_slice(memory.get(start..start + into.len()).ok_or("out of bounds")?);
        Ok(())
    }
}

impl Puppet {
    /// Sends header and stream to `node`, and executes all requests that it then posts.
    pub fn deliver(&mut self, node: &mut Node, header: &Header, stream: &[u8]) {
        self.deliver_bytes(node, [&Message::encode(header).stream[..], stream].concat().into(), None);
    }

    pub fn deliver_bytes(&mut self, node: &mut Node, bytes: Bytes, invalidate: Option<Stag>) {
        node.send(bytes, invalidate).unwrap();
        self.run(node);
    }

    /// Executes all requests that `node` posts. Cuts its connection if a request was rejected or it requests a
    /// disconnect.
    pub fn run(&mut self, node: &mut Node) {
        node.pump();
        loop {
            match node.step(self) {
                Ok(true) => {}
                Ok(false) if !node.disconnecting => return,
                Ok(false) | Err(_) => return node.cut(),
            }
        }
    }

    /// Returns the next message that `node` sent.
    pub fn received(&mut self) -> (Header, Bytes, Option<Stag>) {
        let (bytes, invalidate) = self.sent.pop_front().expect("the node must have sent a message");
        let message = Message::from(bytes);
        let mut decoder = Decoder::new(&message);
        let header = Header::decode(&mut decoder).unwrap();
        (header, decoder.take_rest(), invalidate)
    }

    /// Like [`received`](Self::received), for RDMA_MSG.
    pub fn received_msg(&mut self) -> (Lists, Bytes) {
        match self.received() {
            (Header { body: Body::Msg(lists), .. }, stream, _) => (lists, stream),
            (header, ..) => panic!("not RDMA_MSG: {header:?}"),
        }
    }
}

/// Two connected nodes.
pub struct Pair {
    pub nodes: [Node; 2],
    /// The number of executed requests.
    pub steps: usize,
    /// The number of the request before which the connection is cut.
    pub cut_at: Option<usize>,
    pub is_cut: bool,
}

pub const CLIENT: usize = 0;
pub const SERVER: usize = 1;

impl Pair {
    pub fn new(client: Options, server: Options) -> Self {
        let peers = [server.private_data(), client.private_data()];
        let client = Node::new(Role::Connecting, client, Some(peers[0]));
        let server = Node::new(Role::Accepting, server, Some(peers[1]));
        Self { nodes: [client, server], steps: 0, cut_at: None, is_cut: false }
    }

    pub fn client(&mut self) -> &mut Node {
        &mut self.nodes[CLIENT]
    }

    pub fn server(&mut self) -> &mut Node {
        &mut self.nodes[SERVER]
    }

    /// Executes all requests of both nodes, and replies to calls by `answer`. `pick` decides which node is first.
    pub fn run(&mut self, mut pick: impl FnMut() -> bool, mut answer: impl FnMut(usize, Message) -> Option<Message>) {
        self.nodes.iter_mut().for_each(Node::pump);
        while !self.is_cut {
            let first = usize::from(pick());
            let moved = self.step(first) || self.step(1 - first) || self.answer(&mut answer);
            if !moved && !self.is_cut {
                return;
            }
        }
    }

    fn step(&mut self, side: usize) -> bool {
        let [client, server] = &mut self.nodes;
        let (from, to) = if side == CLIENT { (client, server) } else { (server, client) };
        if !from.posted.is_empty() {
            if self.cut_at == Some(self.steps) {
                self.cut();
                return true;
            }
            self.steps += 1;
        }
        match from.step(to) {
            Ok(moved) if !from.disconnecting && !to.disconnecting => moved,
            _ => {
                self.cut();
                true
            }
        }
    }

    fn answer(&mut self, answer: &mut impl FnMut(usize, Message) -> Option<Message>) -> bool {
        for (side, node) in self.nodes.iter_mut().enumerate() {
            if let Some(index) = node.events.iter().position(|event| matches!(event, Event::Call { .. })) {
                let Some(Event::Call { message, token }) = node.events.remove(index) else { unreachable!() };
                if let Some(reply) = answer(side, message) {
                    let _ = node.reply(token, reply);
                }
                return true;
            }
        }
        false
    }

    pub fn cut(&mut self) {
        self.is_cut = true;
        self.nodes.iter_mut().for_each(Node::cut);
    }
}

/// Creates a message of XID, direction, `words` words, a payload if it is not empty, and one more word.
pub fn message(xid: u32, direction: u32, words: usize, payload: &[u8]) -> Message {
    let mut encoder = Encoder::default();
    [xid, direction].into_iter().for_each(|word| encoder.u32(word));
    (0..words).for_each(|word| encoder.u32(word as u32));
    encoder.payload(Bytes::copy_from_slice(payload).into());
    encoder.u32(0xeeee_eeee);
    encoder.finish()
}

/// Decodes a message made by [`message`], and returns the payload.
pub fn payload_of(message: &Message, xid: u32, direction: u32, words: usize) -> Vec<u8> {
    let mut decoder = Decoder::new(message);
    let head = (0..words + 2).map(|_| decoder.u32().unwrap());
    assert!(head.eq([xid, direction].into_iter().chain((0..words).map(|word| word as u32))));
    let payload = decoder.payload(1 << 30).unwrap();
    assert_eq!(decoder.u32(), Ok(0xeeee_eeee));
    decoder.finish().unwrap();
    payload.to_bytes().unwrap().to_vec()
}

/// Returns `len` bytes that depend on `seed`.
pub fn bytes(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(31).wrapping_add(seed * 7) >> 3) as u8 ^ i as u8).collect()
}

pub const CALL: u32 = 0;
pub const REPLY: u32 = 1;
