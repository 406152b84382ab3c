//! What the kernel keeps of files, and when it must forget it: pages from one open to the next, as long as nobody else has changed
//! the file, and attributes as long as the server delegates it. Over NFSv3, which has no way to tell, it forgets all with each open.
//!
//! The kernel itself is told to forget, and has, before anybody is told that the file is open, or the server that the
//! delegation is given back. It is told on a thread that may wait: it waits for pages that are being read, which is done here.

use std::{sync::Weak, time::Duration};

use client::{Attr, DataVersion, Handle, Time, Watcher};
use rpc::BoxFuture;

use super::{
    device::Device,
    nodes::Node,
    tree::{Answer, Answered, Tree},
    wire::forget_inode,
};

/// Of what version the pages are that the kernel may have.
#[derive(Clone, Copy, Debug, Default)]
pub enum Cached {
    /// It has none: the file has never been open.
    #[default]
    Nothing,
    /// Of none that is known.
    Unknown,
    /// Of this, or later ones of this mount's own making.
    Of(DataVersion),
}

/// What changes with a file of NFSv3: its size, mtime and ctime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    size: u64,
    mtime: Time,
    ctime: Time,
}

impl From<&Attr> for Change {
    fn from(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime, ctime: attr.ctime }
    }
}

/// The kernel's end of the mount, while there is one.
#[derive(Debug)]
pub struct Kernel(pub Weak<Device>);

impl Kernel {
    /// It forgets data and attributes of a file.
    async fn forget(&self, ino: u64) {
        let device = self.0.clone();
        let told = tokio::task::spawn_blocking(move || match device.upgrade() {
            Some(device) => device.write(&forget_inode(ino)),
            None => Ok(()),
        });
        match told.await {
            // It does not know the file any more.
            Ok(Ok(()) | Err(rustix::io::Errno::NOENT)) | Err(_) => {}
            // At the end of the mount, with which it forgets everything.
            Ok(Err(error)) => tracing::debug!(%error, "the kernel cannot be told to forget"),
        }
    }
}

impl Tree {
    /// Somebody is about to use the file, which has this version of its data now: the kernel forgets what is of any other.
    pub async fn make_current(&self, node: &Node, version: DataVersion) {
        let mut cached = node.cached.lock().await;
        let current = match &*cached {
            Cached::Nothing => true,
            Cached::Unknown => false,
            Cached::Of(before) => before.is_same(&version),
        };
        if !current {
            self.kernel.forget(node.ino).await;
        }
        *cached = Cached::Of(version);
    }

    /// The same over NFSv3: the kernel forgets attributes of before the last change, so that who opens the file sees its size. Pages it
    /// forgets with each open, since two changes can have the same times.
    pub async fn make_seen(&self, node: &Node, attr: &Attr) {
        let now = Some(Change::from(attr));
        if std::mem::replace(&mut *node.told.lock(), now) != now {
            self.kernel.forget(node.ino).await;
        }
    }

    /// The same, of the version that the server says, if it has any.
    pub async fn look_anew(&self, node: &Node) -> Answer<()> {
        if let Some(v4) = node.mount().v4() {
            self.make_current(node, v4.data_version(node.handle()).await.answer()?).await;
        }
        Ok(())
    }

    /// How long the kernel may believe attributes.
    pub fn believed(&self, ino: u64) -> Duration {
        let promised = || {
            let node = self.node(ino).ok()?;
            node.mount().v4()?.promised_for(node.handle())
        };
        promised().map_or(self.ttl, |promised| promised.max(self.ttl))
    }
}

/// Forgets what is kept by delegations of a mount, which has this number.
#[derive(Debug)]
pub struct Forgetful {
    pub tree: Weak<Tree>,
    pub mount: u64,
}

impl Watcher for Forgetful {
    fn ends(&self, file: Handle) -> BoxFuture<'static, ()> {
        let (tree, mount) = (self.tree.upgrade(), self.mount);
        Box::pin(async move {
            let Some(tree) = tree else { return };
            let Some(node) = tree.known(mount, &file) else { return };
            let mut cached = node.cached.lock().await;
            if !matches!(*cached, Cached::Nothing) {
                *cached = Cached::Unknown;
            }
            tree.kernel.forget(node.ino).await;
        })
    }
}
