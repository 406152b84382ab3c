//! Opening iWARP connections: TCP, then the MPA handshake (RFC 5044 §7.1, RFC 6581 §9).

use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream},
    sync::Arc,
};

use buf::{Buffer, SendQueue};
use bytes::Bytes;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};

use super::{
    IwarpOptions,
    mpa::{self, Enhanced, Handshake},
    pcap::Tap,
    qp::{IwarpQp, Negotiated},
    rdmap::{ErrorCode, Terminate},
};
use crate::{
    BoxFuture, ConnectRequest, Connected, Listener, QpOptions, QueuePair, WorkId,
    handshake::{Deferred, PAUSE, Stage, check_private_data, is_transient, within},
};

pub(super) struct IwarpListener {
    options: Arc<IwarpOptions>,
    local: SocketAddr,
    socket: Deferred<StdListener, TcpListener>,
}

/// A connection before its handshake. It belongs to no runtime until its first use.
struct IwarpRequest {
    options: Arc<IwarpOptions>,
    peer: SocketAddr,
    stage: Stage<StdStream, (TcpStream, Handshake)>,
    tap: Option<Tap>,
}

impl IwarpListener {
    pub(super) fn bind(options: &Arc<IwarpOptions>, local: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        set_options(SockRef::from(&socket), options)?;
        socket.bind(&SockAddr::from(local))?;
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        let listener = StdListener::from(socket);
        let local = listener.local_addr()?;
        Ok(Self { options: options.clone(), local, socket: Deferred::new(listener) })
    }
}

impl Listener for IwarpListener {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ConnectRequest>>> {
        Box::pin(async {
            let options = self.options.clone();
            let listener = self.socket.registered(TcpListener::from_std)?;
            loop {
                let (stream, peer) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    // The peer closed the connection, or descriptors are exhausted. The listener itself still works.
                    Err(error) if is_transient(&error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let stage = Stage::Fresh(stream.into_std()?);
                return Ok(Box::new(IwarpRequest { options, peer, stage, tap: None }) as Box<dyn ConnectRequest>);
            }
        })
    }
}

impl IwarpRequest {
    /// Receives the request frame, if that has not been done.
    async fn receive_request(&mut self) -> io::Result<&Handshake> {
        if let Some(stream) = self.stage.take_fresh() {
            let mut stream = TcpStream::from_std(stream)?;
            stream.set_nodelay(true)?;
            self.tap = tap(&self.options, &stream, false)?;
            let frame =
                //= rfc5044-7.1.2-2 rfc5044-7.1.2-3
                within(self.options.handshake_timeout, read_frame(&mut stream, false, self.tap.as_ref())).await?;
            //= rfc5044-4.3-1
            if frame.markers {
                // RFC 5044 §7.1.1: the reply rejects what this side does not support.
                let reply = Handshake { markers: false, ..reply_to(&frame, true) };
                write_frame(&mut stream, &reply, self.tap.as_ref()).await?;
                return Err(io::Error::new(io::ErrorKind::Unsupported, "the peer requires MPA markers"));
            }
            self.stage = Stage::Received((stream, frame));
        }
        self.stage.received().map(|(_, frame)| frame)
    }
}

impl ConnectRequest for IwarpRequest {
    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn private_data(&mut self) -> BoxFuture<'_, io::Result<Bytes>> {
        Box::pin(async { Ok(self.receive_request().await?.private_data.clone()) })
    }

