//! The transport switch: the interface of a transport, and the table that finds one by its name.
//!
//! A transport carries whole [`Message`]s in both directions of one connection: calls one way, replies the other. It
//! reads the XID in the first four bytes of a message (RFC 5531 §9) and the direction in the next four; it depends on
//! nothing else of RPC.
//!
//! One task, the *driver*, polls [`Transport::poll_recv`], which does all I/O. All other tasks only queue work and wake
//! the driver, so the work queued in one turn is sent by one system call.
//!
//! On error every pending call fails with the transport's error and gets its sink back. A transport retries nothing.
//! [`Client`](crate::Client) reconnects and sends the call again with the same XID.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{BorrowedFd, OwnedFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use buf::{Pool, Region, SharedRegion};
use bytes::Bytes;
use xdr::{Located, Message};

use crate::{ConnectionTls, Hosts};

/// A boxed future, as methods of trait objects return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The number that identifies a call among the outstanding ones (RFC 5531 §9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Xid(pub u32);

/// The capabilities of a transport.
#[derive(Clone, Debug)]
pub struct TransportCaps {
    /// The name in the switch.
    pub name: &'static str,
    /// Maximum length of a message (the unreduced stream) in bytes.
    pub message_max: usize,
    /// `true` if a message can be lost while the connection stays open. The caller must retransmit then.
    pub lossy: bool,
    /// `true` if the transport sends a file range of a payload without copying it through user memory.
    pub file_ranges: bool,
    /// The time without a call in either direction after which the driver closes the connection; never if `None`.
    pub idle: Option<Duration>,
}

/// The number of calls that this side made on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallsMade {
    /// Calls since the connection was opened.
    pub total: u64,
    /// Calls that have no result yet.
    pub pending: usize,
}

/// The properties of a reply that are known before the call is sent.
#[derive(Debug, Default)]
pub struct ReplyPlan {
    /// Maximum bytes of the reply without its payload.
    pub inline_max: usize,
    /// Maximum bytes of the reply's payload (the item that can be placed directly); zero if it has none.
    pub payload_max: usize,
    /// The caller's own region for the payload. If it is `None` and a region is needed, the transport takes a buffer
    /// from its pool. The visible length is at least `payload_max`. A transport that cannot place data in memory of
    /// this kind leaves the payload in the message.
    pub sink: Option<Region>,
    /// A function that finds the payload in the first bytes of a reply, so that a stream transport can receive it into
    /// the sink.
    pub locate: Option<fn(&Bytes) -> Option<Located>>,
}

impl ReplyPlan {
    /// Returns the plan for the same reply if its payload cannot be placed and the reply can be `growth` bytes longer:
    /// everything is in the stream. The sink stays in `self`.
    pub fn without_placement(&self, growth: usize) -> Self {
        let inline_max = self.inline_max + self.payload_max.next_multiple_of(4) + growth;
        Self { inline_max, ..Self::default() }
    }

    /// Returns the plan with the sink, and keeps it without the sink.
    pub(crate) fn take(&mut self) -> Self {
        let Self { inline_max, payload_max, locate, .. } = *self;
        Self { inline_max, payload_max, locate, sink: self.sink.take() }
    }
}

/// A reply, with the caller's region.
#[derive(Debug)]
pub struct Reply {
    /// The reply, beginning with its XID.
    pub message: Message,
    /// The sink of the [`ReplyPlan`]. If the payload was placed in it, the message's payload is a view of the sink (see
    /// [`SharedRegion::holds`]).
    pub sink: Option<SharedRegion>,
}

/// The failure of a call, with the caller's region.
#[derive(Debug)]
pub struct CallError {
    /// The reason.
    pub error: TransportError,
    /// The sink of the [`ReplyPlan`]. Its content is unspecified; the peer can no longer access it.
    pub sink: Option<Region>,
}

impl CallError {
    /// Returns the reason, and puts the sink back into the plan of the call.
    pub(crate) fn return_sink(self, plan: &mut ReplyPlan) -> TransportError {
        plan.sink = self.sink;
        self.error
    }
}

