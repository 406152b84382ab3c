//! The end of the grace period, in which clients reclaim what they held before a restart, and nothing new is granted.

use std::time::Instant;

use super::service::LockService;

/// A protocol whose clients can reclaim.
pub(crate) trait Reclaim: Send + Sync {
    /// Whether some client may still reclaim.
    fn is_awaited(&self) -> bool;

    /// Ends all claims of clients that have not reclaimed, also in storage: others may get what they held, so they must not
    /// reclaim it after another restart. Waits for storage.
    fn end_claims(&self);
}

impl LockService {
    /// Ends grace if its time has passed, or if no client is awaited any more. First all claims end; only then can others
    /// get what was claimed.
    pub(crate) fn end_grace_when_due(&self, now: Instant, protocols: &[&dyn Reclaim]) {
        // Reclaims are refused while storage is behind: they have their time when it is not any more.
        if !self.in_grace() || self.recovery().is_behind() {
            return;
        }
        let early = !self.recovery().clients_unknown() && !protocols.iter().any(|protocol| protocol.is_awaited());
        if !early && !self.is_grace_over(now) {
            return;
        }
        protocols.iter().for_each(|protocol| protocol.end_claims());
        self.with_table(|table| table.end_grace());
        tracing::info!(early, "new locks can be had again");
    }
}
