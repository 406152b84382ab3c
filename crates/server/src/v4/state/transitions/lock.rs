//! Byte-range locks: LOCK, LOCKT and LOCKU.
//!
//! Read RFC 8881 §9.1.4, §9.6 and §18.10–18.12. The [`LockTable`], which all protocols share, decides what conflicts. This
//! file assigns stateids to owners.
//!
//! An error leaves the state unchanged.

use std::{hash::Hash, time::Instant};

use bytes::Bytes;
use nfs::v4::*;
use smallvec::SmallVec;

use crate::{
    sharing::locks::{Holder, LockClient, LockError, LockKind, LockTable, Locked, Owner, Range, Request},
    v4::state::{State, ids::Other, stateid::Kind},
};

/// The reason for which LOCK or LOCKT fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockFailure {
    /// Another lock conflicts.
    Denied(LockDenied4),
    /// Any other error.
    Status(Nfsstat4),
}

impl From<Nfsstat4> for LockFailure {
    fn from(status: Nfsstat4) -> Self {
        Self::Status(status)
    }
}

impl<R: Clone, F: Clone + Eq + Hash> State<R, F> {
    /// Executes LOCK (§18.10). A client that is denied a lock and wants to wait is notified when the lock is available,
    /// if it has a callback path.
    ///
    /// # Errors
    /// DENIED; those of `Stateids::resolve`; OPENMODE, INVAL, GRACE, NO_GRACE; DELAY if there are too many locks.
    pub fn lock(
        &mut self,
        locks: &mut LockTable<F>,
        client: Clientid4,
        file: &F,
        args: &LockArgs,
        now: Instant,
    ) -> Result<Stateid4, LockFailure> {
        let range = range(args.offset, args.length)?;
        let (open, owner, had) = match &args.locker {
            Locker4::New { open_stateid, lock_owner, .. } => {
                let open = self.resolve_open(client, file, open_stateid)?;
                let owner = lock_owner.owner.0.clone();
                let had = self.stateids.find_lock(&open, &owner);
                (open, owner, had)
            }
            Locker4::Exist { lock_stateid, .. } => {
                let had = self.stateids.resolve(client, Some(file), lock_stateid)?;
                let Kind::Lock { owner, open } = &self.stateids.entry(&had).kind else {
                    return Err(Nfsstat4::BadStateid.into());
                };
                (*open, owner.clone(), Some(had))
            }
        };
        self.check_reclaim(client, args.reclaim)?;
        self.check_stateid_limit(client, had)?;
        let needed = if args.locktype.is_exclusive() { OPEN4_SHARE_ACCESS_WRITE } else { OPEN4_SHARE_ACCESS_READ };
        if self.stateids.open(&open).access & needed == 0 {
            return Err(Nfsstat4::OpenMode.into());
        }
        let request = Request { range, kind: kind(args.locktype), wait: false, reclaim: args.reclaim };
        loop {
            //= rfc8881-9.5-1
            match locks.lock(file, &lock_owner(client, &owner), &request) {
                Ok(Locked::Granted) => break,
                Ok(Locked::Waiting(_)) => unreachable!("a request without `wait` must not wait"),
                Err(LockError::Denied(holder)) if self.revoke_if_expired(locks, &holder, client, now) => {}
                Err(LockError::Denied(holder)) => {
                    if args.locktype.waits() && !self.is_legacy(client) && self.can_be_called(client) {
                        // §9.6: notification is optional. If too many clients wait, the client must poll.
                        locks.watch(file, &lock_owner(client, &owner), range, request.kind, now);
                    }
                    return Err(LockFailure::Denied(denied(client, &holder)));
                }
                Err(error) => return Err(status(&error).into()),
            }
        }
        //= rfc8881-9.5-2 rfc8881-9.5-3
        Ok(match had {
            Some(other) => self.stateids.change(&other),
            None => {
                let owner = Bytes::copy_from_slice(&owner);
                self.stateids.insert((client, self.group_of(client)), file.clone(), Kind::Lock { owner, open })
            }
        })
    }

    /// Executes LOCKT (§18.11). The owner belongs to the client of the session.
    ///
    /// # Errors
    /// DENIED, INVAL, GRACE.
    pub fn lockt(
        &self,
        locks: &LockTable<F>,
        client: Clientid4,
        file: &F,
        args: &LockTArgs,
    ) -> Result<(), LockFailure> {
        let range = range(args.offset, args.length)?;
        if locks.in_grace() {
            return Err(Nfsstat4::Grace.into());
        }
        //= rfc8881-18.11.3-1 rfc8881-18.11.3-2
        match locks.test(file, &lock_owner(client, &args.owner.owner.0), range, kind(args.locktype)) {
            Some(holder) => Err(LockFailure::Denied(denied(client, &holder))),
            None => Ok(()),
        }
    }

