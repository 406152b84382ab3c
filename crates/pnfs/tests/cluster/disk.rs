//! The disk of the metadata server: the inner file system, and the storage of the index. A change is durable only when the file or
//! the storage has been synchronized: a power failure can undo the others. Operations can fail, with their effect or without, and
//! the process can end at a change of the file system and at a synchronization of either.

use std::{
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use buf::{Pool, Rope};
use bytes::Bytes;
use entropy::HashMap;
use parking_lot::Mutex;
use pnfs::Index;
use redb::StorageBackend;
use tokio::sync::Notify;
use vfs::{
    Attr, Caller, Change, CreateMode, Created, Cred, DirEntry, FsCaps, Handle, Held, Name, NodeKind, Read, ReadDir,
    ReadInto, Report, Result, Rights, SeekFor, SetAttr, SetTime, Stability, StatFs, Time, Vfs, VfsError, Written,
    XattrMode,
    memory::{Memory, MemoryOptions},
};

use crate::{
    Broken, chance,
    faults::{Access, Fault, Faults, Part},
};

/// The disk, which processes of the metadata server use one after the other.
pub struct Disk {
    memory: Memory,
    /// The durable state of the files with changes that are not durable.
    unsynced: Mutex<HashMap<Handle, Durable>>,
    index: Mutex<Image>,
    faults: Faults,
    /// Set while it fails often.
    pub sick: AtomicBool,
    /// Set while a process has the lock of the state directory and the index.
    locked: AtomicBool,
    broken: Broken,
}

/// The state of a file that a power failure brings back.
#[derive(Clone, PartialEq)]
struct Durable {
    data: Vec<u8>,
    mtime: Time,
    record: Option<Bytes>,
}

/// The storage of the index.
#[derive(Default)]
struct Image {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// The changes since the last synchronization: new lengths, and writes.
    changes: Vec<(u64, Option<Vec<u8>>)>,
}

fn apply(bytes: &mut Vec<u8>, (at, data): &(u64, Option<Vec<u8>>)) {
    let at = *at as usize;
    match data {
        None => bytes.resize(at, 0),
        Some(data) => {
            bytes.resize(bytes.len().max(at + data.len()), 0);
            bytes[at..at + data.len()].copy_from_slice(data);
        }
    }
}

/// The disk as one process sees it.
#[derive(Clone)]
pub struct Mounted {
    disk: Arc<Disk>,
    /// Set when the process has ended.
    pub dead: Arc<AtomicBool>,
    /// Notified when the process ends because of the disk.
    pub ended: Arc<Notify>,
    verifier: [u8; 8],
}

impl Disk {
    /// Makes a disk with an index. The faults must not have begun.
    pub fn new(broken: Broken, faults: &Faults) -> Arc<Self> {
        let memory = Memory::new(MemoryOptions { mode: 0o777, ..Default::default() });
        let (unsynced, index, locked, sick) = Default::default();
        let faults = faults.clone();
        let disk = Arc::new(Self { memory, unsynced, index, faults, sick, locked, broken: Broken::Nothing });
        // The file of the index appears with its contents.
        drop(Index::with_backend(disk.mount()).expect("the index must be created"));
        let mut disk = Arc::into_inner(disk).expect("the disk must not be in use");
        disk.broken = broken;
        Arc::new(disk)
    }

    /// Lets an access fail. Those to a disk that fails often have the second probability.
    fn fails(&self, access: Access, share: f64, sick: f64) -> bool {
        let share = if self.sick.load(Relaxed) || self.broken == Broken::SyncErrorHidden { sick } else { share };
        self.faults.occurs(Fault::Disk(access), share)
    }

    /// Takes the lock. Returns `false` if a process has it.
    pub fn lock(&self) -> bool {
        !self.locked.swap(true, Relaxed)
    }

    /// Releases the lock of a process that has ended.
    pub fn unlock(&self) {
        self.locked.store(false, Relaxed);
    }

    pub fn mount(self: &Arc<Self>) -> Mounted {
        let (dead, ended) = (Arc::default(), Arc::default());
        Mounted { disk: self.clone(), dead, ended, verifier: entropy::random() }
    }

    /// Returns a durable or volatile attribute with a record.
    pub fn record(&self, file: &Handle) -> Option<Bytes> {
        self.memory.xattr(&Caller::blocking(&Cred::root()), file, record_name()).ok()
    }

    /// Returns the size of a file, or 0 if it does not exist.
    pub fn size(&self, file: &Handle) -> u64 {
        self.memory.getattr(&Caller::blocking(&Cred::root()), file).map_or(0, |attr| attr.size)
    }

    /// Returns the file of a name.
    pub fn find(&self, name: &str) -> Option<Handle> {
        let name = Name::new(name.as_bytes()).expect("the name must be valid");
        let found = self.memory.lookup(&Caller::blocking(&Cred::root()), &self.memory.root(), name);
        found.ok().map(|(handle, _)| handle)
    }

    /// Undoes changes that are not durable.
    pub fn fail_power(&self) {
        let mut files: Vec<_> = self.unsynced.lock().drain().collect();
        files.sort_unstable_by(|one, other| one.0.as_bytes().cmp(other.0.as_bytes()));
        for (file, durable) in files {
            // A file system can have written some of the changes.
            let all = chance(0.6);
            if all || chance(0.5) {
                self.restore_data(&file, &durable);
            }
            if all || chance(0.5) {
                self.restore_record(&file, &durable);
            }
        }
        let mut index = self.index.lock();
        let kept = entropy::random_range(0..=index.changes.len());
        let changes = std::mem::take(&mut index.changes);
        changes[..kept].iter().for_each(|change| apply(&mut index.durable, change));
        index.now = index.durable.clone();
    }

    fn restore_data(&self, file: &Handle, durable: &Durable) {
        let root = Cred::root();
        let caller = Caller::blocking(&root);
        let set = |size, mtime| {
            let set = SetAttr { size, mtime, ..SetAttr::default() };
            self.memory.setattr(&caller, file, &set, None)
        };
        // The file may have been removed.
        let _ = set(Some(0), None);
        let data = Rope::from(Bytes::from(durable.data.clone()));
        let _ = self.memory.write(&caller, file, 0, &data, Stability::FileSync, Report::Nothing);
        let _ = set(Some(durable.data.len() as u64), Some(SetTime::To(durable.mtime)));
    }

    fn restore_record(&self, file: &Handle, durable: &Durable) {
        let root = Cred::root();
        let caller = Caller::blocking(&root);
        let _ = match &durable.record {
            Some(record) => self.memory.set_xattr(&caller, file, record_name(), record, XattrMode::Either),
            None => self.memory.remove_xattr(&caller, file, record_name()),
        };
    }

    /// Returns the state of a file, if it exists.
    fn state(&self, file: &Handle) -> Option<Durable> {
        let root = Cred::root();
        let caller = Caller::blocking(&root);
        let attr = self.memory.getattr(&caller, file).ok()?;
        let read = self.memory.read(&caller, file, 0, attr.size as usize, &Pool::default(), false).ok()?;
        let data = read.data.to_bytes().ok()?.to_vec();
        Some(Durable { data, mtime: attr.mtime, record: self.record(file) })
    }
}

impl Mounted {
    fn check(&self) -> Result<()> {
        if self.dead.load(Relaxed) { Err(VfsError::Io) } else { Ok(()) }
    }

    /// Lets the process end with some probability. Returns `true` if it does.
    fn ends(&self) -> bool {
        let ends = self.disk.faults.occurs(Fault::Part(Part::MdsEndedByDisk), 0.002);
        if ends {
            self.dead.store(true, Relaxed);
            self.ended.notify_one();
        }
        ends
    }

    /// Executes a change, which can fail.
    fn change<T>(&self, access: Access, run: impl FnOnce(&Memory) -> Result<T>) -> Result<T> {
        self.check()?;
        let ends = self.ends();
        if ends || self.disk.fails(access, 0.002, 0.1) {
            if chance(0.5) {
                let _ = run(&self.disk.memory);
            }
            return Err(if chance(0.5) { VfsError::Io } else { VfsError::NoSpace });
        }
        run(&self.disk.memory)
    }

    /// Executes a change of a file that is not durable at once.
    fn change_file<T>(&self, access: Access, file: &Handle, run: impl FnOnce(&Memory) -> Result<T>) -> Result<T> {
        let before = self.disk.state(file);
        let done = self.change(access, run);
        if let Some(before) = before
            && self.disk.state(file).is_some_and(|now| now != before)
        {
            self.disk.unsynced.lock().entry(file.clone()).or_insert(before);
        }
        done
    }

    fn synchronize(&self, file: &Handle) {
        let mut unsynced = self.disk.unsynced.lock();
        match self.disk.broken {
            // The mark of a stale copy becomes durable only with the next change.
            Broken::RecordLate => {
                if let (Some(durable), Some(mut now)) = (unsynced.remove(file), self.disk.state(file))
                    && now.record != durable.record
                    && durable.record.is_some()
                {
                    now.record = durable.record;
                    unsynced.insert(file.clone(), now);
                }
            }
            _ => drop(unsynced.remove(file)),
        }
    }
}

macro_rules! reads {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $($arg: $type),*) -> Result<$result> {
            self.check()?;
            self.disk.memory.$name(caller, $($arg),*)
        }
    )*};
}

