//! From an export's configuration to the tree that it serves.

use std::{
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use buf::Pool;
use vfs::{
    memory::{Memory, MemoryOptions},
    posix::{Posix, PosixOptions},
};

use crate::{
    config::{BackendConfig, Config, ExportConfig, Settings},
    export::{Export, ExportError, Exports},
    handle::{ExportId, HandleKey},
    recovery::Recovery,
    server::NfsServer,
};

impl NfsServer {
    /// A server of what `exports` describe.
    ///
    /// `state_dir` keeps what file handles need to be valid after a restart: their key, and for an ordinary user's
    /// directories a database. It is made if there is need. `pool` is where a memory backend's pages come from: give
    /// the one that the transports use, so that data can be sent from where it is.
    ///
    /// # Errors
    /// A directory or the state directory cannot be used; two exports are the same; clients could reach the state.
    pub fn open(exports: &[ExportConfig], state_dir: &Path, pool: &Pool) -> io::Result<Self> {
        let config = Config { export: exports.to_vec(), ..Config::default() };
        Self::open_with(&config, state_dir, pool, Settings::default())
    }

    /// As [`open`](Self::open), with the exports and referrals of a configuration, and waiting for clients for so long.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(config: &Config, state_dir: &Path, pool: &Pool, settings: Settings) -> io::Result<Self> {
        let persistent = config.export.iter().any(|export| matches!(export.backend, BackendConfig::Posix { .. }));
        if !persistent {
            // No file handle survives a restart, so no lock can.
            let exports = Exports::open(config, None, pool)?;
            return Self::recovering(exports, HandleKey::random(), Recovery::in_memory(), settings);
        }
        let key = HandleKey::load_or_create(state_dir).map_err(|error| {
            io::Error::new(error.kind(), format!("the state directory cannot be used, name another: {error}"))
        })?;
        let state_dir = state_dir.canonicalize().map_err(|error| located(state_dir, error))?;
        let recovery = Recovery::open(&state_dir).unwrap_or_else(|error| {
            tracing::warn!(%error, "locks cannot be reclaimed after a restart of this server");
            Recovery::in_memory()
        });
        Self::recovering(Exports::open(config, Some(&state_dir), pool)?, key, recovery, settings)
    }
}

impl Exports {
    fn open(config: &Config, state_dir: Option<&Path>, pool: &Pool) -> io::Result<Self> {
        let mut exports = Self::new();
        for config in &config.export {
            let located = |error: io::Error| io::Error::new(error.kind(), format!("export '{}': {error}", config.name));
            let export = Export::open(config, state_dir, pool).map_err(located)?;
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
    fn open(config: &ExportConfig, state_dir: Option<&Path>, pool: &Pool) -> io::Result<Self> {
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
                (id, Arc::new(open_directory(&path, state_dir)?))
            }
        };
        Self::new(&config.name, id, vfs, config.options.clone()).map_err(invalid)
    }
}

fn open_directory(path: &Path, state_dir: Option<&Path>) -> io::Result<Posix> {
    if let Some(state_dir) = state_dir.filter(|state_dir| state_dir.starts_with(path)) {
        return Err(invalid(format!(
            "the state directory {} is inside it, and clients could reach the key of file handles: name another state \
             directory",
            state_dir.display()
        )));
    }
    let options = PosixOptions { state_dir: state_dir.map(PathBuf::from), ..Default::default() };
    let posix = Posix::open(path, options).map_err(|error| located(path, error))?;
    let path = path.display();
    if !posix.tells_callers_apart() {
        tracing::info!(%path, "the server is not root: all clients act as its user");
    }
    if !posix.handles_persist() {
        tracing::warn!(%path, "file handles will be stale after a restart");
    }
    Ok(posix)
}

fn located(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
