//! The FUSE mount: the client library answers FUSE requests of the kernel.
//!
//! [`session`] reads requests from the [`device`]. Each request is a task, so many are in progress at once. [`wire`]
//! has the message formats. [`Fuse`] only decodes and replies. [`tree`] implements the requests, [`opens`] those of
//! open files, [`nodes`] maps numbers to objects, [`absent`] knows names that do not exist, [`new_file`] the attributes of
//! new files, [`staged`] gathers written data, [`unstable`] keeps data that are not durable yet, [`listing`] reads
//! directories. A name can lead to another server ([`referral`]); each object knows its mount, which its operations use.
//! [`locks`] and [`extended`] need NFSv4, [`posix_acl`] has the ACLs of NFSv3, which [`mapped_acl`] makes of those of
//! NFSv4, and [`cache`] controls the kernel's cache; [`writeback`] is for a kernel that keeps written data, and
//! [`passthrough`] lets the kernel read files of a server on this host itself.
//!
//! Consistency is NFS's close-to-open: written data are on stable storage when the file is closed, and an open
//! revalidates the cache. Attributes and names are cached for [`Options::ttl`], or as long as the server delegates the
//! file.

mod absent;
mod cache;
mod callers;
mod convert;
mod device;
mod extended;
mod listing;
mod locks;
mod mapped_acl;
mod new_file;
mod nodes;
mod opens;
mod passthrough;
mod posix_acl;
mod referral;
mod session;
mod staged;
mod status;
mod tree;
mod unstable;
mod view;
mod wire;
mod writeback;

use std::{future::Future, os::unix::ffi::OsStrExt, sync::Arc, time::Duration};

use bytes::Bytes;
use client::{Object, SetAttr, Time};
use nfs::v4::DataContent4;
use rustix::io::Errno;

use callers::Callers;
use convert::set_time;
use extended::Allocate;
use locks::Lock;
use opens::{Open, Pages};
use session::{Handler, Replier, Reply, Request, Undo};
use tree::{Answer, Tree};
use view::View;
use wire::{Arguments, Attributes, Header, Init, Listed, Out, Plus, init, op, open, set};

pub use device::{Device, set_read_ahead, unmount};
pub use passthrough::refusal;
pub use session::{InFlight, Session};
pub use status::{ServerWaits, Waits};

/// The options of a mount.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The time for which names and attributes are cached.
    pub ttl: Duration,
    /// Reads and writes bypass the page cache.
    pub direct_io: bool,
    /// The kernel keeps data that programs write, and owns sizes and times of files.
    pub writeback: bool,
    /// The kernel reads files itself that the server passes.
    pub passthrough: bool,
    /// Each write waits until its data are on stable storage.
    pub synchronous: bool,
    /// The kernel refuses changes.
    pub read_only: bool,
    /// Each operation acts as its caller; otherwise as the user of the mount.
    pub per_caller: bool,
    /// The behaviour of operations while the server does not answer.
    pub recovery: Recovery,
}

/// The behaviour of operations while the server does not answer, as in nfs(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Operations wait until the server answers.
    Hard,
    /// Operations fail after this time with EIO.
    Soft(Duration),
    /// Operations fail after this time with ETIMEDOUT.
    SoftErr(Duration),
}

impl Recovery {
    /// Returns the maximum time of an operation.
    fn deadline(self) -> Duration {
        match self {
            Recovery::Hard => FOREVER,
            Recovery::Soft(deadline) | Recovery::SoftErr(deadline) => deadline,
        }
    }

    /// Returns the error that a program gets.
    fn error(self, error: Errno) -> Errno {
        if error == Errno::TIMEDOUT && matches!(self, Recovery::Soft(_)) { Errno::IO } else { error }
    }
}

/// The file system.
pub struct Fuse {
    tree: Arc<Tree>,
    options: Options,
}

/// The result of decoding and starting a request. The reply to the kernel contains the error.
type Decoded = Result<(), Errno>;

impl Fuse {
    /// Creates a file system with the tree below `root`.
    pub fn new(root: Object, session: &Session, options: Options) -> Arc<Self> {
        let callers = options.per_caller.then(Callers::new);
        let tree = Tree::new(root, &options, callers, session.device());
        Arc::new(Self { tree, options })
    }

