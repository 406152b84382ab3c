//! Opens the exports of a configuration.

use std::io;

use buf::Pool;

use super::Opening;
use crate::{
    config::{Config, ExportConfig},
    export::{Export, ExportError, Exports},
    recovery::{
        Recovery,
        state_dir::{OnLoss, StateDir},
    },
};

/// The open state directory.
pub(crate) struct State<'a> {
    pub(crate) dir: &'a StateDir,
    pub(crate) recovery: &'a Recovery,
    pub(crate) on_loss: OnLoss,
}

impl Exports {
    /// Opens the exports and referrals of a configuration.
    ///
    /// # Errors
    /// Returns an error if a tree cannot be opened, if two exports are the same, or if clients could reach the state
    /// directory.
    pub(crate) fn open(config: &Config, state: Option<&State<'_>>, pool: &Pool) -> io::Result<Self> {
        let mut exports = Self::new();
        let pnfs = &config.pnfs[..];
        let lease = config.server.settings().map_err(invalid)?.lease;
        for config in &config.export {
            let located = |error: io::Error| io::Error::new(error.kind(), format!("export '{}': {error}", config.name));
            let export = Export::open(config, &Opening { pool, state, pnfs, lease }).map_err(located)?;
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
