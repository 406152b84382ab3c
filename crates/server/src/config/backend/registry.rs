//! The back ends that a configuration can name: [`Backends`], and the interface of one, [`BackendKind`].
//!
//! serde hands no context to the types that it makes, so the registry in use stands in a thread-local variable while a
//! configuration is read.

use std::{cell::RefCell, collections::BTreeMap, fmt, io, path::Path, sync::Arc};

use buf::Pool;
use serde::{Deserialize, Deserializer, de};
use vfs::Vfs;

use super::{
    BackendSettings,
    open::State,
    standard::{MemoryKind, PosixKind},
};
use crate::handle::ExportId;

/// A kind of back end: opens the tree of an export from the export's settings.
///
/// A closure `Fn(&BackendSettings, &Opening<'_>) -> io::Result<Tree>` is a kind whose objects do not outlive the process.
pub trait BackendKind: Send + Sync + 'static {
    /// Checks the settings of one export while a configuration is read, and fills in defaults. Opens nothing.
    ///
    /// # Errors
    /// A message for the user: the setting that is missing or wrong, and the possible ones.
    fn check(&self, settings: &mut BackendSettings) -> Result<(), String> {
        let _ = settings;
        Ok(())
    }

    /// The name of an export whose configuration has none; `None`: it must have one.
    fn default_name(&self, settings: &BackendSettings) -> Option<String> {
        let _ = settings;
        None
    }

    /// Objects and their handles outlive the process. The server then keeps its key and its clients' state in the state directory.
    fn is_persistent(&self) -> bool {
        false
    }

    /// Opens the tree of an export.
    ///
    /// # Errors
    /// The tree cannot be used. The message is preceded by the name of the export.
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
}

impl Opening<'_> {
    /// The pool of the transports' buffers. File data in memory of this pool is sent without a copy.
    pub fn pool(&self) -> &Pool {
        self.pool
    }

    /// The state directory, if the server has one: an exclusively locked directory that no client may reach.
    pub fn state_dir(&self) -> Option<&Path> {
        self.state.map(|state| state.dir.path())
    }
}

/// An opened tree.
pub struct Tree {
    pub(super) vfs: Arc<dyn Vfs>,
    identity: Option<Vec<u8>>,
}

impl Tree {
    /// A tree whose objects end with the process. File handles of an earlier process are stale.
    pub fn volatile(vfs: Arc<dyn Vfs>) -> Self {
        Self { vfs, identity: None }
    }

    /// A tree whose objects and handles outlive the process. `identity` distinguishes it from all other trees of this kind: a path,
    /// a volume's identifier. File handles are valid as long as it, the kind and the name of the export are the same.
    pub fn persistent(vfs: Arc<dyn Vfs>, identity: impl Into<Vec<u8>>) -> Self {
        Self { vfs, identity: Some(identity.into()) }
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
    /// No back ends.
    pub fn empty() -> Self {
        Self { kinds: BTreeMap::new() }
    }

    /// `memory` and `posix`.
    pub fn standard() -> Self {
        let mut backends = Self::empty();
        backends.register("memory", MemoryKind);
        backends.register(DEFAULT, PosixKind);
        backends
    }

    /// Adds a back end, in the place of one that had this name.
    pub fn register(&mut self, name: impl Into<String>, kind: impl BackendKind) {
        self.kinds.insert(name.into(), Arc::new(kind));
    }

    /// The names, in alphabetical order.
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

    /// Runs `read`, in which [`Kind`]s are found here.
    pub(in crate::config) fn in_use<T>(&self, read: impl FnOnce() -> T) -> T {
        /// Restores the registry of an outer call, also after a panic.
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

/// A back end that a configuration has named.
#[derive(Clone)]
pub(in crate::config) struct Kind {
    pub(super) name: String,
    pub(super) kind: Arc<dyn BackendKind>,
}

impl Kind {
    pub(super) fn posix() -> Self {
        Self { name: DEFAULT.to_owned(), kind: Arc::new(PosixKind) }
    }

    /// The back end of an export that names none.
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
