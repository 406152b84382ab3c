//! Two connected ends, driven together.

#![allow(dead_code, unused_macros, reason = "each test binary uses a part of it")]

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use buf::{Buffer, Pool, PoolOptions, Rope};
use bytes::Bytes;
use rdma::{
    Completion, CompletionKind, ConnectRequest, Memory, Provider, QpError, QpOptions, QueuePair, Region, RemoteSegment,
    Stag, Status, WorkId, WorkRequest,
    iwarp::{Iwarp, IwarpOptions},
    registration::{CacheBounds, Registration, RegistrationOptions},
    shm::{Shm, ShmOptions},
    sim::{Sim, SimOptions},
    verbs::{Verbs, VerbsOptions, survey},
};
use tempfile::TempDir;

/// A provider and where it listens.
pub struct Fabric {
    pub provider: Arc<dyn Provider>,
    /// The client's, if it is not the same.
    pub connector: Arc<dyn Provider>,
    pub listen: SocketAddr,
    /// Where the ends take their buffers from, if not from the heap.
    pub pool: Option<Pool>,
    /// How memory is registered at both ends.
    pub registration: RegistrationOptions,
    /// Of its sockets, if it has some.
    pub directory: Option<TempDir>,
    /// The wire is an adapter's, which does things in its own way where the contract leaves it the choice.
    pub adapter: bool,
    /// It may be Linux's siw, which (6.1) misses an address that wraps, and lets a peer read what it may only write.
    pub siw: bool,
}

pub struct End {
    pub qp: Box<dyn QueuePair>,
    pub done: Vec<Completion>,
    pub error: Option<QpError>,
    /// Whether it may invalidate the other's regions; else it just sends.
    pub invalidates: bool,
    next_id: u64,
    pool: Option<Pool>,
}

pub struct Pair {
    pub client: End,
    pub server: End,
    /// As in [`Fabric`].
    pub adapter: bool,
    /// As in the caps of the provider.
    pub remote_invalidation: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Side {
    Client,
    Server,
}

/// A module of tests for each fabric: of each function that takes a [`Fabric`]. `sim` is virtual time, with some seeds, and
/// takes turns at the ways of registration; a fabric may be an `Option` of one, if not every machine has it.
macro_rules! over_fabrics {
    ([$($test:ident)*]) => {};
    ([$($test:ident)*] sim; $($rest:tt)*) => {
        mod sim {
            $(#[tokio::test(start_paused = true)]
            async fn $test() {
                for seed in 0..5 {
                    super::$test(super::Fabric::sim(seed)).await;
                }
            })*
        }
        over_fabrics! { [$($test)*] $($rest)* }
    };
    ([$($test:ident)*] $fabric:ident = $make:expr; $($rest:tt)*) => {
        mod $fabric {
            use super::*;
            $(#[tokio::test]
            async fn $test() {
                if let Some(fabric) = Option::<Fabric>::from($make) {
                    super::$test(fabric).await;
                }
            })*
        }
        over_fabrics! { [$($test)*] $($rest)* }
    };
}

impl Fabric {
    pub fn new(provider: impl Provider) -> Self {
        let provider: Arc<dyn Provider> = Arc::new(provider);
        let listen = "127.0.0.1:0".parse().unwrap();
        let registration = RegistrationOptions::default();
        Self {
            connector: provider.clone(),
            provider,
            listen,
            pool: None,
            registration,
            directory: None,
            adapter: false,
            siw: false,
        }
    }

    /// The simulated fabric.
    pub fn sim(seed: u64) -> Self {
        let way = Registration::ALL[seed as usize % Registration::ALL.len()];
        Self::new(Sim::new(SimOptions { seed, ..SimOptions::default() })).registering(way)
    }

    pub fn iwarp(options: IwarpOptions) -> Self {
        Self::new(Iwarp::new(options))
    }

    /// So that whatever can be cut is cut.
    pub fn iwarp_in_small_fpdus() -> Self {
        let (send_buffer, recv_buffer) = (Some(8192), Some(8192));
        Self::iwarp(IwarpOptions { fpdu_max: 700, send_buffer, recv_buffer, ..IwarpOptions::default() })
    }

    /// Shared memory, with sockets in a fresh directory.
    pub fn shm() -> Self {
        Self::shm_as(|shm| shm)
    }

    /// The same with something around it.
    pub fn shm_as<P: Provider>(wrap: impl FnOnce(Shm) -> P) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = ShmOptions { directory: Some(directory.path().to_owned()), ..ShmOptions::default() };
        Self { directory: Some(directory), ..Self::new(wrap(Shm::new(options))) }
    }

