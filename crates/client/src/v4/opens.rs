//! [`Opens`]: the files that are open at the server, with their locks and delegations. Each file handle has one open for
//! each [caller](Caller), however many requests use it.
//!
//! Read RFC 8881 §8.2 (stateids), §9.1, §10.4 (delegations) and §8.4.2.1 (reclaiming) first. A file is opened by its
//! handle when it is first read or written, for the access that is then needed. It stays open while it is in use or
//! locked, for [`IDLE_TIMEOUT`] after that, and while the server delegates it. So opening it again costs nothing, and a
//! delegation keeps its attributes cached. When the server has lost its state, opens are reclaimed, or made again when
//! they are needed.
//!
//! NFSv4.0 opens by name (RFC 7530 §16.16). A file whose name is unknown is read and written without an open, with the
//! anonymous stateid (§9.1.4.3), and cannot be locked.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use entropy::HashMap;
use nfs::v4::{attr::Attr4, *};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedMutexGuard},
    time::Instant,
};
use xdr::Opaque;

use super::{
    attr,
    closing::CloseQueue,
    delegation::{Delegation, Delegations, EventTime},
    layout::{
        held::{FileLayouts, Threshold},
        table::Layouts,
    },
    lock_state,
    names::Names,
    unreclaimed::Unreclaimed,
};
use crate::{
    call::Deadline,
    model::{Attr, Caller, Handle, Result},
    session::{
        client::Client4,
        compound::{Compound, Counter, Results, value},
    },
};

/// The open files of a mount.
#[derive(Debug)]
pub(crate) struct Opens {
    pub client: Arc<Client4>,
    pub(super) files: Mutex<HashMap<Handle, Arc<OpenFile>>>,
    pub delegations: Arc<Delegations>,
    pub layouts: Layouts,
    /// The number of the next owner of [`open_temporary`].
    temporary: AtomicUsize,
    /// The serial number of the next file.
    serial: AtomicU64,
    pub names: Mutex<Names>,
    pub(super) close_queue: Mutex<CloseQueue>,
}

/// A file that is open or is about to be opened.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub handle: Handle,
    /// The serial number of the file. In NFSv4.0, each file has its own lock owners, whose names contain it.
    pub serial: u64,
    /// Serializes changes of the state at the server. The lock is not needed to read `state`.
    change_lock: Arc<tokio::sync::Mutex<()>>,
    pub state: Mutex<State>,
    pub layouts: FileLayouts,
    /// The number of requests that use the file.
    uses: AtomicUsize,
    /// The time of the last use.
    used: Mutex<Instant>,
}

/// The state that the server keeps of a file for this client.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The opens: one for each caller.
    pub opens: Vec<CallerOpen>,
    pub delegation: Option<Delegation>,
    /// The number of outstanding WRITEs.
    pub writing: u32,
    /// The time of the last change that this client made.
    pub changed: EventTime,
    /// The change attribute of the last OPEN, for [`OpenFile::take_opened`].
    pub(super) opened: Option<u64>,
    /// The locks by owner.
    pub locks: HashMap<Bytes, OwnerLocks>,
    /// The owners that wait for a lock, with the notifications to retry.
    pub waiting: HashMap<Bytes, Arc<Notify>>,
    /// Set if the server may notify the client when a lock is free (`OPEN4_RESULT_MAY_NOTIFY_LOCK`).
    pub may_notify: bool,
}

/// The open of a file for one caller. The server has checked what that caller may do.
#[derive(Clone, Debug)]
pub(crate) struct CallerOpen {
    /// `None` is the user of the mount.
    pub caller: Option<Caller>,
    pub stateid: Stateid4,
    /// The `OPEN4_SHARE_ACCESS_` bits.
    pub access: u32,
}

/// The attributes of a file from the reply to an OPEN.
#[derive(Debug)]
pub(crate) struct OpenAttributes {
    pub attr: Option<Attr>,
    pub change: Option<u64>,
    /// The sizes from which on data should pass directly to data servers, if the server has sent them.
    pub threshold: Option<Threshold>,
    /// The time of the request.
    pub requested_at: EventTime,
}

