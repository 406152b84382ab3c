//! The transport switch: what a transport is, and how one is found by name.
//!
//! A transport carries whole [`Message`]s: calls one way, replies the other, in both directions of
//! one connection. It finds the XID where RFC 5531 §9 puts it, in the first four bytes, and the
//! direction in the next four; it knows nothing else of RPC.
//!
//! One task, the *driver*, polls [`Transport::poll_recv`]; that is where all I/O happens. Everyone
//! else only queues work and wakes the driver, so what is queued in one turn leaves in one system call.
//!
//! On error: every pending call ends with the transport's error and gets its sink back; nothing is
//! retried here. [`Client`](crate::Client) reconnects and calls again with the same XID.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use buf::{Pool, Region, SharedRegion};
use bytes::Bytes;
use xdr::{Located, Message};

use crate::Hosts;

/// A future as trait objects return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Names a call among those outstanding (RFC 5531 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Xid(pub u32);

/// What a transport can do.
#[derive(Clone, Debug)]
pub struct TransportCaps {
    /// Its name in the switch.
    pub name: &'static str,
    /// Longest message (unreduced stream), in bytes.
    pub message_max: usize,
    /// Whether a message can be lost without the connection being lost: the caller must retransmit.
    pub lossy: bool,
    /// Whether a file piece in a payload is sent without passing through user memory.
    pub file_ranges: bool,
    /// After how long without a call in either direction its driver closes the connection; never if absent.
    pub idle: Option<Duration>,
}

/// Calls that were made on a connection from this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallsMade {
    /// So far.
    pub total: u64,
    /// Of these, without a result now.
    pub pending: usize,
}

/// What is known of a reply before the call is sent.
#[derive(Debug, Default)]
pub struct ReplyPlan {
    /// Most bytes that the reply can have, its payload not counted.
    pub inline_max: usize,
    /// Most bytes that the reply's payload (its item that may be placed directly) can have; zero if it has none.
    pub payload_max: usize,
    /// The caller's own region for the payload; where there is none and one is needed, the transport takes a buffer
    /// from its pool. Its visible length is at least `payload_max`. A transport that cannot place data in memory of its
    /// kind leaves the payload in the message.
    pub sink: Option<Region>,
    /// Finds the payload in the first bytes of a reply, so that a stream transport can receive it into the sink.
    pub locate: Option<fn(&Bytes) -> Option<Located>>,
}

impl ReplyPlan {
    /// The plan for the same reply if no payload of it may be placed, and it can be `growth` bytes longer: all of it is in
    /// the stream. The sink stays here.
    pub fn without_placement(&self, growth: usize) -> Self {
        let inline_max = self.inline_max + self.payload_max.next_multiple_of(4) + growth;
        Self { inline_max, ..Self::default() }
    }
}

/// A reply, and the caller's region back.
#[derive(Debug)]
pub struct Reply {
    /// The reply from its XID on.
    pub message: Message,
    /// The sink of the [`ReplyPlan`]. If the payload was placed in it, the message's payload is a view of it
    /// (see [`SharedRegion::holds`]).
    pub sink: Option<SharedRegion>,
}

/// A call that got no reply, and the caller's region back.
#[derive(Debug)]
pub struct CallError {
    /// Why.
    pub error: TransportError,
    /// The sink of the [`ReplyPlan`], its content unspecified; the peer can no longer reach it.
    pub sink: Option<Region>,
}

/// Why a transport failed.
#[derive(Clone, Debug)]
pub enum TransportError {
    /// The connection could not be made.
    Connect(String),
    /// The connection was lost, or closed by either side. Unanswered calls may have been executed.
    Lost(String),
    /// The peer broke the transport's protocol; the connection is closed.
    Protocol(String),
    /// The message cannot travel on this transport; the connection is not affected.
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// Most that can travel.
        max: usize,
    },
    /// The peer could not receive the call or send its reply as planned (RPC-over-RDMA's RDMA_ERROR); the
    /// connection is not affected and calling again does not help.
    Refused(String),
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransportError::Connect(why) => write!(f, "cannot connect: {why}"),
            TransportError::Lost(why) => write!(f, "connection lost: {why}"),
            TransportError::Protocol(why) => write!(f, "transport protocol error: {why}"),
            TransportError::TooLong { len, max } => {
                write!(f, "message of {len} bytes on a transport that carries {max}")
            }
            TransportError::Refused(why) => write!(f, "the peer's transport refused the call: {why}"),
        }
    }
}

impl std::error::Error for TransportError {}

impl TransportError {
    /// Whether the connection is over, so that the call may succeed over another one.
    pub fn is_of_connection(&self) -> bool {
        !matches!(self, TransportError::TooLong { .. } | TransportError::Refused(_))
    }
}

/// Which call a reply answers; made by the transport that received the call. It goes back there, by
/// [`Transport::reply`] or [`Transport::forget`].
#[derive(Debug)]
pub struct ReplyToken {
    /// The call's XID.
    pub xid: Xid,
    /// The transport's own name for the call: a datagram's sender, a set of chunks, …
    pub call: u64,
}

/// A call from the peer.
#[derive(Debug)]
pub struct IncomingCall {
    /// The call from its XID on.
    pub message: Message,
    /// Where the reply goes.
    pub token: ReplyToken,
    /// Who sent it.
    pub peer: SocketAddr,
}

