//! [`Fences`]: what a data server must know about objects besides their data: the epochs of fenced ones, and which were removed.
//!
//! Only objects that were fenced, or removed not long ago, have an entry. All of it is durable, and in memory, because each operation
//! of a client asks for it.

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use entropy::HashMap;
use parking_lot::{Mutex, RwLock};
use redb::{ReadableTable, StorageBackend, TableDefinition};
use vfs::Result;

use super::handle::StoreId;
use crate::{
    database::{ChangeError, Database},
    record::Epochs,
};

/// The epochs and the removals of a store.
pub struct Fences {
    database: Database,
    entries: RwLock<HashMap<u128, Entry>>,
    /// Held while the database is changed. Operations of clients do not wait for that.
    changing: Mutex<()>,
    /// The time of the last [`expire`](Self::expire).
    expired_at: AtomicU64,
}

/// The state of an object.
#[derive(Clone, Copy, Default)]
struct Entry {
    /// The least epochs that clients need.
    epochs: Epochs,
    /// The time of its removal, in seconds since 1970. 0 if it was not removed.
    removed: u64,
}

impl Fences {
    /// Opens the database in a file, and creates it if necessary.
    ///
    /// # Errors
    /// Returns an error if the file cannot be used.
    pub fn open(path: &Path) -> io::Result<Self> {
        Database::open(path, create_tables).and_then(Self::load)
    }

    /// Opens the database on this storage.
    ///
    /// # Errors
    /// Returns an error if the storage fails or its contents are damaged.
    pub fn with_backend(backend: impl StorageBackend) -> io::Result<Self> {
        Database::with_backend(backend, create_tables).and_then(Self::load)
    }

    fn load(database: Database) -> io::Result<Self> {
        let entries = database.read(|tables| {
            let table = tables.open_table(ENTRIES)?;
            let entry = |(writers, readers, removed)| Entry { epochs: Epochs { writers, readers }, removed };
            let all = table.iter()?.map(|found| found.map(|(object, found)| (object.value(), entry(found.value()))));
            Ok(all.collect::<std::result::Result<_, _>>()?)
        });
        let entries = entries.map_err(|_| io::Error::other("the database cannot be read"))?;
        Ok(Self { database, entries: RwLock::new(entries), changing: Mutex::default(), expired_at: AtomicU64::new(0) })
    }

    /// Returns the identity of the store, if there is one.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn store(&self) -> Result<Option<StoreId>> {
        self.database.read(|tables| Ok(tables.open_table(STORE)?.get(())?.map(|id| StoreId(id.value()))))
    }

    /// Sets the identity of the store, and forgets everything about objects of a former one.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn set_store(&self, store: StoreId) -> Result<()> {
        let _changing = self.changing.lock();
        self.database.change(|tables| {
            tables.open_table(STORE)?.insert((), store.0)?;
            tables.open_table(ENTRIES)?.retain(|_, _| false)?;
            Ok(())
        })?;
        self.entries.write().clear();
        Ok(())
    }

    /// Returns the least epochs that clients of an object need.
    pub fn epochs(&self, object: u128) -> Epochs {
        self.entries.read().get(&object).map_or(Epochs::default(), |entry| entry.epochs)
    }

    /// Reports whether an object was removed, and must not be created again.
    pub fn is_removed(&self, object: u128) -> bool {
        self.entries.read().get(&object).is_some_and(|entry| entry.removed != 0)
    }

    /// Raises the epochs of an object, durably. An epoch that is higher already stays: an earlier call can arrive late.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn raise(&self, object: u128, epochs: Epochs) -> Result<()> {
        self.set(object, |entry| {
            entry.epochs.writers = entry.epochs.writers.max(epochs.writers);
            entry.epochs.readers = entry.epochs.readers.max(epochs.readers);
        })
    }

    /// Notes durably that an object is removed `now`, in seconds since 1970.
    ///
    /// # Errors
    /// Returns `Io`.
    pub fn remove(&self, object: u128, now: u64) -> Result<()> {
        self.set(object, |entry| entry.removed = now.max(1))?;
        self.expire(now)
    }

    fn set(&self, object: u128, change: impl FnOnce(&mut Entry)) -> Result<()> {
        let _changing = self.changing.lock();
        let former = self.entries.read().get(&object).copied().unwrap_or_default();
        let mut entry = former;
        change(&mut entry);
        if (entry.epochs, entry.removed) == (former.epochs, former.removed) {
            return Ok(());
        }
        let Entry { epochs, removed } = entry;
        self.database.change(|tables| {
            tables.open_table(ENTRIES)?.insert(object, (epochs.writers, epochs.readers, removed))?;
            Ok(())
        })?;
        self.entries.write().insert(object, entry);
        Ok(())
    }

    /// Forgets objects that were removed long ago: no handle can create them any more. Does this once in an hour at most.
    fn expire(&self, now: u64) -> Result<()> {
        let former = self.expired_at.load(Relaxed);
        let is_due = now.abs_diff(former) >= EXPIRE_INTERVAL_S;
        if !is_due || self.expired_at.compare_exchange(former, now, Relaxed, Relaxed).is_err() {
            return Ok(());
        }
        let _changing = self.changing.lock();
        let is_old = |entry: &Entry| entry.removed != 0 && entry.removed.saturating_add(REMOVED_S) < now;
        let of = |(object, entry): (&u128, &Entry)| is_old(entry).then_some(*object);
        let old: Vec<_> = self.entries.read().iter().filter_map(of).collect();
        self.database.change(|tables| {
            let mut table = tables.open_table(ENTRIES)?;
            for object in &old {
                table.remove(object)?;
            }
            Ok(())
        })?;
        self.entries.write().retain(|_, entry| !is_old(entry));
        Ok(())
    }
}

