//! [`Opens`]: which files are open at the server, with the locks and delegations that go with them; one open for each
//! file handle, however many use it.
//!
//! Read RFC 8881 §8.2 (stateids), §9.1, §10.4 (delegations) and §8.4.2.1 (reclaiming) first. A file is opened by its
//! handle when data is first read or written, for what is then wanted, and stays open as long as it is in use or locked,
//! a moment longer in case that somebody comes back, and as long as the server delegates it: then opening it again costs
//! nothing, and its attributes are known. When the server has lost state, what is held is reclaimed, or opened anew.
//!
//! Version 4.0 opens by name (RFC 7530 §16.16). A file that is not found by its name any more is read and written without an
//! open, by the anonymous stateid (§9.1.4.3), and cannot be locked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use entropy::HashMap;
use nfs::v4::{attr::Attr4, *};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedMutexGuard},
    time::Instant,
};

use super::{
    attr,
    delegation::{Delegation, Delegations, Mark},
    lock_state,
    names::Names,
    opening::Closing,
    unreclaimed::Unreclaimed,
};
use crate::{
    call::Deadline,
    model::{Attr, Handle, Result},
    session::{
        client::Client4,
        compound::{Compound, Counter, Results, value},
        drive::drive,
    },
};

/// The open files of a mount.
#[derive(Debug)]
pub(crate) struct Opens {
    pub client: Arc<Client4>,
    files: Mutex<HashMap<Handle, Arc<OpenFile>>>,
    pub delegations: Arc<Delegations>,
    /// The next owner of [`open_once`].
    once: AtomicUsize,
    /// Files so far.
    serial: AtomicU64,
    pub names: Mutex<Names>,
}

/// A file that is, or is about to be, open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub handle: Handle,
    /// In version 4.0 it has owners of locks of its own, told apart by this.
    pub serial: u64,
    /// Changes one at a time; what is there can be looked at.
    changing: Arc<tokio::sync::Mutex<()>>,
    pub state: Mutex<State>,
    /// Requests under way.
    uses: AtomicUsize,
    used: Mutex<Instant>,
}

/// What the server keeps of a file for this client.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The open, and for what: the `OPEN4_SHARE_ACCESS_` bits.
    pub open: Option<(Stateid4, u32)>,
    pub delegation: Option<Delegation>,
    /// WRITEs under way.
    pub writing: u32,
    /// When this client has changed it last.
    pub changed: Mark,
    /// The change attribute that came with the last OPEN, for who has asked for that.
    pub(super) opened: Option<u64>,
    /// By owner.
    pub locks: HashMap<Bytes, Locked>,
    /// Owners that wait for a lock, and are told when to ask again.
    pub waiting: HashMap<Bytes, Arc<Notify>>,
    /// Whether the server may tell it (`OPEN4_RESULT_MAY_NOTIFY_LOCK`).
    pub may_notify: bool,
}

/// The attributes of a file that came with an OPEN.
#[derive(Debug)]
pub(crate) struct Seen {
    pub attr: Option<Attr>,
    pub change: Option<u64>,
    /// When it was asked.
    pub asked: Mark,
}

/// The locks of an owner in a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locked {
    pub stateid: Option<Stateid4>,
    /// First byte, bytes, exclusive.
    pub ranges: Vec<(u64, u64, bool)>,
    /// Its operations, in version 4.0.
    pub counter: Counter,
    /// The server has lost them, and did not let them be reclaimed.
    pub lost: bool,
}

/// A file that a request uses.
#[derive(Debug)]
pub(crate) struct InUse(pub Arc<OpenFile>);

impl Drop for InUse {
    fn drop(&mut self) {
        *self.0.used.lock() = Instant::now();
        self.0.uses.fetch_sub(1, Relaxed);
    }
}

impl Opens {
    /// No open files.
    pub fn new(client: Arc<Client4>) -> Self {
        Self {
            client,
            files: Mutex::default(),
            delegations: Arc::default(),
            once: AtomicUsize::default(),
            serial: AtomicU64::default(),
            names: Mutex::default(),
        }
    }

