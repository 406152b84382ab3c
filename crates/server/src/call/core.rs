//! [`Core`]: the state that all protocols share.

use std::{sync::Arc, time::Duration};

use crate::{
    blocking::{BlockingOptions, Pools},
    export::Exports,
    handle::HandleKey,
    recovery::{Recovery, state_dir::StateDir},
    sharing::{conflict::Conflicts, service::LockService},
};

/// The state that all protocols share. It depends on no protocol; each protocol's service keeps its own state beside
/// it.
pub(crate) struct Core {
    pub(crate) exports: Exports,
    pub(crate) pools: Pools,
    pub(crate) key: HandleKey,
    pub(crate) locks: LockService,
    pub(crate) conflicts: Conflicts,
    pub(crate) recovery: Arc<Recovery>,
    /// The state directory, which stays locked until this is dropped.
    pub(crate) state_dir: Option<StateDir>,
}

impl Core {
    /// Creates the core of a server. `grace` is the length of the grace period.
    pub(crate) fn new(
        exports: Exports,
        key: HandleKey,
        recovery: Recovery,
        (blocking, grace): (BlockingOptions, Duration),
        state_dir: Option<StateDir>,
    ) -> Arc<Self> {
        let recovery = Arc::new(recovery);
        Arc::new(Self {
            pools: Pools::new(&exports, blocking),
            locks: LockService::new(recovery.clone(), grace),
            conflicts: Conflicts::default(),
            exports,
            key,
            recovery,
            state_dir,
        })
    }
}

/// The shared state of one protocol's service, which holds the [`Core`].
pub(crate) trait ServiceState: Send + Sync + 'static {
    /// Returns the core.
    fn core(&self) -> &Core;
}

impl ServiceState for Core {
    fn core(&self) -> &Core {
        self
    }
}
