//! The Network Lock Manager, version 4 (RFC 1813 appendix II; X/Open XNFS chapters 10 and 14).
//!
//! A procedure called `…_MSG` does the same as the one without, but its result comes as a call of `…_RES` to the caller.

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
            /// All of them, in order.
            pub const ALL: &[NlmProc4] = &[$(NlmProc4::$name),*];

            /// The procedure of this number.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(NlmProc4::$name),)* _ => None }
            }

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(NlmProc4::$name => $text),* }
            }
        }
    };
}

procedures! {
    /// Do nothing.
    Null = 0, "NULL", () => ();
    /// Ask whether a lock could be had.
    Test = 1, "TEST", TestArgs => TestRes;
    /// Lock.
    Lock = 2, "LOCK", LockArgs => Res;
    /// Wait no more for a lock.
    Cancel = 3, "CANCEL", CancelArgs => Res;
    /// Unlock.
    Unlock = 4, "UNLOCK", UnlockArgs => Res;
    /// Tell a client that it has the lock for which it waits.
    Granted = 5, "GRANTED", TestArgs => Res;
    /// As TEST.
    TestMsg = 6, "TEST_MSG", TestArgs => ();
    /// As LOCK.
    LockMsg = 7, "LOCK_MSG", LockArgs => ();
    /// As CANCEL.
    CancelMsg = 8, "CANCEL_MSG", CancelArgs => ();
    /// As UNLOCK.
    UnlockMsg = 9, "UNLOCK_MSG", UnlockArgs => ();
    /// As GRANTED.
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
/// An object of whatever a peer likes (`netobj`).
pub type Netobj = Opaque<NETOBJ_MAX>;
/// The name of a machine.
pub type CallerName = Opaque<1024>;
/// A file handle of NFSv3.
pub type NlmFh = Opaque<FHSIZE3>;

/// Status codes (`nlm4_stats`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[repr(u32)]
pub enum Nlm4Stats {
    /// It is done.
    Granted = 0,
    /// Another lock is in the way.
    Denied = 1,
    /// Resources are short.
    DeniedNoLocks = 2,
    /// Another lock is in the way, and GRANTED will tell when it is gone.
    Blocked = 3,
    /// Only reclaims are taken now.
    DeniedGracePeriod = 4,
    /// It would wait for itself.
    Deadlck = 5,
    /// The file system is read-only.
    RoFs = 6,
    /// The file handle is stale.
    StaleFh = 7,
    /// An offset is too large.
    FBig = 8,
    /// It cannot be done.
    Failed = 9,
}

/// Who holds a lock that is in the way.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Holder {
    /// Whether it is exclusive.
    pub exclusive: bool,
    /// The process.
    pub svid: u32,
    /// The owner.
    pub oh: Netobj,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 means to the end.
    pub len: u64,
}

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Lock {
    /// The client's machine.
    pub caller_name: CallerName,
    /// The file.
    pub fh: NlmFh,
    /// The owner among the machine's.
    pub oh: Netobj,
    /// The owner's process.
    pub svid: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 means to the end.
    pub len: u64,
}

/// TEST and GRANTED arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TestArgs {
    /// Comes back with the result.
    pub cookie: Netobj,
    /// Whether it is exclusive.
    pub exclusive: bool,
    /// The lock.
    pub lock: Lock,
}

/// The answer to TEST (`nlm4_testrply`): a status, which names the holder if it is DENIED.
///
/// Each status has an arm of its own, so that DENIED cannot be said without a holder.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nlm4Stats)]
pub enum TestReply {
    /// The lock could be had.
    #[xdr(Nlm4Stats::Granted)]
    Granted,
    /// This lock is in the way.
    #[xdr(Nlm4Stats::Denied)]
    Denied(Holder),
    /// Resources are short.
    #[xdr(Nlm4Stats::DeniedNoLocks)]
    DeniedNoLocks,
    /// The caller would have to wait.
    #[xdr(Nlm4Stats::Blocked)]
    Blocked,
    /// Only reclaims are taken now.
    #[xdr(Nlm4Stats::DeniedGracePeriod)]
    DeniedGracePeriod,
    /// The caller would wait for itself.
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
    /// The reply to a TEST that was not answered from the lock table. Without a holder there is no DENIED: that becomes
    /// FAILED, as Linux's lockd answers a caller who may not open the file.
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

