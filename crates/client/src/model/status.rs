//! [`Status`]: one set of status codes for all versions of NFS, for MOUNT and for NLM.

use std::fmt;

use nfs::{mount::Mountstat3, nlm::Nlm4Stats, v3::Nfsstat3, v4::Nfsstat4};

/// The reason for which the server, or the client on its behalf, refused an operation.
///
/// No version of NFS has all of these. [`Error::peer_status`](super::Error::peer_status) is the status that the server
/// sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// The caller is neither the owner nor privileged.
    NotPermitted,
    /// The object does not exist.
    NotFound,
    /// The server's storage failed.
    Io,
    /// The device of a special file does not exist.
    NoDeviceOrAddress,
    /// The server has no such device.
    NoDevice,
    /// The permissions of the object deny it.
    AccessDenied,
    /// An object with this name already exists.
    AlreadyExists,
    /// The objects are in different file systems, or on different servers.
    CrossDevice,
    /// The object is not a directory.
    NotADirectory,
    /// The object is a directory.
    IsADirectory,
    /// An argument is invalid.
    InvalidArgument,
    /// The file would be larger than the server allows.
    FileTooLarge,
    /// The file system is full.
    NoSpace,
    /// The file system is read-only.
    ReadOnly,
    /// The object has too many hard links.
    TooManyLinks,
    /// The name is too long.
    NameTooLong,
    /// The name is empty or has characters that the server does not accept.
    InvalidName,
    /// The directory is not empty.
    NotEmpty,
    /// The quota of the user is exceeded.
    QuotaExceeded,
    /// The file handle refers to an object that does not exist any more.
    StaleHandle,
    /// The file handle is malformed.
    BadHandle,
    /// The cookie of a directory is stale.
    BadCookie,
    /// The server does not implement the operation.
    NotSupported,
    /// The buffer for the reply is too small.
    TooSmall,
    /// The server failed for an unknown reason.
    ServerFault,
    /// The server does not support objects of this type.
    BadType,
    /// The object was changed after its attributes were read.
    NotSynchronized,
    /// The server asks to retry later.
    Delayed,
    /// The server is in its grace period.
    Grace,
    /// The file system is on another server.
    Absent,
    /// The object is a symbolic link.
    SymbolicLink,
    /// The object has the wrong type for the operation.
    WrongType,
    /// Another owner holds a conflicting lock.
    LockDenied,
    /// A mandatory lock on the file prevents the operation.
    FileLocked,
    /// Another open of the file denies this access.
    ShareDenied,
    /// Waiting for the lock would cause a deadlock.
    Deadlock,
    /// The server cannot lock this range.
    InvalidRange,
    /// The server does not support this kind of lock, or not for this file or caller.
    LocksNotSupported,
    /// The server has too few resources for another lock.
    NoLocks,
    /// The file is not open for this access.
    OpenMode,
    /// The server does not accept the security flavour.
    WrongSecurity,
    /// The extended attribute does not exist.
    NoAttribute,
    /// The extended attribute is too large.
    AttributeTooLarge,
    /// Another status, which [`Error::peer_status`](super::Error::peer_status) returns.
    Other,
}

/// A status that a server sent, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus(Source);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    V3(Nfsstat3),
    V4(Nfsstat4),
    Mount(Mountstat3),
    Nlm(Nlm4Stats),
}

impl PeerStatus {
    /// Returns the number of the status in its protocol.
    pub fn number(&self) -> u32 {
        match self.0 {
            Source::V3(status) => status as u32,
            Source::V4(status) => status as u32,
            Source::Mount(status) => status as u32,
            Source::Nlm(status) => status as u32,
        }
    }

    /// Returns the name of the protocol that defines the number.
    pub fn protocol(&self) -> &'static str {
        match self.0 {
            Source::V3(_) => "NFS version 3",
            Source::V4(_) => "NFS version 4",
            Source::Mount(_) => "MOUNT",
            Source::Nlm(_) => "NLM version 4",
        }
    }

    pub(crate) fn v4(&self) -> Option<Nfsstat4> {
        if let Source::V4(status) = self.0 { Some(status) } else { None }
    }
}

/// Writes the meaning of the status.
impl fmt::Display for PeerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Source::V3(status) => write!(f, "{status}"),
            Source::V4(status) => write!(f, "{status}"),
            Source::Mount(status) => f.write_str(match status {
                Mountstat3::Ok => "OK",
                Mountstat3::Perm => "operation not permitted: the server does not allow this client to mount the path",
                Mountstat3::NoEnt => "no such path on the server",
                Mountstat3::Io => "input/output error on the server",
                Mountstat3::Acces => "the server does not export the path to this client",
                Mountstat3::NotDir => "not a directory on the server",
                Mountstat3::Inval => "the server rejects the request as invalid",
                Mountstat3::NameTooLong => "path too long for the server",
                Mountstat3::NotSupp => "not supported by the server",
                Mountstat3::ServerFault => "server fault",
            }),
            Source::Nlm(status) => f.write_str(match status {
                Nlm4Stats::Granted => "granted",
                Nlm4Stats::Denied | Nlm4Stats::Blocked => "another owner holds a conflicting lock",
                Nlm4Stats::DeniedNoLocks => "the server has too few resources for another lock",
                Nlm4Stats::DeniedGracePeriod => "the server is in its grace period",
                Nlm4Stats::Deadlck => "deadlock",
                Nlm4Stats::RoFs => "read-only file system",
                Nlm4Stats::StaleFh => "stale file handle",
                Nlm4Stats::FBig => "lock range not supported",
                Nlm4Stats::Failed => "the server does not lock this file for this caller",
            }),
        }
    }
}

