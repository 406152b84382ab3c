//! The handshake of shared memory (`docs/providers/shm.md`): little-endian packets over a Unix socket, with
//! descriptors.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketAddrUnix, SocketFlags, SocketType, sockopt,
    },
};

/// Connects to the server's socket and sends nothing.
///
/// # Errors
/// The connection is refused.
pub fn connect(socket: &Path) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(LIMIT))?;
    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(LIMIT))?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(socket)?)?;
    Ok(fd)
}

/// Sends the hello packet, and receives the server's control memory.
///
/// # Errors
/// The server rejects the connection.
pub fn greet(socket: &OwnedFd) -> io::Result<()> {
    let mut hello = b"SLIPSHM1\x01".to_vec();
    hello.extend([4, 0, 4, 0]);
    rustix::net::send(socket, &hello, SendFlags::NOSIGNAL)?;
    let mut bytes = [0; 1024];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let slices = &mut [IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    if bytes[..received].starts_with(b"SLIPSHM1\x02") { Ok(()) } else { Err(io::Error::other("not accepted")) }
}

/// Creates sealed memory of `bytes` bytes, as the server requires it, without allocated pages.
///
/// # Errors
/// The system cannot create it.
pub fn memory(bytes: u64) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Passes a slab.
///
/// # Errors
/// The server has closed the connection, or does not read.
pub fn pass(socket: &OwnedFd, number: u32, bytes: u64, memory: &OwnedFd) -> io::Result<()> {
    let mut packet = vec![4];
    packet.extend(number.to_le_bytes());
    packet.extend(bytes.to_le_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [memory.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)), "there is space for one");
    rustix::net::sendmsg(socket, &[IoSlice::new(&packet)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Sends any packet.
///
/// # Errors
/// The server has closed the connection, or does not read.
pub fn say(socket: &OwnedFd, packet: &[u8]) -> io::Result<()> {
    rustix::net::send(socket, packet, SendFlags::NOSIGNAL)?;
    Ok(())
}

const LIMIT: std::time::Duration = std::time::Duration::from_secs(2);
