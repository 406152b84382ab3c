//! Reading and setting attributes.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use bytes::Bytes;
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid},
    path::DecInt,
};

use super::{
    Posix,
    changes::Tick,
    history::{self, History},
    kernel,
    objects::Object,
};
use crate::{
    Attr, Caller, Change, Device, Kind, PreAttr, Result, Rights, SetAttr, SetTime, StatFs, Time, VfsError, Writer,
    permission,
};

/// Returns the attributes of a descriptor's object, as the kernel reports them.
///
/// Before Linux 6.11, `statx` of a descriptor resolves an empty path, which takes the kernel more than twice as long as `fstat`.
fn stat(fd: BorrowedFd<'_>, fsid: u64) -> Result<Attr> {
    let stat = rustix::fs::fstat(fd)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::BlockDevice => Kind::Block,
        FileType::CharacterDevice => Kind::Char,
        FileType::Socket => Kind::Socket,
        FileType::Fifo => Kind::Fifo,
        FileType::Unknown => return Err(VfsError::Io),
    };
    let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
    Ok(Attr {
        kind,
        mode: stat.st_mode & 0o7777,
        nlink: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: stat.st_size as u64,
        used: (stat.st_blocks as u64).saturating_mul(512),
        device: Device { major: rustix::fs::major(stat.st_rdev), minor: rustix::fs::minor(stat.st_rdev) },
        fsid,
        fileid: stat.st_ino,
        atime: time(stat.st_atime, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec as u32),
        change: 0,
    })
}

