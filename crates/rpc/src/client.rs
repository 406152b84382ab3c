//! [`Client`]: makes calls over a connection, and reconnects when it is lost.
//!
//! One task for each client connects, drives the transport and ends calls at their deadlines. When the connection is
//! lost, it makes a new one with exponential backoff. A call without an answer is then sent again with the same XID, so
//! that the server's duplicate request cache recognises it. Over a transport that loses messages, a timer retransmits
//! the call, too. The caller sees none of this: it gets a result, or an error at the call's deadline.
//!
//! A call with AUTH_NONE or AUTH_SYS is encoded once. With another flavour each transmission is protected separately:
//! see [`security`](crate::security).
//!
//! Buffers: the client keeps the encoded call (its pieces are shared, not copied) until the answer arrives. The
//! caller's sink is returned with the answer or the error. If the deadline passes while the transport holds the sink,
//! the sink is not returned to the caller; it returns to its pool or owner when the transport drops it.

use std::{
    fmt,
    future::Future,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::{Region, SharedRegion};
use parking_lot::{Mutex, RwLock};
use tokio::{
    sync::{Notify, Semaphore, oneshot},
    time::{Instant, sleep, timeout},
};
use xdr::{Decode, DecodeError, Encode, Message};

use crate::{
    AcceptStat, Credential, Drain, EncodedCall, RejectStat, Reply, ReplyPlan, Server, Transport, TransportError,
    TransportKind, Xid,
    deadlines::Deadlines,
    request::{Auth, Request},
    security::{Channel, ProtectedCall, VerifiedReply},
    sent::{self, SentCall},
    server::Observers,
    signal::{SendOnDrop, Signal},
};

/// Settings of a [`Client`].
#[derive(Clone)]
pub struct ClientOptions {
    /// The program number.
    pub program: u32,
    /// The program version.
    pub version: u32,
    /// The credential of the caller.
    pub credential: Credential,
    /// Maximum time of a call, unless its [`CallOptions`] say otherwise. One minute by default.
    pub deadline: Duration,
    /// The time after which a call is retransmitted first, over a transport that loses messages. It doubles with each
    /// retransmission.
    pub retransmit: Duration,
    /// The pause after the first failed attempt to connect. It doubles with each failure.
    pub backoff_min: Duration,
    /// Maximum pause between attempts to connect.
    pub backoff_max: Duration,
    /// Maximum number of outstanding calls; further calls wait. Unlimited if `None`.
    pub calls_max: Option<usize>,
    /// The server that answers the peer's calls to this client, on the same connection.
    pub callbacks: Option<Arc<Server>>,
}

impl ClientOptions {
    /// Creates options for a program with AUTH_NONE and defaults for the rest.
    pub fn new(program: u32, version: u32) -> Self {
        Self {
            program,
            version,
            credential: Credential::None,
            deadline: Duration::from_secs(60),
            retransmit: Duration::from_millis(700),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            calls_max: None,
            callbacks: None,
        }
    }
}

/// Options of one call.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// Maximum time of the call; the client's default if `None`.
    pub deadline: Option<Duration>,
    /// The time from which the deadline counts; the start of the call if `None`. A caller that already knows the time saves
    /// the client from reading the clock.
    pub since: Option<Instant>,
    /// If `true`, the call fails with [`ClientError::Transport`] when its connection is lost, instead of being sent
    /// again over the next connection. This is for callers that have another connection, and a protocol that recognises
    /// the call there.
    pub once: bool,
    /// The time for which the call waits for a connection while the server refuses connections; until the deadline if `None`. The call
    /// then fails with [`ClientError::Transport`]. A server that does not answer an attempt at all does not refuse it.
    pub refused: Option<Duration>,
}

/// The results of a call, with the caller's region.
#[derive(Debug)]
pub struct Answer<R> {
    /// The decoded results. A payload in them that was placed in the sink is a view of the sink.
    pub results: R,
    /// The sink of the [`ReplyPlan`]. It becomes a [`Region`] again when the results are dropped.
    pub sink: Option<SharedRegion>,
}

/// The failure of a call, with the caller's region.
#[derive(Debug)]
pub struct CallFailed {
    /// The reason.
    pub error: ClientError,
    /// The sink of the [`ReplyPlan`]. Its content is unspecified. `None` if the transport still held it at the
    /// deadline.
    pub sink: Option<Region>,
}

