//! [`Link`] and [`Program`]: RPC calls whose errors name the operation and the server.

use std::{
    future::Future,
    net::SocketAddr,
    num::NonZeroU32,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::{Pool, SharedRegion};
use rpc::{
    Answer, CallFailed, CallOptions, Client, ClientError, ClientOptions, EncodedCall, ReplyPlan, SentCall,
    TransportKind,
};
use tokio::time::{Instant, timeout, timeout_at};
use xdr::{Decode, Encode};

use super::{Deadline, backoff::Notice, credential::Credentials};
use crate::model::{Caller, Error, ErrorKind, MountOptions, Result};

/// A connection to a server, which is made again when it is lost. Clones share it.
#[derive(Clone)]
pub(crate) struct Link {
    /// They end before the client, so that their flavours can still use its connection.
    credentials: Arc<Credentials>,
    client: Client,
    /// The pool of the transport. A new connection has the same pool.
    pool: Pool,
    message_max: usize,
    /// Set while a background task makes the connection.
    connecting: Arc<AtomicBool>,
    notice: Arc<Notice>,
}

impl Link {
    /// Connects to `server`, whose host name is `host`. `callbacks` answers the calls that the server makes.
    pub async fn connect(
        kind: Arc<dyn TransportKind>,
        (server, host): (SocketAddr, &str),
        options: &MountOptions,
        callbacks: Option<Arc<rpc::Server>>,
    ) -> Result<Self> {
        // `Link::client.with_program` sets program and version for each use.
        let failed = |kind| Error::new(kind, "connect").on(&server.to_string().into());
        let credentials = Credentials::new(options, host).map_err(|error| failed(ErrorKind::Rpc(error)))?;
        let client_options =
            ClientOptions { credential: credentials.own().clone(), callbacks, ..ClientOptions::new(0, 0) };
        let connected = timeout(options.deadline, Client::connect(kind, server, client_options)).await;
        let client = match connected {
            Err(_) => return Err(failed(ErrorKind::Timeout { after: options.deadline, last: None })),
            Ok(Err(error)) => return Err(failed(ErrorKind::Rpc(error))),
            Ok(Ok(client)) => client,
        };
        let (pool, message_max) = match client.transport() {
            Some(transport) => (transport.pool().clone(), transport.caps().message_max),
            None => return Err(failed(ErrorKind::Rpc(ClientError::Transport(lost())))),
        };
        let credentials = Arc::new(credentials);
        Ok(Self { client, pool, message_max, connecting: Arc::default(), notice: Arc::default(), credentials })
    }
}

fn lost() -> rpc::TransportError {
    rpc::TransportError::Lost("right after it was established".to_owned())
}

/// One program of a server. Its calls have a deadline.
#[derive(Clone)]
pub(crate) struct Program {
    link: Link,
    number: u32,
    server: Arc<str>,
    timeout: Duration,
    /// The milliseconds for which a call waits while the server refuses connections; until its deadline if `None`. A number is
    /// smaller than a `Duration`, and programs are in the values of files.
    refused_ms: Option<NonZeroU32>,
}

impl Program {
    pub fn new(link: Link, number: u32, version: u32, server: Arc<str>, timeout: Duration) -> Self {
        let link = Link { client: link.client.with_program(number, version), ..link };
        Self { link, number, server, timeout, refused_ms: None }
    }

    /// Returns another program on the same connection, for the same user.
    pub fn sibling(&self, number: u32, version: u32) -> Self {
        let link = Link { client: self.link.client.with_program(number, version), ..self.link.clone() };
        Self { link, number, ..self.clone() }
    }

    pub fn with_deadline(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Returns the same program, whose calls wait for at most this time while the server refuses connections.
    pub fn unless_refused(self, refused: Duration) -> Self {
        let ms = u32::try_from(refused.as_millis()).unwrap_or(u32::MAX).max(1);
        Self { refused_ms: NonZeroU32::new(ms), ..self }
    }

    fn refused(&self) -> Option<Duration> {
        self.refused_ms.map(|ms| Duration::from_millis(ms.get().into()))
    }

    /// Returns the same program with the credential of a caller, or of the mount's user.
    pub fn with_caller(&self, caller: Option<&Caller>) -> Self {
        let client = self.link.client.with_credential(&self.link.credentials.of(caller));
        Self { link: Link { client, ..self.link.clone() }, ..self.clone() }
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the server's name, for error and log messages.
    pub fn server(&self) -> &Arc<str> {
        &self.server
    }

    pub fn pool(&self) -> &Pool {
        &self.link.pool
    }

    pub fn message_max(&self) -> usize {
        self.link.message_max
    }

    /// Returns the time that the server may be silent.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the deadline of an operation that begins now.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.timeout)
    }

    /// Returns the object that warns the user when the server keeps asking to retry later.
    pub fn notice(&self) -> &Notice {
        &self.link.notice
    }

    /// Calls `procedure`. Returns the sink of `plan`, unless the transport still holds it at the deadline.
    // Inlined, because the future would otherwise be copied to its place in that of the caller.
    #[inline]
    pub fn call<A: Encode, R: Decode>(
        &self,
        procedure: u32,
        name: &'static str,
        arguments: &A,
        plan: ReplyPlan,
        deadline: &Deadline,
    ) -> impl Future<Output = (Result<R>, Option<SharedRegion>)> {
        self.call_with(procedure, name, arguments, plan, period(deadline, false))
    }

    /// Calls `procedure` like [`call`](Self::call), but fails when the connection is lost instead of sending the call
    /// again.
    pub fn call_once<A: Encode, R: Decode>(
        &self,
        procedure: u32,
        name: &'static str,
        arguments: &A,
        plan: ReplyPlan,
        deadline: &Deadline,
    ) -> impl Future<Output = (Result<R>, Option<SharedRegion>)> {
        self.call_with(procedure, name, arguments, plan, period(deadline, true))
    }

    /// Encodes a call for [`send_while_connected`](Self::send_while_connected).
    pub fn encode<A: Encode>(&self, procedure: u32, arguments: &A) -> EncodedCall {
        self.link.client.encode(procedure, arguments)
    }

    /// Sends a call over the present connection, without a deadline: the call ends when the server has answered or the
    /// connection is lost. It fails at once if there is no connection.
    pub fn send_while_connected<R: Decode>(&self, call: EncodedCall, plan: ReplyPlan) -> SentCall<R> {
        self.link.client.send_while_connected(call, plan)
    }

    /// Returns the present connection, if there is one.
    pub fn transport(&self) -> Option<Arc<dyn rpc::Transport>> {
        self.link.client.transport()
    }

    /// Closes the connection at once. Its calls are sent again over the next one, or fail.
    pub fn reset(&self) {
        self.link.client.reset();
    }

    /// Returns the output of `future`, or `None` if the deadline passes first.
    pub fn within<'a, F: Future>(
        &'a self,
        deadline: &Deadline,
        future: Pin<&'a mut F>,
    ) -> impl Future<Output = Option<F::Output>> + 'a {
        self.link.client.within(deadline.at(), future)
    }

    /// Calls NULL over the new connection, to check that the server speaks RPC. If the connection is lost, it is made
    /// again up to [`PINGS_MAX`] times. Then this fails, because whatever listens at the port does not speak RPC over
    /// this transport, and later calls would reconnect until their deadline.
    ///
    /// # Errors
    /// The connection is lost each time, the server does not answer before the deadline, or the user cannot be
    /// authenticated. It is not an error if the server refuses the call.
    pub async fn pinged(self) -> Result<Self> {
        let deadline = self.deadline();
        let mut attempts = 1;
        loop {
            let null = self.call_once::<(), ()>(NULL, "NULL", &(), ReplyPlan::default(), &deadline).await.0;
            match null {
                Err(error) if error.is_lost() && attempts < PINGS_MAX => attempts += 1,
                Err(error) if error.is_unanswered() || error.is_security() => return Err(error),
                _ => return Ok(self),
            }
        }
    }

    /// Returns `true` if the connection is established.
    pub fn is_connected(&self) -> bool {
        self.link.client.is_connected()
    }

    /// Returns the number of connections so far.
    pub fn generation(&self) -> u64 {
        self.link.client.generation()
    }

    /// Waits until the connection with this number is lost.
    pub fn lost(&self, generation: u64) -> impl Future<Output = ()> + '_ {
        self.link.client.lost(generation)
    }

    /// Waits until the connection is established. Returns `false` if the server refuses connections for longer than calls wait.
    pub async fn connected(&self) -> bool {
        match self.refused() {
            Some(refused) => self.link.client.connected_unless_refused(refused).await.is_ok(),
            None => {
                self.link.client.connected().await;
                true
            }
        }
    }

    /// Starts to make the connection in a background task, for later calls.
    pub fn connect_in_background(&self, deadline: Instant) {
        if !self.link.connecting.swap(true, Relaxed) {
            let link = self.link.clone();
            tokio::spawn(async move {
                let _ = timeout_at(deadline, link.client.connected()).await;
                link.connecting.store(false, Relaxed);
            });
        }
    }

    /// Returns the timeout error of a call that had no connection until its deadline.
    pub fn timeout_error(&self, name: &'static str) -> Error {
        Error::new(ErrorKind::Timeout { after: self.timeout, last: None }, name).on(&self.server)
    }

    async fn call_with<A: Encode, R: Decode>(
        &self,
        procedure: u32,
        name: &'static str,
        arguments: &A,
        plan: ReplyPlan,
        (since, left, once): (Option<Instant>, Duration, bool),
    ) -> (Result<R>, Option<SharedRegion>) {
        let options = CallOptions { deadline: Some(left), since, once, refused: self.refused() };
        self.returned(self.link.client.call(procedure, arguments, plan, options).await, name)
    }

    /// Converts the result of a call to the operation `name`.
    pub fn returned<R>(
        &self,
        result: std::result::Result<Answer<R>, CallFailed>,
        name: &'static str,
    ) -> (Result<R>, Option<SharedRegion>) {
        match result {
            Ok(Answer { results, sink }) => (Ok(results), sink),
            Err(CallFailed { error, sink }) => (Err(self.error(error, name)), sink.map(SharedRegion::from)),
        }
    }

    fn error(&self, error: ClientError, name: &'static str) -> Error {
        let kind = match error {
            ClientError::Deadline(passed) => ErrorKind::Timeout { after: self.timeout, last: passed.last },
            ClientError::Decode(error) => ErrorKind::Protocol(error.to_string()),
            error => ErrorKind::Rpc(error),
        };
        Error::new(kind, name).on(&self.server)
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "program {} on {}", self.number, self.server)
    }
}

/// Returns the bounds of a call with a deadline: its start, the time from then to the deadline, and `once`.
fn period(deadline: &Deadline, once: bool) -> (Option<Instant>, Duration, bool) {
    (Some(deadline.start()), deadline.at() - deadline.start(), once)
}

/// The NULL procedure, which every program has (RFC 5531 §12.1).
const NULL: u32 = 0;
/// Maximum attempts to call NULL over a connection that is lost each time, before a mount fails.
const PINGS_MAX: u32 = 5;
