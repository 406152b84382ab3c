//! [`Tree`]: implements each request of the kernel with operations at the server. It returns values; [`super`] converts
//! them to FUSE's replies.

use std::{
    collections::HashMap,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::Buffer;
use bytes::Bytes;
use client::{
    Attr, Caller, CreateHow, ErrorKind, FsStat, Handle, Held, Mount, Node as Made, Object, SetAttr, Special, Time,
};
use nfs::{
    v3::{ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ},
    v4::{OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE},
};
use parking_lot::Mutex;
use rustix::fs::{Access, OFlags};
use rustix::io::Errno;

use super::{
    Options,
    cache::{Cached, Kernel},
    callers::Callers,
    convert::{attributes, device, errno},
    device::Device,
    listing::Listing,
    nodes::{Node, Nodes},
    referral::{Referrals, UNKNOWN},
    staged::{Room, Staged},
    view::{Target, View},
    wire::Attributes,
};

/// A mounted tree.
pub struct Tree {
    /// The mount of the root.
    pub(super) mount: Mount,
    pub(super) nodes: Mutex<Nodes>,
    /// The room for data that programs have written.
    room: Arc<Room>,
    /// The referrals, with the mounts of other servers.
    pub(super) referrals: Referrals,
    listings: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<Listing>>>>,
    /// The next number of an open file or directory.
    next_open: AtomicU64,
    /// The number of open files, and of removed names that were open.
    open: AtomicU64,
    removed: AtomicU64,
    /// The open files and directories by number.
    opened: Mutex<HashMap<u64, Opened>>,
    /// The users of the mount, if there can be several.
    pub(super) callers: Option<Callers>,
    /// The time for which attributes are cached without a delegation.
    pub(super) ttl: Duration,
    /// The kernel owns sizes and times of files.
    pub(super) writeback: bool,
    /// The maximum time of an operation.
    deadline: Duration,
    /// The kernel's cache, for invalidations.
    pub kernel: Kernel,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("mount", &self.mount).finish_non_exhaustive()
    }
}

/// An open file or directory.
struct Opened {
    /// The user that has opened it; `None` is the user of the mount.
    caller: Option<Caller>,
    /// It is open for writing.
    writes: bool,
    /// Keeps a file open at the server.
    _held: Option<Held>,
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

/// A directory entry for the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    pub name: &'a [u8],
    /// The cookie of the next entry.
    pub cookie: u64,
    pub attr: Attributes,
    /// The time for which the kernel can cache it.
    pub ttl: Duration,
    /// `true` if the kernel counts this as a lookup of the object.
    pub is_lookup: bool,
}

/// The result of a request, or the errno for the program.
pub type Answer<T> = Result<T, Errno>;

/// Converts a client's result.
pub(super) trait Answered<T> {
    fn answer(self) -> Answer<T>;
}

impl<T> Answered<T> for client::Result<T> {
    fn answer(self) -> Answer<T> {
        self.map_err(|error| {
            match error.kind() {
                ErrorKind::Referral(_) => tracing::warn!(%error, "no location of a referral can be reached"),
                _ => tracing::debug!(%error, "an operation failed"),
            }
            errno(&error)
        })
    }
}

impl Tree {
    /// Creates the tree below `root`.
    pub fn new(
        root: Object,
        options: &Options,
        callers: Option<Callers>,
        device: Weak<Device>,
    ) -> Arc<Self> {
        let deadline = options.recovery.deadline();
        let mount = root.mount.with_deadline(deadline);
        let nodes = Nodes::new(mount.clone(), root.handle, options.writeback);
        let tree = Arc::new_cyclic(|tree| Self {
            room: nodes.room.clone(),
            nodes: Mutex::new(nodes),
            referrals: Referrals::new(tree.clone()),
            mount,
            listings: Mutex::default(),
            next_open: AtomicU64::new(1),
            open: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            opened: Mutex::default(),
            callers,
            ttl: options.ttl,
            writeback: options.writeback,
            deadline,
            kernel: Kernel(device.clone()),
        });
        tree.referrals.watch(&tree.mount);
        tree
    }

