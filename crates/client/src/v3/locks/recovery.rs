//! Locks after a lost connection: finds out whether the server still has them, and reclaims them in its grace period.
//!
//! A server that restarts has lost all locks. It tells the status monitor of the client's host (NSM), which is not part of this client.
//! So a task watches the connection to the lock manager while there are locks. If it is lost, the task connects again and asks for each
//! range by TEST, as an owner that has no locks:
//!
//! - DENIED_GRACE_PERIOD: the server has restarted. LOCK with `reclaim` gets the lock back, which other clients cannot have.
//! - DENIED with this owner as the holder: the server has not restarted, and has the lock.
//! - GRANTED: nobody has the lock, so the server has lost it. The lock is not taken again, because another client may have had it. But
//!   Linux's server answers calls shortly before its grace period begins: it registers its sockets at rpcbind in between. So the task
//!   asks again for about a second, and reclaims the lock if the answer becomes DENIED_GRACE_PERIOD.
//! - DENIED by a server that does not tell the holder (Linux's), or with another holder of a shared lock: LOCK without `reclaim` is granted
//!   if this owner has the lock, and denied if another client has a conflicting one.
//!
//! If a lock is lost, the owner gets errors until it has released all locks in that file.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use nfs::nlm::{Holder, Nlm4Stats, NlmProc4, TestReply};
use tokio::time::{sleep, timeout};

use super::{
    Locks,
    owners::{InUse, Owner},
    service::Connection,
};
use crate::{
    call::Backoff,
    model::{LockRange, Result},
};

/// The state at the server of a range that it had granted.
enum Found {
    Held,
    Lost,
    /// Nobody has a lock in the range. The grace period may be about to begin.
    Free,
    /// The grace period has begun or ended during the check, or the server is busy.
    Unsettled,
}

impl Locks {
    /// Watches the connection over which a lock was granted.
    pub(super) fn watch(self: &Arc<Self>, at: Connection) {
        // If the connection is lost already, its locks are to be checked now.
        if self.watched.lock().is_none_or(|watched| at < watched) {
            self.locked.notify_one();
        }
        if !self.has_watcher.swap(true, Relaxed) {
            let locks = self.clone();
            tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = locks.ended.wait() => {}
                    () = locks.stay_current() => {}
                }
                // Nobody can unlock any more, and NLM has no leases.
                locks.release_all(FAREWELL_MAX).await;
            });
        }
    }

    async fn stay_current(&self) {
        let mut backoff = Backoff::new();
        loop {
            *self.watched.lock() = None;
            if self.owners.holders().is_empty() {
                self.locked.notified().await;
                continue;
            }
            match self.recover().await {
                Ok(connection) => {
                    backoff = Backoff::new();
                    tokio::select! {
                        biased;
                        () = self.service.lost(connection) => {}
                        () = self.locked.notified() => {}
                        // This detects a server that has gone without closing the connection.
                        () = sleep(PING) => self.ping().await,
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "the lock manager cannot be reached");
                    backoff.pause().await;
                }
            }
        }
    }

    async fn ping(&self) {
        let null = self.service.call::<(), ()>(NlmProc4::Null, &(), None);
        if let Ok(Err(error)) = timeout(PING, null).await {
            tracing::debug!(%error, "the lock manager does not answer NULL");
        }
    }

    /// Checks the locks that were granted over earlier connections than the present one, which it returns.
    async fn recover(&self) -> Result<Connection> {
        let connection = self.service.connected().await?;
        *self.watched.lock() = Some(connection);
        let holders = stream::iter(self.owners.holders());
        holders.for_each_concurrent(CHECKS_MAX, |holder| self.settle(holder, connection)).await;
        Ok(connection)
    }

    /// Checks the locks of an owner before an operation, if they were granted over an earlier connection than the present one.
    pub(super) async fn settle_before(&self, owner: &InUse) -> Result<()> {
        if owner.owner.state.lock().ranges.is_empty() {
            return Ok(());
        }
        let connection = self.service.connected().await?;
        self.settle(owner.clone(), connection).await;
        Ok(())
    }

    /// Checks the locks of an owner if they were granted over an earlier connection than this one.
    async fn settle(&self, holder: InUse, connection: Connection) {
        let owner = &*holder.owner;
        let is_current = || owner.state.lock().seen.is_some_and(|seen| seen >= connection);
        let (mut backoff, mut free) = (Backoff::new(), 0);
        for _ in 0..ATTEMPTS_MAX {
            let call = owner.call.lock().await;
            if is_current() {
                return;
            }
            match self.check_ranges(owner, free > 0).await {
                Ok((Found::Held, seen)) => {
                    owner.state.lock().seen = seen;
                    return;
                }
                Ok((Found::Free, _)) if free < FREE_ANSWERS_MAX => free += 1,
                Ok((Found::Free | Found::Lost, _)) => {
                    return self.lose(owner, "the server has restarted without it").await;
                }
                Err(error) => return self.lose(owner, &error.to_string()).await,
                Ok((Found::Unsettled, _)) => {}
            }
            // An operation in progress may change the ranges meanwhile.
            drop(call);
            backoff.pause().await;
        }
        let _call = owner.call.lock().await;
        if !is_current() {
            self.lose(owner, "the server does not say whether it has the lock").await;
        }
    }

    /// Checks the ranges of an owner. Returns the first connection over which one was found. `was_free` is as in
    /// [`find`](Self::find).
    async fn check_ranges(&self, owner: &Owner, was_free: bool) -> Result<(Found, Option<Connection>)> {
        let ranges = owner.state.lock().ranges.clone();
        let mut seen: Option<Connection> = None;
        for (offset, length, exclusive) in ranges {
            let (found, at) = self.find(owner, LockRange { offset, length, exclusive }, was_free).await?;
            if !matches!(found, Found::Held) {
                return Ok((found, None));
            }
            seen = Some(seen.map_or(at, |seen| seen.min(at)));
        }
        Ok((Found::Held, seen))
    }

    /// Finds out whether the server has a range of an owner, and reclaims it in the grace period. If `was_free`, nobody had a range of
    /// the owner at the check before, so the owner can have it only by a reclaim.
    async fn find(&self, owner: &Owner, range: LockRange, was_free: bool) -> Result<(Found, Connection)> {
        let caller = owner.state.lock().caller.clone();
        let stranger = self.owners.stranger(&owner.file);
        // An exclusive lock conflicts with every lock of another owner.
        let probe = LockRange { exclusive: true, ..range };
        let (reply, at) = self.test(&stranger, probe, caller.as_ref()).await?;
        let reclaim = match reply {
            TestReply::Granted => return Ok((Found::Free, at)),
            TestReply::Denied(holder) if owner.is(holder.svid, &holder.oh) => {
                return Ok((if covers(&holder, range) { Found::Held } else { Found::Lost }, at));
            }
            // Linux's server does not tell the owner.
            TestReply::Denied(holder) if holder.exclusive && !holder.oh.is_empty() => return Ok((Found::Lost, at)),
            TestReply::DeniedGracePeriod => true,
            TestReply::DeniedNoLocks if was_free => return Ok((Found::Unsettled, at)),
            _ if was_free => return Ok((Found::Lost, at)),
            _ => false,
        };
        let (status, at) = self.ask(owner, range, reclaim, caller.as_ref()).await?;
        let found = match status {
            Nlm4Stats::Granted => Found::Held,
            // Our server answers DENIED_NOLOCKS while it has too many calls.
            Nlm4Stats::DeniedGracePeriod | Nlm4Stats::DeniedNoLocks => Found::Unsettled,
            _ => Found::Lost,
        };
        Ok((found, at))
    }

    /// Gives up the locks of an owner, of which the server has lost some.
    async fn lose(&self, owner: &Owner, why: &str) {
        let caller = {
            let mut state = owner.state.lock();
            if state.ranges.is_empty() {
                return;
            }
            state.ranges.clear();
            state.lost = true;
            state.caller.clone()
        };
        tracing::warn!(
            svid = owner.svid(),
            uid = caller.as_ref().map(|caller| caller.user().uid),
            why,
            "a lock is lost; another client may have had it, so its owner gets errors until it closes the file"
        );
        // The server may still have others.
        if let Err(error) = self.ask_to_unlock(owner, 0, u64::MAX).await {
            tracing::debug!(%error, "unlocking the other locks of the owner failed");
        }
        self.owners.released(&owner.file);
    }

    /// Unlocks all locks, in at most this time.
    pub(super) async fn release_all(&self, within: Duration) {
        let release = |holder: InUse| async move {
            let owner = &*holder.owner;
            let _call = owner.call.lock().await;
            match self.ask_to_unlock(owner, 0, u64::MAX).await {
                Ok(status) => {
                    owner.state.lock().ranges.clear();
                    tracing::trace!(?status, svid = owner.svid(), "unlocked at the end of the mount");
                }
                Err(error) => tracing::debug!(%error, "unlocking at the end of the mount failed"),
            }
        };
        let all = stream::iter(self.owners.all()).for_each_concurrent(CHECKS_MAX, release);
        if timeout(within, all).await.is_err() {
            tracing::warn!("the server does not answer; it keeps locks until it restarts or they are evicted there");
        }
    }
}

