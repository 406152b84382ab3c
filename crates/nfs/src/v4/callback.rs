//! The operations of CB_COMPOUND, by which a server calls its clients (RFC 7530 §17, RFC 8881 §20, RFC 7862 §16).

use xdr::{Array, Decode, Encode, Opaque};

use super::{
    attr::Fattr4,
    bitmap::Bitmap4,
    operation::operations,
    ops::{Layoutiomode4, OpenDelegation4, WriteResponse4},
    status::*,
    types::*,
};

operations! {
    /// The operations of CB_COMPOUND.
    numbers CbOpnum4;
    /// An operation of CB_COMPOUND and its arguments.
    arguments CbArgop4;
    /// An operation of CB_COMPOUND and its result.
    results CbResop4;

    /// Get attributes from who has a delegation to write.
    GetAttr = 3, "CB_GETATTR", 0..=2, (CbGetAttrArgs) => Res4<Fattr4>;
    /// Recall a delegation.
    Recall = 4, "CB_RECALL", 0..=2, (CbRecallArgs) => Res4<()>;
    /// Recall layouts.
    LayoutRecall = 5, "CB_LAYOUTRECALL", 1..=2, (CbLayoutRecallArgs) => Res4<()>;
    /// Tell of changes in a directory.
    Notify = 6, "CB_NOTIFY", 1..=2, (CbNotifyArgs) => Res4<()>;
    /// Offer a delegation.
    PushDeleg = 7, "CB_PUSH_DELEG", 1..=2, (CbPushDelegArgs) => Res4<()>;
    /// Recall any so many.
    RecallAny = 8, "CB_RECALL_ANY", 1..=2, (CbRecallAnyArgs) => Res4<()>;
    /// Tell that there are resources for more.
    RecallableObjAvail = 9, "CB_RECALLABLE_OBJ_AVAIL", 1..=2, (CbRecallAnyArgs) => Res4<()>;
    /// Reduce the slots in use.
    RecallSlot = 10, "CB_RECALL_SLOT", 1..=2, (CbRecallSlotArgs) => Res4<()>;
    /// Begin a request of a session's backchannel.
    Sequence = 11, "CB_SEQUENCE", 1..=2, (CbSequenceArgs) => CbSequenceRes;
    /// Tell that what was wanted will not come.
    WantsCancelled = 12, "CB_WANTS_CANCELLED", 1..=2, (CbWantsCancelledArgs) => Res4<()>;
    /// Tell that a lock may be had.
    NotifyLock = 13, "CB_NOTIFY_LOCK", 1..=2, (CbNotifyLockArgs) => Res4<()>;
    /// Tell of changes of devices.
    NotifyDeviceid = 14, "CB_NOTIFY_DEVICEID", 1..=2, (CbNotifyDeviceidArgs) => Res4<()>;
    /// Tell that a copy has ended.
    Offload = 15, "CB_OFFLOAD", 2..=2, (CbOffloadArgs) => Res4<()>;
}

/// CB_GETATTR arguments (RFC 8881 §20.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbGetAttrArgs {
    /// The file.
    pub fh: NfsFh4,
    /// Which: change and size.
    pub attr_request: Bitmap4,
}

/// CB_RECALL arguments (RFC 8881 §20.2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbRecallArgs {
    /// The delegation.
    pub stateid: Stateid4,
    /// Whether the file will be cut to nothing, so that its data need not be written back.
    pub truncate: bool,
    /// The file.
    pub fh: NfsFh4,
}

/// What is recalled (`layoutrecall4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Layoutrecall4 {
    /// Layouts of a file.
    #[xdr(1)]
    File {
        /// The file.
        fh: NfsFh4,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The layouts.
        stateid: Stateid4,
    },
    /// All of a file system.
    #[xdr(2)]
    Fsid(Fsid4),
    /// All.
    #[xdr(3)]
    All,
}

