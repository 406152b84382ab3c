//! The transport "tcp": records on a stream socket. RFC 5531 §11.
//!
//! All I/O happens in `poll_recv`. It reads what is there with one `readv`, hands out the calls in
//! it one by one, and before it waits sends everything that was queued meanwhile with one `sendmsg`
//! (files by `sendfile`).
//!
//! Who owns the bytes: see [`record`](crate::record). A sink belongs to the pending call, to the
//! reader while it is being filled, and to the caller again with the reply or the error.
//!
//! On error the connection is over: pending calls end with the error, `poll_recv` repeats it.
//!
//! Back pressure: when a peer does not read its replies, its calls are not read, either.

mod kind;

use std::{
    collections::VecDeque,
    future::Future,
    io,
    net::{Shutdown, SocketAddr},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use buf::{Pool, RecvStage, SOCKET_SPIN_MAX, SendQueue, Spin};
use bytes::Bytes;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream, time::Sleep};
use xdr::Message;

pub(crate) use kind::{RESERVED_MAX, RESERVED_MIN, any_address};
pub use kind::{TcpKind, TcpOptions};

use crate::{
    AcceptError, BoxFuture, CallError, CallsMade, IncomingCall, Reply, ReplyHeader, ReplyPlan, ReplyToken, Transport,
    TransportCaps, TransportError, Xid,
    msg::{CALL, REPLY, peek},
    outbox::Outbox,
    pending::{self, CallFuture, PendingCalls},
    record::{Place, Placement, RecordReader, STAGE_BYTES},
};

/// One TCP connection.
pub struct TcpTransport {
    caps: TransportCaps,
    peer: SocketAddr,
    pool: Pool,
    shared: Mutex<Shared>,
    driver: Mutex<Driver>,
}

/// What callers touch, in short critical sections without system calls.
struct Shared {
    outbox: Outbox,
    /// Bytes of the outbox that are replies.
    reply_bytes: usize,
    pending: PendingCalls,
    message_max: usize,
    held: bool,
    closing: bool,
    /// The driver, while it sleeps.
    sleeping: Option<Waker>,
}

/// What only the driver touches.
struct Driver {
    socket: TcpStream,
    peer: SocketAddr,
    stage: RecvStage,
    reader: RecordReader,
    queue: SendQueue,
    /// Bytes of the queue that are replies, or somewhat more.
    reply_bytes: usize,
    /// Calls that came while calls are not wanted: one, or more if replies are awaited that can be behind them.
    stash: VecDeque<IncomingCall>,
    stash_bytes: usize,
    spin: Spin,
    linger: Option<Pin<Box<Sleep>>>,
    over: Option<TransportError>,
}

impl TcpTransport {
    /// A connection over this socket, on the current tokio runtime.
    pub(crate) fn new(
        socket: std::net::TcpStream,
        message_max: usize,
        idle: Option<Duration>,
        pool: Pool,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let peer = socket.peer_addr()?;
        Ok(Self {
            caps: TransportCaps { name: "tcp", message_max, lossy: false, file_ranges: true, idle },
            peer,
            pool: pool.clone(),
            shared: Mutex::new(Shared {
                outbox: Outbox::default(),
                reply_bytes: 0,
                pending: PendingCalls::default(),
                message_max,
                held: false,
                closing: false,
                sleeping: None,
            }),
            driver: Mutex::new(Driver {
                socket: TcpStream::from_std(socket)?,
                peer,
                stage: RecvStage::new(STAGE_BYTES),
                reader: RecordReader::new(message_max, pool),
                queue: SendQueue::new(),
                reply_bytes: 0,
                stash: VecDeque::new(),
                stash_bytes: 0,
                spin: Spin::new(SOCKET_SPIN_MAX),
                linger: None,
                over: None,
            }),
        })
    }
}

