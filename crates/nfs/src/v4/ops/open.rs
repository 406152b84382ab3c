//! Opens and delegations: OPEN, OPEN_CONFIRM, OPEN_DOWNGRADE, CLOSE, DELEGRETURN and related operations (RFC 8881 §18).

use xdr::{Decode, Encode};

use crate::v4::{acl::Nfsace4, attr::Fattr4, bitmap::Bitmap4, status::*, types::*};

/// The way to create a file (RFC 8881 §18.16, `createhow4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Createhow4 {
    /// Open an existing file.
    #[xdr(0)]
    Unchecked(Fattr4),
    /// Fail if the file exists.
    #[xdr(1)]
    Guarded(Fattr4),
    /// Fail if the file exists, unless it was created with the same verifier.
    #[xdr(2)]
    Exclusive(Verifier4),
    /// Like `Exclusive`, with attributes. Since 4.1.
    #[xdr(3)]
    Exclusive41 {
        /// The verifier.
        verf: Verifier4,
        /// The attributes.
        attrs: Fattr4,
    },
}

/// The creation mode of OPEN (`openflag4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Openflag4 {
    /// The file must exist.
    #[xdr(0)]
    NoCreate,
    /// The file is created.
    #[xdr(1)]
    Create(Createhow4),
}

/// The claim with which a file is opened (`open_claim4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum OpenClaim4 {
    /// A new open, by name.
    #[xdr(0)]
    Null(Component4),
    /// A reclaim of an open from before the server's restart.
    #[xdr(1)]
    Previous(OpenDelegationType4),
    /// An open with a delegation, by name.
    #[xdr(2)]
    DelegateCur {
        /// The delegation.
        delegate_stateid: Stateid4,
        /// The name.
        file: Component4,
    },
    /// An open with a delegation from before the client's restart, by name.
    #[xdr(3)]
    DelegatePrev(Component4),
    /// A new open of the current file handle. Since 4.1.
    #[xdr(4)]
    Fh,
    /// An open with a delegation of the current file handle. Since 4.1.
    #[xdr(5)]
    DelegCurFh(Stateid4),
    /// An open with a delegation of the current file handle from before the client's restart. Since 4.1.
    #[xdr(6)]
    DelegPrevFh,
}

/// The kinds of delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[repr(u32)]
pub enum OpenDelegationType4 {
    /// No delegation.
    None = 0,
    /// A read delegation.
    Read = 1,
    /// A write delegation.
    Write = 2,
    /// No delegation, with the reason. Since 4.1.
    NoneExt = 3,
}

/// OPEN arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenArgs {
    /// The sequence number of the owner, in 4.0.
    pub seqid: Seqid4,
    /// The `OPEN4_SHARE_ACCESS_` bits.
    pub share_access: u32,
    /// The `OPEN4_SHARE_DENY_` bits.
    pub share_deny: u32,
    /// The open-owner.
    pub owner: StateOwner4,
    /// The creation mode.
    pub openhow: Openflag4,
    /// The claim.
    pub claim: OpenClaim4,
}

/// Access for reading.
pub const OPEN4_SHARE_ACCESS_READ: u32 = 0x1;
/// Access for writing.
pub const OPEN4_SHARE_ACCESS_WRITE: u32 = 0x2;
/// Access for reading and writing.
pub const OPEN4_SHARE_ACCESS_BOTH: u32 = 0x3;
/// Nothing is denied to others.
pub const OPEN4_SHARE_DENY_NONE: u32 = 0x0;
/// Reading is denied to others.
pub const OPEN4_SHARE_DENY_READ: u32 = 0x1;
/// Writing is denied to others.
pub const OPEN4_SHARE_DENY_WRITE: u32 = 0x2;
/// Reading and writing are denied to others.
pub const OPEN4_SHARE_DENY_BOTH: u32 = 0x3;
/// The bits of share_access for the requested delegation. Since 4.1.
pub const OPEN4_SHARE_ACCESS_WANT_DELEG_MASK: u32 = 0xff00;
/// The client has no preference.
pub const OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE: u32 = 0x0000;
/// The client wants a read delegation.
pub const OPEN4_SHARE_ACCESS_WANT_READ_DELEG: u32 = 0x0100;
/// The client wants a write delegation.
pub const OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG: u32 = 0x0200;
/// The client wants a delegation of either kind.
pub const OPEN4_SHARE_ACCESS_WANT_ANY_DELEG: u32 = 0x0300;
/// The client wants no delegation.
pub const OPEN4_SHARE_ACCESS_WANT_NO_DELEG: u32 = 0x0400;
/// The client cancels an earlier request for a delegation.
pub const OPEN4_SHARE_ACCESS_WANT_CANCEL: u32 = 0x0500;
/// The client wants a signal when resources for a delegation are available.
pub const OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
/// The client wants a delegation as soon as the file is uncontended.
pub const OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
/// The client wants a delegation that includes the times of the file (RFC 9754). Since 4.2.
pub const OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS: u32 = 0x10_0000;

