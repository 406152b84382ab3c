//! The formats of FUSE's requests and replies. No I/O.
//!
//! Read `include/uapi/linux/fuse.h` of Linux first: protocol 7.40, of which this is the part that a network file system
//! needs. All numbers are in the machine's byte order. A request is decoded field by field, so a request that is too
//! short is an error and not a panic. A reply is one `Vec` that starts with room for its header.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, time::Duration};

use client::Time;
use rustix::io::Errno;

/// The header of every request (`fuse_in_header`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The operation: one of [`op`].
    pub opcode: u32,
    /// The number of the request and its reply.
    pub unique: u64,
    /// The number of the object.
    pub ino: u64,
    /// The caller's user, for checks of files.
    pub uid: u32,
    /// The caller's group, for checks of files.
    pub gid: u32,
    /// The calling thread; 0 if it is in another PID namespace or belongs to the kernel.
    pub pid: u32,
}

/// The undecoded rest of a request.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a>(&'a [u8]);

/// Attributes of an object, as programs see them (`fuse_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The kernel's number of the object.
    pub node: u64,
    /// The inode number that programs see.
    pub ino: u64,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// The type of the object and its permission bits, as in stat(2).
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
}

/// A reply or notification. Its header is written last.
#[derive(Debug)]
pub struct Out(Vec<u8>);

/// The negotiated features (`fuse_init_out`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    pub minor: u32,
    pub flags: u64,
}

/// The entries of a directory that fit in the kernel's buffer.
#[derive(Debug)]
pub struct Listed {
    out: Out,
    room: usize,
}

impl Header {
    /// Decodes the header of a message; `None` if it is too short.
    pub fn decode(message: &[u8]) -> Option<Self> {
        let mut fields = Arguments(message.get(..HEADER)?);
        let mut decode = || -> Result<Self, Errno> {
            let (_len, opcode) = (fields.u32()?, fields.u32()?);
            let (unique, ino) = (fields.u64()?, fields.u64()?);
            Ok(Self { opcode, unique, ino, uid: fields.u32()?, gid: fields.u32()?, pid: fields.u32()? })
        };
        decode().ok()
    }
}

impl<'a> Arguments<'a> {
    /// Creates arguments from the bytes after the header.
    pub fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    pub fn i32(&mut self) -> Result<i32, Errno> {
        self.take().map(i32::from_ne_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, Errno> {
        self.take().map(i64::from_ne_bytes)
    }

    /// Skips a field of four bytes.
    pub fn skip(&mut self) -> Result<(), Errno> {
        self.u32().map(drop)
    }

    /// Decodes a name, which ends with a zero byte.
    pub fn name(&mut self) -> Result<&'a OsStr, Errno> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Errno::INVAL)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(OsStr::from_bytes(name))
    }

    /// Decodes `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(bytes)
    }
}

impl Out {
    /// Creates a reply that has only room for its header.
    pub fn new() -> Self {
        Self(vec![0; OUT_HEADER])
    }

    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// Appends `fuse_attr`.
    fn attributes(self, attr: &Attributes) -> Self {
        // Seconds before 1970 are encoded in unsigned 64 bits, which the kernel interprets as signed.
        let times = [attr.atime, attr.mtime, attr.ctime];
        let nanoseconds = times.map(|time| time.nseconds.min(999_999_999));
        let out = [attr.ino, attr.size, attr.blocks].into_iter().fold(self, Self::u64);
        let out = times.iter().fold(out, |out, time| out.u64(time.seconds as u64));
        let rest = [attr.mode, attr.nlink, attr.uid, attr.gid, attr.rdev, attr.blksize, 0];
        nanoseconds.into_iter().chain(rest).fold(out, Self::u32)
    }

    /// Appends `fuse_entry_out`: an object that the kernel receives, with the times for which it can cache name and
    /// attributes. `ino` is 0 if there is no object.
    pub fn entry(self, ino: u64, attr: &Attributes, name_ttl: Duration, attr_ttl: Duration) -> Self {
        let generation = 0;
        let out = [ino, generation, name_ttl.as_secs(), attr_ttl.as_secs()].into_iter().fold(self, Self::u64);
        out.u32(name_ttl.subsec_nanos()).u32(attr_ttl.subsec_nanos()).attributes(attr)
    }

    /// Appends `fuse_entry_out` of a name without an object, which the kernel can cache for this time.
    pub fn no_entry(self, ttl: Duration) -> Self {
        let out = [0, 0, ttl.as_secs(), 0].into_iter().fold(self, Self::u64);
        out.u32(ttl.subsec_nanos()).u32(0).zeros(ENTRY - 40)
    }

