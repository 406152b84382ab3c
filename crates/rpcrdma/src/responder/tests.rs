//! The limits of the responder: the memory of calls, the bytes that are read at once, and the replies that are not sent yet.

use std::{sync::atomic::AtomicU8, task::Waker, time::Duration};

use buf::{PeerBytes, Pool};
use rdma::{Completion, CompletionKind, Memory, Registered, RemoteSegment, Status};
use rpc::Host;
use xdr::Encoder;

use super::*;
use crate::{
    Connection, Options,
    call_memory::{CallMemory, MemoryOwner},
    chunk::{Segment, WriteList},
    link::Work,
};

/// A registry that is not used: the peer exposes the memory.
struct NoRegistry;

/// A registry that maps the memory of the peer, like that of shm.
struct MappedRegistry;

impl Registry for MappedRegistry {
    fn register(&mut self, memory: Memory) -> Result<Registered, Memory> {
        Err(memory)
    }

    fn reclaim(&mut self, _: Stag) -> Option<Memory> {
        None
    }

    fn view(&mut self, _: RemoteSegment, len: usize) -> Option<PeerBytes> {
        Some(PeerBytes::of_atomics((0..len).map(|_| AtomicU8::new(0)).collect()))
    }
}

impl Registry for NoRegistry {
    fn register(&mut self, memory: Memory) -> Result<Registered, Memory> {
        Err(memory)
    }

    fn reclaim(&mut self, _: Stag) -> Option<Memory> {
        None
    }
}

struct Rig {
    responder: Responder,
    link: Link,
    memory: CallMemory,
    now: Instant,
}

/// One owner gets half of it.
const MEMORY: usize = 100_000;

impl Rig {
    fn new(options: Options) -> Self {
        let link = Link::new(Settings::negotiate(Role::Accepting, options, None), Pool::default());
        let mut responder = Responder::new(&link.settings, None);
        let memory = CallMemory::new(MEMORY, 0);
        responder.set_memory(memory.account(MemoryOwner { host: Host::of([10, 0, 0, 1].into()), user: None }));
        Self { responder, link, memory, now: Instant::now() }
    }

    /// A call arrives with these lists.
    fn call(&mut self, xid: u32, lists: Lists) {
        let (link, stream) = (&mut self.link, Some(message(xid, 0)));
        assert!(self.responder.handle_call(link, Xid(xid), 1, lists, stream, self.now).is_ok());
    }

    fn pull(&mut self) -> Option<bool> {
        self.responder.start_pull(&mut self.link, &mut NoRegistry).map(|started| started.is_ok())
    }

    /// Returns the posted requests: the number of RDMA Reads, RDMA Writes and Sends.
    fn posted(&mut self) -> [usize; 3] {
        let mut posted = [0; 3];
        while let Some(work) = self.link.take_work() {
            match work {
                Work::Post(WorkRequest::Read { id, into, .. }) => {
                    posted[0] += 1;
                    let Name::Read(key, part) = Name::from(id) else { panic!("{id:?}") };
                    self.responder.handle_read(&mut self.link, key, part, into, self.now).expect("the call is valid");
                }
                Work::Post(WorkRequest::Write { .. }) => posted[1] += 1,
                Work::Post(WorkRequest::Send { .. }) => posted[2] += 1,
                _ => panic!("no other work is expected"),
            }
        }
        posted
    }

    fn token(&mut self) -> Option<ReplyToken> {
        match self.link.take_event()? {
            Event::Call { token, .. } => Some(token),
            _ => panic!("no other event is expected"),
        }
    }

    fn reply(&mut self, token: ReplyToken, xid: u32) {
        self.responder.reply(&mut self.link, token, Message::from(message(xid, 1))).unwrap();
    }

    fn sent(&mut self) {
        self.responder.handle_reply_sent(&mut self.link, self.now);
    }
}

/// Returns an RPC message of this direction.
fn message(xid: u32, direction: u32) -> Bytes {
    let mut encoder = Encoder::default();
    encoder.words([xid, direction, 0, 0]);
    encoder.finish().stream
}

fn segment(length: u32) -> Segment {
    Segment { handle: Stag(1), length, offset: 0 }
}

