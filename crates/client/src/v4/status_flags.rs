//! The status flags that a server sets in the replies to SEQUENCE (RFC 8881 §18.46.3), and the recovery of state that
//! they require.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use nfs::v4::*;
use rpc::BoxFuture;

use super::server::Server;
use crate::{
    call::Deadline,
    session::{
        compound::{Compound, value},
        link::StateHolder,
        requests::{CALLBACK_FLAGS, HANDLED_FLAGS, REVOKED_FLAGS},
        trunk::BACKGROUND,
    },
};

impl StateHolder for Server {
    fn reclaim<'a>(&'a self, deadline: &'a Deadline) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.opens.reclaim(deadline).await;
            if let Err(error) = self.client.reclaim_complete(None, deadline).await {
                tracing::warn!(%error, "RECLAIM_COMPLETE failed");
            }
        })
    }

    fn handle_status_flags(self: Arc<Self>, mut flags: u32) {
        if self.is_arriving.load(Relaxed) {
            // The reclaim is already in progress.
            flags &= !SEQ4_STATUS_RESTART_RECLAIM_NEEDED;
        }
        if flags & HANDLED_FLAGS == 0 || self.handling_flags.swap(true, Relaxed) {
            return;
        }
        self.client.link.runtime.clone().spawn(async move {
            self.recover_from(flags).await;
            // The backchannel may stay broken. This pause limits the rate of attempts.
            tokio::time::sleep(FLAGS_PAUSE).await;
            self.handling_flags.store(false, Relaxed);
        });
    }

    fn find_moved(self: Arc<Self>) -> BoxFuture<'static, ()> {
        self.find_moved_file_systems()
    }
}

impl Server {
    async fn recover_from(self: &Arc<Self>, flags: u32) {
        let deadline = &Deadline::after(BACKGROUND);
        let link = &self.client.link;
        if let Some(session) = self.client.session() {
            if flags & SEQ4_STATUS_BACKCHANNEL_FAULT != 0 {
                //= rfc8881-18.46.3-10
                if let Err(error) = self.client.replace_faulty(&session, deadline).await {
                    tracing::debug!(%error, "replacing a session with a faulty backchannel failed");
                }
            } else if flags & CALLBACK_FLAGS != 0 {
                //= rfc8881-2.10.6.2-3 rfc8881-2.10.13.1.2-3
                session.bind_all(link, deadline).await;
            }
        }
        if flags & SEQ4_STATUS_RESTART_RECLAIM_NEEDED != 0 {
            let _one = self.client.recovering.lock().await;
            // Another request may have recovered and reclaimed meanwhile.
            if self.is_reclaim_needed(deadline).await {
                self.reclaim(deadline).await;
            }
        } else if flags & REVOKED_FLAGS != 0 {
            self.free_revoked(deadline).await;
        }
        if flags & SEQ4_STATUS_LEASE_MOVED != 0 {
            self.find_moved_file_systems().await;
        }
    }

    /// Asks the server whether it waits for reclaims. A second reclaim after RECLAIM_COMPLETE would be refused, and the state would
    /// count as lost. So only the flags of this reply count: it is never from before the request, even if the request was sent again.
    async fn is_reclaim_needed(&self, deadline: &Deadline) -> bool {
        let asked = self.client.run_once(&Compound::new("SEQUENCE"), deadline).await;
        let first = asked.ok().and_then(|res| res.resarray.into_iter().next());
        match first {
            Some(Resop4::Sequence(Res4::Ok(ok))) => ok.status_flags & SEQ4_STATUS_RESTART_RECLAIM_NEEDED != 0,
            _ => false,
        }
    }

    /// Frees the stateids of revoked state, so that the server resets the flags (RFC 8881 §8.4.2.1, §18.38).
    async fn free_revoked(&self, deadline: &Deadline) {
        let mut stateids: VecDeque<Stateid4> = self.opens.stateids().into();
        while !stateids.is_empty() {
            let some: Vec<_> = stateids.drain(..stateids.len().min(TEST_MAX)).collect();
            let args = TestStateidArgs { stateids: some.clone() };
            let test = Compound::new("TEST_STATEID").op(Argop4::TestStateid(args), 8 + 4 * some.len());
            let Ok(mut results) = self.client.run(&test, deadline).await else { return };
            let Ok(statuses) = value!(results, TestStateid) else { return };
            for (stateid, _) in some.iter().zip(statuses).filter(|(_, status)| *status != Nfsstat4::Ok) {
                self.opens.lost(stateid);
                let free = Argop4::FreeStateid(FreeStateidArgs { stateid: *stateid });
                let _ = self.client.run(&Compound::new("FREE_STATEID").op(free, 0), deadline).await;
            }
        }
    }
}

const FLAGS_PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of stateids in one TEST_STATEID.
const TEST_MAX: usize = 64;