/// CB_LAYOUTRECALL arguments (RFC 8881 §20.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbLayoutRecallArgs {
    /// Of this type.
    pub layout_type: Layouttype4,
    /// For what.
    pub iomode: Layoutiomode4,
    /// Whether they are no longer true.
    pub changed: bool,
    /// What.
    pub recall: Layoutrecall4,
}

/// The notifications of CB_NOTIFY; bits of [`Notify4::mask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum NotifyType4 {
    /// An entry's attributes: [`NotifyEntry4`].
    ChangeChildAttrs = 0,
    /// The directory's attributes: [`NotifyEntry4`].
    ChangeDirAttrs = 1,
    /// [`NotifyRemove4`].
    RemoveEntry = 2,
    /// [`NotifyAdd4`].
    AddEntry = 3,
    /// [`NotifyRename4`].
    RenameEntry = 4,
    /// [`NotifyVerifier4`].
    ChangeCookieVerifier = 5,
}

/// Notifications of the same object.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Notify4 {
    /// Which.
    pub mask: Bitmap4,
    /// One after the other, in the order of the bits.
    pub vals: Opaque<BODY_BOUND>,
}

/// An entry of a directory (`notify_entry4`, `notify_attr4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyEntry4 {
    /// Its name.
    pub file: Component4,
    /// Its attributes.
    pub attrs: Fattr4,
}

/// An entry that is gone (`notify_remove4`), and the entry before another (`prev_entry4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyRemove4 {
    /// The entry.
    pub entry: NotifyEntry4,
    /// Its cookie.
    pub cookie: u64,
}

/// A new entry.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyAdd4 {
    /// What was there under its name.
    pub old_entry: Option<NotifyRemove4>,
    /// The entry.
    pub new_entry: NotifyEntry4,
    /// Its cookie.
    pub new_entry_cookie: Option<u64>,
    /// The entry before it.
    pub prev_entry: Option<NotifyRemove4>,
    /// Whether it is the last.
    pub last_entry: bool,
}

/// An entry of another name.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyRename4 {
    /// As it was.
    pub old_entry: NotifyRemove4,
    /// As it is.
    pub new_entry: NotifyAdd4,
}

/// A new verifier of cookies.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyVerifier4 {
    /// As it was.
    pub old_cookieverf: Verifier4,
    /// As it is.
    pub new_cookieverf: Verifier4,
}

/// CB_NOTIFY arguments (RFC 8881 §20.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbNotifyArgs {
    /// The delegation.
    pub stateid: Stateid4,
    /// The directory.
    pub fh: NfsFh4,
    /// What has changed.
    pub changes: Vec<Notify4>,
}

/// CB_PUSH_DELEG arguments (RFC 8881 §20.5).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbPushDelegArgs {
    /// The file.
    pub fh: NfsFh4,
    /// The delegation.
    pub delegation: OpenDelegation4,
}

/// CB_RECALL_ANY and CB_RECALLABLE_OBJ_AVAIL arguments (RFC 8881 §20.6, §20.7).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbRecallAnyArgs {
    /// How many may be kept.
    pub objects_to_keep: u32,
    /// Of which kinds: the `RCA4_TYPE_MASK_` bits.
    pub type_mask: Bitmap4,
}

/// Bit of delegations to read.
pub const RCA4_TYPE_MASK_RDATA_DLG: u32 = 0;
/// Bit of delegations to write.
pub const RCA4_TYPE_MASK_WDATA_DLG: u32 = 1;
/// Bit of delegations of directories.
pub const RCA4_TYPE_MASK_DIR_DLG: u32 = 2;
/// Bit of layouts of files.
pub const RCA4_TYPE_MASK_FILE_LAYOUT: u32 = 3;
/// Bit of layouts of blocks.
pub const RCA4_TYPE_MASK_BLK_LAYOUT: u32 = 4;