    /// Sends all data that programs have written.
    pub async fn settle(&self) {
        self.tree.settle().await;
    }

    /// Makes the kernel write all data that it keeps, which [`settle`](Self::settle) then sends. The session must still run.
    pub async fn write_back(&self) {
        self.tree.write_back_all().await;
    }

    /// Returns the operations of a session of this file system that wait.
    pub fn waits(&self, session: &Session) -> Waits {
        Waits { in_flight: session.in_flight().clone(), tree: self.tree.clone() }
    }

    /// Executes a request in a task, and replies.
    fn answer<T, F>(
        self: &Arc<Self>,
        replier: Replier,
        work: impl FnOnce(View) -> F,
        done: impl FnOnce(T) -> (Reply, Undo) + Send + 'static,
    ) where
        F: Future<Output = Answer<T>> + Send + 'static,
        T: Send,
    {
        let work = work(View::new(self.tree.clone(), &replier.header));
        let recovery = self.options.recovery;
        replier.spawn(self, async move { work.await.map_err(|error| recovery.error(error)) }, done);
    }

    /// Executes a request, and replies with fields.
    fn fields<T, F>(
        self: &Arc<Self>,
        replier: Replier,
        work: impl FnOnce(View) -> F,
        out: impl FnOnce(T) -> Out + Send + 'static,
    ) where
        F: Future<Output = Answer<T>> + Send + 'static,
        T: Send,
    {
        self.answer(replier, work, |value| (Reply::Out(out(value)), Undo::Nothing));
    }

    /// Executes a request, and replies without data.
    fn empty<F>(self: &Arc<Self>, replier: Replier, work: impl FnOnce(View) -> F)
    where
        F: Future<Output = Answer<()>> + Send + 'static,
    {
        self.fields(replier, work, |()| Out::new());
    }

    /// Executes a request, and replies with an object.
    fn entry<F>(self: &Arc<Self>, replier: Replier, work: impl FnOnce(View) -> F)
    where
        F: Future<Output = Answer<Attributes>> + Send + 'static,
    {
        let tree = self.tree.clone();
        self.answer(replier, work, move |attr: Attributes| {
            let out = Out::new().entry(attr.node, &attr, tree.name_ttl(), tree.attribute_ttl(attr.ino));
            (Reply::Out(out), Undo::Forget(vec![attr.node]))
        });
    }

    /// Executes a request, and replies with an object. The kernel caches that there is none.
    fn found<F>(self: &Arc<Self>, replier: Replier, work: impl FnOnce(View) -> F)
    where
        F: Future<Output = Answer<Attributes>> + Send + 'static,
    {
        let (tree, work) = (self.tree.clone(), work(View::new(self.tree.clone(), &replier.header)));
        let ttl = tree.name_ttl();
        let found = async move {
            match work.await {
                Err(Errno::NOENT) if !ttl.is_zero() => Ok(None),
                found => found.map(Some),
            }
        };
        self.answer(
            replier,
            |_| found,
            move |found: Option<Attributes>| match found {
                None => (Reply::Out(Out::new().no_entry(ttl)), Undo::Nothing),
                Some(attr) => {
                    let out = Out::new().entry(attr.node, &attr, ttl, tree.attribute_ttl(attr.ino));
                    (Reply::Out(out), Undo::Forget(vec![attr.node]))
                }
            },
        );
    }

    /// Executes a request, and replies with bytes. The caller has said how many it can accept; with 0, it only gets
    /// their number.
    fn bytes<F>(self: &Arc<Self>, replier: Replier, room: u32, work: impl FnOnce(View) -> F)
    where
        F: Future<Output = Answer<Bytes>> + Send + 'static,
    {
        let work = work(View::new(self.tree.clone(), &replier.header));
        let work = async move {
            let bytes = work.await?;
            match u32::try_from(bytes.len()) {
                Ok(len) if room == 0 => Ok(Out::new().u32(len).u32(0)),
                Ok(len) if len <= room => Ok(Out::new().bytes(&bytes)),
                _ => Err(Errno::RANGE),
            }
        };
        self.fields(replier, |_| work, |out| out);
    }

    /// Returns the tree as the user sees it that has opened the file with this number.
    fn view(&self, number: u64) -> View {
        View::of_mount(self.tree.clone()).of_open(number)
    }

