//! What a server does unasked: version 4's callbacks and revocations, and the end of grace of all protocols.
//!
//! It recalls delegations, tells who wants a lock that it may be had, makes copies behind their replies, revokes what was not
//! given back in time, and forgets clients that have gone.
//!
//! Grace ends when its time has passed, or when all have reclaimed who had anything: the clients of version 4 say so, by
//! RECLAIM_COMPLETE; hosts that lock by NLM cannot, so where there are any the time must pass. It ends here and nowhere else.

use std::{sync::Arc, time::Duration};

use nfs::v4::{
    Clientid4, StateOwner4,
    callback::{
        CbArgop4, CbNotifyLockArgs, CbRecallAnyArgs, CbRecallArgs, CbRecallSlotArgs, RCA4_TYPE_MASK_RDATA_DLG,
        RCA4_TYPE_MASK_WDATA_DLG,
    },
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{
    cb_getattr::CbGetattrRequest,
    holder,
    service::Shared4,
    state::{load::Reduction, recallable::Held, transitions::open::name_of_lock_owner},
    task::BackgroundTask,
    turns::Turns,
};
use crate::{
    blocking::{Outcome, Source},
    clock,
    handle::FileId,
    sharing::{grace::Reclaim, locks::Notice},
};

/// Does it until the server ends. Once for a server.
pub(crate) async fn run(shared: Arc<Shared4>, others: Arc<dyn Reclaim>) {
    let Some(mut new_tasks) = shared.take_tasks() else { return };
    let Some(mut notices) = shared.core.locks.take_notices() else { return };
    let mut tasks = JoinSet::new();
    let mut calls = Calls { shared: shared.clone(), tasks: JoinSet::new(), turns: Turns::default() };
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
                Some(notice) => calls.tell(notice),
                None => return,
            },
            task = new_tasks.recv() => match task {
                Some(BackgroundTask::Recall(held)) => calls.recall(held),
                Some(BackgroundTask::Reduce(client, reduction)) => drop(tasks.spawn(reduce(shared.clone(), client, reduction))),
                Some(BackgroundTask::GetAttr(request)) => calls.cb_getattr(request),
                Some(BackgroundTask::Try(client)) => drop(tasks.spawn(try_listener(shared.clone(), client))),
                Some(BackgroundTask::Copy(copying)) => drop(tasks.spawn(copying)),
                None => return,
            },
        }
    }
}

/// Runs [`Shared4::run_periodic`] on a thread that may wait.
async fn run_periodic(shared: Arc<Shared4>, others: Arc<dyn Reclaim>) {
    let pool = shared.core.pools.of(None);
    if let Outcome::Panicked =
        pool.run(Source::Server, 0, (shared.clone(), others), |(shared, others)| shared.run_periodic(&**others)).await
    {
        tracing::error!("what has had its time could not be ended");
    }
}

/// Tells a client to give a delegation back, until it has heard.
async fn recall(shared: Arc<Shared4>, recall: Held<FileId>) {
    let fh = shared.callback_fh(&recall.file);
    let operation = CbArgop4::Recall(CbRecallArgs { stateid: recall.stateid, truncate: false, fh });
    shared.call_until_heard(recall.client, &operation, || shared.with_state(|state| state.is_recalling(&recall))).await;
}

/// Asks a client for a reduction, once. If it does not answer or does not reduce, it will be asked again.
async fn reduce(shared: Arc<Shared4>, client: Clientid4, reduction: Reduction) {
    let (session, operation) = match reduction {
        Reduction::Slots(session, target_highest_slotid) => {
            (Some(session), CbArgop4::RecallSlot(CbRecallSlotArgs { target_highest_slotid }))
        }
        Reduction::Delegations(objects_to_keep) => {
            let type_mask = [RCA4_TYPE_MASK_RDATA_DLG, RCA4_TYPE_MASK_WDATA_DLG].into_iter().collect();
            (None, CbArgop4::RecallAny(CbRecallAnyArgs { objects_to_keep, type_mask }))
        }
    };
    let asked = shared.callbacks.call_by(&shared.state, client, session, &operation).await;
    tracing::debug!(client = client.0, ?reduction, ?asked, "a client was asked for what there is too much of");
}

/// Finds whether a client of 4.0 answers where it says that it can be called.
async fn try_listener(shared: Arc<Shared4>, client: Clientid4) {
    while let Some(listener) = shared.with_state(|state| state.listener40(client)) {
        let answers = shared.callbacks.outgoing.probe(client, &listener).await;
        if !shared.with_state(|state| state.tried(client, &listener, answers)) {
            return;
        }
    }
}

/// Tells a client, once, that it may ask again for a lock: who does not hear it asks again all the same (§20.11.4).
async fn tell(shared: Arc<Shared4>, file: FileId, lock_owner: StateOwner4) {
    let (client, fh) = (lock_owner.clientid, shared.callback_fh(&file));
    let operation = CbArgop4::NotifyLock(CbNotifyLockArgs { fh, lock_owner });
    if let Err(error) = shared.callbacks.call(&shared.state, client, &operation).await {
        tracing::debug!(client = client.0, %error, "a client does not hear that it may ask again for a lock");
    }
}

/// The callbacks that are being made.
struct Calls {
    shared: Arc<Shared4>,
    tasks: JoinSet<Clientid4>,
    turns: Turns<Held<FileId>>,
}

impl Calls {
    /// Recalls a delegation, now or in its turn.
    fn recall(&mut self, held: Held<FileId>) {
        if let Some(held) = self.turns.queue(held.client, held) {
            self.spawn(held.client, recall(self.shared.clone(), held));
        }
    }

    /// Asks a holder for the attributes of its file. If too many calls are being made to it, this one counts as failed.
    fn cb_getattr(&mut self, request: CbGetattrRequest) {
        let client = request.client();
        if self.turns.begin(client) {
            self.spawn(client, holder::cb_getattr(self.shared.clone(), request));
        } else {
            self.shared.cb_getattrs.end(&request, None);
        }
    }

    /// Tells who waits for a lock that it may ask again, unless it is called too much.
    fn tell(&mut self, notice: Notice<FileId>) {
        let Some(lock_owner) = name_of_lock_owner(&notice.owner) else { return };
        let client = lock_owner.clientid;
        if self.turns.begin(client) {
            self.spawn(client, tell(self.shared.clone(), notice.file, lock_owner));
        }
    }

    fn spawn(&mut self, client: Clientid4, call: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async move {
            call.await;
            client
        });
    }

    /// One has ended, if nothing is wrong with us.
    fn ended(&mut self, client: Option<Clientid4>) {
        if let Some(client) = client
            && let Some(held) = self.turns.end(client)
        {
            self.spawn(client, recall(self.shared.clone(), held));
        }
    }
}

impl Shared4 {
    /// Expires clients, revokes their state, and ends grace when it is due. `others` are the other protocols' clients that may
    /// reclaim. Waits for storage.
    fn run_periodic(&self, others: &dyn Reclaim) {
        let now = clock::now();
        let works = self.core.recovery.maintain();
        self.with_locks(|state, locks| {
            state.set_storage_works(works);
            state.expire(now);
            state.forget_records(now);
            state.relieve(now);
            now.checked_sub(self.lease).into_iter().for_each(|then| locks.forget_watches(then));
        });
        self.core.locks.end_grace_when_due(now, &[self, others]);
    }
}

const TICK: Duration = Duration::from_secs(1);
