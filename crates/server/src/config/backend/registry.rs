//! The registry of back ends that a configuration can name, [`Backends`], and the interface of one, [`BackendKind`].
//!
//! serde passes no context to the types that it deserializes, so a thread-local variable holds the registry while a
//! configuration is read.

use std::{cell::RefCell, collections::BTreeMap, fmt, io, path::Path, sync::Arc, time::Duration};

use buf::Pool;
use serde::{Deserialize, Deserializer, de};
use vfs::Vfs;

use super::{
    BackendSettings,
    open::State,
    standard::{DirectoryKind, MemoryKind},
};
use crate::{config::PnfsConfig, handle::ExportId};

/// A kind of back end. It opens the tree of an export from the export's settings.
///
/// A closure `Fn(&BackendSettings, &Opening<'_>) -> io::Result<Tree>` is a kind whose objects do not outlive the
/// process.
pub trait BackendKind: Send + Sync + 'static {
    /// Checks the settings of one export while a configuration is read, and fills in defaults. Opens no tree.
    ///
    /// # Errors
    /// Returns a message for the user that names the missing or wrong setting and the valid ones.
    fn check(&self, settings: &mut BackendSettings) -> Result<(), String> {
        let _ = settings;
        Ok(())
    }

    /// Returns the name of an export whose configuration has no `name`, or `None` if the name is required.
    fn default_name(&self, settings: &BackendSettings) -> Option<String> {
        let _ = settings;
        None
    }

    /// Returns `true` if objects and their handles outlive the process. The server then keeps its handle key and the
    /// state of its clients in the state directory.
    fn is_persistent(&self) -> bool {
        false
    }

    /// Opens the tree of an export.
    ///
    /// # Errors
    /// Returns an error if the tree cannot be used. The server precedes its message with the name of the export.
    fn open(&self, settings: &BackendSettings, opening: &Opening<'_>) -> io::Result<Tree>;
}

impl<F> BackendKind for F
where
    F: Fn(&BackendSettings, &Opening<'_>) -> io::Result<Tree> + Send + Sync + 'static,
{
    fn open(&self, settings: &BackendSettings, opening: &Opening<'_>) -> io::Result<Tree> {
        self(settings, opening)
    }
}

/// The resources of the server that a back end can use while it is opened.
pub struct Opening<'a> {
    pub(super) pool: &'a Pool,
    pub(super) state: Option<&'a State<'a>>,
    pub(super) pnfs: &'a [PnfsConfig],
    pub(super) lease: Duration,
}

impl Opening<'_> {
    /// Returns the pool of the transports' buffers. File data in memory of this pool is sent without a copy.
    pub fn pool(&self) -> &Pool {
        self.pool
    }

    /// Returns the state directory, if the server has one. It is exclusively locked, and no client can reach it.
    pub fn state_dir(&self) -> Option<&Path> {
        self.state.map(|state| state.dir.path())
    }

    /// Returns the length of a lease of NFSv4.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the groups of data servers.
    pub fn pnfs(&self) -> &[PnfsConfig] {
        self.pnfs
    }
}

/// An open tree.
pub struct Tree {
    pub(super) vfs: Arc<dyn Vfs>,
    identity: Option<Vec<u8>>,
}

impl Tree {
    /// Creates a tree whose objects do not outlive the process. File handles of an earlier process are stale.
    pub fn volatile(vfs: Arc<dyn Vfs>) -> Self {
        Self { vfs, identity: None }
    }

    /// Creates a tree whose objects and handles outlive the process. `identity` distinguishes it from all other trees
    /// of this kind, for example by a path or a volume identifier. File handles are valid as long as the identity, the
    /// kind and the name of the export stay the same.
    pub fn persistent(vfs: Arc<dyn Vfs>, identity: impl Into<Vec<u8>>) -> Self {
        Self { vfs, identity: Some(identity.into()) }
    }

    /// Replaces the file system by a layer over it.
    ///
    /// # Errors
    /// Returns the errors of `layer`.
    pub fn layered(self, layer: impl FnOnce(Arc<dyn Vfs>) -> io::Result<Arc<dyn Vfs>>) -> io::Result<Self> {
        Ok(Self { vfs: layer(self.vfs)?, ..self })
    }

