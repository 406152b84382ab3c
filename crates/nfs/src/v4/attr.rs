//! File attributes: the table of all that are defined, and their encoding (RFC 8881 §5, RFC 7862 §12, RFC 8275, RFC 8276,
//! RFC 9754).
//!
//! [`Fattr4`] is the encoded form of attributes: a bitmap and the values of its bits, one after the other without
//! lengths. So a bit of unknown meaning makes the later values unreadable. The values as a whole have a length, so the
//! rest of the compound can still be decoded. [`Attrs`] is the decoded form, in which each attribute is present or not.

use std::{fmt, sync::LazyLock};

use xdr::{Decode, DecodeError, Decoder, Encode, Encoder, Opaque};

use super::{acl::*, bitmap::Bitmap4, location::*, status::Nfsstat4, types::*};

/// The ways in which an attribute can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The attribute can only be read.
    Get,
    /// The attribute can only be set.
    Set,
    /// The attribute can be read and set.
    GetSet,
}

/// The requirement level of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Necessity {
    /// Every server supports it, in the minor versions that define it.
    Required,
    /// Servers may support it, and `supported_attrs` lists it then. The RFCs call this RECOMMENDED.
    Recommended,
}

macro_rules! attributes {
    ($($name:ident $field:ident: $type:ty = $number:literal, $necessity:ident, $access:ident, $since:literal;)*) => {
        /// An attribute.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Attr4 { $(#[doc = concat!("`", stringify!($field), "`.")] $name = $number,)* }

        impl Attr4 {
            /// All attributes, in the order of their numbers.
            pub const ALL: &[Attr4] = &[$(Attr4::$name),*];

            /// Returns the attribute with this number.
            #[inline]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Attr4::$name),)* _ => None }
            }

            /// Returns the name in the RFCs.
            pub const fn name(self) -> &'static str {
                match self { $(Attr4::$name => stringify!($field)),* }
            }

            /// Returns the requirement level.
            pub const fn necessity(self) -> Necessity {
                match self { $(Attr4::$name => Necessity::$necessity),* }
            }

            /// Returns the ways in which the attribute can be used.
            pub const fn access(self) -> Access {
                match self { $(Attr4::$name => Access::$access),* }
            }

            /// Returns the first minor version that defines the attribute.
            pub const fn since(self) -> u32 {
                match self { $(Attr4::$name => $since),* }
            }
        }

        /// The values of attributes. An attribute that is not present is `None`.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Attrs {
            $(#[doc = concat!("Attribute ", $number, ".")] pub $field: Option<$type>,)*
        }

        impl Attrs {
            /// Returns the set of attributes that are present.
            pub fn mask(&self) -> Bitmap4 {
                let mut mask = Bitmap4::new();
                $(if self.$field.is_some() { mask.insert($number); })*
                mask
            }

            /// Removes the attributes that are not in `mask`.
            pub fn retain(&mut self, mask: &Bitmap4) {
                $(if !mask.contains($number) { self.$field = None; })*
            }

            fn encode_values(&self, encoder: &mut Encoder) {
                $(if let Some(value) = &self.$field { value.encode(encoder); })*
            }

            fn decode_value(&mut self, attribute: Attr4, decoder: &mut Decoder<'_>) -> Result<(), DecodeError> {
                match attribute { $(Attr4::$name => self.$field = Some(Decode::decode(decoder)?),)* }
                Ok(())
            }
        }
    };
}

