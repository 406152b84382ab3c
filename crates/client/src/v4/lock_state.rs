//! The byte-range locks that this client holds (RFC 8881 §9), by file and owner: building LOCK requests, reclaiming,
//! and the ranges.
//!
//! Locks are held until they are unlocked or the mount ends. After a restart of the server, the client reclaims them.

use std::sync::Arc;

use bytes::Bytes;
use nfs::v4::*;

use super::{
    opens::{OpenFile, Opens, OwnerLocks},
    unreclaimed::Unreclaimed,
};
use crate::{
    call::Deadline,
    model::{Caller, Error, ErrorKind, Handle, LockRange, Result, cut},
    session::compound::{Compound, Counter},
};

/// The kind of a lock request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockKind {
    AtOnce,
    /// The owner asks for a notification when the lock is free.
    Waiting,
    /// The request reclaims a lock after a restart of the server.
    Reclaiming,
}

/// Returns a request to lock bytes of a file.
pub(crate) fn lock_request(
    handle: &Handle,
    (range, how): (LockRange, LockKind),
    (locker, counter): (Locker4, Counter),
) -> Compound {
    let LockRange { offset, length, exclusive } = range;
    let locktype = match (how, exclusive) {
        (LockKind::Waiting, true) => NfsLockType4::WriteW,
        (LockKind::Waiting, false) => NfsLockType4::ReadW,
        _ => kind(exclusive),
    };
    let args = LockArgs { locktype, reclaim: how == LockKind::Reclaiming, offset, length, locker };
    Compound::on("LOCK", handle).op(Argop4::Lock(args), DENIED_MAX).locker(counter).once()
}

async fn reclaim_lock(
    opens: &Opens,
    (handle, caller): (&Handle, Option<&Caller>),
    range: LockRange,
    locker: (Locker4, Counter),
    deadline: &Deadline,
) -> Result<Stateid4> {
    let compound = lock_request(handle, (range, LockKind::Reclaiming), locker).by(caller);
    let mut results = opens.client.run_in_recovery(&compound, deadline).await?;
    results.skip(&[Opnum4::PutFh])?;
    match results.next()? {
        Resop4::Lock(LockRes::Ok(stateid)) => Ok(stateid),
        _ => Err(results.protocol_error("LOCK succeeded without a stateid")),
    }
}

/// Reclaims the locks of a file whose open has been reclaimed (RFC 8881 §8.4.2.1).
pub(crate) async fn reclaim(
    opens: &Arc<Opens>,
    file: &Arc<OpenFile>,
    deadline: &Deadline,
    unreclaimed: &mut Unreclaimed,
) {
    let locks = file.state.lock().locks.clone();
    for (name, locked) in locks {
        let mut stateid = None;
        // Another client may have had the locks that are lost.
        //= rfc8881-18.51.3-3
        if locked.lost {
            file.state.lock().locks.insert(name, OwnerLocks { stateid, ..locked });
            continue;
        }
        let mut lost = false;
        for &(offset, length, exclusive) in &locked.ranges {
            let open = file.state.lock().open_of(locked.caller.as_ref()).map(|open| open.stateid);
            let Some(open) = open else {
                unreclaimed.lock(None);
                lost = true;
                break;
            };
            let locker = (file.locker(opens, &name, stateid, open), locked.counter.clone());
            let range = LockRange { offset, length, exclusive };
            match reclaim_lock(opens, (&file.handle, locked.caller.as_ref()), range, locker, deadline).await {
                Ok(locked) => {
                    deadline.restart();
                    stateid = Some(locked);
                }
                Err(error) => {
                    unreclaimed.lock(Some(error));
                    lost = true;
                }
            }
        }
        file.state.lock().locks.insert(name, OwnerLocks { stateid, lost, ..locked });
    }
}