/// Offers a read chunk and a write chunk of these lengths, if they are not zero.
fn lists(read: u32, write: u32) -> Lists {
    let mut lists = Lists::default();
    if read > 0 {
        lists.reads.push(16, segment(read)).unwrap();
    }
    if write > 0 {
        lists.writes = WriteList::new([Chunk::new([segment(write)])]);
    }
    lists
}

#[test]
fn memory_for_a_reply_is_held_until_it_is_sent() {
    let mut rig = Rig::new(Options::default());
    rig.call(1, lists(0, 0));
    let token = rig.token().unwrap();
    assert_eq!(rig.memory.used(), 0, "a call without chunks");
    rig.reply(token, 1);
    rig.call(2, lists(0, 5000));
    let token = rig.token().unwrap();
    assert_eq!(rig.memory.used(), 5000);
    rig.reply(token, 2);
    assert_eq!((rig.posted(), rig.memory.used()), ([0, 0, 2], 5000));
    rig.sent();
    assert_eq!(rig.memory.used(), 5000, "the first reply has no memory");
    rig.sent();
    assert_eq!(rig.memory.used(), 0);
}

#[test]
fn memory_for_read_chunks_is_released_with_the_reply() {
    let mut rig = Rig::new(Options::default());
    rig.call(1, lists(6000, 5000));
    assert_eq!((rig.token().is_none(), rig.memory.used()), (true, 0));
    assert_eq!((rig.pull(), rig.memory.used()), (Some(true), 11_000));
    assert_eq!(rig.posted(), [1, 0, 0]);
    let token = rig.token().unwrap();
    assert_eq!(rig.memory.used(), 11_000, "the server has the data");
    rig.reply(token, 1);
    assert_eq!(rig.memory.used(), 5000);
    rig.sent();
    assert_eq!(rig.memory.used(), 0);
}

#[test]
fn call_that_gets_no_reply_releases_its_memory() {
    let mut rig = Rig::new(Options::default());
    for xid in 1..=3 {
        rig.call(xid, lists(0, 5000));
    }
    let [one, two, three] = [(); 3].map(|()| rig.token().unwrap());
    assert_eq!(rig.memory.used(), 15_000);
    rig.responder.refuse_call(&mut rig.link, one).unwrap();
    assert_eq!(rig.memory.used(), 10_000);
    rig.responder.forget(&two);
    assert_eq!(rig.memory.used(), 5000);
    rig.responder.forget(&two);
    assert_eq!(rig.memory.used(), 5000, "the call has ended");
    // The reply does not fit, so it is answered with an error.
    let too_long = Message::from(Bytes::from(vec![0; 1 << 20]));
    rig.responder.reply(&mut rig.link, three, too_long).unwrap_err();
    assert_eq!((rig.posted(), rig.memory.used()), ([0, 0, 2], 0));
}

#[test]
fn call_without_a_message_in_its_chunk_releases_its_memory() {
    let mut rig = Rig::new(Options::default());
    let mut lists = lists(0, 5000);
    lists.reads.push(0, segment(4096)).unwrap();
    assert!(rig.responder.handle_call(&mut rig.link, Xid(1), 1, lists, None, rig.now).is_ok());
    assert_eq!((rig.pull(), rig.memory.used()), (Some(true), 9096));
    let Some(Work::Post(WorkRequest::Read { id, into, .. })) = rig.link.take_work() else { panic!() };
    let Name::Read(key, part) = Name::from(id) else { panic!("{id:?}") };
    // The chunk has zeros, which are no message with this XID.
    let refused = rig.responder.handle_read(&mut rig.link, key, part, into, rig.now).unwrap_err();
    assert_eq!((refused.xid, rig.memory.used()), (Xid(1), 0));
    assert!(rig.token().is_none());
}

#[test]
fn calls_wait_for_memory_in_order() {
    let mut rig = Rig::new(Options::default());
    rig.call(1, lists(0, 40_000));
    let first = rig.token().unwrap();
    rig.call(2, lists(0, 20_000));
    rig.call(3, lists(6000, 0));
    assert_eq!((rig.token().is_none(), rig.pull(), rig.memory.used()), (true, None, 40_000));
    rig.responder.forget(&first);
    assert_eq!((rig.pull(), rig.memory.used()), (Some(true), 20_000));
    assert_eq!(rig.token().unwrap().xid, Xid(2));
    assert_eq!((rig.pull(), rig.memory.used()), (Some(true), 26_000));
    assert_eq!(rig.pull(), None);
}

