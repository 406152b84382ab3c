//! [`LockService`]: the lock table of a running server, for all protocols.
//!
//! One mutex holds the table. It is never held while waiting for storage or a peer. A protocol that keeps waiting requests
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
    /// Owners that may try again for a lock, for the protocol that notifies them.
    notices: OnceLock<mpsc::UnboundedSender<Notice<FileId>>>,
}

impl LockService {
    /// An empty table. It is in grace if the clients that may reclaim are not known.
    pub(crate) fn new(recovery: Arc<Recovery>, grace: Duration) -> Self {
        let unknown = recovery.clients_unknown();
        let (granted, notices) = (Notify::new(), OnceLock::new());
        let service = Self { table: Mutex::default(), recovery, grace, granted, notices };
        if unknown {
            // RFC 8881 §8.4.3: no claim can be verified, so none is accepted, and nothing is granted before all leases end.
            tracing::warn!(
                grace_s = grace.as_secs(),
                "the recovery database was reset: nobody can reclaim locks, and no new ones can be had for a time"
            );
            service.begin_grace();
        }
        service
    }

    /// What survives a restart.
    pub(crate) fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The length of the grace period.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// Begins the grace period.
    pub(crate) fn begin_grace(&self) {
        self.table.lock().begin_grace(clock::now() + self.grace);
    }

    /// Whether the grace period has had its time.
    pub(crate) fn is_grace_over(&self, now: Instant) -> bool {
        self.table.lock().is_grace_over(now)
    }

    /// Whether only reclaims are granted. [`end_grace_when_due`](Self::end_grace_when_due) ends that.
    pub(crate) fn in_grace(&self) -> bool {
        self.table.lock().in_grace()
    }

    /// Reads or changes the table.
    pub(crate) fn with_table<T>(&self, go: impl FnOnce(&mut LockTable<FileId>) -> T) -> T {
        let mut table = self.table.lock();
        let result = go(&mut table);
        if self.recovery.is_behind() {
            // The client that held a lock before could reclaim it after a restart. The periodic task tries again.
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

    /// Waits until the table has grants for requests that waited.
    pub(crate) async fn granted(&self) {
        self.granted.notified().await;
    }

    /// The owners that may try again for a lock; for the one task that notifies them.
    pub(crate) fn take_notices(&self) -> Option<mpsc::UnboundedReceiver<Notice<FileId>>> {
        let (notices, noticed) = mpsc::unbounded_channel();
        self.notices.set(notices).ok().map(|()| noticed)
    }
}
