//! The two connected ends of a connection, which one task polls together.

use std::{
    any::Any,
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use buf::{Buffer, Pool, PoolOptions, Rope};
use bytes::Bytes;
use rdma::{
    Completion, CompletionKind, ConnectRequest, Memory, Provider, QpError, QpOptions, QueuePair, Registered,
    RemoteSegment, Stag, Status, WorkId, WorkRequest,
    registration::{CacheBounds, Registration, RegistrationOptions},
};

/// A provider under test, and the address at which it listens.
pub struct Fabric {
    /// The provider of the server's end.
    pub provider: Arc<dyn Provider>,
    /// The provider of the client's end.
    pub connector: Arc<dyn Provider>,
    /// The listener's address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The pool of the ends' buffers; `None` for the heap.
    pub pool: Option<Pool>,
    /// The way in which both ends register memory.
    pub registration: RegistrationOptions,
    /// `true` if the connection uses an adapter. If the contract leaves a choice, the adapter decides: private data may
    /// be padded, a solicited event may not be reported, and the cause of a fault may be lost.
    pub adapter: bool,
    /// `true` if the device may be Linux's siw. In Linux 6.1, it does not refuse an address that wraps around, or a
    /// read of memory that is exposed for writing.
    pub siw: bool,
    keep: Option<Box<dyn Any>>,
}

/// One end of a connection, with the completions that it has reported.
pub struct End {
    /// The queue pair.
    pub qp: Box<dyn QueuePair>,
    /// All completions, in the order reported.
    pub done: Vec<Completion>,
    /// The error that ended the connection.
    pub error: Option<QpError>,
    /// `true` if [`send_invalidate`](Self::send_invalidate) invalidates the other end's region. Otherwise it only
    /// sends.
    pub invalidates: bool,
    next_id: u64,
    pool: Option<Pool>,
}

/// Both ends of one connection.
pub struct Pair {
    /// The end that connected.
    pub client: End,
    /// The end that accepted.
    pub server: End,
    /// `true` if the connection uses an adapter, as in [`Fabric`].
    pub adapter: bool,
    /// `true` if the peer can invalidate a region with its Send.
    pub remote_invalidation: bool,
}

/// One of the ends of a [`Pair`].
#[derive(Clone, Copy, Debug)]
pub enum Side {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

impl Fabric {
    /// Creates a fabric whose provider listens on 127.0.0.1 and registers memory in its own way.
    pub fn new(provider: impl Provider) -> Self {
        let provider: Arc<dyn Provider> = Arc::new(provider);
        Self {
            connector: provider.clone(),
            provider,
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            pool: None,
            registration: RegistrationOptions::default(),
            adapter: false,
            siw: false,
            keep: None,
        }
    }

    /// Sets the way in which memory is registered. A registration cache holds one slab.
    pub fn registering(self, way: Registration) -> Self {
        let cache = CacheBounds { entries: 1, ..CacheBounds::default() };
        Self { registration: RegistrationOptions { way: Some(way), cache }, ..self }
    }

    /// Sets the pool of the ends' buffers.
    pub fn with_pool(self, pool: Pool) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// Keeps a value, such as the directory of the provider's sockets, that is dropped after the case.
    pub fn keeping(self, keep: impl Any) -> Self {
        Self { keep: Some(Box::new(keep)), ..self }
    }

    /// Sets another provider for the client's end.
    pub fn connecting_by(self, connector: impl Provider) -> Self {
        Self { connector: Arc::new(connector), ..self }
    }

    /// Returns the value given to [`keeping`](Self::keeping).
    pub fn kept<T: Any>(&self) -> Option<&T> {
        self.keep.as_ref()?.downcast_ref()
    }

    /// Connects two ends with default options and no posted receives.
    pub async fn pair(&self) -> Pair {
        self.pair_with(&QpOptions::default(), &QpOptions::default(), 0).await
    }

    /// Connects two ends. Each starts with `recvs` posted receives of 4096 bytes, whose identifiers begin with 1000.
    pub async fn pair_with(&self, client: &QpOptions, server: &QpOptions, recvs: u64) -> Pair {
        let posted = || (0..recvs).map(|id| (WorkId(1000 + id), Buffer::zeroed(4096))).collect();
        let [client, server] =
            [client, server].map(|options| QpOptions { registration: self.registration, ..options.clone() });
        let mut listener = self.provider.listen(self.listen).unwrap();
        let at = listener.local_addr();
        let accept = async {
            let request = listener.accept().await.unwrap();
            request.accept(&server, b"", posted()).await.unwrap()
        };
        let (connected, server) = tokio::join!(self.connector.connect(at, &client, b"", posted()), accept);
        let remote_invalidation = self.connector.remote_invalidation(&self.registration);
        let end = |qp| End { pool: self.pool.clone(), invalidates: remote_invalidation, ..End::new(qp) };
        Pair { client: end(connected.unwrap().qp), server: end(server), adapter: self.adapter, remote_invalidation }
    }

    /// Attempts a connection that the listening side answers with `answer`. Returns both results.
    pub async fn attempt<T, F: Future<Output = T>>(
        &self,
        private_data: &[u8],
        answer: impl FnOnce(Box<dyn ConnectRequest>) -> F,
    ) -> (std::io::Result<rdma::Connected>, T) {
        let mut listener = self.provider.listen(self.listen).unwrap();
        let at = listener.local_addr();
        let options = QpOptions::default();
        let accept = async { answer(listener.accept().await.unwrap()).await };
        tokio::join!(self.connector.connect(at, &options, private_data, Vec::new()), accept)
    }
}

impl End {
    /// Creates an end with buffers from the heap.
    pub fn new(qp: Box<dyn QueuePair>) -> Self {
        Self { qp, done: Vec::new(), error: None, invalidates: true, next_id: 1, pool: None }
    }

    /// Returns the next identifier of a work request.
    pub fn id(&mut self) -> WorkId {
        self.next_id += 1;
        WorkId(self.next_id)
    }

    /// Returns a buffer of `len` zeros.
    pub fn buffer(&self, len: usize) -> Buffer {
        let Some(pool) = &self.pool else { return Buffer::zeroed(len) };
        let mut buffer = pool.take(len);
        buffer.fill(0);
        buffer
    }

    /// Posts a Send.
    pub fn send(&mut self, data: impl Into<Rope>) -> WorkId {
        let id = self.id();
        self.qp.post(WorkRequest::Send { id, data: data.into(), invalidate: None, solicited: false }).unwrap();
        id
    }

    /// Posts a Send that invalidates the peer's region `stag`, if this end [`invalidates`](Self::invalidates).
    pub fn send_invalidate(&mut self, data: impl Into<Rope>, stag: Stag, solicited: bool) -> WorkId {
        let id = self.id();
        let invalidate = self.invalidates.then_some(stag);
        self.qp.post(WorkRequest::Send { id, data: data.into(), invalidate, solicited }).unwrap();
        id
    }

    /// Posts an RDMA Write.
    pub fn write(&mut self, data: impl Into<Rope>, stag: Stag, offset: u64) -> WorkId {
        let id = self.id();
        let to = RemoteSegment { stag, offset };
        self.qp.post(WorkRequest::Write { id, data: data.into(), to }).unwrap();
        id
    }

    /// Posts an RDMA Read of `len` bytes.
    pub fn read(&mut self, len: usize, stag: Stag, offset: u64) -> WorkId {
        let id = self.id();
        let from = RemoteSegment { stag, offset };
        self.qp.post(WorkRequest::Read { id, into: self.buffer(len), from }).unwrap();
        id
    }

    /// Posts the invalidation of a region of this end.
    pub fn invalidate(&mut self, stag: Stag) -> WorkId {
        let id = self.id();
        self.qp.post(WorkRequest::Invalidate { id, stag }).unwrap();
        id
    }

    /// Posts a receive of `len` bytes.
    pub fn recv(&mut self, len: usize) -> WorkId {
        let id = self.id();
        let buffer = self.buffer(len);
        self.qp.post_recv(id, buffer);
        id
    }

    /// Registers `len` zeros that the peer may write.
    pub fn expose_for_write(&mut self, len: usize) -> Registered {
        let buffer = self.buffer(len);
        self.qp.register(Memory::Write(buffer.into())).unwrap()
    }

    /// Registers a copy of `data` that the peer may read.
    pub fn expose_for_read(&mut self, data: &[u8]) -> Registered {
        let mut buffer = self.buffer(data.len());
        buffer.copy_from_slice(data);
        self.qp.register(Memory::Read(buffer.freeze().into())).unwrap()
    }

    /// Returns the completion of `id`, if it has been reported.
    pub fn find(&self, id: WorkId) -> Option<&Completion> {
        self.done.iter().find(|done| done.id == id)
    }

    /// Returns the completion of `id`.
    ///
    /// # Panics
    /// Panics if it has not been reported, or if its status is not [`Status::Ok`].
    pub fn ok(&self, id: WorkId) -> &CompletionKind {
        let done = self.find(id).unwrap_or_else(|| panic!("{id:?} has not completed"));
        assert_eq!(done.status, Status::Ok);
        &done.kind
    }

    /// Returns the bytes that the receive `id` got.
    pub fn received(&self, id: WorkId) -> &[u8] {
        match self.ok(id) {
            CompletionKind::Receive { buffer, .. } => buffer,
            other => panic!("not a receive: {other:?}"),
        }
    }

    /// Returns the bytes that the RDMA Read `id` got.
    pub fn read_result(&self, id: WorkId) -> &[u8] {
        match self.ok(id) {
            CompletionKind::Read(buffer) => buffer,
            other => panic!("not a read: {other:?}"),
        }
    }

    /// Returns `true` if all of `ids` have completed.
    pub fn has(&self, ids: &[WorkId]) -> bool {
        ids.iter().all(|&id| self.find(id).is_some())
    }

    /// Returns the identifier and the status of each completion.
    pub fn statuses(&self) -> Vec<(WorkId, Status)> {
        self.done.iter().map(|done| (done.id, done.status)).collect()
    }

    /// Polls only this end until `done` returns `true`.
    pub async fn until(&mut self, done: impl Fn(&End) -> bool) {
        let polling = poll_fn(|cx| {
            while !done(self) && self.poll(cx) {}
            if done(self) { Poll::Ready(()) } else { Poll::Pending }
        });
        let done = tokio::time::timeout(LIMIT, polling).await;
        assert!(done.is_ok(), "stuck: {:?} {:?}", self.statuses(), self.error);
    }

    /// Polls the queue pair. Returns `false` if nothing has happened.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if self.error.is_some() {
            return false;
        }
        match self.qp.poll_completions(cx, &mut self.done) {
            Poll::Pending => return false,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => self.error = Some(error),
        }
        true
    }
}

