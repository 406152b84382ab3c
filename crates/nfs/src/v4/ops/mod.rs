//! The operations of COMPOUND, in one table: number, name, minor versions, arguments and results.
//!
//! `XArgs` are arguments, `XOk` the body of a successful result, and `XRes` the result itself; an operation whose
//! result is nothing but a status has `Res4<()>`. Long ones that are rare are in boxes, so that the others are cheap to move.

mod io;
mod layout;
mod lock;
mod namespace;
mod open;
mod session;

pub use io::*;
pub use layout::*;
pub use lock::*;
pub use namespace::*;
pub use open::*;
pub use session::*;

use super::{operation::operations, status::Res4};

operations! {
    /// The operations of COMPOUND.
    numbers Opnum4;
    /// An operation and its arguments.
    arguments Argop4;
    /// An operation and its result.
    results Resop4;

    /// Check access permission.
    Access = 3, "ACCESS", 0..=2, (AccessArgs) => AccessRes;
    /// End an open.
    Close = 4, "CLOSE", 0..=2, (CloseArgs) => StateidRes;
    /// Commit cached data to stable storage.
    Commit = 5, "COMMIT", 0..=2, (CommitArgs) => CommitRes;
    /// Create an object that is not a regular file.
    Create = 6, "CREATE", 0..=2, (Box<CreateArgs>) => CreateRes;
    /// Give up delegations from before a restart.
    DelegPurge = 7, "DELEGPURGE", 0..=2, (ClientIdArgs) => Res4<()>;
    /// Return a delegation.
    DelegReturn = 8, "DELEGRETURN", 0..=2, (DelegReturnArgs) => Res4<()>;
    /// Get attributes.
    GetAttr = 9, "GETATTR", 0..=2, (GetAttrArgs) => GetAttrRes;
    /// Get the current file handle.
    GetFh = 10, "GETFH", 0..=2, () => GetFhRes;
    /// Create a link to an object.
    Link = 11, "LINK", 0..=2, (LinkArgs) => LinkRes;
    /// Lock bytes.
    Lock = 12, "LOCK", 0..=2, (LockArgs) => LockRes;
    /// Test for a lock.
    LockT = 13, "LOCKT", 0..=2, (LockTArgs) => LockTRes;
    /// Unlock bytes.
    LockU = 14, "LOCKU", 0..=2, (LockUArgs) => StateidRes;
    /// Look up a name.
    Lookup = 15, "LOOKUP", 0..=2, (LookupArgs) => Res4<()>;
    /// Look up the parent directory.
    LookupP = 16, "LOOKUPP", 0..=2, () => Res4<()>;
    /// Go on if attributes differ.
    NVerify = 17, "NVERIFY", 0..=2, (VerifyArgs) => Res4<()>;
    /// Open a regular file.
    Open = 18, "OPEN", 0..=2, (Box<OpenArgs>) => OpenRes;
    /// Open the directory of named attributes.
    OpenAttr = 19, "OPENATTR", 0..=2, (OpenAttrArgs) => Res4<()>;
    /// Confirm an open.
    OpenConfirm = 20, "OPEN_CONFIRM", 0..=0, (OpenConfirmArgs) => StateidRes;
    /// Reduce an open's access.
    OpenDowngrade = 21, "OPEN_DOWNGRADE", 0..=2, (OpenDowngradeArgs) => StateidRes;
    /// Set the current file handle.
    PutFh = 22, "PUTFH", 0..=2, (PutFhArgs) => Res4<()>;
    /// Set it to the public one.
    PutPubFh = 23, "PUTPUBFH", 0..=2, () => Res4<()>;
    /// Set it to the root.
    PutRootFh = 24, "PUTROOTFH", 0..=2, () => Res4<()>;
    /// Read from a file.
    Read = 25, "READ", 0..=2, (ReadArgs) => ReadRes;
    /// Read from a directory.
    ReadDir = 26, "READDIR", 0..=2, (ReadDirArgs) => ReadDirRes;
    /// Read from a symbolic link.
    ReadLink = 27, "READLINK", 0..=2, () => ReadLinkRes;
    /// Remove an object.
    Remove = 28, "REMOVE", 0..=2, (RemoveArgs) => RemoveRes;
    /// Rename an object.
    Rename = 29, "RENAME", 0..=2, (RenameArgs) => RenameRes;
    /// Renew a lease.
    Renew = 30, "RENEW", 0..=0, (ClientIdArgs) => Res4<()>;
    /// Make the saved file handle the current one.
    RestoreFh = 31, "RESTOREFH", 0..=2, () => Res4<()>;
    /// Save the current file handle.
    SaveFh = 32, "SAVEFH", 0..=2, () => Res4<()>;
    /// Ask how to authenticate.
    Secinfo = 33, "SECINFO", 0..=2, (SecinfoArgs) => SecinfoRes;
    /// Set attributes.
    SetAttr = 34, "SETATTR", 0..=2, (SetAttrArgs) => SetAttrRes;
    /// Introduce a client.
    SetClientId = 35, "SETCLIENTID", 0..=0, (Box<SetClientIdArgs>) => SetClientIdRes;
    /// Confirm it.
    SetClientIdConfirm = 36, "SETCLIENTID_CONFIRM", 0..=0, (SetClientIdConfirmArgs) => Res4<()>;
    /// Go on if attributes are the same.
    Verify = 37, "VERIFY", 0..=2, (VerifyArgs) => Res4<()>;
    /// Write to a file.
    Write = 38, "WRITE", 0..=2, (WriteArgs) => WriteRes;
    /// Forget a lock owner.
    ReleaseLockOwner = 39, "RELEASE_LOCKOWNER", 0..=0, (ReleaseLockOwnerArgs) => Res4<()>;

    /// Say how callbacks are authenticated.
    BackchannelCtl = 40, "BACKCHANNEL_CTL", 1..=2, (BackchannelCtlArgs) => Res4<()>;
    /// Bind the connection to a session.
    BindConnToSession = 41, "BIND_CONN_TO_SESSION", 1..=2, (BindConnToSessionArgs) => BindConnToSessionRes;
    /// Introduce client and server.
    ExchangeId = 42, "EXCHANGE_ID", 1..=2, (Box<ExchangeIdArgs>) => ExchangeIdRes;
    /// Make a session, and confirm the client.
    CreateSession = 43, "CREATE_SESSION", 1..=2, (Box<CreateSessionArgs>) => CreateSessionRes;
    /// End a session.
    DestroySession = 44, "DESTROY_SESSION", 1..=2, (DestroySessionArgs) => Res4<()>;
    /// Forget state without locks.
    FreeStateid = 45, "FREE_STATEID", 1..=2, (FreeStateidArgs) => Res4<()>;
    /// Get a delegation of a directory.
    GetDirDelegation = 46, "GET_DIR_DELEGATION", 1..=2, (Box<GetDirDelegationArgs>) => GetDirDelegationRes;
    /// Ask where a device is.
    GetDeviceInfo = 47, "GETDEVICEINFO", 1..=2, (GetDeviceInfoArgs) => GetDeviceInfoRes;
    /// Ask which devices there are.
    GetDeviceList = 48, "GETDEVICELIST", 1..=1, (GetDeviceListArgs) => GetDeviceListRes;
    /// Commit what was written by way of a layout.
    LayoutCommit = 49, "LAYOUTCOMMIT", 1..=2, (Box<LayoutCommitArgs>) => LayoutCommitRes;
    /// Get a layout.
    LayoutGet = 50, "LAYOUTGET", 1..=2, (LayoutGetArgs) => LayoutGetRes;
    /// Return layouts.
    LayoutReturn = 51, "LAYOUTRETURN", 1..=2, (LayoutReturnArgs) => LayoutReturnRes;
    /// Ask how to authenticate, by file handle.
    SecinfoNoName = 52, "SECINFO_NO_NAME", 1..=2, (SecinfoStyle4) => SecinfoRes;
    /// Begin a request of a session.
    Sequence = 53, "SEQUENCE", 1..=2, (SequenceArgs) => SequenceRes;
    /// Change the shared secret.
    SetSsv = 54, "SET_SSV", 1..=2, (SetSsvArgs) => SetSsvRes;
    /// Look at states.
    TestStateid = 55, "TEST_STATEID", 1..=2, (TestStateidArgs) => TestStateidRes;
    /// Ask for a delegation.
    WantDelegation = 56, "WANT_DELEGATION", 1..=2, (WantDelegationArgs) => WantDelegationRes;
    /// Forget a client.
    DestroyClientId = 57, "DESTROY_CLIENTID", 1..=2, (ClientIdArgs) => Res4<()>;
    /// All is reclaimed.
    ReclaimComplete = 58, "RECLAIM_COMPLETE", 1..=2, (ReclaimCompleteArgs) => Res4<()>;

    /// Reserve space.
    Allocate = 59, "ALLOCATE", 2..=2, (AllocateArgs) => Res4<()>;
    /// Copy data.
    Copy = 60, "COPY", 2..=2, (CopyArgs) => CopyRes;
    /// Announce a copy by another server.
    CopyNotify = 61, "COPY_NOTIFY", 2..=2, (CopyNotifyArgs) => CopyNotifyRes;
    /// Make a hole.
    Deallocate = 62, "DEALLOCATE", 2..=2, (AllocateArgs) => Res4<()>;
    /// Say how data will be used.
    IoAdvise = 63, "IO_ADVISE", 2..=2, (IoAdviseArgs) => IoAdviseRes;
    /// Tell what went wrong with a layout.
    LayoutError = 64, "LAYOUTERROR", 2..=2, (LayoutErrorArgs) => Res4<()>;
    /// Tell how much a layout is used.
    LayoutStats = 65, "LAYOUTSTATS", 2..=2, (Box<LayoutStatsArgs>) => Res4<()>;
    /// Stop a copy.
    OffloadCancel = 66, "OFFLOAD_CANCEL", 2..=2, (OffloadArgs) => Res4<()>;
    /// Ask how far a copy is.
    OffloadStatus = 67, "OFFLOAD_STATUS", 2..=2, (OffloadArgs) => OffloadStatusRes;
    /// Read data and holes.
    ReadPlus = 68, "READ_PLUS", 2..=2, (ReadArgs) => ReadPlusRes;
    /// Look for data or a hole.
    Seek = 69, "SEEK", 2..=2, (SeekArgs) => SeekRes;
    /// Write a pattern over and over.
    WriteSame = 70, "WRITE_SAME", 2..=2, (Box<WriteSameArgs>) => WriteSameRes;
    /// Share data with another file.
    Clone = 71, "CLONE", 2..=2, (CloneArgs) => Res4<()>;
    /// Get an extended attribute.
    GetXattr = 72, "GETXATTR", 2..=2, (XattrArgs) => GetXattrRes;
    /// Set an extended attribute.
    SetXattr = 73, "SETXATTR", 2..=2, (SetXattrArgs) => ChangeXattrRes;
    /// List extended attributes.
    ListXattrs = 74, "LISTXATTRS", 2..=2, (ListXattrsArgs) => ListXattrsRes;
    /// Remove an extended attribute.
    RemoveXattr = 75, "REMOVEXATTR", 2..=2, (XattrArgs) => ChangeXattrRes;
}