impl From<Nfsstat3> for PeerStatus {
    fn from(status: Nfsstat3) -> Self {
        Self(Source::V3(status))
    }
}

impl From<Nfsstat4> for PeerStatus {
    fn from(status: Nfsstat4) -> Self {
        Self(Source::V4(status))
    }
}

impl From<Mountstat3> for PeerStatus {
    fn from(status: Mountstat3) -> Self {
        Self(Source::Mount(status))
    }
}

impl From<Nlm4Stats> for PeerStatus {
    fn from(status: Nlm4Stats) -> Self {
        Self(Source::Nlm(status))
    }
}

impl From<PeerStatus> for Status {
    fn from(status: PeerStatus) -> Self {
        match status.0 {
            Source::V3(status) => of_v3(status),
            Source::V4(status) => of_v4(status),
            Source::Mount(status) => of_mount(status),
            Source::Nlm(status) => of_nlm(status),
        }
    }
}

fn of_v3(status: Nfsstat3) -> Status {
    match status {
        Nfsstat3::Perm => Status::NotPermitted,
        Nfsstat3::NoEnt => Status::NotFound,
        Nfsstat3::Io => Status::Io,
        Nfsstat3::NxIo => Status::NoDeviceOrAddress,
        Nfsstat3::Acces => Status::AccessDenied,
        Nfsstat3::Exist => Status::AlreadyExists,
        Nfsstat3::XDev => Status::CrossDevice,
        Nfsstat3::NoDev => Status::NoDevice,
        Nfsstat3::NotDir => Status::NotADirectory,
        Nfsstat3::IsDir => Status::IsADirectory,
        Nfsstat3::Inval => Status::InvalidArgument,
        Nfsstat3::FBig => Status::FileTooLarge,
        Nfsstat3::NoSpc => Status::NoSpace,
        Nfsstat3::RoFs => Status::ReadOnly,
        Nfsstat3::MLink => Status::TooManyLinks,
        Nfsstat3::NameTooLong => Status::NameTooLong,
        Nfsstat3::NotEmpty => Status::NotEmpty,
        Nfsstat3::DQuot => Status::QuotaExceeded,
        Nfsstat3::Stale => Status::StaleHandle,
        Nfsstat3::BadHandle => Status::BadHandle,
        Nfsstat3::NotSync => Status::NotSynchronized,
        Nfsstat3::BadCookie => Status::BadCookie,
        Nfsstat3::NotSupp => Status::NotSupported,
        Nfsstat3::TooSmall => Status::TooSmall,
        Nfsstat3::ServerFault => Status::ServerFault,
        Nfsstat3::BadType => Status::BadType,
        Nfsstat3::Jukebox => Status::Delayed,
        Nfsstat3::Ok | Nfsstat3::Remote => Status::Other,
    }
}

