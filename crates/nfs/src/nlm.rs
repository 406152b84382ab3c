//! The Network Lock Manager, version 4 (RFC 1813 appendix II; X/Open XNFS chapters 10 and 14).
//!
//! A `…_MSG` procedure does the same as the one without `_MSG`, but its result is a `…_RES` call to the caller.

use xdr::{Decode, Encode, Opaque};

use crate::v3::FHSIZE3;

/// The program number.
pub const NLM_PROGRAM: u32 = 100_021;
/// The version number.
pub const VERSION: u32 = 4;

macro_rules! procedures {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $args:ty => $res:ty;)*) => {
        /// The procedures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum NlmProc4 { $($(#[$doc])* #[doc = concat!("`", stringify!($args), "` to `", stringify!($res), "`.")] $name = $number),* }

        impl NlmProc4 {
            /// All variants, in order.
            pub const ALL: &[NlmProc4] = &[$(NlmProc4::$name),*];

            /// Returns the procedure with this number.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(NlmProc4::$name),)* _ => None }
            }

            /// Returns the name.
            pub const fn name(self) -> &'static str {
                match self { $(NlmProc4::$name => $text),* }
            }
        }
    };
}

procedures! {
    /// Do nothing.
    Null = 0, "NULL", () => ();
    /// Test whether a lock could be granted.
    Test = 1, "TEST", TestArgs => TestRes;
    /// Lock a range.
    Lock = 2, "LOCK", LockArgs => Res;
    /// Cancel a waiting request.
    Cancel = 3, "CANCEL", CancelArgs => Res;
    /// Unlock a range.
    Unlock = 4, "UNLOCK", UnlockArgs => Res;
    /// Notify a client that its waiting request was granted.
    Granted = 5, "GRANTED", TestArgs => Res;
    /// Like TEST, with the result in a call.
    TestMsg = 6, "TEST_MSG", TestArgs => ();
    /// Like LOCK, with the result in a call.
    LockMsg = 7, "LOCK_MSG", LockArgs => ();
    /// Like CANCEL, with the result in a call.
    CancelMsg = 8, "CANCEL_MSG", CancelArgs => ();
    /// Like UNLOCK, with the result in a call.
    UnlockMsg = 9, "UNLOCK_MSG", UnlockArgs => ();
    /// Like GRANTED, with the result in a call.
    GrantedMsg = 10, "GRANTED_MSG", TestArgs => ();
    /// The result of TEST_MSG.
    TestRes = 11, "TEST_RES", TestRes => ();
    /// The result of LOCK_MSG.
    LockRes = 12, "LOCK_RES", Res => ();
    /// The result of CANCEL_MSG.
    CancelRes = 13, "CANCEL_RES", Res => ();
    /// The result of UNLOCK_MSG.
    UnlockRes = 14, "UNLOCK_RES", Res => ();
    /// The result of GRANTED_MSG.
    GrantedRes = 15, "GRANTED_RES", Res => ();
    /// Reserve a share, for DOS clients.
    Share = 20, "SHARE", ShareArgs => ShareRes;
    /// Release a share.
    Unshare = 21, "UNSHARE", ShareArgs => ShareRes;
    /// Lock without monitoring.
    NmLock = 22, "NM_LOCK", LockArgs => Res;
    /// Release all that a client holds.
    FreeAll = 23, "FREE_ALL", FreeAllArgs => ();
}

/// The longest [`Netobj`], in bytes (`MAXNETOBJ_SZ`).
pub const NETOBJ_MAX: usize = 1024;
/// An opaque object (`netobj`).
pub type Netobj = Opaque<NETOBJ_MAX>;
/// The name of a host.
pub type CallerName = Opaque<1024>;
/// A file handle of NFSv3.
pub type NlmFh = Opaque<FHSIZE3>;

/// Status codes (`nlm4_stats`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[repr(u32)]
pub enum Nlm4Stats {
    /// The request was granted.
    Granted = 0,
    /// A conflicting lock exists.
    Denied = 1,
    /// The server has too few resources.
    DeniedNoLocks = 2,
    /// A conflicting lock exists. The server will call GRANTED when the lock is granted.
    Blocked = 3,
    /// The server is in its grace period: only reclaims are granted.
    DeniedGracePeriod = 4,
    /// The request would cause a deadlock.
    Deadlck = 5,
    /// The file system is read-only.
    RoFs = 6,
    /// The file handle is stale.
    StaleFh = 7,
    /// An offset is too large.
    FBig = 8,
    /// The request failed for another reason.
    Failed = 9,
}

