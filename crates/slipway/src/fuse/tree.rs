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
use client::{Attr, Caller, CreateHow, ErrorKind, FsStat, Handle, Mount, Node as Made, Object, SetAttr, Special, Time};
use nfs::v3::{ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ};
use parking_lot::Mutex;
use rustix::fs::Access;
use rustix::io::Errno;
use tokio::time::Instant;

use super::{
    Options,
    cache::Kernel,
    callers::Callers,
    convert::{attributes, device, errno},
    device::Device,
    listing::{AclDemand, Listing},
    nodes::{Node, Nodes},
    opens::Opened,
    passthrough::{Passing, Way},
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
    pub(super) room: Arc<Room>,
    /// The referrals, with the mounts of other servers.
    pub(super) referrals: Referrals,
    listings: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<Listing>>>>,
    /// The demand for ACLs in listings.
    pub(super) acl_demand: AclDemand,
    /// The next number of an open file or directory.
    pub(super) next_open: AtomicU64,
    /// The number of open files, and of removed names that were open.
    pub(super) open: AtomicU64,
    removed: AtomicU64,
    /// The open files and directories by number.
    pub(super) opened: Mutex<HashMap<u64, Opened>>,
    /// The users of the mount, if there can be several.
    pub(super) callers: Option<Callers>,
    /// The time for which attributes are cached without a delegation.
    pub(super) ttl: Duration,
    /// The kernel owns sizes and times of files.
    pub(super) writeback: bool,
    /// The maximum time of an operation.
    deadline: Duration,
    /// The files that the server passes.
    pub(super) passing: Passing,
    /// The kernel's cache, for invalidations.
    pub kernel: Kernel,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("mount", &self.mount).finish_non_exhaustive()
    }
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
    pub fn new(root: Object, options: &Options, callers: Option<Callers>, device: Weak<Device>) -> Arc<Self> {
        let deadline = options.recovery.deadline();
        let mount = root.mount.with_deadline(deadline);
        let nodes = Nodes::new(mount.clone(), root.handle, options.writeback);
        let tree = Arc::new_cyclic(|tree| Self {
            room: nodes.room.clone(),
            nodes: Mutex::new(nodes),
            referrals: Referrals::new(tree.clone()),
            mount,
            listings: Mutex::default(),
            acl_demand: AclDemand::default(),
            next_open: AtomicU64::new(1),
            open: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            opened: Mutex::default(),
            callers,
            ttl: options.ttl,
            writeback: options.writeback,
            deadline,
            passing: Passing::new(options.passthrough, device.clone()),
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

    /// Caches that an object has no ACL, by a reply to a request of `since`.
    fn store_only_mode(&self, ino: u64, since: u64) {
        if let Ok(node) = self.node(ino)
            && node.staged.is_settled(since)
        {
            node.rights.store_only_mode(self.ttl, node.rights.version());
        }
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
        if dir.absent.has(name.as_bytes()) {
            return Err(Errno::NOENT);
        }
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
        if node.passed.may_change_unseen()
            && let Some(v4) = node.mount().v4()
        {
            v4.forget_attributes(node.handle());
        }
        let attr = node.mount().protocol().getattr(node.handle()).await.answer()?;
        self.check_outdated(&node, &attr, since)?;
        *node.last_change.lock() = Some((&attr).into());
        Ok(of_node(&node, node.mount(), &attr))
    }

    /// SETATTR of a new file: stages a change that is certain to succeed. Returns the attributes after it, which the kernel must not cache.
    pub fn set_later(&self, ino: u64, set: &SetAttr) -> Option<Attributes> {
        let node = self.target(ino).ok().filter(|_| !self.writeback)?;
        let attr = node.new.set(node.caller(), set)?;
        let is_staged = Staged::set(node.node(), (node.mount(), node.caller()), set);
        is_staged.then(|| of_node(&node, node.mount(), &attr))
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
        node.new.forget();
        node.rights.invalidate();
        if set.size.is_none()
            && !self.writeback
            && let Some(attr) = Staged::set_now(node.node(), (node.mount(), node.caller()), &set).await
        {
            return Ok((of_node(&node, node.mount(), &attr?), self.ttl));
        }
        // The data of a new file are most likely complete.
        node.staged.settle(true).await;
        if set.size.is_some() {
            // Commit first, so that unstable data beyond the new size cannot be written again.
            node.unstable.commit(node.handle()).await?;
        }
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
        node.staged.settle_attributes().await;
        let mask = Access::from_bits_truncate(mask);
        let wanted = [
            (Access::READ_OK, ACCESS3_READ),
            (Access::WRITE_OK, ACCESS3_MODIFY | ACCESS3_EXTEND),
            (Access::EXEC_OK, if node.is_dir { ACCESS3_LOOKUP } else { ACCESS3_EXECUTE }),
        ];
        let wanted = wanted.iter().filter(|(flag, _)| mask.contains(*flag)).fold(0, |all, (_, bits)| all | bits);
        self.check(&node, wanted).await
    }

    /// MKNOD, or CREATE if `mode` is that of a regular file.
    pub async fn mknod(&self, parent: u64, name: &OsStr, mode: u32, rdev: u32) -> Answer<Attributes> {
        let (dir, since) = (self.target(parent)?, self.room.now());
        let protocol = dir.mount().protocol();
        let (set, name_bytes) = (SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() }, name.as_bytes());
        dir.absent.make(name_bytes);
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
        dir.absent.make(name.as_bytes());
        let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
        // Another client may make names in it as soon as the server has made it.
        let empty_until = Instant::now() + self.name_ttl();
        let made = dir.mount().protocol().mkdir(dir.handle(), name.as_bytes(), set).await.answer()?;
        let attr = attr_of(dir.mount(), &made.handle, made.attr).await?;
        let object = Object { mount: dir.file.mount().clone(), handle: made.handle, attr };
        // If the caller was interrupted, another program can have found the directory, and have made names in it.
        let is_known = self.known(object.mount.number(), &object.handle).is_some();
        let attr = self.register(&dir, &object, since);
        if !is_known {
            self.node(attr.node)?.absent.was_empty(empty_until);
        }
        Ok(attr)
    }

    /// SYMLINK.
    pub async fn symlink(&self, parent: u64, name: &OsStr, text: Bytes) -> Answer<Attributes> {
        let (dir, since) = (self.target(parent)?, self.room.now());
        dir.absent.make(name.as_bytes());
        let made =
            dir.mount().protocol().symlink(dir.handle(), name.as_bytes(), text, SetAttr::default()).await.answer()?;
        self.made(&dir, made, since).await
    }

    pub(super) async fn made(&self, dir: &Target, made: Made, since: u64) -> Answer<Attributes> {
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
        dir.absent.make(name.as_bytes());
        node.new.forget();
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
        to_dir.absent.make(to);
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
        dir.absent.make(&hidden);
        dir.mount().protocol().rename(dir.handle(), name, dir.handle(), &hidden).await.answer()?;
        *node.remove_on_close.lock() = Some((dir.mount().clone(), dir.handle().clone(), hidden));
        Ok(true)
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
        node.new.wrote(offset.saturating_add(data.len() as u64));
        Staged::put(node.node(), (node.mount(), node.caller()), offset, &self.owned(&node, data))
    }

    /// Writes data in memory of the mount's pool, after staged data of the file; to stable storage if `durable`.
    pub async fn write(&self, ino: u64, offset: u64, data: Bytes, durable: bool) -> Answer<()> {
        let node = self.target(ino)?;
        node.new.wrote(offset.saturating_add(data.len() as u64));
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
        let node = self.target(ino)?;
        self.send_known_time(&node).await;
        let failed = node.staged.failure();
        durable.and(failed).and(self.release_owner(ino, owner).await)
    }

    /// Commits written data, and reports an error of writing them once.
    pub async fn commit(&self, ino: u64) -> Answer<()> {
        self.durable(ino).await?;
        self.node(ino)?.staged.take_failure()
    }

    async fn durable(&self, ino: u64) -> Answer<()> {
        let node = self.target(ino)?;
        node.new.forget();
        node.staged.settle(true).await;
        node.unstable.commit(node.handle()).await
    }

    /// Opens a directory. Returns the number of its listing.
    pub async fn open_dir(&self, ino: u64) -> Answer<u64> {
        let number = self.next_open.fetch_add(1, Relaxed);
        if let Some(caller) = self.caller() {
            self.check(&self.target(ino)?, ACCESS3_READ).await?;
            self.opened
                .lock()
                .insert(number, Opened { caller: Some(caller.clone()), writes: false, way: Way::Cached, held: None });
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
        // The ACLs of objects that the kernel does not get are not kept.
        let acls = plus.then_some(&self.acl_demand);
        while let Some(entry) = listing.next(node.mount(), node.handle(), cookie, &self.room, acls).await.answer()? {
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
                Ok(Some(object)) if is_lookup => {
                    let attr = self.register(&node, &object, since);
                    if listing.has_only_mode() {
                        self.store_only_mode(attr.node, listing.requested_at());
                    }
                    (attr, self.ttl)
                }
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

pub(super) async fn attr_of(mount: &Mount, handle: &Handle, known: Option<Attr>) -> Answer<Attr> {
    match known {
        Some(attr) => Ok(attr),
        None => mount.protocol().getattr(handle).await.answer(),
    }
}

/// # Errors
/// EXDEV: the two objects are on different servers.
pub(super) fn same_mount(one: &Target, other: &Target) -> Answer<()> {
    if one.mount().number() == other.mount().number() { Ok(()) } else { Err(Errno::XDEV) }
}