fn of_v4(status: Nfsstat4) -> Status {
    match status {
        Nfsstat4::Perm => Status::NotPermitted,
        Nfsstat4::NoEnt => Status::NotFound,
        Nfsstat4::Io => Status::Io,
        Nfsstat4::NxIo => Status::NoDeviceOrAddress,
        Nfsstat4::Access => Status::AccessDenied,
        Nfsstat4::Exist => Status::AlreadyExists,
        Nfsstat4::XDev => Status::CrossDevice,
        Nfsstat4::NotDir => Status::NotADirectory,
        Nfsstat4::IsDir => Status::IsADirectory,
        Nfsstat4::Inval => Status::InvalidArgument,
        Nfsstat4::FBig => Status::FileTooLarge,
        Nfsstat4::NoSpc => Status::NoSpace,
        Nfsstat4::RoFs => Status::ReadOnly,
        Nfsstat4::MLink => Status::TooManyLinks,
        Nfsstat4::NameTooLong => Status::NameTooLong,
        Nfsstat4::BadName | Nfsstat4::BadChar => Status::InvalidName,
        Nfsstat4::NotEmpty => Status::NotEmpty,
        Nfsstat4::DQuot => Status::QuotaExceeded,
        Nfsstat4::Stale => Status::StaleHandle,
        Nfsstat4::BadHandle => Status::BadHandle,
        Nfsstat4::BadCookie => Status::BadCookie,
        // OP_ILLEGAL: the minor version has no such operation.
        Nfsstat4::NotSupp | Nfsstat4::OpIllegal => Status::NotSupported,
        Nfsstat4::TooSmall => Status::TooSmall,
        Nfsstat4::ServerFault => Status::ServerFault,
        Nfsstat4::BadType => Status::BadType,
        Nfsstat4::Delay => Status::Delayed,
        Nfsstat4::Grace => Status::Grace,
        Nfsstat4::Moved => Status::Absent,
        Nfsstat4::Symlink => Status::SymbolicLink,
        Nfsstat4::WrongType => Status::WrongType,
        Nfsstat4::Denied => Status::LockDenied,
        Nfsstat4::Locked => Status::FileLocked,
        Nfsstat4::ShareDenied => Status::ShareDenied,
        Nfsstat4::Deadlock => Status::Deadlock,
        Nfsstat4::LockRange | Nfsstat4::BadRange => Status::InvalidRange,
        Nfsstat4::LockNotSupp => Status::LocksNotSupported,
        Nfsstat4::OpenMode => Status::OpenMode,
        Nfsstat4::WrongSec => Status::WrongSecurity,
        Nfsstat4::NoXattr => Status::NoAttribute,
        Nfsstat4::Xattr2Big => Status::AttributeTooLarge,
        _ => Status::Other,
    }
}

fn of_mount(status: Mountstat3) -> Status {
    match status {
        Mountstat3::Perm => Status::NotPermitted,
        Mountstat3::NoEnt => Status::NotFound,
        Mountstat3::Io => Status::Io,
        Mountstat3::Acces => Status::AccessDenied,
        Mountstat3::NotDir => Status::NotADirectory,
        Mountstat3::Inval => Status::InvalidArgument,
        Mountstat3::NameTooLong => Status::NameTooLong,
        Mountstat3::NotSupp => Status::NotSupported,
        Mountstat3::ServerFault => Status::ServerFault,
        Mountstat3::Ok => Status::Other,
    }
}

fn of_nlm(status: Nlm4Stats) -> Status {
    match status {
        Nlm4Stats::Denied | Nlm4Stats::Blocked => Status::LockDenied,
        Nlm4Stats::DeniedNoLocks => Status::NoLocks,
        Nlm4Stats::DeniedGracePeriod => Status::Grace,
        Nlm4Stats::Deadlck => Status::Deadlock,
        Nlm4Stats::RoFs => Status::ReadOnly,
        Nlm4Stats::StaleFh => Status::StaleHandle,
        Nlm4Stats::FBig => Status::InvalidRange,
        Nlm4Stats::Failed => Status::LocksNotSupported,
        Nlm4Stats::Granted => Status::Other,
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::NotPermitted => "operation not permitted",
            Status::NotFound => "no such file or directory",
            Status::Io => "input/output error",
            Status::NoDeviceOrAddress => "no such device or address",
            Status::NoDevice => "no such device",
            Status::AccessDenied => "permission denied",
            Status::AlreadyExists => "file exists",
            Status::CrossDevice => "cross-device link",
            Status::NotADirectory => "not a directory",
            Status::IsADirectory => "is a directory",
            Status::InvalidArgument => "invalid argument",
            Status::FileTooLarge => "file too large",
            Status::NoSpace => "no space left on device",
            Status::ReadOnly => "read-only file system",
            Status::TooManyLinks => "too many hard links",
            Status::NameTooLong => "file name too long",
            Status::InvalidName => "invalid file name",
            Status::NotEmpty => "directory not empty",
            Status::QuotaExceeded => "disk quota exceeded",
            Status::StaleHandle => "stale file handle",
            Status::BadHandle => "illegal NFS file handle",
            Status::BadCookie => "stale READDIR cookie",
            Status::NotSupported => "operation not supported",
            Status::TooSmall => "buffer or request too small",
            Status::ServerFault => "server fault",
            Status::BadType => "unsupported type",
            Status::NotSynchronized => "update synchronization mismatch",
            Status::Delayed => "delayed; try again",
            Status::Grace => "server is in its grace period",
            Status::Absent => "file system is on another server",
            Status::SymbolicLink => "is a symbolic link",
            Status::WrongType => "wrong type of object",
            Status::LockDenied => "lock unavailable",
            Status::FileLocked => "file is locked",
            Status::ShareDenied => "share reservation conflict",
            Status::Deadlock => "deadlock",
            Status::InvalidRange => "lock range not supported",
            Status::LocksNotSupported => "lock not supported",
            Status::NoLocks => "no locks available",
            Status::OpenMode => "file is not open for this access",
            Status::WrongSecurity => "wrong security flavour",
            Status::NoAttribute => "no such extended attribute",
            Status::AttributeTooLarge => "extended attribute too large",
            Status::Other => "other server error",
        })
    }
}
