//! The transport "tcp": records on a stream socket. RFC 5531 §11.
//!
//! `poll_recv` does all I/O. It reads the available bytes with one `readv` and returns the calls in them one by one.
//! Before it waits, it sends everything that was queued meanwhile with one `sendmsg` (files by `sendfile`).
//!
//! Buffers: see [`record`](crate::record). A sink belongs to the pending call, to the reader while it is being filled,
//! and to the caller again with the reply or the error.
//!
//! On error the connection is closed: pending calls fail with the error, and `poll_recv` returns it again.
//!
//! Back pressure: while a peer does not read its replies, its calls are not read. The memory of an accepted connection
//! is charged to the [`budget`](crate::budget) of its listener; see [`memory`].

mod kind;
mod memory;
#[cfg(feature = "sim")]
pub(crate) mod sim;
mod sockets;
mod stream;
mod upgrade;

use std::{
    collections::VecDeque,
    future::Future,
    io,
    net::{Shutdown, SocketAddr},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use buf::{Buffer, Pool, RecvStage, SendQueue, Spin};
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Sleep;
use xdr::Message;

pub use kind::{TcpKind, TcpOptions};
pub(crate) use memory::Terms;
use memory::{Ledger, Tally, call_cost, memory_of};
pub use sockets::Sockets;
pub(crate) use sockets::{RESERVED_MAX, RESERVED_MIN, any_address};
pub use stream::{Accept, Stream, StreamNetwork};

use crate::{
    AcceptError, BoxFuture, CallError, CallsMade, IncomingCall, Reply, ReplyHeader, ReplyPlan, ReplyToken, Transport,
    TransportCaps, TransportError, Xid,
    msg::{CALL, REPLY, peek},
    outbox::Outbox,
    pending::{self, CallFuture, Calling, PendingCalls},
    record::{Place, Placement, Record, RecordReader, STAGE_BYTES},
    tls::{ConnectionTls, Wire},
};
use upgrade::{Handshaking, Judged, Upgrade};

/// A TCP connection.
pub struct TcpTransport<S = tokio::net::TcpStream> {
    caps: TransportCaps,
    peer: SocketAddr,
    pool: Pool,
    /// The connection's TLS session. It is not set while the connection is in clear.
    tls: Arc<OnceLock<ConnectionTls>>,
    offers_tls: bool,
    shared: Mutex<Shared>,
    driver: Mutex<Driver<S>>,
}

/// The state that callers access, in short critical sections without system calls.
pub(crate) struct Shared {
    outbox: Outbox,
    /// The bytes of replies in the outbox.
    reply_bytes: usize,
    pending: PendingCalls,
    message_max: usize,
    held: bool,
    closing: bool,
    aborted: bool,
    ledger: Ledger,
    /// The waker of the driver while it sleeps.
    sleeping: Option<Waker>,
}

/// The time until which the peer can read what it was sent last, and the reason why the connection then ends.
struct Linger {
    until: Pin<Box<Sleep>>,
    why: TransportError,
}

/// The state that only the driver accesses.
struct Driver<S> {
    socket: Wire<S>,
    /// Decides about calls in clear, if the listener offers TLS.
    upgrade: Option<Upgrade>,
    handshaking: Option<Box<Handshaking>>,
    /// `true` if no more records are read, because the connection is closed after its last reply.
    ends: bool,
    /// The reason why the connection is closed when all calls in progress are answered.
    retires: Option<TransportError>,
    tls: Arc<OnceLock<ConnectionTls>>,
    peer: SocketAddr,
    stage: RecvStage,
    reader: RecordReader,
    queue: SendQueue,
    /// An upper bound of the bytes of replies in the queue.
    reply_bytes: usize,
    /// The time from which messages in the outbox wait for more of them.
    waiting: Option<tokio::time::Instant>,
    /// Calls that arrived while delivery was paused. There is one, or more if the driver reads on for replies that can
    /// follow them.
    stash: VecDeque<IncomingCall>,
    stash_bytes: usize,
    tally: Tally,
    spin: Spin,
    linger: Option<Linger>,
    over: Option<TransportError>,
}

impl<S: Stream> TcpTransport<S> {
    /// Creates a transport over a socket, on the current tokio runtime.
    pub(crate) fn new(
        socket: Wire<S>,
        (message_max, idle): (usize, Option<Duration>),
        terms: Terms,
        pool: Pool,
    ) -> io::Result<Self> {
        let peer = socket.peer_addr()?;
        let queue = if socket.is_paced() { SendQueue::new() } else { SendQueue::unpaced() };
        let tls = Arc::<OnceLock<_>>::default();
        if !socket.is_clear() {
            // The client's calls are judged by the server. Those of the server need only an encrypted connection.
            tls.set(ConnectionTls::Tls).expect("the state must not be set twice");
        }
        Ok(Self {
            caps: TransportCaps { name: "tcp", message_max, lossy: false, file_ranges: true, idle },
            peer,
            pool: pool.clone(),
            tls: tls.clone(),
            offers_tls: terms.tls.is_some(),
            shared: Mutex::new(Shared {
                outbox: Outbox::default(),
                reply_bytes: 0,
                pending: PendingCalls::default(),
                message_max,
                held: false,
                closing: false,
                aborted: false,
                ledger: Ledger::new(terms.account),
                sleeping: None,
            }),
            driver: Mutex::new(Driver {
                socket,
                upgrade: terms.tls.map(|tls| Upgrade::new(tls, peer, terms.admitted)),
                handshaking: None,
                ends: false,
                retires: None,
                tls,
                peer,
                stage: RecvStage::new(STAGE_BYTES),
                reader: RecordReader::new(message_max.min(terms.record_max), pool),
                queue,
                reply_bytes: 0,
                waiting: None,
                stash: VecDeque::new(),
                stash_bytes: 0,
                tally: Tally::new(terms.replies_max, terms.calls_max),
                spin: Spin::new(S::SPIN_MAX),
                linger: None,
                over: None,
            }),
        })
    }
}

impl<S: Stream> Transport for TcpTransport<S> {
    fn caps(&self) -> &TransportCaps {
        &self.caps
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn tls(&self) -> &ConnectionTls {
        self.tls.get().unwrap_or(&ConnectionTls::None)
    }

    fn offers_tls(&self) -> bool {
        self.offers_tls
    }

    fn call(self: Arc<Self>, message: Message, plan: ReplyPlan) -> BoxFuture<'static, Result<Reply, CallError>> {
        Box::pin(CallFuture::new(self, message, plan))
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        let mut driver = self.driver.lock();
        if let Some(error) = &driver.over {
            return Poll::Ready(Err(error.clone()));
        }
        let polled = driver.poll(&self.shared, cx);
        if let Poll::Ready(Err(error)) = &polled {
            driver.over = Some(error.clone());
            let mut shared = self.shared.lock();
            shared.pending.fail_all(error, driver.reader.abandon());
            driver.shut_down(&mut shared);
        }
        polled
    }

    fn reply(&self, token: ReplyToken, message: Message) -> Result<(), TransportError> {
        let mut shared = self.shared.lock();
        shared.ledger.ended(&token);
        if let Some(error) = shared.pending.over() {
            return Err(error.clone());
        }
        let len = message.len();
        if len <= shared.message_max {
            shared.reply_bytes += len;
            shared.ledger.replied(memory_of(&message));
            shared.outbox.push(message, len);
            shared.wake();
            return Ok(());
        }
        if let Some(short) = ReplyHeader::of_error(token.xid, AcceptError::SystemErr) {
            let len = short.len();
            shared.outbox.push(short, len);
            shared.wake();
        }
        Err(TransportError::TooLong { len, max: shared.message_max })
    }

    fn forget(&self, token: ReplyToken) {
        let mut shared = self.shared.lock();
        shared.ledger.ended(&token);
        shared.wake();
    }

    fn calls_made(&self) -> CallsMade {
        self.shared.lock().pending.made()
    }

    fn hold(&self, hold: bool) {
        let mut shared = self.shared.lock();
        shared.held = hold;
        shared.wake();
    }

    fn close(&self) {
        let mut shared = self.shared.lock();
        shared.closing = true;
        shared.pending.fail_all(&TransportError::Lost(CLOSED_HERE.to_owned()), None);
        shared.wake();
    }

    fn abort(&self) {
        let mut shared = self.shared.lock();
        shared.aborted = true;
        shared.wake();
    }
}

impl<S: Stream> Calling for TcpTransport<S> {
    type Shared = Shared;

    fn shared(&self) -> &Mutex<Shared> {
        &self.shared
    }
}

impl Shared {
    fn wake(&mut self) {
        if let Some(waker) = self.sleeping.take() {
            waker.wake();
        }
    }
}

impl pending::Shared for Shared {
    fn pending(&mut self) -> &mut PendingCalls {
        &mut self.pending
    }

    fn send(&mut self, message: Message) -> Result<(), TransportError> {
        let len = message.len();
        if len > self.message_max {
            return Err(TransportError::TooLong { len, max: self.message_max });
        }
        self.outbox.push(message, len);
        self.wake();
        Ok(())
    }
}

impl<S: Stream> Driver<S> {
    fn poll(&mut self, shared: &Mutex<Shared>, cx: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        loop {
            if self.linger.is_some() {
                return self.poll_linger(cx);
            }
            if self.handshaking.is_some() {
                ready!(self.poll_handshake(shared, cx))?;
                continue;
            }
            let unwanted = self.take_up(shared, FLUSH_EARLY)?;
            if !self.queue.is_empty() {
                self.flush(cx)?;
            }
            let stop = unwanted || self.reply_bytes >= self.tally.replies_max;
            if let Some(call) = self.next_call(shared, stop)? {
                return Poll::Ready(Ok(call));
            }
            if self.handshaking.is_some() {
                continue;
            }
            match self.may_read(shared).then(|| self.receive(cx)) {
                Some(Ok(true)) => continue,
                Some(Err(error)) if self.socket.has_failed() => {
                    self.reject(shared, error);
                    continue;
                }
                Some(Err(error)) => return Poll::Ready(Err(error)),
                Some(Ok(false)) | None => {}
            }
            self.take_up(shared, 1)?;
            self.flush(cx)?;
            if let Some(why) = self.retired(shared) {
                self.reject(shared, why);
                continue;
            }
            let mut shared = shared.lock();
            if shared.closing && self.is_flushed() && shared.outbox.is_empty() {
                self.start_linger(TransportError::Lost(CLOSED_HERE.to_owned()));
                continue;
            }
            // Another thread can have queued work, or this flush can have made progress possible, since the last check.
            let unwanted = shared.held || shared.closing || self.tally.is_full();
            let may_go_on = !self.stash.is_empty() && !unwanted && self.reply_bytes < self.tally.replies_max;
            if shared.outbox.is_empty() && !may_go_on && !shared.aborted {
                shared.sleeping = Some(cx.waker().clone());
                if !self.is_flushed() || !self.spin.poll_again(cx) {
                    shared.outbox.release_if_empty();
                    self.stage.shrink_idle();
                    self.reader.release_idle_memory();
                    self.queue.shrink_idle();
                    self.socket.shrink_idle();
                    self.tally.stage(self.stage.bytes().len() + self.socket.held() + self.socket.unsent());
                }
                let incomplete = self.reader.charged() + self.socket.unsent();
                if self.tally.prepare_sleep(&mut shared.ledger, incomplete, cx)? {
                    return Poll::Pending;
                }
            }
        }
    }

    /// Moves queued messages to the send queue, if together they have at least `least` bytes or have waited for
    /// [`WAITING_MAX`]: small replies become one piece as long as they stay queued. Returns `true` if calls must not be
    /// delivered.
    fn take_up(&mut self, shared: &Mutex<Shared>, least: usize) -> Result<bool, TransportError> {
        let mut shared = shared.lock();
        shared.sleeping = None;
        if shared.aborted {
            return Err(TransportError::Lost(CLOSED_HERE.to_owned()));
        }
        self.reply_bytes += std::mem::take(&mut shared.reply_bytes);
        if !shared.outbox.is_empty() {
            let now = tokio::time::Instant::now();
            let waited = now - *self.waiting.get_or_insert(now);
            if self.queue.len() + shared.outbox.len() >= least || waited >= WAITING_MAX {
                shared.outbox.drain_to(&mut self.queue);
                self.waiting = None;
            }
        }
        self.tally.settle(&mut shared.ledger);
        Ok(shared.held || shared.closing || self.tally.is_full())
    }

    /// Reads records from the stage until one is a call. If `stop` is set, calls are stashed for later.
    fn next_call(&mut self, shared: &Mutex<Shared>, stop: bool) -> Result<Option<IncomingCall>, TransportError> {
        if !stop && let Some(call) = self.stash.pop_front() {
            self.stash_bytes -= stash_cost(&call);
            self.tally.handed_out(&call.token);
            return Ok(Some(call));
        }
        while self.may_advance(shared) {
            let mut locator = Locator { shared, refused: 0 };
            let advanced = self.reader.advance(self.stage.bytes(), &mut locator);
            self.tally.refused = locator.refused;
            let (taken, record) = advanced.map_err(|error| TransportError::Protocol(error.to_string()))?;
            self.stage.consume(taken);
            let Some(record) = record else { break };
            match peek(&record.message.stream) {
                Some((xid, CALL)) if !self.is_admitted(xid, &record, shared)? => break,
                Some((xid, CALL)) => {
                    let cost = call_cost(&record);
                    self.tally.charge(cost - record.charged);
                    let token = ReplyToken { xid, call: cost as u64 };
                    let call = IncomingCall { message: record.message, token, peer: self.peer };
                    if !stop {
                        self.tally.handed_out(&call.token);
                        return Ok(Some(call));
                    }
                    self.stash_bytes += stash_cost(&call);
                    self.stash.push_back(call);
                }
                Some((xid, REPLY)) => {
                    self.tally.release(record.charged);
                    shared.lock().pending.complete(xid, record.message, record.sink);
                }
                _ => return Err(TransportError::Protocol("a record is neither a call nor a reply".to_owned())),
            }
        }
        Ok(None)
    }

    /// Judges a call on a connection in clear whose listener offers TLS. Returns `false` if the call is not delivered: the
    /// connection continues with a handshake, or is closed.
    fn is_admitted(&mut self, xid: Xid, call: &Record, shared: &Mutex<Shared>) -> Result<bool, TransportError> {
        let Some(upgrade) = &mut self.upgrade else { return Ok(true) };
        match upgrade.judge(xid, &call.message, self.stage.bytes().len())? {
            Judged::Deliver => return Ok(true),
            Judged::Start(handshaking) => self.handshaking = Some(handshaking),
            Judged::Refuse(reply) => {
                let mut shared = shared.lock();
                let len = reply.len();
                shared.outbox.push(reply, len);
                shared.closing = true;
                self.ends = true;
            }
        }
        self.tally.release(call.charged);
        Ok(false)
    }

    /// Drives the handshake to its end. Nothing is executed meanwhile.
    fn poll_handshake(&mut self, shared: &Mutex<Shared>, cx: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let Some(handshaking) = &mut self.handshaking else { return Poll::Ready(Ok(())) };
        {
            let mut shared = shared.lock();
            if shared.closing || shared.aborted {
                return Poll::Ready(Err(TransportError::Lost(CLOSED_HERE.to_owned())));
            }
            shared.sleeping = Some(cx.waker().clone());
        }
        let Poll::Ready(outcome) = handshaking.poll(&mut self.socket, &mut self.stage, cx) else {
            let held = handshaking.held();
            self.tally.stage(self.stage.bytes().len() + held);
            if !self.tally.prepare_sleep(&mut shared.lock().ledger, held, cx)? {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        };
        let ended = self.handshaking.take().expect("it was checked above");
        match outcome {
            Ok(tls) => {
                self.tls.set(tls).expect("a connection has one handshake");
                self.upgrade = None;
            }
            Err(error) => {
                ended.log_failure(self.peer, &error);
                // Without a linger, the client could lose the alert that tells it why.
                self.start_linger(error);
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns `true` if the socket has accepted everything that was queued.
    fn is_flushed(&self) -> bool {
        self.queue.is_empty() && self.socket.unsent() == 0
    }

    /// Returns `true` if another record can be read from the stage.
    fn may_advance(&self, shared: &Mutex<Shared>) -> bool {
        let may_stash = || self.stash_bytes < STASH_MAX && shared.lock().pending.any();
        !self.ends && self.handshaking.is_none() && (self.stash.is_empty() || may_stash())
    }

    /// Returns `true` if the socket can be read. A record that has its memory is always received completely.
    fn may_read(&mut self, shared: &Mutex<Shared>) -> bool {
        let waits = self.tally.waits() && self.reader.direct().is_empty();
        !waits && self.may_advance(shared)
    }

    /// Receives once. Returns `false` if no bytes are available.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, TransportError> {
        while let Poll::Ready(ready) = self.socket.poll_read_ready(cx) {
            ready.map_err(lost)?;
            let ahead = self.tally.ahead(self.reader.ahead(self.stage.bytes().len()));
            let direct = self.reader.direct();
            match self.socket.try_receive(&mut self.stage, direct, ahead) {
                Ok(received) if received.direct + received.staged == 0 => {
                    return Err(TransportError::Lost("the peer closed the connection".to_owned()));
                }
                Ok(received) => {
                    self.spin.worked(Instant::now);
                    self.reader.direct_filled(received.direct);
                    self.tally.moved(received.direct + received.staged);
                    return Ok(true);
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(lost(error)),
                Err(_) => {}
            }
        }
        Ok(false)
    }

    /// Sends until the queue is empty or the socket buffer is full.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), TransportError> {
        let before = self.queue.len() + self.socket.unsent();
        while !self.is_flushed() {
            let Poll::Ready(ready) = self.socket.poll_write_ready(cx) else { break };
            ready.map_err(lost)?;
            match self.socket.try_send(&mut self.queue) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(lost(error)),
                _ => {}
            }
        }
        let left = self.queue.len() + self.socket.unsent();
        self.reply_bytes = self.reply_bytes.min(left);
        // Encryption adds bytes. Encrypted bytes are charged like staged ones.
        self.tally.moved(before.saturating_sub(left));
        self.tally.flushed(self.queue.held());
        if self.retires.is_none() && self.socket.has_spent_key() {
            self.ends = true;
            self.retires = Some(TransportError::Lost(KEY_SPENT.to_owned()));
        }
        Ok(())
    }

    /// Returns the reason to close a connection that retires and has sent the replies to all calls.
    fn retired(&self, shared: &Mutex<Shared>) -> Option<TransportError> {
        let why = self.retires.as_ref().filter(|_| self.is_flushed() && self.stash.is_empty())?;
        let shared = shared.lock();
        (shared.outbox.is_empty() && shared.ledger.is_idle()).then(|| why.clone())
    }

    /// Ends a connection whose peer has violated TLS, or whose key cannot be replaced: sends the alert, and nothing else.
    fn reject(&mut self, shared: &Mutex<Shared>, error: TransportError) {
        let mut shared = shared.lock();
        shared.pending.fail_all(&error, self.reader.abandon());
        self.free(&mut shared);
        drop(shared);
        self.start_linger(error);
    }

    /// Shuts the connection down, and frees all memory except that of calls in progress.
    fn shut_down(&mut self, shared: &mut Shared) {
        self.socket.shutdown(Shutdown::Both);
        self.free(shared);
    }

    fn free(&mut self, shared: &mut Shared) {
        self.stash.clear();
        self.queue = SendQueue::new();
        self.stage = RecvStage::new(STAGE_BYTES);
        self.reader.forget();
        shared.outbox = Outbox::default();
        self.tally.release_all(&mut shared.ledger);
    }

    /// All bytes have been sent: shuts down writing, and waits until the peer does the same. Closing a socket that has
    /// unread bytes resets the connection, and the peer could lose replies that it has not read.
    fn start_linger(&mut self, why: TransportError) {
        self.socket.shutdown(Shutdown::Write);
        let time = if self.socket.is_ending() { LINGER_ENDING } else { LINGER };
        self.linger = Some(Linger { until: Box::pin(tokio::time::sleep(time)), why });
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        let Linger { until, why } = self.linger.as_mut().expect("the connection must be lingering");
        if until.as_mut().poll(cx).is_pending() {
            ready!(self.socket.poll_discard(cx));
        }
        Poll::Ready(Err(why.clone()))
    }
}

/// Finds the sink of an arriving reply, and charges memory for other records.
struct Locator<'a> {
    shared: &'a Mutex<Shared>,
    /// The number of bytes for which there was no room.
    refused: usize,
}

impl Place for Locator<'_> {
    fn place(&mut self, xid: Xid, prefix: &Bytes, record_len: usize) -> Option<Placement> {
        let mut shared = self.shared.lock();
        let plan = shared.pending.plan(xid)?;
        let located = plan.locate?(prefix)?;
        // A socket receives into host memory only. The caller copies the payload to a region of another kind.
        let sink = match Buffer::try_from(plan.sink.take()?) {
            Ok(sink) => sink,
            Err(sink) => {
                plan.sink = Some(sink);
                return None;
            }
        };
        let placement = Placement { sink, located };
        if placement.fits(prefix.len(), record_len) {
            return Some(placement);
        }
        plan.sink = Some(placement.sink.into());
        None
    }

    fn room(&mut self, bytes: usize) -> bool {
        let room = self.shared.lock().ledger.try_charge(bytes);
        self.refused = if room { 0 } else { bytes };
        room
    }
}

fn stash_cost(call: &IncomingCall) -> usize {
    call.message.len() + size_of::<IncomingCall>()
}

fn lost(error: io::Error) -> TransportError {
    TransportError::Lost(error.to_string())
}

const CLOSED_HERE: &str = "closed on this side";
const KEY_SPENT: &str = "closed on this side, because the kernel cannot replace the key of TLS, whose limit is near";
/// The number of queued bytes that is worth a system call while more calls are staged.
const FLUSH_EARLY: usize = 256 << 10;
/// The time after which replies are sent while more calls are staged. Without it, a client whose calls take long (krb5p)
/// would wait for the replies to all of them, and the server then for its next calls.
const WAITING_MAX: Duration = Duration::from_micros(200);
const STASH_MAX: usize = 4 << 20;
const LINGER: Duration = Duration::from_secs(1);
/// The same if the system holds a part of a record of TLS, which it would not send after the socket is closed.
const LINGER_ENDING: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
