//! Locks over NFSv3: the client of NLM version 4 (X/Open XNFS chapter 14, RFC 1813 appendix II).
//!
//! An owner that waits for a lock asks again with increasing pauses, and at once when a lock of the file is released on this machine. The
//! server is not asked to call the client (GRANTED), because the host's own lock manager has the port that servers call.
//!
//! - **Order.** An operation of an owner begins when the outcome of the one before it is known. So a lock is never granted, or taken away,
//!   by an old call. Such calls are made by tasks that end when the server has answered, also if the caller has given up. A lock that is
//!   granted after that is unlocked again.
//! - **Restarts.** When the connection was lost, [`recovery`] checks whether the server still has the locks, and reclaims them.
//! - **Errors.** If locks are lost, operations of their owner fail until the owner releases all of its locks in that file.
//!
//! [ADR 14](../../../../../docs/adr/0014-nlm-client.md) has the reasons.

mod owners;
mod recovery;
mod service;

use std::{
    future::Future,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use nfs::nlm::{CallerName, LockArgs, Netobj, Nlm4Stats, NlmProc4, Res, TestArgs, TestReply, TestRes, UnlockArgs};
use parking_lot::Mutex;
use rpc::{AuthSys, Signal};
use tokio::{
    sync::{Notify, OwnedMutexGuard},
    task::JoinHandle,
    time::timeout_at,
};

pub(crate) use self::service::LockDialer;
use self::{
    owners::{InUse, Owner, Owners},
    service::{Connection, LockService},
};
use super::V3;
use crate::{
    call::{Backoff, Deadline},
    model::{Caller, Error, ErrorKind, Handle, LockRange, Result, Status},
};

/// The locks of a mount. They are unlocked when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Locking(Arc<Guard>);

#[derive(Debug)]
struct Guard(Arc<Locks>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.ended.send();
    }
}

#[derive(Debug)]
struct Locks {
    service: LockService,
    owners: Arc<Owners>,
    /// Notified when there is a lock over a connection that is not watched.
    locked: Notify,
    /// The connection that is watched; `None` while there are no locks.
    watched: Mutex<Option<Connection>>,
    /// Set when the task that watches connections has been started.
    has_watcher: AtomicBool,
    /// Sent when the mount has ended.
    ended: Signal,
}

impl Locking {
    pub fn new(dialer: Box<dyn LockDialer>) -> Self {
        let host = caller_name(&AuthSys::of_process().machine);
        let (service, owners) = (LockService::new(dialer), Owners::new(host));
        let (locked, watched, has_watcher, ended) = Default::default();
        Self(Arc::new(Guard(Arc::new(Locks { service, owners, locked, watched, has_watcher, ended }))))
    }

    fn locks(&self) -> &Arc<Locks> {
        &self.0.0
    }
}

impl V3 {
    /// Reports whether locks are held by the server: the mount has not the option `nolock`.
    pub fn has_locks(&self) -> bool {
        self.locking.is_some()
    }

    /// Finds the lock manager of the server.
    ///
    /// # Errors
    /// `LockManager` if there is none that the client can use, or the server does not answer.
    pub async fn find_lock_manager(&self) -> Result<()> {
        let (locks, deadline) = (self.locks("NULL")?, self.program.deadline());
        match timeout_at(deadline.at(), locks.service.connected()).await {
            Ok(found) => found.map(drop).map_err(|error| error.on(self.program.server())),
            Err(_) => Err(self.program.timeout_error("NULL")),
        }
    }

    /// LOCK: locks bytes for `owner`, which is a name that the caller chooses. Returns `None` if the lock was granted, otherwise a
    /// conflicting lock of another owner.
    ///
    /// # Errors
    /// `InvalidRange`, …, or the locks of this owner have been lost.
    pub async fn lock(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        let deadline = &self.program.deadline();
        let mut backoff = Backoff::new();
        for _ in 0..TESTS_MAX {
            loop {
                match self.lock_once(file, owner, range, deadline).await {
                    Ok(true) => return Ok(None),
                    Ok(false) => break,
                    Err(error) if backoff.pause_if_delayed(&self.program, &error, deadline).await => {}
                    Err(error) => return Err(error),
                }
            }
            if let Some(conflict) = self.test_lock(file, owner, range).await? {
                return Ok(Some(conflict));
            }
        }
        // Each time, the conflicting lock was released before it could be named.
        Ok(Some(range))
    }