/// The limit of the data that the client may cache before it must write to the server (`nfs_space_limit4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum SpaceLimit4 {
    /// A maximum size of the file, in bytes.
    #[xdr(1)]
    Size(u64),
    /// A maximum number of blocks.
    #[xdr(2)]
    Blocks {
        /// The number of blocks.
        num_blocks: u32,
        /// The size of a block in bytes.
        bytes_per_block: u32,
    },
}

/// A read delegation.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenReadDelegation4 {
    /// The stateid.
    pub stateid: Stateid4,
    /// `true` if the delegation is recalled at once.
    pub recall: bool,
    /// The users who may open the file without a call to the server.
    pub permissions: Nfsace4,
}

/// A write delegation.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenWriteDelegation4 {
    /// The stateid.
    pub stateid: Stateid4,
    /// `true` if the delegation is recalled at once.
    pub recall: bool,
    /// The limit of cached writes.
    pub space_limit: SpaceLimit4,
    /// The users who may open the file without a call to the server.
    pub permissions: Nfsace4,
}

/// The reason why there is no delegation (`open_none_delegation4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = WhyNoDelegation4)]
pub enum OpenNoneDelegation4 {
    /// Others use the file.
    #[xdr(WhyNoDelegation4::Contention)]
    Contention {
        /// `true` if the server will push a delegation later.
        server_will_push_deleg: bool,
    },
    /// The server has too few resources.
    #[xdr(WhyNoDelegation4::Resource)]
    Resource {
        /// `true` if the server will signal when resources are available.
        server_will_signal_avail: bool,
    },
    /// Any other reason.
    #[xdr(default)]
    Other(WhyNoDelegation4),
}

/// Reasons for no delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum WhyNoDelegation4 {
    /// The client did not want a delegation.
    NotWanted = 0,
    /// Others use the file.
    Contention = 1,
    /// The server has too few resources.
    Resource = 2,
    /// Files of this type cannot be delegated.
    NotSuppFtype = 3,
    /// Files of this type have no write delegations.
    WriteDelegNotSuppFtype = 4,
    /// The delegation cannot be upgraded.
    NotSuppUpgrade = 5,
    /// The delegation cannot be downgraded.
    NotSuppDowngrade = 6,
    /// The request was cancelled.
    Cancelled = 7,
    /// The object is a directory.
    IsDir = 8,
}

/// A delegation or the reason why there is none (`open_delegation4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum OpenDelegation4 {
    /// No delegation.
    #[xdr(0)]
    None,
    /// A read delegation.
    #[xdr(1)]
    Read(OpenReadDelegation4),
    /// A write delegation.
    #[xdr(2)]
    Write(OpenWriteDelegation4),
    /// No delegation, with the reason. Since 4.1.
    #[xdr(3)]
    NoneExt(OpenNoneDelegation4),
}

/// A successful OPEN.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenOk {
    /// The stateid of the open.
    pub stateid: Stateid4,
    /// The change attribute of the directory before and after the operation.
    pub cinfo: ChangeInfo4,
    /// The `OPEN4_RESULT_` bits.
    pub rflags: u32,
    /// The attributes that were set.
    pub attrset: Bitmap4,
    /// The delegation.
    pub delegation: OpenDelegation4,
}

