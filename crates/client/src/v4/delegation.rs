//! Delegations: what the server has promised of files, and what is answered here because of that.
//!
//! Read RFC 8881 §10.4 first. While a file is delegated nobody else changes it, or gives its name to another: its
//! attributes, and where it was found, are known here. A delegation is trusted as long as the lease is known to be kept.
//! Whoever keeps more by it (the kernel its pages, for `slipway mount`) is told before it is given back, by a [`Watcher`].
//!
//! What was learned is dated by a clock of events, not of time: what an answer says holds only if nothing has happened since
//! its call was made that could have made it untrue.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use nfs::v4::*;
use parking_lot::Mutex;
use rpc::BoxFuture;

use super::{
    V4, attr,
    compound::{Compound, value},
    moved::Place,
    opens::{InUse, OpenFile, Opens, wanted},
    shared::Shared,
};
use crate::{Attr, Handle, Node, Result, deadline::Deadline};

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

/// Whoever keeps what holds only while a file is delegated, beside this client.
pub trait Watcher: Send + Sync + fmt::Debug {
    /// The delegation of a file is about to be given back, or has been lost. Ready when nothing is kept any more.
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
}

impl Delegations {
    /// Who keeps something by delegations.
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
    /// What a delegation that is to be trusted says of a file.
    fn promised<T>(&self, shared: &Shared, handle: &Handle, of: impl Fn(&Delegation) -> Option<T>) -> Option<T> {
        shared.lease_left()?;
        self.known(handle)?.state.lock().delegation.as_ref().filter(|delegation| !delegation.ending).and_then(of)
    }

