//! [`Server`]: a set of programs, and the loop that serves them on a connection.
//!
//! One task serves one connection: it drives the transport and polls each new call once in place. Most calls complete
//! in that poll, and their replies leave together when the transport flushes. The task continues to poll the others. No
//! call has a task of its own.
//!
//! If the connection fails, calls in progress are executed to their end, so that a caller that reconnects finds their
//! replies in the duplicate request cache. A panic in a service fails only that call, with SYSTEM_ERR.

use std::{
    any::Any,
    future::{Future, poll_fn},
    net::SocketAddr,
    num::NonZeroU64,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use entropy::Sequence;
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{sync::oneshot, time::Instant};
use xdr::{Decoder, Encode, Encoder, Message};

use crate::{
    AcceptError, AcceptStat, Answering, BoxFuture, Call, CallHeader, ConnectionId, Hosts, IncomingCall, RejectStat,
    ReplyBody, ReplyHeader, ReplyToken, Reverse, Service, Signal, Transport, TransportError, Xid,
    connections::Place,
    counters::{Bytes, ProcedureStats},
    drc::{Admission, Drc, DrcOptions, Execution},
    idle::Idle,
    programs::{Programs, Target},
    rate::Rate,
    security::{
        Accepted, Authentication, Claim, ConnectionIdentity, Executed, Flavors, Reply, ServerFlavor, Tampered, Verdict,
        unwrap_arguments,
    },
    turns::Turn,
};

/// A set of programs that is served on any number of connections of any transports.
///
/// ```
/// # use rpc::{Server, Service};
/// # fn run(echo: impl Service, time: impl Service) {
/// let server = Server::builder().service(echo).service(time).build();
/// # }
/// ```
pub struct Server {
    programs: Programs,
    flavors: Flavors,
    drc: Arc<Drc>,
    limits: Limits,
    rate: Option<Rate>,
    hosts: Hosts,
}

/// Limits of a [`Server`] for each connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of calls of one connection in progress. At this limit, the server stops reading its calls.
    pub calls_max: usize,
    /// Maximum bytes of these calls. At this limit, the server stops reading, too.
    pub bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { calls_max: 512, bytes_max: 64 << 20 }
    }
}

/// A builder of a [`Server`].
#[derive(Default)]
pub struct ServerBuilder {
    services: Vec<Arc<dyn Service>>,
    flavors: Vec<Arc<dyn ServerFlavor>>,
    drc: DrcOptions,
    limits: Limits,
    rate: Option<NonZeroU64>,
    hosts: Hosts,
}

impl ServerBuilder {
    /// Adds a program. Several services can have the same program number with different versions.
    pub fn service(self, service: impl Service) -> Self {
        self.shared(Arc::new(service))
    }

    /// Adds a program that other owners share.
    pub fn shared(mut self, service: Arc<dyn Service>) -> Self {
        self.services.push(service);
        self
    }

    /// Adds a security flavour to AUTH_NONE and AUTH_SYS. Callers with other flavours are rejected with
    /// AUTH_REJECTEDCRED.
    pub fn flavor(mut self, flavor: Arc<dyn ServerFlavor>) -> Self {
        self.flavors.push(flavor);
        self
    }

    /// Sets the limits of the duplicate request cache.
    pub fn drc(mut self, options: DrcOptions) -> Self {
        self.drc = options;
        self
    }

    /// Sets the limits of the server.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Limits the bytes of all calls and replies together in one second: replies wait until a link of that speed would have passed
    /// them. By default there is no limit.
    pub fn rate(mut self, bytes_per_s: Option<NonZeroU64>) -> Self {
        self.rate = bytes_per_s;
        self
    }

    /// Sets the admitted hosts. [`Workers`](crate::Workers) give all other hosts fewer resources. By default no host is
    /// admitted.
    pub fn hosts(mut self, hosts: Hosts) -> Self {
        self.hosts = hosts;
        self
    }

    /// Builds the server.
    ///
    /// # Panics
    /// If two flavours have the same number, or a flavour has the number of AUTH_NONE or AUTH_SYS.
    pub fn build(self) -> Arc<Server> {
        let Self { services, flavors, drc, limits, rate, hosts } = self;
        let (programs, flavors) = (Programs::new(services), Flavors::new(flavors));
        Arc::new(Server { programs, flavors, drc: Drc::new(drc), limits, rate: rate.map(Rate::new), hosts })
    }
}

/// The signal that makes connections drain.
#[derive(Clone, Debug, Default)]
pub struct Drain(Option<Signal>);

impl Drain {
    /// Creates a signal that is never sent.
    pub fn never() -> Self {
        Self(None)
    }

