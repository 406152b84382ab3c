//! `slipway mount --status`: what the mounts of this machine wait for.
//!
//! Each mount listens on a socket in a directory of its user, and answers with one line of JSON. A thread of its own
//! answers, and it asks no server.

use std::{
    env, fs,
    io::{self, Read, Write},
    os::unix::{
        fs::DirBuilderExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    exit::{Exit, Failure, Outcome},
    fuse::{ServerWaits, Waits},
    output,
    socket::{self, PAUSE},
};

/// The state of a mount.
#[derive(Debug, Serialize, Deserialize)]
struct Status {
    url: String,
    /// The mount point.
    directory: PathBuf,
    /// The process of the mount.
    pid: u32,
    /// The servers for which operations wait.
    waits: Vec<ServerWaits>,
}

/// The socket of a mount. Dropping this removes it.
pub struct StatusSocket(Option<PathBuf>);

impl StatusSocket {
    /// Answers until the process ends. A mount works without this, so a failure is only logged.
    pub fn open(url: &str, mount_point: &Path, waits: Waits) -> Self {
        let Some(sockets) = sockets() else {
            tracing::debug!("no XDG_RUNTIME_DIR: the mount has no status");
            return Self(None);
        };
        let path = sockets.join(format!("{}.sock", process::id()));
        let (url, directory) = (url.to_owned(), mount_point.to_owned());
        let opened = fs::DirBuilder::new().recursive(true).mode(0o755).create(&sockets);
        // No running process has the same number.
        let opened = opened.and_then(|()| socket::listen_at(&path)).and_then(|listener| {
            let status = move || Status {
                url: url.clone(),
                directory: directory.clone(),
                pid: process::id(),
                waits: waits.by_server(LATE_S),
            };
            thread::Builder::new().name("status".to_owned()).spawn(move || accept(&listener, status))
        });
        match opened {
            Ok(_) => Self(Some(path)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the mount has no status");
                Self(None)
            }
        }
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the directory of the sockets of this user's mounts.
fn sockets() -> Option<PathBuf> {
    match rustix::process::geteuid().is_root() {
        true => Some(PathBuf::from("/run/slipway-mount")),
        false => env::var_os("XDG_RUNTIME_DIR").map(|directory| PathBuf::from(directory).join("slipway-mount")),
    }
}

fn accept(listener: &UnixListener, status: impl Fn() -> Status) {
    loop {
        let answered = listener.accept().and_then(|(mut stream, _)| match socket::admit(&stream)? {
            true => stream.write_all(&serde_json::to_vec(&status())?),
            false => Ok(()),
        });
        if let Err(error) = answered {
            tracing::debug!(%error, "cannot report the status");
            thread::sleep(PAUSE);
        }
    }
}

/// Prints the status of all mounts of this user, or of the mount at `directory`.
pub fn print(directory: Option<&Path>, json: bool) -> Outcome {
    let failed = |path: &Path, error: &dyn std::fmt::Display| Failure::failed(format!("{}: {error}", path.display()));
    // The mount point is not resolved, because its server may not answer.
    let wanted = directory.map(|directory| std::path::absolute(directory).map_err(|error| failed(directory, &error)));
    let wanted = wanted.transpose()?;
    let mut found = Vec::new();
    for path in sockets().map_or(Ok(Vec::new()), list).map_err(Failure::failed)? {
        match ask(&path) {
            Ok(status) if wanted.as_ref().is_none_or(|wanted| *wanted == status.directory) => found.push(status),
            Ok(_) => {}
            // The process was killed, or has just ended.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => drop(fs::remove_file(&path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path, &error)),
        }
    }
    found.sort_by(|one, other| one.directory.cmp(&other.directory));
    if let Some(wanted) = wanted.filter(|_| found.is_empty()) {
        return Err(failed(&wanted, &"no slipway mount of this user is there"));
    }
    for status in &found {
        if json { output::json(status) } else { output::print(&text(status)) }
    }
    Ok(Exit::Ok)
}

fn list(sockets: PathBuf) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(sockets) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| entry.map(|entry| entry.path())).collect(),
    }
}

fn ask(path: &Path) -> io::Result<Status> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

fn text(status: &Status) -> String {
    use std::os::unix::ffi::OsStrExt;
    let directory = output::name(status.directory.as_os_str().as_bytes());
    let mut text = format!("{} at {directory}, process {}:", output::name(status.url.as_bytes()), status.pid);
    if status.waits.is_empty() {
        text.push_str(" no operation waits\n");
        return text;
    }
    text.push('\n');
    for waits in &status.waits {
        let ServerWaits { server, operations, since_s, operation, ino, pid } = waits;
        text.push_str(&format!(
            "  {operations} operations wait for {server}; the oldest for {since_s} s: {operation} of inode {ino} by thread {pid}\n",
        ));
    }
    text
}

/// The seconds after which an operation counts as waiting.
const LATE_S: u64 = 1;
const ANSWER_MAX: Duration = Duration::from_secs(10);
