//! [`BackgroundTask`]: work that operations leave for later. `upkeep` runs it.

use nfs::v4::Clientid4;
use rpc::BoxFuture;
use vfs::layout::LayoutEvent;

use super::{
    cb_getattr::CbGetattrRequest,
    state::{
        layout::{BulkRecall, LayoutEnd},
        load::Reduction,
        recallable::Held,
        transitions::layout::LayoutPlan,
    },
};
use crate::handle::{ExportId, FileId};

/// A task that runs in the background.
pub(super) enum BackgroundTask {
    /// Recall a delegation or layouts of a file.
    Recall(Held<FileId>),
    /// Ask the holder of a delegation for the attributes of its file.
    GetAttr(CbGetattrRequest),
    /// Ask a client to reduce its slots or delegations.
    Reduce(Clientid4, Reduction),
    /// Recall all layouts of a client in a file system.
    RecallAll(BulkRecall<FileId>),
    /// Handle an event of the back end of an export.
    Layouts(ExportId, LayoutEvent),
    /// Tell the back end that a layout has ended.
    EndLayout(LayoutEnd<FileId>),
    /// Cancel a LAYOUTGET whose call was dropped.
    CancelLayout(LayoutPlan<FileId>),
    /// Run an asynchronous copy.
    Copy(BoxFuture<'static, ()>),
    /// Check whether a client of 4.0 answers at its callback address.
    ProbeListener(Clientid4),
}
