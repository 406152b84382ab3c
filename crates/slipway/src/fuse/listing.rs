//! [`Listing`]: an open directory. The kernel asks for a page at a time; the server is asked for more, and what is left
//! over waits here.

use std::collections::VecDeque;

use client::{Mount, Result};
use nfs::v3::{Cookieverf3, EntryPlus3, NfsFh3, Nfsstat3};

/// Where the reading of a directory is.
#[derive(Default)]
pub struct Listing {
    verf: Cookieverf3,
    /// The cookie behind which the waiting entries are.
    behind: u64,
    waiting: VecDeque<EntryPlus3>,
    eof: bool,
    /// The server does not know READDIRPLUS.
    plain: bool,
}

impl Listing {
    /// The entry behind a cookie, 0 for the first; `None` behind the last. Attributes and handle may be missing.
    ///
    /// # Errors
    /// READDIRPLUS, or READDIR, failed.
    pub async fn next(&mut self, mount: &Mount, dir: &NfsFh3, cookie: u64) -> Result<Option<EntryPlus3>> {
        if cookie != self.behind || (self.waiting.is_empty() && !self.eof) {
            self.fetch(mount, dir, cookie).await?;
        }
        let entry = self.waiting.pop_front();
        if let Some(entry) = &entry {
            self.behind = entry.cookie;
        }
        Ok(entry)
    }

    /// An entry did not fit: it comes again.
    pub fn put_back(&mut self, entry: EntryPlus3, cookie: u64) {
        self.behind = cookie;
        self.waiting.push_front(entry);
    }

    async fn fetch(&mut self, mount: &Mount, dir: &NfsFh3, cookie: u64) -> Result<()> {
        // RFC 1813 §3.3.16: the first call has a verifier of zeros.
        let verf = if cookie == 0 { Cookieverf3::default() } else { self.verf };
        let (entries, eof);
        match self.plain {
            false => match mount.v3().readdirplus(dir, cookie, verf, LISTING, LISTING).await {
                Err(error) if error.status() == Some(Nfsstat3::NotSupp) => {
                    self.plain = true;
                    return Box::pin(self.fetch(mount, dir, cookie)).await;
                }
                result => {
                    let ok = result?;
                    self.verf = ok.cookieverf;
                    (entries, eof) = (ok.reply.entries.into_iter().collect(), ok.reply.eof);
                }
            },
            true => {
                let ok = mount.v3().readdir(dir, cookie, verf, LISTING).await?;
                self.verf = ok.cookieverf;
                let plus = |entry: nfs::v3::Entry3| EntryPlus3 {
                    fileid: entry.fileid,
                    name: entry.name,
                    cookie: entry.cookie,
                    name_attributes: None,
                    name_handle: None,
                };
                (entries, eof) = (ok.reply.entries.into_iter().map(plus).collect(), ok.reply.eof);
            }
        }
        (self.behind, self.waiting, self.eof) = (cookie, entries, eof);
        Ok(())
    }
}

/// Bytes of a listing that are asked for at once.
const LISTING: u32 = 64 << 10;
