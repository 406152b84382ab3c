//! The interface that every provider implements.

use std::{
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use buf::{Buffer, PeerBytes};
use bytes::Bytes;

use crate::{
    Completion, Memory, PostError, ReceiveSource, Registered, RemoteSegment, Stag, WorkId, WorkRequest,
    registration::{Registration, RegistrationOptions},
};

/// A future as trait objects return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens connections on one kind of RDMA network.
pub trait Provider: Send + Sync + 'static {
    /// What it can do.
    fn caps(&self) -> ProviderCaps;

    /// The ways of registration that differ; none if registering costs nothing, so that all are alike. Others are
    /// ignored in [`QpOptions::registration`].
    fn registrations(&self) -> &'static [Registration] {
        &[]
    }

    /// [`ProviderCaps::remote_invalidation`], with memory registered in this way.
    fn remote_invalidation(&self, registration: &RegistrationOptions) -> bool {
        let _ = registration;
        self.caps().remote_invalidation
    }

    /// Waits for connections at `local`; port 0 picks a free one.
    ///
    /// # Errors
    /// The address is not to be had.
    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>>;

    /// Connects to `remote`, showing it `private_data`. `recvs` are posted before the peer can send.
    ///
    /// # Errors
    /// No connection, or the peer rejected it.
    fn connect<'a>(
        &'a self,
        remote: SocketAddr,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Connected>>;
}

/// What a provider can do.
#[derive(Clone, Debug)]
pub struct ProviderCaps {
    /// Its name: `iwarp`, `shm`, `sim`, …
    pub name: &'static str,
    /// Longest private data that a connection request or reply can carry, in bytes. It may arrive with
    /// zeros behind it.
    pub private_data_max: usize,
    /// Whether queue pairs that it connects can take receives from [`QpOptions::receive_source`]. Of those that it accepts
    /// [`ConnectRequest::shared_receives`] tells.
    pub shared_receives: bool,
    /// Whether a peer may invalidate regions of ours (Send with Invalidate), whatever adapter the connection is on.
    pub remote_invalidation: bool,
    /// Whether listeners and connections answer only to threads with the credentials of the one that opened them, object
    /// for object: a thread that has changed its own, even if back again, can use them no more.
    pub keeps_credentials: bool,
}

/// What a new queue pair shall be able to do.
#[derive(Clone, Debug)]
pub struct QpOptions {
    /// Send-queue requests outstanding at once.
    pub send_queue: usize,
    /// RDMA Reads that this end may have outstanding (ORD), before negotiation.
    pub outbound_reads: u16,
    /// RDMA Reads that the peer may have outstanding (IRD), before negotiation.
    pub inbound_reads: u16,
    /// Where the buffers for incoming Sends come from, and the id that their completions have: only where
    /// [`ProviderCaps::shared_receives`] or [`ConnectRequest::shared_receives`]. No receives are posted then, neither when
    /// the connection is made nor later.
    pub receive_source: Option<(ReceiveSource, WorkId)>,
    /// How memory is registered; only where [`Provider::registrations`] has that way.
    pub registration: RegistrationOptions,
}

impl Default for QpOptions {
    fn default() -> Self {
        let registration = RegistrationOptions::default();
        Self { send_queue: 1024, outbound_reads: 32, inbound_reads: 32, receive_source: None, registration }
    }
}

/// A connection just made by [`Provider::connect`].
pub struct Connected {
    /// Our end.
    pub qp: Box<dyn QueuePair>,
    /// What the peer's acceptance carried.
    pub private_data: Bytes,
}

/// Waits for connection requests.
pub trait Listener: Send {
    /// The address that peers connect to.
    fn local_addr(&self) -> SocketAddr;

    /// The next request. Cheap: the handshake runs in [`ConnectRequest`], where it delays nobody else.
    ///
    /// # Errors
    /// The listener is of no more use.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ConnectRequest>>>;
}

/// A peer that wants to connect. May be moved to another thread (and tokio runtime) before it is used.
/// Dropping it rejects the peer.
pub trait ConnectRequest: Send {
    /// Who asks.
    fn peer(&self) -> SocketAddr;

    /// The user who asks, if the kernel tells: it is on this host.
    fn peer_user(&self) -> Option<u32> {
        None
    }

    /// The private data of the request; waits for it to arrive.
    ///
    /// # Errors
    /// The peer went away, or sent something else.
    fn private_data(&mut self) -> BoxFuture<'_, io::Result<Bytes>>;

    /// Whether the queue pair can take receives from [`QpOptions::receive_source`].
    fn shared_receives(&self) -> bool {
        true
    }

