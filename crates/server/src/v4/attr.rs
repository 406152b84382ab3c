//! Translates attributes between the file system and RFC 8881 §5, and defines which are supported.
//!
//! Values are encoded in the order of their numbers, directly from the attributes of the file system, without an
//! intermediate list.

use std::{array, sync::LazyLock};

use bytes::Bytes;
use nfs::v4::{
    Bitmap4, Fsid4, Ftype4, Layouttype4, Nfsstat4, Nfstime4, OPEN4_SHARE_ACCESS_BOTH, OPEN4_SHARE_ACCESS_READ,
    OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_DENY_BOTH, OPEN4_SHARE_DENY_NONE, OPEN4_SHARE_DENY_READ,
    OPEN4_SHARE_DENY_WRITE, Settime4, Specdata4, Utf8str,
    acl::{ACL4_SUPPORT_ALLOW_ACL, ACL4_SUPPORT_DENY_ACL, Nfsace4},
    attr::{
        Attr4, Attrs, ChangeAttrType4, Fattr4, OPEN_ARGS_SHARE_ACCESS_WANT_ANY_DELEG,
        OPEN_ARGS_SHARE_ACCESS_WANT_CANCEL, OPEN_ARGS_SHARE_ACCESS_WANT_NO_DELEG, OpenArguments4, Purpose,
    },
    location::{FsLocations4, Mdsthreshold4, ThresholdItem4},
};
use rpc::users::Who;
use vfs::{
    Attr, FsCaps, Kind, SetAttr, SetTime, StatFs, Time,
    layout::{LayoutCaps, LayoutKind},
};
use xdr::{Encode, Encoder};

use crate::{
    call::transfer::OFFSET_MAX,
    identity::names::Name,
    v4::{acl, layouts::body::layout_type, service::Context, status::Fault4},
};

/// The sources of all attribute values of an object.
pub(super) struct Subject<'a> {
    pub(super) attr: &'a Attr,
    pub(super) caps: &'a FsCaps,
    /// The layouts of the file system, if it has any.
    pub(super) layouts: Option<&'a LayoutCaps>,
    pub(super) fsid: Fsid4,
    pub(super) mounted_on_fileid: u64,
    pub(super) filehandle: &'a [u8],
    /// Present if [`needs_statfs`] returns `true`.
    pub(super) stat: Option<&'a StatFs>,
    /// Present if [`needs_acl`] returns `true`.
    pub(super) acl: Option<&'a [Nfsace4]>,
    /// Present if [`needs_locations`] returns `true`.
    pub(super) locations: Option<&'a FsLocations4>,
    /// The names of its owner and group, if [`needs_owners`] returns `true`.
    pub(super) owners: (Name, Name),
    /// `true` if the object is on another server. Most attributes are unknown then.
    pub(super) absent: bool,
    pub(super) transfer_max: u32,
    pub(super) lease_s: u32,
    pub(super) minor: u32,
    /// When a directory is read: the error of this entry.
    pub(super) rdattr_error: Nfsstat4,
}

/// The optional features of a file system that have attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    pub(super) acls: bool,
    pub(super) layouts: bool,
}

impl Features {
    /// Returns the features of a minor version and of a number from 0 to 3.
    fn numbered(number: usize) -> (u32, Self) {
        (number as u32 / 4, Self { acls: number & 1 != 0, layouts: number & 2 != 0 })
    }

    fn number(self, minor: u32) -> usize {
        minor.min(2) as usize * 4 + usize::from(self.layouts) * 2 + usize::from(self.acls)
    }
}

/// Returns the supported attributes of objects of a file system with these features.
pub(super) fn supported(minor: u32, features: Features) -> &'static Bitmap4 {
    static SUPPORTED: LazyLock<[Bitmap4; 12]> = LazyLock::new(|| {
        array::from_fn(Features::numbered).map(|(minor, features)| {
            let all = SUPPORTED_ATTRS.iter().filter(|attr| attr.since() <= minor);
            let has = |attr: &&Attr4| match attr {
                Attr4::Acl | Attr4::Aclsupport => features.acls,
                Attr4::FsLayoutTypes
                | Attr4::LayoutTypes
                | Attr4::LayoutBlksize
                | Attr4::LayoutAlignment
                | Attr4::Mdsthreshold => features.layouts,
                _ => true,
            };
            all.filter(has).map(|&attr| attr as u32).collect()
        })
    });
    &SUPPORTED[features.number(minor)]
}

