//! Opens and delegations: OPEN, OPEN_CONFIRM, OPEN_DOWNGRADE, CLOSE, DELEGRETURN and their kin (RFC 8881 §18).

use xdr::{Decode, Encode};

use crate::v4::{acl::Nfsace4, attr::Fattr4, bitmap::Bitmap4, status::*, types::*};

/// How to create a file (RFC 8881 §18.16, `createhow4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Createhow4 {
    /// An existing file is opened.
    #[xdr(0)]
    Unchecked(Fattr4),
    /// An existing file is an error.
    #[xdr(1)]
    Guarded(Fattr4),
    /// An existing file is an error unless made with the same verifier.
    #[xdr(2)]
    Exclusive(Verifier4),
    /// So too, with attributes; since 4.1.
    #[xdr(3)]
    Exclusive41 {
        /// The verifier.
        verf: Verifier4,
        /// The attributes.
        attrs: Fattr4,
    },
}

/// Whether OPEN creates (`openflag4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Openflag4 {
    /// The file must be there.
    #[xdr(0)]
    NoCreate,
    /// It is made.
    #[xdr(1)]
    Create(Createhow4),
}

/// By what right a file is opened (`open_claim4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum OpenClaim4 {
    /// A new one, by name.
    #[xdr(0)]
    Null(Component4),
    /// It was open before the server restarted.
    #[xdr(1)]
    Previous(OpenDelegationType4),
    /// A delegation, by name.
    #[xdr(2)]
    DelegateCur {
        /// The delegation.
        delegate_stateid: Stateid4,
        /// The name.
        file: Component4,
    },
    /// A delegation from before the client restarted, by name.
    #[xdr(3)]
    DelegatePrev(Component4),
    /// A new one, of the current file handle; since 4.1.
    #[xdr(4)]
    Fh,
    /// A delegation of the current file handle; since 4.1.
    #[xdr(5)]
    DelegCurFh(Stateid4),
    /// A delegation from before the client restarted, of the current file handle; since 4.1.
    #[xdr(6)]
    DelegPrevFh,
}

/// The kinds of delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[repr(u32)]
pub enum OpenDelegationType4 {
    /// None.
    None = 0,
    /// To read.
    Read = 1,
    /// To write.
    Write = 2,
    /// None, and why; since 4.1.
    NoneExt = 3,
}

/// OPEN arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenArgs {
    /// The owner's sequence in 4.0.
    pub seqid: Seqid4,
    /// The `OPEN4_SHARE_ACCESS_` bits.
    pub share_access: u32,
    /// The `OPEN4_SHARE_DENY_` bits.
    pub share_deny: u32,
    /// Who opens.
    pub owner: StateOwner4,
    /// Whether to create.
    pub openhow: Openflag4,
    /// What.
    pub claim: OpenClaim4,
}

/// Access: read.
pub const OPEN4_SHARE_ACCESS_READ: u32 = 0x1;
/// Access: write.
pub const OPEN4_SHARE_ACCESS_WRITE: u32 = 0x2;
/// Access: both.
pub const OPEN4_SHARE_ACCESS_BOTH: u32 = 0x3;
/// Others may do anything.
pub const OPEN4_SHARE_DENY_NONE: u32 = 0x0;
/// Others may not read.
pub const OPEN4_SHARE_DENY_READ: u32 = 0x1;
/// Others may not write.
pub const OPEN4_SHARE_DENY_WRITE: u32 = 0x2;
/// Others may not do either.
pub const OPEN4_SHARE_DENY_BOTH: u32 = 0x3;
/// The bits of share_access that say which delegation is wanted; since 4.1.
pub const OPEN4_SHARE_ACCESS_WANT_DELEG_MASK: u32 = 0xff00;
/// Whichever.
pub const OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE: u32 = 0x0000;
/// To read.
pub const OPEN4_SHARE_ACCESS_WANT_READ_DELEG: u32 = 0x0100;
/// To write.
pub const OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG: u32 = 0x0200;
/// Either.
pub const OPEN4_SHARE_ACCESS_WANT_ANY_DELEG: u32 = 0x0300;
/// None.
pub const OPEN4_SHARE_ACCESS_WANT_NO_DELEG: u32 = 0x0400;
/// None any more.
pub const OPEN4_SHARE_ACCESS_WANT_CANCEL: u32 = 0x0500;
/// Tell when there are resources for one.
pub const OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
/// Give one when nobody else is in the way.
pub const OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
/// Give one that has the times of the file as well (RFC 9754); since 4.2.
pub const OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS: u32 = 0x10_0000;

/// How much may be written before the server is asked again (`nfs_space_limit4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum SpaceLimit4 {
    /// Up to this size of the file.
    #[xdr(1)]
    Size(u64),
    /// So many blocks.
    #[xdr(2)]
    Blocks {
        /// How many.
        num_blocks: u32,
        /// Of how many bytes.
        bytes_per_block: u32,
    },
}

/// A delegation to read.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenReadDelegation4 {
    /// Its name.
    pub stateid: Stateid4,
    /// Whether it is recalled at once.
    pub recall: bool,
    /// Who may open without asking the server.
    pub permissions: Nfsace4,
}

/// A delegation to write.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenWriteDelegation4 {
    /// Its name.
    pub stateid: Stateid4,
    /// Whether it is recalled at once.
    pub recall: bool,
    /// How much may be written.
    pub space_limit: SpaceLimit4,
    /// Who may open without asking the server.
    pub permissions: Nfsace4,
}

