//! The basic data types of RFC 8881 §3.2–3.3, which hold for all minor versions.

use xdr::{Array, Decode, Encode, Opaque};

/// A file handle: 0 to 128 bytes, opaque to clients.
pub type NfsFh4 = Opaque<FHSIZE4>;
/// A name in a directory, as bytes. Its length is not restricted to that of a file name, so that the server can answer
/// a name that is too long with NAMETOOLONG, and one that is not UTF-8 with INVAL.
pub type Component4 = Opaque<NAME_BOUND>;
/// A path: a list of names that begins at a root.
pub type Pathname4 = Vec<Component4>;
/// A UTF-8 string, which its reader must check: `utf8str_cs`, `utf8str_cis` and `utf8str_mixed`.
pub type Utf8str = Opaque<OPAQUE_LIMIT>;
/// A verifier of a client's or server's incarnation, an exclusive creation, a directory cookie or unstable writes.
pub type Verifier4 = [u8; 8];
/// A change attribute.
pub type Changeid4 = u64;
/// An object identifier of a security mechanism.
pub type SecOid4 = Opaque<OPAQUE_LIMIT>;

/// Maximum bytes of a file handle.
pub const FHSIZE4: usize = 128;
/// Maximum bytes of an opaque owner (`NFS4_OPAQUE_LIMIT`) and of a string.
pub const OPAQUE_LIMIT: usize = 1024;
/// Maximum bytes of names, link targets and paths. The RFCs define no bound.
pub const NAME_BOUND: usize = 4096;
/// Maximum bytes of data in one READ or WRITE.
pub const DATA_BOUND: usize = 4 << 20;
/// Maximum bytes of opaque bodies of layouts, devices, labels and notifications.
pub const BODY_BOUND: usize = 64 << 10;
/// The length that means to the end of the file, wherever that is (RFC 8881 §18.10).
pub const LENGTH_TO_EOF: u64 = u64::MAX;

/// A client ID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct Clientid4(pub u64);

/// A session ID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct Sessionid4(pub [u8; 16]);

/// The number of a slot of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct Slotid4(pub u32);

/// The sequence number of a request in its slot, or for CREATE_SESSION of its client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Sequenceid4(pub u32);

/// The sequence number of a request of an open-owner or lock owner. It has no meaning since 4.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Seqid4(pub u32);

/// The number of a layout type. Types other than the constants exist (RFC 8881 §22.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct Layouttype4(pub u32);

impl Layouttype4 {
    /// Files (RFC 8881 §13).
    pub const NFSV4_1_FILES: Self = Self(1);
    /// Objects (RFC 5664).
    pub const OSD2_OBJECTS: Self = Self(2);
    /// Blocks (RFC 5663).
    pub const BLOCK_VOLUME: Self = Self(3);
    /// Flexible files (RFC 8435).
    pub const FLEX_FILES: Self = Self(4);
    /// SCSI (RFC 8154).
    pub const SCSI: Self = Self(5);
}

/// The ID of a storage device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct Deviceid4(pub [u8; 16]);

/// A stateid: a reference to opens, locks, delegations or layouts (RFC 8881 §8.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Stateid4 {
    /// The number of changes of the state. Since 4.1, 0 means the most recent one.
    pub seqid: u32,
    /// The ID of the state.
    pub other: [u8; 12],
}

impl Stateid4 {
    /// The anonymous stateid (RFC 8881 §8.2.3).
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// The anonymous stateid with which READ bypasses locks.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The current stateid of the compound.
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// The stateid that is never valid.
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };
}

/// The type of an object (`nfs_ftype4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[repr(u32)]
pub enum Ftype4 {
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
    /// A directory of named attributes.
    AttrDir = 8,
    /// A named attribute.
    NamedAttr = 9,
}

/// Seconds and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Nfstime4 {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, below 10⁹.
    pub nseconds: u32,
}

/// The way to set a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Settime4 {
    /// Set it to the server's time.
    #[xdr(0)]
    ToServerTime,
    /// Set it to this time.
    #[xdr(1)]
    ToClientTime(Nfstime4),
}

/// The ID of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Fsid4 {
    /// The major number.
    pub major: u64,
    /// The minor number.
    pub minor: u64,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Specdata4 {
    /// The major number.
    pub specdata1: u32,
    /// The minor number.
    pub specdata2: u32,
}

/// A directory's change attribute before and after an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ChangeInfo4 {
    /// `true` if both values were read atomically with the operation.
    pub atomic: bool,
    /// The value before the operation.
    pub before: Changeid4,
    /// The value after the operation.
    pub after: Changeid4,
}

/// The durability of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[repr(u32)]
pub enum StableHow4 {
    /// The data may be lost until it is committed.
    Unstable = 0,
    /// The data is on stable storage.
    DataSync = 1,
    /// The data and all attributes are on stable storage.
    FileSync = 2,
}

/// A network address (RFC 5665), such as `tcp` and `192.0.2.1.8.1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Netaddr4 {
    /// The kind of transport and address.
    pub netid: Opaque<NETADDR_BOUND>,
    /// The address, in the format of that kind.
    pub addr: Opaque<NETADDR_BOUND>,
}

/// An open-owner or lock owner (`state_owner4`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct StateOwner4 {
    /// The client ID. It has no meaning since 4.1, where the session determines the client.
    pub clientid: Clientid4,
    /// The name of the owner on the client.
    pub owner: Opaque<OPAQUE_LIMIT>,
}

/// The implementation of a client or server.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NfsImplId4 {
    /// The domain name of the implementer.
    pub domain: Utf8str,
    /// The name of the implementation.
    pub name: Utf8str,
    /// The date of the implementation.
    pub date: Nfstime4,
}

/// The credential of AUTH_SYS (RFC 5531 appendix A), where NFS carries one as data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct AuthsysParms {
    /// Any number.
    pub stamp: u32,
    /// The name of the caller's host.
    pub machinename: Opaque<255>,
    /// The user ID.
    pub uid: u32,
    /// The group ID.
    pub gid: u32,
    /// The supplementary groups.
    pub gids: Array<u32, 16>,
}

const NETADDR_BOUND: usize = 256;
