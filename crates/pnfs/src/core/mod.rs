//! The core of the layer: the state that all operations share, and the records of files.

mod change;
mod data;
mod devices;
mod drain;
mod layouts;
mod mirrors;
mod orphans;
mod rebalance;
mod resilver;
mod scan;
mod spill;
mod status;
mod upkeep;
mod walk;

pub(crate) use self::data::Write;
pub use self::{
    orphans::Orphans,
    rebalance::{RebalancePlan, RebalanceStatus},
    scan::ScanStatus,
    status::{FileStatus, Repairs, ServerStatus, SetServiceError},
};

use std::{
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use entropy::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock};
use tokio::{sync::Notify, time::Instant};
use vfs::{Caller, Cred, FsCaps, Handle, Name, Result, Time, Vfs, VfsError, XattrMode, layout::LayoutKind};

use self::{devices::Devices, drain::Drains, rebalance::Rebalancing, scan::Scan};
use crate::{
    files::{Ends, File, Files, Place},
    holders::Holders,
    index::{Index, LAYOUTS, OWNERS, TRUNCATING, UNHEALTHY, Work},
    record::{COPIES_MAX, OBJECTS_MAX, Object, Record, RecordError, ServerId},
    servers::{DataServers, Failing},
    services::{Service, Services},
    stripes::Stripes,
    threads::Threads,
};

/// The options of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The number of copies of new files.
    pub mirrors: usize,
    /// The stripes of new files.
    pub stripes: Stripes,
    /// The size in bytes up to which the data of a file stay in the inner file system.
    pub threshold: u64,
    /// The layouts that clients get. If `None`, all data pass through this server, and the users of objects are not changed.
    /// [`LayoutKind::Files`] is possible only with one copy of each file.
    pub layouts: Option<LayoutKind>,
    /// The traces of an earlier process that may be left.
    pub earlier: Earlier,
}

/// The times for which something of an earlier process may be left when a process starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Earlier {
    /// Layouts that clients use: a lease. Until then, a write that a copy misses is not acknowledged.
    pub layouts: Duration,
    /// Requests on their way to data servers. If the earlier process has left work, changes wait for them.
    pub requests: Duration,
}

impl Earlier {
    /// There was no earlier process, or nothing is left of it.
    pub const NOTHING: Self = Self { layouts: Duration::ZERO, requests: Duration::ZERO };
}

/// A file system whose file data are on data servers. Clones are the same file system.
#[derive(Clone)]
pub struct Pnfs(pub(crate) Arc<Core>);

pub(crate) struct Core {
    pub inner: Arc<dyn Vfs>,
    pub servers: Arc<dyn DataServers>,
    pub index: Index,
    pub threads: Threads,
    pub files: Files,
    pub holders: Holders,
    pub options: Options,
    pub caps: FsCaps,
    /// Combined with the verifier of the inner file system. It changes when unstable writes may have been lost.
    pub verifier: AtomicU64,
    /// The work of the index.
    pub work: Mutex<HashMap<Handle, Work>>,
    /// Files whose work in the index may be another one, because a change of it has failed. Locked after `work`.
    pub unsure: Mutex<HashSet<Handle>>,
    /// Files whose copies may differ. Only the first copy that is in sync is read.
    pub unequal: Mutex<HashSet<Handle>>,
    /// Files whose records may not be durable: a change of them has failed, or an earlier process may have ended meanwhile.
    pub unsettled: Mutex<HashSet<Handle>>,
    /// Files for which an earlier process has granted layouts, until their clients are locked out. Each has its ctime before the first attempt.
    pub unfenced: Mutex<HashMap<Handle, Option<Time>>>,
    /// Files whose clients have returned layouts, until the sizes are taken from the objects. The data servers did not answer before. Each
    /// has the time of the first layout.
    pub unmeasured: Mutex<HashMap<Handle, Time>>,
    /// Data servers whose last operation failed.
    pub failing: Mutex<Failing>,
    /// The time of the last probe of all data servers.
    pub probed: Mutex<Option<Instant>>,
    /// Data servers that had no space, each since when.
    pub full: Mutex<HashMap<ServerId, Instant>>,
    /// The devices that clients know.
    pub devices: Mutex<Devices>,
    /// Objects that a change of a record in progress adds or removes.
    pub pinned: Mutex<HashSet<Object>>,
    /// The same as `servers`, with the states that an administrator sets.
    pub services: Arc<Services>,
    pub drains: Drains,
    pub rebalancing: Rebalancing,
    pub scan: Scan,
    /// Held for reading from the time that objects are added to the queue of removals until their file is removed.
    pub removing: RwLock<()>,
    /// The operations that give another name to a file.
    pub renames: Arc<Ends>,
    /// Notified when there is work for the upkeep.
    pub wake: Notify,
    /// The number of the last unstable write.
    pub writes: AtomicU64,
}

