//! What a server does unasked: version 4's callbacks and revocations, and the end of grace of all protocols.
//!
//! It recalls delegations, tells who wants a lock that it may be had, makes copies behind their replies, revokes what was not
//! given back in time, and forgets clients that have gone.
//!
//! Grace ends when its time has passed, or when all have reclaimed who had anything: the clients of version 4 say so, by
//! RECLAIM_COMPLETE; hosts that lock by NLM cannot, so where there are any the time must pass. It ends here and nowhere else.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nfs::v4::{
    Clientid4, NfsFh4, Nfsstat4, StateOwner4,
    callback::{
        CbArgop4, CbNotifyLockArgs, CbRecallAnyArgs, CbRecallArgs, CbRecallSlotArgs, RCA4_TYPE_MASK_RDATA_DLG,
        RCA4_TYPE_MASK_WDATA_DLG,
    },
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    holder::{self, Asking},
    offload::{self, Copying},
    state::{load::Ask, open::name_of_lock_owner, recallable::Held},
    turns::Turns,
};
use crate::{
    blocking::{Outcome, Source},
    call::context::Shared,
    clock,
    nlm::lockd::LockFile,
    sharing::locks::Notice,
};

/// What upkeep is asked to do.
pub(super) enum Errand {
    /// A delegation is to be recalled.
    Recall(Held<LockFile>),
    /// A holder is to be asked about its file.
    GetAttr(Asking),
    /// A client is to be asked for what there is too much of.
    Ask(Clientid4, Ask),
    /// A copy is to be made.
    Copy(Box<Copying>),
    /// A client of 4.0 says where it can be called.
    Try(Clientid4),
}

/// Does it until the server ends. Once for a server.
pub(crate) async fn run(shared: Arc<Shared>) {
    let Some(mut errands) = shared.v4.begin_upkeep() else { return };
    let Some(mut notices) = shared.lockd.take_notices() else { return };
    let mut tasks = JoinSet::new();
    let mut calls = Calls { shared: shared.clone(), tasks: JoinSet::new(), turns: Turns::default() };
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            errand = errands.recv() => match errand {
                Some(Errand::Recall(held)) => calls.recall(held),
                Some(Errand::Ask(client, ask)) => drop(tasks.spawn(ask_back(shared.clone(), client, ask))),
                Some(Errand::GetAttr(asking)) => calls.ask(asking),
                Some(Errand::Try(client)) => drop(tasks.spawn(try_listener(shared.clone(), client))),
                Some(Errand::Copy(copying)) => drop(tasks.spawn(offload::run(shared.clone(), *copying))),
                None => return,
            },
            noticed = notices.recv() => match noticed {
                Some(notice) => calls.tell(notice),
                None => return,
            },
            Some(ended) = calls.tasks.join_next(), if !calls.tasks.is_empty() => calls.ended(ended.ok()),
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            _ = tick.tick() => {
                drop(tasks.spawn(look_around(shared.clone())));
            }
        }
    }
}

/// Ends what has had its time, on a thread that may wait.
async fn look_around(shared: Arc<Shared>) {
    let pool = shared.pools.of(None);
    if let Outcome::Panicked = pool.run(Source::Server, 0, shared.clone(), |shared| shared.look_around()).await {
        tracing::error!("what has had its time could not be ended");
    }
}

/// Tells a client to give a delegation back, until it has heard.
async fn recall(shared: Arc<Shared>, recall: Held<LockFile>) {
    let fh = shared.callback_fh(&recall.file);
    let operation = CbArgop4::Recall(CbRecallArgs { stateid: recall.stateid, truncate: false, fh });
    shared.call_until_heard(recall.client, &operation, || shared.with_state(|state| state.is_recalling(&recall))).await;
}

/// Asks a client for what there is too much of, once: if it does not hear or heed it, it will be asked again.
async fn ask_back(shared: Arc<Shared>, client: Clientid4, ask: Ask) {
    let (session, operation) = match ask {
        Ask::Slots(session, target_highest_slotid) => {
            (Some(session), CbArgop4::RecallSlot(CbRecallSlotArgs { target_highest_slotid }))
        }
        Ask::Delegations(objects_to_keep) => {
            let type_mask = [RCA4_TYPE_MASK_RDATA_DLG, RCA4_TYPE_MASK_WDATA_DLG].into_iter().collect();
            (None, CbArgop4::RecallAny(CbRecallAnyArgs { objects_to_keep, type_mask }))
        }
    };
    let asked = shared.v4.callbacks.call_by(&shared.v4.state, client, session, &operation).await;
    tracing::debug!(client = client.0, ?ask, ?asked, "a client was asked for what there is too much of");
}

