//! Layouts between the clients' state, the back ends that grant them ([`vfs::layout`]), and background work.
//!
//! Back ends send events (recalls, changed devices), which become background tasks. Layouts that have ended without an
//! operation of their client in progress are released or fenced by background tasks too. A fence is tried until it
//! succeeds: until then, nobody truncates the file and no other client gets a layout to write.

pub(super) mod body;
mod callbacks;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use entropy::HashMap;
use nfs::v4::Clientid4;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::sleep};
use vfs::{
    Caller, CompletionSlot, Cred, Layouts, Vfs, VfsError,
    layout::{LayoutDeviceId, LayoutEvent, LayoutEvents, LayoutKind},
};

pub(super) use self::callbacks::{notify_device, recall, recall_all};
use super::{
    service::Shared4,
    state::{layout::LayoutEnd, transitions::layout::LayoutPlan},
    task::BackgroundTask,
};
use crate::{
    blocking::{Outcome, Source},
    clock,
    handle::{ExportId, FileId},
};

/// The parts of layouts that are not state of clients.
pub(crate) struct LayoutService {
    /// The devices of which each client wants notifications.
    notified: Mutex<HashMap<Clientid4, Vec<(LayoutKind, LayoutDeviceId)>>>,
    /// Limits the ends of layouts that are told to back ends at a time.
    ends: Semaphore,
}

impl Default for LayoutService {
    fn default() -> Self {
        Self { notified: Mutex::default(), ends: Semaphore::new(ENDS_MAX) }
    }
}

/// Receives the events of the back end of an export.
struct Events {
    shared: Weak<Shared4>,
    export: ExportId,
}

impl LayoutEvents for Events {
    fn notify(&self, event: LayoutEvent) {
        if let Some(shared) = self.shared.upgrade() {
            shared.run_in_background(BackgroundTask::Layouts(self.export, event));
        }
    }
}

/// A LAYOUTGET in progress. If it is dropped before it is settled, because the call was dropped, the plan is cancelled.
pub(super) struct Granting {
    shared: Arc<Shared4>,
    pub(super) plan: LayoutPlan<FileId>,
    settled: AtomicBool,
}

impl Granting {
    pub(super) fn new(shared: &Arc<Shared4>, plan: LayoutPlan<FileId>) -> Self {
        Self { shared: shared.clone(), plan, settled: AtomicBool::new(false) }
    }

    /// Notes that the plan was committed or cancelled.
    pub(super) fn settle(&self) {
        self.settled.store(true, SeqCst);
    }
}

impl Drop for Granting {
    fn drop(&mut self) {
        if !self.settled.load(SeqCst) {
            self.shared.run_in_background(BackgroundTask::CancelLayout(self.plan.clone()));
        }
    }
}

/// A layout whose end an operation tells the back end. If it is dropped before, a background task does it.
pub(super) struct Ending {
    shared: Arc<Shared4>,
    pub(super) end: LayoutEnd<FileId>,
    told: AtomicBool,
}

impl Ending {
    pub(super) fn new(shared: &Arc<Shared4>, end: LayoutEnd<FileId>) -> Self {
        Self { shared: shared.clone(), end, told: AtomicBool::new(false) }
    }

    /// Notes that the back end knows it.
    pub(super) fn settle(&self) {
        self.told.store(true, SeqCst);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.told.load(SeqCst) {
            self.shared.run_in_background(BackgroundTask::EndLayout(self.end.clone()));
        }
    }
}

impl LayoutService {
    /// Notes that a client wants notifications about a device. Returns `false` if it has too many.
    pub(super) fn notify_of(&self, client: Clientid4, device: (LayoutKind, LayoutDeviceId)) -> bool {
        let mut notified = self.notified.lock();
        let devices = notified.entry(client).or_default();
        let known = devices.contains(&device);
        if !known && devices.len() < CLIENT_DEVICES_MAX {
            devices.push(device);
        }
        known || devices.contains(&device)
    }

    /// Removes a device, or keeps it, and returns the clients that want notifications about it.
    fn notified(&self, device: (LayoutKind, LayoutDeviceId), removed: bool) -> Vec<Clientid4> {
        let mut clients = Vec::new();
        self.notified.lock().retain(|client, devices| {
            if devices.contains(&device) {
                clients.push(*client);
                devices.retain(|known| !removed || *known != device);
            }
            !devices.is_empty()
        });
        clients
    }

    /// Removes a client.
    pub(super) fn forget(&self, client: Clientid4) {
        self.notified.lock().remove(&client);
    }
}

