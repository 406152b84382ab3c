//! Access to the arguments of commands: local paths, and objects on servers.

use std::{
    cell::RefCell, ffi::OsString, future::Future, os::unix::ffi::OsStrExt, path::PathBuf, str::FromStr, time::Duration,
};

use bytes::Bytes;
use client::{ErrorKind, Mount, NfsUrl};
use rpc::Switch;
use tokio::runtime::Runtime;

use crate::{
    copy::{Meta, Remote},
    exit::{Exit, Failure},
};

/// The location of an object.
#[derive(Clone, Debug)]
pub enum Location {
    /// A path on this machine.
    Local(PathBuf),
    /// An object on a server.
    Remote(Box<NfsUrl>),
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("nfs://") {
            return Ok(Location::Remote(Box::new(NfsUrl::from_str(text).map_err(|error| error.problem)?)));
        }
        match text.split_once("://") {
            Some((scheme, _)) => Err(format!("'{scheme}://': a server is written nfs://host[:port]/export/path")),
            None => Ok(Location::Local(OsString::from(text).into())),
        }
    }
}

/// Makes the runtime of this thread.
///
/// # Errors
/// The system permits no more descriptors.
pub fn runtime() -> Result<Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))
}

/// Runs an asynchronous command on this thread. Additional threads access local files.
pub fn run<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let result = command.await;
        unmount_all().await;
        result
    });
    // A thread that waits for the kernel must not delay the end of the command.
    runtime.shutdown_background();
    result
}

thread_local! {
    /// The mounts of the command on this thread whose servers keep state for them.
    static MOUNTS: RefCell<Vec<Mount>> = const { RefCell::new(Vec::new()) };
}

/// Returns the number of bytes that the mounts of this thread have read from data servers and written to them directly, by
/// layouts of pNFS.
pub fn direct_bytes() -> u64 {
    let of = |mount: &Mount| {
        let count = mount.v4().map(|v4| v4.data_ways().data_servers).unwrap_or_default();
        count.read_bytes + count.write_bytes
    };
    MOUNTS.with_borrow(|mounts| mounts.iter().map(of).sum())
}

/// Unmounts the mounts of this thread whose servers keep state. If a server does not answer, its state expires with the
/// lease.
pub async fn unmount_all() {
    for mount in MOUNTS.take() {
        if let Ok(Err(error)) = tokio::time::timeout(UNMOUNT_MAX, mount.unmount()).await {
            tracing::debug!(%error, "cannot unmount");
        }
    }
}

/// Connects to servers.
pub struct Reach {
    switch: Switch,
}

impl Reach {
    /// Creates one with all transports.
    pub fn new() -> Self {
        Self { switch: transports::for_client() }
    }

    /// Returns the transports.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Mounts the path of a URL, or its longest prefix that the server lets the client mount.
    ///
    /// # Errors
    /// No server answers, or the server rejects the mount.
    pub async fn mount(&self, url: &NfsUrl) -> Result<Mount, Failure> {
        let mount = self.connect(url).await?;
        if mount.v4().is_some() {
            MOUNTS.with_borrow_mut(|mounts| mounts.push(mount.clone()));
        }
        Ok(mount)
    }

    /// Connects. Tells the user if the server does not answer soon.
    ///
    /// # Errors
    /// As [`mount`](Self::mount).
    pub async fn connect(&self, url: &NfsUrl) -> Result<Mount, Failure> {
        let mut connect = std::pin::pin!(Mount::connect(url, &self.switch));
        let deadline = url.options.deadline;
        let connected = match tokio::time::timeout(NOTICE.min(deadline / 2), &mut connect).await {
            Ok(connected) => connected,
            Err(_) => {
                eprintln!("slipway: {url}: no answer yet; waiting for up to {deadline:?}");
                connect.await
            }
        };
        connected.map_err(|error| failure(url, &error))
    }

    /// Returns the object of a URL. If `follow`, follows a symbolic link at the end of its path.
    ///
    /// # Errors
    /// The errors of [`mount`](Self::mount), or there is no such object.
    pub async fn object(&self, url: &NfsUrl, follow: bool) -> Result<(Remote, Meta), Failure> {
        let mount = self.mount(url).await?;
        let found = if follow { mount.resolve("").await } else { mount.resolve_link("").await };
        let object = found.map_err(|error| failure(url, &error))?;
        Ok((Remote::new(object.mount, object.handle, url.path.clone()), Meta::from(&object.attr)))
    }

    /// Returns the parent directory of the last name in a URL, and that name. The name need not exist.
    ///
    /// # Errors
    /// The errors of [`mount`](Self::mount); the URL has no last name; there is no such directory.
    pub async fn parent(&self, url: &NfsUrl) -> Result<(Remote, Bytes), Failure> {
        let Some((dir, name)) = split(&url.path) else {
            return Err(Failure::usage(format!("{url}: this is the root of a server; use a path below it")));
        };
        let (node, _) = self.object(&url.with_path(dir), true).await?;
        Ok((node, name))
    }
}

