//! Operations that change names: create, remove, rename and link.

use std::{fs::File, os::fd::BorrowedFd, sync::Arc};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags},
    io::Errno,
    path::DecInt,
};

use super::{
    Posix,
    objects::{Descriptor, Object},
    resolve::open_beneath,
};
use crate::{
    Attr, Caller, Change, CreateMode, Created, DEFAULT_DIR_MODE, DEFAULT_MODE, Device, EXCLUSIVE_MODE, Handle, Kind,
    Name, NodeKind, PreAttr, Result, SetAttr, SetTime, Time, VfsError, permission, types::check_target,
};

impl Posix {
    pub(super) fn create_file(
        &self,
        caller: &Caller<'_>,
        dir: &Arc<Object>,
        name: &Name,
        mode: &CreateMode,
    ) -> Result<Created> {
        if name.is_dots() {
            return Err(VfsError::Exists);
        }
        for _ in 0..RACES_MAX {
            match self.create_new(caller, dir, name, mode) {
                Err(VfsError::Exists) => {}
                created => return created,
            }
            match self.open_existing(caller, dir, name, mode) {
                // Another program has removed the file meanwhile, so it can be created.
                Err(VfsError::NotFound) => {}
                opened => return opened,
            }
        }
        Err(VfsError::Delay)
    }

    fn create_new(&self, caller: &Caller<'_>, dir: &Arc<Object>, name: &Name, mode: &CreateMode) -> Result<Created> {
        let set = match mode {
            CreateMode::Unchecked(set) | CreateMode::Guarded(set) => set.clone(),
            CreateMode::Exclusive(verifier) => {
                let [atime, mtime] = verifier_times(*verifier).map(|time| Some(SetTime::To(time)));
                SetAttr { mode: Some(EXCLUSIVE_MODE), atime, mtime, ..SetAttr::default() }
            }
        };
        let bits = Mode::from_raw_mode(set.mode.unwrap_or(DEFAULT_MODE) & 0o7777);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let ((file, object, attr), change) = self.change_names_in(dir, |history| {
            let file = {
                let _acting = self.identity.assume(caller)?;
                self.with_room(|| rustix::fs::openat(dir.fd(), name.as_bytes(), flags, bits))?
            };
            let file = Arc::new(File::from(file));
            let (object, attr) = self.found(dir, name.as_bytes(), Descriptor::Data(file.clone()))?;
            let attr = self.finish(caller, dir, name, &object, attr, &set, Some(&file))?;
            history.names.add(name, &object.handle);
            Ok((file, object, attr))
        })?;
        if let CreateMode::Exclusive(_) = mode
            && let Err(error) = self.persist(dir, &file)
        {
            self.remove_made(caller, dir, name, &object);
            return Err(error);
        }
        // The file will probably be written next, and its creator may write it whatever its mode is.
        let cred = self.identity.effective(caller.cred);
        self.objects.keep_open(&object, cred, true, file);
        Ok(Created { handle: object.handle.clone(), attr, dir: change })
    }

