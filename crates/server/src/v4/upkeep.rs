//! What version 4 does unasked: it recalls delegations, revokes what was not given back in time, forgets clients that have
//! gone, and ends grace.
//!
//! Grace ends when its time has passed, or when all have reclaimed who had anything: the clients of version 4 say so, by
//! RECLAIM_COMPLETE; hosts that lock by NLM cannot, so where there are any the time must pass.

use std::{sync::Arc, time::Duration};

use nfs::v4::{
    Nfsstat4, Res4,
    callback::{CbArgop4, CbRecallArgs, CbResop4},
};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{callback::CallbackError, state::delegation::Recall};
use crate::{clock, context::Shared, nlm::lockd::LockFile};

/// Does it until the server ends. Once for a server.
pub(crate) async fn run(shared: Arc<Shared>) {
    let Some(mut recalls) = shared.v4.begin_upkeep() else { return };
    let mut tasks = JoinSet::new();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            recalled = recalls.recv() => match recalled {
                Some(recalled) => drop(tasks.spawn(recall(shared.clone(), recalled))),
                None => return,
            },
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            _ = tick.tick() => {
                let shared = shared.clone();
                drop(tasks.spawn_blocking(move || shared.look_around()));
            }
        }
    }
}

/// Tells a client to give a delegation back, until it has heard.
async fn recall(shared: Arc<Shared>, recall: Recall<LockFile>) {
    let (export, handle) = &recall.file;
    let fh = bytes::Bytes::copy_from_slice(&shared.key.seal_bytes(*export, handle));
    let operation = CbArgop4::Recall(CbRecallArgs { stateid: recall.stateid, truncate: false, fh: fh.into() });
    let mut pause = PAUSE_MIN;
    while shared.with_state(|state| state.is_recalling(&recall)) {
        let called = shared.v4.callbacks.call(&shared.v4.state, recall.client, &operation).await;
        match called {
            Ok(CbResop4::Recall(Res4::Ok(()))) => return,
            // The reply that gave it may still be on its way.
            Ok(CbResop4::Recall(Res4::Fail(Nfsstat4::BadStateid | Nfsstat4::BadHandle | Nfsstat4::Delay))) => {}
            Ok(result) => {
                tracing::debug!(client = recall.client.0, ?result, "a client will not give a delegation back");
            }
            Err(CallbackError::NoPath(why)) => {
                tracing::debug!(client = recall.client.0, ?why, "a delegation is not recalled");
            }
            Err(error) => tracing::debug!(client = recall.client.0, %error, "a delegation is not recalled"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

impl Shared {
    /// Ends what has had its time. Waits for storage.
    fn look_around(&self) {
        self.with_state(|state| state.expire(clock::now()));
        let (in_grace, all_have_reclaimed) = self.with_state(|state| (state.in_grace(), state.may_end_grace()));
        if !in_grace {
            return;
        }
        let early = all_have_reclaimed && !self.lockd.awaits_reclaims();
        if early || self.lockd.is_grace_over() {
            self.lockd.end_grace();
        } else if self.lockd.in_grace() {
            return;
        }
        let late = self.with_state(|state| state.end_grace());
        tracing::info!(early, late = late.len(), "locks of version 4 can be had again");
        for owner in late {
            if let Err(error) = self.lockd.recovery().remove_v4_client(&owner) {
                tracing::warn!(%error, "a client that has reclaimed nothing is remembered all the same");
            }
        }
    }
}

const TICK: Duration = Duration::from_secs(1);
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
