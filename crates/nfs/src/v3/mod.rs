//! NFS version 3, RFC 1813: types in `types.rs`, procedures with their arguments and results in `procedures.rs`.
//!
//! The type of an item decides whether RDMA may place it directly. [`xdr::Payload`] is the type of the data of READ and
//! WRITE and of the targets in SYMLINK and READLINK. Nothing else may be placed directly (RFC 8267 §3.1).

mod procedures;
mod types;

pub use procedures::*;
pub use types::*;

/// The version number.
pub const VERSION: u32 = 3;
