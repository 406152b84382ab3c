//! [`CbGetattrs`]: the CB_GETATTR calls in progress. By these the server asks the holder of a delegation to write a file for the size
//! and the change attribute of the file (RFC 8881 §10.4.3, §20.1).
//!
//! One call is made about a delegation at a time. All operations that need the attributes in the meantime wait for that call.

use std::time::Duration;

use entropy::HashMap;
use nfs::v4::{Clientid4, Stateid4};
use parking_lot::Mutex;
use tokio::{sync::watch, time::timeout};

use super::state::recallable::Held;
use crate::handle::FileId;

/// The calls in progress, by the delegations that they are about.
#[derive(Default)]
pub(super) struct CbGetattrs(Mutex<HashMap<Stateid4, watch::Receiver<Option<Answer>>>>);

/// What the holder has answered; `None` if the call has failed.
type Answer = Option<HolderAttrs>;

/// The attributes of a file, as the holder of its delegation knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HolderAttrs {
    pub(super) change: Option<u64>,
    pub(super) size: Option<u64>,
}

/// A call that is to be made.
pub(super) struct CbGetattrRequest {
    pub(super) holder: Held<FileId>,
    answer: watch::Sender<Option<Answer>>,
}

/// A call in progress, for which an operation waits.
pub(super) struct PendingCbGetattr {
    delegation: Stateid4,
    answer: watch::Receiver<Option<Answer>>,
    timeout: Duration,
}

/// The result of a call. The operation that has waited for it uses it when it runs again.
#[derive(Clone)]
pub(super) struct CbGetattrResult {
    pub(super) delegation: Stateid4,
    pub(super) attrs: Answer,
}

impl CbGetattrs {
    /// The call to a holder that is in progress; if there is none, a new one, which the caller must have made.
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

    /// Ends a call. Whoever waits for it gets `attrs`.
    pub(super) fn end(&self, request: &CbGetattrRequest, attrs: Option<HolderAttrs>) {
        self.0.lock().remove(&request.holder.stateid);
        request.answer.send_replace(Some(attrs));
    }
}

impl CbGetattrRequest {
    /// The client that is called.
    pub(super) fn client(&self) -> Clientid4 {
        self.holder.client
    }
}

impl PendingCbGetattr {
    /// Waits for the result. If none comes in time, the call counts as failed.
    pub(super) async fn result(mut self) -> CbGetattrResult {
        let answered = timeout(self.timeout, self.answer.wait_for(Option::is_some)).await;
        let attrs = answered.ok().and_then(Result::ok).and_then(|answer| (*answer).flatten());
        CbGetattrResult { delegation: self.delegation, attrs }
    }
}