    /// Its status.
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
    /// As it was in the arguments.
    pub cookie: Netobj,
    /// How it went.
    pub reply: TestReply,
}

/// LOCK, CANCEL, UNLOCK and GRANTED results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Res {
    /// As it was in the arguments.
    pub cookie: Netobj,
    /// How it went.
    pub status: Nlm4Stats,
}

/// LOCK and NM_LOCK arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct LockArgs {
    /// Comes back with the result.
    pub cookie: Netobj,
    /// Whether to wait.
    pub block: bool,
    /// Whether it is exclusive.
    pub exclusive: bool,
    /// The lock.
    pub lock: Lock,
    /// Whether it was held before the server restarted.
    pub reclaim: bool,
    /// The state number of the client's status monitor.
    pub state: i32,
}

/// CANCEL arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CancelArgs {
    /// Comes back with the result.
    pub cookie: Netobj,
    /// As in LOCK.
    pub block: bool,
    /// As in LOCK.
    pub exclusive: bool,
    /// The lock.
    pub lock: Lock,
}

/// UNLOCK arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct UnlockArgs {
    /// Comes back with the result.
    pub cookie: Netobj,
    /// The lock.
    pub lock: Lock,
}

/// What others may not do (`fsh4_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum ShareMode {
    /// They may do anything.
    DenyNone = 0,
    /// Read.
    DenyRead = 1,
    /// Write.
    DenyWrite = 2,
    /// Either.
    DenyReadWrite = 3,
}

/// What the owner does (`fsh4_access`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum ShareAccess {
    /// Nothing.
    None = 0,
    /// Reads.
    Read = 1,
    /// Writes.
    Write = 2,
    /// Both.
    ReadWrite = 3,
}

/// A share reservation.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Share {
    /// The client's machine.
    pub caller_name: CallerName,
    /// The file.
    pub fh: NlmFh,
    /// The owner.
    pub oh: Netobj,
    /// What others may not do.
    pub mode: ShareMode,
    /// What the owner does.
    pub access: ShareAccess,
}

/// SHARE and UNSHARE arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ShareArgs {
    /// Comes back with the result.
    pub cookie: Netobj,
    /// The share.
    pub share: Share,
    /// Whether it was held before the server restarted.
    pub reclaim: bool,
}

/// SHARE and UNSHARE results.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ShareRes {
    /// As it was in the arguments.
    pub cookie: Netobj,
    /// How it went.
    pub status: Nlm4Stats,
    /// Of no meaning.
    pub sequence: i32,
}

/// FREE_ALL arguments (`nlm4_notify`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FreeAllArgs {
    /// The client's machine.
    pub name: CallerName,
    /// The state number of its status monitor.
    pub state: i32,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use xdr::Message;

    use super::*;

    #[test]
    fn numbers_are_those_of_the_specification() {
        let numbers: Vec<_> = NlmProc4::ALL.iter().map(|&procedure| procedure as u32).collect();
        assert_eq!(numbers, (0..=15).chain(20..=23).collect::<Vec<_>>());
        assert!(numbers.iter().all(|&n| NlmProc4::from_number(n).is_some_and(|procedure| procedure as u32 == n)));
        assert_eq!(NlmProc4::from_number(16), None);
    }

    #[test]
    fn a_lock_of_64_bits_has_its_fields_in_order() {
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
    fn only_a_denied_test_says_who_is_in_the_way() {
        let holder = Holder { exclusive: true, svid: 1, oh: "o".into(), offset: 0, len: 0 };
        let denied = TestRes { cookie: "c".into(), reply: TestReply::Denied(holder) };
        assert_eq!(Message::encode(&denied).decode::<TestRes>(), Ok(denied));
        let granted = Bytes::from_static(b"\0\0\0\0\0\0\0\0");
        let reply = Message::from(granted).decode::<TestRes>().unwrap().reply;
        assert_eq!(reply, TestReply::Granted);
    }

    #[test]
    fn a_test_can_be_answered_with_every_status() {
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