/// Returns the [`supported`] attributes that can be read.
fn readable(minor: u32, features: Features) -> &'static Bitmap4 {
    static READABLE: LazyLock<[Bitmap4; 12]> = LazyLock::new(|| {
        array::from_fn(Features::numbered).map(|(minor, features)| supported(minor, features).difference(set_only()))
    });
    &READABLE[features.number(minor)]
}

/// Checks that all attributes of `mask` can be read (§5.5).
///
/// # Errors
/// INVAL.
pub(super) fn check_readable(mask: &Bitmap4) -> Result<(), Nfsstat4> {
    if mask.intersects(set_only()) { Err(Nfsstat4::Inval) } else { Ok(()) }
}

/// Returns the attributes that can be set when a file is created exclusively: not its times, which hold the verifier
/// (§5.8.1.14).
fn suppattr_exclcreat(minor: u32, features: Features) -> Bitmap4 {
    let settable = Attr4::defined(minor, |access| access != nfs::v4::attr::Access::Get);
    let mut settable = settable.intersection(supported(minor, features));
    [Attr4::Size, Attr4::TimeAccessSet, Attr4::TimeModifySet].into_iter().for_each(|attr| settable.remove(attr as u32));
    settable
}

/// Returns `true` if `mask` has an attribute about the space of the file system.
pub(super) fn needs_statfs(mask: &Bitmap4) -> bool {
    use Attr4::{FilesAvail, FilesFree, FilesTotal, SpaceAvail, SpaceFree, SpaceTotal};
    static SPACE_ATTRS: LazyLock<Bitmap4> = LazyLock::new(|| {
        let all = [FilesAvail, FilesFree, FilesTotal, SpaceAvail, SpaceFree, SpaceTotal];
        all.iter().map(|&attr| attr as u32).collect()
    });
    mask.intersects(&SPACE_ATTRS)
}

/// Returns the set that has only the type.
pub(super) fn type_alone() -> Bitmap4 {
    [Attr4::Type as u32].into_iter().collect()
}

/// Returns the encoded type of objects of a kind.
pub(super) fn type_value(kind: Kind) -> Bytes {
    let mut out = Encoder::default();
    ftype4(kind).encode(&mut out);
    out.finish().stream
}

/// Returns `true` if `mask` has the ACL.
pub(super) fn needs_acl(mask: &Bitmap4) -> bool {
    mask.contains(Attr4::Acl as u32)
}

/// Returns `true` if `mask` has the owner or the group.
pub(super) fn needs_owners(mask: &Bitmap4) -> bool {
    mask.contains(Attr4::Owner as u32) || mask.contains(Attr4::OwnerGroup as u32)
}

/// Returns the names of the owner and the group of an object, or empty names if `mask` has neither.
///
/// # Errors
/// `WouldBlock` if the host's name service must be asked and this thread must not block.
pub(super) fn owners(cx: &Context<'_>, attr: &Attr, mask: &Bitmap4) -> Result<(Name, Name), Fault4> {
    let names = &cx.shared.names;
    if !names.are_told(cx.identity) || !needs_owners(mask) {
        return Ok((Name::Number(attr.uid), Name::Number(attr.gid)));
    }
    let name = |who, id| names.name(who, id, cx.identity, cx.may_block);
    Ok((name(Who::User, attr.uid)?, name(Who::Group, attr.gid)?))
}

/// Returns `true` if `mask` has the locations of the file system.
pub(super) fn needs_locations(mask: &Bitmap4) -> bool {
    mask.contains(Attr4::FsLocations as u32)
}