// Each operation is moved several times on its way. Up to this size no call is made to copy it.
const _: () = assert!(size_of::<Argop4>() <= 96 && size_of::<Resop4>() <= 96);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_rfcs() {
        assert_eq!(Opnum4::ALL.len(), 73);
        for (index, operation) in Opnum4::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, index + 3);
            assert_eq!(Opnum4::from_number(index as u32 + 3), Some(*operation));
        }
        assert_eq!([0, 1, 2, 76, 10044].map(Opnum4::from_number), [None; 5]);
    }

    #[test]
    fn minor_versions_begin_where_the_rfcs_do() {
        let first = |minor| Opnum4::ALL.iter().find(|operation| *operation.minor_versions().start() == minor).copied();
        assert_eq!([0, 1, 2].map(first), [Some(Opnum4::Access), Some(Opnum4::BackchannelCtl), Some(Opnum4::Allocate)]);
        let gone = Opnum4::ALL.iter().filter(|operation| *operation.minor_versions().end() < 2);
        let names: Vec<_> = gone.map(|operation| operation.name()).collect();
        // RFC 8881 §17 and RFC 7862 §13: operations that must not be implemented.
        assert_eq!(
            names,
            ["OPEN_CONFIRM", "RENEW", "SETCLIENTID", "SETCLIENTID_CONFIRM", "RELEASE_LOCKOWNER", "GETDEVICELIST"]
        );
    }
}
