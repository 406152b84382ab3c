//! Where file systems are and of what kind they are (RFC 8881 §11, §5.9, §5.12–5.13), and network locations (RFC 7862).

use xdr::{Array, Decode, Encode, Opaque};

use super::{
    bitmap::Bitmap4,
    types::{BODY_BOUND, Layouttype4, Netaddr4, Nfstime4, Pathname4, Utf8str},
};

/// Servers and a path there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct FsLocation4 {
    /// The servers, by name or address.
    pub server: Vec<Utf8str>,
    /// The path of the file system's root there.
    pub rootpath: Pathname4,
}

/// The attribute fs_locations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct FsLocations4 {
    /// The path of the file system's root here.
    pub fs_root: Pathname4,
    /// Where else it is.
    pub locations: Vec<FsLocation4>,
}

/// A server in fs_locations_info (RFC 8881 §11.17.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FsLocationsServer4 {
    /// How far behind its copy is, in seconds; −1 if unknown.
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
    /// The path of the file system's root there.
    pub rootpath: Pathname4,
}

/// The attribute fs_locations_info.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FsLocationsInfo4 {
    /// [`FSLI4IF_VAR_SUB`] or nothing.
    pub flags: u32,
    /// Seconds for which this holds.
    pub valid_for: i32,
    /// The path of the file system's root here.
    pub fs_root: Pathname4,
    /// Where it is.
    pub items: Vec<FsLocationsItem4>,
}

/// Variables in paths are to be substituted.
pub const FSLI4IF_VAR_SUB: u32 = 1;

/// How a file system changes (`fs4_status_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum Fs4StatusType {
    /// Never.
    Fixed = 1,
    /// From time to time, as a copy.
    Updated = 2,
    /// As a copy with versions.
    Versioned = 3,
    /// By those who use it.
    Writable = 4,
    /// It is elsewhere.
    Referral = 5,
}

/// The attribute fs_status.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Fs4Status {
    /// Whether it is not here.
    pub absent: bool,
    /// How it changes.
    pub status_type: Fs4StatusType,
    /// What it was copied from.
    pub source: Utf8str,
    /// Which version it is.
    pub current: Utf8str,
    /// How old it is at most, in seconds.
    pub age: i32,
    /// The time of its version.
    pub version: Nfstime4,
}

/// Below which sizes the metadata server is to be used for I/O (RFC 8881 §5.12.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ThresholdItem4 {
    /// For layouts of this type.
    pub layout_type: Layouttype4,
    /// Which hints follow.
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

/// A layout that a client would like (RFC 8881 §5.12.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Layouthint4 {
    /// Its type.
    pub layout_type: Layouttype4,
    /// The hint, as the type says.
    pub body: Opaque<BODY_BOUND>,
}

/// The attributes retention_get and retentevt_get (RFC 8881 §5.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RetentionGet4 {
    /// Seconds.
    pub duration: u64,
    /// From when on, if it has begun.
    pub begin_time: Option<Nfstime4>,
}

/// The attributes retention_set and retentevt_set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RetentionSet4 {
    /// Whether it begins.
    pub enable: bool,
    /// Seconds.
    pub duration: Option<u64>,
}

/// Somewhere in the network (RFC 7862 §11.2, `netloc4`).
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
