//! [`Error`]: the failure of an operation, with the operation, the server and the path.

use std::{fmt, io, sync::Arc, time::Duration};

use bytes::Bytes;
use nfs::v4::Nfsstat4;

use super::{PeerStatus, Status, UrlError};

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// The failure of an operation. It is cheap to clone and to move.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    /// The status that the server sent.
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
    /// The server did not answer within the deadline.
    Timeout {
        /// The timeout of the call.
        after: Duration,
        /// The last failure of the connection, if there was one.
        last: Option<rpc::TransportError>,
    },
    /// The call was not executed, or its reply could not be received.
    Rpc(rpc::ClientError),
    /// The server's reply is invalid, so the server is broken or hostile.
    Protocol(String),
    /// The URL or an option in it is invalid.
    Url(UrlError),
    /// The host name could not be resolved.
    Resolve(String),
    /// The file system is on other servers, and none of them can be reached. The text has the reason for each.
    Referral(String),
    /// The file system has moved to another server, and the object is not found there. The text has the reason.
    Moved(String),
    /// The export does not accept the security flavour of the mount. The text names those that it accepts.
    Flavor(String),
    /// The client cannot use a lock manager of the server (NLM). The text has the reason.
    LockManager(String),
    /// The path cannot be followed, because it has too many symbolic links or does not end in a name.
    Path(&'static str),
    /// The arguments of the caller are invalid.
    Invalid(&'static str),
    /// The device failed to copy data into its memory. The text has the reason.
    Device(String),
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self(Box::new(Inner { kind, peer_status: None, operation, server: None, path: None }))
    }

    /// Returns the error of a status that the server has sent.
    pub(crate) fn of_status(status: impl Into<PeerStatus>, operation: &'static str) -> Self {
        let status = status.into();
        let mut error = Self::refused(status.into(), operation);
        error.0.peer_status = Some(status);
        error
    }

    /// Returns the error of an operation that the client itself refuses.
    pub(crate) fn refused(status: Status, operation: &'static str) -> Self {
        Self::new(ErrorKind::Status(status), operation)
    }

    /// Adds the server's name, unless the error has one.
    pub(crate) fn on(mut self, server: &Arc<str>) -> Self {
        self.0.server.get_or_insert_with(|| server.clone());
        self
    }

    /// Adds the path, unless the error has one.
    pub(crate) fn at(mut self, path: impl AsRef<[u8]>) -> Self {
        self.0.path.get_or_insert_with(|| Bytes::copy_from_slice(path.as_ref()));
        self
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Returns the name of the procedure as in its RFC, or of the step that failed.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// Returns the path that the operation was about, if there was one.
    pub fn path(&self) -> Option<&Bytes> {
        self.0.path.as_ref()
    }

    /// Returns the reason for which the operation was refused, if there was a status.
    pub fn status(&self) -> Option<Status> {
        if let ErrorKind::Status(status) = self.0.kind { Some(status) } else { None }
    }

    /// Returns the status that the server sent, for messages.
    pub fn peer_status(&self) -> Option<PeerStatus> {
        self.0.peer_status
    }

    /// Returns the status that a server of NFSv4 sent.
    pub(crate) fn status4(&self) -> Option<Nfsstat4> {
        self.0.peer_status.and_then(|status| status.v4())
    }

    /// Returns `true` if the server asks to retry later.
    pub(crate) fn is_later(&self) -> bool {
        matches!(self.status(), Some(Status::Delayed | Status::Grace))
    }

    /// Returns `true` if the server did not answer. A later call can succeed.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.kind(), ErrorKind::Timeout { .. } | ErrorKind::Rpc(rpc::ClientError::Transport(_)))
    }

    /// Returns `true` if the connection was lost before the reply was received.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.kind(), ErrorKind::Rpc(rpc::ClientError::Transport(rpc::TransportError::Lost(_))))
    }

    /// Returns `true` if the user and the server could not authenticate each other.
    pub(crate) fn is_security(&self) -> bool {
        matches!(self.kind(), ErrorKind::Rpc(rpc::ClientError::Security(_)))
    }

    /// Returns `true` if a reply was received that cannot be decoded. Linux's server (6.1) omits results or parts of
    /// them if the reply to a compound exceeds its limit. Several smaller requests can succeed instead of the one that
    /// failed.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Protocol(_))
    }

    /// Returns `true` if the object or path does not exist.
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
            ErrorKind::Protocol(problem) => write!(f, "the server's reply is invalid: {problem}"),
            ErrorKind::Url(error) => write!(f, "{error}"),
            ErrorKind::Resolve(problem) => write!(f, "the host name cannot be resolved: {problem}"),
            ErrorKind::Referral(why) => {
                write!(f, "the file system is on other servers, which cannot be reached: {why}")
            }
            ErrorKind::Moved(why) => write!(f, "the file system has moved to another server: {why}"),
            ErrorKind::Flavor(problem) | ErrorKind::LockManager(problem) => f.write_str(problem),
            ErrorKind::Path(problem) | ErrorKind::Invalid(problem) => f.write_str(problem),
            ErrorKind::Device(problem) => write!(f, "copying to device memory failed: {problem}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<UrlError> for Error {
    fn from(error: UrlError) -> Self {
        Error::new(ErrorKind::Url(error), "parse")
    }
}

/// Keeps the whole text and maps the kind to the nearest one of `std`.
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
            ErrorKind::Flavor(_) => Io::PermissionDenied,
            ErrorKind::LockManager(_) => Io::Unsupported,
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
    fn statuses_of_both_versions_map_to_one_kind() {
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
    fn unmapped_status_keeps_text_and_number() {
        let error = Error::of_status(Nfsstat4::BadStateid, "READ");
        assert_eq!(error.status(), Some(Status::Other));
        assert_eq!(error.peer_status().unwrap().number(), Nfsstat4::BadStateid as u32);
        assert!(error.to_string().starts_with(&Nfsstat4::BadStateid.to_string()), "{error}");
    }
}
