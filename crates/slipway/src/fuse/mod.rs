//! A mount that programs use: FUSE requests of the kernel, answered by the client library.
//!
//! The kernel's requests come in on a thread of their own and each becomes a task, so that many are under way at once.
//! [`Fuse`] here only unpacks and replies; [`tree`] says what each request means, [`nodes`] which object a number is,
//! [`unstable`] keeps what is not durable yet, [`listing`] reads directories. A name can lead to another server ([`referral`]); each
//! object says of which mount it is, and what is done to it is done there. [`locks`] and [`extended`] are what needs NFSv4,
//! and [`cache`] says what the kernel may keep.
//!
//! Consistency is NFS's close-to-open: what was written is on stable storage when the file is closed, and an open looks
//! anew. Attributes and names are believed for [`Options::ttl`], or as long as the server delegates the file.

mod cache;
mod convert;
mod extended;
mod listing;
mod locks;
mod nodes;
mod referral;
mod tree;
mod unstable;

use std::{ffi::OsStr, future::Future, io, os::unix::ffi::OsStrExt, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use client::SetAttr;
use client::{Mount, Object};
use fuser::*;
use tokio::{runtime::Handle, sync::oneshot};

use convert::set_time;
use extended::Allocate;
use locks::Lock;
use nfs::v4::DataContent4;
use tree::{Answer, Tree};

/// How the kernel is to use it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long names and attributes are believed.
    pub ttl: Duration,
    /// Reads and writes go to the server as they come, past the page cache.
    pub direct_io: bool,
}

/// The file system.
pub struct Fuse {
    tree: Arc<Tree>,
    runtime: Handle,
    options: Options,
    /// Told when the mount has ended.
    ended: Option<oneshot::Sender<()>>,
}

impl Fuse {
    /// The tree below `root`, worked for by tasks of `runtime`, which must run. The receiver hears of the end.
    pub fn new(mount: Mount, root: Object, runtime: Handle, options: Options) -> (Self, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        let tree = Tree::new(mount, root, options.ttl);
        (Self { tree, runtime, options, ended: Some(sender) }, receiver)
    }

    /// How the tree is told what tells the kernel, which must be before the kernel has any requests answered.
    pub fn notify(&self) -> impl FnOnce(Notifier) + use<> {
        let tree = self.tree.clone();
        move |notifier| tree.kernel.is(notifier)
    }

    /// Works on a request, and replies.
    fn answer<R, T, F>(&self, reply: R, work: impl FnOnce(Arc<Tree>) -> F, done: impl FnOnce(R, T) + Send + 'static)
    where
        R: Refuse,
        F: Future<Output = Answer<T>> + Send + 'static,
    {
        let work = work(self.tree.clone());
        self.runtime.spawn(async move {
            match work.await {
                Ok(value) => done(reply, value),
                Err(error) => reply.refuse(error),
            }
        });
    }

    /// Replies with an object.
    fn entry<F>(&self, reply: ReplyEntry, work: impl FnOnce(Arc<Tree>) -> F)
    where
        F: Future<Output = Answer<FileAttr>> + Send + 'static,
    {
        let tree = self.tree.clone();
        self.answer(reply, work, move |reply, attr| {
            reply.entry_with_ttls(&tree.believed(attr.ino.0), &tree.ttl, &attr, Generation(0));
        });
    }

    /// Replies that it is done.
    fn empty<F>(&self, reply: ReplyEmpty, work: impl FnOnce(Arc<Tree>) -> F)
    where
        F: Future<Output = Answer<()>> + Send + 'static,
    {
        self.answer(reply, work, |reply, ()| reply.ok());
    }

    /// Replies with bytes of which the caller has said how many it can take, or, with 0, how many there are.
    fn bytes<F>(&self, reply: ReplyXattr, room: u32, work: impl FnOnce(Arc<Tree>) -> F)
    where
        F: Future<Output = Answer<Bytes>> + Send + 'static,
    {
        self.answer(reply, work, move |reply, bytes: Bytes| match u32::try_from(bytes.len()) {
            Ok(len) if room == 0 => reply.size(len),
            Ok(len) if len <= room => reply.data(&bytes),
            _ => reply.error(Errno::ERANGE),
        });
    }

    fn open_flags(&self, current: bool) -> FopenFlags {
        match (self.options.direct_io, current) {
            (true, _) => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            (false, true) => FopenFlags::FOPEN_KEEP_CACHE,
            (false, false) => FopenFlags::empty(),
        }
    }
}

/// A reply that can be an error: all can.
trait Refuse: Send + 'static {
    fn refuse(self, error: Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => {
        $(impl Refuse for $reply {
            fn refuse(self, error: Errno) {
                self.error(error);
            }
        })*
    };
}
refuse!(ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen);
refuse!(ReplyStatfs, ReplyWrite, ReplyXattr, ReplyLock, ReplyLseek);

impl Filesystem for Fuse {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without NFSv4 the kernel locks by itself, on this machine only.
        let locks = if self.tree.mount.v4().is_some() { &LOCKS[..] } else { &[] };
        for &capability in WANTED.iter().chain(locks) {
            // An older kernel has not all of them, and does without.
            let _ = config.add_capabilities(capability);
        }
        // What is refused is beyond what the kernel offers, and stays at its most.
        let _ = config.set_max_write(REQUEST_MAX);
        let _ = config.set_max_readahead(REQUEST_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        if let Some(ended) = self.ended.take() {
            let _ = ended.send(());
        }
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.entry(reply, |tree| async move { tree.lookup(parent.0, &name).await });
    }