    /// Makes connections drain when `signal` is sent.
    pub fn when(signal: Signal) -> Self {
        Self(Some(signal))
    }

    /// Waits for the signal.
    pub async fn wait(&self) {
        match &self.0 {
            Some(signal) => signal.wait().await,
            None => std::future::pending().await,
        }
    }
}

impl Server {
    /// Creates a builder.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Returns the statistics of every procedure, in the order in which services were added.
    pub fn stats(&self) -> Vec<ProcedureStats> {
        self.programs.stats()
    }

    /// Returns the numbers and versions of all programs.
    pub fn programs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.programs.list()
    }

    /// Serves one connection until it is closed, and returns the reason. This is the driver of the transport.
    ///
    /// After the signal of `drain`, no further call is accepted, and the connection is closed when all calls in
    /// progress have been answered.
    pub async fn serve(&self, transport: Arc<dyn Transport>, drain: Drain) -> TransportError {
        self.serve_with(transport, drain, Observers::default()).await
    }

    /// Returns the admitted hosts.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Serves a connection with observers.
    pub(crate) async fn serve_with(
        &self,
        transport: Arc<dyn Transport>,
        drain: Drain,
        Observers { tell, mut place }: Observers,
    ) -> TransportError {
        let connection = Served::new(&self.programs, &transport, &self.hosts);
        let mut drained = std::pin::pin!(drain.wait());
        let mut serving = Serving::new(self, &*transport, |call| self.answer(&connection, &transport, call));
        serving.tell = tell;
        place.iter_mut().for_each(Place::expect_call);
        serving.place = place;
        poll_fn(|cx| {
            if !serving.draining && drained.as_mut().poll(cx).is_ready() {
                serving.draining = true;
            }
            serving.poll(cx)
        })
        .await
    }

    /// Answers one call that arrived at `arrived`. Returns the procedure if one was executed.
    async fn answer(
        &self,
        connection: &Served<'_>,
        transport: &Arc<dyn Transport>,
        (incoming, arrived): (IncomingCall, Instant),
    ) -> Option<Answered> {
        // Long: the steps of a call in their order, and each can end it.
        let IncomingCall { message, token, peer } = incoming;
        let mut arguments = Decoder::new(&message);
        let header = match CallHeader::decode(&mut arguments) {
            Ok(header) => header,
            Err(error) => {
                tracing::debug!(%peer, ?error, "a call header could not be decoded");
                send(&**transport, token, error.reply());
                return None;
            }
        };
        let identity = ConnectionIdentity::new(connection.id, &**transport);
        let signed = &message.stream[..header.signed_len()];
        let (arguments_of, hosts) = (arguments.clone(), &self.hosts);
        let claim = Claim { header: &header, signed, arguments: arguments_of, peer, connection: identity, hosts };
        let verdict = match self.flavors.authenticate(claim) {
            Authentication::Ready(verdict) => verdict,
            Authentication::Pending(verdict) => verdict.await,
        };
        let Accepted { caller, protection } = match verdict {
            Verdict::Accepted(accepted) => accepted,
            refused => {
                send(&**transport, token, reply_to_refused(&header, peer, refused));
                return None;
            }
        };
        let protection = protection.as_deref();
        let reply = Reply { xid: header.xid, protection, message_max: transport.caps().message_max };
        let send_executed = |token, executed: Option<Executed>| {
            send(&**transport, token, executed.and_then(|executed| reply.transmission(executed)));
        };
        let wrapping = protection.filter(|protection| protection.wraps());
        let clear;
        if let Some(protection) = wrapping {
            match unwrap_arguments(protection, &message, &arguments) {
                Ok(unwrapped) => clear = unwrapped,
                Err(Tampered) => {
                    tracing::debug!(%peer, "arguments could not be verified");
                    send_executed(token, Some(Executed::Failed(AcceptStat::GarbageArgs)));
                    return None;
                }
            }
            arguments = Decoder::new(&clear);
        }
        let (service, target) = match self.programs.find(&header, transport.caps().lossy) {
            Ok(found) => found,
            Err(stat) => {
                tracing::debug!(%peer, program = header.program, version = header.version, procedure = header.procedure,
                    ?stat, "a call was not executed");
                send_executed(token, Some(not_found(&header, stat)));
                return None;
            }
        };
        let mut execution = None;
        if !service.is_idempotent(&target.procedure, &arguments) && self.caches_calls_of(connection, peer) {
            let len = arguments.message_len() - arguments.position();
            let tls = transport.tls().level();
            let key = self.drc.key(&header, (&caller, peer, tls), (&message.stream, arguments.rest()), len);
            match self.drc.admit(key, arrived) {
                Admission::Execute(admitted) => execution = Some(admitted),
                Admission::Replay(executed) => {
                    send_executed(token, Some(executed));
                    return None;
                }
                Admission::Wait(executed) => {
                    send_executed(token, executed.await.ok());
                    return None;
                }
                Admission::Drop => {
                    transport.forget(token);
                    return None;
                }
            }
        }
        let CallHeader { xid, version, procedure, .. } = header;
        let (caller, is_wrapped, connection) = (&caller, wrapping.is_some(), connection.id);
        let at = arrived.into_std();
        let call =
            Call { xid, version, procedure, caller, is_wrapped, peer, arrived: at, connection, transport, arguments };
        let (result, has_waited) = match catch_unwind(AssertUnwindSafe(|| service.call(call))) {
            Ok(Answering::Ready(result)) => (Ok(result), false),
            Ok(Answering::Pending(future)) => Guarded { future, has_waited: false }.await,
            Err(panic) => (Err(describe(panic)), false),
        };
        let result = result.unwrap_or_else(|panic| {
            tracing::error!(%peer, procedure = target.procedure.name, panic, "a service panicked");
            Err(AcceptError::SystemErr)
        });
        let ok = result.is_ok();
        let executed = Executed::of(result);
        if let Some(execution) = execution {
            let now = if has_waited { Instant::now() } else { arrived };
            Execution::finish(execution, executed.as_ref(), now);
        }
        let transmission = executed.and_then(|executed| reply.transmission(executed));
        let bytes = Bytes { call: message.len(), reply: transmission.as_ref().map_or(0, Message::len) };
        if let Some(rate) = &self.rate {
            // Boxed, because this is rare and would enlarge the future of every call.
            Box::pin(rate.pass(bytes.call + bytes.reply)).await;
        }
        send(&**transport, token, transmission);
        Some(Answered { target, arrived, bytes, ok })
    }

    /// Returns `true` if the duplicate request cache caches calls of this peer. It does not cache calls of hosts
    /// that are not admitted, because these could evict the replies to admitted hosts.
    fn caches_calls_of(&self, connection: &Served<'_>, peer: SocketAddr) -> bool {
        connection.admitted.unwrap_or_else(|| self.hosts.admit(peer.ip()))
    }
}

