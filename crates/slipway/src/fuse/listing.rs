//! [`Listing`]: an open directory. The kernel asks for a page at a time; the server is asked for more, and what is left
//! over waits here.
//!
//! NFSv3 lists `.` and `..`; NFSv4 does not (RFC 8881 §18.23), so they are added here. Their cookies, 1 and 2, are values that
//! an NFSv4 server is told not to use.

use std::collections::VecDeque;

use bytes::Bytes;
use client::{Entry, Handle, Mount, Result, Verifier};

/// Where the reading of a directory is.
#[derive(Default)]
pub struct Listing {
    verf: Verifier,
    /// The cookie behind which the waiting entries are.
    behind: u64,
    waiting: VecDeque<Entry>,
    eof: bool,
    /// The server that has the directory: a file system can move.
    server: u64,
}

impl Listing {
    /// The entry behind a cookie, 0 for the first; `None` behind the last. Attributes and handle may be missing.
    ///
    /// # Errors
    /// READDIRPLUS, or READDIR, failed.
    pub async fn next(&mut self, mount: &Mount, dir: &Handle, cookie: u64) -> Result<Option<Entry>> {
        let cookie = match (mount.v4(), cookie) {
            (Some(_), START) => return Ok(Some(dot(b".", BEHIND_OWN))),
            (Some(_), BEHIND_OWN) => return Ok(Some(dot(b"..", BEHIND_PARENT))),
            (Some(_), BEHIND_PARENT) => START,
            (_, cookie) => cookie,
        };
        if cookie != self.behind || (self.waiting.is_empty() && !self.eof) {
            self.fetch(mount, dir, cookie).await?;
        }
        let entry = self.waiting.pop_front();
        if let Some(entry) = &entry {
            self.behind = entry.cookie;
        }
        Ok(entry)
    }

    /// Whether the cookie is another server's, as the directory has moved since: it means nothing any more.
    pub fn has_moved(&mut self, mount: &Mount, dir: &Handle, cookie: u64) -> bool {
        let server = mount.protocol().server_of(dir);
        let dots = if mount.v4().is_some() { BEHIND_PARENT } else { START };
        std::mem::replace(&mut self.server, server) != server && cookie > dots
    }

    /// An entry, that behind `cookie`, did not fit: it comes again.
    pub fn put_back(&mut self, entry: Entry, mount: &Mount, cookie: u64) {
        self.behind = match (mount.v4(), cookie) {
            // One of the two that are added here.
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
/// Bytes of a listing that are asked for at once.
const LISTING: u32 = 64 << 10;