/// The reason why a transport failed.
#[derive(Clone, Debug)]
pub enum TransportError {
    /// The connection could not be opened.
    Connect(String),
    /// The connection was lost, or either side closed it. The server can have executed the unanswered calls.
    Lost(String),
    /// The peer violated the transport's protocol, and the connection was closed.
    Protocol(String),
    /// The message is too long for this transport. The connection is not affected.
    TooLong {
        /// Length of the message in bytes.
        len: usize,
        /// Maximum length in bytes.
        max: usize,
    },
    /// The peer could not receive the call, or could not send its reply as planned (RPC-over-RDMA's RDMA_ERROR). The
    /// connection is not affected, and a retry fails, too.
    Refused(String),
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransportError::Connect(why) => write!(f, "cannot connect: {why}"),
            TransportError::Lost(why) => write!(f, "connection lost: {why}"),
            TransportError::Protocol(why) => write!(f, "transport protocol error: {why}"),
            TransportError::TooLong { len, max } => {
                write!(f, "message of {len} bytes exceeds the transport's maximum of {max}")
            }
            TransportError::Refused(why) => write!(f, "the peer's transport refused the call: {why}"),
        }
    }
}

impl std::error::Error for TransportError {}

impl TransportError {
    /// Returns `true` if the connection is closed, so that the call can succeed on another connection.
    pub fn is_of_connection(&self) -> bool {
        !matches!(self, TransportError::TooLong { .. } | TransportError::Refused(_))
    }
}

/// Identifies the call that a reply answers. The transport that received the call creates the token, and the token
/// returns to it by [`Transport::reply`] or [`Transport::forget`].
#[derive(Debug)]
pub struct ReplyToken {
    /// The XID of the call.
    pub xid: Xid,
    /// The transport's own identifier of the call, for a datagram's sender, a set of chunks, …
    pub call: u64,
}

/// A call from the peer.
#[derive(Debug)]
pub struct IncomingCall {
    /// The call, beginning with its XID.
    pub message: Message,
    /// The token to which the reply is sent.
    pub token: ReplyToken,
    /// The address of the sender.
    pub peer: SocketAddr,
}

/// A user of this host. The kernel reports it as the user at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUser {
    /// The user ID.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
    /// The supplementary group IDs.
    pub groups: Vec<u32>,
}

/// One connection (or, for datagrams, one socket). It can be used from any thread.
pub trait Transport: Send + Sync + 'static {
    /// Returns the capabilities.
    fn caps(&self) -> &TransportCaps;

    /// Returns the address of the peer. For a datagram socket that serves several peers, returns its own address.
    fn peer(&self) -> SocketAddr;

    /// Returns the user at the other end, if the peer is on this host and the kernel reports its user.
    fn peer_user(&self) -> Option<&PeerUser> {
        None
    }

    /// Returns the protection of the connection by TLS.
    fn tls(&self) -> &ConnectionTls {
        &ConnectionTls::None
    }

    /// Returns `true` if the connection was accepted by a listener that offers TLS.
    fn offers_tls(&self) -> bool {
        false
    }

    /// Returns `true` if the peer is on this host and descriptors can travel with replies.
    fn carries_descriptors(&self) -> bool {
        false
    }

    /// Sends a descriptor to the peer, which has it before it gets any reply that is queued later. Returns its number: the reply to a
    /// call tells the peer which one to [take](Self::take_descriptor).
    ///
    /// # Errors
    /// `Unsupported` if descriptors do not travel from this side; `WouldBlock` if too many are on their way; the connection is closed.
    fn send_descriptor(&self, descriptor: BorrowedFd<'_>) -> io::Result<u64> {
        let _ = descriptor;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Takes a descriptor that the peer has sent over this connection. Returns `None` if there is none with this number, for example
    /// because it was sent over an earlier connection.
    fn take_descriptor(&self, number: u64) -> Option<OwnedFd> {
        let _ = number;
        None
    }

    /// Returns the pool for the buffers of payloads.
    fn pool(&self) -> &Pool;

    /// Sends a call and waits for the reply with the same XID. Dropping the future cancels the call: the peer's access
    /// to exposed memory is revoked first, and a late reply is discarded. The future borrows nothing, so that a caller
    /// who gives up can let another task wait for the reply.
    fn call(self: Arc<Self>, message: Message, plan: ReplyPlan) -> BoxFuture<'static, Result<Reply, CallError>>;

    /// Drives the connection in both directions, and returns the next call from the peer. Only one task polls it.
    ///
    /// # Errors
    /// The connection is closed. All pending calls have failed.
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>>;

    /// Queues the reply to a call.
    ///
    /// # Errors
    /// The reply is too long for the caller's plan. The caller gets an error from the transport if the protocol has
    /// one.
    fn reply(&self, token: ReplyToken, message: Message) -> Result<(), TransportError>;

    /// Ends a call without a reply and frees the transport's state of it. The caller waits until its timeout.
    fn forget(&self, token: ReplyToken) {
        let _ = token;
    }

    /// Returns the number of calls that this side made, which show whether the connection is in use.
    fn calls_made(&self) -> CallsMade;

    /// Pauses (or resumes) delivery of the peer's calls while its server has enough of them in progress. The driver
    /// continues to poll: replies are received, and queued messages are sent. A transport whose protocol bounds the
    /// calls in progress, such as RPC-over-RDMA by its credits, can ignore this.
    fn hold(&self, hold: bool) {
        let _ = hold;
    }

    /// Closes the connection after sending all queued messages. `poll_recv` then returns an error.
    fn close(&self);

    /// Closes the connection at once. Queued messages can be lost.
    fn abort(&self) {
        self.close();
    }
}

