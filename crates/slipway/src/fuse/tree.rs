//! [`Tree`]: what each request of the kernel means to the server. It answers with values; [`super`] turns them into
//! FUSE's replies.

use std::{
    collections::HashMap,
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use buf::Buffer;
use bytes::Bytes;
use client::{Attr, CreateHow, Entry, FsStat, Handle, Held, Mount, Node as Made, Object, SetAttr, Special};
use fuser::{AccessFlags, Errno, FileAttr, OpenAccMode, OpenFlags};
use nfs::{
    v3::{ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ},
    v4::{OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE},
};
use parking_lot::Mutex;

use super::{
    cache::{Cached, Kernel},
    convert::{attributes, device, errno},
    listing::Listing,
    nodes::{Node, Nodes},
};

/// A mounted tree, as the kernel knows it.
pub struct Tree {
    pub(super) mount: Mount,
    nodes: Mutex<Nodes>,
    listings: Mutex<HashMap<u64, Arc<tokio::sync::Mutex<Listing>>>>,
    /// The next number of an open file or directory.
    next_open: AtomicU64,
    /// Files that are open, and names of removed ones that have been.
    open: AtomicU64,
    removed: AtomicU64,
    /// By number, what keeps open files open at the server.
    held: Mutex<HashMap<u64, Held>>,
    /// How long attributes are believed that nobody has promised.
    pub(super) ttl: Duration,
    /// What is told to forget.
    pub kernel: Kernel,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("mount", &self.mount).finish_non_exhaustive()
    }
}

/// An answer, or the error that a program gets.
pub type Answer<T> = Result<T, Errno>;

/// Makes a client's result an answer.
pub(super) trait Answered<T> {
    fn answer(self) -> Answer<T>;
}

impl<T> Answered<T> for client::Result<T> {
    fn answer(self) -> Answer<T> {
        self.map_err(|error| {
            tracing::debug!(%error, "an operation failed");
            errno(&error)
        })
    }
}

impl Tree {
    /// The tree below `root`.
    pub fn new(mount: Mount, root: Object, ttl: Duration) -> Self {
        Self {
            nodes: Mutex::new(Nodes::new(mount.clone(), root.handle)),
            mount,
            listings: Mutex::default(),
            next_open: AtomicU64::new(1),
            open: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            held: Mutex::default(),
            ttl,
            kernel: Kernel::default(),
        }
    }

    /// The object of a handle, if the kernel knows it.
    pub fn known(&self, handle: &Handle) -> Option<Arc<Node>> {
        self.nodes.lock().of_handle(handle)
    }

    pub(super) fn node(&self, ino: u64) -> Answer<Arc<Node>> {
        self.nodes.lock().find(ino).ok_or(Errno::ESTALE)
    }

    fn attributes(&self, ino: u64, attr: &Attr) -> FileAttr {
        attributes(ino, attr, self.mount.read_size() as u32)
    }

    /// Tells the kernel of an object.
    fn tell(&self, handle: &Handle, attr: &Attr) -> FileAttr {
        let ino = self.nodes.lock().tell(handle, attr).ino;
        self.attributes(ino, attr)
    }

    /// The kernel has forgotten an object.
    pub fn forget(&self, ino: u64, times: u64) {
        self.nodes.lock().forget(ino, times);
    }

    /// LOOKUP.
    pub async fn lookup(&self, parent: u64, name: &OsStr) -> Answer<FileAttr> {
        let (handle, attr) = self.find(self.node(parent)?.handle(), name.as_bytes()).await?;
        Ok(self.tell(&handle, &attr))
    }

    async fn find(&self, dir: &Handle, name: &[u8]) -> Answer<(Handle, Attr)> {
        let found = self.mount.protocol().lookup(dir, name).await.answer()?;
        let attr = self.attr_of(&found.handle, found.attr).await?;
        Ok((found.handle, attr))
    }

    async fn attr_of(&self, handle: &Handle, known: Option<Attr>) -> Answer<Attr> {
        match known {
            Some(attr) => Ok(attr),
            None => self.mount.protocol().getattr(handle).await.answer(),
        }
    }