// Values are encoded in the order of this table, so it must be in numerical order. A test checks this.
attributes! {
    SupportedAttrs supported_attrs: Bitmap4 = 0, Required, Get, 0;
    Type object_type: Ftype4 = 1, Required, Get, 0;
    FhExpireType fh_expire_type: u32 = 2, Required, Get, 0;
    Change change: Changeid4 = 3, Required, Get, 0;
    Size size: u64 = 4, Required, GetSet, 0;
    LinkSupport link_support: bool = 5, Required, Get, 0;
    SymlinkSupport symlink_support: bool = 6, Required, Get, 0;
    NamedAttr named_attr: bool = 7, Required, Get, 0;
    Fsid fsid: Fsid4 = 8, Required, Get, 0;
    UniqueHandles unique_handles: bool = 9, Required, Get, 0;
    LeaseTime lease_time: u32 = 10, Required, Get, 0;
    RdattrError rdattr_error: Nfsstat4 = 11, Required, Get, 0;
    Acl acl: Vec<Nfsace4> = 12, Recommended, GetSet, 0;
    Aclsupport aclsupport: u32 = 13, Recommended, Get, 0;
    Archive archive: bool = 14, Recommended, GetSet, 0;
    Cansettime cansettime: bool = 15, Recommended, Get, 0;
    CaseInsensitive case_insensitive: bool = 16, Recommended, Get, 0;
    CasePreserving case_preserving: bool = 17, Recommended, Get, 0;
    ChownRestricted chown_restricted: bool = 18, Recommended, Get, 0;
    Filehandle filehandle: NfsFh4 = 19, Required, Get, 0;
    Fileid fileid: u64 = 20, Recommended, Get, 0;
    FilesAvail files_avail: u64 = 21, Recommended, Get, 0;
    FilesFree files_free: u64 = 22, Recommended, Get, 0;
    FilesTotal files_total: u64 = 23, Recommended, Get, 0;
    FsLocations fs_locations: FsLocations4 = 24, Recommended, Get, 0;
    Hidden hidden: bool = 25, Recommended, GetSet, 0;
    Homogeneous homogeneous: bool = 26, Recommended, Get, 0;
    Maxfilesize maxfilesize: u64 = 27, Recommended, Get, 0;
    Maxlink maxlink: u32 = 28, Recommended, Get, 0;
    Maxname maxname: u32 = 29, Recommended, Get, 0;
    Maxread maxread: u64 = 30, Recommended, Get, 0;
    Maxwrite maxwrite: u64 = 31, Recommended, Get, 0;
    Mimetype mimetype: Utf8str = 32, Recommended, GetSet, 0;
    Mode mode: u32 = 33, Recommended, GetSet, 0;
    NoTrunc no_trunc: bool = 34, Recommended, Get, 0;
    Numlinks numlinks: u32 = 35, Recommended, Get, 0;
    Owner owner: Utf8str = 36, Recommended, GetSet, 0;
    OwnerGroup owner_group: Utf8str = 37, Recommended, GetSet, 0;
    QuotaAvailHard quota_avail_hard: u64 = 38, Recommended, Get, 0;
    QuotaAvailSoft quota_avail_soft: u64 = 39, Recommended, Get, 0;
    QuotaUsed quota_used: u64 = 40, Recommended, Get, 0;
    Rawdev rawdev: Specdata4 = 41, Recommended, Get, 0;
    SpaceAvail space_avail: u64 = 42, Recommended, Get, 0;
    SpaceFree space_free: u64 = 43, Recommended, Get, 0;
    SpaceTotal space_total: u64 = 44, Recommended, Get, 0;
    SpaceUsed space_used: u64 = 45, Recommended, Get, 0;
    System system: bool = 46, Recommended, GetSet, 0;
    TimeAccess time_access: Nfstime4 = 47, Recommended, Get, 0;
    TimeAccessSet time_access_set: Settime4 = 48, Recommended, Set, 0;
    TimeBackup time_backup: Nfstime4 = 49, Recommended, GetSet, 0;
    TimeCreate time_create: Nfstime4 = 50, Recommended, GetSet, 0;
    TimeDelta time_delta: Nfstime4 = 51, Recommended, Get, 0;
    TimeMetadata time_metadata: Nfstime4 = 52, Recommended, Get, 0;
    TimeModify time_modify: Nfstime4 = 53, Recommended, Get, 0;
    TimeModifySet time_modify_set: Settime4 = 54, Recommended, Set, 0;
    MountedOnFileid mounted_on_fileid: u64 = 55, Recommended, Get, 0;
    DirNotifDelay dir_notif_delay: Nfstime4 = 56, Recommended, Get, 1;
    DirentNotifDelay dirent_notif_delay: Nfstime4 = 57, Recommended, Get, 1;
    Dacl dacl: Nfsacl41 = 58, Recommended, GetSet, 1;
    Sacl sacl: Nfsacl41 = 59, Recommended, GetSet, 1;
    ChangePolicy change_policy: Fsid4 = 60, Recommended, Get, 1;
    FsStatus fs_status: Fs4Status = 61, Recommended, Get, 1;
    FsLayoutTypes fs_layout_types: Vec<Layouttype4> = 62, Recommended, Get, 1;
    LayoutHint layout_hint: Layouthint4 = 63, Recommended, Set, 1;
    LayoutTypes layout_types: Vec<Layouttype4> = 64, Recommended, Get, 1;
    LayoutBlksize layout_blksize: u32 = 65, Recommended, Get, 1;
    LayoutAlignment layout_alignment: u32 = 66, Recommended, Get, 1;
    FsLocationsInfo fs_locations_info: FsLocationsInfo4 = 67, Recommended, Get, 1;
    Mdsthreshold mdsthreshold: Mdsthreshold4 = 68, Recommended, Get, 1;
    RetentionGet retention_get: RetentionGet4 = 69, Recommended, Get, 1;
    RetentionSet retention_set: RetentionSet4 = 70, Recommended, Set, 1;
    RetentevtGet retentevt_get: RetentionGet4 = 71, Recommended, Get, 1;
    RetentevtSet retentevt_set: RetentionSet4 = 72, Recommended, Set, 1;
    RetentionHold retention_hold: u64 = 73, Recommended, GetSet, 1;
    ModeSetMasked mode_set_masked: ModeMasked4 = 74, Recommended, Set, 1;
    SuppattrExclcreat suppattr_exclcreat: Bitmap4 = 75, Required, Get, 1;
    FsCharsetCap fs_charset_cap: u32 = 76, Recommended, Get, 1;
    CloneBlksize clone_blksize: u32 = 77, Recommended, Get, 2;
    SpaceFreed space_freed: u64 = 78, Recommended, Get, 2;
    ChangeAttrType change_attr_type: ChangeAttrType4 = 79, Recommended, Get, 2;
    SecLabel sec_label: SecLabel4 = 80, Recommended, GetSet, 2;
    ModeUmask mode_umask: ModeUmask4 = 81, Recommended, Set, 2;
    XattrSupport xattr_support: bool = 82, Recommended, Get, 2;
    Offline offline: bool = 83, Recommended, Get, 2;
    TimeDelegAccess time_deleg_access: Nfstime4 = 84, Recommended, GetSet, 2;
    TimeDelegModify time_deleg_modify: Nfstime4 = 85, Recommended, GetSet, 2;
    OpenArguments open_arguments: OpenArguments4 = 86, Recommended, Get, 2;
}