    fn forget(&self, _: &Request, ino: INodeNo, times: u64) {
        self.tree.forget(ino.0, times);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let tree = self.tree.clone();
        let done = move |reply: ReplyAttr, attr| reply.attr(&tree.believed(ino.0), &attr);
        self.answer(reply, |tree| async move { tree.getattr(ino.0).await }, done);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mode = mode.map(|mode| mode & 0o7777);
        let set = SetAttr { mode, uid, gid, size, atime: set_time(atime), mtime: set_time(mtime) };
        let ttl = self.options.ttl;
        let done = move |reply: ReplyAttr, attr| reply.attr(&ttl, &attr);
        self.answer(reply, |tree| async move { tree.setattr(ino.0, set).await }, done);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let done = |reply: ReplyData, text: Bytes| reply.data(&text);
        self.answer(reply, |tree| async move { tree.readlink(ino.0).await }, done);
    }

    fn mknod(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, rdev: u32, reply: ReplyEntry) {
        let name = name.to_owned();
        self.entry(reply, |tree| async move { tree.mknod(parent.0, &name, mode, rdev).await });
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let name = name.to_owned();
        self.entry(reply, |tree| async move { tree.mkdir(parent.0, &name, mode).await });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.empty(reply, |tree| async move { tree.unlink(parent.0, &name).await });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.empty(reply, |tree| async move { tree.rmdir(parent.0, &name).await });
    }

