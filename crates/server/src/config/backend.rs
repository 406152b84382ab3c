//! From an export's configuration to the tree that it serves.

use std::{io, os::unix::ffi::OsStrExt, path::Path, sync::Arc};

use buf::Pool;
use vfs::{
    memory::{Memory, MemoryOptions},
    posix::{Posix, PosixOptions},
};

use crate::{
    config::{BackendConfig, Config, ExportConfig, Settings},
    export::{Export, ExportError, Exports},
    handle::{ExportId, HandleKey},
    recovery::{
        Recovery,
        state_dir::{ACCEPT, OnLoss, StateDir, located},
    },
    server::NfsServer,
};

impl NfsServer {
    /// A server of what `exports` describe.
    ///
    /// `state_dir` keeps what must survive a restart: the key of file handles, who holds locks, and for an ordinary user's
    /// directories a database. It is created if there is need, and locked as long as anything of this server exists. `pool` is where a memory backend's pages come from: give
    /// the one that the transports use, so that data can be sent from where it is.
    ///
    /// # Errors
    /// A directory cannot be used; two exports are the same; clients could reach the state. The state directory is in use by another
    /// server; a file in it is damaged, missing, or open to others.
    pub fn open(exports: &[ExportConfig], state_dir: &Path, pool: &Pool) -> io::Result<Self> {
        let config = Config { export: exports.to_vec(), ..Config::default() };
        Self::open_with(&config, state_dir, pool, Settings::default())
    }

    /// As [`open`](Self::open), with the exports and referrals of a configuration, and waiting for clients for so long.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(config: &Config, state_dir: &Path, pool: &Pool, settings: Settings) -> io::Result<Self> {
        let is_posix = |export: &ExportConfig| matches!(export.backend, BackendConfig::Posix { .. });
        let persistent = config.export.iter().any(is_posix);
        let named = config.server.state_dir.is_some();
        let state_dir = (persistent || named)
            .then(|| StateDir::open(state_dir))
            .transpose()
            .map_err(|error| io::Error::new(error.kind(), format!("the state directory cannot be used: {error}")))?;
        let Some(dir) = state_dir.as_ref().filter(|_| persistent) else {
            // No file handle survives a restart, so no lock can.
            let exports = Exports::open(config, None, pool)?;
            return Self::with_state(exports, HandleKey::random(), Recovery::in_memory(), settings, state_dir);
        };
        // The database is made before the key, and knows after the first start that there is one: either shows that the other is
        // missing.
        let recovery = Recovery::open(dir, HandleKey::exists_in(dir), settings.on_loss)?;
        let key = HandleKey::load_or_create(dir, recovery.was_used(), settings.on_loss)?;
        let state = State { dir, recovery: &recovery, on_loss: settings.on_loss };
        let exports = Exports::open(config, Some(&state), pool)?;
        Self::with_state(exports, key, recovery, settings, state_dir)
    }
}

/// What exports keep in the state directory.
struct State<'a> {
    dir: &'a StateDir,
    recovery: &'a Recovery,
    on_loss: OnLoss,
}

impl Exports {
    fn open(config: &Config, state: Option<&State<'_>>, pool: &Pool) -> io::Result<Self> {
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
    fn open(config: &ExportConfig, state: Option<&State<'_>>, pool: &Pool) -> io::Result<Self> {
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

fn open_directory(path: &Path, state: Option<&State<'_>>) -> io::Result<Posix> {
    if let Some(State { dir, .. }) = state.filter(|state| state.dir.path().starts_with(path)) {
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