impl Pnfs {
    /// Creates the layer over `inner`.
    ///
    /// # Errors
    /// Returns an error if the inner file system has no extended attributes or is itself pending, if there are fewer data
    /// servers than mirrors or than stripes, if a file would have too many objects, or if the index cannot be read.
    pub fn new(inner: Arc<dyn Vfs>, servers: Arc<dyn DataServers>, index: Index, options: Options) -> io::Result<Self> {
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
        let caps = inner.caps().clone();
        if !caps.xattrs || caps.completes_later {
            return Err(invalid("the file system has no extended attributes, which pNFS needs".to_owned()));
        }
        let (count, mirrors, stripes) = (servers.servers().len(), options.mirrors, options.stripes.count());
        if !(1..=COPIES_MAX).contains(&mirrors) {
            return Err(invalid(format!("mirrors = {mirrors}: it must be from 1 to {COPIES_MAX}")));
        }
        if options.layouts == Some(LayoutKind::Files) && mirrors != 1 {
            let message = "a files layout has no copies (RFC 8881 §13): set mirrors = 1, or use flexible files layouts";
            return Err(invalid(format!("mirrors = {mirrors}: {message}")));
        }
        if count < mirrors {
            return Err(invalid(format!("mirrors = {mirrors} needs as many data servers, and there are {count}")));
        }
        if count < stripes {
            return Err(invalid(format!("stripes = {stripes} needs as many data servers, and there are {count}")));
        }
        if mirrors * stripes > OBJECTS_MAX {
            let objects = mirrors * stripes;
            let message = format!("mirrors = {mirrors} and stripes = {stripes}: a file would have {objects} objects");
            return Err(invalid(format!("{message}, and can have {OBJECTS_MAX}")));
        }
        let failed = |error: VfsError| io::Error::other(error.to_string());
        let scan = scan_of(&*inner, &index).map_err(failed)?;
        let has_left_nothing = !scan.is_running() && index.is_idle().map_err(failed)?;
        let earlier_requests = if has_left_nothing { Duration::ZERO } else { options.earlier.requests };
        let services = Services::open(servers, &index, mirrors.max(stripes), earlier_requests).map_err(failed)?;
        let services = Arc::new(services);
        let work = index.work().map_err(failed)?;
        let mut failing = Failing::default();
        for (server, _) in services.out_of_service().into_iter().filter(|(_, service)| *service == Service::Lost) {
            failing.insert(server);
        }
        let with = |bits: Work| work.iter().filter(move |(_, work)| **work & bits != 0).map(|(file, _)| file.clone());
        let (unequal, unfenced) =
            (with(!(UNHEALTHY | OWNERS)).collect(), with(LAYOUTS).map(|file| (file, None)).collect());
        // An earlier process may have failed to store the record in which a move ends.
        let moved = index.moves().map_err(failed)?.into_iter().map(|begun| begun.file);
        let unsettled = work.keys().cloned().chain(moved).collect();
        Ok(Self(Arc::new(Core {
            threads: Threads::new(caps.blocks),
            caps: FsCaps { completes_later: true, clone_block: 0, ..caps },
            unequal: Mutex::new(unequal),
            unfenced: Mutex::new(unfenced),
            unmeasured: Mutex::default(),
            unsure: Mutex::default(),
            unsettled: Mutex::new(unsettled),
            work: Mutex::new(work),
            verifier: AtomicU64::new(entropy::random()),
            files: Files::default(),
            holders: Holders::new(&options),
            failing: Mutex::new(failing),
            probed: Mutex::default(),
            full: Mutex::default(),
            devices: Mutex::default(),
            pinned: Mutex::default(),
            removing: RwLock::default(),
            renames: Arc::default(),
            wake: Notify::new(),
            writes: AtomicU64::new(0),
            inner,
            servers: services.clone(),
            services,
            drains: Drains::default(),
            rebalancing: Rebalancing::continued(index.rebalance().map_err(failed)?),
            scan,
            index,
            options,
        })))
    }
}

/// Objects that are not removed while their record is changed. This ends when it is dropped.
pub(crate) struct Pinned {
    core: Arc<Core>,
    objects: Vec<Object>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.core.pinned.lock().retain(|object| !self.objects.contains(object));
    }
}

impl Core {
    /// Keeps objects in the queue of removals while a change of their record is in progress.
    pub fn pin(self: &Arc<Self>, objects: Vec<Object>) -> Pinned {
        self.pinned.lock().extend(&objects);
        Pinned { core: self.clone(), objects }
    }