/// Removes a lock owner without locks at the server. If that fails, the server keeps the owner until the file is
/// closed.
pub(crate) async fn forget(opens: &Arc<Opens>, file: &OpenFile, name: &[u8], stateid: Stateid4, deadline: &Deadline) {
    let compound = match opens.client.minor() {
        // RFC 7530 §16.37: this removes the owner and its seqid.
        0 => {
            let args = ReleaseLockOwnerArgs { lock_owner: owner(opens, file, name) };
            Compound::new("RELEASE_LOCKOWNER").op(Argop4::ReleaseLockOwner(args), 0)
        }
        // RFC 8881 §18.38.3: a lock stateid without locks can be freed.
        _ => Compound::new("FREE_STATEID").op(Argop4::FreeStateid(FreeStateidArgs { stateid }), 0),
    };
    if let Err(error) = opens.client.run(&compound.once(), deadline).await {
        tracing::debug!(%error, "removing a lock owner failed");
    }
}

/// Returns the lock owner for a file. In NFSv4.0, the server counts the operations of an owner over all files (RFC 7530
/// §9.1.7), so each file has an owner of its own.
pub(crate) fn owner(opens: &Opens, file: &OpenFile, name: &[u8]) -> StateOwner4 {
    match opens.client.minor() {
        0 => opens.client.state_owner(&[&file.serial.to_be_bytes(), name].concat()),
        _ => opens.client.state_owner(name),
    }
}

impl OpenFile {
    /// Returns the owner for a lock request: the stateid of its locks in this file, or a new owner.
    pub fn locker(&self, opens: &Opens, name: &[u8], locks: Option<Stateid4>, open: Stateid4) -> Locker4 {
        let (open_seqid, lock_seqid) = (Seqid4(0), Seqid4(0));
        match locks {
            Some(stateid) => Locker4::Exist { lock_stateid: opens.client.latest(stateid), lock_seqid },
            None => Locker4::New { open_seqid, open_stateid: open, lock_seqid, lock_owner: owner(opens, self, name) },
        }
    }

    /// Returns the seqid of a lock owner.
    pub fn counter(&self, name: &[u8]) -> Counter {
        self.state.lock().locks.entry(Bytes::copy_from_slice(name)).or_default().counter.clone()
    }

    /// Returns the stateid of an owner's locks; `None` if it has none yet.
    pub fn lock_stateid(&self, name: &[u8]) -> Result<Option<Stateid4>> {
        match self.state.lock().locks.get(name) {
            Some(locked) if locked.lost => {
                let lost =
                    "the server has lost the locks of this owner; another client may have locked the bytes meanwhile";
                Err(Error::new(ErrorKind::Invalid(lost), "LOCK"))
            }
            Some(locked) => Ok(locked.stateid),
            None => Ok(None),
        }
    }

    pub fn add_lock(&self, (name, caller): (&[u8], Option<&Caller>), stateid: Stateid4, range: LockRange) {
        let mut state = self.state.lock();
        let locked = state.locks.entry(Bytes::copy_from_slice(name)).or_default();
        (locked.stateid, locked.caller) = (Some(stateid), caller.cloned());
        cut(&mut locked.ranges, range.offset, range.length);
        locked.ranges.push((range.offset, range.length, range.exclusive));
    }

    pub fn remove_lock(&self, name: &[u8], stateid: Stateid4, offset: u64, length: u64) {
        let mut state = self.state.lock();
        if let Some(locked) = state.locks.get_mut(name) {
            locked.stateid = Some(stateid);
            cut(&mut locked.ranges, offset, length);
        }
    }
}

pub(crate) fn stateid_of(locker: &Locker4) -> &Stateid4 {
    match locker {
        Locker4::Exist { lock_stateid, .. } => lock_stateid,
        Locker4::New { open_stateid, .. } => open_stateid,
    }
}

pub(crate) fn kind(exclusive: bool) -> NfsLockType4 {
    if exclusive { NfsLockType4::Write } else { NfsLockType4::Read }
}

pub(crate) fn range_of(denied: &LockDenied4) -> LockRange {
    LockRange { offset: denied.offset, length: denied.length, exclusive: denied.locktype.is_exclusive() }
}

/// Maximum bytes of the description of a conflicting lock.
pub(crate) const DENIED_MAX: usize = 32 + OPAQUE_LIMIT;
