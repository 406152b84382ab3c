//! The transport "udp": each message is a datagram. RFC 5531 §10, RFC 1813 §2.7.
//!
//! A client's socket is connected to its server. A server has one socket for all of its clients, and sends each reply
//! to the sender of its call. A host with several addresses listens on each of them, because a reply is sent from the
//! address to which its socket is bound.
//!
//! Buffers: a datagram is received into the driver's buffer and copied out once, at its own length. Sinks stay unused
//! in the table of pending calls.
//!
//! A server limits what it sends to hosts that possibly did not send the call: see [`outflow`]. From hosts that are not
//! admitted it accepts only short calls, and few at a time.
//!
//! On error: a datagram can be lost in either direction, without an error on either side; [`TransportCaps::lossy`]
//! announces this. Only a fault of the socket itself closes the transport.

mod outflow;

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use buf::Pool;
use bytes::Bytes;
use entropy::HashSet;
use outflow::{Outflow, Verdict};
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use tokio::{net::UdpSocket, time::Instant};
use xdr::Message;

use crate::{
    AcceptError, BoxFuture, CallError, CallsMade, Hosts, Incoming, IncomingCall, Listener, OptionError, OptionReader,
    RawOptions, Reply, ReplyHeader, ReplyPlan, ReplyToken, Transport, TransportCaps, TransportError, TransportKind,
    msg::{CALL, REPLY, peek},
    pending::{self, CallFuture, Calling, PendingCalls},
    tcp::{RESERVED_MAX, RESERVED_MIN, any_address},
};

/// The transport "udp", which connects and listens.
#[derive(Clone, Debug, Default)]
pub struct UdpKind {
    options: UdpOptions,
    pool: Pool,
}

/// The options of the transport "udp".
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// `sndbuf=BYTES`: size of the socket's send buffer; chosen by the system if absent.
    pub send_buffer: Option<usize>,
    /// `rcvbuf=BYTES`: size of the socket's receive buffer; if absent, 4 MiB or the system's maximum.
    pub receive_buffer: Option<usize>,
    /// `resvport=on|off`: calls from a port below 1024, which some servers require. If absent, root tries such a port
    /// first.
    pub reserved_port: Option<bool>,
    /// `reply_rate=BYTES`: bytes a second that a server sends to one host in addition to three times the bytes of its
    /// calls; 32 MiB by default.
    pub reply_rate: usize,
}

impl Default for UdpOptions {
    fn default() -> Self {
        Self { send_buffer: None, receive_buffer: None, reserved_port: None, reply_rate: 32 << 20 }
    }
}

impl UdpOptions {
    /// Parses options. An absent option has its default.
    ///
    /// # Errors
    /// An option is unknown or out of range.
    pub fn parse(raw: &RawOptions) -> Result<Self, OptionError> {
        let mut options = OptionReader::new(NAME, raw);
        let parsed = Self {
            send_buffer: options.bytes("sndbuf", DATAGRAM_MAX..=BUFFER_MAX)?,
            receive_buffer: options.bytes("rcvbuf", DATAGRAM_MAX..=BUFFER_MAX)?,
            reserved_port: options.switch("resvport")?,
            reply_rate: options.bytes("reply_rate", 1 << 10..=1 << 40)?.unwrap_or(Self::default().reply_rate),
        };
        options.finish()?;
        Ok(parsed)
    }
}

impl UdpKind {
    /// Creates a kind with these options.
    pub fn new(options: UdpOptions, pool: Pool) -> Self {
        Self { options, pool }
    }

    fn socket(&self, family: SocketAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(family), Type::DGRAM.nonblocking().cloexec(), None)?;
        if let Some(bytes) = self.options.send_buffer {
            socket.set_send_buffer_size(bytes)?;
        }
        // The system's default holds three datagrams of 64 KiB; further datagrams are lost.
        socket.set_recv_buffer_size(self.options.receive_buffer.unwrap_or(RECEIVE_BUFFER))?;
        Ok(socket)
    }

    fn connected(&self, remote: SocketAddr) -> io::Result<std::net::UdpSocket> {
        let socket = self.socket(remote)?;
        let (reserved, must) = match self.options.reserved_port {
            Some(wanted) => (wanted, wanted),
            None => (rustix::process::geteuid().is_root(), false),
        };
        if reserved {
            let bound =
                (RESERVED_MIN..=RESERVED_MAX).rev().any(|port| socket.bind(&any_address(remote, port).into()).is_ok());
            if must && !bound {
                return Err(io::Error::other("no port below 1024 is free"));
            }
        }
        socket.connect(&remote.into())?;
        Ok(socket.into())
    }
}