    pub(super) fn export_id(&self, export: &str, kind: &str) -> ExportId {
        match &self.identity {
            Some(identity) => ExportId::of(&[export.as_bytes(), kind.as_bytes(), identity]),
            None => ExportId::unique(),
        }
    }
}

/// The back ends that a configuration can name, by their names.
///
/// ```
/// use std::sync::Arc;
/// use server::{Config, config::{Backends, Tree}};
/// use vfs::memory::{Memory, MemoryOptions};
///
/// let mut backends = Backends::standard();
/// backends.register("scratch", |settings: &server::config::BackendSettings, opening: &server::config::Opening<'_>| {
///     let options = MemoryOptions { capacity: settings.size.unwrap_or(1 << 20), pool: opening.pool().clone(), ..Default::default() };
///     Ok(Tree::volatile(Arc::new(Memory::new(options))))
/// });
/// let config = Config::parse_with("[[export]]\nname = '/tmp'\nbackend = 'scratch'\nsize = '1 MiB'", &backends).unwrap();
/// assert_eq!(config.export[0].backend.name(), "scratch");
///
/// let error = Config::parse_with("[[export]]\nname = '/tmp'\nbackend = 'scratsh'", &backends).unwrap_err();
/// assert_eq!(error.message, "there is no back end 'scratsh'; there are memory, posix, scratch");
/// ```
#[derive(Clone)]
pub struct Backends {
    kinds: BTreeMap<String, Arc<dyn BackendKind>>,
}

impl Backends {
    /// Creates a registry without back ends.
    pub fn empty() -> Self {
        Self { kinds: BTreeMap::new() }
    }

    /// Creates a registry with the back ends `memory` and `posix`.
    pub fn standard() -> Self {
        let mut backends = Self::empty();
        backends.register("memory", MemoryKind);
        backends.register(DEFAULT, DirectoryKind);
        backends
    }

    /// Adds a back end. It replaces one with the same name.
    pub fn register(&mut self, name: impl Into<String>, kind: impl BackendKind) {
        self.kinds.insert(name.into(), Arc::new(kind));
    }

    /// Returns the names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    fn find(&self, name: &str) -> Result<Kind, String> {
        let unknown = || {
            let names: Vec<_> = self.names().collect();
            format!("there is no back end '{name}'; there are {}", names.join(", "))
        };
        let kind = self.kinds.get(name).ok_or_else(unknown)?;
        Ok(Kind { name: name.to_owned(), kind: Arc::clone(kind) })
    }

    /// Runs `read`, during which the names of back ends are looked up in this registry.
    pub fn in_use<T>(&self, read: impl FnOnce() -> T) -> T {
        /// Restores the registry of an outer call, even after a panic.
        struct Restore(Option<Backends>);
        impl Drop for Restore {
            fn drop(&mut self) {
                IN_USE.set(self.0.take());
            }
        }
        let _restore = Restore(IN_USE.replace(Some(self.clone())));
        read()
    }
}

impl Default for Backends {
    fn default() -> Self {
        Self::standard()
    }
}

impl fmt::Debug for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

thread_local! {
    static IN_USE: RefCell<Option<Backends>> = const { RefCell::new(None) };
}

/// A back end named in a configuration.
#[derive(Clone)]
pub(in crate::config) struct Kind {
    pub(super) name: String,
    pub(super) kind: Arc<dyn BackendKind>,
}

impl Kind {
    pub(super) fn posix() -> Self {
        Self { name: DEFAULT.to_owned(), kind: Arc::new(DirectoryKind) }
    }

    /// Returns the back end of an export that names none.
    pub(super) fn default_in_use() -> Result<Self, String> {
        Self::in_use(DEFAULT)
    }

    fn in_use(name: &str) -> Result<Self, String> {
        IN_USE.with_borrow(|backends| match backends {
            Some(backends) => backends.find(name),
            None => Backends::standard().find(name),
        })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::in_use(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

const DEFAULT: &str = "posix";