    /// The file of this handle, in use.
    pub fn file(&self, handle: &Handle) -> InUse {
        let mut files = self.files.lock();
        if let Some(file) = files.get(handle) {
            file.uses.fetch_add(1, Relaxed);
            return InUse(file.clone());
        }
        let file = Arc::new(OpenFile {
            handle: handle.detached(),
            serial: self.serial.fetch_add(1, Relaxed),
            changing: Arc::default(),
            state: Mutex::default(),
            uses: AtomicUsize::new(1),
            used: Mutex::new(Instant::now()),
        });
        files.insert(file.handle.clone(), file.clone());
        InUse(file)
    }

    /// The file of this handle, if anything is known of it.
    pub fn known(&self, handle: &Handle) -> Option<Arc<OpenFile>> {
        self.files.lock().get(handle).cloned()
    }

    /// An object was found by this name.
    pub fn found(&self, dir: &Handle, name: &[u8], object: &Handle, attr: Option<&Attr>) {
        self.names.lock().found(object, (dir, name), attr, |object| self.known(object).is_some());
    }

    /// All known files.
    pub fn all(&self) -> Vec<Arc<OpenFile>> {
        self.files.lock().values().cloned().collect()
    }

    /// The number of known files.
    pub fn len(&self) -> usize {
        self.files.lock().len()
    }

    /// The stateids of all opens, delegations and locks.
    pub fn stateids(&self) -> Vec<Stateid4> {
        let files = self.all();
        let of = |file: Arc<OpenFile>| {
            let state = file.state.lock();
            let locks = state.locks.values().filter_map(|locked| locked.stateid);
            let open = state.open.map(|(stateid, _)| stateid);
            open.into_iter().chain(state.delegation.iter().map(|d| d.stateid)).chain(locks).collect::<Vec<_>>()
        };
        files.into_iter().flat_map(of).collect()
    }

    /// Forgets a stateid that the server has revoked.
    pub fn lost(&self, stateid: &Stateid4) {
        for file in self.all() {
            let mut state = file.state.lock();
            let delegated = state.delegation.is_some();
            state.forget(stateid);
            if delegated && state.delegation.is_none() {
                self.delegations.lost(&file.handle);
            }
        }
    }

    /// Remembers a file that an operation has opened.
    pub fn opened(self: &Arc<Self>, handle: &Handle, ok: OpenOk, access: u32, seen: Seen) -> InUse {
        let file = self.file(handle);
        file.0.take_in(self, ok, access, seen);
        file
    }

    /// Closes the files that have been idle for a moment, and the least recently used ones if too many are idle.
    pub async fn close_idle(self: &Arc<Self>, deadline: &Deadline) {
        let mut idle: Vec<_> = {
            let files = self.files.lock();
            let idle = files.values().filter(|file| file.is_idle());
            idle.map(|file| (*file.used.lock(), file.clone())).collect()
        };
        idle.sort_by_key(|(used, _)| *used);
        let excess = idle.len().saturating_sub(IDLE_MAX);
        for (at, (used, file)) in idle.into_iter().enumerate() {
            let delegated = file.state.lock().delegation.is_some();
            if at < excess || (!delegated && used.elapsed() >= LINGER) {
                self.close(&file, deadline).await;
            }
        }
    }

    /// A user of this file has finished: the file is closed now if it is idle.
    pub fn done(self: &Arc<Self>, handle: &Handle) {
        let Some(file) = self.known(handle).filter(|file| file.is_idle()) else { return };
        if file.state.lock().delegation.is_none() {
            let opens = self.clone();
            self.client.link.runtime.spawn(async move {
                opens.close(&file, &Deadline::strict(opens.client.link.lease())).await;
            });
        }
    }

    /// Closes everything.
    pub async fn close_all(self: &Arc<Self>, deadline: &Deadline) {
        for file in self.all() {
            file.state.lock().locks.clear();
            self.close(&file, deadline).await;
        }
    }

