//! Unix sockets on which a running command answers its user and root.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::FileTypeExt,
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{Mode, fchmod},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
        sockopt::{Timeout, set_socket_timeout, socket_peercred},
    },
    process::geteuid,
};

/// Listens on a socket that only this process's user and root can use. Replaces the socket of a process that has ended:
/// the caller makes sure that no running process listens there.
///
/// # Errors
/// There is another object of that name, or the directory cannot be used.
pub fn listen_at(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is not a socket: remove it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = unconnected()?;
    // Linux gives the name the mode of the socket at the time of bind, so other users can never connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Connects to a socket. To connect, to read and to write take at most `limit` each, also if the process has been
/// stopped.
///
/// # Errors
/// `ConnectionRefused` or `NotFound` if no process listens there; `WouldBlock` after `limit`.
pub fn connect_to(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket = unconnected()?;
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, direction, Some(limit))?;
    }
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

fn unconnected() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Limits the time for which a peer can occupy the thread that answers. Returns `true` if the peer is this process's
/// user or root.
///
/// # Errors
/// The peer has gone.
pub fn admit(stream: &UnixStream) -> io::Result<bool> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let uid = socket_peercred(stream)?.uid;
    let admitted = uid.is_root() || uid == geteuid();
    if !admitted {
        tracing::warn!(uid = uid.as_raw(), "rejected a request of a user without permission");
    }
    Ok(admitted)
}

/// The pause after an error that may persist, for example if there are no free descriptors.
pub const PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of connections that wait.
const BACKLOG: i32 = 8;
const TIMEOUT: Duration = Duration::from_secs(10);
