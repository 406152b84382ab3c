//! [`Referrals`]: names that refer to file systems of other servers (RFC 8881 §11), and the mounts of these.
//!
//! The client library makes such a mount when a LOOKUP first reaches the name ([`Mount::lookup`]). A directory with the
//! name is listed without that: the kernel gets an unused number that it must not cache, so it looks the name up before
//! any other operation there. After that lookup, a listing returns the found object, so that it does not affect
//! programs that use the other server.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use client::{Attr, Device, Entry, FileKind, Handle, Mount, Object, Status, Time};
use parking_lot::Mutex;

use super::{
    cache::DelegationWatcher,
    convert::attributes,
    nodes::Node,
    tree::{Answer, Answered, Tree, attr_of},
    view::{Target, View},
    wire::Attributes,
};

/// The referrals of a tree.
pub struct Referrals {
    tree: Weak<Tree>,
    /// The mounts whose delegations are watched.
    watched: Mutex<HashSet<u64>>,
    /// The object that was last found, by mount, directory and name.
    found: Mutex<HashMap<(u64, Handle, Bytes), Object>>,
}

impl Referrals {
    /// Creates one for a tree that is being made.
    pub fn new(tree: Weak<Tree>) -> Self {
        Self { tree, watched: Mutex::default(), found: Mutex::default() }
    }

    /// Watches the delegations of a mount, before it can have one.
    pub fn watch(&self, mount: &Mount) {
        let Some(v4) = mount.v4() else { return };
        if self.watched.lock().insert(mount.number()) {
            v4.watch(Arc::new(DelegationWatcher { tree: self.tree.clone(), mount: mount.number() }));
        }
    }

    /// Records the object of a name in a directory. It can be on another server.
    pub fn found(&self, dir: &Node, name: &[u8], object: &Object) {
        if object.mount.number() != dir.mount().number() {
            self.watch(&object.mount);
            self.found.lock().insert(key(dir, name), object.clone());
        }
    }
}

impl View {
    /// Returns the object of a directory entry; `None` if another server has it, which this does not ask.
    pub(super) async fn listed(&self, dir: &Target, entry: &Entry) -> Answer<Option<Object>> {
        let mount = dir.mount();
        let (handle, attr) = match (&entry.handle, &entry.attr) {
            (Some(handle), Some(attr)) => (handle.clone(), Some(attr.clone())),
            _ => match mount.protocol().lookup(dir.handle(), &entry.name).await {
                Err(error) if error.status() == Some(Status::Absent) => return Ok(None),
                found => found.answer().map(|found| (found.handle, found.attr))?,
            },
        };
        let attr = attr_of(mount, &handle, attr).await?;
        Ok(Some(Object { mount: dir.file.mount().clone(), handle, attr }))
    }
}

impl Tree {
    /// Returns the attributes for a name that refers to another server: those of the object that was found before, if
    /// `is_lookup`.
    pub(super) fn placeholder(&self, dir: &Node, entry: &Entry, is_lookup: bool) -> Attributes {
        let before = self.referrals.found.lock().get(&key(dir, &entry.name)).cloned();
        match before {
            Some(object) if is_lookup => self.register(dir, &object, 0),
            _ => attributes(self.nodes.lock().unused_number(), &UNKNOWN, 0),
        }
    }
}

fn key(dir: &Node, name: &[u8]) -> (u64, Handle, Bytes) {
    (dir.mount().number(), dir.handle().clone(), Bytes::copy_from_slice(name))
}

/// The attributes of an unknown directory.
pub(super) const UNKNOWN: Attr = Attr {
    kind: FileKind::Dir,
    mode: 0o555,
    nlink: 2,
    uid: 0,
    gid: 0,
    size: 0,
    used: 0,
    rdev: Device { major: 0, minor: 0 },
    fsid: 0,
    fileid: 0,
    atime: Time { seconds: 0, nseconds: 0 },
    mtime: Time { seconds: 0, nseconds: 0 },
    ctime: Time { seconds: 0, nseconds: 0 },
};