/// Why there is no delegation (`open_none_delegation4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = WhyNoDelegation4)]
pub enum OpenNoneDelegation4 {
    /// Others use the file.
    #[xdr(WhyNoDelegation4::Contention)]
    Contention {
        /// Whether the server will give one later.
        server_will_push_deleg: bool,
    },
    /// Resources are short.
    #[xdr(WhyNoDelegation4::Resource)]
    Resource {
        /// Whether the server will tell when they are not.
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
    /// It was not wanted.
    NotWanted = 0,
    /// Others use the file.
    Contention = 1,
    /// Resources are short.
    Resource = 2,
    /// Not of files of this type.
    NotSuppFtype = 3,
    /// Not to write files of this type.
    WriteDelegNotSuppFtype = 4,
    /// No upgrade to writing.
    NotSuppUpgrade = 5,
    /// No downgrade to reading.
    NotSuppDowngrade = 6,
    /// It was cancelled.
    Cancelled = 7,
    /// It is a directory.
    IsDir = 8,
}

/// A delegation or none (`open_delegation4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum OpenDelegation4 {
    /// None.
    #[xdr(0)]
    None,
    /// To read.
    #[xdr(1)]
    Read(OpenReadDelegation4),
    /// To write.
    #[xdr(2)]
    Write(OpenWriteDelegation4),
    /// None, and why; since 4.1.
    #[xdr(3)]
    NoneExt(OpenNoneDelegation4),
}

/// A successful OPEN.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenOk {
    /// The open.
    pub stateid: Stateid4,
    /// The directory before and after.
    pub cinfo: ChangeInfo4,
    /// The `OPEN4_RESULT_` bits.
    pub rflags: u32,
    /// Attributes that were set.
    pub attrset: Bitmap4,
    /// The delegation.
    pub delegation: OpenDelegation4,
}

/// OPEN_CONFIRM must follow; 4.0 only.
pub const OPEN4_RESULT_CONFIRM: u32 = 0x02;
/// Locks are as in POSIX.
pub const OPEN4_RESULT_LOCKTYPE_POSIX: u32 = 0x04;
/// The file stays until it is closed, also when it is removed.
pub const OPEN4_RESULT_PRESERVE_UNLINKED: u32 = 0x08;
/// CB_NOTIFY_LOCK may tell when a lock is to be had.
pub const OPEN4_RESULT_MAY_NOTIFY_LOCK: u32 = 0x20;

/// OPEN results.
pub type OpenRes = Res4<Box<OpenOk>>;

/// OPEN_CONFIRM arguments (RFC 7530 §16.18).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenConfirmArgs {
    /// The open.
    pub open_stateid: Stateid4,
    /// The owner's sequence.
    pub seqid: Seqid4,
}

/// OPEN_DOWNGRADE arguments (RFC 8881 §18.18).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OpenDowngradeArgs {
    /// The open.
    pub open_stateid: Stateid4,
    /// The owner's sequence in 4.0.
    pub seqid: Seqid4,
    /// What remains of share_access.
    pub share_access: u32,
    /// And of share_deny.
    pub share_deny: u32,
}

/// CLOSE arguments (RFC 8881 §18.2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CloseArgs {
    /// The owner's sequence in 4.0.
    pub seqid: Seqid4,
    /// The open.
    pub open_stateid: Stateid4,
}

/// CLOSE, OPEN_CONFIRM, OPEN_DOWNGRADE, LOCKU and LOCK results: the state from now on.
pub type StateidRes = Res4<Stateid4>;

/// DELEGRETURN arguments (RFC 8881 §18.6).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DelegReturnArgs {
    /// The delegation.
    pub deleg_stateid: Stateid4,
}

/// By what right a delegation is wanted (RFC 8881 §18.49, `deleg_claim4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum DelegClaim4 {
    /// There was one before the server restarted.
    #[xdr(1)]
    Previous(OpenDelegationType4),
    /// None.
    #[xdr(4)]
    Fh,
    /// There was one before the client restarted.
    #[xdr(6)]
    DelegPrevFh,
}

/// WANT_DELEGATION arguments.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WantDelegationArgs {
    /// The `OPEN4_SHARE_ACCESS_WANT_` bits.
    pub want: u32,
    /// By what right.
    pub claim: DelegClaim4,
}

/// WANT_DELEGATION results.
pub type WantDelegationRes = Res4<Box<OpenDelegation4>>;

/// GET_DIR_DELEGATION arguments (RFC 8881 §18.39).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDirDelegationArgs {
    /// Whether to tell when there is one.
    pub signal_deleg_avail: bool,
    /// Which notifications are wanted.
    pub notification_types: Bitmap4,
    /// How late changes of entries' attributes may be told.
    pub child_attr_delay: Nfstime4,
    /// How late those of the directory's.
    pub dir_attr_delay: Nfstime4,
    /// Which attributes of entries.
    pub child_attributes: Bitmap4,
    /// Which of the directory.
    pub dir_attributes: Bitmap4,
}

/// A delegation of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct GetDirDelegationOk {
    /// Goes with cookies.
    pub cookieverf: Verifier4,
    /// Its name.
    pub stateid: Stateid4,
    /// Which notifications there will be.
    pub notification: Bitmap4,
    /// Of which attributes of entries.
    pub child_attributes: Bitmap4,
    /// And of the directory.
    pub dir_attributes: Bitmap4,
}

/// A delegation of a directory or none (`GET_DIR_DELEGATION4res_non_fatal`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum GetDirDelegationNonFatal {
    /// Here it is.
    #[xdr(0)]
    Ok(Box<GetDirDelegationOk>),
    /// There is none.
    #[xdr(1)]
    Unavail {
        /// Whether the server will tell when there is.
        will_signal_deleg_avail: bool,
    },
}

/// GET_DIR_DELEGATION results.
pub type GetDirDelegationRes = Res4<GetDirDelegationNonFatal>;
