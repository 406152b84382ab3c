//! `slipway mount --status`: what the mounts of a user wait for.
//!
//! Each mount listens on a socket in a directory of its user, and answers with one line of JSON. A separate thread
//! answers, and it asks no server.

use std::{
    env, fs,
    io::{self, Read, Write},
    os::unix::{fs::DirBuilderExt, net::UnixListener},
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
///
/// # Errors
/// There is no mount at `directory`, or a mount does not answer. The other mounts are printed before.
pub fn print(directory: Option<&Path>, json: bool) -> Outcome {
    let failed = |path: &Path, error: &dyn std::fmt::Display| Failure::failed(format!("{}: {error}", path.display()));
    let wanted = directory.map(|directory| located(directory).map_err(|error| failed(directory, &error)));
    let wanted = wanted.transpose()?;
    let (mut found, mut silent) = (Vec::new(), None);
    for path in sockets().map_or(Ok(Vec::new()), list).map_err(Failure::failed)? {
        match ask(&path) {
            Ok(Some(status)) if wanted.as_ref().is_none_or(|wanted| *wanted == status.directory) => found.push(status),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                silent = Some(failed(&path, &"the process of this mount does not answer"));
            }
            Err(error) => silent = Some(failed(&path, &error)),
        }
    }
    found.sort_by(|one, other| one.directory.cmp(&other.directory));
    for status in &found {
        if json { output::json(status) } else { output::print(&text(status)) }
    }
    match (wanted, silent) {
        (Some(_), _) if !found.is_empty() => Ok(Exit::Ok),
        (_, Some(silent)) => Err(silent),
        (Some(wanted), None) => Err(failed(&wanted, &"no slipway mount of this user is there")),
        (None, None) => Ok(Exit::Ok),
    }
}

/// Returns the path of a mount point in the form of the kernel. Only its parent is resolved, because the server of the
/// mount may not answer.
fn located(directory: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(directory)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(absolute),
    }
}

fn list(sockets: PathBuf) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(sockets) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| entry.map(|entry| entry.path())).collect(),
    }
}

/// Returns the status of the mount that listens here. `None` if it has ended; then removes the socket of a killed
/// process.
fn ask(path: &Path) -> io::Result<Option<Status>> {
    let ended = |error: &io::Error| {
        use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound};
        matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotFound)
    };
    let mut text = Vec::new();
    match socket::connect_to(path, ANSWER_MAX).and_then(|mut stream| stream.read_to_end(&mut text)) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if ended(&error) => {
            // A process that has just started refuses connections until it listens.
            if error.kind() == io::ErrorKind::ConnectionRefused && !is_running(path) {
                let _ = fs::remove_file(path);
            }
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns `true` if there is a process with the number of a socket's name.
fn is_running(path: &Path) -> bool {
    path.file_stem().is_some_and(|number| Path::new("/proc").join(number).exists())
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
            "  operations that wait for {server}: {operations}, the oldest for {since_s} s: {operation} of inode {ino} by thread {pid}\n",
        ));
    }
    text
}

/// The seconds after which an operation counts as waiting.
const LATE_S: u64 = 1;
/// The maximum time to wait for the process of a mount.
const ANSWER_MAX: Duration = Duration::from_secs(5);
