//! LOCK, LOCKU and LOCKT by file handle (RFC 8881 §18.10–18.12). A request that waits for a lock is retried when the server notifies
//! the client (CB_NOTIFY_LOCK, §20.11), and every few seconds in case that it does not.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use nfs::v4::*;
use tokio::sync::Notify;

use super::{
    lock_state::{DENIED_MAX, How, LockRange, forget, kind, lock_request, owner, range_of, stateid_of},
    opens::{InUse, Locked},
    place::Place,
    protocol::V4,
    request::Target,
};
use crate::{
    call::{Backoff, Deadline},
    model::{Error, ErrorKind, Handle, Result, Status},
    session::compound::{Compound, value},
};

impl V4 {
    /// LOCK: locks bytes for `owner`, any name of the caller's choice of up to 1016 bytes. `None` if the lock is held now, else a lock of
    /// somebody else that is in the way.
    ///
    /// # Errors
    /// `Inval`, `BADRANGE`, …; or locks of this owner have been lost.
    pub async fn lock(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        self.lock_once(file, owner, (range, How::AtOnce), &self.deadline()).await
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
        let mut given_up = std::pin::pin!(given_up);
        let mut backoff = Backoff::new();
        loop {
            // The file can move while the lock is waited for.
            let place = self.place(file).await?;
            let waiting = Waiting::new(place.v4.server.opens.file(&place.handle), owner);
            let retry = waiting.retry.notified();
            let mut retry = std::pin::pin!(retry);
            // Before the request, so that a notification is not missed that overtakes the refusal.
            retry.as_mut().enable();
            match self.lock_once(file, owner, (range, How::Waiting), &self.deadline()).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) if waiting.file.0.state.lock().may_notify => backoff.slow_down(),
                Ok(Some(_)) => {}
                Err(error) if error.is_later() => {
                    tokio::select! {
                        biased;
                        () = &mut given_up => return Err(Error::refused(Status::LockDenied, "LOCK")),
                        _ = backoff.later(self.program(), &error, deadline) => continue,
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
        (range, how): (LockRange, How),
        deadline: &Deadline,
    ) -> Result<Option<LockRange>> {
        check(name, "LOCK")?;
        let access = if range.exclusive { OPEN4_SHARE_ACCESS_WRITE } else { OPEN4_SHARE_ACCESS_READ };
        let make = |target: &mut Target| {
            if target.stateids[0] == Stateid4::ANONYMOUS {
                let problem = "a file is locked in version 4.0 when it is known by its name";
                return Err(Error::new(ErrorKind::Invalid(problem), "LOCK"));
            }
            let file = &target.file().0;
            let locker = file.locker(target.opens(), name, file.locked(name)?, target.stateids[0]);
            let (used, counter) = (*stateid_of(&locker), file.counter(name));
            let compound = lock_request(target.handle(), (range, how), (locker, counter));
            target.stateids[0] = used;
            Ok(compound)
        };
        let mut request = self.request("LOCK", handle).open_for(access).alone();
        if how == How::Waiting {
            request = request.delays_are_final();
        }
        let (target, compound, res) = request.answer(make, deadline).await?;
        match res.resarray.last() {
            Some(Resop4::Lock(LockRes::Ok(stateid))) => {
                target.file().0.hold(name, *stateid, range);
                Ok(None)
            }
            Some(Resop4::Lock(LockRes::Denied(denied))) => Ok(Some(range_of(denied))),
            _ => match target.server().client.results(&compound, res) {
                Ok(results) => Err(results.nonsense("a lock without a state")),
                Err(error) => Err(error),
            },
        }
    }

    /// LOCKU: unlocks bytes, whichever of them were locked by `owner`.
    ///
    /// # Errors
    /// Locks of this owner have been lost; or what can fail with any call.
    pub async fn unlock(&self, handle: &Handle, owner: &[u8], offset: u64, length: u64) -> Result<()> {
        let place = self.place(handle).await?;
        let locked = |place: &Place| place.v4.server.opens.file(&place.handle).0.locked(owner);
        if locked(&place)?.is_none() {
            return Ok(());
        }
        let make = |target: &mut Target| {
            let file = &target.file().0;
            let stateid = file.locked(owner)?.ok_or_else(|| Error::refused(Status::InvalidArgument, "LOCKU"))?;
            let (lock_stateid, counter) = (target.server().client.latest(stateid), file.counter(owner));
            target.stateids[0] = lock_stateid;
            let args = LockUArgs { locktype: NfsLockType4::Write, seqid: Seqid4(0), lock_stateid, offset, length };
            Ok(Compound::on("LOCKU", target.handle()).op(Argop4::LockU(args), 16).once().locker(counter))
        };
        let (target, mut results) = match self.request("LOCKU", handle).alone().run(make).await {
            // Released meanwhile.
            Err(_) if matches!(locked(&self.place_now(handle)), Ok(None)) => return Ok(()),
            result => result?,
        };
        results.skip(&[Opnum4::PutFh])?;
        target.file().0.unhold(owner, value!(results, LockU)?, offset, length);
        Ok(())
    }

    /// The owner is done with the file: what it has locked there is unlocked, and the server forgets it. Locks that the server has
    /// lost are forgotten here, too: the owner can begin anew.
    ///
    /// # Errors
    /// The server was not reached, or does not unlock: then the locks are held until the file is closed.
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
        let _alone = file.0.changing().await;
        let released = {
            let mut state = file.0.state.lock();
            // Another task may be locking by this owner again; and the counter of an owner of version 4.0 that was refused goes on.
            let done =
                |locked: &Locked| locked.ranges.is_empty() && (locked.stateid.is_some() || server.client.minor() > 0);
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

    /// LOCKT: a lock of somebody else that would be in the way of this one; `None` if there is none.
    ///
    /// # Errors
    /// `Inval`, …
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

/// An owner that waits for a lock in a file, by itself or more than once.
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
        // The list's and this one.
        if Arc::strong_count(&self.retry) <= 2 {
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