#[test]
fn call_without_chunks_needs_no_memory() {
    let mut rig = Rig::new(Options::default());
    rig.call(1, lists(0, 50_000));
    rig.token().unwrap();
    let mut other = rig.memory.account(MemoryOwner { host: Host::of([10, 0, 0, 2].into()), user: None });
    assert!(other.take(25_000));
    rig.call(2, lists(0, 1));
    assert!(rig.token().is_none(), "the owner has more memory than it leaves free");
    rig.call(3, lists(0, 0));
    assert_eq!(rig.token().unwrap().xid, Xid(3));
}

#[test]
fn call_that_waits_for_memory_can_proceed_when_others_release_theirs() {
    let memory = CallMemory::new(MEMORY, 0);
    let account = |host| memory.account(MemoryOwner { host: Host::of([10, 0, 0, host].into()), user: None });
    let mut other = account(2);
    assert!(other.take(50_000));
    let settings = Settings::negotiate(Role::Accepting, Options::default(), None);
    let mut connection = Connection::new(settings, Pool::default()).with_call_memory(account(1));
    let header = encode_header(&Header { xid: Xid(1), credits: 1, body: Body::Msg(lists(0, 40_000)) });
    let call = [&header[..], &message(1, 0)].concat();
    let mut buffer = Pool::default().take(call.len());
    buffer.copy_from_slice(&call);
    let kind = CompletionKind::Receive { buffer, invalidated: None, solicited: false };
    let receive = Completion { id: Connection::receive_id(), status: Status::Ok, kind };
    connection.handle_completion(receive, Instant::now());
    let cx = Context::from_waker(Waker::noop());
    while connection.poll_work(&mut NoRegistry).is_some() {}
    assert!(connection.poll_event().is_none() && !connection.poll_memory(&cx));
    other.release(50_000);
    assert!(connection.poll_memory(&cx));
    while connection.poll_work(&mut NoRegistry).is_some() {}
    assert!(matches!(connection.poll_event(), Some(Event::Call { .. })));
}

#[test]
fn viewed_payload_needs_no_memory() {
    let mut rig = Rig::new(Options::default());
    rig.call(1, lists(0, 50_000));
    rig.token().unwrap();
    let mut other = rig.memory.account(MemoryOwner { host: Host::of([10, 0, 0, 2].into()), user: None });
    assert!(other.take(25_000));
    rig.call(2, lists(8, 0));
    assert!(rig.responder.start_pull(&mut rig.link, &mut MappedRegistry).is_some());
    assert_eq!(rig.token().unwrap().xid, Xid(2));
}

/// A call that had to wait for memory is tried again. What it has viewed stays, and its stream is always read.
#[test]
fn viewed_payload_is_not_read() {
    let mut rig = Rig::new(Options::default());
    let mut waiting = lists(0, 40_000);
    waiting.reads.push(0, segment(20)).unwrap();
    waiting.reads.push(20, segment(8)).unwrap();
    rig.call(1, lists(0, 40_000));
    let first = rig.token().unwrap();
    assert!(rig.responder.handle_call(&mut rig.link, Xid(2), 1, waiting, None, rig.now).is_ok());
    for _ in 0..2 {
        assert!(rig.responder.start_pull(&mut rig.link, &mut MappedRegistry).is_none());
    }
    rig.responder.forget(&first);
    assert_eq!(rig.responder.start_pull(&mut rig.link, &mut MappedRegistry).map(|started| started.is_ok()), Some(true));
    let Some(Work::Post(WorkRequest::Read { id, mut into, .. })) = rig.link.take_work() else { panic!("no RDMA Read") };
    assert!(rig.link.take_work().is_none(), "only the stream is read");
    into.copy_from_slice(&[&message(2, 0)[..], &8u32.to_be_bytes()].concat());
    let Name::Read(key, part) = Name::from(id) else { panic!("{id:?}") };
    rig.responder.handle_read(&mut rig.link, key, part, into, rig.now).expect("the call is valid");
    let Some(Event::Call { message, .. }) = rig.link.take_event() else { panic!("no call") };
    assert_eq!((message.stream.len(), message.payloads.len()), (20, 1));
    assert!(matches!(message.payloads[0].data.pieces(), [Piece::Peer(_)]));
}

