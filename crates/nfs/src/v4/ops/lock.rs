//! Byte-range locks: LOCK, LOCKT, LOCKU, RELEASE_LOCKOWNER; and FREE_STATEID and TEST_STATEID.

use xdr::{Decode, Encode};

use crate::v4::{status::*, types::*};

/// The kinds of lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[repr(u32)]
pub enum NfsLockType4 {
    /// Shared.
    Read = 1,
    /// Exclusive.
    Write = 2,
    /// Shared, by one who will ask again until he has it.
    ReadW = 3,
    /// Exclusive, by one who will ask again until he has it.
    WriteW = 4,
}

impl NfsLockType4 {
    /// Whether it is exclusive.
    pub fn is_exclusive(self) -> bool {
        matches!(self, NfsLockType4::Write | NfsLockType4::WriteW)
    }

    /// Whether who asks for it wants to wait for it.
    pub fn waits(self) -> bool {
        matches!(self, NfsLockType4::ReadW | NfsLockType4::WriteW)
    }
}

/// Who locks (`locker4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Locker4 {
    /// An owner that has locked in this file before (`exist_lock_owner4`).
    #[xdr(0)]
    Exist {
        /// Its locks.
        lock_stateid: Stateid4,
        /// Its sequence in 4.0.
        lock_seqid: Seqid4,
    },
    /// A new one (`open_to_lock_owner4`).
    #[xdr(1)]
    New {
        /// The open owner's sequence in 4.0.
        open_seqid: Seqid4,
        /// The open.
        open_stateid: Stateid4,
        /// The lock owner's sequence in 4.0.
        lock_seqid: Seqid4,
        /// The lock owner.
        lock_owner: StateOwner4,
    },
}

/// LOCK arguments (RFC 8881 §18.10).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LockArgs {
    /// Which kind.
    pub locktype: NfsLockType4,
    /// Whether it was held before the server restarted.
    pub reclaim: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes; all ones mean to the end.
    pub length: u64,
    /// Who.
    pub locker: Locker4,
}

/// The lock that is in the way.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LockDenied4 {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Which kind.
    pub locktype: NfsLockType4,
    /// Whose.
    pub owner: StateOwner4,
}

/// LOCK results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum LockRes {
    /// The locks from now on.
    #[xdr(Nfsstat4::Ok)]
    Ok(Stateid4),
    /// Another is in the way.
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
    /// Which kind.
    pub locktype: NfsLockType4,
    /// First byte.
    pub offset: u64,
    /// Bytes; all ones mean to the end.
    pub length: u64,
    /// Who.
    pub owner: StateOwner4,
}

/// LOCKT results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum LockTRes {
    /// Another is in the way.
    #[xdr(Nfsstat4::Denied)]
    Denied(LockDenied4),
    /// Any other status; OK means that nothing is.
    #[xdr(default)]
    Fail(Nfsstat4),
}
op_result!(LockTRes { Denied => Denied });

/// LOCKU arguments (RFC 8881 §18.12).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LockUArgs {
    /// Which kind; of no meaning.
    pub locktype: NfsLockType4,
    /// The owner's sequence in 4.0.
    pub seqid: Seqid4,
    /// The locks.
    pub lock_stateid: Stateid4,
    /// First byte.
    pub offset: u64,
    /// Bytes; all ones mean to the end.
    pub length: u64,
}

/// RELEASE_LOCKOWNER arguments (RFC 7530 §16.37).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReleaseLockOwnerArgs {
    /// Who will lock no more.
    pub lock_owner: StateOwner4,
}

/// FREE_STATEID arguments (RFC 8881 §18.38).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FreeStateidArgs {
    /// What to forget.
    pub stateid: Stateid4,
}

/// TEST_STATEID arguments (RFC 8881 §18.48).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TestStateidArgs {
    /// What to look at.
    pub stateids: Vec<Stateid4>,
}

/// TEST_STATEID results: the status of each.
pub type TestStateidRes = Res4<Vec<Nfsstat4>>;