impl From<CallFailed> for ClientError {
    fn from(failed: CallFailed) -> Self {
        failed.error
    }
}

/// The reason why a call has no results.
#[derive(Clone, Debug)]
pub enum ClientError {
    /// The server did not answer before the deadline. It can have executed the call.
    Deadline(Box<DeadlinePassed>),
    /// The first connection could not be opened, or the transport cannot carry the call.
    Transport(TransportError),
    /// The server denied the call.
    Denied(RejectStat),
    /// The server accepted the call but did not execute it.
    NotExecuted(AcceptStat),
    /// The server's reply could not be decoded.
    Decode(DecodeError),
    /// The call could not be protected, or its reply could not be verified.
    Security(String),
}

/// The call that was not answered before its deadline.
#[derive(Clone, Debug)]
pub struct DeadlinePassed {
    /// The address of the server.
    pub server: SocketAddr,
    /// The transport's name.
    pub transport: &'static str,
    /// The program, version and procedure.
    pub procedure: (u32, u32, u32),
    /// The time to the deadline, from the start of the call or from [`CallOptions::since`].
    pub after: Duration,
    /// The last error of the transport, if the connection was lost meanwhile.
    pub last: Option<TransportError>,
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Deadline(passed) => {
                let DeadlinePassed { server, transport, procedure: (program, version, procedure), after, last } =
                    &**passed;
                write!(f, "no answer from {server} over {transport} in {after:?}")?;
                write!(f, " (program {program}, version {version}, procedure {procedure})")?;
                if let Some(last) = last { write!(f, ": {last}") } else { Ok(()) }
            }
            ClientError::Transport(error) => error.fmt(f),
            ClientError::Denied(stat) => write!(f, "the server denied the call: {stat}"),
            ClientError::NotExecuted(stat) => write!(f, "the server did not execute the call: {stat}"),
            ClientError::Decode(error) => write!(f, "the server's reply could not be decoded: {error}"),
            ClientError::Security(problem) => write!(f, "security: {problem}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// A client that calls the procedures of a program. Clones share the connection, which is closed when the last clone is
/// dropped.
///
/// ```
/// # use std::sync::Arc;
/// use rpc::{CallOptions, Client, ClientError, ClientOptions, ReplyPlan, TcpKind};
///
/// # async fn run() -> Result<(), ClientError> {
/// let client = Client::connect(
///     Arc::new(TcpKind::default()),
///     ([127, 0, 0, 1], 2049).into(),
///     ClientOptions::new(100_003, 3),
/// )
/// .await?;
/// let null = client.call::<()>(0, &(), ReplyPlan::default(), CallOptions::default()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    link: Arc<Link>,
    program: u32,
    version: u32,
    auth: Auth,
    _stop: Arc<SendOnDrop>,
}

/// The connections over which a call is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lasting {
    /// The present connection.
    Connection,
    /// The present connection, or the next one.
    FirstConnection,
    /// One connection after the other.
    AllConnections,
}

struct Link {
    kind: Arc<dyn TransportKind>,
    server: SocketAddr,
    options: ClientOptions,
    next_xid: AtomicU32,
    current: RwLock<Current>,
    /// Notified when `current` is replaced, and when an attempt to connect has failed. It wakes calls in the order in which they
    /// began to wait, so simulations can be repeated.
    changed: Notify,
    /// The number of calls that wait for a connection.
    waiting: AtomicUsize,
    wanted: Notify,
    /// `true` if the current connection has delivered an answer.
    answered: Arc<AtomicBool>,
    last_error: Mutex<Option<TransportError>>,
    permits: Option<Semaphore>,
    /// Limits the calls over a transport that loses messages: it loses more of them the more are in flight.
    lossy_permits: Semaphore,
    deadlines: Deadlines,
}

#[derive(Clone, Default)]
struct Current {
    transport: Option<Arc<dyn Transport>>,
    /// The number of connections so far.
    generation: u64,
}