    /// Appends the result of an open.
    fn opened(&self, out: Out, Open { number, pages, way }: Open) -> Out {
        let flags = match (self.options.direct_io, pages) {
            _ if way.is_passed() => way.flags(),
            (true, _) => open::DIRECT_IO | open::PARALLEL_DIRECT_WRITES,
            (false, Pages::Current) => open::KEEP_CACHE,
            (false, Pages::Old) => 0,
            (false, Pages::Bypassed) => open::DIRECT_IO,
        };
        out.open(number, flags, way.backing())
    }

    /// INIT: negotiates the features of both sides.
    fn init(&self, replier: &Replier, arguments: Arguments<'_>) -> Decoded {
        // Without locks at the server, the kernel keeps them locally, on this machine only.
        let locks = if self.tree.mount.protocol().has_locks() { init::POSIX_LOCKS | init::FLOCK_LOCKS } else { 0 };
        // A kernel with a newer protocol gets ours, and asks again.
        let writeback = if self.options.writeback { init::WRITEBACK_CACHE } else { 0 };
        let passthrough = if self.options.passthrough { init::PASSTHROUGH } else { 0 };
        let agreed = Init::agree(arguments, WANTED | locks | writeback | passthrough)?;
        let agreed = agreed.unwrap_or(Init { minor: 0, flags: 0 });
        if agreed.minor > 0 && agreed.flags & passthrough != passthrough {
            self.tree
                .passing
                .disable(&"the kernel has no FUSE_PASSTHROUGH (Linux 6.9 and later, CONFIG_FUSE_PASSTHROUGH)");
        }
        replier.reply(Reply::Out(Out::new().init(agreed)));
        Ok(())
    }

    fn dispatch(self: &Arc<Self>, header: Header, body: &[u8], data: Bytes, slot: &mut Option<Replier>) -> Decoded {
        let mut arguments = Arguments::new(body);
        match header.opcode {
            op::LOOKUP
            | op::READLINK
            | op::SYMLINK
            | op::MKNOD
            | op::MKDIR
            | op::UNLINK
            | op::RMDIR
            | op::RENAME
            | op::RENAME2
            | op::LINK => self.names(header, &mut arguments, slot),
            op::GETATTR
            | op::SETATTR
            | op::STATFS
            | op::ACCESS
            | op::SETXATTR
            | op::GETXATTR
            | op::LISTXATTR
            | op::REMOVEXATTR => self.attributes(header, &mut arguments, slot),
            op::OPEN | op::CREATE | op::READ | op::WRITE | op::FLUSH | op::RELEASE | op::FSYNC => {
                self.files(header, &mut arguments, data, slot)
            }
            op::OPENDIR | op::READDIR | op::READDIRPLUS | op::RELEASEDIR | op::FSYNCDIR => {
                self.directories(header, &mut arguments, slot)
            }
            op::GETLK | op::SETLK | op::SETLKW => self.locks(header, &mut arguments, slot),
            op::FALLOCATE | op::LSEEK | op::COPY_FILE_RANGE => self.ranges(header, &mut arguments, slot),
            op::FORGET | op::BATCH_FORGET => {
                if let Some(replier) = slot.take() {
                    replier.forget();
                }
                self.forget(header, &mut arguments)
            }
            op::INIT => self.init(slot.as_ref().ok_or(Errno::INVAL)?, arguments),
            op::DESTROY => {
                taken(slot)?.reply(Reply::Out(Out::new()));
                Ok(())
            }
            op::IOCTL => Err(Errno::NOTTY),
            // The kernel does not ask again.
            _ => Err(Errno::NOSYS),
        }
    }

    fn forget(&self, header: Header, arguments: &mut Arguments<'_>) -> Decoded {
        if header.opcode == op::FORGET {
            self.tree.forget(header.ino, arguments.u64()?);
            return Ok(());
        }
        let count = arguments.u32()?;
        arguments.skip()?;
        for _ in 0..count {
            self.tree.forget(arguments.u64()?, arguments.u64()?);
        }
        Ok(())
    }

