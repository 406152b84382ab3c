//! The kernel's cache of files, and its invalidation. The kernel caches pages from one open to the next as long as no
//! other client has changed the file, and attributes as long as the server delegates the file. NFSv3 cannot detect
//! changes, so pages are dropped with each open.
//!
//! The kernel drops its cache before a program gets the result of an open, and before a delegation returns to the
//! server. The notification runs on a thread that may block, because the kernel waits for pages that are being read,
//! which this process does.

use std::{sync::Weak, time::Duration};

use client::{Attr, DataVersion, Handle, Time, Watcher};
use rpc::BoxFuture;

use super::{
    device::Device,
    nodes::Node,
    tree::{Answer, Answered, Tree},
    view::Target,
    wire::forget_inode,
};

/// The version of the data in the pages that the kernel may have cached.
#[derive(Clone, Copy, Debug, Default)]
pub enum Cached {
    /// The kernel has no pages: the file has never been open.
    #[default]
    Nothing,
    /// The version is unknown.
    Unknown,
    /// The pages have this version, or a later one that this mount has written.
    Of(DataVersion),
}

/// The attributes that change with a file of NFSv3: size, mtime and ctime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    size: u64,
    mtime: Time,
    ctime: Time,
}

impl Change {
    /// Returns the size.
    pub fn size(self) -> u64 {
        self.size
    }
}

impl From<&Attr> for Change {
    fn from(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
    }
}

/// The FUSE device of the mount, while it exists.
#[derive(Debug)]
pub struct Kernel(pub Weak<Device>);

impl Kernel {
    /// Invalidates data and attributes of a file in the kernel.
    pub(super) async fn forget(&self, ino: u64) {
        let device = self.0.clone();
        let notified = tokio::task::spawn_blocking(move || match device.upgrade() {
            Some(device) => device.write(&forget_inode(ino)),
            None => Ok(()),
        });
        match notified.await {
            // The kernel does not have the file in its cache any more.
            Ok(Ok(()) | Err(rustix::io::Errno::NOENT)) | Err(_) => {}
            // At the end of the mount, the kernel drops everything.
            Ok(Err(error)) => tracing::debug!(%error, "cannot invalidate the kernel's cache"),
        }
    }
}

impl Tree {
    /// Invalidates the kernel's cache of the file if its pages have another version than `version`, the current one. Returns `true` if
    /// `version` is known to be the one that was last current.
    pub async fn make_current(&self, node: &Node, version: DataVersion) -> bool {
        let mut cached = node.cached.lock().await;
        let is_same = matches!(&*cached, Cached::Of(before) if before.is_same(&version));
        if !is_same && !matches!(*cached, Cached::Nothing) {
            self.kernel.forget(node.ino).await;
        }
        *cached = Cached::Of(version);
        is_same
    }

    /// Over NFSv3, invalidates attributes from before the last change, so that a program that opens the file sees its
    /// size. Pages are dropped with each open, because two changes can have the same times.
    pub async fn revalidate_v3(&self, node: &Node, attr: &Attr) {
        let now = Some(Change::from(attr));
        if std::mem::replace(&mut *node.last_change.lock(), now) != now {
            self.kernel.forget(node.ino).await;
        }
    }

    /// Does the same with the version that the server reports. NFSv3 has no version, so the kernel's pages and attributes are dropped.
    pub async fn revalidate(&self, node: &Target) -> Answer<()> {
        match node.mount().v4() {
            Some(v4) => drop(self.make_current(node, v4.data_version(node.handle()).await.answer()?).await),
            None => self.kernel.forget(node.ino).await,
        }
        Ok(())
    }

    /// Returns the time for which the kernel can cache attributes.
    pub fn attribute_ttl(&self, ino: u64) -> Duration {
        let promised = || {
            let node = self.node(ino).ok().filter(|node| !node.passed.may_change_unseen())?;
            node.mount().v4()?.attributes_valid_for(node.handle())
        };
        promised().map_or(self.ttl, |promised| promised.max(self.ttl))
    }
}

/// Invalidates the kernel's cache when delegations of a mount end. It has the number of the mount.
#[derive(Debug)]
pub struct DelegationWatcher {
    pub tree: Weak<Tree>,
    pub mount: u64,
}

impl Watcher for DelegationWatcher {
    fn drop_cache(&self, file: Handle) -> BoxFuture<'static, ()> {
        let (tree, mount) = (self.tree.upgrade(), self.mount);
        Box::pin(async move {
            let Some(tree) = tree else { return };
            let Some(node) = tree.known(mount, &file) else { return };
            let mut cached = node.cached.lock().await;
            if !matches!(*cached, Cached::Nothing) {
                *cached = Cached::Unknown;
            }
            node.new.forget();
            // RFC 8881 §10.4.4: changed data are written before a delegation is returned. The kernel writes those that it has.
            tree.kernel.forget(node.ino).await;
            node.staged.settle(false).await;
        })
    }
}