    fn symlink(&self, _: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, text) = (name.to_owned(), Bytes::copy_from_slice(target.as_os_str().as_bytes()));
        self.entry(reply, |tree| async move { tree.symlink(parent.0, &name, text).await });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL); // NFSv3 can neither exchange names nor spare one.
        }
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        self.empty(reply, |tree| async move { tree.rename((parent.0, &name), (new_parent.0, &new_name)).await });
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.entry(reply, |tree| async move { tree.link(ino.0, parent.0, &name).await });
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = [false, true].map(|current| self.open_flags(current));
        let done =
            move |reply: ReplyOpen, (number, current)| reply.opened(FileHandle(number), opened[usize::from(current)]);
        self.answer(reply, |tree| async move { tree.open(ino.0, flags).await }, done);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (name, flags) = (name.to_owned(), rustix::fs::OFlags::from_bits_retain(flags as u32));
        let (exclusive, cut) = (flags.contains(rustix::fs::OFlags::EXCL), flags.contains(rustix::fs::OFlags::TRUNC));
        let (ttl, open) = (self.options.ttl, self.open_flags(false));
        let done = move |reply: ReplyCreate, (attr, number)| {
            reply.created(&ttl, &attr, Generation(0), FileHandle(number), open);
        };
        self.answer(reply, |tree| async move { tree.create(parent.0, &name, mode, exclusive, cut).await }, done);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let done = |reply: ReplyData, (buffer, len): (buf::Buffer, usize)| reply.data(&buffer[..len]);
        self.answer(reply, |tree| async move { tree.read(ino.0, offset, size as usize).await }, done);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let flags = rustix::fs::OFlags::from_bits_retain(flags.0 as u32);
        let durable = flags.intersects(rustix::fs::OFlags::SYNC | rustix::fs::OFlags::DSYNC);
        let (data, len) = (self.tree.take_in(ino.0, data), data.len() as u32);
        let done = move |reply: ReplyWrite, ()| reply.written(len);
        self.answer(reply, |tree| async move { tree.write(ino.0, offset, data, durable).await }, done);
    }

    fn flush(&self, _: &Request, ino: INodeNo, _: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        self.empty(reply, |tree| async move { tree.flush(ino.0, owner.0).await });
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.empty(reply, |tree| async move { tree.release(ino.0, fh.0).await });
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.empty(reply, |tree| async move { tree.commit(ino.0).await });
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.tree.open_dir()), FopenFlags::empty());
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let tree = self.tree.clone();
        self.runtime.spawn(async move {
            let add = |entry: &client::Entry, attr: &FileAttr, _| {
                reply.add(attr.ino, entry.cookie, attr.kind, OsStr::from_bytes(&entry.name))
            };
            match tree.list(ino.0, fh.0, offset, false, add).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let tree = self.tree.clone();
        self.runtime.spawn(async move {
            let add = |entry: &client::Entry, attr: &FileAttr, believed: Duration| {
                let name = OsStr::from_bytes(&entry.name);
                reply.add(attr.ino, entry.cookie, name, &believed, attr, Generation(0))
            };
            match tree.list(ino.0, fh.0, offset, true, add).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.tree.release_dir(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok(); // RFC 1813 §1.5: a server has changes of names on stable storage before it answers.
    }

    fn statfs(&self, _: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let done = |reply: ReplyStatfs, stat: client::FsStat| {
            let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK);
            let (total, free, available) = (blocks(stat.tbytes), blocks(stat.fbytes), blocks(stat.abytes));
            reply.statfs(total, free, available, stat.tfiles, stat.ffiles, STATFS_BLOCK, NAME_MAX, STATFS_BLOCK);
        };
        self.answer(reply, |tree| async move { tree.statfs(ino.0).await }, done);
    }

    fn access(&self, _: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        self.empty(reply, |tree| async move { tree.access(ino.0, mask).await });
    }

    fn getlk(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        // Which process it is that has a lock, a server does not say.
        let done = |reply: ReplyLock, found: Lock| reply.locked(found.start, found.end, found.kind, 0);
        self.answer(reply, |tree| async move { tree.test_lock(ino.0, owner.0, Lock { start, end, kind }).await }, done);
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let waiter = sleep.then_some(request.pid());
        let lock = Lock { start, end, kind };
        self.empty(reply, |tree| async move { tree.lock(ino.0, fh.0, owner.0, lock, waiter).await });
    }

    fn setxattr(
        &self,
        _: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.to_owned(), Bytes::copy_from_slice(value));
        self.empty(reply, |tree| async move { tree.set_xattr(ino.0, name.as_bytes(), value, flags).await });
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        // Asked for before each write: whether the file has capabilities that this ends.
        if let Err(error) = self.tree.xattr_name(ino.0, name.as_bytes()) {
            return reply.error(error);
        }
        let name = name.to_owned();
        self.bytes(reply, size, |tree| async move { tree.xattr(ino.0, name.as_bytes()).await });
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.bytes(reply, size, |tree| async move { tree.xattrs(ino.0).await });
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.empty(reply, |tree| async move { tree.remove_xattr(ino.0, name.as_bytes()).await });
    }

    // Without this, each attempt would be a warning in the log.
    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = Allocate::from_mode(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        self.empty(reply, |tree| async move { tree.allocate(ino.0, offset, length, how).await });
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let what = match whence {
            SEEK_DATA => DataContent4::Data,
            SEEK_HOLE => DataContent4::Hole,
            _ => return reply.error(Errno::EINVAL), // The kernel knows the others by itself.
        };
        let done = |reply: ReplyLseek, at| reply.offset(at);
        self.answer(reply, |tree| async move { tree.seek(ino.0, offset, what).await }, done);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        ino_in: INodeNo,
        _: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _: FileHandle,
        offset_out: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((ino_in.0, offset_in), (ino_out.0, offset_out));
        let done = |reply: ReplyWrite, count| reply.written(count);
        self.answer(reply, |tree| async move { tree.copy(from, to, len).await }, done);
    }
}

/// Several requests of one process at once, large ones, and listings with attributes.
const WANTED: [InitFlags; 5] = [
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_MAX_PAGES,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
];
/// Locks are the server's.
const LOCKS: [InitFlags; 2] = [InitFlags::FUSE_POSIX_LOCKS, InitFlags::FUSE_FLOCK_LOCKS];
/// Bytes of the largest read and write, where the kernel allows it: as many as an NFS server takes at once.
const REQUEST_MAX: u32 = 1 << 20;
/// Asynchronous requests at once.
const BACKGROUND_MAX: u16 = 64;
const STATFS_BLOCK: u32 = 4096;
const NAME_MAX: u32 = 255;
/// Of lseek(2).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
