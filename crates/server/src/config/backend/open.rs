//! Opens the exports of a configuration.

use std::{io, path::Path};

use buf::Pool;

use super::Opening;
use crate::{
    config::{Config, ExportConfig, Settings},
    export::{Export, ExportError, Exports},
    handle::HandleKey,
    recovery::{
        Recovery,
        state_dir::{OnLoss, StateDir},
    },
    server::NfsServer,
};

impl NfsServer {
    /// A server of these exports.
    ///
    /// `state_dir` keeps the state that must survive a restart: the key of file handles, the holders of locks, and for an ordinary
    /// user's directories a database. It is created if it is needed, and locked as long as any part of this server exists. A
    /// memory back end takes its pages from `pool`: with the pool of the transports, data is sent without a copy.
    ///
    /// # Errors
    /// A tree cannot be opened; two exports are the same; clients could reach the state. The state directory is in use by another
    /// server; a file in it is damaged, missing, or open to others.
    pub fn open(exports: &[ExportConfig], state_dir: &Path, pool: &Pool) -> io::Result<Self> {
        let config = Config { export: exports.to_vec(), ..Config::default() };
        Self::open_with(&config, state_dir, pool, Settings::default())
    }

    /// As [`open`](Self::open), with the exports and referrals of a configuration, and with `settings`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(config: &Config, state_dir: &Path, pool: &Pool, settings: Settings) -> io::Result<Self> {
        let persistent = config.export.iter().any(|export| export.backend.is_persistent());
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

/// The state directory, open.
pub(super) struct State<'a> {
    pub(super) dir: &'a StateDir,
    pub(super) recovery: &'a Recovery,
    pub(super) on_loss: OnLoss,
}

impl Exports {
    fn open(config: &Config, state: Option<&State<'_>>, pool: &Pool) -> io::Result<Self> {
        let mut exports = Self::new();
        for config in &config.export {
            let located = |error: io::Error| io::Error::new(error.kind(), format!("export '{}': {error}", config.name));
            let export = Export::open(config, &Opening { pool, state }).map_err(located)?;
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
    fn open(config: &ExportConfig, opening: &Opening<'_>) -> io::Result<Self> {
        let kind = &config.backend.kind;
        let tree = kind.kind.open(&config.backend.settings, opening)?;
        let id = tree.export_id(&config.name, &kind.name);
        Self::new(&config.name, id, tree.vfs, config.options.clone()).map_err(invalid)
    }
}

pub(super) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
