//! OPEN, CREATE and RELEASE: opens at the server, close-to-open consistency, and the number of programs that have a file open.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, sync::atomic::Ordering::Relaxed};

use client::{Attr, Caller, CreateHow, Held, SetAttr};
use nfs::{
    v3::{ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_MODIFY, ACCESS3_READ},
    v4::{OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE},
};
use rustix::{fs::OFlags, io::Errno};

use super::{
    cache::Cached,
    passthrough::Way,
    tree::{Answer, Answered},
    view::{Target, View},
    wire::Attributes,
};

/// An open file or directory.
pub struct Opened {
    /// The user that has opened it; `None` is the user of the mount.
    pub caller: Option<Caller>,
    /// It is open for writing.
    pub writes: bool,
    /// The way in which the kernel reads and writes it.
    pub way: Way,
    /// Keeps a file open at the server.
    pub held: Option<Held>,
}

/// The result of an open.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// The number of the open file.
    pub number: u64,
    pub pages: Pages,
    pub way: Way,
}

/// The kernel's pages of a file that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// They are current.
    Current,
    /// The kernel drops them.
    Old,
    /// Reads and writes bypass them, because the caller may write the file but not read it: to write a part of a page, the kernel
    /// would have to read it.
    Bypassed,
}

impl View {
    /// CREATE of a file, which is then open. With `EXCL`, an existing file is an error. With `TRUNC`, it is truncated.
    pub async fn create(&self, parent: u64, name: &OsStr, mode: u32, flags: OFlags) -> Answer<(Attributes, Open)> {
        let size = flags.contains(OFlags::TRUNC).then_some(0);
        let set = SetAttr { mode: Some(mode & 0o7777), size, ..SetAttr::default() };
        let exclusive = flags.contains(OFlags::EXCL);
        let how = if exclusive { CreateHow::Guarded(set) } else { CreateHow::Unchecked(set) };
        let (dir, since) = (self.target(parent)?, self.room.now());
        dir.absent.make(name.as_bytes());
        let made = dir.mount().protocol().create(dir.handle(), name.as_bytes(), how).await.answer()?;
        let new = made.attr.clone().filter(|_| exclusive);
        let attr = self.made(&dir, made, since).await?;
        let node = self.target(attr.node)?;
        match new {
            Some(new) => node.new.made((node.caller(), self.uid(&node)), new, self.ttl),
            None => node.new.forget(),
        }
        let number = self.count_open(&node, flags);
        node.owned.open(writes(flags), None)?;
        // An existing file may have been read before.
        *node.cached.lock().await = Cached::Unknown;
        let bypassed = self.writeback && flags & OFlags::RWMODE == OFlags::WRONLY && attr.mode & 0o400 == 0;
        let pages = if bypassed { Pages::Bypassed } else { Pages::Old };
        let way = self.way(&node, None, number).await;
        Ok((attr, Open { number, pages, way }))
    }

    /// Returns the user ID of the caller.
    fn uid(&self, node: &Target) -> u32 {
        let of_mount = || node.mount().options().uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        self.caller().map_or_else(of_mount, |caller| caller.user().uid)
    }

    /// OPEN for the access in the flags; over NFSv3 GETATTR, which shows changes that were closed before
    /// (close-to-open). The error for
    /// a removed file is ESTALE: the kernel then looks up the name again, and opens the object that it finds. With write-back caching, a
    /// file that another client has changed is such an object as well.
    pub async fn open(&self, ino: u64, flags: OFlags) -> Answer<Open> {
        let node = self.target(ino)?;
        node.staged.settle(false).await;
        let number = self.count_open(&node, flags);
        let opened = match self.open_at_server(&node, flags).await {
            Ok((pages, attr)) => node.owned.open(writes(flags), attr.as_ref()).map(|()| pages),
            Err(error) => Err(error),
        };
        match opened {
            Ok(pages) => Ok(Open { number, pages, way: self.way(&node, Some(flags), number).await }),
            Err(error) => {
                self.end_open(&node, number).await?;
                Err(error)
            }
        }
    }