    /// Closes a file and returns its delegation, unless it is in use. A request that needs the file meanwhile opens it again after that:
    /// the server has one open of it, so that a CLOSE would close a new one as well.
    async fn close(self: &Arc<Self>, file: &Arc<OpenFile>, deadline: &Deadline) {
        self.ending(file).await;
        let _alone = file.changing.lock().await;
        let (open, delegation, lockers) = {
            let _nobody_comes = self.files.lock();
            let mut state = file.state.lock();
            if !file.is_unused(&state) {
                // Somebody goes on with it; what was forgotten is learned again.
                state.delegation.iter_mut().for_each(|delegation| delegation.ending = false);
                return;
            }
            let lockers: Vec<_> =
                state.locks.drain().filter_map(|(name, locked)| Some((name, locked.stateid?))).collect();
            (state.open.take(), state.delegation.take(), lockers)
        };
        let open = open.map(|(stateid, _)| self.client.latest(stateid));
        let delegation = delegation.map(|delegation| delegation.stateid);
        if open.is_some() || delegation.is_some() {
            let compound = Compound::new("CLOSE");
            let mut closing =
                Closing { client: &self.client, handle: &file.handle, open, delegation, compound, old: 0 };
            let (res, _) = drive(&mut closing, None, deadline).await;
            let res = res.map(|res| res.expect("it is always sent"));
            if let Err(error) = res.and_then(|res| self.client.results(&closing.compound, res)) {
                tracing::debug!(%error, "a file cannot be closed");
            }
        }
        // RFC 7530 §16.37: the server would keep them, and their numbers. Later versions know that they have nothing.
        for (name, stateid) in lockers.into_iter().filter(|_| self.client.minor() == 0) {
            lock_state::forget(self, file, &name, stateid, deadline).await;
        }
        let mut files = self.files.lock();
        if file.is_idle() {
            files.remove(&file.handle);
        }
    }

    /// Reclaims opens and locks after the server has forgotten this client (RFC 8881 §8.4.2.1).
    pub async fn reclaim(self: &Arc<Self>, deadline: &Deadline) {
        let mut unreclaimed = Unreclaimed::default();
        for file in self.all() {
            // Without keeping others from changing it: they wait for this, with whatever they have begun.
            let (open, delegation) = {
                let mut state = file.state.lock();
                let delegation = state.delegation.take();
                (state.open.take(), delegation)
            };
            if delegation.is_some() {
                self.delegations.lost(&file.handle);
            }
            let Some((_, access)) = open else { continue };
            match file.reclaim(self, access, delegation, deadline).await {
                // However many there are: only a server that is silent has no time for all of them.
                Ok(()) => deadline.heard(),
                Err(error) => unreclaimed.file(error),
            }
            lock_state::reclaim(self, &file, deadline, &mut unreclaimed).await;
        }
        unreclaimed.report(self.client.link.trunk.first().server());
    }
}

impl State {
    /// Whether this client has changed nothing since then, and is not about to.
    pub fn is_settled(&self, since: Mark) -> bool {
        self.writing == 0 && self.changed <= since
    }

    /// A stateid is older than the server's: what has changed it since was given up before it was answered. From 4.1 on, a
    /// stateid need not say how old it is.
    fn advance(&mut self, stateid: &Stateid4) {
        let open = self.open.as_mut().map(|(open, _)| open);
        let locks = self.locks.values_mut().filter_map(|locked| locked.stateid.as_mut());
        for known in open.into_iter().chain(locks).filter(|known| *known == stateid) {
            known.seqid = known.seqid.wrapping_add(1);
        }
    }

    /// A stateid is of no more use; returns whether it was one of these.
    fn forget(&mut self, stateid: &Stateid4) -> bool {
        let same = |other: &Stateid4| other.other == stateid.other;
        let mut any = false;
        if self.open.is_some_and(|(open, _)| same(&open)) {
            self.open = None;
            any = true;
        }
        if self.delegation.as_ref().is_some_and(|delegation| same(&delegation.stateid)) {
            self.delegation = None;
            any = true;
        }
        for locked in self.locks.values_mut().filter(|locked| locked.stateid.is_some_and(|lock| same(&lock))) {
            locked.stateid = None;
            locked.lost = true;
            any = true;
        }
        any
    }
}

impl OpenFile {
    /// Keeps others from opening, closing and locking it meanwhile.
    pub async fn changing(&self) -> OwnedMutexGuard<()> {
        self.changing.clone().lock_owned().await
    }

    /// Waits until what is changing has changed.
    pub async fn settled(&self) {
        drop(self.changing().await);
    }

    /// Whether it can be closed.
    fn is_idle(&self) -> bool {
        self.is_unused(&self.state.lock())
    }

    fn is_unused(&self, state: &State) -> bool {
        self.uses.load(Relaxed) == 0 && state.locks.values().all(|locked| locked.ranges.is_empty())
    }