    fn names(self: &Arc<Self>, header: Header, arguments: &mut Arguments<'_>, slot: &mut Option<Replier>) -> Decoded {
        let ino = header.ino;
        match header.opcode {
            op::LOOKUP => {
                let name = arguments.name()?.to_owned();
                self.found(taken(slot)?, |tree| async move { tree.lookup(ino, &name).await });
            }
            op::READLINK => {
                let done = |text: Bytes| Out::new().bytes(&text);
                self.fields(taken(slot)?, |tree| async move { tree.readlink(ino).await }, done);
            }
            op::SYMLINK => {
                let (name, text) = (arguments.name()?.to_owned(), arguments.name()?);
                let text = Bytes::copy_from_slice(text.as_bytes());
                self.entry(taken(slot)?, |tree| async move { tree.symlink(ino, &name, text).await });
            }
            op::MKNOD => {
                let (mode, rdev) = (arguments.u32()?, arguments.u32()?);
                arguments.skip()?;
                arguments.skip()?;
                let name = arguments.name()?.to_owned();
                self.entry(taken(slot)?, |tree| async move { tree.mknod(ino, &name, mode, rdev).await });
            }
            op::MKDIR => {
                let mode = arguments.u32()?;
                arguments.skip()?;
                let name = arguments.name()?.to_owned();
                self.entry(taken(slot)?, |tree| async move { tree.mkdir(ino, &name, mode).await });
            }
            op::UNLINK => {
                let name = arguments.name()?.to_owned();
                self.empty(taken(slot)?, |tree| async move { tree.unlink(ino, &name).await });
            }
            op::RMDIR => {
                let name = arguments.name()?.to_owned();
                self.empty(taken(slot)?, |tree| async move { tree.rmdir(ino, &name).await });
            }
            op::LINK => {
                let old = arguments.u64()?;
                let name = arguments.name()?.to_owned();
                self.entry(taken(slot)?, |tree| async move { tree.link(old, ino, &name).await });
            }
            _ => {
                let to = arguments.u64()?;
                if header.opcode == op::RENAME2 {
                    let flags = arguments.u32()?;
                    arguments.skip()?;
                    if flags != 0 {
                        return Err(Errno::INVAL); // NFS supports neither RENAME_EXCHANGE nor RENAME_NOREPLACE.
                    }
                }
                let (old, new) = (arguments.name()?.to_owned(), arguments.name()?.to_owned());
                self.empty(taken(slot)?, |tree| async move { tree.rename((ino, &old), (to, &new)).await });
            }
        }
        Ok(())
    }

