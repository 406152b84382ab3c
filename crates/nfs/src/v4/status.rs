//! The status codes of all minor versions, and the form of most results.

use std::fmt;

use xdr::{Decode, DecodeError, DecodeErrorKind, Decoder, Encode};

macro_rules! statuses {
    ($($name:ident = $number:literal, $text:literal, $meaning:literal;)*) => {
        /// Status codes (RFC 7530 §13, RFC 8881 §15, RFC 7862 §11, RFC 8276 §8.5).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Encode)]
        #[repr(u32)]
        pub enum Nfsstat4 { $(#[doc = concat!($text, ": ", $meaning, ".")] $name = $number,)* }

        impl Decode for Nfsstat4 {
            #[inline]
            fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                // Nearly every status is OK.
                if decoder.peek_u32()? == Nfsstat4::Ok as u32 {
                    decoder.u32()?;
                    return Ok(Nfsstat4::Ok);
                }
                Self::decode_failure(decoder)
            }
        }

        impl Nfsstat4 {
            fn decode_failure(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                let unknown = |number| decoder.error(DecodeErrorKind::BadDiscriminant(number));
                let status = match decoder.peek_u32()? {
                    $($number => Nfsstat4::$name,)*
                    number => return Err(unknown(number)),
                };
                decoder.u32()?;
                Ok(status)
            }

            /// All variants, in order.
            pub const ALL: &[Nfsstat4] = &[$(Nfsstat4::$name),*];

            /// Returns the name in the RFCs.
            pub const fn name(self) -> &'static str {
                match self { $(Nfsstat4::$name => $text),* }
            }
        }

        impl fmt::Display for Nfsstat4 {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Nfsstat4::$name => $meaning),* })
            }
        }
    };
}

