//! The NFS server: serves exports, which are [`vfs`] trees, as the RPC programs NFS (versions 3, 4.0, 4.1 and 4.2),
//! MOUNT and NFS_ACL, with NLM and NSM for the locks of NFSv3.
//!
//! Start with [`NfsServer`]; [`Config`] is the configuration file. [`rpc`] accepts connections and delivers calls, this
//! crate executes them, and [`vfs`] provides the files.
//!
//! Invariants:
//! - A file handle is used only after its MAC has been verified and its export has admitted the caller's address, port,
//!   transport and security flavour. This happens on every call, not only at mount time.
//! - A procedure runs in place and never blocks there. If it has to wait for storage, it has had no effect yet, and it
//!   is run again as a whole on a thread that may block. If one of its operations is pending, the procedure is run
//!   again as a whole when the operation has completed. A journal makes sure that each operation has its effect once.
//! - File data is not copied. READ attaches the memory that the file system lends or fills, and WRITE passes the
//!   payload of the call to the file system.

pub mod admin;
mod audit;
mod blocking;
mod call;
mod callback_port;
mod clock;
pub mod config;
mod data_handle;
mod export;
mod handle;
mod hash;
mod identity;
mod mount;
mod nfsacl;
mod nlm;
mod nsm;
mod passthrough;
pub mod recovery;
mod server;
pub mod sharing;
mod v3;
pub mod v4;

pub use audit::{AuditOptions, OnFull};
pub use blocking::BlockingOptions;
pub use config::Config;
pub use data_handle::DataHandle;
pub use export::{
    Access, Export, ExportError, ExportOptions, Exports,
    client::Client,
    referral::{Location, Referral},
    sec::{Sec, SecFlavors},
    xprtsec::{Level, Protections},
};
pub use handle::{AdoptedHandle, ExportId, HandleKey};
pub use identity::{
    principals::{IdentityOptions, LocalUser, Machines, PrincipalNames, UnknownUid},
    squash::Squash,
    users::{User, UserDatabase},
};
pub use mount::Mount3;
pub use nfsacl::NfsAcl3;
pub use nlm::{Nlm4, callbacks::CallbackTransports};
pub use nsm::Nsm1;
pub use passthrough::Passthrough;
pub use server::NfsServer;
pub use v3::Nfs3;
pub use v4::{Nfs4, callback::CallbackFlavors};