    /// Returns the state of the kernel's pages, and with write-back caching the attributes at the server, unless another open file or
    /// the version of its data guarantees that the kernel has them.
    async fn open_at_server(&self, node: &Target, flags: OFlags) -> Answer<(Pages, Option<Attr>)> {
        let rights = rights_for(flags);
        let is_write_only = self.writeback && flags & OFlags::RWMODE == OFlags::WRONLY;
        let since = self.room.now();
        let Some(v4) = node.mount().v4() else {
            // NFSv3 has no OPEN that would check the caller.
            let check = async { if self.caller().is_some() { self.check(node, rights).await } else { Ok(()) } };
            let getattr = async { node.mount().protocol().getattr(node.handle()).await.answer() };
            let readable = async { if is_write_only { self.is_allowed(node, ACCESS3_READ).await } else { Ok(true) } };
            let (attr, (), readable) = tokio::try_join!(getattr, check, readable)?;
            self.revalidate_v3(node, &attr).await;
            let attr = Some(attr).filter(|_| self.writeback && node.staged.is_settled(since));
            return Ok((if readable { Pages::Old } else { Pages::Bypassed }, attr));
        };
        let both = OPEN4_SHARE_ACCESS_READ | OPEN4_SHARE_ACCESS_WRITE;
        let access = match flags & OFlags::RWMODE {
            OFlags::RDONLY => OPEN4_SHARE_ACCESS_READ,
            OFlags::WRONLY if !is_write_only => OPEN4_SHARE_ACCESS_WRITE,
            _ => both,
        };
        // A file that is already open is not opened again. The server also accepts an OPEN for reading by a caller that
        // may only execute the file.
        let is_checked = !v4.is_open(node.handle(), access) && rights & ACCESS3_EXECUTE == 0;
        if self.caller().is_some() && !is_checked {
            self.check(node, rights).await?;
        }
        let (version, pages) = match v4.open(node.handle(), access).await.answer() {
            Err(Errno::ACCESS) if is_write_only => {
                (v4.open(node.handle(), OPEN4_SHARE_ACCESS_WRITE).await.answer()?, Pages::Bypassed)
            }
            opened => (opened?, Pages::Current),
        };
        let is_same = self.make_current(node, version).await;
        if !self.writeback || is_same || node.is_dir {
            return Ok((pages, None));
        }
        let since = self.room.now();
        let attr = node.mount().protocol().getattr(node.handle()).await.answer()?;
        Ok((pages, Some(attr).filter(|_| node.staged.is_settled(since))))
    }

    /// Counts one more open of a file.
    fn count_open(&self, node: &Target, flags: OFlags) -> u64 {
        node.opens.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
        let number = self.next_open.fetch_add(1, Relaxed);
        let held = node.mount().v4().map(|v4| v4.hold(node.handle()));
        let (caller, writes, way) = (self.caller().cloned(), writes(flags), Way::Cached);
        let opened = Opened { caller, writes, way, held };
        self.opened.lock().insert(number, opened);
        number
    }

    /// RELEASE of an open that the kernel has received.
    pub async fn release(&self, ino: u64, number: u64) -> Answer<()> {
        let node = self.target(ino)?;
        if let Err(error) = self.closed(ino, number).await {
            tracing::warn!(?error, "locks may remain until the file is closed by all programs");
        }
        let writes = self.opened.lock().get(&number).is_some_and(|opened| opened.writes);
        self.end_way(&node, number).await;
        let ended = self.end_open(&node, number).await;
        node.owned.close(writes);
        ended
    }

    /// Counts one open less.
    async fn end_open(&self, node: &Target, number: u64) -> Answer<()> {
        self.opened.lock().remove(&number);
        self.open.fetch_sub(1, Relaxed);
        let last = node.opens.fetch_sub(1, Relaxed) == 1;
        if last {
            // The kernel writes changed memory maps after the last close.
            node.staged.settle(true).await;
            let durable = node.unstable.commit(node.handle()).await;
            // All programs that could see an error have closed the file.
            if let Err(error) = durable.and(node.staged.take_failure()) {
                tracing::debug!(%error, "data of a file that is closed");
            }
        }
        let remove_on_close = if last { node.remove_on_close.lock().take() } else { None };
        match remove_on_close {
            Some((mount, dir, name)) => mount.protocol().remove(&dir, &name).await.answer().map(drop),
            None => Ok(()),
        }
    }
}

/// Returns the rights (`ACCESS3_…`) that an open with these flags needs.
fn rights_for(flags: OFlags) -> u32 {
    let read = if flags.bits() & FMODE_EXEC != 0 { ACCESS3_EXECUTE } else { ACCESS3_READ };
    match flags & OFlags::RWMODE {
        OFlags::RDONLY => read,
        OFlags::WRONLY => ACCESS3_MODIFY | ACCESS3_EXTEND,
        _ => read | ACCESS3_MODIFY | ACCESS3_EXTEND,
    }
}

/// The kernel's flag of a file that it opens to execute it.
const FMODE_EXEC: u32 = 0x20;

/// Returns `true` if a file is opened for writing.
pub(super) fn writes(flags: OFlags) -> bool {
    flags & OFlags::RWMODE != OFlags::RDONLY
}
