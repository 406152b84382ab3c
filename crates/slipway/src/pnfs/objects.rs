//! The back end `objects` of `slipway serve`: a directory with the objects of a pNFS data server of kind `slipway`.

use std::{io, path::Path, sync::Arc};

use pnfs::objects::{Objects, fences::Fences, handle::ClusterKey};
use server::config::{BackendKind, BackendSettings, DirectoryKind, Opening, Tree};

use super::{directory_of, inner, invalid, state_file};

/// An export with `backend = "objects"`.
pub struct ObjectsKind;

impl BackendKind for ObjectsKind {
    fn check(&self, settings: &mut BackendSettings) -> Result<(), String> {
        DirectoryKind.check(&mut inner(settings))?;
        match settings.options.keys().find(|key| *key != KEY_FILE) {
            Some(option) => Err(format!(
                "option '{option}': `backend = \"objects\"` has only `{KEY_FILE}`, the file with the key of the cluster"
            )),
            None if settings.options.contains_key(KEY_FILE) => Ok(()),
            None => Err(format!(
                "`backend = \"objects\"` needs `options = {{ {KEY_FILE} = FILE }}`, the file with the key of the cluster"
            )),
        }
    }

    fn default_name(&self, settings: &BackendSettings) -> Option<String> {
        DirectoryKind.default_name(settings)
    }

    fn is_persistent(&self) -> bool {
        true
    }

    fn open(&self, settings: &BackendSettings, opening: &Opening<'_>) -> io::Result<Tree> {
        let key = ClusterKey::load(Path::new(settings.options.get(KEY_FILE).map_or("", String::as_str)))?;
        let dir = opening.state_dir().ok_or_else(|| invalid("it needs a state directory".to_owned()))?;
        let path = state_file(dir, "objects", &directory_of(settings)?);
        let located = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let fences = Fences::open(&path).map_err(located)?;
        DirectoryKind.open(&inner(settings), opening)?.layered(|inner| Ok(Arc::new(Objects::open(inner, fences, key)?)))
    }
}

/// The option of an export with the path of the cluster's key.
pub const KEY_FILE: &str = "key_file";