impl Client {
    /// Connects to `server`. A task of the current tokio runtime drives the connection.
    ///
    /// # Errors
    /// The first connection could not be opened. The client retries later connections until the deadlines of the calls
    /// that wait.
    pub async fn connect(
        kind: Arc<dyn TransportKind>,
        server: SocketAddr,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let transport = kind.connect(server).await.map_err(ClientError::Transport)?;
        Ok(Self::start(kind, server, options, Some(transport)))
    }

    /// Creates a client that connects at its first call and retries until the deadlines of the calls that wait.
    pub fn new(kind: Arc<dyn TransportKind>, server: SocketAddr, options: ClientOptions) -> Self {
        Self::start(kind, server, options, None)
    }

    fn start(
        kind: Arc<dyn TransportKind>,
        server: SocketAddr,
        options: ClientOptions,
        transport: Option<Arc<dyn Transport>>,
    ) -> Self {
        let (program, version) = (options.program, options.version);
        let auth = Auth::new(&options.credential);
        // Only callers keep the flavour: it ends with them, before their connection.
        let options = ClientOptions { credential: Credential::None, ..options };
        let current = Current { generation: u64::from(transport.is_some()), transport };
        let link = Arc::new(Link {
            kind,
            server,
            // Random, so that XIDs are unpredictable and differ from those of an earlier process of this client.
            next_xid: AtomicU32::new(entropy::random()),
            current: RwLock::new(current),
            changed: Notify::new(),
            waiting: AtomicUsize::new(0),
            wanted: Notify::new(),
            answered: Arc::default(),
            last_error: Mutex::new(None),
            permits: options.calls_max.map(Semaphore::new),
            lossy_permits: Semaphore::new(LOSSY_CALLS_MAX),
            deadlines: Deadlines::default(),
            options,
        });
        let stop = Signal::default();
        tokio::spawn(link.clone().run(stop.clone()));
        Self { link, program, version, auth, _stop: Arc::new(SendOnDrop(stop)) }
    }

    /// Returns a client for another program that shares the connection.
    pub fn with_program(&self, program: u32, version: u32) -> Self {
        Self { program, version, ..self.clone() }
    }

    /// Returns a client for another caller that shares the connection.
    pub fn with_credential(&self, credential: &Credential) -> Self {
        Self { auth: Auth::new(credential), ..self.clone() }
    }

    /// Returns the address of the server.
    pub fn server(&self) -> SocketAddr {
        self.link.server
    }

    /// Returns the current connection, if there is one. Buffers for payloads should come from its pool.
    pub fn transport(&self) -> Option<Arc<dyn Transport>> {
        self.link.current.read().transport.clone()
    }

