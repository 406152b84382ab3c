//! Layouts: LAYOUTGET, LAYOUTCOMMIT, LAYOUTRETURN, GETDEVICEINFO and related operations (RFC 8881 §12, RFC 7862
//! §15.6–15.7).
//!
//! The layout type defines the contents of layouts, devices and hints. They are opaque here, and typed in
//! [`layout`](crate::v4::layout).

use xdr::{Array, Decode, Encode, Opaque};

use crate::v4::{bitmap::Bitmap4, ops::Opnum4, status::*, types::*};

/// The I/O mode of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[repr(u32)]
pub enum Layoutiomode4 {
    /// A mode for reading.
    Read = 1,
    /// A mode for reading and writing.
    Rw = 2,
    /// All modes, in a return or recall.
    Any = 3,
}

/// A body with its layout type: `layout_content4`, `device_addr4`, `layoutupdate4`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutBody4 {
    /// The type.
    pub layout_type: Layouttype4,
    /// The body, whose format depends on the type.
    pub body: Opaque<BODY_BOUND>,
}

/// A layout.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Layout4 {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The I/O mode.
    pub iomode: Layoutiomode4,
    /// The type and the contents of the layout.
    pub content: LayoutBody4,
}

/// GETDEVICEINFO arguments (RFC 8881 §18.40).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDeviceInfoArgs {
    /// The device.
    pub device_id: Deviceid4,
    /// The layout type.
    pub layout_type: Layouttype4,
    /// Maximum bytes of the result.
    pub maxcount: u32,
    /// The requested notifications.
    pub notify_types: Bitmap4,
}

/// A successful GETDEVICEINFO.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDeviceInfoOk {
    /// The address of the device.
    pub device_addr: LayoutBody4,
    /// The notifications that the server will send.
    pub notification: Bitmap4,
}

/// GETDEVICEINFO results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum GetDeviceInfoRes {
    /// The request succeeded.
    #[xdr(Nfsstat4::Ok)]
    Ok(GetDeviceInfoOk),
    /// The result needs this number of bytes.
    #[xdr(Nfsstat4::TooSmall)]
    TooSmall(u32),
    /// Any other status.
    #[xdr(default)]
    Fail(Nfsstat4),
}
op_result!(GetDeviceInfoRes { Ok => Ok, TooSmall => TooSmall });

/// GETDEVICELIST arguments (RFC 8881 §18.41; not in 4.2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDeviceListArgs {
    /// The layout type.
    pub layout_type: Layouttype4,
    /// Maximum number of devices.
    pub maxdevices: u32,
    /// The cookie after which to continue; 0 means from the start.
    pub cookie: u64,
    /// The verifier of the reply that returned the cookie.
    pub cookieverf: Verifier4,
}

/// A successful GETDEVICELIST.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDeviceListOk {
    /// The cookie to continue after these entries.
    pub cookie: u64,
    /// The verifier of the cookie.
    pub cookieverf: Verifier4,
    /// The devices.
    pub deviceid_list: Vec<Deviceid4>,
    /// `true` if no devices follow.
    pub eof: bool,
}

/// GETDEVICELIST results.
pub type GetDeviceListRes = Res4<GetDeviceListOk>;

/// LAYOUTGET arguments (RFC 8881 §18.43).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutGetArgs {
    /// `true` if the server should signal when a layout is available.
    pub signal_layout_avail: bool,
    /// The layout type.
    pub layout_type: Layouttype4,
    /// The I/O mode.
    pub iomode: Layoutiomode4,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// Minimum number of bytes of the layout.
    pub minlength: u64,
    /// The stateid of an open, lock or delegation, or of earlier layouts of the file.
    pub stateid: Stateid4,
    /// Maximum bytes of the result.
    pub maxcount: u32,
}

/// A successful LAYOUTGET.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutGetOk {
    /// `true` if the layouts must be returned before CLOSE.
    pub return_on_close: bool,
    /// The new stateid of the layouts.
    pub stateid: Stateid4,
    /// The new layouts.
    pub layout: Array<Layout4, 1024>,
}

/// LAYOUTGET results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum LayoutGetRes {
    /// The request succeeded.
    #[xdr(Nfsstat4::Ok)]
    Ok(LayoutGetOk),
    /// No layout is available now. The value is `true` if the server will signal when one is.
    #[xdr(Nfsstat4::LayoutTryLater)]
    TryLater(bool),
    /// Any other status.
    #[xdr(default)]
    Fail(Nfsstat4),
}
op_result!(LayoutGetRes { Ok => Ok, TryLater => LayoutTryLater });

/// LAYOUTCOMMIT arguments (RFC 8881 §18.42).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutCommitArgs {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// `true` if the data was written before the server restarted.
    pub reclaim: bool,
    /// The stateid of the layouts.
    pub stateid: Stateid4,
    /// The offset of the last byte written, if any was.
    pub last_write_offset: Option<u64>,
    /// The time of the last write, if the client provides it.
    pub time_modify: Option<Nfstime4>,
    /// Data whose format depends on the layout type.
    pub layoutupdate: LayoutBody4,
}

/// LAYOUTCOMMIT results: the new size of the file, if it has changed.
pub type LayoutCommitRes = Res4<Option<u64>>;

/// The layouts that are returned (`layoutreturn4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Layoutreturn4 {
    /// Layouts of the current file.
    #[xdr(1)]
    File {
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
        /// The stateid of the layouts.
        stateid: Stateid4,
        /// Data whose format depends on the layout type.
        body: Opaque<BODY_BOUND>,
    },
    /// All layouts of this file system.
    #[xdr(2)]
    Fsid,
    /// All layouts.
    #[xdr(3)]
    All,
}

/// LAYOUTRETURN arguments (RFC 8881 §18.44).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutReturnArgs {
    /// `true` if the layouts were granted before the server restarted.
    pub reclaim: bool,
    /// The layout type.
    pub layout_type: Layouttype4,
    /// The I/O mode.
    pub iomode: Layoutiomode4,
    /// The layouts to return.
    pub layoutreturn: Layoutreturn4,
}

/// LAYOUTRETURN results: the new stateid of the layouts, if any are left.
pub type LayoutReturnRes = Res4<Option<Stateid4>>;

/// An error of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DeviceError4 {
    /// The device.
    pub deviceid: Deviceid4,
    /// The error.
    pub status: Nfsstat4,
    /// The operation that failed.
    pub opnum: Opnum4,
}

/// LAYOUTERROR arguments (RFC 7862 §15.6).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutErrorArgs {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The stateid of the layouts.
    pub stateid: Stateid4,
    /// The errors.
    pub errors: Vec<DeviceError4>,
}

/// The number of operations and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct IoInfo4 {
    /// The number of operations.
    pub count: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// LAYOUTSTATS arguments (RFC 7862 §15.7).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutStatsArgs {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The stateid of the layouts.
    pub stateid: Stateid4,
    /// The reads.
    pub read: IoInfo4,
    /// The writes.
    pub write: IoInfo4,
    /// The device.
    pub deviceid: Deviceid4,
    /// Data whose format depends on the layout type.
    pub layoutupdate: LayoutBody4,
}