/// Returns the attributes that are known about the root of a file system that is on another server (RFC 8881 §11.4.1).
pub(super) fn absent_attrs() -> &'static Bitmap4 {
    static ABSENT_ATTRS: LazyLock<Bitmap4> = LazyLock::new(|| {
        let all = [Attr4::Fsid, Attr4::RdattrError, Attr4::FsLocations, Attr4::MountedOnFileid];
        all.iter().map(|&attr| attr as u32).collect()
    });
    &ABSENT_ATTRS
}

impl Subject<'_> {
    /// Appends the attributes of `mask` that the object has, as `fattr4`.
    pub(super) fn encode(&self, mask: &Bitmap4, out: &mut Encoder) {
        let mut mask = mask.intersection(readable(self.minor, self.features()));
        if self.absent {
            mask = mask.intersection(absent_attrs());
        }
        mask.encode(out);
        let length_at = out.stream_len();
        out.length(0);
        self.encode_values(&mask, out);
        let len = out.stream_len() - length_at - 4;
        out.patch_u32(length_at, len as u32);
    }

    fn features(&self) -> Features {
        Features { acls: self.caps.acls, layouts: self.layouts.is_some() }
    }

    /// Encodes the values of `mask`. The object must have all of them.
    pub(super) fn values(&self, mask: &Bitmap4) -> Bytes {
        let mut out = Encoder::default();
        self.encode_values(mask, &mut out);
        out.finish().stream
    }

    fn encode_values(&self, mask: &Bitmap4, out: &mut Encoder) {
        for attr in mask.iter().filter_map(Attr4::from_number) {
            self.encode_value(attr, out);
        }
    }

    fn encode_value(&self, which: Attr4, out: &mut Encoder) {
        let Self { attr, caps, .. } = self;
        let stat = |value: fn(&StatFs) -> u64| self.stat.map_or(0, value);
        match which {
            Attr4::SupportedAttrs => supported(self.minor, self.features()).encode(out),
            Attr4::Type => ftype4(attr.kind).encode(out),
            // FH4_PERSISTENT: file handles never expire.
            Attr4::FhExpireType => out.u32(0),
            Attr4::Change => out.u64(attr.change),
            Attr4::Size => out.u64(attr.size),
            Attr4::LinkSupport => caps.links.encode(out),
            Attr4::SymlinkSupport => caps.symlinks.encode(out),
            Attr4::NamedAttr => false.encode(out),
            Attr4::Fsid => self.fsid.encode(out),
            Attr4::UniqueHandles => true.encode(out),
            Attr4::LeaseTime => out.u32(self.lease_s),
            Attr4::RdattrError => self.rdattr_error.encode(out),
            Attr4::Acl => {
                let aces = self.acl.unwrap_or_default();
                out.length(aces.len());
                aces.iter().for_each(|ace| ace.encode(out));
            }
            Attr4::Aclsupport => out.u32(ACL4_SUPPORT_ALLOW_ACL | ACL4_SUPPORT_DENY_ACL),
            Attr4::Cansettime => true.encode(out),
            Attr4::CaseInsensitive => false.encode(out),
            Attr4::CasePreserving => true.encode(out),
            Attr4::ChownRestricted => caps.chown_restricted.encode(out),
            Attr4::Filehandle => out.opaque(self.filehandle),
            Attr4::Fileid => out.u64(attr.fileid),
            Attr4::FilesAvail => out.u64(stat(|stat| stat.files_available)),
            Attr4::FilesFree => out.u64(stat(|stat| stat.files_free)),
            Attr4::FilesTotal => out.u64(stat(|stat| stat.files_total)),
            Attr4::FsLocations => match self.locations {
                Some(locations) => locations.encode(out),
                None => FsLocations4::default().encode(out),
            },
            Attr4::Homogeneous => true.encode(out),
            Attr4::Maxfilesize => out.u64(caps.file_size_max.min(OFFSET_MAX)),
            Attr4::Maxlink => out.u32(caps.link_max),
            Attr4::Maxname => out.u32(caps.name_max),
            Attr4::Maxread | Attr4::Maxwrite => out.u64(self.transfer_max.into()),
            Attr4::Mode => out.u32(attr.mode),
            Attr4::NoTrunc => true.encode(out),
            Attr4::Numlinks => out.u32(attr.nlink),
            Attr4::Owner => self.owners.0.encode(out),
            Attr4::OwnerGroup => self.owners.1.encode(out),
            Attr4::Rawdev => Specdata4 { specdata1: attr.device.major, specdata2: attr.device.minor }.encode(out),
            Attr4::SpaceAvail => out.u64(stat(|stat| stat.bytes_available)),
            Attr4::SpaceFree => out.u64(stat(|stat| stat.bytes_free)),
            Attr4::SpaceTotal => out.u64(stat(|stat| stat.bytes_total)),
            Attr4::SpaceUsed => out.u64(attr.used),
            Attr4::TimeAccess => time(attr.atime, out),
            Attr4::TimeDelta => {
                let (seconds, nseconds) =
                    (caps.time_resolution_ns / NANOSECONDS, caps.time_resolution_ns % NANOSECONDS);
                Nfstime4 { seconds: seconds.into(), nseconds }.encode(out);
            }
            Attr4::TimeMetadata => time(attr.ctime, out),
            Attr4::TimeModify => time(attr.mtime, out),
            Attr4::MountedOnFileid => out.u64(self.mounted_on_fileid),
            Attr4::SuppattrExclcreat => suppattr_exclcreat(self.minor, self.features()).encode(out),
            Attr4::FsCharsetCap => out.u32(FSCHARSET_CAP4_CONTAINS_NON_UTF8),
            Attr4::CloneBlksize => out.u32(caps.clone_block),
            Attr4::XattrSupport => caps.xattrs.encode(out),
            // RFC 7862 §12.2.3.
            Attr4::ChangeAttrType if caps.counts_changes => ChangeAttrType4::MonotonicIncr.encode(out),
            Attr4::ChangeAttrType => ChangeAttrType4::TimeMetadata.encode(out),
            Attr4::OpenArguments => open_arguments().encode(out),
            other => self.encode_layout_value(other, out),
        }
    }

    /// Encodes the value of an attribute about layouts.
    fn encode_layout_value(&self, which: Attr4, out: &mut Encoder) {
        match which {
            Attr4::FsLayoutTypes => layout_types(self.layouts).encode(out),
            // §5.12.2: a file has the types of its file system, and no other object has a layout.
            Attr4::LayoutTypes => layout_types(self.layouts.filter(|_| self.attr.kind == Kind::File)).encode(out),
            Attr4::LayoutBlksize => out.u32(self.layouts.map_or(0, |layouts| layouts.block_size)),
            Attr4::LayoutAlignment => out.u32(self.layouts.map_or(0, |layouts| layouts.alignment)),
            Attr4::Mdsthreshold => threshold(self.layouts).encode(out),
            other => unreachable!("{} is not supported, or cannot be read", other.name()),
        }
    }
}

