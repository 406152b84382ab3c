//! The socket of `slipway clients` in the state directory. Only the server's user and root can use it.
//!
//! A separate thread answers one connection after the other. If a client neither reads nor writes, the server
//! disconnects it, so others wait at most [`TIMEOUT`].

use std::{
    fs,
    io::{self, BufWriter},
    os::unix::{
        fs::FileTypeExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{Mode, fchmod},
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt::socket_peercred,
    },
    process::geteuid,
};
use server::admin::{Admin, SOCKET};

/// The socket. Dropping this removes it.
pub struct AdminSocket {
    path: PathBuf,
}

impl AdminSocket {
    /// Listens on the socket and answers until the process ends.
    ///
    /// # Errors
    /// There is another object of that name, or the directory cannot be used.
    pub fn open(state_dir: &Path, admin: Admin) -> io::Result<Self> {
        let path = state_dir.join(SOCKET);
        let located = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let listener = listen_at(&path).map_err(located)?;
        thread::Builder::new().name("admin".to_owned()).spawn(move || accept(&listener, &admin))?;
        Ok(Self { path })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn listen_at(path: &Path) -> io::Result<UnixListener> {
    // This server has locked the directory, so a socket there is that of a killed server.
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is not a socket: remove it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux gives the name the mode of the socket at the time of bind, so other users can never connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn accept(listener: &UnixListener, admin: &Admin) {
    loop {
        let answered = listener.accept().and_then(|(stream, _)| answer(&stream, admin));
        if let Err(error) = answered {
            tracing::debug!(%error, "cannot answer an administrator");
            // The error may persist, for example if there are no free descriptors.
            thread::sleep(PAUSE);
        }
    }
}

fn answer(stream: &UnixStream, admin: &Admin) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let (uid, mut output) = (socket_peercred(stream)?.uid, BufWriter::new(stream));
    if !uid.is_root() && uid != geteuid() {
        tracing::warn!(uid = uid.as_raw(), "rejected a request of a user without permission");
        return Admin::refuse("only the server's user and root can use it", &mut output);
    }
    admin.serve(stream, &mut output)
}

/// The maximum number of connections that wait.
const BACKLOG: i32 = 8;
const TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