impl TransportKind for UdpKind {
    fn name(&self) -> &'static str {
        NAME
    }

    fn with_options(&self, options: &RawOptions) -> Result<Arc<dyn TransportKind>, OptionError> {
        Ok(Arc::new(Self { options: UdpOptions::parse(options)?, pool: self.pool.clone() }))
    }

    fn is_lossy(&self) -> bool {
        true
    }

    fn connect(&self, remote: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Transport>, TransportError>> {
        Box::pin(async move {
            let transport =
                self.connected(remote).and_then(|socket| UdpTransport::new(socket, self.pool.clone(), None));
            match transport {
                Ok(transport) => Ok(Arc::new(transport) as Arc<dyn Transport>),
                Err(error) => Err(TransportError::Connect(format!("udp {remote}: {error}"))),
            }
        })
    }

    fn listen(&self, local: SocketAddr) -> io::Result<Box<dyn Listener>> {
        let socket = self.socket(local)?;
        socket.bind(&local.into())?;
        let socket: std::net::UdpSocket = socket.into();
        let local_addr = socket.local_addr()?;
        let (reply_rate, pool) = (self.options.reply_rate, self.pool.clone());
        Ok(Box::new(UdpListener { local_addr, reply_rate, pool, socket: Some(socket) }))
    }
}

struct UdpListener {
    local_addr: SocketAddr,
    reply_rate: usize,
    pool: Pool,
    socket: Option<std::net::UdpSocket>,
}

impl Listener for UdpListener {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Incoming>> {
        Box::pin(async move {
            let Some(socket) = self.socket.take() else { return std::future::pending().await };
            let (pool, reply_rate) = (self.pool.clone(), self.reply_rate);
            Ok(Incoming::new(None, move |hosts| {
                Box::pin(async move {
                    let bounds = Bounds::new(hosts, reply_rate);
                    match UdpTransport::new(socket, pool, Some(bounds)) {
                        Ok(transport) => Ok(Arc::new(transport) as Arc<dyn Transport>),
                        Err(error) => Err(TransportError::Lost(error.to_string())),
                    }
                })
            }))
        })
    }
}

/// A UDP socket.
pub struct UdpTransport {
    caps: TransportCaps,
    /// The server's address; on the server side, this socket's own address.
    peer: SocketAddr,
    pool: Pool,
    socket: UdpSocket,
    shared: Mutex<Shared>,
    /// The buffer of an arriving datagram; only the driver accesses it.
    datagram: Mutex<Box<[u8]>>,
}

/// The state that callers access.
pub(crate) struct Shared {
    outbox: VecDeque<(Option<SocketAddr>, Bytes)>,
    /// Total bytes of the outbox.
    queued: usize,
    callers: Callers,
    /// The limits of a server; `None` on the client side.
    bounds: Option<Bounds>,
    pending: PendingCalls,
    held: bool,
    closing: bool,
    /// The waker of the driver while it sleeps.
    sleeping: Option<Waker>,
}

/// The limits of a server for its clients' hosts.
struct Bounds {
    hosts: Hosts,
    outflow: Outflow,
    /// The calls in progress of hosts that are not admitted.
    unadmitted: HashSet<u64>,
}

impl Bounds {
    fn new(hosts: Hosts, reply_rate: usize) -> Self {
        Self { hosts, outflow: Outflow::new(reply_rate, Instant::now()), unadmitted: HashSet::default() }
    }

    /// Returns `true` if a datagram of `len` bytes is accepted as the call of number `call`.
    fn take(&mut self, peer: SocketAddr, len: usize, call: u64) -> bool {
        if self.hosts.admit(peer.ip()) {
            return true;
        }
        let takes = len <= UNADMITTED_CALL_MAX && self.unadmitted.len() < UNADMITTED_CALLS;
        takes && self.unadmitted.insert(call)
    }
}