/// The locks of an owner in a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnerLocks {
    pub stateid: Option<Stateid4>,
    /// The locked ranges: first byte, number of bytes, exclusive.
    pub ranges: Vec<(u64, u64, bool)>,
    /// The owner's seqid, in NFSv4.0.
    pub counter: Counter,
    /// The caller whose open the locks belong to.
    pub caller: Option<Caller>,
    /// Set if the server has lost the locks and did not allow the client to reclaim them.
    pub lost: bool,
}

/// A use of a file by a request.
#[derive(Debug)]
pub(crate) struct InUse(pub Arc<OpenFile>);

impl Drop for InUse {
    fn drop(&mut self) {
        *self.0.used.lock() = Instant::now();
        self.0.uses.fetch_sub(1, Relaxed);
    }
}

impl Opens {
    /// Makes a table without open files.
    pub fn new(client: Arc<Client4>) -> Self {
        Self {
            client,
            files: Mutex::default(),
            delegations: Arc::default(),
            layouts: Layouts::default(),
            temporary: AtomicUsize::default(),
            serial: AtomicU64::default(),
            names: Mutex::default(),
            close_queue: Mutex::default(),
        }
    }

    /// Returns the file with this handle and marks it as used.
    pub fn file(&self, handle: &Handle) -> InUse {
        let mut files = self.files.lock();
        if let Some(file) = files.get(handle) {
            file.uses.fetch_add(1, Relaxed);
            return InUse(file.clone());
        }
        let file = Arc::new(OpenFile {
            handle: handle.detached(),
            serial: self.serial.fetch_add(1, Relaxed),
            change_lock: Arc::default(),
            state: Mutex::default(),
            layouts: FileLayouts::default(),
            uses: AtomicUsize::new(1),
            used: Mutex::new(Instant::now()),
        });
        files.insert(file.handle.clone(), file.clone());
        InUse(file)
    }

    /// Returns the file with this handle, if it is in the table.
    pub fn known(&self, handle: &Handle) -> Option<Arc<OpenFile>> {
        self.files.lock().get(handle).cloned()
    }

    /// Stores the name under which an object was found.
    pub fn found(&self, dir: &Handle, name: &[u8], object: &Handle, attr: Option<&Attr>) {
        self.names.lock().found(object, (dir, name), attr, |object| self.known(object).is_some());
    }

    /// Returns all files in the table.
    pub fn all(&self) -> Vec<Arc<OpenFile>> {
        self.files.lock().values().cloned().collect()
    }

    /// Returns the number of files in the table.
    pub fn len(&self) -> usize {
        self.files.lock().len()
    }

    /// Returns the stateids of all opens, delegations and locks.
    pub fn stateids(&self) -> Vec<Stateid4> {
        let files = self.all();
        let of = |file: Arc<OpenFile>| {
            let state = file.state.lock();
            let locks = state.locks.values().filter_map(|locked| locked.stateid);
            let opens = state.opens.iter().map(|open| open.stateid);
            opens.chain(state.delegation.iter().map(|d| d.stateid)).chain(locks).collect::<Vec<_>>()
        };
        files.into_iter().flat_map(of).collect()
    }

    /// Removes a stateid that the server has revoked.
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

    /// Stores the results of an OPEN that another operation has sent.
    pub fn opened(
        self: &Arc<Self>,
        handle: &Handle,
        ok: OpenOk,
        by: (Option<&Caller>, u32),
        seen: OpenAttributes,
    ) -> InUse {
        let file = self.file(handle);
        file.0.store_open(self, ok, by, seen);
        file
    }

    /// Returns the attributes that are requested with an OPEN.
    pub fn wanted(&self) -> Bitmap4 {
        let mut wanted = attr::WANTED.clone();
        wanted.insert(Attr4::Change as u32);
        if self.layouts.is_active() {
            wanted.insert(Attr4::Mdsthreshold as u32);
        }
        wanted
    }