    fn accept<'a>(
        mut self: Box<Self>,
        options: &'a QpOptions,
        private_data: &'a [u8],
        recvs: Vec<(WorkId, Buffer)>,
    ) -> BoxFuture<'a, io::Result<Box<dyn QueuePair>>> {
        Box::pin(async move {
            check_private_data(private_data, PRIVATE_DATA_MAX)?;
            self.receive_request().await?;
            let (mut stream, request) = self.stage.take_received()?;
            let (inbound_reads, outbound_reads) = match &request.enhanced {
                Some(theirs) => {
                    (options.inbound_reads.min(theirs.outbound_reads), options.outbound_reads.min(theirs.inbound_reads))
                }
                None => (options.inbound_reads, options.outbound_reads),
            };
            let enhanced = request.enhanced.map(|theirs| Enhanced {
                peer_to_peer: theirs.peer_to_peer,
                rtr_send: false,
                rtr_write: theirs.peer_to_peer && (theirs.rtr_write || !theirs.rtr_read),
                rtr_read: theirs.peer_to_peer && theirs.rtr_read && !theirs.rtr_write,
                inbound_reads,
                outbound_reads,
            });
            //= rfc5044-4.4-1 rfc5044-4.4-4 rfc5044-7.1.1-11
            let crc = request.crc || self.options.crc;
            let private_data = Bytes::copy_from_slice(private_data);
            let reply = Handshake { crc, enhanced, private_data, ..reply_to(&request, false) };
            within(self.options.handshake_timeout, write_frame(&mut stream, &reply, self.tap.as_ref())).await?;
            // A read as ready-to-receive indication needs an inbound read even if none were negotiated.
            let inbound_reads = inbound_reads.max(u16::from(enhanced.is_some_and(|ours| ours.rtr_read)));
            // RFC 5044 §7.1.2: the responder sends nothing before the first FPDU arrives.
            let negotiated = Negotiated { crc, inbound_reads, outbound_reads, hold: true };
            let queue = SendQueue::new();
            let qp = IwarpQp::new(stream, self.peer, &self.options, options, negotiated, queue, self.tap.take(), recvs);
            Ok(Box::new(qp) as Box<dyn QueuePair>)
        })
    }
}

impl Drop for IwarpRequest {
    /// Rejects the peer, if its request was received but not answered. So short a frame fits in the send buffer of a
    /// new socket.
    fn drop(&mut self) {
        if let Stage::Received((stream, request)) = &self.stage {
            let reply = reply_to(request, true).encode();
            if stream.try_write(&reply).is_ok_and(|len| len == reply.len())
                && let Some(tap) = &self.tap
            {
                tap.sent(&reply);
            }
        }
        if let Some(tap) = &self.tap {
            tap.closed();
        }
    }
}

pub(super) async fn connect(
    iwarp: &Arc<IwarpOptions>,
    remote: SocketAddr,
    options: &QpOptions,
    private_data: &[u8],
    recvs: Vec<(WorkId, Buffer)>,
) -> io::Result<Connected> {
    check_private_data(private_data, PRIVATE_DATA_MAX)?;
    let socket = if remote.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    set_options(SockRef::from(&socket), iwarp)?;
    let mut stream = within(iwarp.handshake_timeout, socket.connect(remote)).await?;
    stream.set_nodelay(true)?;
    let tap = tap(iwarp, &stream, true)?;
    let request = request(iwarp, options, private_data);
    let exchange = async {
        //= rfc5044-7.1.2-1 rfc5044-7.1.2-5
        write_frame(&mut stream, &request, tap.as_ref()).await?;
        read_frame(&mut stream, true, tap.as_ref()).await
    };
    //= rfc5044-7.1.2-6
    let reply = within(iwarp.handshake_timeout, exchange).await?;
    check_reply(&reply)?;

    let mut negotiated = Negotiated {
        crc: request.crc || reply.crc,
        inbound_reads: options.inbound_reads,
        outbound_reads: options.outbound_reads,
        hold: false,
    };
    let mut refusal = None;
    let mut ready = false;
    if let (Some(ours), Some(theirs)) = (request.enhanced, reply.enhanced) {
        negotiated.outbound_reads = options.outbound_reads.min(theirs.inbound_reads);
        // RFC 6581 §9.1: the responder must not request more reads than this side accepts.
        if theirs.outbound_reads > ours.inbound_reads && theirs.outbound_reads != mpa::READS_UNSPECIFIED {
            refusal = Some(ErrorCode::MPA_READS);
        }
        if ours.peer_to_peer && theirs.peer_to_peer {
            ready = theirs.rtr_write;
            if !ready {
                refusal = Some(ErrorCode::MPA_RTR);
            }
        }
    }
    let queue = SendQueue::new();
    let mut qp = IwarpQp::new(stream, remote, iwarp, options, negotiated, queue, tap, recvs);
    if let Some(error) = refusal {
        qp.refuse(Terminate { error, segment: None, read_request: None });
        return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string()));
    }
    if ready {
        qp.send_ready();
    }
    Ok(Connected { qp: Box::new(qp), private_data: reply.private_data })
}

