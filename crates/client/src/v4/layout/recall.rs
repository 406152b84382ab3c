//! CB_LAYOUTRECALL, CB_RECALL_ANY and CB_NOTIFY_DEVICEID, and the loss of layouts (RFC 8881 §12.5.5, §20.3, §20.6, §20.12).
//!
//! A recalled layout is not used for new I/O. When the I/O in progress has ended, the client sends LAYOUTCOMMIT and LAYOUTRETURN.
//! Meanwhile, and until the server grants another layout, data pass through the metadata server.

use std::sync::Arc;

use nfs::v4::{callback::*, *};
use xdr::{Decode, Decoder};

use super::{
    super::{
        attr,
        opens::{OpenFile, Opens},
    },
    grant::{NOTIFY_DEVICEID4_CHANGE, NOTIFY_DEVICEID4_DELETE, layout_return},
    held::LAYOUT_TYPES,
};
use crate::{call::Deadline, model::Handle, session::compound::Compound};

impl Opens {
    /// Executes CB_LAYOUTRECALL.
    pub fn layouts_recalled(self: &Arc<Self>, args: &CbLayoutRecallArgs) -> Nfsstat4 {
        let layout_type = args.layout_type;
        if !LAYOUT_TYPES.contains(&layout_type) {
            return Nfsstat4::NoMatchingLayout;
        }
        let fsid = match &args.recall {
            Layoutrecall4::File { fh, stateid, .. } => return self.layout_recalled(fh, stateid, args.iomode),
            Layoutrecall4::Fsid(fsid) => Some(*fsid),
            Layoutrecall4::All => None,
        };
        let is_there = |file: &Arc<OpenFile>| match fsid {
            Some(fsid) => self.names.lock().id(&file.handle).is_none_or(|id| id.fsid == attr::fsid(fsid)),
            None => true,
        };
        let files: Vec<_> = self.all().into_iter().filter(is_there).collect();
        if files.iter().any(|file| file.layouts.held.lock().is_asking) {
            return Nfsstat4::Delay;
        }
        let has_layouts = |file: &Arc<OpenFile>| {
            let held = file.layouts.held.lock();
            held.stateid.is_some() && held.layout_type == Some(layout_type)
        };
        let held: Vec<_> = files.into_iter().filter(has_layouts).collect();
        let Some(first) = held.first().map(|file| file.handle.clone()) else { return Nfsstat4::NoMatchingLayout };
        let opens = self.clone();
        self.client.link.runtime.spawn(async move {
            for file in &held {
                opens.end_layouts(file, None).await;
            }
            // RFC 8881 §12.5.5.1: this tells the server that the recall is complete.
            let compound = match fsid {
                Some(_) => Compound::on("LAYOUTRETURN", &first).op(layout_return(layout_type, Layoutreturn4::Fsid), 24),
                None => Compound::new("LAYOUTRETURN").op(layout_return(layout_type, Layoutreturn4::All), 24),
            };
            let deadline = &Deadline::strict(opens.client.link.lease());
            if let Err(error) = opens.client.run(&compound.once(), deadline).await {
                tracing::debug!(%error, "the end of a recall of all layouts could not be told");
            }
        });
        Nfsstat4::Ok
    }

    fn layout_recalled(self: &Arc<Self>, handle: &Handle, stateid: &Stateid4, mode: Layoutiomode4) -> Nfsstat4 {
        let Some(file) = self.known(handle) else { return Nfsstat4::NoMatchingLayout };
        {
            let mut held = file.layouts.held.lock();
            // RFC 8881 §12.5.5.2.1.1: the recall can be about the layout whose grant is still in transit.
            if held.is_asking {
                return Nfsstat4::Delay;
            }
            if !held.recalled(stateid) || !held.holds_mode(mode) {
                return Nfsstat4::NoMatchingLayout;
            }
            if held.is_ending {
                return Nfsstat4::Ok;
            }
        }
        let opens = self.clone();
        self.client.link.runtime.spawn(async move { opens.end_layouts(&file, None).await });
        Nfsstat4::Ok
    }

    /// Returns the layouts of the files that were least recently used, until `keep` files have layouts (CB_RECALL_ANY).
    pub fn keep_layouts(self: &Arc<Self>, keep: usize) {
        let mut files = self.all();
        files.retain(|file| file.layouts.held.lock().stateid.is_some());
        files.sort_by_key(|file| file.used());
        let excess = files.len().saturating_sub(keep);
        files.truncate(excess);
        let opens = self.clone();
        self.client.link.runtime.spawn(async move {
            for file in &files {
                opens.end_layouts(file, None).await;
            }
        });
    }

    /// Executes CB_NOTIFY_DEVICEID: devices that were removed or changed are asked for again when they are used next.
    pub fn devices_changed(&self, args: &CbNotifyDeviceidArgs) -> Nfsstat4 {
        for change in &args.changes {
            let decoder = &mut Decoder::from(&change.vals.0);
            for bit in change.mask.iter() {
                let changed = match bit {
                    NOTIFY_DEVICEID4_CHANGE => NotifyDeviceidChange4::decode(decoder).map(|change| change.deviceid),
                    NOTIFY_DEVICEID4_DELETE => NotifyDeviceidDelete4::decode(decoder).map(|change| change.deviceid),
                    _ => return Nfsstat4::Inval,
                };
                match changed {
                    Ok(id) => self.layouts.remove_device(&id),
                    Err(_) => return Nfsstat4::BadXdr,
                }
            }
        }
        Nfsstat4::Ok
    }
}
