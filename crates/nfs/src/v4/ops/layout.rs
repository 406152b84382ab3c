//! Layouts: LAYOUTGET, LAYOUTCOMMIT, LAYOUTRETURN, GETDEVICEINFO and their kin (RFC 8881 §12, RFC 7862 §15.6–15.7).
//!
//! What is in a layout, a device or a hint is for its layout type; here it is opaque.

use xdr::{Array, Decode, Encode, Opaque};

use crate::v4::{bitmap::Bitmap4, ops::Opnum4, status::*, types::*};

/// What a layout is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[repr(u32)]
pub enum Layoutiomode4 {
    /// Reading.
    Read = 1,
    /// Reading and writing.
    Rw = 2,
    /// Either, when it is returned or recalled.
    Any = 3,
}

/// A body with its layout type: `layout_content4`, `device_addr4`, `layoutupdate4`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutBody4 {
    /// The type.
    pub layout_type: Layouttype4,
    /// The body, as the type says.
    pub body: Opaque<BODY_BOUND>,
}

/// A layout.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Layout4 {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// For what.
    pub iomode: Layoutiomode4,
    /// Where.
    pub content: LayoutBody4,
}

/// GETDEVICEINFO arguments (RFC 8881 §18.40).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDeviceInfoArgs {
    /// The device.
    pub device_id: Deviceid4,
    /// Of this layout type.
    pub layout_type: Layouttype4,
    /// Most bytes of the result.
    pub maxcount: u32,
    /// Which notifications are wanted.
    pub notify_types: Bitmap4,
}

/// A successful GETDEVICEINFO.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDeviceInfoOk {
    /// Where the device is.
    pub device_addr: LayoutBody4,
    /// Which notifications there will be.
    pub notification: Bitmap4,
}

/// GETDEVICEINFO results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum GetDeviceInfoRes {
    /// Here it is.
    #[xdr(Nfsstat4::Ok)]
    Ok(GetDeviceInfoOk),
    /// It takes so many bytes.
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
    /// Of this layout type.
    pub layout_type: Layouttype4,
    /// Most devices.
    pub maxdevices: u32,
    /// Continue behind this; 0 from the start.
    pub cookie: u64,
    /// Of the reply that gave the cookie.
    pub cookieverf: Verifier4,
}

/// A successful GETDEVICELIST.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDeviceListOk {
    /// Continues behind these.
    pub cookie: u64,
    /// Goes with the cookie.
    pub cookieverf: Verifier4,
    /// The devices.
    pub deviceid_list: Vec<Deviceid4>,
    /// Whether none follow.
    pub eof: bool,
}

/// GETDEVICELIST results.
pub type GetDeviceListRes = Res4<GetDeviceListOk>;

/// LAYOUTGET arguments (RFC 8881 §18.43).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutGetArgs {
    /// Whether to tell when there is one.
    pub signal_layout_avail: bool,
    /// Of this type.
    pub layout_type: Layouttype4,
    /// For what.
    pub iomode: Layoutiomode4,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Bytes that it must have.
    pub minlength: u64,
    /// On behalf of what, or the layouts so far.
    pub stateid: Stateid4,
    /// Most bytes of the result.
    pub maxcount: u32,
}

/// A successful LAYOUTGET.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutGetOk {
    /// Whether they are to be returned before CLOSE.
    pub return_on_close: bool,
    /// The layouts from now on.
    pub stateid: Stateid4,
    /// The new ones.
    pub layout: Array<Layout4, 1024>,
}

/// LAYOUTGET results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum LayoutGetRes {
    /// Here they are.
    #[xdr(Nfsstat4::Ok)]
    Ok(LayoutGetOk),
    /// Later; and whether the server will tell when.
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
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Whether it was written before the server restarted.
    pub reclaim: bool,
    /// The layouts.
    pub stateid: Stateid4,
    /// The last byte written, if any was.
    pub last_write_offset: Option<u64>,
    /// When, if the client says.
    pub time_modify: Option<Nfstime4>,
    /// For the layout type.
    pub layoutupdate: LayoutBody4,
}

/// LAYOUTCOMMIT results: the new size, if it is new.
pub type LayoutCommitRes = Res4<Option<u64>>;

/// What is returned (`layoutreturn4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Layoutreturn4 {
    /// Layouts of this file.
    #[xdr(1)]
    File {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The layouts.
        stateid: Stateid4,
        /// For the layout type.
        body: Opaque<BODY_BOUND>,
    },
    /// All of this file system.
    #[xdr(2)]
    Fsid,
    /// All.
    #[xdr(3)]
    All,
}

/// LAYOUTRETURN arguments (RFC 8881 §18.44).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutReturnArgs {
    /// Whether they were given before the server restarted.
    pub reclaim: bool,
    /// Of this type.
    pub layout_type: Layouttype4,
    /// For what.
    pub iomode: Layoutiomode4,
    /// What.
    pub layoutreturn: Layoutreturn4,
}

/// LAYOUTRETURN results: the layouts from now on, if there are any left.
pub type LayoutReturnRes = Res4<Option<Stateid4>>;

/// What went wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DeviceError4 {
    /// The device.
    pub deviceid: Deviceid4,
    /// What.
    pub status: Nfsstat4,
    /// At which operation.
    pub opnum: Opnum4,
}

/// LAYOUTERROR arguments (RFC 7862 §15.6).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutErrorArgs {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The layouts.
    pub stateid: Stateid4,
    /// What went wrong.
    pub errors: Vec<DeviceError4>,
}

/// Operations and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct IoInfo4 {
    /// Operations.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

/// LAYOUTSTATS arguments (RFC 7862 §15.7).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LayoutStatsArgs {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The layouts.
    pub stateid: Stateid4,
    /// What was read.
    pub read: IoInfo4,
    /// What was written.
    pub write: IoInfo4,
    /// The device.
    pub deviceid: Deviceid4,
    /// For the layout type.
    pub layoutupdate: LayoutBody4,
}
