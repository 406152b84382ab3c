//! The end of the grace period, in which clients reclaim the state that they held before a restart, and no new state is
//! granted.

use std::time::Instant;

use super::service::LockService;

/// A protocol whose clients can reclaim state.
pub(crate) trait Reclaim: Send + Sync {
    /// Returns `true` if some client may still reclaim.
    fn is_awaited(&self) -> bool;

    /// Ends the claims of all clients that have not reclaimed, in memory and in storage. Others may get their state
    /// afterwards, so these clients must not reclaim it after another restart. Waits for storage.
    fn end_claims(&self);
}

impl LockService {
    /// Ends the grace period if its time has passed, or if no client may still reclaim. It first ends all claims. Only
    /// then can others get the claimed state.
    pub(crate) fn end_grace_when_due(&self, now: Instant, protocols: &[&dyn Reclaim]) {
        // Reclaims are refused while storage is behind. They get their time when it has caught up.
        if !self.in_grace() || self.recovery().is_behind() {
            return;
        }
        let early = !self.recovery().clients_unknown() && !protocols.iter().any(|protocol| protocol.is_awaited());
        if !early && !self.is_grace_over(now) {
            return;
        }
        protocols.iter().for_each(|protocol| protocol.end_claims());
        self.with_table(|table| table.end_grace());
        tracing::info!(early, "grace period has ended: new locks can be granted");
    }
}