/// Splits a path before its last name. Returns `None` if it has none, or ends in `.` or `..`.
pub fn split(path: &[u8]) -> Option<(Bytes, Bytes)> {
    let end = path.iter().rposition(|&byte| byte != b'/')? + 1;
    let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let name = &path[start..end];
    if name == b"." || name == b".." {
        return None;
    }
    Some((Bytes::copy_from_slice(&path[..start]), Bytes::copy_from_slice(name)))
}

/// Returns the last name of a local path; `None` for `/`, `.` and `..`.
pub fn local_name(path: &std::path::Path) -> Option<Bytes> {
    path.file_name().map(|name| Bytes::copy_from_slice(name.as_bytes()))
}

/// Returns the failure for an error at a URL, with its exit code.
pub fn failure(url: &NfsUrl, error: &client::Error) -> Failure {
    let exit = match error.kind() {
        // A server that rejects a mount has been reached. Version 4 cannot distinguish an export from a path below one,
        // so a missing path has the same code in all versions.
        ErrorKind::Status(_)
        | ErrorKind::Flavor(_)
        | ErrorKind::Path(_)
        | ErrorKind::Protocol(_)
        | ErrorKind::LockManager(_) => Exit::Failed,
        ErrorKind::Url(_) | ErrorKind::Invalid(_) => Exit::Usage,
        _ => Exit::Unreachable,
    };
    let message = match error.kind() {
        // It names the URL itself.
        ErrorKind::Url(problem) => problem.to_string(),
        _ => format!("{url}: {error}"),
    };
    Failure { exit, message }
}

/// Collects the results of the parts of a command, and prints each failure when it happens.
pub struct Tally {
    command: &'static str,
    failures: Vec<Exit>,
}

impl Tally {
    /// Creates a tally without failures.
    pub fn new(command: &'static str) -> Self {
        Self { command, failures: Vec::new() }
    }

    /// Returns the value of a result, or prints its failure and returns `None`.
    pub fn check<T>(&mut self, result: Result<T, Failure>) -> Option<T> {
        result.map_err(|failure| self.fail(failure.exit, &failure.message)).ok()
    }

    /// Prints and counts a failure.
    pub fn fail(&mut self, exit: Exit, message: &str) {
        eprintln!("slipway {}: {message}", self.command);
        self.failures.push(exit);
    }

    /// Returns the exit code: that of the failures if all have the same, else [`Exit::Failed`].
    pub fn exit(&self) -> Exit {
        match self.failures.split_first() {
            None => Exit::Ok,
            Some((first, rest)) if rest.iter().all(|exit| exit == first) => *first,
            Some(_) => Exit::Failed,
        }
    }
}

/// The time without an answer after which the user is told that the command waits for the server.
const NOTICE: Duration = Duration::from_secs(1);
/// The maximum time to wait for a server at the end of a command.
const UNMOUNT_MAX: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_separates_the_last_name() {
        let parts = |path: &str| split(path.as_bytes());
        assert_eq!(parts("/a/b"), Some(("/a/".into(), "b".into())));
        assert_eq!(parts("/a/b//"), Some(("/a/".into(), "b".into())));
        assert_eq!(parts("/a"), Some(("/".into(), "a".into())));
        assert_eq!([parts("/"), parts(""), parts("/a/.."), parts("/.")], [None, None, None, None]);
    }

    #[test]
    fn locations_are_local_or_remote() {
        assert!(matches!("nfs://h/e".parse(), Ok(Location::Remote(_))));
        assert!(matches!("dir/file".parse(), Ok(Location::Local(_))));
        assert!("http://h/e".parse::<Location>().unwrap_err().contains("nfs://host"));
    }

    #[test]
    fn an_unknown_option_is_a_mistake_in_the_url_which_is_named_once() {
        let url: NfsUrl = "nfs://127.0.0.1/e?pigeon=1".parse().unwrap();
        let failure = run(async { Reach::new().mount(&url).await }).err().unwrap();
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(failure.message.matches("nfs://").count(), 1, "{}", failure.message);
        assert!(failure.message.contains("option 'pigeon': no such option"), "{}", failure.message);
    }

    #[test]
    fn failures_of_one_kind_give_their_exit_code() {
        let mut tally = Tally::new("test");
        assert_eq!(tally.exit(), Exit::Ok);
        tally.fail(Exit::Unreachable, "one");
        assert_eq!(tally.exit(), Exit::Unreachable);
        tally.fail(Exit::Failed, "two");
        assert_eq!(tally.exit(), Exit::Failed);
    }
}
