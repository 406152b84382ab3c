//! Converts attributes of NFSv4 from and to those of all versions.

use bytes::Bytes;
use nfs::v4::{
    Fsid4, Ftype4, Nfstime4, Settime4, Specdata4, Utf8str,
    attr::{Attr4, AttrError, Attrs, Fattr4, Purpose},
};
use xdr::{Decode, DecodeError, Decoder, Opaque};

use crate::model::{Attr, Device, Error, ErrorKind, FileKind, Result, SetAttr, SetTime, Time};

/// The attributes that are requested for every object.
pub(crate) const WANTED: &[Attr4] = &[
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
];

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

/// The values from which an [`Attr`] is made, if they are known.
#[derive(Default)]
struct Fields {
    object_type: Option<Ftype4>,
    size: Option<u64>,
    fsid: Option<Fsid4>,
    fileid: Option<u64>,
    mounted_on_fileid: Option<u64>,
    mode: Option<u32>,
    numlinks: Option<u32>,
    owner: Option<u32>,
    owner_group: Option<u32>,
    rawdev: Option<Specdata4>,
    space_used: Option<u64>,
    time_access: Option<Nfstime4>,
    time_metadata: Option<Nfstime4>,
    time_modify: Option<Nfstime4>,
}

impl Fields {
    /// Decodes one value. This avoids moving the large [`Attrs`].
    fn read(&mut self, attribute: Attr4, decoder: &mut Decoder<'_>) -> std::result::Result<(), DecodeError> {
        match attribute {
            Attr4::Type => self.object_type = Some(Decode::decode(decoder)?),
            Attr4::Size => self.size = Some(decoder.u64()?),
            Attr4::Fsid => self.fsid = Some(Decode::decode(decoder)?),
            Attr4::Fileid => self.fileid = Some(decoder.u64()?),
            Attr4::MountedOnFileid => self.mounted_on_fileid = Some(decoder.u64()?),
            Attr4::Mode => self.mode = Some(decoder.u32()?),
            Attr4::Numlinks => self.numlinks = Some(decoder.u32()?),
            Attr4::Owner => self.owner = Some(id(&Decode::decode(decoder)?)),
            Attr4::OwnerGroup => self.owner_group = Some(id(&Decode::decode(decoder)?)),
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
        let size = self.size?;
        let rdev = self.rawdev.unwrap_or_default();
        Some(Attr {
            kind: kind(self.object_type?),
            mode: self.mode.unwrap_or(0) & 0o7777,
            nlink: self.numlinks.unwrap_or(1),
            uid: self.owner.unwrap_or(NOBODY),
            gid: self.owner_group.unwrap_or(NOBODY),
            size,
            used: self.space_used.unwrap_or(size),
            rdev: Device { major: rdev.specdata1, minor: rdev.specdata2 },
            fsid: fsid(self.fsid.unwrap_or_default()),
            fileid: self.fileid.or(self.mounted_on_fileid).unwrap_or(0),
            atime: time(self.time_access),
            mtime: time(self.time_modify),
            ctime: time(self.time_metadata),
        })
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
            owner: attrs.owner.as_ref().map(id),
            owner_group: attrs.owner_group.as_ref().map(id),
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

/// Returns the user or group ID that a name contains in decimal; otherwise that of nobody, because the client does not
/// know the server's users.
fn id(name: &Utf8str) -> u32 {
    std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()).unwrap_or(NOBODY)
}

/// Combines both halves of the ID of a file system. Few servers use both, and collisions are unlikely.
pub(super) fn fsid(fsid: Fsid4) -> u64 {
    if fsid.minor == 0 { fsid.major } else { fsid.major.rotate_left(32) ^ fsid.minor }
}

fn time(time: Option<Nfstime4>) -> Time {
    time.map_or(Time::default(), |time| Time { seconds: time.seconds, nseconds: time.nseconds })
}

const NOBODY: u32 = 65534;

#[cfg(test)]
mod tests {
    use super::*;

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
