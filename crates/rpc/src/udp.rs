//! The transport "udp": a message is a datagram. RFC 5531 §10, RFC 1813 §2.7.
//!
//! A client's socket is connected to its server. A server has one socket for all of its clients, and replies go where
//! their calls came from; a host with several addresses listens on each, since a reply leaves from the address that
//! its socket is bound to.
//!
//! Who owns the buffers: a datagram is received into the driver's buffer and copied out once, at its own length. Sinks
//! stay untouched in the table of pending calls.
//!
//! On error: a datagram can be lost, in either direction, and nobody is told; that is what [`TransportCaps::lossy`]
//! says. Only a fault of the socket itself ends the transport.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use buf::Pool;
use bytes::Bytes;
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use tokio::net::UdpSocket;
use xdr::Message;

use crate::{
    AcceptError, BoxFuture, CallError, CallsMade, Hosts, Incoming, IncomingCall, Listener, OptionError, OptionReader,
    RawOptions, Reply, ReplyHeader, ReplyPlan, ReplyToken, Transport, TransportCaps, TransportError, TransportKind,
    msg::{CALL, REPLY, peek},
    pending::{self, CallFuture, PendingCalls},
    tcp::{RESERVED_MAX, RESERVED_MIN, any_address},
};

/// The transport "udp": connects and listens.
#[derive(Clone, Debug, Default)]
pub struct UdpKind {
    options: UdpOptions,
    pool: Pool,
}

/// Options of the transport "udp".
#[derive(Clone, Debug, Default)]
pub struct UdpOptions {
    /// `sndbuf=BYTES`: the socket's send buffer; sized by the system if absent.
    pub send_buffer: Option<usize>,
    /// `rcvbuf=BYTES`: the socket's receive buffer; 4 MiB if absent, or the most that the system gives.
    pub receive_buffer: Option<usize>,
    /// `resvport=on|off`: call from a port below 1024, which some servers ask for. If absent, it is tried as root.
    pub reserved_port: Option<bool>,
}

impl UdpOptions {
    /// Reads options as they are written; what is absent has its default.
    ///
    /// # Errors
    /// An option is unknown or out of range.
    pub fn parse(raw: &RawOptions) -> Result<Self, OptionError> {
        let mut options = OptionReader::new(NAME, raw);
        let parsed = Self {
            send_buffer: options.bytes("sndbuf", DATAGRAM_MAX..=BUFFER_MAX)?,
            receive_buffer: options.bytes("rcvbuf", DATAGRAM_MAX..=BUFFER_MAX)?,
            reserved_port: options.switch("resvport")?,
        };
        options.finish()?;
        Ok(parsed)
    }
}

impl UdpKind {
    /// Sockets with these options.
    pub fn new(options: UdpOptions, pool: Pool) -> Self {
        Self { options, pool }
    }

    fn socket(&self, family: SocketAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(family), Type::DGRAM.nonblocking().cloexec(), None)?;
        if let Some(bytes) = self.options.send_buffer {
            socket.set_send_buffer_size(bytes)?;
        }
        // The system's own choice holds three datagrams of 64 KiB; what does not fit is lost.
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
        Ok(Box::new(UdpListener { local_addr, pool: self.pool.clone(), socket: Some(socket) }))
    }
}

struct UdpListener {
    local_addr: SocketAddr,
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
            let pool = self.pool.clone();
            Ok(Incoming::new(None, move |hosts| {
                Box::pin(async move {
                    match UdpTransport::new(socket, pool, Some(hosts)) {
                        Ok(transport) => Ok(Arc::new(transport) as Arc<dyn Transport>),
                        Err(error) => Err(TransportError::Lost(error.to_string())),
                    }
                })
            }))
        })
    }
}

/// One UDP socket.
pub struct UdpTransport {
    caps: TransportCaps,
    /// The server's address, or our own on the serving side.
    peer: SocketAddr,
    pool: Pool,
    socket: UdpSocket,
    shared: Mutex<Shared>,
    /// A datagram on its way in; only the driver touches it.
    datagram: Mutex<Box<[u8]>>,
}

/// What callers touch.
struct Shared {
    outbox: VecDeque<(Option<SocketAddr>, Bytes)>,
    callers: Callers,
    pending: PendingCalls,
    held: bool,
    closing: bool,
    /// The driver, while it sleeps.
    sleeping: Option<Waker>,
}

