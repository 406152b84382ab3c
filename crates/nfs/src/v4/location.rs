//! Locations and kinds of file systems (RFC 8881 §11, §5.9, §5.12–5.13), and network locations (RFC 7862).

use xdr::{Array, Decode, Encode, Opaque};

use super::{
    bitmap::Bitmap4,
    types::{BODY_BOUND, Layouttype4, Netaddr4, Nfstime4, Pathname4, Utf8str},
};

/// The location of a file system: servers, and a path on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct FsLocation4 {
    /// The servers, by name or address.
    pub server: Vec<Utf8str>,
    /// The path of the file system's root on these servers.
    pub rootpath: Pathname4,
}

/// The attribute fs_locations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct FsLocations4 {
    /// The path of the file system's root on this server.
    pub fs_root: Pathname4,
    /// The other locations of the file system.
    pub locations: Vec<FsLocation4>,
}

/// A server in fs_locations_info (RFC 8881 §11.17.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FsLocationsServer4 {
    /// The age of the server's copy relative to the source, in seconds; −1 if unknown.
    pub currency: i32,
    /// Flags, classes, ranks and orders: one byte at each `FSLI4BX_…` index.
    pub info: Opaque<BODY_BOUND>,
    /// The server, by name or address.
    pub server: Utf8str,
}

/// Servers of one path.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FsLocationsItem4 {
    /// The servers.
    pub entries: Vec<FsLocationsServer4>,
    /// The path of the file system's root on these servers.
    pub rootpath: Pathname4,
}

/// The attribute fs_locations_info.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FsLocationsInfo4 {
    /// [`FSLI4IF_VAR_SUB`] or 0.
    pub flags: u32,
    /// The validity of this information, in seconds.
    pub valid_for: i32,
    /// The path of the file system's root on this server.
    pub fs_root: Pathname4,
    /// The locations of the file system.
    pub items: Vec<FsLocationsItem4>,
}

/// The client must substitute variables in paths.
pub const FSLI4IF_VAR_SUB: u32 = 1;

/// The way in which a file system changes (`fs4_status_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum Fs4StatusType {
    /// It never changes.
    Fixed = 1,
    /// It is a copy that is updated from time to time.
    Updated = 2,
    /// It is a copy with versions.
    Versioned = 3,
    /// Clients can write to it.
    Writable = 4,
    /// It is a referral to another server.
    Referral = 5,
}

/// The attribute fs_status.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Fs4Status {
    /// `true` if the file system is absent from this server.
    pub absent: bool,
    /// The way in which the file system changes.
    pub status_type: Fs4StatusType,
    /// The source of the copy.
    pub source: Utf8str,
    /// The name of the version.
    pub current: Utf8str,
    /// Maximum age of the copy, in seconds.
    pub age: i32,
    /// The time of the version.
    pub version: Nfstime4,
}

/// The sizes below which the client should use the metadata server for I/O (RFC 8881 §5.12.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ThresholdItem4 {
    /// The layout type.
    pub layout_type: Layouttype4,
    /// The set of hints.
    pub hintset: Bitmap4,
    /// The hints.
    pub hintlist: Opaque<BODY_BOUND>,
}

/// The attribute mdsthreshold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Mdsthreshold4 {
    /// Hints by layout type.
    pub hints: Vec<ThresholdItem4>,
}

/// A client's hint for the layout of a file (RFC 8881 §5.12.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Layouthint4 {
    /// The layout type.
    pub layout_type: Layouttype4,
    /// The hint, whose format depends on the layout type.
    pub body: Opaque<BODY_BOUND>,
}

/// The attributes retention_get and retentevt_get (RFC 8881 §5.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RetentionGet4 {
    /// The duration in seconds.
    pub duration: u64,
    /// The time at which retention began, if it has begun.
    pub begin_time: Option<Nfstime4>,
}

/// The attributes retention_set and retentevt_set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RetentionSet4 {
    /// `true` to begin the retention.
    pub enable: bool,
    /// The duration in seconds.
    pub duration: Option<u64>,
}

/// A network location (RFC 7862 §11.2, `netloc4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Netloc4 {
    /// A name.
    #[xdr(1)]
    Name(Utf8str),
    /// A URL.
    #[xdr(2)]
    Url(Utf8str),
    /// An address.
    #[xdr(3)]
    Netaddr(Netaddr4),
}

/// Servers that hold the source of a copy.
pub type Netlocs4 = Array<Netloc4, 32>;

/// The attribute sec_label (RFC 7862 §12.2.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SecLabel4 {
    /// The label format.
    pub lfs: u32,
    /// The policy.
    pub pi: u32,
    /// The label.
    pub data: Opaque<BODY_BOUND>,
}
