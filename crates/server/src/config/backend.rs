//! From an export's configuration to the tree that it serves.

use std::{io, os::unix::ffi::OsStrExt, path::Path, sync::Arc};

use buf::Pool;
use vfs::{
    memory::{Memory, MemoryOptions},
    posix::{Posix, PosixOptions},
};

use crate::{
    config::{BackendConfig, Config, ExportConfig},
    export::{Export, ExportError, Exports},
    handle::ExportId,
    recovery::{
        Recovery,
        state_dir::{ACCEPT, OnLoss, StateDir, located},
    },
};

/// The state directory, in which a back end keeps what must survive a restart.
pub(crate) struct BackendStorage<'a> {
    pub(crate) dir: &'a StateDir,
    pub(crate) recovery: &'a Recovery,
    pub(crate) on_loss: OnLoss,
}

impl Exports {
    /// The exports and referrals of a configuration.
    ///
    /// # Errors
    /// A directory cannot be used; two exports are the same; clients could reach the state directory.
    pub(crate) fn open(config: &Config, state: Option<&BackendStorage<'_>>, pool: &Pool) -> io::Result<Self> {
        let mut exports = Self::new();
        for config in &config.export {
            let located = |error: io::Error| io::Error::new(error.kind(), format!("export '{}': {error}", config.name));
            let export = Export::open(config, state, pool).map_err(located)?;
            exports.add(export).map_err(|error| located(invalid(error)))?;
        }
        for referral in &config.referral {
            let located =
                |error: ExportError| invalid(format!("referral '{}': {error}", referral.name().escape_ascii()));
            exports.refer(referral.clone()).map_err(located)?;
        }
        Ok(exports)
    }
}

impl Export {
    fn open(config: &ExportConfig, state: Option<&BackendStorage<'_>>, pool: &Pool) -> io::Result<Self> {
        let name = config.name.as_bytes();
        let (id, vfs): (ExportId, Arc<dyn vfs::Vfs>) = match &config.backend {
            BackendConfig::Memory { size } => {
                // As /tmp: there is nobody else to make a directory for anyone.
                let options = MemoryOptions { capacity: *size, pool: pool.clone(), mode: 0o1777, ..Default::default() };
                (ExportId::unique(), Arc::new(Memory::new(options)))
            }
            BackendConfig::Posix { path } => {
                let path = path.canonicalize().map_err(|error| located(path, error))?;
                let id = ExportId::of(&[name, b"posix", path.as_os_str().as_bytes()]);
                (id, Arc::new(open_directory(&path, state)?))
            }
        };
        Self::new(&config.name, id, vfs, config.options.clone()).map_err(invalid)
    }
}

fn open_directory(path: &Path, state: Option<&BackendStorage<'_>>) -> io::Result<Posix> {
    if let Some(BackendStorage { dir, .. }) = state.filter(|state| state.dir.path().starts_with(path)) {
        return Err(invalid(format!(
            "the state directory {} is inside it, and clients could reach the key of file handles: name another state \
             directory",
            dir.path().display()
        )));
    }
    let options = PosixOptions {
        state_dir: state.map(|state| state.dir.path().to_owned()),
        known_databases: state.map(|state| state.recovery.handle_databases()).unwrap_or_default(),
        accept_loss: state.is_some_and(|state| state.on_loss == OnLoss::Reset),
        ..Default::default()
    };
    let posix = Posix::open(path, options).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(error.kind(), format!("{error}{ACCEPT}")),
        _ => located(path, error),
    })?;
    if let (Some(name), Some(state)) = (posix.database_name(), state) {
        state.recovery.add_handle_database(name)?;
    }
    let path = path.display();
    if !posix.tells_callers_apart() {
        tracing::info!(%path, "the server is not root: all clients act as its user");
    }
    if !posix.handles_persist() {
        tracing::warn!(%path, "file handles will be stale after a restart");
    }
    Ok(posix)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