    /// Returns the object with this handle at this mount, if the kernel knows it.
    pub fn known(&self, mount: u64, handle: &Handle) -> Option<Arc<Node>> {
        self.nodes.lock().of_handle(mount, handle)
    }

    pub(super) fn node(&self, ino: u64) -> Answer<Arc<Node>> {
        self.nodes.lock().find(ino).ok_or(Errno::STALE)
    }

    /// Returns the user that has opened the file or directory with this number, if users differ.
    pub(super) fn opener(&self, number: u64) -> Option<Caller> {
        self.callers.as_ref()?;
        self.opened.lock().get(&number)?.caller.clone()
    }

    /// Returns the time for which the kernel may find a name without asking. The kernel checks no permission to search
    /// a directory, so it must ask for each user.
    pub(super) fn name_ttl(&self) -> Duration {
        if self.callers.is_some() { Duration::ZERO } else { self.ttl }
    }

    /// Registers an object that the kernel receives, whose attributes were requested at `since`.
    pub(super) fn register(&self, dir: &Node, object: &Object, since: u64) -> Attributes {
        let node = self.nodes.lock().register(Some(dir.ino), object, since);
        of_node(&node, &object.mount, &object.attr)
    }

    /// Handles that the kernel has forgotten an object.
    pub fn forget(&self, ino: u64, times: u64) {
        self.nodes.lock().forget(ino, times);
    }

    /// Sends all staged data.
    pub async fn settle(&self) {
        let nodes = self.nodes.lock().all();
        for node in nodes {
            node.staged.settle(false).await;
        }
    }

    /// Closes a directory.
    pub fn release_dir(&self, number: u64) {
        self.listings.lock().remove(&number);
        self.opened.lock().remove(&number);
    }
}

impl View {
    /// LOOKUP.
    pub async fn lookup(&self, parent: u64, name: &OsStr) -> Answer<Attributes> {
        let (dir, since) = (self.target(parent)?, self.room.now());
        let mut found = dir.mount().lookup(dir.handle(), name.as_bytes()).await.answer()?;
        found.mount = match found.mount.number() == dir.mount().number() {
            true => dir.file.mount().clone(),
            false => found.mount.with_deadline(self.deadline),
        };
        self.referrals.found(&dir, name.as_bytes(), &found);
        let since = self.refresh(&mut found, since).await?;
        Ok(self.register(&dir, &found, since))
    }

    /// Replaces attributes that were requested at `since` if they lack data that programs had written before. The
    /// kernel would truncate its cache of the file to an old size. Returns the time at which the attributes were requested.
    async fn refresh(&self, object: &mut Object, since: u64) -> Answer<u64> {
        if let Some(node) = self.known(object.mount.number(), &object.handle)
            && !node.staged.is_settled(since)
            && !self.owns_open(&node)
        {
            node.staged.settle(false).await;
            let since = self.room.now();
            object.attr = object.mount.protocol().getattr(&object.handle).await.answer()?;
            return Ok(since);
        }
        Ok(since)
    }

    /// GETATTR.
    pub async fn getattr(&self, ino: u64) -> Answer<Attributes> {
        let node = self.target(ino)?;
        if !self.owns_open(&node) {
            node.staged.settle(false).await;
        }
        let since = self.room.now();
        let attr = node.mount().protocol().getattr(node.handle()).await.answer()?;
        self.check_outdated(&node, &attr, since)?;
        *node.last_change.lock() = Some((&attr).into());
        Ok(of_node(&node, node.mount(), &attr))
    }