    /// Appends `fuse_attr_out`.
    pub fn attr(self, attr: &Attributes, ttl: Duration) -> Self {
        self.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0).attributes(attr)
    }

    /// Appends `fuse_open_out`. `backing` is the number of a file that is registered with the kernel, or 0.
    pub fn open(self, number: u64, flags: u32, backing: i32) -> Self {
        self.u64(number).u32(flags).u32(backing as u32)
    }

    /// Appends `fuse_kstatfs`: blocks, free, available, files, free files.
    pub fn statfs(self, counts: [u64; 5], block: u32, name_max: u32) -> Self {
        let out = counts.into_iter().fold(self, Self::u64);
        out.u32(block).u32(name_max).u32(block).zeros(28)
    }

    /// Appends `fuse_file_lock`.
    pub fn lock(self, start: u64, end: u64, kind: i32) -> Self {
        self.u64(start).u64(end).u32(kind as u32).u32(0)
    }

    /// Appends `fuse_init_out`.
    pub fn init(self, init: Init) -> Self {
        let Init { minor, flags } = init;
        let out = [MAJOR, minor, WRITE_MAX as u32, flags as u32].into_iter().fold(self, Self::u32);
        let out = out.u16(BACKGROUND_MAX).u16(BACKGROUND_MAX / 4 * 3).u32(WRITE_MAX as u32).u32(1);
        out.u16((WRITE_MAX / PAGE) as u16).u16(0).u32((flags >> 32) as u32).u32(STACK_DEPTH).zeros(24)
    }

    /// Returns the finished message.
    pub fn finish(mut self, unique: u64) -> Vec<u8> {
        let header = out_header(self.0.len(), 0, unique);
        self.0[..OUT_HEADER].copy_from_slice(&header);
        self.0
    }
}

impl Listed {
    /// Creates an empty list of at most `room` bytes.
    pub fn new(room: u32) -> Self {
        Self { out: Out::new(), room: room as usize }
    }

    /// Adds an entry whose next cookie is `cookie`, with the attributes of `plus`. Returns `false` if there is no room.
    pub fn add(&mut self, ino: u64, cookie: u64, mode: u32, name: &[u8], plus: Option<Plus<'_>>) -> bool {
        let len = (DIRENT + name.len()).next_multiple_of(8) + if plus.is_some() { ENTRY } else { 0 };
        let used = self.out.0.len() - OUT_HEADER;
        if used + len > self.room {
            return false;
        }
        let mut out = std::mem::replace(&mut self.out, Out(Vec::new()));
        if let Some(Plus { ino, attr, name_ttl, ttl }) = plus {
            out = out.entry(ino, attr, name_ttl, ttl);
        }
        out = out.u64(ino).u64(cookie).u32(name.len() as u32).u32(mode >> 12).bytes(name);
        self.out = out.zeros((DIRENT + name.len()).next_multiple_of(8) - DIRENT - name.len());
        true
    }

    /// Returns the reply.
    pub fn out(self) -> Out {
        self.out
    }
}

/// The part of a READDIRPLUS entry after its name.
#[derive(Clone, Copy, Debug)]
pub struct Plus<'a> {
    /// 0 if the kernel does not receive the object.
    pub ino: u64,
    pub attr: &'a Attributes,
    /// The times for which the kernel can cache name and attributes.
    pub name_ttl: Duration,
    pub ttl: Duration,
}

impl Init {
    /// Negotiates features: those of `wanted` that the kernel offers. Returns `None` if the kernel has a newer
    /// protocol; the reply is then our version.
    pub fn agree(mut arguments: Arguments<'_>, wanted: u64) -> Result<Option<Self>, Errno> {
        // The kernel takes the smaller one of its read-ahead and ours, which `set_read_ahead` can increase later.
        let [major, minor, _max_readahead, flags] =
            [arguments.u32()?, arguments.u32()?, arguments.u32()?, arguments.u32()?];
        if major != MAJOR {
            return if major > MAJOR { Ok(None) } else { Err(Errno::PROTO) };
        }
        if minor < MINOR_MIN {
            return Err(Errno::PROTO);
        }
        let more = if u64::from(flags) & init::EXT != 0 { arguments.u32()? } else { 0 };
        let offered = u64::from(flags) | u64::from(more) << 32;
        Ok(Some(Self { minor: minor.min(MINOR), flags: offered & (wanted | init::EXT) }))
    }
}