    /// Returns `true` if there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.link.current.read().transport.is_some()
    }

    /// Waits until there is a connection. Has no deadline; the caller has to set one.
    pub async fn connected(&self) {
        self.link.connected(0).await;
    }

    /// Waits until there is a connection. `refused` is that of [`CallOptions`]; there is no other deadline.
    ///
    /// # Errors
    /// Returns the error of the last attempt to connect.
    pub async fn connected_unless_refused(&self, refused: Duration) -> Result<(), TransportError> {
        self.link.connected_unless_refused(0, Some(refused)).await.map(drop)
    }

    /// Returns the number of connections so far. Calls that are made from now on use this connection, if there is one now, or a later
    /// one.
    pub fn generation(&self) -> u64 {
        self.link.current.read().generation
    }

    /// Waits until the connection with this number is lost. Returns at once if there is no connection.
    pub async fn lost(&self, generation: u64) {
        loop {
            let mut changed = pin!(self.link.changed.notified());
            changed.as_mut().enable();
            let is_current = {
                let current = self.link.current.read();
                current.generation == generation && current.transport.is_some()
            };
            if !is_current {
                return;
            }
            changed.await;
        }
    }

    /// Closes the connection at once, because the server does not answer over it. Its calls are sent again over the next connection,
    /// or fail if they end with their connection.
    pub fn reset(&self) {
        if let Some(transport) = self.transport() {
            transport.abort();
        }
    }

    /// Returns the output of `future`, or `None` if the deadline passes first. All futures of a client share one timer.
    /// The client's task ends with its runtime; then every deadline passes.
    pub fn within<'a, F: Future>(
        &'a self,
        deadline: Instant,
        future: Pin<&'a mut F>,
    ) -> impl Future<Output = Option<F::Output>> + 'a {
        self.link.deadlines.within(deadline, future)
    }

    /// Calls `procedure`. `plan` describes the reply: see [`ReplyPlan`]. Its default fits replies without a payload
    /// that are short enough for any transport.
    ///
    /// Dropping the future cancels the call.
    ///
    /// # Errors
    /// Fails with a [`ClientError`] if the server does not answer in time, or does not execute the call.
    pub async fn call<R: Decode>(
        &self,
        procedure: u32,
        arguments: &impl Encode,
        plan: ReplyPlan,
        options: CallOptions,
    ) -> Result<Answer<R>, CallFailed> {
        self.send(self.encode(procedure, arguments), plan, options).await
    }

    /// Encodes a call. Unlike [`call`](Self::call), the future of [`send`](Self::send) does not borrow the arguments.
    pub fn encode(&self, procedure: u32, arguments: &impl Encode) -> EncodedCall {
        let xid = self.link.next_xid();
        let message = self.auth.encode(xid, (self.program, self.version, procedure), arguments);
        EncodedCall { xid, procedure, message }
    }

    /// Sends a call that this client has encoded, like [`call`](Self::call).
    ///
    /// # Errors
    /// Fails with a [`ClientError`] if the server does not answer in time, or does not execute the call.
    pub async fn send<R: Decode>(
        &self,
        call: EncodedCall,
        plan: ReplyPlan,
        options: CallOptions,
    ) -> Result<Answer<R>, CallFailed> {
        let EncodedCall { xid, procedure, message } = call;
        let request = self.auth.request(xid, (self.program, self.version, procedure), message);
        let VerifiedReply { reply, is_bare } = self.exchange(procedure, request, plan, options).await?;
        sent::results(reply, is_bare)
    }

    /// Sends a call that this client has encoded. The call has no deadline, and ends with the present connection: it fails
    /// with [`ClientError::Transport`] when that is lost, or at once if there is none. The caller bounds the call, for
    /// example with [`within`](Self::within).
    pub fn send_while_connected<R: Decode>(&self, call: EncodedCall, plan: ReplyPlan) -> SentCall<R> {
        let EncodedCall { xid, procedure, message } = call;
        if matches!(self.auth, Auth::Plain(_))
            && self.link.permits.is_none()
            && let Some((_, transport)) = self.link.ready(0)
            && !transport.caps().lossy
        {
            return SentCall::direct(transport.call(message, plan), self.link.answered.clone());
        }
        let (client, mut plan) = (self.clone(), plan);
        SentCall::exchange(async move {
            let request = client.auth.request(xid, (client.program, client.version, procedure), message);
            let exchanged = client.link.exchange(request, &mut plan, &mut None, (Lasting::Connection, None)).await;
            exchanged.map_err(|error| CallFailed { error, sink: plan.sink })
        })
    }

    /// Sends a call until it is answered or its deadline passes.
    async fn exchange(
        &self,
        procedure: u32,
        request: Request<'_>,
        mut plan: ReplyPlan,
        options: CallOptions,
    ) -> Result<VerifiedReply, CallFailed> {
        let mut last = None;
        let after = options.deadline.unwrap_or(self.link.options.deadline);
        let lasting = if options.once { Lasting::FirstConnection } else { Lasting::AllConnections };
        let outcome = {
            // The future is passed by reference, so that it is not moved.
            let exchange = pin!(self.link.exchange(request, &mut plan, &mut last, (lasting, options.refused)));
            let since = options.since.unwrap_or_else(Instant::now);
            self.link.deadlines.within(since + after, exchange).await
        };
        let error = match outcome {
            Some(Ok(reply)) => return Ok(reply),
            Some(Err(error)) => error,
            None => ClientError::Deadline(Box::new(DeadlinePassed {
                server: self.link.server,
                transport: self.link.kind.name(),
                procedure: (self.program, self.version, procedure),
                after,
                last: self.link.last_error.lock().clone().or(last),
            })),
        };
        Err(CallFailed { error, sink: plan.sink })
    }
}

