//! Write-back caching (FUSE_WRITEBACK_CACHE): the kernel keeps data that programs write, and sends them later.
//!
//! Read `Documentation/filesystems/fuse/fuse-io.rst` of Linux first. The kernel then owns size, mtime and ctime of each regular file: it
//! takes them from the first attributes that it receives for a number, changes them itself, and ignores later ones. It sends its
//! mtime by SETATTR. So a file that another client has changed gets another number, for which the kernel starts again
//! ([`Nodes::register`](super::nodes::Nodes::register)). That is only possible while no program here has it open. [`Owned`] keeps
//! what the kernel has, by the attributes of the server that correspond to it.

use client::{Attr, FileKind, SetAttr, SetTime, Time};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{
    nodes::Node,
    tree::{Answer, Tree},
    view::Target,
};

/// The attributes that the kernel owns of a file, and the opens that it has received.
#[derive(Debug, Default)]
pub struct Owned(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of opens that the kernel has received, and of those for writing.
    opens: u64,
    writers: u64,
    /// Size and mtime at the server when they were those of the kernel; `None` if they are unknown because this mount has written.
    at_server: Option<(u64, Time)>,
    /// The mtime that the kernel has, if it is known, with the last attributes that it received.
    known: Option<(Time, Attr)>,
    /// Set when the file has got another number.
    is_replaced: bool,
}

impl Owned {
    /// Records the attributes that the kernel starts with.
    pub fn start(&self, attr: &Attr) {
        let mut state = self.0.lock();
        (state.at_server, state.known) = (Some((attr.size, attr.mtime)), Some((attr.mtime, attr.clone())));
    }

    /// Returns `true` if the file has another number.
    pub fn is_replaced(&self) -> bool {
        self.0.lock().is_replaced
    }

    /// Returns `true` if no program has the file open, and its attributes at the server are not those that correspond to the kernel's.
    pub fn is_outdated(&self, attr: &Attr) -> bool {
        let state = self.0.lock();
        state.opens == 0 && attr.kind == FileKind::Reg && state.at_server != Some((attr.size, attr.mtime))
    }

    /// Gives the number up if the file is outdated. Returns `true` if it was.
    pub fn replace_if_outdated(&self, attr: &Attr) -> bool {
        let outdated = self.is_outdated(attr);
        self.0.lock().is_replaced |= outdated;
        outdated
    }

    /// Counts an open that the kernel receives.
    ///
    /// # Errors
    /// ESTALE: another client has changed the file, whose attributes at the server are `attr` now. The kernel then looks the name up again.
    pub fn open(&self, writes: bool, attr: Option<&Attr>) -> Answer<()> {
        if self.is_replaced() || attr.is_some_and(|attr| self.is_outdated(attr)) {
            return Err(Errno::STALE);
        }
        let mut state = self.0.lock();
        state.opens += 1;
        state.writers += u64::from(writes);
        Ok(())
    }

    /// Counts an open less.
    pub fn close(&self, writes: bool) {
        let mut state = self.0.lock();
        state.opens -= 1;
        state.writers -= u64::from(writes);
    }

    /// Returns `true` if a program has the file open.
    pub fn is_open(&self) -> bool {
        self.0.lock().opens > 0
    }

    /// Returns `true` if the kernel may have data to write.
    pub fn may_be_dirty(&self) -> bool {
        self.0.lock().writers > 0
    }

    /// Records that the kernel has written data of its cache.
    pub fn wrote(&self) {
        self.0.lock().at_server = None;
    }

    /// Records that the data have changed beside the kernel's cache, so that it may have an old mtime.
    pub fn wrote_directly(&self) {
        let mut state = self.0.lock();
        (state.at_server, state.known) = (None, None);
    }

    /// Returns the kernel's mtime if the server has another one.
    fn unsent_mtime(&self) -> Option<Time> {
        let state = self.0.lock();
        state.known.as_ref().filter(|_| state.at_server.is_none()).map(|(mtime, _)| *mtime)
    }

    /// Records the attributes after a SETATTR, which the kernel has or receives.
    fn set(&self, set: &SetAttr, attr: &Attr) {
        let mut state = self.0.lock();
        if let SetTime::ToClientTime(mtime) = set.mtime {
            state.known = Some((mtime, attr.clone()));
        }
        state.at_server = match (set.size, state.at_server) {
            // The kernel takes the size from this reply, and has written all data before it sends its times.
            (Some(_), _) | (None, None) => Some((attr.size, attr.mtime)),
            (None, Some((size, _))) if set.mtime != SetTime::DontChange => Some((size, attr.mtime)),
            (None, known) => known,
        };
    }
}

