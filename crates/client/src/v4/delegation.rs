//! Delegations: the files that the server delegates to this client, and the attributes and names that are cached
//! because of that.
//!
//! Read RFC 8881 §10.4 first. While a file is delegated, no other client can change it or rename it. Therefore this
//! client caches its attributes and the name under which it was found. A delegation is trusted only while the lease is
//! known to be valid. A [`Watcher`] is notified before a delegation is returned, so that it can drop caches that depend
//! on it (the kernel's page cache, for `slipway mount`).
//!
//! Events are ordered by a logical clock. A reply is cached only if no event since its request can have made it stale.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use entropy::HashMap;
use nfs::v4::*;
use parking_lot::Mutex;
use rpc::BoxFuture;

use super::opens::{OpenFile, Opens};
use crate::{
    call::Deadline,
    model::{Attr, Handle, Node},
    session::compound::Compound,
};

/// A delegation.
#[derive(Clone, Debug)]
pub(crate) struct Delegation {
    pub stateid: Stateid4,
    pub write: bool,
    /// The attributes, which no other client changes; `None` after this client has changed them.
    pub attr: Option<Attr>,
    /// The change attribute when the delegation was granted, if the server has sent it.
    pub change: Option<u64>,
    /// The size of the file, including outstanding writes of this client, if it is known.
    pub size: Option<u64>,
    /// The time at which the attributes were requested.
    pub requested_at: EventTime,
    /// The time at which the delegation was granted. No two delegations have the same.
    pub since: EventTime,
    /// Set when the delegation is about to be returned. It is not trusted any more.
    pub is_returning: bool,
    /// The directory and name under which the file was found since then.
    name: Option<(Handle, Bytes)>,
}

/// A time of the logical clock of events.
pub(crate) type EventTime = u64;

/// A cache outside of this library whose entries are valid only while a file is delegated.
pub trait Watcher: Send + Sync + fmt::Debug {
    /// Called when the delegation of a file is about to be returned, or was lost. The future completes when the cache
    /// of the file is dropped.
    fn drop_cache(&self, file: Handle) -> BoxFuture<'static, ()>;
}

/// The delegations of a mount.
#[derive(Debug, Default)]
pub(crate) struct Delegations {
    clock: AtomicU64,
    /// The delegated files by directory and name. An entry is valid only if the [`Delegation`] has the same name.
    names: Mutex<HashMap<(Handle, Bytes), Handle>>,
    /// The time at which this client last removed or changed a name.
    renamed: AtomicU64,
    watcher: OnceLock<Arc<dyn Watcher>>,
    /// Delegations that were recalled before this client received the reply that granted them.
    early: Mutex<Vec<Stateid4>>,
}

impl Delegations {
    /// Returns `true`, once, if a delegation was recalled before this client received the reply that granted it.
    pub fn was_recalled(&self, stateid: &Stateid4) -> bool {
        let mut early = self.early.lock();
        let at = early.iter().position(|early| early.other == stateid.other);
        at.map(|at| early.swap_remove(at)).is_some()
    }

    /// Registers the watcher. There can be one.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        assert!(self.watcher.set(watcher).is_ok(), "the watcher of a mount must be set only once");
    }

    /// Returns the watcher, if there is one.
    pub fn watcher(&self) -> Option<Arc<dyn Watcher>> {
        self.watcher.get().cloned()
    }

    /// Returns the current time.
    pub fn now(&self) -> EventTime {
        self.clock.load(Relaxed)
    }

    /// Advances the clock, because an event makes earlier replies stale. Returns the new time.
    pub fn event(&self) -> EventTime {
        self.clock.fetch_add(1, Relaxed) + 1
    }

    /// Notifies the watcher of the end of a delegation, and waits until its cache is dropped.
    pub async fn drop_cache(&self, file: &Handle) {
        if let Some(watcher) = self.watcher.get() {
            watcher.drop_cache(file.clone()).await;
        }
    }

    /// Notifies the watcher of a lost delegation without waiting: the watcher may wait for an operation that only this
    /// task can finish.
    pub fn lost(&self, file: &Handle) {
        if let Some(watcher) = self.watcher.get() {
            tokio::spawn(watcher.drop_cache(file.clone()));
        }
    }
}

impl Delegation {
    pub fn new(stateid: Stateid4, write: bool, since: EventTime) -> Self {
        Self {
            stateid,
            write,
            attr: None,
            change: None,
            size: None,
            requested_at: since,
            since,
            is_returning: false,
            name: None,
        }
    }
}

