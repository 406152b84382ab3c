//! Types that all versions of NFS share: objects, errors, URLs, and the table of operations.
//!
//! This module does no I/O and does not depend on other modules of this crate.

mod caller;
mod error;
mod lock;
mod operations;
mod status;
mod types;
mod url;

pub use self::{
    caller::{Caller, TicketSource},
    error::{Error, ErrorKind, Result},
    lock::LockRange,
    status::{PeerStatus, Status},
    types::*,
    url::{MountOptions, NfsUrl, Pnfs, Security, TlsOptions, UrlError, Version},
};
pub(crate) use lock::cut;
pub(crate) use operations::{Operations, operations};
