//! The scan: the records of all files are read because the index is new, and the tree has files. The index was lost then, and with it
//! the objects of files and the work that an earlier process has left.
//!
//! - The index gets the objects of each file. Until the scan has ended, nothing that is missing there is taken for an answer: drains,
//!   losses and rebalancings wait, and no object is removed whose file is not known.
//! - Each file is treated as one that an earlier process has left with layouts to write: its clients are locked out, its size is taken from
//!   the objects, its copies are compared, and stale ones are made again. A file that is used before the scan reads its record is
//!   *adopted* at this time, so only one of its copies is read, and it has no layouts.
//! - A truncation that had not reached the objects is not known any more. Such a file can get its former length back.
//!
//! The end of the scan is durable. A scan that is interrupted begins again. It can miss a file that is moved meanwhile, so renames and
//! links tell it which objects have another name.
//!
//! A damaged record is an error, because it is not known which objects its file has. The scan is repeated after a pause. So is one that could
//! not read a directory.

use std::{sync::Arc, time::Duration};

use entropy::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;
use vfs::{Caller, Cred, Handle, Kind, Name, Result, VfsError};

use super::{Core, Pnfs, ignore_removed, walk::Walk};
use crate::{
    files::Place,
    index::{DIRTY, LAYOUTS, UNHEALTHY, Work},
    record::{Epochs, Object, Record},
};

/// The scan of a tree.
#[derive(Default)]
pub struct Scan(Mutex<Option<State>>);

/// A scan that has not ended.
#[derive(Default)]
struct State {
    /// The walk. `None` before it begins, and while a part of it is executed.
    walk: Option<Walk>,
    /// The files that were adopted, or have got their record, in this process: `true` if the index has their objects.
    files: HashMap<Handle, bool>,
    /// Objects that have got another name, which the walk may miss.
    moved: Vec<(Handle, Kind)>,
    status: ScanStatus,
    /// The number of records of this walk that could not be read, and the last reason.
    failed: Option<(u64, VfsError)>,
    /// The time before which a scan that has failed is not repeated.
    retry_at: Option<Instant>,
}

/// A scan of the records of all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanStatus {
    /// The number of files with data on data servers that were found.
    pub files: u64,
    /// The number of files and directories that could not be read in the last attempt, and the last reason. The scan is repeated.
    pub failed: Option<(u64, VfsError)>,
}

impl State {
    fn fail(&mut self, error: VfsError) {
        let count = self.failed.map_or(0, |(count, _)| count);
        self.failed = Some((count + 1, error));
    }

    /// Ends a walk that could not read everything.
    fn pause(&mut self) {
        tracing::error!(failed = ?self.failed, "not all layouts of files could be read; this is tried again");
        self.walk = None;
        self.status.failed = self.failed.take();
        self.retry_at = Some(Instant::now() + RETRY_PAUSE);
    }
}

impl Scan {
    /// Begins a scan.
    pub fn begin() -> Self {
        tracing::warn!(
            "the database of pNFS is new, and the export has files: the layouts of all files are read, and their copies are compared. Drains, \
             losses and rebalancings wait for the end"
        );
        Self(Mutex::new(Some(State::default())))
    }

    /// Reports whether the scan has not ended.
    pub fn is_running(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Reports whether the scan can continue now.
    pub fn is_due(&self) -> bool {
        let due = |state: &State| state.retry_at.is_none_or(|time| Instant::now() >= time);
        self.0.lock().as_ref().is_some_and(due)
    }

    /// Takes note of an object that has another name.
    pub fn note_moved(&self, object: &Handle, kind: Kind) {
        if let Some(state) = &mut *self.0.lock() {
            state.moved.push((object.clone(), kind));
        }
    }

    /// Takes note that this process stores the record of a file. Nobody has a layout of a new file that this process has not granted.
    pub fn note_stored(&self, file: &Handle) {
        if let Some(state) = &mut *self.0.lock() {
            state.files.entry(file.clone()).or_insert(false);
        }
    }

    /// Reports whether the scan runs, and a file was neither adopted nor has got its record in this process.
    fn is_unknown(&self, file: &Handle) -> bool {
        self.0.lock().as_ref().is_some_and(|state| !state.files.contains_key(file))
    }

    /// Adopts a file. Returns `false` if it is not unknown any more.
    fn adopts(&self, file: &Handle) -> bool {
        let mut state = self.0.lock();
        let files = state.as_mut().map(|state| &mut state.files).filter(|files| !files.contains_key(file));
        files.map(|files| files.insert(file.clone(), false)).is_some()
    }

    fn is_indexed(&self, file: &Handle) -> bool {
        self.0.lock().as_ref().is_none_or(|state| state.files.get(file) == Some(&true))
    }

    /// Runs a function on the state of the scan, unless it has ended.
    fn with<T>(&self, run: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.0.lock().as_mut().map(run)
    }
}

impl Pnfs {
    /// Returns the state of the scan of all records, or `None` if the index is complete.
    pub fn scan_status(&self) -> Option<ScanStatus> {
        self.0.scan.with(|state| state.status)
    }
}

impl Core {
    /// Treats a file, whose record was just read, as one that an earlier process has left with layouts, if the scan does not know it yet.
    ///
    /// # Errors
    /// Returns the errors of the inner file system if the record cannot be made durable.
    pub fn adopt(&self, file: &Handle, record: &Record) -> Result<()> {
        if !self.scan.is_unknown(file) {
            return Ok(());
        }
        // A decision that follows from a record must not outlive it.
        ignore_removed(self.inner.commit(&Caller::blocking(&Cred::root()), file, 0, 0).map(drop))?;
        if self.scan.adopts(file) {
            self.unequal.lock().insert(file.clone());
            // Without epochs, no client has ever had a layout.
            if record.epochs != Epochs::default() {
                self.unfenced.lock().insert(file.clone(), None);
            }
        }
        Ok(())
    }

