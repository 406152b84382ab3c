//! NFS version 4, all minor versions: RFC 7530 and 7531 (4.0), RFC 8881 and 5662 (4.1), RFC 7862 and 7863 (4.2),
//! RFC 8275 (umask) and RFC 8276 (extended attributes).
//!
//! [`compound`] decodes and encodes operations one at a time. `ops` has the table of all operations, [`callback`] the
//! table of the operations that a server calls, and [`attr`] the table of attributes. A type that has the same meaning
//! in all minor versions is defined once. Operations and attributes that a minor version does not define are rejected
//! when they are decoded.
//!
//! The type of an item decides whether RDMA may place it directly. [`xdr::Payload`] is the type of the data of READ and
//! WRITE and of the link targets in CREATE and READLINK. Nothing else may be placed directly (RFC 8267 §5.1). So the
//! data of READ_PLUS, extended attributes and directories stay in the stream.

pub mod acl;
pub mod attr;
#[macro_use]
mod status;
mod bitmap;
pub mod callback;
pub mod compound;
pub mod layout;
pub mod location;
mod operation;
mod ops;
mod types;

pub use bitmap::Bitmap4;
pub use operation::BadOperation;
pub use ops::*;
pub use status::{Nfsstat4, OpResult, Res4};
pub use types::*;

/// The version number.
pub const VERSION: u32 = 4;
/// The minor versions.
pub const MINOR_VERSIONS: std::ops::RangeInclusive<u32> = 0..=2;
/// The procedure number of NULL, in the NFS program and in the callback program.
pub const PROC_NULL: u32 = 0;
/// The procedure number of COMPOUND and CB_COMPOUND.
pub const PROC_COMPOUND: u32 = 1;
/// The version number of the callback program, whose program number the client chooses. RFC 8881 §18.36.3 says 4. The
/// XDR of all minor versions says 1 (RFC 7863, `NFS_CB`), which Linux's server and client use.
pub const CALLBACK_VERSION: u32 = 1;