/// The holder of a conflicting lock.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Holder {
    /// `true` for an exclusive lock.
    pub exclusive: bool,
    /// The process.
    pub svid: u32,
    /// The owner.
    pub oh: Netobj,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; 0 means to the end of the file.
    pub len: u64,
}

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Lock {
    /// The name of the client's host.
    pub caller_name: CallerName,
    /// The file.
    pub fh: NlmFh,
    /// The owner on the host.
    pub oh: Netobj,
    /// The process of the owner.
    pub svid: u32,
    /// The offset of the first byte.
    pub offset: u64,
    /// The number of bytes; 0 means to the end of the file.
    pub len: u64,
}

/// TEST and GRANTED arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TestArgs {
    /// Opaque data that the result returns.
    pub cookie: Netobj,
    /// `true` for an exclusive lock.
    pub exclusive: bool,
    /// The lock.
    pub lock: Lock,
}

/// The reply to TEST (`nlm4_testrply`): a status, with the holder if it is DENIED.
///
/// Each status has a variant of its own, so that DENIED always has a holder.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nlm4Stats)]
pub enum TestReply {
    /// The lock could be granted.
    #[xdr(Nlm4Stats::Granted)]
    Granted,
    /// This lock conflicts.
    #[xdr(Nlm4Stats::Denied)]
    Denied(Holder),
    /// The server has too few resources.
    #[xdr(Nlm4Stats::DeniedNoLocks)]
    DeniedNoLocks,
    /// The request would have to wait.
    #[xdr(Nlm4Stats::Blocked)]
    Blocked,
    /// The server is in its grace period: only reclaims are granted.
    #[xdr(Nlm4Stats::DeniedGracePeriod)]
    DeniedGracePeriod,
    /// The request would cause a deadlock.
    #[xdr(Nlm4Stats::Deadlck)]
    Deadlck,
    /// The file system is read-only.
    #[xdr(Nlm4Stats::RoFs)]
    RoFs,
    /// The file handle is stale.
    #[xdr(Nlm4Stats::StaleFh)]
    StaleFh,
    /// An offset is too large.
    #[xdr(Nlm4Stats::FBig)]
    FBig,
    /// The file cannot be locked, or not by this caller.
    #[xdr(Nlm4Stats::Failed)]
    Failed,
}

impl TestReply {
    /// Creates the reply to a TEST that was not answered from the lock table. DENIED requires a holder, so it becomes
    /// FAILED here, which is the answer of Linux's lockd to a caller that may not open the file.
    pub fn without_holder(status: Nlm4Stats) -> Self {
        match status {
            Nlm4Stats::Granted => TestReply::Granted,
            Nlm4Stats::DeniedNoLocks => TestReply::DeniedNoLocks,
            Nlm4Stats::Blocked => TestReply::Blocked,
            Nlm4Stats::DeniedGracePeriod => TestReply::DeniedGracePeriod,
            Nlm4Stats::Deadlck => TestReply::Deadlck,
            Nlm4Stats::RoFs => TestReply::RoFs,
            Nlm4Stats::StaleFh => TestReply::StaleFh,
            Nlm4Stats::FBig => TestReply::FBig,
            Nlm4Stats::Denied | Nlm4Stats::Failed => TestReply::Failed,
        }
    }

    /// Returns the status of the reply.
    pub fn status(&self) -> Nlm4Stats {
        match self {
            TestReply::Granted => Nlm4Stats::Granted,
            TestReply::Denied(_) => Nlm4Stats::Denied,
            TestReply::DeniedNoLocks => Nlm4Stats::DeniedNoLocks,
            TestReply::Blocked => Nlm4Stats::Blocked,
            TestReply::DeniedGracePeriod => Nlm4Stats::DeniedGracePeriod,
            TestReply::Deadlck => Nlm4Stats::Deadlck,
            TestReply::RoFs => Nlm4Stats::RoFs,
            TestReply::StaleFh => Nlm4Stats::StaleFh,
            TestReply::FBig => Nlm4Stats::FBig,
            TestReply::Failed => Nlm4Stats::Failed,
        }
    }
}

/// TEST results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TestRes {
    /// The value from the arguments.
    pub cookie: Netobj,
    /// The status.
    pub reply: TestReply,
}

/// LOCK, CANCEL, UNLOCK and GRANTED results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Res {
    /// The value from the arguments.
    pub cookie: Netobj,
    /// The status.
    pub status: Nlm4Stats,
}

/// LOCK and NM_LOCK arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LockArgs {
    /// Opaque data that the result returns.
    pub cookie: Netobj,
    /// `true` to wait if the lock cannot be granted at once.
    pub block: bool,
    /// `true` for an exclusive lock.
    pub exclusive: bool,
    /// The lock.
    pub lock: Lock,
    /// `true` if the client held it before the server restarted.
    pub reclaim: bool,
    /// The state number of the client's status monitor.
    pub state: i32,
}

