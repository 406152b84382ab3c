//! The layout type LAYOUT4_FLEX_FILES (RFC 8435): mirrors, each with one or more data servers of any NFS version.

use xdr::{Decode, Encode};

use super::MultipathList4;
use crate::v4::{
    ops::{DeviceError4, IoInfo4},
    types::{Deviceid4, Netaddr4, NfsFh4, Nfstime4, Stateid4, Utf8str},
};

/// A protocol version of a data server, and its limits (`ff_device_versions4`, RFC 8435 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FfDeviceVersions4 {
    /// The version of NFS: 3 or 4.
    pub version: u32,
    /// The minor version; 0 for version 3.
    pub minorversion: u32,
    /// Maximum bytes of a READ.
    pub rsize: u32,
    /// Maximum bytes of a WRITE.
    pub wsize: u32,
    /// `true` if the data server checks stateids of the metadata server.
    pub tightly_coupled: bool,
}

/// A device address (`ff_device_addr4`, RFC 8435 §4.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FfDeviceAddr4 {
    /// The addresses of the data server.
    pub netaddrs: MultipathList4,
    /// The versions that it has, in the order of preference.
    pub versions: Vec<FfDeviceVersions4>,
}

/// The client need not send LAYOUTCOMMIT.
pub const FF_FLAGS_NO_LAYOUTCOMMIT: u32 = 1;
/// The client must not do I/O through the metadata server.
pub const FF_FLAGS_NO_IO_THRU_MDS: u32 = 2;
/// A layout for reading and writing must not be used for reading.
pub const FF_FLAGS_NO_READ_IO: u32 = 4;
/// The client writes to one mirror only; the server copies the data to the others.
pub const FF_FLAGS_WRITE_ONE_MIRROR: u32 = 8;

/// A data file on one data server (`ff_data_server4`, RFC 8435 §5.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FfDataServer4 {
    /// The device.
    pub deviceid: Deviceid4,
    /// The preference of this mirror for reading. A higher number is better.
    pub efficiency: u32,
    /// The stateid for I/O if the data server is tightly coupled.
    pub stateid: Stateid4,
    /// The file handles, one for each version of the device, or one for all of them.
    pub fh_vers: Vec<NfsFh4>,
    /// The user with which a loosely coupled data server admits I/O, as digits.
    pub user: Utf8str,
    /// The group, as digits.
    pub group: Utf8str,
}

/// A copy of the file (`ff_mirror4`, RFC 8435 §5.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FfMirror4 {
    /// The data files, one for each stripe.
    pub data_servers: Vec<FfDataServer4>,
}

/// A layout (`ff_layout4`, RFC 8435 §5.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FfLayout4 {
    /// The stripe unit in bytes. It is 0 or ignored if each mirror has one data server.
    pub stripe_unit: u64,
    /// The copies.
    pub mirrors: Vec<FfMirror4>,
    /// `FF_FLAGS_` bits.
    pub flags: u32,
    /// The interval of LAYOUTSTATS that the server desires, in seconds; 0 for none.
    pub stats_collect_hint: u32,
}

/// Failed I/O that a client reports with LAYOUTRETURN (`ff_ioerr4`, RFC 8435 §9.1.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FfIoerr4 {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The stateid of the layout.
    pub stateid: Stateid4,
    /// The errors.
    pub errors: Vec<DeviceError4>,
}

/// Counters and latencies of I/O in one direction (`ff_io_latency4`, RFC 8435 §9.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct FfIoLatency4 {
    /// The number of requested operations.
    pub ops_requested: u64,
    /// The number of requested bytes.
    pub bytes_requested: u64,
    /// The number of completed operations.
    pub ops_completed: u64,
    /// The number of bytes of completed operations.
    pub bytes_completed: u64,
    /// The number of requested bytes that were not transferred.
    pub bytes_not_delivered: u64,
    /// The time in which operations were executed.
    pub total_busy_time: Nfstime4,
    /// The sum of the durations of all operations.
    pub aggregate_completion_time: Nfstime4,
}

/// The body of a LAYOUTSTATS (`ff_layoutupdate4`, RFC 8435 §9.2.2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FfLayoutUpdate4 {
    /// The address of the data server that was used.
    pub addr: Netaddr4,
    /// The data file.
    pub fhandle: NfsFh4,
    /// The reads.
    pub read: FfIoLatency4,
    /// The writes.
    pub write: FfIoLatency4,
    /// The time that this report covers.
    pub duration: Nfstime4,
    /// `true` if the client and the data server are on the same host.
    pub local: bool,
}

/// A report about the I/O of one data server (`ff_iostats4`, RFC 8435 §9.2.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FfIostats4 {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The stateid of the layout.
    pub stateid: Stateid4,
    /// The reads.
    pub read: IoInfo4,
    /// The writes.
    pub write: IoInfo4,
    /// The device.
    pub deviceid: Deviceid4,
    /// The latencies.
    pub layoutupdate: FfLayoutUpdate4,
}

/// The body of a LAYOUTRETURN (`ff_layoutreturn4`, RFC 8435 §9.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct FfLayoutReturn4 {
    /// Failed I/O.
    pub ioerr_report: Vec<FfIoerr4>,
    /// Statistics.
    pub iostats_report: Vec<FfIostats4>,
}

/// A client's hint for the layout of a file (`ff_layouthint4`, RFC 8435 §10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct FfLayoutHint4 {
    /// The desired number of mirrors, if the client has a wish.
    pub mirrors: Option<u32>,
}

/// CB_RECALL_ANY: the bit of flexible file layouts for reading (RFC 8435 §13).
pub const PNFS_FF_RCA4_TYPE_MASK_READ: u32 = 16;
/// CB_RECALL_ANY: the bit of flexible file layouts for reading and writing.
pub const PNFS_FF_RCA4_TYPE_MASK_RW: u32 = 17;