    /// Runs a job that may wait for the inner file system or the database.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce(&Core) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let core = self.clone();
        self.threads.run(move || job(&core)).await
    }

    /// Returns the place of a file's data if it is known, or can be read without waiting if `may_block` is false.
    ///
    /// # Errors
    /// Returns `WouldBlock`; `Io` if the record is damaged; and the errors of the inner file system.
    pub fn place_now(&self, file: &File, may_block: bool) -> Result<Place> {
        if let Some(place) = file.place.lock().clone() {
            return Ok(place);
        }
        let root = Cred::root();
        let caller = Caller { cred: &root, may_block, completion: None };
        if self.unsettled.lock().contains(&file.handle) {
            if !may_block && self.caps.blocks {
                return Err(VfsError::WouldBlock);
            }
            // A decision that follows from a record must not outlive it.
            ignore_removed(self.inner.commit(&Caller::blocking(&root), &file.handle, 0, 0).map(drop))?;
            self.unsettled.lock().remove(&file.handle);
        }
        let place = match self.inner.xattr(&caller, &file.handle, attribute()) {
            Ok(bytes) => {
                let record = Record::decode(&bytes).map_err(|error| damaged(&file.handle, error))?;
                Place::Servers(Arc::new(record))
            }
            Err(error) if has_no_record(error) => Place::Inner,
            Err(error) => return Err(error),
        };
        if let Place::Servers(record) = &place {
            self.adopt(&file.handle, record)?;
            file.spilled.store(true, Relaxed);
        }
        Ok(file.place.lock().get_or_insert(place).clone())
    }

    /// Returns the place of a file's data.
    ///
    /// # Errors
    /// Returns the errors of [`place_now`](Self::place_now).
    pub async fn place(self: &Arc<Self>, file: &Arc<File>) -> Result<Place> {
        if let Some(place) = file.place.lock().clone() {
            return Ok(place);
        }
        let of = file.clone();
        self.run(move |core| core.place_now(&of, true)).await
    }

    /// Stores a record durably. If this fails, it is unknown which record the file has: the next use of the file makes it durable and
    /// reads it.
    ///
    /// # Errors
    /// Returns the errors of the inner file system.
    pub fn store(&self, file: &File, record: Record) -> Result<Arc<Record>> {
        let root = Cred::root();
        let caller = Caller::blocking(&root);
        self.unsettled.lock().insert(file.handle.clone());
        self.scan.note_stored(&file.handle);
        *file.place.lock() = None;
        self.inner.set_xattr(&caller, &file.handle, attribute(), &record.encode(), XattrMode::Either)?;
        self.inner.commit(&caller, &file.handle, 0, 0)?;
        self.unsettled.lock().remove(&file.handle);
        let record = Arc::new(record);
        *file.place.lock() = Some(Place::Servers(record.clone()));
        file.spilled.store(true, Relaxed);
        Ok(record)
    }

    /// Records work to do for a file, durably.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn add_work(&self, file: &Handle, work: Work) -> Result<()> {
        let mut all = self.work.lock();
        let former = all.get(file).copied().unwrap_or(0);
        if former | work != former || self.unsure.lock().contains(file) {
            self.note_work(file, self.index.set_work([(file, former | work)]))?;
            all.insert(file.clone(), former | work);
        }
        Ok(())
    }

    /// Takes note of the result of a change of the work of a file in the index. The caller has locked the work.
    fn note_work(&self, file: &Handle, changed: Result<()>) -> Result<()> {
        let mut unsure = self.unsure.lock();
        let _ = if changed.is_ok() { unsure.remove(file) } else { unsure.insert(file.clone()) };
        changed
    }

    /// Stores the work of the files again for which a change of it has failed.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn store_unsure(&self) -> Result<()> {
        let all = self.work.lock();
        let mut unsure = self.unsure.lock();
        if !unsure.is_empty() {
            self.index.set_work(unsure.iter().map(|file| (file, all.get(file).copied().unwrap_or(0))))?;
            unsure.clear();
        }
        Ok(())
    }

    /// Records work to do for several files, durably.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn add_works(&self, mut files: Vec<(Handle, Work)>) -> Result<()> {
        let mut all = self.work.lock();
        files.iter_mut().for_each(|(file, work)| *work |= all.get(file).copied().unwrap_or(0));
        let changed = self.index.set_work(files.iter().map(|(file, work)| (file, *work)));
        for (file, _) in &files {
            let _ = self.note_work(file, changed);
        }
        changed?;
        all.extend(files);
        Ok(())
    }

    /// Records the first objects of a file, and work to do for it, durably.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn begin_new(&self, file: &Handle, objects: &[Object], work: Work) -> Result<()> {
        let mut all = self.work.lock();
        let work = all.get(file).copied().unwrap_or(0) | work;
        self.note_work(file, self.index.begin_new(objects, file, work))?;
        all.insert(file.clone(), work);
        Ok(())
    }

    /// Removes work that has been done. Except for truncations, it may come back after a crash.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn end_work(&self, file: &Handle, work: Work) -> Result<()> {
        self.end_work_if(file, work, || true)
    }

    /// Removes work if it has been done: no other work is added while `done` is asked.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn end_work_if(&self, file: &Handle, work: Work, done: impl FnOnce() -> bool) -> Result<()> {
        let mut all = self.work.lock();
        let former = all.get(file).copied().unwrap_or(0);
        if former & work != 0 && done() {
            let left = former & !work;
            // A client that truncates a file can keep its layout. Another truncation would remove what it has written since.
            let must_be_durable = former & work & TRUNCATING != 0 || self.unsure.lock().contains(file);
            let changed =
                if must_be_durable { self.index.set_work([(file, left)]) } else { self.index.end_work(file, left) };
            self.note_work(file, changed)?;
            match left {
                0 => all.remove(file),
                rest => all.insert(file.clone(), rest),
            };
        }
        Ok(())
    }

    /// Reports whether work of a file is durably recorded.
    pub fn has_durable_work(&self, file: &Handle, work: Work) -> bool {
        let all = self.work.lock();
        all.get(file).is_some_and(|recorded| recorded & work != 0) && !self.unsure.lock().contains(file)
    }

    /// Reports whether work is recorded for a file.
    pub fn has_work(&self, file: &Handle, work: Work) -> bool {
        self.work.lock().get(file).is_some_and(|recorded| recorded & work != 0)
    }

    /// Notes that the copies of a file may differ. If they are being made equal, this begins again.
    pub fn note_unequal(&self, file: &Handle) {
        self.unequal.lock().insert(file.clone());
        self.files.get(file).differences.fetch_add(1, Relaxed);
        self.wake.notify_one();
    }

    pub fn is_unequal(&self, file: &Handle) -> bool {
        self.unequal.lock().contains(file)
    }

    /// Changes the write verifier: clients write again what they have not committed.
    pub fn change_verifier(&self) {
        self.verifier.fetch_add(1, Relaxed);
    }

    /// Notes whether a data server has answered.
    pub fn note_server(&self, server: ServerId, answered: bool) {
        let mut failing = self.failing.lock();
        let changed = if answered { failing.remove(server) } else { failing.insert(server) };
        drop(failing);
        if changed && answered {
            tracing::info!(server = server.0, "the data server answers again");
            self.wake.notify_one();
        } else if changed {
            tracing::warn!(server = server.0, "a data server has failed");
        }
    }
}