impl Opens {
    /// Handles CB_RECALL.
    pub fn recalled(self: &Arc<Self>, stateid: Stateid4) {
        if self.delegated(&stateid).is_none() {
            // RFC 8881 §20.2.3, §10.4.3: the reply to the OPEN that granted the delegation may still be in transit.
            let mut early = self.delegations.early.lock();
            if early.len() >= EARLY_MAX {
                early.remove(0);
            }
            early.push(stateid);
        }
        self.recall(stateid);
    }

    /// Returns a delegation in a task of its own, because the server first waits for the reply to its callback.
    pub fn recall(self: &Arc<Self>, stateid: Stateid4) {
        let Some(file) = self.delegated(&stateid) else { return };
        self.delegations.was_recalled(&stateid);
        let opens = self.clone();
        self.client.link.runtime.spawn(async move {
            let deadline = &Deadline::strict(opens.client.link.lease());
            opens.return_delegation(&file, deadline).await;
        });
    }

    /// Returns the result of `of` for the delegation of a file, if there is one that can be trusted.
    pub fn trusted_delegation<T>(&self, handle: &Handle, of: impl Fn(&Delegation) -> Option<T>) -> Option<T> {
        let file = self.known(handle)?;
        self.client.link.lease_left()?;
        file.state.lock().delegation.as_ref().filter(|delegation| !delegation.is_returning).and_then(of)
    }

    /// Returns the cached attributes of a delegated file.
    pub fn delegated_attr(&self, handle: &Handle) -> Option<Attr> {
        self.trusted_delegation(handle, |delegation| self.attr_of(delegation))
    }

    fn attr_of(&self, delegation: &Delegation) -> Option<Attr> {
        // If the file has several names, this client may not know whether it has removed one of them.
        let names_known =
            |attr: &&Attr| attr.nlink < 2 || self.delegations.renamed.load(Relaxed) <= delegation.requested_at;
        delegation.attr.as_ref().filter(names_known).cloned()
    }

    /// Drops the cached name and attributes of a file whose name this client removes or changes. Call it before and
    /// after the request.
    pub fn renamed(&self, dir: &Handle, name: &[u8]) {
        self.delegations.renamed.store(self.delegations.event(), Relaxed);
        let file = self.delegations.names.lock().remove(&(dir.clone(), Bytes::copy_from_slice(name)));
        file.iter().for_each(|file| self.changed(file));
    }

    /// Returns the file with a name, if it was found there and has been delegated since.
    pub fn delegated_name(&self, dir: &Handle, name: &[u8]) -> Option<Node> {
        let key = (dir.clone(), Bytes::copy_from_slice(name));
        let handle = self.delegations.names.lock().get(&key)?.clone();
        let here =
            |delegation: &Delegation| (delegation.name.as_ref() == Some(&key)).then(|| self.attr_of(delegation))?;
        let attr = self.trusted_delegation(&handle, here)?;
        Some(Node { handle, attr: Some(attr) })
    }

    /// Caches the name under which a request, sent at `requested_at`, has found a file.
    pub fn name_found(&self, dir: &Handle, name: &[u8], file: &Handle, requested_at: EventTime) {
        let Some(known) = self.known(file).filter(|_| self.delegations.renamed.load(Relaxed) <= requested_at) else {
            return;
        };
        let key = (dir.clone(), Bytes::copy_from_slice(name));
        match &mut known.state.lock().delegation {
            Some(delegation) if delegation.since <= requested_at => delegation.name = Some(key.clone()),
            _ => return,
        }
        let mut names = self.delegations.names.lock();
        if names.len() >= NAMES_MIN && names.len() >= 2 * self.len() {
            let is = |(key, handle): (&(Handle, Bytes), &Handle)| {
                let file = self.known(handle)?;
                let state = file.state.lock();
                (state.delegation.as_ref()?.name.as_ref()? == key).then_some(())
            };
            names.retain(|key, handle| is((key, handle)).is_some());
        }
        names.insert(key, file.clone());
    }

    /// Caches the attributes of an object that a request, sent at `requested_at`, has returned.
    pub fn store_attributes(&self, handle: &Handle, attr: &Attr, requested_at: EventTime) {
        let Some(file) = self.known(handle) else { return };
        let mut state = file.state.lock();
        if state.is_settled(requested_at)
            && file.is_published()
            && let Some(delegation) = state.delegation.as_mut().filter(|delegation| delegation.since <= requested_at)
        {
            (delegation.attr, delegation.size, delegation.requested_at) =
                (Some(attr.clone()), Some(attr.size), requested_at);
        }
    }