    /// GETATTR.
    pub async fn getattr(&self, ino: u64) -> Answer<FileAttr> {
        let attr = self.mount.protocol().getattr(self.node(ino)?.handle()).await.answer()?;
        Ok(self.attributes(ino, &attr))
    }

    /// SETATTR.
    pub async fn setattr(&self, ino: u64, set: SetAttr) -> Answer<FileAttr> {
        let node = self.node(ino)?;
        if set.size.is_some() {
            // What would have to be written again must not bring back what is cut off.
            node.unstable.commit(&self.mount, node.handle()).await?;
        }
        let after = self.mount.protocol().setattr(node.handle(), set).await.answer()?;
        Ok(self.attributes(ino, &self.attr_of(node.handle(), after).await?))
    }

    /// READLINK.
    pub async fn readlink(&self, ino: u64) -> Answer<Bytes> {
        self.mount.protocol().readlink(self.node(ino)?.handle()).await.answer()
    }

    /// ACCESS.
    pub async fn access(&self, ino: u64, mask: AccessFlags) -> Answer<()> {
        let node = self.node(ino)?;
        let wanted = [
            (AccessFlags::R_OK, ACCESS3_READ),
            (AccessFlags::W_OK, ACCESS3_MODIFY | ACCESS3_EXTEND),
            (AccessFlags::X_OK, if node.is_dir { ACCESS3_LOOKUP } else { ACCESS3_EXECUTE }),
        ];
        let wanted = wanted.iter().filter(|(flag, _)| mask.contains(*flag)).fold(0, |all, (_, bits)| all | bits);
        let granted = self.mount.protocol().access(node.handle(), wanted).await.answer()?;
        if granted & wanted == wanted { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// CREATE of a file, which is open then. One that is there is an error if `exclusive`.
    pub async fn create(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        exclusive: bool,
        cut: bool,
    ) -> Answer<(FileAttr, u64)> {
        let set = SetAttr { mode: Some(mode & 0o7777), size: cut.then_some(0), ..SetAttr::default() };
        let how = if exclusive { CreateHow::Guarded(set) } else { CreateHow::Unchecked(set) };
        let dir = self.node(parent)?;
        let made = self.mount.protocol().create(dir.handle(), name.as_bytes(), how).await.answer()?;
        let attr = self.made(made).await?;
        let number = self.count_open(attr.ino.0)?;
        // One that was there before may have been read.
        *self.node(attr.ino.0)?.cached.lock().await = Cached::Unknown;
        Ok((attr, number))
    }

    /// MKNOD, or CREATE where `mode` says that it is a regular file.
    pub async fn mknod(&self, parent: u64, name: &OsStr, mode: u32, rdev: u32) -> Answer<FileAttr> {
        let (dir, protocol) = (self.node(parent)?, self.mount.protocol());
        let (set, name_bytes) = (SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() }, name.as_bytes());
        let special = match rustix::fs::FileType::from_raw_mode(mode) {
            rustix::fs::FileType::CharacterDevice => Special::Chr(device(rdev)),
            rustix::fs::FileType::BlockDevice => Special::Blk(device(rdev)),
            rustix::fs::FileType::Socket => Special::Sock,
            rustix::fs::FileType::Fifo => Special::Fifo,
            _ => {
                let made = protocol.create(dir.handle(), name_bytes, CreateHow::Guarded(set)).await.answer()?;
                return self.made(made).await;
            }
        };
        let made = protocol.mknod(dir.handle(), name_bytes, special, set).await.answer()?;
        self.made(made).await
    }

    /// MKDIR.
    pub async fn mkdir(&self, parent: u64, name: &OsStr, mode: u32) -> Answer<FileAttr> {
        let dir = self.node(parent)?;
        let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
        let made = self.mount.protocol().mkdir(dir.handle(), name.as_bytes(), set).await.answer()?;
        self.made(made).await
    }

    /// SYMLINK.
    pub async fn symlink(&self, parent: u64, name: &OsStr, text: Bytes) -> Answer<FileAttr> {
        let dir = self.node(parent)?;
        let made =
            self.mount.protocol().symlink(dir.handle(), name.as_bytes(), text, SetAttr::default()).await.answer()?;
        self.made(made).await
    }

    async fn made(&self, made: Made) -> Answer<FileAttr> {
        let attr = self.attr_of(&made.handle, made.attr).await?;
        Ok(self.tell(&made.handle, &attr))
    }

    /// LINK.
    pub async fn link(&self, ino: u64, parent: u64, name: &OsStr) -> Answer<FileAttr> {
        let (node, dir) = (self.node(ino)?, self.node(parent)?);
        let linked = self.mount.protocol().link(node.handle(), dir.handle(), name.as_bytes()).await.answer()?;
        let attr = self.attr_of(node.handle(), linked).await?;
        Ok(self.tell(node.handle(), &attr))
    }

    /// REMOVE.
    pub async fn unlink(&self, parent: u64, name: &OsStr) -> Answer<()> {
        let dir = self.node(parent)?;
        if self.keep_if_open(&dir, name.as_bytes()).await? {
            return Ok(());
        }
        self.mount.protocol().remove(dir.handle(), name.as_bytes()).await.answer().map(drop)
    }

    /// RMDIR.
    pub async fn rmdir(&self, parent: u64, name: &OsStr) -> Answer<()> {
        self.mount.protocol().rmdir(self.node(parent)?.handle(), name.as_bytes()).await.answer().map(drop)
    }

    /// RENAME.
    pub async fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr)) -> Answer<()> {
        let (from_dir, to_dir) = (self.node(from.0)?, self.node(to.0)?);
        let (from, to) = (from.1.as_bytes(), to.1.as_bytes());
        self.keep_if_open(&to_dir, to).await?;
        self.mount.protocol().rename(from_dir.handle(), from, to_dir.handle(), to).await.answer().map(drop)
    }

    /// A file that loses its name while it is open would be gone from the server, which knows nothing of opens: it gets
    /// another name until it is closed. Returns whether it did.
    async fn keep_if_open(&self, dir: &Node, name: &[u8]) -> Answer<bool> {
        if self.open.load(Relaxed) == 0 {
            return Ok(false);
        }
        let Ok(found) = self.mount.protocol().lookup(dir.handle(), name).await else { return Ok(false) };
        let node = self.known(&found.handle);
        let Some(node) = node.filter(|node| node.is_open() && node.doomed.lock().is_none()) else { return Ok(false) };
        if found.attr.is_some_and(|attr| attr.nlink > 1) {
            return Ok(false); // Another name keeps it.
        }
        let number = self.removed.fetch_add(1, Relaxed);
        let hidden = format!(".nfs{:016x}{:08x}{number:08x}", node.ino, std::process::id()).into_bytes();
        self.mount.protocol().rename(dir.handle(), name, dir.handle(), &hidden).await.answer()?;
        *node.doomed.lock() = Some((dir.handle().clone(), hidden));
        Ok(true)
    }

    /// OPEN, where the version has that, for what the flags say. Returns the number of the open file, and whether what the kernel
    /// has of it is current.
    pub async fn open(&self, ino: u64, flags: OpenFlags) -> Answer<(u64, bool)> {
        let (node, number) = (self.node(ino)?, self.count_open(ino)?);
        let Some(v4) = self.mount.v4() else { return Ok((number, false)) };
        let access = match flags.acc_mode() {
            OpenAccMode::O_RDONLY => OPEN4_SHARE_ACCESS_READ,
            OpenAccMode::O_WRONLY => OPEN4_SHARE_ACCESS_WRITE,
            OpenAccMode::O_RDWR => OPEN4_SHARE_ACCESS_READ | OPEN4_SHARE_ACCESS_WRITE,
        };
        match v4.open(node.handle(), access).await.answer() {
            Ok(version) => {
                self.make_current(&node, version).await;
                Ok((number, true))
            }
            Err(error) => {
                self.release(ino, number).await?;
                Err(error)
            }
        }
    }

    /// A file is open once more.
    fn count_open(&self, ino: u64) -> Answer<u64> {
        let node = self.node(ino)?;
        node.opens.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
        let number = self.next_open.fetch_add(1, Relaxed);
        if let Some(v4) = self.mount.v4() {
            self.held.lock().insert(number, v4.hold(node.handle()));
        }
        Ok(number)
    }

    /// It is open once less.
    pub async fn release(&self, ino: u64, number: u64) -> Answer<()> {
        let node = self.node(ino)?;
        if let Err(error) = self.closed(ino, number).await {
            tracing::warn!(?error, "what was locked may stay so until nobody has the file open");
        }
        self.held.lock().remove(&number);
        self.open.fetch_sub(1, Relaxed);
        let last = node.opens.fetch_sub(1, Relaxed) == 1;
        let doomed = if last { node.doomed.lock().take() } else { None };
        match doomed {
            Some((dir, name)) => self.mount.protocol().remove(&dir, &name).await.answer().map(drop),
            None => Ok(()),
        }
    }

    /// READs, up to the end of the file; returns the buffer and how much of it they filled.
    pub async fn read(&self, ino: u64, offset: u64, size: usize) -> Answer<(Buffer, usize)> {
        let node = self.node(ino)?;
        let (read, buffer) = node.file.read_at(offset, self.mount.pool().take(size)).await;
        Ok((buffer, read.answer()?))
    }

    /// Memory that the transport knows, with a copy of what the kernel has lent for a moment.
    pub fn take_in(&self, data: &[u8]) -> Bytes {
        let mut buffer = self.mount.pool().take(data.len());
        buffer[..data.len()].copy_from_slice(data);
        buffer.freeze()
    }

    /// WRITEs; on stable storage if `durable`.
    pub async fn write(&self, ino: u64, offset: u64, data: Bytes, durable: bool) -> Answer<()> {
        let node = self.node(ino)?;
        node.unstable.write(&self.mount, node.handle(), offset, data).await?;
        if durable { node.unstable.commit(&self.mount, node.handle()).await } else { Ok(()) }
    }

    /// An owner of locks closes a file: what has been written is durable, and what it has locked is not locked any more.
    pub async fn flush(&self, ino: u64, owner: u64) -> Answer<()> {
        let durable = self.commit(ino).await;
        durable.and(self.let_go(ino, owner).await)
    }

    /// COMMIT of what has been written.
    pub async fn commit(&self, ino: u64) -> Answer<()> {
        let node = self.node(ino)?;
        node.unstable.commit(&self.mount, node.handle()).await
    }

    /// A directory is open; its listing has this number.
    pub fn open_dir(&self) -> u64 {
        let number = self.next_open.fetch_add(1, Relaxed);
        self.listings.lock().insert(number, Arc::default());
        number
    }

    /// It is closed.
    pub fn release_dir(&self, number: u64) {
        self.listings.lock().remove(&number);
    }

    /// Hands the entries behind a cookie to `add` until it has no room, with the number and attributes of each. The
    /// kernel is told of them if it takes attributes and handles of them all, which it does not for the two dots.
    pub async fn list(
        &self,
        ino: u64,
        number: u64,
        mut cookie: u64,
        told: bool,
        mut add: impl FnMut(&Entry, &FileAttr) -> bool + Send,
    ) -> Answer<()> {
        let node = self.node(ino)?;
        let listing = self.listings.lock().get(&number).cloned().ok_or(Errno::EBADF)?;
        let mut listing = listing.lock().await;
        while let Some(entry) = listing.next(&self.mount, node.handle(), cookie).await.answer()? {
            if listing.has_moved(&self.mount, node.handle(), cookie) {
                return Err(Errno::ESTALE);
            }
            let name = entry.name.clone();
            let (handle, attr) = match (&entry.handle, &entry.attr) {
                (Some(handle), Some(attr)) => (handle.clone(), attr.clone()),
                _ => match self.find(node.handle(), &name).await {
                    Ok(found) => found,
                    // Gone between listing and looking.
                    Err(Errno::ENOENT) => {
                        cookie = entry.cookie;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            let dots = matches!(&name[..], b"." | b"..");
            let attr = match told && !dots {
                true => self.tell(&handle, &attr),
                false => self.attributes(attr.fileid.max(1), &attr),
            };
            if add(&entry, &attr) {
                if told && !dots {
                    self.forget(attr.ino.0, 1);
                }
                listing.put_back(entry, cookie);
                return Ok(());
            }
            cookie = entry.cookie;
        }
        Ok(())
    }

    /// FSSTAT.
    pub async fn statfs(&self) -> Answer<FsStat> {
        self.mount.protocol().fsstat(self.mount.root()).await.answer()
    }
}