    /// Waits until an exclusively created file is on stable storage, with its name and with the verifier in its times. If
    /// the client does not get the reply, it repeats the request, and must find the verifier also after a crash.
    fn persist(&self, dir: &Object, file: &File) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        //= rfc8881-18.16.4-1
        let synced =
            rustix::fs::fsync(file).and_then(|()| match rustix::fs::openat(dir.fd(), ".", flags, Mode::empty()) {
                Ok(names) => match rustix::fs::fsync(names) {
                    // The file system stores names without being asked.
                    Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
                    synced => synced,
                },
                // This process may not read the directory.
                Err(Errno::ACCESS) => rustix::fs::syncfs(file),
                Err(errno) => Err(errno),
            });
        synced.map_err(|errno| {
            let error = errno.into();
            self.note_failure(error);
            error
        })
    }

    /// Sets the attributes of a new object. Removes the object if that fails.
    #[expect(clippy::too_many_arguments, reason = "all describe one new object")]
    fn finish(
        &self,
        caller: &Caller<'_>,
        dir: &Object,
        name: &Name,
        object: &Object,
        attr: Attr,
        set: &SetAttr,
        data: Option<&File>,
    ) -> Result<Attr> {
        let uid = set.uid.filter(|uid| *uid != attr.uid);
        let gid = set.gid.filter(|gid| *gid != attr.gid);
        // Changing the owner or the size clears set-user-id and set-group-id, but the client asked for these bits.
        let lost = uid.is_some() || gid.is_some() || set.size.is_some();
        let mode = (lost && attr.kind == Kind::File && attr.mode & 0o6000 != 0).then_some(attr.mode);
        let set = SetAttr { mode, uid, gid, ..set.clone() };
        let set = if data.is_none() { SetAttr { size: None, ..set } } else { set };
        if set == SetAttr::default() {
            return Ok(attr);
        }
        let too_big = set.size.is_some_and(|size| size > self.caps.file_size_max);
        let applied = if too_big { Err(VfsError::FileTooBig) } else { self.apply(caller, object.fd(), &set, data) };
        if let Err(error) = applied {
            self.remove_made(caller, dir, name, object);
            return Err(error);
        }
        self.attr(object)
    }

    /// Removes a new object as the caller, if the name still belongs to it. If another process has put another object
    /// in its place, that one stays. The new object also stays if the caller may not remove it.
    fn remove_made(&self, caller: &Caller<'_>, dir: &Object, name: &Name, object: &Object) {
        if self.peek(dir, name).as_ref() != Some(&object.handle) {
            return;
        }
        let flags = if object.is_dir() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let removed = self.identity.assume(caller).and_then(|_acting| {
            rustix::fs::unlinkat(dir.fd(), name.as_bytes(), flags)?;
            Ok(())
        });
        match removed {
            Ok(()) => self.name_removed(&object.handle, None, dir, name),
            Err(error) => tracing::debug!(?error, "cannot remove a new object whose attributes could not be set"),
        }
    }

    /// Opens an existing file as `mode` requires.
    fn open_existing(&self, caller: &Caller<'_>, dir: &Arc<Object>, name: &Name, mode: &CreateMode) -> Result<Created> {
        if matches!(mode, CreateMode::Guarded(_)) {
            return Err(VfsError::Exists);
        }
        let (object, attr) = self.step(caller, dir, name).map_err(|error| match error {
            // The name exists, even if it is only a mount point.
            VfsError::Access => VfsError::Exists,
            error => error,
        })?;
        if object.kind != Kind::File {
            return Err(VfsError::Exists);
        }
        let attr = match mode {
            CreateMode::Unchecked(SetAttr { size: Some(size), .. }) => {
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                self.set(caller, &object, &set, None)?.after
            }
            CreateMode::Exclusive(verifier) => {
                if attr.size != 0 || [attr.atime, attr.mtime] != verifier_times(*verifier) {
                    return Err(VfsError::Exists);
                }
                // The first attempt may have been interrupted.
                self.persist(dir, &*self.data(caller, &object, true)?)?;
                attr
            }
            _ => attr,
        };
        let dir = self.unchanged(dir, || Ok(()))?;
        Ok(Created { handle: object.handle.clone(), attr, dir })
    }

    pub(super) fn make_dir(
        &self,
        caller: &Caller<'_>,
        dir: &Arc<Object>,
        name: &Name,
        set: &SetAttr,
    ) -> Result<Created> {
        let mode = Mode::from_raw_mode(set.mode.unwrap_or(DEFAULT_DIR_MODE) & (0o777 | permission::STICKY));
        self.make(caller, dir, name, set, |at| rustix::fs::mkdirat(at, name.as_bytes(), mode))
    }

    pub(super) fn make_symlink(
        &self,
        caller: &Caller<'_>,
        dir: &Arc<Object>,
        name: &Name,
        target: &[u8],
        set: &SetAttr,
    ) -> Result<Created> {
        check_target(target)?;
        self.make(caller, dir, name, set, |at| rustix::fs::symlinkat(target, at, name.as_bytes()))
    }

    pub(super) fn make_node(
        &self,
        caller: &Caller<'_>,
        dir: &Arc<Object>,
        name: &Name,
        node: NodeKind,
        set: &SetAttr,
    ) -> Result<Created> {
        let (kind, device) = match node {
            NodeKind::Block(device) => (FileType::BlockDevice, device),
            NodeKind::Char(device) => (FileType::CharacterDevice, device),
            NodeKind::Socket => (FileType::Socket, Device::default()),
            NodeKind::Fifo => (FileType::Fifo, Device::default()),
        };
        let is_device = matches!(node, NodeKind::Block(_) | NodeKind::Char(_));
        if is_device && !permission::is_root(self.identity.effective(caller.cred)) {
            return Err(VfsError::Perm);
        }
        let mode = Mode::from_raw_mode(set.mode.unwrap_or(DEFAULT_MODE) & 0o7777);
        let device = rustix::fs::makedev(device.major, device.minor);
        self.make(caller, dir, name, set, |at| rustix::fs::mknodat(at, name.as_bytes(), kind, mode, device))
    }

    /// Creates an object by calling `make` as the caller.
    fn make(
        &self,
        caller: &Caller<'_>,
        dir: &Arc<Object>,
        name: &Name,
        set: &SetAttr,
        make: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<()>,
    ) -> Result<Created> {
        if name.is_dots() {
            return Err(VfsError::Exists);
        }
        let ((handle, attr), change) = self.change_names_in(dir, |history| {
            {
                let _acting = self.identity.assume(caller)?;
                make(dir.fd())?;
            }
            let fd = self.with_room(|| open_beneath(dir.fd(), name.as_bytes(), ResolveFlags::empty()))?;
            let (object, attr) = self.found(dir, name.as_bytes(), fd)?;
            let attr = self.finish(caller, dir, name, &object, attr, set, None)?;
            history.names.add(name, &object.handle);
            Ok((object.handle.clone(), attr))
        })?;
        Ok(Created { handle, attr, dir: change })
    }

    /// Removes a name.
    ///
    /// The object of the name is looked up in the directory's history. If another program gives the name to another object
    /// at the same time, or within the tick of the clock in which this server changed the directory, that object stays cached
    /// for a while. Its attributes are still read from the kernel.
    pub(super) fn unlink(&self, caller: &Caller<'_>, dir: &Arc<Object>, name: &Name, flags: AtFlags) -> Result<Change> {
        if name.is_dots() {
            return Err(VfsError::Invalid);
        }
        let ((), change) = self.change_names_in(dir, |history| {
            let recent = history.names.remove(name);
            let victim = recent.or_else(|| self.peek(dir, name));
            let kept = self.keep(caller, victim.as_ref())?;
            self.change_names([victim.as_ref(), None], || {
                let _acting = self.identity.assume(caller)?;
                rustix::fs::unlinkat(dir.fd(), name.as_bytes(), flags).map_err(not_empty)?;
                Ok(true)
            })?;
            victim.inspect(|victim| self.name_removed(victim, kept, dir, name));
            Ok(())
        })?;
        Ok(change)
    }

    pub(super) fn move_name(
        &self,
        caller: &Caller<'_>,
        (from_dir, from): (&Arc<Object>, &Name),
        (to_dir, to): (&Arc<Object>, &Name),
    ) -> Result<(Change, Change)> {
        if from.is_dots() || to.is_dots() {
            return Err(VfsError::Invalid);
        }
        // Lock the directories in a fixed order, so that two renames do not deadlock. Lock a single directory once.
        let (first, second) = if from_dir.handle.as_bytes() <= to_dir.handle.as_bytes() {
            (from_dir, to_dir)
        } else {
            (to_dir, from_dir)
        };
        let mut first_history = first.changing.lock();
        let mut second_history = (first.handle != second.handle).then(|| second.changing.lock());
        first_history.last.forget();
        second_history.iter_mut().for_each(|history| history.last.forget());
        let before = (self.attr(from_dir)?, self.attr(to_dir)?);
        let (source, target) = ((from_dir, from), (to_dir, to));
        let Some(Renamed { moved, replaced, kept }) = self.rename_names(caller, source, target)? else {
            let unchanged = |dir: &Object| self.unchanged(dir, || Ok(()));
            return Ok((unchanged(from_dir)?, unchanged(to_dir)?));
        };
        replaced.inspect(|replaced| self.name_removed(replaced, kept, to_dir, to));
        if let (Some(moved), Some(database)) = (moved, &self.database) {
            database.add(&moved, &to_dir.handle, to.as_bytes());
            database.remove(&moved, &from_dir.handle, from.as_bytes());
        }
        let change = |before: Attr, dir: &Object| -> Result<_> {
            let after = self.changed(dir.fd(), before.change)?;
            Ok(Change { before: PreAttr::from(&before), after })
        };
        Ok((change(before.0, from_dir)?, change(before.1, to_dir)?))
    }

    /// Renames, and returns the objects that were moved and replaced. Returns `None` if both names
    /// belong to one object: rename(2) does nothing then, and no directory has changed (RFC 8881 §18.26.3, RFC 1813
    /// §3.3.14).
    ///
    /// Other processes can rename at the same time. So two names that belonged to one object when they were looked up
    /// are renamed with RENAME_NOREPLACE, which changes nothing while the target exists, and are then looked up again.
    fn rename_names(
        &self,
        caller: &Caller<'_>,
        (from_dir, from): (&Arc<Object>, &Name),
        (to_dir, to): (&Arc<Object>, &Name),
    ) -> Result<Option<Renamed>> {
        let rename = |flags| -> Result<bool> {
            let _acting = self.identity.assume(caller)?;
            match rustix::fs::renameat_with(from_dir.fd(), from.as_bytes(), to_dir.fd(), to.as_bytes(), flags) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) if flags == RenameFlags::NOREPLACE => Ok(false),
                Err(errno) => Err(not_empty(errno)),
            }
        };
        let peek = || (self.peek(from_dir, from), self.peek(to_dir, to));
        let mut names = peek();
        for _ in 0..RACES_MAX {
            let (moved, replaced) = names;
            let one_object = moved.is_some() && moved == replaced;
            let flags = if one_object { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
            let kept = self.keep(caller, replaced.as_ref().filter(|_| !one_object))?;
            match self.change_names([moved.as_ref(), replaced.as_ref()], || rename(flags)) {
                Ok(true) => {
                    // With NOREPLACE, success means that the target did not exist any more.
                    return Ok(Some(Renamed { moved, replaced: replaced.filter(|_| !one_object), kept }));
                }
                Ok(false) => {}
                // The file system does not support the flag. Without it, rename(2) changes nothing if both names belong
                // to one object.
                Err(VfsError::Invalid) if one_object => {
                    rename(RenameFlags::empty())?;
                    let renamed = self.peek(from_dir, from) != moved;
                    return Ok(renamed.then_some(Renamed { moved, replaced, kept }));
                }
                Err(error) => return Err(error),
            }
            names = peek();
            if names == (moved, replaced) {
                return Ok(None);
            }
        }
        Err(VfsError::Delay)
    }

    pub(super) fn add_name(
        &self,
        caller: &Caller<'_>,
        object: &Arc<Object>,
        dir: &Arc<Object>,
        name: &Name,
    ) -> Result<(Change, Attr)> {
        if object.is_dir() {
            return Err(VfsError::IsDir);
        }
        if name.is_dots() {
            return Err(VfsError::Exists);
        }
        let mut history = object.changing.lock();
        history.writers.forget();
        let before = self.attr(object)?;
        let ((), change) = self.change(dir, |_| {
            let _acting = self.identity.assume(caller)?;
            let path = DecInt::from_fd(object.fd());
            let flags = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(&self.descriptors, path.as_c_str(), dir.fd(), name.as_bytes(), flags)?;
            Ok(())
        })?;
        self.note(&object.handle, dir, name.as_bytes());
        Ok((change, self.changed(object.fd(), before.change)?))
    }

    /// Runs a function that changes names of objects, and with the names the attributes of the objects. `run` returns
    /// `true` if it has changed any.
    ///
    /// An object that is not cached needs no new change attribute, because no client has read its attributes in this
    /// tick.
    fn change_names(&self, objects: [Option<&Handle>; 2], run: impl FnOnce() -> Result<bool>) -> Result<bool> {
        let Some(begun) = self.begin_unreported() else { return run() };
        let objects = objects.map(|object| self.objects.find(object?));
        let changed = run()?;
        if changed {
            objects.into_iter().flatten().for_each(|object| self.advance_change(&object, begun));
        }
        Ok(changed)
    }

    /// Opens an object before a name of it is removed, if it is held: the kernel then keeps it without a name.
    ///
    /// # Errors
    /// Returns `Delay` if there are too few descriptors to keep the object.
    fn keep(&self, caller: &Caller<'_>, victim: Option<&Handle>) -> Result<Option<Arc<Object>>> {
        let Some(victim) = victim.filter(|victim| self.objects.is_held(victim)) else { return Ok(None) };
        let object = match self.resolve(caller, victim) {
            Err(VfsError::Stale) => return Ok(None),
            object => object?,
        };
        if self.objects.has_no_pin_left() && self.stat(object.fd())?.nlink <= 1 {
            return Err(VfsError::Delay);
        }
        Ok(Some(object))
    }

    /// Records that a name of an object has been removed, and perhaps the object with it. `kept` is the object if it was held
    /// before.
    fn name_removed(&self, object: &Handle, kept: Option<Arc<Object>>, dir: &Object, name: &Name) {
        // The object may be held only since then.
        if let Some(held) = kept.or_else(|| self.objects.forget(object))
            && self.stat(held.fd()).is_ok_and(|attr| attr.nlink == 0)
        {
            self.objects.pin(object, Some(&held));
        }
        if let Some(database) = &self.database {
            database.remove(object, &dir.handle, name.as_bytes());
        }
    }
}

