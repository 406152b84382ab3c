//! A disk that outlives the server's process. It can crash during any write, and then has the synced data, and any part
//! of the rest. It can also be full for a while.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use rand::{Rng, rngs::StdRng};
use server::recovery::{Storage, StorageBackend};

/// A disk. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    files: Vec<Content>,
    /// The file that has the name, and the file to which a rename moves the name.
    named: Option<usize>,
    new: Option<usize>,
    /// `true` if the machine has crashed during a rename.
    renaming: bool,
    /// The number of changes and syncs so far.
    done: u64,
    /// The number of changes and syncs at which the machine crashes.
    crash_at: Option<u64>,
    /// The number of the machine's run. A process of an earlier run cannot access the disk.
    life: u64,
    crashed: bool,
    full: bool,
    /// `true` if the disk reports success for writes that do not fit.
    lies: bool,
    /// `true` if it has done so in this run, and has stored no data since.
    lied: bool,
    /// The number of changes and syncs that failed because the disk was full.
    refused: u64,
}

#[derive(Debug, Default)]
struct Content {
    synced: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Length(u64),
    Write(u64, Vec<u8>),
}

/// The disk in the view of one process.
#[derive(Debug)]
pub struct Mounted {
    disk: Disk,
    life: u64,
}

/// A file in the view of one process.
#[derive(Debug)]
pub struct Opened {
    disk: Disk,
    life: u64,
    file: usize,
    /// The content that a read would return.
    seen: Mutex<Vec<u8>>,
    len: AtomicU64,
}

impl Disk {
    /// Opens the disk for a new process.
    pub fn open(&self) -> Mounted {
        let state = self.0.lock();
        let unsynced = state.files.iter().any(|file| !file.unsynced.is_empty());
        assert!(!state.crashed && !unsynced, "the disk must be restarted before it is opened");
        Mounted { disk: self.clone(), life: state.life }
    }

    /// Returns the number of changes and syncs so far.
    pub fn done(&self) -> u64 {
        self.0.lock().done
    }

    /// Makes the machine crash at a later change or sync, counted from the first one.
    pub fn crash_at(&self, number: u64) {
        self.0.lock().crash_at = Some(number);
    }

    /// Makes the machine crash now.
    pub fn crash(&self) {
        self.0.lock().crashed = true;
    }

    /// Returns `true` if the machine has crashed.
    pub fn has_crashed(&self) -> bool {
        self.0.lock().crashed
    }

    /// Sets whether the disk is full.
    pub fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    /// Makes the disk report success for writes that do not fit.
    pub fn lie(&self) {
        self.0.lock().lies = true;
    }

    /// Returns the number of changes and syncs that failed because the disk was full.
    pub fn refused(&self) -> u64 {
        self.0.lock().refused
    }

    /// Restarts the machine if it has crashed: a random part of the unsynced data has been written.
    pub fn restart(&self, rng: &mut StdRng) {
        let mut state = self.0.lock();
        let state = &mut *state;
        if std::mem::take(&mut state.renaming) && rng.random() {
            state.named = state.new;
        }
        // Files without a name are removed.
        let named = state.named.take().map(|named| state.files.swap_remove(named));
        state.files = named.into_iter().collect();
        state.named = (!state.files.is_empty()).then_some(0);
        for Content { synced, unsynced } in &mut state.files {
            for change in unsynced.drain(..) {
                if rng.random() {
                    apply(synced, change, Some(rng));
                }
            }
        }
        (state.new, state.crashed, state.crash_at) = (None, false, None);
        (state.full, state.lied) = (false, false);
        state.life += 1;
    }

    /// Erases the disk.
    pub fn wipe(&self) {
        let mut state = self.0.lock();
        state.files.clear();
        state.named = None;
    }
}

impl State {
    /// Counts a change or sync of a process from a run. Returns an error if it fails, or if it may not happen.
    fn step(&mut self, life: u64) -> io::Result<()> {
        self.done += 1;
        self.crashed |= self.crash_at == Some(self.done);
        if self.crashed || self.life != life {
            return Err(io::Error::other("the machine has crashed"));
        }
        self.lied |= self.full && self.lies;
        if self.full && !self.lies {
            self.refused += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl Mounted {
    fn opened(&self, file: usize, seen: Vec<u8>) -> Opened {
        let len = AtomicU64::new(seen.len() as u64);
        Opened { disk: self.disk.clone(), life: self.life, file, seen: Mutex::new(seen), len }
    }
}

impl Storage for Mounted {
    type File = Opened;

    fn open(&self) -> io::Result<Option<Opened>> {
        let state = self.disk.0.lock();
        Ok(state.named.map(|file| self.opened(file, state.files[file].synced.clone())))
    }

    fn begin(&self) -> io::Result<Opened> {
        let mut state = self.disk.0.lock();
        state.step(self.life)?;
        state.files.push(Content::default());
        let file = state.files.len() - 1;
        state.new = Some(file);
        Ok(self.opened(file, Vec::new()))
    }

    fn replace(&self) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        let done = state.step(self.life);
        // The operation may have been executed nevertheless.
        match &done {
            Ok(()) if state.lied => {}
            Ok(()) => state.named = state.new,
            Err(_) if state.life != self.life => {}
            Err(_) if state.crashed => state.renaming = true,
            Err(_) if state.done.is_multiple_of(2) => state.named = state.new,
            Err(_) => {}
        }
        done
    }
}

impl Opened {
    fn change(&self, change: Option<Change>) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        let done = state.step(self.life);
        if state.life != self.life || state.lied {
            return done;
        }
        let lost = !state.crashed && done.is_err() && state.done.is_multiple_of(2);
        let Content { synced, unsynced } = &mut state.files[self.file];
        match change {
            // A failed change may or may not have been written.
            Some(_) if lost => {}
            Some(change) => unsynced.push(change),
            None if done.is_ok() => unsynced.drain(..).for_each(|change| apply(synced, change, None)),
            // As on Linux after a failed sync: the data are never written again.
            None if lost => unsynced.clear(),
            None => {}
        }
        done
    }
}

/// Makes a change, or only a part of it if there is `torn`, which selects the part.
fn apply(content: &mut Vec<u8>, change: Change, torn: Option<&mut StdRng>) {
    match change {
        Change::Length(len) => content.resize(len as usize, 0),
        Change::Write(offset, mut data) => {
            if let Some(rng) = torn {
                let sectors = rng.random_range(0..=data.len().div_ceil(SECTOR));
                data.truncate(sectors * SECTOR);
            }
            let (start, end) = (offset as usize, offset as usize + data.len());
            content.resize(content.len().max(end), 0);
            content[start..end].copy_from_slice(&data);
        }
    }
}

impl StorageBackend for Opened {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len.load(Relaxed))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (seen, start) = (self.seen.lock(), offset as usize);
        let from = seen.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Some(Change::Length(len)))?;
        self.seen.lock().resize(len as usize, 0);
        self.len.store(len, Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(None)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Some(Change::Write(offset, data.to_vec())))?;
        apply(&mut self.seen.lock(), Change::Write(offset, data.to_vec()), None);
        Ok(())
    }
}

/// The unit of atomic writes.
const SECTOR: usize = 512;
