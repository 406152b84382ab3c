//! [`StateDir`]: the directory for state that survives a restart. The server that uses it locks it.
//!
//! It contains the key of file handles (`handle.key`), the recovery database (`recovery.redb`), a handle database for
//! each export of an ordinary user (`handles-…`), and the socket of `slipway clients`. A server that finds any of these
//! files damaged, missing or accessible to others refuses to start. Without them, it could grant a lock to one client
//! that another client holds. Only [`OnLoss::Reset`] accepts a loss, and only of a file that cannot be used.

use std::{
    fmt,
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{fs::OFlags, io::Errno};
use vfs::private;

/// An open state directory. No other server can use it until this is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// The open lock file. Closing it releases the lock.
    _lock: File,
}

/// The reaction to a file of the state directory that is damaged or missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Refuse to start.
    #[default]
    Refuse,
    /// Rename the file, and start without its contents.
    Reset,
}

impl StateDir {
    /// Opens and locks a directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// Returns an error if another server uses the directory, if it belongs to another user, if others may write to it,
    /// or if the storage fails.
    pub fn open(path: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| located(path, error))?;
        let path = path.canonicalize().map_err(|error| located(path, error))?;
        let dir = File::options().read(true).custom_flags(OFlags::DIRECTORY.bits() as i32).open(&path);
        dir.and_then(|dir| private::check_dir(&dir, &path)).map_err(|error| located(&path, error))?;
        let lock = lock(&path.join(LOCK_FILE)).map_err(|error| located(&path, error))?;
        Ok(Self { path, _lock: lock })
    }

    /// Returns the path of the directory: an absolute path without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Opens the lock file of a directory and locks it.
fn lock(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let mut options = File::options();
    options.read(true).write(true).custom_flags(flags);
    let opened = options.clone().create_new(true).mode(0o600).open(path);
    let mut file = match opened {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let known = private::open(path, private::OTHERS_WRITE).map_err(|error| located(path, error))?;
            known.ok_or_else(|| io::Error::other("another server is starting with this state directory"))?
        }
        opened => opened.map_err(|error| located(path, error))?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The process that holds the lock may not have written its ID yet.
            let _ = (&mut file).take(PID_MAX).read_to_string(&mut holder);
            let holder = match holder.trim() {
                "" => String::new(),
                pid => format!(" (process {})", pid.escape_debug()),
            };
            return Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("another server{holder} uses this state directory: stop it, or name another directory"),
            ));
        }
        Err(TryLockError::Error(error)) => return Err(located(path, error)),
    }
    // The process ID is only information for people, so a full disk must not cause an error here.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    Ok(file)
}

/// The reason why a file of the state directory cannot be used.
#[derive(Debug)]
pub(crate) struct Unusable {
    path: PathBuf,
    error: io::Error,
    /// `true` if the contents of the file are lost. Otherwise the file can be used once its surroundings are repaired.
    is_lost: bool,
}

impl Unusable {
    /// Creates the error for a file whose contents are lost.
    pub(crate) fn lost(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { path: path.into(), error: io::Error::new(io::ErrorKind::InvalidData, error), is_lost: true }
    }

    /// Creates the error for a file that cannot be opened, read or written. The file counts as lost if its contents are
    /// invalid or cannot be read. It does not count as lost if it belongs to another user, or if there is no space.
    pub(crate) fn io(path: &Path, error: io::Error) -> Self {
        let is_wrong = matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
        let is_lost = is_wrong || error.raw_os_error() == Some(Errno::IO.raw_os_error());
        Self { path: path.into(), error, is_lost }
    }

    /// Renames the file if it is lost and `on_loss` accepts that.
    ///
    /// # Errors
    /// Returns an error if the file is not lost, or if `on_loss` does not accept the loss.
    pub(crate) fn accept(self, on_loss: OnLoss) -> io::Result<()> {
        if !self.is_lost || on_loss == OnLoss::Refuse {
            return Err(self.into());
        }
        let aside = match private::set_aside(&self.path) {
            Ok(aside) => aside.display().to_string(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => "nowhere, because it is missing".to_owned(),
            Err(error) => return Err(located(&self.path, error)),
        };
        tracing::warn!(path = %self.path.display(), error = %self.error, aside, "a state file is lost: it has been set aside and a new one is created");
        Ok(())
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.error)?;
        if self.is_lost { f.write_str(ACCEPT) } else { Ok(()) }
    }
}

impl From<Unusable> for io::Error {
    fn from(unusable: Unusable) -> Self {
        Self::new(unusable.error.kind(), unusable.to_string())
    }
}

pub(crate) fn located(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The part of an error message that says how to accept a loss.
pub(crate) const ACCEPT: &str = "; restore it from a backup, or accept the loss with: slipway serve … --recovery=reset (docs/nfs4-state.md, Restarts)";
const LOCK_FILE: &str = "lock";
/// Upper bound of the digits of a process ID.
const PID_MAX: u64 = 32;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn directory_is_used_by_one_server_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/state");
        let first = StateDir::open(&path).unwrap();
        let second = StateDir::open(&path).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
        assert!(second.to_string().contains(&format!("process {}", std::process::id())), "{second}");
        drop(first);
        StateDir::open(&path).unwrap();
    }

    #[test]
    fn directory_that_others_can_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o770, 0o707, 0o1777] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = StateDir::open(dir.path()).unwrap_err().to_string();
            assert!(error.contains("chmod go-w"), "{mode:o}: {error}");
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        StateDir::open(dir.path()).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(1), None).unwrap();
            assert!(StateDir::open(dir.path()).unwrap_err().to_string().contains("chown 0"));
        }
    }

    #[test]
    fn lock_file_that_is_not_a_regular_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join(LOCK_FILE)).unwrap();
        assert!(StateDir::open(dir.path()).unwrap_err().to_string().contains("symbolic link"));
    }
}
