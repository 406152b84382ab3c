//! [`CbGetattrs`]: the CB_GETATTR calls in progress. By these the server asks the holder of a write delegation for the
//! size and the change attribute of the file (RFC 8881 §10.4.3, §20.1).
//!
//! At most one call about a delegation is in progress at a time. All operations that need the attributes wait for it.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use entropy::HashMap;
use nfs::v4::{Clientid4, Stateid4};
use parking_lot::Mutex;
use rpc::Signal;
use tokio::time::timeout;

use super::state::recallable::Held;
use crate::handle::FileId;

/// The calls in progress, by the stateids of their delegations.
#[derive(Default)]
pub(super) struct CbGetattrs(Mutex<HashMap<Stateid4, Arc<InProgress>>>);

/// A call in progress.
#[derive(Default)]
struct InProgress {
    /// The answer. A call that has ended without one has failed.
    answer: OnceLock<Answer>,
    ended: Signal,
}

/// The answer of the holder; `None` if the call failed.
type Answer = Option<HolderAttrs>;

/// The attributes of a file according to the holder of its delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HolderAttrs {
    pub(super) change: Option<u64>,
    pub(super) size: Option<u64>,
}

/// A call to be sent.
pub(super) struct CbGetattrRequest {
    pub(super) holder: Held<FileId>,
    call: Arc<InProgress>,
}

/// A call in progress for which an operation waits.
pub(super) struct PendingCbGetattr {
    delegation: Stateid4,
    call: Arc<InProgress>,
    timeout: Duration,
}

/// The result of a call. The operation that waited for it uses it when it runs again.
#[derive(Clone)]
pub(super) struct CbGetattrResult {
    pub(super) delegation: Stateid4,
    pub(super) attrs: Answer,
}

impl CbGetattrs {
    /// Joins the call in progress to a holder. If there is none, also returns a request, which the caller must have
    /// sent.
    pub(super) fn join(&self, holder: Held<FileId>, timeout: Duration) -> (PendingCbGetattr, Option<CbGetattrRequest>) {
        let delegation = holder.stateid;
        let mut calls = self.0.lock();
        if let Some(call) = calls.get(&delegation) {
            return (PendingCbGetattr { delegation, call: call.clone(), timeout }, None);
        }
        let call = Arc::<InProgress>::default();
        calls.insert(delegation, call.clone());
        (PendingCbGetattr { delegation, call: call.clone(), timeout }, Some(CbGetattrRequest { holder, call }))
    }

    /// Ends a call and hands `attrs` to all operations that wait for it.
    pub(super) fn end(&self, request: &CbGetattrRequest, attrs: Option<HolderAttrs>) {
        self.0.lock().remove(&request.holder.stateid);
        // A request ends once, so there is no earlier answer.
        let _ = request.call.answer.set(attrs);
        request.call.ended.send();
    }
}

impl CbGetattrRequest {
    /// Returns the client to call.
    pub(super) fn client(&self) -> Clientid4 {
        self.holder.client
    }
}

impl Drop for CbGetattrRequest {
    /// Ends the call, also if it was never sent.
    fn drop(&mut self) {
        self.call.ended.send();
    }
}

impl PendingCbGetattr {
    /// Waits for the result. After the timeout the call counts as failed.
    pub(super) async fn result(self) -> CbGetattrResult {
        // After the timeout there is no answer.
        let _ = timeout(self.timeout, self.call.ended.wait()).await;
        let attrs = self.call.answer.get().copied().flatten();
        CbGetattrResult { delegation: self.delegation, attrs }
    }
}
