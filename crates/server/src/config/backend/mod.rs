//! From an export's configuration to the tree that it serves.

pub(crate) mod open;
mod registry;
mod standard;

use std::{collections::BTreeMap, path::PathBuf};

pub(super) use registry::Kind;
pub use registry::{BackendKind, Backends, Opening, Tree};

/// The back end of an export.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    kind: Kind,
    /// Its settings, checked.
    pub settings: BackendSettings,
}

/// The settings of an export that its back end reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendSettings {
    /// `path`: the directory that is served.
    pub path: Option<PathBuf>,
    /// `size`: most bytes that the tree may hold.
    pub size: Option<u64>,
    /// `options`: the back end's own; a table of strings, numbers and booleans.
    pub options: BTreeMap<String, String>,
}

impl BackendConfig {
    /// The directory at `path`, which is canonical.
    pub(super) fn directory(path: PathBuf) -> Self {
        Self { kind: Kind::posix(), settings: BackendSettings { path: Some(path), ..Default::default() } }
    }

    /// The back end `kind` (`None`: the default) with these settings, and the name of the export.
    pub(super) fn new(
        kind: Option<Kind>,
        name: Option<String>,
        mut settings: BackendSettings,
    ) -> Result<(String, Self), String> {
        let kind = kind.map_or_else(Kind::default_in_use, Ok)?;
        kind.kind.check(&mut settings)?;
        let name = name.or_else(|| kind.kind.default_name(&settings));
        let name = name.ok_or_else(|| {
            format!("an export of `backend = \"{}\"` needs `name`, the path that clients mount", kind.name)
        })?;
        Ok((name, Self { kind, settings }))
    }

    /// The name in the configuration: `backend = "NAME"`.
    pub fn name(&self) -> &str {
        &self.kind.name
    }

    pub(crate) fn is_persistent(&self) -> bool {
        self.kind.kind.is_persistent()
    }
}
