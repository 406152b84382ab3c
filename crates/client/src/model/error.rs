//! [`Error`]: the failure of an operation, with the operation, the server and the path.

use std::{fmt, io, sync::Arc, time::Duration};

use bytes::Bytes;
use nfs::v4::Nfsstat4;

use super::{PeerStatus, Status, UrlError};

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// The failure of an operation. Cheap to clone and to move.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    /// The status as the server sent it.
    peer_status: Option<PeerStatus>,
    operation: &'static str,
    server: Option<Arc<str>>,
    path: Option<Bytes>,
}

/// The kind of an [`Error`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The server refused the operation.
    Status(Status),
    /// No answer within the deadline.
    Timeout {
        /// The deadline.
        after: Duration,
        /// The last failure of the connection, if there was one.
        last: Option<rpc::TransportError>,
    },
    /// The call was not executed, or its reply could not be received.
    Rpc(rpc::ClientError),
    /// The server's answer is invalid: the server is broken or hostile.
    Protocol(String),
    /// The URL, or an option in it, is invalid.
    Url(UrlError),
    /// The host's name could not be resolved.
    Resolve(String),
    /// The file system is on other servers, and none of them can be reached; the reason for each.
    Referral(String),
    /// The file system has moved to another server, and the object is not found there; the reason.
    Moved(String),
    /// The path cannot be followed: too many symbolic links, or a name is missing.
    Path(&'static str),
    /// The caller's request is invalid.
    Invalid(&'static str),
    /// The device fails to whose memory the caller reads; the reason.
    Device(String),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self(Box::new(Inner { kind, peer_status: None, operation, server: None, path: None }))
    }

    /// The error of a status that the server has sent.
    pub(crate) fn of_status(status: impl Into<PeerStatus>, operation: &'static str) -> Self {
        let status = status.into();
        let mut error = Self::refused(status.into(), operation);
        error.0.peer_status = Some(status);
        error
    }

    /// The error of an operation that the client itself refuses.
    pub(crate) fn refused(status: Status, operation: &'static str) -> Self {
        Self::new(ErrorKind::Status(status), operation)
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

    /// The reason for which the operation was refused, if the server answered.
    pub fn status(&self) -> Option<Status> {
        if let ErrorKind::Status(status) = self.0.kind { Some(status) } else { None }
    }

    /// The status as the server sent it, for messages.
    pub fn peer_status(&self) -> Option<PeerStatus> {
        self.0.peer_status
    }

    /// The status of a server of version 4.
    pub(crate) fn status4(&self) -> Option<Nfsstat4> {
        self.0.peer_status.and_then(|status| status.v4())
    }

    /// Whether the server asks to retry later.
    pub(crate) fn is_later(&self) -> bool {
        matches!(self.status(), Some(Status::Delayed | Status::Grace))
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
        self.status() == Some(Status::NotFound)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.0.path.as_ref().filter(|path| !path.is_empty()) {
            write!(f, "{}: ", path.escape_ascii())?;
        }
        match &self.0.peer_status {
            Some(status) => write!(f, "{status}")?,
            None => write!(f, "{}", self.0.kind)?,
        }
        write!(f, " ({}", self.0.operation)?;
        if let Some(server) = &self.0.server {
            write!(f, " on {server}")?;
        }
        write!(f, ")")
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Status(status) => write!(f, "{status}"),
            ErrorKind::Timeout { after, last: None } => write!(f, "no answer within {after:?}"),
            ErrorKind::Timeout { after, last: Some(last) } => write!(f, "no answer within {after:?}: {last}"),
            ErrorKind::Rpc(error) => write!(f, "{error}"),
            ErrorKind::Protocol(problem) => write!(f, "the server's answer makes no sense: {problem}"),
            ErrorKind::Url(error) => write!(f, "{error}"),
            ErrorKind::Resolve(problem) => write!(f, "the host cannot be found: {problem}"),
            ErrorKind::Referral(why) => write!(f, "this is on another server, which cannot be reached: {why}"),
            ErrorKind::Moved(why) => write!(f, "its file system has moved to another server: {why}"),
            ErrorKind::Path(problem) | ErrorKind::Invalid(problem) => f.write_str(problem),
            ErrorKind::Device(problem) => write!(f, "the memory to read into fails: {problem}"),
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
            ErrorKind::Status(status) => match status {
                Status::NotFound => Io::NotFound,
                Status::NotPermitted | Status::AccessDenied => Io::PermissionDenied,
                Status::AlreadyExists => Io::AlreadyExists,
                Status::NotADirectory => Io::NotADirectory,
                Status::IsADirectory => Io::IsADirectory,
                Status::InvalidArgument | Status::SymbolicLink | Status::WrongType => Io::InvalidInput,
                Status::FileTooLarge => Io::FileTooLarge,
                Status::NoSpace => Io::StorageFull,
                Status::ReadOnly => Io::ReadOnlyFilesystem,
                Status::NotEmpty => Io::DirectoryNotEmpty,
                Status::QuotaExceeded => Io::QuotaExceeded,
                Status::StaleHandle | Status::BadHandle => Io::StaleNetworkFileHandle,
                Status::NotSupported => Io::Unsupported,
                Status::CrossDevice => Io::CrossesDevices,
                Status::LockDenied | Status::FileLocked | Status::ShareDenied => Io::ResourceBusy,
                _ => Io::Other,
            },
            ErrorKind::Moved(_) => Io::StaleNetworkFileHandle,
            ErrorKind::Timeout { .. } => Io::TimedOut,
            ErrorKind::Protocol(_) => Io::InvalidData,
            ErrorKind::Url(_) | ErrorKind::Invalid(_) => Io::InvalidInput,
            ErrorKind::Resolve(_) | ErrorKind::Referral(_) => Io::HostUnreachable,
            ErrorKind::Rpc(_) | ErrorKind::Path(_) | ErrorKind::Device(_) => Io::Other,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use nfs::v3::Nfsstat3;

    use super::*;

    #[test]
    fn a_status_has_one_kind_whichever_version_sent_it() {
        let third = Error::of_status(Nfsstat3::NoEnt, "LOOKUP");
        let fourth = Error::of_status(Nfsstat4::NoEnt, "LOOKUP");
        for error in [&third, &fourth] {
            assert_eq!(error.status(), Some(Status::NotFound));
            assert_eq!(error.peer_status().unwrap().number(), 2);
            assert_eq!(error.to_string(), "no such file or directory (LOOKUP)");
        }
        assert_eq!((third.status4(), fourth.status4()), (None, Some(Nfsstat4::NoEnt)));
    }

    #[test]
    fn a_status_without_a_kind_keeps_its_text_and_number() {
        let error = Error::of_status(Nfsstat4::BadStateid, "READ");
        assert_eq!(error.status(), Some(Status::Other));
        assert_eq!(error.peer_status().unwrap().number(), Nfsstat4::BadStateid as u32);
        assert!(error.to_string().starts_with(&Nfsstat4::BadStateid.to_string()), "{error}");
    }
}
