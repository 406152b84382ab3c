//! Connecting and accepting TCP connections, and their options.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use buf::Pool;
use socket2::{Domain, Socket, Type};

use super::{Accept, Sockets, StreamNetwork, TcpTransport, Terms};
use crate::{
    BoxFuture, Host, Hosts, Incoming, Listener, OptionError, OptionReader, Peer, RawOptions, Transport, TransportError,
    TransportKind, accepting_idle,
    budget::Budget,
    tls::{ClientTls, ServerTls, Wire},
};

/// The transport "tcp", which connects and listens.
#[derive(Clone, Debug)]
pub struct TcpKind<N = Sockets> {
    network: N,
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
    /// `xprtsec=none|tls|mtls` and further options: TLS of the connections that this side opens. None by default.
    pub client_tls: Option<Arc<ClientTls>>,
    /// `tls_cert=FILE` and further options: TLS of the connections that this side accepts. None by default.
    pub server_tls: Option<Arc<ServerTls>>,
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
            client_tls: None,
            server_tls: None,
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
        parsed.client_tls = ClientTls::parse(&mut options)?.map(Arc::new);
        if parsed.client_tls.is_none() {
            parsed.server_tls = ServerTls::parse(&mut options)?.map(Arc::new);
        }
        options.finish()?;
        Ok(parsed)
    }
}

impl TcpKind {
    /// Creates a kind with these options, which takes the buffers of large records from `pool`.
    pub fn new(options: TcpOptions, pool: Pool) -> Self {
        Self::over(Sockets, options, pool)
    }
}

impl Default for TcpKind {
    fn default() -> Self {
        Self::new(TcpOptions::default(), Pool::default())
    }
}

impl<N: StreamNetwork> TcpKind<N> {
    /// Creates a kind with these options, whose connections are streams of `network`.
    pub fn over(network: N, options: TcpOptions, pool: Pool) -> Self {
        Self { network, options, pool }
    }
}

impl<N: StreamNetwork> TransportKind for TcpKind<N> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
        Ok(Arc::new(Self::over(self.network.clone(), TcpOptions::parse(options)?, self.pool.clone())))
    }

    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>> {
        Box::pin(async move {
            let limit = self.options.connect_timeout;
            let connecting = async {
                let socket = self.network.connect(remote, &self.options).await?;
                Wire::connect(socket, self.options.client_tls.as_deref()).await
            };
            let connected = tokio::time::timeout(limit, connecting).await;
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

    fn reload(&self) -> Result<(), String> {
        self.options.server_tls.as_ref().map_or(Ok(()), |tls| tls.reload())
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let listener = self.network.listen(local, &self.options)?;
        Ok(Box::new(TcpListener { listener, kind: self.clone(), budgets: Budgets::new(&self.options) }))
    }
}

struct TcpListener<N: StreamNetwork> {
    listener: N::Listener,
    kind: TcpKind<N>,
    budgets: Budgets,
}

impl<N: StreamNetwork> Listener for TcpListener<N> {
    fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>> {
        Box::pin(async move {
            let (accepted, peer) = self.listener.accept().await?;
            Ok(self.kind.incoming(accepted, peer, self.budgets.clone()))
        })
    }
}

impl<N: StreamNetwork> TcpKind<N> {
    fn incoming(&self, accepted: N::Accepted, peer: SocketAddr, budgets: Budgets) -> Incoming {
        let kind = self.clone();
        Incoming::new(Some(Peer { address: peer.ip(), user: None }), move |hosts| {
            Box::pin(async move {
                let socket = kind.network.open(accepted, &kind.options);
                let TcpOptions { message_max, idle, .. } = kind.options;
                let bounds = (message_max, accepting_idle(idle));
                let terms = Terms { tls: kind.options.server_tls.clone(), ..budgets.terms(peer, &hosts) };
                let socket = socket.map(Wire::clear);
                let transport = socket.and_then(|socket| TcpTransport::new(socket, bounds, terms, kind.pool));
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
const BUFFER_MIN: usize = 4 << 10;
const BUFFER_MAX: usize = 1 << 30;
const MEMORY_MIN: usize = 1 << 20;
/// The memory that all connections of unadmitted hosts share.
const UNADMITTED_MEMORY: usize = 2 << 20;
const MESSAGE_MAX: usize = (1 << 31) - 1;
