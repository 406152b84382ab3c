//! [`RdmaTransport`]: a [`Connection`] and its queue pair.
//!
//! Read [`rpc::Transport`] for the callers of each method. There are two locks. Callers take the one around the
//! protocol's state, only to queue something. The driver alone takes the one around the queue pair, and does all I/O
//! under it. Replies are posted before the next call is delivered; the queue pair decides whether they are sent at once
//! or together ([`QueuePair::start`]).
//!
//! Buffers: see [`crate`]. On error the queue pair returns all buffers, the connection fails every call, and
//! `poll_recv` returns the error to the driver.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    os::fd::{BorrowedFd, OwnedFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use buf::{Piece, Pool};
use parking_lot::Mutex;
use rdma::{Completion, Descriptors, PostError, QueuePair};
use rpc::{
    BoxFuture, CallError, CallsMade, IncomingCall, PeerUser, Reply, ReplyPlan, ReplyToken, Transport, TransportCaps,
    TransportError,
};
use smallvec::SmallVec;
use tokio::time::{Instant, Sleep};
use xdr::Message;

use crate::{
    CallId, Connection, Design, Event, Role, Work,
    fit::{is_registrable, unreadable},
    table::Map,
};

/// RPC-over-RDMA on one queue pair.
pub struct RdmaTransport {
    caps: TransportCaps,
    peer: SocketAddr,
    user: Option<PeerUser>,
    descriptors: Option<Arc<dyn Descriptors>>,
    pool: Pool,
    shared: Mutex<Shared>,
    io: Mutex<Io>,
}

type Woken = SmallVec<[Waker; 16]>;

/// The state that callers and the driver share.
struct Shared {
    connection: Connection,
    waiting: Map<CallId, Waiting>,
    incoming: std::collections::VecDeque<IncomingCall>,
    /// The waker of the driver while it sleeps.
    driver: Option<Waker>,
    over: Option<TransportError>,
    /// `true` if the connection must be closed at once.
    aborted: bool,
    peer: SocketAddr,
}

/// A call whose future has not returned its outcome.
struct Waiting {
    waker: Waker,
    result: Option<Result<Reply, CallError>>,
}