    /// Reclaims opens and locks after the server has lost this client (RFC 8881 §8.4.2.1). Its layouts are lost.
    pub async fn reclaim(self: &Arc<Self>, deadline: &Deadline) {
        // RFC 8881 §12.7.4: layouts cannot be reclaimed.
        self.all().iter().for_each(|file| file.layouts.held.lock().end());
        let mut unreclaimed = Unreclaimed::default();
        for file in self.all() {
            // This does not lock `change_lock`, because operations that hold that lock wait for the recovery.
            let (opens, mut delegation) = {
                let mut state = file.state.lock();
                let delegation = state.delegation.take();
                (mem::take(&mut state.opens), delegation)
            };
            if delegation.is_some() {
                self.delegations.lost(&file.handle);
            }
            for CallerOpen { caller, access, .. } in opens {
                match file.reclaim(self, (caller.as_ref(), access), delegation.take(), deadline).await {
                    // The number of files does not count against the deadline, only the silence of the server.
                    Ok(()) => deadline.restart(),
                    // The file is opened again when it is used, for example if the grace period has ended.
                    //= rfc8881-8.3-2
                    Err(error) => unreclaimed.file(error),
                }
            }
            // Without the open, the locks are lost.
            lock_state::reclaim(self, &file, deadline, &mut unreclaimed).await;
        }
        unreclaimed.report(self.client.link.trunk.first().server());
    }
}

impl State {
    /// Returns `true` if this client has not changed the file since then and has no outstanding WRITE.
    pub fn is_settled(&self, since: EventTime) -> bool {
        self.writing == 0 && self.changed <= since
    }

    /// Returns a caller's open.
    pub fn open_of(&self, caller: Option<&Caller>) -> Option<&CallerOpen> {
        self.opens.iter().find(|open| open.caller.as_ref() == caller)
    }

    /// Increments the seqid of a stateid that is older than the server's, because the caller of an earlier operation
    /// gave up before the reply. From NFSv4.1 on, a request can leave the seqid zero.
    fn advance(&mut self, stateid: &Stateid4) {
        let opens = self.opens.iter_mut().map(|open| &mut open.stateid);
        let locks = self.locks.values_mut().filter_map(|locked| locked.stateid.as_mut());
        for known in opens.chain(locks).filter(|known| *known == stateid) {
            known.seqid = known.seqid.wrapping_add(1);
        }
    }

    /// Removes a stateid that cannot be used any more. Returns `true` if it was one of these.
    fn forget(&mut self, stateid: &Stateid4) -> bool {
        let same = |other: &Stateid4| other.other == stateid.other;
        let before = self.opens.len();
        self.opens.retain(|open| !same(&open.stateid));
        let mut any = self.opens.len() < before;
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
    /// Locks the file against other opens, closes and changes of locks.
    pub async fn lock_changes(&self) -> OwnedMutexGuard<()> {
        self.change_lock.clone().lock_owned().await
    }

    /// Locks the file like [`lock_changes`](Self::lock_changes) if it is not locked.
    pub(super) fn try_lock_changes(&self) -> Option<OwnedMutexGuard<()>> {
        self.change_lock.clone().try_lock_owned().ok()
    }

    /// Waits until the outstanding open, close or change of locks has ended.
    pub async fn wait_for_changes(&self) {
        drop(self.lock_changes().await);
    }

    /// Returns `true` if the file can be closed.
    pub(super) fn is_idle(&self) -> bool {
        self.is_unused(&self.state.lock())
    }

    pub(super) fn is_unused(&self, state: &State) -> bool {
        self.uses.load(Relaxed) == 0 && state.locks.values().all(|locked| locked.ranges.is_empty())
    }

    /// Returns `true` if the server delegates the file to this client.
    pub(super) fn is_delegated(&self) -> bool {
        self.state.lock().delegation.is_some()
    }

    /// Returns and clears the change attribute of the last OPEN.
    pub fn take_opened(&self) -> Option<u64> {
        self.state.lock().opened.take()
    }

    /// Returns the time of the last use.
    pub fn used(&self) -> Instant {
        *self.used.lock()
    }

    /// Removes a stateid that the server has refused with this status. Returns `true` if the operation can be retried.
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
                // If the stateid is not there any more, another operation has already removed it.
                self.state.lock().forget(stateid);
                true
            }
            _ => false,
        }
    }

    /// Reclaims the open with its former access and delegation.
    ///
    /// # Errors
    /// The server does not allow the client to reclaim the open.
    pub async fn reclaim(
        &self,
        opens: &Arc<Opens>,
        (caller, access): (Option<&Caller>, u32),
        delegation: Option<Delegation>,
        deadline: &Deadline,
    ) -> Result<()> {
        let had = match delegation {
            None => OpenDelegationType4::None,
            Some(Delegation { write: false, .. }) => OpenDelegationType4::Read,
            Some(Delegation { write: true, .. }) => OpenDelegationType4::Write,
        };
        // If the open cannot be reclaimed, it is made again when the file is used, which the server does not allow
        // before RECLAIM_COMPLETE (RFC 8881 §18.51.3).
        let compound = Compound::on("OPEN", &self.handle)
            .open(open(opens, (caller, access), Openflag4::NoCreate, OpenClaim4::Previous(had)))
            .get_attr(&opens.wanted())
            .by(caller)
            .once();
        let requested_at = opens.delegations.now();
        let mut results = opens.client.run_in_recovery(&compound, deadline).await?;
        results.skip(&[Opnum4::PutFh])?;
        let (ok, _) = opened(&mut results)?;
        self.store_open(opens, *ok, (caller, access), open_attributes(&mut results, requested_at)?);
        Ok(())
    }
}