    fn attributes(
        self: &Arc<Self>,
        header: Header,
        arguments: &mut Arguments<'_>,
        slot: &mut Option<Replier>,
    ) -> Decoded {
        let ino = header.ino;
        match header.opcode {
            op::GETATTR => {
                let tree = self.tree.clone();
                let done = move |attr: Attributes| Out::new().attr(&attr, tree.attribute_ttl(ino));
                self.fields(taken(slot)?, |tree| async move { tree.getattr(ino).await }, done);
            }
            op::SETATTR => {
                let (set, ctime, number) = set_attr(arguments)?;
                let view = View::new(self.tree.clone(), &header).of_open(number);
                if let Some(attr) = view.set_later(ino, &set) {
                    taken(slot)?.reply(Reply::Out(Out::new().attr(&attr, Duration::ZERO)));
                    return Ok(());
                }
                let done = |(attr, ttl): (Attributes, Duration)| Out::new().attr(&attr, ttl);
                let work = |tree: View| async move { tree.of_open(number).setattr(ino, set, ctime).await };
                self.fields(taken(slot)?, work, done);
            }
            op::STATFS => {
                let done = |stat: client::FsStat| {
                    let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK);
                    let [total, free, available] = [stat.tbytes, stat.fbytes, stat.abytes].map(blocks);
                    Out::new().statfs([total, free, available, stat.tfiles, stat.ffiles], STATFS_BLOCK, NAME_MAX)
                };
                self.fields(taken(slot)?, |tree| async move { tree.statfs(ino).await }, done);
            }
            op::ACCESS => {
                let mask = arguments.u32()?;
                self.empty(taken(slot)?, |tree| async move { tree.access(ino, mask).await });
            }
            op::SETXATTR => {
                let (size, flags) = (arguments.u32()?, arguments.i32()?);
                let name = arguments.name()?.to_owned();
                let value = Bytes::copy_from_slice(arguments.bytes(size as usize)?);
                self.empty(
                    taken(slot)?,
                    |tree| async move { tree.set_xattr(ino, name.as_bytes(), value, flags).await },
                );
            }
            op::GETXATTR => {
                let room = arguments.u32()?;
                arguments.skip()?;
                let name = arguments.name()?.to_owned();
                // The kernel asks before each write for capabilities of the file, which the write would remove.
                self.tree.xattr_name(ino, name.as_bytes())?;
                self.bytes(taken(slot)?, room, |tree| async move { tree.xattr(ino, name.as_bytes()).await });
            }
            op::LISTXATTR => {
                let room = arguments.u32()?;
                self.bytes(taken(slot)?, room, |tree| async move { tree.xattrs(ino).await });
            }
            _ => {
                let name = arguments.name()?.to_owned();
                self.empty(taken(slot)?, |tree| async move { tree.remove_xattr(ino, name.as_bytes()).await });
            }
        }
        Ok(())
    }

    fn files(
        self: &Arc<Self>,
        header: Header,
        arguments: &mut Arguments<'_>,
        data: Bytes,
        slot: &mut Option<Replier>,
    ) -> Decoded {
        let ino = header.ino;
        match header.opcode {
            op::OPEN => {
                let flags = open_flags(arguments.u32()?);
                let fuse = self.clone();
                let done =
                    move |open: Open| (Reply::Out(fuse.opened(Out::new(), open)), Undo::Release(ino, open.number));
                self.answer(taken(slot)?, |tree| async move { tree.open(ino, flags).await }, done);
            }
            op::CREATE => {
                let (flags, mode) = (open_flags(arguments.u32()?), arguments.u32()?);
                arguments.skip()?;
                arguments.skip()?;
                let name = arguments.name()?.to_owned();
                let (ttl, name_ttl, fuse) = (self.options.ttl, self.tree.name_ttl(), self.clone());
                let done = move |(attr, open): (Attributes, Open)| {
                    let out = fuse.opened(Out::new().entry(attr.node, &attr, name_ttl, ttl), open);
                    (Reply::Out(out), Undo::ForgetAndRelease(attr.node, open.number))
                };
                self.answer(taken(slot)?, |tree| async move { tree.create(ino, &name, mode, flags).await }, done);
            }
            op::READ => {
                let (number, offset, size) = (arguments.u64()?, arguments.u64()?, arguments.u32()?);
                self.tree.check_read(number, arguments.u32()?)?;
                let done = |(buffer, len)| (Reply::Data(buffer, len), Undo::Nothing);
                let work = |tree: View| async move { tree.of_open(number).read(ino, offset, size as usize).await };
                self.answer(taken(slot)?, work, done);
            }
            op::WRITE => {
                let (number, offset, size) = (arguments.u64()?, arguments.u64()?, arguments.u32()?);
                let (write_flags, _owner) = (arguments.u32()?, arguments.u64()?);
                let flags = open_flags(arguments.u32()?);
                if data.len() != size as usize {
                    return Err(Errno::INVAL);
                }
                let durable =
                    self.options.synchronous || flags.intersects(rustix::fs::OFlags::SYNC | rustix::fs::OFlags::DSYNC);
                let done = move |()| Out::new().u32(size).u32(0);
                // The kernel reports errors of its own cache only once, so it must get them. With write-back caching, it sends its
                // data before each fsync and close, which report errors of staged data.
                let direct =
                    self.options.direct_io || flags.contains(rustix::fs::OFlags::DIRECT) || self.tree.is_passed(number);
                let is_cached = write_flags & wire::WRITE_CACHE != 0;
                let stages = self.options.writeback || !is_cached;
                self.tree.writes(ino, is_cached);
                if !durable && !direct && stages {
                    let view = View::new(self.tree.clone(), &header).of_open(number);
                    if view.stage(ino, offset, &data)? {
                        taken(slot)?.reply(Reply::Out(done(())));
                        return Ok(());
                    }
                }
                let work = |tree: View| async move { tree.of_open(number).write(ino, offset, data, durable).await };
                self.fields(taken(slot)?, work, done);
            }
            op::FLUSH => {
                let (number, _unused, owner) = (arguments.u64()?, arguments.u64()?, arguments.u64()?);
                self.empty(taken(slot)?, |tree| async move { tree.of_open(number).flush(ino, owner).await });
            }
            op::RELEASE => {
                let number = arguments.u64()?;
                self.empty(taken(slot)?, |tree| async move { tree.of_open(number).release(ino, number).await });
            }
            _ => self.empty(taken(slot)?, |tree| async move { tree.commit(ino).await }),
        }
        Ok(())
    }

    fn directories(
        self: &Arc<Self>,
        header: Header,
        arguments: &mut Arguments<'_>,
        slot: &mut Option<Replier>,
    ) -> Decoded {
        let ino = header.ino;
        match header.opcode {
            op::OPENDIR => {
                let done = |number| (Reply::Out(Out::new().open(number, 0, 0)), Undo::CloseDirectory(number));
                self.answer(taken(slot)?, |tree| async move { tree.open_dir(ino).await }, done);
            }
            op::RELEASEDIR => {
                self.tree.release_dir(arguments.u64()?);
                taken(slot)?.reply(Reply::Out(Out::new()));
            }
            // RFC 1813 §1.5: changes of names are on stable storage before the server answers.
            op::FSYNCDIR => {
                taken(slot)?.reply(Reply::Out(Out::new()));
            }
            opcode => {
                let (number, offset, room) = (arguments.u64()?, arguments.u64()?, arguments.u32()?);
                let (plus, name_ttl) = (opcode == op::READDIRPLUS, self.tree.name_ttl());
                self.answer(
                    taken(slot)?,
                    |tree| async move {
                        let (mut listed, mut registered) = (Listed::new(room), Vec::new());
                        let add = |entry: tree::Listed<'_>| {
                            let ino = if entry.is_lookup { entry.attr.node } else { 0 };
                            let plus = plus.then_some(Plus {
                                ino,
                                attr: &entry.attr,
                                name_ttl: entry.ttl.min(name_ttl),
                                ttl: entry.ttl,
                            });
                            let added = listed.add(entry.attr.ino, entry.cookie, entry.attr.mode, entry.name, plus);
                            if added && entry.is_lookup {
                                registered.push(ino);
                            }
                            added
                        };
                        tree.of_open(number).list(ino, number, offset, plus, add).await?;
                        Ok((listed, registered))
                    },
                    |(listed, registered): (Listed, Vec<u64>)| (Reply::Out(listed.out()), Undo::Forget(registered)),
                );
            }
        }
        Ok(())
    }

    fn locks(self: &Arc<Self>, header: Header, arguments: &mut Arguments<'_>, slot: &mut Option<Replier>) -> Decoded {
        let (ino, number, owner) = (header.ino, arguments.u64()?, arguments.u64()?);
        let lock = Lock { start: arguments.u64()?, end: arguments.u64()?, kind: arguments.i32()? };
        let replier = taken(slot)?;
        if header.opcode == op::GETLK {
            // The server does not report the process that holds a lock.
            let done = |found: Lock| Out::new().lock(found.start, found.end, found.kind);
            self.fields(replier, |tree| async move { tree.of_open(number).test_lock(ino, owner, lock).await }, done);
            return Ok(());
        }
        let until = (header.opcode == op::SETLKW).then(|| replier.interrupted());
        let undo = if lock.kind == locks::F_UNLCK { Undo::Nothing } else { Undo::Unlock(ino, owner, lock) };
        let done = move |()| (Reply::Out(Out::new()), undo);
        let work = |tree: View| async move { tree.of_open(number).lock(ino, number, owner, lock, until).await };
        self.answer(replier, work, done);
        Ok(())
    }

    fn ranges(self: &Arc<Self>, header: Header, arguments: &mut Arguments<'_>, slot: &mut Option<Replier>) -> Decoded {
        let (ino, number) = (header.ino, arguments.u64()?);
        match header.opcode {
            op::FALLOCATE => {
                let (offset, length, mode) = (arguments.u64()?, arguments.u64()?, arguments.i32()?);
                let how = Allocate::from_mode(mode).ok_or(Errno::OPNOTSUPP)?;
                let work = |tree: View| async move { tree.of_open(number).allocate(ino, offset, length, how).await };
                self.empty(taken(slot)?, work);
            }
            op::LSEEK => {
                let (offset, whence) = (arguments.i64()?, arguments.i32()?);
                let what = match whence {
                    SEEK_DATA => DataContent4::Data,
                    SEEK_HOLE => DataContent4::Hole,
                    _ => return Err(Errno::INVAL), // The kernel implements the others itself.
                };
                let done = |at: i64| Out::new().u64(at as u64);
                self.fields(
                    taken(slot)?,
                    |tree| async move { tree.of_open(number).seek(ino, offset, what).await },
                    done,
                );
            }
            _ => {
                let (offset, ino_out, _number_out) = (arguments.u64()?, arguments.u64()?, arguments.u64()?);
                let (from, to, len) = ((ino, offset), (ino_out, arguments.u64()?), arguments.u64()?);
                let done = |count| Out::new().u32(count).u32(0);
                self.fields(taken(slot)?, |tree| async move { tree.of_open(number).copy(from, to, len).await }, done);
            }
        }
        Ok(())
    }
}