/// The state that only the driver accesses.
struct Io {
    qp: Box<dyn QueuePair>,
    completions: Vec<Completion>,
    /// `true` if the send queue was full at the last post.
    full: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl RdmaTransport {
    /// Creates a transport with the name `name` on a new connection. Either the receives of
    /// [`Connection::initial_receives`] have been posted, or `qp` and `connection` have a receive source.
    pub fn new(name: &'static str, qp: Box<dyn QueuePair>, connection: Connection, pool: Pool) -> Self {
        let peer = qp.peer();
        let user = qp.peer_user().map(|rdma::PeerUser { uid, gid, groups }| PeerUser {
            uid: *uid,
            gid: *gid,
            groups: groups.clone(),
        });
        let descriptors = qp.descriptors();
        let settings = connection.settings();
        let idle = settings.options.idle;
        let idle = if settings.role == Role::Accepting { rpc::accepting_idle(idle) } else { idle };
        let caps = TransportCaps {
            name,
            message_max: settings.options.message_max,
            lossy: false,
            // The peer can read only from memory.
            file_ranges: qp.caps().file_ranges && settings.design == Design::ReadWrite,
            idle,
        };
        let shared = Shared {
            connection,
            waiting: Map::default(),
            incoming: Default::default(),
            driver: None,
            over: None,
            aborted: false,
            peer,
        };
        let io = Io { qp, completions: Vec::new(), full: false, timer: None };
        Self { caps, peer, user, descriptors, pool, shared: Mutex::new(shared), io: Mutex::new(io) }
    }
}

impl Transport for RdmaTransport {
    fn caps(&self) -> &TransportCaps {
        &self.caps
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn peer_user(&self) -> Option<&PeerUser> {
        self.user.as_ref()
    }

    fn carries_descriptors(&self) -> bool {
        self.descriptors.is_some()
    }

    fn send_descriptor(&self, descriptor: BorrowedFd<'_>) -> io::Result<u64> {
        self.descriptors.as_ref().ok_or(io::ErrorKind::Unsupported)?.send(descriptor)
    }

    fn take_descriptor(&self, number: u64) -> Option<OwnedFd> {
        self.descriptors.as_ref()?.take(number)
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn call(self: Arc<Self>, message: Message, plan: ReplyPlan) -> BoxFuture<'static, Result<Reply, CallError>> {
        Box::pin(CallFuture { transport: self, stage: CallStage::New(message, plan) })
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        // Callers are woken while no lock is held.
        let mut woken = Woken::new();
        let polled = self.drive(&mut self.io.lock(), &mut woken, cx);
        woken.into_iter().for_each(Waker::wake);
        polled
    }

    fn reply(&self, token: ReplyToken, mut message: Message) -> Result<(), TransportError> {
        let in_memory = |piece: &Piece| matches!(piece, Piece::Memory(_));
        let readable = if self.caps.file_ranges { Ok(()) } else { read_files(&mut message, &self.pool, in_memory) };
        let mut shared = self.shared.lock();
        let replied = match readable {
            Ok(()) => shared.connection.reply(token, message),
            Err(error) => shared.connection.refuse_call(token).and(Err(error)),
        };
        shared.wake_driver();
        replied
    }

    fn forget(&self, token: ReplyToken) {
        self.shared.lock().connection.forget(&token);
    }

    fn calls_made(&self) -> CallsMade {
        self.shared.lock().connection.calls_made()
    }

    fn close(&self) {
        let mut shared = self.shared.lock();
        shared.connection.close();
        shared.wake_driver();
    }

    fn abort(&self) {
        let mut shared = self.shared.lock();
        shared.aborted = true;
        shared.wake_driver();
    }
}

impl RdmaTransport {
    fn drive(
        &self,
        io: &mut Io,
        woken: &mut Woken,
        cx: &mut Context<'_>,
    ) -> Poll<Result<IncomingCall, TransportError>> {
        loop {
            {
                let mut shared = self.shared.lock();
                shared.driver = None;
                if std::mem::take(&mut shared.aborted) {
                    io.qp.abort();
                }
                // Posts the replies to the calls delivered before, so that the peer gets them while the next call is
                // executed.
                let posted = shared.over.is_none() && io.post_work(&mut shared.connection);
                // Posting can also deliver a call whose data are viewed in the peer's memory.
                shared.take_events(woken);
                if let Some(call) = shared.incoming.pop_front() {
                    drop(shared);
                    if posted {
                        io.qp.start();
                    }
                    return Poll::Ready(Ok(call));
                }
                if let Some(error) = &shared.over {
                    return Poll::Ready(Err(error.clone()));
                }
            }
            // Woken callers run before this task polls again. Only the driver's own lock is held.
            woken.drain(..).for_each(Waker::wake);
            let ended = match io.qp.poll_completions(cx, &mut io.completions) {
                Poll::Ready(Ok(())) => None,
                Poll::Ready(Err(error)) => Some(error),
                Poll::Pending => {
                    let mut shared = self.shared.lock();
                    if io.post_work(&mut shared.connection)
                        || io.poll_timer(&mut shared.connection, cx)
                        || (!io.full && shared.connection.poll_memory(cx))
                    {
                        continue; // Work was queued while the queue pair was polled.
                    }
                    shared.take_events(woken);
                    if !shared.incoming.is_empty() {
                        continue;
                    }
                    if !io.qp.is_spinning() {
                        shared.shrink_idle();
                        if io.completions.capacity() > IDLE_ENTRIES {
                            io.completions = Vec::new();
                        }
                    }
                    shared.driver = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            };
            io.full = false;
            let now = Instant::now().into_std();
            let mut shared = self.shared.lock();
            for completion in io.completions.drain(..) {
                shared.connection.handle_completion(completion, now);
            }
            if let Some(error) = ended {
                let error = match error {
                    rdma::QpError::Protocol(what) => TransportError::Protocol(what),
                    other => TransportError::Lost(other.to_string()),
                };
                shared.connection.handle_disconnect(error, &mut io.qp);
            }
            shared.take_events(woken);
        }
    }
}

impl Io {
    /// Posts the connection's work. Returns `true` if there was any.
    fn post_work(&mut self, connection: &mut Connection) -> bool {
        let mut posted = false;
        while !self.full
            && let Some(work) = connection.poll_work(&mut self.qp)
        {
            match work {
                Work::Receive(id, buffer) => self.qp.post_recv(id, buffer),
                Work::Disconnect => self.qp.disconnect(),
                Work::Post(request) => {
                    if let Err(PostError::QueueFull(request)) = self.qp.post(request) {
                        connection.put_back(request);
                        self.full = true;
                        return posted;
                    }
                }
            }
            posted = true;
        }
        posted
    }