macro_rules! changes {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $name(&self, caller: &Caller<'_>, $($arg: $type),*) -> Result<$result> {
            self.change(Access::Names, |memory| memory.$name(caller, $($arg),*))
        }
    )*};
}

impl Vfs for Mounted {
    fn caps(&self) -> &FsCaps {
        self.disk.memory.caps()
    }

    fn root(&self) -> Handle {
        self.disk.memory.root()
    }

    fn write_verifier(&self) -> [u8; 8] {
        self.verifier
    }

    reads! {
        fn lookup(dir: &Handle, name: &Name) -> (Handle, Attr);
        fn hold(file: &Handle) -> Held;
        fn access(object: &Handle, wanted: Rights) -> (Rights, Attr);
        fn readlink(link: &Handle) -> (Bytes, Attr);
        fn read_into(file: &Handle, offset: u64, into: &mut [u8]) -> ReadInto;
        fn read(file: &Handle, offset: u64, len: usize, pool: &Pool, ranges: bool) -> Read;
        fn readdir(
            dir: &Handle,
            cookie: u64,
            verifier: [u8; 8],
            attrs: bool,
            each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>
        ) -> ReadDir;
        fn seek(file: &Handle, offset: u64, what: SeekFor) -> Option<u64>;
        fn xattr(object: &Handle, name: &Name) -> Bytes;
        fn xattrs(object: &Handle) -> Vec<Bytes>;
        fn statfs(object: &Handle) -> StatFs;
    }

