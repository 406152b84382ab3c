//! [`Callbacks`]: executes the callbacks of a server (RFC 8881 §20).
//!
//! A recalled delegation or layout is returned. Callbacks for features that this client does not use (notifications of
//! directories) get the reply that the RFC requires of a client that holds none.

use std::sync::{Arc, Weak};

use nfs::v4::{
    callback::*,
    layout::flex::{PNFS_FF_RCA4_TYPE_MASK_READ, PNFS_FF_RCA4_TYPE_MASK_RW},
    *,
};
use parking_lot::Mutex;
use xdr::Opaque;

use super::{offloads::Offloads, server::Server};
use crate::{
    call::Deadline,
    model::Handle,
    session::{backchannel::CallbackHandler, compound::Compound},
};

/// Executes the callbacks of a server.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    pub offloads: Offloads,
    server: Mutex<Weak<Server>>,
}

impl CallbackHandler for Callbacks {
    fn execute(&self, op: CbArgop4) -> CbResop4 {
        let opnum = op.opnum();
        let status = match op {
            CbArgop4::Recall(args) => self.recall(&args),
            CbArgop4::RecallAny(args) => self.recall_any(&args),
            CbArgop4::NotifyLock(args) => self.notify_lock(&args),
            CbArgop4::GetAttr(args) => return CbResop4::GetAttr(self.getattr(&args).into()),
            CbArgop4::LayoutRecall(args) => match self.server() {
                Some(server) => server.opens.layouts_recalled(&args),
                None => Nfsstat4::NoMatchingLayout,
            },
            CbArgop4::NotifyDeviceid(args) => match self.server() {
                Some(server) => server.opens.devices_changed(&args),
                None => Nfsstat4::Ok,
            },
            // RFC 8881 §20.5.3: this client did not ask for a delegation.
            CbArgop4::PushDeleg(_) => Nfsstat4::RejectDeleg,
            CbArgop4::RecallSlot(args) => self.recall_slot(&args),
            CbArgop4::RecallableObjAvail(_) | CbArgop4::WantsCancelled(_) => Nfsstat4::Ok,
            CbArgop4::Offload(args) => {
                self.offloads.ended(args.stateid, args.offload_info);
                Nfsstat4::Ok
            }
            CbArgop4::Notify(_) => Nfsstat4::NotSupp,
            CbArgop4::Sequence(_) => unreachable!("the backchannel must execute CB_SEQUENCE"),
        };
        match (opnum, status) {
            (CbOpnum4::LayoutRecall, Nfsstat4::Ok) => CbResop4::LayoutRecall(Res4::Ok(())),
            (CbOpnum4::Recall, Nfsstat4::Ok) => CbResop4::Recall(Res4::Ok(())),
            (CbOpnum4::RecallAny, Nfsstat4::Ok) => CbResop4::RecallAny(Res4::Ok(())),
            (CbOpnum4::RecallSlot, Nfsstat4::Ok) => CbResop4::RecallSlot(Res4::Ok(())),
            (CbOpnum4::RecallableObjAvail, Nfsstat4::Ok) => CbResop4::RecallableObjAvail(Res4::Ok(())),
            (CbOpnum4::WantsCancelled, Nfsstat4::Ok) => CbResop4::WantsCancelled(Res4::Ok(())),
            (CbOpnum4::NotifyLock, Nfsstat4::Ok) => CbResop4::NotifyLock(Res4::Ok(())),
            (CbOpnum4::Offload, Nfsstat4::Ok) => CbResop4::Offload(Res4::Ok(())),
            (CbOpnum4::NotifyDeviceid, Nfsstat4::Ok) => CbResop4::NotifyDeviceid(Res4::Ok(())),
            (opnum, status) => CbResop4::failure(opnum, status),
        }
    }
}

impl Callbacks {
    /// Sets the server that sends the callbacks.
    pub fn serve(&self, server: &Arc<Server>) {
        *self.server.lock() = Arc::downgrade(server);
    }

