//! The attributes of objects for people and scripts: `ls -l` lines, JSON, times.

use serde::Serialize;

use crate::{
    copy::{Kind, Meta, Time},
    output,
};

/// An object in JSON.
#[derive(Debug, Serialize)]
pub struct ObjectJson {
    /// The path; invalid UTF-8 is replaced.
    path: String,
    /// The bytes of the path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    #[serde(rename = "type")]
    kind: Kind,
    /// The permission bits, as four octal digits.
    mode: String,
    nlink: u32,
    uid: u32,
    gid: u32,
    size: u64,
    used: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fsid: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fileid: Option<u64>,
    atime: f64,
    mtime: f64,
    ctime: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl ObjectJson {
    /// Describes an object at `path`; `target` is the target of a symbolic link.
    pub fn new(path: &[u8], meta: &Meta, target: Option<&[u8]>) -> Self {
        let seconds = |time: Time| time.seconds as f64 + f64::from(time.nanoseconds) / 1e9;
        Self {
            path: String::from_utf8_lossy(path).into_owned(),
            path_hex: std::str::from_utf8(path).is_err().then(|| hex(path)),
            kind: meta.kind,
            mode: format!("{:04o}", meta.mode),
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            size: meta.size,
            used: meta.used,
            device: matches!(meta.kind, Kind::Block | Kind::Char).then_some(meta.device),
            fsid: meta.id.map(|(fsid, _)| fsid),
            fileid: meta.id.map(|(_, fileid)| fileid),
            atime: seconds(meta.atime),
            mtime: seconds(meta.mtime),
            ctime: seconds(meta.ctime),
            target: target.map(|target| String::from_utf8_lossy(target).into_owned()),
        }
    }
}

/// Returns the cells of an `ls -l` line.
pub fn long(name: &[u8], meta: &Meta, target: Option<&[u8]>) -> Vec<String> {
    let size = match meta.kind {
        Kind::Block | Kind::Char => format!("{}, {}", meta.device.0, meta.device.1),
        _ => meta.size.to_string(),
    };
    let name = match target {
        Some(target) => format!("{} -> {}", output::name(name), output::name(target)),
        None => output::name(name),
    };
    vec![mode(meta), meta.nlink.to_string(), meta.uid.to_string(), meta.gid.to_string(), size, time(meta.mtime), name]
}

/// Returns type and permissions in the form `drwxr-xr-x`.
pub fn mode(meta: &Meta) -> String {
    let mut text = String::from(meta.kind.letter());
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = meta.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, meta.mode & special != 0) {
            (true, true) => set,
            (false, true) => unset,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Formats a time in UTC with seconds: `2026-01-31 23:59:59`.
pub fn time(time: Time) -> String {
    let (days, second) = (time.seconds.div_euclid(86_400), time.seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// Returns the date that is `days` days after 1970-01-01. Eras of 400 years begin in March, so that a leap day is the
/// last day of a year.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_dates() {
        let at = |seconds| time(Time { seconds, nanoseconds: 0 });
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(-1), "1969-12-31 23:59:59");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(1_709_251_199), "2024-02-29 23:59:59");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00");
        assert_eq!(at(4_294_967_295), "2106-02-07 06:28:15");
    }

    #[test]
    fn modes_are_formatted_as_letters() {
        let attr = Time { seconds: 0, nanoseconds: 0 };
        let with = |kind, bits| {
            mode(&Meta {
                kind,
                mode: bits,
                nlink: 1,
                uid: 0,
                gid: 0,
                size: 0,
                used: 0,
                device: (0, 0),
                id: Some((0, 0)),
                atime: attr,
                mtime: attr,
                ctime: attr,
            })
        };
        assert_eq!(with(Kind::Dir, 0o755), "drwxr-xr-x");
        assert_eq!(with(Kind::File, 0o4711), "-rws--x--x");
        assert_eq!(with(Kind::Dir, 0o1777), "drwxrwxrwt");
        assert_eq!(with(Kind::File, 0o6640), "-rwSr-S---");
    }
}
