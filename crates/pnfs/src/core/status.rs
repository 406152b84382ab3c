//! What an administrator sees and decides: the data servers, the copies to repair, and where the data of a file are.
//!
//! These functions wait for the inner file system and the database.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use entropy::HashMap;
use vfs::{Caller, Cred, Handle, Name, Result, VfsError, layout::LayoutModes};

use super::{Core, Pnfs};
use crate::{
    files::{File, Place},
    index::UNHEALTHY,
    record::{CopyState, Record, ServerId},
    services::Service,
};

/// A data server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Its number.
    pub id: ServerId,
    /// The administrator's decision about it.
    pub service: Service,
    /// The seconds since its last operation failed, if the last one did.
    pub failing_s: Option<u64>,
    /// The number of its objects that files use.
    pub objects: u64,
    /// The number of stale copies on it, and of those that are being made.
    pub stale: u64,
    /// For a data server out of service: `true` if all its objects were examined since its state was set.
    pub examined: bool,
    /// The number of copies that could not be moved, and the last reason.
    pub unmovable: Option<(u64, VfsError)>,
    /// The number of files whose last copy in sync was on it, if it is lost.
    pub lost: u64,
    /// The file numbers of some of these files.
    pub lost_files: Vec<u64>,
}

/// The copies to repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Files with stale copies that can be made again.
    pub files: u64,
    /// These copies.
    pub copies: u64,
    /// Copies to move from draining data servers.
    pub moves: u64,
    /// Files whose copies may differ after a failure, and are compared.
    pub compared: u64,
    /// Objects on lost data servers that were not examined yet.
    pub unexamined: u64,
    /// `true` until the records of all files were read, if the index was lost. The other numbers are too small then.
    pub scanning: bool,
    /// Files whose last copy in sync was on a data server that is lost.
    pub lost: u64,
    /// Objects in the queue of removals: those of removed files, and those of new files, which stay there for a moment.
    pub removals: u64,
    /// The bytes to copy. `None` if the copies are too many to add them up.
    pub bytes: Option<u64>,
    /// The bytes that were copied since the start.
    pub copied: u64,
}

impl Repairs {
    /// Reports whether nothing is left to do. Files that have lost their last copy cannot be repaired.
    pub fn is_done(&self) -> bool {
        self.files == 0 && self.moves == 0 && self.compared == 0 && self.unexamined == 0 && !self.scanning
    }
}

/// A regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// The file number.
    pub fileid: u64,
    /// The size in bytes.
    pub size: u64,
    /// The copies on data servers. `None` if the data are in the inner file system.
    pub record: Option<Arc<Record>>,
    /// `true` if the copies may differ, and will be compared.
    pub unequal: bool,
    /// The number of layouts that clients hold, and their modes.
    pub layouts: (usize, LayoutModes),
}

/// The reason why the state of a data server cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetServiceError {
    /// There is no such data server.
    Unknown,
    /// Too few data servers would be left for the objects of a file.
    TooFew {
        /// The number of those left.
        left: usize,
        /// The number that a new file needs.
        needed: usize,
    },
    /// It is lost, so nothing can be moved.
    Lost,
    /// The database failed.
    Database,
}