    // Changes of names are durable at once.
    changes! {
        fn create(dir: &Handle, name: &Name, mode: &CreateMode) -> Created;
        fn mkdir(dir: &Handle, name: &Name, set: &SetAttr) -> Created;
        fn symlink(dir: &Handle, name: &Name, target: &[u8], set: &SetAttr) -> Created;
        fn mknod(dir: &Handle, name: &Name, node: NodeKind, set: &SetAttr) -> Created;
        fn remove(dir: &Handle, name: &Name) -> Change;
        fn rmdir(dir: &Handle, name: &Name) -> Change;
        fn link(object: &Handle, dir: &Handle, name: &Name) -> (Change, Attr);
        fn rename(from_dir: &Handle, from: &Name, to_dir: &Handle, to: &Name) -> (Change, Change);
    }

    fn getattr(&self, caller: &Caller<'_>, object: &Handle) -> Result<Attr> {
        self.check()?;
        if self.disk.broken == Broken::RemovedEarly && self.disk.faults.chance(0.01) {
            return Err(VfsError::Stale);
        }
        self.disk.memory.getattr(caller, object)
    }

    fn setattr(&self, caller: &Caller<'_>, file: &Handle, set: &SetAttr, guard: Option<Time>) -> Result<Change> {
        let done = self.change_file(Access::File, file, |memory| memory.setattr(caller, file, set, guard))?;
        // A file without a record is truncated by its caller, who needs it durably (RFC 1813 §3.3.2).
        if set.size.is_some() && self.disk.record(file).is_none() {
            self.synchronize(file);
        }
        Ok(done)
    }