    /// With memory registered in this way; a cache holds one slab.
    pub fn registering(self, way: Registration) -> Self {
        let cache = CacheBounds { entries: 1, ..CacheBounds::default() };
        Self { registration: RegistrationOptions { way: Some(way), cache }, ..self }
    }

    /// With buffers from `pool`.
    pub fn with_pool(self, pool: Pool) -> Self {
        Self { pool: Some(pool), ..self }
    }

    /// The adapter of this machine, if it has one, at the address that the environment names.
    pub fn verbs() -> Option<Self> {
        Self::verbs_with(VerbsOptions::default())
    }

    /// The same with options.
    pub fn verbs_with(options: VerbsOptions) -> Option<Self> {
        Self::verbs_as(options, |verbs| verbs)
    }

    /// The same with something around it.
    pub fn verbs_as<P: Provider>(options: VerbsOptions, wrap: impl FnOnce(Verbs) -> P) -> Option<Self> {
        let skipped = |why: &str| println!("SKIPPED rdma: conformance over verbs: {why}");
        let verbs = match Verbs::open(options) {
            Ok(verbs) => verbs,
            Err(why) => {
                skipped(&why.to_string());
                return None;
            }
        };
        let Ok(address) = std::env::var(VERBS_ADDRESS) else {
            skipped(&format!("{VERBS_ADDRESS} does not say which IP address an adapter of this machine has"));
            return None;
        };
        let ip: std::net::IpAddr =
            address.parse().unwrap_or_else(|_| panic!("{VERBS_ADDRESS} is {address}, no IP address"));
        let siw = survey().is_ok_and(|devices| devices.iter().any(|device| device.iwarp));
        Some(Self { listen: (ip, 0).into(), adapter: true, siw, ..Self::new(wrap(verbs)) })
    }

    /// The same, if its device has shared receive queues that can be relied on: iWARP's cannot.
    pub fn verbs_sharing() -> Option<Self> {
        let fabric = Self::verbs()?;
        if fabric.siw {
            println!("SKIPPED rdma: shared receives over verbs: a device speaks iWARP");
            return None;
        }
        Some(fabric)
    }

    /// The same, with memory of a pool registered in this way.
    pub fn verbs_registering(way: Registration) -> Option<Self> {
        let fabric = Self::verbs()?.with_pool(Pool::default()).registering(way);
        assert!(fabric.provider.registrations().contains(&way));
        Some(fabric)
    }

    pub async fn pair(&self) -> Pair {
        self.pair_with(&QpOptions::default(), &QpOptions::default(), 0).await
    }

    /// Connects; each end starts with `recvs` receives of 4096 bytes, whose ids begin with 1000.
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

    /// A connection attempt that meets `answer` on the other side.
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
    pub fn new(qp: Box<dyn QueuePair>) -> Self {
        Self { qp, done: Vec::new(), error: None, invalidates: true, next_id: 1, pool: None }
    }

    pub fn id(&mut self) -> WorkId {
        self.next_id += 1;
        WorkId(self.next_id)
    }

    /// `len` zeros.
    pub fn buffer(&self, len: usize) -> Buffer {
        let Some(pool) = &self.pool else { return Buffer::zeroed(len) };
        let mut buffer = pool.take(len);
        buffer.fill(0);
        buffer
    }

    pub fn send(&mut self, data: impl Into<Rope>) -> WorkId {
        let id = self.id();
        self.qp.post(WorkRequest::Send { id, data: data.into(), invalidate: None, solicited: false }).unwrap();
        id
    }

    pub fn send_invalidate(&mut self, data: impl Into<Rope>, stag: Stag, solicited: bool) -> WorkId {
        let id = self.id();
        let invalidate = self.invalidates.then_some(stag);
        self.qp.post(WorkRequest::Send { id, data: data.into(), invalidate, solicited }).unwrap();
        id
    }

    pub fn write(&mut self, data: impl Into<Rope>, stag: Stag, offset: u64) -> WorkId {
        let id = self.id();
        let to = RemoteSegment { stag, offset };
        self.qp.post(WorkRequest::Write { id, data: data.into(), to }).unwrap();
        id
    }

    pub fn read(&mut self, len: usize, stag: Stag, offset: u64) -> WorkId {
        let id = self.id();
        let from = RemoteSegment { stag, offset };
        self.qp.post(WorkRequest::Read { id, into: self.buffer(len), from }).unwrap();
        id
    }