/// Returns the reply to a transmission that is not executed, or `None` if no reply is sent.
fn reply_to_refused(header: &CallHeader, peer: SocketAddr, verdict: Verdict) -> Option<Message> {
    match verdict {
        Verdict::Accepted(_) => unreachable!("an accepted call is executed"),
        Verdict::Answered { verifier, results } => {
            let body = ReplyBody::Accepted { verifier, stat: AcceptStat::Success };
            let mut encoder = Encoder::with_capacity(512 + results.len());
            ReplyHeader { xid: header.xid, body }.encode(&mut encoder);
            encoder.raw(&results);
            Some(encoder.finish())
        }
        Verdict::Denied(stat) => {
            tracing::debug!(%peer, program = header.program, version = header.version, procedure = header.procedure,
                flavor = header.credential.flavor, %stat, "a caller was rejected");
            let body = ReplyBody::Denied(RejectStat::AuthError(stat));
            Some(ReplyHeader { xid: header.xid, body }.to_message())
        }
        Verdict::Dropped => None,
    }
}

/// Returns the outcome of a call for which no procedure was found.
fn not_found(header: &CallHeader, stat: AcceptStat) -> Executed {
    match stat {
        // RFC 5531 §12.1: by convention, procedure 0 of every version exists and does nothing.
        AcceptStat::ProcUnavail if header.procedure == 0 => {
            let body = ReplyBody::accepted(AcceptStat::Success);
            Executed::Results(ReplyHeader { xid: header.xid, body }.to_message())
        }
        stat => Executed::Failed(stat),
    }
}

/// The parties that observe a connection.
#[derive(Default)]
pub(crate) struct Observers {
    /// Receives the reason when the connection is closed. Calls in progress can outlast the connection.
    pub tell: Option<oneshot::Sender<TransportError>>,
    /// The entry of the connection in the server's table of connections.
    pub place: Option<Place>,
}

/// A connection that is being served. When it is dropped, in any way, services are told that it is closed.
struct Served<'a> {
    programs: &'a Programs,
    id: ConnectionId,
    /// `true` if the host at the other end is admitted; `None` if the transport serves several hosts.
    admitted: Option<bool>,
}