/// A user of this host, as the kernel says who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUser {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// One connection (or, for datagrams, one socket), usable from any thread.
pub trait Transport: Send + Sync + 'static {
    /// What it can do.
    fn caps(&self) -> &TransportCaps;

    /// The other end; for a datagram socket that serves many, its own address.
    fn peer(&self) -> SocketAddr;

    /// The user at the other end, if the transport knows for certain: the peer is on this host.
    fn peer_user(&self) -> Option<&PeerUser> {
        None
    }

    /// Where buffers for payloads should come from.
    fn pool(&self) -> &Pool;

    /// Sends a call and waits for the reply of the same XID. Dropping the future gives up the call:
    /// a late reply is discarded, and whatever the peer could reach is taken back first.
    fn call(&self, message: Message, plan: ReplyPlan) -> BoxFuture<'_, Result<Reply, CallError>>;

    /// Drives the connection in both directions; yields the next call from the peer. One task polls it.
    ///
    /// # Errors
    /// The connection is over. All pending calls have been ended.
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>>;

    /// Queues the reply to a call.
    ///
    /// # Errors
    /// The reply cannot travel (too long for what the caller has planned): the caller has been told so
    /// where the protocol can.
    fn reply(&self, token: ReplyToken, message: Message) -> Result<(), TransportError>;

    /// Ends a call without a reply: its caller is left to its timeout, and what the transport keeps of it is freed.
    fn forget(&self, token: ReplyToken) {
        let _ = token;
    }

    /// The calls that were made here, which tell whether the connection is in use.
    fn calls_made(&self) -> CallsMade;

    /// Stops (or resumes) handing out the peer's calls, while its server has enough of them in progress. The driver
    /// polls on: replies still come in, and what is queued is still sent. A transport whose protocol bounds the
    /// calls in progress, as RPC-over-RDMA does by credits, need not do anything.
    fn hold(&self, hold: bool) {
        let _ = hold;
    }

    /// Ends the connection when what is queued has been sent; `poll_recv` then ends with an error.
    fn close(&self);

    /// Ends the connection at once; what is queued may be lost.
    fn abort(&self) {
        self.close();
    }
}

/// The other end of a connection, as far as it is known before the connection is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// Its user on this host, if the kernel tells.
    pub user: Option<u32>,
}

/// A connection that waits to be set up.
pub struct Incoming {
    peer: Option<Peer>,
    set_up: SetUp,
}

type SetUp = Box<dyn FnOnce(Hosts) -> BoxFuture<'static, Result<Arc<dyn Transport>, TransportError>> + Send>;

impl Incoming {
    /// A connection from `peer`, or a socket that serves many peers if there is none. `set_up` gets the hosts that are
    /// served in full; to all others the transport gives few resources.
    pub fn new(
        peer: Option<Peer>,
        set_up: impl FnOnce(Hosts) -> BoxFuture<'static, Result<Arc<dyn Transport>, TransportError>> + Send + 'static,
    ) -> Self {
        Self { peer, set_up: Box::new(set_up) }
    }

    /// The other end; `None` for a socket that serves many.
    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// Sets the connection up. Call it on the thread (and tokio runtime) that will own the connection.
    ///
    /// # Errors
    /// The peer went away, or does not keep to the protocol.
    pub async fn set_up(self, hosts: Hosts) -> Result<Arc<dyn Transport>, TransportError> {
        (self.set_up)(hosts).await
    }
}

/// Waits for connections.
pub trait Listener: Send {
    /// The address that peers connect to.
    fn local_addr(&self) -> SocketAddr;

    /// The next connection. A datagram listener yields its one socket and then waits for ever.
    ///
    /// # Errors
    /// The listener is of no more use; a fault of one peer is not an error here.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>>;

    /// Whether it, or a part of it, and the connections from there answer only to threads that have the credentials of the
    /// thread that opened it, and never change them: not even to change them back.
    fn keeps_credentials(&self) -> bool {
        false
    }

    /// Takes out the part for which [`keeps_credentials`](Self::keeps_credentials) holds, if it is only a part.
    fn keeping_part(&mut self) -> Option<Box<dyn Listener>> {
        None
    }
}

/// Options of a transport as they are written: in a URL's query, in the configuration, on the command line.
pub type RawOptions = BTreeMap<String, String>;

/// An option that a transport does not know, or cannot take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The transport.
    pub transport: &'static str,
    /// The option.
    pub option: String,
    /// What is wrong, and what is possible.
    pub problem: String,
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transport {}: option '{}': {}", self.transport, self.option, self.problem)
    }
}

impl std::error::Error for OptionError {}

/// A kind of transport, with its options already parsed and held: it connects and listens.
pub trait TransportKind: Send + Sync + 'static {
    /// Its name in the switch.
    fn name(&self) -> &'static str;

    /// The same kind with these options in place of its own.
    ///
    /// # Errors
    /// An option is unknown or out of range.
    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError>;

    /// Connects to a server. The caller drives the transport.
    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>>;

    /// Waits for connections at `local`; port 0 picks a free one.
    ///
    /// # Errors
    /// The address is not to be had.
    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>>;
}

/// The transports of a process, by name.
#[derive(Clone, Default)]
pub struct Switch {
    kinds: BTreeMap<&'static str, Arc<dyn TransportKind>>,
}

impl Switch {
    /// No transports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a transport, or replaces the one of the same name.
    pub fn register(&mut self, kind: Arc<dyn TransportKind>) {
        self.kinds.insert(kind.name(), kind);
    }

    /// The transport of this name.
    pub fn find(&self, name: &str) -> Option<Arc<dyn TransportKind>> {
        self.kinds.get(name).cloned()
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.kinds.keys().copied()
    }
}