    /// Drops the cached attributes of an object that this client has changed.
    pub fn changed(&self, handle: &Handle) {
        if let Some(file) = self.known(handle) {
            let mut state = file.state.lock();
            state.changed = self.delegations.event();
            if let Some(delegation) = &mut state.delegation {
                (delegation.attr, delegation.size) = (None, None);
            }
        }
    }

    /// Stores the size of a file that this client has set.
    pub fn resized(&self, handle: &Handle, size: u64) {
        if let Some(file) = self.known(handle) {
            let mut state = file.state.lock();
            let writing = state.writing > 0;
            if let Some(delegation) = state.delegation.as_mut().filter(|_| !writing) {
                delegation.size = Some(size);
            }
        }
    }

    /// Returns the file that has this delegation.
    pub fn delegated(&self, stateid: &Stateid4) -> Option<Arc<OpenFile>> {
        let of = |file: &Arc<OpenFile>| {
            file.state.lock().delegation.as_ref().is_some_and(|d| d.stateid.other == stateid.other)
        };
        self.all().into_iter().find(of)
    }

    /// Returns the files with delegations, the least recently used first.
    pub fn delegated_files(&self) -> Vec<Arc<OpenFile>> {
        let mut files = self.all();
        files.retain(|file| file.state.lock().delegation.is_some());
        files.sort_by_key(|file| file.used());
        files
    }

    /// Returns the delegation of a file to the server. The file stays open.
    pub async fn return_delegation(self: &Arc<Self>, file: &Arc<OpenFile>, deadline: &Deadline) {
        // Notify the watcher before the file is locked, because the watcher may have to finish reads of the file first.
        if !self.notify_return(file).await {
            return;
        }
        let _changes = file.lock_changes().await;
        // This client writes through, so there are no data to flush first (RFC 8881 §10.4.4), and every open is known
        // to the server.
        let Some(delegation) = file.state.lock().delegation.take() else { return };
        let args = DelegReturnArgs { deleg_stateid: delegation.stateid };
        let compound = Compound::on("DELEGRETURN", &file.handle).op(Argop4::DelegReturn(args), 0).once();
        if let Err(error) = self.client.run(&compound, deadline).await {
            tracing::debug!(%error, "returning a delegation failed");
        }
    }

    /// Notifies the watcher that a delegation will be returned. Waits until its cache is dropped, but at most half of
    /// the lease time, because another client waits for the delegation. Returns `true` if there is a delegation.
    pub async fn notify_return(&self, file: &OpenFile) -> bool {
        match &mut file.state.lock().delegation {
            Some(delegation) => delegation.is_returning = true,
            None => return false,
        }
        let ends = self.delegations.drop_cache(&file.handle);
        if tokio::time::timeout(self.client.link.lease() / 2, ends).await.is_err() {
            tracing::debug!("the cache that depends on a delegation was not dropped in time");
        }
        true
    }
}

impl OpenFile {
    /// Returns `true` if the server knows all writes of this client. Otherwise its attributes are not those of the file.
    pub(super) fn is_published(&self) -> bool {
        self.layouts.held.lock().uncommitted().is_none()
    }

    /// Begins a WRITE of bytes up to offset `end`.
    pub fn writing(self: &Arc<Self>, opens: &Opens, end: u64) -> Writing {
        let mut state = self.state.lock();
        state.writing += 1;
        if let Some(delegation) = &mut state.delegation {
            delegation.size = delegation.size.map(|size| size.max(end));
        }
        Writing { file: self.clone(), delegations: opens.delegations.clone(), done: false }
    }
}

/// An outstanding WRITE. Until it ends, the file may be changed without the server's knowledge (RFC 8881 §10.4.3).
#[derive(Debug)]
pub(crate) struct Writing {
    file: Arc<OpenFile>,
    delegations: Arc<Delegations>,
    done: bool,
}

impl Writing {
    /// Marks all bytes of the WRITE as written.
    pub fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut state = self.file.state.lock();
        state.writing -= 1;
        state.changed = self.delegations.event();
        if let Some(delegation) = &mut state.delegation {
            delegation.attr = None;
            delegation.size = delegation.size.filter(|_| self.done);
        }
    }
}

/// Minimum number of names before stale ones are removed.
const NAMES_MIN: usize = 1024;
/// Maximum number of recalls that are stored until the reply to their OPEN.
const EARLY_MAX: usize = 64;
