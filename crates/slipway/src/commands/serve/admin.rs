//! The socket of `slipway clients` in the state directory. Only the server's user and root can use it.
//!
//! A separate thread answers one connection after the other. If a client neither reads nor writes, the server
//! disconnects it, so others wait for a limited time.

use std::{
    fs,
    io::{self, BufWriter},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    thread,
};

use server::admin::{Admin, SOCKET};

use crate::socket::{self, PAUSE};

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
        // This server has locked the directory, so a socket there is that of a killed server.
        let listener = socket::listen_at(&path).map_err(located)?;
        thread::Builder::new().name("admin".to_owned()).spawn(move || accept(&listener, &admin))?;
        Ok(Self { path })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, admin: &Admin) {
    loop {
        let answered = listener.accept().and_then(|(stream, _)| answer(&stream, admin));
        if let Err(error) = answered {
            tracing::debug!(%error, "cannot answer an administrator");
            thread::sleep(PAUSE);
        }
    }
}

fn answer(stream: &UnixStream, admin: &Admin) -> io::Result<()> {
    let (admitted, mut output) = (socket::admit(stream)?, BufWriter::new(stream));
    if !admitted {
        return Admin::refuse("only the server's user and root can use it", &mut output);
    }
    admin.serve(stream, &mut output)
}