/// The attributes that a client wants to set.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) set: SetAttr,
    pub(super) acl: Option<Vec<Nfsace4>>,
}

/// Decodes the attributes to set from a request about an object with the capabilities `caps`.
///
/// # Errors
/// ATTRNOTSUPP, INVAL, BADOWNER, BADXDR, FBIG. `WouldBlock` if the host's name service must be asked and this thread
/// must not block.
pub(super) fn set_attr(cx: &Context<'_>, fattr: &Fattr4, minor: u32, caps: &FsCaps) -> Result<Wanted, Fault4> {
    // The attributes of layouts cannot be set.
    let features = Features { acls: caps.acls, layouts: false };
    let mut attrs = decode(fattr, minor, features, Purpose::Set)?;
    let (names, may_block) = (&cx.shared.names, cx.may_block);
    let mode = match (attrs.mode, attrs.mode_umask) {
        // RFC 8275 §4: mode and mode_umask exclude each other.
        (Some(_), Some(_)) => return Err(Nfsstat4::Inval.into()),
        // The umask applies where no default ACL is inherited. Back ends inherit default ACLs themselves and take the
        // mode as it is.
        (None, Some(masked)) => Some(masked.mode & !masked.umask),
        (mode, None) => mode,
    };
    if mode.is_some_and(|mode| mode > 0o7777) || attrs.size.is_some_and(|size| size > OFFSET_MAX) {
        return Err(if attrs.size.is_some() { Nfsstat4::FBig } else { Nfsstat4::Inval }.into());
    }
    if let Some(aces) = &mut attrs.acl {
        acl::number_all(names, aces, may_block)?;
    }
    let id = |who| move |text: Utf8str| names.id(who, &text, may_block);
    let set = SetAttr {
        mode,
        uid: attrs.owner.map(id(Who::User)).transpose()?,
        gid: attrs.owner_group.map(id(Who::Group)).transpose()?,
        size: attrs.size,
        atime: attrs.time_access_set.map(set_time).transpose()?,
        mtime: attrs.time_modify_set.map(set_time).transpose()?,
    };
    Ok(Wanted { set, acl: attrs.acl })
}

