//! Connecting and accepting TCP connections, and their options.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use buf::Pool;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use super::{TcpTransport, Terms};
use crate::{
    BoxFuture, Host, Hosts, Incoming, Listener, OptionError, OptionReader, Peer, RawOptions, Transport, TransportError,
    TransportKind, accepting_idle, budget::Budget,
};

/// The transport "tcp", which connects and listens.
#[derive(Clone, Debug, Default)]
pub struct TcpKind {
    options: TcpOptions,
    pool: Pool,
}

/// The options of the transport "tcp".
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// `nodelay=on|off`: sends at once, without waiting for a full segment. On by default.
    pub nodelay: bool,
    /// `congestion=cubic|bbr|reno|…`: congestion control; the system's default if absent.
    pub congestion: Option<String>,
    /// `sndbuf=BYTES`: size of the socket's send buffer; chosen by the system if absent.
    pub send_buffer: Option<usize>,
    /// `rcvbuf=BYTES`: size of the socket's receive buffer; chosen by the system if absent.
    pub receive_buffer: Option<usize>,
    /// `message_max=BYTES`: maximum length of a message in either direction. 2 MiB by default.
    pub message_max: usize,
    /// `memory=BYTES`: memory for calls and replies that the accepted connections of one listener share, in addition to
    /// 8 KiB for each connection. 128 MiB by default, and always room for at least four messages.
    pub memory: usize,
    /// `resvport=on|off`: connects from a port below 1024, which some servers require. If absent, root tries such a
    /// port first.
    pub reserved_port: Option<bool>,
    /// `connect_timeout=TIME`: timeout of one attempt to connect. 10 s by default.
    pub connect_timeout: Duration,
    /// `dead_after=TIME`: the time without an acknowledgement after which the connection is closed. 30 s by default.
    pub dead_after: Duration,
    /// `idle=TIME|off`: the time without calls after which a connection is closed. It is reopened when it is needed.
    /// The accepting side waits a fifth longer. 5 minutes by default.
    pub idle: Option<Duration>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            nodelay: true,
            congestion: None,
            send_buffer: None,
            receive_buffer: None,
            message_max: 2 << 20,
            memory: 128 << 20,
            reserved_port: None,
            connect_timeout: Duration::from_secs(10),
            dead_after: Duration::from_secs(30),
            idle: Some(Duration::from_secs(300)),
        }
    }
}

impl TcpOptions {
    /// Parses options. An absent option has its default.
    ///
    /// # Errors
    /// An option is unknown or out of range.
    pub fn parse(raw: &RawOptions) -> Result<Self, OptionError> {
        let mut options = OptionReader::new(NAME, raw);
        let mut parsed = Self::default();
        parsed.nodelay = options.switch("nodelay")?.unwrap_or(parsed.nodelay);
        parsed.congestion = options.text("congestion").map(str::to_owned);
        parsed.send_buffer = options.bytes("sndbuf", BUFFER_MIN..=BUFFER_MAX)?;
        parsed.receive_buffer = options.bytes("rcvbuf", BUFFER_MIN..=BUFFER_MAX)?;
        parsed.message_max = options.bytes("message_max", 1024..=MESSAGE_MAX)?.unwrap_or(parsed.message_max);
        parsed.memory = options.bytes("memory", MEMORY_MIN..=1 << 40)?.unwrap_or(parsed.memory);
        parsed.reserved_port = options.switch("resvport")?;
        parsed.connect_timeout = options.duration("connect_timeout")?.unwrap_or(parsed.connect_timeout);
        parsed.dead_after = options.duration("dead_after")?.unwrap_or(parsed.dead_after);
        parsed.idle = options.duration_or_off("idle")?.unwrap_or(parsed.idle);
        if let Some(name) = &parsed.congestion {
            congestion_available(name).map_err(|problem| options.error("congestion", problem))?;
        }
        options.finish()?;
        Ok(parsed)
    }