/// Where the latest calls came from. A call that is not answered before this many others came is not answered at all.
#[derive(Default)]
struct Callers {
    ring: VecDeque<SocketAddr>,
    /// Number of the oldest.
    first: u64,
}

impl Callers {
    fn remember(&mut self, caller: SocketAddr) -> u64 {
        if self.ring.len() == CALLERS_MAX {
            self.ring.pop_front();
            self.first += 1;
        }
        self.ring.push_back(caller);
        self.first + self.ring.len() as u64 - 1
    }

    fn find(&self, call: u64) -> Option<SocketAddr> {
        let index = usize::try_from(call.checked_sub(self.first)?).ok()?;
        self.ring.get(index).copied()
    }
}

impl UdpTransport {
    /// A transport over this socket, on the current tokio runtime.
    fn new(socket: std::net::UdpSocket, pool: Pool, _hosts: Option<Hosts>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let peer = socket.peer_addr().or_else(|_| socket.local_addr())?;
        Ok(Self {
            caps: TransportCaps { name: NAME, message_max: DATAGRAM_MAX, lossy: true, file_ranges: false, idle: None },
            peer,
            pool,
            socket: UdpSocket::from_std(socket)?,
            shared: Mutex::new(Shared {
                outbox: VecDeque::new(),
                callers: Callers::default(),
                pending: PendingCalls::default(),
                held: false,
                closing: false,
                sleeping: None,
            }),
            datagram: Mutex::new(vec![0; DATAGRAM_MAX].into()),
        })
    }

    /// Sends what is queued while the socket takes it. What it refuses is lost, as datagrams can be.
    fn flush(&self, shared: &mut Shared, cx: &mut Context<'_>) {
        while let Some((to, datagram)) = shared.outbox.front() {
            let sent = match to {
                Some(to) => self.socket.poll_send_to(cx, datagram, *to),
                None => self.socket.poll_send(cx, datagram),
            };
            match sent {
                Poll::Pending => return,
                Poll::Ready(Err(error)) => tracing::debug!(%error, "a datagram was not sent"),
                Poll::Ready(Ok(_)) => {}
            }
            shared.outbox.pop_front();
        }
    }