impl Shared4 {
    /// Subscribes to the events of all back ends with layouts.
    pub(super) fn subscribe_to_layouts(self: &Arc<Self>) {
        for export in self.core.exports.iter() {
            if let Some(layouts) = export.vfs().layouts() {
                layouts.subscribe(Arc::new(Events { shared: Arc::downgrade(self), export: export.id() }));
            }
        }
    }

    /// Returns `true` if a client can get layouts from this server.
    pub(super) fn has_layouts(&self) -> bool {
        self.core.exports.iter().any(|export| export.vfs().layouts().is_some())
    }

    /// Takes an event of a back end. Returns the notification to send, if it is one about a device.
    pub(super) fn layout_event(&self, export: ExportId, event: LayoutEvent) -> Option<(LayoutEvent, Vec<Clientid4>)> {
        let now = clock::now();
        match event {
            LayoutEvent::Recall { file, modes, changed } => {
                self.with_state(|state| state.recall_layouts(&(export, file), modes, changed, now));
                None
            }
            LayoutEvent::RecallAll { changed } => {
                self.with_state(|state| state.recall_all_layouts(|(of, _)| *of == export, changed, now));
                None
            }
            LayoutEvent::DeviceRemoved { device, kind } => Some((event, self.layouts.notified((kind, device), true))),
            LayoutEvent::DeviceChanged { device, kind, .. } => {
                Some((event, self.layouts.notified((kind, device), false)))
            }
        }
    }
}

/// Tells the back end that a layout has ended.
pub(super) async fn end(shared: Arc<Shared4>, end: LayoutEnd<FileId>) {
    let mut pause = PAUSE_MIN;
    loop {
        let told = {
            // The semaphore is never closed.
            let _permit = shared.layouts.ends.acquire().await;
            tell(&shared, &end).await
        };
        match told {
            Err(error) if end.fence => {
                tracing::warn!(holder = end.holder.0, %error, "a client could not be fenced from the data of a file; retrying");
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(error) => {
                tracing::debug!(holder = end.holder.0, %error, "the end of a layout");
                return;
            }
            Ok(()) => break,
        }
    }
    if end.fence {
        tracing::warn!(file = ?end.file.1, holder = end.holder.0, "a layout was revoked, and its client is fenced from the file");
        shared.with_state(|state| state.fenced(&end.file));
    }
}

/// Executes the operation of the back end, on a blocking thread if necessary.
async fn tell(shared: &Arc<Shared4>, end: &LayoutEnd<FileId>) -> vfs::Result<()> {
    let Some(export) = shared.core.exports.find(end.file.0) else { return Ok(()) };
    let (vfs, slot, cred) = (export.vfs().clone(), CompletionSlot::default(), Cred::root());
    loop {
        let told = match vfs.layouts() {
            None => return Ok(()),
            Some(layouts) => {
                let caller = Caller { completion: Some(&slot), ..Caller::nonblocking(&cred) };
                tell_as(layouts, &caller, end)
            }
        };
        match told {
            Err(VfsError::Pending) => {
                let future = slot.take_future().expect("a pending operation must leave a future");
                slot.complete(future.await);
            }
            Err(VfsError::WouldBlock) => break,
            told => return told,
        }
    }
    let run = |(vfs, end, told): &mut (Arc<dyn Vfs>, LayoutEnd<FileId>, vfs::Result<()>)| {
        if let Some(layouts) = vfs.layouts() {
            *told = tell_as(layouts, &Caller::blocking(&Cred::root()), end);
        }
    };
    match shared.core.pools.of(Some(end.file.0)).run(Source::Server, 0, (vfs, end.clone(), Ok(())), run).await {
        Outcome::Done((.., told)) => told,
        Outcome::Refused(_) => Err(VfsError::Delay),
        Outcome::Panicked => Err(VfsError::Io),
    }
}

/// Executes the operation of the back end that ends a layout.
pub(super) fn tell_as(layouts: &dyn Layouts, caller: &Caller<'_>, end: &LayoutEnd<FileId>) -> vfs::Result<()> {
    let (file, holder, modes) = (&end.file.1, end.holder, end.mode.into());
    match end.fence {
        true => layouts.fence(caller, file, holder, modes),
        false => layouts.release(caller, file, holder, modes),
    }
}

/// Maximum number of ends of layouts that are told to back ends at a time.
const ENDS_MAX: usize = 64;
/// Maximum number of devices of which a client gets notifications.
const CLIENT_DEVICES_MAX: usize = 4096;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
