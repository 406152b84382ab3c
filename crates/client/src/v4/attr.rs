//! Converts attributes of NFSv4 from and to those of all versions.

use std::sync::LazyLock;

use bytes::Bytes;
use nfs::v4::{
    Bitmap4, Fsid4, Ftype4, Nfstime4, OPAQUE_LIMIT, Settime4, Specdata4,
    attr::{Attr4, AttrError, Attrs, Fattr4, Purpose},
};
use rpc::users::Who;
use xdr::{Decode, DecodeError, Decoder, Opaque};

use super::owners::{self, NOBODY};
use crate::model::{Attr, Device, Error, ErrorKind, FileKind, Result, SetAttr, SetTime, Time};

/// The attributes that are requested for every object.
pub(crate) static WANTED: LazyLock<Bitmap4> = LazyLock::new(|| {
    [
        Attr4::Type,
        Attr4::Size,
        Attr4::Fsid,
        Attr4::Fileid,
        Attr4::Mode,
        Attr4::Numlinks,
        Attr4::Owner,
        Attr4::OwnerGroup,
        Attr4::Rawdev,
        Attr4::SpaceUsed,
        Attr4::TimeAccess,
        Attr4::TimeMetadata,
        Attr4::TimeModify,
    ]
    .into_iter()
    .collect()
});

/// Decodes the values of attributes.
///
/// # Errors
/// The attributes are malformed.
pub(crate) fn values(fattr: &Fattr4) -> Result<Attrs> {
    fattr.to_attrs(2, Purpose::Get).map_err(malformed)
}

/// Decodes the attributes of an object.
///
/// # Errors
/// The attributes are malformed, or lack one that every server supports.
pub(crate) fn of(fattr: &Fattr4) -> Result<Attr> {
    // Most servers return all requested attributes. If a value is malformed, the slower way below returns the error with
    // its attribute.
    let mut decoder = Decoder::from(&fattr.attr_vals.0);
    if fattr.attrmask == *WANTED
        && let Ok(wanted) = Wanted::decode(&mut decoder)
        && decoder.finish().is_ok()
    {
        return Ok(wanted.into());
    }
    let mut fields = Fields::default();
    fattr.read(2, Purpose::Get, |attribute, decoder| fields.read(attribute, decoder)).map_err(malformed)?;
    fields
        .attr()
        .ok_or_else(|| Error::new(ErrorKind::Protocol("the attributes lack type or size".to_owned()), "GETATTR"))
}

fn malformed(error: AttrError) -> Error {
    Error::new(ErrorKind::Protocol(error.to_string()), "GETATTR")
}

/// Returns the attributes of an object; `None` if one is missing that every server supports, as in an entry with
/// rdattr_error.
pub(crate) fn from_values(attrs: &Attrs) -> Option<Attr> {
    Fields::from(attrs).attr()
}

/// The values of [`WANTED`], in the order of their numbers.
struct Wanted {
    object_type: Ftype4,
    size: u64,
    fsid: Fsid4,
    fileid: u64,
    mode: u32,
    numlinks: u32,
    owner: Id,
    owner_group: Id,
    rawdev: Specdata4,
    space_used: u64,
    time_access: Nfstime4,
    time_metadata: Nfstime4,
    time_modify: Nfstime4,
}

impl Decode for Wanted {
    // The values of fixed length are read together, so that the length of the stream is checked only four times.
    fn decode(decoder: &mut Decoder<'_>) -> std::result::Result<Self, DecodeError> {
        let wide = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let time = |[high, low, nseconds]: [u32; 3]| Nfstime4 { seconds: wide(high, low) as i64, nseconds };
        let object_type = Ftype4::decode(decoder)?;
        let [s1, s0, j1, j0, n1, n0, f1, f0, mode, numlinks] = decoder.words()?;
        let (owner, owner_group) = (Id::decode(Who::User, decoder)?, Id::decode(Who::Group, decoder)?);
        let [specdata1, specdata2, u1, u0, a2, a1, a0, c2, c1, c0, m2, m1, m0] = decoder.words()?;
        Ok(Self {
            object_type,
            size: wide(s1, s0),
            fsid: Fsid4 { major: wide(j1, j0), minor: wide(n1, n0) },
            fileid: wide(f1, f0),
            mode,
            numlinks,
            owner,
            owner_group,
            rawdev: Specdata4 { specdata1, specdata2 },
            space_used: wide(u1, u0),
            time_access: time([a2, a1, a0]),
            time_metadata: time([c2, c1, c0]),
            time_modify: time([m2, m1, m0]),
        })
    }
}

/// A user or group ID, decoded from its name on the wire (see [`owners::id`]).
#[derive(Clone, Copy)]
struct Id(u32);

