//! What the transport "tcp" needs of its sockets: so that the same code runs over those of the system and, in tests, over those of a
//! simulated network.

use std::{
    fmt,
    future::Future,
    io,
    net::{Shutdown, SocketAddr},
    task::{Context, Poll},
    time::Duration,
};

use buf::{Received, RecvStage, SendQueue};

use super::TcpOptions;

/// A connected stream socket that does not block, on the runtime that drives it.
pub trait Stream: Send + 'static {
    /// How long it is worth spinning for its bytes.
    const SPIN_MAX: Duration;

    /// The other end's address.
    ///
    /// # Errors
    /// The connection is lost.
    fn peer_addr(&self) -> io::Result<SocketAddr>;

    /// Whether there is something to receive.
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether there is room to send.
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Receives once, as [`RecvStage::receive`] does.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there, or the connection is lost.
    fn try_receive(&self, stage: &mut RecvStage, direct: &mut [u8], ahead: usize) -> io::Result<Received>;

    /// Sends until the queue is empty.
    ///
    /// # Errors
    /// `WouldBlock` when the socket takes no more now, or the connection is lost.
    fn try_send(&self, queue: &mut SendQueue) -> io::Result<()>;

    /// Ends sending, receiving or both, if the connection still is.
    fn shutdown(&self, how: Shutdown);
}

/// Where streams come from.
pub trait StreamNetwork: Clone + fmt::Debug + Send + Sync + 'static {
    /// Its streams.
    type Stream: Stream;
    /// An accepted connection, which any runtime can drive.
    type Accepted: Send + 'static;
    /// Where connections are accepted.
    type Listener: Accept<Accepted = Self::Accepted>;

    /// Connects, on the current runtime.
    fn connect(
        &self,
        remote: SocketAddr,
        options: &TcpOptions,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Listens.
    ///
    /// # Errors
    /// It is not possible there.
    fn listen(&self, local: SocketAddr, options: &TcpOptions) -> io::Result<Self::Listener>;

    /// Gives an accepted connection to the current runtime.
    ///
    /// # Errors
    /// The connection is lost.
    fn open(&self, accepted: Self::Accepted, options: &TcpOptions) -> io::Result<Self::Stream>;
}

/// A listening socket.
pub trait Accept: Send + 'static {
    /// An accepted connection.
    type Accepted;

    /// Where it listens.
    fn local_addr(&self) -> SocketAddr;

    /// The next connection, and who made it.
    ///
    /// # Errors
    /// No more connections can be accepted.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Accepted, SocketAddr)>> + Send;
}
