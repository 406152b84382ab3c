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

    /// Get attributes from the holder of a write delegation.
    GetAttr = 3, "CB_GETATTR", 0..=2, (CbGetAttrArgs) => Res4<Fattr4>;
    /// Recall a delegation.
    Recall = 4, "CB_RECALL", 0..=2, (CbRecallArgs) => Res4<()>;
    /// Recall layouts.
    LayoutRecall = 5, "CB_LAYOUTRECALL", 1..=2, (CbLayoutRecallArgs) => Res4<()>;
    /// Notify the client of changes in a directory.
    Notify = 6, "CB_NOTIFY", 1..=2, (CbNotifyArgs) => Res4<()>;
    /// Offer a delegation.
    PushDeleg = 7, "CB_PUSH_DELEG", 1..=2, (CbPushDelegArgs) => Res4<()>;
    /// Recall delegations or layouts of the client's choice.
    RecallAny = 8, "CB_RECALL_ANY", 1..=2, (CbRecallAnyArgs) => Res4<()>;
    /// Notify the client that resources for more delegations or layouts are available.
    RecallableObjAvail = 9, "CB_RECALLABLE_OBJ_AVAIL", 1..=2, (CbRecallAnyArgs) => Res4<()>;
    /// Reduce the slots in use.
    RecallSlot = 10, "CB_RECALL_SLOT", 1..=2, (CbRecallSlotArgs) => Res4<()>;
    /// Identify the session, the slot and the sequence number of a callback.
    Sequence = 11, "CB_SEQUENCE", 1..=2, (CbSequenceArgs) => CbSequenceRes;
    /// Notify the client that its requests for delegations were cancelled.
    WantsCancelled = 12, "CB_WANTS_CANCELLED", 1..=2, (CbWantsCancelledArgs) => Res4<()>;
    /// Notify the client that a lock may be available.
    NotifyLock = 13, "CB_NOTIFY_LOCK", 1..=2, (CbNotifyLockArgs) => Res4<()>;
    /// Notify the client of changes of devices.
    NotifyDeviceid = 14, "CB_NOTIFY_DEVICEID", 1..=2, (CbNotifyDeviceidArgs) => Res4<()>;
    /// Notify the client that a copy has ended.
    Offload = 15, "CB_OFFLOAD", 2..=2, (CbOffloadArgs) => Res4<()>;
}

/// CB_GETATTR arguments (RFC 8881 §20.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbGetAttrArgs {
    /// The file.
    pub fh: NfsFh4,
    /// The requested attributes: change and size.
    pub attr_request: Bitmap4,
}

/// CB_RECALL arguments (RFC 8881 §20.2).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbRecallArgs {
    /// The stateid of the delegation.
    pub stateid: Stateid4,
    /// `true` if the file will be truncated to 0 bytes, so that the client need not write back its data.
    pub truncate: bool,
    /// The file.
    pub fh: NfsFh4,
}

/// The layouts that are recalled (`layoutrecall4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Layoutrecall4 {
    /// Layouts of a file.
    #[xdr(1)]
    File {
        /// The file.
        fh: NfsFh4,
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
        /// The stateid of the layouts.
        stateid: Stateid4,
    },
    /// All layouts of a file system.
    #[xdr(2)]
    Fsid(Fsid4),
    /// All layouts.
    #[xdr(3)]
    All,
}

/// CB_LAYOUTRECALL arguments (RFC 8881 §20.3).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbLayoutRecallArgs {
    /// The layout type.
    pub layout_type: Layouttype4,
    /// The I/O mode.
    pub iomode: Layoutiomode4,
    /// `true` if the layouts have changed, so that they must not be used any more.
    pub changed: bool,
    /// The layouts to return.
    pub recall: Layoutrecall4,
}

/// The notifications of CB_NOTIFY; bits of [`Notify4::mask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum NotifyType4 {
    /// The attributes of an entry have changed: [`NotifyEntry4`].
    ChangeChildAttrs = 0,
    /// The attributes of the directory have changed: [`NotifyEntry4`].
    ChangeDirAttrs = 1,
    /// An entry was removed: [`NotifyRemove4`].
    RemoveEntry = 2,
    /// An entry was added: [`NotifyAdd4`].
    AddEntry = 3,
    /// An entry was renamed: [`NotifyRename4`].
    RenameEntry = 4,
    /// The cookie verifier has changed: [`NotifyVerifier4`].
    ChangeCookieVerifier = 5,
}

/// Notifications about the same object.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Notify4 {
    /// The types of the notifications.
    pub mask: Bitmap4,
    /// The encoded notifications, in the order of the bits.
    pub vals: Opaque<BODY_BOUND>,
}

/// An entry of a directory (`notify_entry4`, `notify_attr4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyEntry4 {
    /// The name.
    pub file: Component4,
    /// The attributes of the object.
    pub attrs: Fattr4,
}

/// A removed entry (`notify_remove4`), or the entry before another (`prev_entry4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyRemove4 {
    /// The entry.
    pub entry: NotifyEntry4,
    /// The cookie.
    pub cookie: u64,
}

/// A new entry.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyAdd4 {
    /// The entry that had the name before.
    pub old_entry: Option<NotifyRemove4>,
    /// The entry.
    pub new_entry: NotifyEntry4,
    /// The cookie.
    pub new_entry_cookie: Option<u64>,
    /// The entry before it.
    pub prev_entry: Option<NotifyRemove4>,
    /// `true` if the entry is the last one.
    pub last_entry: bool,
}

