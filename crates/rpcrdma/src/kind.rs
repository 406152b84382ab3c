//! [`RdmaKind`]: RPC-over-RDMA as a kind of transport, on any provider.
//!
//! Read RFC 8797 §4 for the data that both sides exchange during connection setup. On error no connection is made; a
//! peer whose setup takes too long is disconnected.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Once},
    time::Duration,
};

use buf::{Buffer, Pool};
use rdma::{ConnectRequest, Connected, Provider, QpOptions, ReceiveSource, ReceiveSourceOptions, WorkId};
use rpc::{
    BoxFuture, Host, Incoming, Listener, OptionError, Peer, RawOptions, Transport, TransportError, TransportKind,
};

use crate::{
    Connection, Design, Options, RdmaTransport, Role, Settings,
    call_memory::{CallMemory, MemoryOwner},
    private_data::PrivateData,
};

/// RPC-over-RDMA on one provider, which connects and listens.
///
/// ```
/// use std::sync::Arc;
/// use rpc::{RawOptions, Switch, TransportKind};
/// use rpcrdma::{Options, RdmaKind};
///
/// let provider = Arc::new(rdma::sim::Sim::new(Default::default()));
/// let mut switch = Switch::new();
/// switch.register(Arc::new(RdmaKind::new(provider, Options::default())));
/// let raw = RawOptions::from([("credits".to_owned(), "32".to_owned())]);
/// assert!(switch.find("rdma").unwrap().with_options(&raw).is_ok());
/// ```
#[derive(Clone)]
pub struct RdmaKind {
    name: &'static str,
    provider: Arc<dyn Provider>,
    options: Options,
    pool: Pool,
    /// The receives of connections that this side makes: as many as they have outstanding calls.
    connecting: ReceiveSource,
    /// The receives of accepted connections from admitted hosts.
    accepting: ReceiveSource,
    /// The receives of accepted connections from hosts that are not admitted.
    unadmitted: ReceiveSource,
    /// The memory limit for calls of all accepted connections.
    memory: CallMemory,
}

/// A listener on one provider.
pub struct RdmaListener {
    kind: RdmaKind,
    listener: Box<dyn rdma::Listener>,
}

impl RdmaKind {
    /// Creates RPC-over-RDMA on `provider`, with its own pool.
    pub fn new(provider: Arc<dyn Provider>, options: Options) -> Self {
        Self::with(crate::NAME, provider, options, Pool::default())
    }

    fn with(name: &'static str, provider: Arc<dyn Provider>, options: Options, pool: Pool) -> Self {
        let (buffer_bytes, guaranteed) = (options.inline_recv, GUARANTEED_RECEIVES);
        // Messages are parsed in their receive buffers, so peers must not be able to change these buffers.
        let source = |budget| {
            ReceiveSource::new(ReceiveSourceOptions { buffer_bytes, budget, guaranteed }, pool.private().clone())
        };
        let (connecting, accepting) = (source(usize::MAX), source(options.recv_memory / buffer_bytes));
        let unadmitted = source(UNADMITTED_RECV_MEMORY.min(options.recv_memory) / buffer_bytes);
        let memory = CallMemory::new(options.call_memory, 2 * options.message_max + CALL_OVERHEAD);
        Self { name, provider, options, pool, connecting, accepting, unadmitted, memory }
    }

    /// Takes buffers from `pool`.
    pub fn with_pool(self, pool: Pool) -> Self {
        Self::with(self.name, self.provider, self.options, pool)
    }

    /// Changes the name in the switch, for one provider among several.
    pub fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Returns the initial receives of a new connection and the options of its queue pair. Without a source, the
    /// connection has its own receives.
    fn receives(&self, options: &Options, source: Option<&ReceiveSource>) -> (Vec<(WorkId, Buffer)>, QpOptions) {
        let receive_source = source.map(|source| (source.clone(), Connection::receive_id()));
        let recvs = match receive_source {
            None => Connection::initial_receives(options, &self.pool),
            Some(_) => Vec::new(),
        };
        (recvs, QpOptions { registration: options.registration, receive_source, ..QpOptions::default() })
    }

    fn private_data(&self, options: &Options) -> Vec<u8> {
        // RFC 8797 §4: private data are optional. They are omitted if the fabric cannot carry this length.
        let caps = self.provider.caps();
        let mut data = options.private_data();
        data.remote_invalidation &= self.provider.remote_invalidation(&options.registration);
        let data = data.encode();
        if caps.private_data_max < data.len() { Vec::new() } else { data }
    }

