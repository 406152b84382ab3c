//! The interface of the transport "tcp" to its sockets. The same code runs over the sockets of the system and, in tests, over
//! the streams of a simulated network.

use std::{
    fmt,
    future::Future,
    io,
    net::{Shutdown, SocketAddr},
    task::{Context, Poll},
    time::Duration,
};

use buf::{Received, RecvStage, SendQueue, ktls::RecordKey};

use super::TcpOptions;

/// A connected, non-blocking stream socket on the runtime that drives it.
pub trait Stream: Send + 'static {
    /// Maximum time to spin for received bytes.
    const SPIN_MAX: Duration;

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// The connection is lost.
    fn peer_addr(&self) -> io::Result<SocketAddr>;

    /// Returns `true` if the system may pace what the socket sends. The default implementation returns `false`.
    fn is_paced(&self) -> bool {
        false
    }

    /// Waits until the socket is readable.
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Waits until the socket is writable.
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Receives once, like [`RecvStage::receive`].
    ///
    /// # Errors
    /// Returns `WouldBlock` if no bytes have arrived, or another error if the connection is lost.
    fn try_receive(&self, stage: &mut RecvStage, direct: &mut [u8], ahead: usize) -> io::Result<Received>;

    /// Sends until the queue is empty.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the socket accepts no more bytes now, or another error if the connection is lost.
    fn try_send(&self, queue: &mut SendQueue) -> io::Result<()>;

    /// Makes the system encrypt all further data in records of TLS 1.3. Data that were sent before are not affected.
    ///
    /// # Errors
    /// The system cannot do that, and the socket sends as before. The default implementation returns `Unsupported`.
    fn encrypt_sent(&self, _: &RecordKey) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends one record of TLS that has no data, after [`encrypt_sent`](Self::encrypt_sent) has succeeded. Everything that was
    /// sent before precedes it, and is not lost if sending is then shut down.
    ///
    /// # Errors
    /// Returns `WouldBlock` if the socket has too little room now, or another error if the connection is lost. The default
    /// implementation returns `Unsupported`.
    fn send_record(&self, _content_type: u8, _payload: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Shuts down sending, receiving or both. Does nothing if the connection is lost.
    fn shutdown(&self, how: Shutdown);
}

/// A network that connects and accepts streams: that of the system or a simulated one.
pub trait StreamNetwork: Clone + fmt::Debug + Send + Sync + 'static {
    /// The streams.
    type Stream: Stream;
    /// An accepted connection, which any runtime can drive.
    type Accepted: Send + 'static;
    /// A listening socket.
    type Listener: Accept<Accepted = Self::Accepted>;

    /// Connects to `remote`. The current runtime drives the stream.
    fn connect(
        &self,
        remote: SocketAddr,
        options: &TcpOptions,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Listens at `local`.
    ///
    /// # Errors
    /// The address is in use, or the system rejects the address or an option.
    fn listen(&self, local: SocketAddr, options: &TcpOptions) -> io::Result<Self::Listener>;

    /// Makes a stream of an accepted connection. The current runtime drives it.
    ///
    /// # Errors
    /// The connection is lost.
    fn open(&self, accepted: Self::Accepted, options: &TcpOptions) -> io::Result<Self::Stream>;
}

/// A listening socket.
pub trait Accept: Send + 'static {
    /// An accepted connection.
    type Accepted;

    /// Returns the address of the socket.
    fn local_addr(&self) -> SocketAddr;

    /// Waits for the next connection. Returns it and the address of its peer.
    ///
    /// # Errors
    /// No more connections can be accepted.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Accepted, SocketAddr)>> + Send;
}
