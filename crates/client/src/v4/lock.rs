//! Byte-range locks (RFC 8881 §9, §18.10–18.12). They are held until they are unlocked or the mount ends, survive a
//! restart of the server, and are checked by it. Whoever waits for one asks again when the server says that it is free
//! (CB_NOTIFY_LOCK, §20.11), and now and then in case that it does not.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use nfs::v4::*;
use tokio::sync::Notify;

use super::{
    V4,
    compound::{Compound, failure, value},
    opens::{InUse, Locked, OpenFile},
    shared::Shared,
    unreclaimed::Unreclaimed,
    zero::Counter,
};
use crate::{Error, ErrorKind, Handle, Result, backoff::Backoff, deadline::Deadline};

/// Bytes of a file that are locked, or to be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// The first.
    pub offset: u64,
    /// How many; [`u64::MAX`] means to the end of the file, wherever that is.
    pub length: u64,
    /// Whether nobody else may have a lock there, rather than a shared one.
    pub exclusive: bool,
}

impl V4 {
    /// LOCK: locks bytes for `owner`, any name of the caller's choice of up to 1016 bytes. `None` if the lock is held now, else a lock of
    /// somebody else that is in the way.
    ///
    /// # Errors
    /// `Inval`, `BADRANGE`, …; or locks of this owner have been lost.
    pub async fn lock(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        self.on(file, |at| async move { at.v4.lock_here(&at.handle, owner, range).await }).await
    }

    async fn lock_here(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        let deadline = &self.deadline();
        let mut backoff = Backoff::new();
        loop {
            let done = self.lock_once(file, owner, (range, How::AtOnce), deadline).await;
            match done {
                Err(error) if backoff.later(self.program(), &error, deadline).await => {}
                done => return done,
            }
        }
    }

