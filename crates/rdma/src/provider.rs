//! The interface that every provider implements.

use std::{
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use buf::{Buffer, PeerBytes};
use bytes::Bytes;

use crate::{
    Completion, Memory, PostError, ReceiveSource, Registered, RemoteSegment, Stag, WorkId, WorkRequest,
    registration::{Registration, RegistrationOptions},
};

/// A boxed future, as methods of trait objects return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A provider of connections on one kind of RDMA network.
pub trait Provider: Send + Sync + 'static {
    /// Returns the capabilities.
    fn caps(&self) -> ProviderCaps;

    /// Returns the supported methods of registration. Empty if registration costs nothing, so that all methods are
    /// equal. Other methods in [`QpOptions::registration`] are ignored.
    fn registrations(&self) -> &'static [Registration] {
        &[]
    }

    /// Returns [`ProviderCaps::remote_invalidation`] for memory that is registered with this method.
    fn remote_invalidation(&self, registration: &RegistrationOptions) -> bool {
        let _ = registration;
        self.caps().remote_invalidation
    }

    /// Listens for connections at `local`; port 0 chooses a free one.
    ///
    /// # Errors
    /// The address is not available.
    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>>;

    /// Connects to `remote` and sends it `private_data`. `recvs` are posted before the peer can send.
    ///
    /// # Errors
    /// The peer cannot be reached, or rejected the connection.
    fn connect<'a>(
        &'a self,
        remote: SocketAddr,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Connected>>;
}

/// The capabilities of a provider.
#[derive(Clone, Debug)]
pub struct ProviderCaps {
    /// The name: `iwarp`, `shm`, `sim`, …
    pub name: &'static str,
    /// Maximum bytes of private data that a connection request or reply can carry. The data can arrive padded with
    /// zeros.
    pub private_data_max: usize,
    /// `true` if queue pairs that connect can take receives from [`QpOptions::receive_source`]. For accepted queue
    /// pairs see [`ConnectRequest::shared_receives`].
    pub shared_receives: bool,
    /// `true` if a peer can invalidate regions of this side (Send with Invalidate), on any adapter.
    pub remote_invalidation: bool,
    /// `true` if listeners and connections work only on threads that have the credentials of the thread that opened
    /// them, as the same kernel object. A thread that has changed its credentials cannot use them any more, even after
    /// changing them back.
    pub keeps_credentials: bool,
}

/// The options of a new queue pair.
#[derive(Clone, Debug)]
pub struct QpOptions {
    /// Maximum number of outstanding requests in the send queue.
    pub send_queue: usize,
    /// Maximum number of outstanding RDMA Reads of this side (ORD), before negotiation.
    pub outbound_reads: u16,
    /// Maximum number of outstanding RDMA Reads of the peer (IRD), before negotiation.
    pub inbound_reads: u16,
    /// The source of buffers for incoming Sends, and the ID of their completions. Only if
    /// [`ProviderCaps::shared_receives`] or [`ConnectRequest::shared_receives`] permits it. No receives are posted
    /// then, neither during setup nor later.
    pub receive_source: Option<(ReceiveSource, WorkId)>,
    /// The method of registration; ignored unless [`Provider::registrations`] contains it.
    pub registration: RegistrationOptions,
}

impl Default for QpOptions {
    fn default() -> Self {
        let registration = RegistrationOptions::default();
        Self { send_queue: 1024, outbound_reads: 32, inbound_reads: 32, receive_source: None, registration }
    }
}

/// A connection opened by [`Provider::connect`].
pub struct Connected {
    /// The queue pair of this side.
    pub qp: Box<dyn QueuePair>,
    /// The private data of the peer's reply.
    pub private_data: Bytes,
}

/// A source of connection requests.
pub trait Listener: Send {
    /// Returns the address to which peers connect.
    fn local_addr(&self) -> SocketAddr;

    /// Returns the next request. This does no handshake: [`ConnectRequest`] does it without delaying other requests.
    ///
    /// # Errors
    /// The listener cannot accept requests any more.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ConnectRequest>>>;
}

/// A connection request of a peer. It can be moved to another thread (and tokio runtime) before its first use. Dropping
/// it rejects the peer.
pub trait ConnectRequest: Send {
    /// Returns the address of the peer.
    fn peer(&self) -> SocketAddr;

    /// Returns the user ID of the peer, if it is on this host and the kernel reports it.
    fn peer_user(&self) -> Option<u32> {
        None
    }

    /// Waits for the private data of the request.
    ///
    /// # Errors
    /// The peer closed the connection, or violated the protocol.
    fn private_data(&mut self) -> BoxFuture<'_, io::Result<Bytes>>;

    /// Returns `true` if the queue pair can take receives from [`QpOptions::receive_source`].
    fn shared_receives(&self) -> bool {
        true
    }

    /// Accepts the request and sends `private_data` to the peer. `recvs` are posted before the peer can send.
    ///
    /// # Errors
    /// The peer closed the connection.
    fn accept<'a>(
        self: Box<Self>,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Box<dyn QueuePair>>>;
}

/// The capabilities of a queue pair, after negotiation.
#[derive(Clone, Debug)]
pub struct QpCaps {
    /// Maximum number of outstanding RDMA Reads of this side; further reads wait in the queue pair.
    pub outbound_reads: u16,
    /// Maximum bytes of a region.
    pub region_max: usize,
    /// `true` if a Send can invalidate a region of the peer.
    pub send_invalidate: bool,
    /// `true` if file ranges of a rope are sent without being copied through user memory.
    pub file_ranges: bool,
}