impl Pair {
    /// Returns one of the ends.
    pub fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// Polls both ends until `done` returns `true`.
    pub async fn until(&mut self, done: impl Fn(&Pair) -> bool) {
        let polling = poll_fn(|cx| {
            loop {
                let mut progress = false;
                for end in [&mut self.client, &mut self.server] {
                    progress |= end.poll(cx);
                }
                if done(self) {
                    return Poll::Ready(true);
                }
                if !progress {
                    let ended = self.client.error.is_some() && self.server.error.is_some();
                    return if ended { Poll::Ready(false) } else { Poll::Pending };
                }
            }
        });
        if tokio::time::timeout(LIMIT, polling).await != Ok(true) {
            let state = |end: &End| format!("{:?} {:?}", end.statuses(), end.error);
            panic!("no progress: client {}; server {}", state(&self.client), state(&self.server));
        }
    }

    /// Waits until the other end can use the regions that `side` has registered so far.
    pub async fn settle(&mut self, side: Side) {
        let id = self.end(side).write(Bytes::new(), Stag(0), 0);
        self.until_at(side, id).await;
    }

    async fn until_at(&mut self, side: Side, id: WorkId) {
        let done = move |pair: &Pair| match side {
            Side::Client => pair.client.has(&[id]),
            Side::Server => pair.server.has(&[id]),
        };
        self.until(done).await;
    }

