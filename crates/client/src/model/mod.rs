//! The vocabulary of the client: types, errors, URLs, and the table of operations that every version has.
//!
//! Nothing here does I/O, and nothing here depends on another folder of this crate.

mod error;
mod operations;
mod status;
mod types;
mod url;

pub use self::{
    error::{Error, ErrorKind, Result},
    status::{PeerStatus, Status},
    types::*,
    url::{MountOptions, NfsUrl, UrlError, Version},
};
pub(crate) use operations::{Operations, operations};