/// The senders and lengths of the latest calls. A call cannot be answered any more after [`CALLERS_MAX`] later calls.
#[derive(Default)]
struct Callers {
    ring: VecDeque<(SocketAddr, usize)>,
    /// The number of the oldest call.
    first: u64,
}

impl Callers {
    /// Returns the number of the next call.
    fn next(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    fn store(&mut self, caller: SocketAddr, len: usize) -> u64 {
        if self.ring.len() == CALLERS_MAX {
            self.ring.pop_front();
            self.first += 1;
        }
        self.ring.push_back((caller, len));
        self.next() - 1
    }

    fn find(&self, call: u64) -> Option<(SocketAddr, usize)> {
        let index = usize::try_from(call.checked_sub(self.first)?).ok()?;
        self.ring.get(index).copied()
    }
}

impl UdpTransport {
    /// Creates a transport over a socket, on the current tokio runtime.
    fn new(socket: std::net::UdpSocket, pool: Pool, bounds: Option<Bounds>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let peer = socket.peer_addr().or_else(|_| socket.local_addr())?;
        Ok(Self {
            caps: TransportCaps { name: NAME, message_max: DATAGRAM_MAX, lossy: true, file_ranges: false, idle: None },
            peer,
            pool,
            socket: UdpSocket::from_std(socket)?,
            shared: Mutex::new(Shared {
                outbox: VecDeque::new(),
                queued: 0,
                callers: Callers::default(),
                bounds,
                pending: PendingCalls::default(),
                held: false,
                closing: false,
                sleeping: None,
            }),
            datagram: Mutex::new(vec![0; DATAGRAM_MAX].into()),
        })
    }

    /// Sends queued datagrams until the socket buffer is full. A datagram that the socket rejects is lost.
    fn flush(&self, shared: &mut Shared, cx: &mut Context<'_>) {
        while let Some((to, datagram)) = shared.outbox.front() {
            let sent = match to {
                Some(to) => self.socket.poll_send_to(cx, datagram, *to),
                None => self.socket.poll_send(cx, datagram),
            };
            match sent {
                Poll::Pending => return,
                Poll::Ready(Err(error)) => tracing::debug!(%error, "a datagram could not be sent"),
                Poll::Ready(Ok(_)) => {}
            }
            let sent = shared.outbox.pop_front().map_or(0, |(_, datagram)| datagram.len());
            shared.queued -= sent;
        }
    }

    /// Receives datagrams until one is a call.
    fn receive(&self, cx: &mut Context<'_>) -> Poll<io::Result<IncomingCall>> {
        let mut datagram = self.datagram.lock();
        loop {
            let mut into = tokio::io::ReadBuf::new(&mut datagram);
            let peer = match std::task::ready!(self.socket.poll_recv_from(cx, &mut into)) {
                Ok(peer) => peer,
                // An ICMP message reports that an earlier datagram was lost. Nothing else is affected.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Poll::Ready(Err(error)),
            };
            let message = Message::from(Bytes::copy_from_slice(into.filled()));
            match peek(&message.stream) {
                Some((xid, CALL)) => {
                    let Some(call) = self.shared.lock().take_call(peer, message.len()) else { continue };
                    return Poll::Ready(Ok(IncomingCall { message, token: ReplyToken { xid, call }, peer }));
                }
                Some((xid, REPLY)) => self.shared.lock().pending.complete(xid, message, None),
                _ => tracing::debug!(%peer, "a datagram is neither a call nor a reply"),
            }
        }
    }

    fn end(&self, error: TransportError) -> Poll<Result<IncomingCall, TransportError>> {
        self.shared.lock().pending.fail_all(&error, None);
        Poll::Ready(Err(error))
    }
}

impl Transport for UdpTransport {
    fn caps(&self) -> &TransportCaps {
        &self.caps
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn call(self: Arc<Self>, message: Message, plan: ReplyPlan) -> BoxFuture<'static, Result<Reply, CallError>> {
        Box::pin(CallFuture::new(self, message, plan))
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingCall, TransportError>> {
        let held = {
            let mut shared = self.shared.lock();
            shared.sleeping = Some(cx.waker().clone());
            self.flush(&mut shared, cx);
            if shared.closing && shared.outbox.is_empty() {
                let error = TransportError::Lost("closed".to_owned());
                drop(shared);
                return self.end(error);
            }
            shared.held || shared.closing
        };
        if held && !self.shared.lock().pending.any() {
            return Poll::Pending;
        }
        match self.receive(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(call)) => Poll::Ready(Ok(call)),
            Poll::Ready(Err(error)) => self.end(TransportError::Lost(error.to_string())),
        }
    }

