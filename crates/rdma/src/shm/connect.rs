//! Opening connections: a Unix socket, the identities of its ends, and control memory.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use buf::Buffer;
use bytes::Bytes;
use rustix::{io::Errno, net::SocketFlags};
use tokio::io::unix::AsyncFd;

use super::{
    ShmOptions,
    ledger::Ledger,
    memory::Control,
    packet::{PRIVATE_DATA_MAX, Packet, Terms},
    passage::End,
    passed::Passed,
    place::{self, Place},
    qp::{ShmQp, Start},
    slabs::{Mapped, Shared, Side},
    socket::{Received, Socket, peer_user},
};
use crate::{
    BoxFuture, ConnectRequest, Connected, Listener, PeerUser, QpOptions, QueuePair, WorkId,
    handshake::{Deferred, PAUSE, Stage, check_private_data, is_transient, within},
};

pub(super) struct ShmListener {
    options: Arc<ShmOptions>,
    place: Place,
    socket: Deferred<OwnedFd, AsyncFd<OwnedFd>>,
}

/// A connection before its handshake. It belongs to no runtime until its first use.
struct ShmRequest {
    options: Arc<ShmOptions>,
    user: PeerUser,
    stage: Stage<OwnedFd, (Socket, Terms)>,
}

impl ShmListener {
    pub(super) fn bind(options: &Arc<ShmOptions>, local: SocketAddr) -> io::Result<Self> {
        let place = Place::take(options, local)?;
        let socket = place.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        tracing::debug!(path = %place.path.display(), "listening");
        Ok(Self { options: options.clone(), place, socket: Deferred::new(socket) })
    }
}

impl Listener for ShmListener {
    fn local_addr(&self) -> SocketAddr {
        self.place.address
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn ConnectRequest>>> {
        Box::pin(async {
            let options = self.options.clone();
            let socket = self.socket.registered(watched)?;
            loop {
                let mut ready = socket.readable().await?;
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let accepted = rustix::net::accept_with(socket.get_ref(), flags);
                let user = accepted.as_ref().ok().map(|fd| peer_user(fd.as_fd()));
                match (accepted, user) {
                    (Ok(fd), Some(Ok(user))) => {
                        let stage = Stage::Fresh(fd);
                        return Ok(Box::new(ShmRequest { options, user, stage }) as Box<dyn ConnectRequest>);
                    }
                    (Ok(_), error) => tracing::warn!(?error, "a peer was rejected because its user is unknown"),
                    (Err(Errno::AGAIN), _) => ready.clear_ready(),
                    (Err(errno), _) if is_transient(&errno.into()) => {
                        tracing::warn!(%errno, "a connection could not be accepted");
                        tokio::time::sleep(PAUSE).await;
                    }
                    (Err(errno), _) => return Err(errno.into()),
                }
            }
        })
    }
}

impl ShmRequest {
    /// Waits for the peer's first packet, if it has not been received.
    async fn receive_request(&mut self) -> io::Result<&Terms> {
        if let Some(fd) = self.stage.take_fresh() {
            let socket = Socket::new(fd, End::Accepting)?;
            match within(self.options.handshake_timeout, packet(&socket)).await? {
                (Packet::Hello(terms), None) => self.stage = Stage::Received((socket, terms)),
                _ => return Err(unexpected_packet()),
            }
        }
        self.stage.received().map(|(_, terms)| terms)
    }
}

impl ConnectRequest for ShmRequest {
    fn peer(&self) -> SocketAddr {
        place::address_of(self.user.uid)
    }

    fn peer_user(&self) -> Option<u32> {
        Some(self.user.uid)
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
            // This happens before the request is taken, so that the peer gets a rejection if it fails.
            let account = self.options.ledger.clone().unwrap_or_else(Ledger::of_process).account(self.user.uid);
            let (control, fd) = Control::with_fd(&account)?;
            let (socket, theirs) = self.stage.take_received()?;
            let inbound_reads = options.inbound_reads.min(theirs.outbound_reads);
            let outbound_reads = options.outbound_reads.min(theirs.inbound_reads);
            let terms = Terms {
                outbound_reads: inbound_reads,
                inbound_reads: outbound_reads,
                private_data: Bytes::copy_from_slice(private_data),
            };
            let accept = Packet::Accept(terms);
            within(self.options.handshake_timeout, socket.send_when_possible(&accept, Some(fd.as_fd()))).await?;
            let start = Start {
                peer: place::address_of(self.user.uid),
                user: Some(self.user.clone()),
                inbound_reads,
                outbound_reads,
                side: Side::Accepting(Mapped::new(
                    &control,
                    socket.bell(),
                    Passed::new(&options.registration, self.options.mapped_max, account),
                )),
                socket,
                control,
            };
            Ok(Box::new(ShmQp::new(start, &self.options, options, recvs)) as Box<dyn QueuePair>)
        })
    }
}

impl Drop for ShmRequest {
    /// Rejects the peer, if its request was received but not answered.
    fn drop(&mut self) {
        if let Stage::Received((socket, _)) = &self.stage {
            let _ = socket.send(&Packet::Reject, None);
        }
    }
}

pub(super) async fn connect(
    shm: &Arc<ShmOptions>,
    remote: SocketAddr,
    options: &QpOptions,
    private_data: &[u8],
    recvs: Vec<(WorkId, Buffer)>,
) -> io::Result<Connected> {
    check_private_data(private_data, PRIVATE_DATA_MAX)?;
    let socket = Socket::new(within(shm.handshake_timeout, connected(shm, remote)).await?, End::Connecting)?;
    let terms = Terms {
        outbound_reads: options.outbound_reads,
        inbound_reads: options.inbound_reads,
        private_data: Bytes::copy_from_slice(private_data),
    };
    let exchange = async {
        socket.send_when_possible(&Packet::Hello(terms), None).await?;
        packet(&socket).await
    };
    let (agreed, fd) = match within(shm.handshake_timeout, exchange).await? {
        (Packet::Accept(agreed), Some(fd)) => (agreed, fd),
        (Packet::Reject, None) => {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the peer rejected the connection"));
        }
        _ => return Err(unexpected_packet()),
    };
    let control = Control::open(fd.as_fd())?;
    let start = Start {
        peer: remote,
        user: Some(peer_user(socket.as_fd())?),
        inbound_reads: options.inbound_reads.min(agreed.inbound_reads),
        outbound_reads: options.outbound_reads.min(agreed.outbound_reads),
        side: Side::Connecting(Shared::new(&control, socket.bell(), &options.registration, shm.mapped_max)),
        socket,
        control,
    };
    Ok(Connected { qp: Box::new(ShmQp::new(start, shm, options, recvs)), private_data: agreed.private_data })
}

/// Returns a connected socket. Waits while the listener's queue is full.
async fn connected(shm: &ShmOptions, remote: SocketAddr) -> io::Result<OwnedFd> {
    loop {
        match place::connect(shm, remote) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(PAUSE).await,
            result => return result,
        }
    }
}

async fn packet(socket: &Socket) -> io::Result<(Packet, Option<OwnedFd>)> {
    match poll_fn(|cx| socket.poll_receive(cx)).await? {
        Received::Packet(packet, fd) => Ok((packet, fd)),
        Received::End => Err(io::ErrorKind::UnexpectedEof.into()),
        Received::Garbage | Received::Nothing => Err(unexpected_packet()),
    }
}

fn unexpected_packet() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer sent an unexpected packet")
}

/// Registers a listener's socket with the current runtime.
fn watched(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned, so it stays the same and open while it is registered.
    #[expect(unsafe_code)]
    Ok(unsafe { AsyncFd::register(socket)? })
}
