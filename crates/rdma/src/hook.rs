//! Hooks that observe or disturb the work of any provider.
//!
//! [`Hooked`] wraps a provider and passes every request and completion of its queue pairs to a [`Hook`]: [`Tracer`]
//! logs them, [`FaultInjector`] cuts connections at them. A provider that sends bytes can also record its traffic, see
//! [`Pcap`](crate::iwarp::Pcap).
//!
//! A hook never holds a buffer. A connection that it cuts ends like any other.

use std::{
    collections::BTreeSet,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use buf::{Buffer, PeerBytes};
use bytes::Bytes;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    BoxFuture, Completion, CompletionKind, ConnectRequest, Connected, Descriptors, Listener, Memory, PeerUser,
    PostError, Provider, ProviderCaps, QpCaps, QpError, QpOptions, QueuePair, Registered, RemoteSegment, Stag, WorkId,
    WorkRequest,
    registration::{Registration, RegistrationOptions},
};

/// The ID of a queue pair of a [`Hooked`] provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpId(pub u64);

/// The decision about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Continue.
    Pass,
    /// Cut the connection. A request is lost; a completion is still delivered.
    Cut,
}

/// An observer of the work of queue pairs, called from any thread.
pub trait Hook: Send + Sync + 'static {
    /// Called when a connection with `peer` has been opened.
    fn connected(&self, _qp: QpId, _peer: SocketAddr) {}

    /// Called before `request` is posted.
    fn posted(&self, _qp: QpId, _request: &WorkRequest) -> Verdict {
        Verdict::Pass
    }

    /// Called when a request has completed, or a message has arrived.
    fn completed(&self, _qp: QpId, _completion: &Completion) -> Verdict {
        Verdict::Pass
    }

    /// Called when the connection has ended.
    fn ended(&self, _qp: QpId, _error: &QpError) {}
}

/// A provider whose queue pairs are passed to a hook.
pub struct Hooked<P> {
    provider: P,
    shared: Arc<Shared>,
}

struct Shared {
    hook: Arc<dyn Hook>,
    next: AtomicU64,
}

struct HookedListener {
    inner: Box<dyn Listener>,
    shared: Arc<Shared>,
}

struct HookedRequest {
    inner: Box<dyn ConnectRequest>,
    shared: Arc<Shared>,
}

struct HookedQp {
    inner: Box<dyn QueuePair>,
    shared: Arc<Shared>,
    id: QpId,
    end_reported: bool,
}

impl<P: Provider> Hooked<P> {
    /// Wraps `provider` so that `hook` observes its queue pairs.
    pub fn new(provider: P, hook: Arc<dyn Hook>) -> Self {
        Self { provider, shared: Arc::new(Shared { hook, next: AtomicU64::new(0) }) }
    }
}

impl Shared {
    fn wrap(self: &Arc<Self>, inner: Box<dyn QueuePair>) -> Box<dyn QueuePair> {
        let id = QpId(self.next.fetch_add(1, Ordering::Relaxed));
        self.hook.connected(id, inner.peer());
        Box::new(HookedQp { inner, shared: self.clone(), id, end_reported: false })
    }
}

impl<P: Provider> Provider for Hooked<P> {
    fn caps(&self) -> ProviderCaps {
        self.provider.caps()
    }

    fn registrations(&self) -> &'static [Registration] {
        self.provider.registrations()
    }

    fn remote_invalidation(&self, registration: &RegistrationOptions) -> bool {
        self.provider.remote_invalidation(registration)
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let inner = self.provider.listen(local)?;
        Ok(Box::new(HookedListener { inner, shared: self.shared.clone() }))
    }

    fn connect<'a>(
        &'a self,
        remote: SocketAddr,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Connected>> {
        Box::pin(async move {
            let Connected { qp, private_data } = self.provider.connect(remote, options, private_data, recvs).await?;
            Ok(Connected { qp: self.shared.wrap(qp), private_data })
        })
    }
}

impl Listener for HookedListener {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ConnectRequest>>> {
        Box::pin(async {
            let inner = self.inner.accept().await?;
            Ok(Box::new(HookedRequest { inner, shared: self.shared.clone() }) as Box<dyn ConnectRequest>)
        })
    }
}

impl ConnectRequest for HookedRequest {
    fn peer(&self) -> SocketAddr {
        self.inner.peer()
    }

    fn peer_user(&self) -> Option<u32> {
        self.inner.peer_user()
    }

    fn private_data(&mut self) -> BoxFuture<'_, io::Result<Bytes>> {
        self.inner.private_data()
    }

    fn shared_receives(&self) -> bool {
        self.inner.shared_receives()
    }

    fn accept<'a>(
        self: Box<Self>,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Box<dyn QueuePair>>> {
        Box::pin(async move {
            let qp = self.inner.accept(options, private_data, recvs).await?;
            Ok(self.shared.wrap(qp))
        })
    }
}

impl QueuePair for HookedQp {
    fn caps(&self) -> &QpCaps {
        self.inner.caps()
    }

    fn peer(&self) -> SocketAddr {
        self.inner.peer()
    }

    fn peer_user(&self) -> Option<&PeerUser> {
        self.inner.peer_user()
    }

    fn register(&mut self, memory: Memory) -> Result<Registered, Memory> {
        self.inner.register(memory)
    }