    /// Accepts, showing the peer `private_data`. `recvs` are posted before the peer can send.
    ///
    /// # Errors
    /// The peer went away.
    fn accept<'a>(
        self: Box<Self>,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Box<dyn QueuePair>>>;
}

/// What a queue pair can do, after negotiation.
#[derive(Clone, Debug)]
pub struct QpCaps {
    /// RDMA Reads that this end may have outstanding; further ones wait inside the queue pair.
    pub outbound_reads: u16,
    /// Longest single region, in bytes.
    pub region_max: usize,
    /// Whether a Send can invalidate a region of the peer.
    pub send_invalidate: bool,
    /// Whether file pieces of a rope are sent without passing through user memory.
    pub file_ranges: bool,
}

/// A user of this host, as the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerUser {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// One end of a reliable connection.
pub trait QueuePair: Send {
    /// What it can do.
    fn caps(&self) -> &QpCaps;

    /// The other end.
    fn peer(&self) -> SocketAddr;

    /// The user at the other end, if the provider knows for certain: it is on this host.
    fn peer_user(&self) -> Option<&PeerUser> {
        None
    }

    /// Exposes `memory` to the peer, exactly its visible bytes. The peer can use it when it has seen a message that was
    /// posted later. The queue pair keeps it until a [`WorkRequest::Invalidate`] completes or a receive says that
    /// the peer invalidated it.
    ///
    /// # Errors
    /// Too many regions, or device memory that cannot be reached from here; the memory comes back.
    fn register(&mut self, memory: Memory) -> Result<Registered, Memory>;

    /// Gives the queue pair a buffer for an incoming Send. A Send longer than the buffer shows, or
    /// with no buffer left, ends the connection.
    ///
    /// # Panics
    /// If it takes its receives from a [`ReceiveSource`].
    fn post_recv(&mut self, id: WorkId, buffer: Buffer);

    /// Posts to the send queue.
    ///
    /// # Errors
    /// The queue is full; the request comes back.
    fn post(&mut self, request: WorkRequest) -> Result<(), PostError>;

    /// Makes progress and appends what has completed to `completions`. Ready if that is anything;
    /// else the task of `cx` is woken when there may be more.
    ///
    /// # Errors
    /// The connection has ended; everything posted has come home before this is returned.
    fn poll_completions(
        &mut self,
        cx: &mut Context<'_>,
        completions: &mut Vec<Completion>,
    ) -> Poll<Result<(), QpError>>;

    /// Starts what has been posted, as far as that goes without waiting, so that the peer has it while the caller goes on
    /// with something else. What has completed by it is told by [`poll_completions`](Self::poll_completions). Nothing is
    /// lost by not calling it.
    fn start(&mut self) {}

    /// Whether [`poll_completions`](Self::poll_completions), which has found nothing, looks again at once: the wait is
    /// expected to be short, and not worth preparing for.
    fn is_spinning(&self) -> bool {
        false
    }

    /// The peer's memory itself, in place of an RDMA Read of it: `None` where it cannot be reached, or the peer has not
    /// exposed it. The peer's region stays exposed while the bytes are held, whatever the peer does.
    fn view(&mut self, from: RemoteSegment, len: usize) -> Option<PeerBytes> {
        let _ = (from, len);
        None
    }

    /// Takes back the memory of a region after the connection has ended, when the peer can no longer reach it.
    fn reclaim(&mut self, stag: Stag) -> Option<Memory>;

    /// Ends the connection; requests posted before are sent first if the peer still takes them.
    fn disconnect(&mut self);

    /// Ends the connection at once; what has not left is lost, and the peer sees a connection cut.
    fn abort(&mut self);
}

/// Why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QpError {
    /// One side asked for it.
    Disconnected,
    /// The network failed.
    Io(io::ErrorKind),
    /// The peer broke the protocol; it has been told where it can be.
    Protocol(String),
    /// The peer says that we broke the protocol.
    Terminated(String),
}

impl fmt::Display for QpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QpError::Disconnected => write!(f, "disconnected"),
            QpError::Io(kind) => write!(f, "connection lost: {kind}"),
            QpError::Protocol(what) => write!(f, "the peer broke the protocol: {what}"),
            QpError::Terminated(what) => write!(f, "terminated by the peer: {what}"),
        }
    }
}

impl std::error::Error for QpError {}

/// What a poll tells: first what has completed, then that the connection has ended; `None` if there is neither.
pub(crate) fn polled(completed: bool, ended: Option<&QpError>) -> Option<Poll<Result<(), QpError>>> {
    match ended {
        _ if completed => Some(Poll::Ready(Ok(()))),
        Some(error) => Some(Poll::Ready(Err(error.clone()))),
        None => None,
    }
}