impl Attr4 {
    /// Decodes a value and discards it.
    ///
    /// # Errors
    /// Returns an error if the value is malformed.
    pub fn skip_value(self, decoder: &mut Decoder<'_>) -> Result<(), DecodeError> {
        Attrs::default().decode_value(self, decoder)
    }

    /// Returns the attributes that minor version `minor` defines and whose access satisfies `access`.
    pub fn defined(minor: u32, access: impl Fn(Access) -> bool) -> Bitmap4 {
        Self::ALL
            .iter()
            .filter(|attr| attr.since() <= minor && access(attr.access()))
            .map(|&attr| attr as u32)
            .collect()
    }
}

impl FromIterator<Attr4> for Bitmap4 {
    fn from_iter<I: IntoIterator<Item = Attr4>>(attributes: I) -> Self {
        attributes.into_iter().map(|attribute| attribute as u32).collect()
    }
}

/// Bits of a mode to set, with a mask (RFC 8881 §6.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ModeMasked4 {
    /// The new values of the bits.
    pub value_to_set: u32,
    /// The mask of the bits to set.
    pub mask_bits: u32,
}

/// A mode, and the umask of the process that creates the object (RFC 8275 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ModeUmask4 {
    /// The requested mode.
    pub mode: u32,
    /// The umask, which does not apply if the object inherits an access control list.
    pub umask: u32,
}