/// Returns an ID for the file system. If the file system has an ID of its own, that is used, because it survives a
/// restart.
pub(super) fn fsid(root: impl AsFd) -> rustix::io::Result<u64> {
    let own = rustix::fs::fstatvfs(&root)?.f_fsid;
    let stat = rustix::fs::statx(&root, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    Ok(if own != 0 { own } else { device })
}

impl Posix {
    /// Returns the attributes of a descriptor's object.
    pub(super) fn stat(&self, fd: BorrowedFd<'_>) -> Result<Attr> {
        let mut attr = stat(fd, self.fsid)?;
        attr.change = self.changes.of(attr.fileid, attr.ctime);
        Ok(attr)
    }

    /// Returns the attributes of a descriptor's object after a change. `before` is its previous change attribute.
    pub(super) fn changed(&self, fd: BorrowedFd<'_>, before: u64) -> Result<Attr> {
        let mut attr = self.stat(fd)?;
        self.changes.note(before, &mut attr);
        Ok(attr)
    }

    /// Returns the attributes of an object.
    ///
    /// # Errors
    /// Returns `Stale` if the object has been removed and is not held.
    pub(super) fn attr(&self, object: &Object) -> Result<Attr> {
        self.attr_by(object, object.fd())
    }

    /// Returns the attributes of an object by any descriptor of it.
    pub(super) fn attr_by(&self, object: &Object, fd: BorrowedFd<'_>) -> Result<Attr> {
        let attr = self.stat(fd)?;
        // A held file has attributes after its last name was removed, also if another program has removed it.
        if attr.nlink == 0 && !self.objects.pin(&object.handle, None) {
            return Err(VfsError::Stale);
        }
        Ok(attr)
    }

    /// Changes an object, and returns its attributes before and after. No other operation of this server comes in
    /// between.
    pub(super) fn change<T>(&self, object: &Object, run: impl FnOnce(&Attr) -> Result<T>) -> Result<(T, Change)> {
        self.change_if(true, object, run)
    }

    /// Changes an object like [`change`](Self::change). The caller says whether attributes will change at all.
    pub(super) fn change_if<T>(
        &self,
        changes: bool,
        object: &Object,
        run: impl FnOnce(&Attr) -> Result<T>,
    ) -> Result<(T, Change)> {
        let mut history = object.changing.lock();
        history.writers.forget();
        history.last.forget();
        let before = self.attr(object)?;
        self.change_locked(changes, (object, before), &mut history, |_, before| run(before))
    }

    /// Runs an operation that changes no attributes, so they are read only once.
    pub(super) fn unchanged(&self, object: &Object, run: impl FnOnce() -> Result<()>) -> Result<Change> {
        run()?;
        let after = self.attr(object)?;
        Ok(Change { before: PreAttr::from(&after), after })
    }

    /// Changes names in a directory, and records them in its history. If another program changes the same names at the
    /// same time, the history can be wrong: see [`unlink`](Self::unlink).
    ///
    /// If the previous such change has ended only just now, the attributes after it are those before this one, and are not
    /// read again. Then a change by another program between the two is not noticed, as is one that comes between reading the
    /// attributes and the change itself.
    pub(super) fn change_names_in<T>(
        &self,
        dir: &Object,
        run: impl FnOnce(&mut History) -> Result<T>,
    ) -> Result<(T, Change)> {
        let mut history = dir.changing.lock();
        let last = history.last.take(history::exact_now()).filter(|_| !self.remote);
        let before = last.map_or_else(|| self.attr(dir), Ok)?;
        let changed = self.change_locked(true, (dir, before), &mut history, |history, before| {
            history.names.begin(before.ctime);
            run(history)
        });
        let (done, change) = changed.map_err(|error| match error {
            // A directory that has been removed meanwhile has no names, but the error must be `Stale`.
            VfsError::NotFound => self.attr(dir).err().unwrap_or(error),
            error => error,
        })?;
        if self.exact_times {
            history.names.end(change.after.ctime);
        }
        history.last.set(&change.after, history::exact_now());
        Ok((done, change))
    }

    fn change_locked<T>(
        &self,
        changes: bool,
        (object, before): (&Object, Attr),
        history: &mut History,
        run: impl FnOnce(&mut History, &Attr) -> Result<T>,
    ) -> Result<(T, Change)> {
        let done = run(history, &before);
        // An operation that fails may have changed something.
        let after = if changes { self.changed(object.fd(), before.change) } else { self.stat(object.fd()) };
        Ok((done?, Change { before: PreAttr::from(&before), after: after? }))
    }

    /// Changes the data of a file. If the writer already knows the attributes from before, only those afterwards are
    /// read.
    ///
    /// If another program on this host changes the file between two writes of this writer that follow each other within
    /// milliseconds, the writer does not notice. It notices all other changes, because changes by this server are in
    /// the file's history.
    pub(super) fn change_data(
        &self,
        object: &Object,
        writer: Writer,
        run: impl FnOnce() -> Result<()>,
    ) -> Result<(Option<PreAttr>, Attr)> {
        let mut history = object.changing.lock();
        // Without fine-grained times, attributes that are read later can have the same ctime as those that were read
        // earlier.
        let is_known = history.writers.begin(writer, history::now()) && self.fine_times;
        let (before, after) = if is_known {
            run()?;
            (None, self.attr(object)?)
        } else {
            let before = self.attr(object)?;
            let ((), Change { before, after }) =
                self.change_locked(true, (object, before), &mut history, |_, _| run())?;
            (Some(before), after)
        };
        history.writers.end(before.as_ref().map(|before| before.ctime), after.ctime);
        Ok((before, after))
    }

    /// Changes an object whose attributes the caller does not need.
    pub(super) fn change_unreported<T>(&self, object: &Object, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut history = object.changing.lock();
        history.writers.forget();
        history.last.forget();
        let Some(begun) = self.begin_unreported() else { return run() };
        let done = run();
        // An operation that fails may have changed something.
        self.advance_change(object, begun);
        done
    }

    /// Returns the clock tick in which a change begins whose attributes are not read. Returns `None` if the change
    /// gives the object a ctime that was never read before, because its change attribute is then new without further
    /// action.
    pub(super) fn begin_unreported(&self) -> Option<Tick> {
        (!self.fine_times).then(Tick::now)
    }

    /// Gives an object that was changed since `begun` a new change attribute. This needs no system call if the change
    /// took less than a tick of the kernel's clock, because the ctime is then known.
    pub(super) fn advance_change(&self, object: &Object, begun: Tick) {
        let ctime = if self.exact_times && Tick::now() == begun {
            begun.time()
        } else {
            match stat(object.fd(), self.fsid) {
                Ok(attr) => attr.ctime,
                Err(_) => return,
            }
        };
        self.changes.advance(object.fileid, ctime);
    }

    pub(super) fn set(
        &self,
        caller: &Caller<'_>,
        object: &Arc<Object>,
        set: &SetAttr,
        guard: Option<Time>,
    ) -> Result<Change> {
        if set.mode.is_some() && object.kind == Kind::Symlink {
            return Err(VfsError::NotSupported);
        }
        if set.size.is_some_and(|size| size > self.caps.file_size_max) {
            return Err(VfsError::FileTooBig);
        }
        let data = if set.size.is_some() { Some(self.data(caller, object, true)?) } else { None };
        let ((), change) = self.change_if(*set != SetAttr::default(), object, |before| {
            if guard.is_some_and(|guard| guard != before.ctime) {
                return Err(VfsError::NotSync);
            }
            self.apply(caller, object.fd(), set, data.as_deref())
        })?;
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            self.objects.close(object);
        }
        Ok(change)
    }

    /// Sets the given attributes as the caller. `data` must be open for writing if the size is set.
    pub(super) fn apply(
        &self,
        caller: &Caller<'_>,
        fd: BorrowedFd<'_>,
        set: &SetAttr,
        data: Option<&File>,
    ) -> Result<()> {
        let _acting = self.identity.assume(caller)?;
        if let (Some(size), Some(data)) = (set.size, data) {
            rustix::fs::ftruncate(data, size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            // All ones would mean "do not change".
            if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
                return Err(VfsError::Invalid);
            }
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = set.mode {
            self.chmod(fd, mode & 0o7777)?;
        }
        // Truncating has already set the mtime, with write permission. Setting it alone would require the owner
        // (utimensat(2)).
        let mtime = set.mtime.filter(|mtime| !(set.size.is_some() && *mtime == SetTime::Now));
        if set.atime.is_some() || mtime.is_some() {
            let times = Timestamps { last_access: timespec(set.atime), last_modification: timespec(mtime) };
            rustix::fs::utimensat(fd, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    pub(super) fn chmod(&self, fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
        let name = DecInt::from_fd(fd);
        let mode = Mode::from_raw_mode(mode);
        Ok(rustix::fs::chmodat(&self.descriptors, name.as_c_str(), mode, AtFlags::empty())?)
    }

    pub(super) fn rights(&self, caller: &Caller<'_>, object: &Object, wanted: Rights) -> Result<(Rights, Attr)> {
        let attr = self.attr(object)?;
        Ok((self.rights_now(caller, object, wanted)?, attr))
    }

    /// Returns the rights as the kernel decides them, with ACLs and other rules.
    pub(super) fn rights_now(&self, caller: &Caller<'_>, object: &Object, wanted: Rights) -> Result<Rights> {
        let change = wanted.modify || wanted.extend || wanted.delete;
        let _acting = self.identity.assume(caller)?;
        let may = |asked, mode| asked && kernel::may_access(object.fd(), mode);
        let read = may(wanted.read, libc::R_OK);
        let write = may(change, libc::W_OK);
        let execute = may(wanted.lookup || wanted.execute || (change && object.is_dir()), libc::X_OK);
        Ok(wanted.intersect(permission::rights_of(object.kind, read, write, execute)))
    }

    pub(super) fn target(&self, link: &Object) -> Result<(Bytes, Attr)> {
        if link.kind != Kind::Symlink {
            return Err(VfsError::Invalid);
        }
        let target = rustix::fs::readlinkat(link.fd(), c"", Vec::new())?;
        Ok((Bytes::from(target.into_bytes()), self.attr(link)?))
    }

    pub(super) fn space(&self, object: &Object) -> Result<StatFs> {
        let attr = self.attr(object)?;
        let statfs = rustix::fs::fstatvfs(object.fd())?;
        let bytes = |blocks: u64| blocks.saturating_mul(statfs.f_frsize);
        Ok(StatFs {
            bytes_total: bytes(statfs.f_blocks),
            bytes_free: bytes(statfs.f_bfree),
            bytes_available: bytes(statfs.f_bavail),
            files_total: statfs.f_files,
            files_free: statfs.f_ffree,
            files_available: statfs.f_favail,
            attr,
        })
    }
}

fn timespec(set: Option<SetTime>) -> Timespec {
    match set {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::To(time)) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    }
}
