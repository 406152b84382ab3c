//! The socket at which `slipway clients` asks: in the state directory, for the server's user and root alone.
//!
//! Requests are answered one after the other, on a thread of their own. Who asks and then neither reads nor writes is hung up
//! on, so he keeps others waiting for [`TIMEOUT`] at most.

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

/// The socket; it is removed with this.
pub struct AdminSocket {
    path: PathBuf,
}

impl AdminSocket {
    /// Answers there from now on, until the process ends.
    ///
    /// # Errors
    /// There is something else of that name, or the directory cannot be used.
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
    // The directory is locked by this server, so that a socket there is that of one that was killed.
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(path)?,
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is no socket: remove it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux gives the name the mode that the socket has when it is bound: there is no moment in which it is anyone's.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn accept(listener: &UnixListener, admin: &Admin) {
    loop {
        let answered = listener.accept().and_then(|(stream, _)| answer(&stream, admin));
        if let Err(error) = answered {
            tracing::debug!(%error, "an administrator was not answered");
            // It may be one that does not pass, such as that there are no descriptors left.
            thread::sleep(PAUSE);
        }
    }
}

fn answer(stream: &UnixStream, admin: &Admin) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let (uid, mut output) = (socket_peercred(stream)?.uid, BufWriter::new(stream));
    if !uid.is_root() && uid != geteuid() {
        tracing::warn!(uid = uid.as_raw(), "somebody who may not has asked for the clients");
        return Admin::refuse("it is for the server's user and root", &mut output);
    }
    admin.serve(stream, &mut output)
}

/// Those that wait for the one that is answered.
const BACKLOG: i32 = 8;
const TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
