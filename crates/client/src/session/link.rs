//! [`ServerLink`]: the connections to one server, and the lease.

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rpc::BoxFuture;
use tokio::time::Instant;

use super::trunk::Trunk;
use crate::call::Deadline;

/// The connections to one server, with the client's lease there.
pub(crate) struct ServerLink {
    pub trunk: Trunk,
    pub minor: u32,
    pub runtime: tokio::runtime::Handle,
    holder: OnceLock<Weak<dyn StateHolder>>,
    /// The lease time in seconds.
    lease: AtomicU32,
    /// A time after which the server renewed the lease: that at which the renewing operation began.
    renewed: Mutex<Instant>,
}

/// The owner of the state that a server keeps for the client: opens, locks and delegations.
pub(crate) trait StateHolder: Send + Sync {
    /// Reclaims all state after the server has lost it (RFC 8881 §8.4.2.1).
    fn reclaim<'a>(&'a self, deadline: &'a Deadline) -> BoxFuture<'a, ()>;

    /// Handles the status flags of SEQUENCE (RFC 8881 §18.46.3). It is called for each reply that has one of the
    /// [`HANDLED_FLAGS`](super::requests::HANDLED_FLAGS).
    fn handle_status_flags(self: Arc<Self>, flags: u32);

    /// Looks for file systems that have moved away from the server (`NFS4ERR_LEASE_MOVED`).
    fn find_moved(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

impl ServerLink {
    pub fn new(trunk: Trunk, minor: u32) -> Self {
        Self {
            trunk,
            minor,
            runtime: tokio::runtime::Handle::current(),
            holder: OnceLock::new(),
            lease: AtomicU32::new(LEASE_UNKNOWN),
            renewed: Mutex::new(Instant::now()),
        }
    }

    /// Sets the owner of the client's state. It can be set once.
    pub fn set_holder(&self, holder: Weak<dyn StateHolder>) {
        assert!(self.holder.set(holder).is_ok(), "the state holder of a link must be set only once");
    }

    /// Returns the owner of the client's state; `None` before it is set, and after it was dropped.
    pub fn holder(&self) -> Option<Arc<dyn StateHolder>> {
        self.holder.get()?.upgrade()
    }

    /// Returns the time for which the server keeps the state of a silent client.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease.load(Relaxed).max(1).into())
    }

    /// Sets the lease time that the server has reported.
    pub fn set_lease(&self, seconds: u32) {
        self.lease.store(seconds, Relaxed);
    }

    /// Returns the time for which the lease is certainly valid: the rest of its first three quarters. The last quarter
    /// is the margin for the time that messages take. Returns `None` if the lease may have expired.
    pub fn lease_left(&self) -> Option<Duration> {
        let lease = self.lease();
        (lease - lease / 4).checked_sub(self.since_renewed())
    }

    /// Restarts the lease at the time `after`: the server has answered a request that renews the lease and was sent
    /// later.
    pub fn renewed(&self, after: Instant) {
        let mut renewed = self.renewed.lock();
        *renewed = renewed.max(after);
    }

    /// Returns the time since the lease was renewed.
    pub fn since_renewed(&self) -> Duration {
        self.renewed.lock().elapsed()
    }
}

impl fmt::Debug for ServerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLink").field("minor", &self.minor).field("trunk", &self.trunk).finish_non_exhaustive()
    }
}

/// The lease time in seconds that is assumed until the server has reported its own.
const LEASE_UNKNOWN: u32 = 30;
