//! The background work of NFSv4, and the end of the grace period of all protocols.
//!
//! It recalls delegations, asks clients to return slots, delegations and layouts, notifies clients that a lock has become available,
//! runs asynchronous copies, revokes delegations that were not returned in time, and removes expired clients.
//!
//! The grace period ends when its time is over, or when all clients that held state have reclaimed it. Clients of
//! version 4 say so by RECLAIM_COMPLETE. Hosts that lock by NLM cannot say so: if there are any, the whole time must
//! pass. Nothing else ends the grace period.

use std::{sync::Arc, time::Duration};

use nfs::v4::{
    Clientid4, StateOwner4,
    callback::{
        CbArgop4, CbNotifyLockArgs, CbRecallAnyArgs, CbRecallArgs, CbRecallSlotArgs, RCA4_TYPE_MASK_FILE_LAYOUT,
        RCA4_TYPE_MASK_RDATA_DLG, RCA4_TYPE_MASK_WDATA_DLG,
    },
    layout::flex::{PNFS_FF_RCA4_TYPE_MASK_READ, PNFS_FF_RCA4_TYPE_MASK_RW},
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use vfs::layout::{LayoutEvent, LayoutKind};

use super::{
    call_queue::CallQueue,
    cb_getattr::CbGetattrRequest,
    holder, layouts,
    service::Shared4,
    state::{
        load::Reduction,
        recallable::{Held, RecallableKind},
        transitions::{back::CallbackSubject, lock::name_of_lock_owner},
    },
    task::BackgroundTask,
};
use crate::{
    blocking::{Outcome, Source},
    clock,
    handle::{ExportId, FileId},
    sharing::{grace::Reclaim, locks::Notice},
};

/// Runs the background work until the server stops. A second call for the same server returns at once.
pub(crate) async fn run(shared: Arc<Shared4>, others: Arc<dyn Reclaim>) {
    let Some(mut new_tasks) = shared.take_tasks() else { return };
    let Some(mut notices) = shared.core.locks.take_notices() else { return };
    let mut tasks = JoinSet::new();
    let mut calls = Calls { shared: shared.clone(), tasks: JoinSet::new(), queue: CallQueue::default() };
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = tick.tick() => {
                drop(tasks.spawn(run_periodic(shared.clone(), others.clone())));
            }
            Some(ended) = calls.tasks.join_next(), if !calls.tasks.is_empty() => calls.ended(ended.ok()),
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            noticed = notices.recv() => match noticed {
                Some(notice) => calls.notify_lock(notice),
                None => return,
            },
            task = new_tasks.recv() => match task {
                Some(BackgroundTask::Recall(held)) => calls.recall(held),
                Some(BackgroundTask::Reduce(client, reduction)) => drop(tasks.spawn(reduce(shared.clone(), client, reduction))),
                Some(BackgroundTask::GetAttr(request)) => calls.cb_getattr(request),
                Some(BackgroundTask::ProbeListener(client)) => drop(tasks.spawn(probe_listener(shared.clone(), client))),
                Some(BackgroundTask::RecallAll(bulk)) => drop(tasks.spawn(layouts::recall_all(shared.clone(), bulk))),
                Some(BackgroundTask::Layouts(export, event)) => calls.layout_event(export, event),
                Some(BackgroundTask::EndLayout(end)) => drop(tasks.spawn(layouts::end(shared.clone(), end))),
                Some(BackgroundTask::CancelLayout(plan)) => shared.with_state(|state| state.cancel_layout(&plan)),
                Some(BackgroundTask::Copy(copying)) => drop(tasks.spawn(copying)),
                None => return,
            },
        }
    }
}

/// Runs [`Shared4::run_periodic`] on a thread that may block.
async fn run_periodic(shared: Arc<Shared4>, others: Arc<dyn Reclaim>) {
    let pool = shared.core.pools.of(None);
    if let Outcome::Panicked =
        pool.run(Source::Server, 0, (shared.clone(), others), |(shared, others)| shared.run_periodic(&**others)).await
    {
        tracing::error!("the periodic work panicked");
    }
}

/// Sends CB_RECALL or CB_LAYOUTRECALL until the client acknowledges it or the recall is over.
async fn recall(shared: Arc<Shared4>, recall: Held<FileId>) {
    if let Some(layouts) = shared.with_state(|state| state.layout_recall(&recall)) {
        return layouts::recall(shared, recall, layouts).await;
    }
    let fh = shared.callback_fh(&recall.file);
    let operation = CbArgop4::Recall(CbRecallArgs { stateid: recall.stateid, truncate: false, fh });
    let about = CallbackSubject { state: Some(recall.stateid), ..CallbackSubject::default() };
    let is_recalling = || shared.with_state(|state| state.is_recalling(&recall));
    shared.call_until_acknowledged(recall.client, (about, &operation), is_recalling).await;
}

