//! [`LockService`]: the lock table of a running server, for all protocols.
//!
//! A mutex protects the table. It is never held while waiting for storage or a peer. A protocol with waiting requests
//! takes its own mutex before this one.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::locks::{LockTable, Notice};
use crate::{clock, handle::FileId, recovery::Recovery};

/// The lock table of a running server.
pub(crate) struct LockService {
    table: Mutex<LockTable<FileId>>,
    recovery: Arc<Recovery>,
    grace: Duration,
    /// Notified when the table has grants to collect.
    granted: Notify,
    /// The channel for owners that can retry a denied request. The protocol that notifies them receives from it.
    notices: OnceLock<mpsc::UnboundedSender<Notice<FileId>>>,
}

impl LockService {
    /// Creates an empty table. It is in its grace period if the clients that may reclaim are unknown.
    pub(crate) fn new(recovery: Arc<Recovery>, grace: Duration) -> Self {
        let unknown = recovery.clients_unknown();
        let (granted, notices) = (Notify::new(), OnceLock::new());
        let service = Self { table: Mutex::default(), recovery, grace, granted, notices };
        if unknown {
            // RFC 8881 §8.4.3: no claim can be verified, so none is accepted. No lock is granted before all leases have
            // ended.
            tracing::warn!(
                grace_s = grace.as_secs(),
                "the recovery database was reset: no locks can be reclaimed, and no new locks are granted until the grace period has ended"
            );
            service.begin_grace();
        }
        service
    }

    /// Returns the state that survives a restart.
    pub(crate) fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Returns the length of the grace period.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// Begins the grace period.
    pub(crate) fn begin_grace(&self) {
        self.table.lock().begin_grace(clock::now() + self.grace);
    }

    /// Returns `true` if the time of the grace period has passed.
    pub(crate) fn is_grace_over(&self, now: Instant) -> bool {
        self.table.lock().is_grace_over(now)
    }

    /// Returns `true` in the grace period, in which only reclaims are granted.
    /// [`end_grace_when_due`](Self::end_grace_when_due) ends it.
    pub(crate) fn in_grace(&self) -> bool {
        self.table.lock().in_grace()
    }

    /// Locks the table and runs `go` on it. Then notifies the receivers of grants and notices.
    pub(crate) fn with_table<T>(&self, go: impl FnOnce(&mut LockTable<FileId>) -> T) -> T {
        let mut table = self.table.lock();
        let result = go(&mut table);
        if self.recovery.is_behind() {
            // A client that has lost a lock could reclaim it after a restart. The periodic task tries again.
            return result;
        }
        if table.has_grants() {
            self.granted.notify_one();
        }
        while let Some(notice) = table.poll_notice() {
            self.notices.get().map(|notices| notices.send(notice));
        }
        result
    }

    /// Waits until the table has grants for waiting requests.
    pub(crate) async fn granted(&self) {
        self.granted.notified().await;
    }

    /// Returns the receiver of owners that can retry. Only the first caller gets it.
    pub(crate) fn take_notices(&self) -> Option<mpsc::UnboundedReceiver<Notice<FileId>>> {
        let (notices, noticed) = mpsc::unbounded_channel();
        self.notices.set(notices).ok().map(|()| noticed)
    }
}
