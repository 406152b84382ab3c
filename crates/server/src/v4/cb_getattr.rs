//! [`CbGetattrs`]: the CB_GETATTR calls in progress. By these the server asks the holder of a write delegation for the
//! size and the change attribute of the file (RFC 8881 §10.4.3, §20.1).
//!
//! At most one call about a delegation is in progress at a time. All operations that need the attributes wait for it.

use std::time::Duration;

use entropy::HashMap;
use nfs::v4::{Clientid4, Stateid4};
use parking_lot::Mutex;
use tokio::{sync::watch, time::timeout};

use super::state::recallable::Held;
use crate::handle::FileId;

/// The calls in progress, by the stateids of their delegations.
#[derive(Default)]
pub(super) struct CbGetattrs(Mutex<HashMap<Stateid4, watch::Receiver<Option<Answer>>>>);

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
    answer: watch::Sender<Option<Answer>>,
}

/// A call in progress for which an operation waits.
pub(super) struct PendingCbGetattr {
    delegation: Stateid4,
    answer: watch::Receiver<Option<Answer>>,
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
        if let Some(answer) = calls.get(&delegation) {
            return (PendingCbGetattr { delegation, answer: answer.clone(), timeout }, None);
        }
        let (sender, answer) = watch::channel(None);
        calls.insert(delegation, answer.clone());
        (PendingCbGetattr { delegation, answer, timeout }, Some(CbGetattrRequest { holder, answer: sender }))
    }

    /// Ends a call and hands `attrs` to all operations that wait for it.
    pub(super) fn end(&self, request: &CbGetattrRequest, attrs: Option<HolderAttrs>) {
        self.0.lock().remove(&request.holder.stateid);
        request.answer.send_replace(Some(attrs));
    }
}

impl CbGetattrRequest {
    /// Returns the client to call.
    pub(super) fn client(&self) -> Clientid4 {
        self.holder.client
    }
}

impl PendingCbGetattr {
    /// Waits for the result. After the timeout the call counts as failed.
    pub(super) async fn result(mut self) -> CbGetattrResult {
        let answered = timeout(self.timeout, self.answer.wait_for(Option::is_some)).await;
        let attrs = answered.ok().and_then(Result::ok).and_then(|answer| (*answer).flatten());
        CbGetattrResult { delegation: self.delegation, attrs }
    }
}
