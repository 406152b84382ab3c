//! [`Core`]: the state that all protocols share.

use std::{sync::Arc, time::Duration};

use vfs::VfsError;

use crate::{
    audit::Audit,
    blocking::{BlockingOptions, Pools},
    export::Exports,
    handle::{AdoptedHandle, FileId, HandleKey},
    identity::{principals::IdentityOptions, users::Users},
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
    /// The users as which callers act.
    pub(crate) users: Users,
    /// The audit log.
    pub(crate) audit: Option<Audit>,
    /// The state directory, which stays locked until this is dropped.
    pub(crate) state_dir: Option<StateDir>,
}

/// The settings that all protocols share.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoreOptions {
    pub(crate) blocking: BlockingOptions,
    /// The length of the grace period.
    pub(crate) grace: Duration,
    pub(crate) identity: IdentityOptions,
}

impl Core {
    /// Creates the core of a server.
    pub(crate) fn new(
        exports: Exports,
        key: HandleKey,
        recovery: Recovery,
        options: CoreOptions,
        (state_dir, audit): (Option<StateDir>, Option<Audit>),
    ) -> Arc<Self> {
        let recovery = Arc::new(recovery);
        Arc::new(Self {
            pools: Pools::new(&exports, options.blocking),
            locks: LockService::new(recovery.clone(), options.grace),
            users: Users::new(options.identity),
            audit,
            conflicts: Conflicts::default(),
            exports,
            key,
            recovery,
            state_dir,
        })
    }

    /// Returns the export and the object of a file handle that this server has made, or that an export adopts.
    ///
    /// # Errors
    /// Returns `BadHandle` or `Stale`: see [`HandleKey::open`] and [`vfs::Vfs::adopt`].
    pub(crate) fn open(&self, handle: &[u8]) -> Result<FileId, VfsError> {
        let Some(AdoptedHandle { export, object }) = AdoptedHandle::decode(handle) else {
            return self.key.open(handle);
        };
        let adopts = self.exports.find(export).ok_or(VfsError::Stale)?;
        Ok((export, adopts.vfs().adopt(object)?))
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
