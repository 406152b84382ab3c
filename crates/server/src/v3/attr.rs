//! Conversion of attributes between the file system and RFC 1813.

use nfs::v3::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ, Fattr3, Ftype3,
    Nfsstat3, Nfstime3, Sattr3, SetTime, Specdata3, WccAttr,
};
use vfs::{Attr, Kind, PreAttr, Rights, SetAttr, Time};

use crate::{call::transfer::OFFSET_MAX, export::Export};

/// Converts an object's attributes.
pub(crate) fn fattr3(attr: &Attr, export: &Export) -> Fattr3 {
    Fattr3 {
        ftype: ftype3(attr.kind),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.used,
        rdev: Specdata3 { specdata1: attr.device.major, specdata2: attr.device.minor },
        // Each export is a file system of its own: objects cannot be linked or renamed between exports.
        fsid: attr.fsid ^ export.id().number(),
        fileid: attr.fileid,
        atime: nfstime3(attr.atime),
        mtime: nfstime3(attr.mtime),
        ctime: nfstime3(attr.ctime),
    }
}

/// Converts the attributes for weak cache consistency.
pub(crate) fn wcc_attr(before: &PreAttr) -> WccAttr {
    WccAttr { size: before.size, mtime: nfstime3(before.mtime), ctime: nfstime3(before.ctime) }
}

/// Converts a time. A time outside of 1970–2106 is clamped.
pub(crate) fn nfstime3(time: Time) -> Nfstime3 {
    match u32::try_from(time.seconds) {
        Ok(seconds) => Nfstime3 { seconds, nseconds: time.nanoseconds },
        Err(_) if time.seconds < 0 => Nfstime3::default(),
        Err(_) => Nfstime3 { seconds: u32::MAX, nseconds: NANOSECONDS - 1 },
    }
}

/// Converts a time from a client. Returns `Inval` if its nanoseconds are out of range.
pub(crate) fn time(time: Nfstime3) -> Result<Time, Nfsstat3> {
    if time.nseconds >= NANOSECONDS {
        return Err(Nfsstat3::Inval);
    }
    Ok(Time { seconds: time.seconds.into(), nanoseconds: time.nseconds })
}

/// Converts the attributes to set.
pub(crate) fn set_attr(set: &Sattr3) -> Result<SetAttr, Nfsstat3> {
    // System calls take the largest number to mean "do not change".
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
        return Err(Nfsstat3::Inval);
    }
    if set.size.is_some_and(|size| size > OFFSET_MAX) {
        return Err(Nfsstat3::FBig);
    }
    Ok(SetAttr {
        mode: set.mode.map(|mode| mode & 0o7777),
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set_time(set.atime)?,
        mtime: set_time(set.mtime)?,
    })
}

fn set_time(set: SetTime) -> Result<Option<vfs::SetTime>, Nfsstat3> {
    Ok(match set {
        SetTime::DontChange => None,
        SetTime::ToServerTime => Some(vfs::SetTime::Now),
        SetTime::ToClientTime(to) => Some(vfs::SetTime::To(time(to)?)),
    })
}

fn ftype3(kind: Kind) -> Ftype3 {
    match kind {
        Kind::File => Ftype3::Reg,
        Kind::Dir => Ftype3::Dir,
        Kind::Block => Ftype3::Blk,
        Kind::Char => Ftype3::Chr,
        Kind::Symlink => Ftype3::Lnk,
        Kind::Socket => Ftype3::Sock,
        Kind::Fifo => Ftype3::Fifo,
    }
}

/// Converts `ACCESS3_` bits to rights. Unknown bits are ignored (RFC 1813 §3.3.4).
pub(crate) fn rights(bits: u32) -> Rights {
    let has = |bit| bits & bit != 0;
    Rights {
        read: has(ACCESS3_READ),
        lookup: has(ACCESS3_LOOKUP),
        modify: has(ACCESS3_MODIFY),
        extend: has(ACCESS3_EXTEND),
        delete: has(ACCESS3_DELETE),
        execute: has(ACCESS3_EXECUTE),
    }
}

/// Converts rights to those `ACCESS3_` bits that have a meaning for an object of this kind.
pub(crate) fn access_bits(rights: Rights, kind: Kind) -> u32 {
    let dir = kind == Kind::Dir;
    let bit = |right, bit| if right { bit } else { 0 };
    bit(rights.read, ACCESS3_READ)
        | bit(rights.lookup && dir, ACCESS3_LOOKUP)
        | bit(rights.modify, ACCESS3_MODIFY)
        | bit(rights.extend, ACCESS3_EXTEND)
        | bit(rights.delete && dir, ACCESS3_DELETE)
        | bit(rights.execute && !dir, ACCESS3_EXECUTE)
}

const NANOSECONDS: u32 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_clamped_to_the_range_of_nfsv3() {
        let at = |seconds| nfstime3(Time { seconds, nanoseconds: 5 });
        assert_eq!(at(-1), Nfstime3 { seconds: 0, nseconds: 0 });
        assert_eq!(at(7), Nfstime3 { seconds: 7, nseconds: 5 });
        assert_eq!(at(u32::MAX.into()), Nfstime3 { seconds: u32::MAX, nseconds: 5 });
        assert_eq!(at(1 << 32), Nfstime3 { seconds: u32::MAX, nseconds: 999_999_999 });
        assert_eq!(time(Nfstime3 { seconds: 1, nseconds: 1_000_000_000 }), Err(Nfsstat3::Inval));
        assert_eq!(time(Nfstime3 { seconds: 1, nseconds: 999_999_999 }).unwrap().seconds, 1);
    }

    #[test]
    fn invalid_attributes_are_rejected() {
        let set = |sattr: Sattr3| set_attr(&sattr);
        assert_eq!(set(Sattr3 { uid: Some(u32::MAX), ..Default::default() }), Err(Nfsstat3::Inval));
        assert_eq!(set(Sattr3 { gid: Some(u32::MAX), ..Default::default() }), Err(Nfsstat3::Inval));
        assert_eq!(set(Sattr3 { size: Some(1 << 63), ..Default::default() }), Err(Nfsstat3::FBig));
        assert_eq!(set(Sattr3 { mode: Some(0o107_644), ..Default::default() }).unwrap().mode, Some(0o7644));
    }

    #[test]
    fn access_bits_round_trip_for_their_kind() {
        assert_eq!(access_bits(rights(u32::MAX), Kind::Dir), 0x1f);
        assert_eq!(access_bits(rights(u32::MAX), Kind::File), 0x2d);
        for bit in [0x01, 0x04, 0x08, 0x20] {
            assert_eq!(access_bits(rights(bit), Kind::File), bit);
        }
    }
}