    /// Locks bytes like [`lock`](Self::lock). If there is a conflicting lock, waits until the lock is granted, or until the deadline has
    /// passed since the server last asked to retry later.
    ///
    /// # Errors
    /// `LockDenied` at the deadline, and the errors of [`lock`](Self::lock).
    pub async fn lock_wait(&self, file: &Handle, owner: &[u8], range: LockRange) -> Result<()> {
        let deadline = &self.program.deadline();
        self.lock_within(file, owner, range, deadline, deadline.passed()).await
    }

    /// Locks bytes like [`lock_wait`](Self::lock_wait), but waits until `given_up` completes. An outstanding request is first completed:
    /// if it is granted, the lock is held.
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
        self.lock_within(file, owner, range, &self.program.deadline(), given_up).await
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
        let denied = || Err(Error::refused(Status::LockDenied, "LOCK"));
        let (mut delays, mut polls) = (Backoff::new(), Backoff::up_to(POLL_MAX));
        let mut is_conflict = false;
        loop {
            let waiting = self.locks("LOCK")?.owners.wait(file);
            let mut released = std::pin::pin!(waiting.released.notified());
            // Register before the request, because the lock can be released before the reply that denies it is received.
            released.as_mut().enable();
            match self.lock_once(file, owner, range, &self.program.deadline()).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if error.is_later() => {
                    tokio::select! {
                        biased;
                        () = &mut given_up => return denied(),
                        _ = delays.pause_if_delayed(&self.program, &error, deadline) => continue,
                    }
                }
                Err(error) => return Err(error),
            }
            // DENIED can also mean that the caller may not lock the file. TEST then fails.
            is_conflict = is_conflict || self.test_lock(file, owner, range).await?.is_some();
            tokio::select! {
                biased;
                () = &mut given_up => return denied(),
                () = released => {}
                () = polls.pause() => {}
            }
        }
    }

    /// Asks once for a lock. Returns `false` if the server denies it.
    async fn lock_once(&self, file: &Handle, name: &[u8], range: LockRange, deadline: &Deadline) -> Result<bool> {
        check(file, name, range)?;
        let locks = self.locks("LOCK")?;
        let (owner, caller) = (locks.owners.of(file, name), self.caller.clone());
        let task = tokio::spawn({
            let locks = locks.clone();
            async move { until_ended(&locks.clone(), locks.lock(owner, range, caller), "LOCK").await }
        });
        match self.outcome(task, deadline, "LOCK").await? {
            Some(granted) => {
                granted.keep();
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// UNLOCK: unlocks those of the bytes that `owner` has locked.
    ///
    /// # Errors
    /// The locks of this owner have been lost, and the errors of any call.
    pub async fn unlock(&self, file: &Handle, owner: &[u8], offset: u64, length: u64) -> Result<()> {
        let locks = self.locks("UNLOCK")?.clone();
        let Some(owner) = locks.owners.known(file, owner) else { return Ok(()) };
        let task = tokio::spawn(async move {
            let turn = owner.owner.turn.clone().lock_owned().await;
            until_ended(&locks, locks.unlock(&owner, turn, &[(offset, length)]), "UNLOCK").await
        });
        self.outcome(task, &self.program.deadline(), "UNLOCK").await
    }

    /// Releases all locks of an owner in a file. Locks that the server has lost are removed from the table too, so that the owner can
    /// lock again.
    ///
    /// # Errors
    /// The server does not answer, or refuses UNLOCK.
    pub async fn release_locks(&self, file: &Handle, owner: &[u8]) -> Result<()> {
        let known = self.locks("UNLOCK")?.owners.known(file, owner);
        match known {
            None => Ok(()),
            Some(known) if known.owner.state.lock().lost => {
                known.owner.state.lock().lost = false;
                Ok(())
            }
            Some(_) => self.unlock(file, owner, 0, u64::MAX).await,
        }
    }

    /// TEST: returns a lock of another owner that conflicts with this one; `None` if there is none.
    ///
    /// # Errors
    /// `InvalidRange`, …
    pub async fn test_lock(&self, file: &Handle, name: &[u8], range: LockRange) -> Result<Option<LockRange>> {
        check(file, name, range)?;
        let (locks, deadline) = (self.locks("TEST")?, &self.program.deadline());
        let owner = locks.owners.of(file, name);
        let mut backoff = Backoff::new();
        loop {
            let testing = locks.test(&owner.owner, range, self.caller.as_ref());
            let tested = match timeout_at(deadline.at(), testing).await {
                Ok(tested) => tested,
                Err(_) => Err(self.program.timeout_error("TEST")),
            };
            let result = tested.and_then(|(reply, _)| match reply {
                TestReply::Granted => Ok(None),
                TestReply::Denied(holder) => Ok(Some(LockRange {
                    offset: holder.offset,
                    length: if holder.len == 0 { u64::MAX } else { holder.len },
                    exclusive: holder.exclusive,
                })),
                other => Err(Error::of_status(other.status(), "TEST")),
            });
            match result {
                Err(error) if backoff.pause_if_delayed(&self.program, &error, deadline).await => {}
                result => return result.map_err(|error| error.on(self.program.server())),
            }
        }
    }

    /// Unlocks all locks of the mount, until the server has answered or the deadline has passed.
    pub(crate) async fn release_all_locks(&self) {
        if let Some(locking) = &self.locking {
            locking.locks().release_all(self.program.timeout()).await;
        }
    }

    fn locks(&self, operation: &'static str) -> Result<&Arc<Locks>> {
        let without = "the mount has the option nolock";
        match &self.locking {
            Some(locking) => Ok(locking.locks()),
            None => Err(Error::new(ErrorKind::LockManager(without.to_owned()), operation).on(self.program.server())),
        }
    }

    /// Waits until a task has ended, or the deadline has passed. The task continues after that.
    async fn outcome<T>(&self, task: JoinHandle<Result<T>>, deadline: &Deadline, name: &'static str) -> Result<T> {
        match timeout_at(deadline.at(), task).await {
            Ok(ended) => {
                ended.unwrap_or_else(|_| Err(ended_error(name))).map_err(|error| error.on(self.program.server()))
            }
            Err(_) => Err(self.program.timeout_error(name)),
        }
    }
}

impl Locks {
    /// Asks for a lock. Returns `None` if the server denies it.
    async fn lock(self: Arc<Self>, owner: InUse, range: LockRange, caller: Option<Caller>) -> Result<Option<Granted>> {
        let turn = owner.owner.turn.clone().lock_owned().await;
        self.settle_before(&owner).await?;
        let (new, at) = {
            let _call = owner.owner.call.lock().await;
            check_held(&owner.owner, "LOCK")?;
            let (status, at) = self.ask(&owner.owner, range, false, caller.as_ref()).await?;
            match status {
                Nlm4Stats::Granted => {}
                Nlm4Stats::Denied => return Ok(None),
                other => return Err(Error::of_status(other, "LOCK")),
            }
            let mut state = owner.owner.state.lock();
            state.caller = caller;
            (state.add(range, at), at)
        };
        self.watch(at);
        Ok(Some(Granted { locks: self, held: Some((owner, turn)), new }))
    }

    /// Unlocks bytes of an owner whose turn it is. In the server's grace period, waits.
    async fn unlock(&self, owner: &InUse, _turn: OwnedMutexGuard<()>, parts: &[(u64, u64)]) -> Result<()> {
        self.settle_before(owner).await?;
        let owner = &owner.owner;
        for &(offset, length) in parts {
            let (mut backoff, mut busy) = (Backoff::new(), 0);
            loop {
                let call = owner.call.lock().await;
                check_held(owner, "UNLOCK")?;
                if !owner.state.lock().has(offset, length) {
                    break;
                }
                match self.ask_to_unlock(owner, offset, length).await? {
                    Nlm4Stats::Granted => {
                        owner.state.lock().remove(offset, length);
                        break;
                    }
                    Nlm4Stats::DeniedGracePeriod => {}
                    // Our server answers this while it has too many calls.
                    Nlm4Stats::DeniedNoLocks if busy < BUSY_MAX => busy += 1,
                    other => return Err(Error::of_status(other, "UNLOCK")),
                }
                // Recovery reclaims the locks of the owner meanwhile.
                drop(call);
                backoff.pause().await;
            }
        }
        self.owners.released(&owner.file);
        Ok(())
    }

    /// Calls LOCK once. Returns the status of the answer, and a connection that was current before.
    async fn ask(
        &self,
        owner: &Owner,
        range: LockRange,
        reclaim: bool,
        caller: Option<&Caller>,
    ) -> Result<(Nlm4Stats, Connection)> {
        let cookie = cookie();
        let lock = self.owners.lock_of(owner, range.offset, range.length);
        // The state number is that of a status monitor. This client has none that the server could call.
        let args = LockArgs { cookie, block: false, exclusive: range.exclusive, lock, reclaim, state: 0 };
        let (res, at): (Res, _) = self.service.call(NlmProc4::Lock, &args, caller).await?;
        Ok((expected(res.status, &res.cookie, &args.cookie, "LOCK")?, at))
    }

    async fn ask_to_unlock(&self, owner: &Owner, offset: u64, length: u64) -> Result<Nlm4Stats> {
        let args = UnlockArgs { cookie: cookie(), lock: self.owners.lock_of(owner, offset, length) };
        let caller = owner.state.lock().caller.clone();
        let unlocked = self.service.call(NlmProc4::Unlock, &args, caller.as_ref()).await;
        let (res, _): (Res, _) = match unlocked {
            // The ticket of the user may have expired. Servers let any user of the host unlock.
            Err(error) if error.is_security() && caller.is_some() => {
                self.service.call(NlmProc4::Unlock, &args, None).await?
            }
            unlocked => unlocked?,
        };
        expected(res.status, &res.cookie, &args.cookie, "UNLOCK")
    }

    /// Calls TEST once.
    async fn test(&self, owner: &Owner, range: LockRange, caller: Option<&Caller>) -> Result<(TestReply, Connection)> {
        let lock = self.owners.lock_of(owner, range.offset, range.length);
        let args = TestArgs { cookie: cookie(), exclusive: range.exclusive, lock };
        let (res, at): (TestRes, _) = self.service.call(NlmProc4::Test, &args, caller).await?;
        Ok((expected(res.reply, &res.cookie, &args.cookie, "TEST")?, at))
    }
}

/// A lock that the server has granted. It is unlocked when this is dropped, because the caller has given up.
struct Granted {
    locks: Arc<Locks>,
    held: Option<(InUse, OwnedMutexGuard<()>)>,
    /// The bytes that were not locked before.
    new: Vec<(u64, u64)>,
}

impl Granted {
    fn keep(mut self) {
        self.held = None;
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        let Some((owner, turn)) = self.held.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (locks, new) = (self.locks.clone(), std::mem::take(&mut self.new));
        runtime.spawn(async move {
            if let Err(error) = until_ended(&locks, locks.unlock(&owner, turn, &new), "UNLOCK").await {
                tracing::warn!(%error, "a lock that is no longer wanted may remain until the mount ends");
            }
        });
    }
}

/// Completes `work`, unless the mount ends before.
async fn until_ended<T>(locks: &Locks, work: impl Future<Output = Result<T>>, operation: &'static str) -> Result<T> {
    tokio::select! {
        biased;
        done = work => done,
        () = locks.ended.wait() => Err(ended_error(operation)),
    }
}

fn ended_error(operation: &'static str) -> Error {
    Error::new(ErrorKind::Invalid("the mount has ended"), operation)
}

/// Fails if locks of the owner have been lost.
fn check_held(owner: &Owner, operation: &'static str) -> Result<()> {
    let lost = "the server has lost the locks of this owner; another client may have locked the bytes meanwhile";
    match owner.state.lock().lost {
        true => Err(Error::new(ErrorKind::Invalid(lost), operation)),
        false => Ok(()),
    }
}

/// Checks the arguments of an operation, before an owner is made for it.
fn check(file: &Handle, owner: &[u8], range: LockRange) -> Result<()> {
    let invalid = |problem| Err(Error::new(ErrorKind::Invalid(problem), "LOCK"));
    super::operations::fh(file)?;
    match (owner.len() <= OWNER_MAX, range.length) {
        (false, _) => invalid("the name of a lock owner is too long"),
        (_, 0) => invalid("a lock of no bytes"),
        _ => Ok(()),
    }
}

/// Checks that a result belongs to its call.
fn expected<T>(result: T, cookie: &Netobj, sent: &Netobj, operation: &'static str) -> Result<T> {
    match cookie == sent {
        true => Ok(result),
        false => Err(Error::new(ErrorKind::Protocol("the cookie of another call".to_owned()), operation)),
    }
}

fn cookie() -> Netobj {
    // Linux's server accepts up to 32 bytes.
    bytes::Bytes::copy_from_slice(&entropy::random::<[u8; 8]>()).into()
}

/// Returns the name by which servers know this host. Linux's server rejects names with slashes.
fn caller_name(machine: &[u8]) -> CallerName {
    let name: Vec<u8> = machine.iter().map(|&byte| if byte == b'/' { b'-' } else { byte }).collect();
    if name.is_empty() { "localhost".into() } else { bytes::Bytes::from(name).into() }
}

/// The maximum pause before an owner that waits asks again.
const POLL_MAX: Duration = Duration::from_secs(1);
/// The maximum number of attempts to name the conflicting lock.
const TESTS_MAX: u32 = 3;
/// The maximum number of times that the server may refuse UNLOCK because it is busy.
const BUSY_MAX: u32 = 10;
/// The maximum bytes of an owner's name, as in NFSv4.
const OWNER_MAX: usize = 1016;
