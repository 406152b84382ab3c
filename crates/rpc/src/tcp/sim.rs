//! The implementation of [`StreamNetwork`] for a simulated network.

use std::{
    fmt, io,
    net::{Shutdown, SocketAddr},
    task::{Context, Poll},
    time::Duration,
};

use buf::{Pool, Received, RecvStage, SendQueue, Spread};
use simnet::{Network, StreamListener};

use super::{Accept, Stream, StreamNetwork, TcpKind, TcpOptions};

/// A simulated network in the view of one of its hosts.
#[derive(Clone)]
pub struct SimStreams(Network);

impl TcpKind<SimStreams> {
    /// Creates TCP over a simulated network, for the host of `network`.
    pub fn simulated(network: Network, options: TcpOptions, pool: Pool) -> Self {
        Self::over(SimStreams(network), options, pool)
    }
}

impl fmt::Debug for SimStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimStreams")
    }
}

impl StreamNetwork for SimStreams {
    type Stream = simnet::Stream;
    type Accepted = simnet::Stream;
    type Listener = StreamListener;

    /// Connects from a port below 1024 unless the options forbid it, as root does over a real network.
    async fn connect(&self, remote: SocketAddr, options: &TcpOptions) -> io::Result<simnet::Stream> {
        let local = match options.reserved_port {
            Some(false) => self.0.take_address(),
            None | Some(true) => self.0.take_reserved_address(),
        };
        simnet::Stream::connect_from(&self.0, local, remote).await
    }

    fn listen(&self, local: SocketAddr, _: &TcpOptions) -> io::Result<StreamListener> {
        StreamListener::bind(&self.0, local)
    }

    fn open(&self, accepted: simnet::Stream, _: &TcpOptions) -> io::Result<simnet::Stream> {
        Ok(accepted)
    }
}

impl Accept for StreamListener {
    type Accepted = simnet::Stream;

    fn local_addr(&self) -> SocketAddr {
        StreamListener::local_addr(self)
    }

    async fn accept(&mut self) -> io::Result<(simnet::Stream, SocketAddr)> {
        let stream = StreamListener::accept(self).await?;
        let peer = stream.peer_addr();
        Ok((stream, peer))
    }
}

impl Stream for simnet::Stream {
    /// A simulation does not spin, because spinning depends on real time.
    const SPIN_MAX: Duration = Duration::ZERO;

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(simnet::Stream::peer_addr(self))
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_readable(cx).map(Ok)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_writable(cx).map(Ok)
    }

    fn try_receive(&self, stage: &mut RecvStage, direct: &mut [u8], ahead: usize) -> io::Result<Received> {
        stage.receive_spread(direct, Spread::WHOLE, ahead, |slices| self.read_vectored(slices))
    }

    fn try_send(&self, queue: &mut SendQueue) -> io::Result<()> {
        queue.write_by(|slices| self.write_vectored(slices))
    }

    fn shutdown(&self, how: Shutdown) {
        simnet::Stream::shutdown(self, how);
    }
}
