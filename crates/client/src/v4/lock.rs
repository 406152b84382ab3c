//! LOCK, LOCKU and LOCKT by file handle (RFC 8881 §18.10–18.12). A request that waits for a lock is retried when the
//! server notifies the client (CB_NOTIFY_LOCK, §20.11), and every few seconds in case no notification arrives.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use nfs::v4::*;
use tokio::sync::Notify;

use super::{
    lock_state::{DENIED_MAX, LockKind, forget, kind, lock_request, owner, range_of, stateid_of},
    opens::{InUse, OwnerLocks},
    place::Place,
    protocol::V4,
    request::Target,
};
use crate::{
    call::{Backoff, Deadline},
    model::{Error, ErrorKind, Handle, LockRange, Result, Status},
    session::compound::{Compound, value},
};

impl V4 {
    /// LOCK: locks bytes for `owner`, which is a name of up to 1016 bytes that the caller chooses. Returns `None` if
    /// the lock was granted, otherwise a conflicting lock of another owner.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidRange`, …, or the locks of this owner have been lost.
    pub async fn lock(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        self.lock_once(file, owner, (range, LockKind::AtOnce), &self.deadline()).await
    }

    /// Locks bytes like [`lock`](Self::lock). If there is a conflicting lock, waits until the lock is granted, or until
    /// the deadline has passed since the server last asked to retry later.
    ///
    /// # Errors
    /// `LockDenied` at the deadline, and the errors of [`lock`](Self::lock).
    pub async fn lock_wait(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<()> {
        let deadline = &self.deadline();
        self.lock_within(file, owner, range, deadline, deadline.passed()).await
    }

    /// Locks bytes like [`lock_wait`](Self::lock_wait), but waits until `given_up` completes. An outstanding request is
    /// first completed: if it is granted, the lock is held.
    ///
    /// # Errors
    /// `LockDenied` if `given_up` has completed, and the errors of [`lock`](Self::lock).
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
        let mut given_up = std::pin::pin!(given_up);
        let mut backoff = Backoff::new();
        loop {
            // The file can move to another server while the owner waits for the lock.
            let place = self.place(file).await?;
            let waiting = Waiting::new(place.v4.server.opens.file(&place.handle), owner);
            let retry = waiting.retry.notified();
            let mut retry = std::pin::pin!(retry);
            // Register before the request, because the notification can arrive before the reply that denies the lock.
            retry.as_mut().enable();
            match self.lock_once(file, owner, (range, LockKind::Waiting), &self.deadline()).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) if waiting.file.0.state.lock().may_notify => backoff.slow_down(),
                Ok(Some(_)) => {}
                Err(error) if error.is_later() => {
                    tokio::select! {
                        biased;
                        () = &mut given_up => return Err(Error::refused(Status::LockDenied, "LOCK")),
                        _ = backoff.pause_if_delayed(self.program(), &error, deadline) => continue,
                    }
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                biased;
                () = &mut given_up => return Err(Error::refused(Status::LockDenied, "LOCK")),
                () = retry => {}
                () = backoff.pause() => {}
            }
        }
    }

    async fn lock_once(
        &self,
        handle: &Handle,
        name: &[u8],
        (range, how): (LockRange, LockKind),
        deadline: &Deadline,
    ) -> Result<Option<LockRange>> {
        check(name, "LOCK")?;
        let access = if range.exclusive { OPEN4_SHARE_ACCESS_WRITE } else { OPEN4_SHARE_ACCESS_READ };
        let make = |target: &mut Target| {
            if target.stateids[0] == Stateid4::ANONYMOUS {
                let problem = "NFSv4.0 can lock a file only if its name is known";
                return Err(Error::new(ErrorKind::Invalid(problem), "LOCK"));
            }
            let file = &target.file().0;
            let locker = file.locker(target.opens(), name, file.lock_stateid(name)?, target.stateids[0]);
            let (used, counter) = (*stateid_of(&locker), file.counter(name));
            let compound = lock_request(target.handle(), (range, how), (locker, counter));
            target.stateids[0] = used;
            Ok(compound)
        };
        let mut request = self.request("LOCK", handle).open_for(access).exclusive();
        if how == LockKind::Waiting {
            request = request.delays_are_final();
        }
        let (target, compound, res) = request.answer(make, deadline).await?;
        match res.resarray.last() {
            Some(Resop4::Lock(LockRes::Ok(stateid))) => {
                target.file().0.add_lock((name, self.caller.as_ref()), *stateid, range);
                Ok(None)
            }
            Some(Resop4::Lock(LockRes::Denied(denied))) => Ok(Some(range_of(denied))),
            _ => match target.server().client.results(&compound, res) {
                Ok(results) => Err(results.protocol_error("LOCK succeeded without a stateid")),
                Err(error) => Err(error),
            },
        }
    }

    /// LOCKU: unlocks those of the bytes that `owner` has locked.
    ///
    /// # Errors
    /// The locks of this owner have been lost, and the errors of any call.
    pub async fn unlock(&self, handle: &Handle, owner: &[u8], offset: u64, length: u64) -> Result<()> {
        let place = self.place(handle).await?;
        let locked = |place: &Place| place.v4.server.opens.file(&place.handle).0.lock_stateid(owner);
        if locked(&place)?.is_none() {
            return Ok(());
        }
        let make = |target: &mut Target| {
            let file = &target.file().0;
            let stateid = file.lock_stateid(owner)?.ok_or_else(|| Error::refused(Status::InvalidArgument, "LOCKU"))?;
            let (lock_stateid, counter) = (target.server().client.latest(stateid), file.counter(owner));
            target.stateids[0] = lock_stateid;
            let args = LockUArgs { locktype: NfsLockType4::Write, seqid: Seqid4(0), lock_stateid, offset, length };
            Ok(Compound::on("LOCKU", target.handle()).op(Argop4::LockU(args), 16).once().locker(counter))
        };
        let (target, mut results) = match self.request("LOCKU", handle).exclusive().run(make).await {
            // Another task has unlocked the bytes meanwhile.
            Err(_) if matches!(locked(&self.place_now(handle)), Ok(None)) => return Ok(()),
            result => result?,
        };
        results.skip(&[Opnum4::PutFh])?;
        target.file().0.remove_lock(owner, value!(results, LockU)?, offset, length);
        Ok(())
    }

    /// Releases all locks of an owner in a file: unlocks them and removes the owner at the server. Locks that the
    /// server has lost are removed from the table too, so that the owner can lock again.
    ///
    /// # Errors
    /// The server does not answer, or refuses LOCKU. The locks are then held until the file is closed.
    pub async fn release_locks(&self, handle: &Handle, owner: &[u8]) -> Result<()> {
        let place = self.place(handle).await?;
        if place.v4.server.opens.known(&place.handle).is_none() {
            return Ok(());
        }
        let lost = {
            let file = place.v4.server.opens.file(&place.handle);
            file.0.state.lock().locks.get(owner).is_none_or(|locked| locked.lost)
        };
        let unlocked = if lost { Ok(()) } else { self.unlock(handle, owner, 0, u64::MAX).await };
        let place = self.place(handle).await?;
        let (server, file) = (&place.v4.server, place.v4.server.opens.file(&place.handle));
        let _changes = file.0.lock_changes().await;
        let released = {
            let mut state = file.0.state.lock();
            // Another task may be locking for this owner. In NFSv4.0, an owner that was refused must keep its seqid.
            let done = |locked: &OwnerLocks| {
                locked.ranges.is_empty() && (locked.stateid.is_some() || server.client.minor() > 0)
            };
            match state.locks.get(owner).is_some_and(|locked| locked.lost || done(locked)) {
                true => state.locks.remove(owner),
                false => None,
            }
        };
        if let Some(stateid) = released.and_then(|locked| locked.stateid) {
            forget(&server.opens, &file.0, owner, stateid, &self.deadline()).await;
        }
        unlocked
    }

    /// LOCKT: returns a lock of another owner that conflicts with this one; `None` if there is none.
    ///
    /// # Errors
    /// `InvalidArgument`, …
    pub async fn test_lock(&self, handle: &Handle, name: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        check(name, "LOCKT")?;
        let make = |target: &mut Target| {
            let args = LockTArgs {
                locktype: kind(range.exclusive),
                offset: range.offset,
                length: range.length,
                owner: owner(target.opens(), &target.opens().file(target.handle()).0, name),
            };
            Ok(Compound::on("LOCKT", target.handle()).op(Argop4::LockT(args), DENIED_MAX))
        };
        let (target, compound, res) = self.request("LOCKT", handle).answer(make, &self.deadline()).await?;
        if let Some(Resop4::LockT(LockTRes::Denied(denied))) = res.resarray.last() {
            return Ok(Some(range_of(denied)));
        }
        target.server().client.results(&compound, res).map(|_| None)
    }
}

/// An owner that waits for a lock in a file. The same owner can wait more than once.
struct Waiting {
    file: InUse,
    name: Bytes,
    retry: Arc<Notify>,
}

impl Waiting {
    fn new(file: InUse, name: &[u8]) -> Self {
        let name = Bytes::copy_from_slice(name);
        let retry = file.0.state.lock().waiting.entry(name.clone()).or_default().clone();
        Self { file, name, retry }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.file.0.state.lock();
        // One reference is in the table, the other one is `self.retry`.
        if Arc::strong_count(&self.retry) <= 2 {
            state.waiting.remove(&self.name);
        }
    }
}

/// Checks that the name of an owner leaves room for the serial number of the file.
fn check(owner: &[u8], operation: &'static str) -> Result<()> {
    match owner.len() <= OPAQUE_LIMIT - size_of::<u64>() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Invalid("the name of a lock owner is too long"), operation)),
    }
}