    fn post_recv(&mut self, id: WorkId, buffer: Buffer) {
        self.inner.post_recv(id, buffer);
    }

    fn post(&mut self, request: WorkRequest) -> Result<(), PostError> {
        if self.shared.hook.posted(self.id, &request) == Verdict::Cut {
            self.inner.abort();
        }
        self.inner.post(request)
    }

    fn poll_completions(
        &mut self,
        cx: &mut Context<'_>,
        completions: &mut Vec<Completion>,
    ) -> Poll<Result<(), QpError>> {
        let before = completions.len();
        let polled = self.inner.poll_completions(cx, completions);
        for completion in &completions[before..] {
            if self.shared.hook.completed(self.id, completion) == Verdict::Cut {
                self.inner.abort();
            }
        }
        if let Poll::Ready(Err(error)) = &polled
            && !std::mem::replace(&mut self.end_reported, true)
        {
            self.shared.hook.ended(self.id, error);
        }
        polled
    }

    fn start(&mut self) {
        self.inner.start();
    }

    fn is_spinning(&self) -> bool {
        self.inner.is_spinning()
    }

    fn view(&mut self, from: RemoteSegment, len: usize) -> Option<PeerBytes> {
        self.inner.view(from, len)
    }

    fn descriptors(&self) -> Option<Arc<dyn Descriptors>> {
        self.inner.descriptors()
    }

    fn reclaim(&mut self, stag: Stag) -> Option<Memory> {
        self.inner.reclaim(stag)
    }

    fn disconnect(&mut self) {
        self.inner.disconnect();
    }

    fn abort(&mut self) {
        self.inner.abort();
    }
}

/// A hook that logs requests and completions at level `TRACE`, and connections at `DEBUG`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tracer;

impl Hook for Tracer {
    fn connected(&self, qp: QpId, peer: SocketAddr) {
        tracing::debug!(qp = qp.0, %peer, "connected");
    }

    fn posted(&self, qp: QpId, request: &WorkRequest) -> Verdict {
        let (qp, id) = (qp.0, request.id().0);
        match request {
            WorkRequest::Send { data, invalidate, solicited, .. } => {
                tracing::trace!(qp, id, len = data.len(), ?invalidate, solicited, "post Send");
            }
            WorkRequest::Write { data, to, .. } => tracing::trace!(qp, id, len = data.len(), ?to, "post Write"),
            WorkRequest::Read { into, from, .. } => tracing::trace!(qp, id, len = into.len(), ?from, "post Read"),
            WorkRequest::Invalidate { stag, .. } => tracing::trace!(qp, id, ?stag, "post Invalidate"),
        }
        Verdict::Pass
    }

    fn completed(&self, qp: QpId, completion: &Completion) -> Verdict {
        let (qp, id, status) = (qp.0, completion.id.0, completion.status);
        match &completion.kind {
            CompletionKind::Send => tracing::trace!(qp, id, ?status, "Send"),
            CompletionKind::Write => tracing::trace!(qp, id, ?status, "Write"),
            CompletionKind::Read(into) => tracing::trace!(qp, id, ?status, len = into.len(), "Read"),
            CompletionKind::Receive { buffer, invalidated, solicited } => {
                let invalidated = invalidated.as_ref().map(|(stag, _)| *stag);
                tracing::trace!(qp, id, ?status, len = buffer.len(), ?invalidated, solicited, "Receive");
            }
            CompletionKind::Invalidate(memory) => {
                tracing::trace!(qp, id, ?status, len = memory.as_ref().map(Memory::len), "Invalidate");
            }
        }
        Verdict::Pass
    }

    fn ended(&self, qp: QpId, error: &QpError) {
        tracing::debug!(qp = qp.0, %error, "ended");
    }
}

/// A hook that cuts connections at given or random operations. Posts and completions both count as operations.
#[derive(Debug)]
pub struct FaultInjector {
    state: Mutex<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    rng: StdRng,
    probability: f64,
    at: BTreeSet<u64>,
    operations: u64,
    cuts: u64,
}

impl FaultInjector {
    /// Creates a hook that cuts at each operation with `probability`, using random numbers from `seed`.
    pub fn new(seed: u64, probability: f64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        Self { state: Mutex::new(FaultState { rng, probability, at: BTreeSet::new(), operations: 0, cuts: 0 }) }
    }

    /// Cuts at the operation with number `operation`, counted over all connections from 0.
    pub fn cut_at(&self, operation: u64) {
        self.state.lock().at.insert(operation);
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Returns the number of cuts so far.
    pub fn cuts(&self) -> u64 {
        self.state.lock().cuts
    }

    fn operation(&self) -> Verdict {
        let mut state = self.state.lock();
        let number = state.operations;
        state.operations += 1;
        let probability = state.probability;
        let chosen = state.at.remove(&number) || probability > 0.0 && state.rng.random_bool(probability);
        if !chosen {
            return Verdict::Pass;
        }
        state.cuts += 1;
        tracing::debug!(number, "fault injected");
        Verdict::Cut
    }
}

impl Hook for FaultInjector {
    fn posted(&self, _qp: QpId, _request: &WorkRequest) -> Verdict {
        self.operation()
    }

    fn completed(&self, _qp: QpId, completion: &Completion) -> Verdict {
        // Flushed completions after the end of the connection do not count as operations.
        if completion.status == crate::Status::Flushed { Verdict::Pass } else { self.operation() }
    }
}
