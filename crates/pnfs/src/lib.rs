//! A file system layer for pNFS: the data of files are on data servers.
//!
//! [`Pnfs`] is a [`vfs::Vfs`] over another one, the *inner* file system. Names, attributes, permissions and handles are
//! those of the inner file system. A file begins with its data there, and *spills* to data servers when it becomes longer
//! than [`Options::threshold`]. The inner file is then sparse, with the size and the times of the file, and an extended
//! attribute has the [`Record`] of its copies. All operations on data work for every caller: the layer executes them at
//! the data servers ([`DataServers`]), and they are [pending](vfs::pending) meanwhile.
//!
//! Read `docs/adr/0012-pnfs.md` first, and RFC 8435 §2.2 and §8 (mirrors).
//!
//! **Stripes.** The stripes of a file are independent: each has its own copies, in sync or not, and all rules about copies
//! apply to each stripe. This works because a byte has the same offset in every object (RFC 8435 §6).
//!
//! **Order of writes.** These rules keep every acknowledged byte, whenever the process ends:
//!
//! 1. A record is durable before a write is acknowledged that a copy has missed, and before a layout without this copy is
//!    granted. The last copy of a stripe that is in sync is never marked stale: the operation fails instead.
//! 2. A file is marked in the [`index`] before its first write, and copies that may differ after a failure are compared
//!    before a second copy is read.
//! 3. Objects are in the index and in the queue of removals before they are created, or before a client can create them. They are
//!    removed only after it has been checked that no record names them.
//! 4. A file is marked in the index before a layout to write is granted. The mark stays until the last one has ended and the size of the
//!    file is durable. If the process ends, the next one locks the clients out, takes the size of the file from the objects, and compares
//!    the copies. Layouts to read are not recorded: a write that a copy misses is acknowledged only when the leases of the former process
//!    have ended.
//! 5. Nothing that is decided from a record outlives it: after a failed change, or one that an earlier process may not have completed,
//!    the record is made durable before it is used.
//! 6. Unstable writes are made durable before a copy is compared with others or copied, and after that. If a copy has lost some in
//!    between, the write verifier changes.
//! 7. Writes that a client may not have committed when it returns a layout are made durable. If a data server may have lost some
//!    before, the copies are compared.
//! 8. If an earlier process has left work, the first changes wait until its requests cannot reach data servers any more.
//!
//! **Two kinds of data servers.** With most, the metadata server creates each object. With others, the first write does
//! ([`DataServers::creates_on_write`]), so that a new file needs no call: [`objects`] is such a data server. An object that does not
//! exist there is new only if the file has no data in its stripe. Otherwise it has been lost, and is an error as with the former.
//!
//! **Errors.** A data server that fails is an error of an operation only if no other copy of the same stripe is in
//! sync.

mod balance;
mod core;
mod database;
mod files;
mod holders;
pub mod index;
mod layouts;
pub mod objects;
mod ranges;
pub mod record;
pub mod servers;
mod services;
mod space;
pub mod stripes;
mod threads;
mod tree;

pub use crate::{
    core::{
        Earlier, FileStatus, Options, Orphans, Pnfs, RebalancePlan, RebalanceStatus, Repairs, ScanStatus, ServerStatus,
        SetServiceError,
    },
    holders::CLOCK_DIFFERENCE,
    index::Index,
    record::{Record, RecordError, ServerId},
    servers::{ClientAccess, DataServers, ObjectAttr, Presence, ServerError, ServerFuture, WriteVerifier},
    services::Service,
    stripes::Stripes,
};