/// Returns the results of an OPEN and of the GETFH after it.
///
/// # Errors
/// The results are of other operations.
pub(super) fn opened(results: &mut Results) -> Result<(Box<OpenOk>, Handle)> {
    let ok = value!(*results, Open)?;
    Ok((ok, Opaque(value!(*results, GetFh)?.0)))
}

/// Decodes the result of GETATTR after an OPEN.
pub(super) fn open_attributes(results: &mut Results, requested_at: EventTime) -> Result<OpenAttributes> {
    let attrs = attr::values(&value!(*results, GetAttr)?)?;
    let threshold = attrs.mdsthreshold.as_ref().map(Threshold::of);
    Ok(OpenAttributes { attr: attr::from_values(&attrs), change: attrs.change, threshold, requested_at })
}

/// Returns an OPEN by the owner of all lasting opens of a caller.
pub(crate) fn open(
    opens: &Opens,
    (caller, access): (Option<&Caller>, u32),
    openhow: Openflag4,
    claim: OpenClaim4,
) -> Argop4 {
    let owner = caller.map_or("open".to_owned(), |caller| format!("open {}", caller.number()));
    open_by(opens.client.state_owner(owner.as_bytes()), access, openhow, claim)
}

fn open_by(owner: StateOwner4, access: u32, openhow: Openflag4, claim: OpenClaim4) -> Argop4 {
    Argop4::Open(Box::new(OpenArgs {
        seqid: Seqid4(0),
        share_access: access,
        share_deny: OPEN4_SHARE_DENY_NONE,
        owner,
        openhow,
        claim,
    }))
}

/// Returns an OPEN for reading that the same compound closes. Its owner has no other open at the same time, so the
/// CLOSE cannot close an open of another request.
pub(crate) fn open_temporary(opens: &Opens, claim: OpenClaim4) -> Argop4 {
    let number = opens.temporary.fetch_add(1, Relaxed) % TEMPORARY_OWNERS;
    let access = OPEN4_SHARE_ACCESS_READ | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
    open_by(opens.client.state_owner(format!("once {number}").as_bytes()), access, Openflag4::NoCreate, claim)
}

/// Number of stateids of one operation that the server may refuse before the operation fails.
pub(super) const STATE_TRIES: u32 = 4;
/// Number of owners of temporary opens. It is larger than the number of outstanding requests.
const TEMPORARY_OWNERS: usize = 1 << 12;