/// Finds whether a client of 4.0 answers where it says that it can be called.
async fn try_listener(shared: Arc<Shared>, client: Clientid4) {
    while let Some(listener) = shared.with_state(|state| state.listener40(client)) {
        let answers = shared.v4.callbacks.outgoing.probe(client, &listener).await;
        if !shared.with_state(|state| state.tried(client, &listener, answers)) {
            return;
        }
    }
}

/// Tells a client, once, that it may ask again for a lock: who does not hear it asks again all the same (§20.11.4).
async fn tell(shared: Arc<Shared>, file: LockFile, lock_owner: StateOwner4) {
    let (client, fh) = (lock_owner.clientid, shared.callback_fh(&file));
    let operation = CbArgop4::NotifyLock(CbNotifyLockArgs { fh, lock_owner });
    if let Err(error) = shared.v4.callbacks.call(&shared.v4.state, client, &operation).await {
        tracing::debug!(client = client.0, %error, "a client does not hear that it may ask again for a lock");
    }
}

/// The callbacks that are being made.
struct Calls {
    shared: Arc<Shared>,
    tasks: JoinSet<Clientid4>,
    turns: Turns<Held<LockFile>>,
}

impl Calls {
    /// Recalls a delegation, now or in its turn.
    fn recall(&mut self, held: Held<LockFile>) {
        if let Some(held) = self.turns.queue(held.client, held) {
            self.spawn(held.client, recall(self.shared.clone(), held));
        }
    }

    /// Asks a holder about its file; one that is called too much is taken to say nothing.
    fn ask(&mut self, asking: Asking) {
        let client = asking.client();
        if self.turns.begin(client) {
            self.spawn(client, holder::ask(self.shared.clone(), asking));
        } else {
            self.shared.leave(asking);
        }
    }

    /// Tells who waits for a lock that it may ask again, unless it is called too much.
    fn tell(&mut self, notice: Notice<LockFile>) {
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

impl Shared {
    /// A file as callbacks name it.
    pub(super) fn callback_fh(&self, (export, handle): &LockFile) -> NfsFh4 {
        bytes::Bytes::copy_from_slice(&self.key.seal_bytes(*export, handle)).into()
    }

    /// Calls a client until it has heard, as long as there is something to be heard.
    pub(super) async fn call_until_heard(&self, client: Clientid4, operation: &CbArgop4, is_of_use: impl Fn() -> bool) {
        let mut pause = PAUSE_MIN;
        while is_of_use() {
            match self.v4.callbacks.call(&self.v4.state, client, operation).await {
                Ok(result) if result.status() == Nfsstat4::Ok => return,
                // The reply with what it is about may still be on its way.
                Ok(result) => tracing::debug!(client = client.0, ?result, "a client does not take what it is told"),
                Err(error) => {
                    let operation = operation.opnum();
                    tracing::debug!(client = client.0, ?operation, %error, "a client does not hear what it is told");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Ends what has had its time. Waits for storage.
    fn look_around(&self) {
        let now = clock::now();
        let works = self.lockd.recovery().retry();
        self.with_locks(|state, locks| {
            state.set_storage_works(works);
            state.expire(now);
            state.forget_records(now);
            state.relieve(now);
            now.checked_sub(self.v4.lease).into_iter().for_each(|then| locks.forget_watches(then));
        });
        self.end_grace_in_time(now);
    }

    /// Ends grace if it is time. First nobody can reclaim any more, and who has not done so is crossed out, as others may get
    /// now what it had, and in another life it could reclaim that; and only then can they.
    fn end_grace_in_time(&self, now: Instant) {
        // Reclaims are refused while storage is behind: they have their time when it is not any more.
        if !self.lockd.in_grace() || self.lockd.recovery().is_behind() {
            return;
        }
        let early = !self.lockd.awaits_reclaims() && self.with_state(|state| state.may_end_grace());
        if !early && !self.lockd.is_grace_over(now) {
            return;
        }
        let crossed_out = self.with_state(|state| state.end_grace());
        self.lockd.end_grace();
        tracing::info!(early, crossed_out, "new locks can be had again");
    }
}

const TICK: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