    /// Receives datagrams until one is a call.
    fn receive(&self, cx: &mut Context<'_>) -> Poll<io::Result<IncomingCall>> {
        let mut datagram = self.datagram.lock();
        loop {
            let mut into = tokio::io::ReadBuf::new(&mut datagram);
            let peer = match std::task::ready!(self.socket.poll_recv_from(cx, &mut into)) {
                Ok(peer) => peer,
                // An ICMP message about an earlier datagram: a lost datagram, no more.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Poll::Ready(Err(error)),
            };
            let message = Message::from(Bytes::copy_from_slice(into.filled()));
            match peek(&message.stream) {
                Some((xid, CALL)) => {
                    let call = self.shared.lock().callers.remember(peer);
                    return Poll::Ready(Ok(IncomingCall { message, token: ReplyToken { xid, call }, peer }));
                }
                Some((xid, REPLY)) => self.shared.lock().pending.complete(xid, message, None),
                _ => tracing::debug!(%peer, "a datagram that is neither call nor reply"),
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

    fn call(&self, message: Message, plan: ReplyPlan) -> BoxFuture<'_, Result<Reply, CallError>> {
        Box::pin(CallFuture::new(&self.shared, message, plan))
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
        let Some(to) = shared.callers.find(token.call) else {
            return Err(TransportError::Lost("the call came too long ago".to_owned()));
        };
        let len = message.len();
        let fits = len <= DATAGRAM_MAX;
        let message = if fits { Some(message) } else { ReplyHeader::of_error(token.xid, AcceptError::SystemErr) };
        if let Some(message) = message {
            shared.queue(Some(to), &message)?;
        }
        if fits { Ok(()) } else { Err(TransportError::TooLong { len, max: DATAGRAM_MAX }) }
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

impl Shared {
    fn wake(&mut self) {
        if let Some(waker) = self.sleeping.take() {
            waker.wake();
        }
    }

    fn queue(&mut self, to: Option<SocketAddr>, message: &Message) -> Result<(), TransportError> {
        let flat = message.to_rope().to_bytes();
        let datagram = flat.map_err(|error| TransportError::Refused(format!("a payload cannot be read: {error}")))?;
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
/// What IPv4 and UDP leave of 64 KiB.
const DATAGRAM_MAX: usize = 65_507;
const BUFFER_MAX: usize = 1 << 30;
const RECEIVE_BUFFER: usize = 4 << 20;
const CALLERS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use buf::Buffer;

    use super::*;
    use crate::Xid;

    fn message(xid: u32, direction: u32, words: usize) -> Message {
        let mut bytes = [xid.to_be_bytes(), direction.to_be_bytes()].concat();
        bytes.resize(8 + 4 * words, 7);
        Message::from(Bytes::from(bytes))
    }

    async fn server() -> (SocketAddr, Arc<dyn Transport>) {
        let mut listener = UdpKind::default().listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let transport = listener.accept().await.unwrap().set_up(Hosts::all()).await.unwrap();
        (listener.local_addr(), transport)
    }

    async fn client(server: SocketAddr) -> Arc<dyn Transport> {
        let transport = UdpKind::default().connect(server).await.unwrap();
        let driver = transport.clone();
        tokio::spawn(async move { while poll_fn(|cx| driver.poll_recv(cx)).await.is_ok() {} });
        transport
    }

    #[tokio::test]
    async fn replies_go_where_their_calls_came_from() {
        let (address, server) = server().await;
        let (a, b) = (client(address).await, client(address).await);
        let sink = || ReplyPlan { payload_max: 9, sink: Some(Buffer::zeroed(9)), ..ReplyPlan::default() };
        let call_a = tokio::spawn(async move { a.call(message(5, CALL, 1), sink()).await.unwrap() });
        let call_b = tokio::spawn(async move { b.call(message(5, CALL, 2), sink()).await.unwrap() });
        let first = poll_fn(|cx| server.poll_recv(cx)).await.unwrap();
        let second = poll_fn(|cx| server.poll_recv(cx)).await.unwrap();
        for call in [second, first] {
            let words = call.message.len() / 4;
            server.reply(call.token, message(5, REPLY, 10 * words)).unwrap();
        }
        tokio::spawn(async move { poll_fn(|cx| server.poll_recv(cx)).await.map(drop) });
        let (a, b) = (call_a.await.unwrap(), call_b.await.unwrap());
        assert_eq!((a.message.len(), b.message.len()), (8 + 120, 8 + 160));
        assert_eq!(a.sink.unwrap().into_buffer().unwrap().len(), 9);
    }

    #[tokio::test]
    async fn what_does_not_fit_a_datagram_is_refused_on_either_side() {
        let (address, server) = server().await;
        let client = client(address).await;
        let error = client.call(message(1, CALL, 17_000), ReplyPlan::default()).await.unwrap_err();
        assert!(matches!(error.error, TransportError::TooLong { len: 68_008, max: DATAGRAM_MAX }));
        let call = tokio::spawn(async move { client.call(message(2, CALL, 1), ReplyPlan::default()).await.unwrap() });
        let incoming = poll_fn(|cx| server.poll_recv(cx)).await.unwrap();
        let refused = server.reply(incoming.token, message(2, REPLY, 17_000));
        assert!(matches!(refused, Err(TransportError::TooLong { .. })));
        tokio::spawn(async move { poll_fn(|cx| server.poll_recv(cx)).await.map(drop) });
        let told = ReplyHeader::of_error(Xid(2), AcceptError::SystemErr).unwrap();
        assert_eq!(call.await.unwrap().message.stream, told.stream);
    }

    #[tokio::test]
    async fn garbage_is_dropped_and_the_socket_goes_on() {
        let (address, server) = server().await;
        let hostile = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        hostile.send_to(b"", address).unwrap();
        hostile.send_to(b"abc", address).unwrap();
        hostile.send_to(&[9; 100], address).unwrap();
        hostile.send_to(&message(8, REPLY, 3).stream, address).unwrap();
        hostile.send_to(&message(7, CALL, 3).stream, address).unwrap();
        assert_eq!(poll_fn(|cx| server.poll_recv(cx)).await.unwrap().token.xid, Xid(7));
    }

    #[test]
    fn only_the_latest_callers_are_remembered() {
        let mut callers = Callers::default();
        let address = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        for port in 0..CALLERS_MAX as u16 {
            assert_eq!(callers.remember(address(port)), u64::from(port));
        }
        let call = callers.remember(address(9));
        assert_eq!((callers.find(0), callers.find(1)), (None, Some(address(1))));
        assert_eq!((callers.find(call), callers.find(call + 1)), (Some(address(9)), None));
    }
}
