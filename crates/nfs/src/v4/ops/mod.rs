//! The operations of COMPOUND, in one table: number, name, minor versions, arguments and results.
//!
//! `XArgs` are arguments, `XOk` is the body of a successful result, and `XRes` is the result itself. An operation whose
//! result is only a status has the result `Res4<()>`. Large arguments and results of rare
//! operations are boxed, so that the others are cheap to move.

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
    /// Close a file.
    Close = 4, "CLOSE", 0..=2, (CloseArgs) => StateidRes;
    /// Commit cached data to stable storage.
    Commit = 5, "COMMIT", 0..=2, (CommitArgs) => CommitRes;
    /// Create an object that is not a regular file.
    Create = 6, "CREATE", 0..=2, (Box<CreateArgs>) => CreateRes;
    /// Purge delegations from before a restart of the client.
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
    /// Continue the compound if attributes differ.
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
    /// Set the current file handle to the public one.
    PutPubFh = 23, "PUTPUBFH", 0..=2, () => Res4<()>;
    /// Set the current file handle to the root.
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
    /// Get the security flavours of a name.
    Secinfo = 33, "SECINFO", 0..=2, (SecinfoArgs) => SecinfoRes;
    /// Set attributes.
    SetAttr = 34, "SETATTR", 0..=2, (SetAttrArgs) => SetAttrRes;
    /// Establish a client ID.
    SetClientId = 35, "SETCLIENTID", 0..=0, (Box<SetClientIdArgs>) => SetClientIdRes;
    /// Confirm a client ID.
    SetClientIdConfirm = 36, "SETCLIENTID_CONFIRM", 0..=0, (SetClientIdConfirmArgs) => Res4<()>;
    /// Continue the compound if attributes are the same.
    Verify = 37, "VERIFY", 0..=2, (VerifyArgs) => Res4<()>;
    /// Write to a file.
    Write = 38, "WRITE", 0..=2, (WriteArgs) => WriteRes;
    /// Release the state of a lock owner.
    ReleaseLockOwner = 39, "RELEASE_LOCKOWNER", 0..=0, (ReleaseLockOwnerArgs) => Res4<()>;

    /// Set the authentication of callbacks.
    BackchannelCtl = 40, "BACKCHANNEL_CTL", 1..=2, (BackchannelCtlArgs) => Res4<()>;
    /// Bind the connection to a session.
    BindConnToSession = 41, "BIND_CONN_TO_SESSION", 1..=2, (BindConnToSessionArgs) => BindConnToSessionRes;
    /// Exchange the identities of client and server, and establish a client ID.
    ExchangeId = 42, "EXCHANGE_ID", 1..=2, (Box<ExchangeIdArgs>) => ExchangeIdRes;
    /// Create a session, and confirm the client ID.
    CreateSession = 43, "CREATE_SESSION", 1..=2, (Box<CreateSessionArgs>) => CreateSessionRes;
    /// Destroy a session.
    DestroySession = 44, "DESTROY_SESSION", 1..=2, (DestroySessionArgs) => Res4<()>;
    /// Free a stateid without locks.
    FreeStateid = 45, "FREE_STATEID", 1..=2, (FreeStateidArgs) => Res4<()>;
    /// Get a delegation of a directory.
    GetDirDelegation = 46, "GET_DIR_DELEGATION", 1..=2, (Box<GetDirDelegationArgs>) => GetDirDelegationRes;
    /// Get the address of a device.
    GetDeviceInfo = 47, "GETDEVICEINFO", 1..=2, (GetDeviceInfoArgs) => GetDeviceInfoRes;
    /// List the devices.
    GetDeviceList = 48, "GETDEVICELIST", 1..=1, (GetDeviceListArgs) => GetDeviceListRes;
    /// Commit data that was written with a layout.
    LayoutCommit = 49, "LAYOUTCOMMIT", 1..=2, (Box<LayoutCommitArgs>) => LayoutCommitRes;
    /// Get a layout.
    LayoutGet = 50, "LAYOUTGET", 1..=2, (LayoutGetArgs) => LayoutGetRes;
    /// Return layouts.
    LayoutReturn = 51, "LAYOUTRETURN", 1..=2, (LayoutReturnArgs) => LayoutReturnRes;
    /// Get the security flavours of a file handle.
    SecinfoNoName = 52, "SECINFO_NO_NAME", 1..=2, (SecinfoStyle4) => SecinfoRes;
    /// Identify the session, the slot and the sequence number of a request.
    Sequence = 53, "SEQUENCE", 1..=2, (SequenceArgs) => SequenceRes;
    /// Change the secret that client and server share.
    SetSsv = 54, "SET_SSV", 1..=2, (SetSsvArgs) => SetSsvRes;
    /// Test stateids.
    TestStateid = 55, "TEST_STATEID", 1..=2, (TestStateidArgs) => TestStateidRes;
    /// Request a delegation.
    WantDelegation = 56, "WANT_DELEGATION", 1..=2, (WantDelegationArgs) => WantDelegationRes;
    /// Destroy a client ID.
    DestroyClientId = 57, "DESTROY_CLIENTID", 1..=2, (ClientIdArgs) => Res4<()>;
    /// Declare that the client has reclaimed all its state.
    ReclaimComplete = 58, "RECLAIM_COMPLETE", 1..=2, (ReclaimCompleteArgs) => Res4<()>;

    /// Reserve space.
    Allocate = 59, "ALLOCATE", 2..=2, (AllocateArgs) => Res4<()>;
    /// Copy data.
    Copy = 60, "COPY", 2..=2, (CopyArgs) => CopyRes;
    /// Announce a copy to another server.
    CopyNotify = 61, "COPY_NOTIFY", 2..=2, (CopyNotifyArgs) => CopyNotifyRes;
    /// Deallocate space.
    Deallocate = 62, "DEALLOCATE", 2..=2, (AllocateArgs) => Res4<()>;
    /// Give hints about the use of data.
    IoAdvise = 63, "IO_ADVISE", 2..=2, (IoAdviseArgs) => IoAdviseRes;
    /// Report errors of a layout.
    LayoutError = 64, "LAYOUTERROR", 2..=2, (LayoutErrorArgs) => Res4<()>;
    /// Report statistics of a layout.
    LayoutStats = 65, "LAYOUTSTATS", 2..=2, (Box<LayoutStatsArgs>) => Res4<()>;
    /// Cancel a copy.
    OffloadCancel = 66, "OFFLOAD_CANCEL", 2..=2, (OffloadArgs) => Res4<()>;
    /// Get the progress of a copy.
    OffloadStatus = 67, "OFFLOAD_STATUS", 2..=2, (OffloadArgs) => OffloadStatusRes;
    /// Read data and holes.
    ReadPlus = 68, "READ_PLUS", 2..=2, (ReadArgs) => ReadPlusRes;
    /// Find the next data or hole.
    Seek = 69, "SEEK", 2..=2, (SeekArgs) => SeekRes;
    /// Write a pattern repeatedly.
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
    fn numbers_match_the_rfcs() {
        assert_eq!(Opnum4::ALL.len(), 73);
        for (index, operation) in Opnum4::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, index + 3);
            assert_eq!(Opnum4::from_number(index as u32 + 3), Some(*operation));
        }
        assert_eq!([0, 1, 2, 76, 10044].map(Opnum4::from_number), [None; 5]);
    }

    #[test]
    fn minor_versions_match_the_rfcs() {
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