#[test]
fn connection_reads_few_bytes_at_once() {
    let options = Options { pull_max: 10_000, ..Options::default() };
    let mut rig = Rig::new(options);
    for (xid, bytes) in [(1, 20_000), (2, 6000), (3, 4000), (4, 5904)] {
        rig.call(xid, lists(bytes, 0));
    }
    assert_eq!(rig.pull(), Some(true), "one call can exceed the limit");
    assert_eq!(rig.pull(), None);
    assert_eq!(rig.posted(), [1, 0, 0]);
    assert_eq!((rig.pull(), rig.pull()), (Some(true), None), "6000 and 4096 bytes exceed it");
    assert_eq!((rig.posted(), rig.pull(), rig.pull()), ([1, 0, 0], Some(true), Some(true)), "4096 and 5904 do not");
}

/// A peer that does not receive its replies cannot make this side queue more.
#[test]
fn nothing_is_received_while_many_replies_are_not_sent() {
    let mut rig = Rig::new(Options { credits: 2, ..Options::default() });
    let most = 2 * CREDITS_MIN;
    for xid in 1..=most {
        assert!(rig.responder.can_receive(&rig.link), "{xid}");
        rig.call(xid, lists(0, 0));
        let token = rig.token().unwrap();
        rig.reply(token, xid);
    }
    assert!(!rig.responder.can_receive(&rig.link));
    rig.sent();
    assert!(rig.responder.can_receive(&rig.link));
}

#[test]
fn nothing_is_received_while_many_bytes_are_not_sent() {
    let mut rig = Rig::new(Options::default());
    let part = REPLY_BYTES_MAX / 4;
    rig.memory = CallMemory::new(8 * REPLY_BYTES_MAX, 0);
    let owner = MemoryOwner { host: Host::of([10, 0, 0, 1].into()), user: None };
    rig.responder.set_memory(rig.memory.account(owner));
    rig.link.settings.options.message_max = REPLY_BYTES_MAX;
    for xid in 1..=4 {
        assert!(rig.responder.can_receive(&rig.link), "{xid}");
        rig.call(xid, lists(0, part as u32));
        let token = rig.token().unwrap();
        let mut encoder = Encoder::default();
        encoder.words([xid, 1, 0, 0]);
        encoder.payload(Bytes::from(vec![0; part]).into());
        rig.responder.reply(&mut rig.link, token, encoder.finish()).unwrap();
    }
    assert!(!rig.responder.can_receive(&rig.link));
    assert_eq!(rig.posted(), [0, 4, 4]);
    rig.sent();
    assert!(rig.responder.can_receive(&rig.link));
    let left = rig.responder.unsent_bytes;
    assert!((3 * part..3 * part + 1000).contains(&left), "{left} bytes");
    (0..3).for_each(|_| rig.sent());
    assert_eq!((rig.responder.unsent_bytes, rig.memory.used()), (0, 0));
    rig.responder.unsent_bytes = REPLY_BYTES_MAX;
    assert!(!rig.responder.can_receive(&rig.link), "exactly the limit");
}

#[test]
fn peer_that_does_not_answer_a_read_is_lost() {
    let mut rig = Rig::new(Options { peer_timeout: Duration::from_secs(5), ..Options::default() });
    rig.call(1, lists(6000, 0));
    rig.pull();
    let due = rig.link.next_deadline(|deadline| match deadline {
        Deadline::Pull(key) => rig.responder.is_pulling(key),
        _ => false,
    });
    assert_eq!(due, Some(rig.now + Duration::from_secs(5)));
    assert_eq!(rig.posted(), [1, 0, 0]);
    let due = rig.link.next_deadline(|deadline| match deadline {
        Deadline::Pull(key) => rig.responder.is_pulling(key),
        _ => false,
    });
    assert_eq!(due, None, "the call has been read");
}