    /// SETATTR. If the kernel owns the times of the file, it also reports its ctime. Returns the attributes, and the time for which the
    /// kernel can cache them.
    pub async fn setattr(&self, ino: u64, set: SetAttr, ctime: Option<Time>) -> Answer<(Attributes, Duration)> {
        let before = self.nodes.lock().find_replaced(ino);
        if let Some(before) = before
            && let Some(attr) = self.sets_known_time(&before, &set, ctime)
        {
            return Ok((of_node(&before, before.mount(), &attr), Duration::ZERO));
        }
        let node = self.target(ino)?;
        // The data of a new file are most likely complete.
        node.staged.settle(true).await;
        if set.size.is_some() {
            // Commit first, so that unstable data beyond the new size cannot be written again.
            node.unstable.commit(node.handle()).await?;
        }
        node.rights.invalidate();
        let since = self.room.now();
        let mut after = node.mount().protocol().setattr(node.handle(), set.clone()).await.answer();
        if let Err(error) = after
            && let Some(set) = self.with_time_of_server(&set, ctime, error)
        {
            after = node.mount().protocol().setattr(node.handle(), set).await.answer();
        }
        node.rights.invalidate();
        let is_last = node.staged.is_settled(since);
        node.staged.changed();
        let attr = attr_of(node.mount(), node.handle(), after?).await?;
        if is_last {
            self.has_set(&node, &set, &attr);
        }
        Ok((of_node(&node, node.mount(), &attr), self.ttl))
    }

    /// READLINK.
    pub async fn readlink(&self, ino: u64) -> Answer<Bytes> {
        let node = self.target(ino)?;
        node.mount().protocol().readlink(node.handle()).await.answer()
    }

    /// ACCESS: checks the permissions of access(2)'s `mask` for the caller.
    pub async fn access(&self, ino: u64, mask: u32) -> Answer<()> {
        let node = self.target(ino)?;
        let mask = Access::from_bits_truncate(mask);
        let wanted = [
            (Access::READ_OK, ACCESS3_READ),
            (Access::WRITE_OK, ACCESS3_MODIFY | ACCESS3_EXTEND),
            (Access::EXEC_OK, if node.is_dir { ACCESS3_LOOKUP } else { ACCESS3_EXECUTE }),
        ];
        let wanted = wanted.iter().filter(|(flag, _)| mask.contains(*flag)).fold(0, |all, (_, bits)| all | bits);
        self.check(&node, wanted).await
    }

    /// CREATE of a file, which is then open. With `EXCL`, an existing file is an error. With `TRUNC`, it is truncated.
    pub async fn create(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        flags: OFlags,
    ) -> Answer<(Attributes, u64, Pages)> {
        let size = flags.contains(OFlags::TRUNC).then_some(0);
        let set = SetAttr { mode: Some(mode & 0o7777), size, ..SetAttr::default() };
        let exclusive = flags.contains(OFlags::EXCL);
        let how = if exclusive { CreateHow::Guarded(set) } else { CreateHow::Unchecked(set) };
        let (dir, since) = (self.target(parent)?, self.room.now());
        let made = dir.mount().protocol().create(dir.handle(), name.as_bytes(), how).await.answer()?;
        let attr = self.made(&dir, made, since).await?;
        let node = self.target(attr.node)?;
        let number = self.count_open(&node, flags);
        node.owned.open(writes(flags), None)?;
        // An existing file may have been read before.
        *node.cached.lock().await = Cached::Unknown;
        let bypassed = self.writeback && flags & OFlags::RWMODE == OFlags::WRONLY && attr.mode & 0o400 == 0;
        Ok((attr, number, if bypassed { Pages::Bypassed } else { Pages::Old }))
    }

