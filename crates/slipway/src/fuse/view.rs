//! [`View`]: the tree as one caller sees it.
//!
//! On a mount with several users, each operation has the credential of its caller, and the server decides what the
//! caller may do. An operation on an open file has the credential of the user that opened it, as with the kernel's own
//! client: a program can pass a descriptor to a program of another user. Attributes are shared, results of ACCESS are
//! not. On a mount of one user, all operations have the credential of the mount.

use std::{ops::Deref, sync::Arc, time::Duration};

use client::{Caller, File, Handle, Mount};
use nfs::v3::{ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::time::Instant;

use super::{
    nodes::Node,
    tree::{Answer, Answered, Tree},
    wire::Header,
};

/// The tree, with the caller of an operation.
pub struct View {
    tree: Arc<Tree>,
    /// `None` is the user of the mount.
    caller: Option<Caller>,
}

/// An object, with the caller of an operation on it.
pub struct Target {
    node: Arc<Node>,
    /// The object as the caller; `None` for the user of the mount.
    file: Option<File>,
    caller: u64,
}

impl Deref for View {
    type Target = Arc<Tree>;

    fn deref(&self) -> &Arc<Tree> {
        &self.tree
    }
}

impl Deref for Target {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl View {
    /// Returns the tree as the caller of a request sees it.
    pub fn new(tree: Arc<Tree>, header: &Header) -> Self {
        let caller = tree.callers.as_ref().map(|callers| callers.of(header));
        Self { tree, caller }
    }

    /// Returns the tree as the user of the mount sees it.
    pub fn of_mount(tree: Arc<Tree>) -> Self {
        Self { tree, caller: None }
    }

    /// Returns the tree as the user sees it that has opened the file or directory with this number.
    pub fn of_open(self, number: u64) -> Self {
        match self.tree.opener(number) {
            Some(caller) => Self { caller: Some(caller), ..self },
            None => self,
        }
    }

    /// Returns the caller, if it is not the user of the mount.
    pub fn caller(&self) -> Option<&Caller> {
        self.caller.as_ref()
    }

    /// Returns the object with this number.
    pub fn target(&self, ino: u64) -> Answer<Target> {
        let node = self.node(ino)?;
        let file = self.caller.as_ref().map(|caller| {
            let mount = node.file.mount().with_caller(Some(caller));
            File::new(mount, node.file.handle().clone(), node.file.path().clone())
        });
        Ok(Target { node, file, caller: self.caller.as_ref().map_or(0, Caller::number) })
    }

    /// Fails with EACCES if the server does not grant the caller all of `wanted` (`ACCESS3_…`).
    pub async fn check(&self, target: &Target, wanted: u32) -> Answer<()> {
        if self.is_allowed(target, wanted).await? { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Returns `true` if the server grants the caller all of `wanted` (`ACCESS3_…`).
    pub async fn is_allowed(&self, target: &Target, wanted: u32) -> Answer<bool> {
        let granted = match target.node.rights.of(target.caller) {
            Some(granted) => granted,
            None => {
                let all = if target.is_dir { DIRECTORY_RIGHTS } else { FILE_RIGHTS };
                let since = target.node.rights.version();
                let granted = target.mount().protocol().access(target.handle(), all | wanted).await.answer()?;
                target.node.rights.store(target.caller, granted, self.ttl, since);
                granted
            }
        };
        Ok(granted & wanted == wanted)
    }
}

impl Target {
    /// Returns the object for reading and writing as the caller.
    pub fn file(&self) -> &File {
        self.file.as_ref().unwrap_or(&self.node.file)
    }

    /// Returns the object for all callers.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Returns the number of the caller.
    pub fn caller(&self) -> u64 {
        self.caller
    }

    /// Returns its mount as the caller.
    pub fn mount(&self) -> &Mount {
        self.file().mount()
    }

    /// Returns the file handle.
    pub fn handle(&self) -> &Handle {
        self.node.file.handle()
    }
}

/// The results of ACCESS of an object, by caller, and whether its mode says everything.
#[derive(Debug, Default)]
pub struct Rights(Mutex<Cache>);

#[derive(Debug, Default)]
struct Cache {
    /// The number of the caller, its rights, and the time until which they are cached.
    entries: Vec<(u64, u32, Instant)>,
    /// The time until which the object is known to have no ACL besides its mode.
    only_mode_until: Option<Instant>,
    /// The number of invalidations.
    version: u64,
}

impl Rights {
    /// Returns the cached rights of a caller.
    fn of(&self, caller: u64) -> Option<u32> {
        let cache = self.0.lock();
        let (_, granted, until) = cache.entries.iter().find(|(number, ..)| *number == caller)?;
        (Instant::now() < *until).then_some(*granted)
    }

    /// Returns `true` if the object is known to have no ACL besides its mode.
    pub fn has_only_mode(&self) -> bool {
        self.0.lock().only_mode_until.is_some_and(|until| Instant::now() < until)
    }

    /// Caches that the object has no ACL besides its mode, unless it was invalidated after `version`.
    pub fn store_only_mode(&self, ttl: Duration, version: u64) {
        let mut cache = self.0.lock();
        if cache.version == version && !ttl.is_zero() {
            cache.only_mode_until = Some(Instant::now() + ttl);
        }
    }

    /// Returns the present version, for [`store`](Self::store) and [`store_only_mode`](Self::store_only_mode).
    pub fn version(&self) -> u64 {
        self.0.lock().version
    }

    /// Caches the rights of a caller, unless they were invalidated after `version`.
    fn store(&self, caller: u64, granted: u32, ttl: Duration, version: u64) {
        let mut cache = self.0.lock();
        if cache.version != version || ttl.is_zero() {
            return;
        }
        let now = Instant::now();
        cache.entries.retain(|(number, _, until)| *number != caller && now < *until);
        if cache.entries.len() >= CALLERS_MAX {
            cache.entries.remove(0);
        }
        cache.entries.push((caller, granted, now + ttl));
    }

    /// Drops the rights of all callers, because the object's owner, mode or ACL is changed. Call it before and after
    /// the request.
    pub fn invalidate(&self) {
        let mut cache = self.0.lock();
        cache.entries.clear();
        cache.only_mode_until = None;
        cache.version += 1;
    }
}

/// The rights that are asked for together.
const FILE_RIGHTS: u32 = ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_EXECUTE;
const DIRECTORY_RIGHTS: u32 = ACCESS3_READ | ACCESS3_LOOKUP | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE;
/// The maximum number of callers whose rights on an object are cached.
const CALLERS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rights_are_cached_for_each_caller_until_they_change() {
        let (rights, ttl) = (Rights::default(), Duration::from_secs(1));
        rights.store(1, 3, ttl, rights.version());
        rights.store(2, 4, ttl, rights.version());
        assert_eq!((rights.of(1), rights.of(2), rights.of(3)), (Some(3), Some(4), None));
        let before = rights.version();
        rights.invalidate();
        rights.store(1, 3, ttl, before);
        assert_eq!((rights.of(1), rights.of(2)), (None, None), "the reply is older than the change");
        for caller in 0..100 {
            rights.store(caller, 1, ttl, rights.version());
        }
        assert_eq!((rights.of(99), rights.0.lock().entries.len()), (Some(1), CALLERS_MAX));
        let before = rights.version();
        rights.store_only_mode(ttl, before);
        assert!(rights.has_only_mode());
        rights.invalidate();
        rights.store_only_mode(ttl, before);
        assert!(!rights.has_only_mode(), "the reply is older than the change");
        rights.store(99, 1, ttl, rights.version());
        rights.store_only_mode(ttl, rights.version());
        tokio::time::advance(ttl).await;
        assert_eq!((rights.of(99), rights.has_only_mode()), (None, false));
    }
}