    /// The attributes of a file that the server delegates.
    pub fn delegated_attr(&self, shared: &Shared, handle: &Handle) -> Option<Attr> {
        self.promised(shared, handle, |delegation| self.attr_of(delegation))
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
    pub fn delegated_name(&self, shared: &Shared, dir: &Handle, name: &[u8]) -> Option<Node> {
        let key = (dir.clone(), Bytes::copy_from_slice(name));
        let handle = self.delegations.names.lock().get(&key)?.clone();
        let here =
            |delegation: &Delegation| (delegation.name.as_ref() == Some(&key)).then(|| self.attr_of(delegation))?;
        let attr = self.promised(shared, &handle, here)?;
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
    pub async fn return_delegation(&self, shared: &Arc<Shared>, file: &Arc<OpenFile>, deadline: &Deadline) {
        // Before anybody is kept from opening the file, who may be reading what is to be forgotten.
        if !self.ending(shared, file).await {
            return;
        }
        let _alone = file.changing().await;
        // Nothing is written behind a delegation's back here: there is nothing to flush before (RFC 8881 §10.4.4); and nothing is
        // open but at the server.
        let Some(delegation) = file.state.lock().delegation.take() else { return };
        let args = DelegReturnArgs { deleg_stateid: delegation.stateid };
        let compound = Compound::on("DELEGRETURN", &file.handle).op(Argop4::DelegReturn(args), 0).once();
        if let Err(error) = shared.run(&compound, deadline).await {
            tracing::debug!(%error, "a delegation cannot be returned");
        }
    }

    /// A delegation is about to be given back: waits until nothing is kept by it any more, but not for ever, as somebody else waits
    /// for it. Returns whether there is one.
    pub async fn ending(&self, shared: &Shared, file: &OpenFile) -> bool {
        match &mut file.state.lock().delegation {
            Some(delegation) => delegation.ending = true,
            None => return false,
        }
        let ends = self.delegations.ends(&file.handle);
        if tokio::time::timeout(shared.lease() / 2, ends).await.is_err() {
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

/// A file that is not closed before this is dropped.
#[derive(Debug)]
pub struct Held {
    _file: InUse,
}

/// A version of a file's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataVersion {
    change: Option<u64>,
    delegated: Option<Mark>,
    /// Of the server that says so.
    server: u64,
}

impl DataVersion {
    fn of(self, at: &Place) -> Self {
        Self { server: at.number(), ..self }
    }

    /// Whether nobody but this mount can have changed the data in between.
    pub fn is_same(&self, other: &Self) -> bool {
        let same = |one: Option<u64>, other: Option<u64>| one.is_some() && one == other;
        self.server == other.server && (same(self.delegated, other.delegated) || same(self.change, other.change))
    }
}

impl V4 {
    /// Opens a file for all that the `OPEN4_SHARE_ACCESS_` bits say; returns which version of its data it has, at this moment or
    /// later. Where the server delegates it, and it is open for that already, the server is not asked.
    ///
    /// # Errors
    /// `Acces`, `RoFs`, `Stale`, …
    pub async fn open(&self, handle: &Handle, access: u32) -> Result<DataVersion> {
        let opened = self
            .on(handle, |at| async move { at.v4.open_here(&at.handle, access).await.map(|version| version.of(&at)) });
        opened.await
    }

    async fn open_here(&self, handle: &Handle, access: u32) -> Result<DataVersion> {
        let file = self.shared.opens.file(handle);
        file.0.take_opened();
        file.0.stateid(&self.shared, access, &self.deadline()).await?;
        match (self.promised_version(handle), file.0.take_opened()) {
            (Some(promised), _) => Ok(promised),
            (None, Some(change)) => Ok(DataVersion { change: Some(change), ..DataVersion::default() }),
            (None, None) => self.ask_version(handle).await,
        }
    }

    /// Keeps a file open, once it is, until what comes back is dropped, also if it is not used for a while.
    pub fn hold(&self, handle: &Handle) -> Held {
        let at = self.place_now(handle);
        Held { _file: at.v4.shared.opens.file(&at.handle) }
    }

    /// Which version of its data a file has now.
    ///
    /// # Errors
    /// `Stale`, …
    pub async fn data_version(&self, handle: &Handle) -> Result<DataVersion> {
        let version = self
            .on(handle, |at| async move { at.v4.data_version_here(&at.handle).await.map(|version| version.of(&at)) });
        version.await
    }

    async fn data_version_here(&self, handle: &Handle) -> Result<DataVersion> {
        match self.promised_version(handle) {
            Some(version) => Ok(version),
            None => self.ask_version(handle).await,
        }
    }

    fn promised_version(&self, handle: &Handle) -> Option<DataVersion> {
        let of = |delegation: &Delegation| DataVersion {
            change: delegation.change,
            delegated: Some(delegation.since),
            ..DataVersion::default()
        };
        self.shared.opens.promised(&self.shared, handle, |delegation| Some(of(delegation)))
    }

    async fn ask_version(&self, handle: &Handle) -> Result<DataVersion> {
        let asked = self.shared.opens.delegations.now();
        let mut results = self.run(&Compound::on("GETATTR", handle).get_attr(&wanted())).await?;
        results.skip(&[Opnum4::PutFh])?;
        let attrs = attr::values(&value!(results, GetAttr)?)?;
        let attr = attr::from_values(&attrs).ok_or_else(|| results.nonsense("an object without type or size"))?;
        self.shared.opens.seen(handle, &attr, asked);
        Ok(DataVersion { change: attrs.change, ..DataVersion::default() })
    }

    /// From now on this is told of delegations that end. There can be one.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) {
        let known = self.shared.opens.delegations.watcher.set(watcher);
        assert!(known.is_ok(), "a mount has one watcher");
    }

    /// Whether the server delegates a file to this client now.
    pub fn is_delegated(&self, file: &Handle) -> bool {
        let at = self.place_now(file);
        at.v4.shared.opens.known(&at.handle).is_some_and(|file| file.state.lock().delegation.is_some())
    }

    /// How long the attributes of a file need not be asked for again, unless a [`Watcher`] hears otherwise: as long as the lease
    /// is known to last, under which the server delegates it.
    pub fn promised_for(&self, file: &Handle) -> Option<Duration> {
        let at = self.place_now(file);
        let shared = &at.v4.shared;
        shared.opens.delegated_attr(shared, &at.handle)?;
        shared.lease_left()
    }
}

/// Fewer names than this are not looked through for those that are not true any more.
const NAMES_MIN: usize = 1024;