/// Reports whether the lock of a holder includes a range.
fn covers(holder: &Holder, range: LockRange) -> bool {
    let end = |offset: u64, len: u64| if len == 0 { u64::MAX } else { offset.saturating_add(len) };
    let len = if range.length == u64::MAX { 0 } else { range.length };
    holder.offset <= range.offset && end(range.offset, len) <= end(holder.offset, holder.len)
}

/// The interval of calls that detect a server which has gone. Grace periods last at least 45 seconds, so locks can be reclaimed.
const PING: Duration = Duration::from_secs(15);
/// The maximum time for unlocking at the end of a mount that was not unmounted.
const FAREWELL_MAX: Duration = Duration::from_secs(10);
/// The maximum number of attempts to check an owner, with pauses of up to five seconds: longer than a grace period.
const ATTEMPTS_MAX: u32 = 100;
/// The maximum number of answers that nobody has a lock before it is lost. The pauses between them last at least 0.75 seconds.
const FREE_ANSWERS_MAX: u32 = 4;
/// The maximum number of owners that are checked at the same time.
const CHECKS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_covers_a_range_that_it_includes() {
        let holder = |offset, len| Holder { exclusive: true, svid: 1, oh: "o".into(), offset, len };
        let range = |offset, length| LockRange { offset, length, exclusive: true };
        assert!(covers(&holder(10, 10), range(10, 10)) && covers(&holder(10, 10), range(12, 3)));
        assert!(!covers(&holder(10, 10), range(9, 5)) && !covers(&holder(10, 10), range(15, 6)));
        assert!(!covers(&holder(10, 10), range(15, u64::MAX)), "the range has no end");
        assert!(covers(&holder(10, 0), range(15, u64::MAX)) && covers(&holder(10, 0), range(15, 1 << 40)));
    }
}