statuses! {
    Ok = 0, "NFS4_OK", "OK";
    Perm = 1, "NFS4ERR_PERM", "operation not permitted";
    NoEnt = 2, "NFS4ERR_NOENT", "no such file or directory";
    Io = 5, "NFS4ERR_IO", "input/output error";
    NxIo = 6, "NFS4ERR_NXIO", "no such device or address";
    Access = 13, "NFS4ERR_ACCESS", "permission denied";
    Exist = 17, "NFS4ERR_EXIST", "file exists";
    XDev = 18, "NFS4ERR_XDEV", "cross-device link";
    NotDir = 20, "NFS4ERR_NOTDIR", "not a directory";
    IsDir = 21, "NFS4ERR_ISDIR", "is a directory";
    Inval = 22, "NFS4ERR_INVAL", "invalid argument";
    FBig = 27, "NFS4ERR_FBIG", "file too large";
    NoSpc = 28, "NFS4ERR_NOSPC", "no space left on device";
    RoFs = 30, "NFS4ERR_ROFS", "read-only file system";
    MLink = 31, "NFS4ERR_MLINK", "too many hard links";
    NameTooLong = 63, "NFS4ERR_NAMETOOLONG", "file name too long";
    NotEmpty = 66, "NFS4ERR_NOTEMPTY", "directory not empty";
    DQuot = 69, "NFS4ERR_DQUOT", "disk quota exceeded";
    Stale = 70, "NFS4ERR_STALE", "stale file handle";
    BadHandle = 10001, "NFS4ERR_BADHANDLE", "illegal NFS file handle";
    BadCookie = 10003, "NFS4ERR_BAD_COOKIE", "stale READDIR cookie";
    NotSupp = 10004, "NFS4ERR_NOTSUPP", "operation not supported";
    TooSmall = 10005, "NFS4ERR_TOOSMALL", "buffer or request too small";
    ServerFault = 10006, "NFS4ERR_SERVERFAULT", "server fault";
    BadType = 10007, "NFS4ERR_BADTYPE", "unsupported type";
    Delay = 10008, "NFS4ERR_DELAY", "delayed; try again";
    Same = 10009, "NFS4ERR_SAME", "attributes are the same";
    Denied = 10010, "NFS4ERR_DENIED", "lock unavailable";
    Expired = 10011, "NFS4ERR_EXPIRED", "lease expired";
    Locked = 10012, "NFS4ERR_LOCKED", "file is locked";
    Grace = 10013, "NFS4ERR_GRACE", "server is in its grace period";
    FhExpired = 10014, "NFS4ERR_FHEXPIRED", "file handle expired";
    ShareDenied = 10015, "NFS4ERR_SHARE_DENIED", "share reservation denied";
    WrongSec = 10016, "NFS4ERR_WRONGSEC", "wrong security flavor";
    ClidInuse = 10017, "NFS4ERR_CLID_INUSE", "client identifier in use";
    Resource = 10018, "NFS4ERR_RESOURCE", "resource exhaustion";
    Moved = 10019, "NFS4ERR_MOVED", "file system relocated";
    NoFileHandle = 10020, "NFS4ERR_NOFILEHANDLE", "no current file handle";
    MinorVersMismatch = 10021, "NFS4ERR_MINOR_VERS_MISMATCH", "minor version not supported";
    StaleClientid = 10022, "NFS4ERR_STALE_CLIENTID", "client ID of an earlier server instance";
    StaleStateid = 10023, "NFS4ERR_STALE_STATEID", "state ID of an earlier server instance";
    OldStateid = 10024, "NFS4ERR_OLD_STATEID", "state ID is out of date";
    BadStateid = 10025, "NFS4ERR_BAD_STATEID", "incorrect state ID";
    BadSeqid = 10026, "NFS4ERR_BAD_SEQID", "request is out of sequence";
    NotSame = 10027, "NFS4ERR_NOT_SAME", "attributes are not the same";
    LockRange = 10028, "NFS4ERR_LOCK_RANGE", "overlapping lock range";
    Symlink = 10029, "NFS4ERR_SYMLINK", "is a symbolic link";
    RestoreFh = 10030, "NFS4ERR_RESTOREFH", "no saved file handle";
    LeaseMoved = 10031, "NFS4ERR_LEASE_MOVED", "some file system has moved";
    AttrNotSupp = 10032, "NFS4ERR_ATTRNOTSUPP", "attribute not supported";
    NoGrace = 10033, "NFS4ERR_NO_GRACE", "reclaim outside of the grace period";
    ReclaimBad = 10034, "NFS4ERR_RECLAIM_BAD", "nothing to reclaim";
    ReclaimConflict = 10035, "NFS4ERR_RECLAIM_CONFLICT", "reclaim conflicts with other state";
    BadXdr = 10036, "NFS4ERR_BADXDR", "malformed XDR";
    LocksHeld = 10037, "NFS4ERR_LOCKS_HELD", "locks are held";
    OpenMode = 10038, "NFS4ERR_OPENMODE", "not open for this";
    BadOwner = 10039, "NFS4ERR_BADOWNER", "unknown owner or group";
    BadChar = 10040, "NFS4ERR_BADCHAR", "character not supported";
    BadName = 10041, "NFS4ERR_BADNAME", "name not supported";
    BadRange = 10042, "NFS4ERR_BAD_RANGE", "lock range not supported";
    LockNotSupp = 10043, "NFS4ERR_LOCK_NOTSUPP", "no atomic upgrade or downgrade of locks";
    OpIllegal = 10044, "NFS4ERR_OP_ILLEGAL", "undefined operation";
    Deadlock = 10045, "NFS4ERR_DEADLOCK", "deadlock of locks";
    FileOpen = 10046, "NFS4ERR_FILE_OPEN", "file is open";
    AdminRevoked = 10047, "NFS4ERR_ADMIN_REVOKED", "state revoked by the administrator";
    CbPathDown = 10048, "NFS4ERR_CB_PATH_DOWN", "callback path down";
    BadIomode = 10049, "NFS4ERR_BADIOMODE", "wrong I/O mode of a layout";
    BadLayout = 10050, "NFS4ERR_BADLAYOUT", "layout cannot be used";
    BadSessionDigest = 10051, "NFS4ERR_BAD_SESSION_DIGEST", "wrong session digest";
    BadSession = 10052, "NFS4ERR_BADSESSION", "unknown session";
    BadSlot = 10053, "NFS4ERR_BADSLOT", "slot out of range";
    CompleteAlready = 10054, "NFS4ERR_COMPLETE_ALREADY", "reclaim was complete already";
    ConnNotBoundToSession = 10055, "NFS4ERR_CONN_NOT_BOUND_TO_SESSION", "connection not bound to the session";
    DelegAlreadyWanted = 10056, "NFS4ERR_DELEG_ALREADY_WANTED", "delegation wanted already";
    BackChanBusy = 10057, "NFS4ERR_BACK_CHAN_BUSY", "callbacks are outstanding";
    LayoutTryLater = 10058, "NFS4ERR_LAYOUTTRYLATER", "layout unavailable for now";
    LayoutUnavailable = 10059, "NFS4ERR_LAYOUTUNAVAILABLE", "layout unavailable";
    NoMatchingLayout = 10060, "NFS4ERR_NOMATCHING_LAYOUT", "no matching layout";
    RecallConflict = 10061, "NFS4ERR_RECALLCONFLICT", "conflicts with a recall";
    UnknownLayoutType = 10062, "NFS4ERR_UNKNOWN_LAYOUTTYPE", "unknown layout type";
    SeqMisordered = 10063, "NFS4ERR_SEQ_MISORDERED", "unexpected sequence ID";
    SequencePos = 10064, "NFS4ERR_SEQUENCE_POS", "SEQUENCE is not the first operation";
    ReqTooBig = 10065, "NFS4ERR_REQ_TOO_BIG", "request too big for the session";
    RepTooBig = 10066, "NFS4ERR_REP_TOO_BIG", "reply too big for the session";
    RepTooBigToCache = 10067, "NFS4ERR_REP_TOO_BIG_TO_CACHE", "reply too big to be cached";
    RetryUncachedRep = 10068, "NFS4ERR_RETRY_UNCACHED_REP", "retry of a request whose reply was not cached";
    UnsafeCompound = 10069, "NFS4ERR_UNSAFE_COMPOUND", "compound could not be recovered from";
    TooManyOps = 10070, "NFS4ERR_TOO_MANY_OPS", "too many operations";
    OpNotInSession = 10071, "NFS4ERR_OP_NOT_IN_SESSION", "operation needs a session";
    HashAlgUnsupp = 10072, "NFS4ERR_HASH_ALG_UNSUPP", "hash algorithm not supported";
    ClientidBusy = 10074, "NFS4ERR_CLIENTID_BUSY", "client has state";
    PnfsIoHole = 10075, "NFS4ERR_PNFS_IO_HOLE", "I/O to a hole of a sparse layout";
    SeqFalseRetry = 10076, "NFS4ERR_SEQ_FALSE_RETRY", "retry differs from the original request";
    BadHighSlot = 10077, "NFS4ERR_BAD_HIGH_SLOT", "bad highest slot";
    DeadSession = 10078, "NFS4ERR_DEADSESSION", "session is dead";
    EncrAlgUnsupp = 10079, "NFS4ERR_ENCR_ALG_UNSUPP", "encryption algorithm not supported";
    PnfsNoLayout = 10080, "NFS4ERR_PNFS_NO_LAYOUT", "I/O without a layout";
    NotOnlyOp = 10081, "NFS4ERR_NOT_ONLY_OP", "operation must be alone";
    WrongCred = 10082, "NFS4ERR_WRONG_CRED", "wrong credential";
    WrongType = 10083, "NFS4ERR_WRONG_TYPE", "wrong type of object";
    DirdelegUnavail = 10084, "NFS4ERR_DIRDELEG_UNAVAIL", "directory delegation unavailable";
    RejectDeleg = 10085, "NFS4ERR_REJECT_DELEG", "delegation rejected";
    ReturnConflict = 10086, "NFS4ERR_RETURNCONFLICT", "layout must be returned first";
    DelegRevoked = 10087, "NFS4ERR_DELEG_REVOKED", "delegation revoked";
    PartnerNotSupp = 10088, "NFS4ERR_PARTNER_NOTSUPP", "copy between servers not supported";
    PartnerNoAuth = 10089, "NFS4ERR_PARTNER_NO_AUTH", "copy between servers not authorized";
    UnionNotSupp = 10090, "NFS4ERR_UNION_NOTSUPP", "arm of a union not supported";
    OffloadDenied = 10091, "NFS4ERR_OFFLOAD_DENIED", "copy denied by its destination";
    WrongLfs = 10092, "NFS4ERR_WRONG_LFS", "label format not supported";
    BadLabel = 10093, "NFS4ERR_BADLABEL", "incorrect label";
    OffloadNoReqs = 10094, "NFS4ERR_OFFLOAD_NO_REQS", "copy requirements cannot be met";
    NoXattr = 10095, "NFS4ERR_NOXATTR", "no such extended attribute";
    Xattr2Big = 10096, "NFS4ERR_XATTR2BIG", "extended attribute too big";
}