    /// Executes LOCKU (§18.12).
    ///
    /// # Errors
    /// Those of `Stateids::resolve`; INVAL; DELAY if the owner would have too many ranges.
    pub fn locku(
        &mut self,
        locks: &mut LockTable<F>,
        client: Clientid4,
        file: &F,
        args: &LockUArgs,
    ) -> Result<Stateid4, Nfsstat4> {
        let range = range(args.offset, args.length)?;
        //= rfc8881-18.12.3-1 rfc8881-18.12.3-2
        let other = self.stateids.resolve(client, Some(file), &args.lock_stateid)?;
        //= rfc8881-8.2.4-1
        let Kind::Lock { owner, .. } = &self.stateids.entry(&other).kind else { return Err(Nfsstat4::BadStateid) };
        //= rfc8881-9.5-1
        locks.unlock(file, &lock_owner(client, owner), range).map_err(|error| status(&error))?;
        //= rfc8881-9.4-1 rfc8881-9.5-2 rfc8881-9.5-3
        Ok(self.stateids.change(&other))
    }

    /// Removes a lock stateid. Releases the locks if the owner has no locks under another open of the file.
    pub(super) fn release_locks(&mut self, locks: &mut LockTable<F>, other: &Other) {
        let entry = self.stateids.remove(other).expect("the lock stateid must exist");
        let Kind::Lock { owner, .. } = entry.kind else { panic!("the stateid must be a lock") };
        if !self.stateids.has_locks(entry.client, &owner, &entry.file) {
            let all = Range::to_end(0);
            locks
                .unlock(&entry.file, &lock_owner(entry.client, &owner), all)
                .expect("removing all locks of an owner must not fail");
        }
    }
}

/// Converts the range of a request.
///
/// # Errors
/// INVAL (§18.10.3) for no bytes, or an end beyond 64 bits.
fn range(offset: u64, length: u64) -> Result<Range, Nfsstat4> {
    match length {
        //= rfc8881-18.10.3-1
        LENGTH_TO_EOF => Ok(Range::to_end(offset)),
        _ if offset.checked_add(length).is_none() => Err(Nfsstat4::Inval),
        _ => Range::new(offset, length).ok_or(Nfsstat4::Inval),
    }
}

fn kind(locktype: NfsLockType4) -> LockKind {
    if locktype.is_exclusive() { LockKind::Exclusive } else { LockKind::Shared }
}

pub(in crate::v4::state) fn lock_owner(client: Clientid4, name: &[u8]) -> Owner {
    owner(client, LOCK_OWNER, name)
}

/// Returns the client of a lock-owner, and the name that the client chose; `None` for other owners.
pub(in crate::v4) fn name_of_lock_owner(owner: &Owner) -> Option<StateOwner4> {
    let LockClient::V4(client) = owner.client else { return None };
    let name = Bytes::copy_from_slice(owner.opaque.strip_prefix(&[LOCK_OWNER])?);
    Some(StateOwner4 { clientid: Clientid4(client), owner: name.into() })
}

pub(super) fn owner(Clientid4(client): Clientid4, kind: u8, name: &[u8]) -> Owner {
    let mut opaque = SmallVec::from_slice(&[kind]);
    opaque.extend_from_slice(name);
    Owner { client: LockClient::V4(client), opaque }
}

/// Describes a conflicting lock to the client `to`. The result does not disclose the client ID of another client.
fn denied(to: Clientid4, holder: &Holder) -> LockDenied4 {
    let (clientid, name) = match holder.owner.client {
        LockClient::V4(id) if id == to.0 => (to, &holder.owner.opaque[1..]),
        //= rfc8881-18.10.3-6
        LockClient::V4(_) => (Clientid4(0), &holder.owner.opaque[1..]),
        LockClient::Nlm(_) => (Clientid4(0), &holder.owner.opaque[..]),
    };
    let name = Bytes::copy_from_slice(&name[..name.len().min(OPAQUE_LIMIT)]);
    LockDenied4 {
        offset: holder.range.first(),
        length: holder.range.length().unwrap_or(LENGTH_TO_EOF),
        locktype: match holder.kind {
            LockKind::Shared => NfsLockType4::Read,
            LockKind::Exclusive => NfsLockType4::Write,
        },
        owner: StateOwner4 { clientid, owner: name.into() },
    }
}

pub(super) fn status(error: &LockError) -> Nfsstat4 {
    match error {
        LockError::Denied(_) => Nfsstat4::Denied,
        LockError::Deadlock => Nfsstat4::Deadlock,
        LockError::Grace => Nfsstat4::Grace,
        LockError::NoGrace => Nfsstat4::NoGrace,
        // RESOURCE exists only in 4.0. The request may succeed later.
        LockError::Full => Nfsstat4::Delay,
    }
}

const LOCK_OWNER: u8 = b'l';
