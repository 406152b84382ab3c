//! [`BackgroundTask`]: work that operations leave for later. `upkeep` runs it.

use nfs::v4::Clientid4;
use rpc::BoxFuture;

use super::{
    cb_getattr::CbGetattrRequest,
    state::{load::Reduction, recallable::Held},
};
use crate::handle::FileId;

/// A task that runs in the background.
pub(super) enum BackgroundTask {
    /// Recall a delegation.
    Recall(Held<FileId>),
    /// Ask the holder of a delegation for the attributes of its file.
    GetAttr(CbGetattrRequest),
    /// Ask a client to reduce its slots or delegations.
    Reduce(Clientid4, Reduction),
    /// Run an asynchronous copy.
    Copy(BoxFuture<'static, ()>),
    /// Check whether a client of 4.0 answers at its callback address.
    ProbeListener(Clientid4),
}