/// The part of an operation's result that does not depend on its body.
pub trait OpResult {
    /// Returns the status.
    fn status(&self) -> Nfsstat4;

    /// Creates a result that has only a status. If this result has a body for the status (OK, in most results), the
    /// status becomes SERVERFAULT instead.
    fn failure(status: Nfsstat4) -> Self;
}

/// A result: a body for NFS4_OK, otherwise only the status.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum Res4<T> {
    /// NFS4_OK.
    #[xdr(Nfsstat4::Ok)]
    Ok(T),
    /// Any other status.
    #[xdr(default)]
    Fail(Nfsstat4),
}

impl<T> Res4<T> {
    /// Returns the value, or the status of the failure.
    ///
    /// # Errors
    /// Returns the status if it is not OK.
    pub fn into_result(self) -> Result<T, Nfsstat4> {
        match self {
            Res4::Ok(value) => Ok(value),
            Res4::Fail(status) => Err(status),
        }
    }
}

impl<T> From<Result<T, Nfsstat4>> for Res4<T> {
    fn from(result: Result<T, Nfsstat4>) -> Self {
        result.map_or_else(Res4::Fail, Res4::Ok)
    }
}

impl<T> OpResult for Res4<T> {
    fn status(&self) -> Nfsstat4 {
        match self {
            Res4::Ok(_) => Nfsstat4::Ok,
            Res4::Fail(status) => *status,
        }
    }

    fn failure(status: Nfsstat4) -> Self {
        Res4::Fail(if status == Nfsstat4::Ok { Nfsstat4::ServerFault } else { status })
    }
}

/// Implements [`OpResult`] for a result that has bodies for more than one status.
macro_rules! op_result {
    ($type:ident { $($arm:ident => $status:ident),* }) => {
        impl $crate::v4::OpResult for $type {
            fn status(&self) -> $crate::v4::Nfsstat4 {
                match self {
                    $($type::$arm(..) => $crate::v4::Nfsstat4::$status,)*
                    $type::Fail(status) => *status,
                }
            }

            fn failure(status: $crate::v4::Nfsstat4) -> Self {
                match status {
                    $($crate::v4::Nfsstat4::$status)|* => $type::Fail($crate::v4::Nfsstat4::ServerFault),
                    status => $type::Fail(status),
                }
            }
        }
    };
}
