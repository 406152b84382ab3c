//! Delegations: what the server has promised of files, and what is answered here because of that.
//!
//! Read RFC 8881 §10.4 first. While a file is delegated nobody else changes it, or gives its name to another: its
//! attributes, and where it was found, are known here. A delegation is trusted as long as the lease is known to be kept.
//! A [`Watcher`] is notified before a delegation is returned, so that a cache that depends on it (the kernel's pages, for `slipway mount`)
//! can be dropped.
//!
//! What was learned is dated by a clock of events, not of time: what an answer says holds only if nothing has happened since
//! its call was made that could have made it untrue.

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
    /// The attributes, which nobody else changes. Unknown after this client has changed them.
    pub attr: Option<Attr>,
    /// The change attribute when it was given, if the server has told it.
    pub change: Option<u64>,
    /// How large the file is with what this client has written or is writing, where it knows.
    pub size: Option<u64>,
    /// When the attributes were asked for.
    pub asked: Mark,
    /// When it was given; no other has the same.
    pub since: Mark,
    /// It is about to be given back: nothing is answered by it any more.
    pub ending: bool,
    /// Where the file was found since.
    name: Option<(Handle, Bytes)>,
}

/// A moment, by the clock of events.
pub(crate) type Mark = u64;

/// A cache beside this client whose entries are valid only while a file is delegated.
pub trait Watcher: Send + Sync + fmt::Debug {
    /// The delegation of a file is about to be returned, or was lost. The future is ready when nothing of the file is cached any more.
    fn ends(&self, file: Handle) -> BoxFuture<'static, ()>;
}

/// Delegations of a mount.
#[derive(Debug, Default)]
pub(crate) struct Delegations {
    clock: AtomicU64,
    /// By directory and name, those found while they were delegated. Whether they are still says the [`Delegation`].
    names: Mutex<HashMap<(Handle, Bytes), Handle>>,
    /// When this client has taken a name away last.
    renamed: AtomicU64,
    watcher: OnceLock<Arc<dyn Watcher>>,
    /// Delegations that were recalled before this client had heard of them.
    early: Mutex<Vec<Stateid4>>,
}

impl Delegations {
    /// Whether a delegation was recalled before this client had heard of it. It answers this once.
    pub fn was_recalled(&self, stateid: &Stateid4) -> bool {
        let mut early = self.early.lock();
        let at = early.iter().position(|early| early.other == stateid.other);
        at.map(|at| early.swap_remove(at)).is_some()
    }

    /// Registers the watcher, once.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        assert!(self.watcher.set(watcher).is_ok(), "a mount has one watcher");
    }

    /// The watcher, if there is one.
    pub fn watcher(&self) -> Option<Arc<dyn Watcher>> {
        self.watcher.get().cloned()
    }

    /// Now.
    pub fn now(&self) -> Mark {
        self.clock.load(Relaxed)
    }

    /// Something happens that makes earlier answers untrue.
    pub fn event(&self) -> Mark {
        self.clock.fetch_add(1, Relaxed) + 1
    }

    /// Tells who keeps something by a delegation.
    pub async fn ends(&self, file: &Handle) {
        if let Some(watcher) = self.watcher.get() {
            watcher.ends(file.clone()).await;
        }
    }

    /// The same, of one that has been lost: who waits may wait for what only this task can do.
    pub fn lost(&self, file: &Handle) {
        if let Some(watcher) = self.watcher.get() {
            tokio::spawn(watcher.ends(file.clone()));
        }
    }
}

impl Delegation {
    pub fn new(stateid: Stateid4, write: bool, since: Mark) -> Self {
        Self { stateid, write, attr: None, change: None, size: None, asked: since, since, ending: false, name: None }
    }
}

impl Opens {
    /// Handles CB_RECALL.
    pub fn recalled(self: &Arc<Self>, stateid: Stateid4) {
        if self.delegated(&stateid).is_none() {
            // RFC 8881 §20.2.3, §10.4.3: the reply to the OPEN that granted it may be on its way.
            let mut early = self.delegations.early.lock();
            if early.len() >= EARLY_MAX {
                early.remove(0);
            }
            early.push(stateid);
        }
        self.recall(stateid);
    }

    /// Returns a delegation in a task of its own: the server waits for the answer to its callback first.
    pub fn recall(self: &Arc<Self>, stateid: Stateid4) {
        let Some(file) = self.delegated(&stateid) else { return };
        self.delegations.was_recalled(&stateid);
        let opens = self.clone();
        self.client.link.runtime.spawn(async move {
            let deadline = &Deadline::strict(opens.client.link.lease());
            opens.return_delegation(&file, deadline).await;
        });
    }

    /// What a delegation that is to be trusted says of a file.
    pub fn promised<T>(&self, handle: &Handle, of: impl Fn(&Delegation) -> Option<T>) -> Option<T> {
        let file = self.known(handle)?;
        self.client.link.lease_left()?;
        file.state.lock().delegation.as_ref().filter(|delegation| !delegation.ending).and_then(of)
    }

    /// The attributes of a file that the server delegates.
    pub fn delegated_attr(&self, handle: &Handle) -> Option<Attr> {
        self.promised(handle, |delegation| self.attr_of(delegation))
    }

    fn attr_of(&self, delegation: &Delegation) -> Option<Attr> {
        // Which of several names of a file this client has taken away it may not know.
        let names_known = |attr: &&Attr| attr.nlink < 2 || self.delegations.renamed.load(Relaxed) <= delegation.asked;
        delegation.attr.as_ref().filter(names_known).cloned()
    }