    /// Takes note of a name that an object has got. The caller counts the operation as one in progress.
    pub fn note_moved(&self, directory: &Handle, name: &Name) {
        if !self.scan.is_running() {
            return;
        }
        match self.inner.find(&Caller::blocking(&Cred::root()), directory, name) {
            Ok((object, kind)) => self.scan.note_moved(&object, kind),
            // Another operation has moved it.
            Err(VfsError::NotFound | VfsError::Stale) => {}
            Err(_) => self.scan.note_moved(directory, Kind::Dir),
        }
    }

    /// Executes a part of the scan, unless it has ended.
    pub async fn scan_part(self: &Arc<Self>) {
        if self.scan.is_due() {
            // An error of the index: the next round continues.
            let _ = self.run(Core::scan_pages).await;
        }
    }

    /// Reads the records of some directories.
    ///
    /// # Errors
    /// Returns `Io` if the index cannot be changed.
    fn scan_pages(&self) -> Result<()> {
        let begin = || Walk::new(self.inner.root());
        let Some(mut walk) = self.scan.with(|state| state.walk.take().unwrap_or_else(begin)) else { return Ok(()) };
        for _ in 0..PAGES {
            let renames = self.renames.now();
            let moved = self.scan.with(|state| std::mem::take(&mut state.moved)).unwrap_or_default();
            let mut files = Vec::new();
            for (object, kind) in moved {
                match kind {
                    Kind::Dir => walk.add(object),
                    Kind::File => files.push(object),
                    _ => {}
                }
            }
            match walk.next(self) {
                Ok(Some(page)) => files.extend(page),
                Ok(None) if !files.is_empty() => {}
                // An operation in progress can give another name to an object that was not read.
                Ok(None) if !self.renames.none_since(renames) => break,
                Ok(None) => return self.end_scan(),
                Err(error) => {
                    self.scan.with(|state| {
                        state.fail(error);
                        state.pause();
                    });
                    return Ok(());
                }
            }
            self.scan_files(&files)?;
        }
        self.scan.with(|state| state.walk = Some(walk));
        Ok(())
    }

    /// Reads the records of files, and adds what they say to the index.
    ///
    /// # Errors
    /// Returns `Io` if the index cannot be changed.
    fn scan_files(&self, files: &[Handle]) -> Result<()> {
        let (mut found, mut objects, mut works) = (Vec::new(), Vec::new(), Vec::new());
        for file in files.iter().filter(|file| !self.scan.is_indexed(file)) {
            let record = match self.place_now(&self.files.get(file), true) {
                Ok(Place::Servers(record)) => record,
                Ok(Place::Inner) => continue,
                Err(error) => {
                    if ignore_removed(Err(error)).is_err() {
                        self.scan.with(|state| state.fail(error));
                    }
                    continue;
                }
            };
            objects.extend(record.copies.iter().map(|copy| (copy.object, file.clone())));
            let work = self.work_of(file, &record);
            if work != 0 {
                works.push((file.clone(), work));
            }
            found.push(file);
        }
        self.index.note(&objects)?;
        self.add_works(works)?;
        self.drop_replaced(objects)?;
        self.scan.with(|state| {
            state.status.files += found.len() as u64;
            state.files.extend(found.into_iter().map(|file| (file.clone(), true)));
        });
        Ok(())
    }

    /// Returns the work to do for a file whose record was read by the scan.
    fn work_of(&self, file: &Handle, record: &Record) -> Work {
        let unhealthy = if record.is_healthy() { 0 } else { UNHEALTHY };
        match self.is_unequal(file) {
            false => unhealthy,
            true if record.epochs == Epochs::default() => unhealthy | DIRTY,
            true => unhealthy | LAYOUTS,
        }
    }

    /// Adds the objects to the queue of removals that were replaced just before the index got them.
    ///
    /// # Errors
    /// Returns `Io`.
    fn drop_replaced(&self, objects: Vec<(Object, Handle)>) -> Result<()> {
        let is_replaced = |object: Object, file: &Handle| {
            let place = self.files.get(file).place.lock().clone();
            matches!(place, Some(Place::Servers(record)) if record.copies.iter().all(|copy| copy.object != object))
        };
        let replaced = objects.into_iter().filter(|(object, file)| is_replaced(*object, file));
        let replaced: Vec<_> = replaced.map(|(object, _)| object).collect();
        if replaced.is_empty() { Ok(()) } else { self.index.enqueue_removals(&replaced) }
    }

    /// Ends the scan, or repeats it later if a record could not be read.
    ///
    /// # Errors
    /// Returns `Io` if the end cannot be stored.
    fn end_scan(&self) -> Result<()> {
        let failed = self.scan.with(|state| state.failed.is_some().then(|| state.pause())).flatten();
        if failed.is_some() {
            return Ok(());
        }
        self.index.set_complete()?;
        let files = self.scan.0.lock().take().map(|state| state.status.files);
        tracing::warn!(files, "the layouts of all files were read, and the database of pNFS is complete");
        Ok(())
    }
}

/// The number of pages of directories that are read at a time.
const PAGES: usize = 10;
/// The time after which a scan that could not read everything is repeated.
const RETRY_PAUSE: Duration = Duration::from_secs(60);
