//! [`Elsewhere`]: names that stand for file systems of other servers (RFC 8881 §11), and the mounts of what is there.
//!
//! The client library makes such a mount when a LOOKUP first comes to the name ([`Mount::lookup`]). A directory that holds the name is
//! listed without that: the kernel is given a number that stands for nothing and is believed for no time at all, so that it looks the
//! name up before it does anything there. Once that has been done, it is given what was found, so that a listing takes nobody away
//! from where he is.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use client::{Attr, Device, Entry, FileKind, Handle, Mount, Object, Status, Time};
use parking_lot::Mutex;

use super::{
    cache::Forgetful,
    convert::attributes,
    nodes::Node,
    tree::{Answer, Answered, Tree, object},
    wire::Attributes,
};

/// What is known of other servers.
pub struct Elsewhere {
    tree: Weak<Tree>,
    /// The mounts whose delegations are heard of when they end.
    watched: Mutex<HashSet<u64>>,
    /// By mount, directory and name: what was found there last.
    found: Mutex<HashMap<(u64, Handle, Bytes), Object>>,
}

impl Elsewhere {
    /// Of a tree that is being made.
    pub fn new(tree: Weak<Tree>) -> Self {
        Self { tree, watched: Mutex::default(), found: Mutex::default() }
    }

    /// Hears of it when delegations of a mount end, from before there can be one.
    pub fn watch(&self, mount: &Mount) {
        let Some(v4) = mount.v4() else { return };
        if self.watched.lock().insert(mount.number()) {
            v4.watch(Arc::new(Forgetful { tree: self.tree.clone(), mount: mount.number() }));
        }
    }

    /// A name in a directory leads there, which can be another server.
    pub fn found(&self, dir: &Node, name: &[u8], object: &Object) {
        if object.mount.number() != dir.mount().number() {
            self.watch(&object.mount);
            self.found.lock().insert(key(dir, name), object.clone());
        }
    }
}

impl Tree {
    /// The object of an entry of a directory; `None` where another server has it, which is not asked.
    pub(super) async fn listed(&self, dir: &Node, entry: &Entry) -> Answer<Option<Object>> {
        let mount = dir.mount();
        let (handle, attr) = match (&entry.handle, &entry.attr) {
            (Some(handle), Some(attr)) => (handle.clone(), Some(attr.clone())),
            _ => match mount.protocol().lookup(dir.handle(), &entry.name).await {
                Err(error) if error.status() == Some(Status::Absent) => return Ok(None),
                found => found.answer().map(|found| (found.handle, found.attr))?,
            },
        };
        object(mount, handle, attr).await.map(Some)
    }

    /// What the kernel is given of a name for what another server has. It is told of what was found there
    /// before, if so.
    pub(super) fn unvisited(&self, dir: &Node, entry: &Entry, told: bool) -> Attributes {
        let before = self.elsewhere.found.lock().get(&key(dir, &entry.name)).cloned();
        match before {
            Some(object) if told => self.tell(dir, &object),
            _ => attributes(self.nodes.lock().nobody(), &UNKNOWN, 0),
        }
    }
}

fn key(dir: &Node, name: &[u8]) -> (u64, Handle, Bytes) {
    (dir.mount().number(), dir.handle().clone(), Bytes::copy_from_slice(name))
}

/// A directory of which nothing is known.
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