    /// MKNOD, or CREATE if `mode` is that of a regular file.
    pub async fn mknod(&self, parent: u64, name: &OsStr, mode: u32, rdev: u32) -> Answer<Attributes> {
        let (dir, since) = (self.target(parent)?, self.room.now());
        let protocol = dir.mount().protocol();
        let (set, name_bytes) = (SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() }, name.as_bytes());
        let special = match rustix::fs::FileType::from_raw_mode(mode) {
            rustix::fs::FileType::CharacterDevice => Special::Chr(device(rdev)),
            rustix::fs::FileType::BlockDevice => Special::Blk(device(rdev)),
            rustix::fs::FileType::Socket => Special::Sock,
            rustix::fs::FileType::Fifo => Special::Fifo,
            _ => {
                let made = protocol.create(dir.handle(), name_bytes, CreateHow::Guarded(set)).await.answer()?;
                return self.made(&dir, made, since).await;
            }
        };
        let made = protocol.mknod(dir.handle(), name_bytes, special, set).await.answer()?;
        self.made(&dir, made, since).await
    }

    /// MKDIR.
    pub async fn mkdir(&self, parent: u64, name: &OsStr, mode: u32) -> Answer<Attributes> {
        let (dir, since) = (self.target(parent)?, self.room.now());
        let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
        let made = dir.mount().protocol().mkdir(dir.handle(), name.as_bytes(), set).await.answer()?;
        self.made(&dir, made, since).await
    }

    /// SYMLINK.
    pub async fn symlink(&self, parent: u64, name: &OsStr, text: Bytes) -> Answer<Attributes> {
        let (dir, since) = (self.target(parent)?, self.room.now());
        let made =
            dir.mount().protocol().symlink(dir.handle(), name.as_bytes(), text, SetAttr::default()).await.answer()?;
        self.made(&dir, made, since).await
    }

    async fn made(&self, dir: &Target, made: Made, since: u64) -> Answer<Attributes> {
        let attr = attr_of(dir.mount(), &made.handle, made.attr).await?;
        let mut object = Object { mount: dir.file.mount().clone(), handle: made.handle, attr };
        // CREATE can return an existing file.
        let since = self.refresh(&mut object, since).await?;
        Ok(self.register(dir, &object, since))
    }

    /// LINK.
    pub async fn link(&self, ino: u64, parent: u64, name: &OsStr) -> Answer<Attributes> {
        let (node, dir) = (self.target(ino)?, self.target(parent)?);
        same_mount(&node, &dir)?;
        node.staged.settle(false).await;
        let since = self.room.now();
        let linked = dir.mount().protocol().link(node.handle(), dir.handle(), name.as_bytes()).await.answer()?;
        let attr = attr_of(node.mount(), node.handle(), linked).await?;
        let object = Object { mount: node.file.mount().clone(), handle: node.handle().clone(), attr };
        Ok(self.register(&dir, &object, since))
    }

    /// REMOVE.
    pub async fn unlink(&self, parent: u64, name: &OsStr) -> Answer<()> {
        let dir = self.target(parent)?;
        if self.keep_if_open(&dir, name.as_bytes()).await? {
            return Ok(());
        }
        dir.mount().protocol().remove(dir.handle(), name.as_bytes()).await.answer().map(drop)
    }

    /// RMDIR.
    pub async fn rmdir(&self, parent: u64, name: &OsStr) -> Answer<()> {
        let dir = self.target(parent)?;
        dir.mount().protocol().rmdir(dir.handle(), name.as_bytes()).await.answer().map(drop)
    }

    /// RENAME.
    pub async fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr)) -> Answer<()> {
        let (from_dir, to_dir) = (self.target(from.0)?, self.target(to.0)?);
        let (from, to) = (from.1.as_bytes(), to.1.as_bytes());
        same_mount(&from_dir, &to_dir)?;
        self.keep_if_open(&to_dir, to).await?;
        to_dir.mount().protocol().rename(from_dir.handle(), from, to_dir.handle(), to).await.answer().map(drop)
    }

    /// The server does not know which files are open over NFSv3, so an open file that loses its name would be removed.
    /// It is renamed until it is closed. Returns `true` if it was renamed.
    async fn keep_if_open(&self, dir: &Target, name: &[u8]) -> Answer<bool> {
        if self.open.load(Relaxed) == 0 {
            return Ok(false);
        }
        let Ok(found) = dir.mount().protocol().lookup(dir.handle(), name).await else { return Ok(false) };
        let node = self.known(dir.mount().number(), &found.handle);
        let Some(node) = node.filter(|node| node.is_open() && node.remove_on_close.lock().is_none()) else {
            return Ok(false);
        };
        if found.attr.is_some_and(|attr| attr.nlink > 1) {
            return Ok(false); // The file has another name.
        }
        let number = self.removed.fetch_add(1, Relaxed);
        let hidden = format!(".nfs{:016x}{:08x}{number:08x}", node.ino, std::process::id()).into_bytes();
        dir.mount().protocol().rename(dir.handle(), name, dir.handle(), &hidden).await.answer()?;
        *node.remove_on_close.lock() = Some((dir.mount().clone(), dir.handle().clone(), hidden));
        Ok(true)
    }

    /// OPEN for the access in the flags; over NFSv3 GETATTR, which shows changes that were closed before
    /// (close-to-open). Returns the number of the open file, and the state of the kernel's pages. The error for
    /// a removed file is ESTALE: the kernel then looks up the name again, and opens the object that it finds. With write-back caching, a
    /// file that another client has changed is such an object as well.
    pub async fn open(&self, ino: u64, flags: OFlags) -> Answer<(u64, Pages)> {
        let node = self.target(ino)?;
        node.staged.settle(false).await;
        let number = self.count_open(&node, flags);
        let opened = match self.open_at_server(&node, flags).await {
            Ok((pages, attr)) => node.owned.open(writes(flags), attr.as_ref()).map(|()| pages),
            Err(error) => Err(error),
        };
        match opened {
            Ok(pages) => Ok((number, pages)),
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
        let opened = Opened { caller: self.caller().cloned(), writes: writes(flags), _held: held };
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

    /// Reads up to the end of the file. Returns the buffer and the number of bytes read.
    pub async fn read(&self, ino: u64, offset: u64, size: usize) -> Answer<(Buffer, usize)> {
        let node = self.target(ino)?;
        node.staged.settle(false).await;
        let (read, buffer) = node.file().read_at(offset, node.mount().pool().take(size)).await;
        Ok((buffer, read.answer()?))
    }

    /// Stages data in memory of the mount's pool. Returns `false` if they must be [written](Self::write) instead.
    ///
    /// # Errors
    /// Earlier data could not be written.
    pub fn stage(&self, ino: u64, offset: u64, data: &Bytes) -> Answer<bool> {
        let node = self.target(ino)?;
        node.owned.wrote();
        Staged::put(node.node(), (node.mount(), node.caller()), offset, &self.owned(&node, data))
    }

    /// Writes data in memory of the mount's pool, after staged data of the file; to stable storage if `durable`.
    pub async fn write(&self, ino: u64, offset: u64, data: Bytes, durable: bool) -> Answer<()> {
        let node = self.target(ino)?;
        node.owned.wrote();
        node.staged.settle(false).await;
        let (data, alone) = (self.owned(&node, &data), node.unstable.is_empty());
        let written = node.unstable.write(node.mount(), node.handle(), offset, data, durable && alone).await;
        node.staged.changed();
        written?;
        if durable { node.unstable.commit(node.handle()).await } else { Ok(()) }
    }

    /// Returns the data in memory of the file's mount: another server's transport may need its own memory.
    fn owned(&self, node: &Target, data: &Bytes) -> Bytes {
        if node.mount().number() == self.mount.number() {
            return data.clone();
        }
        let mut copy = node.mount().pool().take(data.len());
        copy.copy_from_slice(data);
        copy.freeze()
    }

    /// Handles a close by a lock owner: commits written data, and releases the owner's locks.
    pub async fn flush(&self, ino: u64, owner: u64) -> Answer<()> {
        let durable = self.durable(ino).await;
        let failed = self.node(ino)?.staged.failure();
        durable.and(failed).and(self.release_owner(ino, owner).await)
    }

    /// Commits written data, and reports an error of writing them once.
    pub async fn commit(&self, ino: u64) -> Answer<()> {
        self.durable(ino).await?;
        self.node(ino)?.staged.take_failure()
    }

    async fn durable(&self, ino: u64) -> Answer<()> {
        let node = self.target(ino)?;
        node.staged.settle(true).await;
        node.unstable.commit(node.handle()).await
    }

    /// Opens a directory. Returns the number of its listing.
    pub async fn open_dir(&self, ino: u64) -> Answer<u64> {
        let number = self.next_open.fetch_add(1, Relaxed);
        if let Some(caller) = self.caller() {
            self.check(&self.target(ino)?, ACCESS3_READ).await?;
            self.opened.lock().insert(number, Opened { caller: Some(caller.clone()), writes: false, _held: None });
        }
        self.listings.lock().insert(number, Arc::default());
        Ok(number)
    }

    /// Passes the entries after a cookie to `add` until it has no room. Registers the objects if `add` accepts
    /// attributes and handles, except for the two dots.
    pub async fn list(
        &self,
        ino: u64,
        number: u64,
        mut cookie: u64,
        plus: bool,
        mut add: impl FnMut(Listed<'_>) -> bool + Send,
    ) -> Answer<()> {
        let node = self.target(ino)?;
        let listing = self.listings.lock().get(&number).cloned().ok_or(Errno::BADF)?;
        let mut listing = listing.lock().await;
        while let Some(entry) = listing.next(node.mount(), node.handle(), cookie, &self.room).await.answer()? {
            if listing.has_moved(node.mount(), node.handle(), cookie) {
                return Err(Errno::STALE);
            }
            let dots = matches!(&entry.name[..], b"." | b"..");
            let is_lookup = plus && !dots;
            let mut found = if dots { Ok(None) } else { self.listed(&node, &entry).await };
            let mut since = listing.requested_at();
            if let Ok(Some(object)) = &mut found {
                since = self.refresh(object, since).await?;
            }
            let (attr, ttl) = match found {
                Ok(None) if dots => (self.dot(&node, entry.name.len()), Duration::ZERO),
                Ok(Some(object)) if is_lookup => (self.register(&node, &object, since), self.ttl),
                Ok(Some(Object { mount, attr, .. })) => (of_mount(&mount, attr.fileid.max(1), &attr), self.ttl),
                Ok(None) => (self.placeholder(&node, &entry, is_lookup), Duration::ZERO),
                // The entry was removed after it was listed.
                Err(Errno::NOENT) => {
                    cookie = entry.cookie;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if !add(Listed { name: &entry.name, cookie: entry.cookie, attr, ttl, is_lookup }) {
                if is_lookup {
                    self.forget(attr.node, 1);
                }
                listing.put_back(entry, node.mount(), cookie);
                return Ok(());
            }
            cookie = entry.cookie;
        }
        Ok(())
    }

    /// Returns the attributes of `.` or `..`, which have one or two dots.
    fn dot(&self, dir: &Target, dots: usize) -> Attributes {
        let ino = if dots == 1 { dir.ino } else { dir.parent.load(Relaxed) };
        attributes(ino, &UNKNOWN, 0)
    }

    /// FSSTAT of the object's mount.
    pub async fn statfs(&self, ino: u64) -> Answer<FsStat> {
        let node = self.target(ino)?;
        node.mount().protocol().fsstat(node.mount().root()).await.answer()
    }
}

fn of_mount(mount: &Mount, ino: u64, attr: &Attr) -> Attributes {
    attributes(ino, attr, mount.read_size() as u32)
}

/// Returns the attributes of an object that the kernel knows.
fn of_node(node: &Node, mount: &Mount, attr: &Attr) -> Attributes {
    Attributes { node: node.ino, ..of_mount(mount, node.shown_ino, attr) }
}

/// Returns `true` if a file is opened for writing.
fn writes(flags: OFlags) -> bool {
    flags & OFlags::RWMODE != OFlags::RDONLY
}

pub(super) async fn attr_of(mount: &Mount, handle: &Handle, known: Option<Attr>) -> Answer<Attr> {
    match known {
        Some(attr) => Ok(attr),
        None => mount.protocol().getattr(handle).await.answer(),
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

/// # Errors
/// EXDEV: the two objects are on different servers.
pub(super) fn same_mount(one: &Target, other: &Target) -> Answer<()> {
    if one.mount().number() == other.mount().number() { Ok(()) } else { Err(Errno::XDEV) }
}