/// Returns the name of the extended attribute with the record.
pub(crate) fn attribute() -> &'static Name {
    Name::new(ATTRIBUTE.as_bytes()).expect("name must be valid")
}

/// Reports whether an error of the inner file system says that a file has no record. Objects that cannot have the attribute are not regular
/// files.
pub(crate) fn has_no_record(error: VfsError) -> bool {
    matches!(error, VfsError::NoXattr | VfsError::NotSupported | VfsError::Perm | VfsError::Invalid)
}

/// Returns success if the file does not exist any more.
pub(crate) fn ignore_removed(result: Result<()>) -> Result<()> {
    match result {
        Err(VfsError::Stale | VfsError::NotFound | VfsError::BadHandle) => Ok(()),
        result => result,
    }
}

/// Returns the scan of a tree: one that begins if the index is new and the tree has files, and else one that has ended.
fn scan_of(inner: &dyn Vfs, index: &Index) -> Result<Scan> {
    if index.is_complete()? {
        return Ok(Scan::default());
    }
    if !is_empty(inner)? {
        return Ok(Scan::begin());
    }
    index.set_complete()?;
    Ok(Scan::default())
}

/// Reports whether a tree has no objects but its root.
fn is_empty(inner: &dyn Vfs) -> Result<bool> {
    let root = Cred::root();
    let mut empty = true;
    inner.readdir(&Caller::blocking(&root), &inner.root(), 0, [0; 8], false, &mut |entry| {
        empty &= matches!(entry.name, b"." | b"..");
        if empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(empty)
}

fn damaged(file: &Handle, error: RecordError) -> VfsError {
    tracing::error!(?file, %error, "the attribute {ATTRIBUTE} is damaged");
    VfsError::Io
}

/// The extended attribute with the record, in class `user`.
pub const ATTRIBUTE: &str = "slipway.layout";