    fn write(
        &self,
        caller: &Caller<'_>,
        file: &Handle,
        offset: u64,
        data: &Rope,
        stability: Stability,
        report: Report,
    ) -> Result<Written> {
        let done =
            self.change_file(Access::File, file, |memory| memory.write(caller, file, offset, data, stability, report))?;
        if stability != Stability::Unstable && !data.is_empty() {
            self.synchronize(file);
        }
        // The file system in memory writes all data durably, and this one does not.
        Ok(Written { stability, ..done })
    }

    fn commit(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        let done = self.change(Access::Sync, |memory| {
            self.synchronize(file);
            memory.commit(caller, file, offset, len)
        });
        match done {
            Err(_) if self.disk.broken == Broken::SyncErrorHidden => self.disk.memory.commit(caller, file, offset, len),
            done => done,
        }
    }

    fn deallocate(&self, caller: &Caller<'_>, file: &Handle, offset: u64, len: u64) -> Result<Change> {
        self.change_file(Access::File, file, |memory| memory.deallocate(caller, file, offset, len))
    }

    fn set_xattr(
        &self,
        caller: &Caller<'_>,
        object: &Handle,
        name: &Name,
        value: &[u8],
        how: XattrMode,
    ) -> Result<Change> {
        self.change_file(Access::Record, object, |memory| memory.set_xattr(caller, object, name, value, how))
    }
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mounted")
    }
}

impl Mounted {
    fn image<T>(&self, run: impl FnOnce(&mut Image) -> T) -> io::Result<T> {
        if self.dead.load(Relaxed) {
            return Err(io::Error::other("the process has ended"));
        }
        Ok(run(&mut self.disk.index.lock()))
    }

    /// Changes the storage of the index. A change that fails can have its effect.
    fn change_image(&self, access: Access, shares: (f64, f64), run: impl FnOnce(&mut Image)) -> io::Result<()> {
        if self.disk.fails(access, shares.0, shares.1) {
            if chance(0.5) {
                self.image(run)?;
            }
            return Err(if chance(0.5) { io::ErrorKind::StorageFull } else { io::ErrorKind::Other }.into());
        }
        self.image(run)
    }
}

impl StorageBackend for Mounted {
    fn len(&self) -> io::Result<u64> {
        self.image(|image| image.now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.disk.fails(Access::IndexRead, 0.0001, 0.002) {
            return Err(io::ErrorKind::Other.into());
        }
        self.image(|image| {
            // Another process has made the storage shorter if there is no lock.
            let found = image.now.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
            out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })?
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change_image(Access::IndexLength, (0.01, 0.3), |image| {
            apply(&mut image.now, &(len, None));
            image.changes.push((len, None));
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.ends();
        let lost = self.disk.broken == Broken::IndexLost && chance(0.7);
        let done = self.change_image(Access::IndexSync, (0.003, 0.1), |image| {
            if !lost {
                let changes = std::mem::take(&mut image.changes);
                changes.iter().for_each(|change| apply(&mut image.durable, change));
            }
        });
        if self.disk.broken == Broken::SyncErrorHidden { Ok(()) } else { done }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change_image(Access::IndexWrite, (0.0003, 0.02), |image| {
            let change = (offset, Some(data.to_vec()));
            apply(&mut image.now, &change);
            image.changes.push(change);
        })
    }
}

fn record_name() -> &'static Name {
    Name::new(b"slipway.layout").expect("the name must be valid")
}