    /// Returns the memory of the region `stag`, which was invalidated by the Send that the receive `recv` got. If the
    /// peer cannot invalidate, the owner invalidates the region now.
    pub async fn invalidated(&mut self, side: Side, recv: WorkId, stag: Stag) -> Memory {
        let remote = self.remote_invalidation;
        let end = self.end(side);
        let done = end.done.iter_mut().find(|done| done.id == recv).expect("receive must have completed");
        assert_eq!(done.status, Status::Ok);
        let CompletionKind::Receive { invalidated, .. } = &mut done.kind else { panic!("not a receive") };
        if remote {
            let (invalidated, memory) = invalidated.take().expect("the Send must have invalidated a region");
            assert_eq!(invalidated, stag);
            return memory;
        }
        assert!(invalidated.is_none());
        if end.error.is_some() {
            return end.qp.reclaim(stag).expect("the peer must not have taken the memory");
        }
        let id = end.invalidate(stag);
        self.until_at(side, id).await;
        let end = self.end(side);
        let at = end.done.iter().position(|done| done.id == id).expect("invalidation must have completed");
        match end.done.remove(at).kind {
            CompletionKind::Invalidate(Some(memory)) => memory,
            other => panic!("no memory: {other:?}"),
        }
    }

    /// Polls both ends until both connections have ended. Returns their errors.
    pub async fn until_ended(&mut self) -> (QpError, QpError) {
        self.until(|pair| pair.client.error.is_some() && pair.server.error.is_some()).await;
        (self.client.error.clone().unwrap(), self.server.error.clone().unwrap())
    }
}

/// Creates a pool whose memory can be shared with another process.
pub fn shared_pool() -> Pool {
    Pool::new(PoolOptions { shared: true, ..PoolOptions::default() })
}

/// Returns pseudorandom bytes, so that a misplaced piece is detected.
pub fn pattern(seed: u64, len: usize) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(state.to_le_bytes());
    }
    out.truncate(len);
    out.into()
}

/// Maximum time of a case. A case that takes longer makes no progress.
const LIMIT: Duration = Duration::from_secs(60);
