//! The basic data types of RFC 1813 §2.3–2.6.

use std::fmt;

use xdr::{Decode, Encode, Opaque};

/// A file handle (§2.3.3): 0 to 64 bytes, opaque to clients.
pub type NfsFh3 = Opaque<FHSIZE3>;
/// A file name; bytes, of any length here so that a long one can be answered with NAMETOOLONG.
pub type Filename3 = Opaque<NAME_BOUND>;
/// A verifier of a directory cookie.
pub type Cookieverf3 = [u8; 8];
/// A verifier of exclusive creation.
pub type Createverf3 = [u8; 8];
/// A verifier of unstable writes.
pub type Writeverf3 = [u8; 8];

/// Most bytes in a file handle.
pub const FHSIZE3: usize = 64;
/// The bound we put on names and paths, which RFC 1813 leaves open.
pub const NAME_BOUND: usize = 4096;
/// The bound we put on the data of one READ or WRITE, in bytes.
pub const DATA_BOUND: usize = 4 << 20;

/// Status codes (§2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[allow(missing_docs)] // The names say it; RFC 1813 §2.6 explains each.
#[repr(u32)]
pub enum Nfsstat3 {
    Ok = 0,
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    NxIo = 6,
    Acces = 13,
    Exist = 17,
    XDev = 18,
    NoDev = 19,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    RoFs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    Remote = 71,
    BadHandle = 10001,
    NotSync = 10002,
    BadCookie = 10003,
    NotSupp = 10004,
    TooSmall = 10005,
    ServerFault = 10006,
    BadType = 10007,
    Jukebox = 10008,
}

impl fmt::Display for Nfsstat3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Nfsstat3::Ok => "OK",
            Nfsstat3::Perm => "operation not permitted",
            Nfsstat3::NoEnt => "no such file or directory",
            Nfsstat3::Io => "input/output error",
            Nfsstat3::NxIo => "no such device or address",
            Nfsstat3::Acces => "permission denied",
            Nfsstat3::Exist => "file exists",
            Nfsstat3::XDev => "cross-device link",
            Nfsstat3::NoDev => "no such device",
            Nfsstat3::NotDir => "not a directory",
            Nfsstat3::IsDir => "is a directory",
            Nfsstat3::Inval => "invalid argument",
            Nfsstat3::FBig => "file too large",
            Nfsstat3::NoSpc => "no space left on device",
            Nfsstat3::RoFs => "read-only file system",
            Nfsstat3::MLink => "too many hard links",
            Nfsstat3::NameTooLong => "file name too long",
            Nfsstat3::NotEmpty => "directory not empty",
            Nfsstat3::DQuot => "disk quota exceeded",
            Nfsstat3::Stale => "stale file handle",
            Nfsstat3::Remote => "too many levels of remote in path",
            Nfsstat3::BadHandle => "illegal NFS file handle",
            Nfsstat3::NotSync => "update synchronization mismatch",
            Nfsstat3::BadCookie => "stale READDIR cookie",
            Nfsstat3::NotSupp => "operation not supported",
            Nfsstat3::TooSmall => "buffer or request too small",
            Nfsstat3::ServerFault => "server fault",
            Nfsstat3::BadType => "unsupported type",
            Nfsstat3::Jukebox => "delayed; try again",
        })
    }
}

/// What an object is (§2.6, `ftype3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum Ftype3 {
    /// Regular file.
    Reg = 1,
    /// Directory.
    Dir = 2,
    /// Block device.
    Blk = 3,
    /// Character device.
    Chr = 4,
    /// Symbolic link.
    Lnk = 5,
    /// Socket.
    Sock = 6,
    /// Named pipe.
    Fifo = 7,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Specdata3 {
    /// Major number.
    pub specdata1: u32,
    /// Minor number.
    pub specdata2: u32,
}

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Nfstime3 {
    /// Seconds.
    pub seconds: u32,
    /// Nanoseconds.
    pub nseconds: u32,
}

/// File attributes.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Fattr3 {
    /// What it is.
    pub ftype: Ftype3,
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
    /// Device number, for devices.
    pub rdev: Specdata3,
    /// File system.
    pub fsid: u64,
    /// Number in the file system.
    pub fileid: u64,
    /// Last access.
    pub atime: Nfstime3,
    /// Last data change.
    pub mtime: Nfstime3,
    /// Last change.
    pub ctime: Nfstime3,
}

/// Attributes that are there if the server could get them.
pub type PostOpAttr = Option<Fattr3>;
/// A handle that is there if the server could make it.
pub type PostOpFh3 = Option<NfsFh3>;

/// The attributes that weak cache consistency compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WccAttr {
    /// Bytes.
    pub size: u64,
    /// Last data change.
    pub mtime: Nfstime3,
    /// Last change.
    pub ctime: Nfstime3,
}

/// Weak cache consistency data: an object before and after an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct WccData {
    /// Before.
    pub before: Option<WccAttr>,
    /// After.
    pub after: PostOpAttr,
}

/// How a time is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub enum SetTime {
    /// Not at all.
    #[default]
    #[xdr(0)]
    DontChange,
    /// To the server's time.
    #[xdr(1)]
    ToServerTime,
    /// To this.
    #[xdr(2)]
    ToClientTime(Nfstime3),
}

/// Attributes to be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Sattr3 {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: SetTime,
    /// Last data change.
    pub mtime: SetTime,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Diropargs3 {
    /// The directory.
    pub dir: NfsFh3,
    /// The name.
    pub name: Filename3,
}

/// A result: the procedure's `resok` or its `resfail`, as every procedure but NULL has one.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat3)]
pub enum Res3<T, F> {
    /// NFS3_OK.
    #[xdr(Nfsstat3::Ok)]
    Ok(T),
    /// Any other status.
    #[xdr(default)]
    Fail(Nfsstat3, F),
}

impl<T, F> Res3<T, F> {
    /// The value, or the status.
    ///
    /// # Errors
    /// The status, if it is not OK.
    pub fn into_result(self) -> Result<T, (Nfsstat3, F)> {
        match self {
            Res3::Ok(value) => Ok(value),
            Res3::Fail(status, fail) => Err((status, fail)),
        }
    }
}