    fn apply(&self, socket: &SockRef<'_>) -> io::Result<()> {
        socket.set_tcp_nodelay(self.nodelay)?;
        if let Some(name) = &self.congestion {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        if let Some(bytes) = self.send_buffer {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = self.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        let interval = (self.dead_after / 6).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(self.dead_after).with_interval(interval).with_retries(5);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(self.dead_after))
    }
}

impl TcpKind {
    /// Creates a kind with these options, which takes the buffers of large records from `pool`.
    pub fn new(options: TcpOptions, pool: Pool) -> Self {
        Self { options, pool }
    }

    async fn connect_socket(&self, remote: SocketAddr) -> io::Result<TcpStream> {
        let (reserved, must) = match self.options.reserved_port {
            Some(wanted) => (wanted, wanted),
            None => (rustix::process::geteuid().is_root(), false),
        };
        let mut socket = self.socket(remote)?;
        if reserved {
            let first = rand::random_range(RESERVED_MIN..=RESERVED_MAX);
            let ports = (first..=RESERVED_MAX).chain(RESERVED_MIN..first).rev();
            for port in ports {
                match socket.bind(&any_address(remote, port).into()) {
                    Ok(()) => {}
                    // Connections in TIME_WAIT can hold nearly all of these ports, so a failed attempt must cost little.
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !must => break,
                    Err(error) => return Err(error),
                }
                match self.connect_from(socket, remote).await {
                    // A former connection to the same address still has the port.
                    Err(error)
                        if matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable) =>
                    {
                        socket = self.socket(remote)?;
                    }
                    done => return done,
                }
            }
            if must {
                return Err(io::Error::other("no port below 1024 is free"));
            }
        }
        self.connect_from(socket, remote).await
    }

    fn socket(&self, remote: SocketAddr) -> io::Result<Socket> {
        Socket::new(Domain::for_address(remote), Type::STREAM.nonblocking().cloexec(), None)
    }

    async fn connect_from(&self, socket: Socket, remote: SocketAddr) -> io::Result<TcpStream> {
        self.options.apply(&SockRef::from(&socket))?;
        tokio::net::TcpSocket::from_std_stream(socket.into()).connect(remote).await?.into_std()
    }
}

impl TransportKind for TcpKind {
    fn name(&self) -> &'static str {
        NAME
    }

    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
        Ok(Arc::new(Self { options: TcpOptions::parse(options)?, pool: self.pool.clone() }))
    }

    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>> {
        Box::pin(async move {
            let limit = self.options.connect_timeout;
            let connected = tokio::time::timeout(limit, self.connect_socket(remote)).await;
            let socket = connected.unwrap_or_else(|_| Err(io::Error::other(format!("no answer within {limit:?}"))));
            let TcpOptions { message_max, idle, .. } = self.options;
            let transport = socket.and_then(|socket| {
                TcpTransport::new(socket, (message_max, idle), Terms::connecting(), self.pool.clone())
            });
            match transport {
                Ok(transport) => Ok(Arc::new(transport) as Arc<dyn Transport>),
                Err(error) => Err(TransportError::Connect(format!("tcp {remote}: {error}"))),
            }
        })
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let socket = Socket::new(Domain::for_address(local), Type::STREAM.nonblocking().cloexec(), None)?;
        // A restarted server can bind its port at once.
        socket.set_reuse_address(true)?;
        if local.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        self.options.apply(&SockRef::from(&socket))?;
        socket.bind(&local.into())?;
        socket.listen(BACKLOG)?;
        let socket: std::net::TcpListener = socket.into();
        let local_addr = socket.local_addr()?;
        let budgets = Budgets::new(&self.options);
        let (kind, socket) = (self.clone(), Some(socket));
        Ok(Box::new(TcpListener { local_addr, kind, budgets, socket, listening: None, warned: None }))
    }
}

