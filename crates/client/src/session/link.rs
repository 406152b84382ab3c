//! [`ServerLink`]: the connections to one server, the lease, and the handler of what the server reports beside its replies.

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

/// The connections to one server, with the lease of the client there.
pub(crate) struct ServerLink {
    pub trunk: Trunk,
    pub minor: u32,
    pub runtime: tokio::runtime::Handle,
    holder: OnceLock<Weak<dyn StateHolder>>,
    /// The flags of the last SEQUENCE.
    status_flags: AtomicU32,
    /// Seconds.
    lease: AtomicU32,
    /// The server has confirmed since then that the client exists.
    renewed: Mutex<Instant>,
}

/// The owner of the state that a server keeps for the client: opens, locks and delegations.
pub(crate) trait StateHolder: Send + Sync {
    /// Reclaims all state, after the server has lost it (RFC 8881 §8.4.2.1).
    fn reclaim<'a>(&'a self, deadline: &'a Deadline) -> BoxFuture<'a, ()>;

    /// Handles the flags of SEQUENCE (RFC 8881 §18.46.3). The caller passes them on with each reply that has one of
    /// [`HANDLED_FLAGS`](super::requests::HANDLED_FLAGS).
    fn handle_status_flags(self: Arc<Self>, flags: u32);

    /// Looks for file systems that the server does not have any more (`NFS4ERR_LEASE_MOVED`).
    fn find_moved(self: Arc<Self>) -> BoxFuture<'static, ()>;
}

impl ServerLink {
    pub fn new(trunk: Trunk, minor: u32) -> Self {
        Self {
            trunk,
            minor,
            runtime: tokio::runtime::Handle::current(),
            holder: OnceLock::new(),
            status_flags: AtomicU32::new(0),
            lease: AtomicU32::new(LEASE_UNKNOWN),
            renewed: Mutex::new(Instant::now()),
        }
    }

    /// Sets the owner of the client's state, once.
    pub fn set_holder(&self, holder: Weak<dyn StateHolder>) {
        assert!(self.holder.set(holder).is_ok(), "a link has one holder of state");
    }

    /// The owner of the client's state; `None` before it is set, and after it was dropped.
    pub fn holder(&self) -> Option<Arc<dyn StateHolder>> {
        self.holder.get()?.upgrade()
    }

    /// Keeps the flags of a SEQUENCE.
    pub fn set_status_flags(&self, flags: u32) {
        self.status_flags.store(flags, Relaxed);
    }

    /// The flags of the last SEQUENCE.
    pub fn status_flags(&self) -> u32 {
        self.status_flags.load(Relaxed)
    }

    /// The time for which the server keeps the state of a silent client.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease.load(Relaxed).max(1).into())
    }

    /// Sets the lease time, which the server has told.
    pub fn set_lease(&self, seconds: u32) {
        self.lease.store(seconds, Relaxed);
    }

    /// The time for which the lease certainly lasts, with a quarter of it as the margin for the way to the server and back; `None` if
    /// it may have expired.
    pub fn lease_left(&self) -> Option<Duration> {
        let lease = self.lease();
        (lease - lease / 4).checked_sub(self.since_renewed())
    }

    /// Restarts the lease: the server has answered a request that was sent after this time.
    pub fn renewed(&self, after: Instant) {
        let mut renewed = self.renewed.lock();
        *renewed = renewed.max(after);
    }

    /// The time since the lease was renewed.
    pub fn since_renewed(&self) -> Duration {
        self.renewed.lock().elapsed()
    }
}

impl fmt::Debug for ServerLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLink").field("minor", &self.minor).field("trunk", &self.trunk).finish_non_exhaustive()
    }
}

/// Seconds, until the server has told its lease time.
const LEASE_UNKNOWN: u32 = 30;