impl<'a> Served<'a> {
    fn new(programs: &'a Programs, transport: &Arc<dyn Transport>, hosts: &Hosts) -> Self {
        static CONNECTIONS: Sequence = Sequence::new();
        let id = ConnectionId(CONNECTIONS.next());
        programs.connected(&Reverse::new(id, transport));
        // A datagram socket serves several hosts.
        let admitted = (!transport.caps().lossy).then(|| hosts.admit(transport.peer().ip()));
        Self { programs, id, admitted }
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.programs.disconnected(self.id);
    }
}

fn send(transport: &dyn Transport, token: ReplyToken, reply: Option<Message>) {
    let Some(reply) = reply else { return transport.forget(token) };
    let Xid(xid) = token.xid;
    if let Err(error) = transport.reply(token, reply) {
        tracing::debug!(peer = %transport.peer(), xid, %error, "a reply could not be sent");
    }
}

/// A procedure that was executed.
struct Answered {
    target: Target,
    arrived: Instant,
    bytes: Bytes,
    ok: bool,
}

/// One connection that is being served. `F` is the future of one call, which `M` makes.
///
/// The clock is read when the first call of a turn arrives, and at the end of the turn. Reading it costs as much as
/// decoding a small call, and the calls of one turn arrive together and are answered together.
struct Serving<'a, F, M> {
    server: &'a Server,
    transport: &'a dyn Transport,
    answer: M,
    /// The time at which the first call of this turn arrived.
    now: Option<Instant>,
    /// The calls that were answered in this turn.
    answered: Vec<Answered>,
    running: FuturesUnordered<Running<F>>,
    /// Total bytes of the messages of calls in progress.
    bytes: usize,
    /// The boxes of finished calls, kept for reuse.
    spare: Vec<Slot<F>>,
    over: Option<TransportError>,
    tell: Option<oneshot::Sender<TransportError>>,
    held: bool,
    draining: bool,
    closed: bool,
    idle: Option<Idle>,
    place: Option<Place>,
}

type Slot<F> = Pin<Box<Option<F>>>;