/// CB_RECALL_SLOT arguments (RFC 8881 §20.8).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbRecallSlotArgs {
    /// The highest slot that may be used.
    pub target_highest_slotid: Slotid4,
}

/// A request that led to a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReferringCall4 {
    /// Its sequence.
    pub sequenceid: Sequenceid4,
    /// Its slot.
    pub slotid: Slotid4,
}

/// Requests of one session that led to a callback.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReferringCallList4 {
    /// The session.
    pub sessionid: Sessionid4,
    /// The requests.
    pub referring_calls: Array<ReferringCall4, REFERRING_BOUND>,
}

/// CB_SEQUENCE arguments (RFC 8881 §20.9).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbSequenceArgs {
    /// The session.
    pub sessionid: Sessionid4,
    /// The sequence of the slot.
    pub sequenceid: Sequenceid4,
    /// The slot.
    pub slotid: Slotid4,
    /// The highest slot in use.
    pub highest_slotid: Slotid4,
    /// Whether to cache the reply.
    pub cachethis: bool,
    /// The requests that led to this; it is to be executed after their replies.
    pub referring_call_lists: Array<ReferringCallList4, REFERRING_BOUND>,
}

/// A successful CB_SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbSequenceOk {
    /// The session.
    pub sessionid: Sessionid4,
    /// The sequence of the slot.
    pub sequenceid: Sequenceid4,
    /// The slot.
    pub slotid: Slotid4,
    /// The highest slot that the client takes.
    pub highest_slotid: Slotid4,
    /// The highest that it would like to be used.
    pub target_highest_slotid: Slotid4,
}

/// CB_SEQUENCE results.
pub type CbSequenceRes = Res4<CbSequenceOk>;

/// CB_WANTS_CANCELLED arguments (RFC 8881 §20.10).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbWantsCancelledArgs {
    /// What was to be pushed when uncontended.
    pub contended_wants_cancelled: bool,
    /// What was to be signalled when there are resources.
    pub resourced_wants_cancelled: bool,
}

/// CB_NOTIFY_LOCK arguments (RFC 8881 §20.11).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbNotifyLockArgs {
    /// The file.
    pub fh: NfsFh4,
    /// Who may try again.
    pub lock_owner: StateOwner4,
}

/// CB_NOTIFY_DEVICEID arguments (RFC 8881 §20.12).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbNotifyDeviceidArgs {
    /// What has changed: bit 1 a [`NotifyDeviceidChange4`], bit 2 a [`NotifyDeviceidDelete4`].
    pub changes: Vec<Notify4>,
}

/// A device that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyDeviceidDelete4 {
    /// Its layout type.
    pub layout_type: Layouttype4,
    /// The device.
    pub deviceid: Deviceid4,
}

/// A device that is elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyDeviceidChange4 {
    /// Its layout type.
    pub layout_type: Layouttype4,
    /// The device.
    pub deviceid: Deviceid4,
    /// Whether the old place must not be used any more.
    pub immediate: bool,
}

/// How a copy ended (`offload_info4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum OffloadInfo4 {
    /// Well.
    #[xdr(Nfsstat4::Ok)]
    Ok(WriteResponse4),
    /// Badly, after so many bytes.
    #[xdr(default)]
    Fail(Nfsstat4, u64),
}

/// CB_OFFLOAD arguments (RFC 7862 §16.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbOffloadArgs {
    /// The file that was written.
    pub fh: NfsFh4,
    /// The copy.
    pub stateid: Stateid4,
    /// How it ended.
    pub offload_info: OffloadInfo4,
}

/// The bound we put on lists of referring calls: they are of slots of one client.
const REFERRING_BOUND: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_rfcs() {
        assert_eq!(CbOpnum4::ALL.len(), 13);
        for (index, operation) in CbOpnum4::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, index + 3);
        }
        assert_eq!(CbOpnum4::from_number(16), None);
        assert_eq!(CbOpnum4::Illegal as u32, 10044);
    }
}