/// The arguments of OPEN that a server supports (RFC 9754): sets of values, except for `share_access_want`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct OpenArguments4 {
    /// The `OPEN4_SHARE_ACCESS_` values.
    pub share_access: Bitmap4,
    /// The `OPEN4_SHARE_DENY_` values.
    pub share_deny: Bitmap4,
    /// The `OPEN_ARGS_SHARE_ACCESS_WANT_` numbers.
    pub share_access_want: Bitmap4,
    /// The discriminants of `OpenClaim4`.
    pub open_claim: Bitmap4,
    /// The discriminants of `Createhow4`.
    pub create_mode: Bitmap4,
}

/// The client can ask for a delegation of any kind.
pub const OPEN_ARGS_SHARE_ACCESS_WANT_ANY_DELEG: u32 = 3;
/// The client can ask for no delegation.
pub const OPEN_ARGS_SHARE_ACCESS_WANT_NO_DELEG: u32 = 4;
/// The client can cancel an earlier request for a delegation.
pub const OPEN_ARGS_SHARE_ACCESS_WANT_CANCEL: u32 = 5;

/// The behaviour of the change attribute (RFC 7862 §12.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[repr(u32)]
pub enum ChangeAttrType4 {
    /// It increases with each change.
    MonotonicIncr = 0,
    /// It increases by one with each change.
    VersionCounter = 1,
    /// It increases by one with each change if no layouts are used.
    VersionCounterNopnfs = 2,
    /// It is the time of the last change.
    TimeMetadata = 3,
    /// The behaviour is not known.
    Undefined = 4,
}

/// Encoded attributes (`fattr4`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Fattr4 {
    /// The set of attributes.
    pub attrmask: Bitmap4,
    /// The values, in the order of the attributes' numbers.
    pub attr_vals: Opaque<ATTRS_BOUND>,
}

/// The purpose of decoded attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// SETATTR, OPEN or CREATE sets them.
    Set,
    /// VERIFY or NVERIFY compares them.
    Verify,
    /// They are results of GETATTR, READDIR or CB_GETATTR.
    Get,
}

/// The reason why received attributes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrError {
    /// The number of the attribute.
    pub attribute: u32,
    /// The kind of error.
    pub kind: AttrErrorKind,
}

/// An error in an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrErrorKind {
    /// No minor version up to the current one defines the attribute.
    Unknown,
    /// The attribute cannot be set.
    GetOnly,
    /// The attribute cannot be read or compared.
    SetOnly,
    /// The value of the attribute, or the data after the last value, is malformed.
    Malformed(DecodeError),
}

impl AttrError {
    /// Returns the status for the client.
    pub fn status(&self) -> Nfsstat4 {
        match self.kind {
            // RFC 8881 §15.1.15.1: also for required attributes of another minor version.
            AttrErrorKind::Unknown => Nfsstat4::AttrNotSupp,
            // RFC 8881 §18.30.3 for SETATTR, §18.31.3 for VERIFY.
            AttrErrorKind::GetOnly | AttrErrorKind::SetOnly => Nfsstat4::Inval,
            AttrErrorKind::Malformed(_) => Nfsstat4::BadXdr,
        }
    }
}