    /// This client takes a name away, or gives it to another object: to be called before, and after.
    pub fn renamed(&self, dir: &Handle, name: &[u8]) {
        self.delegations.renamed.store(self.delegations.event(), Relaxed);
        let file = self.delegations.names.lock().remove(&(dir.clone(), Bytes::copy_from_slice(name)));
        file.iter().for_each(|file| self.changed(file));
    }

    /// The file of a name, if the server delegates it since before it was found there.
    pub fn delegated_name(&self, dir: &Handle, name: &[u8]) -> Option<Node> {
        let key = (dir.clone(), Bytes::copy_from_slice(name));
        let handle = self.delegations.names.lock().get(&key)?.clone();
        let here =
            |delegation: &Delegation| (delegation.name.as_ref() == Some(&key)).then(|| self.attr_of(delegation))?;
        let attr = self.promised(&handle, here)?;
        Some(Node { handle, attr: Some(attr) })
    }

    /// A call that was made then has found a file under a name.
    pub fn name_found(&self, dir: &Handle, name: &[u8], file: &Handle, asked: Mark) {
        let Some(known) = self.known(file).filter(|_| self.delegations.renamed.load(Relaxed) <= asked) else { return };
        let key = (dir.clone(), Bytes::copy_from_slice(name));
        match &mut known.state.lock().delegation {
            Some(delegation) if delegation.since <= asked => delegation.name = Some(key.clone()),
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

    /// A call that was made then has seen these attributes of an object.
    pub fn seen(&self, handle: &Handle, attr: &Attr, asked: Mark) {
        let Some(file) = self.known(handle) else { return };
        let mut state = file.state.lock();
        if state.is_settled(asked)
            && let Some(delegation) = state.delegation.as_mut().filter(|delegation| delegation.since <= asked)
        {
            (delegation.attr, delegation.size, delegation.asked) = (Some(attr.clone()), Some(attr.size), asked);
        }
    }

    /// This client has changed the object: its attributes are not known any more.
    pub fn changed(&self, handle: &Handle) {
        if let Some(file) = self.known(handle) {
            let mut state = file.state.lock();
            state.changed = self.delegations.event();
            if let Some(delegation) = &mut state.delegation {
                (delegation.attr, delegation.size) = (None, None);
            }
        }
    }

    /// This client has changed the size of a file to this.
    pub fn resized(&self, handle: &Handle, size: u64) {
        if let Some(file) = self.known(handle) {
            let mut state = file.state.lock();
            let writing = state.writing > 0;
            if let Some(delegation) = state.delegation.as_mut().filter(|_| !writing) {
                delegation.size = Some(size);
            }
        }
    }

    /// The file whose delegation this is.
    pub fn delegated(&self, stateid: &Stateid4) -> Option<Arc<OpenFile>> {
        let of = |file: &Arc<OpenFile>| {
            file.state.lock().delegation.as_ref().is_some_and(|d| d.stateid.other == stateid.other)
        };
        self.all().into_iter().find(of)
    }

    /// Some files with delegations that nobody uses now, the longest unused first.
    pub fn delegated_files(&self) -> Vec<Arc<OpenFile>> {
        let mut files = self.all();
        files.retain(|file| file.state.lock().delegation.is_some());
        files.sort_by_key(|file| file.used());
        files
    }

    /// Returns the delegation of a file, which stays open.
    pub async fn return_delegation(self: &Arc<Self>, file: &Arc<OpenFile>, deadline: &Deadline) {
        // Before anybody is kept from opening the file, who may be reading what is to be forgotten.
        if !self.ending(file).await {
            return;
        }
        let _alone = file.changing().await;
        // Nothing is written behind a delegation's back here: there is nothing to flush before (RFC 8881 §10.4.4); and nothing is
        // open but at the server.
        let Some(delegation) = file.state.lock().delegation.take() else { return };
        let args = DelegReturnArgs { deleg_stateid: delegation.stateid };
        let compound = Compound::on("DELEGRETURN", &file.handle).op(Argop4::DelegReturn(args), 0).once();
        if let Err(error) = self.client.run(&compound, deadline).await {
            tracing::debug!(%error, "a delegation cannot be returned");
        }
    }

    /// A delegation is about to be given back: waits until nothing is kept by it any more, but not for ever, as somebody else waits
    /// for it. Returns whether there is one.
    pub async fn ending(&self, file: &OpenFile) -> bool {
        match &mut file.state.lock().delegation {
            Some(delegation) => delegation.ending = true,
            None => return false,
        }
        let ends = self.delegations.ends(&file.handle);
        if tokio::time::timeout(self.client.link.lease() / 2, ends).await.is_err() {
            tracing::debug!("what is kept by a delegation is not forgotten in time");
        }
        true
    }
}

impl OpenFile {
    /// Begins a WRITE of bytes up to `end`.
    pub fn writing(self: &Arc<Self>, opens: &Opens, end: u64) -> Writing {
        let mut state = self.state.lock();
        state.writing += 1;
        if let Some(delegation) = &mut state.delegation {
            delegation.size = delegation.size.map(|size| size.max(end));
        }
        Writing { file: self.clone(), delegations: opens.delegations.clone(), done: false }
    }
}

/// A WRITE under way: as long as it is, the file may be changed and the server not know of it (RFC 8881 §10.4.3).
#[derive(Debug)]
pub(crate) struct Writing {
    file: Arc<OpenFile>,
    delegations: Arc<Delegations>,
    done: bool,
}

impl Writing {
    /// All of it has been written.
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

/// Fewer names than this are not looked through for those that are not true any more.
const NAMES_MIN: usize = 1024;
/// Recalls that are remembered until their OPEN is answered.
const EARLY_MAX: usize = 64;
