//! The basic data types of RFC 1813 §2.3–2.6.

use std::fmt;

use xdr::{Decode, DecodeError, Decoder, Encode, Encoder, Opaque};

/// A file handle (§2.3.3): 0 to 64 bytes, opaque to clients.
pub type NfsFh3 = Opaque<FHSIZE3>;
/// A file name, as bytes. Its length is not restricted to that of a file name, so that the server can answer a name
/// that is too long with NAMETOOLONG.
pub type Filename3 = Opaque<NAME_BOUND>;
/// A verifier of a directory cookie.
pub type Cookieverf3 = [u8; 8];
/// A verifier of exclusive creation.
pub type Createverf3 = [u8; 8];
/// A verifier of unstable writes.
pub type Writeverf3 = [u8; 8];

/// Maximum bytes of a file handle.
pub const FHSIZE3: usize = 64;
/// Maximum bytes of names and paths. RFC 1813 defines no bound.
pub const NAME_BOUND: usize = 4096;
/// Maximum bytes of data in one READ or WRITE.
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

/// The type of an object (§2.6, `ftype3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum Ftype3 {
    /// A regular file.
    Reg = 1,
    /// A directory.
    Dir = 2,
    /// A block device.
    Blk = 3,
    /// A character device.
    Chr = 4,
    /// A symbolic link.
    Lnk = 5,
    /// A socket.
    Sock = 6,
    /// A named pipe.
    Fifo = 7,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Specdata3 {
    /// The major number.
    pub specdata1: u32,
    /// The minor number.
    pub specdata2: u32,
}

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct Nfstime3 {
    /// The seconds.
    pub seconds: u32,
    /// The nanoseconds.
    pub nseconds: u32,
}

/// File attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fattr3 {
    /// The type of the object.
    pub ftype: Ftype3,
    /// The permission bits.
    pub mode: u32,
    /// The number of names.
    pub nlink: u32,
    /// The user ID of the owner.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
    /// The size in bytes.
    pub size: u64,
    /// The bytes of storage that the object takes.
    pub used: u64,
    /// The device number, for devices.
    pub rdev: Specdata3,
    /// The ID of the file system.
    pub fsid: u64,
    /// The file number, unique in the file system.
    pub fileid: u64,
    /// The time of the last access.
    pub atime: Nfstime3,
    /// The time of the last change of data.
    pub mtime: Nfstime3,
    /// The time of the last change of data or attributes.
    pub ctime: Nfstime3,
}

impl Encode for Fattr3 {
    // The values are appended together, so that room is reserved only once.
    fn encode(&self, encoder: &mut Encoder) {
        let Self { ftype, mode, nlink, uid, gid, size, used, rdev, fsid, fileid, atime, mtime, ctime } = self.clone();
        let [[s1, s0], [u1, u0], [f1, f0], [i1, i0]] =
            [size, used, fsid, fileid].map(|wide| [(wide >> 32) as u32, wide as u32]);
        let [[a1, a0], [m1, m0], [c1, c0]] = [atime, mtime, ctime].map(|time| [time.seconds, time.nseconds]);
        let Specdata3 { specdata1, specdata2 } = rdev;
        let ftype = ftype as u32;
        encoder.words([
            ftype, mode, nlink, uid, gid, s1, s0, u1, u0, specdata1, specdata2, f1, f0, i1, i0, a1, a0, m1, m0, c1, c0,
        ]);
    }
}

impl Decode for Fattr3 {
    // The values are read together, so that the length of the stream is checked only twice.
    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let wide = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let time = |seconds, nseconds| Nfstime3 { seconds, nseconds };
        let ftype = Ftype3::decode(decoder)?;
        let [mode, nlink, uid, gid, s1, s0, u1, u0, specdata1, specdata2, f1, f0, i1, i0, a1, a0, m1, m0, c1, c0] =
            decoder.words()?;
        Ok(Self {
            ftype,
            mode,
            nlink,
            uid,
            gid,
            size: wide(s1, s0),
            used: wide(u1, u0),
            rdev: Specdata3 { specdata1, specdata2 },
            fsid: wide(f1, f0),
            fileid: wide(i1, i0),
            atime: time(a1, a0),
            mtime: time(m1, m0),
            ctime: time(c1, c0),
        })
    }
}

/// Attributes, if the server could read them.
pub type PostOpAttr = Option<Fattr3>;
/// A file handle, if the server could make it.
pub type PostOpFh3 = Option<NfsFh3>;

/// The attributes for weak cache consistency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WccAttr {
    /// The size in bytes.
    pub size: u64,
    /// The time of the last change of data.
    pub mtime: Nfstime3,
    /// The time of the last change of data or attributes.
    pub ctime: Nfstime3,
}

/// Weak cache consistency data: an object before and after an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct WccData {
    /// The value before the operation.
    pub before: Option<WccAttr>,
    /// The value after the operation.
    pub after: PostOpAttr,
}

/// The way to set a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub enum SetTime {
    /// Do not change it.
    #[default]
    #[xdr(0)]
    DontChange,
    /// Set it to the server's time.
    #[xdr(1)]
    ToServerTime,
    /// Set it to this time.
    #[xdr(2)]
    ToClientTime(Nfstime3),
}

/// Attributes to set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Sattr3 {
    /// The permission bits.
    pub mode: Option<u32>,
    /// The user ID of the owner.
    pub uid: Option<u32>,
    /// The group ID.
    pub gid: Option<u32>,
    /// The size in bytes.
    pub size: Option<u64>,
    /// The time of the last access.
    pub atime: SetTime,
    /// The time of the last change of data.
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
    /// Returns the value, or the status and the value of the failure.
    ///
    /// # Errors
    /// Returns the status if it is not OK.
    pub fn into_result(self) -> Result<T, (Nfsstat3, F)> {
        match self {
            Res3::Ok(value) => Ok(value),
            Res3::Fail(status, fail) => Err((status, fail)),
        }
    }
}