/// Decodes the values that a client sent.
///
/// # Errors
/// ATTRNOTSUPP for an attribute that is not supported here, and the errors of [`Fattr4::to_attrs`].
pub(super) fn decode(fattr: &Fattr4, minor: u32, features: Features, purpose: Purpose) -> Result<Attrs, Nfsstat4> {
    if !fattr.attrmask.difference(supported(minor, features)).is_empty() {
        // If an attribute can never be set, INVAL takes precedence over ATTRNOTSUPP.
        fattr.to_attrs(minor, purpose).map_err(|error| error.status())?;
        return Err(Nfsstat4::AttrNotSupp);
    }
    fattr.to_attrs(minor, purpose).map_err(|error| error.status())
}

fn set_time(set: Settime4) -> Result<SetTime, Nfsstat4> {
    match set {
        Settime4::ToServerTime => Ok(SetTime::Now),
        Settime4::ToClientTime(Nfstime4 { nseconds, .. }) if nseconds >= NANOSECONDS => Err(Nfsstat4::Inval),
        Settime4::ToClientTime(Nfstime4 { seconds, nseconds }) => {
            Ok(SetTime::To(Time { seconds, nanoseconds: nseconds }))
        }
    }
}

/// Returns the change attributes of a directory before and after a change.
pub(super) fn change_info(change: &vfs::Change) -> nfs::v4::ChangeInfo4 {
    nfs::v4::ChangeInfo4 { atomic: true, before: change.before.change, after: change.after.change }
}

/// Returns the layout types of a file system, in the order of preference.
fn layout_types(layouts: Option<&LayoutCaps>) -> Vec<Layouttype4> {
    layouts.into_iter().flat_map(|layouts| &layouts.kinds).map(|kind| layout_type(*kind)).collect()
}

/// Returns the attribute mdsthreshold (§5.12.4). The limits are the same for all layout types.
fn threshold(layouts: Option<&LayoutCaps>) -> Mdsthreshold4 {
    let Some((layouts, limits)) = layouts.and_then(|layouts| Some((layouts, layouts.threshold?))) else {
        return Mdsthreshold4::default();
    };
    let hints = [limits.read_size, limits.write_size, limits.read_io, limits.write_io];
    let hints = || (0..).zip(hints).filter_map(|(bit, hint)| Some((bit, hint?)));
    let mut list = Encoder::default();
    hints().for_each(|(_, hint)| list.u64(hint));
    let list = list.finish().stream;
    let item = |kind: &LayoutKind| ThresholdItem4 {
        layout_type: layout_type(*kind),
        hintset: hints().map(|(bit, _): (u32, u64)| bit).collect(),
        hintlist: list.clone().into(),
    };
    Mdsthreshold4 { hints: layouts.kinds.iter().map(item).collect() }
}

/// Appends a time, as `nfstime4`.
fn time(Time { seconds, nanoseconds }: Time, out: &mut Encoder) {
    out.words([(seconds >> 32) as u32, seconds as u32, nanoseconds]);
}

pub(super) fn ftype4(kind: Kind) -> Ftype4 {
    match kind {
        Kind::File => Ftype4::Reg,
        Kind::Dir => Ftype4::Dir,
        Kind::Block => Ftype4::Blk,
        Kind::Char => Ftype4::Chr,
        Kind::Symlink => Ftype4::Lnk,
        Kind::Socket => Ftype4::Sock,
        Kind::Fifo => Ftype4::Fifo,
    }
}