    fn server(&self) -> Option<Arc<Server>> {
        self.server.lock().upgrade()
    }

    fn recall(&self, args: &CbRecallArgs) -> Nfsstat4 {
        let Some(server) = self.server() else { return Nfsstat4::BadHandle };
        server.opens.recalled(args.stateid);
        Nfsstat4::Ok
    }

    fn recall_any(&self, args: &CbRecallAnyArgs) -> Nfsstat4 {
        let mask = &args.type_mask;
        let server = self.server();
        let layouts = [RCA4_TYPE_MASK_FILE_LAYOUT, PNFS_FF_RCA4_TYPE_MASK_READ, PNFS_FF_RCA4_TYPE_MASK_RW];
        if layouts.iter().any(|bit| mask.contains(*bit))
            && let Some(server) = &server
        {
            server.opens.keep_layouts(args.objects_to_keep as usize);
        }
        if (mask.contains(RCA4_TYPE_MASK_RDATA_DLG) || mask.contains(RCA4_TYPE_MASK_WDATA_DLG))
            && let Some(server) = server
        {
            let files = server.opens.delegated_files();
            let excess = files.len().saturating_sub(args.objects_to_keep as usize);
            for file in files.into_iter().take(excess) {
                let stateid = file.state.lock().delegation.as_ref().map(|delegation| delegation.stateid);
                stateid.into_iter().for_each(|stateid| server.opens.recall(stateid));
            }
        }
        Nfsstat4::Ok
    }

    /// Uses fewer slots and tells the server, which may then discard the others (RFC 8881 §20.8.3).
    fn recall_slot(&self, args: &CbRecallSlotArgs) -> Nfsstat4 {
        let server = self.server();
        if let Some(server) = server {
            if let Some(session) = server.client.session() {
                session.set_target_slot(args.target_highest_slotid);
            }
            server.client.link.runtime.clone().spawn(async move {
                let deadline = &Deadline::strict(server.client.link.lease());
                // With the first request the server learns that its target is known; with the second, that the client
                // complies.
                for _ in 0..2 {
                    if let Err(error) = server.client.run(&Compound::new("SEQUENCE"), deadline).await {
                        tracing::debug!(%error, "reporting the smaller number of slots failed");
                    }
                }
            });
        }
        Nfsstat4::Ok
    }

    /// Wakes an owner that waits for a lock, so that it retries (RFC 8881 §20.11).
    fn notify_lock(&self, args: &CbNotifyLockArgs) -> Nfsstat4 {
        let handle: Handle = Opaque(args.fh.0.clone());
        let server = self.server();
        if let Some(file) = server.and_then(|server| server.opens.known(&handle)) {
            let retry = file.state.lock().waiting.get(&args.lock_owner.owner.0).cloned();
            retry.into_iter().for_each(|retry| retry.notify_waiters());
        }
        Nfsstat4::Ok
    }

    /// Returns the change attribute and size of a file with a write delegation. Only this client knows them while it
    /// has outstanding writes (RFC 8881 §10.4.3).
    fn getattr(&self, args: &CbGetAttrArgs) -> Result<attr::Fattr4, Nfsstat4> {
        let handle: Handle = Opaque(args.fh.0.clone());
        let server = self.server().ok_or(Nfsstat4::BadHandle)?;
        let file = server.opens.known(&handle).ok_or(Nfsstat4::BadHandle)?;
        let state = file.state.lock();
        let delegated = state.delegation.as_ref().filter(|delegation| delegation.write).ok_or(Nfsstat4::BadHandle)?;
        let (change, size) = delegated.change.zip(delegated.size).ok_or(Nfsstat4::BadHandle)?;
        let change = change.wrapping_add(u64::from(state.writing > 0));
        let mut attrs = attr::Attrs { change: Some(change), size: Some(size), ..attr::Attrs::default() };
        attrs.retain(&args.attr_request);
        Ok(attrs.into())
    }
}