fn request(iwarp: &IwarpOptions, options: &QpOptions, private_data: &[u8]) -> Handshake {
    let enhanced = (iwarp.revision >= 2).then(|| Enhanced {
        peer_to_peer: iwarp.peer_to_peer,
        rtr_send: false,
        rtr_write: iwarp.peer_to_peer,
        rtr_read: false,
        inbound_reads: options.inbound_reads.min(mpa::READS_UNSPECIFIED - 1),
        outbound_reads: options.outbound_reads.min(mpa::READS_UNSPECIFIED - 1),
    });
    Handshake {
        reply: false,
        markers: false,
        crc: iwarp.crc,
        rejected: false,
        revision: iwarp.revision.clamp(1, 2),
        //= rfc5044-7.1.1-13
        reserved: 0,
        enhanced,
        private_data: Bytes::copy_from_slice(private_data),
    }
}

/// Returns a reply with the peer's revision that agrees to nothing.
fn reply_to(request: &Handshake, rejected: bool) -> Handshake {
    Handshake {
        reply: true,
        markers: false,
        crc: request.crc,
        rejected,
        revision: request.revision,
        reserved: 0,
        enhanced: request.enhanced.map(|_| Enhanced::default()),
        private_data: Bytes::new(),
    }
}

fn check_reply(reply: &Handshake) -> io::Result<()> {
    if reply.rejected {
        //= rfc5044-7.1.2-4 rfc5044-7.1.2-7
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the peer rejected the connection"));
    }
    if reply.markers {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the peer requires MPA markers"));
    }
    Ok(())
}

/// Reads exactly one frame.
async fn read_frame(stream: &mut TcpStream, reply: bool, tap: Option<&Tap>) -> io::Result<Handshake> {
    let mut bytes = Vec::with_capacity(mpa::HEADER_LEN + mpa::PRIVATE_DATA_MAX);
    let mut wanted = mpa::HEADER_LEN;
    loop {
        while bytes.len() < wanted {
            let missing = (wanted - bytes.len()) as u64;
            if (&mut *stream).take(missing).read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // Other protocols are detected at their first bytes.
            if let Some((frame, len)) = parse(&bytes, reply)? {
                debug_assert_eq!(len, bytes.len());
                if let Some(tap) = tap {
                    tap.received(&bytes);
                }
                return Ok(frame);
            }
        }
        // The header is complete, but the private data are not. The last two bytes of the header are their length.
        wanted = mpa::HEADER_LEN + usize::from(u16::from_be_bytes([bytes[18], bytes[19]]));
    }
}

fn parse(bytes: &[u8], reply: bool) -> io::Result<Option<(Handshake, usize)>> {
    //= rfc5044-8-2
    Handshake::parse(bytes, reply).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

async fn write_frame(stream: &mut TcpStream, frame: &Handshake, tap: Option<&Tap>) -> io::Result<()> {
    let bytes = frame.encode();
    stream.write_all(&bytes).await?;
    if let Some(tap) = tap {
        tap.sent(&bytes);
    }
    Ok(())
}

fn tap(options: &IwarpOptions, stream: &TcpStream, initiator: bool) -> io::Result<Option<Tap>> {
    let Some(pcap) = &options.pcap else { return Ok(None) };
    Ok(Some(pcap.tap(stream.local_addr()?, stream.peer_addr()?, initiator)))
}

/// Sets socket options. This happens before listening and connecting, because TCP's window scale depends on the buffer
/// sizes. Accepted sockets inherit the options.
fn set_options(socket: SockRef<'_>, options: &IwarpOptions) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_time(options.keepalive).with_interval(options.keepalive / 6);
    socket.set_tcp_keepalive(&keepalive)?;
    if let Some(name) = &options.congestion {
        let set = socket.set_tcp_congestion(name.as_bytes());
        set.map_err(|error| io::Error::new(error.kind(), format!("TCP congestion control {name:?}: {error}")))?;
    }
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.recv_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    Ok(())
}

/// Maximum bytes of private data: those of an MPA frame without the fields of the enhanced setup (RFC 6581 §9.1).
pub(super) const PRIVATE_DATA_MAX: usize = mpa::PRIVATE_DATA_MAX - mpa::ENHANCED_LEN;
