//! The socket of a connection, which carries packets and descriptors, and identifies the peer.
//!
//! Doorbells use the socket, too. (A shared eventfd would cost slightly less, but a peer could make it block: both ends
//! of an eventfd share one open file, with its flags. See `docs/adr/0003-shm-doorbells.md`.)
//!
//! Only the `async` functions wait.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
    task::{Context, Poll, ready},
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags, Shutdown,
    },
};
use tokio::io::{Interest, unix::AsyncFd};

use super::{
    packet::{PACKET_MAX, Packet},
    passage::{End, Passage},
};
use crate::PeerUser;

/// One end of a connected socket.
pub(crate) struct Socket {
    fd: AsyncFd<Arc<OwnedFd>>,
    passage: Arc<Passage>,
}

/// A handle that rings the peer's doorbell from any thread. While one exists, the peer does not see this end closed.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<OwnedFd>);

/// The result of receiving.
#[derive(Debug)]
pub(crate) enum Received {
    /// A packet, with its descriptor if it had one.
    Packet(Packet, Option<OwnedFd>),
    /// There is no packet now.
    Nothing,
    /// The peer has closed its end.
    End,
    /// The data are not a valid packet.
    Garbage,
}

impl Bell {
    pub(crate) fn new(fd: Arc<OwnedFd>) -> Self {
        Self(fd)
    }

    /// Wakes the peer. If the socket is full, the peer has been woken and has not read it yet; if it is closed, the
    /// peer is gone.
    pub(crate) fn ring(&self) {
        let _ = rustix::net::send(&self.0, &Packet::Bell.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Sends a packet without a descriptor. Returns `true` if there was room for it. A packet for a peer that is gone
    /// counts as sent.
    pub(crate) fn send(&self, packet: &Packet) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::send(&self.0, &packet.encode(), flags) != Err(Errno::AGAIN)
    }

    /// Returns `true` if the peer's end is closed permanently: its process has ended, or no part of it holds the
    /// connection any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }
}

impl Socket {
    /// Takes a non-blocking socket over, on the current tokio runtime.
    pub(crate) fn new(fd: OwnedFd, end: End) -> io::Result<Self> {
        let fd = Arc::new(fd);
        let passage = Arc::new(Passage::new(Arc::downgrade(&fd), end));
        // SAFETY: the descriptor is owned, so it stays the same and open while it is registered.
        #[expect(unsafe_code)]
        let fd = unsafe { AsyncFd::register(fd)? };
        Ok(Self { fd, passage })
    }

    /// Returns the channel for files.
    pub(crate) fn passage(&self) -> &Arc<Passage> {
        &self.passage
    }

    pub(crate) fn bell(&self) -> Bell {
        Bell::new(self.fd.get_ref().clone())
    }

    /// Sends a packet without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, or an error of the socket.
    pub(crate) fn send(&self, packet: &Packet, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        send_packet(self.fd.get_ref(), packet, fd)
    }

    /// Receives a packet, if there is one.
    ///
    /// # Errors
    /// The socket failed.
    pub(crate) fn receive(&self) -> io::Result<Received> {
        self.passage.receive(self.fd.get_ref())
    }

    /// Receives a packet. Never returns [`Received::Nothing`].
    pub(crate) fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<io::Result<Received>> {
        if let Some(received) = self.passage.register(cx) {
            return Poll::Ready(Ok(received));
        }
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            match self.receive()? {
                Received::Nothing => guard.clear_ready(),
                other => return Poll::Ready(Ok(other)),
            }
        }
    }

    /// Sends a packet, and waits until there is room for it.
    ///
    /// # Errors
    /// The socket failed.
    pub(crate) async fn send_when_possible(&self, packet: &Packet, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        loop {
            let mut guard = self.fd.ready(Interest::WRITABLE).await?;
            match self.send(packet, fd) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                result => return result,
            }
        }
    }

    /// Ends the connection for the peer at once. Only one side can do this: if both directions are shut down, the
    /// kernel no longer reports whether the peer's end is closed (see [`Bell::is_abandoned`]).
    pub(crate) fn shutdown(&self) {
        // This fails only if the peer is gone.
        let _ = rustix::net::shutdown(self.fd.get_ref(), Shutdown::Write);
    }
}

/// Sends a packet without waiting.
///
/// # Errors
/// `WouldBlock` if there is no room, or an error of the socket.
pub(super) fn send_packet(socket: &OwnedFd, packet: &Packet, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let bytes = packet.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds: &[BorrowedFd<'_>] = fd.as_slice();
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "there must be space for one descriptor");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
            Ok(_) => return Ok(()), // A packet is sent as a whole.
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Receives a packet, if there is one.
///
/// # Errors
/// The socket failed.
pub(super) fn receive_packet(fd: &OwnedFd) -> io::Result<Received> {
    let mut bytes = [0; PACKET_MAX];
    // There is room for more descriptors than a peer is permitted to send. The kernel closes those that do not fit;
    // the others are closed when the buffer is dropped.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let slices = &mut [IoSliceMut::new(&mut bytes)];
    let received = match rustix::net::recvmsg(fd, slices, &mut ancillary, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
        Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Received::End),
        Err(errno) => return Err(errno.into()),
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    let cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    let packet = Packet::parse(&bytes[..received.bytes]).filter(|_| !cut && fds.len() <= 1);
    Ok(packet.map_or(Received::Garbage, |packet| Received::Packet(packet, fds.pop())))
}

/// Returns the user at the other end at the time of the connection (`SO_PEERCRED`, `SO_PEERGROUPS`), with IDs as this
/// process sees them.
///
/// # Errors
/// The socket failed.
pub(crate) fn peer_user(fd: BorrowedFd<'_>) -> io::Result<PeerUser> {
    let cred = rustix::net::sockopt::socket_peercred(fd)?;
    Ok(PeerUser { uid: cred.uid.as_raw(), gid: cred.gid.as_raw(), groups: peer_groups(fd)? })
}

fn peer_groups(fd: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes to the vector, and their number to `bytes`.
        #[expect(unsafe_code)]
        let result = unsafe {
            let (into, bytes) = (groups.as_mut_ptr().cast(), &raw mut bytes);
            libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERGROUPS, into, bytes)
        };
        let count = (bytes as usize / size_of::<u32>()).min(GROUPS_MAX);
        match io::Error::last_os_error() {
            _ if result == 0 => {
                groups.truncate(count);
                return Ok(groups);
            }
            error if error.raw_os_error() == Some(libc::ERANGE) && count > groups.len() => groups.resize(count, 0),
            error => return Err(error),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}

/// The constant `NGROUPS_MAX` of Linux.
const GROUPS_MAX: usize = 65536;