impl Handler for Fuse {
    fn begin(self: &Arc<Self>, request: Request, replier: Replier) {
        let mut slot = Some(replier);
        if let Err(error) = self.dispatch(request.header, &request.body, request.data, &mut slot)
            && let Some(replier) = slot
        {
            replier.refuse(error);
        }
    }

    async fn undo(&self, undo: Undo) {
        let undone = match undo {
            Undo::Nothing => Ok(()),
            Undo::Forget(registered) => {
                registered.into_iter().for_each(|ino| self.tree.forget(ino, 1));
                Ok(())
            }
            Undo::Release(ino, number) => self.view(number).release(ino, number).await,
            Undo::CloseDirectory(number) => {
                self.tree.release_dir(number);
                Ok(())
            }
            Undo::ForgetAndRelease(ino, number) => {
                let released = self.view(number).release(ino, number).await;
                self.tree.forget(ino, 1);
                released
            }
            Undo::Unlock(ino, owner, lock) => self.view(0).unlock(ino, owner, lock).await,
        };
        if let Err(error) = undone {
            tracing::warn!(%error, "cannot undo an interrupted operation");
        }
    }
}

/// Takes the replier after the request has been decoded.
fn taken(slot: &mut Option<Replier>) -> Result<Replier, Errno> {
    slot.take().ok_or(Errno::INVAL)
}