/// Encodes `fuse_out_header`.
pub fn out_header(len: usize, error: i32, unique: u64) -> [u8; OUT_HEADER] {
    let mut header = [0; OUT_HEADER];
    header[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Creates a notification that invalidates data and attributes of an object.
pub fn forget_inode(ino: u64) -> Vec<u8> {
    let mut message = Out::new().u64(ino).u64(0).u64(0).finish(0);
    let header = out_header(message.len(), NOTIFY_INVAL_INODE, 0);
    message[..OUT_HEADER].copy_from_slice(&header);
    message
}

/// The operations (`enum fuse_opcode`).
pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;

    /// Returns the name of an operation, for messages.
    pub fn name(opcode: u32) -> &'static str {
        const NAMES: [&str; 48] = [
            "?",
            "LOOKUP",
            "FORGET",
            "GETATTR",
            "SETATTR",
            "READLINK",
            "SYMLINK",
            "?",
            "MKNOD",
            "MKDIR",
            "UNLINK",
            "RMDIR",
            "RENAME",
            "LINK",
            "OPEN",
            "READ",
            "WRITE",
            "STATFS",
            "RELEASE",
            "?",
            "FSYNC",
            "SETXATTR",
            "GETXATTR",
            "LISTXATTR",
            "REMOVEXATTR",
            "FLUSH",
            "INIT",
            "OPENDIR",
            "READDIR",
            "RELEASEDIR",
            "FSYNCDIR",
            "GETLK",
            "SETLK",
            "SETLKW",
            "ACCESS",
            "CREATE",
            "INTERRUPT",
            "BMAP",
            "DESTROY",
            "IOCTL",
            "POLL",
            "NOTIFY_REPLY",
            "BATCH_FORGET",
            "FALLOCATE",
            "READDIRPLUS",
            "RENAME",
            "LSEEK",
            "COPY_FILE_RANGE",
        ];
        NAMES.get(opcode as usize).copied().unwrap_or("?")
    }
}

/// The flags of INIT (`FUSE_…`).
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// The flags have a second half.
    pub const EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const PASSTHROUGH: u64 = 1 << 37;
}

/// The flags of an open file (`FOPEN_…`).
pub mod open {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// The attributes that SETATTR sets (`FATTR_…`).
pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    /// The attributes are set through an open file.
    pub const OPEN_FILE: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
}

