//! The back ends of `vfs` that a configuration can name: `memory` and `posix`.

use std::{io, os::unix::ffi::OsStrExt, path::Path, sync::Arc};

use vfs::{
    memory::{Memory, MemoryOptions},
    posix::{Posix, PosixOptions},
};

use super::{BackendKind, BackendSettings, Opening, Tree, open::invalid};
use crate::recovery::state_dir::{ACCEPT, OnLoss, located};

/// An empty tree in memory that holds at most `size` bytes.
pub(super) struct MemoryKind;

impl BackendKind for MemoryKind {
    fn check(&self, settings: &mut BackendSettings) -> Result<(), String> {
        if settings.path.is_some() {
            return Err("a memory export has no `path`; clients mount its `name`".to_owned());
        }
        settings.size.get_or_insert(MEMORY_DEFAULT);
        no_options("memory", settings)
    }

    fn open(&self, settings: &BackendSettings, opening: &Opening<'_>) -> io::Result<Tree> {
        let capacity = settings.size.unwrap_or(MEMORY_DEFAULT);
        // The mode of /tmp, because only clients can create directories in the tree.
        let options = MemoryOptions { capacity, pool: opening.pool().clone(), mode: 0o1777, ..Default::default() };
        Ok(Tree::volatile(Arc::new(Memory::new(options))))
    }
}

/// A directory of this host, at `path`: the back end `posix`. A back end that is a layer over a directory opens it with this.
pub struct DirectoryKind;

impl BackendKind for DirectoryKind {
    fn check(&self, settings: &mut BackendSettings) -> Result<(), String> {
        let path = settings.path.as_ref().ok_or("an export needs `path`, the directory to serve")?;
        if !path.is_absolute() {
            return Err(format!("`path` must be absolute, and '{}' is not", path.display()));
        }
        if settings.size.is_some() {
            return Err("`size` is only for `backend = \"memory\"`".to_owned());
        }
        no_options("posix", settings)
    }

    fn default_name(&self, settings: &BackendSettings) -> Option<String> {
        settings.path.as_ref()?.to_str().map(str::to_owned)
    }

    fn is_persistent(&self) -> bool {
        true
    }

    fn open(&self, settings: &BackendSettings, opening: &Opening<'_>) -> io::Result<Tree> {
        let path = settings.path.as_ref().ok_or_else(|| invalid("an export needs `path`"))?;
        let path = path.canonicalize().map_err(|error| located(path, error))?;
        let posix = open_directory(&path, opening)?;
        Ok(Tree::persistent(Arc::new(posix), path.as_os_str().as_bytes()))
    }
}

fn open_directory(path: &Path, opening: &Opening<'_>) -> io::Result<Posix> {
    if let Some(state_dir) = opening.state_dir().filter(|dir| dir.starts_with(path)) {
        return Err(invalid(format!(
            "the state directory {} is inside it, and clients could reach the key of file handles: name another state \
             directory",
            state_dir.display()
        )));
    }
    let state = opening.state;
    let options = PosixOptions {
        state_dir: opening.state_dir().map(Path::to_owned),
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

fn no_options(kind: &str, settings: &BackendSettings) -> Result<(), String> {
    match settings.options.keys().next() {
        Some(option) => Err(format!("option '{option}': `backend = \"{kind}\"` has no options")),
        None => Ok(()),
    }
}

const MEMORY_DEFAULT: u64 = 1 << 30;