fn create_tables(tables: &redb::WriteTransaction) -> std::result::Result<(), ChangeError> {
    tables.open_table(STORE)?;
    tables.open_table(ENTRIES)?;
    Ok(())
}

/// The identity of the store.
const STORE: TableDefinition<'_, (), [u8; 16]> = TableDefinition::new("store");
/// Object → (epoch of writers, epoch of readers, time of the removal).
const ENTRIES: TableDefinition<'_, u128, (u32, u32, u64)> = TableDefinition::new("objects");
/// The seconds for which a removed object is remembered. A handle creates its object for [`CREATE_S`](super::CREATE_S) only, and clocks
/// of the servers must not differ by more than the rest.
const REMOVED_S: u64 = 24 * 3600;
const EXPIRE_INTERVAL_S: u64 = 3600;

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(writers: u32, readers: u32) -> Epochs {
        Epochs { writers, readers }
    }

    #[test]
    fn epochs_never_fall_and_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("objects.redb");
        let fences = Fences::open(&path).unwrap();
        assert_eq!(fences.epochs(1), epochs(0, 0));
        fences.raise(1, epochs(3, 1)).unwrap();
        fences.raise(1, epochs(2, 4)).unwrap();
        assert_eq!(fences.epochs(1), epochs(3, 4), "an older fence arrives late");
        drop(fences);
        let fences = Fences::open(&path).unwrap();
        assert_eq!((fences.epochs(1), fences.epochs(2)), (epochs(3, 4), epochs(0, 0)));
        assert_eq!(fences.store(), Ok(None));
        fences.set_store(StoreId([5; 16])).unwrap();
        drop(fences);
        let fences = Fences::open(&path).unwrap();
        assert_eq!((fences.store(), fences.epochs(1)), (Ok(Some(StoreId([5; 16]))), epochs(0, 0)));
    }

    #[test]
    fn removed_objects_are_forgotten_after_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("objects.redb");
        let fences = Fences::open(&path).unwrap();
        fences.raise(2, epochs(1, 1)).unwrap();
        let start = 1_000_000;
        fences.remove(1, start).unwrap();
        assert!(fences.is_removed(1) && !fences.is_removed(2));
        fences.remove(3, start + REMOVED_S).unwrap();
        assert!(fences.is_removed(1), "a day has not passed");
        fences.remove(4, start + REMOVED_S + EXPIRE_INTERVAL_S).unwrap();
        assert!(!fences.is_removed(1) && fences.is_removed(3) && fences.is_removed(4));
        assert_eq!(fences.epochs(2), epochs(1, 1), "an object that exists keeps its epochs");
        drop(fences);
        let fences = Fences::open(&path).unwrap();
        assert!(!fences.is_removed(1) && fences.is_removed(3) && fences.is_removed(4));
    }
}