/// A user of this host, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUser {
    /// The user ID.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
    /// The supplementary group IDs.
    pub groups: Vec<u32>,
}

/// One end of a reliable connection.
pub trait QueuePair: Send {
    /// Returns the capabilities.
    fn caps(&self) -> &QpCaps;

    /// Returns the address of the peer.
    fn peer(&self) -> SocketAddr;

    /// Returns the user at the other end, if the peer is on this host and the kernel reports its user.
    fn peer_user(&self) -> Option<&PeerUser> {
        None
    }

    /// Registers `memory`, so that the peer can access exactly its visible bytes. The peer can use it after it has
    /// received a message that was posted later. The queue pair keeps the memory until a [`WorkRequest::Invalidate`]
    /// completes, or a receive reports that the peer invalidated it.
    ///
    /// # Errors
    /// Returns the memory if there are too many regions, or if it is device memory that cannot be accessed.
    fn register(&mut self, memory: Memory) -> Result<Registered, Memory>;

    /// Posts a buffer for an incoming Send. A Send that is longer than the visible bytes, or without a posted buffer,
    /// closes the connection.
    ///
    /// # Panics
    /// If the queue pair takes its receives from a [`ReceiveSource`].
    fn post_recv(&mut self, id: WorkId, buffer: Buffer);

    /// Posts a request to the send queue.
    ///
    /// # Errors
    /// Returns the request if the queue is full.
    fn post(&mut self, request: WorkRequest) -> Result<(), PostError>;

    /// Makes progress and appends completions to `completions`. Returns `Ready` if there are any. Otherwise wakes the
    /// task of `cx` when there can be more.
    ///
    /// # Errors
    /// The connection has ended. All completions of posted requests are returned before this error.
    fn poll_completions(
        &mut self,
        cx: &mut Context<'_>,
        completions: &mut Vec<Completion>,
    ) -> Poll<Result<(), QpError>>;

    /// Starts posted requests as far as that is possible without waiting, so that the peer can process them while the
    /// caller does other work. [`poll_completions`](Self::poll_completions) returns their completions. Calling this is
    /// optional.
    fn start(&mut self) {}

    /// Returns `true` if [`poll_completions`](Self::poll_completions) found nothing and polls again at once. The wait
    /// is then expected to be short, so the caller should not prepare for a long one.
    fn is_spinning(&self) -> bool {
        false
    }

    /// Returns the peer's memory itself, instead of an RDMA Read of it. Returns `None` if it cannot be accessed, or if
    /// the peer has not exposed it. The peer's region stays exposed while the bytes are held.
    fn view(&mut self, from: RemoteSegment, len: usize) -> Option<PeerBytes> {
        let _ = (from, len);
        None
    }

    /// Returns the channel for descriptors, if both ends are on one host and this provider has one.
    fn descriptors(&self) -> Option<Arc<dyn Descriptors>> {
        None
    }

    /// Takes the memory of a region back after the connection has ended and the peer can no longer access it.
    fn reclaim(&mut self, stag: Stag) -> Option<Memory>;

    /// Closes the connection. Requests posted before are sent first, if the peer still receives them.
    fn disconnect(&mut self);

    /// Closes the connection at once. Data that have not been sent are lost, and the peer sees a connection reset.
    fn abort(&mut self);
}

/// Descriptors that travel beside a connection, from the accepting to the connecting side. It can be used from any thread.
pub trait Descriptors: Send + Sync {
    /// Sends a descriptor. It is there before each message that is posted later. Returns its number, by which the peer
    /// [takes](Self::take) it. The number is random, so it never names a descriptor of another connection.
    ///
    /// # Errors
    /// `WouldBlock` if the peer has not received earlier ones; `Unsupported` on the connecting side; the connection has ended.
    fn send(&self, descriptor: BorrowedFd<'_>) -> io::Result<u64>;

    /// Takes a descriptor that the peer has sent. Returns `None` if there is none with this number.
    fn take(&self, number: u64) -> Option<OwnedFd>;
}

/// The reason why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QpError {
    /// One side closed the connection.
    Disconnected,
    /// The network failed.
    Io(io::ErrorKind),
    /// The peer violated the protocol. It got an error message if the provider has one.
    Protocol(String),
    /// The peer reported that this side violated the protocol.
    Terminated(String),
}

impl fmt::Display for QpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QpError::Disconnected => write!(f, "disconnected"),
            QpError::Io(kind) => write!(f, "connection lost: {kind}"),
            QpError::Protocol(what) => write!(f, "the peer violated the protocol: {what}"),
            QpError::Terminated(what) => write!(f, "terminated by the peer: {what}"),
        }
    }
}

impl std::error::Error for QpError {}

/// Returns the result of a poll: first completions, then the end of the connection, or `None` if there is neither.
pub(crate) fn polled(completed: bool, ended: Option<&QpError>) -> Option<Poll<Result<(), QpError>>> {
    match ended {
        _ if completed => Some(Poll::Ready(Ok(()))),
        Some(error) => Some(Poll::Ready(Err(error.clone()))),
        None => None,
    }
}
