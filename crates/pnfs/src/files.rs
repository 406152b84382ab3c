//! The files in use: their records, their range locks, and what is known about unstable writes.

use std::sync::{
    Arc,
    atomic::{
        AtomicBool, AtomicU32, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use entropy::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;
use vfs::Handle;

use crate::{
    ranges::Ranges,
    record::{Object, Record},
    servers::WriteVerifier,
    stripes::STRIPES_MAX,
};

/// A file in use.
pub struct File {
    /// The handle of the file in the inner file system.
    pub handle: Handle,
    /// The locks on ranges. Every access to data holds one.
    pub ranges: Arc<Ranges>,
    /// The place of the data, if it is known.
    pub place: Mutex<Option<Place>>,
    /// `true` if the data are known to be on data servers, whatever the record is.
    pub spilled: AtomicBool,
    /// Held while the record is changed.
    pub changing: tokio::sync::Mutex<()>,
    /// Held while copies are made equal, made again, or moved.
    pub repairing: tokio::sync::Mutex<()>,
    /// Held while the size of the inner file is compared and set.
    pub sizing: Mutex<Sizing>,
    /// The writes to the ends of objects, which hold no lock on a range.
    pub ends: Arc<Ends>,
    /// The objects with writes that are not durable.
    pub unstable: Mutex<HashMap<Object, Unstable>>,
    /// The number of times that its copies may have become different.
    pub differences: AtomicU64,
    /// The time before which stale copies are not made again.
    pub resilver_after: Mutex<Option<Instant>>,
    /// The time before which clients get no layouts, because data servers denied them access.
    pub layouts_after: Mutex<Option<Instant>>,
    /// The operations that read data and write the same data again. No client may have a layout to write meanwhile.
    rewriting: AtomicU32,
    /// `true` if the file was written since the last round of the upkeep.
    pub active: Mutex<bool>,
    /// The stripes that had data once, as bits.
    stripes_with_data: AtomicU32,
}

const _: () = assert!(STRIPES_MAX <= u32::BITS as usize);

impl File {
    /// Reports whether a stripe is known to have had data, so that its objects exist. This is a hint: it can be `false` for a stripe that
    /// has data.
    pub fn has_data(&self, stripe: usize) -> bool {
        self.stripes_with_data.load(Relaxed) & 1 << stripe != 0
    }

    /// Begins to read data and write the same data again.
    pub fn begin_rewriting(self: &Arc<Self>) -> Rewriting {
        self.rewriting.fetch_add(1, SeqCst);
        Rewriting(self.clone())
    }

    /// Reports whether data are read and written again, so that no layout to write can be granted.
    pub fn is_rewriting(&self) -> bool {
        self.rewriting.load(SeqCst) > 0
    }

    /// Notes that a stripe has data.
    pub fn note_data(&self, stripe: usize) {
        self.stripes_with_data.fetch_or(1 << stripe, Relaxed);
    }
}

/// An operation that reads data and writes the same data again, until this is dropped.
pub struct Rewriting(Arc<File>);

impl Drop for Rewriting {
    fn drop(&mut self) {
        self.0.rewriting.fetch_sub(1, SeqCst);
    }
}

/// The changes of the size of a file by callers.
#[derive(Default)]
pub struct Sizing {
    /// The number of times that a caller has set the size of the inner file.
    pub count: u64,
    /// `true` from the time that a caller has set the size of the inner file until the objects have it, or could not get it.
    pub cutting: bool,
}

/// The place of a file's data.
#[derive(Clone)]
pub enum Place {
    /// The inner file.
    Inner,
    /// The data servers.
    Servers(Arc<Record>),
}

/// Writes to an object that are not durable.
#[derive(Clone, Copy)]
pub struct Unstable {
    /// The verifier of all of them.
    pub verifier: WriteVerifier,
    /// The number of the last one.
    pub number: u64,
}

/// Counts operations. Another operation learns by it that none of them was in progress at the same time.
#[derive(Default)]
pub struct Ends {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// An operation that is counted until this is dropped.
pub struct Ending(Arc<Ends>);

impl Ends {
    /// Begins an operation.
    pub fn begin(self: &Arc<Self>) -> Ending {
        self.begun.fetch_add(1, SeqCst);
        Ending(self.clone())
    }

    /// Returns a number for [`none_since`](Self::none_since).
    pub fn now(&self) -> u64 {
        self.ended.load(SeqCst)
    }

    /// Reports whether no operation was in progress since `now` was returned.
    pub fn none_since(&self, now: u64) -> bool {
        self.begun.load(SeqCst) == now && self.ended.load(SeqCst) == now
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

/// All files in use.
#[derive(Default)]
pub struct Files(Mutex<HashMap<Handle, Arc<File>>>);

impl Files {
    /// Returns a file. Forgets others if there are too many.
    pub fn get(&self, handle: &Handle) -> Arc<File> {
        let mut files = self.0.lock();
        if let Some(file) = files.get(handle) {
            return file.clone();
        }
        if files.len() >= FILES_MAX {
            files.retain(|_, file| Arc::strong_count(file) > 1 || !file.unstable.lock().is_empty());
        }
        let file = Arc::new(File {
            handle: handle.clone(),
            ranges: Arc::default(),
            place: Mutex::default(),
            spilled: AtomicBool::default(),
            changing: tokio::sync::Mutex::default(),
            repairing: tokio::sync::Mutex::default(),
            sizing: Mutex::default(),
            ends: Arc::default(),
            unstable: Mutex::default(),
            differences: AtomicU64::new(0),
            resilver_after: Mutex::default(),
            layouts_after: Mutex::default(),
            active: Mutex::default(),
            rewriting: AtomicU32::new(0),
            stripes_with_data: AtomicU32::new(0),
        });
        files.insert(handle.clone(), file.clone());
        file
    }
}

/// The number of files from which unused ones are forgotten.
const FILES_MAX: usize = 8192;