impl Transport for TcpTransport {
    fn caps(&self) -> &TransportCaps {
        &self.caps
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn call(&self, message: Message, plan: ReplyPlan) -> BoxFuture<'_, Result<Reply, CallError>> {
        Box::pin(CallFuture::new(&self.shared, message, plan))
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        let mut driver = self.driver.lock();
        if let Some(error) = &driver.over {
            return Poll::Ready(Err(error.clone()));
        }
        let polled = driver.poll(&self.shared, cx);
        if let Poll::Ready(Err(error)) = &polled {
            driver.over = Some(error.clone());
            self.shared.lock().pending.fail_all(error, driver.reader.abandon());
        }
        polled
    }

    fn reply(&self, token: ReplyToken, message: Message) -> Result<(), TransportError> {
        let mut shared = self.shared.lock();
        if let Some(error) = shared.pending.over() {
            return Err(error.clone());
        }
        let len = message.len();
        if len <= shared.message_max {
            shared.reply_bytes += len;
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

impl Driver {
    fn poll(&mut self, shared: &Mutex<Shared>, cx: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        loop {
            if self.linger.is_some() {
                return self.poll_linger(cx);
            }
            let unwanted = self.take_up(shared);
            if self.queue.len() >= FLUSH_EARLY {
                self.flush(cx)?;
            }
            let stop = unwanted || self.reply_bytes >= REPLIES_MAX;
            if let Some(call) = self.next_call(shared, stop)? {
                return Poll::Ready(Ok(call));
            }
            if self.may_read(shared) && self.receive(cx)? {
                continue;
            }
            self.take_up(shared);
            self.flush(cx)?;
            let mut shared = shared.lock();
            if shared.closing && self.queue.is_empty() && shared.outbox.is_empty() {
                self.start_linger();
                continue;
            }
            // What another thread has queued, or this flush has made possible, since it was looked at.
            let unwanted = shared.held || shared.closing;
            let may_go_on = !self.stash.is_empty() && !unwanted && self.reply_bytes < REPLIES_MAX;
            if shared.outbox.is_empty() && !may_go_on {
                shared.sleeping = Some(cx.waker().clone());
                if !self.queue.is_empty() || !self.spin.poll_again(cx) {
                    shared.outbox.rest();
                    self.stage.rest();
                    self.reader.rest();
                    self.queue.rest();
                }
                return Poll::Pending;
            }
        }
    }

    /// Moves what is queued to the send queue; says whether calls are unwanted.
    fn take_up(&mut self, shared: &Mutex<Shared>) -> bool {
        let mut shared = shared.lock();
        shared.sleeping = None;
        if !shared.outbox.is_empty() {
            shared.outbox.drain_to(&mut self.queue);
            self.reply_bytes += std::mem::take(&mut shared.reply_bytes);
        }
        shared.held || shared.closing
    }

    /// Reads records from the stage until one is a call. If calls are unwanted, it is kept for later.
    fn next_call(&mut self, shared: &Mutex<Shared>, stop: bool) -> Result<Option<IncomingCall>, TransportError> {
        if !stop && let Some(call) = self.stash.pop_front() {
            self.stash_bytes -= stash_cost(&call);
            return Ok(Some(call));
        }
        while self.may_read(shared) {
            let advanced = self.reader.advance(self.stage.bytes(), &mut Locator(shared));
            let (taken, record) = advanced.map_err(|error| TransportError::Protocol(error.to_string()))?;
            self.stage.consume(taken);
            let Some(record) = record else { break };
            match peek(&record.message.stream) {
                Some((xid, CALL)) => {
                    let token = ReplyToken { xid, call: 0 };
                    let call = IncomingCall { message: record.message, token, peer: self.peer };
                    if !stop {
                        return Ok(Some(call));
                    }
                    self.stash_bytes += stash_cost(&call);
                    self.stash.push_back(call);
                }
                Some((xid, REPLY)) => shared.lock().pending.complete(xid, record.message, record.sink),
                _ => return Err(TransportError::Protocol("a record that is neither call nor reply".to_owned())),
            }
        }
        Ok(None)
    }

    fn may_read(&self, shared: &Mutex<Shared>) -> bool {
        self.stash.is_empty() || (self.stash_bytes < STASH_MAX && shared.lock().pending.any())
    }

    /// Receives once; false when nothing is there.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, TransportError> {
        while let Poll::Ready(ready) = self.socket.poll_read_ready(cx) {
            ready.map_err(lost)?;
            let ahead = self.reader.ahead(self.stage.bytes().len());
            let direct = self.reader.direct();
            let mut received = None;
            let tried = self.socket.try_io(Interest::READABLE, || {
                let got = self.stage.receive(&self.socket, direct, ahead)?;
                received = Some(got);
                // The socket is empty. Said now, it saves asking once more.
                if got.short { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match (received, tried) {
                (Some(received), _) if received.direct + received.staged == 0 => {
                    return Err(TransportError::Lost("the peer has closed it".to_owned()));
                }
                (Some(received), _) => {
                    self.spin.worked(Instant::now);
                    self.reader.direct_filled(received.direct);
                    return Ok(true);
                }
                (None, Err(error)) if error.kind() != io::ErrorKind::WouldBlock => return Err(lost(error)),
                (None, _) => {}
            }
        }
        Ok(false)
    }

    /// Sends until the queue is empty or the socket is full.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), TransportError> {
        while !self.queue.is_empty() {
            let Poll::Ready(ready) = self.socket.poll_write_ready(cx) else { break };
            ready.map_err(lost)?;
            match self.socket.try_io(Interest::WRITABLE, || self.queue.write_to(&self.socket)) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(lost(error)),
                _ => {}
            }
        }
        self.reply_bytes = self.reply_bytes.min(self.queue.len());
        Ok(())
    }

    /// All is sent: says so to the peer, and waits for it to say the same. Closing a socket that has unread
    /// bytes resets the connection, and the peer could lose replies that it has not read yet.
    fn start_linger(&mut self) {
        let _ = SockRef::from(&self.socket).shutdown(Shutdown::Write);
        self.linger = Some(Box::pin(tokio::time::sleep(LINGER)));
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        let over = || Poll::Ready(Err(TransportError::Lost(CLOSED_HERE.to_owned())));
        if self.linger.as_mut().is_some_and(|linger| linger.as_mut().poll(cx).is_ready()) {
            return over();
        }
        loop {
            if ready!(self.socket.poll_read_ready(cx)).is_err() {
                return over();
            }
            self.stage.consume(self.stage.bytes().len());
            let discard = || self.stage.receive(&self.socket, &mut [], STAGE_BYTES);
            match self.socket.try_io(Interest::READABLE, discard) {
                Ok(received) if received.staged > 0 => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return over(),
            }
        }
    }
}

/// Finds the sink of an arriving reply.
struct Locator<'a>(&'a Mutex<Shared>);

impl Place for Locator<'_> {
    fn place(&mut self, xid: Xid, prefix: &Bytes, record_len: usize) -> Option<Placement> {
        let mut shared = self.0.lock();
        let plan = shared.pending.plan(xid)?;
        let located = plan.locate?(prefix)?;
        let placement = Placement { sink: plan.sink.take()?, located };
        if placement.fits(prefix.len(), record_len) {
            return Some(placement);
        }
        plan.sink = Some(placement.sink);
        None
    }
}

fn stash_cost(call: &IncomingCall) -> usize {
    call.message.len() + size_of::<IncomingCall>()
}

fn lost(error: io::Error) -> TransportError {
    TransportError::Lost(error.to_string())
}

const CLOSED_HERE: &str = "closed on this side";
/// So many bytes are worth a system call while more calls are staged.
const FLUSH_EARLY: usize = 256 << 10;
/// While so many bytes of replies wait, calls are not read.
const REPLIES_MAX: usize = 4 << 20;
const STASH_MAX: usize = 4 << 20;
const LINGER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::Arc};

    use buf::Buffer;
    use xdr::{Encoder, Located};

    use super::*;
    use crate::{RawOptions, TransportKind};

    async fn pair(options: &[(&str, &str)]) -> (Arc<dyn Transport>, Arc<dyn Transport>) {
        let raw: RawOptions = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let kind = TcpKind::default().with_options(&raw).unwrap();
        let mut listener = kind.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let near = kind.connect(listener.local_addr()).await.unwrap();
        let far = listener.accept().await.unwrap()().await.unwrap();
        (near, far)
    }

    /// Drives `transport`, answering every call with what `answer` makes of it, until it is over.
    fn drive(
        transport: Arc<dyn Transport>,
        answer: impl Fn(&Message) -> Option<Message> + Send + 'static,
    ) -> tokio::task::JoinHandle<TransportError> {
        tokio::spawn(async move {
            loop {
                match poll_fn(|cx| transport.poll_recv(cx)).await {
                    Ok(call) => {
                        if let Some(message) = answer(&call.message) {
                            let _ = transport.reply(call.token, message);
                        }
                    }
                    Err(error) => return error,
                }
            }
        })
    }

    fn message(xid: u32, direction: u32, words: usize) -> Message {
        let mut encoder = Encoder::default();
        [xid, direction].into_iter().for_each(|word| encoder.u32(word));
        (0..words).for_each(|word| encoder.u32(word as u32));
        encoder.finish()
    }

    /// A reply with as many words as the call's third word says, as a payload at position 12.
    fn reply_of_words(call: &Message) -> Option<Message> {
        let word = |at: usize| u32::from_be_bytes(call.stream[at..at + 4].try_into().unwrap());
        let mut encoder = Encoder::default();
        [word(0), REPLY].into_iter().for_each(|word| encoder.u32(word));
        encoder.payload(Bytes::from(vec![word(0) as u8; call.stream.len()]).into());
        Some(encoder.finish())
    }

    #[tokio::test]
    async fn replies_of_all_sizes_reach_their_calls_and_sinks() {
        let (near, far) = pair(&[]).await;
        drive(far, reply_of_words);
        let driver = drive(near.clone(), |_| None);
        let calls = (0..200u32).map(|xid| {
            let near = near.clone();
            tokio::spawn(async move {
                let words = [0, 10, 1000, 30_000, 100_000][xid as usize % 5];
                let len = words * 4 + 8;
                let plan = ReplyPlan {
                    inline_max: 12,
                    payload_max: len,
                    sink: Some(Buffer::zeroed(len)),
                    locate: Some(|prefix| {
                        let len = u32::from_be_bytes(prefix[8..12].try_into().unwrap()) as usize;
                        Some(Located { position: 12, len })
                    }),
                };
                let reply = near.call(message(xid, CALL, words), plan).await.unwrap();
                let flat = reply.message.to_rope().to_bytes().unwrap();
                assert_eq!(flat.len(), 12 + len);
                assert!(flat[12..].iter().all(|&byte| byte == xid as u8));
                let sink = reply.sink.unwrap();
                assert_eq!(!reply.message.payloads.is_empty(), len > 512, "placed, unless it is tiny");
                drop((reply.message, flat));
                assert_eq!(sink.into_buffer().unwrap().len(), len);
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        near.close();
        driver.await.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_call_is_forgotten_and_its_late_reply_discarded() {
        let (near, far) = pair(&[]).await;
        drive(near.clone(), |_| None);
        let abandoned = tokio::spawn({
            let near = near.clone();
            async move { near.call(message(1, CALL, 1), ReplyPlan::default()).await.map(drop) }
        });
        let call = poll_fn(|cx| far.poll_recv(cx)).await.unwrap();
        abandoned.abort();
        assert!(abandoned.await.unwrap_err().is_cancelled());
        far.reply(call.token, message(1, REPLY, 3)).unwrap();
        drive(far, reply_of_words);
        near.call(message(2, CALL, 1), ReplyPlan::default()).await.unwrap();
        near.call(message(1, CALL, 1), ReplyPlan::default()).await.unwrap();
    }

    #[tokio::test]
    async fn a_lost_connection_gives_the_sinks_back() {
        let (near, far) = pair(&[]).await;
        let driver = drive(near.clone(), |_| None);
        let waiting = tokio::spawn({
            let near = near.clone();
            let plan = ReplyPlan { payload_max: 7, sink: Some(Buffer::zeroed(7)), ..ReplyPlan::default() };
            async move { near.call(message(1, CALL, 1), plan).await }
        });
        poll_fn(|cx| far.poll_recv(cx)).await.unwrap();
        drop(far);
        let error = waiting.await.unwrap().unwrap_err();
        assert!(matches!(error.error, TransportError::Lost(_)), "{error:?}");
        assert_eq!(error.sink.unwrap().len(), 7);
        driver.await.unwrap();
        let late = near.call(message(2, CALL, 1), ReplyPlan::default()).await;
        assert!(matches!(late.unwrap_err().error, TransportError::Lost(_)));
    }

    #[tokio::test]
    async fn what_is_too_long_is_refused_on_either_side() {
        let (near, far) = pair(&[("message_max", "1k")]).await;
        drive(near.clone(), |_| None);
        let driver = drive(far.clone(), |call| Some(message(peek(&call.stream).unwrap().0.0, REPLY, 400)));
        let error = near.call(message(1, CALL, 400), ReplyPlan::default()).await.unwrap_err();
        assert!(matches!(error.error, TransportError::TooLong { len: 1608, max: 1024 }));
        let reply = near.call(message(2, CALL, 1), ReplyPlan::default()).await.unwrap();
        assert_eq!(reply.message.stream, ReplyHeader::of_error(Xid(2), AcceptError::SystemErr).unwrap().stream);

        assert!(!driver.is_finished());
    }

    #[tokio::test]
    async fn a_record_above_the_bound_closes_the_connection() {
        let mut listener = TcpKind::default().listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut hostile = std::net::TcpStream::connect(listener.local_addr()).unwrap();
        let transport = listener.accept().await.unwrap()().await.unwrap();
        std::io::Write::write_all(&mut hostile, &[0xff; 4]).unwrap();
        let error = poll_fn(|cx| transport.poll_recv(cx)).await.unwrap_err();
        assert!(matches!(&error, TransportError::Protocol(why) if why.contains("2147483647")), "{error}");
        drop(transport);
        let gone = std::io::Read::read(&mut hostile, &mut [0; 1]);
        assert!(matches!(gone, Ok(0) | Err(_)));
    }

    #[tokio::test]
    async fn a_held_connection_keeps_calls_back_and_still_receives_replies() {
        let (near, far) = pair(&[]).await;
        drive(far.clone(), reply_of_words);
        near.hold(true);
        let driver = drive(near.clone(), reply_of_words);
        near.call(message(1, CALL, 1), ReplyPlan::default()).await.unwrap();
        let back = tokio::spawn({
            let far = far.clone();
            async move { far.call(message(9, CALL, 1), ReplyPlan::default()).await.map(drop) }
        });
        tokio::task::yield_now().await;
        near.call(message(2, CALL, 1), ReplyPlan::default()).await.unwrap();
        assert!(!back.is_finished());
        near.hold(false);
        back.await.unwrap().unwrap();
        assert!(!driver.is_finished());
    }

    #[test]
    fn options_are_checked() {
        let parse = |name: &str, value: &str| TcpOptions::parse(&RawOptions::from([(name.into(), value.into())]));
        assert!(!parse("nodelay", "off").unwrap().nodelay);
        assert_eq!(parse("sndbuf", "1m").unwrap().send_buffer, Some(1 << 20));
        let error = parse("congestion", "no-such").unwrap_err();
        assert!(error.problem.contains("this system has"), "{error}");
        assert!(parse("port", "1").unwrap_err().problem.contains("congestion, connect_timeout, dead_after"));
    }
}
