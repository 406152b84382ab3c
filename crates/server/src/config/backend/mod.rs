//! Back ends in the configuration: from the settings of an export to the tree that it serves.

pub(crate) mod open;
mod registry;
mod standard;

use std::{collections::BTreeMap, path::PathBuf};

pub(super) use registry::Kind;
pub use registry::{BackendKind, Backends, Opening, Tree};
pub use standard::DirectoryKind;

/// The back end of an export.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    kind: Kind,
    /// The settings, checked by the kind of back end.
    pub settings: BackendSettings,
}

/// The settings of an export that its back end reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendSettings {
    /// `path`: the directory to serve.
    pub path: Option<PathBuf>,
    /// `size`: maximum bytes of data that the tree can hold.
    pub size: Option<u64>,
    /// `options`: options specific to the back end; a table of strings, numbers and booleans.
    pub options: BTreeMap<String, String>,
}

impl BackendConfig {
    /// Configures the directory at `path`, which must be canonical.
    pub(super) fn directory(path: PathBuf) -> Self {
        Self { kind: Kind::posix(), settings: BackendSettings { path: Some(path), ..Default::default() } }
    }

    /// Configures the back end `kind` (`None`: the default) with these settings. Returns it with the name of the
    /// export.
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

    /// Returns the name in the configuration: `backend = "NAME"`.
    pub fn name(&self) -> &str {
        &self.kind.name
    }

    pub(crate) fn is_persistent(&self) -> bool {
        self.kind.kind.is_persistent()
    }
}
