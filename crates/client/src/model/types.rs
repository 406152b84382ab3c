//! The types of a [`Mount`](crate::Mount) that do not depend on the version of NFS.
//!
//! [`StableHow`] and the bits of ACCESS (`ACCESS3_…`) are those of NFSv3, because they are the same in all versions.

use buf::Rope;
use bytes::Bytes;
use xdr::Opaque;

pub use nfs::v3::StableHow;

/// A file handle: opaque, up to 128 bytes (RFC 8881 §3.3).
pub type Handle = Opaque<{ nfs::v4::FHSIZE4 }>;

/// A value by which the client detects changes at the server. The verifier of a WRITE changes when the server may have
/// lost uncommitted data. The verifier of a directory is sent together with its cookies.
pub type Verifier = [u8; 8];

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file.
    Reg,
    /// Directory.
    Dir,
    /// Block device.
    Blk,
    /// Character device.
    Chr,
    /// Symbolic link.
    Lnk,
    /// Socket.
    Sock,
    /// Named pipe.
    Fifo,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

/// Seconds and nanoseconds since 1970-01-01.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds. Servers send values below 10⁹.
    pub nseconds: u32,
}

/// The attributes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The type of the object.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// The number of hard links.
    pub nlink: u32,
    /// The user ID of the owner.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The bytes of storage in use.
    pub used: u64,
    /// The device number, if the object is a device.
    pub rdev: Device,
    /// The ID of the file system. For NFSv4, it combines both halves of the ID.
    pub fsid: u64,
    /// The number of the object in its file system; 0 if the server does not send it.
    pub fileid: u64,
    /// The time of the last read.
    pub atime: Time,
    /// The time of the last write.
    pub mtime: Time,
    /// The time of the last change of the attributes.
    pub ctime: Time,
}

impl Attr {
    /// Returns the ID of the file system and the number of the object in it, which together identify the object at its
    /// server. Returns `None` if the server does not send the number.
    pub fn identity(&self) -> Option<(u64, u64)> {
        (self.fileid != 0).then_some((self.fsid, self.fileid))
    }

    /// Returns attributes for tests in which only the type matters.
    #[cfg(test)]
    pub(crate) fn of(kind: FileKind) -> Self {
        Self {
            kind,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            rdev: Device::default(),
            fsid: 0,
            fileid: 0,
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
        }
    }
}

/// A change of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// The time is unchanged.
    #[default]
    DontChange,
    /// The time is set to the server's time.
    ToServerTime,
    /// The time is set to this value. NFSv3 has 32 bits for the seconds, so values outside of its range are clamped.
    ToClientTime(Time),
}

/// Attributes to set. The server leaves or chooses those that are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// The user ID of the owner.
    pub uid: Option<u32>,
    /// The group ID.
    pub gid: Option<u32>,
    /// The size in bytes.
    pub size: Option<u64>,
    /// The time of the last read.
    pub atime: SetTime,
    /// The time of the last write.
    pub mtime: SetTime,
}

impl SetAttr {
    /// Sets both times to the server's time unless they have a value, because the server may have stored a verifier in
    /// them.
    pub(crate) fn with_times(self) -> Self {
        let now = |time| if time == SetTime::DontChange { SetTime::ToServerTime } else { time };
        Self { atime: now(self.atime), mtime: now(self.mtime), ..self }
    }
}

/// The way to create a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// An existing file is opened, and only the size of the attributes is set.
    Unchecked(SetAttr),
    /// An existing file is an error.
    Guarded(SetAttr),
    /// An existing file is an error. The verifier lets the server recognize a retransmission, so the file is created
    /// exactly once.
    Exclusive(Verifier, SetAttr),
}

/// A special object: neither file, directory nor symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A block device.
    Blk(Device),
    /// A character device.
    Chr(Device),
    /// A socket.
    Sock,
    /// A named pipe.
    Fifo,
}

/// An object that was found or created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The handle.
    pub handle: Handle,
    /// The attributes, if the server has sent them.
    pub attr: Option<Attr>,
}

/// The result of a READ.
#[derive(Debug)]
pub struct ReadData {
    /// The data, in the memory into which the transport received them.
    pub data: Rope,
    /// Set if the data reach the end of the file.
    pub eof: bool,
    /// The size of the file in bytes, if the server has sent it.
    pub size: Option<u64>,
}

/// The result of a READ into the caller's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadInfo {
    /// The number of bytes in the buffer.
    pub len: usize,
    /// Set if the data reach the end of the file.
    pub eof: bool,
}

/// The result of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The number of bytes written, from the first.
    pub count: u32,
    /// The durability of the data.
    pub committed: StableHow,
    /// The verifier to compare with the one that COMMIT returns.
    pub verf: Verifier,
}

/// An entry of a directory from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the object in its file system.
    pub fileid: u64,
    /// The name.
    pub name: Bytes,
    /// The cookie after which the next READDIR continues.
    pub cookie: u64,
    /// The attributes of the object, if the server has sent them.
    pub attr: Option<Attr>,
    /// The handle of the object, if the server has sent it.
    pub handle: Option<Handle>,
}

/// A part of the entries of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The verifier to send with the cookies.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<Entry>,
    /// Set if this part ends the directory.
    pub eof: bool,
}

/// The space and the number of objects of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStat {
    /// Total bytes.
    pub tbytes: u64,
    /// Free bytes.
    pub fbytes: u64,
    /// Free bytes that the caller can use.
    pub abytes: u64,
    /// Total objects.
    pub tfiles: u64,
    /// Free objects.
    pub ffiles: u64,
    /// Free objects that the caller can create.
    pub afiles: u64,
}

/// The limits of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConf {
    /// Maximum number of hard links of an object.
    pub linkmax: u32,
    /// Maximum bytes of a name.
    pub name_max: u32,
    /// Set if a longer name is an error; otherwise it is truncated.
    pub no_trunc: bool,
    /// Set if only a privileged user may change the owner of an object.
    pub chown_restricted: bool,
    /// Set if names are compared without regard to case.
    pub case_insensitive: bool,
    /// Set if names keep their case.
    pub case_preserving: bool,
}