fn set_only() -> &'static Bitmap4 {
    static SET_ONLY: LazyLock<Bitmap4> =
        LazyLock::new(|| Attr4::defined(2, |access| access == nfs::v4::attr::Access::Set));
    &SET_ONLY
}

/// Returns the arguments that `ops::open` supports. Not supported are requests for a later notification about a
/// delegation, and claims for servers that keep delegations across a client's restart.
fn open_arguments() -> OpenArguments4 {
    let set = |values: &[u32]| values.iter().copied().collect();
    OpenArguments4 {
        share_access: set(&[OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE, OPEN4_SHARE_ACCESS_BOTH]),
        share_deny: set(&[OPEN4_SHARE_DENY_NONE, OPEN4_SHARE_DENY_READ, OPEN4_SHARE_DENY_WRITE, OPEN4_SHARE_DENY_BOTH]),
        share_access_want: set(&[
            OPEN_ARGS_SHARE_ACCESS_WANT_ANY_DELEG,
            OPEN_ARGS_SHARE_ACCESS_WANT_NO_DELEG,
            OPEN_ARGS_SHARE_ACCESS_WANT_CANCEL,
        ]),
        // NULL, PREVIOUS, DELEGATE_CUR, FH, DELEG_CUR_FH.
        open_claim: set(&[0, 1, 2, 4, 5]),
        // UNCHECKED4, GUARDED4, EXCLUSIVE4, EXCLUSIVE4_1.
        create_mode: set(&[0, 1, 2, 3]),
    }
}

const NANOSECONDS: u32 = 1_000_000_000;
/// RFC 8881 §14.4: names may contain bytes that are not UTF-8.
const FSCHARSET_CAP4_CONTAINS_NON_UTF8: u32 = 1;
const SUPPORTED_ATTRS: &[Attr4] = &[
    Attr4::SupportedAttrs,
    Attr4::Type,
    Attr4::FhExpireType,
    Attr4::Change,
    Attr4::Size,
    Attr4::LinkSupport,
    Attr4::SymlinkSupport,
    Attr4::NamedAttr,
    Attr4::Fsid,
    Attr4::UniqueHandles,
    Attr4::LeaseTime,
    Attr4::RdattrError,
    Attr4::Acl,
    Attr4::Aclsupport,
    Attr4::Cansettime,
    Attr4::CaseInsensitive,
    Attr4::CasePreserving,
    Attr4::ChownRestricted,
    Attr4::Filehandle,
    Attr4::Fileid,
    Attr4::FilesAvail,
    Attr4::FilesFree,
    Attr4::FilesTotal,
    Attr4::FsLocations,
    Attr4::Homogeneous,
    Attr4::Maxfilesize,
    Attr4::Maxlink,
    Attr4::Maxname,
    Attr4::Maxread,
    Attr4::Maxwrite,
    Attr4::Mode,
    Attr4::NoTrunc,
    Attr4::Numlinks,
    Attr4::Owner,
    Attr4::OwnerGroup,
    Attr4::Rawdev,
    Attr4::SpaceAvail,
    Attr4::SpaceFree,
    Attr4::SpaceTotal,
    Attr4::SpaceUsed,
    Attr4::TimeAccess,
    Attr4::TimeAccessSet,
    Attr4::TimeDelta,
    Attr4::TimeMetadata,
    Attr4::TimeModify,
    Attr4::TimeModifySet,
    Attr4::MountedOnFileid,
    Attr4::FsLayoutTypes,
    Attr4::LayoutTypes,
    Attr4::LayoutBlksize,
    Attr4::LayoutAlignment,
    Attr4::Mdsthreshold,
    Attr4::SuppattrExclcreat,
    Attr4::FsCharsetCap,
    Attr4::CloneBlksize,
    Attr4::ChangeAttrType,
    Attr4::ModeUmask,
    Attr4::XattrSupport,
    Attr4::OpenArguments,
];