/// The outcome of a rename: the object that was moved and the one that was replaced, and the latter opened if it was held.
struct Renamed {
    moved: Option<Handle>,
    replaced: Option<Handle>,
    kept: Option<Arc<Object>>,
}

/// Some file systems report EEXIST for a directory that is not empty.
fn not_empty(errno: Errno) -> VfsError {
    if errno == Errno::EXIST { VfsError::NotEmpty } else { errno.into() }
}

/// Encodes the verifier of an exclusive create as access and modification time. They are kept until the client sets
/// these times. Each time holds 31 bits in the seconds, which every file system can store, and one bit in the
/// nanoseconds.
fn verifier_times(verifier: [u8; 8]) -> [Time; 2] {
    let (atime, mtime) = verifier.split_at(4);
    [atime, mtime].map(|half| {
        let half = u32::from_be_bytes(half.try_into().expect("half of a verifier must have four bytes"));
        Time { seconds: i64::from(half & 0x7fff_ffff), nanoseconds: half >> 31 }
    })
}

/// Maximum number of attempts if a name disappears between two look-ups.
const RACES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use super::*;
    use crate::{
        Cred, Vfs,
        posix::{Handles, PosixOptions, changes::Tick},
    };

    const NAME: &str = "made";

    fn name() -> &'static Name {
        Name::new(NAME.as_bytes()).unwrap()
    }

    fn cred(uid: u32) -> Cred {
        let mut cred = Cred::root();
        (cred.uid, cred.gid) = (uid, uid);
        cred
    }

    /// Creates a file in a directory, runs `between`, and then removes the file like a new object whose attributes
    /// cannot be set.
    fn create_and_remove(maker: &Cred, remover: &Cred, mode: u32, between: impl FnOnce(&Path)) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        rustix::fs::chmod(dir.path(), Mode::from_raw_mode(mode)).unwrap();
        let options = PosixOptions { handles: Handles::Database, ..PosixOptions::default() };
        let fs = Posix::open(dir.path(), options).unwrap();
        let by = |cred| Caller::blocking(cred);
        let guarded = CreateMode::Guarded(SetAttr::default());
        let made = fs.create(&by(maker), &fs.root(), name(), &guarded).unwrap();
        let object = fs.objects.find(&made.handle).unwrap();
        between(dir.path());
        fs.remove_made(&by(remover), &fs.root, name(), &object);
        dir
    }

    fn own() -> Cred {
        cred(rustix::process::geteuid().as_raw())
    }

    #[test]
    fn new_object_is_removed_again() {
        let dir = create_and_remove(&own(), &own(), 0o755, |_| {});
        assert!(!dir.path().join(NAME).exists());
    }

    #[test]
    fn object_that_has_taken_the_name_is_not_removed() {
        let dir = create_and_remove(&own(), &own(), 0o755, |dir| {
            std::fs::write(dir.join("other"), "another object").unwrap();
            std::fs::rename(dir.join("other"), dir.join(NAME)).unwrap();
        });
        assert_eq!(std::fs::read(dir.path().join(NAME)).unwrap(), b"another object");
    }

    #[test]
    fn new_object_stays_if_caller_may_not_remove_it() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED acting as another user: needs root");
            return;
        }
        // In a sticky directory, only the owner of a file may remove it.
        let dir = create_and_remove(&cred(1001), &cred(1000), 0o1777, |_| {});
        assert!(dir.path().join(NAME).exists());
        let dir = create_and_remove(&cred(1001), &cred(1001), 0o1777, |_| {});
        assert!(!dir.path().join(NAME).exists());
    }

    #[test]
    fn attributes_between_two_changes_of_names_are_read_once() {
        const SIZE: u64 = 12_345;
        let dir = tempfile::tempdir().unwrap();
        let fs = Posix::open(dir.path(), PosixOptions::default()).unwrap();
        if fs.remote {
            eprintln!("SKIPPED shared attributes: the file system is remote");
            return;
        }
        let (cred, set, root) = (own(), SetAttr::default(), fs.root());
        let by = Caller::blocking(&cred);
        let name = |name: &'static str| Name::new(name.as_bytes()).unwrap();
        let create =
            |at: &str| fs.create(&by, &root, Name::new(at.as_bytes()).unwrap(), &CreateMode::Guarded(set.clone()));
        // Makes it seem that these attributes have been read only just now, whatever the speed of this machine is.
        let set_last = |dir: &Object, after: Attr| dir.changing.lock().last.set(&after, Duration::MAX);
        let after = create("first").unwrap().dir.after;
        let set_size = || set_last(&fs.root, Attr { size: SIZE, ..after.clone() });
        set_size();
        assert_eq!(create("second").unwrap().dir.before.size, SIZE);
        set_size();
        assert_eq!(fs.remove(&by, &root, name("second")).unwrap().before.size, SIZE);

        let others: [&dyn Fn(); 3] = [
            &|| _ = fs.setattr(&by, &root, &SetAttr { mode: Some(0o700), ..set.clone() }, None).unwrap(),
            &|| _ = fs.rename(&by, &root, name("first"), &root, name("renamed")).unwrap(),
            &|| _ = fs.link(&by, &fs.lookup(&by, &root, name("renamed")).unwrap().0, &root, name("link")).unwrap(),
        ];
        for (number, other) in others.into_iter().enumerate() {
            set_size();
            other();
            let before = create(&format!("after-{number}")).unwrap().dir.before;
            assert_ne!(before.size, SIZE, "other changes of the directory have other attributes: {number}");
        }

        let sub = fs.mkdir(&by, &root, name("sub"), &set).unwrap();
        set_last(&fs.objects.find(&sub.handle).unwrap(), sub.attr);
        std::fs::remove_dir(dir.path().join("sub")).unwrap();
        let created = fs.create(&by, &sub.handle, name("file"), &CreateMode::Guarded(set.clone()));
        assert_eq!(created.map(drop), Err(VfsError::Stale), "the directory has been removed since");
    }

    /// Makes each system call of this thread with this number fail with EIO, until the thread ends.
    fn fail(system_call: libc::c_long) {
        use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO};

        let instruction = |code: u32, k, jf| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        // The number of the system call is the first word of its data.
        let mut filter = [
            instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0),
            instruction(BPF_JMP | BPF_JEQ | BPF_K, system_call as u32, 1),
            instruction(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | libc::EIO as u32, 0),
            instruction(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the kernel copies the program, which is valid during the calls.
        #[expect(unsafe_code)]
        let installed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        assert!(installed, "{}", std::io::Error::last_os_error());
    }

    #[test]
    fn exclusively_created_file_is_stable_before_the_reply() {
        let dir = tempfile::tempdir().unwrap();
        let fs = Posix::open(dir.path(), PosixOptions::default()).unwrap();
        let (cred, guarded) = (own(), CreateMode::Guarded(SetAttr::default()));
        let by = || Caller::blocking(&cred);
        let other = Name::new(b"other").unwrap();
        let exclusive =
            |verifier| fs.create(&by(), &fs.root(), name(), &CreateMode::Exclusive([verifier; 8])).map(drop);
        let failing = |create: &(dyn Fn() -> Result<()> + Sync)| {
            let run = || {
                fail(libc::SYS_fsync);
                create()
            };
            std::thread::scope(|scope| scope.spawn(run).join().unwrap())
        };
        //= rfc8881-18.16.4-1
        assert_eq!(failing(&|| exclusive(1)), Err(VfsError::Io));
        assert!(!dir.path().join(NAME).exists(), "the failed request must have no effect");
        assert_eq!(failing(&|| fs.create(&by(), &fs.root(), other, &guarded).map(drop)), Ok(()), "not exclusive");
        assert_eq!(exclusive(1), Ok(()));
        //= rfc8881-18.16.4-1
        assert_eq!(failing(&|| exclusive(1)), Err(VfsError::Io), "the first attempt may have been interrupted");
        assert_eq!((exclusive(1), exclusive(2)), (Ok(()), Err(VfsError::Exists)));
    }

    #[test]
    fn removed_object_is_not_cached() {
        let dir = tempfile::tempdir().unwrap();
        let mut fs = Posix::open(dir.path(), PosixOptions::default()).unwrap();
        let (cred, guarded) = (own(), CreateMode::Guarded(SetAttr::default()));
        let by = Caller::blocking(&cred);
        let is_cached = |fs: &Posix, handle: &Handle| fs.objects.find(handle).is_some();
        let made = fs.create(&by, &fs.root(), name(), &guarded).unwrap().handle;
        assert!(is_cached(&fs, &made));
        fs.remove(&by, &fs.root(), name()).unwrap();
        assert!(!is_cached(&fs, &made));
        if !fs.exact_times {
            eprintln!("SKIPPED objects of new names: the file system does not store times with nanoseconds");
            return;
        }

        // The handle of a new object is remembered, whatever the resolution of the kernel's timestamps is.
        for fine_times in [fs.fine_times, false] {
            fs.fine_times = fine_times;
            let made = fs.create(&by, &fs.root(), name(), &guarded).unwrap().handle;
            let remove = || {
                fail(libc::SYS_name_to_handle_at);
                fs.remove(&by, &fs.root(), name()).unwrap();
            };
            std::thread::scope(|scope| scope.spawn(remove).join().unwrap());
            assert!(!is_cached(&fs, &made));
        }

        // Another program gives the name to another object, in a later tick of the clock.
        fs.create(&by, &fs.root(), name(), &guarded).unwrap();
        let other = fs.create(&by, &fs.root(), Name::new(b"other").unwrap(), &guarded).unwrap().handle;
        let created = Tick::now();
        while Tick::now() == created {
            std::thread::yield_now();
        }
        std::fs::rename(dir.path().join("other"), dir.path().join(NAME)).unwrap();
        fs.remove(&by, &fs.root(), name()).unwrap();
        assert!(!is_cached(&fs, &other));
    }
}