impl Pnfs {
    /// Returns the data servers, in the order of their numbers.
    ///
    /// # Errors
    /// Returns the errors of the inner file system and of the index.
    pub fn server_list(&self) -> Result<Vec<ServerStatus>> {
        let core = &self.0;
        let mut stale: HashMap<ServerId, u64> = HashMap::default();
        for (_, record) in core.unhealthy()? {
            let copies = record.copies.iter().filter(|copy| copy.state != CopyState::InSync);
            copies.for_each(|copy| *stale.entry(copy.object.server).or_default() += 1);
        }
        let out = core.services.out_of_service().into_iter().map(|(server, _)| server);
        let mut servers: Vec<_> = core.services.configured().into_iter().chain(out).collect();
        servers.sort_unstable();
        servers.dedup();
        let status = |id: ServerId| {
            let last = core.drains.of(id).last;
            let (examined, last) = (last.is_some(), last.unwrap_or_default());
            let number = |file: &Handle| core.inner.getattr(&Caller::blocking(&Cred::root()), file);
            let since = core.failing.lock().since(id);
            Ok(ServerStatus {
                id,
                service: core.services.of(id),
                failing_s: since.map(|since| since.elapsed().as_secs()),
                objects: core.index.count_on(id)?,
                stale: stale.get(&id).copied().unwrap_or(0),
                examined,
                unmovable: last.error.map(|error| (last.failed, error)),
                lost: last.lost,
                lost_files: last.files.iter().filter_map(|file| Some(number(file).ok()?.fileid)).collect(),
            })
        };
        servers.into_iter().map(status).collect()
    }

    /// Returns what an administrator has decided about a data server.
    pub fn service(&self, server: ServerId) -> Service {
        self.0.services.of(server)
    }

    /// Checks that [`set_service`](Self::set_service) is possible.
    ///
    /// # Errors
    /// Returns the reason why it is not.
    pub fn check_service(&self, server: ServerId, service: Service) -> std::result::Result<(), SetServiceError> {
        let core = &self.0;
        let former = core.services.of(server);
        // Files can have copies on a data server that was removed from the configuration.
        let known = core.services.configured().contains(&server) || former != Service::Active;
        if !known && core.index.count_on(server).map_err(|_| SetServiceError::Database)? == 0 {
            return Err(SetServiceError::Unknown);
        }
        if service == Service::Draining {
            let left = core.services.active().into_iter().filter(|active| *active != server).count();
            let needed = core.options.mirrors.max(core.options.stripes.count());
            match former {
                Service::Lost => return Err(SetServiceError::Lost),
                _ if left < needed => return Err(SetServiceError::TooFew { left, needed }),
                _ => {}
            }
        }
        Ok(())
    }

    /// Sets the state of a data server durably. The upkeep then moves its copies, or marks them as stale.
    ///
    /// # Errors
    /// See [`check_service`](Self::check_service).
    pub fn set_service(&self, server: ServerId, service: Service) -> std::result::Result<(), SetServiceError> {
        self.check_service(server, service)?;
        let core = &self.0;
        if !core.services.is_set(server, service) {
            core.services.set(&core.index, server, service).map_err(|_| SetServiceError::Database)?;
            core.drains.restart(server);
            if service == Service::Lost {
                // New objects are placed elsewhere, also if there are too few data servers.
                core.failing.lock().insert(server);
            }
            tracing::warn!(server = server.0, ?service, "an administrator has set the state of a data server");
        }
        core.wake.notify_one();
        Ok(())
    }

    /// Returns the copies to repair.
    ///
    /// # Errors
    /// Returns the errors of the inner file system and of the index.
    pub fn repairs(&self) -> Result<Repairs> {
        let core = &self.0;
        let (copied, scanning) = (core.drains.copied.load(Relaxed), core.scan.is_running());
        let mut repairs = Repairs { copied, scanning, removals: core.index.count_removals()?, ..Repairs::default() };
        let (mut bytes, mut counted) = (0, 0);
        let mut add = |file: &Handle, copies: u64| {
            counted += 1;
            if counted <= SIZED_MAX {
                bytes += core.bytes_left(file).saturating_mul(copies);
            }
        };
        for (file, record) in core.unhealthy()? {
            let copies = record.copies.len() - record.in_sync().count();
            if copies > 0 && !core.is_lost(&record) {
                repairs.files += 1;
                repairs.copies += copies as u64;
                add(&file, copies as u64);
            }
        }
        for (server, service) in core.services.out_of_service() {
            let last = core.drains.of(server).last;
            match service {
                Service::Draining => {
                    repairs.moves += core.index.count_on(server)?;
                    let objects = core.index.objects_on(server, None, SIZED_MAX + 1)?;
                    objects.iter().for_each(|(_, file)| add(file, 1));
                }
                Service::Lost if last.is_none() => repairs.unexamined += core.index.count_on(server)?,
                _ => repairs.lost += last.map_or(0, |last| last.lost),
            }
        }
        repairs.bytes = (counted <= SIZED_MAX).then_some(bytes);
        let unequal: Vec<Handle> = core.unequal.lock().iter().cloned().collect();
        let lost = |file: &Handle| match core.place_now(&core.files.get(file), true) {
            Ok(Place::Servers(record)) => core.is_lost(&record),
            _ => false,
        };
        repairs.compared = unequal.iter().filter(|file| !lost(file)).count() as u64;
        Ok(repairs)
    }