/// The client must send OPEN_CONFIRM. Only in 4.0.
pub const OPEN4_RESULT_CONFIRM: u32 = 0x02;
/// Locks have POSIX semantics.
pub const OPEN4_RESULT_LOCKTYPE_POSIX: u32 = 0x04;
/// A removed file stays until it is closed.
pub const OPEN4_RESULT_PRESERVE_UNLINKED: u32 = 0x08;
/// The server may send CB_NOTIFY_LOCK when a lock becomes available.
pub const OPEN4_RESULT_MAY_NOTIFY_LOCK: u32 = 0x20;

/// OPEN results.
pub type OpenRes = Res4<Box<OpenOk>>;

/// OPEN_CONFIRM arguments (RFC 7530 §16.18).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenConfirmArgs {
    /// The stateid of the open.
    pub open_stateid: Stateid4,
    /// The sequence number of the owner.
    pub seqid: Seqid4,
}

/// OPEN_DOWNGRADE arguments (RFC 8881 §18.18).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenDowngradeArgs {
    /// The stateid of the open.
    pub open_stateid: Stateid4,
    /// The sequence number of the owner, in 4.0.
    pub seqid: Seqid4,
    /// The remaining share_access.
    pub share_access: u32,
    /// The remaining share_deny.
    pub share_deny: u32,
}

/// CLOSE arguments (RFC 8881 §18.2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CloseArgs {
    /// The sequence number of the owner, in 4.0.
    pub seqid: Seqid4,
    /// The stateid of the open.
    pub open_stateid: Stateid4,
}

/// CLOSE, OPEN_CONFIRM, OPEN_DOWNGRADE, LOCKU and LOCK results: the new stateid.
pub type StateidRes = Res4<Stateid4>;

/// DELEGRETURN arguments (RFC 8881 §18.6).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DelegReturnArgs {
    /// The delegation.
    pub deleg_stateid: Stateid4,
}

/// The claim with which a delegation is requested (RFC 8881 §18.49, `deleg_claim4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum DelegClaim4 {
    /// A reclaim of a delegation from before the server's restart.
    #[xdr(1)]
    Previous(OpenDelegationType4),
    /// A new delegation of the current file handle.
    #[xdr(4)]
    Fh,
    /// A delegation from before the client's restart.
    #[xdr(6)]
    DelegPrevFh,
}

/// WANT_DELEGATION arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WantDelegationArgs {
    /// The `OPEN4_SHARE_ACCESS_WANT_` bits.
    pub want: u32,
    /// The claim.
    pub claim: DelegClaim4,
}

/// WANT_DELEGATION results.
pub type WantDelegationRes = Res4<Box<OpenDelegation4>>;

/// GET_DIR_DELEGATION arguments (RFC 8881 §18.39).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDirDelegationArgs {
    /// `true` if the server should signal when a delegation is available.
    pub signal_deleg_avail: bool,
    /// The requested notifications.
    pub notification_types: Bitmap4,
    /// Maximum delay of notifications about attributes of entries.
    pub child_attr_delay: Nfstime4,
    /// Maximum delay of notifications about attributes of the directory.
    pub dir_attr_delay: Nfstime4,
    /// The attributes of entries that cause notifications.
    pub child_attributes: Bitmap4,
    /// The attributes of the directory that cause notifications.
    pub dir_attributes: Bitmap4,
}

/// A directory delegation.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDirDelegationOk {
    /// The verifier of the cookies.
    pub cookieverf: Verifier4,
    /// The stateid.
    pub stateid: Stateid4,
    /// The notifications that the server will send.
    pub notification: Bitmap4,
    /// The attributes of entries that cause notifications.
    pub child_attributes: Bitmap4,
    /// The attributes of the directory that cause notifications.
    pub dir_attributes: Bitmap4,
}

/// A directory delegation or none (`GET_DIR_DELEGATION4res_non_fatal`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum GetDirDelegationNonFatal {
    /// The request succeeded.
    #[xdr(0)]
    Ok(Box<GetDirDelegationOk>),
    /// No delegation is available.
    #[xdr(1)]
    Unavail {
        /// `true` if the server will signal when one is available.
        will_signal_deleg_avail: bool,
    },
}

/// GET_DIR_DELEGATION results.
pub type GetDirDelegationRes = Res4<GetDirDelegationNonFatal>;