/// The other end of a connection, as far as it is known before set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address.
    pub address: IpAddr,
    /// The user on this host, if the kernel reports it.
    pub user: Option<u32>,
}

/// An accepted connection that has not been set up.
pub struct Incoming {
    peer: Option<Peer>,
    set_up: SetUp,
}

type SetUp = Box<dyn FnOnce(Hosts) -> BoxFuture<'static, Result<Arc<dyn Transport>, TransportError>> + Send>;

impl Incoming {
    /// Creates a connection from `peer`, or a socket that serves several peers if `peer` is `None`. `set_up` gets the
    /// admitted hosts; the transport gives fewer resources to all other hosts.
    pub fn new(
        peer: Option<Peer>,
        set_up: impl FnOnce(Hosts) -> BoxFuture<'static, Result<Arc<dyn Transport>, TransportError>> + Send + 'static,
    ) -> Self {
        Self { peer, set_up: Box::new(set_up) }
    }

    /// Returns the other end, or `None` for a socket that serves several peers.
    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// Sets the connection up. Call this on the thread (and tokio runtime) that will own the connection.
    ///
    /// # Errors
    /// The peer closed the connection or violated the protocol.
    pub async fn set_up(self, hosts: Hosts) -> Result<Arc<dyn Transport>, TransportError> {
        (self.set_up)(hosts).await
    }
}

/// A source of connections.
pub trait Listener: Send {
    /// Returns the address to which peers connect.
    fn local_addr(&self) -> SocketAddr;

    /// Returns the next connection. A datagram listener returns its one socket, and then never completes.
    ///
    /// # Errors
    /// The listener cannot accept connections any more. A fault of one peer is not an error here.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>>;

    /// Returns `true` if this listener and its connections work only on threads that have the credentials of the thread
    /// that opened the listener, and that never change them, not even temporarily.
    fn keeps_credentials(&self) -> bool {
        false
    }

    /// Removes and returns the part for which [`keeps_credentials`](Self::keeps_credentials) is `true`, if it is only a
    /// part of this listener.
    fn take_fixed_credentials_part(&mut self) -> Option<Box<dyn Listener>> {
        None
    }
}

/// The options of a transport as text: from the query of a URL, from the configuration, or from the command line.
pub type RawOptions = BTreeMap<String, String>;

/// An option that a transport does not know, or whose value is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// The name of the transport.
    pub transport: &'static str,
    /// The name of the option.
    pub option: String,
    /// The problem, and the valid values.
    pub problem: String,
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transport {}: option '{}': {}", self.transport, self.option, self.problem)
    }
}

impl std::error::Error for OptionError {}

/// A kind of transport with its options already parsed. It connects and listens.
pub trait TransportKind: Send + Sync + 'static {
    /// Returns the name in the switch.
    fn name(&self) -> &'static str;

    /// Returns the same kind with `options` in place of its own.
    ///
    /// # Errors
    /// An option is unknown or out of range.
    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError>;

    /// Connects to a server. The caller drives the transport.
    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>>;

    /// Reads again the files that the options name, such as certificates. Present connections stay. After an error, the former
    /// content stays in use.
    ///
    /// # Errors
    /// A file cannot be used. The text names the option, the file and the reason.
    fn reload(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns `true` if its connections can lose messages ([`TransportCaps::lossy`]).
    fn is_lossy(&self) -> bool {
        false
    }

    /// Listens for connections at `local`; port 0 chooses a free one.
    ///
    /// # Errors
    /// The address is not available.
    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>>;
}

/// The transports of a process, by name.
#[derive(Clone, Default)]
pub struct Switch {
    kinds: BTreeMap<&'static str, Arc<dyn TransportKind>>,
}

impl Switch {
    /// Creates a switch without transports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a transport, or replaces the one with the same name.
    pub fn register(&mut self, kind: Arc<dyn TransportKind>) {
        self.kinds.insert(kind.name(), kind);
    }

    /// Returns the transport with this name.
    pub fn find(&self, name: &str) -> Option<Arc<dyn TransportKind>> {
        self.kinds.get(name).cloned()
    }

    /// Returns all names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.kinds.keys().copied()
    }
}