    /// The same, but waits until the lock is to be had, or the deadline has passed since the server last asked to wait.
    ///
    /// # Errors
    /// `DENIED` at the deadline; else as [`lock`](Self::lock).
    pub async fn lock_wait(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<()> {
        let deadline = &self.deadline();
        self.lock_within(file, owner, range, deadline, deadline.passed()).await
    }

    /// The same, but waits until `given_up` is ready. What has been asked by then is answered first: if the lock was given, it
    /// is held.
    ///
    /// # Errors
    /// `DENIED` if it was given up; else as [`lock`](Self::lock).
    pub async fn lock_until(
        &self,
        file: &Handle,
        owner: &[u8],
        range: LockRange,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        self.lock_within(file, owner, range, &self.deadline(), given_up).await
    }

    async fn lock_within(
        &self,
        file: &Handle,
        owner: &[u8],
        range: LockRange,
        deadline: &Deadline,
        given_up: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let given_up = tokio::sync::Mutex::new(Box::pin(given_up));
        let given_up = &given_up;
        let locked = self.on(file, |at| async move {
            // It is the same whose waiting it is, wherever the file is.
            let mut given_up = given_up.lock().await;
            at.v4.lock_within_here(&at.handle, owner, range, deadline, given_up.as_mut()).await
        });
        locked.await
    }

    async fn lock_within_here(
        &self,
        file: &Handle,
        owner: &[u8],
        range: LockRange,
        deadline: &Deadline,
        mut given_up: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<()> {
        let waiting = Waiting::new(self.shared.opens.file(file), owner);
        let mut backoff = Backoff::new();
        loop {
            let told = waiting.told.notified();
            let mut told = std::pin::pin!(told);
            // Before asking, so that a notice is heard that overtakes the refusal.
            told.as_mut().enable();
            match self.lock_once(file, owner, (range, How::Waiting), &self.deadline()).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) if waiting.file.0.state.lock().may_notify => backoff.slow_down(),
                Ok(Some(_)) => {}
                Err(error) if error.is_later() => {
                    tokio::select! {
                        _ = backoff.later(self.program(), &error, deadline) => continue,
                        () = &mut given_up => return Err(failure(Nfsstat4::Denied, "LOCK")),
                    }
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                () = told => {}
                () = &mut given_up => return Err(failure(Nfsstat4::Denied, "LOCK")),
                () = backoff.pause() => {}
            }
        }
    }

    async fn lock_once(
        &self,
        handle: &Handle,
        name: &[u8],
        (range, how): (LockRange, How),
        deadline: &Deadline,
    ) -> Result<Option<LockRange>> {
        check(name, "LOCK")?;
        let file = self.shared.opens.file(handle);
        let access = if range.exclusive { OPEN4_SHARE_ACCESS_WRITE } else { OPEN4_SHARE_ACCESS_READ };
        for _ in 0..super::STATE_TRIES {
            let open_stateid = file.0.stateid(&self.shared, access, deadline).await?;
            if open_stateid == Stateid4::ANONYMOUS {
                let nowhere = "a file is locked in version 4.0 when it is known by its name";
                return Err(Error::new(ErrorKind::Invalid(nowhere), "LOCK"));
            }
            let _alone = file.0.changing().await;
            let locker = file.0.locker(&self.shared, name, file.0.locked(name)?, open_stateid);
            let used = *stateid_of(&locker);
            let counter = file.0.counter(name);
            match locking(&self.shared, handle, (range, how), (locker, counter), deadline).await {
                Ok(Ok(stateid)) => {
                    file.0.hold(name, stateid, range);
                    return Ok(None);
                }
                Ok(Err(denied)) => return Ok(Some(denied)),
                Err(error) if file.0.state_failed(&used, &error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(failure(Nfsstat4::BadStateid, "LOCK"))
    }

    /// LOCKU: unlocks bytes, whichever of them were locked by `owner`.
    ///
    /// # Errors
    /// Locks of this owner have been lost; or what can fail with any call.
    pub async fn unlock(&self, handle: &Handle, owner: &[u8], offset: u64, length: u64) -> Result<()> {
        self.on(handle, |at| async move { at.v4.unlock_here(&at.handle, owner, offset, length).await }).await
    }

    async fn unlock_here(&self, handle: &Handle, owner: &[u8], offset: u64, length: u64) -> Result<()> {
        let file = self.shared.opens.file(handle);
        let _alone = file.0.changing().await;
        for _ in 0..super::STATE_TRIES {
            let Some(lock_stateid) = file.0.locked(owner)? else { return Ok(()) };
            let lock_stateid = self.shared.latest(lock_stateid);
            let args = LockUArgs { locktype: NfsLockType4::Write, seqid: Seqid4(0), lock_stateid, offset, length };
            let compound = Compound::on("LOCKU", handle).op(Argop4::LockU(args), 16).once();
            match self.run(&compound.locker(file.0.counter(owner))).await {
                Ok(mut results) => {
                    results.skip(&[Opnum4::PutFh])?;
                    file.0.unhold(owner, value!(results, LockU)?, offset, length);
                    return Ok(());
                }
                Err(error) if file.0.state_failed(&lock_stateid, &error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(failure(Nfsstat4::BadStateid, "LOCKU"))
    }

    /// The owner is done with the file: what it has locked there is unlocked, and the server forgets it. Locks that the server has
    /// lost are forgotten here, too: the owner can begin anew.
    ///
    /// # Errors
    /// The server was not reached, or does not unlock: then the locks are held until the file is closed.
    pub async fn release_locks(&self, handle: &Handle, owner: &[u8]) -> Result<()> {
        self.on(handle, |at| async move { at.v4.release_locks_here(&at.handle, owner).await }).await
    }

    async fn release_locks_here(&self, handle: &Handle, owner: &[u8]) -> Result<()> {
        if self.shared.opens.known(handle).is_none() {
            return Ok(());
        }
        let file = self.shared.opens.file(handle);
        let lost = file.0.state.lock().locks.get(owner).is_none_or(|locked| locked.lost);
        let unlocked = if lost { Ok(()) } else { self.unlock_here(handle, owner, 0, u64::MAX).await };
        let _alone = file.0.changing().await;
        let released = {
            let mut state = file.0.state.lock();
            // Somebody may be locking by this owner again; and what counts an owner of version 4.0 who was refused goes on.
            let done =
                |locked: &Locked| locked.ranges.is_empty() && (locked.stateid.is_some() || self.shared.minor > 0);
            match state.locks.get(owner).is_some_and(|locked| locked.lost || done(locked)) {
                true => state.locks.remove(owner),
                false => None,
            }
        };
        if let Some(stateid) = released.and_then(|locked| locked.stateid) {
            forget(&self.shared, &file.0, owner, stateid, &self.deadline()).await;
        }
        unlocked
    }

    /// LOCKT: a lock of somebody else that would be in the way of this one; `None` if there is none.
    ///
    /// # Errors
    /// `Inval`, …
    pub async fn test_lock(&self, handle: &Handle, name: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        self.on(handle, |at| async move { at.v4.test_lock_here(&at.handle, name, range).await }).await
    }

    async fn test_lock_here(&self, handle: &Handle, name: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        check(name, "LOCKT")?;
        let args = LockTArgs {
            locktype: kind(range.exclusive),
            offset: range.offset,
            length: range.length,
            owner: owner(&self.shared, &self.shared.opens.file(handle).0, name),
        };
        let compound = Compound::on("LOCKT", handle).op(Argop4::LockT(args), DENIED_MAX);
        let deadline = &self.deadline();
        let mut backoff = Backoff::new();
        loop {
            let (res, _) = self.shared.execute(&compound, None, deadline).await;
            let res = res?;
            if let Some(Resop4::LockT(LockTRes::Denied(denied))) = res.resarray.last() {
                return Ok(Some(range_of(denied)));
            }
            match res.status {
                Nfsstat4::Ok => return Ok(None),
                status => {
                    let error = failure(status, "LOCKT");
                    if !(backoff.later(self.program(), &error, deadline).await) {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// In which way a lock is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    AtOnce,
    /// By one who wants to be told when it is to be had.
    Waiting,
    /// After a restart of the server, and so without recovery.
    Reclaiming,
}

/// An owner that waits for a lock in a file, by itself or more than once.
struct Waiting {
    file: InUse,
    name: Bytes,
    told: Arc<Notify>,
}

impl Waiting {
    fn new(file: InUse, name: &[u8]) -> Self {
        let name = Bytes::copy_from_slice(name);
        let told = file.0.state.lock().waiting.entry(name.clone()).or_default().clone();
        Self { file, name, told }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.file.0.state.lock();
        // The list's and this one.
        if Arc::strong_count(&self.told) <= 2 {
            state.waiting.remove(&self.name);
        }
    }
}

/// LOCK: the state of the locks from now on, or what is in the way.
async fn locking(
    shared: &Arc<Shared>,
    handle: &Handle,
    (range, how): (LockRange, How),
    (locker, counter): (Locker4, Counter),
    deadline: &Deadline,
) -> Result<std::result::Result<Stateid4, LockRange>> {
    let LockRange { offset, length, exclusive } = range;
    let reclaim = how == How::Reclaiming;
    let locktype = match (how, exclusive) {
        (How::Waiting, true) => NfsLockType4::WriteW,
        (How::Waiting, false) => NfsLockType4::ReadW,
        _ => kind(exclusive),
    };
    let args = LockArgs { locktype, reclaim, offset, length, locker };
    let compound = Compound::on("LOCK", handle).op(Argop4::Lock(args), DENIED_MAX).locker(counter).once();
    if reclaim {
        let mut results = shared.plain(&compound, deadline).await?;
        results.skip(&[Opnum4::PutFh])?;
        return match results.next()? {
            Resop4::Lock(LockRes::Ok(stateid)) => Ok(Ok(stateid)),
            _ => Err(results.nonsense("a lock without a state")),
        };
    }
    let res = shared.execute(&compound, None, deadline).await.0?;
    match res.resarray.last() {
        Some(Resop4::Lock(LockRes::Ok(stateid))) => Ok(Ok(*stateid)),
        Some(Resop4::Lock(LockRes::Denied(denied))) => Ok(Err(range_of(denied))),
        _ => Err(failure(res.status, "LOCK").on(shared.trunk.first().server())),
    }
}

/// Reclaims the locks of a file that has been reclaimed (RFC 8881 §8.4.2.1).
pub(crate) async fn reclaim(
    shared: &Arc<Shared>,
    file: &Arc<OpenFile>,
    deadline: &Deadline,
    unreclaimed: &mut Unreclaimed,
) {
    let locks = file.state.lock().locks.clone();
    for (name, locked) in locks {
        let mut stateid = None;
        let mut lost = locked.lost;
        for &(offset, length, exclusive) in &locked.ranges {
            let open = file.state.lock().open.map(|(stateid, _)| stateid);
            let Some(open) = open else {
                unreclaimed.lock(None);
                lost = true;
                break;
            };
            let locker = (file.locker(shared, &name, stateid, open), locked.counter.clone());
            let range = LockRange { offset, length, exclusive };
            match locking(shared, &file.handle, (range, How::Reclaiming), locker, deadline).await {
                Ok(Ok(locked)) => {
                    deadline.heard();
                    stateid = Some(locked);
                }
                denied => {
                    unreclaimed.lock(denied.err());
                    lost = true;
                }
            }
        }
        file.state.lock().locks.insert(name, Locked { stateid, lost, ..locked });
    }
}

/// Lets the server forget an owner who has nothing locked in a file any more. If it cannot be told, it keeps that until the
/// file is closed.
pub(crate) async fn forget(shared: &Arc<Shared>, file: &OpenFile, name: &[u8], stateid: Stateid4, deadline: &Deadline) {
    let compound = match shared.minor {
        // RFC 7530 §16.37: the owner and its number.
        0 => {
            let args = ReleaseLockOwnerArgs { lock_owner: owner(shared, file, name) };
            Compound::new("RELEASE_LOCKOWNER").op(Argop4::ReleaseLockOwner(args), 0)
        }
        // RFC 8881 §18.38.3: what has no locks can be freed.
        _ => Compound::new("FREE_STATEID").op(Argop4::FreeStateid(FreeStateidArgs { stateid }), 0),
    };
    if let Err(error) = shared.run(&compound.once(), deadline).await {
        tracing::debug!(%error, "an owner of locks is not forgotten");
    }
}

/// Whether the name of an owner has room for the file's number.
fn check(owner: &[u8], operation: &'static str) -> Result<()> {
    match owner.len() <= OPAQUE_LIMIT - size_of::<u64>() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Invalid("the name of an owner of locks is too long"), operation)),
    }
}

/// An owner of locks in a file. In version 4.0 its operations are counted whichever file they are of (RFC 7530 §9.1.7), so
/// each file has its own there.
pub(crate) fn owner(shared: &Shared, file: &OpenFile, name: &[u8]) -> StateOwner4 {
    match shared.minor {
        0 => shared.owner(&[&file.serial.to_be_bytes(), name].concat()),
        _ => shared.owner(name),
    }
}

impl OpenFile {
    /// Who locks: an owner who has locked in this file before, or a new one.
    fn locker(&self, shared: &Shared, name: &[u8], locks: Option<Stateid4>, open: Stateid4) -> Locker4 {
        let (open_seqid, lock_seqid) = (Seqid4(0), Seqid4(0));
        match locks {
            Some(stateid) => Locker4::Exist { lock_stateid: shared.latest(stateid), lock_seqid },
            None => Locker4::New { open_seqid, open_stateid: open, lock_seqid, lock_owner: owner(shared, self, name) },
        }
    }

    /// What counts the operations of an owner of locks.
    fn counter(&self, name: &[u8]) -> Counter {
        self.state.lock().locks.entry(Bytes::copy_from_slice(name)).or_default().counter.clone()
    }

    /// The stateid of an owner's locks; `None` if it has none yet.
    fn locked(&self, name: &[u8]) -> Result<Option<Stateid4>> {
        match self.state.lock().locks.get(name) {
            Some(locked) if locked.lost => {
                let lost = "the server has lost locks of this owner: another may have had them meanwhile";
                Err(Error::new(ErrorKind::Invalid(lost), "LOCK"))
            }
            Some(locked) => Ok(locked.stateid),
            None => Ok(None),
        }
    }

    fn hold(&self, name: &[u8], stateid: Stateid4, range: LockRange) {
        let mut state = self.state.lock();
        let locked = state.locks.entry(Bytes::copy_from_slice(name)).or_default();
        locked.stateid = Some(stateid);
        cut(&mut locked.ranges, range.offset, range.length);
        locked.ranges.push((range.offset, range.length, range.exclusive));
    }

    fn unhold(&self, name: &[u8], stateid: Stateid4, offset: u64, length: u64) {
        let mut state = self.state.lock();
        if let Some(locked) = state.locks.get_mut(name) {
            locked.stateid = Some(stateid);
            cut(&mut locked.ranges, offset, length);
        }
    }
}

/// Takes bytes out of ranges.
fn cut(ranges: &mut Vec<(u64, u64, bool)>, offset: u64, length: u64) {
    let end = offset.saturating_add(length);
    let mut left = Vec::new();
    for (at, len, exclusive) in ranges.drain(..) {
        let stop = at.saturating_add(len);
        if at < offset.min(stop) {
            left.push((at, offset.min(stop) - at, exclusive));
        }
        if stop > end.max(at) {
            let from = end.max(at);
            // To the end stays to the end.
            left.push((from, if stop == u64::MAX { u64::MAX } else { stop - from }, exclusive));
        }
    }
    *ranges = left;
}

fn stateid_of(locker: &Locker4) -> &Stateid4 {
    match locker {
        Locker4::Exist { lock_stateid, .. } => lock_stateid,
        Locker4::New { open_stateid, .. } => open_stateid,
    }
}

fn kind(exclusive: bool) -> NfsLockType4 {
    if exclusive { NfsLockType4::Write } else { NfsLockType4::Read }
}

fn range_of(denied: &LockDenied4) -> LockRange {
    LockRange { offset: denied.offset, length: denied.length, exclusive: denied.locktype.is_exclusive() }
}

/// Bytes of the description of a lock that is in the way.
const DENIED_MAX: usize = 32 + OPAQUE_LIMIT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_where_they_are_unlocked() {
        let after = |offset, length| {
            let mut ranges = vec![(10, 10, true), (100, u64::MAX, false)];
            cut(&mut ranges, offset, length);
            ranges
        };
        assert_eq!(after(0, 10), [(10, 10, true), (100, u64::MAX, false)]);
        assert_eq!(after(12, 3), [(10, 2, true), (15, 5, true), (100, u64::MAX, false)]);
        assert_eq!(after(0, u64::MAX), []);
        assert_eq!(after(15, 100), [(10, 5, true), (115, u64::MAX, false)]);
    }
}
