//! NFS version 3, RFC 1813: types in `types.rs`, procedures with their arguments and results in `procedures.rs`.
//!
//! Which items may be placed directly by RDMA is decided here, by their type: [`xdr::Payload`] for the data of READ
//! and WRITE and the texts of SYMLINK and READLINK, nothing else (RFC 8267 §3.1).

mod procedures;
mod types;

pub use procedures::*;
pub use types::*;

/// The version number.
pub const VERSION: u32 = 3;
