//! The basic data types of RFC 8881 §3.2–3.3, which hold for all minor versions.

use xdr::{Array, Decode, Encode, Opaque};

/// A file handle: 0 to 128 bytes, opaque to clients.
pub type NfsFh4 = Opaque<FHSIZE4>;
/// A name in a directory; bytes, of any length here so that a long one can be answered with NAMETOOLONG
/// and one that is not UTF-8 with INVAL.
pub type Component4 = Opaque<NAME_BOUND>;
/// A path: names from a root on.
pub type Pathname4 = Vec<Component4>;
/// A string of UTF-8, which is for its reader to check: `utf8str_cs`, `utf8str_cis` and `utf8str_mixed`.
pub type Utf8str = Opaque<OPAQUE_LIMIT>;
/// A verifier: of a client's or server's incarnation, an exclusive creation, a directory cookie or unstable writes.
pub type Verifier4 = [u8; 8];
/// A change attribute.
pub type Changeid4 = u64;
/// An object identifier of a security mechanism.
pub type SecOid4 = Opaque<OPAQUE_LIMIT>;

/// Most bytes in a file handle.
pub const FHSIZE4: usize = 128;
/// Most bytes in an opaque owner (`NFS4_OPAQUE_LIMIT`), and the bound that we put on strings.
pub const OPAQUE_LIMIT: usize = 1024;
/// The bound we put on names, link texts and paths, which the RFCs leave open.
pub const NAME_BOUND: usize = 4096;
/// The bound we put on the data of one READ or WRITE, in bytes.
pub const DATA_BOUND: usize = 4 << 20;
/// The bound we put on opaque bodies of layouts, devices, labels and notifications, in bytes.
pub const BODY_BOUND: usize = 64 << 10;
/// A length that means to the end of the file, whatever that is (RFC 8881 §18.10).
pub const LENGTH_TO_EOF: u64 = u64::MAX;

/// The name by which the server knows a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct Clientid4(pub u64);

/// The name of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct Sessionid4(pub [u8; 16]);

/// The number of a slot of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct Slotid4(pub u32);

/// The place of a request in the sequence of its slot, or of its client for CREATE_SESSION.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Sequenceid4(pub u32);

/// The place of a request in the sequence of its open or lock owner; of no meaning since 4.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Seqid4(pub u32);

/// The number of a layout type. Others than those named here exist (RFC 8881 §22.5).
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

/// The name of a data server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct Deviceid4(pub [u8; 16]);

/// A reference to opens, locks, delegations or layouts (RFC 8881 §8.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Stateid4 {
    /// Counts the changes of the state; 0 is the most recent since 4.1.
    pub seqid: u32,
    /// Which state.
    pub other: [u8; 12],
}

impl Stateid4 {
    /// No state (RFC 8881 §8.2.3).
    pub const ANONYMOUS: Self = Self { seqid: 0, other: [0; 12] };
    /// No state, and READ passes by locks.
    pub const READ_BYPASS: Self = Self { seqid: u32::MAX, other: [0xff; 12] };
    /// The current state ID of the compound.
    pub const CURRENT: Self = Self { seqid: 1, other: [0; 12] };
    /// Never valid.
    pub const INVALID: Self = Self { seqid: u32::MAX, other: [0; 12] };
}

/// What an object is (`nfs_ftype4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[repr(u32)]
pub enum Ftype4 {
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
    /// Directory of named attributes.
    AttrDir = 8,
    /// Named attribute.
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

/// To what a time is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Settime4 {
    /// The server's time.
    #[xdr(0)]
    ToServerTime,
    /// This.
    #[xdr(1)]
    ToClientTime(Nfstime4),
}

/// A file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Fsid4 {
    /// One half of its number.
    pub major: u64,
    /// The other.
    pub minor: u64,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Specdata4 {
    /// Major number.
    pub specdata1: u32,
    /// Minor number.
    pub specdata2: u32,
}

/// A directory's change attribute before and after an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ChangeInfo4 {
    /// Whether nothing else can have come between.
    pub atomic: bool,
    /// Before.
    pub before: Changeid4,
    /// After.
    pub after: Changeid4,
}

/// How durable a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[repr(u32)]
pub enum StableHow4 {
    /// It may be lost until committed.
    Unstable = 0,
    /// Data is on stable storage.
    DataSync = 1,
    /// Data and attributes are.
    FileSync = 2,
}

/// Where to reach somebody (RFC 5665): `tcp` and `192.0.2.1.8.1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Netaddr4 {
    /// The kind of transport and address.
    pub netid: Opaque<NETADDR_BOUND>,
    /// The address, of that kind.
    pub addr: Opaque<NETADDR_BOUND>,
}

/// What 4.0 clients, and open and lock owners of all versions, are called (`state_owner4`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub struct StateOwner4 {
    /// The client; of no meaning since 4.1, where it is the session's.
    pub clientid: Clientid4,
    /// The owner among the client's.
    pub owner: Opaque<OPAQUE_LIMIT>,
}

/// Who wrote the software at the other end.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NfsImplId4 {
    /// Domain name of its maker.
    pub domain: Utf8str,
    /// Its name.
    pub name: Utf8str,
    /// When it was made.
    pub date: Nfstime4,
}

/// The credential of AUTH_SYS (RFC 5531 appendix A), where NFS carries one as data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct AuthsysParms {
    /// Any number.
    pub stamp: u32,
    /// The caller's machine.
    pub machinename: Opaque<255>,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// More groups.
    pub gids: Array<u32, 16>,
}

const NETADDR_BOUND: usize = 256;
