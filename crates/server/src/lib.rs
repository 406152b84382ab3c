//! The NFS server: exports of [`vfs`] trees, served as the RPC programs NFS (versions 3, 4.1 and 4.2) and MOUNT, with NLM, NSM and NFS_ACL
//! beside them for locks and access control lists.
//!
//! [`NfsServer`] is where to begin; [`Config`] is the configuration file. Calls come from [`rpc`], which knows
//! connections; what they do is decided here, and done by [`vfs`].
//!
//! Invariants:
//! - A file handle is only believed with its MAC, and only used after its export has admitted the caller's address,
//!   port and transport: on every call, not only when mounting.
//! - A procedure runs in place and never blocks there. One that has to wait for storage has had no effect yet, and is run
//!   again, as a whole, on a thread that may wait. One whose operation is pending is run again, as a whole, when that has
//!   completed; a journal makes each operation have its effect once.
//! - File data is not copied: READ attaches what the file system lends or fills, WRITE hands down the call's payload.

pub mod admin;
mod blocking;
mod call;
mod callback_port;
mod clock;
pub mod config;
mod export;
mod handle;
mod hash;
mod identity;
mod mount;
mod nfsacl;
mod nlm;
mod nsm;
pub mod recovery;
mod server;
pub mod sharing;
mod v3;
pub mod v4;

pub use blocking::BlockingOptions;
pub use config::Config;
pub use export::{
    Access, Client, Export, ExportError, ExportOptions, Exports,
    referral::{Location, Referral},
};
pub use handle::{ExportId, HandleKey};
pub use identity::squash::Squash;
pub use mount::Mount3;
pub use nfsacl::NfsAcl3;
pub use nlm::{Nlm4, callbacks::CallbackTransports};
pub use nsm::Nsm1;
pub use server::NfsServer;
pub use v3::Nfs3;
pub use v4::Nfs4;
