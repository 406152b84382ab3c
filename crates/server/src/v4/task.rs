//! [`BackgroundTask`]: what operations leave to be done after their replies. `upkeep` runs the tasks.

use nfs::v4::Clientid4;
use rpc::BoxFuture;

use super::{
    cb_getattr::CbGetattrRequest,
    state::{load::Reduction, recallable::Held},
};
use crate::handle::FileId;

/// What is to be done in the background.
pub(super) enum BackgroundTask {
    /// A delegation is to be recalled.
    Recall(Held<FileId>),
    /// The holder of a delegation is to be asked for the attributes of its file.
    GetAttr(CbGetattrRequest),
    /// A client is to be asked for a reduction.
    Reduce(Clientid4, Reduction),
    /// A copy is to be made.
    Copy(BoxFuture<'static, ()>),
    /// A client of 4.0 says where it can be called.
    Try(Clientid4),
}
