//! [`NewFile`]: the attributes of a file that this mount has just made and that no program has closed yet.
//!
//! Programs that unpack archives or copy files make a file, write it, set its times, owner and mode, and close it. Such a change of attributes
//! needs no answer of the server if it is certain to succeed: then it is staged with the data of the file, and one request
//! sends all of it at the close ([`Staged::set`](super::staged::Staged::set)). It is certain if
//!
//! - the file belongs to the caller, who has made it and sets times, the owner and group that the file has, or a mode;
//! - the mode has no set-ID or sticky bit, which a server may clear, and takes no right away, which must have effect at once;
//! - the attributes are known: nobody but this mount has written the file, in the time for which attributes are cached.

use std::time::Duration;

use client::{Attr, SetAttr, SetTime, Time};
use parking_lot::Mutex;
use tokio::time::Instant;

/// The attributes of a file, while they are known without asking the server.
#[derive(Debug, Default)]
pub struct NewFile(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    /// The number of the caller that has made the file.
    caller: u64,
    attr: Attr,
    until: Instant,
}

impl NewFile {
    /// Records that `caller` with this user ID has made the file with these attributes, which are known for `ttl`.
    pub fn made(&self, (caller, uid): (u64, u32), attr: Attr, ttl: Duration) {
        *self.0.lock() = (attr.uid == uid).then(|| Known { caller, attr, until: Instant::now() + ttl });
    }

    /// Records that this mount has written up to `end`.
    pub fn wrote(&self, end: u64) {
        if let Some(known) = &mut *self.0.lock() {
            known.attr.size = known.attr.size.max(end);
        }
    }

    /// Records that the file is closed, or that its attributes may be others.
    pub fn forget(&self) {
        *self.0.lock() = None;
    }

    /// Returns the attributes after a change by `caller` that is certain to succeed, and records them. The time of the change is not known.
    pub fn set(&self, caller: u64, set: &SetAttr) -> Option<Attr> {
        let mut known = self.0.lock();
        let Known { attr, .. } =
            known.as_mut().filter(|known| known.caller == caller && Instant::now() < known.until)?;
        *attr = changed(attr, set)?;
        Some(attr.clone())
    }
}

/// Returns the attributes after a change, if the owner of the file is allowed to make it, and if it can wait.
fn changed(attr: &Attr, set: &SetAttr) -> Option<Attr> {
    let mode = set.mode.unwrap_or(attr.mode);
    let keeps = |set: Option<u32>, now: u32| set.is_none_or(|set| set == now);
    let is_certain = set.size.is_none()
        && keeps(set.uid, attr.uid)
        && keeps(set.gid, attr.gid)
        && (mode | attr.mode) & SPECIAL == 0
        && attr.mode & !mode == 0;
    is_certain.then_some(())?;
    Some(Attr { mode, atime: time(set.atime, attr.atime)?, mtime: time(set.mtime, attr.mtime)?, ..attr.clone() })
}

/// Returns a time after a change, unless the server chooses it.
fn time(set: SetTime, now: Time) -> Option<Time> {
    match set {
        SetTime::DontChange => Some(now),
        SetTime::ToClientTime(time) => Some(time),
        SetTime::ToServerTime => None,
    }
}

/// The bits of a mode that a server may clear.
const SPECIAL: u32 = 0o7000;

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(1);

    fn new() -> NewFile {
        let file = NewFile::default();
        file.made((7, 1000), Attr { uid: 1000, gid: 100, mode: 0o600, ..attr() }, TTL);
        file
    }

    fn attr() -> Attr {
        super::super::referral::UNKNOWN
    }

    fn mode(mode: u32) -> SetAttr {
        SetAttr { mode: Some(mode), ..SetAttr::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_by_the_owner_that_are_certain_to_succeed_are_known() {
        let (file, time) = (new(), Time { seconds: 5, nseconds: 6 });
        file.wrote(10);
        file.wrote(4);
        let set = SetAttr { mtime: SetTime::ToClientTime(time), uid: Some(1000), gid: Some(100), ..mode(0o644) };
        let after = file.set(7, &set).unwrap();
        assert_eq!((after.size, after.mtime, after.mode, after.uid, after.gid), (10, time, 0o644, 1000, 100));
        assert_eq!(
            file.set(7, &mode(0o744)).map(|attr| (attr.mode, attr.mtime)),
            Some((0o744, time)),
            "changes add up"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn changes_that_can_fail_or_must_have_effect_at_once_are_not_known() {
        let owner = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
        let server_time = SetAttr { atime: SetTime::ToServerTime, ..SetAttr::default() };
        let shorter = SetAttr { size: Some(0), ..SetAttr::default() };
        let uncertain =
            [mode(0o400), mode(0o4755), mode(0o1777), owner(Some(0), None), owner(None, Some(0)), server_time, shorter];
        for set in uncertain {
            assert_eq!(new().set(7, &set), None, "{set:?}");
        }
        assert_eq!(new().set(8, &mode(0o644)), None, "another caller");
        let of_another = NewFile::default();
        of_another.made((7, 1000), Attr { uid: 65_534, ..attr() }, TTL);
        assert_eq!(of_another.set(7, &mode(0o777)), None, "the server has mapped the caller to another user");
    }

    #[tokio::test(start_paused = true)]
    async fn attributes_are_known_until_the_file_is_closed_or_the_time_is_over() {
        let file = new();
        file.forget();
        assert_eq!(file.set(7, &mode(0o644)), None);
        let file = new();
        tokio::time::advance(TTL).await;
        assert_eq!(file.set(7, &mode(0o644)), None);
    }
}