impl<'a, F, M> Serving<'a, F, M>
where
    F: Future<Output = Option<Answered>>,
    M: Fn((IncomingCall, Instant)) -> F,
{
    fn new(server: &'a Server, transport: &'a dyn Transport, answer: M) -> Self {
        Self {
            server,
            transport,
            answer,
            now: None,
            answered: Vec::new(),
            running: FuturesUnordered::new(),
            bytes: 0,
            spare: Vec::new(),
            over: None,
            tell: None,
            held: false,
            draining: false,
            closed: false,
            idle: transport.caps().idle.map(Idle::new),
            place: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<TransportError> {
        self.poll_place(cx);
        let Some(peer) = self.place.as_ref().and_then(Place::shared_peer) else {
            return self.poll_turns(cx, TURNS_MAX);
        };
        let began = Instant::now();
        let turn = ready!(Turn::begin(peer, began.into_std(), cx));
        self.now = Some(began);
        let polled = self.poll_turns(cx, 1);
        turn.end(Instant::now().into_std());
        polled
    }

    /// Polls until there is nothing to do, for at most `turns_max` turns.
    fn poll_turns(&mut self, cx: &mut Context<'_>, turns_max: usize) -> Poll<TransportError> {
        let mut turns = 0;
        loop {
            self.update_hold();
            if self.draining && self.running.is_empty() && !self.closed {
                self.closed = true;
                self.transport.close();
            }
            let called = self.poll_transport(cx);
            let finished = self.poll_running(cx);
            self.end_turn();
            if self.running.is_empty()
                && let Some(error) = &self.over
            {
                return Poll::Ready(error.clone());
            }
            if let Some(place) = &self.place
                && self.running.is_empty()
            {
                place.set_busy(false);
            }
            if called == 0 && !finished && !self.poll_idle(cx) {
                return Poll::Pending;
            }
            turns += 1;
            if turns == turns_max {
                // Other tasks of this thread run first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Counts the calls that were answered in this turn. The time of each call ends now, because the transport has sent
    /// the replies.
    fn end_turn(&mut self) {
        self.now = None;
        if self.answered.is_empty() {
            return;
        }
        let now = Instant::now();
        for Answered { target, arrived, bytes, ok } in self.answered.drain(..) {
            self.server.programs.count(target, now.duration_since(arrived), bytes, ok);
        }
        self.answered.shrink_to(SPARE_MAX);
    }

    /// Closes the connection if it has been idle for the transport's idle time. Returns `true` if it did.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(idle) = &mut self.idle else { return false };
        let is_idle = idle.poll(cx, self.running.is_empty(), || self.transport.calls_made());
        if is_idle {
            self.idle = None;
            tracing::debug!(peer = %self.transport.peer(), "closing an idle connection");
            self.transport.close();
        }
        is_idle
    }

    /// Closes the connection if it was evicted, or if its first call did not arrive in time.
    fn poll_place(&mut self, cx: &mut Context<'_>) {
        let Some(place) = &mut self.place else { return };
        if let Poll::Ready(why) = place.poll_closed(cx) {
            self.place = None;
            tracing::debug!(peer = %self.transport.peer(), ?why, "closing a connection");
            self.transport.abort();
        }
    }

    /// Starts the calls that have arrived. Returns how often the transport returned something.
    fn poll_transport(&mut self, cx: &mut Context<'_>) -> usize {
        for started in 0..CALLS_PER_TURN {
            if self.over.is_some() {
                return started;
            }
            // The transport is polled even while it is on hold, because this also sends and receives replies.
            match self.transport.poll_recv(cx) {
                Poll::Ready(Ok(call)) => {
                    self.start(call, cx);
                    self.update_hold();
                }
                Poll::Ready(Err(error)) => {
                    if let Some(tell) = self.tell.take() {
                        let _ = tell.send(error.clone());
                    }
                    self.over = Some(error);
                }
                Poll::Pending => return started,
            }
        }
        CALLS_PER_TURN
    }

    fn update_hold(&mut self) {
        let Limits { calls_max, bytes_max } = self.server.limits;
        let full = self.draining || self.running.len() >= calls_max || self.bytes >= bytes_max;
        if full != self.held {
            self.held = full;
            self.transport.hold(full);
        }
    }

    fn start(&mut self, call: IncomingCall, cx: &mut Context<'_>) {
        if let Some(idle) = &mut self.idle {
            idle.received += 1;
        }
        if let Some(place) = &mut self.place {
            place.called();
        }
        let mut slot = self.spare.pop().unwrap_or_else(|| Box::pin(None));
        let bytes = call.message.len();
        let arrived = *self.now.get_or_insert_with(Instant::now);
        slot.set(Some((self.answer)((call, arrived))));
        let mut running = Running { slot: Some(slot), bytes };
        match Pin::new(&mut running).poll(cx) {
            Poll::Ready((slot, _, answered)) => {
                self.spare.push(slot);
                self.answered.extend(answered);
            }
            Poll::Pending => {
                self.bytes += bytes;
                self.running.push(running);
                // The connection becomes busy before a reply to a later call leaves.
                if let Some(place) = &self.place {
                    place.set_busy(true);
                }
            }
        }
    }

    /// Polls the calls in progress. Returns `false` if none was finished.
    fn poll_running(&mut self, cx: &mut Context<'_>) -> bool {
        let mut finished = false;
        while let Poll::Ready(Some((slot, bytes, answered))) = self.running.poll_next_unpin(cx) {
            finished = true;
            self.answered.extend(answered);
            self.bytes -= bytes;
            if self.spare.len() < SPARE_MAX {
                self.spare.push(slot);
            }
        }
        finished
    }
}

/// A call in progress. Its output is its box, the length of its message, and the procedure if one was executed.
struct Running<F> {
    slot: Option<Slot<F>>,
    bytes: usize,
}

impl<F: Future<Output = Option<Answered>>> Future for Running<F> {
    type Output = (Slot<F>, usize, Option<Answered>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let slot = self.slot.as_mut().expect("polled after completion");
        let answered =
            ready!(slot.as_mut().as_pin_mut().expect("the box of a running call must hold its future").poll(cx));
        slot.set(None);
        Poll::Ready((self.slot.take().expect("the box was checked above"), self.bytes, answered))
    }
}

/// The future of a service, with panics caught, and a flag that is `true` if the future was pending once.
struct Guarded<'a> {
    future: BoxFuture<'a, Result<Message, AcceptError>>,
    has_waited: bool,
}

impl Future for Guarded<'_> {
    type Output = (Result<Result<Message, AcceptError>, String>, bool);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Unwind safe: after a panic the future is not polled again, only dropped.
        let result = match catch_unwind(AssertUnwindSafe(|| self.future.as_mut().poll(cx))) {
            Ok(Poll::Ready(result)) => Ok(result),
            Ok(Poll::Pending) => {
                self.has_waited = true;
                return Poll::Pending;
            }
            Err(panic) => Err(describe(panic)),
        };
        Poll::Ready((result, self.has_waited))
    }
}

fn describe(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Maximum number of calls that are started before calls in progress are polled.
const CALLS_PER_TURN: usize = 64;
/// Maximum number of turns before other tasks of the thread run.
const TURNS_MAX: usize = 2;
const SPARE_MAX: usize = 64;