    pub fn invalidate(&mut self, stag: Stag) -> WorkId {
        let id = self.id();
        self.qp.post(WorkRequest::Invalidate { id, stag }).unwrap();
        id
    }

    pub fn recv(&mut self, len: usize) -> WorkId {
        let id = self.id();
        let buffer = self.buffer(len);
        self.qp.post_recv(id, buffer);
        id
    }

    pub fn expose_for_write(&mut self, len: usize) -> Region {
        let buffer = self.buffer(len);
        self.qp.register(Memory::Write(buffer)).unwrap()
    }

    pub fn expose_for_read(&mut self, data: &[u8]) -> Region {
        let mut buffer = self.buffer(data.len());
        buffer.copy_from_slice(data);
        self.qp.register(Memory::Read(buffer.freeze())).unwrap()
    }

    pub fn find(&self, id: WorkId) -> Option<&Completion> {
        self.done.iter().find(|done| done.id == id)
    }

    /// The completion of `id`, which must be there and well.
    pub fn ok(&self, id: WorkId) -> &CompletionKind {
        let done = self.find(id).unwrap_or_else(|| panic!("{id:?} has not completed"));
        assert_eq!(done.status, Status::Ok);
        &done.kind
    }

    pub fn received(&self, id: WorkId) -> &[u8] {
        match self.ok(id) {
            CompletionKind::Receive { buffer, .. } => buffer,
            other => panic!("not a receive: {other:?}"),
        }
    }

    pub fn read_result(&self, id: WorkId) -> &[u8] {
        match self.ok(id) {
            CompletionKind::Read(buffer) => buffer,
            other => panic!("not a read: {other:?}"),
        }
    }

    pub fn has(&self, ids: &[WorkId]) -> bool {
        ids.iter().all(|&id| self.find(id).is_some())
    }

    pub fn statuses(&self) -> Vec<(WorkId, Status)> {
        self.done.iter().map(|done| (done.id, done.status)).collect()
    }

    /// Polls this end alone until `done`.
    pub async fn until(&mut self, done: impl Fn(&End) -> bool) {
        let polling = poll_fn(|cx| {
            while !done(self) && self.poll(cx) {}
            if done(self) { Poll::Ready(()) } else { Poll::Pending }
        });
        let done = tokio::time::timeout(LIMIT, polling).await;
        assert!(done.is_ok(), "stuck: {:?} {:?}", self.statuses(), self.error);
    }

    /// Whether anything has happened.
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
    pub fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// Polls both ends until `done`.
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
            panic!("stuck: client {}; server {}", state(&self.client), state(&self.server));
        }
    }

    /// Waits until what `side` has exposed so far can be used by the other, which no message of it tells.
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

    /// The memory of the region that the Send received by `recv` has invalidated on its way. Where peers cannot do that,
    /// its owner does it now.
    pub async fn invalidated(&mut self, side: Side, recv: WorkId, stag: Stag) -> Memory {
        let remote = self.remote_invalidation;
        let end = self.end(side);
        let done = end.done.iter_mut().find(|done| done.id == recv).expect("it has completed");
        assert_eq!(done.status, Status::Ok);
        let CompletionKind::Receive { invalidated, .. } = &mut done.kind else { panic!("not a receive") };
        if remote {
            let (invalidated, memory) = invalidated.take().expect("nothing invalidated");
            assert_eq!(invalidated, stag);
            return memory;
        }
        assert!(invalidated.is_none());
        if end.error.is_some() {
            return end.qp.reclaim(stag).expect("the peer did not take it");
        }
        let id = end.invalidate(stag);
        self.until_at(side, id).await;
        let end = self.end(side);
        let at = end.done.iter().position(|done| done.id == id).expect("ids differ");
        match end.done.remove(at).kind {
            CompletionKind::Invalidate(Some(memory)) => memory,
            other => panic!("no memory: {other:?}"),
        }
    }

    /// Polls both ends until both have ended; their errors.
    pub async fn until_ended(&mut self) -> (QpError, QpError) {
        self.until(|pair| pair.client.error.is_some() && pair.server.error.is_some()).await;
        (self.client.error.clone().unwrap(), self.server.error.clone().unwrap())
    }
}

/// A pool whose memory can be shared with another process.
pub fn shared_pool() -> Pool {
    Pool::new(PoolOptions { shared: true, ..PoolOptions::default() })
}

/// Bytes in which a misplaced piece shows.
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

/// The environment variable that names the IP address of an adapter.
const VERBS_ADDRESS: &str = "SLIPWAY_VERBS_ADDRESS";
const LIMIT: Duration = Duration::from_secs(60);