    fn transport(
        &self,
        qp: Box<dyn rdma::QueuePair>,
        mut settings: Settings,
        source: Option<&ReceiveSource>,
    ) -> Arc<dyn Transport> {
        settings.invalidate_peer &= qp.caps().send_invalidate;
        let Settings { role, design, send_max, recv_max, .. } = settings;
        let peer = qp.peer();
        tracing::debug!(%peer, send_max, recv_max, ?role, ?design, "connected");
        if design == Design::ReadRead {
            // One warning for all connections of the process is enough.
            static WARNED: Once = Once::new();
            WARNED.call_once(|| tracing::warn!(%peer, "design=read-read: {}", READ_READ_WARNING));
        }
        let mut connection = Connection::new(settings, self.pool.clone());
        if let Some(source) = source {
            connection = connection.with_receive_source(source.clone());
        }
        if role == Role::Accepting {
            let user = qp.peer_user().map(|user| user.uid);
            connection =
                connection.with_call_memory(self.memory.account(MemoryOwner { host: Host::of(peer.ip()), user }));
        }
        Arc::new(RdmaTransport::new(self.name, qp, connection, self.pool.clone()))
    }

    async fn connect_to(&self, remote: SocketAddr) -> io::Result<Arc<dyn Transport>> {
        let source = self.provider.caps().shared_receives.then_some(&self.connecting);
        let (recvs, options) = self.receives(&self.options, source);
        let private_data = self.private_data(&self.options);
        let Connected { qp, private_data: peer } =
            self.provider.connect(remote, &options, &private_data, recvs).await?;
        //= rfc8797-4-1
        let settings = Settings::negotiate(Role::Connecting, self.options.clone(), PrivateData::decode(&peer));
        if settings.design != self.options.design {
            let why = "design=read-read was requested, but the server does not offer it; it needs the transport options \
                       design=read-read and allow_read_read=on";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(self.transport(qp, settings, source))
    }

    async fn accept(&self, mut request: Box<dyn ConnectRequest>, admitted: bool) -> io::Result<Arc<dyn Transport>> {
        let peer = PrivateData::decode(&request.private_data().await?);
        // A peer that does not request another design gets the safe one, and no information about other designs.
        let design = self.options.agreed_design(&peer.unwrap_or_default());
        let options = if admitted { self.options.clone() } else { self.options.for_unadmitted_host() };
        let options = Options { design: if admitted { design } else { Design::ReadWrite }, ..options };
        let shared = if admitted { &self.accepting } else { &self.unadmitted };
        let source = request.shared_receives().then_some(shared);
        let (recvs, qp_options) = self.receives(&options, source);
        let qp = request.accept(&qp_options, &self.private_data(&options), recvs).await?;
        Ok(self.transport(qp, Settings::negotiate(Role::Accepting, options, peer), source))
    }
}

impl TransportKind for RdmaKind {
    fn name(&self) -> &'static str {
        self.name
    }

    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
        let options = self.options.with(options).map_err(|error| OptionError { transport: self.name, ..error })?;
        let (provider, ways) = (self.provider.caps().name, self.provider.registrations());
        if let Some(way) = options.registration.way.filter(|way| !ways.contains(way)) {
            match ways {
                [] => tracing::info!(
                    "registration={way} has no effect: registration of memory costs nothing with {provider}"
                ),
                _ => tracing::warn!("registration={way} is not supported by {provider}; its default is used"),
            }
        }
        Ok(Arc::new(Self::with(self.name, self.provider.clone(), options, self.pool.clone())))
    }

    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>> {
        Box::pin(async move {
            let connected = within(self.options.connect_timeout, self.connect_to(remote)).await;
            connected.map_err(|error| TransportError::Connect(format!("{remote} over {}: {error}", self.name)))
        })
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        if self.options.design == Design::ReadRead {
            if !self.options.allow_read_read {
                let why = format!("design=read-read also needs allow_read_read=on: {READ_READ_WARNING}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            tracing::warn!(%local, "offering design=read-read: {}", READ_READ_WARNING);
        }
        let listener = self.provider.listen(local)?;
        Ok(Box::new(RdmaListener { kind: self.clone(), listener }))
    }
}

impl Listener for RdmaListener {
    fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    fn keeps_credentials(&self) -> bool {
        self.kind.provider.caps().keeps_credentials
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>> {
        Box::pin(async {
            let request = self.listener.accept().await?;
            let kind = self.kind.clone();
            let at = request.peer();
            let peer = Peer { address: at.ip(), user: request.peer_user() };
            Ok(Incoming::new(Some(peer), move |hosts| {
                Box::pin(async move {
                    let admitted = hosts.admit(peer.address);
                    let accepted = within(kind.options.connect_timeout, kind.accept(request, admitted)).await;
                    accepted.map_err(|error| TransportError::Connect(format!("accepting {at}: {error}")))
                })
            }))
        })
    }
}

/// The reason why the Read-Read design is for comparison only.
const READ_READ_WARNING: &str = "the server's memory is advertised to its clients, and a client that never sends RDMA_DONE keeps \
                                 that memory until its timeout; this is for comparison only";

async fn within<T>(limit: Duration, set_up: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, set_up).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Memory of a call's read chunks in addition to their bytes: each of many short segments takes a buffer of the pool.
const CALL_OVERHEAD: usize = 1 << 20;
/// The number of calls that a client can always have received, however little memory is free: one in service and the
/// next.
const GUARANTEED_RECEIVES: usize = 2;
/// Bytes of receive buffers that all connections of hosts that are not admitted share.
const UNADMITTED_RECV_MEMORY: usize = 1 << 20;