impl fmt::Display for AttrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Attr4::from_number(self.attribute) {
            Some(attribute) => write!(f, "attribute {}: ", attribute.name()),
            None => write!(f, "attribute {}: ", self.attribute),
        }?;
        match &self.kind {
            AttrErrorKind::Unknown => write!(f, "not defined in this minor version"),
            AttrErrorKind::GetOnly => write!(f, "cannot be set"),
            AttrErrorKind::SetOnly => write!(f, "can only be set"),
            AttrErrorKind::Malformed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AttrError {}

impl Fattr4 {
    /// Decodes the attributes in minor version `minor`.
    ///
    /// # Errors
    /// Returns the first attribute that is unknown or cannot be used for `purpose`. If there is none, returns the first
    /// malformed one.
    pub fn to_attrs(&self, minor: u32, purpose: Purpose) -> Result<Attrs, AttrError> {
        let mut attrs = Attrs::default();
        self.read_into(minor, purpose, &mut attrs)?;
        Ok(attrs)
    }

    /// Decodes the attributes like [`to_attrs`](Self::to_attrs) into `attrs`, because the type is large and costly to
    /// move.
    ///
    /// # Errors
    /// Returns the errors of [`to_attrs`](Self::to_attrs). Some attributes may have been decoded then.
    pub fn read_into(&self, minor: u32, purpose: Purpose, attrs: &mut Attrs) -> Result<(), AttrError> {
        self.read(minor, purpose, |attribute, decoder| attrs.decode_value(attribute, decoder))
    }

    /// Decodes the attributes one by one. `value` decodes the value of each.
    ///
    /// # Errors
    /// Returns the errors of [`to_attrs`](Self::to_attrs). Some attributes may have been decoded then.
    pub fn read(
        &self,
        minor: u32,
        purpose: Purpose,
        mut value: impl FnMut(Attr4, &mut Decoder<'_>) -> Result<(), DecodeError>,
    ) -> Result<(), AttrError> {
        check(&self.attrmask, minor, purpose)?;
        let malformed = |attribute, error| AttrError { attribute, kind: AttrErrorKind::Malformed(error) };
        let mut decoder = Decoder::from(&self.attr_vals.0);
        let mut last = 0;
        for attribute in self.attrmask.iter().filter_map(Attr4::from_number) {
            last = attribute as u32;
            value(attribute, &mut decoder).map_err(|error| malformed(last, error))?;
        }
        decoder.finish().map_err(|error| malformed(last, error))
    }
}

/// Checks that all attributes of `mask` exist in this minor version and can be used for `purpose`.
///
/// # Errors
/// Returns the first attribute for which that is not true.
fn check(mask: &Bitmap4, minor: u32, purpose: Purpose) -> Result<(), AttrError> {
    /// The valid attributes, by minor version and purpose.
    static KNOWN: LazyLock<[[Bitmap4; 3]; 3]> = LazyLock::new(|| {
        [0, 1, 2].map(|minor| {
            [Purpose::Set, Purpose::Verify, Purpose::Get].map(|purpose| {
                let all = Attr4::ALL.iter().map(|&attribute| attribute as u32);
                all.filter(|&number| known(number, minor, purpose).is_ok()).collect()
            })
        })
    });
    if mask.is_subset(&KNOWN[minor.min(2) as usize][purpose as usize]) {
        return Ok(());
    }
    mask.iter().try_for_each(|number| known(number, minor, purpose).map(drop))
}

/// Returns the attribute with this number, if this minor version defines it and it can be used for `purpose`.
fn known(attribute: u32, minor: u32, purpose: Purpose) -> Result<Attr4, AttrError> {
    let error = |kind| Err(AttrError { attribute, kind });
    let Some(known) = Attr4::from_number(attribute).filter(|known| known.since() <= minor) else {
        return error(AttrErrorKind::Unknown);
    };
    match (purpose, known.access()) {
        (Purpose::Set, Access::Get) => error(AttrErrorKind::GetOnly),
        (Purpose::Verify | Purpose::Get, Access::Set) => error(AttrErrorKind::SetOnly),
        // RFC 8881 §18.31.3: rdattr_error is not an attribute of an object, so it cannot be compared.
        (Purpose::Verify, _) if known == Attr4::RdattrError => error(AttrErrorKind::SetOnly),
        _ => Ok(known),
    }
}

/// Encodes attributes in the format of [`Fattr4`].
impl Encode for Attrs {
    fn encode(&self, encoder: &mut Encoder) {
        self.mask().encode(encoder);
        let length_at = encoder.stream_len();
        encoder.length(0);
        self.encode_values(encoder);
        let len = encoder.stream_len() - length_at - 4;
        encoder.patch_u32(length_at, u32::try_from(len).expect("attributes must fit into a message"));
    }
}

impl From<&Attrs> for Fattr4 {
    fn from(attrs: &Attrs) -> Self {
        let mut encoder = Encoder::default();
        attrs.encode_values(&mut encoder);
        Self { attrmask: attrs.mask(), attr_vals: Opaque(encoder.finish().stream) }
    }
}

impl From<Attrs> for Fattr4 {
    fn from(attrs: Attrs) -> Self {
        Self::from(&attrs)
    }
}

/// Maximum bytes of the values of one object's attributes. Long access control lists fit.
const ATTRS_BOUND: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use xdr::Message;

    use super::*;

    fn fattr(bits: &[u32], words: &[u32]) -> Fattr4 {
        let values: Bytes = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        Fattr4 { attrmask: bits.iter().copied().collect(), attr_vals: Opaque(values) }
    }

    #[test]
    fn table_is_in_order_and_without_gaps() {
        for (number, attribute) in Attr4::ALL.iter().enumerate() {
            assert_eq!(*attribute as usize, number);
            assert_eq!(Attr4::from_number(number as u32), Some(*attribute));
        }
        assert_eq!(Attr4::from_number(Attr4::ALL.len() as u32), None);
    }

    #[test]
    fn required_attributes_match_the_rfcs() {
        // RFC 8881 table 4. RFC 7530 table 3 has the same attributes except for the last one.
        let required = Attr4::ALL.iter().filter(|attr| attr.necessity() == Necessity::Required);
        assert_eq!(
            required.map(|attr| *attr as u32).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19, 75]
        );
    }

    #[test]
    fn set_only_attributes_match_the_rfcs() {
        let set_only = Attr4::defined(2, |access| access == Access::Set);
        assert_eq!(set_only.iter().collect::<Vec<_>>(), [48, 54, 63, 70, 72, 74, 81]);
        let settable = Attr4::defined(0, |access| access == Access::GetSet);
        assert_eq!(settable.iter().collect::<Vec<_>>(), [4, 12, 14, 25, 32, 33, 36, 37, 46, 49, 50]);
    }

    #[test]
    fn values_are_in_numerical_order() {
        let attrs = Attrs { mode: Some(0o644), size: Some(9), owner: Some("7".into()), ..Attrs::default() };
        let sent = Fattr4::from(&attrs);
        assert_eq!(sent, fattr(&[4, 33, 36], &[0, 9, 0o644, 1, 0x37000000]));
        assert_eq!(sent.to_attrs(0, Purpose::Set), Ok(attrs.clone()));
        assert_eq!(Message::encode(&attrs).stream, Message::encode(&sent).stream);
        let mut kept = attrs;
        kept.retain(&[4, 5].into_iter().collect());
        assert_eq!(kept, Attrs { size: Some(9), ..Attrs::default() });
    }

    #[test]
    fn attributes_that_cannot_be_set_have_distinct_errors() {
        let status = |fattr: Fattr4, minor, purpose| fattr.to_attrs(minor, purpose).map_err(|error| error.status());
        assert_eq!(status(fattr(&[87], &[]), 2, Purpose::Set), Err(Nfsstat4::AttrNotSupp));
        assert_eq!(status(fattr(&[1999], &[]), 2, Purpose::Get), Err(Nfsstat4::AttrNotSupp));
        assert_eq!(status(fattr(&[81], &[0o644, 0o22]), 1, Purpose::Set), Err(Nfsstat4::AttrNotSupp));
        assert_eq!(status(fattr(&[3], &[0, 0]), 0, Purpose::Set), Err(Nfsstat4::Inval));
        assert_eq!(status(fattr(&[48], &[0]), 0, Purpose::Verify), Err(Nfsstat4::Inval));
        assert_eq!(status(fattr(&[11], &[0]), 0, Purpose::Verify), Err(Nfsstat4::Inval));
        assert_eq!(status(fattr(&[4], &[0]), 0, Purpose::Set), Err(Nfsstat4::BadXdr));
        assert_eq!(status(fattr(&[4], &[0, 0, 0]), 0, Purpose::Set), Err(Nfsstat4::BadXdr));
        assert_eq!(status(fattr(&[48], &[7]), 0, Purpose::Set), Err(Nfsstat4::BadXdr));
        let error = fattr(&[4, 33], &[0, 0]).to_attrs(0, Purpose::Set).unwrap_err();
        assert_eq!(error.to_string(), "attribute mode: truncated at XDR offset 8");
    }
}