    /// Returns where the data of a regular file are. The path begins at the root.
    ///
    /// # Errors
    /// Returns `Invalid` if it is no regular file, and the errors of the inner file system.
    pub fn file_status(&self, path: &[u8]) -> Result<FileStatus> {
        let core = &self.0;
        let root = Cred::root();
        let caller = Caller::blocking(&root);
        let mut handle = core.inner.root();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            handle = core.inner.lookup(&caller, &handle, Name::new(name)?)?.0;
        }
        let attr = core.inner.getattr(&caller, &handle)?;
        if attr.kind != vfs::Kind::File {
            return Err(VfsError::Invalid);
        }
        let record = match core.place_now(&core.files.get(&handle), true)? {
            Place::Inner => None,
            Place::Servers(record) => Some(record),
        };
        Ok(FileStatus {
            fileid: attr.fileid,
            size: attr.size,
            record,
            unequal: core.is_unequal(&handle),
            layouts: core.holders.count(&handle),
        })
    }
}

impl Core {
    /// Returns the files that have stale copies, with their records. Those that do not exist any more are left out.
    fn unhealthy(&self) -> Result<Vec<(Handle, Arc<Record>)>> {
        let work = self.work.lock();
        let files = work.iter().filter(|(_, work)| **work & UNHEALTHY != 0);
        let files: Vec<Handle> = files.map(|(file, _)| file.clone()).collect();
        drop(work);
        let mut unhealthy = Vec::new();
        for handle in files {
            match self.place_now(&self.files.get(&handle), true) {
                Ok(Place::Servers(record)) => unhealthy.push((handle, record)),
                Ok(Place::Inner) | Err(VfsError::Stale | VfsError::NotFound | VfsError::BadHandle) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(unhealthy)
    }

    /// Returns the bytes of a file that are still to be copied to one new copy.
    fn bytes_left(&self, file: &Handle) -> u64 {
        let stripes = match self.place_now(&self.files.get(file), true) {
            Ok(Place::Servers(record)) => record.stripes.count() as u64,
            _ => 1,
        };
        let size = self.size_of(file).unwrap_or(0);
        let left = match &*self.drains.current.lock() {
            Some((current, copied)) if current == file => size.saturating_sub(*copied),
            _ => size,
        };
        left.div_ceil(stripes)
    }

    /// Notes that a file was copied to a new copy up to `end`.
    pub fn note_copied(&self, file: &File, end: u64, bytes: u64) {
        self.drains.copied.fetch_add(bytes, Relaxed);
        *self.drains.current.lock() = Some((file.handle.clone(), end));
    }
}

impl fmt::Display for SetServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no such data server"),
            Self::TooFew { left, needed } => write!(
                f,
                "{left} other data servers would be in service, and new files need {needed} (`mirrors`, `stripes`): add a \
                 [[pnfs.server]] first"
            ),
            Self::Lost => f.write_str("it is lost, so nothing can be moved from it; `undrain` returns it to service"),
            Self::Database => f.write_str("the database cannot be written"),
        }
    }
}

impl std::error::Error for SetServiceError {}

/// The number of copies whose bytes are added up.
const SIZED_MAX: usize = 10_000;
