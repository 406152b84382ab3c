//! [`Listing`]: an open directory. The kernel asks for a page at a time; the server is asked for more, and what is left
//! over waits here.

use std::collections::VecDeque;

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
        std::mem::replace(&mut self.server, server) != server && cookie != 0
    }

    /// An entry did not fit: it comes again.
    pub fn put_back(&mut self, entry: Entry, cookie: u64) {
        self.behind = cookie;
        self.waiting.push_front(entry);
    }

    async fn fetch(&mut self, mount: &Mount, dir: &Handle, cookie: u64) -> Result<()> {
        // RFC 1813 §3.3.16: the first call has a verifier of zeros.
        let verf = if cookie == 0 { Verifier::default() } else { self.verf };
        let page = mount.protocol().readdir(dir, cookie, verf, LISTING, true).await?;
        self.verf = page.verifier;
        (self.behind, self.waiting, self.eof) = (cookie, page.entries.into(), page.eof);
        Ok(())
    }
}

/// Bytes of a listing that are asked for at once.
const LISTING: u32 = 64 << 10;