/// CANCEL arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CancelArgs {
    /// Opaque data that the result returns.
    pub cookie: Netobj,
    /// The same as in LOCK.
    pub block: bool,
    /// The same as in LOCK.
    pub exclusive: bool,
    /// The lock.
    pub lock: Lock,
}

/// UNLOCK arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct UnlockArgs {
    /// Opaque data that the result returns.
    pub cookie: Netobj,
    /// The lock.
    pub lock: Lock,
}

/// The access that is denied to others (`fsh4_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum ShareMode {
    /// Nothing is denied.
    DenyNone = 0,
    /// Reading is denied.
    DenyRead = 1,
    /// Writing is denied.
    DenyWrite = 2,
    /// Reading and writing are denied.
    DenyReadWrite = 3,
}

/// The access of the owner (`fsh4_access`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum ShareAccess {
    /// No access.
    None = 0,
    /// The owner reads.
    Read = 1,
    /// The owner writes.
    Write = 2,
    /// The owner reads and writes.
    ReadWrite = 3,
}

/// A share reservation.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Share {
    /// The name of the client's host.
    pub caller_name: CallerName,
    /// The file.
    pub fh: NlmFh,
    /// The owner.
    pub oh: Netobj,
    /// The access that is denied to others.
    pub mode: ShareMode,
    /// The access of the owner.
    pub access: ShareAccess,
}

/// SHARE and UNSHARE arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ShareArgs {
    /// Opaque data that the result returns.
    pub cookie: Netobj,
    /// The share.
    pub share: Share,
    /// `true` if the client held it before the server restarted.
    pub reclaim: bool,
}

/// SHARE and UNSHARE results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ShareRes {
    /// The value from the arguments.
    pub cookie: Netobj,
    /// The status.
    pub status: Nlm4Stats,
    /// This field has no meaning.
    pub sequence: i32,
}

/// FREE_ALL arguments (`nlm4_notify`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FreeAllArgs {
    /// The name of the client's host.
    pub name: CallerName,
    /// The state number of the host's status monitor.
    pub state: i32,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use xdr::Message;

    use super::*;

    #[test]
    fn numbers_match_the_specification() {
        let numbers: Vec<_> = NlmProc4::ALL.iter().map(|&procedure| procedure as u32).collect();
        assert_eq!(numbers, (0..=15).chain(20..=23).collect::<Vec<_>>());
        assert!(numbers.iter().all(|&n| NlmProc4::from_number(n).is_some_and(|procedure| procedure as u32 == n)));
        assert_eq!(NlmProc4::from_number(16), None);
    }

    #[test]
    fn fields_of_a_64_bit_lock_are_in_order() {
        let lock = Lock {
            caller_name: "host".into(),
            fh: "handle".into(),
            oh: "1@host".into(),
            svid: 9,
            offset: 1 << 33,
            len: 5,
        };
        let args = LockArgs { cookie: "c".into(), block: true, exclusive: false, lock, reclaim: true, state: -3 };
        let message = Message::encode(&args);
        let expected = [
            &b"\0\0\0\x01c\0\0\0\0\0\0\x01\0\0\0\0"[..],
            b"\0\0\0\x04host\0\0\0\x06handle\0\0\0\0\0\x061@host\0\0\0\0\0\x09",
            b"\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x05\0\0\0\x01\xff\xff\xff\xfd",
        ];
        assert_eq!(message.stream, expected.concat());
        assert_eq!(message.decode::<LockArgs>(), Ok(args));
        for len in 0..message.stream.len() {
            assert!(Message::from(message.stream.slice(..len)).decode::<LockArgs>().is_err());
        }
    }

    #[test]
    fn only_denied_test_reply_has_a_holder() {
        let holder = Holder { exclusive: true, svid: 1, oh: "o".into(), offset: 0, len: 0 };
        let denied = TestRes { cookie: "c".into(), reply: TestReply::Denied(holder) };
        assert_eq!(Message::encode(&denied).decode::<TestRes>(), Ok(denied));
        let granted = Bytes::from_static(b"\0\0\0\0\0\0\0\0");
        let reply = Message::from(granted).decode::<TestRes>().unwrap().reply;
        assert_eq!(reply, TestReply::Granted);
    }

    #[test]
    fn test_reply_supports_every_status() {
        for number in 0..10 {
            let status: Nlm4Stats = Message::encode(&number).decode().unwrap();
            let res = TestRes { cookie: "c".into(), reply: TestReply::without_holder(status) };
            let expected = if status == Nlm4Stats::Denied { Nlm4Stats::Failed } else { status };
            assert_eq!(res.reply.status(), expected);
            assert_eq!(Message::encode(&res).stream[8..], (expected as u32).to_be_bytes());
            assert_eq!(Message::encode(&res).decode::<TestRes>(), Ok(res));
        }
    }
}