/// A flag of READ (`FUSE_READ_LOCKOWNER`): the data are for a program, and not for the kernel's page cache.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// A flag of WRITE (`FUSE_WRITE_CACHE`): the kernel writes its cache, for an unknown program.
pub const WRITE_CACHE: u32 = 1 << 0;
/// The bytes of `fuse_in_header`.
pub const HEADER: usize = 40;
/// The bytes of a WRITE before its data: the header and `fuse_write_in`.
pub const WRITE_HEAD: usize = HEADER + 40;
/// The maximum bytes of a write, which is the maximum of an NFS server.
pub const WRITE_MAX: usize = 1 << 20;
/// The maximum bytes of a read, except with direct I/O. The kernel divides longer reads and sends the parts at once, so the server
/// reads one part while another one is copied to the program. `docs/performance/mount.md` compares sizes.
pub const READ_MAX: usize = 256 << 10;
const MAJOR: u32 = 7;
const MINOR: u32 = 40;
/// The minor version of Linux 5.4.
const MINOR_MIN: u32 = 31;
const OUT_HEADER: usize = 16;
const ENTRY: usize = 128;
const DIRENT: usize = 24;
const PAGE: usize = 4096;
/// The maximum number of concurrent asynchronous requests.
const BACKGROUND_MAX: u16 = 64;
const NOTIFY_INVAL_INODE: i32 = 2;
/// With FUSE_PASSTHROUGH, files of file systems that are not stacked themselves can be registered, and the mount can still be a layer of
/// overlayfs.
const STACK_DEPTH: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    const ATTR: Attributes = Attributes {
        node: 0,
        ino: 1,
        size: 2,
        blocks: 3,
        atime: Time { seconds: -1, nseconds: 5 },
        mtime: Time { seconds: 4, nseconds: u32::MAX },
        ctime: Time { seconds: 6, nseconds: 7 },
        mode: 0o100_644,
        nlink: 8,
        uid: 9,
        gid: 10,
        rdev: 11,
        blksize: 12,
    };

    fn u32_at(message: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(message[at..at + 4].try_into().unwrap())
    }

    fn u64_at(message: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(message[at..at + 8].try_into().unwrap())
    }

    /// Sizes and offsets are those that `pahole` reports for the kernel's structures.
    #[test]
    fn replies_have_the_layout_of_the_kernel() {
        let second = Duration::new(1, 2);
        let attr = Out::new().attr(&ATTR, second).finish(77);
        assert_eq!((attr.len(), u32_at(&attr, 0), u64_at(&attr, 8)), (16 + 104, 120, 77));
        assert_eq!((u64_at(&attr, 16), u32_at(&attr, 24)), (1, 2));
        let attr = &attr[32..];
        assert_eq!([0, 8, 16].map(|at| u64_at(attr, at)), [1, 2, 3]);
        assert_eq!([24, 32, 40].map(|at| u64_at(attr, at) as i64), [-1, 4, 6]);
        let words = [5, 999_999_999, 7, 0o100_644, 8, 9, 10, 11, 12, 0];
        assert_eq!(std::array::from_fn(|at| u32_at(attr, 48 + 4 * at)), words);

        let entry = Out::new().entry(21, &ATTR, second, Duration::from_secs(3)).finish(1);
        assert_eq!(entry.len(), 16 + 128);
        assert_eq!([16, 24, 32, 40].map(|at| u64_at(&entry, at)), [21, 0, 1, 3]);
        assert_eq!((u32_at(&entry, 48), u32_at(&entry, 52), u64_at(&entry, 56)), (2, 0, 1));
        let open = Out::new().open(5, 64, 9).finish(1);
        assert_eq!((open.len(), u64_at(&open, 16), u32_at(&open, 24), u32_at(&open, 28)), (16 + 16, 5, 64, 9));
        assert_eq!(Out::new().statfs([1; 5], 4096, 255).finish(1).len(), 16 + 80);
        assert_eq!(Out::new().lock(1, 2, 1).finish(1).len(), 16 + 24);
        let init = Out::new().init(Init { minor: 36, flags: 1 << 36 | 1 }).finish(1);
        assert_eq!((init.len(), u32_at(&init, 28), u32_at(&init, 48)), (16 + 64, 1, 1 << 4));
        assert_eq!((u32_at(&init, 36), u32_at(&init, 52)), (WRITE_MAX as u32, STACK_DEPTH));
        let forget = forget_inode(3);
        assert_eq!((forget.len(), u32_at(&forget, 4), u64_at(&forget, 16)), (16 + 24, 2, 3));
    }

    #[test]
    fn listing_ends_when_there_is_no_room() {
        let mut listed = Listed::new(32 + 40);
        assert!(listed.add(5, 1, 0o40_000, b"a", None) && listed.add(6, 2, 0o100_000, b"ninechars", None));
        assert!(!listed.add(7, 3, 0o40_000, b"b", None));
        let message = listed.out().finish(1);
        assert_eq!(message.len(), 16 + 32 + 40);
        assert_eq!((u64_at(&message, 16), u64_at(&message, 24)), (5, 1));
        assert_eq!((u32_at(&message, 32), u32_at(&message, 36), message[40]), (1, 4, b'a'));
        assert_eq!(u64_at(&message, 48), 6, "each entry must begin at a multiple of eight");
        let mut plus = Listed::new(128 + 32);
        assert!(plus.add(
            5,
            1,
            0o40_000,
            b"a",
            Some(Plus { ino: 5, attr: &ATTR, name_ttl: Duration::ZERO, ttl: Duration::ZERO })
        ));
        assert_eq!(plus.out().finish(1).len(), 16 + 128 + 32);
    }

    #[test]
    fn short_requests_are_errors() {
        let words = [48u32, op::LOOKUP, 7, 0, 9, 0, 11, 12, 13, 0];
        let message: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).chain(*b"name\0x").collect();
        let header = Header { opcode: op::LOOKUP, unique: 7, ino: 9, uid: 11, gid: 12, pid: 13 };
        assert_eq!(Header::decode(&message), Some(header));
        assert_eq!(Header::decode(&message[..39]), None);
        let mut arguments = Arguments::new(&message[HEADER..]);
        assert_eq!(arguments.name().unwrap(), "name");
        assert_eq!(
            (arguments.name(), arguments.u32(), arguments.bytes(2)),
            (Err(Errno::INVAL), Err(Errno::INVAL), Err(Errno::INVAL))
        );
        assert_eq!(arguments.bytes(1), Ok(&b"x"[..]));
    }

    #[test]
    fn features_of_both_sides_are_negotiated() {
        let offer = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let agree =
            |words: &[u32]| Init::agree(Arguments::new(&offer(words)), init::POSIX_LOCKS | init::DIRECT_IO_ALLOW_MMAP);
        let all = init::POSIX_LOCKS | init::EXT | init::DIRECT_IO_ALLOW_MMAP;
        assert_eq!(agree(&[7, 45, 131_072, u32::MAX, u32::MAX]), Ok(Some(Init { minor: 40, flags: all })));
        assert_eq!(agree(&[7, 31, 1, 2]), Ok(Some(Init { minor: 31, flags: 2 })));
        assert_eq!(
            (agree(&[8, 0, 0, 0]), agree(&[7, 30, 0, 0]), agree(&[7, 36])),
            (Ok(None), Err(Errno::PROTO), Err(Errno::INVAL))
        );
    }
}
