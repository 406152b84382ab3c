//! A disk that the server's machine keeps while its process comes and goes. It crashes in the middle of whatever was to be
//! written, and then has what was synced, and of the rest any part. It may also be full for a while.

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

/// A disk; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    files: Vec<Content>,
    /// The file that has the name, and the one that is to have it.
    named: Option<usize>,
    new: Option<usize>,
    /// The machine has crashed while the name was being changed.
    renaming: bool,
    /// Changes and syncs so far.
    done: u64,
    /// How many there will have been when it crashes.
    crash_at: Option<u64>,
    /// Which life of the machine it is: who has opened it in an earlier one cannot reach it.
    life: u64,
    crashed: bool,
    full: bool,
    /// It says that what it has no room for is stored.
    lies: bool,
    /// It did so in this life, and has stored nothing since.
    lied: bool,
    /// Changes and syncs that failed as it was full.
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

/// The disk, as one process has it.
#[derive(Debug)]
pub struct Mounted {
    disk: Disk,
    life: u64,
}

/// A file, as one process has it.
#[derive(Debug)]
pub struct Opened {
    disk: Disk,
    life: u64,
    file: usize,
    /// What would be read.
    seen: Mutex<Vec<u8>>,
    len: AtomicU64,
}

impl Disk {
    /// As a new process finds it.
    pub fn open(&self) -> Mounted {
        let state = self.0.lock();
        let unsynced = state.files.iter().any(|file| !file.unsynced.is_empty());
        assert!(!state.crashed && !unsynced, "it is opened after it was restarted");
        Mounted { disk: self.clone(), life: state.life }
    }

    /// How many changes and syncs there were.
    pub fn done(&self) -> u64 {
        self.0.lock().done
    }

    /// Crashes at a change or sync to come, counted from the first one of all.
    pub fn crash_at(&self, number: u64) {
        self.0.lock().crash_at = Some(number);
    }

    /// Crashes now.
    pub fn crash(&self) {
        self.0.lock().crashed = true;
    }

    /// Whether it has.
    pub fn has_crashed(&self) -> bool {
        self.0.lock().crashed
    }

    /// Is full from now on, or is not any more.
    pub fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    /// Says from now on that what it has no room for is stored.
    pub fn lie(&self) {
        self.0.lock().lies = true;
    }

    /// Changes and syncs that failed as it was full.
    pub fn refused(&self) -> u64 {
        self.0.lock().refused
    }

    /// The machine comes back, if it was gone: of what was not synced, some has been written.
    pub fn restart(&self, rng: &mut StdRng) {
        let mut state = self.0.lock();
        let state = &mut *state;
        if std::mem::take(&mut state.renaming) && rng.random() {
            state.named = state.new;
        }
        // Files without a name are no more.
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

    /// Forgets everything: it was none.
    pub fn wipe(&self) {
        let mut state = self.0.lock();
        state.files.clear();
        state.named = None;
    }
}

impl State {
    /// A change or sync of one who has opened it in a life: an error if it is not made, or may not be.
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
        // It may be done all the same.
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
            // What fails may have been written all the same, or not.
            Some(_) if lost => {}
            Some(change) => unsynced.push(change),
            None if done.is_ok() => unsynced.drain(..).for_each(|change| apply(synced, change, None)),
            // As Linux does where a sync fails: nobody will write it again.
            None if lost => unsynced.clear(),
            None => {}
        }
        done
    }
}

/// Makes a change; only a part of it if there is a `torn` to choose by.
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

/// What is written whole or not at all.
const SECTOR: usize = 512;
