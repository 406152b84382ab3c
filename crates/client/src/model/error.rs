//! [`Error`]: what went wrong, in which operation, on which server, for which path.

use std::{fmt, io, sync::Arc, time::Duration};

use bytes::Bytes;
use nfs::{mount::Mountstat3, v3::Nfsstat3, v4::Nfsstat4};

use crate::UrlError;

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. Cheap to clone and to move.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    server: Option<Arc<str>>,
    path: Option<Bytes>,
}

/// What went wrong, by who must act.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server answered with an error that all versions have, with the same number.
    Nfs(Nfsstat3),
    /// The server answered with an error that only version 4 has.
    Nfs4(Nfsstat4),
    /// The server refused the mount.
    Mount(Mountstat3),
    /// No answer within the deadline.
    Timeout {
        /// The deadline.
        after: Duration,
        /// What happened to the connection last, if something did.
        last: Option<rpc::TransportError>,
    },
    /// The call was not executed, or its reply could not be had.
    Rpc(rpc::ClientError),
    /// The server's answer makes no sense: the server is broken or hostile.
    Protocol(String),
    /// The URL, or an option in it.
    Url(UrlError),
    /// The host's name could not be resolved.
    Resolve(String),
    /// The server has the file system elsewhere, and it cannot be reached there: why not, place by place.
    Referral(String),
    /// The file system has moved to another server, and what is meant is not found there: why not.
    Moved(String),
    /// The path cannot be followed: too many symbolic links, or no name where one is needed.
    Path(&'static str),
    /// The caller asked for what cannot be.
    Invalid(&'static str),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self(Box::new(Inner { kind, operation, server: None, path: None }))
    }

    /// Adds the server's name, unless it is known.
    pub(crate) fn on(mut self, server: &Arc<str>) -> Self {
        self.0.server.get_or_insert_with(|| server.clone());
        self
    }

    /// Adds the path, unless it is known.
    pub(crate) fn at(mut self, path: impl AsRef<[u8]>) -> Self {
        self.0.path.get_or_insert_with(|| Bytes::copy_from_slice(path.as_ref()));
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The procedure, as its RFC names it, or what else was being done.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The path it was about, where there is one.
    pub fn path(&self) -> Option<&Bytes> {
        self.0.path.as_ref()
    }

    /// The server's status, if it answered with one that only version 4 has.
    pub fn status4(&self) -> Option<Nfsstat4> {
        if let ErrorKind::Nfs4(status) = self.0.kind { Some(status) } else { None }
    }

    /// The server's status, if it answered with one that all versions have.
    pub fn status(&self) -> Option<Nfsstat3> {
        if let ErrorKind::Nfs(status) = self.0.kind { Some(status) } else { None }
    }

    /// Whether nothing has answered: a later call may be answered.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.kind(), ErrorKind::Timeout { .. } | ErrorKind::Rpc(rpc::ClientError::Transport(_)))
    }

    /// Whether the connection was lost before the answer came.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.kind(), ErrorKind::Rpc(rpc::ClientError::Transport(rpc::TransportError::Lost(_))))
    }

    /// Whether there was an answer that cannot be decoded. Linux's server (6.1) leaves out results, or parts of them, where the answer to a
    /// compound has more than there is room for: what was asked for in one request may be had in several.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Protocol(_))
    }

    /// Whether the object or path does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Nfs(Nfsstat3::NoEnt) | ErrorKind::Mount(Mountstat3::NoEnt))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.0.path.as_ref().filter(|path| !path.is_empty()) {
            write!(f, "{}: ", path.escape_ascii())?;
        }
        write!(f, "{} ({}", self.0.kind, self.0.operation)?;
        if let Some(server) = &self.0.server {
            write!(f, " on {server}")?;
        }
        write!(f, ")")
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Nfs(status) => write!(f, "{status}"),
            ErrorKind::Nfs4(status) => write!(f, "{status}"),
            ErrorKind::Mount(status) => f.write_str(match status {
                Mountstat3::Ok => "OK",
                Mountstat3::Perm => "the server does not let this client mount it: operation not permitted",
                Mountstat3::NoEnt => "the server has no such path to mount",
                Mountstat3::Io => "input/output error on the server",
                Mountstat3::Acces => "the server does not export it to this client",
                Mountstat3::NotDir => "not a directory on the server",
                Mountstat3::Inval => "the server takes the request for invalid",
                Mountstat3::NameTooLong => "path too long for the server",
                Mountstat3::NotSupp => "not supported by the server",
                Mountstat3::ServerFault => "server fault",
            }),
            ErrorKind::Timeout { after, last: None } => write!(f, "no answer within {after:?}"),
            ErrorKind::Timeout { after, last: Some(last) } => write!(f, "no answer within {after:?}: {last}"),
            ErrorKind::Rpc(error) => write!(f, "{error}"),
            ErrorKind::Protocol(problem) => write!(f, "the server's answer makes no sense: {problem}"),
            ErrorKind::Url(error) => write!(f, "{error}"),
            ErrorKind::Resolve(problem) => write!(f, "the host cannot be found: {problem}"),
            ErrorKind::Referral(why) => write!(f, "this is on another server, which cannot be reached: {why}"),
            ErrorKind::Moved(why) => write!(f, "its file system has moved to another server: {why}"),
            ErrorKind::Path(problem) | ErrorKind::Invalid(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for Error {}

impl From<UrlError> for Error {
    fn from(error: UrlError) -> Self {
        Error::new(ErrorKind::Url(error), "parse")
    }
}

/// Keeps the whole text, and the nearest `std` kind.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        use io::ErrorKind as Io;
        let kind = match error.kind() {
            ErrorKind::Nfs(status) => match status {
                Nfsstat3::NoEnt => Io::NotFound,
                Nfsstat3::Perm | Nfsstat3::Acces => Io::PermissionDenied,
                Nfsstat3::Exist => Io::AlreadyExists,
                Nfsstat3::NotDir => Io::NotADirectory,
                Nfsstat3::IsDir => Io::IsADirectory,
                Nfsstat3::Inval => Io::InvalidInput,
                Nfsstat3::FBig => Io::FileTooLarge,
                Nfsstat3::NoSpc => Io::StorageFull,
                Nfsstat3::RoFs => Io::ReadOnlyFilesystem,
                Nfsstat3::NotEmpty => Io::DirectoryNotEmpty,
                Nfsstat3::DQuot => Io::QuotaExceeded,
                Nfsstat3::Stale | Nfsstat3::BadHandle => Io::StaleNetworkFileHandle,
                Nfsstat3::NotSupp => Io::Unsupported,
                Nfsstat3::XDev => Io::CrossesDevices,
                _ => Io::Other,
            },
            ErrorKind::Mount(Mountstat3::NoEnt) => Io::NotFound,
            ErrorKind::Mount(Mountstat3::Acces | Mountstat3::Perm) => Io::PermissionDenied,
            ErrorKind::Moved(_) => Io::StaleNetworkFileHandle,
            ErrorKind::Timeout { .. } => Io::TimedOut,
            ErrorKind::Protocol(_) => Io::InvalidData,
            ErrorKind::Url(_) | ErrorKind::Invalid(_) => Io::InvalidInput,
            ErrorKind::Resolve(_) | ErrorKind::Referral(_) => Io::HostUnreachable,
            ErrorKind::Nfs4(Nfsstat4::Symlink | Nfsstat4::WrongType) => Io::InvalidInput,
            ErrorKind::Nfs4(Nfsstat4::Denied | Nfsstat4::Locked | Nfsstat4::ShareDenied) => Io::ResourceBusy,
            ErrorKind::Nfs4(_) | ErrorKind::Mount(_) | ErrorKind::Rpc(_) | ErrorKind::Path(_) => Io::Other,
        };
        io::Error::new(kind, error)
    }
}
