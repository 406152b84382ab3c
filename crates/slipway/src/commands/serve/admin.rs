//! The socket of `slipway clients`, `ds`, `layout`, `resilver`, `demo` and `bench` in the state directory. Only the server's user and
//! root can use it.
//!
//! A separate thread answers one connection after the other, except for a search for orphans, which has a thread of its own. If a
//! client neither reads nor writes, the server disconnects it, so others wait for a limited time.

use std::{
    fs,
    io::{self, BufRead, BufReader, BufWriter, Read},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use server::admin::{Admin, SOCKET};

use crate::{
    counters::{self, CountersRequest},
    pnfs::{
        Clusters,
        records::{REQUEST_MAX, Request},
    },
    socket::{self, PAUSE},
};

/// The parts of the server that answer requests.
pub struct Answers {
    pub admin: Admin,
    pub clusters: Arc<Clusters>,
    pub server: Arc<rpc::Server>,
}

/// The socket. Dropping this removes it.
pub struct AdminSocket {
    path: PathBuf,
}

impl AdminSocket {
    /// Listens on the socket and answers until the process ends.
    ///
    /// # Errors
    /// There is another object of that name, or the directory cannot be used.
    pub fn open(state_dir: &Path, answers: Answers) -> io::Result<Self> {
        let path = state_dir.join(SOCKET);
        let located = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        // This server has locked the directory, so a socket there is that of a killed server.
        let listener = socket::listen_at(&path).map_err(located)?;
        thread::Builder::new().name("admin".to_owned()).spawn(move || accept(&listener, &answers))?;
        Ok(Self { path })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, answers: &Answers) {
    loop {
        let answered = listener.accept().and_then(|(stream, _)| answer(&stream, answers));
        if let Err(error) = answered {
            tracing::debug!(%error, "cannot answer an administrator");
            thread::sleep(PAUSE);
        }
    }
}

fn answer(stream: &UnixStream, answers: &Answers) -> io::Result<()> {
    let (admitted, mut output) = (socket::admit(stream)?, BufWriter::new(stream));
    if !admitted {
        return Admin::refuse("only the server's user and root can use it", &mut output);
    }
    let mut line = Vec::new();
    BufReader::new(stream.take(REQUEST_MAX as u64)).read_until(b'\n', &mut line)?;
    if let Ok(CountersRequest::Counters {}) = serde_json::from_slice(&line) {
        return counters::answer(&answers.server, &mut output);
    }
    match serde_json::from_slice(&line) {
        // Others must not wait for it.
        Ok(request @ Request::Orphans { .. }) => {
            let (clusters, stream) = (answers.clusters.clone(), stream.try_clone()?);
            let search = move || {
                if let Err(error) = clusters.answer(&request, &mut BufWriter::new(stream)) {
                    tracing::debug!(%error, "cannot answer an administrator");
                }
            };
            thread::Builder::new().name("orphans".to_owned()).spawn(search).map(drop)
        }
        Ok(request) => answers.clusters.answer(&request, &mut output),
        Err(_) => answers.admin.serve(&line[..], &mut output),
    }
}