/// The values from which an [`Attr`] is made. A value that the server did not return is `None`.
#[derive(Default)]
struct Fields {
    object_type: Option<Ftype4>,
    size: Option<u64>,
    fsid: Option<Fsid4>,
    fileid: Option<u64>,
    mounted_on_fileid: Option<u64>,
    mode: Option<u32>,
    numlinks: Option<u32>,
    owner: Option<Id>,
    owner_group: Option<Id>,
    rawdev: Option<Specdata4>,
    space_used: Option<u64>,
    time_access: Option<Nfstime4>,
    time_metadata: Option<Nfstime4>,
    time_modify: Option<Nfstime4>,
}

impl Fields {
    /// Decodes one value. This avoids moving the large [`Attrs`].
    #[inline]
    fn read(&mut self, attribute: Attr4, decoder: &mut Decoder<'_>) -> std::result::Result<(), DecodeError> {
        match attribute {
            Attr4::Type => self.object_type = Some(Decode::decode(decoder)?),
            Attr4::Size => self.size = Some(decoder.u64()?),
            Attr4::Fsid => self.fsid = Some(Decode::decode(decoder)?),
            Attr4::Fileid => self.fileid = Some(decoder.u64()?),
            Attr4::MountedOnFileid => self.mounted_on_fileid = Some(decoder.u64()?),
            Attr4::Mode => self.mode = Some(decoder.u32()?),
            Attr4::Numlinks => self.numlinks = Some(decoder.u32()?),
            Attr4::Owner => self.owner = Some(Id::decode(Who::User, decoder)?),
            Attr4::OwnerGroup => self.owner_group = Some(Id::decode(Who::Group, decoder)?),
            Attr4::Rawdev => self.rawdev = Some(Decode::decode(decoder)?),
            Attr4::SpaceUsed => self.space_used = Some(decoder.u64()?),
            Attr4::TimeAccess => self.time_access = Some(Decode::decode(decoder)?),
            Attr4::TimeMetadata => self.time_metadata = Some(Decode::decode(decoder)?),
            Attr4::TimeModify => self.time_modify = Some(Decode::decode(decoder)?),
            unwanted => unwanted.skip_value(decoder)?,
        }
        Ok(())
    }

    fn attr(self) -> Option<Attr> {
        let (object_type, size) = (self.object_type?, self.size?);
        Some(Attr::from(Wanted {
            object_type,
            size,
            fsid: self.fsid.unwrap_or_default(),
            fileid: self.fileid.or(self.mounted_on_fileid).unwrap_or(0),
            mode: self.mode.unwrap_or(0),
            numlinks: self.numlinks.unwrap_or(1),
            owner: self.owner.unwrap_or(Id(NOBODY)),
            owner_group: self.owner_group.unwrap_or(Id(NOBODY)),
            rawdev: self.rawdev.unwrap_or_default(),
            space_used: self.space_used.unwrap_or(size),
            time_access: self.time_access.unwrap_or_default(),
            time_metadata: self.time_metadata.unwrap_or_default(),
            time_modify: self.time_modify.unwrap_or_default(),
        }))
    }
}

impl From<&Attrs> for Fields {
    fn from(attrs: &Attrs) -> Self {
        Self {
            object_type: attrs.object_type,
            size: attrs.size,
            fsid: attrs.fsid,
            fileid: attrs.fileid,
            mounted_on_fileid: attrs.mounted_on_fileid,
            mode: attrs.mode,
            numlinks: attrs.numlinks,
            owner: attrs.owner.as_ref().map(|text| Id(owners::id(Who::User, text))),
            owner_group: attrs.owner_group.as_ref().map(|text| Id(owners::id(Who::Group, text))),
            rawdev: attrs.rawdev,
            space_used: attrs.space_used,
            time_access: attrs.time_access,
            time_metadata: attrs.time_metadata,
            time_modify: attrs.time_modify,
        }
    }
}

/// Returns the attributes to set.
pub(crate) fn to_set(set: &SetAttr) -> Fattr4 {
    let set_time = |time| match time {
        SetTime::DontChange => None,
        SetTime::ToServerTime => Some(Settime4::ToServerTime),
        SetTime::ToClientTime(time) => {
            Some(Settime4::ToClientTime(Nfstime4 { seconds: time.seconds, nseconds: time.nseconds }))
        }
    };
    // RFC 8881 §5.9: a user without a name is written as a decimal number.
    let name = |id: u32| Opaque(Bytes::from(id.to_string()));
    Fattr4::from(&Attrs {
        size: set.size,
        mode: set.mode.map(|mode| mode & 0o7777),
        owner: set.uid.map(name),
        owner_group: set.gid.map(name),
        time_access_set: set_time(set.atime),
        time_modify_set: set_time(set.mtime),
        ..Attrs::default()
    })
}