fn open_flags(flags: u32) -> rustix::fs::OFlags {
    rustix::fs::OFlags::from_bits_retain(flags)
}

/// Decodes `fuse_setattr_in`: the attributes, the ctime that the kernel has if it owns the file's times, and the number of the open file
/// through which they are set, or 0.
fn set_attr(arguments: &mut Arguments<'_>) -> Result<(SetAttr, Option<Time>, u64), Errno> {
    let valid = arguments.u32()?;
    let (_padding, number, size, _owner) = (arguments.u32()?, arguments.u64()?, arguments.u64()?, arguments.u64()?);
    let (atime, mtime, ctime) = (arguments.i64()?, arguments.i64()?, arguments.i64()?);
    let (atime_ns, mtime_ns, ctime_ns) = (arguments.u32()?, arguments.u32()?, arguments.u32()?);
    let (mode, _unused) = (arguments.u32()?, arguments.u32()?);
    let (uid, gid) = (arguments.u32()?, arguments.u32()?);
    let has = |flag| valid & flag != 0;
    let set = SetAttr {
        mode: has(set::MODE).then_some(mode & 0o7777),
        uid: has(set::UID).then_some(uid),
        gid: has(set::GID).then_some(gid),
        size: has(set::SIZE).then_some(size),
        atime: set_time(has(set::ATIME), has(set::ATIME_NOW), atime, atime_ns),
        mtime: set_time(has(set::MTIME), has(set::MTIME_NOW), mtime, mtime_ns),
    };
    let ctime = has(set::CTIME).then_some(Time { seconds: ctime, nseconds: ctime_ns });
    Ok((set, ctime, if has(set::OPEN_FILE) { number } else { 0 }))
}

/// Several concurrent requests of one process, large requests, listings with attributes, and shared memory maps of
/// files that bypass the page cache. The server removes set-user-ID bits when a file changes, because a caller that may
/// write need not be allowed to. Without that, the kernel would ask for capabilities of the file before each write.
const WANTED: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::HANDLE_KILLPRIV_V2
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::DIRECT_IO_ALLOW_MMAP;
/// Longer than any outage of a server.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);
const STATFS_BLOCK: u32 = 4096;
const NAME_MAX: u32 = 255;
/// Values of lseek(2).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
