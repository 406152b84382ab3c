//! LOCK, LOCKU and LOCKT by file handle (RFC 8881 §18.10–18.12). A request that waits for a lock is retried when the server notifies
//! the client (CB_NOTIFY_LOCK, §20.11), and every few seconds in case that it does not.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use nfs::v4::*;
use tokio::sync::Notify;

use super::{
    V4,
    lock_state::{DENIED_MAX, How, LockRange, forget, kind, locking, owner, range_of, stateid_of},
    opens::{InUse, Locked},
};
use crate::{
    call::{Backoff, Deadline},
    model::{Error, ErrorKind, Handle, Result},
    session::compound::{Compound, failure, value},
};

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
        let waiting = Waiting::new(self.server.opens.file(file), owner);
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
        let file = self.server.opens.file(handle);
        let access = if range.exclusive { OPEN4_SHARE_ACCESS_WRITE } else { OPEN4_SHARE_ACCESS_READ };
        for _ in 0..super::STATE_TRIES {
            let open_stateid = file.0.stateid(&self.server.opens, access, deadline).await?;
            if open_stateid == Stateid4::ANONYMOUS {
                let nowhere = "a file is locked in version 4.0 when it is known by its name";
                return Err(Error::new(ErrorKind::Invalid(nowhere), "LOCK"));
            }
            let _alone = file.0.changing().await;
            let locker = file.0.locker(&self.server.opens, name, file.0.locked(name)?, open_stateid);
            let used = *stateid_of(&locker);
            let counter = file.0.counter(name);
            match locking(&self.server.opens, handle, (range, how), (locker, counter), deadline).await {
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
        let file = self.server.opens.file(handle);
        let _alone = file.0.changing().await;
        for _ in 0..super::STATE_TRIES {
            let Some(lock_stateid) = file.0.locked(owner)? else { return Ok(()) };
            let lock_stateid = self.server.client.latest(lock_stateid);
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
        if self.server.opens.known(handle).is_none() {
            return Ok(());
        }
        let file = self.server.opens.file(handle);
        let lost = file.0.state.lock().locks.get(owner).is_none_or(|locked| locked.lost);
        let unlocked = if lost { Ok(()) } else { self.unlock_here(handle, owner, 0, u64::MAX).await };
        let _alone = file.0.changing().await;
        let released = {
            let mut state = file.0.state.lock();
            // Somebody may be locking by this owner again; and what counts an owner of version 4.0 who was refused goes on.
            let done = |locked: &Locked| {
                locked.ranges.is_empty() && (locked.stateid.is_some() || self.server.client.minor() > 0)
            };
            match state.locks.get(owner).is_some_and(|locked| locked.lost || done(locked)) {
                true => state.locks.remove(owner),
                false => None,
            }
        };
        if let Some(stateid) = released.and_then(|locked| locked.stateid) {
            forget(&self.server.opens, &file.0, owner, stateid, &self.deadline()).await;
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
            owner: owner(&self.server.opens, &self.server.opens.file(handle).0, name),
        };
        let compound = Compound::on("LOCKT", handle).op(Argop4::LockT(args), DENIED_MAX);
        let deadline = &self.deadline();
        let mut backoff = Backoff::new();
        loop {
            let (res, _) = self.server.client.execute(&compound, None, deadline).await;
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

/// Whether the name of an owner has room for the file's number.
fn check(owner: &[u8], operation: &'static str) -> Result<()> {
    match owner.len() <= OPAQUE_LIMIT - size_of::<u64>() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Invalid("the name of an owner of locks is too long"), operation)),
    }
}
