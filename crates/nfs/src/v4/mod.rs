//! NFS version 4, all minor versions: RFC 7530 and 7531 (4.0), RFC 8881 and 5662 (4.1), RFC 7862 and 7863 (4.2),
//! RFC 8275 (umask) and RFC 8276 (extended attributes).
//!
//! [`compound`] says how operations are read and written one at a time, `ops` has the table of all of them,
//! [`callback`] those that a server calls, and [`attr`] the table of attributes. Types that mean the same in all minor
//! versions exist once; what a minor version does not have is refused where an operation or attribute is decoded.
//!
//! Which items may be placed directly by RDMA is decided here, by their type: [`xdr::Payload`] for the data of READ
//! and WRITE and the text of links in CREATE and READLINK, and nothing else (RFC 8267 §5.1): so the data of READ_PLUS,
//! extended attributes and directories stay in the stream.

pub mod acl;
pub mod attr;
#[macro_use]
mod status;
mod bitmap;
pub mod callback;
pub mod compound;
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
/// The number of NULL, of the NFS program and the callback program.
pub const PROC_NULL: u32 = 0;
/// The number of COMPOUND and CB_COMPOUND.
pub const PROC_COMPOUND: u32 = 1;
/// The version number of the callback program, whose number the client chooses. RFC 8881 §18.36.3 says 4; the XDR of all
/// minor versions says 1 (RFC 7863, `NFS_CB`), and that is what Linux's server calls and its client answers.
pub const CALLBACK_VERSION: u32 = 1;