/// A renamed entry.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyRename4 {
    /// The old value.
    pub old_entry: NotifyRemove4,
    /// The new value.
    pub new_entry: NotifyAdd4,
}

/// A new verifier of cookies.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyVerifier4 {
    /// The old value.
    pub old_cookieverf: Verifier4,
    /// The new value.
    pub new_cookieverf: Verifier4,
}

/// CB_NOTIFY arguments (RFC 8881 §20.4).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbNotifyArgs {
    /// The stateid of the delegation.
    pub stateid: Stateid4,
    /// The directory.
    pub fh: NfsFh4,
    /// The changes.
    pub changes: Vec<Notify4>,
}

/// CB_PUSH_DELEG arguments (RFC 8881 §20.5).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbPushDelegArgs {
    /// The file.
    pub fh: NfsFh4,
    /// The stateid of the delegation.
    pub delegation: OpenDelegation4,
}

/// CB_RECALL_ANY and CB_RECALLABLE_OBJ_AVAIL arguments (RFC 8881 §20.6, §20.7).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbRecallAnyArgs {
    /// The number of delegations or layouts that the client may keep.
    pub objects_to_keep: u32,
    /// The kinds to return: `RCA4_TYPE_MASK_` bits.
    pub type_mask: Bitmap4,
}

/// The bit of read delegations.
pub const RCA4_TYPE_MASK_RDATA_DLG: u32 = 0;
/// The bit of write delegations.
pub const RCA4_TYPE_MASK_WDATA_DLG: u32 = 1;
/// The bit of directory delegations.
pub const RCA4_TYPE_MASK_DIR_DLG: u32 = 2;
/// The bit of file layouts.
pub const RCA4_TYPE_MASK_FILE_LAYOUT: u32 = 3;
/// The bit of block layouts.
pub const RCA4_TYPE_MASK_BLK_LAYOUT: u32 = 4;

/// CB_RECALL_SLOT arguments (RFC 8881 §20.8).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbRecallSlotArgs {
    /// The highest slot that the client may use.
    pub target_highest_slotid: Slotid4,
}

/// A request that led to a callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ReferringCall4 {
    /// The sequence number.
    pub sequenceid: Sequenceid4,
    /// The slot.
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
    /// The sequence number of the slot.
    pub sequenceid: Sequenceid4,
    /// The slot.
    pub slotid: Slotid4,
    /// The highest slot in use.
    pub highest_slotid: Slotid4,
    /// `true` to cache the reply.
    pub cachethis: bool,
    /// The requests that led to this callback. The client must process their replies before it executes the callback.
    pub referring_call_lists: Array<ReferringCallList4, REFERRING_BOUND>,
}

/// A successful CB_SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbSequenceOk {
    /// The session.
    pub sessionid: Sessionid4,
    /// The sequence number of the slot.
    pub sequenceid: Sequenceid4,
    /// The slot.
    pub slotid: Slotid4,
    /// The highest slot that the client accepts.
    pub highest_slotid: Slotid4,
    /// The highest slot that should be used.
    pub target_highest_slotid: Slotid4,
}

/// CB_SEQUENCE results.
pub type CbSequenceRes = Res4<CbSequenceOk>;

/// CB_WANTS_CANCELLED arguments (RFC 8881 §20.10).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbWantsCancelledArgs {
    /// `true` if the requests for a delegation when the file is uncontended were cancelled.
    pub contended_wants_cancelled: bool,
    /// `true` if the requests for a signal when resources are available were cancelled.
    pub resourced_wants_cancelled: bool,
}

/// CB_NOTIFY_LOCK arguments (RFC 8881 §20.11).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbNotifyLockArgs {
    /// The file.
    pub fh: NfsFh4,
    /// The lock owner that may retry.
    pub lock_owner: StateOwner4,
}

/// CB_NOTIFY_DEVICEID arguments (RFC 8881 §20.12).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbNotifyDeviceidArgs {
    /// The changes: bit 1 is a [`NotifyDeviceidChange4`], bit 2 a [`NotifyDeviceidDelete4`].
    pub changes: Vec<Notify4>,
}

/// A deleted device.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyDeviceidDelete4 {
    /// The layout type.
    pub layout_type: Layouttype4,
    /// The device.
    pub deviceid: Deviceid4,
}

/// A device whose address has changed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NotifyDeviceidChange4 {
    /// The layout type.
    pub layout_type: Layouttype4,
    /// The device.
    pub deviceid: Deviceid4,
    /// `true` if the client must stop using the old address at once.
    pub immediate: bool,
}

/// The outcome of a copy (`offload_info4`).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[xdr(tag = Nfsstat4)]
pub enum OffloadInfo4 {
    /// The copy succeeded.
    #[xdr(Nfsstat4::Ok)]
    Ok(WriteResponse4),
    /// The copy failed after this number of bytes.
    #[xdr(default)]
    Fail(Nfsstat4, u64),
}

/// CB_OFFLOAD arguments (RFC 7862 §16.1).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CbOffloadArgs {
    /// The file that was written.
    pub fh: NfsFh4,
    /// The stateid of the copy.
    pub stateid: Stateid4,
    /// The outcome of the copy.
    pub offload_info: OffloadInfo4,
}

/// Maximum length of a list of referring calls, which belong to slots of one client.
const REFERRING_BOUND: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_the_rfcs() {
        assert_eq!(CbOpnum4::ALL.len(), 13);
        for (index, operation) in CbOpnum4::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, index + 3);
        }
        assert_eq!(CbOpnum4::from_number(16), None);
        assert_eq!(CbOpnum4::Illegal as u32, 10044);
    }
}