    /// Returns `true` if the connection's timeout has been handled.
    fn poll_timer(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> bool {
        let Some(due) = connection.poll_timeout() else { return false };
        let due = Instant::from_std(due);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        // Deadlines only move to later times, usually before they are reached. A timer that fires early is then set
        // again.
        if timer.is_elapsed() {
            timer.as_mut().reset(due);
        }
        if timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        connection.handle_timeout(Instant::now().into_std());
        true
    }
}

impl Shared {
    fn take_events(&mut self, woken: &mut Woken) {
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Call { message, token } => {
                    self.incoming.push_back(IncomingCall { message, token, peer: self.peer });
                }
                Event::Reply { id, result } => {
                    if let Some(waiting) = self.waiting.get_mut(&id) {
                        waiting.result = Some(result);
                        woken.push(waiting.waker.clone());
                    }
                }
                Event::Closed(error) => self.over = Some(error),
            }
        }
    }

    /// Frees memory that an idle connection does not need.
    fn shrink_idle(&mut self) {
        self.connection.shrink_idle();
        if self.waiting.is_empty() && self.waiting.capacity() > IDLE_ENTRIES {
            self.waiting = Map::default();
        }
        if self.incoming.capacity() > IDLE_ENTRIES {
            self.incoming = Default::default(); // It is empty, because no call waits to be delivered.
        }
    }

    fn wake_driver(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }
}

struct CallFuture {
    transport: Arc<RdmaTransport>,
    stage: CallStage,
}

enum CallStage {
    New(Message, ReplyPlan),
    Waiting(CallId),
    Done,
}

impl CallFuture {
    fn start(&mut self, mut message: Message, plan: ReplyPlan, cx: &Context<'_>) -> Result<(), CallError> {
        if let Err(error) = read_files(&mut message, &self.transport.pool, is_registrable) {
            return Err(CallError { error, sink: plan.sink });
        }
        let mut shared = self.transport.shared.lock();
        let id = shared.connection.call(message, plan);
        shared.waiting.insert(id, Waiting { waker: cx.waker().clone(), result: None });
        self.stage = CallStage::Waiting(id);
        // A call that could not be queued has already ended.
        let mut woken = Woken::new();
        shared.take_events(&mut woken);
        shared.wake_driver();
        drop(shared);
        woken.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

impl Future for CallFuture {
    type Output = Result<Reply, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.stage, CallStage::Done) {
            CallStage::New(message, plan) => match self.start(message, plan, cx) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
            CallStage::Waiting(id) => {
                let mut shared = self.transport.shared.lock();
                let waiting = shared.waiting.get_mut(&id).expect("a call must be in the table until it has ended");
                if let Some(result) = waiting.result.take() {
                    shared.waiting.remove(&id);
                    return Poll::Ready(result);
                }
                waiting.waker.clone_from(cx.waker());
                drop(shared);
                self.stage = CallStage::Waiting(id);
                Poll::Pending
            }
            CallStage::Done => panic!("polled after completion"),
        }
    }
}

impl Drop for CallFuture {
    fn drop(&mut self) {
        if let CallStage::Waiting(id) = self.stage {
            let mut shared = self.transport.shared.lock();
            shared.waiting.remove(&id);
            shared.connection.cancel(id, Instant::now().into_std());
            shared.wake_driver();
        }
    }
}

/// Maximum number of entries for which empty collections keep their memory.
const IDLE_ENTRIES: usize = 4;

/// Copies payloads to memory that can be registered, unless all of their pieces satisfy `as_they_are`. This applies to
/// file ranges and memory of peers.
fn read_files(message: &mut Message, pool: &Pool, as_they_are: fn(&Piece) -> bool) -> Result<(), TransportError> {
    for payload in &mut message.payloads {
        if !payload.data.pieces().iter().all(as_they_are) {
            let mut buffer = pool.take(payload.data.len());
            payload.data.copy_to(&mut buffer).map_err(|error| unreadable(&error))?;
            payload.data = buffer.freeze().into();
        }
    }
    Ok(())
}
