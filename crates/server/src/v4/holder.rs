//! The holder of a delegation to write a file knows the size of the file better than the server, and whether the file has been
//! changed. CB_GETATTR asks for that.
//!
//! Read RFC 8881 §10.4.3 and §20.1. GETATTR by another client has the compound wait for the holder's answer. If the answer does not
//! come in time or is a refusal, or if the holder cannot be called, the delegation is recalled, and the other client gets DELAY.

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
    state::recallable::Held,
    status::Fault4,
    task::BackgroundTask,
};
use crate::{
    call::{error::Fault, object::Object},
    clock,
    handle::FileId,
};

/// Makes a CB_GETATTR call.
pub(super) async fn cb_getattr(shared: Arc<Shared4>, request: CbGetattrRequest) {
    let attrs = shared.attrs_at(&request.holder).await;
    shared.cb_getattrs.end(&request, attrs);
}

impl Context<'_> {
    /// The size of a file of which somebody else has a delegation to write, as far as the server does not know it itself. If the
    /// holder has changed the file, the server's own attributes say so from now on.
    ///
    /// # Errors
    /// `WouldBlock` while the holder is called: the cursor has the pending call. DELAY while the delegation is recalled.
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
                // It has been given back in the meantime.
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
            // §10.4.3: so that the change attribute does not go back if the holder never writes what it has.
            let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            object.vfs().setattr(&object.caller_as(&Cred::root()), &object.handle, &set, None)?;
        }
        Ok(attrs.size)
    }
}

impl Shared4 {
    /// Asks a holder for the attributes of its file, unless that is being done.
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
        let called = self.callbacks.call(&self.state, holder.client, &operation).await;
        let fattr = match called {
            Ok(CbResop4::GetAttr(Res4::Ok(fattr))) => fattr,
            Ok(result) => {
                tracing::debug!(client = holder.client.0, ?result, "a holder does not tell of a file");
                return None;
            }
            Err(error) => {
                tracing::debug!(client = holder.client.0, %error, "a holder cannot be asked");
                return None;
            }
        };
        let attrs = fattr.to_attrs(2, Purpose::Get).ok()?;
        Some(HolderAttrs { change: attrs.change, size: attrs.size })
    }
}

/// How long an operation waits for CB_GETATTR before the delegation is recalled: this part of a lease, and a second at least.
const LEASE_PARTS: u32 = 90;
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