/// Asks a client once to reduce its slots, delegations or layouts. The request is repeated later if the client does not reduce.
async fn reduce(shared: Arc<Shared4>, client: Clientid4, reduction: Reduction) {
    let (session, operation) = match reduction {
        Reduction::Slots(session, target_highest_slotid) => {
            (Some(session), CbArgop4::RecallSlot(CbRecallSlotArgs { target_highest_slotid }))
        }
        Reduction::Recallables(kind, objects_to_keep) => {
            let type_mask = type_mask(kind).iter().copied().collect();
            (None, CbArgop4::RecallAny(CbRecallAnyArgs { objects_to_keep, type_mask }))
        }
    };
    let about = CallbackSubject { session, ..CallbackSubject::default() };
    let result = shared.callbacks.call_about(&shared.state, client, about, &operation).await;
    tracing::debug!(client = client.0, ?reduction, ?result, "asked a client to return slots, delegations or layouts");
}

/// Returns the bits of CB_RECALL_ANY for recallable state of a kind (RFC 8881 §20.6.3; RFC 8435 §13).
fn type_mask(kind: RecallableKind) -> &'static [u32] {
    match kind {
        RecallableKind::Delegation => &[RCA4_TYPE_MASK_RDATA_DLG, RCA4_TYPE_MASK_WDATA_DLG],
        RecallableKind::Layout(LayoutKind::Flexible) => &[PNFS_FF_RCA4_TYPE_MASK_READ, PNFS_FF_RCA4_TYPE_MASK_RW],
        RecallableKind::Layout(LayoutKind::Files) => &[RCA4_TYPE_MASK_FILE_LAYOUT],
    }
}

/// Checks by CB_NULL whether a client of 4.0 answers at its callback address.
async fn probe_listener(shared: Arc<Shared4>, client: Clientid4) {
    while let Some(listener) = shared.with_state(|state| state.listener40(client)) {
        let answers = shared.callbacks.outgoing.probe(client, &listener).await;
        if !shared.with_state(|state| state.listener_probed(client, &listener, answers)) {
            return;
        }
    }
}

/// Sends CB_NOTIFY_LOCK once. A client that does not receive it polls for the lock all the same (§20.11.4).
async fn notify_lock(shared: Arc<Shared4>, file: FileId, lock_owner: StateOwner4) {
    let (client, fh) = (lock_owner.clientid, shared.callback_fh(&file));
    let operation = CbArgop4::NotifyLock(CbNotifyLockArgs { fh, lock_owner });
    if let Err(error) = shared.callbacks.call(&shared.state, client, &operation).await {
        tracing::debug!(client = client.0, %error, "CB_NOTIFY_LOCK failed");
    }
}

/// The callbacks in progress.
struct Calls {
    shared: Arc<Shared4>,
    tasks: JoinSet<Clientid4>,
    queue: CallQueue<Held<FileId>>,
}

impl Calls {
    /// Recalls a delegation now, or queues the recall.
    fn recall(&mut self, held: Held<FileId>) {
        if let Some(held) = self.queue.push(held.client, held) {
            self.spawn(held.client, recall(self.shared.clone(), held));
        }
    }

    /// Sends CB_GETATTR to a holder. If too many calls to this client are in progress, the call fails at once.
    fn cb_getattr(&mut self, request: CbGetattrRequest) {
        let client = request.client();
        if self.queue.begin(client) {
            self.spawn(client, holder::cb_getattr(self.shared.clone(), request));
        } else {
            self.shared.cb_getattrs.end(&request, None);
        }
    }

    /// Takes an event of a back end, and sends CB_NOTIFY_DEVICEID to the clients that want it, unless too many calls to
    /// them are in progress.
    fn layout_event(&mut self, export: ExportId, event: LayoutEvent) {
        let Some((event, clients)) = self.shared.layout_event(export, event) else { return };
        for client in clients {
            if self.queue.begin(client) {
                self.spawn(client, layouts::notify_device(self.shared.clone(), client, event.clone()));
            }
        }
    }

    /// Sends CB_NOTIFY_LOCK to a client that waits for a lock, unless too many calls to this client are in progress.
    fn notify_lock(&mut self, notice: Notice<FileId>) {
        let Some(lock_owner) = name_of_lock_owner(&notice.owner) else { return };
        let client = lock_owner.clientid;
        if self.queue.begin(client) {
            self.spawn(client, notify_lock(self.shared.clone(), notice.file, lock_owner));
        }
    }

    fn spawn(&mut self, client: Clientid4, call: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            call.await;
            client
        });
    }

    /// Begins the next call to a client after one has ended. `client` is `None` if the task of the call panicked.
    fn ended(&mut self, client: Option<Clientid4>) {
        if let Some(client) = client
            && let Some(held) = self.queue.end(client)
        {
            self.spawn(client, recall(self.shared.clone(), held));
        }
    }
}

impl Shared4 {
    /// Expires clients, revokes their state, and ends the grace period when it is due. `others` are the clients of
    /// other protocols that can reclaim. Waits for storage.
    fn run_periodic(&self, others: &dyn Reclaim) {
        let now = clock::now();
        let works = self.core.recovery.maintain();
        self.with_locks(|state, locks| {
            state.set_storage_works(works);
            state.expire(now);
            state.expire_removed(locks, now);
            state.drop_unused_records(now);
            state.reduce_load(now);
            now.checked_sub(self.lease).into_iter().for_each(|then| locks.forget_watches(then));
        });
        self.core.locks.end_grace_when_due(now, &[self, others]);
    }
}

const TICK: Duration = Duration::from_secs(1);
