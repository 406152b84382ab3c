//! CB_LAYOUTRECALL and CB_NOTIFY_DEVICEID: RFC 8881 §20.3, §20.12, §12.5.5.
//!
//! A client that answers NOMATCHING_LAYOUT has forgotten its layouts, and does not return them. DELAY means that it
//! still uses them, or has not processed the reply that granted them: the callback is repeated. In all other cases the
//! layouts are revoked a lease after the recall began.

use std::sync::Arc;

use nfs::v4::{
    Clientid4, Deviceid4, Fsid4, LENGTH_TO_EOF, Layoutiomode4, Nfsstat4,
    callback::{
        CbArgop4, CbLayoutRecallArgs, CbNotifyDeviceidArgs, Layoutrecall4, Notify4, NotifyDeviceidChange4,
        NotifyDeviceidDelete4,
    },
};
use vfs::layout::{LayoutEvent, LayoutModes};
use xdr::Message;

use super::body::{NOTIFY_DEVICEID4_CHANGE, NOTIFY_DEVICEID4_DELETE, layout_type};
use crate::{
    handle::FileId,
    v4::{
        service::Shared4,
        state::{
            layout::BulkRecall,
            recallable::Held,
            transitions::{back::CallbackSubject, layout::LayoutRecall},
        },
    },
};

/// Sends CB_LAYOUTRECALL of a file until the client answers or the recall has ended.
pub(in crate::v4) async fn recall(shared: Arc<Shared4>, held: Held<FileId>, recall: LayoutRecall) {
    let LayoutRecall { kind, modes, changed } = recall;
    let file = Layoutrecall4::File {
        fh: shared.callback_fh(&held.file),
        offset: 0,
        length: LENGTH_TO_EOF,
        stateid: held.stateid,
    };
    let args = CbLayoutRecallArgs { layout_type: layout_type(kind), iomode: iomode(modes), changed, recall: file };
    let about = CallbackSubject { state: Some(held.stateid), ..CallbackSubject::default() };
    let is_recalling = || shared.with_state(|state| state.layout_recall(&held).is_some());
    let call = (about, &CbArgop4::LayoutRecall(args));
    if shared.call_until_acknowledged(held.client, call, is_recalling).await == Some(Nfsstat4::NoMatchingLayout) {
        shared.with_state(|state| state.layout_forgotten(&held));
    }
}

/// Sends CB_LAYOUTRECALL of a file system until the client answers or the recall has ended.
pub(in crate::v4) async fn recall_all(shared: Arc<Shared4>, bulk: BulkRecall<FileId>) {
    let export = bulk.file.0;
    let of = |file: &FileId| file.0 == export;
    let args = CbLayoutRecallArgs {
        layout_type: layout_type(bulk.kind),
        iomode: Layoutiomode4::Any,
        changed: bulk.changed,
        recall: Layoutrecall4::Fsid(Fsid4 { major: export.number(), minor: bulk.fsid }),
    };
    let is_recalling = || shared.with_state(|state| state.is_recalling_all(&bulk, of));
    let call = (CallbackSubject::default(), &CbArgop4::LayoutRecall(args));
    if shared.call_until_acknowledged(bulk.client, call, is_recalling).await == Some(Nfsstat4::NoMatchingLayout) {
        shared.with_state(|state| state.all_forgotten(&bulk, of));
    }
}

/// Sends CB_NOTIFY_DEVICEID once. A client that does not receive it finds out at the data server.
pub(in crate::v4) async fn notify_device(shared: Arc<Shared4>, client: Clientid4, event: LayoutEvent) {
    let (bit, values) = match event {
        LayoutEvent::DeviceRemoved { device, kind } => {
            let delete = NotifyDeviceidDelete4 { layout_type: layout_type(kind), deviceid: Deviceid4(device.0) };
            (NOTIFY_DEVICEID4_DELETE, Message::encode(&delete).stream)
        }
        LayoutEvent::DeviceChanged { device, kind, immediate } => {
            let (layout_type, deviceid) = (layout_type(kind), Deviceid4(device.0));
            let change = NotifyDeviceidChange4 { layout_type, deviceid, immediate };
            (NOTIFY_DEVICEID4_CHANGE, Message::encode(&change).stream)
        }
        LayoutEvent::Recall { .. } | LayoutEvent::RecallAll { .. } => return,
    };
    let notify = Notify4 { mask: [bit].into_iter().collect(), vals: values.into() };
    let operation = CbArgop4::NotifyDeviceid(CbNotifyDeviceidArgs { changes: vec![notify] });
    if let Err(error) = shared.callbacks.call(&shared.state, client, &operation).await {
        tracing::debug!(client = client.0, %error, "CB_NOTIFY_DEVICEID failed");
    }
}

/// Returns the I/O mode of a recall.
fn iomode(modes: LayoutModes) -> Layoutiomode4 {
    match modes {
        LayoutModes { read: true, write: false } => Layoutiomode4::Read,
        LayoutModes { read: false, write: true } => Layoutiomode4::Rw,
        _ => Layoutiomode4::Any,
    }
}