impl Tree {
    /// Records that data of a file are written: those of the kernel's cache, or beside it.
    pub(super) fn writes(&self, ino: u64, is_cached: bool) {
        match self.node(ino) {
            Ok(node) if is_cached => node.owned.wrote(),
            Ok(node) => node.owned.wrote_directly(),
            // The WRITE reports the error.
            Err(_) => {}
        }
    }

    /// Makes the kernel write the data of a file that it has not written, with write-back caching.
    pub(super) async fn write_back(&self, node: &Node) {
        if self.writeback && node.owned.may_be_dirty() {
            self.kernel.forget(node.ino).await;
        }
    }

    /// Returns `true` if the kernel owns the attributes of a file, and keeps them because a program has it open.
    pub(super) fn owns_open(&self, node: &Node) -> bool {
        self.writeback && node.owned.is_open()
    }

    /// Makes the kernel write the data of all files.
    pub async fn write_back_all(&self) {
        let nodes = self.nodes.lock().all();
        for node in nodes {
            self.write_back(&node).await;
        }
    }

    /// Returns the last attributes if SETATTR sets only an mtime that the kernel has from this mount. The kernel sends it after a change of
    /// ctime, such as a rename, and ignores the reply. Another client may have changed the mtime since.
    pub(super) fn sets_known_time(&self, node: &Node, set: &SetAttr, ctime: Option<Time>) -> Option<Attr> {
        let only_mtime = SetAttr { mtime: SetTime::DontChange, ..set.clone() } == SetAttr::default();
        let state = node.owned.0.lock();
        let (mtime, attr) = state.known.as_ref().filter(|_| only_mtime && ctime.is_some())?;
        // The server sets its own mtime when it executes a WRITE.
        (state.at_server.is_some() && set.mtime == SetTime::ToClientTime(*mtime)).then(|| attr.clone())
    }

    /// Sets the mtime at the server to the kernel's if the kernel has written without a change of its mtime, whose clock ticks rarely: it
    /// then sends no time.
    pub(super) async fn send_known_time(&self, node: &Target) {
        let Some(mtime) = node.owned.unsent_mtime().filter(|_| self.writeback) else { return };
        let (set, since) = (SetAttr { mtime: SetTime::ToClientTime(mtime), ..SetAttr::default() }, self.room.now());
        let after = node.mount().protocol().setattr(node.handle(), set.clone()).await;
        let is_last = node.staged.is_settled(since);
        node.staged.changed();
        match after {
            Ok(Some(attr)) if is_last => self.has_set(node, &set, &attr),
            Ok(_) => {}
            // The kernel gets the time of the server when it looks the file up again.
            Err(error) => tracing::debug!(%error, "cannot set the mtime of a file that is closed"),
        }
    }

    /// Returns the attributes to set after the server has refused `set`, if the kernel has replaced the server's time by its own: users
    /// that do not own a file but may write it can only set its times to the server's.
    pub(super) fn with_time_of_server(&self, set: &SetAttr, ctime: Option<Time>, error: Errno) -> Option<SetAttr> {
        let refused = matches!(error, Errno::PERM | Errno::ACCESS);
        let is_now = |mtime| matches!(mtime, SetTime::ToClientTime(time) if Some(time) == ctime);
        (self.writeback && refused && is_now(set.mtime))
            .then(|| SetAttr { mtime: SetTime::ToServerTime, ..set.clone() })
    }

    /// Records the attributes after a SETATTR that no other change of this mount has followed.
    pub(super) fn has_set(&self, node: &Node, set: &SetAttr, attr: &Attr) {
        if self.writeback && attr.kind == FileKind::Reg {
            node.owned.set(set, attr);
        }
    }

    /// Fails with ESTALE if the kernel has old attributes of a file, which were requested at `since`, and can get new ones.
    pub(super) fn check_outdated(&self, node: &Node, attr: &Attr, since: u64) -> Answer<()> {
        let outdated = self.writeback && node.staged.is_settled(since) && node.owned.is_outdated(attr);
        if outdated { Err(Errno::STALE) } else { Ok(()) }
    }
}