    /// The change attribute that came with an OPEN since this was called last.
    pub fn take_opened(&self) -> Option<u64> {
        self.state.lock().opened.take()
    }

    /// When a request used it last.
    pub fn used(&self) -> Instant {
        *self.used.lock()
    }

    /// Forgets a stateid that the server has refused with this status. Returns whether the operation can be retried.
    pub fn state_failed(&self, stateid: &Stateid4, status: Nfsstat4) -> bool {
        match status {
            Nfsstat4::OldStateid => {
                self.state.lock().advance(stateid);
                true
            }
            Nfsstat4::BadStateid
            | Nfsstat4::BadSeqid
            | Nfsstat4::StaleClientid
            | Nfsstat4::StaleStateid
            | Nfsstat4::Expired
            | Nfsstat4::AdminRevoked
            | Nfsstat4::DelegRevoked => {
                // If it is not there any more, another operation has already forgotten it.
                self.state.lock().forget(stateid);
                true
            }
            _ => false,
        }
    }

    /// Opens it as it was open before.
    ///
    /// # Errors
    /// It cannot be reclaimed.
    pub async fn reclaim(
        &self,
        opens: &Arc<Opens>,
        access: u32,
        delegation: Option<Delegation>,
        deadline: &Deadline,
    ) -> Result<()> {
        let had = match delegation {
            None => OpenDelegationType4::None,
            Some(Delegation { write: false, .. }) => OpenDelegationType4::Read,
            Some(Delegation { write: true, .. }) => OpenDelegationType4::Write,
        };
        // Where it may not be reclaimed it is opened anew when it is used: that is not to be had before RECLAIM_COMPLETE
        // (RFC 8881 §18.51.3).
        let compound = Compound::on("OPEN", &self.handle)
            .op(open(opens, access, Openflag4::NoCreate, OpenClaim4::Previous(had)), OPEN_MAX)
            .get_attr(&wanted())
            .once();
        let asked = opens.delegations.now();
        let mut results = opens.client.plain(&compound, deadline).await?;
        results.skip(&[Opnum4::PutFh])?;
        let ok = value!(results, Open)?;
        self.take_in(opens, ok, access, seen(&mut results, asked)?);
        Ok(())
    }
}

/// The result of GETATTR behind an OPEN.
pub(super) fn seen(results: &mut Results, asked: Mark) -> Result<Seen> {
    let attrs = attr::values(&value!(*results, GetAttr)?)?;
    Ok(Seen { attr: attr::from_values(&attrs), change: attrs.change, asked })
}

/// What is asked for with an open.
pub(crate) fn wanted() -> Vec<Attr4> {
    attr::WANTED.iter().copied().chain([Attr4::Change]).collect()
}

/// OPEN by the owner of all that stays open.
pub(crate) fn open(opens: &Opens, access: u32, openhow: Openflag4, claim: OpenClaim4) -> Argop4 {
    open_by(opens.client.state_owner(b"open"), access, openhow, claim)
}

fn open_by(owner: StateOwner4, access: u32, openhow: Openflag4, claim: OpenClaim4) -> Argop4 {
    Argop4::Open(OpenArgs {
        seqid: Seqid4(0),
        share_access: access,
        share_deny: OPEN4_SHARE_DENY_NONE,
        owner,
        openhow,
        claim,
    })
}

/// OPEN to read that another operation of the same compound closes. Its owner has nothing else open meanwhile: the CLOSE
/// is of nobody else's open.
pub(crate) fn open_once(opens: &Opens, claim: OpenClaim4) -> Argop4 {
    let turn = opens.once.fetch_add(1, Relaxed) % ONCE_OWNERS;
    let access = OPEN4_SHARE_ACCESS_READ | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
    open_by(opens.client.state_owner(format!("once {turn}").as_bytes()), access, Openflag4::NoCreate, claim)
}

/// Stateids of one operation that the server may refuse before it is taken to be broken.
pub(super) const STATE_TRIES: u32 = 4;
/// Bytes of the result of OPEN: the longest is a delegation to write.
pub(crate) const OPEN_MAX: usize = 1024;
/// More than requests under way at a time.
const ONCE_OWNERS: usize = 1 << 12;
/// How long a file stays open that nobody uses.
const LINGER: Duration = Duration::from_millis(1500);
/// Files that nobody uses and are open nevertheless.
const IDLE_MAX: usize = 4096;