/// Returns a device number.
pub(crate) fn specdata(device: Device) -> Specdata4 {
    Specdata4 { specdata1: device.major, specdata2: device.minor }
}

fn kind(object_type: Ftype4) -> FileKind {
    match object_type {
        Ftype4::Reg | Ftype4::NamedAttr => FileKind::Reg,
        Ftype4::Dir | Ftype4::AttrDir => FileKind::Dir,
        Ftype4::Blk => FileKind::Blk,
        Ftype4::Chr => FileKind::Chr,
        Ftype4::Lnk => FileKind::Lnk,
        Ftype4::Sock => FileKind::Sock,
        Ftype4::Fifo => FileKind::Fifo,
    }
}

impl Id {
    #[inline]
    fn decode(who: Who, decoder: &mut Decoder<'_>) -> std::result::Result<Self, DecodeError> {
        decoder.opaque_in_place(OPAQUE_LIMIT).map(|text| Self(owners::id(who, text)))
    }
}

impl From<Wanted> for Attr {
    fn from(wanted: Wanted) -> Self {
        Self {
            kind: kind(wanted.object_type),
            mode: wanted.mode & 0o7777,
            nlink: wanted.numlinks,
            uid: wanted.owner.0,
            gid: wanted.owner_group.0,
            size: wanted.size,
            used: wanted.space_used,
            rdev: Device { major: wanted.rawdev.specdata1, minor: wanted.rawdev.specdata2 },
            fsid: fsid(wanted.fsid),
            fileid: wanted.fileid,
            atime: time(wanted.time_access),
            mtime: time(wanted.time_modify),
            ctime: time(wanted.time_metadata),
        }
    }
}

/// Combines both halves of the ID of a file system. Few servers use both, and collisions are unlikely.
pub(super) fn fsid(fsid: Fsid4) -> u64 {
    if fsid.minor == 0 { fsid.major } else { fsid.major.rotate_left(32) ^ fsid.minor }
}

fn time(time: Nfstime4) -> Time {
    Time { seconds: time.seconds, nseconds: time.nseconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_attributes_decode_alike_as_one_value_and_one_by_one() {
        let time = |seconds| Some(Nfstime4 { seconds, nseconds: 9 });
        let attrs = Attrs {
            object_type: Some(Ftype4::Blk),
            size: Some(1),
            fsid: Some(Fsid4 { major: 2, minor: 3 }),
            fileid: Some(4),
            mode: Some(0o5644),
            numlinks: Some(6),
            owner: Some("7".into()),
            owner_group: Some("staff".into()),
            rawdev: Some(Specdata4 { specdata1: 10, specdata2: 11 }),
            space_used: Some(12),
            time_access: time(13),
            time_metadata: time(14),
            time_modify: time(15),
            ..Attrs::default()
        };
        assert_eq!(attrs.mask(), *WANTED);
        let attr = of(&Fattr4::from(&attrs)).unwrap();
        assert_eq!((attr.uid, attr.gid, attr.used, attr.atime.seconds, attr.ctime.seconds), (7, NOBODY, 12, 13, 14));
        assert_eq!(Some(&attr), from_values(&attrs).as_ref());
        let more = Attrs { maxname: Some(255), ..attrs.clone() };
        assert_eq!(of(&Fattr4::from(&more)).unwrap(), attr);
        let mut cut = Fattr4::from(&attrs);
        cut.attr_vals.0.truncate(100);
        assert!(of(&cut).unwrap_err().to_string().contains("attribute"));
    }

    #[test]
    fn attributes_are_converted_both_ways() {
        let time = Time { seconds: -5, nseconds: 7 };
        let set = SetAttr {
            mode: Some(0o100644),
            uid: Some(1000),
            size: Some(9),
            mtime: SetTime::ToClientTime(time),
            ..SetAttr::default()
        };
        let attrs = to_set(&set).to_attrs(1, Purpose::Set).unwrap();
        assert_eq!((attrs.mode, attrs.owner.as_ref().unwrap().0.as_ref()), (Some(0o644), &b"1000"[..]));
        assert_eq!(attrs.time_modify_set, Some(Settime4::ToClientTime(Nfstime4 { seconds: -5, nseconds: 7 })));
        let got = Attrs { object_type: Some(Ftype4::Lnk), owner_group: Some("users@example".into()), ..attrs };
        let attr = from_values(&got).unwrap();
        assert_eq!((attr.kind, attr.uid, attr.gid, attr.size), (FileKind::Lnk, 1000, NOBODY, 9));
        assert_eq!(attr.identity(), None, "an object without a number must have no identity");
        assert_eq!(Attr { fileid: 7, ..attr }.identity(), Some((0, 7)));
        assert_eq!(from_values(&Attrs::default()), None);
    }
}
