//! The vocabulary of a [`Mount`](crate::Mount): what all versions of NFS say of objects, in types of none of them.
//!
//! Statuses are those of NFSv3, which every version has with the same numbers; see [`ErrorKind`](crate::ErrorKind) for
//! the others. [`StableHow`] and the bits of ACCESS (`ACCESS3_…`) are the same in all versions too.

use buf::Rope;
use bytes::Bytes;
use xdr::Opaque;

pub use nfs::v3::StableHow;

/// A file handle: opaque, and up to 128 bytes (RFC 8881 §3.3).
pub type Handle = Opaque<{ nfs::v4::FHSIZE4 }>;

/// What changes when a server may have lost what was not committed, and what goes with the cookies of a directory.
pub type Verifier = [u8; 8];

/// What an object is.
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
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, below 10⁹ if the server makes sense.
    pub nseconds: u32,
}

/// Attributes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Names it has.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes of storage.
    pub used: u64,
    /// Of a device.
    pub rdev: Device,
    /// The file system; of version 4, both halves of its number in one.
    pub fsid: u64,
    /// The number of the object in its file system; 0 if the server does not say it.
    pub fileid: u64,
    /// Last read.
    pub atime: Time,
    /// Last write.
    pub mtime: Time,
    /// Last change.
    pub ctime: Time,
}

impl Attr {
    /// The file system and the number of the object in it, which are those of no other object of the server; `None` if the server
    /// does not say the number.
    pub fn identity(&self) -> Option<(u64, u64)> {
        (self.fileid != 0).then_some((self.fsid, self.fileid))
    }

    /// Of an object of which nothing but the kind matters.
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

/// To what a time is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// It is left.
    #[default]
    DontChange,
    /// The server's time.
    ToServerTime,
    /// This. Version 3 counts seconds in 32 bits: earlier and later times become its first and last.
    ToClientTime(Time),
}

/// Attributes to be set; those that are `None` are left, or the server's choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last read.
    pub atime: SetTime,
    /// Last write.
    pub mtime: SetTime,
}

impl SetAttr {
    /// The same with both times, now if it says nothing else: a server may have kept a verifier in them.
    pub(crate) fn with_times(self) -> Self {
        let now = |time| if time == SetTime::DontChange { SetTime::ToServerTime } else { time };
        Self { atime: now(self.atime), mtime: now(self.mtime), ..self }
    }
}

/// How to make a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// One that is there is taken, and of the attributes only the size is set.
    Unchecked(SetAttr),
    /// One that is there is an error.
    Guarded(SetAttr),
    /// So too; and it is decided exactly once, by this verifier, however often the call travels.
    Exclusive(Verifier, SetAttr),
}

/// An object that is neither file, directory nor link.
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

/// An object that was found or made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes, if the server has said them.
    pub attr: Option<Attr>,
}

/// What was read.
#[derive(Debug)]
pub struct ReadData {
    /// The bytes, in the memory that the transport received them into.
    pub data: Rope,
    /// Whether they reach the end of the file.
    pub eof: bool,
    /// The size of the file, if the server has said it.
    pub size: Option<u64>,
}

/// What was read into the caller's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadInfo {
    /// Bytes in the buffer.
    pub len: usize,
    /// Whether they reach the end of the file.
    pub eof: bool,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes, from the first.
    pub count: u32,
    /// How durable they are.
    pub committed: StableHow,
    /// To be compared with what COMMIT returns.
    pub verf: Verifier,
}

/// An entry of a directory, as the server lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the object in its file system.
    pub fileid: u64,
    /// Its name.
    pub name: Bytes,
    /// Continues behind this entry.
    pub cookie: u64,
    /// The object's attributes, if the server gave them.
    pub attr: Option<Attr>,
    /// The object's handle, if the server gave it.
    pub handle: Option<Handle>,
}

/// A part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Goes with the cookies.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether none follow.
    pub eof: bool,
}

/// Space and objects of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStat {
    /// Bytes in all.
    pub tbytes: u64,
    /// Bytes free.
    pub fbytes: u64,
    /// Bytes free for the caller.
    pub abytes: u64,
    /// Objects in all.
    pub tfiles: u64,
    /// Objects free.
    pub ffiles: u64,
    /// Objects free for the caller.
    pub afiles: u64,
}

/// Limits of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConf {
    /// Most names of an object.
    pub linkmax: u32,
    /// Most bytes of a name.
    pub name_max: u32,
    /// Whether a longer name is an error, rather than cut.
    pub no_trunc: bool,
    /// Whether only a privileged user may give files away.
    pub chown_restricted: bool,
    /// Whether case is ignored in names.
    pub case_insensitive: bool,
    /// Whether case is kept in names.
    pub case_preserving: bool,
}