    fn reply(&self, token: ReplyToken, message: Message) -> Result<(), TransportError> {
        let mut shared = self.shared.lock();
        let Some((to, call)) = shared.ended(&token) else {
            return Err(TransportError::Lost("too many other calls arrived before the reply".to_owned()));
        };
        let len = message.len();
        let verdict = match len <= DATAGRAM_MAX {
            true => shared.judge(to, (call, len)),
            false => Verdict::TooLong,
        };
        match verdict {
            Verdict::Send => shared.queue(Some(to), &message),
            Verdict::Drop => Err(TransportError::Refused("the reply exceeds the rate limit of the host".to_owned())),
            Verdict::TooLong => {
                if let Some(short) = ReplyHeader::of_error(token.xid, AcceptError::SystemErr) {
                    shared.queue(Some(to), &short)?;
                }
                Err(TransportError::TooLong { len, max: DATAGRAM_MAX })
            }
        }
    }

    fn forget(&self, token: ReplyToken) {
        self.shared.lock().ended(&token);
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
        shared.pending.fail_all(&TransportError::Lost("closed on this side".to_owned()), None);
        shared.wake();
    }
}

impl Calling for UdpTransport {
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

    /// Assigns a number to an arriving call. Returns `None` if the call is not accepted.
    fn take_call(&mut self, peer: SocketAddr, len: usize) -> Option<u64> {
        let call = self.callers.next();
        let taken = self.bounds.as_mut().is_none_or(|bounds| bounds.take(peer, len, call));
        taken.then(|| self.callers.store(peer, len))
    }

    /// Ends a call. Returns its sender and its length, unless too many later calls have arrived.
    fn ended(&mut self, token: &ReplyToken) -> Option<(SocketAddr, usize)> {
        if let Some(bounds) = &mut self.bounds {
            bounds.unadmitted.remove(&token.call);
        }
        self.callers.find(token.call)
    }

    /// Decides about a reply by its length and that of its call.
    fn judge(&mut self, to: SocketAddr, lens: (usize, usize)) -> Verdict {
        match &mut self.bounds {
            Some(Bounds { hosts, outflow, .. }) => outflow.judge(to.ip(), hosts.admit(to.ip()), lens, Instant::now()),
            None => Verdict::Send,
        }
    }

    fn queue(&mut self, to: Option<SocketAddr>, message: &Message) -> Result<(), TransportError> {
        if self.queued >= OUTBOX_MAX {
            return Err(TransportError::Refused("the send queue of the UDP socket is full".to_owned()));
        }
        let flat = message.to_rope().to_bytes();
        let datagram = flat.map_err(|error| TransportError::Refused(format!("a payload cannot be read: {error}")))?;
        self.queued += datagram.len();
        self.outbox.push_back((to, datagram));
        self.wake();
        Ok(())
    }
}

impl pending::Shared for Shared {
    fn pending(&mut self) -> &mut PendingCalls {
        &mut self.pending
    }

    fn send(&mut self, message: Message) -> Result<(), TransportError> {
        let len = message.len();
        if len > DATAGRAM_MAX {
            return Err(TransportError::TooLong { len, max: DATAGRAM_MAX });
        }
        self.queue(None, &message)
    }
}

const NAME: &str = "udp";
/// Maximum payload of a datagram in bytes: 64 KiB minus the headers of IPv4 and UDP.
const DATAGRAM_MAX: usize = 65_507;
const BUFFER_MAX: usize = 1 << 30;
const RECEIVE_BUFFER: usize = 4 << 20;
const CALLERS_MAX: usize = 4096;
/// The number of queued bytes at which further datagrams are dropped.
const OUTBOX_MAX: usize = 4 << 20;
/// Maximum length of a call, and maximum number of calls in progress, for hosts that are not admitted.
const UNADMITTED_CALL_MAX: usize = 16 << 10;
const UNADMITTED_CALLS: usize = 16;

#[cfg(test)]
mod tests;