impl Link {
    /// Sends a call on one connection after the other. The sink is in `plan` whenever no transport holds it.
    async fn exchange(
        &self,
        request: Request<'_>,
        plan: &mut ReplyPlan,
        last: &mut Option<TransportError>,
        (lasting, refused): (Lasting, Option<Duration>),
    ) -> Result<VerifiedReply, ClientError> {
        let _permit = match &self.permits {
            Some(permits) => Some(permits.acquire().await.expect("semaphore must not be closed")),
            None => None,
        };
        let mut failed = 0;
        loop {
            let (generation, transport) = match (self.ready(failed), lasting) {
                (Some(ready), _) => ready,
                (None, Lasting::Connection) => return Err(ClientError::Transport(self.not_connected())),
                (None, Lasting::FirstConnection | Lasting::AllConnections) => {
                    self.connected_unless_refused(failed, refused).await.map_err(ClientError::Transport)?
                }
            };
            let outcome = match &request {
                Request::Plain(message) => {
                    let reply = match transport.caps().lossy {
                        true => self.call_until_answered(&transport, message, plan).await,
                        // The same as `attempt`, without the state of another future.
                        false => {
                            let reply = transport.call(message.clone(), plan.take()).await;
                            reply.map_err(|failed| failed.return_sink(plan))
                        }
                    };
                    reply.map(|reply| VerifiedReply { reply, is_bare: false }).map_err(ClientError::Transport)
                }
                Request::Protected(call) => Box::pin(self.exchange_protected(&transport, call, plan)).await,
            };
            match outcome {
                Ok(reply) => {
                    self.answered.store(true, Relaxed);
                    return Ok(reply);
                }
                Err(ClientError::Transport(error))
                    if lasting == Lasting::AllConnections && error.is_of_connection() =>
                {
                    *last = Some(error);
                    failed = generation;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn exchange_protected(
        &self,
        transport: &Arc<dyn Transport>,
        call: &ProtectedCall<'_>,
        plan: &mut ReplyPlan,
    ) -> Result<VerifiedReply, ClientError> {
        let _permit = match transport.caps().lossy {
            true => Some(self.lossy_permits.acquire().await.expect("semaphore must not be closed")),
            false => None,
        };
        let (program, version, _) = call.target;
        let (next_xid, retransmit) = (&|| self.next_xid(), self.options.retransmit);
        call.exchange(Channel { transport, next_xid, program: (program, version), retransmit }, plan).await
    }

    fn next_xid(&self) -> Xid {
        Xid(self.next_xid.fetch_add(1, Relaxed))
    }

    /// Waits for a connection with a generation later than `failed`.
    async fn connected(&self, failed: u64) -> (u64, Arc<dyn Transport>) {
        let connected = self.connected_unless_refused(failed, None).await;
        connected.expect("only a limit can end the wait")
    }

    /// Waits for a connection with a generation later than `failed`. If attempts to connect fail for the time `refused`, returns the
    /// error of the last one.
    async fn connected_unless_refused(
        &self,
        failed: u64,
        refused: Option<Duration>,
    ) -> Result<(u64, Arc<dyn Transport>), TransportError> {
        if let Some(now) = self.ready(failed) {
            return Ok(now);
        }
        let _waiting = Waiting::new(self);
        let mut limit = pin!(refused.map(sleep));
        let mut has_passed = false;
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(now) = self.ready(failed) {
                return Ok(now);
            }
            if has_passed && let Some(error @ TransportError::Connect(_)) = &*self.last_error.lock() {
                return Err(error.clone());
            }
            match limit.as_mut().as_pin_mut() {
                Some(limit) if !has_passed => tokio::select! {
                    biased;
                    () = changed => {}
                    () = limit => has_passed = true,
                },
                _ => changed.await,
            }
        }
    }

    /// Returns the error of a call that does not wait for a connection.
    fn not_connected(&self) -> TransportError {
        let last = self.last_error.lock().clone();
        last.filter(TransportError::is_of_connection)
            .unwrap_or_else(|| TransportError::Lost("the connection is not established".to_owned()))
    }

    fn ready(&self, failed: u64) -> Option<(u64, Arc<dyn Transport>)> {
        let current = self.current.read();
        let transport = current.transport.as_ref().filter(|_| current.generation > failed)?;
        Some((current.generation, transport.clone()))
    }

    /// Retransmits a call with the same XID after increasing times, over a transport that loses messages.
    async fn call_until_answered(
        &self,
        transport: &Arc<dyn Transport>,
        message: &Message,
        plan: &mut ReplyPlan,
    ) -> Result<Reply, TransportError> {
        let _permit = self.lossy_permits.acquire().await.expect("semaphore must not be closed");
        let mut pause = self.options.retransmit;
        loop {
            // Cancelling a call drops its sink, so the sink stays here. The results share the memory of the received
            // message.
            let sink = plan.sink.take();
            let outcome = timeout(pause, attempt(transport, message.clone(), plan)).await;
            plan.sink = sink;
            match outcome {
                Ok(Ok(reply)) => return Ok(Reply { sink: plan.sink.take().map(SharedRegion::from), ..reply }),
                Ok(Err(error)) => return Err(error),
                Err(_) => pause = (pause * 2).min(RETRANSMIT_MAX),
            }
        }
    }

    /// Keeps the client connected and ends its calls at their deadlines, until `stopped` is sent.
    async fn run(self: Arc<Self>, stopped: Signal) {
        tokio::select! {
            biased;
            () = self.stay_connected(stopped) => {}
            () = self.deadlines.run() => {}
        }
    }

    /// Keeps the client connected while calls wait for a connection.
    async fn stay_connected(&self, stopped: Signal) {
        let server = self.options.callbacks.clone().unwrap_or_else(|| Server::builder().build());
        let drain = Drain::when(stopped.clone());
        let mut backoff = self.options.backoff_min;
        loop {
            let connected = self.current.read().transport.clone();
            let outcome = match connected {
                Some(transport) => {
                    self.answered.store(false, Relaxed);
                    let (tell, over) = oneshot::channel();
                    let (server, drain) = (server.clone(), drain.clone());
                    // The server's calls that are in progress when the connection is lost must not delay the next
                    // connection.
                    tokio::spawn(async move {
                        server.serve_with(transport, drain, Observers { tell: Some(tell), place: None }).await
                    });
                    Err(over.await.unwrap_or_else(|_| TransportError::Lost("the runtime is shutting down".to_owned())))
                }
                None => until(&stopped, self.connect()).await.unwrap_or(Ok(())),
            };
            if stopped.is_sent() {
                return;
            }
            let Err(error) = outcome else { continue };
            tracing::debug!(server = %self.server, %error, "the connection failed");
            *self.last_error.lock() = Some(error);
            self.current.write().transport = None;
            self.changed.notify_waiters();
            if self.answered.swap(false, Relaxed) {
                backoff = self.options.backoff_min;
                continue;
            }
            until(&stopped, sleep(backoff)).await;
            backoff = (backoff * 2).min(self.options.backoff_max);
        }
    }

    /// Connects as soon as a call waits for a connection.
    async fn connect(&self) -> Result<(), TransportError> {
        while self.waiting.load(Relaxed) == 0 {
            self.wanted.notified().await;
        }
        let transport = self.kind.connect(self.server).await?;
        *self.last_error.lock() = None;
        {
            let mut current = self.current.write();
            current.generation += 1;
            current.transport = Some(transport);
        }
        self.changed.notify_waiters();
        Ok(())
    }
}

/// Makes a call once. If it fails, the sink is in `plan` again.
pub(crate) async fn attempt(
    transport: &Arc<dyn Transport>,
    message: Message,
    plan: &mut ReplyPlan,
) -> Result<Reply, TransportError> {
    transport.clone().call(message, plan.take()).await.map_err(|failed| failed.return_sink(plan))
}

/// Runs `work` until it completes, or returns `None` when the client stops.
async fn until<T>(stopped: &Signal, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = stopped.wait() => None,
    }
}

/// Counts a call that waits for a connection.
struct Waiting<'a>(&'a Link);

impl<'a> Waiting<'a> {
    fn new(link: &'a Link) -> Self {
        link.waiting.fetch_add(1, Relaxed);
        link.wanted.notify_one();
        Self(link)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

pub(crate) const RETRANSMIT_MAX: Duration = Duration::from_secs(10);
/// Maximum number of calls in flight over a transport that loses messages. The receive buffer of the other side holds
/// so many, with room for other senders.
const LOSSY_CALLS_MAX: usize = 16;
