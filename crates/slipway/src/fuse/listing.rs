//! [`Listing`]: an open directory. The kernel asks for one page at a time. The listing asks the server for more, and
//! keeps the remaining entries.
//!
//! NFSv3 lists `.` and `..`. NFSv4 does not (RFC 8881 §18.23), so they are added here. Their cookies, 1 and 2, are
//! values that an NFSv4 server must not use.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use bytes::Bytes;
use client::{Attr, Entry, FileKind, Handle, Mount, Result, Verifier};

use super::{mapped_acl::has_only_mode, staged::Room};

/// The position in a directory that is being read.
#[derive(Default)]
pub struct Listing {
    verf: Verifier,
    /// The cookie that precedes the remaining entries.
    behind: u64,
    /// The remaining entries, and whether each has only a mode.
    waiting: VecDeque<(Entry, bool)>,
    /// `true` if the last entry has only a mode.
    only_mode: bool,
    eof: bool,
    /// The server of the directory, which can change by migration.
    server: u64,
    /// The time, of the clock of [`Room`], at which the remaining entries were requested.
    requested_at: u64,
}

/// The demand of programs for the ACLs of the entries that they list, as `ls -l` has. While there is some, a server of NFSv4 sends them with the
/// entries.
#[derive(Debug, Default)]
pub struct AclDemand(AtomicU32);

impl AclDemand {
    /// Records that a program wants the ACL of an object.
    pub fn record(&self) {
        self.0.store(PAGES, Relaxed);
    }

    /// Returns `true` if the next page should have ACLs.
    fn take_page(&self) -> bool {
        self.0.fetch_update(Relaxed, Relaxed, |pages| pages.checked_sub(1)).is_ok()
    }
}

impl Listing {
    /// Returns the entry after a cookie, 0 for the first; `None` after the last. Attributes and handle can be missing.
    ///
    /// # Errors
    /// READDIRPLUS, or READDIR, failed.
    pub async fn next(
        &mut self,
        mount: &Mount,
        dir: &Handle,
        cookie: u64,
        room: &Room,
        acls: Option<&AclDemand>,
    ) -> Result<Option<Entry>> {
        self.only_mode = false;
        let cookie = match (mount.v4(), cookie) {
            (Some(_), START) => return Ok(Some(dot(b".", BEHIND_OWN))),
            (Some(_), BEHIND_OWN) => return Ok(Some(dot(b"..", BEHIND_PARENT))),
            (Some(_), BEHIND_PARENT) => START,
            (_, cookie) => cookie,
        };
        if cookie != self.behind || (self.waiting.is_empty() && !self.eof) {
            self.requested_at = room.now();
            self.fetch(mount, dir, cookie, acls).await?;
        }
        let Some((entry, only_mode)) = self.waiting.pop_front() else { return Ok(None) };
        (self.behind, self.only_mode) = (entry.cookie, only_mode);
        Ok(Some(entry))
    }

    /// Returns `true` if the server has sent that the last entry has no more rights than its mode says.
    pub fn has_only_mode(&self) -> bool {
        self.only_mode
    }

    /// Returns the time at which the attributes of the last entry were requested.
    pub fn requested_at(&self) -> u64 {
        self.requested_at
    }

    /// Returns `true` if the directory has migrated since the cookie was issued: then the cookie is invalid.
    pub fn has_moved(&mut self, mount: &Mount, dir: &Handle, cookie: u64) -> bool {
        let server = mount.protocol().server_of(dir);
        let dots = if mount.v4().is_some() { BEHIND_PARENT } else { START };
        std::mem::replace(&mut self.server, server) != server && cookie > dots
    }

    /// Keeps the entry after `cookie`, because it did not fit.
    pub fn put_back(&mut self, entry: Entry, mount: &Mount, cookie: u64) {
        self.behind = match (mount.v4(), cookie) {
            // One of the two entries that are added here.
            (Some(_), START | BEHIND_OWN) => return,
            (Some(_), BEHIND_PARENT) => START,
            (_, cookie) => cookie,
        };
        self.waiting.push_front((entry, self.only_mode));
    }

    async fn fetch(&mut self, mount: &Mount, dir: &Handle, cookie: u64, acls: Option<&AclDemand>) -> Result<()> {
        // RFC 1813 §3.3.16: the first call has a verifier of zeros.
        let verf = if cookie == START { Verifier::default() } else { self.verf };
        let v4 = mount.v4().filter(|_| acls.is_some_and(AclDemand::take_page));
        let (page, acls) = match v4 {
            Some(v4) => v4.readdir_acls(dir, cookie, verf, LISTING).await?,
            None => (mount.protocol().readdir(dir, cookie, verf, LISTING, true).await?, Vec::new()),
        };
        let mut acls = acls.into_iter();
        let with_acl = |entry: Entry| {
            let attr_and_acl = entry.attr.as_ref().zip(acls.next().flatten());
            let only_mode = |(attr, acl): (&Attr, Vec<_>)| has_only_mode(&acl, attr.kind == FileKind::Dir, attr.mode);
            let only_mode = attr_and_acl.is_some_and(only_mode);
            (entry, only_mode)
        };
        self.verf = page.verifier;
        self.waiting = page.entries.into_iter().map(with_acl).collect();
        (self.behind, self.eof) = (cookie, page.eof);
        Ok(())
    }
}

fn dot(name: &'static [u8], cookie: u64) -> Entry {
    Entry { fileid: 0, name: Bytes::from_static(name), cookie, attr: None, handle: None }
}

const START: u64 = 0;
/// RFC 8881 §18.23.3: an NFSv4 server does not use the cookies 1 and 2.
const BEHIND_OWN: u64 = 1;
const BEHIND_PARENT: u64 = 2;
/// The bytes of a listing in one request.
const LISTING: u32 = 64 << 10;
/// The number of pages with ACLs after a program has wanted the ACL of an object.
const PAGES: u32 = 8;
