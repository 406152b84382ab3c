//! The implementation of [`StreamNetwork`] for the sockets of the system.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use buf::{
    Received, RecvStage, SPIN_MAX, SendQueue,
    ktls::{self, RecordKey},
};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::{io::Interest, net::TcpStream};

use super::{Accept, Stream, StreamNetwork, TcpOptions};

/// The network of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sockets;

impl StreamNetwork for Sockets {
    type Stream = TcpStream;
    type Accepted = std::net::TcpStream;
    type Listener = SocketListener;

    async fn connect(&self, remote: SocketAddr, options: &TcpOptions) -> io::Result<TcpStream> {
        let (reserved, must) = match options.reserved_port {
            Some(wanted) => (wanted, wanted),
            None => (rustix::process::geteuid().is_root(), false),
        };
        let mut socket = stream_socket(remote)?;
        if reserved {
            let first = entropy::random_range(RESERVED_MIN..=RESERVED_MAX);
            let ports = (first..=RESERVED_MAX).chain(RESERVED_MIN..first).rev();
            for port in ports {
                match socket.bind(&any_address(remote, port).into()) {
                    Ok(()) => {}
                    // Connections in TIME_WAIT can hold nearly all of these ports, so a failed attempt must cost little.
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !must => break,
                    Err(error) => return Err(error),
                }
                match connect_from(options, socket, remote).await {
                    // An earlier connection to the same address still has the port.
                    Err(error)
                        if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) =>
                    {
                        socket = stream_socket(remote)?;
                    }
                    done => return done,
                }
            }
            if must {
                return Err(io::Error::other("no port below 1024 is free"));
            }
        }
        connect_from(options, socket, remote).await
    }

    fn listen(&self, local: SocketAddr, options: &TcpOptions) -> io::Result<SocketListener> {
        let socket = stream_socket(local)?;
        // A restarted server can bind its port at once.
        socket.set_reuse_address(true)?;
        if local.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        apply(options, &SockRef::from(&socket))?;
        socket.bind(&local.into())?;
        socket.listen(BACKLOG)?;
        let socket: std::net::TcpListener = socket.into();
        let local_addr = socket.local_addr()?;
        Ok(SocketListener { local_addr, socket: Some(socket), listening: None, warned: None })
    }

    fn open(&self, accepted: std::net::TcpStream, options: &TcpOptions) -> io::Result<TcpStream> {
        apply(options, &SockRef::from(&accepted))?;
        accepted.set_nonblocking(true)?;
        TcpStream::from_std(accepted)
    }
}

fn stream_socket(like: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(like), Type::STREAM.nonblocking().cloexec(), None)
}

async fn connect_from(options: &TcpOptions, socket: Socket, remote: SocketAddr) -> io::Result<TcpStream> {
    apply(options, &SockRef::from(&socket))?;
    tokio::net::TcpSocket::from_std_stream(socket.into()).connect(remote).await
}

fn apply(options: &TcpOptions, socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(options.nodelay)?;
    if let Some(name) = &options.congestion {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    let interval = (options.dead_after / 6).max(Duration::from_secs(1));
    let keepalive = TcpKeepalive::new().with_time(options.dead_after).with_interval(interval).with_retries(5);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(options.dead_after))
}

impl Stream for TcpStream {
    const SPIN_MAX: Duration = SPIN_MAX;

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        TcpStream::peer_addr(self)
    }

    fn is_paced(&self) -> bool {
        // All versions of bbr pace. If the name is not known, the socket may be paced.
        SockRef::from(self).tcp_congestion().map_or(true, |name| name.starts_with(b"bbr"))
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        TcpStream::poll_read_ready(self, cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        TcpStream::poll_write_ready(self, cx)
    }

    fn try_receive(&self, stage: &mut RecvStage, direct: &mut [u8], ahead: usize) -> io::Result<Received> {
        let mut received = None;
        let tried = self.try_io(Interest::READABLE, || {
            let got = stage.receive(self, direct, ahead)?;
            received = Some(got);
            // The socket is empty. Reporting that here saves another read attempt.
            if got.short { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match received {
            Some(received) => Ok(received),
            None => Err(tried.err().unwrap_or_else(|| io::ErrorKind::WouldBlock.into())),
        }
    }

    fn try_send(&self, queue: &mut SendQueue) -> io::Result<()> {
        self.try_io(Interest::WRITABLE, || queue.write_to(self))
    }

    fn encrypt_sent(&self, key: &RecordKey) -> io::Result<()> {
        ktls::encrypt_sent(self, key)
    }

    fn send_record(&self, content_type: u8, payload: &[u8]) -> io::Result<()> {
        self.try_io(Interest::WRITABLE, || ktls::send_record(self, content_type, payload))
    }

    fn shutdown(&self, how: Shutdown) {
        let _ = SockRef::from(self).shutdown(how);
    }
}

/// A listening socket.
pub struct SocketListener {
    local_addr: SocketAddr,
    /// The socket before the first `accept`, which decides the runtime.
    socket: Option<std::net::TcpListener>,
    listening: Option<tokio::net::TcpListener>,
    /// The time of the last warning.
    warned: Option<Instant>,
}

impl Accept for SocketListener {
    type Accepted = std::net::TcpStream;

    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    async fn accept(&mut self) -> io::Result<(std::net::TcpStream, SocketAddr)> {
        if let Some(socket) = self.socket.take() {
            self.listening = Some(tokio::net::TcpListener::from_std(socket)?);
        }
        loop {
            let listening = self.listening.as_ref().expect("the first accept must set the listener");
            match listening.accept().await {
                Ok((socket, peer)) => {
                    if let Ok(socket) = socket.into_std() {
                        return Ok((socket, peer));
                    }
                }
                Err(error) if is_fatal(&error) => return Err(error),
                // The peer has closed the connection already, or file descriptors are temporarily exhausted.
                Err(error) => {
                    self.warn_at_times(&error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl SocketListener {
    /// Logs at most one warning a minute, however often accepting fails.
    fn warn_at_times(&mut self, error: &io::Error) {
        let now = Instant::now();
        if self.warned.is_none_or(|warned| now.duration_since(warned) >= WARN_PERIOD) {
            self.warned = Some(now);
            tracing::warn!(%error, "a TCP connection could not be accepted");
        }
    }
}

fn is_fatal(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP | Errno::FAULT))
}

pub(crate) fn any_address(like: SocketAddr, port: u16) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, port).into(),
    }
}

const BACKLOG: i32 = 1024;
const WARN_PERIOD: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Other services use the ports below 665.
pub(crate) const RESERVED_MIN: u16 = 665;
pub(crate) const RESERVED_MAX: u16 = 1023;
