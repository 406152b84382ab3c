//! [`Listing`]: an open directory. The kernel asks for one page at a time. The listing asks the server for more, and
//! keeps the remaining entries.
//!
//! NFSv3 lists `.` and `..`. NFSv4 does not (RFC 8881 §18.23), so they are added here. Their cookies, 1 and 2, are
//! values that an NFSv4 server must not use.

use std::collections::VecDeque;

use bytes::Bytes;
use client::{Entry, Handle, Mount, Result, Verifier};

use super::staged::Room;

/// The position in a directory that is being read.
#[derive(Default)]
pub struct Listing {
    verf: Verifier,
    /// The cookie that precedes the remaining entries.
    behind: u64,
    waiting: VecDeque<Entry>,
    eof: bool,
    /// The server of the directory, which can change by migration.
    server: u64,
    /// The time, of the clock of [`Room`], at which the remaining entries were requested.
    requested_at: u64,
}

impl Listing {
    /// Returns the entry after a cookie, 0 for the first; `None` after the last. Attributes and handle can be missing.
    ///
    /// # Errors
    /// READDIRPLUS, or READDIR, failed.
    pub async fn next(&mut self, mount: &Mount, dir: &Handle, cookie: u64, room: &Room) -> Result<Option<Entry>> {
        let cookie = match (mount.v4(), cookie) {
            (Some(_), START) => return Ok(Some(dot(b".", BEHIND_OWN))),
            (Some(_), BEHIND_OWN) => return Ok(Some(dot(b"..", BEHIND_PARENT))),
            (Some(_), BEHIND_PARENT) => START,
            (_, cookie) => cookie,
        };
        if cookie != self.behind || (self.waiting.is_empty() && !self.eof) {
            self.requested_at = room.now();
            self.fetch(mount, dir, cookie).await?;
        }
        let entry = self.waiting.pop_front();
        if let Some(entry) = &entry {
            self.behind = entry.cookie;
        }
        Ok(entry)
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
        self.waiting.push_front(entry);
    }

    async fn fetch(&mut self, mount: &Mount, dir: &Handle, cookie: u64) -> Result<()> {
        // RFC 1813 §3.3.16: the first call has a verifier of zeros.
        let verf = if cookie == START { Verifier::default() } else { self.verf };
        let page = mount.protocol().readdir(dir, cookie, verf, LISTING, true).await?;
        self.verf = page.verifier;
        (self.behind, self.waiting, self.eof) = (cookie, page.entries.into(), page.eof);
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