struct TcpListener {
    local_addr: SocketAddr,
    kind: TcpKind,
    budgets: Budgets,
    /// The socket before the first `accept`, which decides the runtime.
    socket: Option<std::net::TcpListener>,
    listening: Option<tokio::net::TcpListener>,
    /// The time of the last warning.
    warned: Option<Instant>,
}

impl Listener for TcpListener {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>> {
        Box::pin(async move {
            if let Some(socket) = self.socket.take() {
                self.listening = Some(tokio::net::TcpListener::from_std(socket)?);
            }
            loop {
                let listening = self.listening.as_ref().expect("the first accept must set the listener");
                match listening.accept().await {
                    Ok((socket, peer)) => {
                        if let Ok(socket) = socket.into_std() {
                            return Ok(self.kind.incoming(socket, peer, self.budgets.clone()));
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
        })
    }
}

impl TcpListener {
    /// Logs at most one warning a minute, however often accepting fails.
    fn warn_at_times(&mut self, error: &io::Error) {
        let now = Instant::now();
        if self.warned.is_none_or(|warned| now.duration_since(warned) >= WARN_PERIOD) {
            self.warned = Some(now);
            tracing::warn!(%error, "a TCP connection could not be accepted");
        }
    }
}

impl TcpKind {
    fn incoming(&self, socket: TcpStream, peer: SocketAddr, budgets: Budgets) -> Incoming {
        let kind = self.clone();
        Incoming::new(Some(Peer { address: peer.ip(), user: None }), move |hosts| {
            Box::pin(async move {
                let applied = kind.options.apply(&SockRef::from(&socket));
                let TcpOptions { message_max, idle, .. } = kind.options;
                let bounds = (message_max, accepting_idle(idle));
                let terms = budgets.terms(peer, &hosts);
                let transport = applied.and_then(|()| TcpTransport::new(socket, bounds, terms, kind.pool));
                match transport {
                    Ok(transport) => Ok(Arc::new(transport) as Arc<dyn Transport>),
                    Err(error) => Err(TransportError::Lost(error.to_string())),
                }
            })
        })
    }
}

/// The memory budgets of a listener's connections.
#[derive(Clone)]
struct Budgets {
    admitted: Budget,
    unadmitted: Budget,
}

impl Budgets {
    fn new(options: &TcpOptions) -> Self {
        let limit = options.memory.max(options.message_max.saturating_mul(4));
        Self { admitted: Budget::new(limit), unadmitted: Budget::new(UNADMITTED_MEMORY) }
    }

    fn terms(&self, peer: SocketAddr, hosts: &Hosts) -> Terms {
        let host = Host::of(peer.ip());
        match hosts.admit(peer.ip()) {
            true => Terms::admitted(self.admitted.account(host)),
            false => Terms::unadmitted(self.unadmitted.account(host)),
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

fn congestion_available(name: &str) -> Result<(), String> {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let Ok(available) = std::fs::read_to_string(path) else { return Ok(()) };
    let mut available: Vec<_> = available.split_whitespace().collect();
    if available.contains(&name) {
        return Ok(());
    }
    // The system can load a module that is not loaded yet; only setting the option shows whether it can.
    let probe = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(|error| error.to_string())?;
    available.sort_unstable();
    probe
        .set_tcp_congestion(name.as_bytes())
        .map_err(|error| format!("'{name}': {error}; this system has {}", available.join(", ")))
}

const NAME: &str = "tcp";
const BACKLOG: i32 = 1024;
const WARN_PERIOD: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
const BUFFER_MIN: usize = 4 << 10;
const BUFFER_MAX: usize = 1 << 30;
const MEMORY_MIN: usize = 1 << 20;
/// Memory that all connections of hosts that are not admitted share.
const UNADMITTED_MEMORY: usize = 2 << 20;
const MESSAGE_MAX: usize = (1 << 31) - 1;
/// Other services use the ports below 665.
pub(crate) const RESERVED_MIN: u16 = 665;
pub(crate) const RESERVED_MAX: u16 = 1023;
