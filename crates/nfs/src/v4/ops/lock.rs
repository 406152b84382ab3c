//! Byte-range locks: LOCK, LOCKT, LOCKU, RELEASE_LOCKOWNER; and FREE_STATEID and TEST_STATEID.

use xdr::{Decode, Encode};

use crate::v4::{status::*, types::*};

/// The kinds of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[repr(u32)]
pub enum NfsLockType4 {
    /// A shared lock.
    Read = 1,
    /// An exclusive lock.
    Write = 2,
    /// A shared lock for which the client will retry until it is granted.
    ReadW = 3,
    /// An exclusive lock for which the client will retry until it is granted.
    WriteW = 4,
}

impl NfsLockType4 {
    /// Returns `true` for an exclusive lock.
    pub fn is_exclusive(self) -> bool {
        matches!(self, NfsLockType4::Write | NfsLockType4::WriteW)
    }

    /// Returns `true` if the client will retry until the lock is granted.
    pub fn waits(self) -> bool {
        matches!(self, NfsLockType4::ReadW | NfsLockType4::WriteW)
    }
}

/// The lock owner of a LOCK (`locker4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Locker4 {
    /// A lock owner that already has a stateid for this file (`exist_lock_owner4`).
    #[xdr(0)]
    Exist {
        /// The stateid of the lock owner's locks.
        lock_stateid: Stateid4,
        /// The sequence number of the lock owner, in 4.0.
        lock_seqid: Seqid4,
    },
    /// A lock owner without a stateid for this file (`open_to_lock_owner4`).
    #[xdr(1)]
    New {
        /// The sequence number of the open-owner, in 4.0.
        open_seqid: Seqid4,
        /// The stateid of the open.
        open_stateid: Stateid4,
        /// The sequence number of the lock owner, in 4.0.
        lock_seqid: Seqid4,
        /// The lock owner.
        lock_owner: StateOwner4,
    },
}

/// LOCK arguments (RFC 8881 §18.10).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LockArgs {
    /// The kind of lock.
    pub locktype: NfsLockType4,
    /// `true` if the client held it before the server restarted.
    pub reclaim: bool,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; all ones mean to the end of the file.
    pub length: u64,
    /// The owner.
    pub locker: Locker4,
}

/// A conflicting lock.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LockDenied4 {
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The kind of lock.
    pub locktype: NfsLockType4,
    /// The owner of the lock.
    pub owner: StateOwner4,
}

/// LOCK results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum LockRes {
    /// The stateid of the lock owner's locks.
    #[xdr(Nfsstat4::Ok)]
    Ok(Stateid4),
    /// A conflicting lock exists.
    #[xdr(Nfsstat4::Denied)]
    Denied(LockDenied4),
    /// Any other status.
    #[xdr(default)]
    Fail(Nfsstat4),
}
op_result!(LockRes { Ok => Ok, Denied => Denied });

/// LOCKT arguments (RFC 8881 §18.11).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LockTArgs {
    /// The kind of lock.
    pub locktype: NfsLockType4,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; all ones mean to the end of the file.
    pub length: u64,
    /// The owner.
    pub owner: StateOwner4,
}

/// LOCKT results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum LockTRes {
    /// A conflicting lock exists.
    #[xdr(Nfsstat4::Denied)]
    Denied(LockDenied4),
    /// Any other status. OK means that no lock conflicts.
    #[xdr(default)]
    Fail(Nfsstat4),
}
op_result!(LockTRes { Denied => Denied });

/// LOCKU arguments (RFC 8881 §18.12).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LockUArgs {
    /// The kind of lock. It has no meaning.
    pub locktype: NfsLockType4,
    /// The sequence number of the owner, in 4.0.
    pub seqid: Seqid4,
    /// The stateid of the lock owner's locks.
    pub lock_stateid: Stateid4,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; all ones mean to the end of the file.
    pub length: u64,
}

/// RELEASE_LOCKOWNER arguments (RFC 7530 §16.37).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReleaseLockOwnerArgs {
    /// The lock owner to release.
    pub lock_owner: StateOwner4,
}

/// FREE_STATEID arguments (RFC 8881 §18.38).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FreeStateidArgs {
    /// The stateid to free.
    pub stateid: Stateid4,
}

/// TEST_STATEID arguments (RFC 8881 §18.48).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TestStateidArgs {
    /// The stateids to test.
    pub stateids: Vec<Stateid4>,
}

/// TEST_STATEID results: the status of each stateid.
pub type TestStateidRes = Res4<Vec<Nfsstat4>>;
