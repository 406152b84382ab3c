//! Gets the size and the change attribute of a file from the holder of a write delegation, by CB_GETATTR. The holder
//! can have newer values than the server.
//!
//! Read RFC 8881 §10.4.3 and §20.1. A GETATTR of another client makes its compound wait for the holder's answer. If the
//! answer does not arrive in time, if the holder refuses, or if it cannot be called, the delegation is recalled, and
//! the other client gets DELAY.

use std::{sync::Arc, time::Duration};

use nfs::v4::{
    Res4,
    attr::{Attr4, Purpose},
    callback::{CbArgop4, CbGetAttrArgs, CbResop4},
};
use vfs::{Cred, SetAttr, SetTime};

use super::{
    cb_getattr::{CbGetattrRequest, CbGetattrResult, HolderAttrs, PendingCbGetattr},
    cursor::Cursor,
    service::{Context, Shared4},
    state::{recallable::Held, transitions::back::CallbackSubject},
    status::Fault4,
    task::BackgroundTask,
};
use crate::{
    call::{error::Fault, object::Object},
    clock,
    handle::FileId,
};

/// Sends a CB_GETATTR and passes on the result.
pub(super) async fn cb_getattr(shared: Arc<Shared4>, request: CbGetattrRequest) {
    let attrs = shared.attrs_at(&request.holder).await;
    shared.cb_getattrs.end(&request, attrs);
}

impl Context<'_> {
    /// Returns the size of a file according to the holder of a write delegation, or `None` if no other client holds
    /// one. If the holder has changed the file, this updates the server's own attributes.
    ///
    /// # Errors
    /// `WouldBlock` while the call is pending; the cursor then holds it. DELAY while the delegation is recalled.
    pub(super) fn size_at_holder(&self, at: &mut Cursor, object: &Object<'_>) -> Result<Option<u64>, Fault4> {
        let (result, now) = (at.cb_getattr_result.clone(), clock::now());
        if !self.core.conflicts.may_be_delegated(&(&object.export.id(), &object.handle)) {
            return Ok(None);
        }
        let (file, by) = ((object.export.id(), object.handle.clone()), Some(at.client()));
        let holder = self.shared.with_locks(|state, locks| state.holder(locks, &file, by, now))?;
        let Some(holder) = holder else { return Ok(None) };
        let attrs = match result.filter(|result| result.delegation == holder.stateid) {
            Some(CbGetattrResult { attrs: Some(attrs), .. }) => attrs,
            Some(CbGetattrResult { attrs: None, .. }) => {
                self.before_read(object, Some(at.lock_client()))?;
                // The delegation was returned in the meantime.
                return Ok(None);
            }
            None => {
                at.cb_getattr = Some(self.shared.begin_cb_getattr(holder));
                return Err(Fault::WouldBlock);
            }
        };
        let known = object.getattr()?;
        let differs = attrs.size.is_some_and(|size| size != known.size);
        let is_modified =
            || Ok::<_, Fault4>(self.shared.with_state(|state| state.is_modified(&holder, attrs.change, differs)));
        if object.once("is modified", is_modified)? {
            // §10.4.3: the change attribute must not go back if the holder never writes its changes.
            //= rfc8881-10.4.3-3 rfc8881-10.7-1
            let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            object.vfs().setattr(&object.caller_as(&Cred::root()), &object.handle, &set, None)?;
        }
        Ok(attrs.size)
    }
}

impl Shared4 {
    /// Queues a CB_GETATTR to a holder, or joins the one in progress.
    fn begin_cb_getattr(&self, holder: Held<FileId>) -> PendingCbGetattr {
        let timeout = (self.lease / LEASE_PARTS).max(TIMEOUT_MIN);
        let (pending, new) = self.cb_getattrs.join(holder, timeout);
        if let Some(request) = new {
            self.run_in_background(BackgroundTask::GetAttr(request));
        }
        pending
    }

    async fn attrs_at(&self, holder: &Held<FileId>) -> Option<HolderAttrs> {
        let fh = self.callback_fh(&holder.file);
        let wanted = [Attr4::Change, Attr4::Size].into_iter().map(|attr| attr as u32).collect();
        let operation = CbArgop4::GetAttr(CbGetAttrArgs { fh, attr_request: wanted });
        let about = CallbackSubject { state: Some(holder.stateid), ..CallbackSubject::default() };
        let called = self.callbacks.call_about(&self.state, holder.client, about, &operation).await;
        let fattr = match called {
            Ok(CbResop4::GetAttr(Res4::Ok(fattr))) => fattr,
            Ok(result) => {
                tracing::debug!(client = holder.client.0, ?result, "a delegation holder rejected CB_GETATTR");
                return None;
            }
            Err(error) => {
                tracing::debug!(client = holder.client.0, %error, "CB_GETATTR to a delegation holder failed");
                return None;
            }
        };
        let attrs = fattr.to_attrs(2, Purpose::Get).ok()?;
        Some(HolderAttrs { change: attrs.change, size: attrs.size })
    }
}

/// The time that an operation waits for CB_GETATTR before the delegation is recalled: the lease time divided by this,
/// at least `TIMEOUT_MIN`.
const LEASE_PARTS: u32 = 90;
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
