//! A disk that the server's machine keeps while its process comes and goes. It crashes in the middle of whatever was to be
//! written, and then has what was synced, and of the rest any part.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use rand::{Rng, rngs::StdRng};
use server::recovery::StorageBackend;

/// A disk; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    synced: Vec<u8>,
    unsynced: Vec<Change>,
    /// Changes and syncs so far.
    done: u64,
    /// How many there will have been when it crashes.
    crash_at: Option<u64>,
    /// Which life of the machine it is: who has opened it in an earlier one cannot reach it.
    life: u64,
    crashed: bool,
}

#[derive(Clone, Debug)]
enum Change {
    Length(u64),
    Write(u64, Vec<u8>),
}

/// The disk, as one process has it.
#[derive(Debug)]
pub struct Opened {
    disk: Disk,
    life: u64,
    /// What would be read.
    seen: Mutex<Vec<u8>>,
    len: AtomicU64,
}

impl Disk {
    /// As a new process finds it.
    pub fn open(&self) -> Opened {
        let state = self.0.lock();
        assert!(!state.crashed && state.unsynced.is_empty(), "it is opened after it was restarted");
        let (seen, len) = (Mutex::new(state.synced.clone()), AtomicU64::new(state.synced.len() as u64));
        Opened { disk: self.clone(), life: state.life, seen, len }
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

    /// The machine comes back, if it was gone: of what was not synced, some has been written.
    pub fn restart(&self, rng: &mut StdRng) {
        let mut state = self.0.lock();
        let state = &mut *state;
        for change in state.unsynced.drain(..) {
            if rng.random() {
                apply(&mut state.synced, change, Some(rng));
            }
        }
        (state.crashed, state.crash_at) = (false, None);
        state.life += 1;
    }

    /// Forgets everything: it was none.
    pub fn wipe(&self) {
        let mut state = self.0.lock();
        state.synced.clear();
        state.unsynced.clear();
    }
}

impl Opened {
    fn change(&self, change: Option<Change>) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.done += 1;
        state.crashed |= state.crash_at == Some(state.done);
        let gone = state.crashed || state.life != self.life;
        match change {
            // It may have been written all the same.
            Some(change) if state.life == self.life => state.unsynced.push(change),
            None if !gone => {
                let State { synced, unsynced, .. } = &mut *state;
                unsynced.drain(..).for_each(|change| apply(synced, change, None));
            }
            _ => {}
        }
        if gone { Err(io::Error::other("the machine has crashed")) } else { Ok(()) }
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
