//! Converts attributes, times and errors between NFS and FUSE.

use client::{Attr, Device, Error, ErrorKind, FileKind, SetTime, Status, Time};
use rpc::{ClientError, RejectStat};
use rustix::io::Errno;

use super::wire::Attributes;

/// Returns the attributes of the object that has this number, in the kernel and for programs.
pub fn attributes(ino: u64, attr: &Attr, block: u32) -> Attributes {
    Attributes {
        node: ino,
        ino,
        size: attr.size,
        blocks: attr.used.div_ceil(512),
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        mode: kind(attr.kind) | (attr.mode & 0o7777),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device_number(attr.rdev),
        blksize: block,
    }
}

/// Returns the file type in the bits of stat(2)'s mode.
fn kind(kind: FileKind) -> u32 {
    match kind {
        FileKind::Reg => 0o100_000,
        FileKind::Dir => 0o040_000,
        FileKind::Blk => 0o060_000,
        FileKind::Chr => 0o020_000,
        FileKind::Lnk => 0o120_000,
        FileKind::Sock => 0o140_000,
        FileKind::Fifo => 0o010_000,
    }
}

/// Encodes a device number in Linux's 32-bit format, which FUSE uses: 12 bits of major between the 8 low and 12 high
/// bits of the minor.
pub fn device_number(device: Device) -> u32 {
    let Device { major, minor } = device;
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

/// Decodes a device number.
pub fn device(number: u32) -> Device {
    Device { major: (number >> 8) & 0xfff, minor: (number & 0xff) | ((number >> 12) & 0xf_ff00) }
}

/// Returns the time to set if `is_set`: the server's time if `now`, else this one. NFSv3 has no times before 1970 and
/// after 2106.
pub fn set_time(is_set: bool, now: bool, seconds: i64, nseconds: u32) -> SetTime {
    match (is_set, now) {
        (false, _) => SetTime::DontChange,
        (true, true) => SetTime::ToServerTime,
        (true, false) => SetTime::ToClientTime(Time { seconds, nseconds }),
    }
}

/// Returns the errno of a failed operation.
pub fn errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Status(status) => match status {
            Status::NotPermitted | Status::WrongSecurity => Errno::PERM,
            Status::NotFound => Errno::NOENT,
            Status::NoDeviceOrAddress => Errno::NXIO,
            Status::AccessDenied => Errno::ACCESS,
            Status::AlreadyExists => Errno::EXIST,
            Status::CrossDevice => Errno::XDEV,
            Status::NoDevice => Errno::NODEV,
            Status::NotADirectory => Errno::NOTDIR,
            Status::IsADirectory => Errno::ISDIR,
            Status::InvalidArgument | Status::BadType | Status::InvalidRange | Status::InvalidName => Errno::INVAL,
            Status::FileTooLarge => Errno::FBIG,
            Status::NoSpace => Errno::NOSPC,
            Status::ReadOnly => Errno::ROFS,
            Status::TooManyLinks => Errno::MLINK,
            Status::NameTooLong => Errno::NAMETOOLONG,
            Status::NotEmpty => Errno::NOTEMPTY,
            Status::QuotaExceeded => Errno::DQUOT,
            Status::StaleHandle | Status::BadHandle => Errno::STALE,
            Status::NotSupported => Errno::OPNOTSUPP,
            Status::Delayed | Status::LockDenied | Status::FileLocked => Errno::AGAIN,
            Status::NoAttribute => Errno::NODATA,
            Status::AttributeTooLarge => Errno::TOOBIG,
            Status::Deadlock => Errno::DEADLK,
            Status::LocksNotSupported | Status::NoLocks => Errno::NOLCK,
            Status::OpenMode => Errno::BADF,
            Status::ShareDenied => Errno::BUSY,
            _ => Errno::IO,
        },
        ErrorKind::Moved(_) => Errno::STALE,
        ErrorKind::LockManager(_) => Errno::NOLCK,
        ErrorKind::Timeout { .. } => Errno::TIMEDOUT,
        ErrorKind::Invalid(_) => Errno::INVAL,
        // The user has no ticket, or the server does not accept the user.
        ErrorKind::Flavor(_)
        | ErrorKind::Rpc(ClientError::Security(_) | ClientError::Denied(RejectStat::AuthError(_))) => Errno::ACCESS,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        let number = device_number(Device { major: 0x103, minor: 0x5_4321 });
        assert_eq!(device(number), Device { major: 0x103, minor: 0x5_4321 });
        assert_eq!(device_number(Device { major: 1, minor: 3 }), 0x103, "/dev/null");
    }

    #[test]
    fn times_are_clamped_to_the_range_of_nfs() {
        let before = Time { seconds: -2, nseconds: 5 };
        assert_eq!(set_time(true, false, -2, 5), SetTime::ToClientTime(before));
        assert_eq!(set_time(true, true, -2, 5), SetTime::ToServerTime);
        assert_eq!(set_time(false, false, -2, 5), SetTime::DontChange);
    }
}
