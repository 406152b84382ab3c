//! [`Meta`]: the attributes of an object, local or remote.

use client::{Attr, FileKind};
use rustix::fs::{FileType, Stat, Timespec};
use serde::Serialize;

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A block device.
    Block,
    /// A character device.
    Char,
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
}

impl Kind {
    /// Returns the letter of the type in `ls -l`.
    pub fn letter(self) -> char {
        match self {
            Kind::File => '-',
            Kind::Dir => 'd',
            Kind::Symlink => 'l',
            Kind::Block => 'b',
            Kind::Char => 'c',
            Kind::Socket => 's',
            Kind::Fifo => 'p',
        }
    }

    /// Returns the name of the type for messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::File => "regular file",
            Kind::Dir => "directory",
            Kind::Symlink => "symbolic link",
            Kind::Block => "block device",
            Kind::Char => "character device",
            Kind::Socket => "socket",
            Kind::Fifo => "named pipe",
        }
    }
}

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds below a second.
    pub nanoseconds: u32,
}

/// Attributes of a local or remote object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The type of the object.
    pub kind: Kind,
    /// The 12 permission bits.
    pub mode: u32,
    /// The number of names (hard links).
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The bytes of storage; less than `size` if there are holes.
    pub used: u64,
    /// The major and minor number of a device.
    pub device: (u32, u32),
    /// The file system and the inode number in it. They are equal for two names of one object on the same host, and
    /// differ for different objects. `None` if the server reports no inode number.
    pub id: Option<(u64, u64)>,
    /// The time of the last read.
    pub atime: Time,
    /// The time of the last write.
    pub mtime: Time,
    /// The time of the last change of the object or its attributes.
    pub ctime: Time,
}

impl Meta {
    /// Returns `true` if the file can have holes.
    pub fn is_sparse(&self) -> bool {
        self.kind == Kind::File && self.used < self.size
    }
}

impl From<&Attr> for Meta {
    fn from(attr: &Attr) -> Self {
        let time = |time: client::Time| Time { seconds: time.seconds, nanoseconds: time.nseconds };
        Self {
            kind: match attr.kind {
                FileKind::Reg => Kind::File,
                FileKind::Dir => Kind::Dir,
                FileKind::Blk => Kind::Block,
                FileKind::Chr => Kind::Char,
                FileKind::Lnk => Kind::Symlink,
                FileKind::Sock => Kind::Socket,
                FileKind::Fifo => Kind::Fifo,
            },
            mode: attr.mode & 0o7777,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            used: attr.used,
            device: (attr.rdev.major, attr.rdev.minor),
            id: attr.identity(),
            atime: time(attr.atime),
            mtime: time(attr.mtime),
            ctime: time(attr.ctime),
        }
    }
}

impl From<&Stat> for Meta {
    fn from(stat: &Stat) -> Self {
        let time = |seconds: i64, nanoseconds: u64| Time { seconds, nanoseconds: nanoseconds as u32 };
        Self {
            kind: match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => Kind::Dir,
                FileType::Symlink => Kind::Symlink,
                FileType::BlockDevice => Kind::Block,
                FileType::CharacterDevice => Kind::Char,
                FileType::Socket => Kind::Socket,
                FileType::Fifo => Kind::Fifo,
                FileType::RegularFile | FileType::Unknown => Kind::File,
            },
            mode: stat.st_mode & 0o7777,
            nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size as u64,
            used: stat.st_blocks as u64 * 512,
            device: (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)),
            id: Some((stat.st_dev, stat.st_ino)),
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

impl From<Time> for Timespec {
    fn from(time: Time) -> Self {
        Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
    }
}
