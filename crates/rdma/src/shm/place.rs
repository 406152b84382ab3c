//! The sockets of listeners: each is in a directory, and its name contains the port.
//!
//! The providers' interface uses addresses; `shm` uses only the port of an address. Port 20049 is the socket
//! `shm-20049.sock` in the *runtime directory*: `/run/slipway` for root, `$XDG_RUNTIME_DIR/slipway` for another user,
//! or `/tmp/slipway-UID`. A client searches root's directory first, then its own, and trusts no other directory.
//!
//! A listener holds a lock beside its socket, so that a socket without a living owner is detected.

use std::{
    fs::{self, DirBuilder, File},
    io,
    net::{Ipv4Addr, SocketAddr},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::FlockOperation,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

use super::ShmOptions;

/// A socket's name in the file system, which belongs to this process while this value lives.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) address: SocketAddr,
    pub(super) path: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl Place {
    /// Takes the name for `local`, or for a free port if its port is 0.
    ///
    /// # Errors
    /// Another process has the name, or the directory cannot be created or written.
    pub(super) fn take(options: &ShmOptions, local: SocketAddr) -> io::Result<Self> {
        if let Some(path) = &options.socket {
            return Self::lock(path.clone(), local);
        }
        let directory = match &options.directory {
            Some(directory) => directory.clone(),
            None => own_directory(),
        };
        prepare(&directory)?;
        if local.port() > 0 {
            return Self::lock(socket_in(&directory, local.port()), local);
        }
        for _ in 0..ATTEMPTS {
            let port = entropy::random_range(PORTS_FREE);
            match Self::lock(socket_in(&directory, port), SocketAddr::new(local.ip(), port)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                result => return result,
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    fn lock(path: PathBuf, address: SocketAddr) -> io::Result<Self> {
        let lock_path = path.with_extension("lock");
        loop {
            let lock = File::options().write(true).create(true).truncate(false).open(&lock_path)?;
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
                rustix::io::Errno::WOULDBLOCK => io::ErrorKind::AddrInUse.into(),
                errno => io::Error::from(errno),
            })?;
            // The previous owner can have removed the lock file between opening and locking it.
            let ours = lock.metadata()?;
            if fs::metadata(&lock_path).is_ok_and(|now| (now.dev(), now.ino()) == (ours.dev(), ours.ino())) {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => return Ok(Self { address, path, lock_path, _lock: lock }),
                }
            }
        }
    }

    /// Creates the listening socket. Any user of this host can connect; the kernel then reports the user.
    pub(super) fn listen(&self, backlog: i32) -> io::Result<OwnedFd> {
        let fd = socket()?;
        rustix::net::bind(&fd, &SocketAddrUnix::new(&self.path)?)?;
        fs::set_permissions(&self.path, fs::Permissions::from_mode(0o666))?;
        rustix::net::listen(&fd, backlog)?;
        Ok(fd)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The lock is held until both files are removed.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Connects to the listener for `remote`.
///
/// # Errors
/// `ConnectionRefused` if there is no listener, `InvalidInput` if `remote` is another host, `WouldBlock` if the
/// listener is busy.
pub(super) fn connect(options: &ShmOptions, remote: SocketAddr) -> io::Result<OwnedFd> {
    if let Some(path) = &options.socket {
        return connect_to(path);
    }
    if !is_here(remote) {
        let why = format!("{} is not an address of this host", remote.ip());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let directories = match &options.directory {
        Some(directory) => vec![directory.clone()],
        None => vec![PathBuf::from(ROOT_DIRECTORY), own_directory()],
    };
    let mut refused = io::Error::from(io::ErrorKind::ConnectionRefused);
    for directory in directories {
        match connect_to(&socket_in(&directory, remote.port())) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => refused = error,
            Ok(fd) => return trusted(fd),
            result => return result,
        }
    }
    Err(refused)
}

fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let fd = socket()?;
    match rustix::net::connect(&fd, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(fd),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::CONNREFUSED) => {
            let why = format!("nobody listens at {}", path.display());
            Err(io::Error::new(io::ErrorKind::ConnectionRefused, why))
        }
        Err(errno) => Err(io::Error::new(io::Error::from(errno).kind(), format!("{}: {errno}", path.display()))),
    }
}

/// Returns a connection if the listener's user is root or the user of this process.
fn trusted(fd: OwnedFd) -> io::Result<OwnedFd> {
    let server = rustix::net::sockopt::socket_peercred(fd.as_fd())?.uid;
    if server.is_root() || server == rustix::process::geteuid() {
        return Ok(fd);
    }
    let why = format!("the server belongs to user {}; specify its socket to trust it", server.as_raw());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn socket_in(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!("shm-{port}.sock"))
}

/// Returns `true` if an address belongs to this host, which means that a socket can be bound to it.
pub(super) fn is_here(address: SocketAddr) -> bool {
    address.ip().is_loopback() || std::net::UdpSocket::bind((address.ip(), 0)).is_ok()
}

fn own_directory() -> PathBuf {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        return ROOT_DIRECTORY.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_absolute()) {
        Some(dir) => Path::new(&dir).join("slipway"),
        None => format!("/tmp/slipway-{}", uid.as_raw()).into(),
    }
}

/// Creates the directory if it does not exist. Rejects a directory in which other users could create sockets.
fn prepare(directory: &Path) -> io::Result<()> {
    let uid = rustix::process::geteuid();
    let mode = if uid.is_root() { 0o755 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let why = format!("creating {}: {error}", directory.display());
            return Err(io::Error::new(error.kind(), why));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    if found.is_dir() && found.uid() == uid.as_raw() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = format!("{} is not a directory that only user {} can write to", directory.display(), uid.as_raw());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Returns the address for a peer: that of this host, with a port that shows whether the peer is root, as with TCP.
pub(super) fn address_of(uid: u32) -> SocketAddr {
    let port = if uid == 0 { PORT_OF_ROOT } else { PORT_OF_OTHERS };
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

const ROOT_DIRECTORY: &str = "/run/slipway";
const PORTS_FREE: std::ops::Range<u16> = 49152..65535;
const ATTEMPTS: usize = 100;
const PORT_OF_ROOT: u16 = 1023;
const PORT_OF_OTHERS: u16 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: &Path) -> ShmOptions {
        ShmOptions { directory: Some(dir.to_owned()), ..ShmOptions::default() }
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("slipway-place-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn name_belongs_to_one_listener_and_is_free_after_its_end() {
        let dir = scratch("taken");
        let options = options(&dir);
        let place = Place::take(&options, "127.0.0.1:0".parse().unwrap()).unwrap();
        let _listening = place.listen(8).unwrap();
        assert!(connect(&options, place.address).is_ok());
        assert_eq!(Place::take(&options, place.address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let (address, path) = (place.address, place.path.clone());
        drop(place);
        assert_eq!(connect(&options, address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        // A killed server leaves its socket behind.
        let fd = socket().unwrap();
        rustix::net::bind(&fd, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(fd);
        assert_eq!(connect(&options, address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(Place::take(&options, address).is_ok());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn other_hosts_and_world_writable_directories_are_rejected() {
        let dir = scratch("open");
        let away = connect(&options(&dir), "192.0.2.1:20049".parse().unwrap()).unwrap_err();
        assert_eq!(away.kind(), io::ErrorKind::InvalidInput);
        DirBuilder::new().mode(0o777).create(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Place::take(&options(&dir), "127.0.0.1:0".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        fs::remove_dir_all(dir).unwrap();
    }
}
